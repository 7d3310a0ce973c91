"""`rounds console --sso FILE` and `rounds console sso FILE`: settings, secrets, and errors before anything is served."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from grandrounds.capabilities.console.auth.oidc_settings import load_settings, read_secret
from tests.capabilities.console.oidc.forger import Forger
from tests.capabilities.console.oidc.real import free_port
from tests.command import rounds
from tests.support import refused

SECRET = "four-quiet-words-of-the-provider"


@pytest.fixture
def forger() -> Iterator[Forger]:
    running = Forger().start()
    yield running
    running.stop()


def write(folder: Path, **changes: object) -> Path:
    """Write a file of settings; None removes one."""
    values = {
        "issuer": "https://login.hospital.example",
        "client_id": "grand-rounds",
        "url": "https://console.hospital.example",
        "roles_claim": "groups",
        "roles": {"clinician": ["icu-physicians"]},
        **changes,
    }
    lines = ["[oidc]", *(f"{n} = {json.dumps(v)}" for n, v in values.items() if v is not None and n != "roles")]
    if isinstance(values["roles"], dict):
        lines += ["[oidc.roles]", *(f"{n} = {json.dumps(v)}" for n, v in values["roles"].items())]
    file = folder / "sso.toml"
    file.write_text("\n".join([*lines, ""]))
    return file


def write_secret(folder: Path, *, mode: int = 0o600) -> Path:
    file = folder / "client-secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"issuer": None}, "missing-setting", "oidc.issuer is missing"),
        ({"client_id": None}, "missing-setting", "oidc.client_id"),
        ({"url": None}, "missing-setting", "oidc.url"),
        ({"roles": None}, "missing-setting", "oidc.roles"),
        ({"roles": {}}, "bad-setting", "nobody could sign in"),
        ({"roles": {"king": ["a"]}}, "bad-setting", "king"),
        ({"roles_clam": "groups"}, "unknown-setting", "did you mean 'roles_claim'"),
        ({"issuer": "http://login.hospital.example"}, "bad-setting", "not encrypted"),
        ({"issuer": "http://127.0.0.1.evil.example"}, "bad-setting", "not encrypted"),
        ({"issuer": "login.hospital.example"}, "bad-setting", "https://"),
        ({"issuer": "https://login.hospital.example/?a=b"}, "bad-setting", "query"),
        ({"issuer": "https://user:word@login.hospital.example"}, "bad-setting", "not an address"),
        ({"url": "http://console.hospital.example"}, "bad-setting", "not encrypted"),
        ({"url": "https://console.hospital.example/rounds"}, "bad-setting", "path"),
        ({"leeway": 3600}, "bad-setting", "oidc.leeway"),
        ({"scopes": ["profile"]}, "bad-setting", "openid"),
        ({"client_authentication": "private_key_jwt"}, "unknown-choice", "client_secret_basic"),
        ({"ca_file": "missing.pem"}, "file-not-found", "missing.pem"),
        ({"client_secret_file": "a", "client_secret_variable": "B"}, "conflicting-settings", "not both"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(tmp_path, changes, code, value):
    file = write(tmp_path, **changes)
    with refused(code, match=value) as caught:
        load_settings(file)
    assert str(file) in str(caught.value)


def test_a_secret_in_the_settings_is_refused_and_not_repeated(tmp_path):
    with refused("secret-in-settings") as caught:
        load_settings(write(tmp_path, client_secret=SECRET))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    write_secret(tmp_path, mode=mode)
    with refused("file-too-open", match=f"mode {mode:04o}.*chmod 600") as caught:
        read_secret(load_settings(write(tmp_path, client_secret_file="client-secret")))
    assert SECRET not in str(caught.value)


def test_a_secret_comes_from_its_file_or_its_variable(tmp_path, monkeypatch):
    write_secret(tmp_path)
    assert read_secret(load_settings(write(tmp_path, client_secret_file="client-secret"))) == SECRET
    of_variable = load_settings(write(tmp_path, client_secret_variable="ROUNDS_TEST_SECRET"))
    with refused("missing-secret", match="ROUNDS_TEST_SECRET"):
        read_secret(of_variable)
    monkeypatch.setenv("ROUNDS_TEST_SECRET", SECRET)
    assert read_secret(of_variable) == SECRET
    assert read_secret(load_settings(write(tmp_path))) is None


def test_the_command_checks_the_provider_and_prints_what_to_register(tmp_path, forger):
    write_secret(tmp_path)
    file = write(tmp_path, issuer=forger.issuer, client_secret_file="client-secret", local_users=False)
    done = rounds("console", "sso", file)
    assert done.returncode == 0, done.stderr
    for line in (
        f"provider: {forger.issuer}",
        "redirect URI to register: https://console.hospital.example/sso/callback",
        "ID tokens signed by: RS256, ES256",
        "clinician: groups has icu-physicians",
        "local users: off",
    ):
        assert line in done.stdout.splitlines()
    assert SECRET not in done.stdout + done.stderr


def test_the_command_says_which_roles_a_user_would_get(tmp_path, forger):
    file, claims = write(tmp_path, issuer=forger.issuer), tmp_path / "claims.json"
    claims.write_text(json.dumps({"sub": "1", "preferred_username": "ada", "groups": ["icu-physicians"]}))
    done = rounds("console", "sso", file, "--claims", claims)
    assert done.stdout.splitlines()[-1] == f"claims of {claims}: ada signs in as clinician"
    for content, code in (({"group": ["x"]}, "missing-claim"), ({"groups": ["x"]}, "no-mapped-role"), ([], "not-json")):
        claims.write_text(json.dumps(content))
        done = rounds("console", "sso", file, "--claims", claims)
        assert done.returncode == 2 and f"[{code}]" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["console", "sso"], ["console", "--runs", ".", "--sso"]])
def test_a_wrong_issuer_and_an_unreachable_provider_end_the_command_with_2(tmp_path, forger, command):
    forger.discovery = {"issuer": f"{forger.issuer}/"}
    done = rounds(*command, write(tmp_path, issuer=forger.issuer))
    assert (
        done.returncode == 2 and "[wrong-issuer]" in done.stderr and f"{forger.issuer}/: write exactly" in done.stderr
    )
    done = rounds(*command, write(tmp_path, issuer=f"http://127.0.0.1:{free_port()}"))
    assert done.returncode == 2 and "[provider-unreachable]" in done.stderr and "Traceback" not in done.stderr


def test_settings_that_turn_local_users_off_refuse_a_file_of_users(tmp_path, forger):
    file = write(tmp_path, issuer=forger.issuer, local_users=False)
    done = rounds("console", "--sso", file, "--users", tmp_path / "users.json", "--runs", tmp_path)
    assert done.returncode == 2 and "[conflicting-settings]" in done.stderr


@contextmanager
def console(folder: Path, *options: object) -> Iterator[tuple[str, Path]]:
    """Start the command; its address, and the file with what it prints."""
    port, out = free_port(), folder / "printed.txt"
    command = [
        sys.executable,
        "-c",
        "from grandrounds.cli import main; main()",
        "console",
        "--runs",
        folder,
        "--port",
        port,
    ]
    with out.open("wb") as f:
        process = subprocess.Popen(
            [str(word) for word in (*command, "--access-log", folder / "log", *options)], stdout=f, stderr=f
        )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
    while True:
        assert process.poll() is None and time.monotonic() < until, out.read_text()
        try:
            requests.get(f"{url}/sign-in", timeout=5)
            break
        except requests.ConnectionError:
            time.sleep(0.1)
    yield url, out
    process.terminate()
    process.wait(30)


def test_a_console_behind_a_proxy_offers_single_sign_on_at_its_external_address(tmp_path, forger):
    write_secret(tmp_path)
    file = write(tmp_path, issuer=forger.issuer, client_secret_file="client-secret", label="Hospital account")
    with console(tmp_path, "--sso", file, "--proxy", "127.0.0.1") as (url, out):
        sent = {"host": "console.hospital.example", "x-forwarded-proto": "https"}
        page = requests.get(f"{url}/sign-in", headers=sent, timeout=30)
        assert page.status_code == 200 and 'name="secret"' not in page.text
        assert (
            'href="https://console.hospital.example/sso/start?next=%2F"' in page.text
            and "Hospital account" in page.text
        )
        began = requests.get(f"{url}/sso/start", headers=sent, allow_redirects=False, timeout=30)
        assert "redirect_uri=https%3A%2F%2Fconsole.hospital.example%2Fsso%2Fcallback" in began.headers["location"]
        cookie = began.headers["set-cookie"]
        assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=lax", "Path=/sso"))
        assert requests.get(f"{url}/sign-in", headers={"host": "evil.example"}, timeout=30).status_code == 421
    printed = out.read_text()
    assert f"single sign-on: {forger.issuer} (users open https://console.hospital.example/)" in printed
    assert "token for this session" not in printed and SECRET not in printed
