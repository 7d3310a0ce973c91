"""The register in the console: who sees it, who signs, and what a form needs before anything is written."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from grandrounds.capabilities.console.access_log import AccessLog
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.sessions import FREE
from grandrounds.capabilities.console.auth.users import Users
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.dossier.register import read_register, signing_key
from grandrounds.capabilities.dossier.register.folder import load_register
from grandrounds.capabilities.dossier.register.register import Register
from tests.capabilities.console.conftest import Signed, Window, serving
from tests.capabilities.console.test_audit import one_byte
from tests.report import EVIL
from tests.store import copied

ROLES = ("medical director", "data protection officer")
WORDS = {"ada": "four quiet words of ada", "bob": "four quiet words of bob"}
PEOPLE = {
    "ada": ["approver"],
    "bob": ["approver", "viewer"],
    "eve": ["approver"],
    "vic": ["viewer"],
    "doc": ["clinician"],
}


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})


@pytest.fixture
def home(runs, tmp_path):
    """Two runs, one of them a candidate; ada and bob sign for one role each."""
    home = tmp_path / "runs"
    for name in ("plain", "trust"):
        copied(runs / name, home / name)
    register = Register.create(home, roles=ROLES)
    for name, role in zip(WORDS, ROLES, strict=True):
        register.add_signatory(name, role=role, passphrase=WORDS[name])
    register.propose(home / "trust", purpose="death in hospital", by="engineer")
    return home


@pytest.fixture
def browser(home, tmp_path):
    """A signed-in browser for each person."""
    users = Users()
    for name, roles in PEOPLE.items():
        users.add(name, roles)
    log = AccessLog(tmp_path / "access.jsonl")
    app = create_app(AppState(RunIndex(home), users, log=log))

    def sign_in(name):
        client = Signed(app, {}).client()
        form = re.search(r'name="form" value="([^"]+)"', client.get("/sign-in").text)[1]
        data = {"form": form, "name": "", "secret": users.issue(name, days=1), "next": "/models"}
        assert client.post("/sign-in", data=data).status_code == 303
        return client

    sign_in.log, sign_in.users, sign_in.app = log.file, users, app
    return sign_in


def fields(client, run="trust", form="approve"):
    """The hidden fields of a form of the model's page."""
    page = client.get(f"/models?run={run}").text
    part = re.search(rf'<form[^>]*id="{form}".*?</form>', page, re.S)
    assert part, f"no form {form}"
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', part[0]))


def send(client, data, **headers):
    return client.post("/models/sign", data=data, headers=headers)


def sign(client, name, form="approve", run="trust", **more):
    return send(client, {**fields(client, run, form), "passphrase": WORDS[name], **more})


def events(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_life_of_a_model_in_the_browser(browser, home):
    ada, bob = browser("ada"), browser("bob")
    assert "Waiting for your signature" in ada.get("/models").text
    assert sign(ada, "ada", note="seen by the board").status_code == 303
    assert "Waiting for your signature" not in ada.get("/models").text
    assert "seen by the board" in bob.get("/models?run=trust").text
    assert sign(bob, "bob").headers["location"] == "/models?run=trust"
    assert read_register(home).find("trust").label == "approved"
    assert sign(ada, "ada", "use", hospital=["b", "c"]).status_code == 303
    assert read_register(home).find("trust").record.in_use == ("b", "c")
    assert "in use" in browser("vic").get("/models").text
    row = re.search(r'<tr data-run="trust".*?</tr>', browser("vic").get("/runs").text, re.S)
    assert row is not None and 'href="/models?run=trust">in use</a>' in row[0]
    assert sign(bob, "bob", "withdraw", note="alarm of ward 3").status_code == 303
    page = browser("doc").get("/models?run=trust").text
    assert "alarm of ward 3" in page and "Do not use this model" in page and 'role="alert"' in page
    assert not load_register(Register(home).folder).findings
    done = [
        (e["user"], e["view"]) for e in events(browser.log) if e["event"] == "model decision" and e["run"] == "trust"
    ]
    assert done == [("ada", "approve"), ("bob", "approve"), ("ada", "use"), ("bob", "withdraw-model")]
    assert not any(word in browser.log.read_text() for word in WORDS.values())


@pytest.mark.parametrize("name", ["vic", "doc"])
def test_others_see_the_register_and_no_form(browser, home, name):
    client, form = browser(name), fields(browser("ada"))
    assert client.get("/models").status_code == 200 and "<fieldset" not in client.get("/models?run=trust").text
    assert "Sign approval" not in client.get("/models?run=trust").text
    assert send(client, {**form, "passphrase": WORDS["ada"]}).status_code == 403
    assert not read_register(home).find("trust").record.approvals


def test_an_approver_who_is_no_signatory_signs_nothing(browser, home):
    eve, form = browser("eve"), fields(browser("ada"))
    page = eve.get("/models?run=trust").text
    assert "No signatory of this register has your name" in page and "Sign approval" not in page
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)[1]
    for words in WORDS.values():
        assert send(eve, {**form, "csrf": csrf, "passphrase": words}).status_code == 422
    assert not read_register(home).find("trust").record.approvals


@pytest.mark.parametrize(
    ("change", "headers", "status"),
    [
        ({"csrf": ""}, {}, 403),
        ({"csrf": "made-up"}, {}, 403),
        ({}, {"origin": "http://evil.example"}, 403),
        ({}, {"sec-fetch-site": "cross-site"}, 403),
        ({"passphrase": ""}, {}, 401),
        ({"passphrase": WORDS["bob"]}, {}, 401),
        ({"decision": "sell"}, {}, 422),
        ({"seen": "9" * 20}, {}, 422),
        ({"seen": "77"}, {}, 409),
        ({"run": "plain"}, {}, 404),
        ({"run": "../trust"}, {}, 404),
        ({"decision": "use", "hospital": "b"}, {}, 409),
        ({"decision": "withdraw-model", "note": ""}, {}, 409),
        ({"note": "x" * 2001}, {}, 422),
    ],
)
def test_a_form_that_lacks_something_writes_nothing(browser, home, change, headers, status):
    ada = browser("ada")
    form = {**fields(ada), "passphrase": WORDS["ada"]}
    before = (home / "register" / "ledger.head.json").read_bytes()
    assert send(ada, {**form, **change}, **headers).status_code == status
    assert (home / "register" / "ledger.head.json").read_bytes() == before
    assert send(ada, form).status_code == 303  # the same form, whole


def test_a_form_of_another_session_is_refused(browser, home):
    form = fields(browser("bob"))
    assert send(browser("ada"), {**form, "passphrase": WORDS["ada"]}).status_code == 403


def test_a_program_with_a_token_signs_nothing(browser, home):
    client = Signed(browser.app, {}).client()
    client.headers["authorization"] = f"Bearer {browser.users.issue('ada', days=1)}"
    form = {**fields(browser("ada")), "passphrase": WORDS["ada"]}
    assert send(client, form).status_code == 422
    assert not read_register(home).find("trust").record.approvals


def test_a_form_that_is_sent_again_is_refused(browser, home):
    ada, bob = browser("ada"), browser("bob")
    form = {**fields(ada), "passphrase": WORDS["ada"]}
    assert send(ada, form).status_code == 303
    again = send(ada, form)
    assert again.status_code == 409 and "approved it already" in again.text
    sign(bob, "bob")
    use = {**fields(ada, form="use"), "passphrase": WORDS["ada"], "hospital": ["b"]}
    assert send(ada, use).status_code == 303
    assert sign(bob, "bob", "use").status_code == 303  # out of use again
    again = send(ada, use)
    assert again.status_code == 409 and "changed in the register" in again.text
    assert read_register(home).find("trust").record.in_use == ()


def test_two_people_who_sign_at_the_same_moment_both_count(browser, home):
    people = {name: browser(name) for name in WORDS}
    forms = {name: {**fields(client), "passphrase": WORDS[name]} for name, client in people.items()}
    with ThreadPoolExecutor(4) as pool:
        names = [*WORDS, *WORDS]
        status = list(pool.map(lambda name: send(people[name], forms[name]).status_code, names))
    assert sorted(status) == [303, 303, 409, 409]
    assert read_register(home).find("trust").label == "approved" and not load_register(Register(home).folder).findings


def test_wrong_passphrases_make_the_right_one_wait_and_other_refusals_do_not_reset_the_count(browser, home):
    ada, bob = browser("ada"), browser("bob")
    form = {**fields(ada), "passphrase": "wrong wrong wrong"}
    for _ in range(FREE):
        assert send(ada, form).status_code == 401
        send(ada, {**form, "run": "plain"})  # refused before the passphrase is checked
    late = send(ada, {**form, "passphrase": WORDS["ada"]})
    assert late.status_code == 429 and "Try again in" in late.text
    assert sign(bob, "bob").status_code == 303  # others do not wait
    assert sum(e["event"] == "wrong passphrase" and e["user"] == "ada" for e in events(browser.log)) == FREE


def test_nothing_is_signed_when_the_access_log_cannot_be_written(browser, home):
    ada = browser("ada")
    form = {**fields(ada), "passphrase": WORDS["ada"]}
    browser.log.unlink()
    browser.log.mkdir()
    assert send(ada, form).status_code == 503
    assert not read_register(home).find("trust").record.approvals


def test_a_changed_ledger_or_register_is_a_banner_and_offers_withdrawal_alone(browser, home):
    ada = browser("ada")
    one_byte(home / "trust" / "ledger.db")
    page = ada.get("/models?run=trust").text
    assert "not valid" in page and "Do not use this model" in page
    assert "Sign approval" not in page and "Sign withdrawal" in page
    (home / "register" / "ledger.head.json").write_text("{}")
    page = ada.get("/models").text
    assert "The register does not verify" in page and 'role="alert"' in page
    assert "Sign withdrawal" not in ada.get("/models?run=trust").text


def test_without_a_register_the_page_says_how_to_create_one(signed, runs):
    page = signed.client("viewer").get("/models")
    assert page.status_code == 200 and "rounds models init" in page.text
    assert signed.client("viewer").get("/models?run=plain").status_code == 404


def test_names_and_notes_are_escaped(browser, home):
    Register(home).propose(home / "plain", purpose=f"{EVIL} \u202e", by=EVIL[:60], note=EVIL)
    for path in ("/models", "/models?run=plain"):
        page = browser("ada").get(path).text
        assert EVIL not in page and "\u202e" not in page


def test_the_folder_of_the_register_is_not_a_run(browser, home):
    assert {run.name for run in RunIndex(home).runs()} == {"plain", "trust"}
    for path in ("/run?run=register", "/models?run=register", "/audit?run=register"):
        assert browser("bob").get(path).status_code == 404


def test_signing_in_a_real_browser(chromium, home):
    users = Users()
    users.add("ada", ["approver"])
    tokens = {"ada": users.issue("ada", days=1)}
    for console in serving(AppState(RunIndex(home), users), tokens):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        window = Window(context.new_page(), console.url)
        window.sign_in(tokens["ada"])
        window.go("/models")
        window.page.click("text=Review and sign")
        window.page.fill("#note-approve", "seen by the board")
        window.page.fill("#passphrase-approve", WORDS["ada"])
        window.page.click("text=Sign approval")
        window.page.wait_for_selector("li.yes")
        assert "ada" in window.page.text_content("li.yes") and window.page.locator("#approve").count() == 0
        assert window.wrong == []
        context.close()
    assert [e.note for e in read_register(home).find("trust").record.approvals] == ["seen by the board"]
