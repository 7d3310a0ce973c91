"""The estimates of a finished run: the record of summary.json as typed values, its table as text, and its sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels

if TYPE_CHECKING:  # importing it takes scipy, which most reports do not need
    from grandrounds.capabilities.statistics.estimates import Coefficient, Estimates
    from grandrounds.capabilities.statistics.meta import MetaAnalysis
    from grandrounds.capabilities.statistics.survival_scores import SurvivalScores
    from grandrounds.metrics.meta_analysis import MetaCoefficient

RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}
"""The ratio that e^coefficient is, by model; a linear model has none."""

MODELS = {
    "logistic": "logistic regression",
    "linear": "linear regression",
    "poisson": "Poisson regression",
    "cox": "Cox regression",
}

ERRORS = {
    "model": "from the model (inverse information)",
    "rows": "robust, by row (sandwich)",
    "patients": "robust, by patient (cluster sandwich)",
    "hospitals": "robust, by hospital (cluster sandwich)",
    "penalised": "penalised: estimates are shrunk towards zero, so there are no p-values",
}

INTERCEPTS = {
    "common": "one for all hospitals",
    "own": "one for each hospital, which stays there",
    "random": "one for each hospital, shrunk towards their mean (random intercepts)",
}

_FACTS = {
    "n": "rows",
    "hospitals": "hospitals",
    "events": "events",
    "log_likelihood": "log-likelihood",
    "deviance": "deviance",
    "aic": "AIC",
    "ridge": "ridge penalty",
    "firth": "Firth's correction",
    "silent_sites": "hospitals without information on slopes",
    "tau2": "variance of hospitals' intercepts",
    "ties": "ties",
    "baseline": "baseline hazard",
    "sites_without_events": "hospitals without events",
    "clusters": "clusters",
}
"""Facts that pages show, with their labels, in order."""

DISPERSIONS = {"linear": "residual variance", "poisson": "Pearson dispersion"}
"""Label of the fact `dispersion`, by model; of counts, 1 is expected."""

_BASELINES = {
    "strata": "one for each hospital, which stays there",
    "grid": "one for all hospitals, on intervals of time",
    "days": "one for all hospitals, on single days: rows of single patients can be read",
}

_SINGULAR = {"years": "year", "beats/min": "beat/min"}


@dataclass(frozen=True)
class EstimatesRecord:
    """The estimates of a run.

    Attributes:
        fitted: In the units in which they were fitted: numbers in standard deviations.
        original: In original units.
        exchanges: Cost of the fit: count, numbers_sent, numbers_held, ratio, bytes_up, bytes_down.
        heterogeneity: Meta-analysis of the hospitals' own estimates; None without one.
        by_site: Estimates of each hospital, where answers came in the clear.
        notes: Sentences for people.
        scores: C-index, Brier score and calibration of a survival model; None without them.
        warnings: The run's warnings, such as hospitals that were left out.
        site_notes: Sentences on the rows of each hospital.
    """

    fitted: Estimates
    original: Estimates
    exchanges: Mapping[str, Any] = field(default_factory=dict)
    heterogeneity: MetaAnalysis | None = None
    by_site: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    scores: SurvivalScores | None = None
    warnings: tuple[str, ...] = ()
    site_notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def ratio_name(self) -> str:
        """The name of e^coefficient; "" for a linear model."""
        return RATIOS.get(self.original.model, "")

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes of the fit and of the run as sentences, each once."""
        return tuple(dict.fromkeys(_sentence(note) for note in (*self.original.notes, *self.notes)))

    @property
    def left_out(self) -> tuple[Coefficient, ...]:
        """The columns that were left out."""
        return tuple(c for c in self.original.coefficients if c.estimate is None)


def _read_scores(values: Mapping[str, Any] | None) -> SurvivalScores | None:
    from grandrounds.capabilities.statistics.survival_scores import SurvivalScores

    return SurvivalScores.from_dict(values) if values else None


def score_rows(scores: SurvivalScores) -> list[tuple[str, str]]:
    """List the scores of a survival model with their names.

    Args:
        scores: The scores.

    Returns:
        (name, value) of the C-index and the integrated Brier score, as far as they are known.
    """
    out = [] if scores.c_index is None else [("C-index, pairs within hospitals", f"{scores.c_index:.3f}")]
    if scores.brier is not None and scores.brier.integrated is not None:
        out.append(("integrated Brier score", f"{scores.brier.integrated:.3f}"))
    return out


def read_estimates(summary: Mapping[str, Any]) -> EstimatesRecord | None:
    """Read the estimates of a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        The record; None for a run without estimates.

    Raises:
        BadInput: The record is damaged.
    """
    values = summary.get("estimates")
    if not values:
        return None
    from grandrounds.capabilities.statistics.estimates import Estimates

    found = values.get("heterogeneity") or None
    try:
        return EstimatesRecord(
            fitted=Estimates.from_dict(values["fitted"]),
            original=Estimates.from_dict(values["original"]),
            exchanges=dict(values.get("exchanges") or {}),
            heterogeneity=None if found is None else _read_meta(found),
            by_site=dict(values.get("by_site") or {}),
            notes=tuple(map(str, values.get("notes") or ())),
            scores=_read_scores(values.get("scores")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its estimates cannot be read; run the experiment again", code="damaged-record"
        ) from None


def _read_meta(values: Mapping[str, Any]) -> MetaAnalysis:
    from grandrounds.capabilities.statistics.meta import MetaAnalysis

    return MetaAnalysis.from_dict(values)


def is_intercept(coefficient: Coefficient) -> bool:
    """Tell whether a coefficient is the intercept."""
    from grandrounds.capabilities.statistics.estimates import INTERCEPT

    return coefficient.name == INTERCEPT


def slopes(estimates: Estimates) -> list[Coefficient]:
    """List the coefficients that were estimated, without the intercept."""
    return [c for c in estimates.coefficients if c.estimate is not None and not is_intercept(c)]


def to_ratio(value: float | None) -> float | None:
    """Return e^value; None where it is not known or overflows."""
    if value is None:
        return None
    try:
        return math.exp(value)
    except OverflowError:
        return None


def effect(coefficient: Coefficient, model: str) -> tuple[float | None, float | None, float | None]:
    """Return the ratio of a coefficient with its 95% interval; of a linear model the coefficient itself."""
    ends = coefficient.estimate, coefficient.low, coefficient.high
    if model not in RATIOS:
        return ends
    value, low, high = map(to_ratio, ends)
    return value, low, high


def format_number(value: float | None, decimals: int) -> str:
    """Format a number with so many decimals; very large and very small ones in powers of ten; "–" where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-6 < abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.{decimals}f}"


def choose_decimals(low: float | None, high: float | None) -> int:
    """Return the decimals that show an interval: two significant digits of its width, at least two decimals, at most six."""
    if low is None or high is None or not math.isfinite(high - low) or high <= low:
        return 3
    return max(2, min(6, 1 - math.floor(math.log10(high - low))))


def format_effect(coefficient: Coefficient, model: str) -> str:
    """Format the ratio (or coefficient) with its interval: '1.05 (1.02 to 1.08)'."""
    value, low, high = effect(coefficient, model)
    decimals, neutral = choose_decimals(low, high), 1.0 if model in RATIOS else 0.0
    if is_clear(coefficient) and neutral in (round(low or 0.0, decimals), round(high or 0.0, decimals)):
        decimals += 1  # an end that excludes no effect is not shown as no effect
    ends = (
        "" if low is None or high is None else f" ({format_number(low, decimals)} to {format_number(high, decimals)})"
    )
    return f"{format_number(value, decimals)}{ends}"


def format_p(p: float | None) -> str:
    """Format a p-value: three decimals, "<0.001" below; "–" without a test."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def describe_p(p: float) -> str:
    """Write a p-value for a sentence: 'p = 0.012', 'p < 0.001'."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def is_number(name: str) -> bool:
    """Tell whether a coefficient is of a number: not of the intercept, a level, a missing value or a product."""
    return not name.startswith("(") and "=" not in name and ":" not in name and not name.endswith(" missing")


def unit(name: str, labels: ColumnLabels) -> str:
    """Return the unit of a number's coefficient, such as "year"; "unit" where it is not known, "" for other inputs."""
    if not is_number(name):
        return ""
    known = labels.find(name).unit
    return _SINGULAR.get(known, known) or "unit"


def table_head(estimates: Estimates) -> tuple[str, ...]:
    """Return the heads of the table of coefficients."""
    test = () if not has_tests(estimates) else ("z" if estimates.degrees is None else "t", "p")
    ratio = RATIOS.get(estimates.model)
    last = (f"{ratio} (95% CI)", "per") if ratio else ("95% CI", "per")
    return ("input", "coefficient", "standard error", *test, *last)


def has_tests(estimates: Estimates) -> bool:
    """Tell whether the estimates have p-values; penalised ones have none."""
    return any(c.p is not None for c in estimates.coefficients)


def table_rows(estimates: Estimates, labels: ColumnLabels = NO_LABELS) -> list[tuple[str, ...]]:
    """Return the rows of the table of coefficients as text, one for each column, those left out included.

    Args:
        estimates: Estimates in original units.
        labels: Names and units of the columns.
    """
    tests, rows = has_tests(estimates), []
    for c in estimates.coefficients:
        if c.estimate is None:
            rows.append((c.name, "–", "–", *(("–", "–") if tests else ()), "–", f"left out: {c.reason}"))
            continue
        decimals = choose_decimals(c.low, c.high) + 1
        shown = [format_number(c.estimate, decimals), format_number(c.error, decimals)]
        if tests:
            shown += ["–" if c.statistic is None else f"{c.statistic:.2f}", format_p(c.p)]
        ends = f"{format_number(c.low, decimals)} to {format_number(c.high, decimals)}"
        if estimates.model in RATIOS:
            shown.append("" if is_intercept(c) else format_effect(c, estimates.model))
        else:
            shown.append(ends)
        rows.append((c.name, *shown, unit(c.name, labels)))
    return rows


def fact_rows(record: EstimatesRecord, hospitals: int | None = None) -> list[tuple[str, str]]:
    """Return the facts of a fit as pairs of a label and a text.

    Args:
        record: The estimates of a run.
        hospitals: Number of hospitals.
    """
    fitted = record.original
    facts = {"hospitals": hospitals, **{k: v for k, v in fitted.facts.items() if v is not None}}
    if "baseline" in facts:
        facts["baseline"] = _BASELINES.get(str(facts["baseline"]), facts["baseline"])
    rows = [("model", MODELS.get(fitted.model, fitted.model))]
    rows += [(label, format_fact(facts[key])) for key, label in _FACTS.items() if facts.get(key)]
    if facts.get("dispersion") is not None:
        rows.append((DISPERSIONS[fitted.model], format_fact(facts["dispersion"])))
    kind = facts.get("intercept")
    if kind:
        rows.append(("intercept", INTERCEPTS.get(str(kind), str(kind))))
    rows.append(("standard errors", ERRORS.get(fitted.errors, fitted.errors)))
    sent = record.exchanges
    if sent.get("count"):
        rows.append(("exchanges", f"{int(sent['count'])}"))
    if sent.get("bytes_up") is not None:
        rows.append(
            ("bytes of one hospital", f"{int(sent['bytes_up']):,} sent, {int(sent.get('bytes_down') or 0):,} received")
        )
    if sent.get("numbers_sent") is not None and sent.get("numbers_held"):
        rows.append(("numbers sent / numbers held", f"{sent['numbers_sent']:,.0f} / {sent['numbers_held']:,.0f}"))
    return rows


def _sentence(note: str) -> str:
    """Write a note with a capital letter and a full stop."""
    return f"{note[:1].upper()}{note[1:]}" + ("" if note.endswith((".", "!", "?")) else ".")


def format_fact(value: Any) -> str:
    """Format a fact of a fit: a number with four digits, a whole number with all, yes or no, or a text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e12):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:,.2f}"
    return str(value)


def disclosure_sentence(exchanges: Mapping[str, Any]) -> str:
    """Explain the ratio of numbers sent to numbers held; "" where it was not recorded."""
    ratio = exchanges.get("ratio")
    if ratio is None:
        return ""
    shown = f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.1g}"
    verdict = (
        "With more sums than values, values of single patients could be computed from them."
        if ratio >= 1
        else "The smaller this number, the less the sums tell about a single patient."
    )
    return f"For each value in the patients' rows, hospitals sent {shown} sums over patients. {verdict}"


def describe_effects(record: EstimatesRecord, labels: ColumnLabels = NO_LABELS, *, most: int = 3) -> Iterator[str]:
    """Describe the clearest effects in sentences: 'age: odds ratio 1.05 per year (95% CI 1.02 to 1.08).'

    Args:
        record: The estimates of a run.
        labels: Names and units of the columns.
        most: Effects to describe at most: those whose interval excludes no effect, the largest statistic first.
    """
    every = slopes(record.fitted)
    clear = sorted((c for c in every if is_clear(c)), key=lambda c: (-abs(_strength(c)), c.name))
    original = {c.name: c for c in record.original.coefficients}
    if every and not clear:
        yield f"None of {len(every)} coefficients is clearly different from zero (95% intervals)."
    for c in (original[f.name] for f in clear[:most] if f.name in original):
        per = unit(c.name, labels)
        name = record.ratio_name or "coefficient"
        text = format_effect(c, record.original.model).replace("(", "(95% CI ")
        value, _, ends = text.partition(" (")
        label = labels.find(c.name).name if is_number(c.name) else c.name
        yield f"{label}: {name} {value}{f' per {per}' if per else ''}{f' ({ends}' if ends else ''}."


def heterogeneity_head(model: str) -> tuple[str, ...]:
    """Return the heads of the table of differences between hospitals."""
    ratio = RATIOS.get(model, "coefficient")
    return (
        "input", "hospitals", f"{ratio} (95% CI)", "at a new hospital (95%)", "I-squared", "Cochran's Q", "p",
    )  # fmt: skip


def heterogeneity_rows(found: MetaAnalysis) -> list[tuple[str, ...]]:
    """Return the rows of that table: the random-effects estimate, the prediction interval and the test for a difference."""
    rows: list[tuple[str, ...]] = []
    for c in found.coefficients:
        if c.q is None or c.estimate is None:
            rows.append((c.name, f"{c.sites}", "–", "–", "–", "–", "too few hospitals"))
            continue
        mean = _format_ends(found.model, c.estimate, c.low, c.high)
        new = _format_ends(found.model, None, c.prediction_low, c.prediction_high)
        rows.append((c.name, f"{c.sites}", mean, new, f"{c.i2 or 0:.0%}", f"{c.q:.2f}", format_p(c.q_p)))
    return rows


def forest_names(record: EstimatesRecord, most: int = 4) -> list[str]:
    """Choose the coefficients for forest plots: those that differ most between hospitals, then those with the clearest effects.

    Args:
        record: The estimates of a run.
        most: Coefficients to choose at most.

    Returns:
        Names; empty where the estimates of single hospitals are not known.
    """
    found = record.heterogeneity
    if found is None or not found.by_site:
        return []
    known = {name for own in found.by_site.values() for name in own}
    tested = [c for c in found.coefficients if c.name in known and c.q_p is not None]
    differ = sorted((c for c in tested if (c.q_p or 0.0) < 0.05), key=lambda c: (c.q_p or 0.0, c.name))
    clear = sorted(slopes(record.fitted), key=lambda c: (-abs(_strength(c)), c.name))
    names = [*(c.name for c in differ), *(c.name for c in clear if c.name in {t.name for t in tested})]
    return list(dict.fromkeys(names))[:most]


def common_estimate(record: EstimatesRecord, name: str) -> Coefficient | None:
    """Return the coefficient of the common fit in original units."""
    return next((c for c in record.original.coefficients if c.name == name and c.estimate is not None), None)


def _format_ends(model: str, value: float | None, low: float | None, high: float | None) -> str:
    """Format an estimate of a meta-analysis with its interval, or an interval alone, as ratios where the model has them."""
    if model in RATIOS:
        value, low, high = to_ratio(value), to_ratio(low), to_ratio(high)
    if low is None or high is None:
        return "–"
    decimals = choose_decimals(low, high)
    ends = f"{format_number(low, decimals)} to {format_number(high, decimals)}"
    return ends if value is None else f"{format_number(value, decimals)} ({ends})"


def heterogeneity_note(found: MetaAnalysis) -> str:
    """Explain the table of differences between hospitals."""
    tested = sum(c.q_p is not None for c in found.coefficients)
    return (
        "Each hospital fitted the model to its own rows; this is the random-effects mean of their estimates. Cochran's Q tests "
        "whether a coefficient is the same at all hospitals: a small p says that it differs. I-squared estimates the share of "
        f"the variation between estimates that is not chance. Their standard errors: {ERRORS[found.errors]}. "
        f"Of {tested} tests, about {max(1, round(0.05 * tested))} would fall below 0.05 by chance alone."
    )


def describe_differences(record: EstimatesRecord) -> Iterator[str]:
    """Describe the coefficients that differ between hospitals; p-values are judged by Bonferroni's rule."""
    found = record.heterogeneity
    tested: list[tuple[float, MetaCoefficient]] = []
    if found is not None:
        tested = sorted(((c.q_p, c) for c in found.coefficients if c.q_p is not None), key=lambda pair: pair[0])
    if not tested:
        return
    differ = [(p, c) for p, c in tested if p < 0.05 / len(tested)]
    for p, c in differ[:3]:
        yield f"The effect of {c.name} differs between hospitals (Cochran's Q, {describe_p(p)}; I-squared {c.i2 or 0:.0%})."
    if len(differ) > 3:
        yield f"So do the effects of {len(differ) - 3} more inputs."
    if not differ:
        yield f"No effect clearly differs between hospitals (Cochran's Q of {len(tested)} coefficients)."


def is_clear(coefficient: Coefficient) -> bool:
    """Tell whether the 95% interval of a coefficient excludes zero."""
    low, high = coefficient.low, coefficient.high
    return low is not None and high is not None and (low > 0 or high < 0)


def _strength(c: Coefficient) -> float:
    """Return z (or t), or the estimate over its error; the estimate itself without an error."""
    assert c.estimate is not None
    if c.statistic is not None:
        return c.statistic
    return c.estimate / c.error if c.error else c.estimate
