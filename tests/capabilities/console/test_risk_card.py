"""The page of a risk card: ticks are added up, and the risk is the model's own."""

from __future__ import annotations

import json
from itertools import product

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.models.risk_card import Card
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.report import EVIL
from tests.report.shapes import card
from tests.store import copied
from tests.support import without_ledger


@pytest.fixture
def folder(runs, tmp_path):
    """A run with a risk card, one without, and one that has not ended."""
    for name in ("card", "plain", "stopped"):
        copied(runs / "trust", tmp_path / name)
    summary = json.loads((without_ledger(tmp_path / "card") / "summary.json").read_text())
    (tmp_path / "card" / "summary.json").write_text(json.dumps({**summary, "card": card(notes=[EVIL])}))
    (tmp_path / "stopped" / "summary.json").unlink()
    return tmp_path


@pytest.fixture
def client(folder):
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(folder), users)), tokens).client("viewer")


def test_the_page_has_terms_points_and_risks_of_totals(client):
    text = client.get("/card", params={"run": "card"}).text
    assert EVIL not in text and "<bdi>age above 75 years</bdi>" in text and "<b>+3</b>" in text and "<b>-1</b>" in text
    assert "<td>-1 or less</td>" in text and "<td>5 or more</td>" in text and "<b>8.4%</b>" in text
    assert "distilled from an additive model in 11 exchanges of sums" in text
    drawn = client.get("/api/run/card/nomogram", params={"run": "card"})
    assert drawn.headers["content-type"] == "image/svg+xml" and drawn.text.startswith("<svg")
    assert client.get("/api/run/card/nomogram", params={"run": "plain"}).status_code == 404
    assert 'href="/card?run=card"' in client.get("/run", params={"run": "card"}).text
    assert 'href="/card' not in client.get("/run", params={"run": "plain"}).text


def test_terms_of_one_column_imply_or_exclude_each_other(client):
    young, old, oldest, typical, unknown = client.get("/api/run/card", params={"run": "card"}).json()["terms"]
    assert oldest["implies"] == [1] and old["implies"] == [] and young["implies"] == []
    assert young["excludes"] == [1, 2] and oldest["excludes"] == [0]
    assert typical["excludes"] == [4] and unknown["excludes"] == [3]


def test_the_table_gives_every_total_the_risk_of_the_model(client):
    told, model = client.get("/api/run/card", params={"run": "card"}).json(), Card.from_dict(card())
    for ticks in product((0, 1), repeat=5):
        total = sum(t["points"] for t, ticked in zip(told["terms"], ticks, strict=True) if ticked)
        found = next((t for t in told["totals"] if total <= t["last"]), told["totals"][-1])  # as risk_card.js looks it up
        assert found["risk"] == model.risk(total)


def test_runs_without_a_card_have_a_page_that_says_so(client):
    assert "This run has no risk card." in client.get("/card", params={"run": "plain"}).text
    assert "This run is interrupted: its risk card is written" in client.get("/card", params={"run": "stopped"}).text
    assert client.get("/api/run/card", params={"run": "plain"}).json() is None


def test_ticks_by_keyboard_add_up_and_contradictions_are_unticked(chromium, folder):
    users, tokens = known_users()
    serve = serving(AppState(RunIndex(folder), users), tokens)
    console = next(serve)
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    window = Window(context.new_page(), console.url)
    window.page.set_default_timeout(30_000)
    window.sign_in(tokens["viewer"])
    window.go("/card?run=card")

    def told() -> tuple[str, str, list[int]]:
        ticked = window.page.evaluate("() => [...document.querySelectorAll('#terms input')].map(i => Number(i.checked))")
        return window.page.inner_text("#total"), window.page.inner_text("#shown"), ticked

    window.until("document.getElementById('shown').textContent !== ''")
    assert told() == ("0", "8.4%", [0, 0, 0, 0, 0])
    terms = window.page.locator("#terms input")
    terms.nth(0).press("Space")
    assert told() == ("-1", "2%", [1, 0, 0, 0, 0])
    terms.nth(2).press("Space")  # above 75: also above 60, and no longer at most 40
    assert told() == ("3", "45%", [0, 1, 1, 0, 0])
    assert "No longer ticked: age at most 40 years." in window.page.inner_text("#also")
    terms.nth(3).press("Space")
    assert told() == ("6", "81%", [0, 1, 1, 1, 0])
    assert window.page.locator("#totals tr[aria-current] td").first.inner_text() == "5 or more"
    terms.nth(1).press("Space")  # not above 60: not above 75 either
    assert told() == ("3", "45%", [0, 0, 0, 1, 0])
    window.page.locator("#clear").press("Enter")
    assert told()[0] == "0" and window.wrong == []
    context.close()
    next(serve, None)
