"""Pages from templates. Everything that a template prints is escaped; there is no way round it in this module."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grandrounds import __version__
from grandrounds.console.app_state import get_state
from grandrounds.console.auth.access import CurrentUser, find_user
from grandrounds.console.auth.users import Area
from grandrounds.core.errors import visible
from grandrounds.metrics import Place, shown_in
from grandrounds.report.figure import script_file
from grandrounds.report.style import words

PLACES = (("/", "Runs", Area.RUNS), ("/compare", "Compare", Area.COMPARE), ("/case", "Cases", Area.CASES),
          ("/audit", "Audit", Area.AUDIT), ("/privacy", "Privacy", Area.PRIVACY))  # fmt: skip
"""What the head of a page leads to, for those who may see it."""


@lru_cache(maxsize=1)
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("grandrounds.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "words": words, "moment": _moment, "name": name}
    made.globals |= {"link": link, "version": __version__, "own_styles": own_styles}
    made.globals["shown"] = lambda place: shown_in(Place[place])
    return made


def render_page(request: Request, template: str, *, status: int = 200, who: CurrentUser | None = None, **values: Any) -> Response:
    """A page with the console's head; `who` is looked up where it is not given."""
    who = who or find_user(request)
    app_state = get_state(request)
    shown = [
        {"url": url, "name": name, "here": request.url.path == url}
        for url, name, area in PLACES
        if who is not None and who.may_see(area) and (area is not Area.CASES or app_state.cases is not None)
    ]
    text = (
        environment()
        .get_template(template)
        .render(
            who=who,
            places=shown,
            session_left=None if who is None or who.session is None else app_state.sessions.left(who.session),
            nonce=request.state.nonce,
            site=None if app_state.cases is None else app_state.cases.site,
            **values,
        )
    )
    return HTMLResponse(text, status)


@lru_cache(maxsize=1)
def own_styles() -> tuple[str, ...]:
    """Elements that plotly's script would fill with rules for maps, which a strict policy forbids: where elements of these
    names are on the page already it does not."""
    script = script_file()
    return () if script is None else tuple(re.findall(r'getElementById\("([0-9a-f]{64})"\)', script.read_text("utf-8")))


def link(path: str, **query: Any) -> str:
    """A path with a query, each name and value encoded."""
    held = {n: v for n, v in query.items() if v is not None}
    return f"{path}?{urlencode(held, doseq=True)}" if held else path


def number(value: Any, digits: int = 3) -> str:
    """A figure, or a dash where there is none."""
    return "\u2013" if value is None else f"{value:,.{digits}f}"


def name(value: object) -> Markup:
    """Put a name that other people chose into a <bdi>, so that it cannot turn the text and numbers beside it round.

    Args:
        value: The name; control characters and marks of direction are shown as escapes.

    Returns:
        The element.
    """
    return Markup("<bdi>{}</bdi>").format(visible(str(value)))


def _moment(seconds: float) -> str:
    """A time as people write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
