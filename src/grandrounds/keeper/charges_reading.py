"""What the answer to an Ask would tell of patients, read from the Ask and the site's own rows alone.

Whatever is not known here counts as told without noise: a new task or report is refused until somebody has said what it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from grandrounds.explain.mapped import REPORT as MAPS
from grandrounds.keeper.charges_concepts import CONCEPTS
from grandrounds.keeper.charges_terms import Terms
from grandrounds.keeper.charges_told import ALL, OF, Reading, Rows, Told, raw, within
from grandrounds.keeper.charges_training import training
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import UPLOAD, Ask
from grandrounds.protocol.tasks import CONTRIBUTE, DIVERGE, INTRODUCE, MEET, TASKS, WEIGHTS
from grandrounds.site.stack import PARTS

MASKED = "secagg.masked"
SAY_NOTHING = ("lend", "witness", INTRODUCE, MEET, WEIGHTS, *(t for t in TASKS if t != MASKED))
"""Tasks that no patient has a part in: lent rows, signatures, keys, shares of masks, a yes or no to weights."""

TRAINING = ("train", "finetune")
MADE_OF_MODELS = (UPLOAD, DIVERGE, CONTRIBUTE)
"""Tasks whose answers are made of a model that was trained before, and of lent rows."""


def read(ask: Ask, rows: Rows, terms: Terms, *, unbounded: bool) -> Reading:
    """`unbounded`: whether this site has trained without noise before, in this run."""
    if ask.task in SAY_NOTHING:
        return Reading()
    if ask.task in TRAINING:
        return training(ask, rows, terms, unbounded=unbounded)
    if ask.task in CONCEPTS:
        return CONCEPTS[ask.task](ask, rows)
    if ask.task in MADE_OF_MODELS:
        return _all(ask, "what is made of a model trained without noise", rows.there("train") if unbounded else ())
    if ask.task in OWN:
        return OWN[ask.task](ask, rows, terms)
    return _all(ask, "an answer of unknown kind", rows.there(*ALL))


def _all(ask: Ask, what: str, rows: Sequence[str]) -> Reading:
    """Every report tells this."""
    return Reading((), dict.fromkeys(ask.report, Told(what, tuple(rows))))


def _prepare(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    """How many rows there are is taken as known; the mean input and notes in words are not."""
    every = rows.there(*ALL)
    if not _sound(json.loads(str(ask.shared["encoding"])), terms.classes):
        return Reading(raw("rows by an encoding that could tell single patients", every))
    known = [f"{part}_rows" for part in PARTS]
    told = {"centre": Told("the mean of training rows", rows.there("train")), "notes": Told("notes on rows", every)}
    return Reading((), {r: told.get(r, Told("a report of unknown kind", every)) for r in ask.report if r not in known})


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


def _evaluate(ask: Ask, rows: Rows, terms: Terms) -> Reading:
    told = {}
    for report in ask.report:
        parts = ("test",) if report == "figures" else (report,) if report in OF else ALL
        told[report] = Told("figures of a model", rows.there(*(p for p in parts if p not in terms.untold)))
    return Reading((), told)


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


OWN: dict[str, Callable[[Ask, Rows, Terms], Reading]] = {
    "summarise": lambda ask, rows, terms: _all(ask, "a summary of training rows", rows.there("train")),
    "prepare": _prepare,
    "evaluate": _evaluate,
    "score": _score,
    "calibrate": lambda ask, rows, terms: _all(ask, "losses at temperatures", rows.there("val")),
    "platt": _platt,
    "explain": lambda ask, rows, terms: _all(ask, "explanations on own patients", rows.there(*ALL)),
    MAPS: _maps,
}
"""Tasks that look at the site's own rows."""

KNOWN = frozenset({*SAY_NOTHING, *TRAINING, *CONCEPTS, *MADE_OF_MODELS, *OWN, MASKED})
"""Every task that somebody has thought about; a test holds it to those of SiteHost."""
