"""FHIR R4 bulk export of a hospital as clinical records.

Patients, encounters and the records of each type are read once, when they are first asked for. Resources that never
happened (planned, cancelled, entered in error, refuted) are left out. Of a patient only id, birth, sex and death are kept
in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import SEXES, Cohort, ConceptSet, Domain
from grandrounds.capabilities.sources.cohort.fhir_codes import CodeLists, CodeMatcher, find_vocabulary, search_any
from grandrounds.capabilities.sources.cohort.fhir_elements import (
    ABSENT,
    DAY,
    NO_TIME,
    has_code,
    last_day,
    parse_end,
    parse_record_time,
    parse_time,
    read_reference,
    read_status,
)
from grandrounds.capabilities.sources.cohort.fhir_files import Line, ResourceFile, list_files, read_lines
from grandrounds.capabilities.sources.cohort.fhir_records import (
    COMPARATOR,
    FROM_VISIT,
    IndexBuilder,
    RecordIndex,
    add_condition,
    add_medication_request,
    add_observation,
    add_procedure,
    count_codes,
)
from grandrounds.capabilities.sources.cohort.records import (
    ConceptCount,
    Deaths,
    Periods,
    Persons,
    Records,
    Visits,
    to_words,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

TYPES: dict[Domain, str] = {
    "condition": "Condition",
    "measurement": "Observation",
    "observation": "Observation",
    "drug": "MedicationRequest",
    "procedure": "Procedure",
}
"""Type of resource that has the records of each domain."""

_KINDS = {
    "IMP": "inpatient", "ACUTE": "inpatient", "NONAC": "inpatient", "SS": "inpatient", "EMER": "emergency",
    "AMB": "outpatient", "VR": "outpatient", "OBSENC": "outpatient", "HH": "outpatient",
    "I": "inpatient", "E": "emergency", "O": "outpatient",
}  # fmt: skip
_NO_VISIT = (*ABSENT, "planned")
_ICU = ("305351004", "309904001", "ICU", "PEDICU", "PEDNICU", "CCU")
"""Codes of intensive care: SNOMED CT of an admission to it and of the unit, and HL7's types of location."""
_WRITE_TIME = "write a date such as 2020-12-31, or a time such as 2020-12-31T23:59:00Z"


@dataclass(frozen=True)
class _Patient:
    birth: int  # days since 1970, NO_TIME where it is not known
    sex: str | None
    dead: bool
    death: int  # seconds


@dataclass(frozen=True)
class _Visit:
    person: str
    start: int
    end: int
    kind: str
    parent: str | None


class FhirSource:
    """Records of a FHIR R4 bulk export."""

    def __init__(self, where: Path | str, vocabulary: CodeLists | None = None) -> None:
        """Open an export.

        Args:
            where: A folder or zip of ndjson files.
            vocabulary: The hospital's own vocabulary, by which OMOP concept ids and descendants match.

        Raises:
            BadInput: There are no FHIR resources or no patients there.
        """
        self._where = Path(where)
        self._vocabulary = vocabulary
        self._files = list_files(self._where)
        self._patients: dict[str, _Patient] | None = None
        self._encounters: dict[str, _Visit] | None = None
        self._indexes: dict[str, tuple[frozenset[ConceptSet] | None, RecordIndex]] = {}
        self._prepared: dict[str, frozenset[ConceptSet]] = {}
        self._notes: dict[str, None] = {}

    @property
    def name(self) -> str:
        """The folder or zip."""
        return str(self._where)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each assumption that was made so far."""
        return tuple(self._notes)

    def close(self) -> None:
        """Release the records."""
        self._indexes.clear()

    def prepare(self, cohort: Cohort) -> None:
        """Note the concept sets of a cohort, so that lines with none of their codes are left out unparsed.

        Args:
            cohort: The cohort.
        """
        if self._vocabulary is not None:
            self._vocabulary.prepare_codes(cohort.concept_sets())
        wanted: dict[str, set[ConceptSet]] = {kind: set() for kind in TYPES.values()}
        for domain, concepts in cohort.domain_sets():
            wanted[TYPES[domain]].add(concepts)
        self._prepared = {kind: frozenset(sets) for kind, sets in wanted.items()}

    def persons(self) -> Persons:
        """Read the patients.

        Raises:
            BadInput: A date cannot be read; with file and line.
        """
        patients = self._read_patients()
        birth = np.array([p.birth for p in patients.values()], np.int64).astype("datetime64[D]")
        return Persons(to_words(patients), birth, to_words(p.sex for p in patients.values()))

    def deaths(self) -> Deaths:
        """Read the deaths; `deceasedBoolean` has no time."""
        dead = {name: p.death for name, p in self._read_patients().items() if p.dead}
        return Deaths(to_words(dead), _to_times(list(dead.values())))

    def visits(self) -> Visits:
        """Read the encounters. A part of an encounter is a visit of its own only where it is of another kind, such as ICU.

        Raises:
            BadInput: A date cannot be read; with file and line.
        """
        encounters = self._read_encounters()
        whole = {
            name: v for name, v in encounters.items()
            if v.parent is None or v.parent not in encounters or encounters[v.parent].kind != v.kind
        }  # fmt: skip
        self._note(
            len(encounters) - len(whole), "{} encounters are parts of another one of the same kind, and no visits"
        )
        self._note(sum(v.start == NO_TIME for v in whole.values()), "{} encounters without a start left out")
        return Visits(
            id=to_words(whole),
            person=to_words(v.person for v in whole.values()),
            start=_to_times([v.start for v in whole.values()]),
            end=_to_times([v.end for v in whole.values()]),
            kind=to_words(v.kind for v in whole.values()),
        )

    def periods(self) -> Periods:
        """Compute the times under observation, from the first to the last encounter of each patient."""
        spans: dict[str, tuple[int, int]] = {}
        for visit in self._read_encounters().values():
            if visit.start != NO_TIME:
                low, high = spans.get(visit.person, (visit.start, visit.start))
                spans[visit.person] = min(low, visit.start), max(high, visit.start, visit.end)
        low_high = list(spans.values())
        return Periods(to_words(spans), _to_times([s[0] for s in low_high]), _to_times([s[1] for s in low_high]))

    def records(self, domain: Domain, concepts: ConceptSet, values: Sequence[ConceptSet] = ()) -> Records:
        """Read the records of a domain that have one of these concepts.

        Args:
            domain: The domain; an Observation is a measurement and an observation alike.
            concepts: The codes.
            values: Coded values that `Records.word` names.

        Raises:
            BadInput: A line or an element of one of the records cannot be read; or the concepts are OMOP ids only.
        """
        index = self._index(TYPES[domain], concepts)
        matcher = self._match(concepts)
        if self._vocabulary is None:
            self._check_ids(concepts, index)
        rows = index.find(matcher)
        flags = index.flag[rows]
        named = concepts.name
        self._note(int((flags & COMPARATOR > 0).sum()), f"{named}: {{}} values such as '< 5' are read as the number")
        late = (flags & FROM_VISIT > 0) & (index.time[rows] != NO_TIME)
        self._note(int(late.sum()), f"{named}: {{}} records have no time, so that of the end of their encounter counts")
        self._note(int((index.time[rows] == NO_TIME).sum()), f"{named}: {{}} records without a time left out")
        word_matchers = [(v.name, self._match(v)) for v in values]
        return index.take(rows, lambda codings: next((name for name, m in word_matchers if m(codings)), None))

    def count_concepts(self) -> list[ConceptCount]:
        """Count the patients and records of each code of a known vocabulary, those of most patients first.

        Raises:
            BadInput: A line cannot be read.
        """
        counted: list[ConceptCount] = []
        for kind in dict.fromkeys(TYPES.values()):
            counted += count_codes(self._index(kind, None), next(d for d, k in TYPES.items() if k == kind))
        return counted

    def _match(self, concepts: ConceptSet) -> CodeMatcher:
        return CodeMatcher(concepts, () if self._vocabulary is None else self._vocabulary.codes(concepts))

    def _check_ids(self, concepts: ConceptSet, index: RecordIndex) -> None:
        """Refuse concepts that nothing in the export can match: OMOP ids, where no resource has one."""
        ids = [code.code for code in concepts.codes if code.vocabulary == "OMOP"]
        if not ids or any(find_vocabulary(s) == "OMOP" for codings in index.coding_lists for s, _ in codings):
            return
        if len(ids) == len(concepts.codes):
            raise BadInput(
                f"{concepts.name} has OMOP concept ids alone ({', '.join(ids[:3])}), which the FHIR export {self.name} "
                "does not have; add codes such as LOINC:2345-7 to the cohort file, or give the hospital's vocabulary",
                code="unknown-concept-code",
            )
        self._note(
            len(ids), f"{concepts.name}: {{}} OMOP concept ids match nothing in a FHIR export without a vocabulary"
        )

    def _note(self, count: int, sentence: str) -> None:
        if count:
            self._notes[sentence.format(count)] = None

    def _files_of(self, kind: str) -> list[ResourceFile]:
        return [file for file in self._files if file.type == kind]

    def _read_patients(self) -> dict[str, _Patient]:
        if self._patients is None:
            self._patients = {}
            for file in self._files_of("Patient"):
                for line in read_lines(file):
                    self._patients[_read_id(line)] = _read_patient(line)
        return self._patients

    def _read_encounters(self) -> dict[str, _Visit]:
        if self._encounters is None:
            icu = {
                _read_id(line) for file in self._files_of("Location") for line in read_lines(file)
                if has_code(line.resource.get("type"), *_ICU)
            }  # fmt: skip
            self._encounters = {}
            for file in self._files_of("Encounter"):
                for line in read_lines(file):
                    name = _read_id(line)
                    self._encounters.pop(name, None)
                    visit = _read_visit(line, icu)
                    if visit is not None:
                        self._encounters[name] = visit
        return self._encounters

    def _index(self, kind: str, concepts: ConceptSet | None) -> RecordIndex:
        """Read the resources of a type once: those of the prepared concept sets where this is one of them, else all."""
        covered, index = self._indexes.get(kind, (frozenset(), None))
        if index is not None and (covered is None or concepts in covered):
            return index
        sets = self._prepared.get(kind, frozenset())
        covered = sets if concepts in sets else None
        matchers = [self._match(s) for s in covered or ()]
        rows = IndexBuilder(
            {name: visit.end for name, visit in self._read_encounters().items()},
            None if covered is None else lambda codings: any(matches(codings) for matches in matchers),
        )
        medications: dict[str, object] = {}
        if kind == "MedicationRequest":
            for file in self._files_of("Medication"):
                medications |= {_read_id(line): line.resource.get("code") for line in read_lines(file)}
        add = {"Observation": add_observation, "Condition": add_condition, "Procedure": add_procedure}.get(kind)
        # the codes of a medication may be in a file of their own
        contains = None if covered is None or add is None else search_any([m.pattern for m in matchers])
        for file in self._files_of(kind):
            for line in read_lines(file, contains):
                if add is not None:
                    add(line, rows)
                else:
                    add_medication_request(line, rows, medications)
        self._note(
            rows.unresolved, "{} medication requests name a Medication that is not in the export, and are left out"
        )
        index = rows.build()
        self._indexes[kind] = (covered, index)
        return index


def _to_times(seconds: list[int]) -> Array:
    return np.array(seconds, np.int64).astype("datetime64[s]")


def _read_id(line: Line) -> str:
    name = line.resource.get("id")
    if not isinstance(name, str) or not name:
        raise BadInput(
            f"{line.file} line {line.number}: id is missing; a resource of a bulk export has one, so export it again",
            code="invalid-element",
        )
    return name


def _read_patient(line: Line) -> _Patient:
    resource = line.resource
    birth, death = NO_TIME, NO_TIME
    if (text := resource.get("birthDate")) is not None:
        try:
            birth = _read_birth(text)
        except ValueError:
            raise BadInput(
                line.fault("birthDate", text, "write a date such as 1950-12-31, or the year"), code="invalid-element"
            ) from None
    if (text := resource.get("deceasedDateTime")) is not None:
        try:
            death = parse_end(text)
        except ValueError:
            raise BadInput(line.fault("deceasedDateTime", text, _WRITE_TIME), code="invalid-element") from None
    sex = resource.get("gender")
    dead = text is not None or resource.get("deceasedBoolean") is True
    return _Patient(birth, sex if sex in SEXES else None, dead, death)


def _read_birth(text: object) -> int:
    """Read the day of a birth; the middle of the month or year where only that is written."""
    seconds, precision = parse_time(text)
    if precision in ("month", "year"):
        seconds = (seconds + last_day(seconds, precision)) // 2
    return seconds // DAY


def _read_visit(line: Line, icu: set[str]) -> _Visit | None:
    """Read an encounter; None where it did not happen or has no patient."""
    resource = line.resource
    person = read_reference(resource.get("subject"))
    if person is None or read_status(resource) in _NO_VISIT:
        return None
    period = resource.get("period")
    times = {"start": NO_TIME, "end": NO_TIME}
    for key, parse in (("start", parse_record_time), ("end", parse_end)):
        text = period.get(key) if isinstance(period, Mapping) else None
        if text is not None:
            try:
                times[key] = parse(text)
            except ValueError:
                raise BadInput(line.fault(f"period.{key}", text, _WRITE_TIME), code="invalid-element") from None
    return _Visit(
        person, times["start"], times["end"], _read_kind(resource, icu), read_reference(resource.get("partOf"))
    )


def _read_kind(resource: Mapping[str, Any], icu: set[str]) -> str:
    """Read the kind of a visit: intensive care by its type or where all its locations are, otherwise by its class."""
    if has_code(resource.get("type"), *_ICU) or has_code(resource.get("serviceType"), *_ICU):
        return "icu"
    places = resource.get("location")
    if isinstance(places, list) and places and icu:
        names = [read_reference(p.get("location")) if isinstance(p, Mapping) else None for p in places]
        if all(name in icu for name in names):
            return "icu"
    kind = resource.get("class")
    code = kind.get("code") if isinstance(kind, Mapping) else None
    return _KINDS.get(code, "other") if isinstance(code, str) else "other"
