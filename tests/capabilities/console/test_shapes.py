"""The shape page: columns by importance, the value under the cursor, and pages of runs without shapes."""

from __future__ import annotations

import json

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.report import EVIL
from tests.report.shapes import category, number, shapes
from tests.store import copied
from tests.support import without_ledger


@pytest.fixture
def folder(runs, tmp_path):
    """A run with shapes, one without, and one that has not ended."""
    for name in ("gam", "plain", "stopped"):
        copied(runs / "trust", tmp_path / name)
    summary = json.loads((without_ledger(tmp_path / "gam") / "summary.json").read_text())
    told = shapes(category(EVIL, values=["none", EVIL, "other"]), number(), number("height", used=False))
    (tmp_path / "gam" / "summary.json").write_text(json.dumps({**summary, "shapes": told}))
    (tmp_path / "stopped" / "summary.json").unlink()
    return tmp_path


@pytest.fixture
def client(folder):
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(folder), users)), tokens).client("viewer")


def test_the_page_lists_columns_by_importance_and_links_from_the_run(client):
    text = client.get("/shapes", params={"run": "gam"}).text
    assert EVIL not in text and text.index("1. age") < text.index("All columns")
    assert "Columns that the model does not use: height." in text
    assert "0.61 at 50 years (10th percentile)" in text and "numbers sent / numbers held" in text
    assert 'href="/shapes?run=gam"' in client.get("/run", params={"run": "gam"}).text
    assert 'href="/shapes' not in client.get("/run", params={"run": "plain"}).text


def test_the_api_has_a_sentence_for_every_value_and_the_figure(client):
    told = client.get("/api/run/shapes", params={"run": "gam"}).json()
    age = told["columns"][0]
    assert [p["x"] for p in age["points"]] == [40.0, 50.0, 60.0, 70.0, 80.0, None] and age["first"] == 2
    assert [p["rows"] for p in age["points"]] == [5, 25, 40, 25, 5, 20]
    assert age["points"][3]["text"].startswith("70 years: log-odds +0.70 (95% CI +0.31 to +1.09); odds ratio 2.01")
    assert sum(c["share"] for c in told["columns"]) == pytest.approx(1.0)
    drawn = client.get("/api/run/shape", params={"run": "gam", "column": "age"}).json()
    assert any(t["name"] == "effect" and t["y"] == [-1.0, -0.5, 0.0, 0.7, 0.9] for t in drawn["data"])
    for wrong in ({"run": "gam", "column": "height"}, {"run": "plain", "column": "age"}):
        assert client.get("/api/run/shape", params=wrong).status_code == 404
    assert client.get("/api/run/shapes", params={"run": "plain"}).json() is None


def test_runs_without_shapes_have_a_page_that_says_so(client):
    assert "This run has no shapes." in client.get("/shapes", params={"run": "plain"}).text
    assert "This run is interrupted: shapes are computed at the end of the fit." in client.get(
        "/shapes", params={"run": "stopped"}
    ).text


def test_sliders_choose_the_column_and_the_value_by_keyboard(chromium, folder):
    users, tokens = known_users()
    serve = serving(AppState(RunIndex(folder), users), tokens)
    console = next(serve)
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    window = Window(context.new_page(), console.url)
    window.page.set_default_timeout(30_000)
    window.sign_in(tokens["viewer"])
    window.go("/shapes?run=gam")
    window.drawn("shape")
    window.until("document.getElementById('point').textContent.startsWith('60 years')")
    window.page.locator("#value").press("ArrowRight")
    window.until("document.getElementById('point').textContent.startsWith('70 years: log-odds +0.70')")
    mark = "document.querySelector('.plot').data.find(t => t.name === 'selected value')"
    window.until(f"{mark}?.x[0] === 70")
    window.page.locator("#value").press("End")
    window.until(f"{mark}.x[0] === 'missing' && {mark}.xaxis === 'x2'")
    window.page.locator("#place").press("ArrowRight")
    window.until("document.querySelector('figure').getAttribute('aria-label').includes('script')")
    assert window.page.locator("#column").evaluate("own => own.selectedIndex") == 1
    window.until("document.getElementById('sentence').textContent.includes('most frequent level')")
    assert window.wrong == []
    context.close()
    next(serve, None)
