"""Drive a fit as secure aggregation does: each site's blocks in whole numbers of the 64-bit ring, added and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeVar

import numpy as np

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.question import BOUND, Blocks, Fit, Question, Record, Rows, Total, check_blocks
from grandrounds.privacy.secagg.ring import Scale

T = TypeVar("T")


def sum_in_ring(question: Question, answers: list[Blocks]) -> dict[str, np.ndarray]:
    """Add the answers of all sites in the ring and decode the sum into the blocks of the question."""
    scale = Scale(bits=64, bound=BOUND, parties=len(answers))
    flat = [np.concatenate([np.ravel(a[name]) for name in question.blocks]) for a in answers]
    total = np.zeros(len(flat[0]), np.uint64)
    for values in flat:
        total += scale.to_ring(values)
    assert scale.possible(total)
    decoded, out, place = scale.from_ring(total), {}, 0
    for name, shape in question.blocks.items():
        out[name] = decoded[place : place + prod(shape)].reshape(shape)
        place += prod(shape)
    return out


def fit_in_ring(fit: Fit[T], sites: Mapping[str, Rows], record: Record | None = None) -> T:
    """Drive a fit over rows in this process; every sum goes through the 64-bit ring and no summand is shown."""
    try:
        question = next(fit)
        while True:
            if record is not None:
                record.questions.append(question)
            answers = [check_blocks(question, ANSWERS[question.kind](question, rows)) for rows in sites.values()]
            question = fit.send(Total(sum_in_ring(question, answers), tuple(sites)))
    except StopIteration as end:
        result: T = end.value
        return result
