"""Boosted trees from sums: histograms of whole-number gradients, level by level, for all trees of a round at once.

Sites round each row's gradient to a whole number before adding. Sums of whole numbers do not depend on order, so the trees have
the same bits for any division of the same rows into sites. An exchange asks for the smaller child of every split node; the sums
of its sibling are those of the parent less its own. Leaves need no exchange.

Several trees grow side by side from the same gradients, each on its own random part of the columns, and are averaged: fewer
exchanges than one tree at a time, with a larger learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from grandrounds.capabilities.statistics.boosting_answers import LEVEL, LOSS, RISK, START
from grandrounds.capabilities.statistics.boosting_bins import Bins, agree_bins
from grandrounds.capabilities.statistics.boosting_growth import (
    Forest,
    Front,
    GrowingTrees,
    choose_smaller,
    find_parents,
    split_masks,
    take_nodes,
)
from grandrounds.capabilities.statistics.boosting_losses import (
    COX,
    HAZARD,
    LARGEST_SCORE,
    LOGISTIC,
    MOST_LOSS,
    POISSON,
    SOFTMAX,
)
from grandrounds.capabilities.statistics.boosting_losses import LossTerms as Loss
from grandrounds.capabilities.statistics.boosting_result import Cells, TreesResult
from grandrounds.capabilities.statistics.boosting_splits import H, N, SplitRules, find_splits, leaf_values
from grandrounds.capabilities.statistics.boosting_terms import TreesTerms
from grandrounds.capabilities.statistics.models.column_trees import Trees
from grandrounds.capabilities.statistics.models.columns import write_columns
from grandrounds.capabilities.statistics.question import Fit, Question, Total
from grandrounds.capabilities.statistics.time_counts import LEAST, TimeCounts, count_by_cell, merge_cells
from grandrounds.core import rng
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import Value

LARGEST_SUM = 2.0**30 - 2.0**20
"""Largest sum over all rows, in a ring of 32 bits."""

FINEST = 16
"""Bits of a rounded gradient below one, if the rows are few enough."""

LEVELS = 8.0
"""Steps of a gradient that is rounded at random."""

FEWEST_COLUMNS = 3
"""Columns of a tree at least, so that trees of a narrow table join columns too."""

INTERVALS = 20
"""Time intervals of survival trees, about; each has `LEAST` events at least."""

_NODES_AT_ONCE = 512  # whose splits are searched together
_EMPTY_ROUNDS = 2  # without any split end the fit


def fit_trees(terms: TreesTerms) -> Fit[TreesResult]:
    """Fit boosted trees. Exchanges: 2 or 3 for bins, 1 for the outcome, then `depth` for each round.

    Survival takes 3 more for time intervals; the loss "cox" also one for each round.

    Args:
        terms: The terms.

    Returns:
        The trees.

    Raises:
        BadInput: There is no row, one class only, a constant outcome, or no column with two values.
    """
    if not terms.columns:
        raise BadInput("the table has no column for trees to split: list features", code="no-columns")
    bins = yield from agree_bins(terms.columns, bins=terms.bins, least=terms.least_in_bin)
    if not bins.total:
        raise BadInput("no site has a training row: look at the sites and the split", code="no-rows")
    if not len(bins.usable):
        raise BadInput("no column has two values: trees have nothing to split by", code="no-columns")
    fit = _Fit(terms, bins)
    yield from fit.begin()
    for round in range(terms.rounds):
        yield from fit.grow(round)
        if fit.has_ended:
            break
    if terms.early_stop and not fit.has_ended:
        total = yield fit.ask(LOSS, {"loss": (2,)}, step="validation loss")
        fit.note_loss(total)
    return fit.result()


class _Fit:
    """The server's state of a fit: finished trees, the loss, and the records of the result."""

    def __init__(self, terms: TreesTerms, bins: Bins) -> None:
        self.terms, self.bins, self.loss = terms, bins, terms.loss_terms
        self.forest = Forest(2 ** (terms.depth + 1) - 1)
        self.scale = find_scale(bins.total * self.loss.bound)
        if terms.is_stochastic:
            self.scale = min(LEVELS, self.scale)
        self.rules = SplitRules(self.scale, terms.ridge, terms.least, any(terms.signs))
        self.start = np.zeros(self.loss.outputs)
        self.cells = Cells()
        self.counts: TimeCounts | None = None
        self.loss_scale = 1.0
        self.validation: list[float] = []
        self.best, self.rounds, self.empty = 0, 0, 0
        self.has_ended, self.has_dropped = False, False
        self.next_baseline: Array | None = None
        self.notes = self._first_notes()

    def _first_notes(self) -> list[str]:
        out = []
        if self.terms.is_stochastic:
            out.append("gradients are rounded to 8 levels at random: the same rows at other sites give slightly other trees")
        elif self.scale < 2.0**FINEST:
            out.append(
                f"gradients of {self.bins.total:,} rows are rounded to 1/{int(self.scale):,}, so that their sums fit into 32 bits"
            )
        unused = sorted(set(range(len(self.terms.columns))) - set(self.bins.usable.tolist()))
        if unused:
            names = ", ".join(f"'{self.terms.columns[c].name}'" for c in unused)
            out.append(f"columns with one bin are left out: {names}")
        return out

    def begin(self) -> Fit[None]:
        """Find the score before the first tree, and for survival the time intervals and their baseline."""
        is_class = self.loss.name in (LOGISTIC, SOFTMAX)
        values: dict[str, Value] = {**self._loss_values(), "scale": find_scale(self.bins.total * self.loss.bound)}
        size = max(2, self.loss.outputs) if is_class else 2
        total = yield Question(
            START,
            values,
            {"sums": (size,), "validation": ()},
            step="outcome",
            cells=("sums",) if is_class else (),
            whole=True,
        )
        sums = np.rint(total["sums"])
        held_out = float(total["validation"])
        self.loss_scale = find_scale(max(1.0, held_out) * MOST_LOSS)
        if self.terms.early_stop and not held_out:
            raise BadInput(
                "method.trees.early_stop needs validation rows, and no site has any: set split.val, or early_stop = 0",
                code="no-validation-rows",
            )
        if is_class:
            self.start = _class_scores(sums, self.loss)
        elif not self.loss.is_survival:
            mean = float(sums[0]) / float(values["scale"]) / max(1.0, float(sums[1]))
            if self.loss.name == POISSON and mean <= 0:
                raise BadInput("every count is 0: nothing can be learnt", code="constant-label")
            self.start[0] = np.log(mean) if self.loss.name == POISSON else mean
        else:
            smallest = max(LEAST, self.terms.least_in_bin)
            counts = yield from count_by_cell(least=smallest)
            least = max(smallest, int(counts.events.sum()) // INTERVALS)
            self.counts = merge_cells(counts, least)
            if not len(self.counts.ends):
                raise BadInput(
                    f"survival trees need {smallest} events with as many rows at risk after them; there are "
                    f"{int(counts.events.sum())} events: use a larger table",
                    code="too-few-events",
                )
            events, at_risk = self.counts.events[0], self.counts.at_risk[0]
            rate = np.clip(events / np.maximum(at_risk, 1), 1e-6, 1 - 1e-6)
            self.loss = replace(
                self.loss, ends=self.counts.ends, baseline=np.log(rate / (1 - rate)), spread=np.zeros(len(rate))
            )

    def grow(self, round: int) -> Fit[None]:
        """Grow the trees of one round, level by level, and add them."""
        terms = self.terms
        if self.loss.name == COX:
            yield from self._ask_risk(round)
        grown = GrowingTrees(
            self._draw_columns(round), np.repeat(np.arange(self.loss.outputs), terms.parallel), self.forest.nodes
        )
        parents: Front | None = None
        front = Front(np.empty(0, int), np.empty(0, int), np.empty(0))
        for level in range(terms.depth):
            step = f"round {round + 1}, level {level + 1}"
            if level == 0:
                root = grown.join_roots(self.loss.outputs)
                asked = Front(np.arange(self.loss.outputs), np.zeros(self.loss.outputs, int), np.empty(0))
                total = yield self._ask_level(root, asked, level, self._extra_blocks(), step=step)
                self._note_extra(total)
                if self.has_ended:
                    return
                front = grown.share_roots(root, self._read_level(total, root, asked, None))
            else:
                total = yield self._ask_level(grown, front, level, {}, step=step)
                if total.is_new_roster:
                    self.has_dropped = True
                    self.notes.append(
                        f"round {round + 1}: a site dropped out, so its trees end at depth {level}, the last one of all "
                        "sites' sums"
                    )
                    break
                front = self._read_level(total, grown, front, parents)
            parents = self._split(grown, front)
            if level + 1 == terms.depth or not len(parents.tree):
                break
            front = choose_smaller(grown, parents, terms.least)
            if not len(front.tree):
                break
        self._finish(grown)

    def _draw_columns(self, round: int) -> Array:
        """Draw the columns of each tree of a round, (T, m) ascending."""
        usable = self.bins.usable
        size = max(min(FEWEST_COLUMNS, len(usable)), int(np.ceil(self.terms.share * len(usable) - 1e-9)))
        draws = rng.generator(self.terms.seed, purpose="trees.columns", round=round)
        trees = self.loss.outputs * self.terms.parallel
        return np.array([np.sort(draws.permutation(usable)[:size]) for _ in range(trees)])

    def ask(
        self,
        kind: str,
        blocks: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Value] | None = None,
        *,
        step: str,
        cells: tuple[str, ...] = (),
    ) -> Question:
        """Build a question about the finished trees."""
        counts = np.asarray(self.bins.edge_counts)
        inside = np.arange(self.bins.edges.shape[1]) < counts[:, None]
        shared: dict[str, Value] = {
            "columns": write_columns(self.terms.columns),
            "edges": self.bins.edges[inside],
            "edge_counts": counts.astype(np.uint8),
            **self._loss_values(),
            **self.forest.values(),
            "start": self.start,
            "scale": self.scale,
            "loss_scale": self.loss_scale,
            "stochastic": self.terms.is_stochastic,
            **(values or {}),
        }
        return Question(kind, shared, blocks, step=step, cells=cells, whole=True)

    def _loss_values(self) -> dict[str, Value]:
        loss = self.loss
        out: dict[str, Value] = {"loss": loss.name, "outputs": loss.outputs, "centre": loss.centre, "unit": loss.unit}
        if loss.ends is not None and loss.baseline is not None and loss.spread is not None:
            out |= {"ends": loss.ends, "baseline": loss.baseline, "spread": loss.spread}
        return out

    def _ask_level(
        self, grown: GrowingTrees, front: Front, level: int, extra: Mapping[str, tuple[int, ...]], *, step: str
    ) -> Question:
        inner = 2**level - 1
        low, high = split_masks(grown.masks[:, :inner])
        size = int(self.bins.widths[grown.columns[front.tree]].sum())
        names = ("g", "h", "rows") if self.loss.has_curvature else ("g", "rows")
        return self.ask(
            LEVEL,
            {**dict.fromkeys(names, (size,)), **extra},
            {
                "grow_column": grown.column[:, :inner],
                "grow_low": low,
                "grow_high": high,
                "grow_output": grown.output.astype(np.int16),
                "tree_columns": grown.columns.astype(np.int16),
                "asked_tree": front.tree.astype(np.int16),
                "asked_node": front.node.astype(np.int16),
                "scale_in_time": find_scale(float(self.bins.total)),
            },
            step=step,
            cells=("rows",),
        )

    def _extra_blocks(self) -> dict[str, tuple[int, ...]]:
        """Return the blocks that the first question of a round adds: validation loss, sums for the next baseline."""
        out: dict[str, tuple[int, ...]] = {"loss": (2,)} if self.terms.early_stop else {}
        if self.loss.name == HAZARD and self.loss.ends is not None:
            out["risk"] = (2, len(self.loss.ends))
        return out

    def _note_extra(self, total: Total) -> None:
        if self.terms.early_stop:
            self.note_loss(total)
        self.has_dropped |= total.is_new_roster  # events were counted over other sites: the baseline stays
        if (
            "risk" in total.values
            and self.counts is not None
            and self.loss.baseline is not None
            and not self.has_dropped
        ):
            # one Newton step of each interval's log-odds, for the next round
            expected, curvature = total["risk"] / find_scale(float(self.bins.total))
            step = (self.counts.events[0] - expected) / np.maximum(curvature, 1.0)
            self.next_baseline = self.loss.baseline + np.clip(step, -1.0, 1.0)

    def note_loss(self, total: Total) -> None:
        """Record the validation loss of the finished trees, and end the fit if it has not fallen for a while."""
        if len(self.validation) > self.rounds:  # a round without any split before
            return
        if total.is_new_roster:  # losses of other sites: compare none of them
            self.validation = [float("nan")] * self.rounds
            self.best = self.rounds
        mean = float(total["loss"][0]) / self.loss_scale / max(1.0, float(total["loss"][1]))
        self.validation.append(mean)
        if mean < self.validation[self.best]:
            self.best = self.rounds
        self.has_ended = self.rounds - self.best >= self.terms.early_stop

    def _ask_risk(self, round: int) -> Fit[None]:
        """Ask for the sums of exp(score) over the rows at risk, and compute Breslow's hazard of each interval."""
        assert self.counts is not None and self.loss.ends is not None
        rows = int(np.ceil(np.log2(max(2, self.bins.total))))
        low_bits = max(1, 29 - rows)
        scale = 2.0 ** (29 + low_bits - rows - int(np.ceil(LARGEST_SCORE / np.log(2))))
        m = len(self.loss.ends)
        total = yield self.ask(
            RISK,
            {"high": (m,), "low": (m,)},
            {"scale": scale, "low_bits": low_bits},
            step=f"round {round + 1}, rows at risk",
        )
        at_risk = np.maximum((total["high"] * 2.0**low_bits + total["low"]) / scale, 1e-6)
        events = self.counts.events[0]
        self.loss = replace(self.loss, baseline=events / at_risk, spread=events / at_risk**2)

    def _read_level(self, total: Total, grown: GrowingTrees, front: Front, parents: Front | None) -> Front:
        """Return all nodes of a level that may be split, with their histograms."""
        columns = grown.columns[front.tree]
        widths = self.bins.widths[columns]
        inside = np.arange(int(self.bins.widths.max())) < widths[..., None]
        sums = np.zeros((*inside.shape, 3), np.int64)
        for k, name in enumerate(("g", "h", "rows")):
            if name in total.values:
                sums[inside, k] = np.rint(total[name]).astype(np.int64)
        if not self.loss.has_curvature:
            sums[..., H] = sums[..., N] * int(self.scale)
        self.cells = self.cells.count(sums[..., N], asked=int(widths.sum()))
        if parents is None:
            grown.sums[front.tree, front.node] = sums[:, 0].sum(axis=1)
            return replace(front, histograms=sums)
        rest = parents.histograms[find_parents(parents, front)] - sums
        self.cells = self.cells.count(rest[..., N])
        sibling = np.where(front.node % 2 == 1, front.node + 1, front.node - 1)
        tree, node = np.concatenate([front.tree, front.tree]), np.concatenate([front.node, sibling])
        both = Front(tree, node, np.concatenate([sums, rest]))
        large = grown.sums[tree, node][:, N] >= 2 * self.terms.least
        return take_nodes(both, np.flatnonzero(large))

    def _split(self, grown: GrowingTrees, front: Front) -> Front:
        """Split nodes where a split has a gain; return the split nodes."""
        split = []
        for first in range(0, len(front.tree), _NODES_AT_ONCE):
            part = take_nodes(front, np.arange(first, min(first + _NODES_AT_ONCE, len(front.tree))))
            split.append(first + self._split_part(grown, part))
        return take_nodes(front, np.concatenate([np.empty(0, int), *split]))

    def _split_part(self, grown: GrowingTrees, front: Front) -> Array:
        columns = grown.columns[front.tree]
        is_category = np.array([c.is_category for c in self.terms.columns])
        signs = np.array(self.terms.signs or [0] * len(self.terms.columns))
        bounds = grown.bounds[front.tree, front.node]
        found = find_splits(
            front.histograms, self.bins.widths[columns], is_category[columns], signs[columns], bounds, self.rules
        )
        chosen = np.flatnonzero(found.gain > 0)
        tree, node = front.tree[chosen], front.node[chosen]
        column = columns[chosen, found.place[chosen]]
        grown.column[tree, node], grown.masks[tree, node] = column, found.mask[chosen]
        sums = (found.left[chosen], found.right[chosen])
        middle = (
            leaf_values(sums[0], bounds[chosen], self.rules) + leaf_values(sums[1], bounds[chosen], self.rules)
        ) / 2
        for child, side in ((2 * node + 1, 0), (2 * node + 2, 1)):
            grown.sums[tree, child] = sums[side]
            limits = bounds[chosen].copy()
            rises, falls = signs[column] > 0, signs[column] < 0
            upper, lower = (rises, falls) if side == 0 else (falls, rises)
            limits[upper, 1] = np.minimum(limits[upper, 1], middle[upper])
            limits[lower, 0] = np.maximum(limits[lower, 0], middle[lower])
            grown.bounds[tree, child] = limits
        return chosen

    def _finish(self, grown: GrowingTrees) -> None:
        """Compute the leaves of a round's trees and add the trees; a round without any split adds none."""
        if self.next_baseline is not None:
            self.loss = replace(self.loss, baseline=self.next_baseline)
        if not (grown.column >= 0).any():
            self.empty += 1
            if self.empty >= _EMPTY_ROUNDS:
                self.has_ended = True
                self.notes.append(f"boosting ended after {self.rounds} rounds: no split has a gain")
            return
        self.empty = 0
        value = leaf_values(grown.sums, grown.bounds, self.rules) * (self.terms.rate / self.terms.parallel)
        is_leaf = (grown.column < 0) & (grown.sums[..., N] > 0)
        self.forest.add(grown, np.where(is_leaf, value, 0.0))
        self.rounds += 1

    def result(self) -> TreesResult:
        """Return the trees, in the units of the outcome; with early stopping those of the best round."""
        terms, forest, fitted = self.terms, self.forest, self.loss
        rounds = self.best if terms.early_stop else self.rounds
        if rounds < self.rounds:
            self.notes.append(f"early stopping: {rounds} of {self.rounds} rounds have the lowest validation loss")
        last = rounds * terms.parallel * fitted.outputs
        low, high = split_masks(forest.masks[:last])
        factor, start = fitted.unit / terms.unit, self.start
        if fitted.name == POISSON:
            factor, start = 1.0, start + np.log(fitted.unit / terms.unit)
        elif factor != 1.0 or fitted.centre != terms.centre:
            start = start * factor + (fitted.centre - terms.centre) / terms.unit
        trees = Trees(
            edges=self.bins.edges,
            edge_counts=self.bins.edge_counts,
            column=forest.column[:last].astype(np.int64),
            low=low.astype(np.int64),
            high=high.astype(np.int64),
            value=forest.value[:last] * factor,
            output=forest.output[:last].astype(np.int64),
            start=start,
        )
        return TreesResult(
            trees,
            rounds,
            terms.parallel,
            self.cells,
            self.bins.rows,
            self.bins.points,
            tuple(self.validation),
            tuple(self.notes),
        )


def find_scale(most: float) -> float:
    """Return the scale, a power of two, at which whole numbers whose values add up to `most` stay within 30 bits.

    Args:
        most: Rows times the largest value of a row.
    """
    return float(np.exp2(min(FINEST, int(np.floor(np.log2(LARGEST_SUM / most))))))


def _class_scores(counts: Array, loss: Loss) -> Array:
    """Return the scores whose probabilities are the shares of the classes."""
    if (counts > 0).sum() < 2:
        raise BadInput(
            "the label has one class only in the training rows of all sites: nothing can be learnt", code="one-class"
        )
    if loss.name == LOGISTIC:
        return np.array([np.log(counts[1] / counts[0])])
    return np.asarray(np.log(np.maximum(counts, 0.5) / counts.sum()))
