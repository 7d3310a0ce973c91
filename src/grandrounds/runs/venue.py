"""Where a run takes place: on one machine that holds all hospitals' rows, or at the hospitals themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grandrounds.core.plan_types import Plan
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.engine.driver import Engine
from grandrounds.engine.local import LocalEngine
from grandrounds.runs.federation import Consortium, assemble
from grandrounds.runs.ledger import simulated_signers
from grandrounds.runs.setup import engine_settings

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Signers


class Venue(Protocol):
    """What a run needs to know of the place."""

    @property
    def simulated(self) -> bool:
        """Whether keys and noise follow from the seed."""
        ...

    def assemble(self, plan: Plan) -> Consortium:
        """The sites that take part, and what the server holds itself."""
        ...

    def engine(self, plan: Plan, consortium: Consortium) -> Engine:
        """What drives methods there."""
        ...

    def signers(self, plan: Plan, sites: Sequence[str]) -> Signers:
        """Who signs the ledger."""
        ...

    def secret(self, plan: Plan) -> Secret | None:
        """What a trusted server's noise comes from; None: from the seed."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


@dataclass(frozen=True)
class Simulation:
    """All sites in this process. `given`: rows from memory; `at_sites`: the folder for what would stay at sites."""

    given: Table | ImageSet | None
    at_sites: Path
    simulated: bool = True

    def assemble(self, plan: Plan) -> Consortium:
        return assemble(plan, self.given)

    def engine(self, plan: Plan, consortium: Consortium) -> Engine:
        engine = LocalEngine(consortium.stack, engine_settings(plan, consortium.stack.names))
        for host in engine.hosts:
            host.maps.files.folder = self.at_sites
        return engine

    def signers(self, plan: Plan, sites: Sequence[str]) -> Signers:
        return simulated_signers(plan.seed, sites)

    def secret(self, plan: Plan) -> Secret | None:
        return None

    def close(self) -> None:
        return None
