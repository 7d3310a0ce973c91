"""Who looked at which patient: the access log of the console, and `rounds console log`."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import stat

import pytest
from typer.testing import CliRunner

from grandrounds.capabilities.console.access_log import AccessLog, AccessLogFault, Filter, entry_text, read_entries
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.sessions import FREE, Limiter
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.cli import app as command
from tests.capabilities.console.conftest import Signed, known_users
from tests.capabilities.console.test_signing_in import PASSWORD, sign_in
from tests.store import copied
from tests.support import refused


@pytest.fixture
def log(tmp_path) -> AccessLog:
    made = AccessLog(tmp_path / "state" / "access.jsonl")
    made.check()
    return made


@pytest.fixture
def signed(hospital, log) -> Signed:
    run_index, cases = hospital
    users, tokens = known_users()
    users.add("ada", ["clinician"], password=PASSWORD)
    return Signed(create_app(AppState(run_index, users, log=log, cases=cases)), tokens)


def entries(log: AccessLog) -> list[dict]:
    return [json.loads(line) for line in log.file.read_text().splitlines()]


def test_every_look_at_a_patient_is_an_entry_and_says_nothing_about_the_patient(signed, hospital, log):
    client, numbers = signed.client("clinician"), list(hospital[1].open("icu").rows.parts)
    row = numbers[0]
    listed = client.get("/api/case/patients", params={"run": "icu"}).json()["patients"]
    asks = {"run": "icu", "case": row}
    for path in ("/case", "/api/case", "/api/case/others"):
        assert client.get(path, params=asks).status_code == 200
    assert client.get("/api/case/figure", params={**asks, "figure": "waterfall"}).status_code == 200
    first, *looks = entries(log)
    assert (first["event"], first["rows"]) == ("patients", [p["case"] for p in listed])
    assert [(e["event"], e["view"]) for e in looks] == [
        ("patient", view) for view in ("page", "record", "other sites' models", "figure")
    ]
    for entry in looks:
        assert [entry[k] for k in ("user", "roles", "address", "by")] == [
            "clinician",
            ["clinician"],
            "testclient",
            "token",
        ]
        assert [entry[k] for k in ("run", "site", "row")] == ["icu", "b", row]
        assert entry["time"].startswith("20") and entry["time"].endswith("+00:00")
    assert "Jane" not in log.file.read_text()
    assert stat.S_IMODE(log.file.stat().st_mode) == 0o600


def test_a_row_that_is_not_there_and_a_role_that_may_not_are_entries_too(signed, log):
    assert signed.client("clinician").get("/case", params={"run": "icu", "case": 10**6}).status_code == 404
    assert signed.client("viewer").get("/case", params={"run": "icu", "case": 1}).status_code == 403
    assert [(e["event"], e["user"], e.get("row"), e.get("area")) for e in entries(log)] == [
        ("patient not found", "clinician", 10**6, None),
        ("refused", "viewer", None, "cases"),
    ]


def test_sign_ins_right_and_wrong_and_sign_outs_are_entries_without_secrets(signed, log):
    client = signed.client()
    evil = "ada\n\x1b[31m\u202e" + "x" * 300
    assert sign_in(client, evil, "wrong wrong wrong").status_code == 401
    assert sign_in(client, "grc_pasted-in-the-wrong-field", "x").status_code == 401
    assert client.get("/api/runs", headers={"authorization": "Bearer grc_made-up"}).status_code == 401
    assert sign_in(client, "ada", PASSWORD).status_code == 303
    page = client.get("/runs").text
    csrf = page.split('name="csrf" value="')[1].split('"')[0]
    assert client.post("/sign-out", data={"csrf": csrf}).status_code == 303
    found = entries(log)
    assert [(e["event"], e["user"], e["by"]) for e in found] == [
        ("wrong sign-in", "(no such user)", "form"),
        ("wrong sign-in", "(no such user)", "form"),
        ("wrong sign-in", "", "token"),
        ("sign-in", "ada", "password"),
        ("sign-out", "ada", "session"),
    ]
    text = log.file.read_text()
    assert text.isascii() and "\x1b" not in text and not any(s in text for s in (PASSWORD, "wrong wrong", "grc_"))


def test_of_the_attempts_in_a_wait_the_first_is_an_entry(signed, log):
    now = [0.0]
    state = signed.app.state.console
    state.limiter = Limiter(clock=lambda: now[0])
    client = signed.client()
    made_up = {"authorization": "Bearer grc_made-up"}
    for _ in range(FREE):
        sign_in(client, "ada", "wrong wrong wrong")
    assert {sign_in(client, "ada", "wrong wrong wrong").status_code for _ in range(20)} == {429}
    waited = [e for e in entries(log) if e.get("why")]
    assert len(entries(log)) == FREE + 1
    assert [(e["event"], e["user"], e["by"], e["why"]) for e in waited] == [
        ("wrong sign-in", "ada", "form", "too many attempts")
    ]
    assert "too many attempts" in entry_text(waited[0])
    now[0] += 60  # the wait is over: a wrong password begins the next one
    assert [sign_in(client, "ada", "wrong wrong wrong").status_code for _ in range(4)] == [401, 429, 429, 429]
    assert len(entries(log)) == FREE + 3
    for _ in range(FREE + 20):
        client.get("/api/runs", headers=made_up)
    tokens = [e for e in entries(log) if e["by"] == "token"]
    assert len(tokens) == FREE + 1 and tokens[-1]["why"] == "too many attempts"


def test_no_patient_is_shown_and_nobody_signs_in_while_the_log_cannot_be_written(signed, log):
    client = signed.client()
    assert sign_in(client, "ada", PASSWORD).status_code == 303
    log.file.unlink()
    log.file.mkdir()
    answer = client.get("/case", params={"run": "icu", "case": 61})
    assert answer.status_code == 503 and "access log cannot be written" in answer.text
    answer = client.get("/api/case/patients", params={"run": "icu"})
    assert answer.status_code == 503 and "patients" not in answer.json()
    assert client.get("/runs").status_code == 200  # runs are no patients
    assert sign_in(signed.client(), "ada", PASSWORD).status_code == 503
    assert sign_in(signed.client(), "ada", "wrong wrong wrong").status_code == 401


def test_a_renamed_log_is_left_and_a_new_one_begun(log):
    log.write("sign-in", user="ada", address="10.0.0.7")
    log.file.rename(log.file.with_suffix(".1"))
    log.write("sign-out", user="ada", address="10.0.0.7")
    assert [e["event"] for e in entries(log)] == ["sign-out"]
    assert [e["event"] for e in read_entries(log.file.with_suffix(".1"))] == ["sign-in"]
    assert stat.S_IMODE(log.file.stat().st_mode) == 0o600


def test_a_log_goes_on_after_a_start_and_is_no_longer_open_to_others(tmp_path):
    file = tmp_path / "access.jsonl"
    file.write_text('{"event": "sign-in"}\n')
    file.chmod(0o664)
    again = AccessLog(file)
    again.check()
    again.write("sign-out", user="ada", address="?")
    assert [e["event"] for e in entries(again)] == ["sign-in", "sign-out"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640  # a group that was let read stays so


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_that_is_no_plain_file_is_refused(tmp_path, kind):
    file = tmp_path / "access.jsonl"
    if kind == "link":
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with refused("cannot-write", match="--access-log FILE"):
        AccessLog(file).check()
    with refused("cannot-write", kind=AccessLogFault):
        AccessLog(file).write("sign-in", user="ada", address="?")


def test_the_command_answers_who_looked_at_a_patient(log):
    log.write("sign-in", user="ada", address="10.0.0.7", roles=["clinician"], by="password")
    log.write("patients", user="bob", address="10.0.0.8", run="icu", site="b", rows=[7, 9], view="list")
    log.write("patient", user="ada\x1b[31m", address="10.0.0.7", run="icu", site="b", row=7, view="page")
    with log.file.open("a") as f:
        f.write("{cut\n")
    said = CliRunner().invoke(command, ["console", "log", str(log.file), "--row", "7"]).output.splitlines()
    assert said[0].endswith("UTC  patients  bob from 10.0.0.8: rows 7, 9, site b, run icu, view list")
    assert said[1].endswith(r"UTC  patient  ada\x1b[31m from 10.0.0.7: row 7, site b, run icu, view page")
    assert said[2:] == ["line 4 is damaged"]
    told = CliRunner().invoke(command, ["console", "log", str(log.file), "--user", "ada", "--json"]).output.splitlines()
    assert json.loads(told[0])["by"] == "password"
    named = CliRunner().invoke(command, ["console", "log", "--access-log", str(log.file), "--row", "7"])
    assert named.output.splitlines() == said
    assert [e["user"] for e in read_entries(log.file, Filter(since="2999-01-01")) if "user" in e] == []
    assert entry_text({"damaged": 3}) == "line 3 is damaged"
    for wrong, words in (
        (["nowhere.jsonl"], "cannot read the access log"),
        ([str(log.file), "--access-log", str(log.file)], "give the access log once"),
        ([str(log.file), "--event", "x"], "known: sign-in"),
    ):
        answer = CliRunner().invoke(command, ["console", "log", *wrong])
        assert answer.exit_code != 0 and words in f"{answer.output} {answer.exception}"


def test_names_and_values_of_patients_are_in_no_address(signed, hospital, log):
    """A proxy that ends TLS logs addresses."""
    client, row = signed.client("clinician"), next(iter(hospital[1].open("icu").rows.parts))
    answer = client.get("/api/case/patients", params={"run": "icu", "find": "Jane Doe 0061"})
    assert answer.status_code == 422 and "POST" in answer.json()["error"]
    assert client.get("/api/case/what-if", params={"run": "icu", "case": row, "values": "{}"}).status_code == 405
    found = client.post("/api/case/patients", params={"run": "icu"}, json={"find": "jane doe 0061"}).json()
    assert [p["patient"] for p in found["patients"]] == ["Jane Doe 0061"]
    told = client.post("/api/case/what-if", params={"run": "icu", "case": row}, json={"lactate": 3.5})
    assert told.status_code == 200 and told.json()["reasons"][0]["column"] == "lactate"
    assert "Jane" not in log.file.read_text().casefold() and "3.5" not in log.file.read_text()


def test_a_post_of_another_site_is_refused(signed, hospital):
    client, row = signed.client(), next(iter(hospital[1].open("icu").rows.parts))
    sign_in(client, "ada", PASSWORD)
    csrf = client.get("/case").text.split('name="csrf" value="')[1].split('"')[0]
    asks = [
        ("/api/case/patients", {"run": "icu"}, {"find": ""}),
        ("/api/case/what-if", {"run": "icu", "case": row}, {}),
    ]
    for path, params, body in asks:
        for headers, status in (
            ({}, 403),
            ({"x-csrf-token": "guessed"}, 403),
            ({"x-csrf-token": csrf, "origin": "https://evil.example"}, 403),
            ({"x-csrf-token": csrf, "sec-fetch-site": "cross-site"}, 403),
            ({"x-csrf-token": csrf, "origin": "http://127.0.0.1"}, 200),
        ):
            assert client.post(path, params=params, json=body, headers=headers).status_code == status, (path, headers)


def test_no_folder_of_the_server_is_in_a_record_or_a_refusal(signed, hospital, tmp_path):
    run_index, cases = hospital
    client, row = signed.client("clinician"), next(iter(cases.open("icu").rows.parts))
    told = client.get("/api/case", params={"run": "icu", "case": row})
    assert told.json()["title"] == f"Row {row} of patients.csv at b" and told.json()["record"]["data"] == "patients.csv"
    assert str(run_index.root.parent) not in told.text + client.get("/case", params={"run": "icu", "case": row}).text
    copied(run_index.root, tmp_path / "runs")
    plan = tmp_path / "runs" / "icu" / "checkpoint" / "plan.json"
    plan.write_text(plan.read_text().replace("patients.csv", "gone.csv"))
    with refused("source-not-opened", match=r"gone\.csv") as caught:
        SiteCases(RunIndex(tmp_path / "runs"), "b").open("icu")
    assert "/" not in str(caught.value).split("gone.csv")[0]


def test_a_printed_record_says_for_whom_when_and_by_which_model(signed, hospital):
    run_index, cases = hospital
    row = next(iter(cases.open("icu").rows.parts))
    page = signed.client("clinician").get("/case", params={"run": "icu", "case": row}).text
    stamp = re.sub("<[^>]+>", "", page.split('id="stamp">')[1].split("</p>")[0])
    digest = hashlib.sha256((run_index.root / "icu" / "model.safetensors").read_bytes()).hexdigest()
    assert re.match(r"Shown to clinician on 20\d\d-\d\d-\d\d \d\d:\d\d UTC by the console of b\. Run icu, row ", stamp), stamp
    assert f"row {row}. Model SHA-256 {digest}." in stamp


def trail(client, **form) -> str:
    return client.post("/access", data=form).text


def test_the_log_is_a_page_and_each_role_takes_away_its_part(signed, log, hospital):
    rows = list(hospital[1].open("icu").rows.parts)[:2]
    clinician, auditor, board = (signed.client(role) for role in ("clinician", "auditor", "board"))
    for row in rows:
        assert clinician.get("/case", params={"run": "icu", "case": row}).status_code == 200
    log.write("patient", user="mallory", address="10.0.0.9", roles=["clinician"], run="icu", site="b", row=rows[0], view="page")
    log.write("sign-in", user='=cmd|"/C calc"', address="10.0.0.9", by="password")
    assert signed.client("viewer").get("/access").status_code == 403
    assert signed.client("engineer").post("/access/export", data={"format": "csv"}).status_code == 403

    def export(client, kind: str, **form) -> str:
        answer = client.post("/access/export", data={"format": kind, **form})
        assert answer.status_code == 200 and f".{kind}" in answer.headers["content-disposition"]
        return answer.text

    everything = list(csv.DictReader(io.StringIO(export(auditor, "csv", row=str(rows[0])))))
    assert {(e["user"], e["row"]) for e in everything} == {("clinician", str(rows[0])), ("mallory", str(rows[0]))}
    assert "'=cmd" in export(auditor, "csv")  # no spreadsheet runs it
    own = [json.loads(line) for line in export(clinician, "jsonl", user="mallory").splitlines()]
    assert {e["user"] for e in own} == {"clinician"} and {e["row"] for e in own if e["event"] == "patient"} == set(rows)
    counts = export(board, "csv", user="mallory", row=str(rows[0]))
    assert counts.splitlines()[0] == "day,event,entries" and "mallory" not in counts and "10.0.0.9" not in counts
    assert f"{entries(log)[0]['time'][:10]},patient,3" in counts  # whatever user or row is asked for
    assert "mallory" in trail(auditor, row=str(rows[0])) and "mallory" not in trail(clinician, user="mallory")
    assert "mallory" not in trail(board, user="mallory")
    assert "No entry matches" in trail(auditor, since="2999-01-01")
    assert auditor.post("/access", data={"row": "x"}).status_code == 422
    assert [e["view"] for e in entries(log) if e["event"] == "access log"][:2] == ["export csv", "export csv"]


def test_the_log_is_exported_by_the_command_to_a_file_of_its_owner(log, tmp_path):
    for day, row in (("2026-11-17", 1), ("2026-11-18", 2), ("2026-11-19", 3)):
        entry = {"time": f"{day}T08:00:00.000+00:00", "event": "patient", "user": "ada", "row": row}
        with log.file.open("a") as f:
            f.write(json.dumps(entry) + "\n")
    for name in ("out.csv", "out.jsonl"):
        called = ["console", "log", str(log.file), "--since", "2026-11-18", "--until", "2026-11-18", "--out"]
        ran = CliRunner().invoke(command, [*called, str(tmp_path / name)])
        assert ran.exit_code == 0 and "1 entries" in ran.output
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert json.loads((tmp_path / "out.jsonl").read_text())["row"] == 2
    assert next(csv.DictReader((tmp_path / "out.csv").open()))["time"].startswith("2026-11-18")
    assert CliRunner().invoke(command, ["console", "log", str(log.file), "--out", str(tmp_path / "out.pdf")]).exit_code != 0
