"""Single sign-on with a real OpenID provider: sign-in, roles, refusal, renewal, sign-out; over HTTP and in a real browser."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from grandrounds.capabilities.console.access_log import AccessLog, read_entries
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth.oidc import Provider
from grandrounds.capabilities.console.auth.oidc_settings import OidcSettings
from grandrounds.capabilities.console.auth.sessions import Sessions
from grandrounds.capabilities.console.auth.single_sign_on import SingleSignOn
from grandrounds.capabilities.console.auth.users import Role, Users
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed, serving
from tests.capabilities.console.oidc.real import CLIENT, SECRET, RealProvider, Visitor, free_port
from tests.capabilities.console.test_signing_in import sign_in

URL = "http://127.0.0.1:8600"
COOKIE = "rounds_session"
LIFETIME = 300


@pytest.fixture(scope="module")
def provider(tmp_path_factory) -> Iterator[RealProvider]:
    running = RealProvider(tmp_path_factory.mktemp("provider"), URL, lifetime=LIFETIME).start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def accounts(provider) -> None:
    provider.set_accounts(ada={"groups": ["icu-physicians", "staff"]}, eve={"groups": ["cleaners"]}, carl={})


def settings(issuer: str, url: str = URL, **more) -> OidcSettings:
    roles = {Role.CLINICIAN: ("icu-physicians",), Role.AUDITOR: ("audit-office",)}
    values = {"issuer": issuer, "client_id": CLIENT, "url": url, "roles": roles, "roles_claim": "groups", **more}
    return OidcSettings(**values)


@pytest.fixture
def now() -> list[float]:
    """The clock of sessions."""
    return [1000.0]


@pytest.fixture
def app_state(runs, provider, tmp_path, now) -> AppState:
    sso = SingleSignOn(Provider.discover(settings(provider.issuer), SECRET))
    sessions = Sessions(clock=lambda: now[0])
    log = AccessLog(tmp_path / "access.jsonl")
    return AppState(RunIndex(runs), Users(), sessions, log=log, sso=sso, local_users=False)


@pytest.fixture
def client(app_state):
    return Signed(create_app(app_state), {}).client()


def entries(app_state: AppState, *keys: str) -> list[tuple]:
    return [tuple(e.get(k) for k in keys) for e in read_entries(app_state.log.file)]


def walk(client, account: str, *, next: str = "/", visitor: Visitor | None = None):
    """Sign in at the provider; the console's answer to the callback."""
    began = client.get("/sso/start", params={"next": next})
    assert began.status_code == 303, began.text
    back = urlsplit((visitor or Visitor()).sign_in(began.headers["location"], account))
    assert f"{back.scheme}://{back.netloc}" == URL
    return client.get(f"{back.path}?{back.query}")


def csrf(client) -> str:
    return re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]


def test_a_user_of_the_provider_gets_a_session_with_the_mapped_role(client, app_state):
    assert client.get("/run?run=plain").headers["location"] == "/sign-in?next=%2Frun%3Frun%3Dplain"
    answer = walk(client, "ada", next="/run?run=plain")
    assert answer.status_code == 200 and 'content="0; url=/run?run=plain"' in answer.text
    cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(f"{COOKIE}="))
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    page = client.get("/")
    assert page.status_code == 200 and ">clinician<" in page.text
    assert client.get("/audit").status_code == 403  # another role's
    found = entries(app_state, "event", "user", "roles", "by", "subject")
    assert found[0] == ("sign-in", "ada", ["clinician"], "sso", "subject of ada")
    assert found[1] == ("refused", "ada", ["clinician"], "sso session", "subject of ada")


@pytest.mark.parametrize(("account", "why"), [("eve", "no mapped role"), ("carl", "no claim groups")])
def test_a_user_without_a_mapped_role_is_refused_on_a_page_and_in_the_log(client, app_state, account, why):
    answer = walk(client, account)
    assert answer.status_code == 403 and COOKIE not in client.cookies
    assert f"{account} has no role in this console" in answer.text and "claim groups" in answer.text
    assert "Sign out at the provider" in answer.text
    assert client.get("/").status_code == 303
    assert entries(app_state, "event", "user", "by", "why") == [("refused", account, "sso", why)]


def test_an_account_that_the_provider_refuses_gets_a_page(client, app_state):
    answer = walk(client, "nobody")
    assert answer.status_code == 403 and "the provider refused the sign-in (access_denied)" in answer.text
    assert entries(app_state, "event", "user", "why") == [("wrong sign-in", "", "access_denied")]


def test_the_request_to_the_provider_has_pkce_a_state_a_nonce_and_one_redirect_address(client):
    urls = [urlsplit(client.get("/sso/start").headers["location"]) for _ in range(2)]
    first, second = ({k: v[0] for k, v in parse_qs(u.query).items()} for u in urls)
    assert first["response_type"] == "code" and first["code_challenge_method"] == "S256"
    assert first["redirect_uri"] == f"{URL}/sso/callback" and first["scope"] == "openid profile"
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name]) >= 43 and first[name] != second[name], name
    assert SECRET not in str(urls) and "verifier" not in str(urls)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_the_redirect_address_does_not_follow_the_host_header(client, host):
    began = client.get("/sso/start", headers={"host": host, "x-forwarded-host": "evil.example"})
    assert parse_qs(urlsplit(began.headers["location"]).query)["redirect_uri"] == [f"{URL}/sso/callback"]


def test_a_callback_is_taken_once_and_from_the_browser_that_began_it(client, app_state):
    began = client.get("/sso/start")
    held = {"rounds_sso": client.cookies["rounds_sso"]}
    back = urlsplit(Visitor().sign_in(began.headers["location"], "ada"))
    path = f"{back.path}?{back.query}"
    victim = Signed(create_app(app_state), {}).client()
    assert victim.get(path).status_code == 403 and COOKIE not in victim.cookies  # without a sign-in of their own
    victim.get("/sso/start")
    assert victim.get(path).status_code == 403 and COOKIE not in victim.cookies  # with another one
    assert client.get(path).status_code == 200
    again = Signed(create_app(app_state), {}).client()
    again.cookies.update(held)
    assert again.get(path).status_code == 403 and COOKIE not in again.cookies
    whys = [why for event, why in entries(app_state, "event", "why") if event == "wrong sign-in"]
    assert whys == ["no-attempt", "wrong-state", "used-state"]


def test_a_code_is_of_no_use_in_another_sign_in(client, app_state):
    """The provider refuses a code that was used, and one that another browser's PKCE secret belongs to."""
    first = urlsplit(Visitor().sign_in(client.get("/sso/start").headers["location"], "ada"))
    stolen = parse_qs(first.query)["code"][0]
    other = Signed(create_app(app_state), {}).client()
    own = parse_qs(urlsplit(Visitor().sign_in(other.get("/sso/start").headers["location"], "ada")).query)
    answer = other.get("/sso/callback", params={"code": stolen, "state": own["state"][0], "iss": own["iss"][0]})
    assert answer.status_code == 403 and "invalid_grant" in answer.text and COOKIE not in other.cookies


@pytest.mark.parametrize(
    "change",
    [
        {"state": "guessed"},
        {"state": None},
        {"state": ["twice", "twice"]},
        {"code": None},
        {"code": ""},
        {"code": "guessed"},
        {"code": ["a", "b"]},
        {"iss": "https://evil.example"},
        {"iss": None},
    ],
    ids=str,
)
def test_a_callback_that_was_changed_is_refused(client, change):
    back = parse_qs(urlsplit(Visitor().sign_in(client.get("/sso/start").headers["location"], "ada")).query)
    query = {name: value for name, value in {**back, **change}.items() if value is not None}
    assert client.get("/sso/callback", params=query).status_code == 403 and COOKIE not in client.cookies


def test_a_cookie_of_another_console_or_of_no_console_is_refused(client, runs, app_state):
    other = AppState(RunIndex(runs), Users(), sso=SingleSignOn(app_state.sso.provider))
    foreign = Signed(create_app(other), {}).client()
    back = urlsplit(Visitor().sign_in(foreign.get("/sso/start").headers["location"], "ada"))
    for cookie in (foreign.cookies["rounds_sso"], "made up", ""):
        client.cookies.set("rounds_sso", cookie, domain="127.0.0.1", path="/sso")
        assert client.get(f"{back.path}?{back.query}").status_code == 403


@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb", ""]
)
def test_nobody_is_led_elsewhere_after_signing_in(client, next):
    answer = walk(client, "ada", next=next)
    assert answer.status_code == 200 and 'content="0; url=/"' in answer.text and "evil" not in answer.text


def test_a_session_is_renewed_by_the_provider_while_it_is_in_use(client, now):
    walk(client, "ada")
    first = client.cookies[COOKIE]
    for _ in range(8):
        now[0] += LIFETIME - 20
        assert client.get("/").status_code == 200
        assert client.get("/api/session").json()["seconds"] > LIFETIME / 2
    assert client.cookies[COOKIE] == first


def test_a_session_whose_time_is_over_is_renewed_as_long_as_it_is_not_idle(client, now):
    walk(client, "ada")
    now[0] += LIFETIME + 60
    assert client.get("/").status_code == 200
    now[0] += 30 * 60 + 1
    assert client.get("/").status_code == 303


def test_a_changed_role_holds_from_the_next_renewal(client, provider, app_state, now):
    walk(client, "ada")
    assert client.get("/audit").status_code == 403
    provider.set_accounts(ada={"groups": ["audit-office"]})
    now[0] += LIFETIME
    assert client.get("/audit").status_code == 200
    provider.set_accounts(ada={"groups": []})
    now[0] += LIFETIME
    assert client.get("/audit").status_code == 303
    assert entries(app_state, "event", "user", "why")[-1] == ("refused", "ada", "no mapped role")


def test_a_user_whom_the_provider_removed_is_signed_out_at_the_next_renewal(client, provider, app_state, now):
    walk(client, "ada")
    provider.set_accounts(eve={"groups": ["cleaners"]})
    now[0] += LIFETIME
    assert client.get("/").status_code == 303
    assert entries(app_state, "event", "user", "by", "why")[-1] == ("sign-out", "ada", "sso", "invalid_grant")


def test_without_a_refresh_token_a_session_lasts_as_long_as_the_id_token(runs, tmp_path, now):
    running = RealProvider(tmp_path, URL, lifetime=120, refresh=False).start()
    try:
        sso = SingleSignOn(Provider.discover(settings(running.issuer), SECRET))
        app_state = AppState(RunIndex(runs), Users(), Sessions(clock=lambda: now[0]), sso=sso)
        client = Signed(create_app(app_state), {}).client()
        walk(client, "ada")
        assert 0 < client.get("/api/session").json()["seconds"] <= 120
        now[0] += 121
        assert client.get("/").status_code == 303 and len(app_state.sessions) == 0
    finally:
        running.stop()


def test_while_the_provider_does_not_answer_nobody_signs_in_and_its_sessions_wait_for_it(client, app_state, now):
    walk(client, "ada")
    other = Signed(create_app(app_state), {}).client()
    back = urlsplit(Visitor().sign_in(other.get("/sso/start").headers["location"], "ada"))
    provider = app_state.sso.provider
    whole, provider.endpoints = (
        provider.endpoints,
        replace(provider.endpoints, token=f"http://localhost:{free_port()}/"),
    )
    answer = other.get(f"{back.path}?{back.query}")
    assert answer.status_code == 503 and "does not answer" in answer.text and COOKIE not in other.cookies
    now[0] += LIFETIME - 30
    assert client.get("/").status_code == 200  # it cannot be renewed, and its time is not over
    now[0] += 31
    assert client.get("/").status_code == 303
    provider.endpoints = whole
    now[0] += 11
    assert client.get("/").status_code == 200


def test_a_sign_out_ends_the_session_here_and_at_the_provider(client, app_state):
    visitor = Visitor()
    walk(client, "ada", visitor=visitor)
    assert (
        walk(client, "nobody", visitor=visitor).status_code == 200
    )  # the provider knows the browser, and does not ask
    answer = client.post("/sign-out", data={"csrf": csrf(client)})
    assert answer.status_code == 200 and COOKIE not in client.cookies and client.get("/").status_code == 303
    url = re.search(r'href="([^"]+)">Continue', answer.text)[1].replace("&amp;", "&")
    assert visitor.sign_out(url) == f"{URL}/sign-in"
    assert walk(client, "nobody", visitor=visitor).status_code == 403  # it asks again
    assert ("sign-out", "ada", "sso session") in entries(app_state, "event", "user", "by")


def test_a_sign_out_of_another_site_is_refused(client):
    walk(client, "ada")
    token = csrf(client)
    assert client.post("/sign-out", data={"csrf": "guessed"}).status_code == 403
    assert client.post("/sign-out", data={"csrf": token}, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get("/").status_code == 200


def test_both_ways_are_offered_and_local_users_can_be_turned_off(client, app_state, tmp_path):
    page = client.get("/sign-in").text
    assert "Sign in with <bdi>single sign-on</bdi>" in page and 'name="secret"' not in page
    assert client.post("/sign-in", data={"form": "x", "name": "bob", "secret": "y"}).status_code == 403
    app_state.users, app_state.local_users = Users.load(tmp_path / "users.json"), True
    app_state.users.add("ada", ["auditor"], password="four quiet words here")
    assert 'name="secret"' in client.get("/sign-in").text
    assert sign_in(client, "ada", "four quiet words here").status_code == 303
    assert client.get("/audit").status_code == 200  # the local ada is another user than the provider's
    walk(client, "ada")
    assert client.get("/audit").status_code == 403
    app_state.users.remove("ada")
    assert client.get("/").status_code == 200


def test_no_secret_is_in_a_log_a_page_or_an_entry(client, app_state, now, caplog):
    caplog.set_level(logging.DEBUG)
    answer = walk(client, "ada")
    identity = next(iter(app_state.sessions._sessions.values())).identity
    now[0] += LIFETIME
    pages = answer.text + client.get("/").text + client.get("/api/session").text
    said = (
        pages
        + caplog.text.replace("DEBUG", "")
        + app_state.log.file.read_text()
        + repr(app_state.sso.provider.settings)
    )
    for secret in (SECRET, identity.id_token, identity.refresh_token, client.cookies[COOKIE]):
        assert secret and secret not in said
    assert identity.id_token not in repr(identity)


def test_a_console_without_single_sign_on_has_no_such_routes(signed):
    client = signed.client()
    assert client.get("/sso/start").status_code == client.get("/sso/callback").status_code == 404
    assert "sso" not in client.get("/sign-in").text


class TestInABrowser:
    """Chromium: another site's provider, cookies with SameSite, the Content-Security-Policy of our pages."""

    @pytest.fixture
    def console(self, runs, tmp_path) -> Iterator[tuple[str, RealProvider, AppState]]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        running = RealProvider(tmp_path, url).start()
        sso = SingleSignOn(Provider.discover(settings(running.issuer, url, label="Hospital account"), SECRET))
        log = AccessLog(tmp_path / "access.jsonl")
        users = Users()
        users.add("local", ["viewer"])
        app_state = AppState(RunIndex(runs), users, log=log, sso=sso, port=port)
        for served in serving(app_state, {}, port=port):
            yield served.url, running, app_state
        running.stop()

    @pytest.fixture
    def page(self, chromium):
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        found = context.new_page()
        found.set_default_timeout(30_000)
        yield found
        context.close()

    def test_sign_in_and_sign_out(self, console, page):
        url, running, app_state = console
        wrong: list[str] = []
        page.on("console", lambda m: wrong.append(m.text) if m.location["url"].startswith(url) else None)
        page.goto(f"{url}/run?run=plain")
        page.click("text=Sign in with Hospital account")
        page.wait_for_url(f"{running.issuer}/**")
        page.fill('input[name="login"]', "ada")
        page.click("text=Sign in")
        page.wait_for_url(f"{url}/run?run=plain")  # the strict cookie is sent, though the provider is another site
        assert page.inner_text("header .who").split() == ["ada", "clinician"]
        page.click("text=Sign out")
        page.wait_for_url(f"{running.issuer}/**")
        page.click("text=Sign out")
        page.wait_for_url(f"{url}/sign-in**")
        page.goto(f"{url}/")
        assert page.url.startswith(f"{url}/sign-in")
        assert not wrong
        assert entries(app_state, "event", "user") == [("sign-in", "ada"), ("sign-out", "ada")]

    def test_a_user_without_a_role_sees_one_page_and_may_change_the_account(self, console, page):
        url, _, _ = console
        page.goto(f"{url}/")
        page.click("text=Sign in with Hospital account")
        page.fill('input[name="login"]', "eve")
        page.click("text=Sign in")
        page.wait_for_url(f"{url}/sso/callback**")
        assert "eve has no role in this console" in page.inner_text("main")
        page.click("text=Sign out at the provider")
        page.click("text=Sign out")
        page.wait_for_url(f"{url}/sign-in**")
        page.click("text=Sign in with Hospital account")
        page.fill('input[name="login"]', "ada")
        page.click("text=Sign in")
        page.wait_for_url(f"{url}/")

    def test_a_page_of_another_site_cannot_finish_a_sign_in(self, console, page, chromium):
        """The attacker's own code, in the victim's browser: the victim would work in the attacker's account."""
        url, running, app_state = console
        running.set_accounts(mallory={"groups": ["icu-physicians"]})
        attacker = Signed(create_app(app_state), {}).client()
        back = Visitor().sign_in(attacker.get("/sso/start").headers["location"], "mallory")
        page.goto(f"{running.issuer}/.well-known/openid-configuration")
        page.evaluate("url => { location = url; }", back)
        page.wait_for_url(f"{url}/sso/callback**")
        assert "this browser began no sign-in" in page.inner_text("main")
        page.goto(f"{url}/")
        assert page.url.startswith(f"{url}/sign-in")
