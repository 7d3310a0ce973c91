"""Ledgers: what `rounds audit` says of them, loudly where they were changed, and proofs that hold elsewhere."""

from __future__ import annotations

import json
import os
import threading

import pytest

from grandrounds.audit.ledger import ledger_at
from grandrounds.audit.spans import run_and_rounds
from grandrounds.capabilities.console.api import audit_router
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import audit as view
from grandrounds.capabilities.integrations.chain.batches import spans
from grandrounds.runs.run import load_run
from tests.audit.ledgers import tampered
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.command import rounds
from tests.report import EVIL
from tests.store import copied


@pytest.fixture
def bent(runs, tmp_path):
    """A copy of runs, and the auditor of a console over it."""
    for name in ("plain", "trust"):
        copied(runs / name, tmp_path / name)
    users, tokens = known_users()
    return tmp_path, Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("auditor")


def one_byte(ledger):
    """Change one digit of a weight, as who owns the file can, and give the file its old time back."""
    data, before = bytearray(ledger.read_bytes()), ledger.stat()
    at = data.index(b'"weights":{"a":0.') + len(b'"weights":{"a":0.') + 2
    data[at] = ord("7") if data[at] != ord("7") else ord("3")
    ledger.write_bytes(data)
    os.utime(ledger, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["plain", "by-reasons", "trust", "private"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_check_is_the_commands_own(signed, runs, name, deep):
    said = json.loads(rounds("audit", "verify", runs / name, "--json", *([] if deep else ["--ledger-only"])).stdout)
    told = signed.client("auditor").get("/api/audit/check", params={"run": name, "deep": deep}).json()
    assert told["state"] == "verifies" and said["verifies"] and told["findings"] == said["findings"] == []
    for key in ("unchecked", "notes", "entries", "rounds", "root", "deep"):
        assert told[key] == said[key], key


def test_simulated_keys_are_yellow_and_the_runs_page_has_the_same_verdict(bent):
    root, client = bent
    told = client.get("/api/audit/check", params={"run": "plain"}).json()
    assert (told["colour"], told["simulated"]) == ("yellow", True) and "by SIMULATED keys" in told["says"]
    page = client.get("/audit", params={"run": "plain"}).text
    assert "verdict fair" in page and "verdict good" not in page and "closes the run" in page
    assert told["says"] in client.get("/run", params={"run": "plain"}).text
    summary = root / "plain" / "summary.json"
    summary.write_text(summary.read_text().replace('"auroc": 0.', '"auroc": 0.0', 1))
    told = client.get("/api/audit/check", params={"run": "plain"}).json()
    assert told["colour"] == "red" and [f["where"] for f in told["findings"]] == ["summary.json"]


@pytest.mark.parametrize("file", ["summary.json", "model.safetensors", "ledger.db"])
def test_a_changed_run_is_shown_on_no_page_but_audit(bent, file):
    root, client = bent
    assert client.get("/run", params={"run": "trust"}).status_code == 200
    path = root / "trust" / file
    if file == "ledger.db":
        one_byte(path)
        os.utime(path)
    else:
        data = path.read_bytes()
        at = data.index(b'"auroc": 0.') + len(b'"auroc": 0.') if file == "summary.json" else len(data) - 1
        path.write_bytes(data[:at] + (b"9" if data[at : at + 1] != b"9" else b"8") + data[at + 1 :])
    for place in ("/run", "/run?section=details", "/privacy", "/api/v1/runs/trust", "/api/v1/runs/trust/summary", "/compare"):
        answer = client.get(f"{place}{'&' if '?' in place else '?'}run=trust")
        assert answer.status_code in (409, 422), (place, answer.status_code)
        assert "ledger" in answer.text and str(root) not in answer.text
    assert client.get("/audit", params={"run": "trust"}).status_code == 200
    if file == "summary.json":
        listed = {line["name"]: line for line in client.get("/api/v1/runs").json()["runs"]}
        assert listed["trust"]["state"] == "unreadable" and "ledger" in listed["trust"]["wrong"]
        assert listed["plain"]["state"] == "finished"


def test_a_changed_byte_is_found_though_the_files_time_was_set_back(bent):
    root, client = bent
    asked = {"run": "trust"}
    assert client.get("/api/audit/check", params=asked).json()["state"] == "verifies"
    one_byte(root / "trust" / "ledger.db")
    told = client.get("/api/audit/check", params=asked).json()
    said = json.loads(rounds("audit", "verify", root / "trust", "--json").stdout)
    assert told["state"] == "does NOT verify" and told["findings"] == said["findings"]
    assert {"changed entry", "broken link"} <= {f["name"] for f in told["findings"]}
    page = client.get("/audit", params=asked).text
    assert "This ledger does NOT verify" in page and 'role="alert"' in page and "Download the proof" not in page
    assert all(f["name"] in page and f["where"] in page for f in told["findings"])
    where = next(f["where"] for f in told["findings"] if f["name"] == "changed entry")
    lines = client.get("/api/audit/entries", params=asked).json()["entries"]
    assert [f"entry {e['at']}" for e in lines if not e["signed"]] == [where]
    assert page.count('<tr class="found">') >= 2
    listed = {line["run"]: line for line in client.get("/api/audit/runs").json()}
    assert listed["trust"]["state"] == "does NOT verify" and listed["plain"]["state"] == "not checked yet"
    for place in ("proof", "export", "head"):
        refused = client.get(f"/api/audit/{place}", params={**asked, "site": "a"})
        assert refused.status_code == 422 and "does NOT verify" in refused.json()["error"]


def test_a_changed_model_file_is_found_by_the_page_and_the_list(bent):
    root, client = bent
    model = root / "plain" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + bytes([model.read_bytes()[-1] ^ 1]))
    told = client.get("/api/audit/check", params={"run": "plain"}).json()
    assert [f["where"] for f in told["findings"]] == ["model.safetensors"]
    assert "files of this run do NOT match it" in client.get("/audit", params={"run": "plain"}).text
    listed = {line["run"]: line for line in client.get("/api/audit/runs").json()}
    assert listed["plain"]["state"] == "does NOT verify"
    alone = client.get("/audit", params={"run": "plain", "deep": False}).text
    assert "The ledger verifies, by simulated keys only; model and records were not checked" in alone


def test_a_ledger_that_was_rewritten_cut_or_removed_has_a_page_that_says_so(bent):
    root, client = bent
    ledger = root / "trust" / "ledger.db"
    whole = ledger.read_bytes()

    def found():
        told = client.get("/api/audit/check", params={"run": "trust"}).json()
        page = client.get("/audit", params={"run": "trust"})
        assert page.status_code == 200 and "does NOT verify" in page.text and str(root) not in page.text
        said = json.loads(rounds("audit", "verify", root / "trust", "--json").stdout)
        assert [f["name"] for f in told["findings"]] == [f["name"] for f in said["findings"]]
        return {f["name"] for f in told["findings"]}

    tampered(ledger, "DELETE FROM entries WHERE number > 2", "DELETE FROM heads WHERE size > 3")
    tampered(ledger, "DELETE FROM witnesses WHERE size > 3")
    assert found() == {"truncated ledger"}
    ledger.write_bytes(b"no database at all" * 100)
    assert found() == {"unreadable"}
    ledger.write_bytes(whole[: len(whole) // 2])
    assert found() == {"unreadable"}
    ledger.unlink()
    assert found() == {"unreadable"}
    (root / "trust" / "ledger.head.json").unlink()
    assert "no ledger" in client.get("/audit", params={"run": "trust"}).text
    assert client.get("/api/audit/check", params={"run": "trust"}).json()["state"] == "has no ledger"
    ledger.symlink_to(root / "plain" / "ledger.db")
    assert "is a link" in client.get("/api/audit/check", params={"run": "trust"}).json()["findings"][0]["what"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("round", [None, 2])
@pytest.mark.parametrize(("name", "site"), [("trust", "a"), ("plain", EVIL)])
def test_a_proof_holds_elsewhere(signed, runs, tmp_path, name, site, round):
    asked = {"run": name, "site": site, **({} if round is None else {"round": round})}
    answer = signed.client("auditor").get("/api/audit/proof", params=asked)
    assert answer.status_code == 200
    kept = answer.headers["content-disposition"]
    assert kept.startswith(f'attachment; filename="proof-{name}-') and kept.isascii() and "<" not in kept
    file = tmp_path / "proof.json"
    file.write_bytes(answer.content)
    done = rounds("audit", "check", file, "--key", runs / name / "server.pub", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["holds"] and told["site"] == site
    weights = {r["round"]: r["decision"]["weights"][site] for r in load_run(runs / name).rounds}
    assert {r["round"]: r["weight"] for r in told["rounds"]} == (weights if round is None else {round: weights[round]})
    own = rounds(
        "audit", "prove", runs / name, "--site", site, *(["--round", round] if round else []), "--out", tmp_path / "own"
    )
    assert own.returncode == 0 and (tmp_path / "own").read_bytes() == answer.content
    file.write_bytes(answer.content.replace(b'"weight":0.', b'"weight":0.9', 1))
    assert rounds("audit", "check", file, "--key", runs / name / "server.pub").returncode == 3


def test_what_cannot_be_proven_is_refused(signed):
    client = signed.client("auditor")
    for asked, status in (
        ({"run": "trust", "site": "nobody"}, 404),
        ({"run": "trust", "site": "a", "round": 99}, 404),
        ({"run": "trust", "site": "a", "round": 0}, 422),
        ({"run": "../trust", "site": "a"}, 404),
        ({"run": "trust"}, 422),
    ):
        answer = client.get("/api/audit/proof", params=asked)
        assert answer.status_code == status and answer.json()["error"]


def test_an_export_and_a_head_are_checked_by_the_command(signed, runs, tmp_path):
    client = signed.client("auditor")
    export, head = tmp_path / "ledger.jsonl", tmp_path / "head.json"
    export.write_bytes(client.get("/api/audit/export", params={"run": "trust"}).content)
    head.write_bytes(client.get("/api/audit/head", params={"run": "trust"}).content)
    done = rounds("audit", "verify", export, "--key", runs / "trust" / "server.pub", "--heads", head)
    assert done.returncode == 0, done.stdout
    assert head.read_bytes() == (runs / "trust" / "ledger.head.json").read_bytes()


def test_entries_and_countersignatures_are_those_of_the_ledger(signed, runs):
    client = signed.client("auditor")
    with ledger_at(runs / "plain") as ledger:
        book = ledger.book()
    told = client.get("/api/audit/entries", params={"run": "plain"}).json()
    assert (told["total"], told["pages"]) == (len(book.entries), 1) and len(told["entries"]) == 5
    assert [e["hash"] for e in told["entries"]] == [e.hash for e in book.entries]
    assert [e["kind"] for e in told["entries"]] == ["open", "round", "round", "round", "close"]
    assert all(e["signed"] for e in told["entries"])
    assert told["entries"][2]["model"] == book.entries[2].content["model"]
    assert client.get("/api/audit/entry", params={"run": "plain", "number": 2}).json()["says"] == book.entries[2].content
    assert client.get("/api/audit/entry", params={"run": "plain", "number": 5}).status_code == 404
    assert client.get("/api/audit/entries", params={"run": "plain", "page": 2}).status_code == 404
    signed_by = {s["site"]: s for s in client.get("/api/audit/sites", params={"run": "plain"}).json()}
    assert set(signed_by) == {"a", EVIL, "c", "d"}
    for site, told in signed_by.items():
        assert told["signed"] == sum(site in h.witnesses for h in book.heads) == told["due"] > 0
        assert told["last"] == len(book.entries) and told["forged"] == 0
    page = client.get("/audit", params={"run": "plain"}).text
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page


def test_a_forged_countersignature_is_told_at_its_site(bent):
    root, client = bent
    tampered(
        root / "trust" / "ledger.db", "UPDATE witnesses SET signature = zeroblob(64) WHERE size = 3 AND site = 'b'"
    )
    told = client.get("/api/audit/sites", params={"run": "trust"}).json()
    assert {s["site"]: s["forged"] for s in told} == {"a": 0, "b": 1, "c": 0, "d": 0}
    assert "1 not by this site's key" in client.get("/audit", params={"run": "trust"}).text


def test_anchors_are_held_against_the_ledger(bent):
    root, client = bent
    with ledger_at(root / "trust") as ledger:
        name, entered = run_and_rounds(ledger.book())
    held = [
        {"first": s.first, "last": s.last, "hash": s.hash.hex(), "transaction": f"0x{k}", "block": k, "gas": 7}
        for k, s in enumerate(spans(entered, batch=2))
    ]
    place = {"chain": 31337, "contract": "0xabc", "run": name.hex(), "spans": held}
    file = root / "trust" / "anchors.json"

    def told(**other):
        file.write_text(json.dumps({"schema": 1, "anchors": [{**place, **other}]}))
        (found,) = client.get("/api/audit/anchors", params={"run": "trust"}).json()
        return found

    found = told()
    assert (found["chain"], found["contract"], found["ours"], found["rounds"]) == (31337, "0xabc", True, 3)
    assert [(s["first"], s["last"], s["same"], s["block"]) for s in found["spans"]] == [
        (1, 2, True, 0),
        (3, 3, True, 1),
    ]
    assert "history was rewritten" not in client.get("/audit", params={"run": "trust"}).text
    found = told(spans=[{**held[0], "hash": "00" * 32}, held[1]], run="11" * 32)
    assert [s["same"] for s in found["spans"]] == [False, True] and not found["ours"]
    assert "history was rewritten" in client.get("/audit", params={"run": "trust"}).text
    for damaged in (
        "{",
        "[]",
        '{"anchors": [{"chain": "x"}]}',
        '{"anchors": [{"chain": 1, "contract": "c", "spans": [{}]}]}',
    ):
        file.write_text(damaged)
        assert client.get("/api/audit/anchors", params={"run": "trust"}).status_code == 422
        page = client.get("/audit", params={"run": "trust"})
        assert page.status_code == 200 and "damaged" in page.text


def test_a_check_that_takes_long_goes_on_and_is_found_later(runs, monkeypatch):
    going, run_index = threading.Event(), RunIndex(runs)

    def slow(folder, **options):
        going.wait(20)
        return whole(folder, **options)

    whole = view.audit
    monkeypatch.setattr(view, "audit", slow)
    assert view.check(run_index, "trust", wait=0.05).state == "is being checked"
    users, tokens = known_users()
    client = Signed(create_app(AppState(run_index, users)), tokens).client("auditor")
    monkeypatch.setattr(view, "PAGE_WAIT", 0.05)
    assert "is being checked" in client.get("/audit", params={"run": "trust"}).text
    going.set()
    assert view.check(run_index, "trust", wait=20).state == "verifies"


def test_no_other_role_sees_any_of_it(signed):
    places = [*(r.path for r in audit_router.routes), "/audit"]
    assert len(places) == 10
    for place in places:
        for role in ("viewer", "clinician"):
            answer = signed.client(role).get(place, params={"run": "trust", "site": "a", "number": 1})
            assert answer.status_code == 403 and "trust" not in answer.text, (role, place)
        assert signed.client().get(place).status_code in (401, 303)


def test_checks_and_downloads_in_a_browser(chromium, bent, tmp_path):
    root, _ = bent
    one_byte(root / "trust" / "ledger.db")
    users, tokens = known_users()
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    for served in serving(AppState(RunIndex(root), users), tokens):
        window = Window(context.new_page(), served.url)
        page = window.page
        window.sign_in(tokens["auditor"])
        window.go("/audit")
        page.locator("tr.found", has_text="does NOT verify").wait_for()  # without a click
        page.locator("tr[data-check=plain]", has_text="verifies, by simulated keys").wait_for()
        page.click("#check-all")
        page.locator("#checked", has_text="1 of 2 do NOT verify").wait_for()
        assert page.locator("tr.found").count() == 1
        page.get_by_role("link", name="plain").click()
        page.get_by_text("The ledger verifies, by simulated keys only, and model and records with it").wait_for()
        page.click("#ledger-only")
        alone = "The ledger verifies, by simulated keys only; model and records were not checked"
        page.get_by_role("heading", name=alone).wait_for()
        page.get_by_label("Entry 1, word for word").click()
        page.locator("tr.whole pre", has_text='"kind": "round"').wait_for()
        page.select_option("#site", EVIL)
        with page.expect_download() as taken:
            page.click("#proof button")
        file = tmp_path / "taken.json"
        taken.value.save_as(file)
        assert rounds("audit", "check", file, "--key", root / "plain" / "server.pub").returncode == 0
        window.go("/audit?run=trust")
        assert page.get_by_role("alert").get_by_text("changed entry").count() == 1
        assert window.wrong == []
    context.close()
