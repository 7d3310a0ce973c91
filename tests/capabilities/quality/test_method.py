"""Quality of the sites' data: totals equal the pooled counts, no value leaves, noise has its charge, planted faults are named."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import ask_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.capabilities.hospital.keeper.codes import NOT_IN_PLAN, Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import CELLS, SECURE, TASK, Policy
from grandrounds.capabilities.quality.api import quality_values
from grandrounds.capabilities.quality.method.comparison import (
    Rules,
    compare_block,
    fill_hidden,
    guess_unit,
    measure_effect,
)
from grandrounds.capabilities.quality.method.findings import find_differences
from grandrounds.capabilities.quality.method.result import compare_with_totals
from grandrounds.capabilities.quality.method.server import COUNTS
from grandrounds.capabilities.quality.method.task import QUALITY, count_blocks, count_reach, read_bins
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.agreement.bins import AgreedBins
from grandrounds.data.agreement.counts import HIDDEN, Roles, count_rows
from grandrounds.data.agreement.draft import draft_schema
from grandrounds.data.table import Table
from grandrounds.experiment.requests import expected_asks
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event
from grandrounds.protocol.codec import encode_answer
from grandrounds.protocol.messages import USE_PERSONAL, Answer, Ask, AskId
from grandrounds.protocol.tasks import PREPARE, WITNESS
from grandrounds.site.ask_cost import RowCounts
from grandrounds.site.host import SiteHost
from tests.support import patients, refused

SIZES = [260, 240, 250, 230, 270]
PLANTED = ("Miss Marple", 47.110815, "1931-07-13")
"""A word, a number and a date of single patients, which must not be in any message."""


def cohort(seed=0) -> Table:
    """Patients of five sites with days, repeated patients and planted cells."""
    rows = patients(SIZES, seed=seed)
    n = len(rows)
    rng = generator(seed, purpose="days")
    day = np.datetime64("2015-01-01") + rng.integers(0, 1800, n).astype("timedelta64[D]")
    columns = dict(rows.columns) | {
        "day": day.astype(str).astype(object),
        "id": np.array([f"p{k // 2 if k % 10 < 2 else k}" for k in range(n)], object),
    }
    columns["ward"], columns["age"] = columns["ward"].copy(), columns["age"].copy()
    columns["ward"][5], columns["age"][6], columns["day"][7] = PLANTED
    return Table.from_mapping(columns, source="patients.csv")


@pytest.fixture(scope="module")
def rows() -> Table:
    return cohort()


@pytest.fixture
def sent(monkeypatch):
    """Everything that sites answer with: (task, column, values)."""
    seen: list[tuple[str, str, np.ndarray]] = []
    answer = SiteHost.answer

    def noted(self, ask, members):
        columns = answer(self, ask, members)
        seen.extend((ask.task, name, column) for name, column in columns.items())
        return columns

    monkeypatch.setattr(SiteHost, "answer", noted)
    return seen


def compare(rows, folder, **settings):
    roles = {"label": "died", "patient": "id", "time": "day"}
    return gr.compare_sites(rows, site="hospital", out=folder, progress=False, **{**roles, **settings})


def change(rows: Table, column: str, site: str, how) -> Table:
    values = rows.columns[column].copy()
    mine = rows.columns["hospital"] == site
    values[mine] = how(values[mine])
    return Table.from_mapping({**rows.columns, column: values}, source=rows.source)


@pytest.mark.parametrize("secure", [False, True])
def test_totals_equal_the_counts_of_the_pooled_rows(rows, secure, tmp_path):
    found = compare(rows, tmp_path / "q", secure=secure).summary["quality"]
    frame = pd.DataFrame(dict(rows.columns))
    assert found["rows"] == len(frame) and bool(found["by_site"]) != secure
    levels = ["missing", *found["bins"]["bins"]["ward"]["levels"], "another value"]
    ward = dict(zip(levels, found["totals"]["column:ward"], strict=True))
    pooled = frame["ward"].value_counts()
    assert len(ward) == 5 and all(ward[w] == pooled[w] for w in ("medical", "surgical", "cardiac") if ward[w] is not None)
    edges = found["bins"]["bins"]["lactate"]["edges"]
    binned = pd.cut(frame["lactate"], [-np.inf, *edges, np.inf], right=False).value_counts(sort=False).tolist()
    checked = 0
    for shown, count in zip(found["totals"]["column:lactate"], [frame["lactate"].isna().sum(), *binned], strict=True):
        if shown is not None:
            assert shown == count
            checked += 1
    died = frame["died"].map({0.0: "0", 1.0: "1"}).value_counts()
    assert found["totals"]["outcome"][:2] == [died["0"], died["1"]] and checked > 4
    years = pd.to_datetime(frame["day"]).dt.year.value_counts()
    by_year = {y: n for y, n in zip(range(2000, 2031), found["totals"]["years"][2:-1], strict=True) if n}
    assert by_year == {y: years[y] for y in by_year} and len(by_year) > 3


def test_a_site_answers_with_counts_and_nothing_else(rows, tmp_path, sent):
    """No word, number or date of a patient is in the bytes of any answer, and no count of 1 to 4 patients."""
    compare(rows, tmp_path / "q")
    assert {task for task, _, _ in sent} == {PREPARE, QUALITY, WITNESS}, "and signatures of the ledger"
    assert {name for task, name, _ in sent if task == PREPARE} == {"train_rows", "val_rows", "test_rows"}
    counts = next(values for task, _, values in sent if task == QUALITY)
    assert counts.shape[0] == 5 and ((counts == HIDDEN) | (counts == 0) | (counts >= 5)).all()
    number = np.float64(PLANTED[1])
    for k in range(5):
        wire = encode_answer(Answer("a", AskId("run", 1, 1), {"counts": counts[k]}), None)
        for word in (PLANTED[0].encode(), PLANTED[2].encode(), number.tobytes(), b"47.11", np.float32(number).tobytes()):
            assert word not in wire
    text = (tmp_path / "q" / "summary.json").read_text() + (tmp_path / "q" / "report.html").read_text()
    assert PLANTED[0] not in text and PLANTED[2] not in text and "47.11" not in text


def test_the_report_and_the_summary_name_the_site_with_another_unit(rows, tmp_path):
    run = compare(change(rows, "lactate", "b", lambda v: v * 9.008), tmp_path / "q")
    found = run.summary["quality"]["findings"]
    assert [(f["site"], f["column"], f["code"], f["level"]) for f in found] == [("b", "lactate", "unit", "error")]
    assert "looks like mg/dL where mmol/L is agreed" in found[0]["text"] and "0.111" in found[0]["text"]
    page = (run.folder / "report.html").read_text()
    assert "Quality of the sites&#x27; data" in page and "looks like mg/dL" in page


@pytest.mark.parametrize(
    ("column", "how", "code"),
    [
        ("ward", lambda v: np.array([f"W{w}" for w in v], object), "unknown-codes"),
        ("age", lambda v: np.where(np.arange(len(v)) % 3 > 0, np.nan, v), "missing"),
        ("pressure", lambda v: v + 60, "distribution"),
        ("died", lambda v: (np.arange(len(v)) % 20 == 0).astype(float), "prevalence"),
        ("day", lambda v: np.array([str(np.datetime64(d) + np.timedelta64(3650, "D")) for d in v], object), "years"),
    ],
)
def test_a_planted_fault_is_named_and_no_other(column, how, code, tmp_path):
    rows = patients(SIZES)
    day = np.array([f"201{5 + k % 5}-03-0{1 + k % 9}" for k in range(len(rows))], object)
    rows = change(Table.from_mapping({**rows.columns, "day": day}, source="patients.csv"), column, "c", how)
    schema = draft_schema(cohort(), label="died", site="hospital", time="day", patient=None, drop=["id"], quantiles=True)
    found = compare(rows, tmp_path / "q", schema=schema).summary["quality"]["findings"]
    named = column if column in ("ward", "age", "pressure") else ""
    assert [(f["site"], f["column"], f["code"]) for f in found] == [("c", named, code)]


def test_clean_sites_are_not_named():
    """Fifty comparisons of equal sites: the level is 0.01 for all tests of one."""
    named = 0
    schema = draft_schema(patients(SIZES), label="died", site="hospital", quantiles=True)
    bins = AgreedBins.from_schema(schema)
    for seed in range(50):
        rows = patients(SIZES, seed=seed)
        sites = {}
        for site in "abcde":
            mine = rows.take(np.flatnonzero(rows.columns["hospital"] == site))
            sites[site] = count_rows(bins, mine, Roles("died")).hide_small(bins, least=5)
        named += bool(find_differences(bins, fill_hidden(bins, sites), Rules()))
    assert named <= 1


def test_effects_by_hand():
    own, others = np.array([80.0, 20.0]), np.array([400.0, 600.0])
    both = np.array([480.0, 620.0]) / 1100
    chance = 0.5 * np.sqrt(2 / np.pi * both * (1 - both) * (1 / 100 + 1 / 1000)).sum()
    effect, p = measure_effect(own, others)
    assert effect == pytest.approx(0.4 - chance) and p < 1e-6
    assert measure_effect(np.array([4.0, 6.0]), others) == (0.0, 1.0), "ten rows are too few"
    alike = compare_block(np.array([[50.0, 50.0], [50.0, 50.0], [95.0, 5.0]]))
    assert alike[2].is_large(0.25) and not alike[0].is_large(0.25) and not alike[1].is_large(0.25)


def test_a_factor_is_guessed_from_counts_alone():
    rng = generator(1, purpose="glucose")
    schema = draft_schema(
        Table.from_mapping({"glucose": rng.lognormal(4.7, 0.3, 2000), "y": rng.integers(0, 2, 2000).astype(float)}, source="g"),
        label="y",
        quantiles=True,
    )
    column = AgreedBins.from_schema(schema).columns[0]
    others = np.bincount(column.place(rng.lognormal(4.7, 0.3, 3000)), minlength=len(column.names))
    here = np.bincount(column.place(rng.lognormal(4.7, 0.3, 300) / 18.016), minlength=len(column.names))
    found = guess_unit(column, here.astype(float), others.astype(float))
    assert found is not None and found.units == ("mmol/L", "mg/dL") and found.factor == pytest.approx(18.016)
    assert guess_unit(column, others.astype(float), others.astype(float)) is None


def test_a_site_compares_itself_with_secure_totals_at_home(rows, tmp_path):
    odd = change(rows, "lactate", "b", lambda v: v * 9.008)
    schema = draft_schema(rows, label="died", site="hospital", time="day", patient="id", quantiles=True)
    found = compare(odd, tmp_path / "q", schema=schema, secure=True).summary["quality"]
    assert found["findings"] == [] and found["by_site"] == []
    bins = AgreedBins.from_dict(found["bins"])
    for site, named in (("b", ["lactate"]), ("a", [])):
        mine = odd.take(np.flatnonzero(odd.columns["hospital"] == site))
        own = count_rows(bins, mine, Roles("died", "day", "id"))
        assert [f.column for f in compare_with_totals(found, own.rows)] == named
    with refused("damaged-record"):
        compare_with_totals({"bins": bins.to_dict()}, own.rows)


def test_noise_has_the_charge_of_the_budget_and_counts_are_near(rows, tmp_path, sent):
    summary = compare(rows, tmp_path / "q", epsilon=3.0).summary
    found, bins = summary["quality"], AgreedBins.from_dict(summary["quality"]["bins"])
    counts = next(values for task, _, values in sent if task == QUALITY)
    assert (counts * 1024 == np.rint(counts * 1024)).all() and not (counts == np.rint(counts)).all()
    reach = count_reach(count_blocks(bins))
    assert reach == pytest.approx(np.sqrt(len(bins.columns) + 5))
    spent = epsilon_of([Event("gaussian", COUNTS, sigma=found["noise"] / reach)], delta=summary["privacy"]["delta"])
    assert spent == pytest.approx(summary["privacy"]["epsilon"], rel=1e-6) and 2.9 < spent <= 3.0
    assert "counts of rows" not in " ".join(summary["privacy"]["not_covered"])
    mine = rows.take(np.flatnonzero(rows.columns["hospital"] == "a"))
    one_each = pd.Series(mine.columns["id"]).nunique()
    assert abs(counts[0][0] - one_each) < 5 * found["noise"], "of a patient with several rows one counts"


def plan_of(rows, **settings) -> dict:
    schema = draft_schema(rows, label="died", site="hospital", time="day", patient="id", quantiles=True)
    values = quality_values(schema, **settings)
    values["data"] |= {"table": "patients.csv", "site": "hospital"}
    return gr.Experiment.parse(values).plan()


def ask_of(plan, **more) -> Ask:
    q = Plan(plan).method.quality
    bins = read_bins(q)
    shared = {"bins": bins.to_json(), "blocks": count_blocks(bins), "least": q.least, **more}
    return Ask(QUALITY, shared=shared, to=("a",), report=("counts",), id=AskId("quality-0", 1, 1))


def test_a_policy_refuses_counts_that_it_does_not_allow(rows):
    plan = plan_of(rows)
    ask = ask_of(plan)
    assert Policy().refuses(ask, plan, rows=100) == ""
    assert Policy.parse("[cells]\nsmallest = 10\n").refuses(ask, plan, rows=100) == CELLS
    assert Policy.parse('[tasks]\ndeny = ["quality"]\n').refuses(ask, plan, rows=100) == TASK
    assert Policy.parse("[secure]\nonly = true\n").refuses(ask, plan, rows=100) == SECURE
    assert Policy().refuses(ask, plan, rows=5) == CELLS
    asks = [(a.task, a.report) for a in expected_asks(plan)]
    assert (QUALITY, ("counts",)) in asks and {task for task, _ in asks}.isdisjoint({"summarise", "evaluate", "train", "explain"})
    assert (PREPARE, ("train_rows", "val_rows", "test_rows")) in asks


def test_a_site_counts_in_the_bins_of_its_plan_alone(rows):
    plan = plan_of(rows)
    ask = ask_of(plan)
    Questions(plan, {}).check(ask)
    finer = json.loads(str(ask.shared["bins"]))
    finer["bins"]["age"]["edges"] = list(np.arange(20.0, 90.0))
    for other in ({"bins": json.dumps(finer, sort_keys=True)}, {"least": 2}, {USE_PERSONAL: 1}):
        shared = {**ask.shared, **other}
        with pytest.raises(Refusal) as caught:
            Questions(plan, {}).check(Ask(QUALITY, shared=shared, to=("a",), report=("counts",), id=ask.id))
        assert caught.value.code == NOT_IN_PLAN


def test_the_accountant_charges_counts_with_noise_and_has_no_bound_without(rows):
    plan = plan_of(rows, epsilon=2.0)
    counts = RowCounts(100, 20, 10)
    noised = ask_cost(ask_of(plan, noise=7.0), counts, Terms(), unbounded=False)
    blocks = count_blocks(read_bins(Plan(plan).method.quality))
    assert {(e.what, e.of) for e in noised.events} == {(COUNTS, rows) for rows in ("training", "validation", "test")}
    assert all(e.sigma == pytest.approx(7.0 / np.sqrt(blocks)) for e in noised.events)
    bare = ask_cost(ask_of(plan), counts, Terms(), unbounded=False)
    assert all(e.kind == "raw" for e in bare.events) and (bare.events or bare.disclosures)


def test_wrong_settings_are_refused_before_a_site_is_asked(rows, tmp_path, sent):
    with refused("site-not-set"):
        gr.compare_sites(rows, site="nowhere", label="died")
    with refused("label-not-set"):
        gr.compare_sites(rows, site="hospital")
    with refused("conflicting-settings", match="data.encoding"):
        compare(rows, tmp_path / "q", settings={"data.encoding": "fitted"})
    assert sent == []
