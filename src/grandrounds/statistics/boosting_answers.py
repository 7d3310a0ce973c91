"""A site's half of boosted trees: histograms of whole-number gradients (kind `trees.level`) and losses (`trees.loss`).

A question carries the finished trees and the growing ones, so that an answer depends on the question and the rows alone. Bins and
scores of rows are stored between questions, because adding the newest trees is faster than adding all of them again.
"""

from __future__ import annotations

import hashlib
from dataclasses import InitVar, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models.column_trees import bin_values, walk_tree
from grandrounds.models.columns import parse_columns, read_columns
from grandrounds.statistics.boosting_bins import COUNTS, answer_counts
from grandrounds.statistics.boosting_losses import (
    LARGEST_SCORE,
    LOGISTIC,
    SOFTMAX,
    LossTerms,
    gradients,
    interval_hazards,
    read_outcome,
    row_losses,
)
from grandrounds.statistics.question import Answer, Blocks, Question, Rows

LEVEL, START, LOSS, RISK = "trees.level", "trees.start", "trees.loss", "trees.risk"
"""Kinds of question: histograms of a level, sums of the outcome, validation losses, and rows at risk of survival trees."""

_PACK = 2.0**31  # rows and curvatures share one sum: curvatures stay below 2^30, and both below 2^53
_WIDE = 4096  # from so many rows on, one column is counted at a time


@dataclass(eq=False)
class _Stored:
    """Bins of a site's rows, their outcome, and their scores after the first trees of a fit."""

    edges: bytes
    bins: Array  # (n, C) uint8
    outcome: tuple[bytes, Array, Array | None] | None = None
    scores: Array | None = None  # (outputs, n)
    trees: int = 0  # number of trees in the scores
    key: bytes = b""  # their digest
    gradients: tuple[bytes, Array, Array] | None = None


@dataclass(eq=False)
class _Parsed:
    """The trees and bins of a question, parsed once for all sites of a process."""

    question: InitVar[Question]
    digests: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self, question: Question) -> None:
        v: Any = question.values
        self.columns = parse_columns(str(v["columns"]))
        self.edges, self.edge_counts = unpack_edges(v["edges"], v["edge_counts"])
        self.edges_key = _digest([str(v["columns"]).encode(), self.edges, self.edge_counts])
        self.column, self.value = np.asarray(v["column"], int), np.asarray(v["value"], np.float64)
        self.masks, self.output = _join_masks(v["low"], v["high"]), np.asarray(v["output"], int)
        self.start = np.asarray(v["start"], np.float64)
        self.loss = read_loss(question)
        texts = [f"{v[name]}".encode() for name in ("loss", "outputs", "centre", "unit")]
        times = [np.asarray(v[name]) for name in ("ends", "baseline", "spread") if name in v]
        self.outcome_key = _digest([*texts, *times[:1]])
        self.loss_key = _digest([*texts, *times])

    def key(self, trees: int) -> bytes:
        """Return the digest of the first trees."""
        if trees not in self.digests:
            parts = (self.column, self.masks, self.value, self.output)
            self.digests[trees] = _digest([self.edges_key, self.start, *(part[:trees] for part in parts)])
        return self.digests[trees]


_STORED: WeakKeyDictionary[Rows, _Stored] = WeakKeyDictionary()
_PARSED: WeakKeyDictionary[Question, _Parsed] = WeakKeyDictionary()


def answer_start(question: Question, rows: Rows) -> Blocks:
    """Sum the outcome: rows of each class, or whole-number outcomes and rows; and count validation rows."""
    loss, scale = read_loss(question), float(question.values["scale"])
    held_out = np.asarray(0 if rows.validation is None else len(rows.validation))
    if loss.is_survival:
        return {"sums": np.array([rows.y.sum(), len(rows)]), "validation": held_out}
    y, _ = read_outcome(loss, rows)
    if loss.name in (LOGISTIC, SOFTMAX):
        return {"sums": np.bincount(y.astype(int), minlength=max(2, loss.outputs)), "validation": held_out}
    whole = np.rint(np.clip(y, -loss.bound, loss.bound) * scale)
    return {"sums": np.array([whole.sum(), len(y)]), "validation": held_out}


def answer_level(question: Question, rows: Rows) -> Blocks:
    """Sum gradients, curvatures and rows by asked node, column of its tree, and bin."""
    v, parsed, stored = question.values, _parse(question), _store(question, rows)
    g, h = _whole_gradients(question, rows, stored)
    outputs, chosen = np.asarray(v["grow_output"], int), np.asarray(v["tree_columns"], int)
    column, masks = np.asarray(v["grow_column"], int), _join_masks(v["grow_low"], v["grow_high"])
    tree, node = np.asarray(v["asked_tree"], int), np.asarray(v["asked_node"], int)
    widths, has_curvature = parsed.edge_counts + 2, parsed.loss.has_curvature
    parts = []
    for t in np.unique(tree).tolist():
        place, k = walk_tree(stored.bins, column[t], masks[t]), outputs[t]
        parts.append(
            _count(stored.bins, chosen[t], widths, place, node[tree == t], g[k], h[k] if has_curvature else None)
        )
    names = ("g", "h", "rows") if has_curvature else ("g", "rows")
    out: dict[str, Array] = {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(names)}
    if "loss" in question.blocks:
        out["loss"] = _sum_losses(question, rows)
    if "risk" in question.blocks:
        out["risk"] = _sum_hazards(question, rows, stored)
    return out


def answer_loss(question: Question, rows: Rows) -> Blocks:
    """Sum the whole-number losses of validation rows."""
    return {"loss": _sum_losses(question, rows)}


def answer_risk(question: Question, rows: Rows) -> Blocks:
    """Sum exp(score) over the rows at risk in each interval of time, in two whole numbers: sum = high 2^bits + low."""
    parsed, stored = _parse(question), _store(question, rows)
    _, last = _outcome(parsed, rows, stored)
    assert last is not None and stored.scores is not None and parsed.loss.ends is not None
    bits = int(question.values["low_bits"])
    risk = np.exp(np.clip(stored.scores[0], -LARGEST_SCORE, LARGEST_SCORE))
    whole = np.rint(risk * float(question.values["scale"])).astype(np.int64)
    m = len(parsed.loss.ends)
    parts = {"high": whole >> bits, "low": whole & ((1 << bits) - 1)}
    return {
        name: np.bincount(last - 1, weights=part.astype(float), minlength=m)[::-1].cumsum()[::-1]
        for name, part in parts.items()
    }


TREES_ANSWERS: dict[str, Answer] = {
    COUNTS: answer_counts,
    START: answer_start,
    LEVEL: answer_level,
    LOSS: answer_loss,
    RISK: answer_risk,
}
"""The sites' halves by kind of question."""


def read_loss(question: Question) -> LossTerms:
    """Return the loss of a question."""
    v: Any = question.values
    arrays = {name: np.asarray(v[name], np.float64) for name in ("ends", "baseline", "spread") if name in v}
    return LossTerms(str(v["loss"]), int(v["outputs"]), float(v["centre"]), float(v["unit"]), **arrays)


def _count(
    bins: Array, columns: Array, widths: Array, place: Array, asked: Array, g: Array, h: Array | None
) -> tuple[Array, ...]:
    """Return (g, h, rows), or (g, rows) without h, of one tree: flat over asked nodes, columns and bins."""
    number = np.full(max(int(place.max(initial=0)), int(asked.max())) + 1, -1)
    number[asked] = np.arange(len(asked))
    mine = number[place]
    inside = mine >= 0
    if not inside.all():
        bins, mine, g = bins[inside], mine[inside], g[inside]
        h = None if h is None else h[inside]
    first = np.concatenate([[0], np.cumsum(widths[columns])])
    size = int(first[-1])
    sums: list[Array] = [np.zeros(size * len(asked)) for _ in range(2)]
    second = None if h is None else h + _PACK
    if len(mine) < _WIDE:
        cell = (bins[:, columns] + (mine * size)[:, None] + first[:-1]).ravel()
        sums[0] = np.bincount(cell, np.repeat(g, len(columns)), minlength=len(sums[0]))
        both = None if second is None else np.repeat(second, len(columns))
        sums[1] = np.bincount(cell, both, minlength=len(sums[1]))
    else:
        for c, at in zip(columns.tolist(), first.tolist(), strict=False):
            width = int(widths[c])
            cell = mine * width + bins[:, c]
            for k, weights in enumerate((g, second)):
                part = np.bincount(cell, weights, minlength=width * len(asked)).reshape(len(asked), width)
                sums[k].reshape(len(asked), size)[:, at : at + width] = part
    if h is None:
        return sums[0], sums[1]
    rows = np.floor(sums[1] / _PACK)
    return sums[0], sums[1] - rows * _PACK, rows


def _whole_gradients(question: Question, rows: Rows, stored: _Stored) -> tuple[Array, Array]:
    """Return gradients and curvatures as whole numbers, (outputs, n); they are computed once for all levels of a round."""
    parsed, scale = _parse(question), float(question.values["scale"])
    key = _digest([stored.key, parsed.loss_key, np.float64(scale)])
    if stored.gradients is None or stored.gradients[0] != key:
        y, last = _outcome(parsed, rows, stored)
        assert stored.scores is not None
        g, h = gradients(parsed.loss, y, last, stored.scores)
        stored.gradients = (key, np.rint(g * scale), np.rint(h * scale))
    return stored.gradients[1], stored.gradients[2]


def _sum_losses(question: Question, rows: Rows) -> Array:
    """Return the summed loss of validation rows, each rounded to a whole number, and their number."""
    mine = rows.validation
    if mine is None or not len(mine):
        return np.zeros(2)
    parsed, stored = _parse(question), _store(question, mine)
    y, last = _outcome(parsed, mine, stored)
    assert stored.scores is not None
    losses = np.rint(row_losses(parsed.loss, y, last, stored.scores) * float(question.values["loss_scale"]))
    return np.array([losses.sum(), len(losses)])


def _sum_hazards(question: Question, rows: Rows, stored: _Stored) -> Array:
    """Return the expected events of each interval of time and their curvature, (2, m), for the next baseline."""
    parsed = _parse(question)
    _, last = _outcome(parsed, rows, stored)
    assert stored.scores is not None
    p, odds = interval_hazards(parsed.loss, last, stored.scores[0])
    scale = float(question.values["scale_in_time"])
    return np.stack([np.rint(p * scale).sum(axis=1), np.rint(p * odds * scale).sum(axis=1)])


def _parse(question: Question) -> _Parsed:
    if question not in _PARSED:
        _PARSED[question] = _Parsed(question)
    return _PARSED[question]


def _store(question: Question, rows: Rows) -> _Stored:
    """Return bins and scores of rows for the trees of a question, from those stored before where they fit."""
    parsed, stored = _parse(question), _STORED.get(rows)
    if stored is None or stored.edges != parsed.edges_key:
        bins = bin_values(read_columns(rows.x, parsed.columns), parsed.edges, parsed.edge_counts)
        stored = _STORED[rows] = _Stored(parsed.edges_key, np.ascontiguousarray(bins))
    trees = len(parsed.column)
    if stored.scores is None or stored.trees > trees or stored.key != parsed.key(stored.trees):
        stored.scores, stored.trees = np.repeat(parsed.start[:, None], len(rows), axis=1), 0
    for t in range(stored.trees, trees):
        leaf = walk_tree(stored.bins, parsed.column[t], parsed.masks[t])
        stored.scores[parsed.output[t]] += parsed.value[t][leaf]
    stored.trees, stored.key = trees, parsed.key(trees)
    return stored


def _outcome(parsed: _Parsed, rows: Rows, stored: _Stored) -> tuple[Array, Array | None]:
    if stored.outcome is None or stored.outcome[0] != parsed.outcome_key:
        stored.outcome = (parsed.outcome_key, *read_outcome(parsed.loss, rows))
    return stored.outcome[1], stored.outcome[2]


def unpack_edges(edges: Any, edge_counts: Any) -> tuple[Array, Array]:
    """Return edges as (C, E) from the flat list that a question carries."""
    counts = np.asarray(edge_counts, int)
    out = np.full((len(counts), max(1, int(counts.max(initial=0)))), np.finfo(np.float64).max)
    out[np.arange(out.shape[1]) < counts[:, None]] = np.asarray(edges, np.float64)
    return out, counts


def _join_masks(low: Any, high: Any) -> Array:
    return np.asarray(low, np.uint64) | (np.asarray(high, np.uint64) << np.uint64(32))


def _digest(parts: list[Any]) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        hashed.update(len(content).to_bytes(8, "little") + content)
    return hashed.digest()
