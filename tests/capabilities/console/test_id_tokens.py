"""ID tokens that a provider signs wrongly, or that somebody else signs, let nobody in."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import requests
from joserfc import jws

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth import oidc
from grandrounds.capabilities.console.auth.oidc import Provider
from grandrounds.capabilities.console.auth.oidc_claims import read_identity
from grandrounds.capabilities.console.auth.oidc_settings import OidcSettings
from grandrounds.capabilities.console.auth.single_sign_on import SingleSignOn
from grandrounds.capabilities.console.auth.users import Role, Users
from grandrounds.capabilities.console.run_index import RunIndex
from tests.capabilities.console.conftest import Signed
from tests.capabilities.console.oidc.forger import CLIENT, SECRET, Change, Forger, Token, make_key
from tests.support import refused

COOKIE = "rounds_session"


@pytest.fixture
def forger() -> Iterator[Forger]:
    running = Forger().start()
    yield running
    running.stop()


def settings(issuer: str, **more) -> OidcSettings:
    roles = {Role.CLINICIAN: ("icu-physicians",), Role.AUDITOR: ("audit-office", "board")}
    values = {"issuer": issuer, "client_id": CLIENT, "url": "http://127.0.0.1", "roles": roles, "roles_claim": "groups"}
    return OidcSettings(**{**values, **more})


@pytest.fixture
def client(forger, runs):
    sso = SingleSignOn(Provider.discover(settings(forger.issuer), SECRET))
    return Signed(create_app(AppState(RunIndex(runs), Users(), sso=sso)), {}).client()


def walk(client):
    """Sign in; the console's answer to the callback."""
    url = client.get("/sso/start").headers["location"]
    back = urlsplit(requests.get(url, allow_redirects=False, timeout=30).headers["location"])
    return client.get(f"{back.path}?{back.query}")


def claim(**values) -> Change:
    """Change claims; None removes one."""

    def change(token: Token) -> Token:
        changed = {**token.claims, **values}
        return replace(token, claims={n: v for n, v in changed.items() if v is not None})

    return change


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def unsigned(token: Token) -> str:
    return f"{part({'alg': 'none'})}.{part(token.claims)}."


def unsigned_with_a_key(token: Token) -> str:
    return f"{part({'alg': 'none', 'kid': 'first'})}.{part(token.claims)}.c2lnbmF0dXJl"


def by_a_secret(token: Token, secret: bytes) -> str:
    """Sign by HS256: a library that takes any algorithm would check it with whatever key it has."""
    text = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(token.claims)}"
    digest = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def with_its_own_key(token: Token) -> Token:
    """The header brings the key along, as an attacker would like it to be used."""
    key = make_key("another")
    return replace(token, key=key, header={"alg": "RS256", "kid": "first", "jwk": key.as_dict(private=False)})


def another_payload(token: Token) -> str:
    head, _, signature = jws.serialize_compact(token.header, json.dumps(token.claims), token.key).split(".")
    return f"{head}.{part({**token.claims, 'groups': ['board']})}.{signature}"


FORGED: dict[str, Change] = {
    "no signature": unsigned,
    "no signature, but a key": unsigned_with_a_key,
    "another key": lambda token: replace(token, key=make_key("another")),
    "an unknown key": lambda token: replace(token, header={**token.header, "kid": "unknown"}),
    "no key named, of two": lambda token: replace(token, header={"alg": "RS256"}),
    "a key in the header": with_its_own_key,
    "the public key as a secret": lambda token: by_a_secret(token, token.key.as_pem(private=False)),
    "the client's secret": lambda token: by_a_secret(token, SECRET.encode()),
    "a key of another kind": lambda token: replace(token, header={"alg": "RS256", "kid": "curve"}),
    "another payload": another_payload,
    "another issuer": claim(iss="https://evil.example"),
    "no issuer": claim(iss=None),
    "another audience": claim(aud="another-client"),
    "other audiences": claim(aud=["another-client", "a-third"]),
    "no audience": claim(aud=None),
    "two audiences, issued to the other": claim(aud=[CLIENT, "another-client"], azp="another-client"),
    "two audiences, issued to nobody": claim(aud=[CLIENT, "another-client"]),
    "issued to another": claim(azp="another-client"),
    "expired": lambda token: claim(exp=int(time.time()) - 61, iat=int(time.time()) - 600)(token),
    "without an end": claim(exp=None),
    "an end that is text": claim(exp="tomorrow"),
    "not valid yet": lambda token: claim(nbf=int(time.time()) + 300)(token),
    "issued in the future": lambda token: claim(iat=int(time.time()) + 300)(token),
    "another nonce": claim(nonce="guessed"),
    "no nonce": claim(nonce=None),
    "no subject": claim(sub=None),
    "a subject that is a number": claim(sub=7),
    "another access token": claim(at_hash="c29tZXRoaW5nIGVsc2U"),
    "no token": lambda _: None,
    "no text": lambda _: {"a": 1},  # type: ignore[dict-item,return-value]
    "empty": lambda _: "",
    "not a token": lambda _: "a.b",
    "a token of nothing": lambda _: "..",
    "a list": lambda token: jws.serialize_compact(token.header, "[]", token.key),
    "huge": lambda _: f"{'a' * 200_000}.b.c",
}


@pytest.mark.parametrize("how", FORGED)
def test_a_token_that_is_not_right_lets_nobody_in(forger, client, how, caplog):
    forger.change = FORGED[how]
    answer = walk(client)
    assert answer.status_code == 403 and "Sign-in failed" in answer.text, answer.text
    assert COOKIE not in client.cookies and client.get("/").status_code == 303
    assert "Traceback" not in caplog.text
    forger.change = lambda token: token
    assert walk(client).status_code == 200  # the same provider with a right token


@pytest.mark.parametrize(
    "change",
    [
        claim(aud=[CLIENT]),
        claim(aud=[CLIENT, "another-client"], azp=CLIENT),
        lambda token: claim(exp=int(time.time()) - 20)(token),  # within the leeway of a minute
        lambda token: claim(iat=int(time.time()) + 20)(token),
        lambda token: replace(token, header={"alg": "PS256", "kid": "first"}),
    ],
    ids=["audience in a list", "two audiences", "clock ahead", "clock behind", "PS256"],
)
def test_a_token_as_the_standard_allows_it_lets_in(runs, forger, change):
    forger.discovery = {"id_token_signing_alg_values_supported": ["RS256", "PS256"]}
    sso = SingleSignOn(Provider.discover(settings(forger.issuer), SECRET))
    client = Signed(create_app(AppState(RunIndex(runs), Users(), sso=sso)), {}).client()
    forger.change = change
    assert walk(client).status_code == 200


def test_a_session_of_a_token_in_its_leeway_is_over_at_once(forger, client):
    forger.change = lambda token: claim(exp=int(time.time()) - 20)(token)
    walk(client)
    assert client.get("/").status_code == 303


def test_an_algorithm_that_the_provider_does_not_offer_is_refused(runs, forger):
    forger.discovery = {"id_token_signing_alg_values_supported": ["ES256"]}
    sso = SingleSignOn(Provider.discover(settings(forger.issuer), SECRET))
    client = Signed(create_app(AppState(RunIndex(runs), Users(), sso=sso)), {}).client()
    assert walk(client).status_code == 403


def test_a_new_key_of_the_provider_is_read_and_an_unknown_one_does_not_make_it_read_keys_each_time(
    forger, client, monkeypatch
):
    new = make_key("second")
    forger.change = lambda token: replace(token, key=new, header={"alg": "RS256", "kid": "second"})
    assert walk(client).status_code == 403
    reads = forger.reads_of_keys
    assert walk(client).status_code == 403 and forger.reads_of_keys == reads
    forger.keys.keys.append(new)
    monkeypatch.setattr(oidc, "_KEYS_AGAIN", 0.0)  # half a minute later
    assert walk(client).status_code == 200 and forger.reads_of_keys == reads + 1


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"sub": "1", "groups": ["board"]}, 200),
        ({"sub": "2", "groups": ["board"]}, 403),
        ({"groups": ["board"]}, 403),
        ({"sub": "1"}, 403),
        (["not an object"], 403),
    ],
    ids=["of the user", "of another user", "of nobody", "without the claim", "a list"],
)
def test_roles_that_are_not_in_the_id_token_are_read_from_the_user_information(runs, forger, info, status):
    forger.claims, forger.userinfo = {}, info
    sso = SingleSignOn(Provider.discover(settings(forger.issuer), SECRET))
    client = Signed(create_app(AppState(RunIndex(runs), Users(), sso=sso)), {}).client()
    assert walk(client).status_code == status


def test_user_information_does_not_change_claims_of_the_id_token(runs, forger):
    forger.claims, forger.userinfo = (
        {"preferred_username": "ada"},
        {
            "sub": "1",
            "groups": ["board"],
            "preferred_username": "eve",
            "exp": 2**40,
        },
    )
    sso = SingleSignOn(Provider.discover(settings(forger.issuer), SECRET))
    app_state = AppState(RunIndex(runs), Users(), sso=sso)
    client = Signed(create_app(app_state), {}).client()
    walk(client)
    assert ">auditor<" in client.get("/runs").text and client.get("/api/session").json()["seconds"] <= 300


@pytest.mark.parametrize(
    ("claims", "name", "roles"),
    [
        ({"groups": ["icu-physicians"]}, "groups", ["clinician"]),
        ({"groups": "board"}, "groups", ["auditor"]),
        ({"groups": ["board", "icu-physicians", "board"]}, "groups", ["clinician", "auditor"]),
        ({"groups": ["BOARD", "icu-physicians "]}, "groups", []),
        ({"groups": ["clinician", "auditor", "viewer"]}, "groups", []),  # names of roles are not mapped by themselves
        ({"groups": [1, None, ["board"], {"board": 1}]}, "groups", []),
        ({"groups": {"board": True}}, "groups", []),
        ({"groups": "board icu-physicians"}, "groups", []),
        ({"realm_access": {"roles": ["board"]}}, "realm_access.roles", ["auditor"]),
        ({"https://hospital.example/roles": ["board"]}, "https://hospital.example/roles", ["auditor"]),
        ({"realm_access": ["board"]}, "realm_access.roles", []),
        ({}, "groups", []),
    ],
)
def test_roles_come_from_the_values_of_the_claim(claims, name, roles):
    found = read_identity({"sub": "1", **claims}, settings("https://login.example", roles_claim=name))
    assert [role.value for role in found.roles] == roles and (not roles or not found.is_missing)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ada"}, "ada"),
        ({}, "subject-7"),
        ({"preferred_username": ""}, "subject-7"),
        ({"preferred_username": ["ada"]}, "subject-7"),
        ({"preferred_username": "a\nb"}, "subject-7"),
        ({"preferred_username": "x" * 5000}, "x" * 200),
    ],
)
def test_the_name_comes_from_its_claim_or_is_the_subject(claims, name):
    assert read_identity({"sub": "subject-7", **claims}, settings("https://login.example")).name == name


@pytest.mark.parametrize(
    ("discovery", "code", "value"),
    [
        ({"issuer": "https://evil.example"}, "wrong-issuer", "https://evil.example"),
        ({"issuer": None}, "wrong-issuer", "None"),
        ({"jwks_uri": None}, "unsuitable-provider", "jwks_uri"),
        ({"token_endpoint": "http://evil.example/token"}, "unsuitable-provider", "not encrypted"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "unsuitable-provider", "authorization_endpoint"),
        ({"end_session_endpoint": "http://evil.example/out"}, "unsuitable-provider", "end_session_endpoint"),
        ({"id_token_signing_alg_values_supported": ["HS256", "none"]}, "unsuitable-provider", "RS256"),
        ({"code_challenge_methods_supported": ["plain"]}, "unsuitable-provider", "S256"),
    ],
)
def test_a_provider_that_is_another_or_unsuitable_is_refused_at_the_start(forger, discovery, code, value):
    forger.discovery = discovery
    with refused(code, match=value):
        Provider.discover(settings(forger.issuer), SECRET)


def test_a_provider_that_is_not_there_is_refused_at_the_start(forger):
    forger.stop()
    with refused("provider-unreachable", match=forger.issuer):
        Provider.discover(settings(forger.issuer), SECRET)


def test_a_realm_that_is_not_there_is_refused_at_the_start(forger):
    with refused("provider-unreachable", match="HTTP 404"):
        Provider.discover(settings(f"{forger.issuer}/realms/none"), SECRET)


def test_without_a_sign_out_of_the_provider_the_console_signs_out_alone(forger, client):
    walk(client)
    csrf = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]
    answer = client.post("/sign-out", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert client.get("/").status_code == 303
