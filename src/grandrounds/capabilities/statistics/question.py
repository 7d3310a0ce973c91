"""Statistics that add: a question to all sites, one summed answer of fixed shape, and the next question from the sum alone.

A statistic has two halves, in one file. At the site, a function turns a public question and the site's own rows into arrays
of a fixed shape. At the server, a generator yields questions, is sent their totals, and returns the result:

    def fit_mean() -> Fit[float]:
        total = yield Question("mean", {}, {"n": (), "sum": ()})
        return float(total["sum"] / total["n"])

    def answer_mean(question: Question, rows: Rows) -> Blocks:
        return {"n": np.float64(len(rows.y)), "sum": rows.y.sum()}

The server adds arrays and nothing else. Under secure aggregation it receives the sum and no summand.
`answers.ANSWERS` has one line for each kind of question. The generator holds no random numbers and reads no
clock, so a resumed fit replays earlier totals and ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.protocol.messages import Value

Blocks = Mapping[str, Array]
"""The arrays of an answer, by name."""

BOUND = 2.0**24
"""Largest entry of a site's answer in a secure sum: 64 bits leave steps of 2^-36 to 2^-30 for 4 to 185 sites."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one site, as a statistic reads them.

    Attributes:
        x: Inputs in agreed units, (n, p) float64, without a column for the intercept.
        y: Outcome, (n,) float64: 0 or 1, a number, a count; for survival 1 where the event was observed.
        time: Follow-up time, (n,), for survival.
        patient: Number of the patient of each row, (n,), if the table has a patient column.
        group: Number of the group of each row, (n,), -1 for none; groups of Table 1 and of the log-rank test.
        numeric: Numbers as recorded, (n, a), NaN where missing; for Table 1.
        codes: Categories as recorded, (n, b): place among the agreed levels, -1 where missing; for Table 1.
        weight: Weight of each row, (n,); None: 1.
        offset: Offset of the linear predictor, (n,); None: 0.
        validation: The site's validation rows, for early stopping; None in the rows of a test.
        random: The site's own randomness: a generator for each purpose. None: one that follows from the purpose alone.
    """

    x: Array
    y: Array
    time: Array | None = None
    patient: Array | None = None
    group: Array | None = None
    numeric: Array | None = None
    codes: Array | None = None
    weight: Array | None = None
    offset: Array | None = None
    validation: Rows | None = None
    random: Callable[[str], np.random.Generator] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the generator of one purpose, from the site's own randomness where it has any."""
        return generator(0, purpose=purpose) if self.random is None else self.random(purpose)


@dataclass(frozen=True, eq=False)
class RowGroup:
    """The rows of several sites of one process, which one pass may answer for (a simulation)."""

    rows: tuple[Rows, ...]

    @cached_property
    def validation(self) -> RowGroup | None:
        """Their validation rows; None if a site has none at all."""
        parts = tuple(part.validation for part in self.rows if part.validation is not None)
        return RowGroup(parts) if len(parts) == len(self.rows) else None


@dataclass(frozen=True, eq=False)
class Question:
    """A question to all sites.

    Attributes:
        kind: Name of the answering function in `ANSWERS`.
        values: Public arrays, numbers and short texts that are sent.
        blocks: Shape of each array of the answer, by name.
        step: Text for progress and the ledger, such as "Newton step 3".
        cells: Blocks that count patients. In the clear, a site refuses the question if one of its own counts is small.
        by_site: The fit uses the answers of single sites, where they come in the clear (`Total.by_site`).
        whole: Every number of the answer is a whole number, and so is its sum over all sites, which is within +-2^30 for any
            division of the rows into sites: the sum does not depend on who holds which row. It is sent in 32 bits.
    """

    kind: str
    values: Mapping[str, Value]
    blocks: Mapping[str, tuple[int, ...]]
    step: str = ""
    cells: tuple[str, ...] = ()
    by_site: bool = False
    whole: bool = False

    @property
    def numbers(self) -> int:
        """Number of numbers that one site answers with."""
        return sum(prod(shape) for shape in self.blocks.values())


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of all sites' answers to one question.

    Attributes:
        values: The summed arrays, float64, in the shapes of the question.
        sites: The sites that are in the sum.
        is_new_roster: True if a site of the exchange before is missing. Totals of earlier exchanges are then sums over other
            sites: use none of them for a step or a comparison.
        by_site: Each site's own answer, where the question asks for them and answers come in the clear; empty under secure
            aggregation.
    """

    values: Blocks
    sites: tuple[str, ...] = ()
    is_new_roster: bool = False
    by_site: Mapping[str, Blocks] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


def pack_blocks(question: Question, blocks: Blocks) -> Array:
    """Join the arrays of an answer into one vector, in the order of the question.

    Args:
        question: The question.
        blocks: The answer.

    Returns:
        (n,) float64, n = `question.numbers`.

    Raises:
        BadInput: The answer does not have the question's shape, or a value is not finite.
    """
    checked = check_blocks(question, blocks)
    return np.concatenate([np.empty(0), *(checked[name].ravel() for name in question.blocks)])


def unpack_blocks(question: Question, vector: Array) -> dict[str, Array]:
    """Split a vector into the arrays of an answer.

    Args:
        question: The question.
        vector: (n,) what `pack_blocks` returned, or a sum of such vectors.

    Returns:
        The arrays by name.

    Raises:
        BadInput: The vector has another length.
    """
    vector = np.asarray(vector, np.float64).ravel()
    if len(vector) != question.numbers:
        raise BadInput(
            f"an answer to '{question.kind}' has {len(vector)} numbers, not {question.numbers}", code="bad-answer"
        )
    out, first = {}, 0
    for name, shape in question.blocks.items():
        size = prod(shape)
        out[name] = vector[first : first + size].reshape(shape).copy()
        first += size
    return out


T = TypeVar("T")
Fit = Generator[Question, Total, T]
"""The server's half of a statistic."""

Answer = Callable[[Question, Rows], Blocks]
"""The site's half of a statistic."""

GroupAnswer = Callable[[Question, RowGroup], Blocks]
"""The halves of several sites in one pass; the first axis of every block is the site."""


@dataclass
class Record:
    """Exchanges and numbers of a fit that was driven in memory."""

    questions: list[Question] = field(default_factory=list)

    @property
    def exchanges(self) -> int:
        return len(self.questions)

    @property
    def numbers(self) -> int:
        """Numbers that one site sent in all."""
        return sum(q.numbers for q in self.questions)


def check_blocks(question: Question, blocks: Blocks) -> dict[str, Array]:
    """Check names, shapes and finiteness of an answer, and return it as float64.

    Args:
        question: The question.
        blocks: The answer.

    Returns:
        The answer's arrays in the order of the question.

    Raises:
        BadInput: A block is missing or unexpected, has another shape, or holds a value that is not finite.
    """
    if set(blocks) != set(question.blocks):
        raise BadInput(
            f"an answer to '{question.kind}' has {sorted(blocks)}, not {sorted(question.blocks)}", code="bad-answer"
        )
    out = {}
    for name, shape in question.blocks.items():
        out[name] = np.asarray(blocks[name], np.float64)
        if out[name].shape != tuple(shape):
            raise BadInput(
                f"block '{name}' of an answer to '{question.kind}' has shape {out[name].shape}, not {tuple(shape)}",
                code="bad-answer",
            )
        if not np.isfinite(out[name]).all():
            raise BadInput(f"block '{name}' of an answer to '{question.kind}' is not finite", code="out-of-range")
    return out


def fit_in_memory(
    fit: Fit[T],
    sites: Mapping[str, Rows],
    answers: Mapping[str, Answer],
    record: Record | None = None,
    *,
    groups: Mapping[str, GroupAnswer] | None = None,
) -> T:
    """Drive a fit over rows in this process, in the clear: for tests, and for rows that are in one place already.

    Args:
        fit: The server's half.
        sites: Each site's rows, by name.
        answers: The sites' halves by kind (`grandrounds.capabilities.statistics.ANSWERS`).
        record: Receives the questions.
        groups: Halves of several sites in one pass (`grandrounds.capabilities.statistics.GROUP_ANSWERS`), used where they exist.

    Returns:
        The result of the fit.
    """
    group = RowGroup(tuple(sites.values()))
    try:
        question = next(fit)
        while True:
            if record is not None:
                record.questions.append(question)
            if groups is not None and question.kind in groups and not question.by_site and len(sites) > 1:
                summed = {name: block.sum(axis=0) for name, block in groups[question.kind](question, group).items()}
                question = fit.send(Total(check_blocks(question, summed), tuple(sites)))
                continue
            by_site = {
                site: check_blocks(question, answers[question.kind](question, rows)) for site, rows in sites.items()
            }
            total = {name: np.sum([b[name] for b in by_site.values()], axis=0) for name in question.blocks}
            question = fit.send(Total(total, tuple(sites), by_site=by_site if question.by_site else {}))
    except StopIteration as end:
        result: T = end.value
        return result
