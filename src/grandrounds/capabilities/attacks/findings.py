"""The result of an attack on one disclosed statistic, and the run that is attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RunSummary
from grandrounds.privacy.attacks.attribute import wilson
from grandrounds.privacy.in_words import promised

if TYPE_CHECKING:
    from grandrounds.analysis.membership.shadows import AttackedRows
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows


@dataclass(frozen=True)
class StatisticAttack:
    """A disclosed statistic: how it was attacked and what came out, or why it was not attacked.

    Attributes:
        kind: Kind of the statistic, as in `analysis/privacy/disclosures.py`.
        statistic: The statistic, in a sentence.
        attacked: An attack was made.
        attack: Name of the attack; "" without one.
        finding: What came out, or why there was no attack.
        exposed: Patients, or other units, of which something was read; None where the attack has another measure.
        total: Units that were attacked.
        share: Exposed of total.
        low: Lower end of its 95% interval.
        high: Upper end.
        unit: What is counted: "patients", "cells", "counts", "quantiles", ...
    """

    kind: str
    statistic: str
    attacked: bool
    attack: str
    finding: str
    exposed: int | None = None
    total: int | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "patients"

    @classmethod
    def skip(cls, kind: str, statistic: str, why: str) -> StatisticAttack:
        """Record a statistic that was not attacked."""
        return cls(kind, statistic, False, "", why)

    def count(self, exposed: int, total: int, unit: str = "patients") -> StatisticAttack:
        """Add the exposed patients, or other units, with the interval of their share."""
        if not total:
            return replace(self, exposed=0, total=0, unit=unit)
        low, high = wilson(exposed / total, total)
        share = exposed / total
        return replace(self, exposed=int(exposed), total=int(total), share=share, low=low, high=high, unit=unit)

    @property
    def is_of_run(self) -> bool:
        """True for data that left the sites; False for files of the run folder."""
        return self.kind not in FILES

    def sentence(self) -> str:
        """State statistic, attack and finding in one sentence."""
        how = f"attacked by {self.attack}" if self.attacked else "NOT ATTACKED"
        return f"{self.statistic}: {how}. {self.finding}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StatisticAttack:
        """Read what `to_dict` wrote."""
        return cls(**values)


MODEL_FILE, RANGES, PERCENTILES_FILE, SUMMARY_FILE = "final model", "ranges of columns", "percentiles", "published metrics"
CARD, SHAPES, EXPLANATIONS_FILE, TABLE_ONE = "risk card", "shapes", "published explanations", "published table"
"""Kinds of statistics in the files of a run folder."""

FILES = (MODEL_FILE, RANGES, PERCENTILES_FILE, SUMMARY_FILE, CARD, SHAPES, EXPLANATIONS_FILE, TABLE_ONE)

RELEASE, UNCOVERED = "noisy release", "not covered"
"""Kinds of statistics of a run with a guarantee: releases with noise, and data that it does not cover."""


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """A finished run with its rows, where they are on this machine."""

    run: Run
    run_rows: RunRows | None = None
    chosen: AttackedRows | None = None

    @cached_property
    def plan(self) -> Plan:
        return Plan(self.run.plan)

    @property
    def summary(self) -> RunSummary:
        return self.run.summary

    @property
    def is_secure(self) -> bool:
        return bool(self.plan.privacy.secure)

    @cached_property
    def is_promised(self) -> bool:
        """True if the run has a finite epsilon."""
        return promised(self.summary["privacy"])

    @property
    def has_model(self) -> bool:
        return "statistic" not in self.summary

    @property
    def is_classification(self) -> bool:
        return self.has_model and self.summary.task == CLASSIFICATION

    @property
    def has_images(self) -> bool:
        return len(self.summary["inputs"]) > 1

    @cached_property
    def training_sites(self) -> tuple[str, ...]:
        """Sites with training rows, by the summary."""
        return tuple(name for name, parts in self.summary["rows"].items() if parts.get("train"))

    @cached_property
    def smallest(self) -> int:
        """Training rows of the smallest site."""
        return min((int(self.summary["rows"][s]["train"]) for s in self.training_sites), default=0)

    def site_rows(self, part: str) -> dict[str, Array]:
        """Return the numbers of each site's rows of a part; empty without rows."""
        if self.run_rows is None:
            return {}
        stack = self.run_rows.consortium.stack
        rows = {name: np.asarray(getattr(r, part)) for name, r in zip(stack.names, stack.rows, strict=True)}
        return {name: r for name, r in rows.items() if len(r)}
