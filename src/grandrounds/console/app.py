"""The console as an ASGI application: routes, request checks and error handlers."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from grandrounds import __version__
from grandrounds.console.access_log import AccessLogFault
from grandrounds.console.app_state import AppState
from grandrounds.console.auth import sign_in, single_sign_on
from grandrounds.console.auth.protection import Protection, TooLarge
from grandrounds.console.render import link, render_page
from grandrounds.console.run_index import NotFound, Unreadable
from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.report.figure import script_file


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
    for route in _routes():
        app.include_router(route)
    app.get("/health", include_in_schema=False)(_report_health)
    app.get("/static/plotly.min.js", include_in_schema=False)(_plotly)
    app.mount("/static", StaticFiles(directory=str(files("grandrounds.console") / "static")), name="static")
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.openapi = lambda: _describe_api(app)  # type: ignore[method-assign]
    app.add_middleware(single_sign_on.Renewal, app_state=app_state)
    app.add_middleware(Protection, hosts=app_state.hosts, tls=app_state.tls)
    return app


def _routes() -> list[Any]:
    from grandrounds.console import api, routes
    from grandrounds.console.cases import routes as cases

    described = [api.session_router, api.router, cases.api_router, api.compare_router, api.audit_router]
    described += [api.privacy_router, api.live_router]
    return [*described, routes.router, cases.router]


def _describe_api(app: FastAPI) -> dict[str, Any]:
    """Describe the API in OpenAPI, with both authentication schemes."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        app_state: AppState = app.state.console
        schema.setdefault("components", {})["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of `rounds console users add --token`.",
            },
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": app_state.session_cookie,
                "description": "A signed-in browser.",
            },
        }
        schema["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _report_health() -> dict[str, bool]:
    """Answer probes of containers and load balancers, which have no user: the console is up, and nothing else."""
    return {"ok": True}


def _plotly(request: Request) -> Response:
    """Serve the script of the installed plotly package."""
    script = script_file()
    if script is None:
        raise HTTPException(404, "plotly is not installed")
    facts = script.stat()
    headers = {"cache-control": "max-age=86400", "etag": f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'}
    cached_tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if headers["etag"] in cached_tags:
        return Response(status_code=304, headers=headers)
    return FileResponse(script, media_type="text/javascript", headers=headers, stat_result=facts)


async def _handle_error(request: Request, e: Exception) -> Response:
    """Answer an HTTP error: JSON for the API, an error page for browsers, the sign-in form for anonymous users."""
    assert isinstance(e, StarletteHTTPException)
    if request.url.path.startswith("/api"):
        return JSONResponse({"error": str(e.detail)}, e.status_code, headers=e.headers)
    if e.status_code == 401:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(link("/sign-in", next=target), 303)
    return render_page(request, "fault.html", status=e.status_code, code=e.status_code, said=str(e.detail))


def _handler_for(status: int) -> Any:
    async def handler(request: Request, e: Exception) -> Response:
        sentence = (
            "the address is incomplete or invalid" if isinstance(e, RequestValidationError | TooLarge) else str(e)
        )
        return await _handle_error(request, StarletteHTTPException(status, sentence))

    return handler


_HANDLERS: dict[Any, Any] = {
    StarletteHTTPException: _handle_error,
    RequestValidationError: _handler_for(422),
    TooLarge: _handler_for(413),
    NotFound: _handler_for(404),
    Unreadable: _handler_for(422),
    AccessLogFault: _handler_for(503),
    BadInput: _handler_for(422),
    GrandRoundsError: _handler_for(422),
}
