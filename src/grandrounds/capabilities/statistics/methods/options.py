"""Settings of exact methods: [method.exact]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grandrounds.core.section import Section


class ExactOptions(Section):
    """Methods 'glm', 'cox', 'table1' and 'survival': results from sums over hospitals, equal to those of pooled rows."""

    intercept: Literal["common", "own", "random"] = Field(
        "common",
        description="of 'glm'. 'common': one for all hospitals, as in the pooled rows; 'own': one for each hospital, which stays "
        "there; 'random': the same, shrunken towards their mean, which is approximate",
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


class GAMOptions(Section):
    """Model and method 'gam': an additive model, with smoothness chosen from the same sums. There is nothing to tune."""

    splines: int = Field(6, ge=4, le=20, description="cubic splines of a numeric column")
    monotone: dict[str, Literal["up", "down"]] = Field(
        default_factory=dict, description="numeric columns whose curve may only rise or only fall: { age = 'up' }"
    )
    columns: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="keep so many columns, chosen by one exchange of counts, to send fewer numbers; not set: all",
    )
    own_shapes: bool = Field(
        False,
        description="each hospital adds a shape of its own to the common one where its rows ask for it; it stays at the hospital",
    )
    gamma: float = Field(1.5, gt=0, le=10, description="strength of smoothing: larger than 1 is smoother than REML")
    bins: int = Field(6, ge=2, le=64, description="bins of a column in the private version (privacy.epsilon)")


class TreesOptions(Section):
    """Model and method 'trees': boosted trees from summed histograms of whole-number gradients."""

    preset: Literal["default", "quick", "readable"] = Field(
        "default",
        description="'default': 84 exchanges; 'quick': 64 (12 rounds of depth 5, rate 0.6); 'readable': trees of depth one, so "
        "that the model is a sum of one shape for each column",
    )
    rounds: int | None = Field(None, ge=1, le=2000, description="rounds of boosting; not set: as the preset, 20")
    depth: int | None = Field(None, ge=1, le=8, description="depth of a tree; not set: as the preset, 4")
    parallel: int | None = Field(
        None, ge=1, le=64, description="trees grown at once from the same gradients and averaged; not set: as the preset, 8"
    )
    columns: float | None = Field(
        None, gt=0, le=1, description="share of the columns that a tree may use, three at least; not set: as the preset, 0.3"
    )
    rate: float | None = Field(None, gt=0, le=1, description="learning rate; not set: as the preset, 0.4")
    bins: int = Field(32, ge=4, le=64, description="bins of a column, with one for missing values")
    ridge: float = Field(1.0, ge=0, description="ridge penalty on leaves (lambda)")
    least: int = Field(20, ge=1, description="fewest rows of a leaf, over all hospitals")
    monotone: dict[str, Literal["up", "down"]] = Field(
        default_factory=dict, description="numeric columns whose effect may only rise or only fall: { age = 'up' }"
    )
    rounding: Literal["exact", "stochastic"] = Field(
        "exact",
        description="'exact': gradients are rounded to 16 bits, and the model has the same bits for any division of the rows; "
        "'stochastic': to 8 levels at random, so that sums carry less of single patients, without that guarantee",
    )
    early_stop: int = Field(
        0, ge=0, description="stop after so many rounds without a lower summed validation loss; 0: never"
    )
    survival: Literal["cox", "hazard"] = Field(
        "hazard", description="loss of survival trees: 'hazard': discrete time, no time leaves but counts; 'cox': on intervals"
    )


class CardOptions(Section):
    """Model and method 'card': a risk card with whole-number points."""

    terms: int = Field(10, ge=2, le=15, description="number of terms")
    points: int = Field(5, ge=1, le=20, description="most points of a term, positive or negative")
    route: Literal["distilled", "direct"] = Field(
        "distilled",
        description="'distilled': fitted to the scores of an additive model, whose shapes are shown beside it; 'direct': to "
        "outcomes, in fewer and smaller exchanges",
    )
