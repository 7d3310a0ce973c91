"""Scripts and styles of the console: compressed, and stored by browsers until their content changes.

An address on a page has a hash of the file's content (`/static/console.css?v=4f1c...`), so a browser stores it for a year and
asks for it again only when it is another file.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePath
from urllib.parse import parse_qs

from jinja2 import Environment
from jinja2.ext import Extension
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from grandrounds.report.figure import packed_script_bytes

PLOTLY = "plotly.min.js"
"""The script that draws figures; reports contain it too."""
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_VERSION = 16
"""Characters of the hash in an address."""
_FOREVER, _ASK = "public, max-age=31536000, immutable", "no-cache"
_ADDRESS = re.compile(r'"/static/([\w.-]+)"')


@dataclass(frozen=True)
class StaticFile:
    """A file of the console. `packed`: its content, compressed by gzip."""

    name: str
    packed: bytes

    @property
    def version(self) -> str:
        return hashlib.sha256(self.packed).hexdigest()[:_VERSION]

    @property
    def address(self) -> str:
        return f"/static/{self.name}?v={self.version}"

    @property
    def media_type(self) -> str:
        return _KINDS.get(PurePath(self.name).suffix, "application/octet-stream")


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Load all files of the console: name -> file."""
    found = {PLOTLY: StaticFile(PLOTLY, packed_script_bytes())}
    for path in (files("grandrounds.capabilities.console") / "static").iterdir():
        if path.is_file():
            found[path.name] = StaticFile(path.name, gzip.compress(path.read_bytes(), 9, mtime=0))
    return found


class StaticApp:
    """An ASGI application that serves the files, and nothing else: a request names one of them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._respond(Request(scope))(scope, receive, send)

    def _respond(self, request: Request) -> Response:
        file = static_files().get(request.scope["path"].removeprefix("/static/"))
        if file is None:
            return PlainTextResponse("Not Found", 404)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Method Not Allowed", 405, headers={"allow": "GET, HEAD"})
        is_current = file.version in parse_qs(request.url.query).get("v", [])
        etag = f'"{file.version}"'
        headers = {"etag": etag, "cache-control": _FOREVER if is_current else _ASK, "vary": "accept-encoding"}
        cached = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in cached:
            return Response(status_code=304, headers=headers)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(file.packed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})
        return Response(gzip.decompress(file.packed), media_type=file.media_type, headers=headers)


def accepts_gzip(header: str) -> bool:
    """Tell whether a browser takes gzip, from its Accept-Encoding header."""
    offers = [offer.replace(" ", "").lower() for offer in header.split(",")]
    return any(o.partition(";")[0] in ("gzip", "*") and not re.fullmatch(r"[^;]*;q=0(\.0*)?", o) for o in offers)


class VersionedAddresses(Extension):
    """Adds the version to addresses of static files in templates, when a template is loaded."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return _ADDRESS.sub(self._add_version, source)

    @staticmethod
    def _add_version(matched: re.Match[str]) -> str:
        file = static_files().get(matched[1])
        return matched[0] if file is None else f'"{file.address}"'
