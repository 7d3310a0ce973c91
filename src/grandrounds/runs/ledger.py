"""Open the ledger of a run. Without the packages `cryptography` or `rfc8785` a run has no ledger, and a warning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grandrounds.audit.files import FinalFiles
from grandrounds.core.arrays import Array
from grandrounds.core.packages import NEEDED_PACKAGES, is_installed
from grandrounds.core.records import RoundRecord
from grandrounds.engine.driver import Engine
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Round
from grandrounds.models.protocol import Calibration
from grandrounds.report.provenance import LedgerState

if TYPE_CHECKING:
    from grandrounds.core.plan_types import Plan
    from grandrounds.protocol.identity import Signers

SERVER = "server"
"""The name of the key that signs entries and heads."""


class Recording(Protocol):
    """Interface between a run and its ledger."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def begin(self, records: Sequence[RoundRecord]) -> None: ...

    def watched(self, work: Round) -> Round: ...

    def facts(self, round: int, served: ModelAssignment, explanation: Mapping[str, object] | None) -> dict[str, object]: ...

    def enter(self, record: RoundRecord) -> None: ...

    def standing(self) -> LedgerState | None: ...

    def rounds_written(self) -> dict[str, int]: ...

    def end(
        self,
        model: Array,
        *,
        round: int,
        calibration: Calibration | None,
        ended: FinalFiles,
        released: Sequence[Mapping[str, object]] = (),
    ) -> None: ...

    def close(self) -> None: ...


class NoLedger:
    """The ledger of a run that has none."""

    def __init__(self, why: str) -> None:
        self.warnings = (why,)

    def begin(self, records: Sequence[RoundRecord]) -> None: ...

    def watched(self, work: Round) -> Round:
        return work

    def facts(self, round: int, served: ModelAssignment, explanation: Mapping[str, object] | None) -> dict[str, object]:
        return {}

    def enter(self, record: RoundRecord) -> None: ...

    def standing(self) -> LedgerState | None:
        return None

    def rounds_written(self) -> dict[str, int]:
        return {}

    def end(
        self,
        model: Array,
        *,
        round: int,
        calibration: Calibration | None,
        ended: FinalFiles,
        released: Sequence[Mapping[str, object]] = (),
    ) -> None: ...

    def close(self) -> None: ...


def open_ledger(
    plan: Plan,
    engine: Engine,
    folder: Path,
    *,
    sites: tuple[str, ...],
    reference: Mapping[str, str],
    signers: Callable[[tuple[str, ...]], Signers] | None = None,
) -> Recording:
    """Open the ledger of a run; `plan` as in the run folder, `reference`: hashes of reference sets by name.

    `signers` returns the keys, given the sites. In a simulation all keys follow from the seed, and the ledger records that.
    """
    missing = [name for name in NEEDED_PACKAGES if not is_installed(name)]
    if missing:
        return NoLedger(f"this run has no ledger, because {' and '.join(missing)} cannot be imported here")
    from grandrounds.runs.ledger_recorder import Recorder

    signed = simulated_signers(plan.seed, sites) if signers is None else signers(sites)
    return Recorder(engine, folder, signed, reference, plan.plain())


def simulated_signers(seed: int, sites: Sequence[str]) -> Signers:
    """Return the keys of a simulation."""
    from grandrounds.audit.entry import SIMULATED
    from grandrounds.protocol.identity import Identity, Signers

    keys = {site: Identity.simulated(seed, site).public for site in sites}
    return Signers(Identity.simulated(seed, SERVER), keys, SIMULATED)
