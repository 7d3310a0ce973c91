"""Clinical records from OMOP CDM 5.3 and 5.4, whether in files or in a database.

A datetime is used where there is one, else the date. By the convention of OMOP a time that is not known is midnight: where
every time of a column is midnight, the column has dates alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import Cohort, ConceptSet, Domain
from grandrounds.capabilities.sources.cohort.omop_tables import (
    NO_ID,
    Kind,
    Match,
    TableReader,
    WordMatch,
    check_columns,
    read_columns,
)
from grandrounds.capabilities.sources.cohort.records import (
    Deaths,
    Periods,
    Persons,
    Records,
    Visits,
    end_of_day,
    middle_of,
    periods_of_visits,
)
from grandrounds.capabilities.sources.cohort.vocabulary import Resolution, Vocabulary
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_MALE, _FEMALE, _UNKNOWN_SEX = 8507, 8532, 8551
_SEX_WORDS = {"m": "male", "male": "male", "f": "female", "female": "female"}
_KINDS_OF_VISIT = (
    ("icu", (32037, 581379)),
    ("inpatient", (262,)),  # emergency room and inpatient: a descendant of both
    ("emergency", (9203, 8870)),
    ("inpatient", (9201, 8717, 8920)),
    ("outpatient", (9202, 581477, 581478, 5083, 8756, 8940, 38004207, 581476)),
)
_OPERATORS = {4171756: "<", 4171754: "<=", 4172704: ">", 4171755: ">="}
_DAY = 86400
_DESCRIBED = 1000  # concepts whose domain is looked up where none has a record


@dataclass(frozen=True)
class DomainTable:
    """Table of a domain, with the beginning of the names of its columns."""

    table: str
    concept: str
    date: str

    @property
    def columns(self) -> dict[str, Kind]:
        """Columns that every domain has."""
        return {
            "person_id": "id", "visit_occurrence_id": "id", f"{self.concept}_concept_id": "id",
            f"{self.concept}_source_concept_id": "id", f"{self.concept}_source_value": "word",
            f"{self.date}_date": "time", f"{self.date}_datetime": "time",
        }  # fmt: skip


DOMAIN_TABLES: Mapping[Domain, DomainTable] = {
    "condition": DomainTable("condition_occurrence", "condition", "condition_start"),
    "measurement": DomainTable("measurement", "measurement", "measurement"),
    "observation": DomainTable("observation", "observation", "observation"),
    "drug": DomainTable("drug_exposure", "drug", "drug_exposure_start"),
    "procedure": DomainTable("procedure_occurrence", "procedure", "procedure"),
}
_VALUES: dict[str, Kind] = {
    "value_as_number": "number", "value_as_concept_id": "id", "unit_concept_id": "id", "unit_source_value": "word",
    "value_source_value": "word", "value_as_string": "word", "operator_concept_id": "id",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Stored:
    """Rows of a domain that were read for several concept sets at once."""

    ids: Array
    words: WordMatch
    columns: dict[str, Array]


class OmopSource:
    """A `ClinicalSource` of OMOP tables."""

    def __init__(self, reader: TableReader, vocabulary: Vocabulary | None = None) -> None:
        """Check that these are tables of OMOP CDM 5.

        Args:
            reader: The tables.
            vocabulary: Another vocabulary than that of the tables.

        Raises:
            BadInput: There is no table person, or CDM_SOURCE names another version than 5.
        """
        self._reader = reader
        check_columns(reader, "person", ("person_id",))
        self.version = _read_version(reader)
        self.vocabulary = Vocabulary(reader) if vocabulary is None else vocabulary
        self._stored: dict[Domain, _Stored] = {}
        self._cohort: Cohort | None = None  # the cohort whose records are stored
        self._notes: dict[str, None] = {}
        if not self.vocabulary.has_concepts:
            self._note(
                f"{self.name} has no CONCEPT table: codes are compared with source values, and descendants are not known; "
                "give an Athena download as vocabulary"
            )
        elif not self.vocabulary.has_ancestors:
            self._note("the vocabulary has no CONCEPT_ANCESTOR: descendants of concepts do not count")

    @property
    def name(self) -> str:
        """The database or folder, for messages; never a password."""
        return self._reader.name

    @property
    def reader(self) -> TableReader:
        """The tables."""
        return self._reader

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each assumption of the reads so far."""
        return tuple(self._notes)

    def close(self) -> None:
        """Release what the source holds open."""
        self._reader.close()

    def prepare(self, cohort: Cohort) -> None:
        """Resolve the codes of a cohort, and read each table of records once for all of its concept sets.

        Args:
            cohort: The cohort.

        Raises:
            BadInput: A table or column is missing, or a cell cannot be read.
        """
        if cohort == self._cohort:
            return
        by_domain: dict[Domain, list[ConceptSet]] = {}
        for domain, concepts in cohort.domain_sets():
            by_domain.setdefault(domain, []).append(concepts)
        self.vocabulary.resolve(cohort.concept_sets())
        for domain, sets in by_domain.items():
            found = self.vocabulary.resolve(sets)
            ids = np.unique(np.concatenate([r.ids for r in found]))
            words = WordMatch(
                frozenset().union(*(r.words.exact for r in found)),
                tuple(sorted({p for r in found for p in r.words.prefixes})),
            )
            self._stored[domain] = _Stored(ids, words, self._read_domain(domain, ids, words))
        self._cohort = cohort

    def persons(self) -> Persons:
        """Read the patients."""
        kinds: dict[str, Kind] = {
            "person_id": "id", "gender_concept_id": "id", "gender_source_value": "word", "year_of_birth": "id",
            "month_of_birth": "id", "day_of_birth": "id", "birth_datetime": "time",
        }  # fmt: skip
        rows = read_columns(self._reader, "person", kinds, required=("person_id", "gender_concept_id", "year_of_birth"))
        ids = rows["person_id"]
        if not len(ids):
            raise BadInput(f"table person of {self.name} has no rows; export the patients again", code="empty-table")
        unique, counts = np.unique(ids, return_counts=True)
        twice = unique[(counts > 1) | (unique == NO_ID)]
        if len(twice):
            who = "a row without a person_id" if twice[0] == NO_ID else f"person_id {twice[0]} in several rows"
            raise BadInput(
                f"table person of {self.name} has {who}; each patient has one row with its own person_id",
                code="duplicate-person",
            )
        birth = rows["birth_datetime"].astype("datetime64[D]")
        dated = middle_of(*(np.where(rows[c] == NO_ID, 0, rows[c]) for c in list(kinds)[3:6]))
        months, days = rows["month_of_birth"], rows["day_of_birth"]
        odd = ((months != NO_ID) & ((months < 1) | (months > 12))) | ((days != NO_ID) & ((days < 1) | (days > 31)))
        odd &= np.isnat(birth)
        if odd.any():
            first = int(np.argmax(odd))
            self._note(
                f"{int(odd.sum())} patients have a month or day of birth that no calendar has (person_id {ids[first]}), "
                "read as not known"
            )
        return Persons(_to_names(ids), np.where(np.isnat(birth), dated, birth), _find_sex(rows))

    def visits(self) -> Visits:
        """Read the visits."""
        kinds: dict[str, Kind] = {
            "visit_occurrence_id": "id", "person_id": "id", "visit_concept_id": "id", "visit_start_date": "time",
            "visit_start_datetime": "time", "visit_end_date": "time", "visit_end_datetime": "time",
        }  # fmt: skip
        required = ("visit_occurrence_id", "person_id", "visit_concept_id", "visit_start_date", "visit_end_date")
        rows = read_columns(self._reader, "visit_occurrence", kinds, required=required)
        start = _choose_time(rows["visit_start_datetime"], rows["visit_start_date"])
        end = _choose_end(rows["visit_end_datetime"], rows["visit_end_date"])
        return Visits(
            _to_names(rows["visit_occurrence_id"]),
            _to_names(rows["person_id"]),
            start,
            end,
            self._find_kinds(rows["visit_concept_id"]),
        )

    def periods(self) -> Periods:
        """Read the times under observation; without any, from each patient's first to last visit."""
        kinds: dict[str, Kind] = {
            "person_id": "id",
            "observation_period_start_date": "time",
            "observation_period_end_date": "time",
        }
        if self._reader.columns("observation_period"):
            rows = read_columns(self._reader, "observation_period", kinds, required=tuple(kinds))
            person, start, end = (rows[name] for name in kinds)
            dated = ~np.isnat(start) & ~np.isnat(end)
            if dated.any():
                return Periods(_to_names(person[dated]), start[dated], end_of_day(end[dated]))
        self._note(f"{self.name} has no observation periods: a patient is observed from the first to the last visit")
        return periods_of_visits(self.visits())

    def deaths(self) -> Deaths:
        """Read the deaths."""
        kinds: dict[str, Kind] = {"person_id": "id", "death_date": "time", "death_datetime": "time"}
        rows = read_columns(self._reader, "death", kinds, required=("person_id", "death_date"))
        return Deaths(_to_names(rows["person_id"]), _choose_end(rows["death_datetime"], rows["death_date"]))

    def records(self, domain: Domain, concepts: ConceptSet, values: Sequence[ConceptSet] = ()) -> Records:
        """Read the records of a domain that have one of these concepts, or a descendant of one.

        Args:
            domain: The domain.
            concepts: The codes.
            values: Coded values that `Records.word` names.

        Returns:
            The records.

        Raises:
            BadInput: A table or column is missing, or a cell cannot be read.
        """
        table = DOMAIN_TABLES[domain]
        (found, *named) = self.vocabulary.resolve([concepts, *values])
        stored = self._stored.get(domain)
        if stored is not None and _covers(stored, found):
            rows = stored.columns
            kept = _select(rows, table.concept, found)
            rows = {name: column[kept] for name, column in rows.items()}
        else:
            rows = self._read_domain(domain, found.ids, found.words)
        self._note_codes(concepts, found)
        for word, resolution in zip(values, named, strict=True):
            self._note_codes(word, resolution, f"{concepts.name}, value {word.name}")
        count = len(rows["person_id"])
        if not count:
            self._note_absence(domain, concepts, found)
        operators = rows.get("operator_concept_id", np.zeros(0))
        for operator, sign in _OPERATORS.items():
            limits = int((operators == operator).sum())
            if limits:
                self._note(f"{concepts.name}: {limits} values are limits ({sign}), read as the number itself")
        return Records(
            person=_to_names(rows["person_id"]),
            visit=_to_names(rows["visit_occurrence_id"]),
            time=_choose_time(rows[f"{table.date}_datetime"], rows[f"{table.date}_date"]),
            value=rows.get("value_as_number", np.full(count, np.nan)),
            unit=self._find_units(rows, count),
            word=_find_words(rows, values, named, count),
        )

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None

    def _note_codes(self, concepts: ConceptSet, found: Resolution, name: str = "") -> None:
        if found.unknown:
            codes = ", ".join(map(str, found.unknown))
            self._note(
                f"{name or concepts.name}: the vocabulary does not have {codes}, which match nothing of their own"
            )
        for code, count in found.spread:
            self._note(f"{name or concepts.name}: {code} maps to {count} standard concepts, each of which counts")

    def _note_absence(self, domain: Domain, concepts: ConceptSet, found: Resolution) -> None:
        """Note that a concept set has no records, and the domain in which they may be."""
        table = DOMAIN_TABLES[domain].table
        others = {c.domain for c in self.vocabulary.describe(found.ids[:_DESCRIBED]).values()}
        hint = "" if not others or domain.capitalize() in others else f"; its concepts are of domain {min(others)}"
        self._note(f"{concepts.name}: no record in table {table}{hint}")

    def _read_domain(self, domain: Domain, ids: Array, words: WordMatch) -> dict[str, Array]:
        """Read the rows of a domain that have one of the concepts, or one of the source values."""
        table = DOMAIN_TABLES[domain]
        kinds = table.columns | (_VALUES if domain in ("measurement", "observation") else {})
        concept = f"{table.concept}_concept_id"
        present = check_columns(self._reader, table.table, ("person_id", concept, f"{table.date}_date"))
        by_id = {c: ids for c in (concept, f"{table.concept}_source_concept_id") if c in present and len(ids)}
        by_word = {f"{table.concept}_source_value": words} if words else {}
        if by_word and next(iter(by_word)) not in present:
            check_columns(self._reader, table.table, tuple(by_word))
        match = Match(by_id, by_word)
        if not by_id and not by_word:
            match = Match({concept: np.array([NO_ID + 1])})
        return read_columns(self._reader, table.table, kinds, match=match)

    def _find_units(self, rows: dict[str, Array], count: int) -> Array:
        """Choose the UCUM code of each unit concept, else the unit as the source writes it."""
        if "unit_concept_id" not in rows:
            return np.full(count, None, dtype=object)
        ids = rows["unit_concept_id"]
        known = self.vocabulary.units(np.unique(ids[ids > 0]))
        units = rows["unit_source_value"].copy()
        for concept, code in known.items():
            units[ids == concept] = code
        return np.asarray(units)

    def _find_kinds(self, concepts: Array) -> Array:
        """Name the kind of each visit, by its concept or the nearest of its ancestors in the list."""
        kinds: dict[int, str] = {}
        roots = [root for _, ids in _KINDS_OF_VISIT for root in ids]
        below = self.vocabulary.descendants(roots)
        for kind, ids in _KINDS_OF_VISIT:
            for root in ids:
                for concept in below[root]:
                    kinds.setdefault(int(concept), kind)
        kinds |= {root: kind for kind, ids in _KINDS_OF_VISIT for root in ids}
        out = np.empty(len(concepts), dtype=object)
        out[:] = [kinds.get(c, "other") for c in concepts.tolist()]
        return out


def _read_version(reader: TableReader) -> str:
    """Read the version of the data model, "" where it is not recorded."""
    if "cdm_version" not in reader.columns("cdm_source"):
        return ""
    words = [w for w in read_columns(reader, "cdm_source", {"cdm_version": "word"})["cdm_version"] if w is not None]
    for word in words:
        match = re.search(r"(\d+)(?:\.\d+)*", word)
        if match is not None and match.group(1) != "5":
            raise BadInput(
                f"table cdm_source of {reader.name} says cdm_version '{word}'; OMOP CDM 5.3 and 5.4 are read",
                code="unknown-omop-version",
            )
    return str(words[0]) if words else ""


def _to_names(ids: Array) -> Array:
    """Write identifiers as text, None where there is none."""
    unique, inverse = np.unique(ids, return_inverse=True)
    names = np.empty(len(unique), dtype=object)
    names[:] = [None if i == NO_ID else str(i) for i in unique.tolist()]
    return np.asarray(names[inverse])


def _choose_time(moments: Array, days: Array) -> Array:
    return np.where(np.isnat(moments), days, moments)


def _choose_end(moments: Array, days: Array) -> Array:
    """Choose the time at which something ended; a date alone is its last second."""
    seconds = moments[~np.isnat(moments)].astype("datetime64[s]").astype(np.int64)
    if not (seconds % _DAY).any():
        days = np.where(np.isnat(days), moments, days)
        moments = np.full(len(moments), np.datetime64("NaT", "s"))
    return np.where(np.isnat(moments), end_of_day(days), moments)


def _find_sex(rows: dict[str, Array]) -> Array:
    """Name the sex by its concept, else by the word of the source."""
    out = np.empty(len(rows["person_id"]), dtype=object)
    for i, (concept, word) in enumerate(
        zip(rows["gender_concept_id"].tolist(), rows["gender_source_value"], strict=True)
    ):
        if concept in (_MALE, _FEMALE):
            out[i] = "male" if concept == _MALE else "female"
        elif concept > 0:
            out[i] = None if concept == _UNKNOWN_SEX else "other"
        else:
            out[i] = _SEX_WORDS.get((word or "").lower())
    return out


def _covers(stored: _Stored, found: Resolution) -> bool:
    return bool(
        np.isin(found.ids, stored.ids).all()
        and found.words.exact <= stored.words.exact
        and set(found.words.prefixes) <= set(stored.words.prefixes)
    )


def _select(rows: dict[str, Array], concept: str, found: Resolution) -> Array:
    """Select the rows of one concept set among those of several."""
    kept = np.isin(rows[f"{concept}_concept_id"], found.ids) | np.isin(rows[f"{concept}_source_concept_id"], found.ids)
    if found.words:
        kept |= np.fromiter(map(found.words.covers, rows[f"{concept}_source_value"]), bool, len(kept))
    return kept


def _find_words(rows: dict[str, Array], values: Sequence[ConceptSet], named: Sequence[Resolution], count: int) -> Array:
    """Name the coded value of each record: the first set that has it."""
    out = np.full(count, None, dtype=object)
    if not values or "value_as_concept_id" not in rows:
        return out
    coded = rows["value_as_concept_id"]
    for concepts, found in zip(reversed(values), reversed(named), strict=True):
        mine = np.isin(coded, found.ids)
        if found.words:
            for column in ("value_as_string", "value_source_value"):
                mine |= np.fromiter(map(found.words.covers, rows[column]), bool, count)
        out[mine] = concepts.name
    return out
