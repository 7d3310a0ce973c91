"""Index of the clinical resources of a FHIR export: conditions, observations, medication requests and procedures.

Every file is parsed once, into columns of numbers; a concept set then selects rows by the few distinct lists of codings.
An element that cannot be read is a fault of its row, so that it stops a cohort only where the cohort reads that row. The
index has no names, addresses or text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import Domain
from grandrounds.capabilities.sources.cohort.fhir_codes import find_vocabulary
from grandrounds.capabilities.sources.cohort.fhir_elements import (
    ABSENT,
    NO_TIME,
    Coding,
    has_code,
    parse_end,
    parse_record_time,
    read_codings,
    read_display,
    read_reference,
    read_reference_type,
    read_status,
)
from grandrounds.capabilities.sources.cohort.fhir_files import Line
from grandrounds.capabilities.sources.cohort.records import ConceptCount, Records
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

COMPARATOR, FROM_VISIT = 1, 2
"""Flags of a row: its number is a bound such as "< 5"; its time is the end of its visit."""

_NONE = -1
_WRITE_TIME = "write a date such as 2020-12-31, or a time such as 2020-12-31T23:59:00Z"
_WRITE_NUMBER = "write a number"
_OBSERVED = ("effectiveDateTime", "effectiveInstant", "effectivePeriod.end", "effectivePeriod.start", "issued")
_DIAGNOSED = ("recordedDate", "onsetDateTime", "onsetPeriod.start")
_PERFORMED = ("performedDateTime", "performedPeriod.start", "performedPeriod.end")
_ORDERED = ("authoredOn",)
_NO_ORDER = ("proposal", "plan", "option")


class _Ids:
    """Numbers for distinct values, in the order in which they come."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}

    def __getitem__(self, value: Hashable) -> int:
        if value is None:
            return _NONE
        return self._number.setdefault(value, len(self._number))

    def values(self) -> list[Any]:
        return list(self._number)


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Rows of one type of resource; numbers of `person`, `visit`, `unit`, `codings` and `word` are places in the lists."""

    person: Array
    visit: Array
    time: Array  # seconds, NO_TIME where it is not known
    value: Array
    unit: Array
    codings: Array
    word: Array
    flag: Array
    faults: Mapping[int, str]
    person_ids: Array
    visit_ids: Array
    units: Array
    coding_lists: tuple[tuple[Coding, ...], ...]
    displays: tuple[str, ...]  # of each list, the words of its first code
    word_lists: tuple[tuple[Coding, ...], ...]

    def find(self, matches: Callable[[tuple[Coding, ...]], bool]) -> Array:
        """Find the rows whose codings match.

        Raises:
            BadInput: An element of one of them cannot be read.
        """
        wanted = np.fromiter((matches(codings) for codings in self.coding_lists), bool, len(self.coding_lists))
        rows = np.flatnonzero(np.append(wanted, False)[self.codings])
        if self.faults:
            fault = next((self.faults[row] for row in rows.tolist() if row in self.faults), None)
            if fault is not None:
                raise BadInput(fault, code="invalid-element")
        return rows

    def take(self, rows: Array, name_word: Callable[[tuple[Coding, ...]], str | None]) -> Records:
        """Convert rows to records.

        Args:
            rows: Their numbers.
            name_word: The word of a coded value, None where it has none.
        """
        named: list[str | None] = [name_word(codings) for codings in self.word_lists]
        words = np.empty(len(named) + 1, dtype=object)
        words[: len(named)] = named
        return Records(
            person=self.person_ids[self.person[rows]],
            visit=self.visit_ids[self.visit[rows]],
            time=self.time[rows].astype("datetime64[s]"),
            value=self.value[rows],
            unit=self.units[self.unit[rows]],
            word=words[self.word[rows]],
        )


class IndexBuilder:
    """Collects rows while files are read."""

    def __init__(
        self, visit_ends: Mapping[str, int], wants: Callable[[tuple[Coding, ...]], bool] | None = None
    ) -> None:
        """Start empty.

        Args:
            visit_ends: The end of each visit, which is the time of a record that has none of its own.
            wants: The codings to keep; None keeps all.
        """
        self._visit_ends = visit_ends
        self._wants = wants
        self._known: dict[tuple[Coding, ...], bool] = {}
        self._persons, self._visits, self._units, self._codings, self._words = (_Ids() for _ in range(5))
        self._columns: tuple[array[Any], ...] = tuple(array(kind) for kind in "iiqdiiib")
        self._appends = tuple(column.append for column in self._columns)
        self._keys, self._versions = array("q"), array("q")
        self._line: Line | None = None
        self._resources = self._key = self._time = self._flag = 0
        self._person = self._visit = _NONE
        self._fault: str | None = None
        self._faults: dict[int, str] = {}
        self._displays: list[str] = []
        self.unresolved = 0  # medication requests whose medication is not in the export

    def add(
        self, line: Line, concept: object, times: tuple[str, ...], *, element: Mapping[str, Any] | None = None,
        path: str = "",
    ) -> None:  # fmt: skip
        """Add a row.

        Args:
            line: The resource.
            concept: The CodeableConcept with its codes.
            times: Elements that have its time, the first that is there counts.
            element: The element with its value; None where it has no value.
            path: The element's path, for messages.
        """
        codings = read_codings(concept)
        if not codings or (self._wants is not None and not self._is_wanted(codings)):
            return
        if line is not self._line:
            self._start(line, times)
        if self._person == _NONE:
            return
        flag, fault = self._flag, self._fault
        value, unit, words = np.nan, None, None
        if element is not None and fault is None:
            value, unit, words, bound, fault = _read_value(line, element, path)
            flag |= bound
        if fault is not None:
            self._faults[len(self._keys)] = fault
        number = self._codings[codings]
        if number == len(self._displays):
            self._displays.append(read_display(concept))
        self._append(
            (
                self._person, self._visit, self._time, value, self._units[unit], number,
                self._words[words], flag,
            )
        )  # fmt: skip

    def _start(self, line: Line, times: tuple[str, ...]) -> None:
        """Read what all rows of a resource share: the patient, the visit and the time."""
        self._line = line
        self._resources += 1
        resource = line.resource
        name, subject = resource.get("id"), resource.get("subject")
        self._key = hash(name if isinstance(name, str) else (line.file, line.number))
        person = read_reference(subject) if read_reference_type(subject) in ("Patient", "") else None
        visit = read_reference(resource.get("encounter"))
        self._person, self._visit = self._persons[person], self._visits[visit]
        self._time, self._fault = _read_time(line, times)
        self._flag = 0
        if self._time == NO_TIME and self._fault is None and visit is not None:
            self._time, self._flag = self._visit_ends.get(visit, NO_TIME), FROM_VISIT

    def retract(self, line: Line) -> None:
        """Note that a resource is not valid, which removes an earlier version of it."""
        self._start(line, ())
        self._append((_NONE, _NONE, NO_TIME, np.nan, _NONE, _NONE, _NONE, 0))

    def _append(self, row: tuple[Any, ...]) -> None:
        for append, cell in zip(self._appends, row, strict=True):
            append(cell)
        self._keys.append(self._key)
        self._versions.append(self._resources)

    def _is_wanted(self, codings: tuple[Coding, ...]) -> bool:
        assert self._wants is not None
        wanted = self._known.get(codings)
        if wanted is None:
            wanted = self._known[codings] = self._wants(codings)
        return wanted

    def build(self) -> RecordIndex:
        """Finish the index; of a resource that was exported twice the last version counts."""
        keys = np.frombuffer(self._keys, np.int64) if self._keys else np.zeros(0, np.int64)
        versions = np.frombuffer(self._versions, np.int64) if self._keys else np.zeros(0, np.int64)
        names, place = np.unique(keys, return_inverse=True)
        latest = np.zeros(len(names), np.int64)
        np.maximum.at(latest, place, versions)
        valid = np.frombuffer(self._columns[5], np.int32) >= 0 if self._keys else np.zeros(0, bool)
        kept = np.flatnonzero((versions == latest[place]) & valid)
        person, visit, time, value, unit, codings, word, flag = (
            np.frombuffer(c, c.typecode)[kept] if c else np.zeros(0, c.typecode) for c in self._columns
        )
        moved = {int(row): i for i, row in enumerate(kept)} if self._faults else {}
        return RecordIndex(
            person, visit, time, value, unit, codings, word, flag,
            faults={moved[row]: text for row, text in self._faults.items() if row in moved},
            person_ids=_to_array(self._persons.values()),
            visit_ids=_to_array(self._visits.values()),
            units=_to_array(self._units.values()),
            coding_lists=tuple(self._codings.values()),
            displays=tuple(self._displays),
            word_lists=tuple(self._words.values()),
        )  # fmt: skip


def count_codes(index: RecordIndex, domain: Domain) -> list[ConceptCount]:
    """Count the patients and records of each code.

    Args:
        index: The records.
        domain: Their domain; measurements without any number are observations.

    Returns:
        The first code of a known vocabulary of each record, those of most patients first.
    """
    ids = _Ids()
    names: list[str] = []
    of_list = np.full(len(index.coding_lists) + 1, _NONE)
    for i, (codings, display) in enumerate(zip(index.coding_lists, index.displays, strict=True)):
        known = ((find_vocabulary(system), code) for system, code in codings)
        of_list[i] = ids[next((f"{vocabulary}:{plain}" for vocabulary, plain in known if vocabulary is not None), None)]
        if of_list[i] == len(names):
            names.append(display)
    of_row = of_list[index.codings]
    counted = []
    for number, code in enumerate(ids.values()):
        mine = np.flatnonzero(of_row == number)
        measured = mine[~np.isnan(index.value[mine])]
        units = Counter(u for u in index.units[index.unit[measured]] if u is not None)
        counted.append(
            ConceptCount(
                domain="observation" if domain == "measurement" and not len(measured) else domain,
                code=code,
                name=names[number],
                patients=len(np.unique(index.person[mine])),
                records=len(mine),
                numbers=len(measured),
                unit=min(units, key=lambda u: (-units[u], u)) if units else "",
            )
        )
    return sorted((c for c in counted if c.records), key=lambda c: (c.domain, -c.patients, -c.records, c.code))


def _to_array(values: list[Any]) -> Array:
    """Convert to an object array with None at its end, which the number -1 finds."""
    out = np.empty(len(values) + 1, dtype=object)
    out[: len(values)] = values
    return out


def add_observation(line: Line, rows: IndexBuilder) -> None:
    """Add an Observation, and each of its components as a row of its own."""
    resource = line.resource
    if read_status(resource) in ABSENT:
        rows.retract(line)
        return
    rows.add(line, resource.get("code"), _OBSERVED, element=resource)
    components = resource.get("component")
    for i, component in enumerate(components if isinstance(components, list) else ()):
        if isinstance(component, dict):
            rows.add(line, component.get("code"), _OBSERVED, element=component, path=f"component[{i}].")


def add_condition(line: Line, rows: IndexBuilder) -> None:
    """Add a Condition, at the time it was recorded so that it was known by then; one that was refuted is left out."""
    if has_code(line.resource.get("verificationStatus"), "refuted", *ABSENT):
        rows.retract(line)
    else:
        rows.add(line, line.resource.get("code"), _DIAGNOSED)


def add_procedure(line: Line, rows: IndexBuilder) -> None:
    """Add a Procedure that was done or begun."""
    if read_status(line.resource) in (*ABSENT, "not-done", "preparation"):
        rows.retract(line)
    else:
        rows.add(line, line.resource.get("code"), _PERFORMED)


def add_medication_request(line: Line, rows: IndexBuilder, medications: Mapping[str, object]) -> None:
    """Add a MedicationRequest that is an order.

    Args:
        line: The resource.
        rows: The index.
        medications: The code of each Medication of the export.
    """
    resource = line.resource
    if (
        read_status(resource) in (*ABSENT, "draft")
        or resource.get("intent") in _NO_ORDER
        or resource.get("doNotPerform") is True
    ):
        rows.retract(line)
        return
    concept = resource.get("medicationCodeableConcept")
    reference = resource.get("medicationReference")
    if not read_codings(concept) and isinstance(reference, dict):
        concept = _find_contained(resource, reference) or medications.get(read_reference(reference) or "")
        if concept is None:
            rows.unresolved += 1
    rows.add(line, concept, _ORDERED)


def _find_contained(resource: Mapping[str, Any], reference: Mapping[str, Any]) -> object:
    """Find the code of a Medication that the request itself has, which "#id" names."""
    name, parts = reference.get("reference"), resource.get("contained")
    if not isinstance(name, str) or not name.startswith("#") or not isinstance(parts, list):
        return None
    mine = next((p for p in parts if isinstance(p, dict) and p.get("id") == name[1:]), None)
    return None if mine is None else mine.get("code")


def _read_time(line: Line, elements: Iterable[str]) -> tuple[int, str | None]:
    """Read the first time that is there, and the fault where it is no time."""
    for path in elements:
        outer, _, inner = path.partition(".")
        text: object = line.resource.get(outer)
        if inner:
            text = text.get(inner) if isinstance(text, dict) else None
        if text is None:
            continue
        try:
            return (parse_end(text) if inner == "end" else parse_record_time(text)), None
        except ValueError:
            return NO_TIME, line.fault(path, text, _WRITE_TIME)
    return NO_TIME, None


def _read_value(
    line: Line, element: Mapping[str, Any], path: str
) -> tuple[float, str | None, tuple[Coding, ...] | None, int, str | None]:
    """Read the value of an Observation or component: number, unit, codings, flag and fault."""
    quantity = element.get("valueQuantity")
    if quantity is not None:
        if not isinstance(quantity, dict):
            return np.nan, None, None, 0, line.fault(f"{path}valueQuantity", quantity, "write a value and a unit")
        number = quantity.get("value")
        unit = quantity.get("code") or quantity.get("unit")
        flag = COMPARATOR if quantity.get("comparator") else 0
        value, fault = _read_number(line, f"{path}valueQuantity.value", number)
        return value, unit if isinstance(unit, str) else None, None, flag, fault
    if (number := element.get("valueInteger")) is not None:
        value, fault = _read_number(line, f"{path}valueInteger", number)
        return value, None, None, 0, fault
    if (concept := element.get("valueCodeableConcept")) is not None:
        return np.nan, None, read_codings(concept) or None, 0, None
    if isinstance(flag_value := element.get("valueBoolean"), bool):
        return float(flag_value), None, None, 0, None
    return np.nan, None, None, 0, None


def _read_number(line: Line, path: str, number: object) -> tuple[float, str | None]:
    if number is None:
        return np.nan, None
    try:
        value = float(number) if isinstance(number, int | float) and not isinstance(number, bool) else np.nan
    except OverflowError:
        value = np.nan
    return (value, None) if isfinite(value) else (np.nan, line.fault(path, number, _WRITE_NUMBER))
