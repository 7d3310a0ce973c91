"""A small OpenID provider in Python that signs whatever a test asks for, also tokens that no provider should sign."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

CLIENT, SECRET = "grand-rounds", "a secret"


@cache
def make_key(name: str) -> RSAKey:
    """Make a key, once for all tests: it takes a moment."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig"})


@dataclass
class Token:
    """An ID token before it is signed; a test changes it."""

    claims: dict[str, Any]
    header: dict[str, Any]
    key: Any


Change = Callable[[Token], Token | str | None]


@dataclass
class Forger:
    """The provider. `change` gets each ID token: it returns it changed, or the text to send instead, or None for no token."""

    change: Change = lambda token: token
    claims: dict[str, Any] = field(default_factory=lambda: {"groups": ["icu-physicians"]})
    userinfo: dict[str, Any] | None = None
    discovery: dict[str, Any] = field(default_factory=dict)
    key: RSAKey = field(default_factory=lambda: make_key("first"))
    issuer: str = ""
    nonces: dict[str, str] = field(default_factory=dict)
    reads_of_keys: int = 0

    def __post_init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None
        self.keys = KeySet([self.key, ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"})])

    def start(self) -> Forger:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def token(self, nonce: str | None) -> Any:
        """Make an ID token, as the test changes it."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "1", "aud": CLIENT, "exp": now + 300, "iat": now, **self.claims}
        if nonce is not None:
            claims["nonce"] = nonce
        token = self.change(Token(claims, {"alg": "RS256", "kid": "first"}, self.key))
        if isinstance(token, Token):
            return jwt.encode(token.header, token.claims, token.key, algorithms=[token.header["alg"]])
        return token

    def document(self) -> dict[str, Any]:
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
            **({} if self.userinfo is None else {"userinfo_endpoint": f"{self.issuer}/userinfo"}),
            **self.discovery,
        }
        return {name: value for name, value in found.items() if value is not None}


def _handler(forger: Forger) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/.well-known/openid-configuration":
                self._send(forger.document())
            elif parts.path == "/keys":
                forger.reads_of_keys += 1
                self._send(forger.keys.as_dict(private=False))
            elif parts.path == "/userinfo":
                self._send(forger.userinfo)
            elif parts.path == "/authorize":
                query = {name: value[0] for name, value in parse_qs(parts.query).items()}
                code = f"code-{len(forger.nonces)}"
                forger.nonces[code] = query["nonce"]
                self.send_response(303)
                self.send_header(
                    "location", f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
                )
                self.end_headers()
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            fields = {name: value[0] for name, value in parse_qs(body).items()}
            nonce = forger.nonces.get(fields.get("code", ""))
            answer = {"access_token": "an access token", "token_type": "Bearer", "id_token": forger.token(nonce)}
            self._send({name: value for name, value in answer.items() if value is not None})

        def _send(self, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
