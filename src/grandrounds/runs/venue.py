"""Venue of a run: a simulation on one machine with the rows of all hospitals, or a deployment at hospitals."""

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
    """Interface of a venue."""

    @property
    def simulated(self) -> bool:
        """True where keys and noise follow from the seed."""
        ...

    def assemble(self, plan: Plan) -> Consortium:
        """Return the sites, and the rows of the server."""
        ...

    def engine(self, plan: Plan, consortium: Consortium) -> Engine:
        """Return the engine that drives methods."""
        ...

    def signers(self, plan: Plan, sites: Sequence[str]) -> Signers:
        """Return the keys that sign the ledger."""
        ...

    def secret(self, plan: Plan) -> Secret | None:
        """Return the secret that generates a trusted server's noise; None uses the seed."""
        ...

    def close(self) -> None:
        """End the run."""
        ...


@dataclass(frozen=True)
class Simulation:
    """All sites in this process. `given`: rows in memory; `at_sites`: the folder of files that real sites would keep."""

    given: Table | ImageSet | None
    at_sites: Path
    simulated: bool = True

    def assemble(self, plan: Plan) -> Consortium:
        return assemble(plan, self.given)

    def engine(self, plan: Plan, consortium: Consortium) -> Engine:
        engine = LocalEngine(consortium.stack, engine_settings(plan, consortium.stack.names))
        for host in engine.hosts:
            host.maps.files.folder = self.at_sites
            host.keep_personal(self.at_sites)
        return engine

    def signers(self, plan: Plan, sites: Sequence[str]) -> Signers:
        return simulated_signers(plan.seed, sites)

    def secret(self, plan: Plan) -> Secret | None:
        return None

    def close(self) -> None:
        return None
