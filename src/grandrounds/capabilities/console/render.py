"""Pages from templates. All values in templates are escaped; this module cannot turn that off."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, find_user
from grandrounds.capabilities.console.navigation import list_pages
from grandrounds.capabilities.console.static_files import VersionedAddresses
from grandrounds.core.errors import visible
from grandrounds.core.version import __version__
from grandrounds.metrics import Place, shown_in
from grandrounds.report.style import words


@lru_cache(maxsize=1)
def environment() -> Environment:
    templates = Environment(
        loader=PackageLoader("grandrounds.capabilities.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[VersionedAddresses],
    )
    templates.filters |= {"number": number, "words": words, "moment": _moment, "date": _date, "name": name}
    templates.filters["capitalize_first"] = _capitalize_first
    templates.globals |= {"link": link, "version": __version__, "pooled_auroc": "pooled AUROC"}
    templates.globals["shown"] = lambda place: shown_in(Place[place])
    return templates


def render_page(
    request: Request, template: str, *, status: int = 200, who: CurrentUser | None = None, **values: Any
) -> Response:
    """Render a page with the console's head.

    Args:
        request: The request.
        template: The name of the template.
        status: The status of the response.
        who: The user; None looks up that of the request.
        **values: The values that the template shows.
    """
    who = who or find_user(request)
    app_state = get_state(request)
    pages = list_pages(who, has_patients=app_state.cases is not None)
    path = pages[0].path if pages and request.url.path == "/" else request.url.path
    links = [{"url": page.path, "name": page.label, "here": page.contains(path)} for page in pages]
    text = (
        environment()
        .get_template(template)
        .render(
            who=who,
            places=links,
            session_left=None if who is None or who.session is None else app_state.sessions.seconds_left(who.session),
            lock_after=app_state.lock if who is not None and who.session and not who.session.is_locked else None,
            nonce=request.state.nonce,
            site=None if app_state.cases is None else app_state.cases.site,
            console_title=app_state.title,
            contact=app_state.contact,
            **values,
        )
    )
    return HTMLResponse(text, status)


def link(path: str, **query: Any) -> str:
    """Build a path with a query, each name and value encoded."""
    parameters = {n: v for n, v in query.items() if v is not None}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def local_path(next: str) -> str:
    """Return a path of this console; any other address becomes its front page."""
    is_local = next.startswith("/") and not next.startswith(("//", "/\\")) and next.isprintable() and "\\" not in next
    return next if is_local else "/"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number; a dash where there is none."""
    return "\u2013" if value is None else f"{value:,.{digits}f}"


def name(value: object) -> Markup:
    """Put a name from data into a <bdi> element, so that it cannot reverse adjacent text.

    Args:
        value: The name; control characters and marks of direction are shown as escapes.

    Returns:
        The element.
    """
    return Markup("<bdi>{}</bdi>").format(visible(str(value)))


def _moment(seconds: float) -> str:
    """Format a time as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _date(seconds: float) -> str:
    """Format a time as text without its zone, for columns whose head names it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _capitalize_first(text: str) -> str:
    """Write the first character as a capital and leave the rest, unlike jinja's `capitalize`; names of files and columns stay."""
    is_word = text.partition(" ")[0].rstrip(",:;.").isalpha()
    return text[:1].upper() + text[1:] if is_word else text
