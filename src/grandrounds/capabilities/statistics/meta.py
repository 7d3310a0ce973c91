"""Meta-analysis of the hospitals' own estimates, from sums: common effect, heterogeneity and the effect at a new hospital.

Each hospital fits the model to its own rows and answers, for each coefficient, with its weight w = 1 / SE^2, w d, w d^2 and w^2,
where d is its estimate less a public one, and with 1 if it could fit the coefficient. From the sums follow the fixed-effect
estimate, Cochran's Q (does the coefficient differ between hospitals?), I-squared and the variance tau2 between hospitals
(DerSimonian and Laird 1986). A second exchange, at that tau2, gives the random-effects estimate and the prediction interval
(Higgins, Thompson and Spiegelhalter 2009).

Where standard errors are robust, and for counts always, SE is a hospital's own robust one: with that of the model, counts that
vary more than Poisson's (most do) would look different between hospitals that are alike. Of rows it is the jackknife's (HC3),
because a hospital may have few.

Under secure aggregation the server has the sums alone. Estimates of single hospitals are shown where answers come in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from grandrounds.capabilities.statistics.cox import COX_ANSWERS
from grandrounds.capabilities.statistics.cox_strata import fit_strata
from grandrounds.capabilities.statistics.cox_terms import CoxTerms
from grandrounds.capabilities.statistics.estimates import Estimates
from grandrounds.capabilities.statistics.families import find_family
from grandrounds.capabilities.statistics.glm import fit_glm
from grandrounds.capabilities.statistics.glm_answers import GLM_ANSWERS, add_by_patient
from grandrounds.capabilities.statistics.glm_terms import GLMTerms
from grandrounds.capabilities.statistics.question import Blocks, Fit, Question, Rows, Total, fit_in_memory
from grandrounds.capabilities.statistics.small_cells import LEAST
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds.metrics.meta_analysis import (
    FEWEST_SITES,
    SQUARES,
    MetaCoefficient,
    combine_sums,
    estimate_tau2,
    heterogeneity,
)

KIND = "meta"
MODELS = ("logistic", "linear", "poisson", "cox")
_WIDE = 1.959963984540054  # 97.5% quantile of the normal distribution
_WEAK, _WIDEST = 1e-4, 25.0  # penalty beside separation, and the variance from which on a coefficient is not used
_LONGEST, _MOST_STEPS = 2.0, 100
_ALONE = 1e-6  # 1 - leverage of a row that alone decides a coefficient
_ABSORBED = (
    "constant",
    "no rows",
)  # the intercept takes such a column up, and the other coefficients keep their meaning


_OWN_FITS: WeakKeyDictionary[Rows, dict[tuple[str, str, bool, str], tuple[Array, Array]]] = WeakKeyDictionary()
"""Each site's own fits, as long as its rows are in memory."""


@dataclass(frozen=True)
class MetaTerms:
    """Terms of a meta-analysis.

    Attributes:
        model: "logistic", "linear", "poisson" or "cox".
        names: Names of the inputs, in the order of the columns of x. Intercepts are not combined.
        about: Public estimate of each coefficient, such as that of the common fit: sums are taken about it; (): zeros.
        ties: Ties of Cox regression: "efron" or "breslow".
        offset: True: rows have an offset of the linear predictor.
        errors: Standard errors of the hospitals' estimates: of the "model", or robust by "rows" or "patients".
    """

    model: str
    names: tuple[str, ...]
    about: tuple[float, ...] = ()
    ties: str = "efron"
    offset: bool = False
    errors: str = "model"

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise BadInput(
                f"model = '{self.model}' of a meta-analysis is unknown; {nearest(self.model, MODELS)}", code="bad-value"
            )
        if not self.names:
            raise BadInput("a meta-analysis needs at least one coefficient; name features", code="no-features")
        if self.about and len(self.about) != len(self.names):
            raise BadInput(
                f"{len(self.about)} public estimates for {len(self.names)} coefficients; give one for each",
                code="bad-value",
            )


@dataclass(frozen=True)
class SiteEstimate:
    """The estimate of one hospital, with standard error and 95% confidence interval."""

    estimate: float
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class MetaAnalysis:
    """Meta-analysis of a regression.

    Attributes:
        model: "logistic", "linear", "poisson" or "cox".
        coefficients: In the order of the inputs.
        by_site: Hospital -> coefficient -> its estimate, where answers came in the clear.
        notes: Sentences for people.
        errors: Standard errors of the hospitals' estimates, as in `MetaTerms`.
    """

    model: str
    coefficients: tuple[MetaCoefficient, ...]
    by_site: Mapping[str, Mapping[str, SiteEstimate]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    errors: str = "model"

    def __getitem__(self, name: str) -> MetaCoefficient:
        """Return a coefficient by name."""
        return next(c for c in self.coefficients if c.name == name)

    def rescale(self, factors: Mapping[str, float]) -> MetaAnalysis:
        """Return the analysis in other units.

        Args:
            factors: Factor of each coefficient, such as 1 / sd for original units; 1 where a name is not listed.

        Returns:
            The analysis; Q, p and I-squared do not change.
        """
        by_site = {
            site: {name: _rescale_site(e, factors.get(name, 1.0)) for name, e in own.items()}
            for site, own in self.by_site.items()
        }
        coefficients = tuple(_rescale(c, factors.get(c.name, 1.0)) for c in self.coefficients)
        return replace(self, coefficients=coefficients, by_site=by_site)

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as JSON values."""
        return {
            "model": self.model,
            "coefficients": [dict(vars(c)) for c in self.coefficients],
            "by_site": {site: {name: dict(vars(e)) for name, e in own.items()} for site, own in self.by_site.items()},
            "notes": list(self.notes),
            "errors": self.errors,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MetaAnalysis:
        """Read what `to_dict` wrote."""
        return cls(
            str(values["model"]),
            tuple(MetaCoefficient(**c) for c in values["coefficients"]),
            {site: {n: SiteEstimate(**e) for n, e in own.items()} for site, own in values["by_site"].items()},
            tuple(values["notes"]),
            str(values["errors"]),
        )

    def summary(self) -> str:
        """Return the analysis as text: one row for each coefficient."""
        header = ["", "sites", "estimate", "95% CI", "prediction", "I2", "tau2", "Q", "p of Q"]
        rows = [header, *(_print_row(c) for c in self.coefficients)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
        lines = [
            "  ".join(t.ljust(w) if k == 0 else t.rjust(w) for k, (t, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        return "\n".join(
            ["Meta-analysis of hospitals' estimates (random effects)", *lines, *(f"{n}." for n in self.notes)]
        )


def fit_meta(terms: MetaTerms) -> Fit[MetaAnalysis]:
    """Combine the hospitals' own estimates.

    Args:
        terms: The terms.

    Returns:
        A generator of two questions that returns the analysis.
    """
    tau2 = np.zeros(len(terms.names))
    total = yield _ask(terms, tau2)
    while True:
        tau2 = estimate_tau2(total)
        total = yield _ask(terms, tau2)
        if not total.is_new_roster:
            return _conclude(terms, tau2, total)


def answer_meta(question: Question, rows: Rows) -> Blocks:
    """Answer with weights and weighted estimates of the model that is fitted to the rows of one site.

    Args:
        question: The model and public values.
        rows: The site's rows.

    Returns:
        Blocks "w", "wd", "wdd", "ww", "fitted", and "r", "rd" with tau2 added to each variance. Zeros for coefficients that
        the site cannot fit: too few rows, one class, separation, a column that is constant at the site.
    """
    values = question.values
    names = tuple(map(str, range(len(np.asarray(values["tau2"])))))
    key = (str(values["model"]), str(values["ties"]), bool(values["offset"]), str(values["errors"]))
    own = _OWN_FITS.setdefault(rows, {})  # the second question is about the same fit
    if key not in own:
        own[key] = estimate_site(key[0], names, rows, ties=key[1], offset=key[2], errors=key[3])
    estimate, variance = own[key]
    fitted = np.isfinite(estimate) & np.isfinite(variance) & (variance > 0)
    d = np.where(fitted, estimate - np.asarray(values["about"]), 0.0)
    safe = np.where(fitted, variance, 1.0)
    w, r = fitted / safe, fitted / (safe + np.asarray(values["tau2"]))
    return {
        "fitted": fitted.astype(float),
        "w": w,
        "wd": w * d,
        "wdd": w * d * d,
        "ww": w * w / SQUARES,
        "r": r,
        "rd": r * d,
    }


def estimate_site(
    model: str, names: Sequence[str], rows: Rows, *, ties: str = "efron", offset: bool = False, errors: str = "model"
) -> tuple[Array, Array]:
    """Fit a model to the rows of one site.

    Args:
        model: "logistic", "linear", "poisson" or "cox".
        names: Names of the columns of x.
        rows: The site's rows.
        ties: Ties of Cox regression.
        offset: Rows have an offset.
        errors: Variances of the "model", or robust by "rows" or "patients".

    Returns:
        (p,) slopes and (p,) their variances; NaN for those that the rows do not allow.
    """
    nothing = np.full(len(names), np.nan)
    if model == "logistic" and min(rows.y.sum(), (1 - rows.y).sum()) < LEAST:
        return nothing, nothing
    try:
        estimates: Estimates
        if model == "cox":
            terms = CoxTerms(tuple(names), ties=ties, errors=errors)
            estimates = fit_in_memory(fit_strata(terms, 0.0), {"site": rows}, COX_ANSWERS)
        else:
            glm = GLMTerms(model, tuple(names), offset=offset)
            estimates = fit_in_memory(fit_glm(glm), {"site": rows}, GLM_ANSWERS)
    except GrandRoundsError as problem:
        if model == "logistic" and problem.code == "outcome-separated":
            return _fit_beside_separation(rows)
        return nothing, nothing
    if any(c.estimate is None and c.reason not in _ABSORBED for c in estimates.coefficients):
        return nothing, nothing
    found = {c.name: c for c in estimates.coefficients}
    slopes = np.array([found[name].estimate for name in names], float)
    variances = np.array([found[name].error for name in names], float) ** 2
    if errors != "model" and model != "cox":
        variances[np.isfinite(variances)] = _robust_variances(estimates, slopes, rows, errors=errors, offset=offset)
    return slopes, variances


def choose_errors(model: str, errors: str) -> str:
    """Choose the standard errors by which hospitals are compared.

    Args:
        model: The model.
        errors: Standard errors of the common fit: "model", "rows", "patients" or "hospitals".

    Returns:
        "model", "rows" or "patients": robust ones where the fit has them, and always for counts. A hospital by itself has one
        cluster, so that errors by hospital become errors by row.
    """
    if errors == "patients":
        return errors
    return "model" if errors == "model" and model != "poisson" else "rows"


def _robust_variances(estimates: Estimates, slopes: Array, rows: Rows, *, errors: str, offset: bool) -> Array:
    """Compute the robust variances of the slopes that one site's fit estimated, from residuals over 1 - leverage (HC3).

    A row that alone decides a coefficient, such as the only one of its level, has no residual and says nothing of its variance:
    that of the coefficient is NaN.
    """
    used = np.isfinite(slopes)
    x = np.column_stack([np.ones(len(rows)), rows.x[:, used]])
    family, weight = find_family(estimates.model), np.ones(len(rows)) if rows.weight is None else rows.weight
    eta = x @ estimates.beta + (rows.offset if offset and rows.offset is not None else 0.0)
    mu, slope = family.predict(eta)
    w = weight * slope
    inverse = np.linalg.inv((x.T * w) @ x)
    influence = x @ inverse
    share = w[:, None] * influence**2 / np.diag(inverse)  # of the model's variance of a coefficient that is due to a row
    left = 1 - w * np.einsum("ij,ij->i", influence, x)
    alone = left < _ALONE
    scores = np.where(alone, 0.0, weight * (rows.y - mu) / np.where(alone, 1.0, left))[:, None] * x
    if errors == "patients":
        scores = add_by_patient(scores, rows)
    variances = np.square(scores @ inverse).sum(axis=0)
    return np.where((share[alone] > _ALONE).any(axis=0), np.nan, variances)[1:]


def _fit_beside_separation(rows: Rows) -> tuple[Array, Array]:
    """Fit a logistic regression in which a coefficient is infinite: the others have a limit, and it has no weight.

    A ridge penalty that is small beside the information of the rows ends the growth. Coefficients that only the penalty holds
    have a variance near its inverse: they are not used.
    """
    x = np.column_stack([np.ones(len(rows)), rows.x])
    offset = np.zeros(len(rows)) if rows.offset is None else rows.offset
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    penalty = np.full(x.shape[1], _WEAK)
    beta, inverse = np.zeros(x.shape[1]), np.eye(x.shape[1])
    family = find_family("logistic")
    for _ in range(_MOST_STEPS):
        mu, slope = family.predict(x @ beta + offset)
        inverse = np.linalg.inv((x.T * (weight * slope)) @ x + np.diag(penalty))
        step = inverse @ (x.T @ (weight * (rows.y - mu)) - penalty * beta)
        beta = beta + step * min(1.0, _LONGEST / np.abs(step).max())
        if np.abs(step).max() < 1e-10:
            break
    else:
        return np.full(x.shape[1] - 1, np.nan), np.full(x.shape[1] - 1, np.nan)
    variance = np.diag(inverse)[1:]
    return np.where(variance < _WIDEST, beta[1:], np.nan), np.where(variance < _WIDEST, variance, np.nan)


def _ask(terms: MetaTerms, tau2: Array) -> Question:
    p = len(terms.names)
    about = np.asarray(terms.about, float) if terms.about else np.zeros(p)
    return Question(
        KIND,
        {"model": terms.model, "about": about, "tau2": tau2, "ties": terms.ties, "offset": terms.offset, "errors": terms.errors},
        dict.fromkeys(("fitted", "w", "wd", "wdd", "ww", "r", "rd"), (p,)),
        "random effects" if tau2.any() else "hospitals' estimates",
        by_site=True,
    )


def _conclude(terms: MetaTerms, tau2: Array, total: Total) -> MetaAnalysis:
    about = np.asarray(terms.about, float) if terms.about else np.zeros(len(terms.names))
    q, _ = heterogeneity(total)
    coefficients = []
    for j, name in enumerate(terms.names):
        k = int(np.rint(total["fitted"][j]))
        if k < FEWEST_SITES:
            coefficients.append(MetaCoefficient(name, k))
            continue
        sums = {block: float(total[block][j]) for block in ("w", "wd", "r", "rd")}
        coefficients.append(combine_sums(name, k, float(about[j]), sums, float(q[j]), float(tau2[j])))
    notes = _tell_missing(coefficients, len(total.sites))
    return MetaAnalysis(terms.model, tuple(coefficients), _read_sites(terms, about, total), notes, terms.errors)


def _tell_missing(coefficients: Sequence[MetaCoefficient], sites: int) -> tuple[str, ...]:
    """Tell which coefficients some hospitals could not fit."""
    out = []
    for k in sorted({c.sites for c in coefficients if c.sites < sites}, reverse=True):
        names = [c.name for c in coefficients if c.sites == k]
        few = f"; at least {FEWEST_SITES} are needed" if k < FEWEST_SITES else ""
        which = "all coefficients" if len(names) == len(coefficients) else ", ".join(names)
        out.append(f"{k} of {sites} hospitals could fit {which}{few}")
    return tuple(out)


def _read_sites(terms: MetaTerms, about: Array, total: Total) -> dict[str, dict[str, SiteEstimate]]:
    """Return the estimates of single hospitals, where they came in the clear."""
    out: dict[str, dict[str, SiteEstimate]] = {}
    for site, blocks in total.by_site.items():
        own = out.setdefault(site, {})
        for j, name in enumerate(terms.names):
            w = float(blocks["w"][j])
            if w > 0:
                estimate, error = float(about[j] + blocks["wd"][j] / w), w**-0.5
                own[name] = SiteEstimate(estimate, error, estimate - _WIDE * error, estimate + _WIDE * error)
    return out


def _rescale(c: MetaCoefficient, factor: float) -> MetaCoefficient:
    def times(value: float | None, by: float = factor) -> float | None:
        return None if value is None else value * by

    ends = {name: (getattr(c, f"{name}low"), getattr(c, f"{name}high")) for name in ("", "fixed_", "prediction_")}
    if factor < 0:
        ends = {name: (high, low) for name, (low, high) in ends.items()}
    changed: dict[str, Any] = {
        f"{name}{end}": times(x) for name, two in ends.items() for end, x in zip(("low", "high"), two, strict=True)
    }
    changed |= {name: times(getattr(c, name), abs(factor)) for name in ("error", "fixed_error")}
    return replace(c, fixed=times(c.fixed), estimate=times(c.estimate), tau2=times(c.tau2, factor**2), **changed)


def _rescale_site(e: SiteEstimate, factor: float) -> SiteEstimate:
    low, high = sorted((e.low * factor, e.high * factor))
    return SiteEstimate(e.estimate * factor, e.error * abs(factor), low, high)


def _print_row(c: MetaCoefficient) -> list[str]:
    if c.estimate is None or c.i2 is None or c.tau2 is None or c.q_p is None:
        return [c.name, str(c.sites), *["-"] * 7]
    return [
        c.name,
        str(c.sites),
        f"{c.estimate:.4g}",
        f"{c.low:.4g} to {c.high:.4g}",
        f"{c.prediction_low:.4g} to {c.prediction_high:.4g}",
        f"{100 * c.i2:.0f}%",
        f"{c.tau2:.3g}",
        f"{c.q:.2f}",
        "<0.001" if c.q_p < 0.001 else f"{c.q_p:.3f}",
    ]
