"""Cost of exact regression: CPU seconds of a GLM or a Cox model from sums over many sites, and on pooled rows by others.

    python bench/exact.py [--sites 150] [--rows 500] [--columns 30] [--passes 5] [--only logistic] [--run]

GLMs are compared with statsmodels, Cox models with lifelines (once: it takes long).

Both fits run in this process, in turn, on the same rows; one thread. The table has medians over the passes. "Difference" is
the largest relative one of all coefficients and standard errors. Exits with status 1 if the logistic regression with a common
intercept takes 2 s of CPU time or more, or if a difference exceeds 1e-6. `--run` measures the whole of `gr.glm` alone: reading,
agreement on columns, messages, ledger, the test of differences between hospitals, evaluation and report.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from lifelines import CoxPHFitter

import grandrounds as gr
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.cox import CoxTerms, fit_cox
from grandrounds.capabilities.statistics.glm import GLMTerms, fit_glm
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.rng import generator
from smoke import SMOKE, pick

MOST_SECONDS = 2.0
MOST_DIFFERENCE = 1e-6


def measure(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds of a call, and its result."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def outcome(family: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw outcomes of a family."""
    if family == "linear":
        return np.asarray(eta + rng.standard_normal(len(eta)))
    if family == "poisson":
        return rng.poisson(np.exp(eta - 1)).astype(float)
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def pooled(family: str, x: np.ndarray, y: np.ndarray) -> Any:
    """Fit all rows in one place with statsmodels."""
    design = np.column_stack([np.ones(len(x)), x])
    if family == "linear":
        return sm.OLS(y, design).fit()
    kind = sm.families.Poisson() if family == "poisson" else sm.families.Binomial()
    return sm.GLM(y, design, kind).fit(tol=1e-12)


def compare(family: str, intercept: str, x: np.ndarray, y: np.ndarray, sites: int, passes: int) -> dict[str, float]:
    """Fit from sums and on pooled rows in turn; return medians, exchanges and the largest difference."""
    names = tuple(f"c{j}" for j in range(x.shape[1]))
    rows = {f"s{k}": Rows(a, b) for k, (a, b) in enumerate(zip(np.split(x, sites), np.split(y, sites), strict=True))}
    ours, theirs, difference, record = [], [], 0.0, Record()
    for _ in range(passes):
        record = Record()
        fit = fit_glm(GLMTerms(family, names, intercept=intercept))
        seconds, result = measure(lambda fit=fit, record=record: fit_in_memory(fit, rows, ANSWERS, record))
        ours.append(seconds)
        if intercept == "common":
            seconds, reference = measure(lambda: pooled(family, x, y))
            theirs.append(seconds)
            errors = np.array([c.error for c in result.coefficients])
            difference = max(
                float(np.abs(result.beta / reference.params - 1).max()),
                float(np.abs(errors / reference.bse - 1).max()),
            )
    return {
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs) if theirs else np.nan,
        "difference": difference if theirs else np.nan,
        "exchanges": record.exchanges,
        "bytes": 8 * record.numbers,
    }


COX: dict[str, dict[str, Any]] = {
    "by hospital": {},
    "by hospital, robust by row": {"errors": "rows"},
    "by hospital, penalty by 5 folds": {"ridge": "cv"},
    "common, intervals": {"baseline": "grid"},
    "common, days": {"baseline": "days"},
}
"""Baselines of Cox models, with their terms."""


def compare_cox(x: np.ndarray, eta: np.ndarray, sites: int, passes: int, rng: np.random.Generator) -> bool:
    """Print the table of Cox models; return True if estimates differ from those of lifelines."""
    time_to = np.ceil(rng.exponential(1000 * np.exp(-eta)))
    left = np.ceil(rng.exponential(1500, len(eta)))
    event, followed = (time_to <= left).astype(float), np.minimum(time_to, left)
    names, site = tuple(f"c{j}" for j in range(x.shape[1])), np.repeat(np.arange(sites), len(x) // sites)
    rows = {f"s{k}": Rows(x[site == k], event[site == k], followed[site == k]) for k in range(sites)}
    table = pd.DataFrame(x, columns=list(names)).assign(time=followed, event=event, site=site)
    missed = False
    print("\n| Cox baseline | exchanges | kB of a site | from sums s | lifelines s | ratio | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for title, terms in COX.items():
        ours, record = [], Record()
        for _ in range(passes):
            record = Record()
            fit = fit_cox(CoxTerms(names, **terms))
            seconds, result = measure(lambda fit=fit, record=record: fit_in_memory(fit, rows, ANSWERS, record))
            ours.append(seconds)
        line = f"| {title} | {record.exchanges} | {8 * record.numbers / 1000:.1f} | {statistics.median(ours):.2f} |"
        if terms in ({}, {"baseline": "days"}):
            used = table if not terms else table.drop(columns="site")
            strata = None if terms else ["site"]
            options = {"precision": 1e-12}
            seconds, reference = measure(
                lambda used=used, strata=strata, options=options: CoxPHFitter().fit(
                    used, "time", "event", strata=strata, fit_options=options
                )
            )
            errors = np.array([c.error for c in result.coefficients])
            difference = max(
                float(np.abs(result.beta / reference.params_ - 1).max()),
                float(np.abs(errors / reference.standard_errors_ - 1).max()),
            )
            missed |= difference > MOST_DIFFERENCE
            print(line + f" {seconds:.2f} | {statistics.median(ours) / seconds:.2f} | {difference:.0e} |", flush=True)
        else:
            print(line + " - | - | - |", flush=True)
    return missed


def measure_runs(x: np.ndarray, y: np.ndarray, sites: int, passes: int) -> None:
    """Print CPU seconds of whole runs of `gr.glm`, with and without the test of differences between hospitals."""
    frame = pd.DataFrame(x, columns=[f"c{j}" for j in range(x.shape[1])])
    frame = frame.assign(died=y.astype(int), hospital=np.repeat([f"h{k:03d}" for k in range(sites)], len(x) // sites))
    for tested in (True, False):
        settings = {"method.exact.heterogeneity": tested}
        seconds = []
        for _ in range(passes):
            with tempfile.TemporaryDirectory() as folder:
                options = {"label": "died", "site": "hospital", "intercept": "common", "settings": settings}
                spent, _ = measure(lambda folder=folder, options=options: gr.glm(frame, out=f"{folder}/run", **options))
                seconds.append(spent)
        title = "with" if tested else "without"
        print(f"whole run, {title} the test of differences between hospitals: {statistics.median(seconds):.2f} CPU s")


def main() -> int:
    """Print the table; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description="Cost of exact regression from sums.")
    parser.add_argument("--sites", type=int, default=pick(150, 5))
    parser.add_argument("--rows", type=int, default=pick(500, 200))
    parser.add_argument("--columns", type=int, default=pick(30, 3))
    parser.add_argument("--passes", type=int, default=pick(5, 1))
    parser.add_argument("--only", default="", help="one family, or 'cox'")
    parser.add_argument("--run", action="store_true", help="whole runs of gr.glm instead")
    terms = parser.parse_args()
    rng = generator(0, purpose="exact")
    x = rng.standard_normal((terms.sites * terms.rows, terms.columns))
    eta = x @ rng.standard_normal(terms.columns) * 0.3
    print(f"{terms.sites} sites of {terms.rows} rows, {terms.columns} columns; CPU seconds, median of {terms.passes}\n")
    if terms.run:
        measure_runs(x, outcome("logistic", eta, rng), terms.sites, terms.passes)
        return 0
    if terms.only != "cox":
        print("| family | intercept | exchanges | kB of a site | from sums s | statsmodels s | ratio | difference |")
        print("|---|---|---:|---:|---:|---:|---:|---:|")
    missed = False
    for family in ("logistic", "poisson", "linear"):
        if terms.only and family != terms.only:
            continue
        y = outcome(family, eta, rng)
        for intercept in ("common", "own", "random"):
            found = compare(family, intercept, x, y, terms.sites, terms.passes)
            ratio = found["ours"] / found["theirs"]
            print(
                f"| {family} | {intercept} | {found['exchanges']:.0f} | {found['bytes'] / 1000:.1f} | {found['ours']:.2f} | "
                + (
                    f"{found['theirs']:.2f} | {ratio:.2f} | {found['difference']:.0e} |"
                    if ratio == ratio
                    else "- | - | - |"
                )
            )
            if intercept == "common":
                missed |= found["difference"] > MOST_DIFFERENCE
                missed |= not SMOKE and family == "logistic" and found["ours"] >= MOST_SECONDS
    if terms.only in ("", "cox"):
        missed |= compare_cox(x, eta, terms.sites, terms.passes, rng)
    print(f"\nbar: logistic, common intercept, below {MOST_SECONDS:g} s: {'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
