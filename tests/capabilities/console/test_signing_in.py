"""Who gets in: passwords and tokens, sessions that end, forms of our own only, guessing that is slowed down."""

from __future__ import annotations

import json
import logging
import re
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.access import client_address, is_signed_in
from grandrounds.capabilities.console.auth.sessions import FREE, FREE_EVERYWHERE, LONGEST, Limiter, Sessions
from grandrounds.capabilities.console.auth.users import Role, Users, credential_proof
from grandrounds.capabilities.console.render import local_path
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.server import parse_proxies
from grandrounds.core.errors import BadInput
from tests.capabilities.console.conftest import Signed
from tests.support import refused

PASSWORD = "four quiet words here"
COOKIE, FORM = "rounds_session", "rounds_form"


@pytest.fixture
def users(tmp_path) -> Users:
    found = Users.load(tmp_path / "users.json")
    found.add("ada", ["clinician"], password=PASSWORD)
    return found


@pytest.fixture
def app_state(runs, users) -> AppState:
    return AppState(RunIndex(runs), users)


@pytest.fixture
def client(app_state):
    return Signed(create_app(app_state), {}).client()


def sign_in(client, name: str, secret: str, **more):
    form = re.search(r'name="form" value="([^"]+)"', client.get("/sign-in").text)[1]
    return client.post("/sign-in", data={"form": form, "name": name, "secret": secret, "next": "/", **more})


def test_a_password_gets_in_and_a_wrong_one_does_not(client):
    assert client.get("/").headers["location"] == "/sign-in?next=%2F"
    wrong = sign_in(client, "ada", "four quiet words there")
    assert wrong.status_code == 401 and "Unknown name, password or token" in wrong.text and COOKIE not in client.cookies
    answer = sign_in(client, "ada", PASSWORD)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert client.get("/").status_code == 200


def test_an_unknown_name_is_told_nothing_else_than_a_wrong_password(client):
    known, unknown = sign_in(client, "ada", "wrong wrong wrong"), sign_in(client, "bob", "wrong wrong wrong")
    assert known.status_code == unknown.status_code == 401
    assert [re.findall(r'role="alert">([^<]*)', r.text) for r in (known, unknown)] == [
        ["Unknown name, password or token."]
    ] * 2


def test_a_token_gets_in_by_form_and_by_header_until_it_is_revoked(client, users):
    token = users.issue("ada", days=1)
    assert client.get("/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert sign_in(client, "", token).status_code == 303
    client.cookies.clear()
    assert users.revoke("ada") == 1
    assert client.get("/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 401
    old = users.issue("ada", days=-1)
    assert client.get("/api/runs", headers={"authorization": f"Bearer {old}"}).status_code == 401


@pytest.mark.thinned(2)
@pytest.mark.parametrize("by", ["password", "token"])
@pytest.mark.parametrize(
    ("change", "out"),
    [
        (lambda users: users.remove("ada"), {"password", "token"}),
        (lambda users: users.revoke("ada"), {"token"}),
        (lambda users: users.add("ada", ["clinician"], password="other quiet words"), {"password"}),
        (lambda users: users.add("ada", ["auditor"]), {"password", "token"}),
        (lambda users: users.issue("ada", days=1), set()),
        (lambda users: users.add("bob", ["viewer"], password=PASSWORD), set()),
    ],
)
def test_what_another_process_changes_about_users_holds_at_once(client, users, tmp_path, by, change, out):
    sign_in(client, "ada", PASSWORD if by == "password" else users.issue("ada", days=1))
    assert client.get("/").status_code == 200
    change(Users.load(tmp_path / "users.json"))  # as `rounds console users` does beside a console that runs
    assert client.get("/").status_code == (303 if by in out else 200)


def test_a_token_in_a_header_ends_with_its_file(client, users, tmp_path):
    held = {"authorization": f"Bearer {users.issue('ada', days=1)}"}
    assert client.get("/api/runs", headers=held).status_code == 200
    file = tmp_path / "users.json"
    whole = file.read_text()
    file.write_text(whole[:-9])
    assert client.get("/api/runs", headers=held).status_code == 401  # damaged: nobody
    file.write_text(whole)
    assert client.get("/api/runs", headers=held).status_code == 200
    file.unlink()
    assert client.get("/api/runs", headers=held).status_code == 401


def test_a_stream_ends_with_the_session_that_began_it(app_state, users, tmp_path):
    number, _ = app_state.sessions.begin("ada", (Role.CLINICIAN,), credential_proof(next(iter(users)), PASSWORD))
    scope = {"type": "http", "headers": [(b"cookie", f"{COOKIE}={number}".encode())], "app": create_app(app_state)}
    assert is_signed_in(Request(scope))
    Users.load(tmp_path / "users.json").remove("ada")
    assert not is_signed_in(Request(scope))


def test_a_session_ends_unused_at_its_longest_and_when_signed_out(runs, users):
    now = [0.0]
    app_state = AppState(RunIndex(runs), users, Sessions(idle=60, longest=600, clock=lambda: now[0]))
    client = Signed(create_app(app_state), {}).client()
    sign_in(client, "ada", PASSWORD)
    for _ in range(12):
        now[0] += 49
        assert client.get("/").status_code == 200
    now[0] += 49
    assert client.get("/").status_code == 303  # 637 s after it began, though it was used all the time
    sign_in(client, "ada", PASSWORD)
    now[0] += 61
    assert client.get("/").status_code == 303
    sign_in(client, "ada", PASSWORD)
    csrf = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]
    assert client.post("/sign-out", data={"csrf": "guessed"}).status_code == 403
    assert client.get("/").status_code == 200
    held = client.cookies[COOKIE]
    assert client.post("/sign-out", data={"csrf": csrf}).status_code == 303
    client.cookies.set(COOKIE, held)
    assert client.get("/").status_code == 303


def test_a_sign_in_gives_another_session_than_the_one_that_was_brought(client):
    client.cookies.set(COOKIE, "planted", domain="127.0.0.1")
    sign_in(client, "ada", PASSWORD)
    assert client.cookies[COOKIE] != "planted"


@pytest.mark.parametrize(
    ("headers", "cookies"),
    [
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({}, False),
    ],
)
def test_a_form_of_another_site_is_refused(client, headers, cookies):
    form = re.search(r'name="form" value="([^"]+)"', client.get("/sign-in").text)[1]
    if not cookies:
        client.cookies.clear()
    answer = client.post("/sign-in", data={"form": form, "name": "ada", "secret": PASSWORD}, headers=headers)
    assert answer.status_code == 403 and COOKIE not in client.cookies


def test_guessing_at_a_name_is_slowed_down_and_nobody_else_at_the_address_waits(app_state, client, users):
    users.add("bob", ["viewer"], password="other quiet words here")
    app_state.limiter = Limiter(clock=lambda: 0.0)  # on a busy machine waits would be over before the next try
    for _ in range(FREE):
        assert sign_in(client, "ada", "wrong wrong wrong").status_code == 401
    answer = sign_in(client, "ada", PASSWORD)
    assert answer.status_code == 429 and "Try again in " in answer.text
    assert sign_in(client, "bob", "other quiet words here").status_code == 303  # the same address
    client.cookies.clear()
    token = users.issue("ada", days=1)
    assert client.get("/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert sign_in(client, "ada", token).status_code == sign_in(client, "", token).status_code == 303
    client.cookies.clear()
    for _ in range(FREE):
        assert client.get("/api/runs", headers={"authorization": "Bearer grc_wrong"}).status_code == 401
    assert client.get("/api/runs", headers={"authorization": "Bearer grc_wrong"}).status_code == 429
    assert client.get("/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_guessing_at_a_name_from_many_addresses_is_slowed_down_too(runs, users):
    still = Limiter(clock=lambda: 0.0, free=FREE_EVERYWHERE)
    proxied = AppState(RunIndex(runs), users, name_limiter=still, proxies=frozenset({"testclient"}))
    client = Signed(create_app(proxied), {}).client()
    codes = []
    for k in range(FREE_EVERYWHERE + 1):
        client.headers["x-forwarded-for"] = f"10.0.0.{k}"
        codes.append(sign_in(client, "ada", "wrong wrong wrong").status_code)
    assert codes == [401] * FREE_EVERYWHERE + [429]
    assert sign_in(client, "ada", PASSWORD).status_code == 429


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        ({"testclient"}, ["10.0.0.7"], "10.0.0.7"),
        ({"testclient"}, ["1.2.3.4, 10.0.0.7"], "10.0.0.7"),  # what a client made up stands before what the proxy adds
        ({"testclient"}, ["1.2.3.4", "10.0.0.7"], "10.0.0.7"),
        ({"testclient", "10.0.0.7"}, ["1.2.3.4, 10.0.0.7"], "1.2.3.4"),
        ({"testclient"}, ["::FFFF:0:1"], "::ffff:0:1"),
        ({"testclient"}, ["10.0.0.7, made up"], "testclient"),
        ({"testclient"}, [], "testclient"),
        ({"10.0.0.2"}, ["10.0.0.7"], "testclient"),
        (set(), ["10.0.0.7"], "testclient"),
    ],
)
def test_an_address_is_believed_from_a_trusted_proxy_only(app_state, proxies, forwarded, found):
    app_state.proxies = frozenset(proxies)
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    scope = {"type": "http", "headers": headers, "app": create_app(app_state), "client": ("testclient", 1)}
    assert client_address(Request(scope)) == found


def test_cookies_are_secure_where_the_proxy_says_that_the_browser_came_over_tls(app_state, client):
    assert "Secure" not in client.get("/sign-in", headers={"x-forwarded-proto": "https"}).headers["set-cookie"]
    app_state.proxies = frozenset({"testclient"})
    assert "Secure" in client.get("/sign-in", headers={"x-forwarded-proto": "https"}).headers["set-cookie"]
    assert "Secure" not in client.get("/sign-in", headers={"x-forwarded-proto": "http"}).headers["set-cookie"]


def test_a_proxy_that_is_no_address_is_refused():
    assert parse_proxies(["10.0.0.2", "::1", "0:0::1"]) == {"10.0.0.2", "::1"}
    with refused("invalid-address", match="--proxy everybody"):
        parse_proxies(["everybody"])


def test_two_consoles_of_one_machine_do_not_sign_each_other_out(runs, users):
    """Cookies are of a host, whatever the port."""
    one, two = (Signed(create_app(AppState(RunIndex(runs), users, port=port)), {}).client() for port in (8701, 8704))
    sign_in(one, "ada", PASSWORD)
    two.cookies.update(one.cookies)  # as a browser keeps them
    sign_in(two, "ada", PASSWORD)
    one.cookies.update(two.cookies)
    assert one.get("/").status_code == two.get("/").status_code == 200
    assert {"rounds_session_8701", "rounds_session_8704"} <= set(one.cookies)


def test_guesses_at_the_same_moment_are_counted_before_they_are_looked_at(app_state, client):
    forms = [re.search(r'name="form" value="([^"]+)"', client.get("/sign-in").text)[1] for _ in range(12)]

    def guess(form: str) -> int:
        own = Signed(client.app, {}).client()
        own.cookies.set(FORM, form)
        return own.post("/sign-in", data={"form": form, "name": "ada", "secret": "wrong wrong wrong"}).status_code

    with ThreadPoolExecutor(12) as pool:
        codes = list(pool.map(guess, forms))
    assert (codes.count(401), codes.count(429)) == (FREE, 12 - FREE)


def test_right_sign_ins_never_make_an_address_wait(app_state, client):
    for _ in range(2 * FREE):
        assert sign_in(client, "ada", PASSWORD).status_code == 303
    assert app_state.limiter.wait("ada at testclient") == app_state.name_limiter.wait("ada") == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 50)), max_size=40))
def test_waits_grow_with_wrong_tries_and_are_bounded(tries):
    now = [0.0]
    limiter = Limiter(clock=lambda: now[0])
    wrong = {"a": 0, "b": 0}
    for key, right, later in tries:
        now[0] += later
        if right:
            limiter.clear(key)
            wrong[key] = 0
        else:
            limiter.count_failure(key)
            wrong[key] += 1
        assert 0 <= limiter.wait(key) <= LONGEST
        assert (limiter.wait(key) > 0) == (wrong[key] >= FREE and not right)


def test_what_is_on_disk_is_no_secret_and_its_owners_alone(tmp_path, users):
    token, file = users.issue("ada", days=1), tmp_path / "users.json"
    text = file.read_text()
    assert PASSWORD not in text and token not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = Users.load(file)
    assert again.find_by_password("ada", PASSWORD).roles == (Role.CLINICIAN,)
    assert again.find_by_token(token).name == "ada" and again.find_by_token(token + "x") is None


def test_no_secret_is_in_a_log_or_an_address(client, users, caplog):
    caplog.set_level(logging.DEBUG)
    token = users.issue("ada", days=1)
    sign_in(client, "ada", "wrong wrong wrong")
    answer = sign_in(client, "ada", token)
    assert token not in answer.headers["location"]
    said = caplog.text
    assert "signed in" in said and not any(s in said for s in (token, PASSWORD, "wrong wrong", client.cookies[COOKIE]))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
def test_nobody_is_led_elsewhere_after_signing_in(client, next):
    assert local_path(next) == "/"
    answer = sign_in(client, "ada", PASSWORD, next=next)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    ("add", "code", "value"),
    [
        (("ada", ["king"], PASSWORD), "unknown-role", "'king'"),
        (("ada", [], PASSWORD), "missing-role", "viewer"),
        (("", ["viewer"], PASSWORD), "invalid-user-name", "''"),
        (("a\nb", ["viewer"], PASSWORD), "invalid-user-name", "a.*b"),
        (("ada", ["viewer"], "short"), "password-length", "12 characters"),
    ],
)
def test_users_that_cannot_be_are_refused_in_words(add, code, value):
    name, roles, password = add
    with refused(code, match=value):
        Users().add(name, roles, password=password)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 2}', '{"schema": 9, "users": []}', json.dumps({"schema": 2, "users": [{"name": "x"}]})],
)
def test_a_damaged_file_of_users_is_refused_in_words(tmp_path, text):
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=str(file)) as caught:
        Users.load(file)
    assert caught.value.code == ("unsupported-version" if '"schema": 9' in text else "damaged-file")
