"""Definition of a cohort: the patients, the outcome and the features that every hospital extracts from its own records.

A cohort is the same at every hospital, whether it has an OMOP database or a FHIR export. `cohort_file` reads it from TOML.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grandrounds.core.outcome import CLASSIFICATION, REGRESSION, SURVIVAL
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema

Domain = Literal["condition", "measurement", "observation", "drug", "procedure"]

DOMAINS: tuple[Domain, ...] = ("condition", "measurement", "observation", "drug", "procedure")
VISITS = ("inpatient", "outpatient", "emergency", "icu", "other")
TAKES = ("last", "first", "mean", "min", "max", "count", "days_since", "any")
NUMERIC_TAKES = ("last", "first", "mean", "min", "max")
VOCABULARIES = ("LOINC", "SNOMED", "ICD10", "ICD10CM", "ICD10GM", "ICD9CM", "ATC", "RxNorm", "OMOP", "UCUM", "CPT4")
SEXES = ("female", "male", "other")

PATIENT, VISIT_START, DURATION = "patient", "visit_start", "days"
"""Columns of the table beside the outcome and the features; `days` only for a time to an event."""

VISIT, HISTORY, ALL = "visit", "history", "all"
"""Words for a window: since the visit started, before it started, or both. A window may also be a time before the prediction."""

HOUR, DAY = 3600, 86400
"""Seconds."""


@dataclass(frozen=True)
class Code:
    """One code of a vocabulary; with `prefix` every code that begins with it."""

    vocabulary: str
    code: str
    prefix: bool = False

    def __str__(self) -> str:
        return f"{self.vocabulary}:{self.code}{'*' if self.prefix else ''}"


@dataclass(frozen=True)
class ConceptSet:
    """Codes that mean the same thing for the cohort."""

    name: str
    codes: tuple[Code, ...]

    def to_list(self) -> list[str]:
        """Write the codes as in a cohort file."""
        return [str(code) for code in self.codes]


@dataclass(frozen=True)
class Inclusion:
    """Visits that are rows of the cohort."""

    visits: tuple[str, ...] = ()  # words of VISITS; none: every visit
    first_visit: bool = False
    age: tuple[float, float] | None = None
    diagnoses: ConceptSet | None = None
    without_diagnoses: ConceptSet | None = None
    look_back: int | None = None  # seconds; None: always
    observed: int = 0  # seconds


@dataclass(frozen=True)
class Outcome:
    """The event or value to predict."""

    name: str
    kind: Literal["death", "condition", "measurement"]
    within: int | None  # seconds after the prediction; None: until the visit ends
    concepts: ConceptSet | None = None
    first: bool = False  # patients with the condition before the prediction are left out
    take: str = "max"
    unit: str = ""
    above: float | None = None
    below: float | None = None
    time_to_event: bool = False
    complete_follow_up: bool = True  # patients without an event who were not observed to the end are left out

    @property
    def task(self) -> str:
        """Task of the outcome, as data.task."""
        if self.time_to_event:
            return SURVIVAL
        return (
            REGRESSION if self.kind == "measurement" and self.above is None and self.below is None else CLASSIFICATION
        )


@dataclass(frozen=True)
class Feature:
    """One column of the table: age, sex, or records of a concept set in a window."""

    name: str
    domain: Domain | Literal["age", "sex"]
    concepts: ConceptSet | None = None
    take: str = "last"
    window: str | int = VISIT  # VISIT, HISTORY, ALL, or seconds before the prediction
    unit: str = ""
    range: tuple[float, float] | None = None
    values: tuple[ConceptSet, ...] = ()  # of coded values: the words of the column
    about: str = ""

    @property
    def column(self) -> AgreedColumn:
        """Column of the agreed schema."""
        if self.domain == "sex":
            return AgreedColumn(self.name, "category", values=SEXES, about=self.about)
        if self.values:
            return AgreedColumn(self.name, "category", values=tuple(v.name for v in self.values), about=self.about)
        if self.take == "any":
            return AgreedColumn(self.name, "binary", values=("0", "1"), about=self.about)
        unit = {"count": "", "days_since": "days"}.get(self.take, "years" if self.domain == "age" else self.unit)
        return AgreedColumn(self.name, "number", unit, self.range, about=self.about)


@dataclass(frozen=True)
class Cohort:
    """A parsed cohort file."""

    outcome: Outcome
    features: tuple[Feature, ...]
    include: Inclusion = Inclusion()
    name: str = "cohort"
    about: str = ""
    predict_at: int = 0  # seconds after the visit starts
    fewest_rows: int = 8

    def schema(self) -> DataSchema:
        """Build the schema that the cohort implies: columns with their kinds and units, the label, the patient and the time."""
        task = self.outcome.task
        classes = ("0", "1") if task == CLASSIFICATION else ()
        return DataSchema(
            label=self.outcome.name,
            columns=tuple(feature.column for feature in self.features),
            event="1" if classes else None,
            classes=classes,
            patient=PATIENT,
            time=VISIT_START,
            fewest_rows=self.fewest_rows,
            task=task,
            duration=DURATION if task == SURVIVAL else None,
        )

    def concept_sets(self) -> tuple[ConceptSet, ...]:
        """List every concept set that the cohort reads."""
        sets = [self.include.diagnoses, self.include.without_diagnoses, self.outcome.concepts]
        sets += [s for feature in self.features for s in (feature.concepts, *feature.values)]
        return tuple(s for s in sets if s is not None)

    def domain_sets(self) -> tuple[tuple[Domain, ConceptSet], ...]:
        """List the domain and concept set of every read of records."""
        sets: list[tuple[Domain, ConceptSet | None]] = [
            ("condition", self.include.diagnoses),
            ("condition", self.include.without_diagnoses),
            ("measurement" if self.outcome.kind == "measurement" else "condition", self.outcome.concepts),
        ]
        sets += [(f.domain, f.concepts) for f in self.features if f.domain != "age" and f.domain != "sex"]
        return tuple((domain, s) for domain, s in sets if s is not None)

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values with every concept set written out; `parse_cohort` gives the same cohort back."""
        i, o = self.include, self.outcome
        include: dict[str, object] = {
            "visit": list(i.visits), "first_visit": i.first_visit, "age": None if i.age is None else list(i.age),
            "diagnoses": i.diagnoses and i.diagnoses.to_list(),
            "without_diagnoses": i.without_diagnoses and i.without_diagnoses.to_list(),
            "look_back": None if i.look_back is None else write_span(i.look_back),
            "observed": write_span(i.observed) if i.observed else None,
        }  # fmt: skip
        within = VISIT if o.within is None else write_span(o.within)
        outcome: dict[str, object] = {"name": o.name}
        if o.kind == "death":
            outcome["death"] = within
        else:
            outcome |= {o.kind: [] if o.concepts is None else o.concepts.to_list(), "within": within}
        outcome |= {"first": o.first, "time_to_event": o.time_to_event}
        if o.kind == "measurement":
            outcome |= {"take": o.take, "unit": o.unit, "above": o.above, "below": o.below}
        plain = {
            "name": self.name, "about": self.about, "predict_at": write_span(self.predict_at),
            "fewest_rows": self.fewest_rows, "include": _drop_unset(include),
            "outcome": _drop_unset(outcome) | ({} if o.complete_follow_up else {"complete_follow_up": False}),
            "features": {f.name: _feature_to_dict(f) for f in self.features},
        }  # fmt: skip
        return {key: value for key, value in plain.items() if value != ""}

    def digest(self) -> str:
        """Hash the definition, SHA-256; comments and the order of keys in the file do not matter, the order of features does."""
        plain = {**self.to_dict(), "features": [[f.name, _feature_to_dict(f)] for f in self.features]}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _drop_unset(plain: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value for key, value in plain.items() if value is not None and value is not False and value not in ("", [])
    }


def _feature_to_dict(f: Feature) -> bool | dict[str, object]:
    if f.concepts is None:
        return True
    plain: dict[str, object] = {
        f.domain: f.concepts.to_list(), "take": f.take, "unit": f.unit, "about": f.about,
        "window": f.window if isinstance(f.window, str) else write_span(f.window),
        "range": None if f.range is None else list(f.range),
    }  # fmt: skip
    if f.values:
        plain["values"] = {v.name: v.to_list() for v in f.values}
    return {key: value for key, value in plain.items() if value not in (None, "")}


def write_span(seconds: int) -> str:
    """Write seconds as `read_span` reads them."""
    for word, factor in (("day", DAY), ("hour", HOUR)):
        if seconds and seconds % factor == 0:
            n = seconds // factor
            return f"{n} {word}" if n == 1 else f"{n} {word}s"
    return f"{seconds / HOUR:.12g} hours"
