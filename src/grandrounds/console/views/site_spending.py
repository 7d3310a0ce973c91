"""What each site's patients spent: the releases of the rounds in which their site was asked, and no others.

A run's epsilon is that of the site that took part most often. A Decision names a round's releases as they are at every site
that was asked, so what a site's own releases add up to is worked out from its rounds alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from grandrounds.core.arrays import plain
from grandrounds.privacy.events import Event
from grandrounds.runs.privacy_recompute import released

TOGETHER = "all together"
Counts = frozenset[tuple[Event, int]]


class SiteSpent(BaseModel):
    """A site. `epsilon`: of all its releases; `alone`: of each mechanism by itself; None: infinite."""

    site: str
    train_rows: int | None
    rounds: int
    releases: int
    epsilon: float | None
    alone: dict[str, float | None]


def by_site(
    privacy: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], rows: Mapping[str, Mapping[str, Any]]
) -> list[SiteSpent]:
    """Every site, who spent most first."""
    own = {record["round"]: _counted(released(record)) for record in rounds}
    in_rounds: Counter[Event] = sum(own.values(), Counter())
    told = _counted([Event.from_dict(e) for e in privacy["events"]])
    later = Counter(
        {e: n for e, n in (told - in_rounds).items() if e.of != "training"}
    )  # calibration, after all rounds
    asked: dict[str, list[int]] = {site: [] for site in rows}
    for record in rounds:
        for site in record["decision"]["asked"]:
            asked.setdefault(site, []).append(record["round"])
    account = _Accountant(float(privacy["delta"]))
    out = []
    for site, took_part in asked.items():
        events: Counter[Event] = sum((own[r] for r in took_part), Counter()) + later
        out.append(
            SiteSpent(
                site=site, train_rows=rows.get(site, {}).get("train"), rounds=len(took_part),
                releases=sum(events.values()), epsilon=account.of(events),
                alone={what: account.of(_only(events, what)) for what in dict.fromkeys(e.what for e in events)},
            )
        )  # fmt: skip
    return sorted(out, key=lambda s: (s.epsilon is not None, -(s.epsilon or 0.0), s.site))


def epsilons(sites: Sequence[SiteSpent]) -> dict[str, dict[str, float]]:
    """Site -> mechanism -> epsilon, for a figure: of sites that released something, and finite ones alone."""
    out = {}
    for site in sites:
        own = {what: value for what, value in site.alone.items() if value is not None}
        if site.releases and site.epsilon is not None:
            out[site.site] = {**own, TOGETHER: site.epsilon}
    return out


class _Accountant:
    """Epsilon of counted releases, each sum worked out once: most sites released the same."""

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self._known: dict[Counts, float | None] = {}

    def of(self, events: Counter[Event]) -> float | None:
        from grandrounds.privacy.accounting import epsilon_of

        key = frozenset(events.items())
        if key not in self._known:
            counted = [replace(e, count=n) for e, n in events.items()]
            self._known[key] = plain(float(epsilon_of(counted, self._delta))) if counted else 0.0
        return self._known[key]


def _only(events: Counter[Event], what: str) -> Counter[Event]:
    return Counter({e: n for e, n in events.items() if e.what == what})


def _counted(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for e in events:
        counts[replace(e, count=1)] += e.count
    return counts
