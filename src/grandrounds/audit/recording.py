"""Whether a run can keep a ledger: on a machine without `cryptography` or `rfc8785` it goes on without, and says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grandrounds.arrays import Array
from grandrounds.engine.local import LocalEngine
from grandrounds.methods.base import Round
from grandrounds.methods.served import Served
from grandrounds.models.calibrated import Calibration

if TYPE_CHECKING:
    from grandrounds.settings import Settings

NEEDED = ("cryptography", "rfc8785")


class Recording(Protocol):
    """What a run tells its ledger."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def begin(self, records: Sequence[Mapping[str, Any]]) -> None: ...

    def watched(self, work: Round) -> Round: ...

    def facts(self, round: int, served: Served, explanation: Mapping[str, Any] | None) -> dict[str, Any]: ...

    def enter(self, record: Mapping[str, Any]) -> None: ...

    def end(self, model: Array, *, round: int, calibration: Calibration | None, files: Sequence[Path]) -> None: ...

    def close(self) -> None: ...


class NoLedger:
    """The same for a run that keeps none."""

    def __init__(self, why: str) -> None:
        self.warnings = (why,)

    def begin(self, records: Sequence[Mapping[str, Any]]) -> None: ...

    def watched(self, work: Round) -> Round:
        return work

    def facts(self, round: int, served: Served, explanation: Mapping[str, Any] | None) -> dict[str, Any]:
        return {}

    def enter(self, record: Mapping[str, Any]) -> None: ...

    def end(self, model: Array, *, round: int, calibration: Calibration | None, files: Sequence[Path]) -> None: ...

    def close(self) -> None: ...


def recording(
    plan: Settings,
    engine: LocalEngine,
    folder: Path,
    *,
    sites: tuple[str, ...],
    reference: Mapping[str, str],
) -> Recording:
    """The ledger of a run; `plan` as the run folder has it, `reference`: the hashes of reference sets by name."""
    missing = [name for name in NEEDED if not _is_here(name)]
    if missing:
        return NoLedger(f"this run keeps no ledger, because {' and '.join(missing)} cannot be imported here")
    from grandrounds.audit.recorder import Recorder

    return Recorder(engine, folder, plan.seed, sites, reference, plan.plain())


def _is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
