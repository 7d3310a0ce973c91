"""Bars T4 to T6 of boosted trees, beside LightGBM with its defaults on the same rows: classes, a number, monotone columns.

    python bench/trees.py classes       # T4: three classes, 15% of diabetes-130, fold 0; mean AUROC of a class against the rest
    python bench/trees.py number        # T5: age from the other columns, eicu-demo, fold 0; root mean squared error in years
    python bench/trees.py monotone      # T6: heart, age up and maximal heart rate down; the largest step the wrong way
    python bench/trees.py survival      # TCGA-BRCA, 5 folds: C-index of both losses, beside a ridge Cox model from the same sums

`classes` and `number` need GRANDROUNDS_DATA. T1, T2, T3, T3b and T7 are commands of `glass_boxes.py`. The command exits with
status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import numpy as np

from folds import agree_encoding, auroc, make_fold
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.boosting import fit_trees
from grandrounds.capabilities.statistics.boosting_result import TreesResult
from grandrounds.capabilities.statistics.boosting_terms import trees_terms
from grandrounds.capabilities.statistics.cox import CoxTerms, fit_cox
from grandrounds.capabilities.statistics.models.columns import Column, find_columns, read_columns
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.arrays import Array
from grandrounds.data.dataset import build_dataset
from grandrounds.data.schema import infer_schema
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.table import Table
from smoke import pick

_SHARE = 0.15


def fit_rows(
    rows: Rows, columns: tuple[Column, ...], options: dict[str, Any], **task: Any
) -> tuple[TreesResult, Record]:
    """Fit trees to rows in one place: the same bits as at many sites."""
    record = Record()
    return fit_in_memory(fit_trees(trees_terms(options, columns, **task)), {"all": rows}, ANSWERS, record), record


def score_rows(result: TreesResult, columns: tuple[Column, ...], x: Array) -> Array:
    """Return the scores of rows, (n, outputs)."""
    return result.trees.scores(result.trees.bin(read_columns(x, columns)))


def compare_classes() -> bool:
    """Fit three classes on 15% of diabetes-130 (T4)."""
    from lightgbm import LGBMClassifier
    from sklearn.model_selection import StratifiedGroupKFold

    entry = find_entry("diabetes-130-3class")
    table = entry.load()
    assert isinstance(table, Table)
    kinds = {name: kind for name, kind in entry.schema.items() if name not in entry.drop}
    schema = infer_schema(table, label=entry.label, patient=entry.patient, drop=sorted(entry.drop), overrides=kinds)
    every = build_dataset(table, schema, name="diabetes-130-3class")
    part = np.random.default_rng(0).permutation(len(every))[: int(_SHARE * len(every))]
    data = every.take(np.sort(part))
    assert data.patient is not None
    split = StratifiedGroupKFold(5, shuffle=True, random_state=0).split(
        np.zeros(len(data)), data.label.astype(str), data.patient.astype(str)
    )
    train, test = next(iter(split))
    encoding = agree_encoding(data.take(train))
    x, y = encoding.encode(data, np.float64), encoding.labels(data).astype(float)
    columns = find_columns(encoding)
    classes = len(encoding.classes)

    def mean_area(scores: Array) -> float:
        return float(np.mean([auroc((y[test] == k).astype(float), scores[:, k]) for k in range(classes)]))

    found = {}
    for name, options in {"trees": {}, "trees, 12 rounds": {"rounds": 12}}.items():
        result, record = fit_rows(Rows(x[train], y[train]), columns, options, classes=classes)
        found[f"{name} ({record.exchanges} exchanges)"] = mean_area(score_rows(result, columns, x[test]))
    values = read_columns(x, columns)
    categories = [c for c, column in enumerate(columns) if column.is_category]
    model = LGBMClassifier(n_jobs=1, verbose=-1).fit(values[train], y[train], categorical_feature=categories)
    peer = mean_area(np.asarray(model.predict_proba(values[test])))
    print(f"\ndiabetes-130, three classes, {len(train):,} training rows\n\n| model | mean AUROC |\n|---|---:|")
    print("\n".join(f"| {name} | {area:.4f} |" for name, area in [*found.items(), ("LightGBM", peer)]))
    missed = next(iter(found.values())) < peer - 0.005
    print(f"\nT4 (>= LightGBM - 0.005): {'MISSED' if missed else 'met'}")
    return missed


def compare_number() -> bool:
    """Fit age from the other columns of the eICU demo (T5)."""
    from lightgbm import LGBMRegressor

    fold = make_fold("eicu-demo", 0)
    place = next(c for c, column in enumerate(fold.columns) if column.name == "age")
    columns = tuple(c for c in fold.columns if c.name != "age")
    parts = {}
    for name, rows in (("train", fold.train), ("test", fold.test)):
        age = fold.values(rows)[:, place]
        parts[name] = Rows(rows.x[~np.isnan(age)], age[~np.isnan(age)])
    y, test = parts["train"].y, parts["test"]
    result, record = fit_rows(
        parts["train"], columns, {}, task="regression", classes=0, centre=float(y.mean()), unit=float(y.std())
    )
    predicted = y.mean() + y.std() * score_rows(result, columns, test.x)[:, 0]
    categories = [c for c, column in enumerate(columns) if column.is_category]
    model = LGBMRegressor(n_jobs=1, verbose=-1)
    model.fit(read_columns(parts["train"].x, columns), y, categorical_feature=categories or "auto")
    peer = np.asarray(model.predict(read_columns(test.x, columns)))
    errors = [float(np.sqrt(np.mean((test.y - p) ** 2))) for p in (predicted, peer, np.full(len(test.y), y.mean()))]
    print("\neicu-demo, fold 0: age from the other columns\n\n| model | error, years |\n|---|---:|")
    names = (f"trees ({record.exchanges} exchanges)", "LightGBM", "mean")
    print("\n".join(f"| {name} | {e:.2f} |" for name, e in zip(names, errors, strict=True)))
    missed = errors[0] > 1.02 * errors[1]
    print(f"\nT5 (<= LightGBM + 2%): {'MISSED' if missed else 'met'}")
    return missed


def compare_monotone() -> bool:
    """Search for a step the wrong way along monotone columns of heart (T6)."""
    fold = make_fold("heart", 0)
    signs = {"age": "up", "max_heart_rate": "down"}
    places = {c.name: c for c in fold.columns}
    print("\nheart, fold 0: largest step the wrong way on 200 values of each column, for every test row\n")
    print("| column | free | monotone |\n|---|---:|---:|")
    fits = [fit_rows(fold.train, fold.columns, {"monotone": m})[0] for m in ({}, signs)]
    worst = []
    for name, way in signs.items():
        column = places[name]
        known = fold.train.x[:, column.place]
        grid = np.repeat(fold.test.x, 200, axis=0)
        grid[:, column.place] = np.tile(np.linspace(known.min(), known.max(), 200), len(fold.test))
        if column.missing >= 0:
            grid[:, column.missing] = 0
        sign = 1 if way == "up" else -1
        steps = [sign * np.diff(score_rows(f, fold.columns, grid).reshape(-1, 200), axis=1) for f in fits]
        worst.append([max(0.0, -float(s.min())) for s in steps])
        print(f"| {name} {way} | {worst[-1][0]:.3f} | {worst[-1][1]:.3f} |")
    missed = any(w[1] > 0 for w in worst)
    areas = [auroc(fold.test.y, score_rows(f, fold.columns, fold.test.x)[:, 0]) for f in fits]
    print(f"\nAUROC free {areas[0]:.4f}, monotone {areas[1]:.4f}\nT6 (0): {'MISSED' if missed else 'met'}")
    return missed


def compare_survival() -> bool:
    """Compare both losses of survival trees with a ridge Cox model on TCGA-BRCA, by the C-index on test folds."""
    from sklearn.model_selection import KFold

    entry = find_entry("tcga-brca")
    table = entry.load()
    assert isinstance(table, Table)
    drop = {*entry.drop, *([entry.site] if entry.site else []), *([entry.duration] if entry.duration else [])}
    schema = infer_schema(table, label=entry.label, drop=sorted(drop))
    data = build_dataset(table, schema, name="tcga-brca")
    time = np.asarray(table.column(str(entry.duration)), float)
    event = np.array([str(v) for v in data.label]) == str(entry.event)
    areas: dict[str, list[float]] = {"hazard": [], "cox": [], "ridge Cox": []}
    for train, test in KFold(5, shuffle=True, random_state=0).split(time):
        encoding = agree_encoding(data.take(train))
        x = encoding.encode(data, np.float64)
        columns, rows = find_columns(encoding), Rows(x[train], event[train].astype(float), time=time[train])
        for loss in ("hazard", "cox"):
            result, _ = fit_rows(rows, columns, {"survival": loss}, task="survival", classes=0)
            areas[loss].append(_concordance(time[test], event[test], score_rows(result, columns, x[test])[:, 0]))
        spread = x[train].std(axis=0)
        kept = np.flatnonzero(spread > 0)
        scaled = (x[:, kept] - x[train][:, kept].mean(axis=0)) / spread[kept]
        mine = Rows(scaled[train], rows.y, time=rows.time)
        cox = fit_in_memory(fit_cox(CoxTerms(tuple(map(str, kept)), ridge=10.0)), {"all": mine}, ANSWERS)
        known = dict(zip(cox.names, cox.beta.tolist(), strict=True))
        beta = np.array([known.get(str(k), 0.0) for k in kept])
        areas["ridge Cox"].append(_concordance(time[test], event[test], scaled[test] @ beta))
    print("\ntcga-brca, 5 folds\n\n| model | C-index |\n|---|---:|")
    print("\n".join(f"| {name} | {np.mean(a):.3f} +- {np.std(a):.3f} |" for name, a in areas.items()))
    return False


def _concordance(time: Array, event: Array, score: Array) -> float:
    """Return Harrell's C: among pairs of which the earlier time is an event, the share with the higher score there."""
    earlier = (time[:, None] < time) & event[:, None]
    ahead = (score[:, None] > score) + 0.5 * (score[:, None] == score)
    return float(ahead[earlier].mean())


COMMANDS = {
    "classes": compare_classes,
    "number": compare_number,
    "monotone": compare_monotone,
    "survival": compare_survival,
}


def main() -> int:
    """Run the comparisons that are named; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="+", choices=[*COMMANDS])
    args = parser.parse_args(sys.argv[1:] or pick(None, ["monotone"]))
    warnings.simplefilter("ignore")
    missed = [COMMANDS[what]() for what in args.what]
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
