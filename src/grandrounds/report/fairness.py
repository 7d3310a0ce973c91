"""Sentences and tables about groups of patients: figures by group, gaps between groups, and the cost of a mitigation.

Everything is read from `fairness` of summary.json, where small groups are hidden already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.mitigation import MIN_FIT

Values = Mapping[str, Any]

LABELS = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "PPV",
    "alert_rate": "alert rate",
    "auroc": "AUROC",
    "calibration": "observed minus expected",
    "observed_expected": "observed / expected",
    "brier": "Brier score",
    "log_loss": "log loss",
    "mean_error": "mean error",
    "rmse": "RMSE",
    "mae": "MAE",
    "accuracy": "accuracy",
    "net_benefit": "net benefit",
}
"""Names of figures for people."""

_CLASSES = ("sensitivity", "specificity", "ppv", "alert_rate", "auroc", "observed_expected", "brier")
_NUMBERS = ("mean_error", "rmse", "mae")
_NAMED = 3
"""Gaps that the sentences name."""


def describe_gaps(fairness: Values) -> list[str]:
    """Describe the gaps between groups in plain sentences: those that are clear after correction, else that there is none.

    Args:
        fairness: `fairness` of a summary; may be empty.

    Returns:
        Sentences; none where no column was named.
    """
    if not fairness.get("columns"):
        return []
    gaps: Sequence[Values] = fairness["gaps"]
    columns, many = _listed(list(fairness["columns"])), len(gaps)
    if not many:
        return [f"Groups by {columns} have too few test rows or events to be compared."]
    flagged = sorted((g for g in gaps if g["flagged"]), key=lambda g: g["p"])
    alone = sorted((g for g in gaps if g["excludes_zero"] and not g["flagged"]), key=lambda g: g["p"])
    where = f"{many} comparisons of groups by {columns}"
    if fairness.get("class"):
        where += f" (class '{fairness['class']}' against the rest)"
    if flagged:
        lines = [f"{_clear(len(flagged))} between groups after Holm's correction for {where}:"]
        lines[0] += " " + "; ".join(describe_gap(g) for g in flagged[:_NAMED])
        lines[0] += f"; and {len(flagged) - _NAMED} more." if len(flagged) > _NAMED else "."
        if alone:
            lines.append(f"{len(alone)} more {_exclude(len(alone))} zero alone but not after the correction.")
        return lines
    if alone:
        return [
            f"No gap between groups is clear after Holm's correction for {where}. {len(alone)} {_exclude(len(alone))} zero "
            f"alone, the clearest is {describe_gap(alone[0])}; it may be chance."
        ]
    return [f"No gap between groups excludes zero ({where})."]


def describe_gap(gap: Values) -> str:
    """Describe one gap: the figure, the two groups, the difference and its 95% interval."""
    name = "observed minus expected risk" if gap["metric"] == "calibration" else LABELS.get(gap["metric"], gap["metric"])
    return (
        f"{name} of {gap['column']} '{gap['group']}' against '{gap['reference']}' "
        f"{gap['difference']:+.3g} (95% CI {gap['low']:+.3g} to {gap['high']:+.3g})"
    )


def has_correction(fairness: Values) -> bool:
    """Tell whether a group has a rule of its own."""
    return any(group.get("changed") for group in (fairness.get("mitigation") or {"groups": {}})["groups"].values())


def describe_mitigation(fairness: Values) -> list[str]:
    """Describe a mitigation and its cost on test rows in plain sentences; none where there is none."""
    m = fairness.get("mitigation")
    if not m:
        return []
    kind = "A threshold for each group" if m["kind"] == "thresholds" else "A recalibration of each group"
    before, after = m["overall"]["before"], m["overall"]["after"]
    changes = ", ".join(
        f"{LABELS[name]} {before[name]:.3f} to {after[name]:.3f}"
        for name in ("sensitivity", "ppv", "accuracy", "net_benefit")
        if is_defined(before.get(name)) and is_defined(after.get(name))
    )
    measure = "sensitivity" if m["kind"] == "thresholds" else "observed minus expected risk"  # calibration in the large
    gap = ""
    if is_defined(m["largest_gap"]["before"]) and is_defined(m["largest_gap"]["after"]):
        gap = f" The largest difference in {measure} was {m['largest_gap']['before']:.3f} and is {m['largest_gap']['after']:.3f}."
    lines = [f"{kind} of {m['column']}, chosen on validation rows, changes test rows of all groups: {changes}.{gap}"]
    unchanged = [name for name, group in m["groups"].items() if not group.get("changed")]
    if not has_correction(fairness):
        return [
            f"No correction by {m['column']}: fewer than two groups have {MIN_FIT} events and {MIN_FIT} other rows among "
            "validation rows. More of them (split.val) allow one."
        ]
    if unchanged:
        lines.append(f"With the common rule, for too few validation rows: {_listed(unchanged)}.")
    return lines


def describe_merged(fairness: Values) -> list[str]:
    """Name the groups that are counted with the largest group of their column, because they have too few rows to be shown."""
    parts = fairness.get("columns", {}).items()
    return [
        f"{column}: {_listed(part['merged']['groups'])} ({_fewer(fairness)} each) counted with '{part['merged']['with']}', so "
        "that no total tells about single patients."
        for column, part in parts
        if part.get("merged")
    ]


def _fewer(fairness: Values) -> str:
    return f"fewer than {fairness['least']} test rows"


def group_tables(fairness: Values) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield for each column its name, the heads and the rows of a table of its groups, as text."""
    for column, part in fairness.get("columns", {}).items():
        groups: Mapping[str, Values] = part["groups"]
        numbers = any("mean_error" in g for g in groups.values())
        names = _NUMBERS if numbers else _CLASSES
        heads = ["group", "rows", *([] if numbers else ["events"]), *(LABELS[n] for n in names)]
        rows = []
        for name, g in groups.items():
            counts = [_count(g, "count"), *([] if numbers else [_count(g, "events")])]
            marked = f"{name} (reference)" if name == part["reference"] else name
            rows.append([marked, *counts, *(with_ends(g, n) for n in names)])
        yield column, heads, rows


def short_group_table(fairness: Values) -> tuple[list[str], list[list[str]]]:
    """Tabulate the groups of all columns with the figures in which they are compared, as text that fits a terminal."""
    numbers = any("mean_error" in g for part in fairness["columns"].values() for g in part["groups"].values())
    names = _NUMBERS if numbers else ("sensitivity", "ppv", "auroc", "observed_expected")
    heads = ["group", "rows", *([] if numbers else ["events"]), *(LABELS[n] for n in names)]
    heads = ["obs / exp" if head == LABELS["observed_expected"] else head for head in heads]
    rows = []
    for column, part in fairness["columns"].items():
        for name, g in part["groups"].items():
            counts = [_count(g, "count"), *([] if numbers else [_count(g, "events")])]
            figures = [with_ends(g, n, short=True) for n in names]
            rows.append([f"{column}: {name}{' *' if name == part['reference'] else ''}", *counts, *figures])
    return heads, rows


def gap_table(fairness: Values, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Tabulate the gaps as text, the clearest first: heads and rows."""
    heads = ["group", "against", "figure", "gap (95% CI)", "p", "p (Holm)", "flag"]
    gaps = sorted(fairness.get("gaps", ()), key=lambda g: g["p"])
    rows = [
        [
            f"{g['column']}: {g['group']}", g["reference"], LABELS.get(g["metric"], g["metric"]),
            f"{g['difference']:+.3f} ({g['low']:+.3f} to {g['high']:+.3f})", p_text(g["p"]), p_text(g["p_holm"]),
            "clear" if g["flagged"] else "excludes zero alone" if g["excludes_zero"] else "",
        ]
        for g in gaps[:most]
    ]  # fmt: skip
    return heads, rows


def mitigation_table(fairness: Values) -> tuple[list[str], list[list[str]]]:
    """Tabulate the figures before and after a mitigation on test rows, over all rows and by group, as text."""
    m = fairness.get("mitigation") or {}
    names = ("sensitivity", "specificity", "ppv", "alert_rate", "accuracy", "calibration", "net_benefit")
    heads = ["rows", "rule", *(LABELS[n] for n in names)]
    rows = []
    for name, g in [("all", m.get("overall", {})), *m.get("groups", {}).items()]:
        if "before" not in g:
            rows.append([name, g.get("hidden", "hidden"), *("-" for _ in names)])
            continue
        cells = [f"{_number(g['before'].get(n))} → {_number(g['after'].get(n))}" for n in names]
        rows.append([name, rule_text(g), *cells])
    return heads, rows


def rule_text(group: Values) -> str:
    """Write the rule of one group: its threshold, or its slope and intercept."""
    if "threshold" in group:
        return f"from {group['threshold']:.3f}"
    if "slope" in group:
        return f"{group['slope']:.3f} z {group['intercept']:+.3f}"
    return ""


def with_ends(figures: Values, name: str, *, short: bool = False) -> str:
    """Write a figure with its 95% interval; "-" where it is hidden or not defined."""
    if not is_defined(figures.get(name)):
        return "-"
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    ends = f" {low:.2f} to {high:.2f}" if low is not None and high is not None and is_defined(low) and is_defined(high) else ""
    return f"{figures[name]:.2f}{ends.replace(' to ', '-')}" if short else f"{figures[name]:.3f}{ends}"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _count(group: Values, name: str) -> str:
    value = group.get(name)
    return f"{value:.0f}" if is_defined(value) else str(group.get("hidden", "-"))


def _number(value: Any) -> str:
    return f"{value:.3f}" if is_defined(value) else "-"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


def _clear(count: int) -> str:
    return "1 clear gap" if count == 1 else f"{count} clear gaps"


def _exclude(count: int) -> str:
    return "excludes" if count == 1 else "exclude"
