"""The table of tasks and reports: it is complete, and a task that is declared in it is known to everybody who goes by it."""

from __future__ import annotations

import numpy as np

from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import READERS, ask_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.capabilities.hospital.keeper.policy.describe import describe_policy
from grandrounds.capabilities.hospital.keeper.policy.rules import REPORT, SECURE, TASK, Policy, is_private
from grandrounds.capabilities.hospital.keeper.policy.small_cells import without_small_cells
from grandrounds.core.capability import collect
from grandrounds.engine.claims import inconsistent_shapes
from grandrounds.engine.cost import Meter
from grandrounds.engine.faults import finite_rows
from grandrounds.privacy.secagg.terms import STEPS
from grandrounds.protocol.messages import Answers, Ask, AskId
from grandrounds.protocol.task_spec import (
    KINDS,
    NOTHING,
    OWN_COST,
    ROWS_COST,
    SUM,
    UNKNOWN_COST,
    ReportSpec,
    TaskSpec,
    refused,
)
from grandrounds.protocol.tasks import CLOSE, ERROR, HELLO, MASKED, OPEN, SUM_STEPS, report_of, spec_of, specs
from grandrounds.site.ask_cost import RowCounts
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import CLEAN, PARTS
from tests.support import refused as expect_refusal
from tests.support import stack

REPORTS = [(task, report) for task, spec in specs().items() for report in spec.reports.values()]


def test_every_name_is_its_own():
    assert all(spec.name == name for name, spec in specs().items())
    assert all(report.name == name for spec in specs().values() for name, report in spec.reports.items())
    assert all("." not in report.name and report.kind in KINDS for _, report in REPORTS)


def test_every_task_has_a_cost_and_every_reader_a_task():
    assert {name for name, spec in specs().items() if spec.cost == UNKNOWN_COST} == {HELLO, OPEN, CLOSE}
    assert {name for name, spec in specs().items() if not spec.asked_by} == {HELLO, OPEN, CLOSE}
    own = {name for name, task in collect("tasks").items() if task.cost}
    assert {*READERS, MASKED, *own} == {name for name, spec in specs().items() if spec.cost == OWN_COST}
    for task, report in REPORTS:
        if specs()[task].cost == ROWS_COST and report.kind != NOTHING:
            assert report.rows and report.account, "the accountant goes by its rows"
        assert {*report.rows, *(part for part, _ in report.hidden)} <= {*PARTS, CLEAN}
        assert {column.split(".")[0] for _, column in report.hidden} | {
            column.split(".")[0] for column in report.nan_columns
        } <= {report.name}


def test_the_steps_of_a_secure_sum_are_those_of_its_protocol():
    assert tuple(task.removeprefix("secagg.") for task in SUM_STEPS) == STEPS
    assert all(reports[-1] == ERROR for reports in SUM_STEPS.values())


def test_a_task_that_is_not_declared_is_the_most_careful_one():
    unknown = spec_of("steal")
    assert unknown == TaskSpec("steal") and unknown.is_counted and not unknown.may_fail and not unknown.setup
    assert report_of("steal", "rows") is None and report_of("evaluate", "test.count") is specs()["evaluate"].reports["test"]
    told = ask_cost(Ask("steal", report=("rows",)), RowCounts(9, 0, 5), Terms(), unbounded=False).disclosures["rows"]
    assert told.rows == ("training", "test") and told.reach == np.inf


def census(task: str, report: str) -> TaskSpec:
    """A new task: sums over validation rows, which may be no number where there are few."""
    spec = ReportSpec(
        report, SUM, refused("sums of beds", "`beds`"), account="beds", rows=("val",), is_raw=True,
        hidden=(("val", report),), nan_columns=(report,), is_ragged=True,
    )  # fmt: skip
    return TaskSpec(task, {report: spec}, cost=ROWS_COST, is_counted=True, is_payload=True, is_learning=True)


def test_a_new_task_is_declared_in_one_place(monkeypatch):
    """Policy, accountant, small cells, releases, cost and the checks of answers know it by its place in the table."""
    ask = Ask("ward.census", report=("beds",), id=AskId("x", 1, 1))
    assert Policy().refuses(ask, None) == TASK
    monkeypatch.setitem(specs(), "ward.census", census("ward.census", "beds"))

    assert Policy().refuses(ask, None) == ""
    assert Policy.parse('[reports]\ndeny = ["ward.census.beds"]').refuses(ask, None) == REPORT
    assert Policy.parse("[secure]\nonly = true").refuses(ask, None) == SECURE
    assert not is_private(ask, None)
    assert any("ward.census.beds" in line for line in describe_policy(Policy()))

    told = ask_cost(ask, RowCounts(20, 3, 5), Terms(), unbounded=False).disclosures["beds"]
    assert (told.description, told.rows) == ("beds", ("validation",))
    rows = {"train": 20, "val": 3, "test": 5}
    assert not without_small_cells("ward.census", {"beds": np.ones(2)}, 5, rows)["beds"].any()

    host = SiteHost(stack([10, 10]))
    host._refuse_unaccounted("ward.census", {"beds": np.ones(2)})
    with expect_refusal("raw-release"):
        SiteHost(stack([10, 10]), withheld_splits=("train",))._refuse_unaccounted("ward.census", {"beds": np.ones(2)})

    meter = Meter()
    meter.count_payload("ward.census", 8, 16)
    meter.count_payload("steal", 8, 16)
    assert meter.read()["payload_up"] == 16
    assert finite_rows(Answers(("a", "b"), {"beds": np.array([1.0, np.nan])})).all()
    assert not inconsistent_shapes({site: {"beds": (2,)} for site in "abc"} | {"d": {"beds": (3,)}})
