"""A linear model as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.report.model_table import HEADS, Readable, cells, sentences


def model_lines(model: Readable) -> Iterator[str]:
    """A table of the weights that are not zero, the largest first, and what else decides a risk."""
    total = len(model.weights) + model.zeros
    yield f"log-odds of {model.label} = {model.positive}: {len(model.weights)} of {total} weights are not zero"
    rows = [cells(w) for w in model.weights]
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    for row in (HEADS, *rows) if rows else ():
        name, weight, ratio, per, effect = (
            text.rjust(w) if k in (1, 2) else text.ljust(w) for k, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((name, weight, ratio, per, effect)).rstrip()
    yield from sentences(model)
