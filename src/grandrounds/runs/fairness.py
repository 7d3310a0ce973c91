"""Compare groups of patients in the final model: figures of every group of every column, and the gaps between them.

Everything is computed from tallies that were summed over sites (`evaluation.subgroups`). Small groups are hidden here, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.data.kinds import AnyEncoding
from grandrounds.data.subgroups import MISSING, OTHER, Grouping
from grandrounds.metrics import OutcomeTally, Tally
from grandrounds.metrics.gaps import Gap, correct_by_holm, find_gaps
from grandrounds.metrics.groups import (
    GroupScores,
    Hidden,
    group_figures,
    group_scores,
    hide_small_groups,
    merge_small_groups,
    outcome_figures,
    worst_class,
)
from grandrounds.metrics.mitigation import mitigate

NO_PATIENTS = (MISSING, OTHER)
"""Groups that are shown and not compared."""


def fairness_summary(
    tallies: Sequence[Tally | OutcomeTally], encoding: AnyEncoding, *, threshold: float | None, least: int
) -> dict[str, Any]:
    """Compute `fairness` of summary.json.

    Args:
        tallies: For each column of evaluation.subgroups the tallies of its groups, summed over sites, on test rows.
        encoding: The run's encoding, with the groups of each column.
        threshold: The decision threshold; None where the outcome is no class.
        least: The smallest count that is shown.

    Returns:
        Figures by column and group, all gaps with their intervals, and their number.
    """
    columns: dict[str, Any] = {}
    gaps: list[Gap] = []
    few = 0
    against = _class_against_rest(tallies, encoding)
    for grouping, tally in zip(encoding.subgroups, tallies, strict=True):
        merged, moved, largest = merge_small_groups(tally, least)
        scores, figures = _score(merged, threshold, against)
        hidden = hide(scores, least)
        found, reference, left = find_gaps(grouping.column, grouping.names, scores, hidden, skip=NO_PATIENTS)
        gaps += found
        few += left
        groups = show_groups(grouping, figures, hidden, least)
        few_rows = [grouping.names[g] for g in moved]
        groups |= {name: {"count": None, "hidden": f"<{least}"} for name in few_rows}
        merge = {"merged": {"groups": few_rows, "with": grouping.names[largest]}} if moved else {}
        columns[grouping.column] = {"reference": reference, "groups": groups, **merge, **_cuts(grouping)}
    corrected = correct_by_holm(gaps)
    return {
        "columns": columns,
        "gaps": [gap.to_dict() for gap in corrected],
        "comparisons": len(corrected),
        "excluding_zero": sum(gap.excludes_zero for gap in corrected),
        "flagged": sum(gap.flagged for gap in corrected),
        "too_few_rows": few,
        "least": least,
        "threshold": threshold,
        **({} if against is None else {"class": encoding.classes[against]}),
    }


def mitigation_summary(
    kind: str, val: Tally, test: Tally, encoding: AnyEncoding, *, threshold: float, least: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit evaluation.mitigation by the groups of the first column of evaluation.subgroups.

    Args:
        kind: "thresholds" or "recalibration".
        val: Tallies of the groups on validation rows, summed over sites.
        test: The same on test rows.
        encoding: The run's encoding.
        threshold: The common threshold.
        least: The smallest count that is shown.

    Returns:
        `mitigation` of `fairness` in summary.json, and the rules that the model file keeps.
    """
    grouping = encoding.subgroups[0]
    test, _, _ = merge_small_groups(test, least)
    hidden = hide(group_scores(test, threshold), least)
    record, rules = mitigate(
        kind, grouping.column, grouping.names, val, test, hidden, threshold=threshold, least=least
    )
    stored = [rule.to_dict(kind) for rule in rules]
    return record, {"kind": kind, "column": grouping.column, "rules": stored}


def hide(scores: GroupScores | OutcomeTally, least: int) -> list[Hidden]:
    """Choose the groups of a column that are hidden."""
    if isinstance(scores, GroupScores):
        return hide_small_groups(scores.rows.tolist(), scores.events.tolist(), least)
    return hide_small_groups(scores.count.tolist(), None, least)


def show_groups(
    grouping: Grouping, figures: Sequence[Mapping[str, float]], hidden: Sequence[Hidden], least: int
) -> dict[str, dict[str, Any]]:
    """Return the figures of each group that has rows, without those that are hidden: their counts read "<5" or "hidden"."""
    out: dict[str, dict[str, Any]] = {}
    for name, values, group in zip(grouping.names, figures, hidden, strict=True):
        if values["count"] == 0:
            continue
        word = f"<{least}" if group.small else "hidden"
        if group.rows:
            out[name] = {"count": None, "hidden": word}
        elif group.events:
            out[name] = {"count": values["count"], "events": None, "hidden": word}
        else:
            out[name] = dict(values)
    return out


def _class_against_rest(tallies: Sequence[Tally | OutcomeTally], encoding: AnyEncoding) -> int | None:
    """Return the class that is set against the rest, of three classes or more; None for other outcomes."""
    first = tallies[0]
    return None if isinstance(first, OutcomeTally) or len(encoding.classes) <= 2 else worst_class(first)


def _score(
    tally: Tally | OutcomeTally, threshold: float | None, against: int | None
) -> tuple[GroupScores | OutcomeTally, list[dict[str, float]]]:
    if isinstance(tally, OutcomeTally):
        return tally, outcome_figures(tally)
    scores = group_scores(tally, 0.5 if threshold is None else threshold, against)
    return scores, group_figures(scores)


def _cuts(grouping: Grouping) -> dict[str, list[float]]:
    return {"cuts": list(grouping.edges)} if grouping.edges else {}
