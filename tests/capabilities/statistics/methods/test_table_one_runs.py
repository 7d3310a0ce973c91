"""Table 1 in runs: hospitals behind keepers, with and without secure aggregation, and the policy on small counts."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.capabilities.statistics.table_result import TableOne
from grandrounds.core.errors import RunFailed
from grandrounds.data.sets import heart
from grandrounds.data.table import Table
from grandrounds.engine.dispatcher import Timeouts
from tests.engine.hospitals import Hospitals
from tests.engine.memory_transport import MemoryTransport

COLUMNS = ("age", "sex", "cholesterol", "max_heart_rate", "chest_pain")
DATA = {
    "table": "data frame",
    "label": "disease",
    "site": "hospital",
    "task": "classification",
    "features": list(COLUMNS),
}
PLAN = {"data": DATA, "split": {"val": 0.0, "test": 0.0}, "explain": {"sketch": "none"}}


@pytest.fixture(scope="module")
def rows():
    table = heart.load()
    return Table({name: table.columns[name] for name in ("hospital", "disease", *COLUMNS)}, "heart")


def hospitals(rows, *, secure, nonnormal=("cholesterol",)):
    exact = {"group": "disease", "nonnormal": list(nonnormal), "columns": list(COLUMNS)}
    return Hospitals.of(rows, name="t", **PLAN, method={"name": "table1", "exact": exact}, privacy={"secure": secure})


def read(run) -> TableOne:
    return TableOne.from_dict(run.summary["table1"])


@pytest.mark.parametrize("secure", [False, True])
def test_hospitals_with_their_own_files_give_the_same_table(secure, rows, tmp_path):
    held = hospitals(rows, secure=secure)
    here, there = held.simulated(tmp_path / "here", rows), held.deployed(tmp_path / "there")
    assert read(there) == read(here)
    age = rows.columns["age"]
    assert read(here).cell("age").mean == pytest.approx(age.mean(), rel=1e-8)
    chol = rows.columns["cholesterol"]
    assert read(here).cell("cholesterol").quartiles == tuple(np.nanquantile(chol, [0.25, 0.5, 0.75]))
    assert any(c.kind == "site" for c in read(here).columns) != secure


def test_small_counts_leave_a_hospital_by_secure_aggregation_alone(rows, tmp_path):
    access = AccessControl(Policy())  # cells.smallest is 5 or more; in Switzerland 4 patients have typical angina
    held = hospitals(rows, secure=True, nonnormal=())
    run = held.deployed(tmp_path / "secure", MemoryTransport(held.keepers(tmp_path / "a", access=access)))
    assert read(run).cell("chest_pain").n == len(rows)
    held = hospitals(rows, secure=False, nonnormal=())
    quick = Timeouts(answer=5.0, absent=0.2, retry=0.02, poll=0.02)
    with pytest.raises(RunFailed, match="policy|refused"):
        held.deployed(tmp_path / "clear", MemoryTransport(held.keepers(tmp_path / "b", access=access)), timeouts=quick)


def test_a_table_that_was_interrupted_ends_with_the_same_bits(rows, tmp_path):
    events = []

    def stop(event):
        events.append(event)
        if event.get("round") == 3:
            raise KeyboardInterrupt

    options = {"site": "hospital", "group": "disease", "nonnormal": ["cholesterol"]}
    gr.table1(rows, out=tmp_path / "whole", progress=False, **options)
    with pytest.raises(KeyboardInterrupt):
        gr.table1(rows, out=tmp_path / "parts", progress=stop, **options)
    resumed = gr.resume(tmp_path / "parts", table=rows, progress=False)
    assert resumed.summary["table1"] == gr.load_run(tmp_path / "whole").summary["table1"]
    assert len(resumed.rounds) == 5
