"""Draft of a cohort file from a hospital's most frequent concepts, and a cohort in sentences.

A draft names concepts and no counts: the file goes to all hospitals. A concept that fewer patients have than the limit is
not named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import (
    ALL,
    HISTORY,
    VISIT,
    Cohort,
    ConceptSet,
    Feature,
    write_span,
)
from grandrounds.capabilities.sources.cohort.records import ClinicalSource, ConceptCount
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.toml import key, literal

FEWEST_PATIENTS = 10
"""Patients that a concept needs to be in a draft."""

_ENOUGH_DEATHS = 20
_DAY = 86400
_NAME_WORDS = 4  # words of a concept's name that a column keeps
_DROPPED = {"of", "in", "by", "or", "and", "the", "to", "for", "with", "finding", "disorder", "procedure", "situation",
            "volume", "mass", "moles", "presence", "unspecified", "specimen"}  # fmt: skip


@dataclass(frozen=True)
class DraftLimits:
    """Number of features of each domain, and the fewest patients of a concept."""

    measurements: int = 12
    conditions: int = 6
    drugs: int = 3
    fewest: int = FEWEST_PATIENTS


def draft_cohort(
    source: ClinicalSource,
    counts: Sequence[ConceptCount],
    *,
    limits: DraftLimits,
    name: str = "cohort",
) -> str:
    """Write a cohort file from the concepts that a hospital records most.

    Args:
        source: The hospital's records.
        counts: Its concepts.
        limits: The number of features, and the fewest patients of a concept.
        name: The name of the cohort.

    Returns:
        The text of a cohort file that `parse_cohort` reads.

    Raises:
        BadInput: No concept has enough patients.
    """
    frequent = [c for c in counts if c.patients >= limits.fewest]
    measured = [c for c in _most_frequent(frequent, ("measurement",)) if 2 * c.numbers > c.records]
    conditions, drugs = _most_frequent(frequent, ("condition",)), _most_frequent(frequent, ("drug",))
    if not measured and not conditions:
        raise BadInput(
            f"no concept in {source.name} has {limits.fewest} patients or more, so there is nothing to draft from; "
            "lower --fewest, or write the cohort file by hand (docs/cohort.md)",
            code="no-concepts",
        )
    visit, stays = _usual_visit(source)
    deaths = int((~np.isnat(source.deaths().time)).sum())
    die = deaths >= _ENOUGH_DEATHS
    if not die and not conditions:
        raise BadInput(
            f"{source.name} has {deaths} deaths and no condition with {limits.fewest} patients or more, so there is no outcome "
            "to draft; write the cohort file by hand (docs/cohort.md)",
            code="no-concepts",
        )
    names = _Names({"patient", "visit_start", "days", "age", "sex", "died", "outcome"})
    lines = [
        f"# Drafted from the most frequent concepts of one hospital. Edit it, then: rounds cohort check {name}.toml --data ..."
    ]
    lines += [f"name = {literal(name)}"]
    if stays:
        lines += ['predict_at = "24 hours"  # after the visit starts']
    lines += ["", "[include]", f"visit = [{literal(visit)}]", "first_visit = true", "age = [18, 120]", "", "[outcome]"]
    if die:
        lines += ['death = "visit"' if stays else 'death = "365 days"']
    else:
        outcome, conditions = conditions[0], conditions[1:]
        lines += [
            f"condition = [{literal(outcome.code)}]  # {_comment(outcome.name)}: choose the outcome you study",
            'within = "365 days"',
            "first = true",
        ]
    lines += ["", "[features]", "age = true", "sex = true"]
    for count in measured[: limits.measurements]:
        unit = f", unit = {literal(count.unit)}" if count.unit else ""
        take = f'take = "last"{unit}'
        lines.append(
            f"{names.new(count.name)} = {{ measurement = [{literal(count.code)}], {take} }}  # {_comment(count.name)}"
        )
    for count in [*conditions[: limits.conditions], *drugs[: limits.drugs]]:
        lines.append(
            f"{names.new(count.name)} = {{ {count.domain} = [{literal(count.code)}] }}  # {_comment(count.name)}"
        )
    return "\n".join(lines) + "\n"


def _most_frequent(counts: Iterable[ConceptCount], domains: Sequence[str]) -> list[ConceptCount]:
    chosen = [c for c in counts if c.domain in domains and c.code != "OMOP:0"]
    return sorted(chosen, key=lambda c: (-c.patients, -c.records, c.code))


def _usual_visit(source: ClinicalSource) -> tuple[str, bool]:
    """Choose the type of visit, and tell whether such visits usually last longer than a day."""
    visits = source.visits()
    kinds = Counter(visits.kind.tolist())
    for kind in ("icu", "inpatient", "emergency", "outpatient", "other"):
        mine = (visits.kind == kind) & ~np.isnat(visits.end)
        patients = len(set(visits.person[mine].tolist()))
        if patients >= 2 * FEWEST_PATIENTS or (kinds and kind == kinds.most_common(1)[0][0]):
            return kind, bool(mine.any()) and _median_stay(visits.start[mine], visits.end[mine]) > _DAY
    return "inpatient", False


def _median_stay(start: Array, end: Array) -> float:
    return float(np.median((end - start).astype("timedelta64[s]").astype(np.int64)))


def _comment(text: str) -> str:
    return " ".join(text.split())


class _Names:
    """Names of columns, each once."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def new(self, text: str) -> str:
        """Make a column's name of a concept's."""
        words = [w for w in re.findall(r"[a-z0-9]+", text.split("[")[0].lower()) if w not in _DROPPED]
        base = "_".join(words[:_NAME_WORDS]) or "feature"
        name = next(
            n for i in range(1, len(self.taken) + 2) if (n := base if i == 1 else f"{base}_{i}") not in self.taken
        )
        self.taken.add(name)
        return key(name)


def describe_cohort(cohort: Cohort) -> list[str]:
    """Describe a cohort in sentences: the patients, the moment of the prediction, the outcome, each feature."""
    rule = cohort.include
    who = (
        f"{'first visits' if rule.first_visit else 'visits'} of type {' or '.join(rule.visits)}"
        if rule.visits
        else ("each patient's first visit" if rule.first_visit else "every visit")
    )
    limits = [] if rule.age is None else [f"age {rule.age[0]:g} to {rule.age[1]:g}"]
    limits += [f"observed for {write_span(rule.observed)} before"] if rule.observed else []
    back = "" if rule.look_back is None else f" (looking back {write_span(rule.look_back)})"
    limits += [f"with {_codes(rule.diagnoses)}{back}"] if rule.diagnoses else []
    limits += [f"without {_codes(rule.without_diagnoses)}{back}"] if rule.without_diagnoses else []
    now = (
        f"{write_span(cohort.predict_at)} after the visit starts" if cohort.predict_at else "at the start of the visit"
    )
    lines = [f"patients: {', '.join([who, *limits])}", f"prediction: {now}", f"outcome: {_describe_outcome(cohort)}"]
    return [*lines, *(f"feature {f.name}: {_describe_feature(f)}" for f in cohort.features)]


def _codes(concepts: ConceptSet | None) -> str:
    return "" if concepts is None else " or ".join(concepts.to_list())


def _describe_outcome(cohort: Cohort) -> str:
    o = cohort.outcome
    horizon = "until the visit ends" if o.within is None else f"within {write_span(o.within)} after the prediction"
    if o.kind == "death":
        event = "death"
    elif o.kind == "condition":
        event = f"{'first record of ' if o.first else ''}{_codes(o.concepts)}"
    else:
        limit = f" above {o.above:g}" if o.above is not None else f" below {o.below:g}" if o.below is not None else ""
        event = f"{o.take} of {_codes(o.concepts)}{limit}{f' {o.unit}' if o.unit else ''}"
    way = "days to " if o.time_to_event else ""
    return f"{o.name} = {way}{event} {horizon} ({o.task})"


def _describe_feature(f: Feature) -> str:
    if f.domain == "age":
        return "years at the prediction"
    if f.domain == "sex":
        return "female, male or other"
    windows = {
        VISIT: "since the visit started",
        HISTORY: "before the day of the visit",
        ALL: "at any time before the prediction",
    }
    window = windows[f.window] if isinstance(f.window, str) else f"in the {write_span(f.window)} before the prediction"
    take = {"any": "any record of", "count": "number of records of", "days_since": "days since the last record of"}.get(
        f.take, f"{f.take} value of"
    )
    values = f" as {', '.join(v.name for v in f.values)}" if f.values else ""
    limits = "" if f.range is None else f", {f.range[0]:g} to {f.range[1]:g}"
    return f"{take} {f.domain} {_codes(f.concepts)} {window}{values}{f', in {f.unit}' if f.unit else ''}{limits}"
