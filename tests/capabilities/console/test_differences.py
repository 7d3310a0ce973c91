"""Features that count differently at a hospital, on the page of a run: the table, the figure, and the same by the API."""

from __future__ import annotations

import json

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed, known_users
from tests.report import EVIL
from tests.store import copied
from tests.support import without_ledger


def feature(**more):
    values = {"feature": "age", "input": "age", "outcome": "", "difference": 0.4, "low": 0.1, "high": 0.7, "p": 0.002}
    return {**values, "differs": True, "common": 0.5, "per": 10.0, **more}


@pytest.fixture
def client(runs, tmp_path):
    copied(runs / "trust", tmp_path / "guarded")
    copied(runs / "by-reasons", tmp_path / "plain")
    path = without_ledger(tmp_path / "guarded") / "summary.json"
    summary = json.loads(path.read_text())
    found = {EVIL: {"tested": 2, "features": [feature()]}, "b": {"tested": 2, "features": [feature(differs=False, p=0.6)]}}
    personal = {"part": "intercept", "guard": True, "rows": "train", "spread": 0.3, "stays": False, "harmed": [], "tested": []}
    personal |= {"choices": dict.fromkeys(found, "intercept"), "final": summary["final"], "per_site": summary["per_site"]}
    path.write_text(json.dumps({**summary, "personal": {**personal, "differences": found, "differs": [EVIL], "level": 0.05}}))
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")


def test_the_page_tells_what_differs_and_where(client):
    sections = ("summary", "estimates", "hospitals", "explanations")
    text = "".join(client.get("/run", params={"run": "guarded", "section": s}).text for s in sections)
    chosen = {"run": "guarded", "section": "explanations", "figure": "differences"}
    assert "Do hospitals differ?" in text and EVIL not in text
    assert "+0.40 log-odds per 10" in text and "+0.10 to +0.70" in text and "0.002" in text
    assert "Different effects: yes; a feature has another effect than in the common model at 1 of 2 hospitals" in text
    assert "p-values are corrected for" in text and 'data-figure="differences"' in client.get("/run", params=chosen).text
    assert "Do hospitals differ?" not in client.get("/run", params={"run": "plain"}).text


def test_the_api_has_the_same_table_and_figure(client):
    tables = client.get("/api/run/tables", params={"run": "guarded"}).json()
    rows = next(t["rows"] for t in tables if t["title"] == "Do hospitals differ?")
    assert rows[0][1:] == ["age", "+0.40 log-odds per 10", "+0.10 to +0.70", "+0.50", "0.002"]
    assert rows[1][:2] == ["b", "none"]
    drawn = client.get("/api/run/figure", params={"run": "guarded", "figure": "differences"}).json()
    assert drawn["data"][0]["x"] == [0.4] and EVIL not in json.dumps(drawn)
