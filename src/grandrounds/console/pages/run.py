"""One run: figures, sites, and why a site had its weight in a round."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.desk import desk_of
from grandrounds.console.library import FINISHED
from grandrounds.console.render import page
from grandrounds.console.roles import Area
from grandrounds.console.views import audit
from grandrounds.console.views import run as view

router = APIRouter(include_in_schema=False)
RunName = Annotated[str, Query(description="A run's name, as the list has it.", max_length=1024)]


@router.get("/run")
def one_run(request: Request, who: Annotated[Who, only(Area.RUNS)], run: RunName) -> Response:
    library = desk_of(request).library
    head = view.head(library, run)
    sections = [(name, list(places)) for name, places in groupby(head.figures, key=lambda f: f.section)]
    sites, state = view.site_lines(library, run), library.get(run).state
    checked = audit.check(library, run, deep=True, wait=0.0) if who.may_see(Area.AUDIT) and state == FINISHED else None
    return page(
        request, "run.html", who=who, run=head, state=state, ledger=checked, sections=sections, sites=sites,
        has_events=any(s.events is not None for s in sites), groups=view.group_lines(library, run),
    )  # fmt: skip
