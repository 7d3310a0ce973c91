"""Resource paths: one function serves a path under /api/v1 and, where it had one before, its deprecated query path.

`/api/v1/runs/{run}/sites` and `/api/run/sites?run=` are the same function: a parameter that the path names is taken from
the path, every other one from the query. A name in a path is written with `to_id`, since it may contain slashes.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin

from fastapi import APIRouter, Path, Request
from fastapi.params import Query
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel

from grandrounds.core.names import slug

ROOT = "/api/v1"
RETRY_SECONDS = 2
"""Seconds after which a program asks again for a result that is still being computed."""
Responses = dict[int | str, dict[str, Any]]
"""Responses by status, as FastAPI takes them."""
F = TypeVar("F", bound=Callable[..., Any])
_IN_PATH = re.compile(r"\{(\w+)\}")


class Problem(BaseModel):
    """An error. `error`: a sentence for people; `code`: the kind of error, which stays when the sentence is reworded."""

    error: str
    code: str

    model_config = {"json_schema_extra": {"example": {"error": "there is no run 'hart'", "code": "unknown-run"}}}


class Pending(BaseModel):
    """A result that is still being computed: send the request again after the seconds in Retry-After."""

    state: str = "computing"
    detail: str


REFUSED: Responses = {
    401: {"description": "Not signed in.", "model": Problem},
    403: {"description": "This role has no access.", "model": Problem},
    404: {"description": "No such run, round, site or figure.", "model": Problem},
    422: {"description": "The request is invalid, or the run is damaged.", "model": Problem},
    429: {"description": "Too many wrong tokens from this address.", "model": Problem},
}
RESOURCE_REFUSED: Responses = {
    **REFUSED,
    400: {"description": "The request cannot be read, or its address is too long."},
    409: {"description": "The run is not finished, damaged, withdrawn, or does not verify.", "model": Problem},
    422: {"description": "A parameter or the body is invalid.", "model": Problem},
}
NOT_MODIFIED: Responses = {304: {"description": "Not changed since the answer with the ETag in If-None-Match."}}
PENDING: Responses = {
    202: {
        "description": "Still being computed: ask again after the seconds in Retry-After.",
        "model": Pending,
        "headers": {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}},
    }
}

TOO_EARLY: Responses = {425: {"description": "Still being computed: try again.", "model": Problem}}


def to_id(name: str) -> str:
    """Write a name as one segment of a path.

    `/` is written `~`. A `~` or `!` of the name itself follows a `!`, and so does a name that is only a dot or two, which
    clients would drop from a path.

    Args:
        name: The name of a run, a site, a column or a comparison.

    Returns:
        The identifier; `from_id` returns the name.
    """
    text = re.sub(r"[~!]", r"!\g<0>", name).replace("/", "~")
    return f"!{text}" if text in (".", "..") else text


def from_id(text: str) -> str:
    """Read the name that `to_id` wrote."""
    return re.sub(r"!(.)|~", lambda found: found[1] or "/", text, flags=re.DOTALL)


class ResourceRoute(APIRoute):
    """A route whose answers have an ETag. A request with that tag in If-None-Match is answered with 304 and no body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await handle(request)
            body = getattr(response, "body", None)
            if response.status_code != 200 or not isinstance(body, bytes):
                return response
            tag = f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
            response.headers["etag"] = tag
            if not _has_tag(request.headers.get("if-none-match", ""), tag):
                return response
            headers = {n: v for n, v in response.headers.items() if n not in ("content-length", "content-type")}
            return Response(status_code=304, headers=headers)

        return tagged


def _has_tag(header: str, tag: str) -> bool:
    """Look for a tag in If-None-Match, by the weak comparison of RFC 9110."""
    wanted = tag.removeprefix("W/")
    return any(part.strip().removeprefix("W/") in (wanted, "*") for part in header.split(","))


class Resources:
    """Routes of one subject, with resource paths and deprecated query paths.

    Attributes:
        router: The resource paths, below /api/v1.
        old_router: The deprecated paths, below /api.
    """

    def __init__(
        self, tag: str, prefix: str = "", *, old: str = "", computed: bool = False, tagged: bool = True
    ) -> None:
        """Create the routers.

        Args:
            tag: The subject in the description of the API.
            prefix: Path below /api/v1.
            old: Path of deprecated routes below /api.
            computed: Answers may be computed in the background.
            tagged: Answers have an ETag.
        """
        responses = {**RESOURCE_REFUSED, **(NOT_MODIFIED if tagged else {}), **(PENDING if computed else {})}
        old_responses = {**REFUSED, **(TOO_EARLY if computed else {})}
        self.router = APIRouter(
            prefix=f"{ROOT}{prefix}",
            tags=[tag],
            route_class=ResourceRoute if tagged else APIRoute,
            responses=responses,
        )
        self.old_router = APIRouter(prefix=f"/api{old}", tags=[tag], responses=old_responses, deprecated=True)

    def get(self, path: str, *, old: str | None = None, **described: Any) -> Callable[[F], F]:
        """Return a decorator that registers a GET route.

        Args:
            path: The resource path below the prefix; names in braces are parameters of the function.
            old: The deprecated path below the old prefix; None where there is none.
            **described: Summary, responses and so on, as FastAPI takes them.
        """

        def register(function: F) -> F:
            self.add(path, function, **described)
            if old is not None:
                self.old_router.add_api_route(old, function, **described)
            return function

        return register

    def add(self, path: str, function: Callable[..., Any], *, method: str = "GET", **described: Any) -> None:
        """Register a function that also serves another route; see `get`."""
        self.router.add_api_route(path, _take_from_path(function, path), methods=[method], **described)


def _take_from_path(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return the function with the parameters that a path names declared as parts of it."""
    names = _IN_PATH.findall(path)
    if not names:
        return function
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(annotation=_path_annotation(p.annotation), default=p.empty) if p.name in names else p
        for p in signature.parameters.values()
    ]
    parameters.sort(key=lambda p: p.default is not p.empty)

    @wraps(function)
    def endpoint(**values: Any) -> Any:
        return function(**values)

    endpoint.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return endpoint


def _path_annotation(annotation: Any) -> Any:
    """Turn the annotation of a query parameter into that of a part of the path, with its limits."""
    if get_origin(annotation) is not Annotated:  # Annotated[...] | None: the parameter is optional in the query only
        annotation = next(a for a in get_args(annotation) if get_origin(a) is Annotated)
    kind, *facts = get_args(annotation)
    limits: list[Any] = []
    description = None
    for fact in facts:
        limits += fact.metadata if isinstance(fact, Query) else [fact]
        description = fact.description if isinstance(fact, Query) else description
    decoded = [AfterValidator(from_id)] if kind is str else []
    return Annotated[(kind, *limits, *decoded, Path(description=description))]


def file_word(name: str) -> str:
    """Make a name safe for a file: only letters, digits and dots."""
    return slug(name)[:80] or "unnamed"


def send_file(data: bytes, name: str, kind: str) -> Response:
    """Send a file that the browser stores instead of showing."""
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
