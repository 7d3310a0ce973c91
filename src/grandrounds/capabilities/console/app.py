"""The console as an ASGI application: routes, request checks and error handlers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grandrounds.capabilities.console.access_log import AccessLogFault
from grandrounds.capabilities.console.api.description import describe_api, find_routes
from grandrounds.capabilities.console.api.resources import RETRY_SECONDS, ROOT
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.auth import lock, sign_in, single_sign_on
from grandrounds.capabilities.console.auth.protection import Protection, TooLarge
from grandrounds.capabilities.console.cache import StillComputing
from grandrounds.capabilities.console.compression import Compression
from grandrounds.capabilities.console.render import link, render_page
from grandrounds.capabilities.console.run_index import NotFound, Unreadable
from grandrounds.capabilities.console.static_files import StaticApp
from grandrounds.core.errors import BadInput, GrandRoundsError, visible
from grandrounds.core.version import __version__

_LOG = logging.getLogger(__name__)
_STREAM = "/live"
"""End of addresses whose answer has no end."""


def create_app(app_state: AppState) -> FastAPI:
    """Build the console as an ASGI application.

    Args:
        app_state: The runs, users, sessions and cases that its routes share.

    Returns:
        The application, with its routes, error handlers and request checks.
    """
    app = FastAPI(title="Grand Rounds console", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console = app_state
    app.include_router(sign_in.router)
    app.include_router(single_sign_on.router)
    app.include_router(lock.router)
    for route in _routes():
        app.include_router(route)
    app.get("/health", include_in_schema=False)(_report_health)
    app.mount("/static", StaticApp(), name="static")
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    app.add_middleware(Unexpected)
    app.add_middleware(Compression)
    app.add_middleware(HeadRequests)
    app.add_middleware(single_sign_on.Renewal, app_state=app_state)
    app.add_middleware(Protection, hosts=app_state.hosts, tls=app_state.tls)
    return app


class HeadRequests:
    """ASGI middleware that answers HEAD below /api as GET without a body. Streams, which have no end, are left out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or not scope["path"].startswith("/api/") or scope["path"].endswith(_STREAM):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


class Unexpected:
    """ASGI middleware that answers an error of the console itself with a page or JSON; the log has the details."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            if begun:
                raise
            _LOG.exception("%s %s ended with an unexpected error", scope["method"], scope["path"])
            sentence = "this page failed by a fault of the console; the terminal or log of the console has the details"
            await _refuse(Request(scope, receive), 500, sentence)(scope, receive, send)


def _routes() -> list[Any]:
    from grandrounds.capabilities.console import access_routes, api, hospital_routes, routes
    from grandrounds.capabilities.console.api import docs
    from grandrounds.capabilities.console.api.cases import resources as case_resources
    from grandrounds.capabilities.console.cases import routes as cases
    from grandrounds.capabilities.console.register import routes as register

    resources = (*api.RESOURCES, case_resources)
    described = [*(r.router for r in resources), *(r.old_router for r in api.RESOURCES), cases.api_router]
    pages = [routes.router, hospital_routes.router, cases.router, register.router, access_routes.router]
    return [*described, docs.router, *pages]


def _describe(app: FastAPI) -> dict[str, Any]:
    """Describe the API once."""
    if app.openapi_schema is None:
        app_state: AppState = app.state.console
        app.openapi_schema = describe_api(app, session_cookie=app_state.session_cookie)
    return app.openapi_schema


def _report_health() -> dict[str, bool]:
    """Answer probes of containers and load balancers, which have no user: the console is up, and nothing else."""
    return {"ok": True}


CODES = {
    400: "invalid-request",
    401: "not-signed-in",
    403: "no-access",
    404: "not-found",
    405: "method-not-allowed",
    409: "conflict",
    413: "request-too-large",
    422: "invalid-request",
    425: "still-computing",
    429: "too-many-requests",
    500: "unexpected-error",
}
"""Codes of errors that have none of their own."""
OF_REQUEST = frozenset(
    {"invalid-request", "nothing-chosen", "conflicting-choices", "duplicate-axis", "duplicate-run", "too-many-runs"}
    | {"name-in-address"}
)
"""Codes of errors of a GET request itself. Any other is about the state of a run: not finished, damaged, withdrawn."""


async def _handle_error(request: Request, e: Exception) -> Response:
    """Answer an HTTP error: JSON for the API, an error page for browsers, the sign-in form for anonymous users."""
    assert isinstance(e, StarletteHTTPException)
    headers = dict(e.headers or {})
    if e.status_code == 405:  # Starlette names the methods of one route, and a path may have two
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return _refuse(request, e.status_code, str(e.detail), headers=headers)


def _methods(request: Request) -> set[str]:
    """Collect the methods of all routes of a path."""
    fitting = (r for r in find_routes(request.app) if r.path_regex.match(request.url.path))
    return {method for route in fitting for method in route.methods or ()}


def _refuse(
    request: Request, status: int, sentence: str, *, code: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    if request.url.path.startswith("/api"):
        return JSONResponse({"error": sentence, "code": code or CODES.get(status, "refused")}, status, headers=headers)
    if status in (401, 423):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(link("/sign-in" if status == 401 else "/unlock", next=target), 303)
    return render_page(request, "fault.html", status=status, code=status, said=sentence)


def _handler_for(status: int) -> Any:
    async def handler(request: Request, e: Exception) -> Response:
        if isinstance(e, BadInput) and e.code == CODES[425] and request.url.path.startswith(ROOT):
            return await _handle_computing(request, e)
        sentence = "the request is too large" if isinstance(e, TooLarge) else str(e)
        about_run = isinstance(e, Unreadable) or (request.method == "GET" and getattr(e, "code", "") not in OF_REQUEST)
        conflicts = status == 422 and about_run and request.url.path.startswith(ROOT)
        return _refuse(request, 409 if conflicts else status, sentence, code=getattr(e, "code", ""))

    return handler


async def _handle_invalid(request: Request, e: Exception) -> Response:
    """Name the parameter that is missing or invalid, without its value."""
    assert isinstance(e, RequestValidationError)
    first = next(iter(e.errors()), None)
    if first is None:
        return _refuse(request, 422, "the address is incomplete or invalid")
    place, *names = [str(part) for part in first["loc"]]
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    if place == "body":
        return _refuse(request, 422, "the body is missing" if first["type"] == "missing" else f"invalid body: {message}")
    subject = f"parameter '{visible(names[0])[:80]}'" if names else place
    fault = " is missing" if first["type"] == "missing" else f": {message}"
    return _refuse(request, 422, f"invalid address: {subject}{fault}")


async def _handle_computing(request: Request, e: Exception) -> Response:
    """Ask the client to come again: 202 under /api/v1, 425 at deprecated paths."""
    sentence = "the result is still being computed: try again in a moment"
    if not request.url.path.startswith(ROOT):
        return _refuse(request, 425, sentence)
    return JSONResponse({"state": "computing", "detail": sentence}, 202, headers={"retry-after": str(RETRY_SECONDS)})


_HANDLERS: dict[Any, Any] = {
    StarletteHTTPException: _handle_error,
    RequestValidationError: _handle_invalid,
    StillComputing: _handle_computing,
    TooLarge: _handler_for(413),
    NotFound: _handler_for(404),
    Unreadable: _handler_for(422),
    AccessLogFault: _handler_for(503),
    BadInput: _handler_for(422),
    GrandRoundsError: _handler_for(422),
}
