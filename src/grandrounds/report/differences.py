"""Differences of hospitals from the common model as sentences and rows of text: one wording for screens, pages and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION
from grandrounds.core.records import RunSummary
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels
from grandrounds.metrics.differences import LEVEL, PERMUTATIONS, WHOLE_SCORE, Difference
from grandrounds.report.tables import TextTable

PATIENTS, EFFECTS = "Different patients", "Different effects"
"""Two questions: do hospitals have other patients, for whom other features matter; does a feature have another effect there?"""

NONE = f"{EFFECTS}: none. No feature has another effect here, more than sampling explains."
"""The answer for a hospital without a difference."""

METHOD = (
    "Each hospital tested its columns on its own rows: does a column explain outcomes beyond the common model's score, corrected "
    "for what all hospitals together show, and an intercept of its own? "
    f"Outcomes were permuted over patients {PERMUTATIONS} times, and p-values are corrected for "
    "the number of columns. The common model was trained on most of these rows too, so small differences may be missed."
)

_CLEAR = 1.5
"""Distance of explanations, in units of the one that sampling gives on average, from which on hospitals are called different."""
_ROWS = 60
_HARDLY = 0.25  # of the other effect: one below this counts as none


@dataclass(frozen=True)
class SiteDifferences:
    """Differences of one hospital.

    Attributes:
        site: The hospital.
        tested: Number of columns that were tested; 0: too few patients, or outcomes that are all alike.
        features: Records, the clearest first.
        labels: Names and units of its columns.
        task: Type of the outcome.
        label: Name of the outcome.
    """

    site: str
    tested: int
    features: tuple[Difference, ...]
    labels: ColumnLabels = NO_LABELS
    task: str = CLASSIFICATION
    label: str = ""

    @property
    def found(self) -> tuple[Difference, ...]:
        """Features that differ more than sampling explains."""
        return tuple(d for d in self.features if d.differs and d.feature != WHOLE_SCORE)

    @property
    def whole(self) -> Difference | None:
        """The record of all features together, where they differ by one factor; else None."""
        return next((d for d in self.features if d.differs and d.feature == WHOLE_SCORE), None)


def describe_patients(distance: float, chance: float | None, of: str) -> str:
    """Answer whether patients differ, by the distance of attribution shares: with its chance level and one verdict.

    Args:
        distance: Distance of shares of features, 0 to 2.
        chance: The distance that sampling patients gives on average; None where it is not known.
        of: The things that are apart: "of two hospitals".
    """
    size = f"the shares of features {of} are {distance:.2f} apart on a scale of 0 to 2"
    if chance is None:
        return f"{PATIENTS}: not tested; {size}, and the distance by chance is not known."
    verdict = "yes" if distance >= _CLEAR * chance else "not clear" if distance > chance else "no"
    return (
        f"{PATIENTS}: {verdict}; {size}, where sampling alone gives {chance:.2f}. Shares follow the mix of patients, also where "
        "every feature has the same effect."
    )


def patients_sentences(summary: RunSummary) -> list[str]:
    """Answer whether patients of hospitals differ; empty for a run whose final model was not explained at them."""
    deployed = (summary.explanation or {}).get("deployed") or {}
    if deployed.get("drift") is None:
        return []
    return [describe_patients(float(deployed["drift"]), deployed.get("sampling"), "of two hospitals")]


def read_differences(summary: RunSummary) -> dict[str, SiteDifferences]:
    """Read the differences of all hospitals from a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        By hospital; empty for a run without them.

    Raises:
        BadInput: The record is damaged.
    """
    stored = (summary.personal or {}).get("differences") or {}
    return {site: make_site(site, value["features"], summary, tested=value["tested"]) for site, value in stored.items()}


def make_site(
    site: str, features: Iterable[Mapping[str, Any]], summary: RunSummary, *, tested: int | None = None
) -> SiteDifferences:
    """Make the differences of one hospital from its record.

    Args:
        site: The hospital.
        features: Records, as plain JSON.
        summary: The summary of the run.
        tested: Number of columns tested; None: those in the record.

    Raises:
        BadInput: The record is damaged.
    """
    names = {f.name for f in fields(Difference)}
    try:
        records = tuple(Difference(**{k: v for k, v in row.items() if k in names}) for row in features)
    except (TypeError, AttributeError):
        raise BadInput(
            f"the record of differences of {site} is damaged: run the experiment again", code="damaged-record"
        ) from None
    count = sum(r.feature != WHOLE_SCORE for r in records) if tested is None else tested
    label = str((summary.get("outcome") or {}).get("label", ""))
    task = str(summary.get("task", CLASSIFICATION))
    return SiteDifferences(site, count, records, ColumnLabels.of_summary(summary), task, label)


def feature_name(difference: Difference, labels: ColumnLabels) -> str:
    """Name a feature as clinicians do, with the level or the missing value that differs."""
    if difference.feature == WHOLE_SCORE:
        return "all features together"
    name = labels.find(difference.feature).name
    rest = difference.input.removeprefix(difference.feature)
    if rest == " missing":
        return f"{name} not measured"
    return f"{name} = {rest[1:]}" if rest.startswith("=") else name


def effect_unit(difference: Difference, site: SiteDifferences) -> str:
    """Return the unit of a difference: 'log-odds per 10 years'."""
    if difference.feature == WHOLE_SCORE:
        return "of each effect"
    units = {REGRESSION: site.label or "units of the outcome", COUNT: "log rate"}
    unit = units.get(site.task, f"log-odds of {difference.outcome}" if difference.outcome else "log-odds")
    if not difference.per:
        return unit
    known = site.labels.find(difference.feature).unit
    return f"{unit} per {difference.per:g}{f' {known}' if known else ''}"


def effect_here(difference: Difference, site: SiteDifferences) -> float:
    """Return the effect of a number at the hospital: that of the common model, its factor there, and the difference."""
    factor = 1.0 if site.whole is None else 1 + site.whole.difference
    return factor * difference.common + difference.difference


def direction(difference: Difference, site: SiteDifferences) -> str:
    """Compare the effect here with that in the common model: 'counts more here'."""
    if not difference.per:
        noun = "risk" if site.task == CLASSIFICATION and not difference.outcome else "outcome"
        return f"has a {'higher' if difference.difference > 0 else 'lower'} {noun} here than the common model says"
    common, here = difference.common, effect_here(difference, site)
    if abs(here) < _HARDLY * abs(common):
        return "hardly counts here"
    if abs(common) < _HARDLY * abs(here):
        return "counts here, and hardly in the common model"
    if common * here < 0:
        return "points the other way here"
    return "counts more here" if abs(here) > abs(common) else "counts less here"


def signed(value: float) -> str:
    """Write a number with its sign and two decimals; small ones with two digits."""
    return f"{value:+.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:+.2g}"


def interval_text(difference: Difference) -> str:
    """Write the interval: '+0.10 to +0.70'."""
    return f"{signed(difference.low)} to {signed(difference.high)}"


def chance_text(p: float) -> str:
    """Write how often sampling alone gives such a difference: 'in 1 of 1,000 permutations'."""
    total = PERMUTATIONS + 1
    return f"in {max(1, round(p * total)):,} of {total:,} permutations"


def difference_sentence(difference: Difference, site: SiteDifferences) -> str:
    """Describe one difference.

    Args:
        difference: The difference.
        site: The hospital that it is of.

    Returns:
        Feature, direction, size with its 95% interval, and how often sampling alone gives one as large.
    """
    chance = f"sampling alone explains such a difference {chance_text(difference.p)}"
    if difference.feature == WHOLE_SCORE:
        factor, low, high = (1 + v for v in (difference.difference, difference.low, difference.high))
        word = "more" if factor > 1 else "less"
        return (
            f"All features together count {word} here: effects are {factor:.2f} times those of the common model "
            f"(95% CI {low:.2f} to {high:.2f}); {chance}."
        )
    name = feature_name(difference, site.labels)
    both = f", {signed(effect_here(difference, site))} in place of {signed(difference.common)}" if difference.per else ""
    return (
        f"{name[:1].upper()}{name[1:]} {direction(difference, site)}: {signed(difference.difference)} "
        f"{effect_unit(difference, site)} (95% CI {interval_text(difference)}){both}; {chance}."
    )


def site_sentences(site: SiteDifferences) -> list[str]:
    """Describe the differences of one hospital, or state that there are none."""
    if not site.features:
        return [f"{EFFECTS}: not tested; too few patients, or too few of one outcome."]
    out = [f"{EFFECTS}: {difference_sentence(d, site)}" for d in (*site.found, *([site.whole] if site.whole else []))]
    return out or [NONE]


def overview_sentences(summary: RunSummary) -> list[str]:
    """Describe the differences over all hospitals: how many differ, what chance alone would give, what many have in common.

    Args:
        summary: The summary of a finished run.

    Returns:
        Sentences; none for a run without a test.
    """
    personal = summary.personal or {}
    if personal.get("untested"):
        return [f"Features were not compared: {personal['untested']}."]
    sites = read_differences(summary)
    tested = [s for s in sites.values() if s.features]
    if not sites:
        return []
    differing = [s for s in tested if s.found]
    answer = "yes" if differing else "no"
    out = [
        f"{EFFECTS}: {answer}; a feature has another effect than in the common model at {len(differing)} of "
        f"{len(tested)} hospitals, where chance alone names {LEVEL * len(tested):.2g} on average at most{_named(differing)}."
    ]
    if len(sites) > len(tested):
        out.append(f"{len(sites) - len(tested)} hospitals have too few patients for the test.")
    shared = Counter((d.input, d.difference > 0) for s in differing for d in s.found)
    for (name, rises), count in shared.most_common():
        if count >= 3 and count > len(tested) / 2:
            word = "higher" if rises else "lower"
            out.append(
                f"{name} has a {word} effect at {count} of {len(tested)} hospitals: look at the common model rather than at them."
            )
    timid = sum(s.whole is not None for s in tested)
    if timid >= 2 and timid > len(tested) / 2:
        out.append(
            f"At {timid} of {len(tested)} hospitals all effects differ by one factor: the common model needs more rounds, or "
            "recalibration."
        )
    return out


def _named(sites: Sequence[SiteDifferences]) -> str:
    if not sites:
        return ""
    shown = [f"{s.site} ({', '.join(_size(d, s) for d in s.found[:3])})" for s in sites[:6]]
    more = f", and {len(sites) - 6} more" if len(sites) > 6 else ""
    return f": {'; '.join(shown)}{more}"


def _size(difference: Difference, site: SiteDifferences) -> str:
    """Name a feature with the size of its difference: 'age +0.42 log-odds per 10 years, 95% CI +0.10 to +0.70'."""
    size = f"{signed(difference.difference)} {effect_unit(difference, site)}"
    return f"{feature_name(difference, site.labels)} {size}, 95% CI {interval_text(difference)}"


DIFFER = "Do hospitals differ?"
"""Title of the table."""
ALIKE = ("none", "too few patients")
"""Texts in place of a feature, at hospitals without a difference."""


def differences_table(summary: RunSummary) -> TextTable | None:
    """Return the features that differ, hospital by hospital, then hospitals without a difference.

    Args:
        summary: The summary of a finished run.

    Returns:
        The table; None for a run in which no hospital was tested.
    """
    sites = read_differences(summary)
    if not sites:
        return None
    rows: list[tuple[str, ...]] = []
    for site in sites.values():
        for d in (*site.found, *([site.whole] if site.whole else [])):
            common = signed(d.common) if d.per else "–"
            size = f"{signed(d.difference)} {effect_unit(d, site)}"
            rows.append((site.site, feature_name(d, site.labels), size, interval_text(d), common, f"{d.p:.3f}"))
    alike = [s for s in sites.values() if not s.found and s.whole is None]
    rows += [(s.site, ALIKE[0] if s.features else ALIKE[1], *["–"] * 4) for s in alike]
    left_out = f"{len(rows) - _ROWS} rows are not shown; summary.json has them all." if len(rows) > _ROWS else ""
    return TextTable(
        DIFFER,
        ("hospital", "feature with another effect", "difference", "95% CI", "common model", "p"),
        tuple(rows[:_ROWS]),
        names=2,
        before=(*patients_sentences(summary), *overview_sentences(summary)),
        notes=(METHOD, *([left_out] if left_out else [])),
    )
