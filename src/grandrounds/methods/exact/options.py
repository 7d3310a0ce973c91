"""Settings of exact methods: [method.exact]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class ExactOptions(Section):
    """Methods 'glm', 'cox', 'table1' and 'survival': results from sums over hospitals, equal to those of pooled rows."""

    intercept: Literal["auto", "common", "own", "random"] = Field(
        "auto",
        description="of 'glm'. 'common': one for all hospitals; 'own': one for each hospital, which stays there; 'random': "
        "the same, shrunken towards their mean; auto: random if data.site names the hospitals, else common",
    )
    tau2: float | None = Field(
        None, gt=0, description="variance of random intercepts; not set: by Laplace's approximation over a grid"
    )
    errors: Literal["model", "rows", "patients", "hospitals"] = Field(
        "model",
        description="standard errors: of the model, or robust by rows (HC0), by patients (data.patient) or by hospitals",
    )
    correction: bool = Field(False, description="multiply robust variances by G / (G - 1) for G clusters")
    ridge: float | Literal["cv"] = Field(
        0.0,
        description="ridge penalty: 0.5 ridge sum b^2 on the log-likelihood, b per standard deviation; 'cv': chosen by "
        "cross-validation from method.exact.penalties (method 'cox')",
    )
    penalties: tuple[float, ...] = Field(
        (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), description="penalties to choose from, for ridge 'cv'"
    )
    firth: bool = Field(False, description="Firth's penalty, for separated data (method 'glm', logistic)")
    ties: Literal["efron", "breslow"] = Field("efron", description="tied event times of 'cox'")
    baseline: Literal["strata", "grid", "days"] = Field(
        "strata",
        description="baseline hazard of 'cox'. 'strata': one for each hospital, and no time leaves it; 'grid': a common one on "
        "intervals with at least `least` events; 'days': a common one on all event times, which discloses single patients. "
        "Curves of 'survival' are on intervals, or with 'days' on single days",
    )
    intervals: int = Field(100, ge=5, le=1000, description="largest number of time intervals ('grid', survival curves)")
    least: int = Field(
        5, ge=2, description="smallest number of patients in a level, a time interval or a cell of a table"
    )
    horizon: float | None = Field(
        None,
        gt=0,
        description="time for which a 'cox' model is scored on the rows of the fit (C-index, Brier score, calibration), in about "
        "a dozen more exchanges; end of the restricted mean of 'survival'",
    )
    group: str | None = Field(None, description="column that groups patients in 'table1' and 'survival'")
    columns: tuple[str, ...] = Field((), description="columns of 'table1', in order; not set: all features")
    nonnormal: tuple[str, ...] = Field(
        (), description="columns of 'table1' with median and quartiles instead of mean and SD"
    )
    tests: bool = Field(True, description="compare groups of 'table1' by tests")
    heterogeneity: bool = Field(
        True, description="test whether coefficients differ between hospitals (Cochran's Q): one more exchange"
    )
    bound: float = Field(
        2.0**24,
        ge=2.0**10,
        le=2.0**40,
        description="largest entry of a hospital's sums in secure aggregation; a smaller bound has finer steps",
    )
