"""Near misses: test patients whose event happened though their risk stayed just below the threshold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.case.rows import RunRows
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.data.images import ImageSet
from grandrounds.methods.baselines import POOL

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SCHEMA = 1
NEAR = 0.8
"""A risk is near the threshold from this share of it on: from 40 % on where the threshold is 50 %."""


def is_near(risk: float, threshold: float) -> bool:
    """Whether a risk that is not acted on is close to one that is."""
    return NEAR * threshold <= risk < threshold


@dataclass(frozen=True)
class NearMiss:
    """One patient, by the row number that `--case` takes."""

    case: int
    site: str
    risk: float


@dataclass(frozen=True)
class NearMisses:
    """The near misses among the test rows, the highest risk first, and how many events there were besides."""

    source: str
    event: str
    threshold: float
    site: str | None  # None: of all sites
    rows: int  # tested
    events: int
    missed: int  # events below the threshold
    near: int  # of these, near it
    cases: tuple[NearMiss, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        return dict(plain({"schema": SCHEMA, "kind": "near_misses", "data": self.source, **_rest(self)}))


def near_misses(run: Run, *, most: int = 10, site: str | None = None, data: Any = None) -> NearMisses:
    """The near misses of a finished run's test rows: each scored by the model in use at its site."""
    if most < 1:
        raise BadInput(f"--near-misses {most}: ask for at least one", code="value-out-of-range")
    rows = RunRows.read(run, data)
    names = rows.consortium.stack.names
    wanted = [site_named(site, rows.sites)] if site is not None else list(names)
    if site is not None and POOL in names:
        raise BadInput(
            "this run pools all sites' rows: near misses of one site are not told apart; leave --site out",
            code="sites-are-pooled",
        )
    counts = np.zeros(4, int)
    found: list[NearMiss] = []
    event, threshold = "", 0.5
    for name in wanted:
        held = rows.tested(name)
        if not len(held):
            continue
        risk, happened, event, threshold = _scored(run, rows, name, held)
        missed = happened & (risk < threshold)
        near = missed & (risk >= NEAR * threshold)
        counts += (len(held), happened.sum(), missed.sum(), near.sum())
        found += [NearMiss(rows.number(int(held[i])), rows.owner(int(held[i])) or name, float(risk[i]))
                  for i in np.flatnonzero(near)]  # fmt: skip
    if not counts[0]:
        raise BadInput(
            f"{'no site' if site is None else wanted[0]} has test rows, so there are no near misses to list",
            code="no-test-rows",
        )
    found.sort(key=lambda miss: (-miss.risk, miss.case))
    tested, events, missed_events, close = counts.tolist()
    return NearMisses(
        source=rows.consortium.data.name,
        event=event,
        threshold=threshold,
        site=None if site is None else wanted[0],
        rows=tested,
        events=events,
        missed=missed_events,
        near=close,
        cases=tuple(found[:most]),
    )


def _scored(run: Run, rows: RunRows, site: str, held: Array) -> tuple[Array, Array, str, float]:
    """Risk and whether the event happened for some rows of a site, what the event is, and the threshold in use."""
    model, data = run.model_for(None if site == POOL else site), rows.consortium.data
    given = data.take(held) if isinstance(data, ImageSet) else data.table.take(held)
    said = model.predict(given, task=rows.task(None if site == POOL else site))
    if said.event is None:
        raise BadInput(
            f"near misses are of a yes or no: this model tells {len(said.classes)} classes apart and has no threshold",
            code="not-binary",
        )
    happened = np.asarray(data.label[held].astype(str) == said.event.word)
    label = model.schema.label if model.schema is not None else "label"
    return said.risk, happened, f"{label} = {said.event.word}", model.threshold


def _rest(found: NearMisses) -> dict[str, Any]:
    values = asdict(found)
    del values["source"]
    return values
