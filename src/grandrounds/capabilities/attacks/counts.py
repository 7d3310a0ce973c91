"""Attacks on counts: cells that hold one patient, in summaries, score histograms, row counts and published files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from grandrounds.capabilities.attacks.findings import (
    CARD,
    PERCENTILES_FILE,
    SHAPES,
    SUMMARY_FILE,
    TABLE_ONE,
    AttackedRun,
    StatisticAttack,
)
from grandrounds.capabilities.statistics.small_cells import LEAST
from grandrounds.core.arrays import Array, read_file
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.summary import grid_index
from grandrounds.metrics.classification import bin_index
from grandrounds.privacy.attacks.membership import confidence
from grandrounds.privacy.attacks.reconstruction import alone_in_cell

CELLS = "cells of one patient"
_COUNTED = ("n", "count", "counts", "rows", "events", "at_risk", "missing")
"""Names of counts in the result of a table."""
_NO_ROWS = "The rows are not on this machine, so cells of one patient cannot be counted."


def attack_summary(attacked: AttackedRun, kind: str, statistic: str) -> StatisticAttack:
    """Find values and categories that one patient of a site has alone, in the summaries of training columns."""
    if attacked.run_rows is None:
        return StatisticAttack.skip(kind, statistic, _NO_ROWS)
    data = attacked.run_rows.consortium.data
    if not isinstance(data, Dataset):
        images = attacked.site_rows("train").values()
        labels = [np.unique(data.label[r].astype(str), return_counts=True)[1] for r in images]
        single = sum(int((count == 1).sum()) for count in labels)
        found = StatisticAttack(
            kind, statistic, True, CELLS, f"{single} classes have one image at a site. Counts of pixel values were not attacked."
        )
        return found.count(single, sum(len(count) for count in labels), "classes of a site")
    exposed = levels = total = values = held = 0
    named: set[str] = set()
    for rows in attacked.site_rows("train").values():
        numbers, codes = data.numeric[rows], data.codes[rows]
        cell = np.stack([_cells(numbers[:, j]) for j in range(numbers.shape[1])], axis=1) if numbers.shape[1] else None
        alone = np.zeros((len(rows), 0), bool) if cell is None else np.apply_along_axis(alone_in_cell, 0, cell)
        rare = np.stack([alone_in_cell(codes[:, j]) for j in range(codes.shape[1])], axis=1) if codes.shape[1] else alone[:, :0]
        named |= {data.categorical_names[j] for j in np.flatnonzero(rare.any(axis=0))}
        exposed += int((alone.any(axis=1) | rare.any(axis=1)).sum())
        levels, total, values = levels + int(rare.sum()), total + len(rows), values + int(alone.sum())
        held += 0 if cell is None else int((cell >= 0).sum())
    share = values / held if held else 0.0
    columns = f" (of {', '.join(repr(name) for name in sorted(named)[:5])})" if named else ""
    rare_levels = "1 category has" if levels == 1 else f"{levels} categories have"
    finding = (
        f"{share:.0%} of the numbers are alone in their cell of 0.2% and are read to 0.1%, and {rare_levels} one "
        f"patient of a site{columns}. Values of one patient are not linked across columns. Keepers at hospitals remove counts of "
        f"1 to {LEAST - 1}; this counts them as if none were removed."
    )
    return StatisticAttack(kind, statistic, True, CELLS, finding).count(exposed, total)


def attack_row_counts(attacked: AttackedRun, kind: str, statistic: str) -> StatisticAttack:
    """Find sites with one row in a part, whose figures are those of one patient."""
    counts = [int(n) for parts in attacked.summary["rows"].values() for n in parts.values() if n]
    single = sum(n == 1 for n in counts)
    finding = (
        f"{single} of {len(counts)} counts of rows are of one patient: all figures of that part are those of one patient."
        if single
        else f"No count is of one patient; the smallest is {min(counts, default=0)}."
    )
    return StatisticAttack(kind, statistic, True, CELLS, finding).count(single, len(counts), "counts")


def attack_scores(attacked: AttackedRun, kind: str, statistic: str) -> StatisticAttack:
    """Find patients who are alone in a cell of the histograms of scores by outcome."""
    if not attacked.is_classification:
        return StatisticAttack.skip(kind, statistic, "Metrics of numbers, counts and times are sums over patients.")
    if attacked.run_rows is None or attacked.chosen is None:
        return StatisticAttack.skip(kind, statistic, _NO_ROWS)
    from grandrounds.capabilities.attacks.queries import ModelQuery

    parts = ("test",) if attacked.is_promised else ("train", "val", "test")
    exposed = total = 0
    for part in parts:
        rows_by_site = attacked.site_rows(part)
        if not rows_by_site:
            continue
        rows = np.concatenate(list(rows_by_site.values()))
        site = np.repeat(np.array(list(rows_by_site), object), [len(r) for r in rows_by_site.values()])
        query = ModelQuery.build(attacked.run, attacked.run_rows, rows, site, np.ones(len(rows), bool))
        alone = np.zeros(len(rows), bool)
        place = np.zeros(len(rows), np.int64) if attacked.is_secure else np.unique(site.astype(str), return_inverse=True)[1]
        for mine, logits, y in query.classes(query.outputs(query.data)):
            head = np.asarray(y) if logits.shape[1] > 1 else np.zeros(len(y), np.int64)
            cell = ((place[mine] * 1000 + head) * 2 + (1 if logits.shape[1] > 1 else y)) * 4096
            alone[mine] |= alone_in_cell(cell + bin_index(_log_odds(logits, np.asarray(y))))
        exposed, total = exposed + int(alone.sum()), total + len(rows)
    whose = "of all sites together" if attacked.is_secure else "of their site"
    finding = (
        f"In the histograms of the final model, {exposed:,} of {total:,} patients are alone {whose} in their cell: score and "
        "outcome of such a patient are read, but no column. Histograms of earlier rounds were not attacked."
    )
    return StatisticAttack(kind, statistic, True, CELLS, finding).count(exposed, total)


def attack_published_metrics(attacked: AttackedRun) -> StatisticAttack:
    """Find groups of one patient among the metrics by subgroup and by site in summary.json."""
    summary = attacked.summary
    groups: dict[str, Any] = {}
    for section in ("subgroups", "per_site"):
        for name, figures in dict(summary.get(section) or {}).items():
            groups[f"{section}: {name}"] = figures.get("count") if isinstance(figures, dict) else None
    counts = [int(n) for n in groups.values() if isinstance(n, int | float) and np.isfinite(n) and n > 0]
    single, small = sum(n == 1 for n in counts), sum(n < LEAST for n in counts)
    finding = (
        f"{single} of {len(counts)} groups and sites have one test patient, whose outcome and prediction follow from the "
        f"metrics; {small} have fewer than {LEAST}."
        if counts
        else "It has no metrics by subgroup or site."
    )
    statistic = "summary.json: metrics by subgroup and by site"
    return StatisticAttack(SUMMARY_FILE, statistic, True, CELLS, finding).count(single, len(counts), "counts")


def attack_percentiles(attacked: AttackedRun) -> StatisticAttack | None:
    """Find published quantiles and categories that stand for one patient; None where the run has no percentiles."""
    path = attacked.run.folder / "percentiles.json"
    if not path.exists():
        return None
    statistic = "percentiles.json: quantiles of columns and shares of categories"
    try:
        published = json.loads(read_file(path))
        rows, numeric, categorical = int(published["rows"]), dict(published["numeric"]), dict(published["categorical"])
        levels = [round(float(s) * rows) for c in categorical.values() for s in c["levels"].values()]
        quantiles = {name: np.unique(np.array(c.get("quantiles", ()), float)) for name, c in numeric.items()}
        noised = bool(published.get("noised"))
    except (BadInput, LookupError, TypeError, ValueError, AttributeError):
        return StatisticAttack.skip(PERCENTILES_FILE, statistic, "The file is damaged.")
    if noised:
        return StatisticAttack.skip(PERCENTILES_FILE, statistic, "Its counts have noise; epsilon bounds every attack on them.")
    single = sum(n == 1 for n in levels)
    told, total = single, len(levels)
    finding = f"{single} of {len(levels)} categories stand for one patient"
    data = None if attacked.run_rows is None else attacked.run_rows.consortium.data
    if isinstance(data, Dataset):
        training = np.concatenate([np.empty(0, np.int64), *attacked.site_rows("train").values()])
        alone = shown = 0
        for name, values in quantiles.items():
            if name in data.numeric_names and len(values):
                held = _cells(data.numeric[training, data.numeric_names.index(name)])
                alone += int(np.isin(grid_index(values.copy()) + _SHIFT, held[alone_in_cell(held)]).sum())
                shown += len(values)
        told, total = told + alone, total + shown
        finding += f"; {alone:,} of {shown:,} different quantiles are the value of one patient, to 0.1%, without saying whose"
    else:
        finding += "; quantiles were not compared with values, because the rows are not on this machine"
    return StatisticAttack(PERCENTILES_FILE, statistic, True, CELLS, f"{finding}.").count(told, total, "quantiles and categories")


def attack_glass_box(attacked: AttackedRun) -> list[StatisticAttack]:
    """Find cells of one patient among the counts that are published with a risk card and with shapes."""
    out = []
    for key, kind, what in (
        ("card", CARD, "summary.json: the risk card with the patients of every total"),
        ("shapes", SHAPES, "summary.json: shapes of the additive model with the patients of every bin"),
    ):
        if attacked.summary.get(key):
            counts = [n for n in _counts(attacked.summary[key], counted=("rows",)) if n > 0]
            single = sum(n == 1 for n in counts)
            noisy = " The counts have noise." if attacked.is_promised else ""
            finding = f"{single} of {len(counts)} counts above zero are of one patient.{noisy}"
            out.append(StatisticAttack(kind, what, True, CELLS, finding).count(single, len(counts), "counts"))
    return out


def attack_table(attacked: AttackedRun) -> StatisticAttack | None:
    """Count cells of one patient among the published counts of a run that describes patients; None for a run with a model."""
    if attacked.has_model:
        return None
    published = {key: attacked.summary[key] for key in ("table1", "survival") if key in attacked.summary}
    counts = [n for n in _counts(published) if n > 0]
    single = sum(n == 1 for n in counts)
    finding = f"{single} of {len(counts)} counts above zero are of one patient."
    statistic = f"summary.json: the result of method '{attacked.summary['method']}'"
    return StatisticAttack(TABLE_ONE, statistic, True, CELLS, finding).count(single, len(counts), "counts")


def _counts(values: Any, name: str = "", counted: tuple[str, ...] = _COUNTED) -> list[int]:
    """Collect whole numbers below names of counts in nested JSON values."""
    if isinstance(values, dict):
        return [n for key, inner in values.items() for n in _counts(inner, str(key), counted)]
    if isinstance(values, list | tuple):
        return [n for inner in values for n in _counts(inner, name, counted)]
    whole = isinstance(values, int | float) and not isinstance(values, bool) and float(values).is_integer()
    return [int(values)] if whole and name in counted else []


_SHIFT = 2**23


def _cells(x: Array) -> Array:
    """Return the cell (n,) of each number on the grid of summaries; -1 where it is missing."""
    seen = np.isfinite(x)
    return np.where(seen, grid_index(np.where(seen, x, 0.0)) + _SHIFT, -1)


def _log_odds(logits: Array, y: Array) -> Array:
    """Compute the log-odds that a histogram counts: of the second of two classes, or of each row's own class."""
    if logits.shape[1] == 1:
        return np.asarray(logits[:, 0], float)
    return confidence(logits, y)
