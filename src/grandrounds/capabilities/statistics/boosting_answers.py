"""A site's half of boosted trees: histograms of whole-number gradients (kind `trees.level`) and losses (`trees.loss`).

A question carries the finished trees and the growing ones, so that an answer depends on the question and the rows alone. Bins and
scores of rows are stored between questions, because adding the newest trees is faster than adding all of them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from grandrounds.capabilities.statistics.boosting_bins import COUNTS, answer_counts, read_values
from grandrounds.capabilities.statistics.boosting_losses import (
    LARGEST_SCORE,
    LOGISTIC,
    SOFTMAX,
    gradients,
    interval_hazards,
    read_outcome,
    row_losses,
)
from grandrounds.capabilities.statistics.boosting_question import TreesQuestion, digest_parts, parse_question, read_loss
from grandrounds.capabilities.statistics.models.column_trees import bin_values
from grandrounds.capabilities.statistics.question import Answer, Blocks, GroupAnswer, Question, RowGroup, Rows
from grandrounds.core.arrays import Array
from grandrounds.models.tree_scores import add_scores

LEVEL, START, LOSS, RISK = "trees.level", "trees.start", "trees.loss", "trees.risk"
"""Kinds of question: histograms of a level, sums of the outcome, validation losses, and rows at risk of survival trees."""

_PACK = 2.0**31  # rows and curvatures share one sum: curvatures stay below 2^30, and both below 2^53
_MOST_PACKED = 1 << 21  # rows of a process up to which they do
_SMALL = 1 << 15  # cells of a table up to which all columns are counted at once


@dataclass(eq=False)
class _Stored:
    """Bins of the rows of one or more sites, their outcome, and their scores after the first trees of a fit."""

    edges: bytes
    bins: Array  # (C, n) uint8
    site: Array  # (n,) number of the site
    outcome: tuple[bytes, Array, Array | None] | None = None
    scores: Array | None = None  # (outputs, n)
    trees: int = 0  # number of trees in the scores
    key: bytes = b""  # their digest
    gradients: tuple[bytes, Array, Array] | None = None
    growth: tuple[bytes, int] = (b"", 0)  # digest and number of the inner nodes of the growing trees behind `places`
    places: Array | None = None  # (T, n) node of each row in each growing tree


@dataclass(frozen=True, eq=False)
class _Sites:
    """The rows of the sites that are answered for together. What is stored about them is found by `key`."""

    key: Rows | RowGroup
    rows: tuple[Rows, ...]

    @property
    def validation(self) -> _Sites | None:
        """Their validation rows; None if there are none."""
        if isinstance(self.key, Rows):
            return None if self.key.validation is None else _Sites(self.key.validation, (self.key.validation,))
        group = self.key.validation
        return None if group is None else _Sites(group, group.rows)

    def sum(self, site: Array, values: Array) -> Array:
        """Add whole numbers (n,) by site, (sites,)."""
        return np.bincount(site, values, minlength=len(self.rows))


_STORED: WeakKeyDictionary[Rows | RowGroup, _Stored] = WeakKeyDictionary()


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
    return _only(_sum_level(question, _Sites(rows, (rows,))))


def answer_levels(question: Question, group: RowGroup) -> Blocks:
    """Answer as `answer_level` for several sites in one pass over their rows."""
    return _sum_level(question, _Sites(group, group.rows))


def answer_loss(question: Question, rows: Rows) -> Blocks:
    """Sum the whole-number losses of validation rows."""
    return _only({"loss": _sum_losses(question, _Sites(rows, (rows,)))})


def answer_risk(question: Question, rows: Rows) -> Blocks:
    """Sum exp(score) over the rows at risk in each interval of time, in two whole numbers: sum = high 2^bits + low."""
    sites = _Sites(rows, (rows,))
    parsed, stored = parse_question(question), _store(question, sites)
    _, last = _outcome(parsed, sites, stored)
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

TREES_GROUP_ANSWERS: dict[str, GroupAnswer] = {LEVEL: answer_levels}
"""Answers for several sites at once."""


def _only(blocks: Blocks) -> Blocks:
    return {name: block[0] for name, block in blocks.items()}


def _sum_level(question: Question, sites: _Sites) -> dict[str, Array]:
    """Return the blocks of a level, with the sites as first axis."""
    parsed, stored = parse_question(question), _store(question, sites)
    g, h = _whole_gradients(question, sites, stored)
    is_packed = parsed.loss.has_curvature and len(stored.site) <= _MOST_PACKED
    second_weight = h + _PACK if is_packed else None
    outputs, chosen, tree, node = parsed.grow_output, parsed.tree_columns, parsed.asked_tree, parsed.asked_node
    places, widths, count = _places(parsed, stored, len(outputs)), parsed.edge_counts + 2, len(sites.rows)
    parts, curvatures = [], []
    for t in np.unique(tree).tolist():
        k, asked = int(outputs[t]), node[tree == t]
        mine = stored.site
        if places is not None:
            number = np.full(2 * parsed.grow_column.shape[1] + 1, -1)
            number[asked] = np.arange(len(asked))
            mine = number[places[t]]
            mine = np.where(mine >= 0, mine + stored.site * len(asked), -1) if count > 1 else mine
        weights = (g[k], None if second_weight is None else second_weight[k])
        columns = _count(stored.bins, chosen[t].tolist(), widths, mine, len(asked) * count, weights)
        if parsed.loss.has_curvature and not is_packed:
            apart = _count(stored.bins, chosen[t].tolist(), widths, mine, len(asked) * count, (h[k], None))
            curvatures.append(np.concatenate([pair[0] for pair in apart], axis=1).reshape(count, -1))
        parts += [np.concatenate([pair[j] for pair in columns], axis=1).reshape(count, -1) for j in (0, 1)]
    first, second = np.concatenate(parts[::2], axis=1), np.concatenate(parts[1::2], axis=1)
    out: dict[str, Array] = {"g": first, "rows": second}
    if is_packed:
        out["rows"] = np.floor(second / _PACK)
        out["h"] = second - out["rows"] * _PACK
    elif curvatures:
        out["h"] = np.concatenate(curvatures, axis=1)
    if "loss" in question.blocks:
        out["loss"] = _sum_losses(question, sites)
    if "risk" in question.blocks:
        out["risk"] = _sum_hazards(question, sites, stored)
    return out


def _count(
    bins: Array, columns: list[int], widths: Array, mine: Array, asked: int, weights: tuple[Array, Array | None]
) -> list[tuple[Array, Array]]:
    """Sum two weights, or one and the rows, by asked node and bin of each column: a pair of (asked, width) for each column.

    Args:
        bins: (C, n).
        columns: The columns.
        widths: (C,) bins of each column.
        mine: (n,) number of each row's node among the asked ones; -1: none.
        asked: Number of asked nodes.
        weights: Both (n,); None for the rows themselves.
    """
    inside = np.flatnonzero(mine >= 0)
    is_part = len(inside) < len(mine)
    if is_part:
        mine, weights = mine[inside], (weights[0][inside], None if weights[1] is None else weights[1][inside])
    if len(mine) * len(columns) < _SMALL:
        first = np.concatenate([[0], np.cumsum(widths[columns])])
        size, place = int(first[-1]), np.array(columns, int)[:, None]
        block = bins[place, inside] if is_part else bins[place[:, 0]]
        cell = (block + (mine * size + first[:-1, None])).ravel()
        sums = [
            np.bincount(cell, None if w is None else np.tile(w, len(columns)), minlength=size * asked).reshape(
                asked, size
            )
            for w in weights
        ]
        ends = list(pairwise(first.tolist()))
        return [(sums[0][:, a:b], sums[1][:, a:b]) for a, b in ends]
    out = []
    for c in columns:
        width = int(widths[c])
        cell = mine * width + (bins[c][inside] if is_part else bins[c])
        pair = [np.bincount(cell, w, minlength=width * asked).reshape(asked, width) for w in weights]
        out.append((pair[0], pair[1]))
    return out


def _places(parsed: TreesQuestion, stored: _Stored, trees: int) -> Array | None:
    """Return the node of each row in each growing tree, one step below those stored before; None while all are at the root."""
    inner, n = parsed.grow_column.shape[1], stored.bins.shape[1]
    if inner == 0:
        return None
    done = stored.growth[1]
    if stored.places is None or done > inner or stored.growth[0] != parsed.growth_key(done):
        stored.places, done = np.zeros((trees, n), np.intp), 0
    rows = np.arange(n)
    for _ in range((inner + 1).bit_length() - (done + 1).bit_length()):
        for t in range(trees):
            stored.places[t] = step_down(
                stored.bins, rows, stored.places[t], parsed.grow_column[t], parsed.grow_masks[t]
            )
    stored.growth = (parsed.growth_key(inner), inner)
    return stored.places


def step_down(bins: Array, rows: Array, node: Array, column: Array, masks: Array) -> Array:
    """Return the nodes (n,) one level below, or the same ones at leaves.

    Args:
        bins: (C, n).
        rows: 0 to n - 1.
        node: (n,).
        column: (N,) column of each node; -1 at a leaf.
        masks: (N,) uint64.
    """
    asked = column[node]
    bin = bins[np.maximum(asked, 0), rows].astype(np.uint64)
    left = ((masks[node] >> bin) & np.uint64(1)).astype(np.intp)
    return np.where(asked >= 0, 2 * node + 2 - left, node)


def _whole_gradients(question: Question, sites: _Sites, stored: _Stored) -> tuple[Array, Array]:
    """Return gradients and curvatures as whole numbers, (outputs, n); they are computed once for all levels of a round."""
    parsed, scale = parse_question(question), float(question.values["scale"])
    is_stochastic = bool(question.values.get("stochastic", False))
    key = digest_parts([stored.key, parsed.loss_key, np.float64(scale), np.uint8(is_stochastic)])
    if stored.gradients is None or stored.gradients[0] != key:
        y, last = _outcome(parsed, sites, stored)
        assert stored.scores is not None
        g, h = (scale * part for part in gradients(parsed.loss, y, last, stored.scores))
        if is_stochastic:
            up = _draw(sites.rows, key.hex(), 2 * len(g))
            stored.gradients = (key, np.floor(g + up[: len(g)]), np.floor(h + up[len(g) :]))
        else:
            stored.gradients = (key, np.rint(g), np.rint(h))
    return stored.gradients[1], stored.gradients[2]


def _draw(rows: Sequence[Rows], purpose: str, count: int) -> Array:
    """Draw numbers in [0, 1), (count, n), from each site's own randomness: the same ones for the same trees."""
    return np.concatenate([part.generator(f"trees: {purpose}").random((count, len(part))) for part in rows], axis=1)


def _sum_losses(question: Question, sites: _Sites) -> Array:
    """Return the summed loss of validation rows, each rounded to a whole number, and their number: (sites, 2)."""
    mine = sites.validation
    if mine is None:
        return np.zeros((len(sites.rows), 2))
    parsed, stored = parse_question(question), _store(question, mine)
    y, last = _outcome(parsed, mine, stored)
    assert stored.scores is not None
    losses = np.rint(row_losses(parsed.loss, y, last, stored.scores) * float(question.values["loss_scale"]))
    return np.stack([mine.sum(stored.site, losses), mine.sum(stored.site, np.ones(len(losses)))], axis=1)


def _sum_hazards(question: Question, sites: _Sites, stored: _Stored) -> Array:
    """Return the expected events of each interval of time and their curvature, (sites, 2, m), for the next baseline."""
    parsed = parse_question(question)
    _, last = _outcome(parsed, sites, stored)
    assert stored.scores is not None
    p, odds = interval_hazards(parsed.loss, last, stored.scores[0])
    scale = float(question.values["scale_in_time"])
    both = np.concatenate([np.rint(p * scale), np.rint(p * odds * scale)])
    return np.stack([sites.sum(stored.site, row) for row in both], axis=1).reshape(len(sites.rows), 2, -1)


def _store(question: Question, sites: _Sites) -> _Stored:
    """Return bins and scores of rows for the trees of a question, from those stored before where they fit."""
    parsed, stored = parse_question(question), _STORED.get(sites.key)
    if stored is None or stored.edges != parsed.edges_key:
        text = str(question.values["columns"])
        bins = [
            bin_values(read_values(part, text, is_last=True), parsed.edges, parsed.edge_counts).T for part in sites.rows
        ]
        site = np.repeat(np.arange(len(sites.rows)), [len(part) for part in sites.rows])
        stored = _STORED[sites.key] = _Stored(
            parsed.edges_key, np.ascontiguousarray(np.concatenate(bins, axis=1)), site
        )
    trees = len(parsed.column)
    if stored.scores is None or stored.trees > trees or stored.key != parsed.key(stored.trees):
        stored.scores, stored.trees = np.repeat(parsed.start[:, None], len(stored.site), axis=1), 0
    if trees > stored.trees and len(stored.site):
        new, leaves = slice(stored.trees, trees), parsed.value.shape[1] - parsed.column.shape[1]
        column = np.pad(parsed.column[new], ((0, 0), (0, leaves)), constant_values=-1)
        masks = np.pad(parsed.masks[new], ((0, 0), (0, leaves)))
        add_scores(stored.scores, stored.bins.T, column, masks, parsed.value[new], parsed.output[new])
    stored.trees, stored.key = trees, parsed.key(trees)
    return stored


def _outcome(parsed: TreesQuestion, sites: _Sites, stored: _Stored) -> tuple[Array, Array | None]:
    if stored.outcome is None or stored.outcome[0] != parsed.outcome_key:
        parts = [read_outcome(parsed.loss, part) for part in sites.rows]
        last = [part[1] for part in parts if part[1] is not None]
        y = np.concatenate([part[0] for part in parts])
        stored.outcome = (parsed.outcome_key, y, np.concatenate(last) if last else None)
    return stored.outcome[1], stored.outcome[2]
