"""A session that ends takes the patient off the screen; a tab that is not seen holds no connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.sessions import Sessions
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.capabilities.console.test_signing_in import sign_in

IDLE, LONGEST = 60.0, 600.0


@pytest.fixture
def now() -> list[float]:
    """The server's clock."""
    return [1000.0]


@pytest.fixture
def app_state(hospital, now) -> tuple[AppState, dict[str, str]]:
    users, tokens = known_users()
    run_index, cases = hospital
    sessions = Sessions(idle=IDLE, longest=LONGEST, clock=lambda: now[0])
    return AppState(run_index, users, sessions, cases=cases), tokens


def test_a_page_is_told_how_long_its_session_lasts_and_asking_does_not_prolong_it(app_state, now):
    client = Signed(create_app(app_state[0]), {}).client()
    assert client.get("/api/session").status_code == 401
    sign_in(client, "", app_state[1]["clinician"])
    page = client.get("/case").text
    assert 'data-session="60.0"' in page and "/static/session.js" in page
    for _ in range(3):
        now[0] += 20
        assert client.get("/api/session").json() == {"seconds": 1060.0 - now[0], "locked": False}
    now[0] += 1
    assert client.get("/api/session").status_code == 401
    sign_in(client, "", app_state[1]["clinician"])
    for _ in range(14):
        now[0] += 40
        assert client.get("/runs").status_code == 200
    assert client.get("/api/session").json()["seconds"] == LONGEST - 14 * 40
    held = {"authorization": f"Bearer {app_state[1]['viewer']}"}
    client.cookies.clear()
    assert client.get("/api/session", headers=held).json()["seconds"] is None
    assert "session.js" not in client.get("/", headers=held).text


@pytest.fixture
def screen(chromium, app_state) -> Iterator[tuple[Window, dict[str, str]]]:
    """A browser whose clock the test moves."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.clock.install()
    for served in serving(*app_state):
        yield Window(page, served.url), served.tokens
    context.close()


def test_the_patient_leaves_the_screen_with_the_session_and_back_does_not_bring_it_back(screen, hospital, now):
    window, tokens = screen
    row = next(iter(hospital[1].open("icu").rows.parts))
    window.sign_in(tokens["clinician"])
    window.go(f"/case?run=icu&case={row}")
    assert f"Row {row} of" in window.page.title() and "lactate" in window.page.inner_text("body")
    now[0] += IDLE - 10
    window.page.evaluate("() => fetch('/').then(answer => answer.text())")  # as another tab does: the session goes on
    now[0] += 20
    with window.page.expect_response("**/api/session"):
        window.page.clock.fast_forward(1000 * (IDLE + 1))
    window.until("!document.body.hidden")
    assert "lactate" in window.page.inner_text("body")
    now[0] += IDLE + 1
    window.page.clock.fast_forward(1000 * (IDLE + 1))
    window.until("document.title.startsWith('Session ended')")
    assert window.page.inner_text("body").split("\n\n") == ["Session ended", "This page was cleared.", "Sign in again"]
    assert "lactate" not in window.page.content()
    window.page.click("text=Sign in again")
    window.page.wait_for_selector("#secret")
    window.page.go_back()
    window.page.wait_for_selector("#secret, [role=alert]")
    assert "lactate" not in window.page.content()


def test_a_page_is_cleared_by_its_own_clock_where_the_server_does_not_answer(screen, hospital, now):
    window, tokens = screen
    row = next(iter(hospital[1].open("icu").rows.parts))
    window.sign_in(tokens["clinician"])
    window.go(f"/case?run=icu&case={row}")
    window.page.route("**/api/session", lambda route: route.abort())
    window.page.clock.fast_forward(1000 * (IDLE + 1))
    window.until("document.title.startsWith('Session ended')")
    assert "lactate" not in window.page.content()


def test_a_refused_request_for_progress_is_repeated_and_a_tab_that_is_not_seen_makes_none(screen, app_state):
    window, tokens = screen
    page, asked = window.page, []

    def answer(route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=429, body="") if len(asked) == 1 else route.continue_()

    page.route("**/api/v1/progress?*", answer)
    with page.expect_response(lambda r: "/api/v1/progress" in r.url and r.status == 429):
        window.sign_in(tokens["viewer"])
    with page.expect_response(lambda r: "/api/v1/progress" in r.url and r.status == 200):
        page.clock.fast_forward(11_000)
    assert app_state[0].streams == []
    page.evaluate("() => Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.wait_for_timeout(200)
    before = len(asked)
    page.clock.fast_forward(60_000)
    page.wait_for_timeout(200)
    assert len(asked) == before
    page.evaluate("() => Object.defineProperty(document, 'hidden', {value: false})")
    with page.expect_response("**/api/v1/progress?*"):
        page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
