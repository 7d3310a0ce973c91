"""Near misses: test patients with the event whose risk was just below the threshold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.data.images import ImageSet
from grandrounds.methods.baselines import POOL
from grandrounds.runs.run_rows import RunRows

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SCHEMA = 1
NEAR = 0.8
"""A risk is near the threshold if it is at least this share of it: 40 % for a threshold of 50 %."""


def is_near(risk: float, threshold: float) -> bool:
    """Tell that a risk below the threshold is close to it."""
    return NEAR * threshold <= risk < threshold


@dataclass(frozen=True)
class NearMiss:
    """One patient, by the row number that `--case` takes."""

    case: int
    site: str
    risk: float


@dataclass(frozen=True)
class NearMisses:
    """The near misses among the test rows, the highest risk first, and the number of events."""

    source: str
    event: str
    threshold: float
    site: str | None  # None: of all sites
    rows: int  # tested
    events: int
    missed: int  # events below the threshold
    near: int  # of these, near it
    cases: tuple[NearMiss, ...]

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain JSON."""
        return dict(plain({"schema": SCHEMA, "kind": "near_misses", "data": self.source, **_other_fields(self)}))


def near_misses(run: Run, *, most: int = 10, site: str | None = None, data: Any = None) -> NearMisses:
    """Find the near misses among a finished run's test rows, each scored by the model in use at its site.

    Args:
        run: A finished run of two classes.
        most: The most cases to list.
        site: One site; by default all.
        data: The run's own rows, where they came from memory.

    Raises:
        BadInput: There are no test rows, or the model has no threshold.
    """
    if most < 1:
        raise BadInput(f"--near-misses {most}: ask for at least one", code="out-of-range")
    rows = RunRows.read(run, data)
    names = rows.consortium.stack.names
    wanted = [site_named(site, rows.sites)] if site is not None else list(names)
    if site is not None and POOL in names:
        raise BadInput(
            "this run pools all sites' rows: near misses of one site cannot be separated; remove --site",
            code="sites-are-pooled",
        )
    counts = np.zeros(4, int)
    misses: list[NearMiss] = []
    event, threshold = "", 0.5
    for name in wanted:
        test_rows = rows.test_rows(name)
        if not len(test_rows):
            continue
        risk, happened, event, threshold = _score_rows(run, rows, name, test_rows)
        missed = happened & (risk < threshold)
        near = missed & (risk >= NEAR * threshold)
        counts += (len(test_rows), happened.sum(), missed.sum(), near.sum())
        misses += [NearMiss(rows.number(int(test_rows[i])), rows.owner(int(test_rows[i])) or name, float(risk[i]))
                  for i in np.flatnonzero(near)]  # fmt: skip
    if not counts[0]:
        raise BadInput(
            f"{'no site' if site is None else wanted[0]} has test rows, so there are no near misses to list",
            code="no-test-rows",
        )
    misses.sort(key=lambda miss: (-miss.risk, miss.case))
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
        cases=tuple(misses[:most]),
    )


def _score_rows(run: Run, rows: RunRows, site: str, numbers: Array) -> tuple[Array, Array, str, float]:
    """Score rows of a site: the risks, the events, the event's name and the threshold in use."""
    model, data = run.model_for(None if site == POOL else site), rows.consortium.data
    selected = data.take(numbers) if isinstance(data, ImageSet) else data.table.take(numbers)
    prediction = model.predict(selected, task=rows.task(None if site == POOL else site))
    if prediction.event is None:
        raise BadInput(
            f"near misses need two classes: this model has {len(prediction.classes)} classes and no threshold",
            code="not-binary",
        )
    happened = np.asarray(data.label[numbers].astype(str) == prediction.event.word)
    label = model.schema.label if model.schema is not None else "label"
    return prediction.risk, happened, f"{label} = {prediction.event.word}", model.threshold


def _other_fields(misses: NearMisses) -> dict[str, object]:
    values = asdict(misses)
    del values["source"]
    return values
