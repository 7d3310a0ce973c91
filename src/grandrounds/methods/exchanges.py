"""Exchanges every method shares: agree on the data, evaluate a model, fit a temperature. Generators, like methods."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.encoding import Encoding, EncodingRules, make_encoding
from grandrounds.data.summary import Summary
from grandrounds.messages import Answers, Ask
from grandrounds.metrics import Tally

TEMPERATURES = np.exp(np.linspace(np.log(0.05), np.log(20.0), 241))
"""The grid a temperature is chosen from; bounded, because separable data would send it to zero."""


@dataclass(frozen=True)
class Agreement:
    """What the consortium agreed on before training: the encoding, and what was noticed on the way."""

    encoding: Encoding
    warnings: tuple[str, ...] = ()
    notes: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, dict[str, int]] = field(default_factory=dict)


def agree(
    *, numeric: Sequence[str], categorical: Sequence[str], rules: EncodingRules, to: tuple[str, ...]
) -> Generator[Ask, Answers, tuple[Encoding, tuple[str, ...]]]:
    """Merge the training sites' summaries into one encoding."""
    answers = yield Ask("summarise", to=to)
    total = Summary.merge([Summary.from_payload(values) for _, values in answers])
    encoding = make_encoding(total, numeric=numeric, categorical=categorical, rules=rules)
    return encoding, tuple(total.give_aways([*numeric, *categorical]))


def prepare(
    encoding: Encoding, *, model: str, hidden: Sequence[int]
) -> Generator[Ask, Answers, tuple[dict[str, dict[str, int]], dict[str, list[str]]]]:
    """Have every site prepare its rows; returns row counts and notes by site."""
    spec = {"name": model, "hidden": list(hidden), "classes": len(encoding.classes), "groups": group_count(encoding)}
    answers = yield Ask("prepare", shared={"encoding": json.dumps(encoding.to_dict()), "spec": json.dumps(spec)})
    rows = {site: {part: int(values[f"{part}_rows"]) for part in ("train", "val", "test")} for site, values in answers}
    notes = {site: json.loads(values["notes"]) for site, values in answers}
    return rows, {site: n for site, n in notes.items() if n}


def group_count(encoding: Encoding) -> int:
    """Subgroups, and one more for patients of a subgroup unseen in training; 1 where none is named."""
    return len(encoding.groups) + 1 if encoding.groups else 1


@dataclass(frozen=True)
class Evaluated:
    """Tallies (site, subgroup) of each part, and the sites they come from, in order."""

    sites: tuple[str, ...]
    tallies: dict[str, Tally]


def evaluate(model: Array, parts: Sequence[str]) -> Generator[Ask, Answers, Evaluated]:
    """Have every site score the model on its own rows."""
    answers = yield Ask("evaluate", shared={"model": model}, report=tuple(parts))
    tallies = {part: _tally(answers.columns, part) for part in parts}
    return Evaluated(answers.sites, tallies)


def _tally(columns: dict[str, Any], part: str) -> Tally:
    prefix = f"{part}."
    return Tally.from_arrays({k.removeprefix(prefix): v for k, v in columns.items() if k.startswith(prefix)})


def fit_temperature(model: Array) -> Generator[Ask, Answers, float]:
    """The temperature with the least total log loss on the validation rows of all sites (SSE-AGG eq. 12).

    Its Algorithm 4 prints argmax, which is a misprint. One exchange: sites send their loss at each point of a grid.
    """
    answers = yield Ask("calibrate", shared={"model": model, "grid": TEMPERATURES}, report=("losses",))
    return float(TEMPERATURES[int(np.argmin(np.sum(answers["losses"], axis=0)))])
