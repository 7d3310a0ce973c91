"""Rounds of a run: scores, a round's decision, and the explanation of a site's weight."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel

from grandrounds.capabilities.console.api.parameters import RoundNumber, RunName, SiteName, Viewer
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.core.arrays import plain

resources = Resources("rounds")


class RoundLine(BaseModel):
    """A round. `validation` and `test`: scores, None in a round without evaluation; `missing`: sites that did not answer."""

    round: int
    sites: int
    missing: dict[str, str]
    validation: dict[str, float | None] | None
    test: dict[str, float | None] | None
    bytes_down: float | None
    bytes_up: float | None
    seconds: float | None


def round_lines(run_index: RunIndex, run: str) -> list[RoundLine]:
    """List the rounds of a run so far, the first first."""
    return [
        RoundLine(
            round=record.round,
            sites=len(record.decision.asked),
            missing=dict(record.decision.missing),
            validation=plain(record.val),
            test=plain(record.test),
            **{key: plain(record.decision.cost.get(key)) for key in ("bytes_down", "bytes_up", "seconds")},
        )
        for record in run_index.run(run).rounds
    ]


@resources.get("/runs/{run}/rounds", summary="The rounds of a run so far: scores, sites, bytes and seconds")
def rounds(request: Request, who: Viewer, run: RunName) -> list[RoundLine]:
    return round_lines(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/rounds/{round}", old="/run/round", summary="A round's decision: weights, signals, missing sites"
)
def one_round(request: Request, who: Viewer, run: RunName, round: RoundNumber) -> run_view.Round:
    return run_view.one_round(get_state(request).run_index, run, round)


@resources.get(
    "/runs/{run}/rounds/{round}/sites/{site}/explanation",
    old="/run/why",
    summary="An explanation of a site's weight in a round, in sentences",
)
def why(request: Request, who: Viewer, run: RunName, round: RoundNumber, site: SiteName) -> list[str]:
    return run_view.why(get_state(request).run_index, run, round, site)
