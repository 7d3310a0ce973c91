"""Regression, counts and survival at hospitals behind keepers: the model of a simulation, also by a policy with small cells."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.data.table import Table
from tests.engine.hospitals import Hospitals, final_model
from tests.engine.memory_transport import MemoryTransport

TASKS = {
    "regression": {"label": "los", "task": "regression", "drop": ["visits", "days", "died"]},
    "count": {"label": "visits", "task": "count", "drop": ["los", "days", "died"]},
    "survival": {"label": "died", "duration": "days", "drop": ["los", "visits"]},
}


@pytest.fixture(scope="module")
def table() -> Table:
    rng = np.random.default_rng(4)
    n = 240
    x = rng.normal(size=(n, 2))
    eta = x @ [0.5, -0.4]
    death, censoring = rng.exponential(100 * np.exp(-eta)), rng.exponential(120, n)
    columns = {
        "a": x[:, 0], "b": x[:, 1], "hospital": np.array(list("NES"))[np.arange(n) % 3],
        "los": 20 + 4 * eta + rng.normal(size=n), "visits": rng.poisson(np.exp(1 + eta)),
        "days": np.ceil(np.minimum(death, censoring)), "died": (death <= censoring).astype(int),
    }  # fmt: skip
    return Table.from_mapping(columns, source="patients.csv")


def hospitals(table: Table, task: str, **sections) -> Hospitals:
    data = {"table": "patients.csv", "site": "hospital", **TASKS[task]}
    return Hospitals.of(table, data=data, method={"rounds": 2}, **sections)


@pytest.mark.parametrize("task", TASKS)
def test_hospitals_train_the_model_of_a_simulation(table, tmp_path, quick, task):
    held = hospitals(table, task)
    here, there = held.simulated(tmp_path / "here", table), held.deployed(tmp_path / "there")
    np.testing.assert_array_equal(final_model(there), final_model(here))
    assert there.summary["task"] == task
    assert there.summary["final"] == pytest.approx(here.summary["final"], rel=1e-6)
    assert there.summary["explanation"]["top"] == here.summary["explanation"]["top"]


@pytest.mark.parametrize("task", TASKS)
def test_the_usual_policy_lets_sums_of_many_rows_leave(table, tmp_path, quick, task):
    held = hospitals(table, task, privacy={"secure": True})
    box = MemoryTransport(held.keepers(tmp_path / "state", access=AccessControl(Policy())))
    run = held.deployed(tmp_path, box)
    assert run.finished and run.summary["final"]["count"] > 10
