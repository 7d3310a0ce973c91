"""A hospital's patients in its console: its own and nobody else's, explained as `rounds explain` does, and what if."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case, near_misses
from grandrounds.capabilities.cases.case_page import case_figure
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.cli import app as command
from grandrounds.core.rng import generator
from grandrounds.report.figures import reliability
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.capabilities.console.test_api import asked
from tests.runs.test_run import frame
from tests.store import copied, shared_folder
from tests.support import patients, refused

EVIL = "<script>alert(1)</script>"
ROUTES = (
    "/case",
    *(f"/api/case{rest}" for rest in ("", "/runs", "/patients", "/figure", "/what-if", "/others", "/picture")),
)
RUNS = {
    "common": {
        "method": {"name": "sse-agg", "rounds": 4},
        "reference": {"rows": {"rows": 25}},
        "explain": {"sketch": "permutation"},
    },
    "apart": {"method": {"name": "local", "rounds": 4}},
    "net": {"model": {"name": "mlp", "hidden": [6]}, "method": {"rounds": 4}},
    "private": {"method": {"name": "veil", "rounds": 2, "veil": {"k": 2}}, "privacy": {"epsilon": 5.0}},
}


@shared_folder
def hospitals(root: Path) -> None:
    """Four runs on a file of patients of hospitals a, b and c; one column's name is a script."""
    table = frame(patients([90, 70, 50]))
    rng = generator(0, purpose="more columns")
    table[EVIL] = table["died"] + rng.normal(size=len(table))
    table["sex"] = rng.choice(["female", "male"], len(table))
    table["mrn"] = [f"P{k:04d}" for k in range(len(table))]
    table.to_csv(root / "patients.csv", index=False)
    data = {"table": str(root / "patients.csv"), "label": "died", "site": "hospital", "patient": "mrn"}
    for name, changes in RUNS.items():
        gr.run(gr.Experiment.parse({"name": name, "data": data, **changes}), out=root / "runs" / name)


@pytest.fixture(scope="module")
def table(hospitals) -> pd.DataFrame:
    return pd.read_csv(hospitals / "patients.csv")


@pytest.fixture(scope="module")
def cases(hospitals) -> SiteCases:
    return SiteCases(RunIndex(hospitals / "runs"), "b")


@pytest.fixture(scope="module")
def at_b(hospitals, cases) -> Signed:
    """The console of hospital b."""
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(hospitals / "runs"), users, cases=cases)), tokens)


@pytest.fixture(scope="module")
def clinician(at_b) -> TestClient:
    return at_b.client("clinician")


def to(client, path: str):
    """How a route is asked: values of a patient are posted."""
    return client.post if path.endswith("/what-if") else client.get


def opened(hospitals, name: str) -> gr.Run:
    return gr.load_run(hospitals / "runs" / name)


def listed(client, run: str, **query) -> list[dict]:
    """All pages of the list."""
    find = query.pop("find", None)

    def page(number: int) -> dict:
        asks = {"run": run, **query, "page": number}
        if find is None:
            return client.get("/api/case/patients", params=asks).json()
        return client.post("/api/case/patients", params=asks, json={"find": find}).json()

    first = page(1)
    return first["patients"] + [p for k in range(1, first["pages"]) for p in page(k + 1)["patients"]]


def ask(client, run: str, case: int, values) -> dict:
    text = values if isinstance(values, str) else json.dumps(values)
    return client.post("/api/case/what-if", params={"run": run, "case": case}, content=text)


def test_the_list_has_this_hospitals_patients_and_no_others(clinician, table):
    shown = listed(clinician, "common")
    held = set(np.flatnonzero(table["hospital"] == "b") + 1)
    assert {p["case"] for p in shown} < held and len(shown) > 50  # reference rows were set aside: they are nobody's
    assert len({p["case"] for p in shown}) == len(shown)
    assert all(p["patient"] == table["mrn"][p["case"] - 1] for p in shown)
    parts = [p["part"] for p in shown]
    assert parts == sorted(parts, key=["test", "val", "train"].index)
    for part in ("test", "val", "train"):
        risks = [p["risk"] for p in shown if p["part"] == part]
        assert risks == sorted(risks, reverse=True)


@pytest.mark.parametrize("run", RUNS)
def test_another_hospitals_row_is_not_there_in_page_or_api(clinician, table, run):
    theirs = int(np.flatnonzero(table["hospital"] == "a")[0]) + 1
    beyond = len(table) + 5
    asks = {"run": run, "values": "{}", "figure": "waterfall", "layer": "picture"}
    for number in (theirs, beyond):
        for path in set(ROUTES) - {"/api/case/runs", "/api/case/patients"}:
            answer = to(clinician, path)(path, params={**asks, "case": number})
            assert answer.status_code == 404 or (path, answer.status_code) == ("/api/case/picture", 422), path
            assert str(table["mrn"][theirs - 1]) not in answer.text
    assert not listed(clinician, run, find=table["mrn"][theirs - 1])


def test_without_a_site_there_are_no_patients_and_that_is_said(hospitals):
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(hospitals / "runs"), users)), tokens).client("clinician")
    for path in ROUTES:
        for asks in ({}, {"run": "common", "case": 3}):
            answer = to(client, path)(path, params=asks)
            assert answer.status_code == 404 and "rounds console --site" in answer.text, path
    assert 'href="/case"' not in client.get("/").text


@pytest.mark.parametrize("role", ["viewer", "auditor"])
def test_patients_are_the_clinicians_alone(at_b, hospitals, role):
    users, tokens = known_users()
    elsewhere = Signed(create_app(AppState(RunIndex(hospitals / "runs"), users)), tokens)
    own = listed(at_b.client("clinician"), "common")[0]["case"]
    for console in (at_b, elsewhere):
        for path in ROUTES:
            for asks in ({}, {"run": "common", "case": own, "values": "{}", "figure": "waterfall"}):
                assert to(console.client(role), path)(path, params=asks).status_code == 403, path


@pytest.mark.parametrize("run", RUNS)
def test_a_patients_record_is_that_of_rounds_explain(clinician, hospitals, run):
    held = opened(hospitals, run)
    for number in [p["case"] for p in listed(clinician, run)[:2]]:
        told = clinician.get("/api/case", params={"run": run, "case": number}).json()
        case = explain_case(held, number)
        assert told["record"] == json.loads(json.dumps(case.to_dict()))
        assert [r["column"] for r in told["amplifiers"]] == [r.column for r in case.amplifiers]
        drawn = clinician.get("/api/case/figure", params={"run": run, "case": number, "figure": "waterfall"}).json()
        assert drawn == json.loads(json.dumps(case_figure(case, top=10)))


def test_the_band_is_the_bin_of_the_reliability_diagram(clinician, hospitals):
    bins = opened(hospitals, "common").summary["reliability"]
    points = reliability(bins)["data"][1]
    held = {round(x, 9): (n, low, high) for x, (n, low, high) in zip(points["x"], points["customdata"], strict=True)}
    for patient in listed(clinician, "common", part="test")[:8]:
        band = clinician.get("/api/case", params={"run": "common", "case": patient["case"]}).json()["band"]
        assert band["low"] <= patient["risk"] < band["high"] or patient["risk"] == 1
        k = min(int(patient["risk"] * 15), 14)
        rows, low, high = held[round(bins["confidence"][k], 9)]
        assert (band["rows"], band["share"]) == (rows, pytest.approx(bins["outcome"][k]))
        assert (band["share_low"], band["share_high"]) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@pytest.mark.parametrize("run", ["common", "net", "apart"])
def test_a_what_if_is_the_models_answer_to_the_changed_row(clinician, hospitals, table, run):
    held = opened(hospitals, run)
    number = listed(clinician, run)[0]["case"]
    model = held.model_for("b")
    for values in (
        {"age": 41.5},
        {"age": 70.0, "lactate": 4.0, "ward": "cardiac"},
        {"pressure": None, "ward": None},
        {EVIL: 0.25, "sex": "female"},
    ):
        row = table.iloc[[number - 1]].copy()
        for name, value in values.items():
            row[name] = [value]
        told = ask(clinician, run, number, values).json()
        before, after = model.predict(table.iloc[[number - 1]]).risk[0], model.predict(row).risk[0]
        assert told["after"] == pytest.approx(after, abs=1e-7) and told["before"] == pytest.approx(before, abs=1e-7)
        assert told["points"] == pytest.approx(100 * (after - before), abs=1e-5)
        if run == "common":  # what reasons gained is what the log-odds gained
            gained = np.log(after / (1 - after)) - np.log(before / (1 - before))
            assert sum(r["change"] for r in told["reasons"]) == pytest.approx(gained, abs=1e-5)
            assert {r["column"] for r in told["reasons"]} <= set(values)


def test_of_three_classes_a_what_if_follows_the_class_that_was_decided_for(tmp_path):
    made = frame(patients([90, 70, 50], classes=3))
    made.to_csv(tmp_path / "three.csv", index=False)
    data = {"table": str(tmp_path / "three.csv"), "label": "died", "site": "hospital"}
    run = gr.run(gr.Experiment.parse({"data": data, "method": {"rounds": 4}}), out=tmp_path / "runs" / "three")
    users, tokens = known_users()
    run_index = RunIndex(tmp_path / "runs")
    client = Signed(create_app(AppState(run_index, users, cases=SiteCases(run_index, "b"))), tokens).client("clinician")
    shown = client.get("/api/case/patients", params={"run": "three"}).json()
    assert shown["event"] is None and shown["threshold"] is None and set(shown["verdicts"]) == {"right", "wrong"}
    number = next(p["case"] for p in shown["patients"] if p["decision"] == "2")
    told = client.get("/api/case", params={"run": "three", "case": number}).json()
    age, lactate = (next(c for c in told["controls"] if c["column"] == name) for name in ("age", "lactate"))
    values = {"age": age["low"], "lactate": lactate["low"]}
    row = made.iloc[[number - 1]].assign(**values)
    said, answer = run.model.predict(row), ask(client, "three", number, values).json()
    assert answer["after"] == pytest.approx(said.probabilities[0][said.classes.index("2")], abs=1e-7)
    assert answer["decision_after"] == said.decisions[0] != "2"
    assert answer["reasons"] == [] and f"The decision is now {said.decisions[0]}" in answer["notes"][0]
    assert client.get("/case", params={"run": "three", "case": number}).status_code == 200


def test_a_what_if_of_nothing_changes_nothing(clinician):
    number = listed(clinician, "common")[0]["case"]
    told = clinician.get("/api/case", params={"run": "common", "case": number}).json()
    own = {c["column"]: c["value"] for c in told["controls"]}
    for values in ({}, own):
        same = ask(clinician, "common", number, values).json()
        assert same["points"] == 0 and same["reasons"] == []


@pytest.mark.parametrize(
    "values",
    ["", "[]", "3", "null", "{", "[" * 4000, '{"age": NaN}', '{"age": Infinity}', '{"age": 1e999}', '{"age": true}',
     '{"age": "old"}', '{"age": [60]}', '{"age": 100000}', '{"age": -1e300}', '{"ward": "moon"}', '{"ward": 3}',
     '{"ward": {}}', '{"died": 1}', '{"hospital": "a"}', '{"mrn": "P0001"}', '{"nobody": 1}', '{"age": 1%s}' % ("0" * 5000),
     '{"age": "%s"}' % ("x" * 9000)],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused_in_words(clinician, values):
    number = listed(clinician, "common")[0]["case"]
    answer = ask(clinician, "common", number, values)
    assert answer.status_code == 422 and answer.json()["error"]


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    values=st.dictionaries(
        st.sampled_from(["age", "lactate", "ward", "sex", EVIL, "died", "<b>"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.floats(0, 90) | st.text(max_size=9)
        | st.sampled_from(["medical", "male"]) | st.lists(st.integers(), max_size=2),
        max_size=5,
    )
)  # fmt: skip
def test_made_up_values_are_answered_or_refused(clinician, values):
    number = listed(clinician, "net")[0]["case"]
    answer = ask(clinician, "net", number, values)
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert 0 < answer.json()["after"] < 1


def test_sliders_reach_over_the_populations_percentiles_and_the_patients_own_value(clinician, hospitals):
    spread = json.loads((hospitals / "runs" / "common" / "percentiles.json").read_text())["numeric"]["age"]["quantiles"]
    for patient in listed(clinician, "common")[:10]:
        told = clinician.get("/api/case", params={"run": "common", "case": patient["case"]}).json()
        by_name = {c["column"]: c for c in told["controls"]}
        assert [c["column"] for c in told["controls"]] == [
            w["column"] for w in told["record"]["waterfall"] if w["column"]
        ]
        age = by_name["age"]
        low, high = np.quantile(spread, [0.005, 0.995])
        inside = [v for v in (low, high, age["value"]) if v is not None]
        assert age["low"] <= min(inside) < max(inside) <= age["high"]
        assert age["high"] - age["low"] <= max(inside) - min(inside) + 2 * age["step"]
        assert set(by_name["ward"]["levels"]) == {"medical", "surgical", "cardiac"}


def test_under_a_budget_sliders_reach_over_this_hospitals_own_patients(clinician, table):
    number = listed(clinician, "private")[0]["case"]
    told = clinician.get("/api/case", params={"run": "private", "case": number}).json()
    age = next(c for c in told["controls"] if c["column"] == "age")
    own = table["age"][table["hospital"] == "b"]
    assert own.min() - age["step"] <= age["low"] and age["high"] <= own.max() + age["step"]
    assert "99% of b's patients" in age["range"] and "not released" in told["record"]["percentiles"]["from"]


def test_near_misses_are_marked_and_can_be_listed_alone(clinician, hospitals):
    for run in ("common", "net"):
        found = near_misses(opened(hospitals, run), most=99, site="b")
        assert found.cases, "a list of nobody would prove nothing"
        shown = listed(clinician, run, part="test", verdict="near miss")
        assert [p["case"] for p in shown] == [m.case for m in found.cases]
        everybody = listed(clinician, run)
        tested = [p for p in everybody if p["part"] == "test"]
        assert all((p["verdict"] == "right") == (p["decision"] == p["outcome"]) for p in tested)
        assert {p["verdict"] for p in everybody if p["part"] != "test"} == {None}
    assert [p["case"] for p in listed(clinician, "net", find=everybody[3]["patient"].lower())] == [everybody[3]["case"]]
    assert everybody[3]["case"] in [p["case"] for p in listed(clinician, "net", find=str(everybody[3]["case"]))]
    rows = [p["case"] for p in listed(clinician, "net", sort="row")]
    assert rows == sorted(rows)


def test_separate_models_are_each_asked_about_the_patient(clinician, hospitals):
    held = opened(hospitals, "apart")
    number = listed(clinician, "apart")[0]["case"]
    told = clinician.get("/api/case/others", params={"run": "apart", "case": number}).json()
    assert told["kind"] == "separate" and [m["sites"] for m in told["models"]] == [["b"], ["a"], ["c"]]
    for model in told["models"]:
        case = explain_case(held, number, site=model["sites"][0])
        assert model["probability"] == pytest.approx(case.probability) and model["decision"] == case.decision
        parts = {r.column: r.contribution for r in case.attributions}
        assert model["reasons"] == pytest.approx({c: parts[c] for c in told["columns"]})
    assert told["models"][0]["alike"] == pytest.approx(1) and all(0 <= m["alike"] <= 1 for m in told["models"])
    asks = {"run": "apart", "case": number, "figure": "by-model"}
    assert len(clinician.get("/api/case/figure", params=asks).json()["data"][0]["z"]) == 3


def test_of_a_common_model_it_is_said_and_the_recorded_weights_are_shown(clinician, hospitals):
    recorded = opened(hospitals, "common").explanations
    number = listed(clinician, "common")[0]["case"]
    told = clinician.get("/api/case/others", params={"run": "common", "case": number}).json()
    assert told["kind"] == "common" and not told["models"] and "one common model" in told["said"][0]
    blocks = {"elsewhere-training": recorded["rounds"][-1]["training"], "elsewhere-deployed": recorded["final"]}
    assert {b["figure"] for b in told["recorded"]} == set(blocks)
    for block in told["recorded"]:
        sketches = blocks[block["figure"]]["sketches"]
        for weight in block["columns"]:
            k = recorded["features"].index(weight["column"])
            assert weight["here"] == pytest.approx(sketches["b"][k])
            assert weight["others"] == pytest.approx(np.mean([sketches[s][k] for s in sketches if s != "b"]))
        asks = {"run": "common", "case": number, "figure": block["figure"]}
        assert clinician.get("/api/case/figure", params=asks).status_code == 200
    asks = {"run": "private", "case": listed(clinician, "private")[0]["case"]}
    assert "recorded no explanations" in " ".join(clinician.get("/api/case/others", params=asks).json()["said"])


def test_a_script_in_a_columns_name_stays_text(clinician):
    number = listed(clinician, "common")[0]["case"]
    page = clinician.get("/case", params={"run": "common", "case": number}).text
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page
    for figure in ("waterfall", "elsewhere-deployed"):
        drawn = clinician.get("/api/case/figure", params={"run": "common", "case": number, "figure": figure}).text
        assert EVIL not in drawn and "&lt;script&gt;" in drawn
    assert "Treat this page as part of the medical record" in page


def test_a_file_of_the_hospitals_shows_its_own_rows_alone(hospitals, table, tmp_path):
    new = table.drop(columns="died").iloc[[0, 100, 120, 200]]
    new.to_csv(tmp_path / "new.csv", index=False)
    cases = SiteCases(RunIndex(hospitals / "runs"), "b", data=str(tmp_path / "new.csv"))
    assert cases.check() == "2 patients of b from new.csv"
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(hospitals / "runs"), users, cases=cases)), tokens).client("clinician")
    for run in RUNS:
        assert {p["case"] for p in listed(client, run)} == {2, 3}
        assert client.get("/api/case", params={"run": run, "case": 1}).status_code == 404
        told = client.get("/api/case", params={"run": run, "case": 3}).json()["record"]
        known = explain_case(opened(hospitals, run), 3, table=str(tmp_path / "new.csv"))
        assert told == json.loads(json.dumps(known.to_dict()))
    new.drop(columns="hospital").to_csv(
        tmp_path / "new.csv", index=False
    )  # it says of nobody whose they are: all are b's
    assert {p["case"] for p in listed(client, "common")} == {1, 2, 3, 4}


def test_a_file_without_a_column_that_the_model_relies_on_is_one_sentence_on_the_page(hospitals, table, tmp_path):
    table.to_csv(tmp_path / "new.csv", index=False)
    cases = SiteCases(RunIndex(hospitals / "runs"), "b", data=str(tmp_path / "new.csv"))
    cases.check()
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(hospitals / "runs"), users, cases=cases)), tokens).client("clinician")
    table.rename(columns={"lactate": "Lactate"}).to_csv(tmp_path / "new.csv", index=False)
    for place in ("/case?run=common", "/case?run=common&case=101", "/api/case?run=common&case=101"):
        answer = client.get(place)
        assert answer.status_code == 422, (place, answer.status_code)
        assert "did you mean" in answer.text and str(tmp_path) not in answer.text
    with refused("data-do-not-fit", match="did you mean 'Lactate'"):
        cases.check()


def test_what_no_page_could_show_is_refused_at_the_start(hospitals, table, tmp_path):
    run_index = RunIndex(hospitals / "runs")
    with refused("unknown-site", match="--site bb.*known: a, b, c"):
        SiteCases(run_index, "bb").check()
    with refused("unknown-column", match="--protected sexx.*did you mean 'sex'"):
        SiteCases(run_index, "b", protected=("sexx",)).check()
    pd.DataFrame({"shoe size": [40.0]}).to_csv(tmp_path / "shoes.csv", index=False)
    with refused("data-do-not-fit", match="--data"):
        SiteCases(run_index, "b", data=str(tmp_path / "shoes.csv")).check()
    table.assign(age="old").to_csv(tmp_path / "old.csv", index=False)
    with refused("data-do-not-fit", match="'age'"):
        SiteCases(run_index, "b", data=str(tmp_path / "old.csv")).check()
    with refused("data-do-not-fit", match=" of d"):
        SiteCases(run_index, "d", data=str(hospitals / "patients.csv")).check()
    with refused("data-do-not-fit", match="not found"):
        SiteCases(run_index, "b", data=str(tmp_path / "none.csv")).check()
    for options, word in (
        (["--site", "nobody"], "no finished run has such a site"),
        (["--data", "x.csv"], "with --site"),
    ):
        answer = CliRunner().invoke(command, ["console", "--runs", str(hospitals / "runs"), *options])
        assert answer.exit_code != 0 and word in f"{answer.output} {answer.exception}"


def test_named_columns_are_flagged_in_place_of_those_known_by_name(hospitals):
    run_index = RunIndex(hospitals / "runs")
    plain, named = SiteCases(run_index, "b"), SiteCases(run_index, "b", protected=("age",))
    named.check()
    number = next(iter(plain.open("common").rows.parts))
    assert {f.column for f in plain.open("common").explain(number).bias} <= {"sex"}
    assert [f.kind for f in named.open("common").explain(number).bias] == ["named"]


def test_rows_are_read_once_for_all_who_ask_at_once(hospitals):
    cases = SiteCases(RunIndex(hospitals / "runs"), "b")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cases.open("common"), range(16)))
        assert len({id(p) for p in found}) == 1
        numbers = list(found[0].rows.parts)[:6] * 4
        told = list(pool.map(lambda n: found[0].explain(n).probability, numbers))
    assert told == [explain_case(opened(hospitals, "common"), n).probability for n in numbers[:6]] * 4
    with refused("unknown-run", kind=NotFound):
        cases.open("../common")


def test_damaged_files_are_said_and_never_a_fault_of_the_console(hospitals, tmp_path):
    for file, text in (("percentiles.json", "{"), ("explanations.json", '{"sketch": 1, "features": [], "rounds": 3}'),
                       ("model.safetensors", "no model")):  # fmt: skip
        folder = tmp_path / file
        copied(hospitals / "runs" / "common", folder / "common")
        (folder / "common" / file).write_text(text)
        users, tokens = known_users()
        run_index = RunIndex(folder)
        client = Signed(create_app(AppState(run_index, users, cases=SiteCases(run_index, "b"))), tokens).client("clinician")
        for path in ("/case", "/api/case", "/api/case/others"):
            answer = client.get(path, params={"run": "common", "case": 100})
            assert 400 <= answer.status_code < 500 or (file, path) == ("explanations.json", "/api/case"), (file, path)


def test_sliders_ask_the_model_again_and_go_back(chromium, hospitals, cases):
    users, tokens = known_users()
    for console in serving(AppState(RunIndex(hospitals / "runs"), users, cases=cases), tokens):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.set_default_timeout(30_000)
        window = Window(page, console.url)
        window.sign_in(tokens["clinician"])
        window.go("/case/runs")
        page.click("a bdi:text-is('common')")
        page.wait_for_selector("#patients tbody tr")
        page.fill("#find", "P00")
        window.until("document.querySelectorAll('#patients tbody tr').length < 30")
        page.click("#patients tbody a >> nth=0")
        window.drawn("waterfall")
        number = int(page.url.split("case=")[1])
        told = cases.open("common").explain(number)
        assert page.text_content(".hero b") == f"{told.probability:.1%}"
        page.fill(".control[data-column='age'] input[type=number]", "70")
        window.until("document.querySelector('#answer b') !== null")
        changed = cases.open("common").explain(number, {"age": 70.0})
        assert page.text_content("#answer b") == f"{changed.probability:.1%}"
        page.select_option(".control[data-column='ward'] select", "")
        both = cases.open("common").explain(number, {"age": 70.0, "ward": None})
        window.until(f"document.querySelector('#answer b').textContent === '{both.probability:.1%}'")
        assert page.get_attribute("#scale-after", "visibility") == "visible"
        slider = page.locator(".control[data-column='lactate'] input[type=range]")
        slider.focus()
        page.keyboard.press("Home")
        window.until("document.querySelectorAll('.control.moved').length === 3")
        page.click("#reset")
        window.until("document.querySelector('#answer b') === null")
        assert not page.locator(".control.moved").count() and page.is_disabled("#reset")
        assert window.wrong == []
        context.close()


def test_no_made_up_question_breaks_the_api_of_cases(at_b):
    found = asked(at_b, below="/api/case")
    assert len(found) == len(ROUTES) - 1 and found["/api/case/runs"] == {200}
