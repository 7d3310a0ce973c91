"""Counts at hospitals: keepers on Flower's Grid answer as a simulation does, and each guards its own patients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.capabilities.quality.api import compare_sites, quality_values
from grandrounds.capabilities.quality.method.server import COUNTS
from grandrounds.core.errors import RunFailed
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.table import Table
from grandrounds.privacy.site_budget import SiteBudget
from tests.engine.hospitals import QUICK, Hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.engine.test_hospitals import over_flower
from tests.support import patients, refused

TRUSTING = Policy.parse('[secure]\npeers = "told"\n')


@pytest.fixture(scope="module")
def rows() -> Table:
    """Four hospitals; lactate of the second is in mg/dL."""
    table = patients([120, 110, 130, 100])
    lactate = table.columns["lactate"].copy()
    lactate[table.columns["hospital"] == "b"] *= 9.008
    return Table.from_mapping({**table.columns, "lactate": lactate}, source="patients.csv")


def agreed():
    return draft_schema(patients([120, 110, 130, 100]), label="died", site="hospital", quantiles=True)


def deployed(rows, folder, *, policy=TRUSTING, **settings):
    values = quality_values(agreed(), **settings)
    values["data"] |= {"site": "hospital", "table": "patients.csv"}
    values["split"] = {"val": 0.2, "test": 0.2}
    hospitals = Hospitals.of(rows, **values)
    folder.mkdir(exist_ok=True)
    keepers = hospitals.keepers(folder / "state")
    for keeper in keepers:
        name = keeper.me.name
        budget = SiteBudget.open(folder / f"{name}.json", epsilon=policy.privacy.epsilon, delta=policy.privacy.delta)
        keeper._access = AccessControl(policy, budget, split=folder / name / "split", classes=("0", "1"))
        (folder / name).mkdir(exist_ok=True)
    transport = over_flower(keepers) or MemoryTransport(keepers)
    return hospitals.deployed(folder, transport, timeouts=replace(QUICK, answer=300.0, poll=20.0))


@pytest.mark.parametrize("secure", [False, True])
def test_hospitals_send_the_counts_of_a_simulation(rows, secure, tmp_path):
    found = deployed(rows, tmp_path / "h", secure=secure).summary["quality"]
    here = compare_sites(rows, site="hospital", schema=agreed(), secure=secure, out=tmp_path / "s", progress=False)
    same = here.summary["quality"]
    assert found["totals"] == same["totals"] and found["by_site"] == same["by_site"] and found["rows"] == 460
    named = [(f["site"], f["column"], f["code"]) for f in found["findings"]]
    assert named == ([] if secure else [("b", "lactate", "unit")])


def test_a_site_that_requires_privacy_answers_with_noise_and_charges_its_budget(rows, tmp_path):
    strict = Policy.parse('[secure]\npeers = "told"\n[privacy]\nrequire = true\nepsilon = 5.0\nrun_epsilon = 2.0\n')
    with refused("setup-incomplete", match="needs-privacy", kind=RunFailed):
        deployed(rows, tmp_path / "bare", policy=strict)
    run = deployed(rows, tmp_path / "noised", policy=strict, epsilon=1.5)
    assert run.summary["quality"]["noise"] > 0 and run.summary["privacy"]["epsilon"] <= 1.5
    for name in "abcd":
        budget = SiteBudget.open(tmp_path / "noised" / f"{name}.json", epsilon=5.0, delta=1e-5)
        assert {of: budget.spent(of) for of in run.summary["privacy"]["spent"]} == pytest.approx(run.summary["privacy"]["spent"])
        assert {e.what for e in budget.budget().events} == {COUNTS}


def test_a_site_with_larger_cells_refuses_the_plan(rows, tmp_path):
    careful = Policy.parse('[secure]\npeers = "told"\n[cells]\nsmallest = 10\n')
    with refused("setup-incomplete", match="cells-too-small", kind=RunFailed):
        deployed(rows, tmp_path, policy=careful)


def test_counts_that_differ_by_few_rows_from_earlier_ones_are_refused(rows, tmp_path):
    """The difference of two exact counts would be those patients."""
    deployed(rows, tmp_path / "h")
    (tmp_path / "h" / "run").rename(tmp_path / "first")
    fewer = rows.take(np.arange(2, len(rows)))
    with refused("setup-incomplete", match="few-changed-rows", kind=RunFailed):
        deployed(fewer, tmp_path / "h", name="second")
