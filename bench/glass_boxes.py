"""Bars of additive models, trees and cards on real cohorts, beside LightGBM and an EBM on the same five folds by patient.

    python bench/glass_boxes.py bits                     # T1, A3: the same model for 1, 4 and 50 sites (heart)
    python bench/glass_boxes.py heart                    # T3, A2, card; every model beside LightGBM and EBM
    python bench/glass_boxes.py eicu-demo --sites 50     # T2, A1, A4, R1; rows dealt to 50 sites
    python bench/glass_boxes.py diabetes-130 --folds 1   # T3b, A2b
    python bench/glass_boxes.py cost                     # T7: 150 sites against one; CPU against LightGBM with one thread
    python bench/glass_boxes.py icu-cohort               # paired difference to pooled LightGBM, 152 generated hospitals

All but heart, cost and icu-cohort need GRANDROUNDS_DATA. Folds, columns and encoding are those of `folds.py`. Models are fitted
by the product's questions and answers in memory, in the clear, with their default settings: the same sums as in a run. Bytes are
those of one site's answers: 8 for a number, 4 for a whole one. The command exits with status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from folds import FOLDS, Fold, auroc, deal_rows, make_fold, split_cohort
from grandrounds.capabilities.statistics.answers import ANSWERS, GROUP_ANSWERS
from grandrounds.capabilities.statistics.card import card_options
from grandrounds.capabilities.statistics.column_fits import FITS
from grandrounds.capabilities.statistics.models.column_model import LEAST, SEED
from grandrounds.capabilities.statistics.models.columns import write_columns
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.arrays import Array
from grandrounds.experiment.experiment import Experiment
from grandrounds.models import build_model
from smoke import SMOKE, pick

Scores = Callable[[Rows], Array]
"""From rows to log-odds or probabilities, (n,)."""


@dataclass(frozen=True)
class Fitted:
    """A fitted model and its price.

    Attributes:
        scores: The model.
        exchanges: Questions to all sites; 0 for pooled rows.
        bytes_up: Bytes that one site sent.
        seconds: CPU seconds of the fit, over all sites.
        theta: The parameters.
    """

    scores: Scores
    exchanges: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    theta: Array | None = None


def fit_model(name: str, fold: Fold, sites: Mapping[str, Rows], **options: Any) -> Fitted:
    """Fit a model from sums over sites.

    Args:
        name: "gam", "trees" or "card".
        fold: Encoding and columns.
        sites: The rows of each site.
        options: Settings of its section, [method.gam] and so on.
    """
    experiment = Experiment.parse({"data": {"name": "heart"}, "model": {"name": name}, "method": {name: options}})
    settings = experiment.plan()["method"]
    own = card_options(settings) if name == "card" else settings[name]
    spec = {
        "name": name,
        "inputs": list(fold.encoding.inputs),
        "classes": 2,
        "columns": write_columns(fold.columns),
        "options": {**own, SEED: 0, LEAST: settings["exact"]["least"]},
    }
    model: Any = build_model(spec)
    record = Record()
    begun = time.process_time()
    fit = FITS[model.kernel](model, None, settings["exact"]["least"])
    result = fit_in_memory(fit, sites, ANSWERS, record, groups=GROUP_ANSWERS)
    seconds = time.process_time() - begun
    theta = model.pack(result.arrays)
    sent = sum(q.numbers * (4 if q.whole else 8) for q in record.questions)
    return Fitted(lambda rows: model.logits(theta, rows.x)[:, 0], record.exchanges, sent, seconds, theta)


def fit_lightgbm(fold: Fold, rows: Rows) -> Fitted:
    """Fit LightGBM with its defaults and one thread to pooled rows, with categories as categories."""
    import lightgbm

    x = fold.values(rows)
    begun = time.process_time()
    model = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1).fit(x, rows.y, categorical_feature=fold.categories or "auto")
    seconds = time.process_time() - begun
    return Fitted(lambda test: model.predict_proba(fold.values(test))[:, 1], seconds=seconds)


def fit_ebm(fold: Fold, rows: Rows) -> Fitted:
    """Fit an EBM with interactions=0, its other defaults and one thread to pooled rows."""
    from interpret.glassbox import ExplainableBoostingClassifier

    types = ["nominal" if c.is_category else "continuous" for c in fold.columns]
    begun = time.process_time()
    model = ExplainableBoostingClassifier(feature_types=types, interactions=0, n_jobs=1, random_state=0)
    model.fit(fold.values(rows), rows.y.astype(np.int64))
    seconds = time.process_time() - begun
    return Fitted(lambda test: model.predict_proba(fold.values(test))[:, 1], seconds=seconds)


def fit_logistic(fold: Fold, rows: Rows) -> Fitted:
    """Fit scikit-learn's logistic regression, C = 1, to pooled rows: standardised, medians for gaps, with indicators."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    begun = time.process_time()
    model = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(rows.x, rows.y)  # inputs already hold indicators of gaps and one column for each level
    return Fitted(lambda test: model.predict_proba(test.x)[:, 1], seconds=time.process_time() - begun)


POOLED: Mapping[str, Callable[[Fold, Rows], Fitted]] = {
    "pooled LightGBM": fit_lightgbm,
    "pooled EBM": fit_ebm,
    "pooled logistic": fit_logistic,
}
FEDERATED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gam": ("gam", {}),
    "gam, 30 columns": ("gam", {"columns": 30}),
    "gam, 12 columns": ("gam", {"columns": 12}),
    "trees": ("trees", {}),
    "trees, quick": ("trees", {"preset": "quick"}),
    "trees, readable": ("trees", {"preset": "readable"}),
    "card, 5 terms": ("card", {"terms": 5}),
    "card, 10 terms": ("card", {"terms": 10}),
}
BARS: Mapping[tuple[str, str], tuple[str, float]] = {
    ("heart", "trees"): ("T3", 0.89),
    ("heart", "gam"): ("A2", 0.895),
    ("eicu-demo", "gam"): ("A1", 0.77),
    ("eicu-demo", "gam, 30 columns"): ("A4", 0.76),
    ("eicu-demo", "gam, 12 columns"): ("A4", 0.75),
    ("eicu-demo", "card, 5 terms"): ("R1", 0.74),
    ("eicu-demo", "card, 10 terms"): ("R1", 0.77),
    ("diabetes-130", "gam"): ("A2b", 0.666),
}
"""Cohort and model -> name of the bar, and the least AUROC."""
BESIDE_LIGHTGBM: Mapping[tuple[str, str], tuple[str, float]] = {
    ("eicu-demo", "trees"): ("T2", 0.005),
    ("diabetes-130", "trees"): ("T3b", 0.003),
}
"""Cohort and model -> name of the bar, and how far the AUROC may be below LightGBM's on the same folds."""


def compare_models(cohort: str, *, folds: int, sites: int | None, models: Sequence[str]) -> bool:
    """Print AUROC and price of every model on the folds of a cohort; return True if a bar is missed."""
    made = [make_fold(cohort, k) for k in range(folds)]
    print(f"\n{cohort}: AUROC on {folds} of {FOLDS} folds by patient, seed 0\n")
    print("| model | AUROC | each fold | exchanges | MB up of a site | CPU seconds | bar |\n|---|---:|---|---:|---:|---:|---|")
    means: dict[str, float] = {}
    missed = False
    for name in models:
        fits = [_fit(name, fold, fold.sites if sites is None else deal_rows(fold.train, sites)) for fold in made]
        areas = np.array([auroc(fold.test.y, fit.scores(fold.test)) for fold, fit in zip(made, fits, strict=True)])
        means[name] = float(areas.mean())
        least, bar = _bar(cohort, name, means)
        met = least is None or means[name] >= least
        missed |= not met
        price = (
            "rows leave | all rows"
            if name in POOLED
            else f"{np.mean([f.exchanges for f in fits]):.0f} | {np.mean([f.bytes_up for f in fits]) / 1e6:.2f}"
        )
        print(
            f"| {name} | {areas.mean():.4f} +- {areas.std():.3f} | {' '.join(f'{a:.3f}' for a in areas)} | {price} | "
            f"{np.mean([f.seconds for f in fits]):.1f} | {bar and f'{bar}: ' + ('met' if met else 'MISSED')} |",
            flush=True,
        )
    return missed


def _fit(name: str, fold: Fold, sites: Mapping[str, Rows]) -> Fitted:
    """Fit one of `POOLED` to all rows, or one of `FEDERATED` from sums over sites."""
    if name in POOLED:
        return POOLED[name](fold, fold.train)
    kind, options = FEDERATED[name]
    return fit_model(kind, fold, sites, **options)


def _bar(cohort: str, name: str, means: Mapping[str, float]) -> tuple[float | None, str]:
    """Return the least AUROC of a model on a cohort, and the bar as text."""
    if (cohort, name) in BARS:
        bar, least = BARS[cohort, name]
        return least, f"{bar} >= {least}"
    if (cohort, name) in BESIDE_LIGHTGBM and "pooled LightGBM" in means:
        bar, below = BESIDE_LIGHTGBM[cohort, name]
        return means["pooled LightGBM"] - below, f"{bar} >= LightGBM - {below}"
    return None, ""


def compare_bits() -> bool:
    """Fit trees and an additive model on 1, 4 and 50 sites; print digests and the largest difference of log-odds."""
    fold = make_fold("heart", 0)
    print("\nheart, fold 0: the same rows at 1, 4 and 50 sites\n")
    print("| model | sites | sha256 of the model | largest difference of log-odds | exchanges | MB up of a site |")
    print("|---|---:|---|---:|---:|---:|")
    missed = False
    for name in ("trees", "gam"):
        first: Fitted | None = None
        for sites in pick((1, 4, 50), (1, 4)):
            fit = fit_model(name, fold, deal_rows(fold.train, sites, seed=sites))
            assert fit.theta is not None
            first = first or fit
            gap = float(np.abs(fit.scores(fold.test) - first.scores(fold.test)).max())
            assert first.theta is not None
            missed |= gap > 1e-6 if name == "gam" else fit.theta.tobytes() != first.theta.tobytes()
            digest = hashlib.sha256(fit.theta.tobytes()).hexdigest()[:16]
            print(f"| {name} | {sites} | {digest} | {gap:.1e} | {fit.exchanges} | {fit.bytes_up / 1e6:.3f} |", flush=True)
    print(f"\nT1 (same bits) and A3 (1e-6): {'MISSED' if missed else 'met'}")
    return missed


def compare_cost() -> bool:
    """Time the fit of trees with 20,000 rows of 60 columns at 1 and 150 sites, beside LightGBM with one thread."""
    fold = split_cohort("icu-cohort", rows=20_000, columns=60)
    rows = fold.train
    print(f"\nicu-cohort, {len(rows):,} rows, {len(fold.columns)} columns\n\n| fit | sites | CPU seconds |\n|---|---:|---:|")
    seconds = {}
    for sites in (1, 10, 150):
        parts = deal_rows(rows, sites)
        fit_model("trees", fold, parts, rounds=1)  # compiles
        seconds[sites] = fit_model("trees", fold, parts).seconds
        print(f"| trees | {sites} | {seconds[sites]:.2f} |", flush=True)
    for name in ("pooled LightGBM",):
        print(f"| {name}, one thread | 1 | {POOLED[name](fold, rows).seconds:.2f} |", flush=True)
    ratio = seconds[150] / seconds[1]
    print(f"\nT7: 150 sites cost {ratio:.2f} times one site (at most 5): {'MISSED' if ratio > 5 else 'met'}")
    return ratio > 5


def compare_icu(models: Sequence[str], *, folds: int, sites: int | None) -> bool:
    """Print the paired difference to pooled LightGBM on unseen hospitals of the generated ICU cohort."""
    from scipy.stats import t as student

    print(f"\nicu-cohort: AUROC on unseen hospitals, {folds} folds of hospitals\n")
    print("| model | AUROC | difference to pooled LightGBM | 95% interval | exchanges | MB up of a site | CPU seconds |")
    print("|---|---:|---:|---|---:|---:|---:|")
    reference: Array | None = None
    made = [split_cohort("icu-cohort", fold=k) for k in range(folds)]
    for name in models:
        fits = [_fit(name, fold, fold.sites if sites is None else deal_rows(fold.train, sites)) for fold in made]
        areas = np.array([auroc(fold.test.y, fit.scores(fold.test)) for fold, fit in zip(made, fits, strict=True)])
        reference = areas if reference is None else reference
        gap = areas - reference
        half = student.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
        price = "rows leave | all rows" if name in POOLED else f"{fits[0].exchanges} | {fits[0].bytes_up / 1e6:.1f}"
        print(
            f"| {name} | {areas.mean():.4f} +- {areas.std():.4f} | {gap.mean():+.4f} | {gap.mean() - half:+.4f} to "
            f"{gap.mean() + half:+.4f} | {price} | {np.mean([f.seconds for f in fits]):.0f} |",
            flush=True,
        )
    return False


def main() -> int:
    """Run the comparisons that are named; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="+", help="heart, eicu-demo, diabetes-130, icu-cohort, bits, cost")
    parser.add_argument("--folds", type=int, default=pick(FOLDS, 1))
    parser.add_argument("--sites", type=int, help="deal the rows to so many sites; by default the cohort's own")
    parser.add_argument("--models", default=pick("", "gam; trees; pooled LightGBM"), help="only these, separated by semicolons")
    args = parser.parse_args(sys.argv[1:] or pick(None, ["heart", "bits"]))
    warnings.simplefilter("ignore")
    models = [m.strip() for m in args.models.split(";") if m.strip()]
    missed = False
    for what in args.what:
        if what == "bits":
            missed |= compare_bits()
        elif what == "cost":
            missed |= compare_cost()
        elif what == "icu-cohort":
            usual = ["pooled LightGBM", "pooled logistic", "gam", "trees"]
            missed |= compare_icu(models or usual, folds=args.folds, sites=args.sites)
        else:
            usual = [m for m in (*POOLED, *FEDERATED) if what == "eicu-demo" or not m.endswith("columns")]
            missed |= compare_models(what, folds=args.folds, sites=args.sites, models=models or usual) and not SMOKE
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
