"""Counts of the concepts that a hospital recorded, and its coverage of a cohort's codes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from grandrounds.capabilities.sources.cohort.definition import VOCABULARIES, Cohort, Domain
from grandrounds.capabilities.sources.cohort.omop import DOMAIN_TABLES, OmopSource
from grandrounds.capabilities.sources.cohort.omop_tables import TableCounts, check_columns
from grandrounds.capabilities.sources.cohort.records import ClinicalSource, ConceptCount, PreparedSource
from grandrounds.capabilities.sources.cohort.vocabulary import Concept
from grandrounds.core.errors import BadInput

_UNITS = ("unit_concept_id", "unit_source_value")
_BRANCHES = {"RxNorm Extension": "RxNorm", "ICD9Proc": "ICD9CM", "ICD10PCS": "ICD10CM"}


@runtime_checkable
class CountingSource(Protocol):
    """A source that counts its own concepts."""

    def count_concepts(self) -> list[ConceptCount]:
        """Count the records of each concept."""


def count_concepts(source: ClinicalSource) -> list[ConceptCount]:
    """Count the patients and records of each concept.

    Args:
        source: The hospital's records.

    Returns:
        The concepts of each domain, those of most patients first; records without a concept are not counted.

    Raises:
        BadInput: The source cannot count, or a table cannot be read.
    """
    if isinstance(source, OmopSource):
        return _count_omop(source)
    if isinstance(source, CountingSource):
        return source.count_concepts()
    raise BadInput(f"concepts of {source.name} cannot be counted; give OMOP tables", code="no-concept-counts")


@dataclass(frozen=True)
class Coverage:
    """Coverage of one concept set at a hospital, for the hospital alone.

    Attributes:
        name: The feature, outcome or rule that reads the set.
        domain: Its domain.
        codes: Number of codes in the set.
        unknown: Codes that the hospital's vocabulary does not have.
        records: Records of the set.
        patients: Patients who have one.
    """

    name: str
    domain: Domain
    codes: int
    unknown: tuple[str, ...]
    records: int
    patients: int


def measure_coverage(cohort: Cohort, source: ClinicalSource) -> list[Coverage]:
    """Measure how many codes of a cohort a hospital knows, and how many records it has of them.

    Args:
        cohort: The cohort.
        source: The hospital's records.

    Returns:
        The coverage of each concept set, in the order of the cohort file.

    Raises:
        BadInput: A table or file cannot be read.
    """
    if isinstance(source, PreparedSource):
        source.prepare(cohort)
    measured = []
    for domain, concepts in cohort.domain_sets():
        records = source.records(domain, concepts)
        found = source.vocabulary.resolve([concepts])[0].unknown if isinstance(source, OmopSource) else ()
        people = {p for p in records.person if p is not None}
        measured.append(
            Coverage(concepts.name, domain, len(concepts.codes), tuple(map(str, found)), len(records), len(people))
        )
    return measured


def _count_omop(source: OmopSource) -> list[ConceptCount]:
    """Count by domain; a table that is missing has no concepts."""
    counted: list[ConceptCount] = []
    for domain, table in DOMAIN_TABLES.items():
        if not source.reader.columns(table.table):
            continue
        concept = f"{table.concept}_concept_id"
        present = check_columns(source.reader, table.table, ("person_id", concept))
        number = "value_as_number" if "value_as_number" in present else None
        units = [c for c in _UNITS if c in present] if number else []
        counts = source.reader.count(table.table, concept, number=number, units=units)
        concepts = source.vocabulary.describe(counts.patients)
        unit_codes = source.vocabulary.units({u for groups in counts.units.values() for u, _ in groups})
        found = [
            ConceptCount(
                domain=domain,
                code=_write_code(concept_id, concepts.get(concept_id)),
                name=concepts[concept_id].name if concept_id in concepts else "",
                patients=counts.patients[concept_id],
                records=records,
                numbers=counts.numbers[concept_id],
                unit=_choose_unit(counts, concept_id, unit_codes),
            )
            for concept_id, records in counts.records.items()
            if concept_id > 0
        ]
        counted += sorted(found, key=lambda c: (-c.patients, -c.records, c.code))
    return counted


def _write_code(concept_id: int, concept: Concept | None) -> str:
    """Write a concept as a cohort file names it."""
    if concept is None:
        return f"OMOP:{concept_id}"
    vocabulary = _BRANCHES.get(concept.vocabulary, concept.vocabulary)
    return f"{vocabulary}:{concept.code}" if vocabulary in VOCABULARIES else f"OMOP:{concept_id}"


def _choose_unit(counts: TableCounts, concept_id: int, codes: dict[int, str]) -> str:
    """Choose the commonest unit of a concept, "" where most values have none."""
    units: Counter[str] = Counter()
    for (unit, word), values in counts.units.get(concept_id, {}).items():
        units[codes.get(unit, word or "")] += values
    best = max(units.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return best[0] if best[1] else ""
