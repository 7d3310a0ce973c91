"""Acceptance bars for a later model, proposed from the figures of a run and their intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.attacks import show_interval

_NO_BAR = "none proposed"
_LOWER = "lower end of the 95% interval in this run"
_WIDEST = 1.25
"""Largest deviation of a calibration slope from 1, as a factor, from which a bar is proposed; a convention of ours."""
_OUTCOMES = {"regression": ("r2", "R2"), "count": ("r2", "R2"), "survival": ("c_index", "C-index")}


@dataclass(frozen=True)
class Bar:
    """A figure of a run, and the bar that is proposed for a later model.

    Attributes:
        figure: Name of the figure.
        now: Its value in this run.
        proposal: The proposed bar; the text says so where none is.
        rule: How the bar follows from the figure.
    """

    figure: str
    now: Value
    proposal: Value
    rule: str

    @property
    def is_proposed(self) -> bool:
        """True if a bar is proposed."""
        return self.proposal.text != _NO_BAR


def list_bars(facts: Facts) -> list[Bar]:
    """List the bars of a run: overall, calibration, worst site, worst subgroup, hospitals harmed.

    Args:
        facts: The facts.

    Returns:
        The bars.

    Raises:
        MissingFact: The run has no figures of a model.
    """
    if not facts.get(SUMMARY, "final"):
        raise MissingFact("the run has no figures of a model on test rows, so no bar can be proposed")
    return [*_overall(facts), *_calibration(facts), *_worst_site(facts), *_worst_group(facts), *_harmed(facts)]


def _overall(facts: Facts) -> Iterator[Bar]:
    if facts.has(SUMMARY, "final", "auroc"):
        yield _auroc(facts, "AUROC, all sites", "final")
        return
    name, title = _OUTCOMES.get(str(facts.get(SUMMARY, "task", default="")), ("accuracy", "accuracy"))
    if facts.has(SUMMARY, "final", name):
        figure = facts.value(SUMMARY, "final", name, show=".3f")
        yield Bar(f"{title}, all sites", figure, _refuse(facts, figure), "the run has no interval of this figure")


def _auroc(facts: Facts, title: str, *path: str) -> Bar:
    """Propose the lower end of an interval, unless it includes 0.5."""
    now = show_interval(facts, SUMMARY, *path, name="auroc", low="auroc_low", high="auroc_high")
    if not facts.has(SUMMARY, *path, "auroc_low"):
        return Bar(title, now, _refuse(facts, now), "the run has no interval of this figure")
    low = facts.value(SUMMARY, *path, "auroc_low", show=".3f")
    if low.value <= 0.5:
        return Bar(title, now, _refuse(facts, low), "the interval includes 0.5, which is guessing: more patients are needed")
    return Bar(title, now, facts.derive(low.value, _LOWER, low, text=f"at least {low.text}"), _LOWER)


def _calibration(facts: Facts) -> Iterator[Bar]:
    """Propose a range of slopes around 1 that is as wide as the larger deviation on test and validation rows."""
    found = [
        facts.value(SUMMARY, part, "calibration_slope", show=".2f")
        for part in ("final", "validation")
        if facts.has(SUMMARY, part, "calibration_slope")
    ]
    if not found or not facts.has(SUMMARY, "final", "calibration_slope"):
        return
    if any(slope.value <= 0 for slope in found):
        yield Bar("calibration slope", found[0], _refuse(facts, *found), "a slope of this run is not positive")
        return
    widest = max(max(slope.value, 1 / slope.value) for slope in found)
    if widest > _WIDEST:
        rule = f"a slope of this run differs from 1 by more than a factor of {_WIDEST:g}: recalibrate before a bar is set"
        yield Bar("calibration slope", found[0], _refuse(facts, *found), rule)
        return
    rule = "between 1/m and m; m is the larger deviation from 1 of the slopes on test and validation rows"
    text = f"between {1 / widest:.2f} and {widest:.2f}"
    yield Bar("calibration slope", found[0], facts.derive([1 / widest, widest], rule, *found, text=text), rule)


def _worst_site(facts: Facts) -> Iterator[Bar]:
    if facts.has(SUMMARY, "worst_site", "auroc"):
        yield _auroc(facts, f"AUROC, worst site ({facts.get(SUMMARY, 'worst_site', 'site')})", "worst_site")


def _worst_group(facts: Facts) -> Iterator[Bar]:
    groups = facts.get(SUMMARY, "subgroups", default={})
    known = {name: scores["auroc"] for name, scores in groups.items() if scores.get("auroc") is not None}
    if known:
        worst = min(known, key=lambda name: float(known[name]))
        yield _auroc(facts, f"AUROC, worst subgroup ({worst})", "subgroups", worst)


def _harmed(facts: Facts) -> Iterator[Bar]:
    if facts.has(SUMMARY, "personal", "harmed"):
        source = facts.source(SUMMARY, "personal", "harmed")
        count = facts.derive(len(facts.raw(SUMMARY, "personal", "harmed")), "number of sites in personal.harmed", source)
        rule = "as in this run: hospitals whose deployed model is clearly worse than their own model or most common class"
        bar = facts.derive(count.value, rule, count, text=f"at most {count.text}")
        yield Bar("hospitals with a clearly worse log loss", count, bar, rule)


def _refuse(facts: Facts, *sources: Value) -> Value:
    return facts.derive(None, "no bar follows from the figure", *sources, text=_NO_BAR)


def tabulate_bars(facts: Facts) -> Table:
    """List the figures of this run and the bars that they propose."""
    rows = tuple((bar.figure, bar.now, bar.proposal, bar.rule) for bar in list_bars(facts))
    columns = ("figure on test rows", "this run (95% interval)", "proposed bar", "rule")
    return Table("Acceptance bars, proposed from the figures of this run", columns, rows, (facts.source(SUMMARY, "final"),))


def state_bars(facts: Facts) -> Iterator[Statement]:
    """State that bars are proposals, and for how many figures one could be proposed."""
    bars = list_bars(facts)
    source = facts.source(SUMMARY, "final")
    yield say(
        "Of {figures} figures, {proposed} support a bar. Bars are proposals until a named person confirms them.",
        figures=facts.derive(len(bars), "figures in the table", source),
        proposed=facts.derive(sum(bar.is_proposed for bar in bars), "figures with a proposed bar", source),
    )
