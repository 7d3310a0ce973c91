"""A page that nobody uses locks: no patient is in the document, and the session shows nothing until the password is entered."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from grandrounds.capabilities.console.access_log import AccessLog
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from tests.capabilities.console.conftest import Signed, Window, known_users, serving
from tests.capabilities.console.test_signing_in import PASSWORD, sign_in

LOCK = 120.0


@pytest.fixture
def app_state(hospital, tmp_path) -> tuple[AppState, dict[str, str]]:
    users, tokens = known_users()
    users.add("ada", ["clinician"], password=PASSWORD)
    users.add("bob", ["clinician"], password=PASSWORD + "!")
    log = AccessLog(tmp_path / "access.jsonl")
    log.check()
    return AppState(hospital[0], users, cases=hospital[1], log=log, lock=LOCK), tokens


def csrf_of(page: str) -> str:
    return page.split('name="csrf" value="')[1].split('"')[0]


def test_a_locked_session_shows_nothing_until_its_own_users_password_is_entered(app_state):
    client = Signed(create_app(app_state[0]), {}).client()
    sign_in(client, "ada", PASSWORD)
    csrf = csrf_of(client.get("/runs").text)
    assert client.post("/lock").status_code == 403  # from another site
    assert client.post("/lock", headers={"x-csrf-token": csrf}).status_code == 204
    assert client.get("/api/session").json()["locked"]
    for path in ("/runs", "/case?run=icu", "/case?run=icu&case=61"):
        answer = client.get(path)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/unlock?next="), path
    assert client.get("/api/case/patients?run=icu").status_code == 423
    form = client.get("/unlock?next=/case%3Frun%3Dicu").text
    assert "Password or token of" in form and "lactate" not in form
    for wrong in ("wrong wrong wrong", PASSWORD + "!"):  # the second is that of bob
        assert client.post("/unlock", data={"csrf": csrf, "secret": wrong, "next": "/"}).status_code == 401
    assert client.get("/runs").status_code == 303
    answer = client.post("/unlock", data={"csrf": csrf, "secret": PASSWORD, "next": "/case?run=icu"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/case?run=icu")
    page = client.get("/case?run=icu")
    assert page.status_code == 200 and csrf_of(page.text) == csrf  # the same session
    events = [json.loads(line)["event"] for line in app_state[0].log.file.read_text().splitlines()]
    assert events == ["sign-in", "lock", "wrong sign-in", "wrong sign-in", "unlock"]


def test_signing_out_of_a_locked_session_is_possible_and_tokens_of_programs_are_not_locked(app_state):
    signed = Signed(create_app(app_state[0]), app_state[1])
    client = signed.client()
    sign_in(client, "ada", PASSWORD)
    csrf = csrf_of(client.get("/runs").text)
    client.post("/lock", headers={"x-csrf-token": csrf})
    assert client.post("/sign-out", data={"csrf": csrf}).headers["location"] == "/sign-in"
    assert client.get("/api/session").status_code == 401
    assert signed.client("clinician").get("/api/case/patients?run=icu").status_code == 200
    assert "data-lock" not in signed.client("viewer").get("/runs").text


@pytest.fixture
def screen(chromium, app_state) -> Iterator[Window]:
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.clock.install()
    for served in serving(*app_state):
        yield Window(page, served.url)
    context.close()


def test_the_document_of_a_locked_page_has_no_patient_and_back_brings_none(screen, hospital, app_state):
    page, row = screen.page, next(iter(hospital[1].open("icu").rows.parts))
    page.goto(f"{screen.url}/sign-in")
    page.fill("#name", "ada")
    page.fill("#secret", PASSWORD)
    page.click("button.primary")
    page.wait_for_url("**/case")
    screen.go(f"/case?run=icu&case={row}")
    assert "lactate" in page.content()
    page.clock.fast_forward(int(1000 * (LOCK - 20)))
    page.keyboard.press("Shift")  # somebody is there
    page.clock.fast_forward(int(1000 * (LOCK - 20)))
    assert "lactate" in page.content()
    page.route("**/lock", lambda route: route.abort())  # also where the server does not answer
    page.clock.fast_forward(30_000)
    screen.until("document.title.startsWith('Locked')")
    text = page.content()
    assert "lactate" not in text and f"Patient {row}" not in text and "Jane" not in text
    page.unroute("**/lock")
    page.goto(f"{screen.url}/case?run=icu&case={row}")
    page.clock.fast_forward(int(1000 * (LOCK + 1)))
    page.wait_for_selector("#secret")
    assert "/unlock?next=" in page.url and "lactate" not in page.content()
    page.go_back()
    page.wait_for_selector("#secret, [role=alert]")
    assert "lactate" not in page.content()
    page.goto(f"{screen.url}/unlock?next=/case%3Frun%3Dicu%26case%3D{row}")
    page.fill("#secret", PASSWORD)
    page.click("text=Unlock")
    page.wait_for_selector(".hero")
    assert page.url.endswith(f"case={row}") and "lactate" in page.content()
