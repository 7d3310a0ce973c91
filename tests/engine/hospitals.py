"""An experiment twice: all hospitals in one process, and each behind a keeper that is sent messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.hospital.deployment import Deployment
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.rules import Cells, Exact, Policy, Reports
from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.core.arrays import load
from grandrounds.core.plan import Settings
from grandrounds.core.sources import AT_SITES
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.engine.dispatcher import Timeouts
from grandrounds.experiment.experiment import Experiment
from grandrounds.protocol.identity import Identity
from grandrounds.runs.federation import assemble
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.ledger import SERVER
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan
from tests.engine.memory_transport import MemoryTransport, simulated_keeper

PLAIN = AccessControl(
    Policy(cells=Cells(smallest=1), reports=Reports(notes=True), exact=Exact(most_ratio=1e6, most_ratio_clear=1e6))
)
"""A policy that takes nothing away from answers, so that they are those of a simulation."""

QUICK = Timeouts(answer=20.0, absent=0.3, retry=0.02, poll=0.02)


@dataclass
class Hospitals:
    """A plan for a simulation, the same for hospitals, and each hospital's own rows."""

    plan: dict[str, Any]
    at_sites: dict[str, Any]
    rows: dict[str, Table | ImageSet]

    @classmethod
    def of(cls, table: Table | ImageSet, **settings: Any) -> Hospitals:
        """`settings`: sections of an experiment on this table, whose column data.site names the hospital."""
        plan = Experiment.parse(settings).plan()
        held = assemble(Settings(plan), table)
        site = held.data.site
        rows = {name: table.take(np.flatnonzero(site == name)) for name in held.stack.names}
        data = {**plan["data"], "table": AT_SITES, "site": None, "drop": [], "kinds": _kinds(held.data, plan)}
        return cls(plan, {**plan, "data": data}, rows)

    @property
    def seed(self) -> int:
        return int(self.plan["seed"])

    @property
    def run_name(self) -> str:
        return f"{self.plan['name']}-{self.seed}"

    def simulated(self, folder: Path, table: Table | ImageSet) -> Run:
        """All of them here."""
        return _conducted(self.plan, folder, table=table)

    def keepers(self, state: Path, **more: Any) -> list[Keeper]:
        """One for each, with the keys of a simulation."""
        server = Identity.simulated(self.seed, SERVER).public
        more = {"access": PLAIN, **more}
        return [
            simulated_keeper(name, rows, state, seed=self.seed, server=server, **more)
            for name, rows in self.rows.items()
        ]

    def venue(self, transport: Any, **more: Any) -> Deployment:
        """The server's side."""
        keys = {name: Identity.simulated(self.seed, name).public for name in self.rows}
        identity = Identity.simulated(self.seed, SERVER)
        return Deployment(transport, identity, keys, self.run_name, timeouts=more.pop("timeouts", QUICK), **more)

    def deployed(
        self, folder: Path, transport: MemoryTransport | None = None, *, timeouts: Timeouts = QUICK, **more: Any
    ) -> Run:
        """Each behind a keeper."""
        box = MemoryTransport(self.keepers(folder / "state")) if transport is None else transport
        return _conducted(self.at_sites, folder / "run", venue=self.venue(box, timeouts=timeouts), **more)


def _conducted(plan: Mapping[str, Any], path: Path, **more: Any) -> Run:
    folder = RunFolder(path)
    if not more.get("resume"):
        folder.create()
    execute_plan(plan, folder, **more)
    return Run(path)


def _kinds(data: Any, plan: Mapping[str, Any]) -> dict[str, Any]:
    schema = getattr(data, "schema", None)
    if schema is None:
        return {}
    roles = {schema.label, schema.site, schema.patient, schema.time, *plan["data"]["drop"]}
    said = {c.name: (list(c.order) if c.order else c.kind) for c in schema.columns}
    return {
        n: k for n, k in said.items() if (n not in roles and k in ("numeric", "categorical")) or isinstance(k, list)
    }


def final_model(run: Run) -> np.ndarray:
    """All parameters of the model that a run ends with, as one vector."""
    arrays, _ = load(run.folder / "model.safetensors")
    return np.concatenate([np.asarray(arrays[name], float).ravel() for name in sorted(arrays)])
