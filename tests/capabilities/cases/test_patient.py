"""One patient's record, with a model and a population whose numbers are known: everything in it by hand."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case, near_misses
from grandrounds.capabilities.cases.case_page import case_page
from grandrounds.capabilities.cases.near_misses import is_near
from grandrounds.capabilities.cases.population import NOT_RELEASED
from grandrounds.capabilities.cases.values import column_kind, contradiction_notes, quality_lines
from grandrounds.core.arrays import load, save
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.encoding import EncodingRules
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.methods.exchanges import agree_on_encoding
from grandrounds.runs.run_rows import RunRows
from grandrounds.runs.setup import SummaryCollector
from tests.support import refused, stack

WEIGHTS = {"age": 0.05, "lactate": 0.5, "sex=male": 0.4}
INTERCEPT = -5.0
PEOPLE = {
    "schema": 1,
    "rows": 1000,
    "numeric": {
        "age": {"quantiles": [41.0 + 2 * i for i in range(20)], "mean": 60.0, "missing": 0.0},
        "lactate": {"quantiles": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0], "mean": 2.0, "missing": 0.0},
    },
    "categorical": {"sex": {"levels": {"female": 0.5, "male": 0.5}, "missing": 0.0}},
}
"""Made-up percentiles.json: mean age 60, mean lactate 2, half of them men."""


def sigma(z: float) -> float:
    return float(1 / (1 + np.exp(-z)))


def people(n: int = 200) -> pd.DataFrame:
    rng = generator(0, purpose="people")
    return pd.DataFrame(
        {
            "age": rng.integers(40, 81, n).astype(float),
            "lactate": np.round(rng.uniform(0.5, 6, n), 2),
            "sex": rng.choice(["female", "male"], n),
            "hospital": np.where(np.arange(n) < n // 2, "a", "b"),
            "died": rng.integers(0, 2, n),
        }
    )


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> gr.Run:
    """A finished run whose model is replaced by one with these weights on raw values, and its population by PEOPLE."""
    home = tmp_path_factory.mktemp("known")
    people().to_csv(home / "people.csv", index=False)
    values = {
        "data": {"table": str(home / "people.csv"), "label": "died", "site": "hospital", "scale": "none", "clip": 0},
        "method": {"rounds": 1},
        "engine": {"precision": "float64"},
        "evaluation": {"threshold": "half"},
    }
    run = gr.run(gr.Experiment.parse(values), out=home / "run")
    params, meta = load(run.folder / "model.safetensors")
    features = run.model.encoding.features
    assert features == tuple(WEIGHTS)
    params["layer0.weight"] = np.array([[WEIGHTS[f]] for f in features])
    params["layer0.bias"] = np.array([INTERCEPT])
    save(run.folder / "model.safetensors", params, meta)
    (run.folder / "percentiles.json").write_text(json.dumps(PEOPLE))
    return gr.load_run(run.folder)


def copied(run: gr.Run, folder: Path, **privacy) -> gr.Run:
    """The same run in another folder, with other words about privacy in its plan."""
    shutil.copytree(run.folder, folder)
    path = folder / "checkpoint" / "plan.json"
    plan = json.loads(path.read_text())
    plan["privacy"] |= privacy
    path.write_text(json.dumps(plan))
    return gr.load_run(folder)


NEW = pd.DataFrame([{"age": 75.0, "lactate": 4.0, "sex": "male"}])


def test_the_record_by_hand(known):
    case = explain_case(known, 1, table=NEW)
    # -5 + .05 * 75 + .5 * 4 + .4 = 1.15; at the mean: -5 + .05 * 60 + .5 * 2 + .4 * .5 = -.8
    assert case.score == pytest.approx(1.15)
    assert case.base == pytest.approx(-0.8)
    assert case.probability == pytest.approx(sigma(1.15))
    assert case.baseline == pytest.approx(sigma(-0.8))
    assert case.remainder == pytest.approx(0, abs=1e-12)
    held = {r.column: r for r in case.attributions}
    assert [r.column for r in case.amplifiers] == ["lactate", "age", "sex"]
    assert case.mitigators == ()
    for column, c in {"lactate": 1.0, "age": 0.75, "sex": 0.2}.items():
        assert held[column].contribution == pytest.approx(c)
        assert held[column].odds_ratio == pytest.approx(np.exp(c))
        assert held[column].points == pytest.approx(100 * (sigma(1.15) - sigma(1.15 - c)))
    assert held["age"].percentile == pytest.approx(100 * 17.5 / 20), "17 quantiles below 75, and 75 itself"
    assert held["lactate"].percentile == pytest.approx(75)
    assert held["sex"].share == 0.5
    assert case.start == "the mean of the 1000 training patients of all sites"
    (flag,) = case.bias
    assert (flag.column, flag.kind, flag.value) == ("sex", "protected", "male")
    assert flag.risk_without == pytest.approx(sigma(0.95)), "half a man adds .2 to the log-odds"
    assert flag.points == pytest.approx(100 * (sigma(1.15) - sigma(0.95)))
    assert flag.words == "raises the risk by 3.8 points; at the mean of all sites' patients the risk would be 72.1%"


def test_what_is_odd_about_a_column_without_a_weight_is_said_apart(known, tmp_path):
    run = copied(known, tmp_path / "sparse")
    params, meta = load(run.folder / "model.safetensors")
    params["layer0.weight"] = np.array([[0.05], [0.0], [0.4]])
    save(run.folder / "model.safetensors", params, meta)
    case = explain_case(run, 1, table=NEW.assign(age=np.nan, lactate=np.nan))
    assert {n.column for n in case.quality} == {"age", "lactate"}
    assert case.zero_weight_columns == ("lactate",)
    (age, kind), apart = quality_lines(case.quality, case.zero_weight_columns)
    assert (age.partition(":")[0], kind) == ("age has no value", "imputed")
    assert apart == ("1 column has no value or an odd one and no weight in the model: lactate", "not read")
    labels = ColumnLabels(names={"age": "age at admission", "lactate": "serum lactate"})
    (named, _), (idle, _) = quality_lines(case.quality, case.zero_weight_columns, labels)
    assert named == age.replace("age", "age at admission", 1) and idle.endswith(": serum lactate")


def test_a_record_without_percentiles_has_no_column_for_them(known, tmp_path):
    words = "among patients</th>"
    assert words in case_page(explain_case(known, 1, table=NEW), top=3)
    private = copied(known, tmp_path / "private", epsilon=3.0, mechanism="dp-sgd")
    (private.folder / "percentiles.json").unlink()
    assert words not in case_page(explain_case(private, 1, table=NEW), top=3)


def test_what_lowers_it_is_a_mitigator_and_a_weight_of_zero_is_not_used(known, tmp_path):
    run = copied(known, tmp_path / "sparse")
    params, meta = load(run.folder / "model.safetensors")
    params["layer0.weight"] = np.array([[0.0], [0.5], [0.4]])
    save(run.folder / "model.safetensors", params, meta)
    case = explain_case(run, 1, table=NEW.assign(lactate=1.0, sex="female"))
    assert [(r.column, r.contribution) for r in case.mitigators] == [
        ("lactate", pytest.approx(-0.5)),
        ("sex", pytest.approx(-0.2)),
    ]
    said = case.to_dict()
    assert said["unused"] == ["age"]
    assert [w["column"] for w in said["waterfall"]] == ["lactate", "sex"]
    assert said["waterfall"][-1]["score"] == pytest.approx(case.score)
    assert said["waterfall"][-1]["risk"] == pytest.approx(case.probability)
    assert said["mitigators"][0]["odds_ratio"] == pytest.approx(np.exp(-0.5))


def test_a_new_patient_is_explained_without_anybodys_rows(known, tmp_path):
    run = copied(known, tmp_path / "alone")
    table = Path(run.plan["data"]["table"])
    hidden = table.rename(tmp_path / "elsewhere.csv")
    try:
        assert explain_case(run, 1, table=NEW).score == pytest.approx(1.15)
        assert explain_case(run, 1, table=NEW, explainer="coefficients").base == pytest.approx(INTERCEPT)
        with refused("no-comparison-rows", match=r"people\.csv"):
            explain_case(run, 1, table=NEW, explainer="lime")
    finally:
        hidden.rename(table)


def test_coefficients_start_from_the_intercept_and_flags_still_from_the_mean(known):
    case = explain_case(known, 1, table=NEW, explainer="coefficients")
    assert case.base == pytest.approx(INTERCEPT)
    assert case.baseline == pytest.approx(sigma(INTERCEPT))
    held = {r.column: r.contribution for r in case.attributions}
    assert held == {"age": pytest.approx(3.75), "lactate": pytest.approx(2.0), "sex": pytest.approx(0.4)}
    assert case.bias[0].risk_without == pytest.approx(sigma(0.95))


def test_columns_to_flag_can_be_named(known):
    (flag,) = explain_case(known, 1, table=NEW, protected=["age"]).bias
    assert (flag.column, flag.kind) == ("age", "named")
    assert flag.risk_without == pytest.approx(sigma(0.4))
    with refused("unknown-column", match="aeg.*'age'"):
        explain_case(known, 1, table=NEW, protected=["aeg"])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        *((name, "protected") for name in ("sex", "Gender", "ethnicity", "patient_race", "maritalStatus")),
        *((name, "administrative") for name in ("teachingstatus", "numbedscategory", "hospital_beds", "region")),
        *((name, "administrative") for name in ("admission_source", "hospitaladmitsource", "unitAdmitSource")),
        *((name, "administrative") for name in ("payer_code", "insurance", "teaching_hospital", "zip_code")),
        *((name, None) for name in ("age", "trace_protein", "regional_wall_motion", "lactate", "sextuplet", "embeds")),
    ],
)
def test_columns_are_known_by_name(column, kind):
    assert column_kind(column) == kind


def test_odd_values_are_noted_and_imputed_ones_marked(known, tmp_path):
    run = copied(known, tmp_path / "odd")
    rare = json.loads(json.dumps(PEOPLE))
    rare["categorical"]["sex"]["levels"] = {"female": 0.995, "male": 0.005}
    (run.folder / "percentiles.json").write_text(json.dumps(rare))
    case = explain_case(run, 1, table=pd.DataFrame([{"age": 95.0, "lactate": np.nan, "sex": "male"}]))
    assert {n.column: n.kind for n in case.quality} == {"age": "outside", "lactate": "imputed", "sex": "rare"}
    texts = {n.column: n.text for n in case.quality}
    assert texts["age"] == "age = 95 is above what nearly all training patients have (41 to 79)"
    assert texts["sex"] == "sex = 'male' is a rare category: it occurs in 0.5% of the training patients"
    assert [r.column for r in case.attributions if r.imputed] == ["lactate"]


def test_numbers_that_cannot_both_be_right():
    found = contradiction_notes(
        {"hr_min": 90.5, "hr_mean": 80.25, "hr_max": 120.0, "hr_std": -1.0, "sbp_mean": 70.0, "dbp_mean": 90.0}
    )
    assert {n.column for n in found} == {"hr_min", "hr_std", "sbp_mean"}
    assert all(n.kind == "contradictory" for n in found)
    assert "hr_min = 90.5 cannot be right beside hr_mean = 80.25, which is lower" in {n.text for n in found}
    fine = {"hr_min": 61.0, "hr_mean": 60.8, "systolic": 120.0, "diastolic": 80.0, "Mean Radius": 3.0, "min": 9.0}
    assert contradiction_notes(fine) == (), "rounding to whole numbers is no contradiction"


def test_under_a_budget_no_percentile_is_told_and_nobody_elses_rows_are_used(known, tmp_path):
    run = copied(known, tmp_path / "private", epsilon=3.0)
    case = explain_case(run, 1, table=NEW)
    assert case.population.words == NOT_RELEASED == "no percentile: not released under the budget"
    assert all(r.percentile is None and r.share is None for r in case.attributions)
    assert case.base == pytest.approx(INTERCEPT), "the mean of all patients is not known either"
    assert case.to_dict()["percentiles"] == {"patients": None, "from": NOT_RELEASED}
    (run.folder / "percentiles.json").write_text(json.dumps({**PEOPLE, "noised": "Laplace, epsilon = 0.5"}))
    noised = explain_case(run, 1, table=NEW)
    assert noised.population.words.endswith("by their sites' summaries, with noise: Laplace, epsilon = 0.5")
    assert noised.base == pytest.approx(-0.8)


def test_under_a_budget_an_mlp_is_compared_with_its_own_sites_rows(tmp_path):
    frame = people()
    frame.to_csv(tmp_path / "people.csv", index=False)
    values = {
        "data": {"table": str(tmp_path / "people.csv"), "label": "died", "site": "hospital"},
        "method": {"rounds": 1},
        "model": {"name": "mlp", "hidden": [3]},
    }
    run = copied(gr.run(gr.Experiment.parse(values), out=tmp_path / "run"), tmp_path / "private", epsilon=3.0)
    rows = len(RunRows.read(run).consortium.stack.rows[0].train)
    assert explain_case(run, 3).start == f"the mean of {rows} training rows of a"
    assert explain_case(run, 1, table=NEW, site="a").start == f"the mean of {rows} training rows of a"
    with refused("site-required"):
        explain_case(run, 1, table=NEW)


def test_a_run_without_its_percentiles_says_so_and_a_wrong_file_is_refused(known, tmp_path):
    run = copied(known, tmp_path / "old")
    path = run.folder / "percentiles.json"
    path.write_text("{")
    with refused("damaged-file", match=r"percentiles\.json"):
        explain_case(run, 1, table=NEW)
    path.write_text(json.dumps({**PEOPLE, "categorical": {}}))
    with refused("other-run"):
        explain_case(run, 1, table=NEW)
    path.unlink()
    case = explain_case(run, 1, table=NEW)
    assert case.population.words == "no percentile: this run has no percentiles.json; a new run has one"
    assert case.start.startswith("the mean of 100 of the ")
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score)


def test_a_run_keeps_what_its_sites_said_unless_it_has_a_budget(known, tmp_path):
    frame = people()
    experiment = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}})
    run = gr.run(experiment, table=frame, out=tmp_path / "run")
    kept = json.loads((run.folder / "percentiles.json").read_text())
    trained = frame.iloc[RunRows.read(run, frame).training]
    assert kept["rows"] == len(trained)
    assert kept["categorical"]["sex"]["levels"]["male"] == pytest.approx((trained["sex"] == "male").mean())
    assert kept["numeric"]["lactate"]["mean"] == pytest.approx(trained["lactate"].mean(), rel=1e-3)


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_exact_sums_are_kept_only_without_a_budget(known, epsilon):
    plan = json.loads(json.dumps(known.plan))
    plan["privacy"]["epsilon"] = epsilon
    held = stack([40, 30])
    heard = SummaryCollector()
    names = {"numeric": held.data.numeric_names, "categorical": held.data.categorical_names}
    work = heard.watched(agree_on_encoding(**names, rules=EncodingRules(), sites=held.names))
    encoding, _ = LocalEngine(held, EngineSettings(run="test", seed=0)).drive(work, round=0)
    found = heard.population(Settings(plan), encoding)
    assert (found is None) == (epsilon is not None)
    assert found is None or found.rows == 66
    assert SummaryCollector().population(Settings(plan), encoding) is None, "sites that said nothing add up to nothing"


def expected_near(run: gr.Run, threshold: float) -> pd.DataFrame:
    """Near misses from the file and the weights alone."""
    table = pd.read_csv(run.plan["data"]["table"])
    z = INTERCEPT + 0.05 * table["age"] + 0.5 * table["lactate"] + 0.4 * (table["sex"] == "male")
    table["risk"] = sigma_of(z)
    tested = np.concatenate([r.test for r in RunRows.read(run).consortium.stack.rows])
    table = table.iloc[tested]
    low = table[(table["died"] == 1) & (table["risk"] < threshold) & (table["risk"] >= 0.8 * threshold)]
    return low.sort_values("risk", ascending=False)


def sigma_of(z):
    return 1 / (1 + np.exp(-z))


def test_near_misses_by_hand(known):
    want = expected_near(known, 0.5)
    assert len(want) > 0, "the made-up people are too few to test with"
    found = near_misses(known, most=3)
    assert [m.case for m in found.cases] == [int(i) + 1 for i in want.index[:3]]
    assert [m.risk for m in found.cases] == pytest.approx(want["risk"][:3].tolist())
    assert [m.site for m in found.cases] == want["hospital"][:3].tolist()
    assert (found.near, found.threshold, found.event) == (len(want), 0.5, "died = 1")
    assert found.missed >= found.near
    own = near_misses(known, site="b")
    assert [m.case for m in own.cases] == [int(i) + 1 for i in want.index[want["hospital"] == "b"]][:10]
    assert explain_case(known, found.cases[0].case).verdict == "near miss"
    assert known.model.predict(people().iloc[[found.cases[0].case - 1]]).risk[0] == pytest.approx(found.cases[0].risk)


def test_what_is_near_and_what_has_no_near_misses(known, tmp_path):
    assert [is_near(r, 0.4) for r in (0.31, 0.33, 0.39, 0.4)] == [False, True, True, False]
    with refused("out-of-range"):
        near_misses(known, most=0)
    with refused("unknown-site", match="'c'"):
        near_misses(known, site="c")
    frame = people().assign(died=np.arange(200) % 3)
    three = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}})
    run = gr.run(three, table=frame, out=tmp_path / "three")
    with refused("not-binary", match="3 classes"):
        near_misses(run, data=frame)
    case = explain_case(run, 1, data=frame)
    assert all(r.points is None and r.odds_ratio is not None for r in case.attributions)
    assert case.bias == ()


@pytest.mark.parametrize(
    ("outcome", "age", "verdict"),
    [(1, 90.0, "right"), (0, 90.0, "false alarm"), (1, 66.0, "near miss"), (1, 20.0, "missed"), (0, 20.0, "right")],
)
def test_what_became_of_the_decision(known, outcome, age, verdict):
    row = NEW.assign(age=age, lactate=2.0, died=outcome)  # risks .67, .42 and .08 about a threshold of one half
    case = explain_case(known, 1, table=row)
    assert case.verdict == verdict
    shown = {"right": "correct"}.get(verdict, verdict)
    page = case_page(case, top=3)
    assert f"{shown}; new patient" in page and ">right" not in page
    assert "flagged at 50.0% or more" in page
    assert "<title>Patient 1</title>" in page and "Row 1 of " in page


def test_the_json_is_what_the_documentation_says(known):
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
    case = explain_case(known, 1, table=NEW.assign(lactate=np.nan)).to_dict()
    assert case["schema"] == 1
    assert json.loads(json.dumps(case, allow_nan=False)) == case

    def documented(heading: str) -> set[str]:
        section = page.split(f"### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
        return {key for line in section.splitlines() for key in re.findall(r"^\| `(\w+)` \|", line)}

    with_errors = {"probability_interval", "score_interval"}  # of a model with standard errors (test_intervals.py)
    assert set(case) == documented("The record") - with_errors
    for heading, item in {
        "A contribution": case["amplifiers"][0],
        "A step of the waterfall": case["waterfall"][0],
        "A note about data": case["quality"][0],
        "A bias flag": case["bias"][0],
        "Near misses": near_misses(known).to_dict(),
    }.items():
        assert set(item) == documented(heading), heading
