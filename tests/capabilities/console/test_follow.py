"""Pages that follow live runs, in a real browser: many tabs, a fast run, and what is taken away from a figure."""

from __future__ import annotations

import csv
import fcntl
import io
from collections.abc import Iterator

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.progress import Progress
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Served, Signed, Window, known_users, serving
from tests.capabilities.console.test_signing_in import sign_in
from tests.engine.growing import GrowingRun
from tests.store import copied


@pytest.fixture
def growing(runs, tmp_path) -> Iterator[GrowingRun]:
    """A run that is running: its lock is taken."""
    copied(runs / "plain", tmp_path / "runs" / "plain")
    live = GrowingRun(runs / "by-reasons", tmp_path / "runs" / "live")
    with (live.folder / "checkpoint" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield live


@pytest.fixture
def watched(growing) -> Iterator[tuple[Served, AppState]]:
    users, tokens = known_users()
    app_state = AppState(RunIndex(growing.folder.parent), users)
    for served in serving(app_state, tokens):
        yield served, app_state


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_changes_are_sent_once_and_folders_are_scanned_once_for_all_pages(growing):
    growing.append(2)
    clock = Clock()
    progress = Progress(RunIndex(growing.folder.parent), clock=clock)
    first = progress.changes()
    assert first.running == 1 and first.runs["live"].rounds == 2
    for _ in range(50):  # pages that ask within the same second
        assert progress.changes(first.version).runs == {}
    assert progress.scans == 1
    growing.append(1)
    clock.now += 5.0
    changed = progress.changes(first.version)
    assert {run: state.rounds for run, state in changed.runs.items()} == {"live": 3}
    assert progress.changes(changed.version).runs == {}
    assert "live" in progress.changes("00000000-1").runs, "a version of a console that was started again"


def test_a_page_that_asks_by_itself_does_not_prolong_a_session(growing):
    users, tokens = known_users()
    app_state = AppState(RunIndex(growing.folder.parent), users)
    client = Signed(create_app(app_state), tokens).client()
    assert sign_in(client, "", tokens["engineer"]).status_code == 303
    (session,) = app_state.sessions._sessions.values()
    used = session.used = session.used - 100
    assert client.get("/api/v1/progress", headers={"x-automatic": "1"}).status_code == 200 and session.used == used
    assert client.get("/api/v1/progress").status_code == 200 and session.used > used


def test_eight_tabs_follow_a_run_and_a_ninth_loads(chromium, watched, growing):
    growing.append(2)
    served, app_state = watched
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    first = Window(context.new_page(), served.url)
    first.sign_in(served.tokens["all"])
    tabs = []
    for k in range(8):
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(f"{served.url}/run?run=live" if k % 2 else f"{served.url}/")
        tabs.append(page)
    ninth = context.new_page()
    ninth.goto(f"{served.url}/run?run=plain", timeout=30_000)
    assert ninth.locator("h1").count() == 1
    assert app_state.streams == [], "no connection stays open"
    growing.append(3)
    tabs[1].bring_to_front()
    tabs[1].wait_for_function("() => document.getElementById('rounds')?.textContent.trim() === '5'")
    context.close()


def test_the_why_panel_of_a_fast_run_is_filled(chromium, watched, growing):
    growing.append(1)
    served, _ = watched
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    window = Window(context.new_page(), served.url)
    window.sign_in(served.tokens["all"])
    window.go("/run?run=live&section=weights")
    for _ in range(10):
        growing.append(1)
        window.page.wait_for_timeout(200)
    window.until("document.querySelectorAll('#sites button').length >= 4")
    window.until("document.querySelector('#sites button[aria-pressed=true]') !== null")
    window.until("document.getElementById('why').textContent.length > 20")
    window.until("document.getElementById('round').value === '11'")
    assert not window.wrong
    context.close()


@pytest.mark.parametrize("kind", ["PNG", "SVG", "CSV"])
def test_a_figure_is_saved_with_the_keyboard(window, console, kind):
    window.sign_in(console.tokens["all"])
    window.go("/run?run=plain&section=training")
    window.drawn("sites-accuracy")
    button = window.page.locator('figure[data-figure="sites-accuracy"] .save button', has_text=kind)
    button.focus()
    with window.page.expect_download() as download:
        window.page.keyboard.press("Enter")
    assert download.value.suggested_filename == f"plain-sites-accuracy.{kind.lower()}"
    data = download.value.path().read_bytes()
    if kind == "CSV":
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
        assert rows[0][0] == "round" and [row[0] for row in rows[1:]] == ["1", "2", "3"]
        assert all(0 <= float(row[-1]) <= 1 for row in rows[1:]) and "all sites together" in rows[0]
    else:
        assert data.startswith(b"\x89PNG" if kind == "PNG" else b"<svg")
    assert not window.wrong
    window.page.emulate_media(media="print")
    assert not button.is_visible()
