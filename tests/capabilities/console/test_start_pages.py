"""The start page of each role, the sections of a run's page, and what pages say to somebody who may not see them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.users import Role, Users
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.sections import LABELS
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.core.ending import FAILED, Ending
from grandrounds.runs.ending import record_ending
from tests.capabilities.console.conftest import Served, Signed, Window, known_users, serving
from tests.store import copied

SECRET = "a long passphrase of a director"
TWO_SCREENS = 1800
"""Pixels: two screens of 900."""


@pytest.fixture
def home(runs, tmp_path) -> Path:
    """Runs with a register: by-reasons is in use at two hospitals, trust waits for a signature; cut failed."""
    for name in ("by-reasons", "trust", "private"):
        copied(runs / name, tmp_path / name)
    copied(runs / "trust", tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    ending = Ending(
        FAILED, "too-few-sites", "Two sites are left; a secure sum needs three.", "Turn privacy.secure off."
    )
    record_ending(tmp_path / "cut", ending)
    register = Register.create(tmp_path, roles=["medical director"])
    register.add_signatory("board", role="medical director", passphrase=SECRET)
    register.propose(tmp_path / "by-reasons", purpose="death in intensive care", by="ann")
    for action in ("approve", "use"):
        hospitals = {"hospitals": ["a", "b"]} if action == "use" else {}
        register.decide(action, "by-reasons", by="board", passphrase=SECRET, **hospitals)
    register.propose(tmp_path / "trust", purpose="death on wards", by="ann")
    return tmp_path


def clients(root: Path, **state: str) -> Signed:
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(root), users, **state)), tokens)


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_the_board_reads_the_answers_first(home):
    text = plain(clients(home, title="Four hospitals").client("board").get("/", follow_redirects=True).text)
    assert "1 model in use" in text and "Four hospitals" in text and "death in intensive care" in text
    for question in ("Which models", "better than no model at every hospital", "record intact", "spent", "signature"):
        assert question in text, question
    assert "1 candidate Waiting for: medical director. You can sign it." in text
    assert "AUROC 0." in text and "test rows" in text and "keys are simulated" in text
    assert "No formal privacy guarantee" in text and "MB to sites" in text


def test_the_board_is_warned_of_a_changed_model(home):
    model = home / "by-reasons" / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(bytes(data))
    text = plain(clients(home).client("board").get("/board").text)
    assert "No: 1 record failed" in text and "Do not use this model." in text


def test_a_board_without_a_register_reads_that_no_model_is_in_use(signed):
    text = plain(signed.client("board").get("/board").text)
    assert "No model is in use" in text and "rounds models init" in text and "Newest finished runs" in text


def test_the_engineer_reads_failures_with_their_cause_and_the_costs(home):
    text = plain(clients(home).client("engineer").get("/").text)
    assert "Did not finish failed cut Two sites are left; a secure sum needs three. Turn privacy.secure off." in text
    assert re.search(r"[\d.]+ MB, [\d.]+ s", text)


@pytest.mark.parametrize(
    ("role", "page"),
    [("viewer", "Runs"), ("engineer", "Runs"), ("board", "Overview"), ("approver", "Overview"), ("auditor", "Audit")],
)
def test_each_role_starts_on_its_own_page_with_its_own_links(home, role, page):
    answer = clients(home).client(role).get("/", follow_redirects=True)
    header = answer.text.partition("</header>")[0]
    links = re.findall(r'<a href="([^"]+)"( aria-current="page")?>([^<]+)</a>', header)
    assert answer.status_code == 200 and [name for _, here, name in links if here] == [page] and links[0][2] == page
    assert ("Audit" in [name for *_, name in links]) == (role not in ("viewer", "engineer"))


def test_the_first_role_of_a_user_decides(home):
    users = Users()
    users.add("ann", [Role.BOARD, Role.ENGINEER])
    users.add("ben", [Role.ENGINEER, Role.BOARD])
    tokens = {name: users.issue(name, days=1) for name in ("ann", "ben")}
    signed = Signed(create_app(AppState(RunIndex(home), users)), tokens)
    assert signed.client("ann").get("/").headers["location"] == "/board"
    assert "<h1>Runs</h1>" in signed.client("ben").get("/").text


def test_a_run_begins_with_its_verdict_and_has_links_to_its_sections(home):
    client = clients(home).client("viewer")
    text = client.get("/run", params={"run": "by-reasons"}).text
    assert "than no model" in text and "death in intensive care" in text and ">in use</a>" in text
    keys = re.findall(r"/run\?run=by-reasons&amp;section=([a-z]+)\"", text)
    assert set(keys) >= {"performance", "hospitals", "explanations", "weights", "training", "privacy", "settings"}
    for key in keys:
        page = client.get("/run", params={"run": "by-reasons", "section": key})
        assert page.status_code == 200 and re.search(
            rf'section={key}" aria-current="page">{LABELS[key]}<', page.text
        ), key
    settings = plain(client.get("/run", params={"run": "by-reasons", "section": "settings"}).text)
    assert "name sse-agg" in settings and "label died" in settings
    assert client.get("/run", params={"run": "by-reasons", "section": "nothing"}).status_code == 404


def test_a_run_that_failed_says_why_and_how_to_continue(home):
    text = clients(home).client("viewer").get("/run", params={"run": "cut"}).text
    assert "Two sites are left; a secure sum needs three." in text and "Turn privacy.secure off." in text
    command = re.search(r'<code id="command">([^<]+)</code>', text)[1]
    assert command == f"rounds resume {home.name}/cut" and str(home) not in text


def test_settings_name_no_folder_of_this_machine(home):
    plan = home / "trust" / "checkpoint" / "plan.json"
    content = json.loads(plan.read_text())
    content["data"] |= {"name": None, "table": "/srv/secret folder/patients.csv"}
    plan.write_text(json.dumps(content))
    text = clients(home).client("viewer").get("/run", params={"run": "trust", "section": "settings"}).text
    assert "patients.csv" in text and "secret folder" not in text


def test_faults_name_what_is_missing_and_whom_to_ask(signed, runs):
    client = clients(runs, contact="it@hospital.example").client("viewer")
    refused, missing, invalid = client.get("/audit"), client.get("/run?run=nobody"), client.get("/run")
    assert refused.status_code == 403 and "it@hospital.example" in plain(refused.text)
    assert missing.status_code == 404 and "There is no run" in missing.text
    assert invalid.status_code == 422 and "run" in plain(invalid.text).partition("Invalid")[2]


def test_sign_in_names_the_product_and_the_hospital(runs):
    text = plain(clients(runs, title="Charité Berlin", contact="it@charite.example").client().get("/sign-in").text)
    assert "Grand Rounds" in text and "Charité Berlin" in text and "it@charite.example" in text


def test_no_section_is_higher_than_two_screens(chromium, runs):
    """Runs of three methods in a window of 1440 x 900, with all figures drawn."""
    users, tokens = known_users()
    served = serving(AppState(RunIndex(runs), users), tokens)
    console: Served = next(served)
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    try:
        window = Window(context.new_page(), console.url)
        window.sign_in(tokens["viewer"])
        heights = {}
        for run in ("plain", "by-reasons", "trust"):
            window.go(f"/run?run={run}")
            links = window.page.eval_on_selector_all(".tabs a", "links => links.map(link => link.getAttribute('href'))")
            for link in links:
                window.go(link)
                window.page.evaluate("() => window.rounds.all()")
                heights[link] = window.page.evaluate("() => document.documentElement.scrollHeight")
        assert len(heights) > 20 and {link: h for link, h in heights.items() if h > TWO_SCREENS} == {}
        assert window.wrong == []
    finally:
        context.close()
        next(served, None)
