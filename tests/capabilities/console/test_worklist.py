"""The worklist and the first screen of a patient: the right model, the words of `rounds explain`, this hospital's rows alone."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest
from sklearn.neighbors import NearestNeighbors

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.cases.case_page import case_page, points_text
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.cases.what_if import controls, list_candidates
from grandrounds.capabilities.console.cases.worklist import choose_model
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.case import explain_table_case
from grandrounds.capabilities.dossier.register import signing_key
from grandrounds.capabilities.dossier.register.register import Register
from tests import store
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.capabilities.console.test_audit import one_byte
from tests.capabilities.dossier.register.conftest import ROLES, WORDS, approved, sign


@pytest.fixture
def signed(hospital) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(hospital[0], users, cases=hospital[1])), tokens)


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_run_without_patients_of_this_hospital_does_not_lead_to_them(hospital, runs, tmp_path):
    store.copied(hospital[0].root / "icu", tmp_path / "icu")
    store.copied(runs / "trust", tmp_path / "trust")
    table = pd.read_csv(hospital[0].root.parent / "patients.csv")
    data = {"table": "others.csv", "label": "died", "site": "hospital", "patient": "mrn"}
    others = gr.Experiment.parse({"name": "others", "data": data, "method": {"rounds": 1}})
    gr.run(others, out=tmp_path / "others", table=table[table["hospital"] != "b"])
    run_index = RunIndex(tmp_path)
    cases, (users, tokens) = SiteCases(run_index, "b"), known_users()
    signed = Signed(create_app(AppState(run_index, users, cases=cases)), tokens)
    link = '<a class="button" href="/case?run={0}">Patients at <bdi>b</bdi></a>'
    pages = {name: signed.client("clinician").get("/run", params={"run": name}).text for name in ("icu", "others")}
    assert link.format("icu") in pages["icu"] and "Patients at" not in pages["others"]
    assert "Patients at" not in signed.client("engineer").get("/run", params={"run": "icu"}).text
    assert [cases.has_run(entry.name) for entry in run_index.runs()] == [e in cases.runs() for e in run_index.runs()]


def test_similar_patients_are_this_hospitals_own_rows_and_no_others(signed, hospital):
    run_index, cases = hospital
    patients = cases.open("icu")
    number = next(iter(patients.rows.parts))
    table = pd.read_csv(run_index.root.parent / "patients.csv")
    own = table[table["hospital"] == "b"]
    numbers = [n for n in own.index + 1 if n in patients.rows.parts]
    encoded = patients._encoded[[list(patients.rows.parts).index(n) for n in numbers]]
    others = [k for k, n in enumerate(numbers) if n != number]
    search = NearestNeighbors(n_neighbors=min(30, len(others) // 3)).fit(encoded[others])
    nearest = search.kneighbors(encoded[[numbers.index(number)]], return_distance=False)[0]
    events = sum(table["died"][numbers[others[k]] - 1] == 1 for k in nearest)
    answer = signed.client("clinician").get("/api/case", params={"run": "icu", "case": number}).json()["similar"]
    assert (answer["n"], answer["events"]) == (len(nearest), events)
    assert answer["said"].startswith(f"Of the {len(nearest)} patients of b most like")


def test_the_page_and_the_command_show_the_same_points_and_words(signed, hospital):
    run_index, cases = hospital
    number = next(iter(cases.open("icu").rows.parts))
    case = explain_case(gr.load_run(run_index.root / "icu"), number)
    console = plain(signed.client("clinician").get("/case", params={"run": "icu", "case": number}).text)
    command = plain(case_page(case, top=10))
    for text in (f"{case.probability:.1%}", "Raises the risk", "Lowers the risk", *(points_text(r) for r in case.attributions)):
        assert text in console and text in command, text
    answer = signed.client("clinician").get("/api/case", params={"run": "icu", "case": number}).json()
    shown = {r["column"]: r["points"] for r in answer["amplifiers"] + answer["mitigators"]}
    assert shown == {r.column: points_text(r) for r in case.attributions if r.contribution}


def test_a_sentence_of_another_decision_is_true_of_the_model(signed, hospital):
    patients, checked = hospital[1].open("icu"), 0
    for number in list(patients.rows.parts)[:12]:
        case = explain_table_case(patients, number)
        for change in patients.find_counterfactuals(case, list_candidates(controls(patients, case))):
            after = patients.explain(number, {change.column: change.value})
            assert after.decision != case.decision, change.sentence
            assert change.column != "age"
            checked += 1
    assert checked


def test_missing_inputs_stand_in_the_list_and_incomplete_patients_can_be_chosen(signed, hospital):
    client = signed.client("clinician")
    page = client.get("/api/case/patients", params={"run": "icu", "sort": "missing"}).json()
    patients = hospital[1].open("icu")
    for line in page["patients"][:5]:
        case = patients.explain(line["case"])
        assert line["missing"] == sum(a.value is None for a in case.attributions)
        assert page["inputs"] == len(case.attributions)
    flagged = client.get("/api/case/patients", params={"run": "icu", "choice": "flagged"}).json()
    assert flagged["matching"] == page["choices"]["flagged"]
    assert all(p["decision"] == page["event_class"] and p["risk"] >= page["threshold"] for p in flagged["patients"])


@pytest.fixture
def copied(hospital, tmp_path) -> tuple[RunIndex, SiteCases]:
    store.copied(hospital[0].root / "icu", tmp_path / "runs" / "icu")
    run_index = RunIndex(tmp_path / "runs")
    return run_index, SiteCases(run_index, "b")


def test_without_a_model_in_use_there_is_no_worklist_and_the_page_lists_runs_to_evaluate(copied):
    assert choose_model(*copied).run == ""
    users, tokens = known_users()
    client = Signed(create_app(AppState(copied[0], users, cases=copied[1])), tokens).client("clinician")
    page = client.get("/case").text
    assert "No model is in use at b" in page and '<a href="/case?run=icu">' in page and 'id="patients"' not in page


def test_a_model_in_use_that_was_never_tested_has_no_worklist(hospital, copied, monkeypatch):
    run_index, cases = copied
    gr.glm(hospital[0].root.parent / "patients.csv", label="died", features=["age"], site="hospital", out=run_index.root / "fit")
    used_by_b(run_index, monkeypatch, "fit")
    model = choose_model(run_index, cases)
    assert model.run == "" and "fit" in model.sentence


def test_only_rows_that_the_model_did_not_know_have_a_verdict(signed):
    client = signed.client("clinician")
    for part, judged in (("train", False), ("val", False), ("test", True)):
        page = client.get("/api/case/patients", params={"run": "icu", "part": part}).json()
        assert page["patients"] and bool(page["verdicts"]) == judged, part
        one = client.get("/api/case", params={"run": "icu", "case": page["patients"][0]["case"]}).json()
        assert (one["record"]["verdict"] is not None) == judged, part


def test_a_run_whose_ledger_was_changed_shows_no_patient_anywhere(copied):
    run_index, cases = copied
    number = next(iter(cases.open("icu").rows.parts))
    one_byte(run_index.root / "icu" / "ledger.db")
    users, tokens = known_users()
    client = Signed(create_app(AppState(run_index, users, cases=cases)), tokens).client("clinician")
    assert "does not verify" in plain(client.get("/case", params={"run": "icu"}).text)
    for path in ("/case", "/api/case", "/api/case/others", "/api/case/patients"):
        answer = client.get(path, params={"run": "icu", "case": number})
        assert answer.status_code == 422 and "lactate" not in answer.text and "Jane" not in answer.text, path
    assert "No model is in use at b" in plain(client.get("/case").text)


def test_no_patient_value_is_in_an_address_and_the_first_screen_has_the_essential(chromium, hospital):
    run_index, cases = hospital
    patients = cases.open("icu")
    number = next(iter(patients.rows.parts))
    users, tokens = known_users()
    asked: list[str] = []
    for console in serving(AppState(run_index, users, cases=cases), tokens):
        context = chromium.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        window = Window(page, console.url)
        window.sign_in(tokens["clinician"])
        window.go("/case?run=icu")
        page.fill("#find", "Jane Doe 00")
        window.until("document.querySelectorAll('#patients tbody tr').length > 0")
        window.go(f"/case?run=icu&case={number}")
        window.until("document.querySelector('#what-if') !== null")
        for part in (".hero", ".context", ".reasons", "#similar"):
            box = page.locator(part).bounding_box()
            assert box["y"] + box["height"] <= 900, part
        page.fill(".control[data-column='age'] input[type=number]", "71")
        window.until("document.querySelector('#answer b') !== null")
        page.mouse.wheel(0, 600)
        window.until("document.querySelector('.hero').getBoundingClientRect().top >= -1")
        assert page.get_attribute("#scale-after", "visibility") == "visible"
        queries = [parse_qs(urlsplit(url).query) for url in asked if "/static/" not in url]
        assert {name for query in queries for name in query} <= {"next", "run", "case", "page", "part", "sort", "figure"}
        assert len(queries) > 5 and not [url for url in asked if "Jane" in url]
        assert window.wrong == []
        context.close()


def used_by_b(run_index: RunIndex, monkeypatch: pytest.MonkeyPatch, run: str = "icu") -> Register:
    """Make a register in which the model of a run is in use at hospital b."""
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})
    register = Register.create(run_index.root, roles=ROLES)
    for name, role in zip(("ada", "bob"), ROLES, strict=True):
        register.add_signatory(name, role=role, passphrase=WORDS[name])
    approved(register, run)
    sign(register, "use", run, "ada", hospitals=["b"])
    return register


def test_the_register_decides_the_model_and_its_withdrawal_empties_the_list(copied, monkeypatch):
    run_index, cases = copied
    register = used_by_b(run_index, monkeypatch)
    model = choose_model(run_index, cases)
    assert model.run == "icu" and model.sentence.startswith("In use at b")
    sign(register, "withdraw-model", "icu", "bob", note="Alarm of ward 3")
    assert choose_model(run_index, cases).run == ""
    users, tokens = known_users()
    client = Signed(create_app(AppState(run_index, users, cases=cases)), tokens).client("clinician")
    page = client.get("/case", params={"run": "icu"})
    assert page.status_code == 422 and "Alarm of ward 3" in page.text and "Do not use this model" in page.text
