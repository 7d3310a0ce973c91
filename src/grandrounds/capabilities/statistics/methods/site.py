"""The sites' half of exact methods: questions as messages, a site's rows, and its sums over them.

A site answers a question with sums over its training rows (`answers.ANSWERS`). After a fit it may store a part of
the model that is its own, an intercept or shapes, which never leaves it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.answers import ANSWERS, GROUP_ANSWERS
from grandrounds.capabilities.statistics.intercepts import own_intercept
from grandrounds.capabilities.statistics.own_shapes import fit_own_shapes
from grandrounds.capabilities.statistics.question import Question, RowGroup, Rows, pack_blocks
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.dataset import Dataset
from grandrounds.data.event import event_place
from grandrounds.data.kinds import AnyEncoding, task_of
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import STATISTIC, STORE
from grandrounds.site.plugin import Columns, SitePlugin, Task
from grandrounds.site.state import SHAPES

_log = logging.getLogger("grandrounds.site")

STORED = "stored"
"""Report of a site that stored its own intercept or shapes."""

WHOLE_BITS, WHOLE_BOUND = 32, 2.0**30
"""Bits and largest sum over all sites of answers in whole numbers."""

FORESEEN = "foreseen"
"""Value of an Ask: numbers that one site sends in the whole fit at least."""

_BETWEEN = "\x1f"  # between names in a text
_KIND, _BLOCKS, _CELLS, _WHOLE, _VALUE = "kind", "blocks", "cells", "whole", "value."


def ask_question(question: Question, sites: tuple[str, ...], *, rows: int, foreseen: int | None = None) -> Ask:
    """Build the Ask of a question.

    Args:
        question: The question.
        sites: The sites that are asked.
        rows: Rows of these sites in all, for the policy's ratio of numbers sent and held.
        foreseen: Numbers that one site sends in the whole fit at least, if the method knows them before: a policy that allows
            fewer then refuses the first exchange, not a later one.

    Returns:
        An Ask for the report `sums`, one vector.
    """
    shared: dict[str, Value] = {
        _KIND: question.kind,
        _BLOCKS: json.dumps({name: list(shape) for name, shape in question.blocks.items()}),
        _CELLS: ",".join(question.cells),
        "rows": rows,
        **({_WHOLE: 1} if question.whole else {}),
        **({FORESEEN: foreseen} if foreseen is not None else {}),
        **{f"{_VALUE}{name}": value for name, value in question.values.items()},
    }
    return Ask(STATISTIC, shared=shared, to=sites, report=("sums",))


def read_question(ask: Ask) -> Question:
    """Read the question of an Ask.

    Args:
        ask: The Ask, as a site received it.

    Returns:
        The question.

    Raises:
        BadInput: The kind is unknown, or the shapes of its blocks are not valid.
    """
    kind = str(ask.shared.get(_KIND, ""))
    if kind not in ANSWERS:
        raise BadInput(
            f"statistic '{kind[:80]}' is unknown: install the same version everywhere", code="unknown-statistic"
        )
    try:
        blocks = {str(n): tuple(int(v) for v in shape) for n, shape in json.loads(str(ask.shared[_BLOCKS])).items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        raise BadInput(f"the question '{kind}' has no valid list of blocks", code="malformed-message") from None
    cells = tuple(name for name in str(ask.shared.get(_CELLS, "")).split(",") if name)
    values = {name.removeprefix(_VALUE): v for name, v in ask.shared.items() if name.startswith(_VALUE)}
    return Question(kind, values, blocks, cells=cells, whole=bool(ask.shared.get(_WHOLE, 0)))


def ask_shapes(theta: Array, sites: tuple[str, ...], *, family: str, outcome: Any, common: Sequence[str]) -> Ask:
    """Build the Ask after which each site stores its own shapes over those of an additive model.

    Args:
        theta: The common model.
        sites: The sites of the fit.
        family: "logistic", "linear" or "poisson".
        outcome: Units of the outcome, as the encoding has them; None for classes.
        common: Columns that keep the common shape at every site.

    Returns:
        An Ask for the report `stored`.
    """
    shared: dict[str, Value] = {
        SHAPES: np.asarray(theta, float),
        "family": family,
        "common": _BETWEEN.join(common),
        "shift": 0.0 if outcome is None else float(outcome.centre),
        "scale": 1.0 if outcome is None else float(outcome.scale),
    }
    return Ask(STORE, shared=shared, to=sites, report=(STORED,))


class StatisticSite(SitePlugin):
    """The sites' half of exact methods: sums over training rows."""

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self._rows: dict[int, Rows] = {}
        self._groups: dict[bytes, RowGroup] = {}
        self._part: object = None

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {STATISTIC: self._answer, STORE: self._store}

    def _answer(self, ask: Ask, members: Array) -> Columns:
        """Answer a question for these sites: one vector each."""
        question = read_question(ask)
        if len(members) > 1 and question.kind in GROUP_ANSWERS:
            blocks = GROUP_ANSWERS[question.kind](question, self._group(members))
            sums = np.array([pack_blocks(question, {n: b[k] for n, b in blocks.items()}) for k in range(len(members))])
        else:
            rows = [self._rows_of(k) for k in members.tolist()]
            sums = np.array([pack_blocks(question, ANSWERS[question.kind](question, mine)) for mine in rows])
        return {"sums": _as_whole(sums) if question.whole else sums}

    def _store(self, ask: Ask, members: Array) -> Columns:
        """Store each site's own intercept or shapes, as its model uses them. They stay at the site: the answer is yes."""
        if SHAPES in ask.shared:
            return self._store_shapes(ask, members)
        v = ask.shared
        tau2 = float(v["tau2"]) or None
        beta, family = np.asarray(v["beta"]), str(v["family"])
        own = [own_intercept(beta, self._rows_of(k), family=family, tau2=tau2) for k in members.tolist()]
        values = event_sign(self.site.encoding) * (np.array(own) - float(v["shift"])) / float(v["scale"])
        self.site.states.stage(members, ask.round, {"own": values[:, None]})
        return {STORED: np.ones(len(members), np.uint8)}

    def _store_shapes(self, ask: Ask, members: Array) -> Columns:
        """Store what each site adds to the common shapes of an additive model; its log names the columns."""
        model: Any = self.site.prepared_model()
        theta = np.asarray(ask.shared[SHAPES], float)
        arrays, common = model.read(theta), tuple(name for name in str(ask.shared["common"]).split(_BETWEEN) if name)
        stored = []
        for k in members.tolist():
            rows = self._rows_of(k)
            values = model.values(rows.x)
            score, y = model.scores(arrays, values)[:, 0], rows.y
            family, scale = str(ask.shared["family"]), float(ask.shared["scale"])
            if family == "poisson":
                score = score + np.log(scale)
            elif family == "linear":
                y = (y - float(ask.shared["shift"])) / scale
            own = fit_own_shapes(arrays, model.columns, values, y, score, family=family, common=common)
            name = self.site.stack.names[k]
            _log.info("%s: own shapes of %s", name, ", ".join(own.kept) or "no column: the common model is kept")
            stored.append(own.pack())
        self.site.states.stage(members, ask.round, {"own": np.array(stored)})
        return {STORED: np.ones(len(members), np.uint8)}

    def _rows_of(self, k: int) -> Rows:
        """Return the training rows of one site; they are built once."""
        part = self.site.stack.parts["train"]
        if self._part is not part:
            self._part, self._rows, self._groups = part, {}, {}
        if k not in self._rows:
            self._rows[k] = build_rows(self.site, k)
        return self._rows[k]

    def _group(self, members: Array) -> RowGroup:
        """Return the rows of several sites; a group is built once, so that what is stored about it is found again."""
        rows, key = tuple(self._rows_of(k) for k in members.tolist()), members.tobytes()
        return self._groups.setdefault(key, RowGroup(rows))


def build_rows(site: Any, k: int) -> Rows:
    """Build the rows of one site as statistics read them.

    Args:
        site: The host of the sites.
        k: Number of the site.

    Returns:
        Its training rows, with its validation rows.
    """
    name = site.stack.names[k]

    def draw(purpose: str) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=np.frombuffer(site.secret(name).bytes(purpose, 16), "<u8")))

    return replace(_part_rows(site, k, "train"), validation=_part_rows(site, k, "val"), random=draw)


def _part_rows(site: Any, k: int, name: str) -> Rows:
    stack = site.stack
    part = stack.parts[name]
    mine = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
    raw = getattr(stack.rows[k], name)
    patient = numeric = codes = None
    if stack.data.patient is not None:
        patient = np.unique(stack.data.patient[raw].astype(str), return_inverse=True)[1].ravel()
    if isinstance(stack.data, Dataset):
        numeric, codes = stack.data.numeric[raw], site.encoding.level_numbers(stack.data.take(raw))
    event = stack.event if part.time is None else 1
    binary = part.y.dtype.kind in "iu" and part.time is None and len(site.encoding.classes) == 2
    return Rows(
        np.asarray(part.x[mine], float),
        (part.y[mine] == event).astype(float) if binary else np.asarray(part.y[mine], float),
        time=None if part.time is None else np.asarray(part.time[mine], float),
        patient=patient,
        group=np.where(part.group[mine] < len(site.encoding.groups), part.group[mine], -1)
        if site.encoding.groups
        else None,
        numeric=numeric,
        codes=codes,
    )


def event_sign(encoding: AnyEncoding | None) -> float:
    """Return -1 if the event is the first of two classes, else 1: fits are of the event, and a model's log-odds of class 1.

    Args:
        encoding: The agreed encoding of rows.
    """
    if encoding is None or task_of(encoding) != CLASSIFICATION or len(encoding.classes) != 2:
        return 1.0
    return -1.0 if event_place(encoding.classes, encoding.event) == 0 else 1.0


def _as_whole(sums: Array) -> Array:
    """Return whole numbers as int32; refuse others, which would make the sum depend on who holds which row."""
    if not (np.rint(sums) == sums).all() or np.abs(sums).max(initial=0.0) > WHOLE_BOUND:
        raise BadInput("a sum is not a whole number of 30 bits", code="out-of-range")
    return sums.astype(np.int32)
