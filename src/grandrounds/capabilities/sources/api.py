"""`gr.cohort_table`: the table of a cohort from a hospital's OMOP or FHIR records, and a draft of a cohort file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.capabilities.sources.cohort.counts import Coverage
    from grandrounds.capabilities.sources.cohort.definition import Cohort
    from grandrounds.capabilities.sources.cohort.draft import DraftLimits
    from grandrounds.capabilities.sources.cohort.extract import CohortTable
    from grandrounds.capabilities.sources.cohort.records import ConceptCount


def cohort_table(
    cohort: str | PathLike[str] | Mapping[str, object],
    records: str | PathLike[str],
    *,
    vocabulary: str | PathLike[str] | None = None,
) -> Any:
    """Extract the table of a cohort from a hospital's records, as a data frame.

    Args:
        cohort: The cohort file, or its content as a dict.
        records: An OMOP database (SQL URL), a folder or zip of OMOP tables, or a folder of FHIR .ndjson files.
        vocabulary: Folder of a vocabulary of your own, for records that have none.

    Returns:
        A pandas DataFrame with one row for each visit: patient, start of the visit, outcome, and features.

    Raises:
        BadInput: The cohort file or the records cannot be read, or no visit is in the cohort.
    """
    import pandas as pd

    table = check_cohort(cohort, records, vocabulary=vocabulary)[0].table
    return pd.DataFrame({name: values.copy() for name, values in table.columns.items()})


def check_cohort(
    cohort: str | PathLike[str] | Mapping[str, object],
    records: str | PathLike[str],
    *,
    vocabulary: str | PathLike[str] | None = None,
) -> tuple[CohortTable, list[Coverage]]:
    """Extract a cohort, and measure how many records the hospital has of each concept set; as `cohort_table`."""
    from grandrounds.capabilities.sources.cohort.counts import measure_coverage
    from grandrounds.capabilities.sources.cohort.extract import extract_table
    from grandrounds.capabilities.sources.cohort.sources import open_source

    definition = _read(cohort)
    source = open_source(str(records), vocabulary=None if vocabulary is None else Path(vocabulary))
    try:
        return extract_table(definition, source), measure_coverage(definition, source)
    finally:
        source.close()


def draft_cohort_file(
    records: str | PathLike[str],
    *,
    limits: DraftLimits | None = None,
    name: str = "cohort",
    vocabulary: str | PathLike[str] | None = None,
) -> tuple[str, list[ConceptCount]]:
    """Write a cohort file from the concepts that an OMOP database has most often.

    Args:
        records: An OMOP database (SQL URL), or a folder or zip of OMOP tables.
        limits: The number of features, and the fewest patients of a concept.
        name: The name of the cohort.
        vocabulary: Folder of a vocabulary of your own, for records that have none.

    Returns:
        The text of the file, and the concepts of the hospital with their counts.

    Raises:
        BadInput: The records cannot be read, or no concept has enough patients.
    """
    from grandrounds.capabilities.sources.cohort.counts import count_concepts
    from grandrounds.capabilities.sources.cohort.draft import DraftLimits, draft_cohort
    from grandrounds.capabilities.sources.cohort.sources import open_source

    source = open_source(str(records), vocabulary=None if vocabulary is None else Path(vocabulary))
    try:
        counts = list(count_concepts(source))
        return draft_cohort(source, counts, limits=limits or DraftLimits(), name=name), counts
    finally:
        source.close()


def _read(cohort: str | PathLike[str] | Mapping[str, object]) -> Cohort:
    from grandrounds.capabilities.sources.cohort.cohort_file import parse_cohort, read_cohort

    return parse_cohort(cohort, where="cohort") if isinstance(cohort, Mapping) else read_cohort(Path(cohort))
