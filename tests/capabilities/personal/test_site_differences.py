"""Why a hospital differs: from a run to its summary, its report, the console's table and `rounds explain --site`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.capabilities.personal.differences import round_step
from grandrounds.cli.command_line import app
from grandrounds.core.rng import generator
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.data.table import Table
from grandrounds.metrics.differences import WHOLE_SCORE, Difference
from grandrounds.report.differences import (
    NONE,
    SiteDifferences,
    describe_patients,
    differences_table,
    direction,
    feature_name,
    overview_sentences,
    read_differences,
    site_sentences,
)
from tests.capabilities.hospital.keeper.plans import DP, PUBLIC
from tests.store import finished
from tests.support import slow

PLAN = {
    "data": {"label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 6},
    "train": {"epochs": 4, "lr": 0.2},
    "personal": {"part": "intercept"},
}


def table(*, planted: float = 1.6, rows: int = 240) -> Table:
    """Four hospitals; lactate counts more at the last."""
    rng = generator(7, purpose="hospitals")
    site = np.repeat(["north", "east", "south", "west"], rows)
    n = len(site)
    age, lactate, pressure = rng.normal(60, 12, n), rng.normal(2.5, 1.0, n), rng.normal(75, 15, n)
    ward = rng.choice(["medical", "surgical", "cardiac"], n)
    slope = 0.6 + planted * (site == "west")
    score = 0.05 * (age - 60) + slope * (lactate - 2.5) - 0.02 * (pressure - 75) + (ward == "cardiac")
    died = (score + rng.logistic(size=n) > 0.8).astype(float)
    lactate[rng.random(n) < 0.05] = np.nan
    columns = {"age": age, "lactate": lactate, "pressure": pressure, "ward": ward, "hospital": site, "died": died}
    return Table.from_mapping(columns, source="patients.csv")


@pytest.fixture(scope="module")
def run():
    return gr.load_run(finished(gr.Experiment.parse(PLAN), table=table()))


def test_the_planted_difference_is_in_the_summary(run):
    personal = run.summary.personal
    assert "west" in personal["differs"]
    named = {f["feature"] for site in personal["differences"].values() for f in site["features"] if f["differs"]}
    assert named == {"lactate"}, "a hospital without the difference may differ from the mean of all, in no other column"
    west = personal["differences"]["west"]
    assert west["tested"] == 4
    first = west["features"][0]
    assert first["feature"] == first["input"] == "lactate" and first["differs"] and first["per"] == 1.0
    assert first["low"] < first["difference"] < first["high"] and first["p"] <= 0.01
    assert 0.5 < first["difference"] < 2.2, "per mmol, less what the common model learnt of it"


def test_all_surfaces_use_the_same_words(run):
    sentence = site_sentences(read_differences(run.summary)["west"])[0]
    assert sentence.startswith("Different effects: Lactate counts more here: +") and "log-odds per 1 (95% CI" in sentence
    assert "of 1,000 permutations" in sentence
    shown = differences_table(run.summary)
    assert shown is not None and shown.rows[-1][1] == "none"
    overview = overview_sentences(run.summary)[0]
    assert overview.startswith("Different effects: yes; ") and "of 4 hospitals" in overview and "west (lactate " in overview
    page = (run.folder / "report.html").read_text()
    assert "Do hospitals differ?" in page and shown.before[0] in page
    assert [line.split(":")[0] for line in shown.before[:2]] == ["Different patients", "Different effects"]
    explained = CliRunner().invoke(app, ["explain", str(run.folder), "--site", "west", "--json"])
    assert explained.exit_code == 0, explained.output
    told = json.loads(explained.stdout)["personal"]
    assert told["choice"] == "intercept" and sentence in told["sentences"]
    assert "Deployed: the common model with its own intercept." in told["sentences"]


def test_one_hospital_alone_answers_as_in_the_stack(run, tmp_path):
    alone = gr.run(gr.Experiment.parse({**PLAN, "engine": {"wire": True}}), table=table(), out=tmp_path / "wire")
    for site, here in run.summary.personal["differences"].items():
        there = alone.summary.personal["differences"][site]
        for ours, theirs in zip(here["features"], there["features"], strict=True):
            assert ours["feature"] == theirs["feature"] and ours["differs"] == theirs["differs"]
            numbers = [[f[k] for k in ("difference", "low", "high", "p", "common")] for f in (ours, theirs)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=0.03)


def test_sites_that_keep_the_common_model_are_not_asked(tmp_path, monkeypatch):
    from grandrounds.capabilities.personal import differences

    asked = []
    ask = differences.ask_differences
    monkeypatch.setattr(
        "grandrounds.capabilities.personal.differences.ask_differences",
        lambda served, sites, tested, encoding, **more: asked.append(tested)
        or ask(served, sites, tested, encoding, **more),
    )
    plan = {**PLAN, "personal": {"guard": True, "spread": 1e-6}}
    done = gr.run(gr.Experiment.parse(plan), table=table(planted=0.0, rows=60), out=tmp_path / "r")
    kept = {site for site, choice in done.summary.personal["choices"].items() if choice != "common"}
    assert asked == [tuple(s for s in done.summary.personal["choices"] if s in kept)]
    off = {**PLAN, "personal": {"part": "intercept", "differences": False}}
    done = gr.run(gr.Experiment.parse(off), table=table(rows=60), out=tmp_path / "off")
    assert "differences" not in done.summary.personal and len(asked) == 1
    assert overview_sentences(done.summary) == []


def test_under_a_budget_findings_stay_at_the_site(tmp_path, monkeypatch):
    from grandrounds.site.host import SiteHost

    left = []
    answer = SiteHost.answer

    def noted(self, ask, members):
        columns = answer(self, ask, members)
        left.extend((ask.task, name) for name in columns)
        return columns

    monkeypatch.setattr(SiteHost, "answer", noted)
    plan = {**PLAN, "data": {**PLAN["data"], **PUBLIC}, "method": {"name": "fedavg", "rounds": 1}, **DP}
    done = gr.run(gr.Experiment.parse(plan), table=table(rows=80), out=tmp_path / "r")
    assert ("personal.differences", "tested") in left and ("personal.differences", "differences") not in left
    assert not {"differences", "differs"} & set(done.summary.personal)
    own = json.loads((tmp_path / "r" / "at_sites" / "west" / "differences.json").read_text())
    assert {f["feature"] for f in own["features"]} >= {"age", "lactate", "pressure", "ward"}


@pytest.mark.parametrize(
    "method",
    [
        {"method": {"name": "gam"}},
        {"method": {"name": "trees", "trees": {"rounds": 6, "depth": 2}}},
        slow({"method": {"name": "fedavg", "rounds": 10}, "model": {"name": "mlp", "hidden": [8]}}),
    ],
)
def test_other_models_are_tested_by_their_columns(method, tmp_path):
    plan = {**PLAN, **method, "split": {"val": 0.3}}
    done = gr.run(gr.Experiment.parse(plan), table=table(planted=3.0, rows=300), out=tmp_path / "r")
    found = read_differences(done.summary)
    assert {s.tested for s in found.values()} == {4}
    assert "lactate" in [d.feature for d in found["west"].found]


@pytest.mark.parametrize(
    ("deviation", "step"), [(9.4, 10.0), (17.7, 20.0), (110.0, 100.0), (1.07, 1.0), (0.34, 0.5), (0.0, 1.0), (4.1, 5.0)]
)
def test_steps_are_round(deviation, step):
    assert round_step(deviation) == step


def make(feature="age", entry="age", difference=0.4, common=0.5, per=10.0, **more) -> Difference:
    values = {"outcome": "", "low": difference - 0.3, "high": difference + 0.3, "p": 0.001, "differs": True}
    return Difference(feature, entry, **{**values, "difference": difference, "common": common, "per": per, **more})


def at(*features: Difference, data="heart", **more) -> SiteDifferences:
    return SiteDifferences("va", len(features), features, ColumnLabels(data), **more)


@pytest.mark.parametrize(
    ("difference", "common", "words"),
    [
        (0.4, 0.5, "counts more here"),
        (-0.2, 0.5, "counts less here"),
        (0.4, -0.9, "counts less here"),
        (-1.2, 0.5, "points the other way here"),
        (0.4, 0.01, "counts here, and hardly in the common model"),
        (-0.48, 0.5, "hardly counts here"),
    ],
)
def test_the_direction_compares_with_the_common_effect(difference, common, words):
    d = make(difference=difference, common=common)
    assert direction(d, at(d)) == words


def test_sentences_are_for_clinicians():
    site = at(make())
    assert site_sentences(site) == [
        "Different effects: Age counts more here: +0.40 log-odds per 10 years (95% CI +0.10 to +0.70), +0.90 in place of +0.50; "
        "sampling alone explains such a difference in 1 of 1,000 permutations."
    ]
    level = make("chest_pain", "chest_pain=asymptomatic", per=0.0)
    assert "Chest pain = asymptomatic has a higher risk here than the common model says" in site_sentences(at(level))[0]
    assert feature_name(make("age", "age missing", per=0.0), ColumnLabels("heart")) == "age not measured"
    whole = make(WHOLE_SCORE, WHOLE_SCORE, difference=0.5, common=1.0, per=0.0)
    text = site_sentences(at(whole))
    assert len(text) == 1 and "All features together count more here: effects are 1.50 times" in text[0]
    assert site_sentences(at())[0].startswith("Different effects: not tested")
    assert site_sentences(at(make(differs=False))) == [NONE]
    days = at(make(), task="regression", label="days")
    assert "+0.40 days per 10 years" in site_sentences(days)[0]
    classes = at(make(outcome="stroke"))
    assert "log-odds of stroke per 10 years" in site_sentences(classes)[0]


def test_differences_are_those_of_the_event(run, tmp_path):
    """The same patients with words as outcome, of which the event is the first: differences are of its risk too.

    Rows are dealt to training by their content, so that numbers differ a little.
    """
    numbers = table()
    died = np.where(numbers.column("died") == 1, "died", "survived")
    columns = {name: numbers.column(name) for name in numbers.columns} | {"died": died}
    plan = {**PLAN, "data": {**PLAN["data"], "event": "died"}}
    words = gr.run(gr.Experiment.parse(plan), table=Table.from_mapping(columns, source="p.csv"), out=tmp_path / "r")
    ours, theirs = (r.summary.personal["differences"]["west"]["features"][0] for r in (run, words))
    assert words.summary.classes == ["died", "survived"]
    assert [theirs[k] for k in ("difference", "low", "high", "common")] == pytest.approx(
        [ours[k] for k in ("difference", "low", "high", "common")], rel=0.4
    )


@pytest.mark.parametrize(("distance", "chance", "verdict"), [(0.36, 0.14, "yes"), (0.16, 0.14, "not clear"), (0.1, 0.14, "no")])
def test_different_patients_have_one_verdict_and_a_chance_level(distance, chance, verdict):
    text = describe_patients(distance, chance, "of two hospitals")
    assert text.startswith(f"Different patients: {verdict};") and "sampling alone gives 0.14" in text
    assert describe_patients(distance, None, "of two hospitals").startswith("Different patients: not tested")
