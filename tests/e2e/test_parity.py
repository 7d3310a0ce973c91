"""Regressions over sites equal statsmodels and lifelines on pooled rows, in original units, on eight public sets.

Every set comes with a package (this one, scikit-learn, statsmodels, lifelines); nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.statistics.estimates import INTERCEPT, Estimates
from grandrounds.data.sets.catalog import find_entry

TIGHT = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:Starting with pandas")


@dataclass(frozen=True)
class Case:
    """A table and what is fitted to it."""

    frame: pd.DataFrame
    model: str
    label: str
    site: str
    time: str | None = None

    @property
    def features(self) -> list[str]:
        return [c for c in self.frame.columns if c not in (self.label, self.site, self.time)]


def dealt(frame: pd.DataFrame, sites: int) -> pd.DataFrame:
    """Deal rows to sites in turn."""
    return frame.reset_index(drop=True).assign(site=[f"site {i % sites}" for i in range(len(frame))])


def heart() -> Case:
    table = find_entry("heart").load()
    names = ("hospital", "age", "resting_bp", "max_heart_rate", "st_depression", "exercise_angina", "sex", "disease")
    frame = pd.DataFrame({name: table.column(name) for name in names}).dropna()
    for name, word in (("exercise_angina", "yes"), ("sex", "male"), ("disease", "yes")):
        frame[name] = (frame[name] == word).astype(float)
    return Case(frame, "logistic", "disease", "hospital")


def breast_cancer() -> Case:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    frame = data.data[["mean texture", "mean smoothness", "mean compactness", "mean symmetry", "texture error"]]
    return Case(dealt(frame.assign(malignant=1.0 - data.target), 5), "logistic", "malignant", "site")


def spector() -> Case:
    import statsmodels.api as sm

    return Case(dealt(sm.datasets.spector.load_pandas().data.astype(float), 3), "logistic", "GRADE", "site")


def diabetes() -> Case:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(as_frame=True, scaled=False)
    return Case(dealt(data.data.assign(progression=data.target), 6), "linear", "progression", "site")


def randhie() -> Case:
    import statsmodels.api as sm

    data = sm.datasets.randhie.load_pandas().data.astype(float).iloc[::4]
    return Case(dealt(data, 7), "poisson", "mdvis", "site")


def lung() -> Case:
    from lifelines.datasets import load_lung

    frame = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna()
    return Case(frame.assign(inst=frame["inst"].astype(int).astype(str)), "cox", "status", "inst", "time")


def gbsg2() -> Case:
    from lifelines.datasets import load_gbsg2

    frame = load_gbsg2()
    frame["horTh"] = (frame["horTh"] == "yes").astype(float)
    for grade in ("II", "III"):
        frame[f"grade {grade}"] = (frame["tgrade"] == grade).astype(float)
    return Case(dealt(frame.drop(columns=["menostat", "tgrade"]), 5), "cox", "cens", "site", "time")


def rossi() -> Case:
    from lifelines.datasets import load_rossi

    return Case(dealt(load_rossi().astype(float), 4), "cox", "arrest", "site", "week")


SETS: dict[str, Callable[[], Case]] = {
    f.__name__: f for f in (heart, breast_cancer, spector, diabetes, randhie, lung, gbsg2, rossi)
}


def fit(case: Case, out: Path, **options: Any) -> gr.Regression:
    """Fit over sites with `gr.glm` or `gr.cox`."""
    if case.model == "cox":
        return gr.cox(
            case.frame, time=case.time, event=case.label, site=case.site, out=out, progress=False, **options
        )
    return gr.glm(
        case.frame, label=case.label, site=case.site, family=case.model, intercept="common", out=out, progress=False, **options
    )


def statsmodels_fit(case: Case) -> pd.DataFrame:
    """Fit the pooled rows with statsmodels: columns coef, se, p, low, high."""
    import statsmodels.api as sm

    x = sm.add_constant(case.frame[case.features].astype(float), has_constant="add")
    y = case.frame[case.label].astype(float)
    if case.model == "linear":
        found = sm.OLS(y, x).fit()
    else:
        family = {"logistic": sm.families.Binomial, "poisson": sm.families.Poisson}[case.model]()
        found = sm.GLM(y, x, family=family).fit(tol=1e-14, maxiter=200)
    ends = found.conf_int()
    frame = pd.DataFrame({"coef": found.params, "se": found.bse, "p": found.pvalues, "low": ends[0], "high": ends[1]})
    return frame.rename(index={"const": INTERCEPT})


def lifelines_fit(case: Case, *, strata: bool) -> pd.DataFrame:
    """Fit the pooled rows with lifelines: columns coef, se, p, low, high."""
    from lifelines import CoxPHFitter

    frame = case.frame if strata else case.frame.drop(columns=case.site)
    tight = {"precision": 1e-12, "r_precision": 1e-14, "max_steps": 200}
    fitter = CoxPHFitter(strata=[case.site] if strata else None)
    fitter.fit(frame, case.time, case.label, fit_options=tight)
    names = {"coef": "coef", "se(coef)": "se", "p": "p", "coef lower 95%": "low", "coef upper 95%": "high"}
    return fitter.summary.rename(columns=names)


def assert_equal(got: Estimates, wanted: pd.DataFrame) -> None:
    """Coefficients, errors and ends of intervals within 1e-6 (relative), p within 1e-6 (absolute)."""
    rows = {c.name: c for c in got.coefficients}
    assert set(rows) == set(wanted.index)
    for name, row in wanted.iterrows():
        one = rows[str(name)]
        assert one.estimate == pytest.approx(row["coef"], rel=TIGHT)
        assert one.error == pytest.approx(row["se"], rel=TIGHT)
        assert one.p == pytest.approx(row["p"], abs=TIGHT)
        assert (one.low, one.high) == pytest.approx((row["low"], row["high"]), rel=TIGHT, abs=TIGHT * row["se"])


EXCHANGES = {"heart": 7, "breast_cancer": 9, "spector": 8, "diabetes": 2, "randhie": 9, "lung": 7, "gbsg2": 7, "rossi": 7}
"""Most exchanges of a fit."""

SECURE = ("heart", "diabetes", "randhie", "lung")


@pytest.mark.parametrize(("name", "secure"), [*((n, False) for n in EXCHANGES), *((n, True) for n in SECURE)])
def test_a_regression_over_sites_equals_that_of_pooled_rows(name, secure, tmp_path):
    case = SETS[name]()
    found = fit(case, tmp_path / "run", secure=secure)
    assert_equal(found.estimates, lifelines_fit(case, strata=True) if case.model == "cox" else statsmodels_fit(case))
    assert found.exchanges["fit"] <= EXCHANGES[name]


@pytest.mark.parametrize("name", ["lung", "gbsg2", "rossi"])
def test_cox_with_a_common_baseline_by_day_equals_lifelines(name, tmp_path):
    case = SETS[name]()
    found = fit(case, tmp_path / "run", baseline="days")
    assert_equal(found.estimates, lifelines_fit(case, strata=False))
    assert found.exchanges["fit"] <= 10
