"""Questions about boosted trees as a site reads them: parsed and checked once, with digests of the trees."""

from __future__ import annotations

import hashlib
from dataclasses import InitVar, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from grandrounds.capabilities.statistics.boosting_losses import LossTerms
from grandrounds.capabilities.statistics.models.column_trees import MOST_BINS
from grandrounds.capabilities.statistics.models.columns import parse_columns
from grandrounds.capabilities.statistics.question import Question
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput


@dataclass(eq=False)
class TreesQuestion:
    """The trees and bins of a question, parsed and checked once for all sites of a process."""

    question: InitVar[Question]
    digests: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def __post_init__(self, question: Question) -> None:
        try:
            self._parse(question.values)
            self.loss = read_loss(question)
            sound = self._is_sound(question.values)
        except (KeyError, ValueError, TypeError, IndexError):
            sound = False
        if not sound:
            raise BadInput(
                f"the question '{question.kind}' has trees that do not fit each other", code="malformed-message"
            )

    def _parse(self, v: Any) -> None:
        self.columns = parse_columns(str(v["columns"]))
        self.edges, self.edge_counts = unpack_edges(v["edges"], v["edge_counts"])
        self.edges_key = digest_parts([str(v["columns"]).encode(), self.edges, self.edge_counts])
        self.column, self.value = np.asarray(v["column"], int), spread_values(np.asarray(v["value"], np.float64))
        self.masks, self.output = join_masks(v["low"], v["high"]), np.asarray(v["output"], int)
        self.start = np.asarray(v["start"], np.float64)
        texts = [f"{v[name]}".encode() for name in ("loss", "outputs", "centre", "unit")]
        times = [np.asarray(v[name]) for name in ("ends", "baseline", "spread") if name in v]
        self.outcome_key = digest_parts([*texts, *times[:1]])
        self.loss_key = digest_parts([*texts, *times])
        if "grow_column" in v:
            self.grow_column = np.asarray(v["grow_column"], int)
            self.grow_masks = join_masks(v["grow_low"], v["grow_high"])
            self.grow_output, self.tree_columns = np.asarray(v["grow_output"], int), np.asarray(v["tree_columns"], int)
            self.asked_tree, self.asked_node = np.asarray(v["asked_tree"], int), np.asarray(v["asked_node"], int)

    def _is_sound(self, v: Any) -> bool:
        """Check shapes and ranges: a question may come from a server that is wrong."""
        columns, outputs, trees = len(self.columns), self.loss.outputs, len(self.column)

        def within(array: Array, low: int, high: int) -> bool:
            return not array.size or (int(array.min()) >= low and int(array.max()) < high)

        sound = len(self.edge_counts) == columns and within(self.edge_counts, 0, MOST_BINS - 1)
        sound &= self.masks.shape == self.column.shape and self.value.shape == (trees, 2 * self.column.shape[1] + 1)
        sound &= self.start.shape == (outputs,) and self.output.shape == (trees,) and within(self.output, 0, outputs)
        sound &= within(self.column, -1, columns)
        if "grow_column" in v:
            growing, inner = self.grow_column.shape
            sound &= self.grow_masks.shape == (growing, inner) and within(self.grow_column, -1, columns)
            sound &= self.tree_columns.ndim == 2 and len(self.tree_columns) == growing == len(self.grow_output)
            sound &= within(self.tree_columns, 0, columns) and within(self.grow_output, 0, outputs)
            sound &= self.asked_tree.shape == self.asked_node.shape and len(self.asked_tree) > 0
            sound &= within(self.asked_tree, 0, growing) and within(self.asked_node, 0, 2 * inner + 1)
        return bool(sound)

    def growth_key(self, inner: int) -> bytes:
        """Return the digest of the first inner nodes of the growing trees."""
        if ("growth", inner) not in self.digests:
            parts = (self.grow_column[:, :inner], self.grow_masks[:, :inner])
            self.digests["growth", inner] = digest_parts([self.key(len(self.column)), *parts])
        return self.digests["growth", inner]

    def key(self, trees: int) -> bytes:
        """Return the digest of the first trees."""
        if ("trees", trees) not in self.digests:
            parts = (self.column, self.masks, self.value, self.output)
            self.digests["trees", trees] = digest_parts([self.edges_key, self.start, *(part[:trees] for part in parts)])
        return self.digests["trees", trees]


_PARSED: WeakKeyDictionary[Question, TreesQuestion] = WeakKeyDictionary()


def parse_question(question: Question) -> TreesQuestion:
    """Return the parsed question.

    Raises:
        BadInput: Its trees do not fit each other.
    """
    if question not in _PARSED:
        _PARSED[question] = TreesQuestion(question)
    return _PARSED[question]


def read_loss(question: Question) -> LossTerms:
    """Return the loss of a question."""
    v: Any = question.values
    arrays = {name: np.asarray(v[name], np.float64) for name in ("ends", "baseline", "spread") if name in v}
    return LossTerms(str(v["loss"]), int(v["outputs"]), float(v["centre"]), float(v["unit"]), **arrays)


def unpack_edges(edges: Any, edge_counts: Any) -> tuple[Array, Array]:
    """Return edges as (C, E) from the flat list that a question carries."""
    counts = np.asarray(edge_counts, int)
    out = np.full((len(counts), max(1, int(counts.max(initial=0)))), np.finfo(np.float64).max)
    out[np.arange(out.shape[1]) < counts[:, None]] = np.asarray(edges, np.float64)
    return out, counts


def spread_values(last: Array) -> Array:
    """Return the values of all nodes, (T, N), from those of the last level: a node has that of the first place below it."""
    levels = [last]
    while levels[0].shape[1] > 1:
        levels.insert(0, levels[0][:, ::2])
    return np.concatenate(levels, axis=1)


def join_masks(low: Any, high: Any) -> Array:
    """Return masks as uint64 from their halves; an empty second half is zeros."""
    first, second = np.asarray(low, np.uint64), np.asarray(high, np.uint64)
    return first if second.shape != first.shape else first | (second << np.uint64(32))


def digest_parts(parts: list[Any]) -> bytes:
    """Return a digest of bytes and arrays."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        hashed.update(len(content).to_bytes(8, "little") + content)
    return hashed.digest()
