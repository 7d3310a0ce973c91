"""The API: resource paths, pages, files, errors and its description; and under made-up questions it never breaks."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

import grandrounds as gr
from grandrounds.capabilities.console.access_log import AccessLog, read_entries
from grandrounds.capabilities.console.api.description import load_examples
from grandrounds.capabilities.console.api.resources import from_id, to_id
from grandrounds.capabilities.console.api.run_tables import write_csv
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.sessions import Limiter
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import audit as audit_view
from grandrounds.capabilities.console.views import privacy as privacy_view
from grandrounds.capabilities.dossier.register import signing_key
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.report.overview import make_overview
from grandrounds.runs.withdrawal import OtherRun, Withdrawn, write_mark
from tests.capabilities.console.conftest import Signed, known_users, serving
from tests.capabilities.console.test_protection import routes
from tests.report import EVIL
from tests.store import copied
from tests.support import without_ledger

V1 = "/api/v1"
ROOT = Path(__file__).resolve().parents[3]
STREAMS = ("/api/live", f"{V1}/live")
"""Paths whose answer has no end."""
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
]


def asked(signed: Signed, *, below: str, examples: int = 10, checks=CHECKS[:1]) -> dict[str, set[int]]:
    """Send requests that Schemathesis makes up, valid and invalid, to every route below a path; return status codes by path."""
    headers = {"authorization": f"Bearer {signed.tokens['all']}", "host": "127.0.0.1"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", signed.app, headers=headers)
    schema.config.update(headers=headers)
    codes: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith(below) or operation.path in STREAMS:
            continue

        @given(case=operation.as_strategy())
        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def ask(case) -> None:
            answer = case.call()
            codes.setdefault(case.operation.path, set()).add(answer.status_code)
            case.validate_response(answer, checks=checks)

        ask()
    assert all(code < 500 for status in codes.values() for code in status), codes
    return codes


@pytest.fixture
def viewer(signed):
    return signed.client("viewer")


def test_made_up_questions_are_answered_as_described(signed):
    found = asked(signed, below=V1, examples=3, checks=CHECKS)
    assert len(found) >= 45 and found[f"{V1}/runs"] <= {200, 422} and 200 in found[f"{V1}/runs"]


def test_no_made_up_question_breaks_a_deprecated_path(signed):
    for below in ("/api/run", "/api/compare", "/api/audit", "/api/privacy"):
        assert asked(signed, below=below, examples=2)


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_any_phase(everything):
    """The command line of Schemathesis over a console of a hospital, as a new user would run it."""
    users, tokens = known_users()
    run_index = RunIndex(everything / "runs")
    state = AppState(run_index, users, cases=SiteCases(run_index, "b"), limiter=Limiter(free=10**9))
    for served in serving(state, tokens):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/api/openapi.json"),
                *(
                    "-H",
                    f"Authorization: Bearer {tokens['all']}",
                    "--exclude-path",
                    STREAMS[0],
                    "--exclude-path",
                    STREAMS[1],
                ),
                *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20", "--continue-on-failure"),
                *(
                    "--exclude-checks",
                    "positive_data_acceptance",
                    "--seed",
                    "1",
                    "--exclude-deprecated",
                    "--max-time",
                    "120",
                ),
            ],
            capture_output=True,
            text=True,
            cwd=everything,
        )
    assert done.returncode == 0, done.stdout[-5000:]
    assert all(f"✅ {phase}" in done.stdout for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"))


def test_the_description_names_every_route_of_the_api(viewer, signed):
    described = viewer.get("/api/openapi.json").json()
    there = {r.path for r in routes(signed.app) if r.path.startswith("/api") and r.include_in_schema}
    assert set(described["paths"]) == there and described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert bool(operation.get("deprecated")) == (not path.startswith(V1))
            assert operation["x-roles"] and "Roles: " in operation["description"] and operation["summary"]
            assert operation["tags"][0] in {tag["name"] for tag in described["tags"] if tag["description"]}
    roles = described["paths"][f"{V1}/audit/runs"]["get"]["x-roles"]
    assert "auditor" in roles and not {"viewer", "clinician"} & set(roles)
    assert signed.client().get("/api/openapi.json").status_code == 401


def test_the_description_says_how_a_program_signs_in(viewer):
    described = viewer.get("/api/openapi.json").json()
    schemes = described["components"]["securitySchemes"]
    assert (schemes["token"]["type"], schemes["token"]["scheme"]) == ("http", "bearer")
    assert (schemes["session"]["in"], schemes["session"]["name"]) == ("cookie", "rounds_session")
    assert described["security"] == [{"token": []}, {"session": []}]


def test_examples_are_answers_that_the_description_allows(viewer):
    described = viewer.get("/api/openapi.json").json()
    checked = 0
    for name, example in load_examples().items():
        method, path = name.split(" ", 1)
        content = described["paths"][path][method.lower()]["responses"]["200"]["content"]
        shown = content.get("application/json", {})
        if shown.get("schema"):
            schema = {**shown["schema"], "components": described["components"]}
            wrong = [e.message for e in Draft202012Validator(schema).iter_errors(example["answer"])]
            assert not wrong, f"{name}: {wrong[0]}: run `python docs/api_page.py --examples`"
            checked += 1
    assert checked >= 25


def test_json_has_a_schema_and_nearly_every_operation_an_example(viewer):
    described = viewer.get("/api/openapi.json").json()
    without = set()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"].get("200", {}).get("content", {})
            assert "application/json" not in content or content["application/json"].get("schema"), path
            if not operation.get("deprecated") and not any("example" in c for c in content.values()):
                without.add(path.removeprefix(V1))
            if method == "post" and not operation.get("deprecated") and path.startswith(V1):
                assert next(iter(operation["requestBody"]["content"].values()))["example"]
    files = {"/runs/{run}/model", "/runs/{run}/report", "/runs/{run}/report.pdf", "/runs/{run}/card/nomogram"}
    files |= {"/cases/runs/{run}/patients/{case}/image", "/audit/runs/{run}/ledger", "/live"}
    files |= {"/audit/runs/{run}/sites/{site}/proof"}
    assert without == files | {"/studies/{study}", "/runs/{run}/watch/{site}/figure"}


def test_the_reference_names_every_path():
    page = runpy.run_path(str(ROOT / "docs" / "api_page.py"))
    assert page["PAGE"].read_text(encoding="utf-8") == page["page"](), "run `python docs/api_page.py --write`"


@pytest.mark.parametrize(
    "name", ["heart", "compare-heart/pooled-seed2", "a~b", "a!b/c", "!", "~", ".", "..", "a/~!b", "..a", "Zürich 2/ä"]
)
def test_a_name_is_one_part_of_a_path_and_comes_back(name):
    assert from_id(to_id(name)) == name
    assert "/" not in to_id(name) and to_id(name) not in (".", "..")


def test_a_run_in_a_folder_is_reached_by_its_id(runs, tmp_path):
    name = "compare~1/plain"
    copied(runs / "plain", tmp_path / "runs" / name)
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path / "runs"), users)), tokens).client("viewer")
    (line,) = client.get(f"{V1}/runs").json()["runs"]
    assert (line["name"], line["id"], line["url"]) == (name, "compare!~1~plain", f"{V1}/runs/compare!~1~plain")
    found = client.get(line["url"])
    assert found.status_code == 200 and found.json()["name"] == name
    for link in ("sites", "rounds", "summary", "sites.csv"):
        assert client.get(found.json()["links"][link]).status_code == 200
    evil = client.get(f"{line['url']}/sites/{to_id(EVIL)}")
    assert evil.status_code == 200 and evil.json()["site"] == EVIL


def test_runs_come_in_pages_with_links_to_the_others(viewer):
    seen, address = [], f"{V1}/runs?limit=2&sort=name"
    while address:
        answer = viewer.get(address)
        body = answer.json()
        assert (body["total"], body["pages"], body["limit"]) == (4, 2, 2)
        seen += [line["name"] for line in body["runs"]]
        following = re.search(r'<([^>]+)>; rel="next"', answer.headers["link"])
        address = following[1] if following else None
    assert seen == ["by-reasons", "plain", "private", "trust"]
    assert viewer.get(f"{V1}/runs", params={"page": 9}).json()["runs"] == []


def test_runs_are_searched_and_filtered(viewer):
    def names(**query):
        return [line["name"] for line in viewer.get(f"{V1}/runs", params=query).json()["runs"]]

    assert names(q="FEDX") == ["trust"] and names(q="trust fedavg") == []
    assert len(names(state="finished")) == 4 and names(state="running") == []
    assert names(sort="changed") == names()[::-1]
    assert viewer.get(f"{V1}/runs", params={"sort": "size"}).status_code == 422


def test_times_are_numbers_and_text(viewer):
    found = viewer.get(f"{V1}/runs/plain").json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["changed_at"]) and found["changed"] > 1e9


def test_old_paths_give_the_same_answers(viewer):
    for new, old, query in (
        ("/runs/trust/sites", "/run/sites", {}),
        ("/runs/trust/rounds/2", "/run/round", {"round": 2}),
        ("/runs/trust/rounds/2/sites/a/explanation", "/run/why", {"round": 2, "site": "a"}),
        ("/runs/trust/figures/curves", "/run/figure", {"figure": "curves"}),
    ):
        found = viewer.get(V1 + new)
        assert found.status_code == 200
        assert found.json() == viewer.get(f"/api{old}", params={"run": "trust", **query}).json()


def test_an_unchanged_answer_is_not_sent_again(signed):
    viewer = signed.client("viewer")
    for path in ("/runs", "/runs/plain", "/runs/plain/figures/curves", "/runs/plain/sites.csv"):
        tag = viewer.get(V1 + path).headers["etag"]
        again = viewer.get(V1 + path, headers={"if-none-match": f'"other", {tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert viewer.get(V1 + path, headers={"if-none-match": '"other"'}).status_code == 200
        assert signed.client().get(V1 + path, headers={"if-none-match": tag}).status_code == 401


def test_files_of_a_run(viewer, runs, tmp_path):
    stored = (runs / "plain" / "summary.json").read_bytes()
    assert viewer.get(f"{V1}/runs/plain/summary").content == stored
    plan = tomllib.loads(viewer.get(f"{V1}/runs/plain/experiment").text)
    assert plan["method"]["name"] == "fedavg" and plan["method"]["rounds"] == 3
    report = viewer.get(f"{V1}/runs/plain/report")
    assert report.content == (runs / "plain" / "report.html").read_bytes()
    assert report.headers["content-disposition"].startswith("attachment")  # its scripts do not run on this console
    none = viewer.get(f"{V1}/runs/plain/report.pdf")
    assert none.status_code == 404 and "rounds report plain --pdf" in none.json()["error"]


def test_links_name_only_files_that_are_there(runs, tmp_path):
    copied(runs / "plain", tmp_path / "plain")
    without_ledger(tmp_path / "plain")
    for name in ("report.html", "model.safetensors"):
        (tmp_path / "plain" / name).unlink()
    copied(runs / "trust", tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")
    for run, files in (("plain", {"summary"}), ("cut", {"report", "model"})):
        links = client.get(f"{V1}/runs/{run}").json()["links"]
        assert files == {"summary", "report", "report.pdf", "model"} & set(links)
        assert {"overview", "sites", "experiment", "sites.csv"} <= set(links)
        assert {name: client.get(url).status_code for name, url in links.items() if name in files} == dict.fromkeys(files, 200)


def test_the_model_file_is_that_of_the_run_and_refused_after_a_withdrawal(runs, tmp_path):
    copied(runs / "plain", tmp_path / "plain")
    users, tokens = known_users()
    log = AccessLog(tmp_path / "access.jsonl")
    signed = Signed(create_app(AppState(RunIndex(tmp_path), users, log=log)), tokens)
    answer = signed.client("viewer").get(f"{V1}/runs/plain/model")
    assert answer.content == (runs / "plain" / "model.safetensors").read_bytes()
    assert answer.headers["content-disposition"] == 'attachment; filename="model-plain.safetensors"'
    assert signed.client().get(f"{V1}/runs/plain/model").status_code == 401
    without_ledger(tmp_path / "plain")  # a mark belongs to an entry of the ledger
    write_mark(tmp_path / "plain", Withdrawn("b", "2026-11-18", OtherRun("again", "again", 3, "00", "00")))
    refused = signed.client("viewer").get(f"{V1}/runs/plain/model")
    assert (refused.status_code, refused.json()["code"]) == (409, "withdrawn-run")
    assert signed.client("viewer").get(f"{V1}/runs/plain/model", params={"withdrawn": True}).status_code == 200
    downloads = [e for e in read_entries(log.file) if e["event"] == "model download"]
    assert [(e["user"], e["run"], e["view"]) for e in downloads] == [
        ("viewer", "plain", "model"),
        ("viewer", "plain", "withdrawn model"),
    ]


def test_head_has_the_headers_of_get_and_no_body(signed):
    client = signed.client("viewer")
    for path in (f"{V1}/runs", f"{V1}/runs/plain/sites.csv", "/api/run/sites?run=plain", f"{V1}/runs/nobody"):
        whole, head = client.get(path), client.head(path)
        assert head.status_code == whole.status_code and head.content == b""
        names = ("content-length", "content-type", "etag", "link", "cache-control")
        assert [head.headers.get(n) for n in names] == [whole.headers.get(n) for n in names]
    assert signed.client().head(f"{V1}/runs").status_code == 401
    assert client.head(f"{V1}/live").status_code == 405


def test_the_root_of_the_api_names_its_description_and_resources(signed):
    client = signed.client("viewer")
    index = client.get(V1).json()
    assert index["runs"] == f"{V1}/runs" and client.get(index["description"]).json()["openapi"].startswith("3.1")
    moved = client.get(f"{V1}/openapi.json")
    assert (moved.status_code, moved.headers["location"]) == (307, "/api/openapi.json")
    assert signed.client().get(V1).status_code == signed.client().get(f"{V1}/openapi.json").status_code == 401


def test_the_description_is_compressed_and_its_page_rendered_once(signed):
    client = signed.client("viewer")
    answer = client.get("/api/openapi.json", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < len(answer.content) / 4
    first = client.get("/api/docs").text
    [body] = signed.app.state.api_docs.values()
    assert str(body) in first and client.get("/api/docs").text.count(str(body)) == 1
    client.get("/api/docs", params={"q": "nomogram"})
    assert list(signed.app.state.api_docs.values()) == [body]


def test_an_experiment_has_no_folders_and_no_passwords(hospital):
    run_index, _ = hospital
    users, tokens = known_users()
    client = Signed(create_app(AppState(run_index, users)), tokens).client("viewer")
    text = client.get(f"{V1}/runs/icu/experiment").text
    assert tomllib.loads(text)["data"]["table"] == "patients.csv" and str(run_index.root.parent) not in text


def test_a_linked_file_is_not_read(runs, tmp_path):
    copied(runs / "plain", tmp_path / "runs" / "plain")
    report = tmp_path / "runs" / "plain" / "report.html"
    report.unlink()
    (tmp_path / "secret").write_text("secret")
    report.symlink_to(tmp_path / "secret")
    users, tokens = known_users()
    answer = (
        Signed(create_app(AppState(RunIndex(tmp_path / "runs"), users)), tokens)
        .client("viewer")
        .get(f"{V1}/runs/plain/report")
    )
    assert answer.status_code == 409 and "secret" not in answer.text and str(tmp_path) not in answer.text


def test_tables_have_the_numbers_of_the_json(viewer):
    def table(name):
        answer = viewer.get(f"{V1}/runs/plain/{name}.csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        return list(csv.DictReader(io.StringIO(answer.text)))

    sites = viewer.get(f"{V1}/runs/plain/sites").json()
    assert [row["site"].removeprefix("'") for row in table("sites")] == [s["site"] for s in sites]
    assert float(table("sites")[0]["log_loss"]) == sites[0]["metrics"]["log_loss"]
    assert [row["round"] for row in table("rounds")] == ["1", "2", "3"] and len(table("weights")) == 12
    final = viewer.get(f"{V1}/runs/plain/summary").json()["final"]
    auroc = next(row for row in table("metrics") if row["metric"] == "auroc")
    assert float(auroc["value"]) == final["auroc"] and float(auroc["low"]) == final["auroc_low"]


def test_no_cell_is_a_formula():
    rows = [{"site": text, "change": -0.5} for text in ("=1+1", "+1", "-1", "@a", "\t=1", "plain")]
    read = list(csv.DictReader(io.StringIO(write_csv(rows).decode())))
    assert all(row["site"].startswith("'") for row in read[:-1]) and read[-1]["site"] == "plain"
    assert {row["change"] for row in read} == {"-0.5"}  # a number stays a number


def test_no_cell_turns_text_round_or_sends_a_command_to_a_terminal():
    rows = [{"site\u202e": "ward\u202e7", "notes": "\x1b[31mred"}, {"site\u202e": "\u2066=1", "notes": "\r=1"}]
    text = write_csv(rows).decode()
    assert "\u202e" not in text and "\x1b" not in text and "\u2066" not in text
    read = list(csv.DictReader(io.StringIO(text)))
    assert [row["site\\u202e"] for row in read] == ["ward\\u202e7", "\\u2066=1"]
    assert [row["notes"] for row in read] == ["\\x1b[31mred", "'\\x0d=1"]


def test_every_error_is_a_sentence_with_a_code(signed):
    cases = {
        (None, "/runs"): (401, "not-signed-in"),
        ("viewer", "/audit/runs"): (403, "no-access"),
        ("viewer", "/runs/nobody"): (404, "unknown-run"),
        ("viewer", "/runs/plain/sites/nobody"): (404, "unknown-site"),
        ("viewer", "/nowhere"): (404, "not-found"),
        ("viewer", "/runs?limit=0"): (422, "invalid-request"),
        ("viewer", "/compared-runs"): (422, "invalid-request"),
    }
    for (role, path), (status, code) in cases.items():
        answer = signed.client(role).get(V1 + path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), path
        assert set(answer.json()) == {"error", "code"} and answer.json()["error"]
    assert "parameter 'limit'" in signed.client("viewer").get(f"{V1}/runs?limit=0").json()["error"]
    wrong = signed.client("viewer").delete(f"{V1}/runs")
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()["code"]) == (405, "GET", "method-not-allowed")


def test_a_run_that_is_not_finished_or_damaged_conflicts(everything):
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(everything / "runs"), users)), tokens).client("auditor")
    for path in ("/runs/damaged", "/privacy/runs/stopped", "/audit/runs/bent/ledger"):
        answer = client.get(V1 + path)
        assert answer.status_code == 409 and answer.json()["code"], path
    assert client.get("/api/run", params={"run": "damaged"}).status_code == 422


def test_a_result_that_is_still_computed_is_answered_with_202(signed, monkeypatch):
    auditor = signed.client("auditor")
    monkeypatch.setattr(privacy_view.promise, "__kwdefaults__", {"wait": 0.0})
    monkeypatch.setattr(audit_view.check, "__kwdefaults__", {"deep": False, "wait": 0.0})
    for path, old in (("/privacy/runs/private", "/privacy"), ("/audit/runs/private/check", None)):
        answer = auditor.get(V1 + path)
        assert answer.status_code == 202 and int(answer.headers["retry-after"]) > 0, answer.text
        assert answer.json()["state"] == "computing" and "etag" not in answer.headers
        if old is not None:
            assert auditor.get(f"/api{old}", params={"run": "private"}).status_code in (200, 425)


def test_the_overview_has_the_sentences_of_the_report(viewer, runs):
    summary = gr.load_run(runs / "trust").summary
    overview = viewer.get(f"{V1}/runs/trust/overview").json()
    assert overview["verdict_title"] == make_overview(summary).verdict_title and overview["state"] == "finished"


def test_a_model_of_the_register_has_its_state_and_signatures(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})
    copied(runs / "trust", tmp_path / "runs" / "trust")
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(tmp_path / "runs"), users)), tokens).client("viewer")
    empty = client.get(f"{V1}/models").json()
    assert (empty["exists"], empty["models"]) == (False, [])
    assert client.get(f"{V1}/models/trust").json()["code"] == "no-register"
    register = Register.create(tmp_path / "runs", roles=["medical director"])
    register.add_signatory("ada", role="medical director", passphrase="four quiet words of ada")
    register.propose(tmp_path / "runs" / "trust", purpose="death in hospital", by="engineer")
    (line,) = client.get(f"{V1}/models").json()["models"]
    assert (line["state"], line["missing"], line["valid"]) == ("candidate", ["medical director"], False)
    register.decide("approve", "trust", by="ada", passphrase="four quiet words of ada")
    model = client.get(line["url"]).json()
    assert (model["state"], model["purpose"], model["valid"]) == ("approved", "death in hospital", True)
    assert [e["by"] for e in model["approvals"]] == ["ada"] and len(model["hash"]) == 64
    assert client.get(f"{V1}/models/plain").json()["code"] == "not-registered"


def test_patients_values_are_posted_and_answers_are_not_stored(hospital):
    run_index, cases = hospital
    users, tokens = known_users()
    client = Signed(create_app(AppState(run_index, users, cases=cases)), tokens).client("clinician")
    first = client.get(f"{V1}/cases/runs/icu/patients").json()["patients"][0]["case"]
    answer = client.get(f"{V1}/cases/runs/icu/patients/{first}")
    assert answer.status_code == 200 and "etag" not in answer.headers and answer.headers["cache-control"] == "no-store"
    path = f"{V1}/cases/runs/icu/patients/{first}/what-if"
    assert client.get(path).status_code == 405
    assert client.post(path, content=json.dumps({"age": 80})).status_code == 200
    named = client.post(f"{V1}/cases/runs/icu/patients", json={"find": "Jane Doe"})
    assert named.status_code == 200 and named.json()["patients"]
    assert client.get(f"{V1}/cases/runs/icu/patients", params={"find": "Jane"}).status_code == 422


def test_the_page_of_the_api_is_searched_and_needs_no_script(signed):
    viewer = signed.client("viewer")
    page = viewer.get("/api/docs").text
    assert f"{V1}/runs/{{run}}/sites.csv" in page and "curl -H" in page and "<script>" not in page
    assert 'href="#type-RunPage"' in page and 'id="type-RunPage"' in page
    found = viewer.get("/api/docs", params={"q": "countersignatures"}).text
    assert "1 operation" in found and "/countersignatures" in found and "nomogram" not in found
    assert EVIL not in viewer.get("/api/docs", params={"q": EVIL}).text
    assert signed.client().get("/api/docs").status_code == 401
