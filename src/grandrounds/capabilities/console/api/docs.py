"""The page /api/docs: the description of the API as HTML, rendered here, so that it needs no script and no other server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup, escape

from grandrounds.capabilities.console.api.parameters import Viewer
from grandrounds.capabilities.console.api.resources import ROOT
from grandrounds.capabilities.console.render import environment, render_page

router = APIRouter(include_in_schema=False)
MOST_BODIES = 8
"""Addresses of this console whose page stays rendered."""
LONGEST_EXAMPLE = 4000
"""Characters of an example that the page shows."""
_METHODS = ("get", "post")
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A parameter, or a field of an object. `place`: path, query or body; "" for a field."""

    name: str
    kind: Markup
    text: Markup
    place: str = ""
    required: bool = False


@dataclass(frozen=True)
class Answer:
    """A response by status. `kind`: the type of its body."""

    status: str
    text: Markup
    kind: Markup


@dataclass(frozen=True)
class Operation:
    """A method of a path, as the page shows it. `roles`: roles that may use it; empty for all."""

    method: str
    path: str
    anchor: str
    summary: Markup
    text: Markup
    roles: str
    parameters: tuple[Field, ...]
    answers: tuple[Answer, ...]
    curl: str
    example: str

    def fits(self, words: list[str]) -> bool:
        names = " ".join(field.name for field in self.parameters)
        text = f"{self.method} {self.path} {self.summary} {self.text} {names}".casefold()
        return all(word in text for word in words)


@dataclass(frozen=True)
class Section:
    """The operations of one subject."""

    name: str
    text: Markup
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class ObjectType:
    """An object of requests or answers, with its fields."""

    name: str
    text: Markup
    fields: tuple[Field, ...]


@router.get("/api/docs")
def docs(request: Request, who: Viewer, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    base, stored = f"{request.url.scheme}://{request.url.netloc}", _stored_bodies(request)
    body = stored.get(base) if not q else None
    if body is None:
        body = _render_body(request.app.openapi(), base, q)
    if not q:
        stored[base] = body
        if len(stored) > MOST_BODIES:
            stored.pop(next(iter(stored)), None)
    return render_page(request, "api_docs.html", who=who, body=body)


def _stored_bodies(request: Request) -> dict[str, Markup]:
    """Return the rendered pages without a search, by address: the description stays the same while the console runs."""
    state = request.app.state
    if not hasattr(state, "api_docs"):
        state.api_docs = {}
    stored: dict[str, Markup] = state.api_docs
    return stored


def _render_body(schema: Schema, base: str, q: str) -> Markup:
    words = q.casefold().split()
    operations = [(tag, operation) for tag, operation in _operations(schema, base) if operation.fits(words)]
    sections = [
        Section(tag["name"], _marked(tag["description"]), tuple(o for name, o in operations if name == tag["name"]))
        for tag in schema["tags"]
    ]
    text = (
        environment()
        .get_template("api_docs_body.html")
        .render(
            q=q, base=base, sections=[s for s in sections if s.operations], count=len(operations),
            old=list(_deprecated(schema)), types=list(_types(schema)),
        )
    )  # fmt: skip
    return Markup(text)


@router.get(ROOT)
def index(request: Request, who: Viewer) -> dict[str, str]:
    """Name the description of the API and its first resources."""
    paths = [path for path in request.app.openapi()["paths"] if path.startswith(f"{ROOT}/") and "{" not in path]
    return {"description": "/api/openapi.json", "docs": "/api/docs", **{path.removeprefix(f"{ROOT}/"): path for path in paths}}


@router.get(f"{ROOT}/openapi.json")
def openapi(who: Viewer) -> Response:
    return RedirectResponse("/api/openapi.json", 307)


def _operations(schema: Schema, base: str) -> Iterator[tuple[str, Operation]]:
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            described = methods.get(method)
            if described is not None and not described.get("deprecated"):
                yield described["tags"][0], _operation(method, path, described, base)


def _operation(method: str, path: str, described: Schema, base: str) -> Operation:
    text, _, roles = str(described.get("description", "")).rpartition("Roles: ")
    example, kind = _example(described)
    return Operation(
        method=method.upper(),
        path=path,
        anchor=re.sub(r"[^a-z0-9]+", "-", f"{method}{path}".lower()).strip("-"),
        summary=_marked(described.get("summary", "")),
        text=_marked(text.strip()),
        roles=roles.rstrip("."),
        parameters=tuple(_parameters(described)),
        answers=tuple(_answers(described)),
        curl=_curl(method, base, described.get("x-example", path), described, kind),
        example=example,
    )


def _example(described: Schema) -> tuple[str, str]:
    """Return the example of an answer as text, and the answer's media type."""
    for kind, content in described["responses"].get("200", {}).get("content", {}).items():
        example = content.get("example")
        text = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
        shown = "" if example is None else text
        cut = len(shown) > LONGEST_EXAMPLE
        return (shown[:LONGEST_EXAMPLE].rstrip() + "\n..." if cut else shown), str(kind)
    return "", ""


def _curl(method: str, base: str, path: str, described: Schema, kind: str) -> str:
    """Write a command that sends the request; parameters without an example are in capitals."""
    address = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path)
    required = [p["name"] for p in described.get("parameters", ()) if p["in"] == "query" and p.get("required")]
    if required and "?" not in address:
        address += "?" + "&".join(f"{name}={name.upper()}" for name in required)
    parts = ["curl", '-H "Authorization: Bearer $TOKEN"']
    if method == "post":
        parts += ["-H 'Content-Type: application/json'", "-d '{...}'"]
    if kind not in ("", "application/json", "text/csv", "text/event-stream"):
        parts.append("-O -J")
    return " ".join([*parts, f"'{base}{address}'"])


def _parameters(described: Schema) -> Iterator[Field]:
    for p in described.get("parameters", ()):
        yield Field(p["name"], _kind(p["schema"]), _marked(p.get("description", "")), p["in"], bool(p.get("required")))
    for content in described.get("requestBody", {}).get("content", {}).values():
        yield Field("(body)", _kind(content["schema"]), Markup(""), "body", True)


def _answers(described: Schema) -> Iterator[Answer]:
    for status, response in sorted(described["responses"].items()):
        kinds = [
            _kind(content["schema"]) if content.get("schema") else escape(media)
            for media, content in response.get("content", {}).items()
        ]
        yield Answer(status, _marked(response.get("description", "")), Markup(", ").join(kinds))


def _types(schema: Schema) -> Iterator[ObjectType]:
    for name, described in sorted(schema["components"]["schemas"].items()):
        required = described.get("required", ())
        fields = tuple(
            Field(field, _kind(inner), _marked(inner.get("description", "")), required=field in required)
            for field, inner in described.get("properties", {}).items()
        )
        yield ObjectType(name, _marked(described.get("description", "")), fields)


def _deprecated(schema: Schema) -> Iterator[tuple[str, str, Markup]]:
    """List deprecated operations: method, path and summary."""
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if methods.get(method, {}).get("deprecated"):
                yield method.upper(), path, _marked(methods[method].get("summary", ""))


def _kind(schema: Schema) -> Markup:
    """Write the type of a value; objects are links to their fields."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(_kind(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return Markup(", ").join(escape(json.dumps(value)) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return Markup("list of {}").format(_kind(schema.get("items", {})))
    inner = schema.get("additionalProperties")
    if kind == "object" and isinstance(inner, Mapping):
        return Markup("object of {}").format(_kind(inner))
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        text += f", {low} to {high:,}"
    return escape(text)


def _marked(text: str) -> Markup:
    """Write text of the description as HTML: `names` in backticks become code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
