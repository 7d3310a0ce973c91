"""Conclusion of a comparison, in one or two sentences: which arms differ from the first beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from grandrounds.methods.baselines import POOLED, Local
from grandrounds.metrics import PairedTest
from grandrounds.metrics.names import higher_is_better, metric_label
from grandrounds.metrics.statistics import MIN_RUNS, holm

if TYPE_CHECKING:
    from grandrounds.analysis.compare import Arm, Comparison

_LEVEL = 0.05
_LISTED = 4
"""Arms whose differences a sentence lists."""


def describe_conclusion(result: Comparison) -> list[str]:
    """Say whether arms differ from the first beyond chance, in the metric that ranks models.

    Chance is Student's paired t over seeds and folds, corrected by Holm's method for the arms of one question. Hospitals alone
    are a question of their own: does federation gain anything? Pooled rows are left out beside other arms, since no hospital
    could use them.

    Args:
        result: The comparison.

    Returns:
        The sentences; none where no other arm was tested on the same patients.
    """
    first, metric = result.arms[0], result.headline
    others = [arm for arm in result.arms[1:] if not result.has_other_rows(arm)]
    tested = {arm.label: (arm, pair) for arm in others if (pair := result.paired(arm, metric)) is not None and pair.n >= MIN_RUNS}
    if not tested:
        few = f"fewer than {MIN_RUNS} runs pair up with those of {first.label}; use {MIN_RUNS} or more seeds"
        return [f"Nothing is known of chance: {few}."] if others else []
    references = {Local.name, POOLED}
    arms = {name: pair for name, (arm, pair) in tested.items() if _method(arm) not in references}
    pooled = {name: pair for name, (arm, pair) in tested.items() if _method(arm) == POOLED}
    alone = [pair for arm, pair in tested.values() if _method(arm) == Local.name]
    of_arms = [_describe_arms(first.label, arms or pooled, metric)] if arms or pooled else []
    return [*of_arms, *(_describe_federation(first.label, pair, metric) for pair in alone)]


def _describe_arms(first: str, pairs: Mapping[str, PairedTest], metric: str) -> str:
    adjusted = dict(zip(pairs, holm([pair.p for pair in pairs.values()]), strict=True))
    beyond = [name for name, p in adjusted.items() if p < _LEVEL]
    label, corrected = metric_label(metric), f", corrected for {len(pairs)} comparisons" if len(pairs) > 1 else ""
    if beyond:
        told = "; ".join(f"{name} is {_verdict(pairs[name], metric)} than {first}, {_gap(pairs[name])}" for name in beyond)
        rest = [name for name in pairs if name not in beyond]
        return f"{label}, beyond chance{corrected}: {told}." + (f" Not beyond chance: {', '.join(rest)}." if rest else "")
    listed = "; ".join(f"{name} {_gap(pair)}" for name, pair in list(pairs.items())[:_LISTED])
    return f"{label}: none differs from {first} beyond chance{corrected} ({listed}{'; ...' if len(pairs) > _LISTED else ''})."


def _describe_federation(first: str, pair: PairedTest, metric: str) -> str:
    """Compare the first arm with hospitals alone; `pair` is hospitals alone minus the first arm."""
    gain, label = replace(pair, difference=-pair.difference, low=-pair.high, high=-pair.low), metric_label(metric)
    limit = " The AUROC of hospitals alone ranks the scores of their different models together." if metric == "auroc" else ""
    if pair.p < _LEVEL:
        return f"{label}: federation ({first}) is {_verdict(gain, metric)} than hospitals alone, {_gap(gain)}.{limit}"
    return f"{label}: federation ({first}) does not differ from hospitals alone beyond chance ({_gap(gain)}).{limit}"


def _verdict(pair: PairedTest, metric: str) -> str:
    better = higher_is_better(metric)
    if better is None:
        return "higher" if pair.difference > 0 else "lower"
    return "better" if (pair.difference > 0) == better else "worse"


def _gap(pair: PairedTest) -> str:
    if pair.difference == 0 and math.isnan(pair.p):
        return "equal in all pairs"
    interval = "" if math.isnan(pair.low) else f" ({pair.low:+.4f} to {pair.high:+.4f})"
    p = "the same in all pairs" if math.isnan(pair.p) else "p < 0.001" if pair.p < 0.001 else f"p = {pair.p:.2g}"
    return f"{pair.difference:+.4f}{interval}, {p}"


def _method(arm: Arm) -> str:
    return str(next(iter(arm.runs.values())).plan["method"]["name"])
