"""Estimates on the page of a run: the table of coefficients, the facts of the fit, and the figure."""

from __future__ import annotations

import json

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed, known_users
from tests.report import EVIL
from tests.report.estimates import estimates
from tests.store import copied
from tests.support import without_ledger


@pytest.fixture
def client(runs, tmp_path):
    copied(runs / "trust", tmp_path / "fit")
    copied(runs / "by-reasons", tmp_path / "plain")
    summary = json.loads((without_ledger(tmp_path / "fit") / "summary.json").read_text())
    (tmp_path / "fit" / "summary.json").write_text(json.dumps({**summary, "estimates": estimates(name=EVIL)}))
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("viewer")


def test_the_page_has_the_table_with_intervals(client):
    text = client.get("/run", params={"run": "fit", "section": "estimates"}).text
    assert '<section class="card" id="estimates">' in text and EVIL not in text
    assert "1.051 (1.031 to 1.072)" in text and "left out: constant" in text
    assert "numbers sent / numbers held" in text and "120 / 600" in text
    assert "Few clusters: intervals are too short." in text
    summary = client.get("/run", params={"run": "fit"}).text
    assert "age: odds ratio 1.051 per unit (95% CI 1.031 to 1.072)." in summary, "the first of the findings"
    assert 'data-figure="coefficients"' in text
    assert client.get("/run", params={"run": "plain", "section": "estimates"}).status_code == 404


def test_the_api_has_the_same_table_and_figure(client):
    told = client.get("/api/run/estimates", params={"run": "fit"}).json()
    assert told["head"][0] == "input" and told["rows"][1][:2] == ["age", "0.0500"]
    assert ["exchanges", "6"] in told["facts"]
    figure = client.get("/api/run/figure", params={"run": "fit", "figure": "coefficients"}).json()
    assert figure["data"][0]["y"][0] == "age"
    assert client.get("/api/run/estimates", params={"run": "plain"}).json() is None
