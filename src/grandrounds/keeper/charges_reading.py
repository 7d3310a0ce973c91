"""What the answer to an Ask would tell of patients, read from the Ask and the site's own rows alone.

Whatever is not known here counts as told without noise: a new task or report is refused until somebody has said what it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grandrounds.keeper.charges_concepts import CONCEPTS
from grandrounds.keeper.charges_terms import Terms
from grandrounds.keeper.charges_told import ALL, OF, Reading, Rows, Told, raw, within
from grandrounds.keeper.charges_training import training
from grandrounds.privacy.events import Event
from grandrounds.protocol import task_spec
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import MAPS, PLATT, PREPARE, SCORE, spec_of
from grandrounds.site.stack import PARTS


def read(ask: Ask, rows: Rows, terms: Terms, *, unbounded: bool) -> Reading:
    """Find what the answer to an Ask would disclose, by the rule that its task has in the table of tasks.

    Args:
        ask: The question.
        rows: How many rows the site has.
        terms: How the site counts.
        unbounded: The site has trained without noise before, in this run.

    Returns:
        The releases of the answer. A task without a rule discloses all rows as they are.
    """
    match spec_of(ask.task).cost:
        case task_spec.NO_COST:
            return Reading()
        case task_spec.TRAINING_COST:
            return training(ask, rows, terms, unbounded=unbounded)
        case task_spec.MODEL_COST:
            return _all(ask, "what is made of a model trained without noise", rows.there("train") if unbounded else ())
        case task_spec.ROWS_COST:
            return _by_rows(ask, rows, terms)
        case task_spec.OWN_COST if ask.task in READERS:
            return READERS[ask.task](ask, rows, terms)
    return _all(ask, "an answer of unknown kind", rows.there(*ALL))


def _all(ask: Ask, what: str, rows: Sequence[str]) -> Reading:
    """Every report tells this."""
    return Reading((), dict.fromkeys(ask.report, Told(what, tuple(rows))))


def _by_rows(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """Each report discloses, as it is, the rows that the table names for it; one that is not declared, all rows."""
    told = {}
    for name in ask.report:
        report = spec_of(ask.task).reports.get(name)
        if report is None:
            told[name] = Told("a report of unknown kind", rows.there(*ALL))
        elif report.rows:
            hidden = terms.untold if report.omits_withheld else ()
            told[name] = Told(report.account, rows.there(*(p for p in report.rows if p not in hidden)))
    return Reading((), told)


def _prepare(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """How many rows there are is taken as known; the mean input and notes in words are not."""
    if not _sound(json.loads(str(ask.shared["encoding"])), terms.classes):
        return Reading(raw("rows by an encoding that could tell single patients", rows.there(*ALL)))
    return _by_rows(ask, rows, terms)


def _sound(encoding: Any, classes: Sequence[str]) -> bool:
    """Whether every row is a number under this encoding, whatever is in it, and every label has a place.

    A scale of 0 makes no number of those who are exactly at the centre, and one such row is seen in a sum through any noise;
    a label that is left out makes the site fail where a patient has it.
    """
    columns = encoding.get("numeric", ()) if isinstance(encoding, dict) else None
    if columns is None or not set(classes) <= set(encoding.get("classes", ())):
        return False
    for column in columns:
        numbers = [float(v) for v in column.values() if isinstance(v, int | float)]
        if not (all(map(math.isfinite, numbers)) and within(abs(float(column["scale"])), 1e-12, 1e12)):
            return False
    return True


def _score(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """Losses on training rows; or how right models are on the parts that are named."""
    if "parts" not in ask.shared:
        return _all(ask, "losses of models", rows.there("train"))
    named = [p for p in str(ask.shared["parts"]).split(",") if p not in terms.untold]
    return _all(ask, "figures of models", rows.there(*(named if set(named) <= set(OF) else ALL)))


def _platt(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """Platt's line: sums as they are, counts with the site's own noise, or counts that are held for a sum with noise.

    A row is in one cell, so it moves one count by one. Far below an epsilon of 1e-6 the geometric draws are beyond 64 bits
    and cancel: no noise is left.
    """
    of = rows.there("val")
    if "lines" in ask.shared:
        return _all(ask, "sums over validation scores", of)
    what = "validation scores by outcome" if ask.shared.get("by_outcome") else "where validation scores lie"
    if "counts" in ask.held:
        return Reading((), dict.fromkeys(ask.report, Told(what, of, reach=1.0, largest=float(max(1, rows.val)))))
    epsilon = float(ask.shared.get("epsilon", 0.0))
    if not within(epsilon, 1e-6, 1e3):
        return Reading(raw(what, of))
    return Reading((Event("laplace", what, epsilon=epsilon, of="validation"),) if of else ())


def _maps(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """Of the last part there is; and of the site's own model, which training rows made."""
    held = {"train": rows.train, "val": rows.val, "test": rows.test}
    looked = next((p for p in reversed(PARTS) if held[p]), "train")
    return _all(ask, "numbers of heat maps", rows.there(looked, "train"))


READERS: Mapping[str, Callable[[Ask, Rows, Terms], Reading]] = {
    PREPARE: _prepare,
    SCORE: _score,
    PLATT: _platt,
    MAPS: _maps,
    **CONCEPTS,
}
"""Readers of tasks whose cost follows from the settings of the Ask (`OWN_COST` in the table of tasks)."""
