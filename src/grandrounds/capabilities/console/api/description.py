"""The description of the API in OpenAPI 3.1: subjects, roles, authentication, and answers of a small real consortium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from grandrounds.capabilities.console.auth.access import AreaCheck
from grandrounds.capabilities.console.auth.users import ROLES_BY_AREA, Role

ABOUT = """\
Results of federated runs, for programs. The paths below `/api/v1` are stable; those marked deprecated are from version 0.1
and serve the same answers.

**Names in paths.** A run, site, column or comparison is one segment of a path: `/` in its name is written `~`. So run
`compare-heart/pooled-seed2` is `/api/v1/runs/compare-heart~pooled-seed2`. A `~` or `!` of the name itself follows a `!`.
Every run of `/api/v1/runs` has its `id` and `url`.

**Errors** are `{"error": SENTENCE, "code": CODE}`; codes stay when sentences are reworded. **202** with `Retry-After` means
that a result is still being computed. Answers have an **ETag**; with it in `If-None-Match`, 304 says that nothing changed.
"""
TAGS = {
    "runs": "Runs with scores, sites, subgroups, figures and watches.",
    "hospitals": "Hospitals compared with intervals.",
    "rounds": "Rounds of a run: scores, weights, and explanations of weights.",
    "models": "Models that people can read: shapes and risk cards.",
    "files": "Summary, experiment, model and reports of a run.",
    "tables": "CSV with a header row. Metrics are shares from 0 to 1 unless docs/metrics.md says otherwise.",
    "comparisons": "Comparisons of runs, and published studies.",
    "register": "The register of models: states, signatures, history.",
    "cases": "Patients, at a console started with --site. Values and names are sent by POST only.",
    "audit": "Ledgers: checks, entries, countersignatures, proofs.",
    "privacy": "Privacy accounts.",
    "live": "Progress of runs.",
    "session": "The user's session.",
}


def describe_api(app: FastAPI, *, session_cookie: str) -> dict[str, Any]:
    """Describe the API.

    Args:
        app: The application.
        session_cookie: The cookie of signed-in browsers.

    Returns:
        The description, as /api/openapi.json serves it.
    """
    schema = get_openapi(
        title=app.title, version=app.version, routes=app.routes, description=ABOUT, tags=list(_tags(app))
    )
    schema.setdefault("components", {})["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `rounds console users add --token`.",
        },
        "session": {"type": "apiKey", "in": "cookie", "name": session_cookie, "description": "A signed-in browser."},
    }
    schema["security"] = [{"token": []}, {"session": []}]
    for route in find_routes(app):
        for method in (route.methods or ()) if route.include_in_schema else ():
            operation = schema["paths"].get(route.path, {}).get(method.lower())
            if operation is not None:
                _add_roles(operation, route)
                _add_example(operation, method, route.path)
    _write_pairs_as_lists(schema["components"]["schemas"])
    return schema


def _write_pairs_as_lists(part: Any) -> None:
    """Describe a tuple of equal items as a list of fixed length, which more tools understand."""
    if isinstance(part, dict):
        items = part.get("prefixItems")
        if isinstance(items, list) and items and all(item == items[0] for item in items):
            part["items"] = part.pop("prefixItems")[0]
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _write_pairs_as_lists(inner)


def find_routes(router: Any) -> Iterator[APIRoute]:
    """List all routes of an application, those of included routers too."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from find_routes(route.original_router)


def _tags(app: FastAPI) -> Iterator[dict[str, str]]:
    used = dict.fromkeys(str(tag) for route in find_routes(app) if route.include_in_schema for tag in route.tags)
    for tag in (*(t for t in TAGS if t in used), *(t for t in used if t not in TAGS)):
        yield {"name": tag, "description": TAGS.get(tag, "")}


def roles_of(route: APIRoute) -> list[str]:
    """List the roles that may use a route; all roles where it belongs to no area."""
    roles = set(Role)
    for check in _area_checks(route.dependant):
        roles &= ROLES_BY_AREA[check.area]
    return [role.value for role in Role if role in roles]


def _area_checks(dependant: Dependant) -> Iterator[AreaCheck]:
    for inner in dependant.dependencies:
        if isinstance(inner.call, AreaCheck):
            yield inner.call
        yield from _area_checks(inner)


def _add_roles(operation: dict[str, Any], route: APIRoute) -> None:
    roles = roles_of(route)
    operation["x-roles"] = roles
    sentence = "Roles: all." if len(roles) == len(Role) else f"Roles: {', '.join(roles)}."
    operation["description"] = "\n\n".join(text for text in (operation.get("description"), sentence) if text)


def _add_example(operation: dict[str, Any], method: str, path: str) -> None:
    """Add an answer, the path that was asked for, and the values of its parameters."""
    example = load_examples().get(f"{method} {path}")
    if example is None:
        return
    operation["x-example"] = example["path"]
    for content in operation["responses"]["200"].get("content", {}).values():
        content["example"] = example["answer"]
    for content in operation.get("requestBody", {}).get("content", {}).values() if "body" in example else ():
        content["example"] = example["body"]
    asked = urlsplit(example["path"])
    named = zip(path.split("/"), asked.path.split("/"), strict=True)
    values: dict[str, Any] = {part.strip("{}"): unquote(value) for part, value in named if part.startswith("{")}
    values |= parse_qs(asked.query)
    for parameter in operation.get("parameters", ()):
        value = values.get(parameter["name"])
        if value is not None:
            parameter["example"] = int(value) if parameter["schema"].get("type") == "integer" else value


@lru_cache(maxsize=1)
def load_examples() -> dict[str, Any]:
    """Load answers of a real console by method and path; `docs/api_page.py` writes them."""
    text = (files("grandrounds.capabilities.console.api") / "examples.json").read_text("utf-8")
    examples: dict[str, Any] = json.loads(text)
    return examples
