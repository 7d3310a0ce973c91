"""Faults of sites: injected on purpose in a simulation (drop-outs, delays, NaN), and recognised in answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.explain.trust import RANGES, is_possible
from grandrounds.protocol.messages import UPLOAD, Answers, Ask
from grandrounds.protocol.tasks import MODELS, TRAIN, may_be_nan, named_like, spec_of

DROPPED = "dropped out"
LATE = "was too late"
NOT_FINITE = "sent values that are not finite numbers"
REFUSED = "refused or failed"

IMPOSSIBLE = "reported impossible figures"


@dataclass(frozen=True)
class Faults:
    """Faults to inject.

    Attributes:
        drop: Probability that a site does not answer a training Ask, a request for its stored model, or a step of a secure sum
        of models (not of tallies).
        nan: Sites that send NaN.
        slow: Virtual seconds that a site takes; default 1.
    """

    drop: float = 0.0
    nan: tuple[str, ...] = ()
    slow: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, site: str) -> float:
        """Return the virtual seconds that a site takes to answer."""
        return float(self.slow.get(site, 1.0))

    def absent(self, ask: Ask, site: str, *, seed: int) -> str:
        """Return the reason why a site will not answer an Ask in time; empty if it will."""
        spec = spec_of(ask.task)
        summing = spec.is_sum_step and str(ask.shared["tag"]).startswith(MODELS)
        if not (spec.is_round_work or ask.task == UPLOAD or summing) or ask.id is None:
            return ""
        if self.drop:
            rng = generator(seed, purpose=f"drop {ask.id.step}", round=ask.id.round, site=site)
            if rng.random() < self.drop:
                return DROPPED
        if spec.is_round_work and ask.deadline is not None and self.seconds(site) > ask.deadline:
            return LATE
        return ""

    def spoil(self, ask: Ask, answers: Answers) -> None:
        """Replace the models of the sites in `nan` by NaN."""
        report = "update" if "update" in answers else "model"
        if ask.task in (TRAIN, UPLOAD) and report in answers:
            column = answers[report]
            for k, site in enumerate(answers.sites):
                if site in self.nan:
                    column[k] = np.full_like(column[k], np.nan)


def possible_rows(answers: Answers) -> Array:
    """Find sites whose figures are possible, (K,): an accuracy is between 0 and 1, a divergence not below 0."""
    good = np.ones(len(answers), bool)
    for name, column in answers.columns.items():
        figure = name.partition(".")[2]
        if figure in RANGES and isinstance(column, np.ndarray) and any(r.is_claim for r in named_like(name)):
            good &= is_possible(figure, column)
    return good


def finite_rows(answers: Answers) -> Array:
    """Find sites that sent finite numbers only, (K,), except in figures that may be undefined.

    A simulation may have summed reports over its sites already: then single sites cannot be checked.
    """
    good = np.ones(len(answers), bool)
    for name, column in answers.columns.items():
        if isinstance(column, list):
            fine = [not isinstance(v, np.ndarray) or v.dtype.kind != "f" or bool(np.isfinite(v).all()) for v in column]
            good &= np.array(fine, bool)
        elif len(column) == len(good) and column.dtype.kind == "f" and not may_be_nan(name):
            good &= np.isfinite(column.reshape(len(column), -1)).all(axis=1)
    return good
