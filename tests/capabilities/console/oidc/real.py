"""A real OpenID provider on loopback: panva's oidc-provider (OpenID certified), as `make test` puts it beside the environment."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import requests

MODULES = Path(sys.prefix) / "oidc" / "node_modules"
SECRET = "a secret+with %odd: characters"
CLIENT = "grand-rounds"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def need_provider() -> str:
    """Find Node.js, or skip the test."""
    node = shutil.which("node")
    if node is None or not (MODULES / "oidc-provider").exists():
        pytest.skip("no OpenID provider on this machine: `make test` installs oidc-provider from npm where it can")
    return node


class RealProvider:
    """The provider as a process. Its name is `localhost`, so that for a browser it is another site than 127.0.0.1."""

    def __init__(self, folder: Path, url: str, *, lifetime: int = 300, refresh: bool = True) -> None:
        self.port, self._folder = free_port(), folder
        self.issuer = f"http://localhost:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.set_accounts(ada={"groups": ["icu-physicians", "staff"]}, eve={"groups": ["cleaners"]}, carl={})
        client = {
            "client_id": CLIENT,
            "client_secret": SECRET,
            "redirect_uris": [f"{url}/sso/callback"],
            "post_logout_redirect_uris": [f"{url}/sign-in"],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
        self._settings = {
            "modules": str(MODULES),
            "port": self.port,
            "issuer": self.issuer,
            "accounts": str(folder / "accounts.json"),
            "client": client,
            "lifetime": lifetime,
            "refresh": refresh,
        }

    def set_accounts(self, **claims: dict[str, Any]) -> None:
        """Set the accounts, by name."""
        part = self._folder / "accounts.part"
        part.write_text(json.dumps(claims))
        part.replace(self._folder / "accounts.json")

    def start(self) -> RealProvider:
        node, file = need_provider(), self._folder / "provider.json"
        file.write_text(json.dumps(self._settings))
        with (self._folder / "provider.log").open("wb") as log:
            script = Path(__file__).parent / "provider.mjs"
            self._process = subprocess.Popen([node, str(script), str(file)], stdout=log, stderr=log)
        until = time.monotonic() + 60
        while time.monotonic() < until and self._process.poll() is None:
            try:
                requests.get(f"{self.issuer}/.well-known/openid-configuration", timeout=5).raise_for_status()
                return self
            except requests.RequestException:
                time.sleep(0.05)
        raise RuntimeError((self._folder / "provider.log").read_text())

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None


class Visitor:
    """A browser at the provider, without scripts: it keeps cookies and posts forms."""

    def __init__(self) -> None:
        self.session = requests.Session()
        self.session.trust_env = False

    def sign_in(self, url: str, account: str) -> str:
        """Follow the provider's pages from the authorization URL on.

        Returns:
            The address of the console that the provider redirects to.
        """
        port = urlsplit(url).port
        answer = self.session.get(url, allow_redirects=False)
        while True:
            if answer.is_redirect:
                url = urljoin(answer.url, answer.headers["location"])
                if urlsplit(url).port != port:
                    return url
                answer = self.session.get(url, allow_redirects=False)
            elif 'name="login"' in answer.text:
                answer = self.session.post(answer.url, data={"login": account}, allow_redirects=False)
            else:
                raise AssertionError(f"HTTP {answer.status_code}: {answer.text}")

    def sign_out(self, url: str) -> str:
        """Confirm the sign-out at the provider, and return the address that it redirects to."""
        answer = self.session.get(url)
        fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', answer.text))
        action = re.search(r'action="([^"]+)"', answer.text)
        assert answer.status_code == 200 and action is not None, answer.text
        answer = self.session.post(action[1], data={**fields, "logout": "yes"}, allow_redirects=False)
        return answer.headers["location"]
