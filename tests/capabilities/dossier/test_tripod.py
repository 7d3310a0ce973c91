"""TRIPOD+AI checklist, model card and data sheet: their items, figures of a run by hand, and kinds of runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.dossier.building.document import BEGUN, FILLED, NOT_APPLICABLE, OPEN, Document, Item
from grandrounds.capabilities.dossier.building.documents import data_sheet, model_card, tripod
from grandrounds.capabilities.dossier.building.evidence import CHARACTERISTICS, Evidence
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import QUESTIONS, Answer
from grandrounds.capabilities.dossier.building.statement import Statement, Table
from grandrounds.capabilities.dossier.building.statements import predictors
from grandrounds.core.rng import generator
from grandrounds.data.table import Table as Rows
from tests.store import finished
from tests.support import bright_squares, patients, slow

ROOT = Path(__file__).parents[3]
DATE = "2026-01-31"
BUILDERS = {"tripod": tripod.build, "model card": model_card.build, "data sheet": data_sheet.build}
LETTERS = {3: "abc", 5: "ab", 6: "abc", 8: "abc", 9: "abc", 12: "abcdefg", 18: "abcdef", 20: "abc", 23: "ab", 27: "abc"}
SUB_ITEMS = [f"{item}{letter}" for item in range(1, 28) for letter in LETTERS.get(item, ("",))]
"""TRIPOD+AI, table 2."""
PLAN: Mapping[str, Any] = {
    "name": "study",
    "data": {"table": "patients.csv", "label": "died", "site": "hospital"},
    "method": {"name": "fedavg", "rounds": 2},
    "evaluation": {"subgroups": ["ward"]},
}


def make(table: Rows, **sections: Mapping[str, Any]) -> gr.Run:
    return gr.load_run(finished(gr.Experiment.parse({**PLAN, **sections}), table=table))


@pytest.fixture(scope="module")
def run():
    """Four hospitals, two rounds."""
    return make(patients([120, 110, 100, 90]))


@pytest.fixture(scope="module")
def evidence(run) -> Evidence:
    return Evidence.collect(run, date=DATE)


@pytest.fixture(scope="module")
def checklist(evidence) -> Document:
    return tripod.build(Facts(evidence))


def find(document: Document, name: str) -> Item:
    return next(item for item in document.items if name in (item.id, item.title))


def text(item: Item) -> str:
    return "\n".join(
        c.text if isinstance(c, Statement) else "\n".join(map(str, c.texts())) for c in item.all_contents()
    )


def figures(item: Item, title: str) -> dict[str, list[str]]:
    """Rows of a table by their first cell."""
    (table,) = [c for c in item.contents if isinstance(c, Table) and c.title == title]
    return {row[0]: row[1:] for row in table.texts()}


def change(evidence: Evidence, name: str, /, **values: Any) -> Evidence:
    """The same evidence with other values in a JSON file; None removes a key."""
    found = {**evidence.json(name), **values}
    data = json.dumps({key: value for key, value in found.items() if value is not None}).encode()
    return Evidence({**evidence.files, name: data})


def test_the_checklist_has_the_52_sub_items_of_27_items_once(checklist):
    ids = [item.id for item in checklist.items]
    assert ids == SUB_ITEMS
    assert len(ids) == 52
    assert len({re.match(r"\d+", i)[0] for i in ids}) == 27


def test_a_table_run_fills_or_begins_at_least_28_sub_items(checklist):
    states = checklist.count_states()
    assert (states[FILLED], states[BEGUN]) == (10, 25)  # as docs/dossier.md has it
    filled = [item.id for item in checklist.items if item.state == FILLED]
    assert filled == ["11", "12a", "12b", "12d", "12f", "12g", "13", "21", "23b", "27a"]
    begun = {item.id for item in checklist.items if item.state in (FILLED, BEGUN)}
    people = {item.id for item in checklist.items if item.state == OPEN}
    assert people == {
        "3a",
        "3b",
        "3c",
        "5b",
        "6b",
        "6c",
        "8b",
        "8c",
        "9c",
        "17",
        "18a",
        "18b",
        "18d",
        "19",
        "27b",
        "27c",
    }
    assert begun | people | {"24"} == set(SUB_ITEMS)


def test_every_open_item_has_a_question_with_a_role(evidence):
    for build in BUILDERS.values():
        for item in build(Facts(evidence)).items:
            if item.state == OPEN:
                assert item.open_questions, item.title
                assert all(q.role for q in item.open_questions)


def test_an_answered_question_closes_an_item(evidence):
    given = {name: Answer("yes", "A. Miller", DATE) for name in QUESTIONS}
    states = tripod.build(Facts(evidence, given)).count_states()
    assert states[OPEN] == 0
    assert states[BEGUN] == 3  # 5b, 20c and 23a have gaps that no answer closes


def test_participants_and_events_are_those_of_the_summary(run, checklist):
    s = run.summary
    table = figures(find(checklist, "21"), "Participants and events in each analysis")
    rows = {part: sum(r[part] for r in s["rows"].values()) for part in ("train", "val", "test")}
    events = {"train": s["training"]["events"], "val": s["validation"]["events"], "test": s["final"]["events"]}
    for part, name in {"train": "development (training)", "test": "evaluation"}.items():
        assert table[name] == [f"{rows[part]}", f"{events[part]:.0f}", f"{events[part] / rows[part]:.1%}"]
    sites = figures(find(checklist, "21"), "Rows by site")
    assert set(sites) == set("abcd")
    for site, cells in sites.items():
        assert cells[:3] == [str(s["rows"][site][part]) for part in ("train", "val", "test")]
        assert cells[3] == f"{s['per_site'][site]['events']:.0f}"
    assert sum(int(cells[3]) for cells in sites.values()) == s["final"]["events"]


def test_performance_by_hand(run, checklist):
    """AUROC with its interval, and Wilson's interval of the sensitivity from its formula."""
    s, said = run.summary["final"], text(find(checklist, "23a"))
    assert f"AUROC is {s['auroc']:.3f} (95% CI {s['auroc_low']:.3f} to {s['auroc_high']:.3f})" in said
    p, n, z = s["sensitivity"], s["events"], 1.959964
    middle, half = (
        (p + z * z / (2 * n)) / (1 + z * z / n),
        z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)),
    )
    assert f"sensitivity is {p:.3f} (95% CI {middle - half:.3f} to {middle + half:.3f})" in said
    assert "the summary has no interval of: AUPRC" in find(checklist, "23a").gaps[0]
    groups = figures(find(checklist, "23a"), "Performance by ward")
    known = {name: g for name, g in run.summary["fairness"]["columns"]["ward"]["groups"].items() if "auroc" in g}
    assert known
    for name, g in known.items():
        assert groups[name][5] == f"{g['auroc']:.2f} (95% CI {g['auroc_low']:.2f} to {g['auroc_high']:.2f})"


def test_heterogeneity_across_hospitals_by_hand(evidence):
    """Logit AUROCs 0, 1, 1, 1, 2 with a standard error of 1/2.

    Weights are 4, so Q = 4 (1 + 1) = 8, I2 = 1 - 4/8, tau2 = (8 - 4) / (20 - 80/20) = 1/4. The mean 1 has the variance
    (1/4 + 1/4) / 5 = 0.1, and the prediction interval is 1 +- t(3) sqrt(0.25 + 0.1) = 1 +- 3.182 * 0.5916.
    """
    per_site = {}
    for site, logit in zip("abcde", (0.0, 1.0, 1.0, 1.0, 2.0), strict=True):
        auroc = 1 / (1 + np.exp(-logit))
        half = 1.959963984540054 * 0.5 * auroc * (1 - auroc)
        per_site[site] = {
            "count": 60.0,
            "events": 30.0,
            "auroc": auroc,
            "auroc_low": auroc - half,
            "auroc_high": auroc + half,
        }
    per_site["f"] = {"count": 5.0, "events": 0.0, "auroc": None}
    said = text(find(tripod.build(Facts(change(evidence, "summary.json", per_site=per_site))), "23b"))
    assert "Over 5 sites the mean AUROC is 0.731 (95% CI 0.594 to 0.835)." in said
    assert "I-squared is 50%: that share of the variation between sites is more than chance (Q 8.00, p 0.092)." in said
    expected = "At a hospital that took no part expect an AUROC of 0.293 to 0.947 (95% prediction interval, from 5 hospitals)."
    assert expected in said
    assert "Not in the meta-analysis: f (it has no AUROC)." in said
    assert "fewer than 10 test rows" not in said


def test_many_sites_are_shown_as_ranges(evidence):
    names = [f"site {k:02d}" for k in range(81)]
    rows = {name: {"train": 100 + k, "val": 20, "test": 30} for k, name in enumerate(names)}
    ends = {"auroc_low": 0.5, "auroc_high": 0.95}
    per_site = {name: {"count": 30.0, "events": 12.0, "auroc": 0.6 + k / 400, **ends} for k, name in enumerate(names)}
    document = tripod.build(Facts(change(evidence, "summary.json", rows=rows, per_site=per_site)))
    sites = figures(find(document, "21"), "Rows of 81 sites")
    assert sites["training rows"] == ["81", "100", "120", "140", "160", "180"]
    assert figures(find(document, "23b"), "Performance over 81 sites")["AUROC"] == [
        "81",
        "0.60",
        "0.65",
        "0.70",
        "0.75",
        "0.80",
    ]
    assert "Over 81 sites the mean AUROC is" in text(find(document, "23b"))
    assert "site 11 and 69 more" in text(find(document, "6a"))


def test_few_events_of_sites_are_named(evidence):
    site = {"count": 40.0, "events": 4.0, "auroc": 0.8, "auroc_low": 0.6, "auroc_high": 1.0}
    said = text(find(tripod.build(Facts(change(evidence, "summary.json", per_site=dict.fromkeys("abc", site)))), "23b"))
    assert "The AUROC of a, b, c has little certainty: fewer than 10 test rows of the rarer class." in said


@pytest.mark.parametrize(
    ("section", "setting", "item", "sentence"),
    [
        (
            "train",
            {"class_weights": "balanced"},
            "13",
            "Classes are weighted in the loss by the inverse of their frequency.",
        ),
        ("train", {"class_weights": {"1": 5.0, "0": 1.0}}, "13", "Classes are weighted in the loss: 1 5, 0 1."),
        ("train", {"class_weights": "none"}, "13", "No method against class imbalance was used"),
        (
            "evaluation",
            {"threshold": "youden"},
            "15",
            "The threshold has the largest sum of sensitivity and specificity",
        ),
        ("evaluation", {"threshold": "specificity", "specificity": 0.95}, "15", "the lowest with a specificity of 95%"),
        ("evaluation", {"mitigation": "thresholds"}, "14", "The correction by groups is a threshold for each group"),
        ("data", {"complete": True}, "11", "Rows in which a predictor has no value were left out."),
        ("data", {"impute": "mean"}, "11", "A missing number becomes the mean of all training rows."),
        ("data", {"scale": "robust"}, "12b", "Numbers are centred at their median"),
        ("data", {"patient": "mrn"}, "21", "Column mrn names the patient"),
        ("split", {"partition": "dirichlet"}, "6a", "The sites are simulated"),
        ("split", {"scheme": "holdout"}, "4", "evaluates it at sites that took no part in training"),
    ],
)
def test_statements_follow_the_plan(evidence, section, setting, item, sentence):
    plan = evidence.json("plan.json")
    changed = change(evidence, "plan.json", **{section: {**plan[section], **setting}})
    assert sentence in text(find(tripod.build(Facts(changed)), item))


def test_simulated_attacks_are_limits(evidence):
    changed = change(evidence, "summary.json", attacks={"sites": {"a": "sign-flip"}})
    assert "The run simulated attacks by sites: a (sign-flip)." in text(find(tripod.build(Facts(changed)), "26"))


def test_without_test_rows_performance_is_a_gap(evidence):
    document = tripod.build(Facts(change(evidence, "summary.json", final={}, per_site={}, fairness={}, worst_site={})))
    for name in ("2", "12g", "23a", "23b"):
        assert any("no row was set aside for a test" in gap for gap in find(document, name).gaps), name
    assert "it has no test rows to evaluate it" in text(find(document, "4"))


def test_poor_inputs_follow_the_schema(evidence):
    said = text(find(tripod.build(Facts(evidence)), "27a"))
    assert "A category that training did not see is reported" in said and "set to the end of the range" in said
    columns = [c for c in evidence.json("schema.json")["columns"] if c["kind"] != "categorical"]
    said = text(find(tripod.build(Facts(change(evidence, "schema.json", columns=columns))), "27a"))
    assert "A category" not in said and "A column that is missing is reported" in said


def test_quartiles_and_missing_values_are_those_of_the_training_rows(run, evidence):
    percentiles = json.loads((run.folder / "percentiles.json").read_text())
    found = evidence.json(CHARACTERISTICS)
    assert found["sha256"] == sha256((run.folder / "percentiles.json").read_bytes()).hexdigest()
    age = found["columns"]["age"]
    points = percentiles["numeric"]["age"]["quantiles"]
    at = (np.arange(len(points)) + 0.5) / len(points)
    assert age["quartiles"] == pytest.approx(np.interp([0.25, 0.5, 0.75], at, points))
    assert age["missing"] == percentiles["numeric"]["age"]["missing"]
    assert "quantiles" not in json.dumps(found)
    (table,) = [c for c in find(tripod.build(Facts(evidence)), "9b").contents if isinstance(c, Table)]
    row = next(row for row in table.texts() if row[0] == "age")
    assert row[3] == f"{age['missing']:.1%}"


def test_an_ordered_column_shows_its_levels():
    order = ["mild", "moderate", "severe"]
    assert [predictors._show_quantile(q, order) for q in (0.0, 0.999, 1.9997)] == order
    assert [predictors._show_quantile(q, ()) for q in (0.999, 67.02, 3.14159, 1234.4)] == ["1", "67", "3.14", "1,234"]


def statements(documents: list[Document]):
    for document in documents:
        yield from document.notes
        for item in document.items:
            yield from item.all_contents()


HEDGES = re.compile(
    r"\b(may|might|could|perhaps|possibly|appears?|seems?|arguably|robust and|state-of-the-art)\b", re.I
)


def check_sentences(documents: list[Document]) -> None:
    """Every statement has a source and no hedge; a sentence has 25 words at most, a value counting as one."""
    for content in statements(documents):
        assert content.all_sources
        if not isinstance(content, Statement):
            continue
        assert not HEDGES.search(content.template), content.template
        for sentence in re.split(r"(?<=[.:;])\s", re.sub(r"\{\w+\}", "VALUE", content.template)):
            assert len(sentence.split()) <= 25, sentence


def build_all(evidence: Evidence) -> list[Document]:
    facts = Facts(evidence)
    return [build(facts) for build in BUILDERS.values()]


def test_sentences_are_short_and_have_sources(evidence):
    check_sentences(build_all(evidence))


def outcome_rows(kind: str) -> Rows:
    rng = generator(1, purpose=f"rows of {kind}")
    n, x = 240, rng.normal(size=(240, 2))
    eta = x @ [0.5, -0.4]
    columns: dict[str, Any] = {"a": x[:, 0], "b": x[:, 1], "hospital": np.array(list("NES"))[np.arange(n) % 3]}
    if kind == "regression":
        columns["y"] = 5 + 2 * eta + rng.normal(size=n)
    elif kind == "count":
        columns["y"] = rng.poisson(np.exp(0.5 + eta)).astype(float)
    else:
        death, end = rng.exponential(100 * np.exp(-eta)), rng.exponential(120, n)
        columns |= {"days": np.minimum(death, end), "y": (death <= end).astype(float)}
    return Rows.from_mapping(columns, source="patients.csv")


def outcome_sections(kind: str, **method: Any) -> dict[str, Any]:
    data = {"table": "patients.csv", "label": "y", "site": "hospital", "task": kind}
    data |= {"duration": "days"} if kind == "survival" else {}
    more = {"method": method} if method else {}
    return {"data": data, "model": {"name": "linear"}, "evaluation": {}, **more}


@pytest.mark.parametrize(
    ("kind", "method", "headline"),
    [
        ("regression", {}, "R2 is"),
        slow("count", {}, "D2 is"),
        ("survival", {}, "C-index is"),
        slow("survival", {"name": "cox"}, "C-index is"),
    ],
)
def test_other_outcomes(kind, method, headline, tmp_path):
    run = make(outcome_rows(kind), **outcome_sections(kind, **method))
    documents = build_all(Evidence.collect(run, date=DATE))
    checklist = documents[0]
    check_sentences(documents)
    assert headline in text(find(checklist, "23a"))
    assert find(checklist, "13").state == NOT_APPLICABLE
    assert any("has no classes" in gap for gap in find(checklist, "23b").gaps)
    assert "no threshold" in text(find(checklist, "15"))
    assert sum(checklist.count_states()[s] for s in (FILLED, BEGUN)) >= 28


@pytest.mark.parametrize(
    ("method", "model", "item", "sentence"),
    [
        ({"name": "glm"}, "logistic", "22", "age"),
        slow({"name": "card"}, "card", "12c", "terms with whole-number points"),
        slow({"name": "gam"}, "gam", "12c", "additive model that uses"),
        slow({"name": "trees", "trees": {"rounds": 2}}, "trees", "12c", "boosted trees"),
        slow({"name": "local", "rounds": 2}, "logistic", "12c", "separate models"),
        slow({"name": "pooled", "rounds": 2}, "logistic", "6a", "pooled in one place"),
    ],
)
def test_other_models(method, model, item, sentence, tmp_path):
    run = make(patients([70, 60, 50], gaps=0.0), method=method, model={"name": model}, evaluation={})
    documents = build_all(Evidence.collect(run, date=DATE))
    check_sentences(documents)
    assert sentence in text(find(documents[0], item))
    assert sum(documents[0].count_states()[s] for s in (FILLED, BEGUN)) >= 28
    if method["name"] == "glm":
        rows = figures(find(documents[0], "22"), "Coefficients in original units")
        age = next(c for c in run.summary["estimates"]["original"]["coefficients"] if c["name"] == "age")
        assert rows["age"] == [f"{age['estimate']:.4g}", f"{age['low']:.4g} to {age['high']:.4g}"]


def test_a_run_without_a_model_says_so_in_one_sentence(tmp_path):
    run = make(patients([70, 60, 50]), method={"name": "table1"}, evaluation={})
    documents = dict(zip(BUILDERS, build_all(Evidence.collect(run, date=DATE)), strict=True))
    for name in ("tripod", "model card"):
        (item,) = documents[name].items
        assert item.state == NOT_APPLICABLE and "fits no prediction model" in text(item)
    sheet = find(documents["data sheet"], "Columns")
    table = figures(sheet, "Table 1, all sites")
    age = run.summary["table1"]["variables"][0]
    assert table["age"][0] == f"{age['cells'][0]['mean']:.4g} ({age['cells'][0]['sd']:.3g})"
    check_sentences(list(documents.values()))


def test_several_classes(tmp_path):
    run = make(patients([80, 70, 60], classes=3), evaluation={})
    documents = build_all(Evidence.collect(run, date=DATE))
    check_sentences(documents)
    assert "It has 3 classes: 0, 1, 2." in text(find(documents[0], "8a"))
    assert any("three or more classes" in gap for gap in find(documents[0], "23b").gaps)


def test_personal_models_are_updates_with_results(tmp_path):
    run = make(patients([80, 70, 60]), personal={"part": "intercept"}, evaluation={})
    checklist = tripod.build(Facts(Evidence.collect(run, date=DATE)))
    item = find(checklist, "24")
    assert item.state == FILLED
    after = run.summary["personal"]["final"]
    assert f"have AUROC {after['auroc']:.3f} (95% CI {after['auroc_low']:.3f}" in text(item)
    assert "Each site has a part of the model for itself (intercept)." in text(find(checklist, "12d"))


def test_a_withdrawn_run_says_so_first(run, evidence):
    ledger = evidence.json("ledger.json")
    entry = {
        "kind": "withdraw",
        "number": ledger["entries"][-1]["entry"]["number"] + 1,
        "site": "b",
        "date": "2026-02-01T09:30:00+00:00",
        "valid": {"run": "study", "folder": "study-without-b", "entries": 3, "root": "00", "model": "00"},
    }
    changed = change(evidence, "ledger.json", entries=[*ledger["entries"], {"entry": entry, "path": []}])
    for document in build_all(changed):
        assert document.notes[0].text.startswith("WITHDRAWN: site b withdrew on 2026-02-01. Do not use the model")
        assert "'study-without-b'" in document.notes[0].text


def test_missing_files_are_gaps_and_never_errors(evidence):
    """Runs of other versions: any one file or key of the summary is absent."""
    for name in (
        "schema.json",
        "environment.json",
        "experiment.toml",
        "ledger.json",
        CHARACTERISTICS,
        "commands/audit.json",
    ):
        documents = build_all(Evidence({k: v for k, v in evidence.files.items() if k != name}))
        assert documents[0].count_states()[BEGUN] > 20
    for file in ("summary.json", "plan.json"):
        for key in evidence.json(file):
            tripod.build(Facts(change(evidence, file, **{key: None})))
    without = build_all(Evidence({k: v for k, v in evidence.files.items() if k != "ledger.json"}))
    assert all("no ledger" in document.notes[0].text for document in without)


@pytest.mark.slow
def test_missing_keys_are_gaps_of_every_document(evidence):
    for file in ("summary.json", "plan.json"):
        for key in evidence.json(file):
            build_all(change(evidence, file, **{key: None}))


def test_a_run_under_a_privacy_budget_has_gaps_where_it_counts_nothing():
    run = make(patients([120, 110, 100, 90]), privacy={"mechanism": "dp-sgd", "epsilon": 5.0})
    documents = build_all(Evidence.collect(run, date=DATE))
    check_sentences(documents)
    states = documents[0].count_states()
    assert states[FILLED] + states[BEGUN] >= 28
    for name in ("11", "20b", "21"):
        assert any("under a privacy budget" in gap for gap in find(documents[0], name).gaps)


def test_a_run_on_images_says_their_size(tmp_path):
    pytest.importorskip("torch")
    images = bright_squares(tmp_path / "squares.npz", 170, "abcdeabcdeabcab", purpose="squares")
    plan = {"data": {"table": str(images)}, "model": {"name": "small-cnn"}, "method": {"rounds": 1}}
    run = gr.run(gr.Experiment.parse({**plan, "split": {"partition": "column"}}), out=tmp_path / "run")
    documents = build_all(Evidence.collect(run, date=DATE))
    check_sentences(documents)
    assert "The input is an image of 16 x 16 pixels" in text(find(documents[0], "9b"))
    assert find(documents[0], "11").state == OPEN


@pytest.mark.slow
def test_the_page_has_the_counts_of_runs_of_each_kind():
    pytest.importorskip("flwr")
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "dossier_kinds.py"), "--check"], check=False)
    assert done.returncode == 0, "run `python docs/dossier_kinds.py --write`"
