"""Parity of exact regression with pooled rows: largest relative difference from statsmodels, in the clear and in the 64-bit ring.

    python bench/exact_parity.py        # heart, in the package; with GRANDROUNDS_DATA also eICU and diabetes-130

Each line fits one regression from sums twice: sums in the clear, and sums of whole numbers in the ring of secure aggregation.
The peer is statsmodels on pooled rows: GLM or OLS, with HC0 or clustered covariances, with a dummy for each hospital in place
of free intercepts (hospitals of one class left out). Shrunk intercepts and Firth's correction are compared with pooled fits of
the same objective. Exits with status 1 if a difference exceeds 1e-6.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api as sm

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.capabilities.statistics.hospital_rows import EICU, HEART, by_site, diabetes_rows, eicu_rows, heart_rows
from tests.capabilities.statistics.regressions import drive, errors_of
from tests.capabilities.statistics.test_glm_intercepts import penalised_dummies
from tests.capabilities.statistics.test_glm_problems import firth_of_pooled_rows

from grandrounds.capabilities.statistics.glm import GLMTerms
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.data.store import VARIABLE
from smoke import SMOKE

MOST_DIFFERENCE = 1e-6
FAMILIES = {"logistic": sm.families.Binomial, "poisson": sm.families.Poisson}


def pooled(terms: GLMTerms, x: np.ndarray, y: np.ndarray, site: np.ndarray, patient: np.ndarray | None) -> Any:
    """Fit pooled rows with statsmodels; the coefficients to compare come first."""
    design = np.column_stack([np.ones(len(y)), x])
    if terms.intercept == "own":
        if terms.family == "logistic":
            both = np.isin(site, [s for s in np.unique(site) if len(set(y[site == s])) == 2])
            x, y, site = x[both], y[both], site[both]
        design = np.column_stack([x, site[:, None] == np.unique(site)]).astype(float)
    groups = site
    if terms.errors == "patients" and patient is not None:
        groups = np.unique(np.char.add(site.astype(str), patient.astype(str)), return_inverse=True)[1]
    kind: dict[str, Any] = {}
    if terms.errors == "rows":
        kind = {"cov_type": "HC0"}
    elif terms.errors != "model":
        kind = {"cov_type": "cluster", "cov_kwds": {"groups": groups, "use_correction": False}}
    if terms.family == "linear":
        return sm.OLS(y, design).fit(**kind)
    return sm.GLM(y, design, FAMILIES[terms.family]()).fit(tol=1e-14, **kind)


def show(what: str, terms: GLMTerms, sites: Mapping[str, Rows], beta: np.ndarray, errors: np.ndarray | None) -> bool:
    """Fit from sums in both ways and print the line; return True if a difference is too large."""
    cells, worst = [], 0.0
    for way in ("clear", "ring"):
        result, record = drive(way, terms, sites)
        size = len(result.beta)
        found = [np.abs(result.beta / beta[:size] - 1).max()]
        if errors is not None:
            found.append(np.abs(errors_of(result) / errors[:size] - 1).max())
        worst = max(worst, *found)
        cells += [f"{value:.0e}" for value in found] + ["-"] * (errors is None)
    print(
        f"| {what} | {len(sites)} | {record.exchanges} | {8 * record.numbers / 1000:.1f} | {' | '.join(cells)} |",
        flush=True,
    )
    return bool(worst > MOST_DIFFERENCE)


def main() -> int:
    """Print the table; return 1 if a bar was missed."""
    warnings.simplefilter("ignore")
    print(
        "| regression | sites | exchanges | kB of a site | coefficients, clear | errors | coefficients, ring | errors |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    x, y, site = heart_rows()
    patient = np.arange(len(y)) // 2
    missed = False

    def line(what: str, terms: GLMTerms, data: tuple[np.ndarray, ...]) -> None:
        nonlocal missed
        reference = pooled(terms, *data)
        sites = by_site(*data[:3], patient=data[3])
        missed |= show(what, terms, sites, np.asarray(reference.params), np.asarray(reference.bse))

    rate = HEART.index("max_heart_rate")
    others = HEART[:rate] + HEART[rate + 1 :]
    heart, numbers = (x, y, site, patient), (np.delete(x, rate, 1), x[:, rate] * 25 + 137, site, patient)
    logistic = GLMTerms("logistic", HEART)
    line("heart, logistic", logistic, heart)
    line("heart, linear (heart rate)", GLMTerms("linear", others), numbers)
    for errors in ("rows", "patients", "hospitals"):
        line(f"heart, logistic, errors by {errors}", replace(logistic, errors=errors), heart)
    line("heart, logistic, free intercepts", replace(logistic, intercept="own"), heart)
    beta, information = penalised_dummies(x, y, site, 0.5)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    shrunk = replace(logistic, intercept="random", tau2=(0.5,))
    missed |= show("heart, logistic, shrunk intercepts, variance 0.5", shrunk, by_site(x, y, site), beta, errors)
    firth = replace(logistic, firth=True)
    missed |= show("heart, logistic, Firth", firth, by_site(x, y, site), firth_of_pooled_rows(x, y), None)
    if os.environ.get(VARIABLE) and not SMOKE:
        folder = Path(os.environ[VARIABLE])
        eicu = eicu_rows(folder)
        line("eICU, logistic", GLMTerms("logistic", EICU), eicu)
        line("eICU, logistic, errors by hospitals", GLMTerms("logistic", EICU, errors="hospitals"), eicu)
        line("eICU, logistic, free intercepts", GLMTerms("logistic", EICU, intercept="own"), eicu)
        columns, names, readmitted, payer, patients = diabetes_rows(folder)
        all_columns = np.column_stack([columns[n] for n in names])
        line("diabetes-130, logistic", GLMTerms("logistic", names), (all_columns, readmitted, payer, patients))
        days = names.index("time_in_hospital")
        less = names[:days] + names[days + 1 :]
        stays = (np.delete(all_columns, days, 1), columns["raw time_in_hospital"], payer, patients)
        line("diabetes-130, Poisson (days)", GLMTerms("poisson", less), stays)
        line("diabetes-130, linear (days)", GLMTerms("linear", less), stays)
        by_patient = GLMTerms("logistic", names, errors="patients")
        line("diabetes-130, logistic, errors by patients", by_patient, (all_columns, readmitted, payer, patients))
        own = GLMTerms("logistic", names, intercept="own")
        line("diabetes-130, logistic, free intercepts", own, (all_columns, readmitted, payer, patients))
        line("diabetes-130, Poisson, free intercepts", GLMTerms("poisson", less, intercept="own"), stays)
    print(f"\nbar: every difference at most {MOST_DIFFERENCE:g}: {'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
