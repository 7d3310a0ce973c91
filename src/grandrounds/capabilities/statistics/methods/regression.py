"""Exact regression: method 'glm' (logistic, linear, Poisson) and method 'cox'.

The coefficients of the model are those of the pooled rows. summary.json has them with standard errors, in the units of the fit
(standard deviations of the inputs) and in original units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.brier import fit_baseline
from grandrounds.capabilities.statistics.cox import COX_ANSWERS, CoxTerms, fit_cox
from grandrounds.capabilities.statistics.estimates import INTERCEPT, Coefficient, Estimates
from grandrounds.capabilities.statistics.glm import GLMTerms, describe_small_hospitals, fit_glm
from grandrounds.capabilities.statistics.glm_answers import GLM_ANSWERS
from grandrounds.capabilities.statistics.glm_terms import TAU2
from grandrounds.capabilities.statistics.meta import KIND as META
from grandrounds.capabilities.statistics.meta import MetaAnalysis, MetaTerms, choose_errors, fit_meta
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.methods.site import STORED
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.capabilities.statistics.survival_scores import SurvivalScores, fit_survival_scores
from grandrounds.capabilities.statistics.time_counts import count_by_cell
from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.encoding import Encoding
from grandrounds.data.event import ONE_AGAINST_OTHERS
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Server
from grandrounds.methods.sums import read_result
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import STORE

SCORE_KINDS = (
    *("concordance.sites", "counts.scores", "counts.time", "range.time", "hazard.time", "brier", "calibration.time"),
)
"""Kinds of question that score a survival model."""

_AWAY = 0.2  # deviation of coefficients that a fit starts from after a withdrawal

FAMILIES = {CLASSIFICATION: "logistic", REGRESSION: "linear", COUNT: "poisson"}
"""Family of a generalized linear model by data.task."""


@dataclass(frozen=True)
class RegressionResult:
    """The result of an exact regression.

    Attributes:
        estimates: Coefficients with standard errors, in the units of the fit.
        heterogeneity: Meta-analysis of the hospitals' own estimates; None if it is off.
        scores: C-index, Brier score and calibration of a survival model on the rows of the fit; None without a horizon.
    """

    estimates: Estimates
    heterogeneity: MetaAnalysis | None = None
    scores: SurvivalScores | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        found = None if self.heterogeneity is None else self.heterogeneity.to_dict()
        scores = None if self.scores is None else self.scores.to_dict()
        return {"estimates": self.estimates.to_dict(), "heterogeneity": found, "scores": scores}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RegressionResult:
        """Read what `to_dict` wrote."""
        found, scores = values["heterogeneity"], values["scores"]
        return cls(
            Estimates.from_dict(values["estimates"]),
            None if found is None else MetaAnalysis.from_dict(found),
            None if scores is None else SurvivalScores.from_dict(scores),
        )


class _Regression(ExactMethod):
    """Parts that exact regressions share: the model's parameters, and the estimates in summary.json."""

    def fit(self, server: Server) -> Fit[RegressionResult]:
        """Fit the common model; then, if asked for, compare it with each hospital's own estimates."""
        estimates = yield from self.fit_common(server)
        if not self.settings.exact.heterogeneity or estimates.errors == "penalised":
            return RegressionResult(estimates)
        names = _table_encoding(server.encoding).features
        known = dict(zip(estimates.names, estimates.beta.tolist(), strict=True))
        about = tuple(known.get(name, 0.0) for name in names)
        errors = choose_errors(estimates.model, estimates.errors)
        terms = MetaTerms(estimates.model, names, about, ties=str(self.settings.exact.ties), errors=errors)
        return RegressionResult(estimates, (yield from fit_meta(terms)))

    def fit_common(self, server: Server) -> Fit[Estimates]:
        """Build the fit of the common model. Every regression implements it.

        Args:
            server: The state of the round.
        """
        raise TypeError(f"{type(self).__name__} does not implement fit_common()")

    def model(self, server: Server, result: RegressionResult) -> Array:
        """Return the parameters of the linear model: slopes in the order of the inputs, then the intercept."""
        return self._parameters(server, result.estimates)

    @staticmethod
    def _parameters(server: Server, result: Estimates) -> Array:
        encoding = _table_encoding(server.encoding)
        slopes = dict(zip(result.names, result.beta.tolist(), strict=True))
        theta = np.zeros(len(encoding.features) + 1)
        theta[:-1] = [slopes.get(name, 0.0) for name in encoding.features]
        mean = result.facts.get("mean_intercept")
        theta[-1] = slopes.get(INTERCEPT, 0.0 if mean is None else float(mean))
        outcome = encoding.outcome
        if outcome is not None and outcome.task == REGRESSION:
            theta[-1] -= outcome.centre
            theta /= outcome.scale
        elif outcome is not None and outcome.task == COUNT:
            theta[-1] -= np.log(outcome.scale)
        return theta

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        if record is None:
            return {}
        result = RegressionResult.from_dict(record["result"])
        fitted, table = result.estimates, _table_encoding(encoding)
        part: dict[str, object] = {
            "fitted": fitted.to_dict(),
            "original": in_original_units(fitted, table).to_dict(),
            "exchanges": {**record["exchanges"], "fit": fitted.facts.get("exchanges")},
            "sites": record["sites"],
            "rows": record["rows"],
            "notes": list(fitted.notes),
        }
        if result.heterogeneity is not None:
            part["heterogeneity"] = rescale_meta(result.heterogeneity, table).to_dict()
        if result.scores is not None:
            part["scores"] = result.scores.to_dict()
        return {"estimates": part}

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.model.name not in ("logistic", "linear"):
            yield (
                f"method '{plan.method.name}' fits coefficients, and model.name is '{plan.model.name}': use 'logistic', or "
                "'linear' for other outcomes than classes"
            )
        if plan.train.class_weights != "none":
            yield f"method '{plan.method.name}' gives every row the same weight: set train.class_weights = 'none'"
        if plan.method.exact.errors == "patients" and plan.data.patient is None:
            yield "method.exact.errors is 'patients' but data.patient is not set: name the patient column (--patient COLUMN)"


class GeneralizedLinear(_Regression):
    """Logistic, linear or Poisson regression whose coefficients and standard errors equal those of the pooled rows."""

    name = "glm"
    title = "exact logistic, linear or Poisson regression, with standard errors"
    kinds: ClassVar[tuple[str, ...]] = (*GLM_ANSWERS, META)

    def fit_common(self, server: Server) -> Fit[Estimates]:
        e, encoding = self.settings.exact, _table_encoding(server.encoding)
        outcome = encoding.outcome
        family = "logistic" if outcome is None else FAMILIES[outcome.task]
        is_linear = outcome is not None and outcome.task == REGRESSION
        estimates = yield from fit_glm(
            GLMTerms(
                family=family,
                names=encoding.features,
                ridge=float(e.ridge),
                errors=str(e.errors),
                correction=bool(e.correction),
                intercept=str(e.intercept),
                tau2=TAU2 if e.tau2 is None else (float(e.tau2),),
                firth=bool(e.firth),
                most_exchanges=self.settings.rounds,
                centre=outcome.centre if outcome is not None and is_linear else 0.0,
                unit=outcome.scale if outcome is not None and is_linear else 1.0,
                spans=input_spans(encoding),
                mean_intercept=server.secure is not None or e.intercept != "own",
                start=() if is_linear else fresh_start(server, len(encoding.features) + (e.intercept != "own")),
            )
        )
        biased = describe_small_hospitals(family, str(e.intercept), [server.rows.get(s, 0) for s in server.sites])
        return replace(estimates, notes=(*estimates.notes, *biased))

    def keeps_sums(self, server: Server) -> bool:
        """Keep the sums of a linear regression in the clear, which the server sees anyway."""
        e, outcome = self.settings.exact, _table_encoding(server.encoding).outcome
        is_linear = outcome is not None and outcome.task == REGRESSION
        return is_linear and server.secure is None and e.intercept == "common" and e.errors == "model" and not float(e.ridge)

    def last_ask(self, server: Server, sites: tuple[str, ...], result: RegressionResult) -> Ask | None:
        """Send the final coefficients, from which each site computes the intercept that it keeps."""
        if self.settings.exact.intercept == "common":
            return None
        encoding, found = _table_encoding(server.encoding), result.estimates
        known = dict(zip(found.names, found.beta.tolist(), strict=True))
        first = known.get(INTERCEPT, found.facts.get("mean_intercept") or 0.0)
        outcome = encoding.outcome
        task = CLASSIFICATION if outcome is None else outcome.task
        shared: dict[str, Value] = {
            "family": FAMILIES[task],
            "beta": np.array([first, *(known.get(name, 0.0) for name in encoding.features)]),
            "tau2": float(found.facts.get("tau2_ratio") or 0.0),
            "shift": 0.0 if outcome is None else outcome.centre if task == REGRESSION else float(np.log(outcome.scale)),
            "scale": outcome.scale if outcome is not None and task == REGRESSION else 1.0,
        }
        return Ask(STORE, shared=shared, to=sites, report=(STORED,))

    @classmethod
    def local_part(cls, plan: Plan) -> str:
        return "none" if plan.method.exact.intercept == "common" else "intercept"

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.data.duration is not None:
            yield "method 'glm' fits classes, numbers or counts, and data.task is 'survival': use method 'cox'"
        if model.outputs != 1:
            yield (
                f"method 'glm' fits two classes, and the label '{plan.data.label}' has {model.outputs}: "
                f"{ONE_AGAINST_OTHERS}; of a count or a measurement set data.task (--family poisson or --family linear)"
            )
        if plan.method.exact.ridge == "cv":
            yield "method.exact.ridge 'cv' is for method 'cox': give a number"


class CoxRegression(_Regression):
    """Cox regression whose coefficients and standard errors equal those of the pooled rows."""

    name = "cox"
    title = "exact Cox regression, with standard errors"
    kinds: ClassVar[tuple[str, ...]] = (*COX_ANSWERS, META, *SCORE_KINDS)

    def fit(self, server: Server) -> Fit[RegressionResult]:
        """Fit the model; with a horizon, score it on the same rows: C-index, Brier score and calibration."""
        result = yield from super().fit(server)
        e = self.settings.exact
        if e.horizon is None:
            return result
        known = dict(zip(result.estimates.names, result.estimates.beta.tolist(), strict=True))
        beta = np.array([known.get(name, 0.0) for name in _table_encoding(server.encoding).features])
        least = int(e.least)
        counts = yield from count_by_cell(groups=1, least=least)
        baseline = yield from fit_baseline(beta, counts, least=least)
        scores = yield from fit_survival_scores(beta, baseline, horizon=float(e.horizon), least=least)
        note = "Scores are of the rows that the model was fitted to, with one baseline hazard for all hospitals."
        return replace(result, scores=replace(scores, notes=(note, *scores.notes)))

    def fit_common(self, server: Server) -> Fit[Estimates]:
        e = self.settings.exact
        return fit_cox(
            CoxTerms(
                names=_table_encoding(server.encoding).features,
                ties=str(e.ties),
                baseline=str(e.baseline),
                ridge=e.ridge if e.ridge == "cv" else float(e.ridge),
                penalties=tuple(float(v) for v in e.penalties),
                errors=str(e.errors),
                intervals=int(e.intervals),
                least=int(e.least),
                exchanges=self.settings.rounds,
                start=fresh_start(server, len(_table_encoding(server.encoding).features)),
            )
        )

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.data.duration is None:
            yield "method 'cox' fits times to an event: name the column of follow-up times (data.duration, --time COLUMN)"


def fresh_start(server: Server, size: int) -> tuple[float, ...]:
    """Draw coefficients to start from in a run without sites that withdrew; none in any other run.

    Totals with and without a site at the same coefficients would give the site's sums to a server that kept the earlier ones.
    So the repeated run asks at no coefficients at which the earlier run asked.

    Args:
        server: The state of the round.
        size: Number of coefficients.

    Returns:
        The coefficients, in standard deviations of the inputs.
    """
    if not server.without:
        return ()
    drawn = generator(server.seed, purpose="start after a withdrawal", site="\x1f".join(server.without)).normal(0, _AWAY, size)
    return tuple(drawn.tolist())


def in_original_units(fitted: Estimates, encoding: Encoding) -> Estimates:
    """Convert estimates to the units in which columns are recorded (rule b_original = A b_fitted).

    Args:
        fitted: Estimates in the units of the fit.
        encoding: The agreed encoding of rows.

    Returns:
        The estimates, with covariance A V A'.
    """
    fitted = replace(fitted, coefficients=tuple(_with_reason(c, encoding) for c in fitted.coefficients))
    names, matrix = encoding.original_units()
    place = {name: k for k, name in enumerate((INTERCEPT, *names[1:]))}
    kept = [place[name] for name in fitted.names]
    return fitted.transform(matrix[np.ix_(kept, kept)])


def _with_reason(coefficient: Coefficient, encoding: Encoding) -> Coefficient:
    """Give a column that the encoding left out the encoding's reason."""
    reason = encoding.left_out.get(coefficient.name)
    return replace(coefficient, reason=reason) if reason and coefficient.estimate is None else coefficient


def rescale_meta(meta: MetaAnalysis, encoding: Encoding) -> MetaAnalysis:
    """Convert a meta-analysis to original units. With products of columns it stays in the units of the fit, with a note.

    Args:
        meta: The analysis in the units of the fit.
        encoding: The agreed encoding of rows.

    Returns:
        The analysis.
    """
    if encoding.products:
        note = "coefficients of this comparison are per standard deviation, because the model has products of columns"
        return replace(meta, notes=(*meta.notes, note))
    names, matrix = encoding.original_units()
    return meta.rescale(dict(zip(names, np.diag(matrix).tolist(), strict=True)))


def input_spans(encoding: Encoding) -> tuple[float, ...]:
    """Return the range of each input in its units, for the rule on separation: 1 for 0/1 inputs, 4 SD for numbers."""
    numeric = {r.name for r in encoding.numeric}
    return tuple(4.0 if name in numeric else 1.0 for name in encoding.features)


def _table_encoding(encoding: AnyEncoding | None) -> Encoding:
    assert isinstance(encoding, Encoding), "refused before the first round"
    return encoding
