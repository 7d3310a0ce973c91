"""Statements about groups of patients: figures of subgroups, gaps between groups, and corrections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.data import list_names
from grandrounds.capabilities.dossier.building.statements.performance import read_interval
from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.names import metric_label

_GROUP_METRICS = ("sensitivity", "specificity", "ppv", "auroc", "observed_expected")
_NUMBER_METRICS = ("mean_error", "rmse", "mae")
_MOST_GAPS = 3


def tabulate_subgroups(facts: Facts) -> Iterator[Table]:
    """Tabulate figures of subgroups with intervals.

    Raises:
        MissingFact: No subgroup was evaluated.
    """
    columns = facts.get(SUMMARY, "fairness", "columns", default={})
    for column in columns:
        yield _tabulate_groups(facts, column, columns[column])
    if columns:
        return
    groups = facts.get(SUMMARY, "subgroups", default={})
    if not groups:
        raise MissingFact("no subgroup was evaluated: the plan names none (evaluation.subgroups)")
    metrics = [
        m
        for m in ("auroc", "sensitivity", "specificity", "ppv", "r2", "d2", "rmse", "c_index")
        if any(is_defined(g.get(m)) for g in groups.values())
    ]
    rows: list[tuple[str | Value, ...]] = []
    for name, figures in groups.items():
        cells: list[str | Value] = [
            facts.derive(name, "name of the subgroup", facts.source(SUMMARY, "subgroups", name))
        ]
        cells += [
            facts.value(SUMMARY, "subgroups", name, n, show=",.0f") if is_defined(figures.get(n)) else "-"
            for n in ("count", "events")
        ]
        cells += [
            read_interval(facts, ("subgroups", name), m, digits=2) if is_defined(figures.get(m)) else "-"
            for m in metrics
        ]
        rows.append(tuple(cells))
    column = facts.get(PLAN, "evaluation", "subgroup") or "subgroup"
    yield Table(
        f"Performance by {column}", (str(column), "test rows", "events", *map(metric_label, metrics)), tuple(rows)
    )


def _tabulate_groups(facts: Facts, column: str, part: Mapping[str, Any]) -> Table:
    """Tabulate the groups of one column of `fairness`; small groups are hidden there already."""
    from grandrounds.report.fairness import LABELS

    groups = part["groups"]
    numbers = any("mean_error" in g for g in groups.values())
    metrics = _NUMBER_METRICS if numbers else _GROUP_METRICS
    rows: list[tuple[str | Value, ...]] = []
    for name, figures in groups.items():
        path = ("fairness", "columns", column, "groups", name)
        cells: list[str | Value] = [facts.derive(name, "name of the group", facts.source(SUMMARY, *path))]
        for n in ("count",) if numbers else ("count", "events"):
            hidden = str(figures.get("hidden", "-"))
            cells.append(facts.value(SUMMARY, *path, n, show=",.0f") if is_defined(figures.get(n)) else hidden)
        cells += [read_interval(facts, path, m, digits=2) if is_defined(figures.get(m)) else "-" for m in metrics]
        rows.append(tuple(cells))
    heads = (column, "test rows", *(() if numbers else ("events",)), *(LABELS[m] for m in metrics))
    return Table(
        f"Performance by {column}", heads, tuple(rows), (facts.source(SUMMARY, "fairness", "columns", column),)
    )


def state_fairness_approach(facts: Facts) -> Iterator[Statement]:
    """State the groups that were compared, and the correction that was applied."""
    columns = facts.get(SUMMARY, "fairness", "columns", default={})
    if columns:
        source = facts.value(SUMMARY, "fairness", "columns")
        names = list_names(facts, list(columns), "columns of fairness", source)
        yield say("Figures of the model were compared between groups by: {names}.", names=names)
        least = facts.value(SUMMARY, "fairness", "least")
        yield say("Groups with fewer than {least} test rows or events are hidden.", least=least)
    elif facts.get(SUMMARY, "subgroups"):
        groups = facts.value(SUMMARY, "subgroups")
        yield say(
            "Figures of the model are given for subgroups: {names}.",
            names=list_names(facts, list(groups.value), "subgroups", groups),
        )
    else:
        yield say("The plan names no groups of patients to compare.", facts.source(PLAN, "evaluation", "subgroups"))
    kind = facts.get(PLAN, "evaluation", "mitigation", default="none")
    if kind == "none":
        yield say("No correction by groups was applied.", facts.source(PLAN, "evaluation", "mitigation"))
    else:
        rules = {"thresholds": "a threshold for each group", "recalibration": "a recalibration of each group"}
        value = facts.value(PLAN, "evaluation", "mitigation")
        shown = facts.derive(
            value.value, "rule of evaluation.mitigation", value, text=rules.get(value.value, str(value.value))
        )
        yield say("The correction by groups is {rule}, chosen on validation rows.", rule=shown)


def state_group_gaps(facts: Facts) -> Iterator[Statement]:
    """State the gaps between groups that are clear after correction for the number of comparisons; nothing without groups."""
    gaps = facts.get(SUMMARY, "fairness", "gaps", default=[])
    if not facts.get(SUMMARY, "fairness", "columns"):
        return
    source = facts.value(SUMMARY, "fairness", "gaps")
    if not gaps:
        yield say("Groups have too few test rows or events to be compared.", source)
        return
    number, flagged = len(gaps), [k for k, g in enumerate(gaps) if g.get("flagged")]
    yield say(
        "Of {number} comparisons between groups, {clear} show a clear gap after Holm's correction.",
        number=facts.derive(number, "number of gaps", source),
        clear=facts.derive(len(flagged), "gaps that are flagged", source),
    )
    from grandrounds.report.fairness import describe_gap

    for k in sorted(flagged, key=lambda k: gaps[k]["p"])[:_MOST_GAPS]:
        gap = facts.derive(
            gaps[k]["difference"],
            "difference with its 95% interval",
            facts.source(SUMMARY, "fairness", "gaps", k),
            text=describe_gap(gaps[k]),
        )
        yield say("Clear gap: {gap}.", gap=gap)
