"""Tables of a cohort from the records of one hospital or of many.

Records of one hospital are a SQL URL, a folder or zip of OMOP tables, or a folder of FHIR resources. A folder that has one such
folder, zip or database file for each hospital gives one table, with the name of each in the column `site`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import PATIENT, VISIT_START, Cohort
from grandrounds.capabilities.sources.cohort.extract import CohortTable, extract_table
from grandrounds.capabilities.sources.cohort.plan_cohort import implied_settings, read_agreed
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.sources import AT_SITES, DATA_FRAME
from grandrounds.data.formats import Reading, align_steps
from grandrounds.data.table import Table

SITE = "site"
"""Column with the name of the hospital, where there are several."""

_DATABASES = {".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite", ".duckdb": "duckdb"}
_ONE_HOSPITAL = re.compile(r"(person|patient)[\w.-]*\.(csv|csv\.gz|tsv|parquet|ndjson|ndjson\.gz|jsonl)", re.IGNORECASE)


def is_records(where: str | Path, query: str | None = None) -> bool:
    """Tell whether a source has clinical records, and not one table: a SQL URL without SELECT, a folder, zip or database."""
    text = str(where)
    if "://" in text:
        return query is None or " " not in query.strip()
    path = Path(text).expanduser()
    return path.suffix.lower() in (".zip", *_DATABASES) or path.is_dir()


def has_records(where: str | Path, query: str | None = None) -> bool:
    """As `is_records`, but of a folder only where it has the tables of a hospital, or folders and zips of hospitals."""
    path = Path(str(where)).expanduser()
    if "://" in str(where) or not path.is_dir():
        return is_records(where, query)
    try:
        find_hospitals(path)
    except BadInput:
        return False
    return True


def find_hospitals(where: str | Path) -> dict[str, str]:
    """Find the hospitals in a folder.

    Args:
        where: A source of records, or a folder with one source for each hospital.

    Returns:
        The source of each hospital by name, sorted; empty where `where` is itself the records of one hospital.

    Raises:
        BadInput: The folder has no records in it, or two hospitals of the same name.
    """
    text = str(where)
    folder = Path(text).expanduser()
    if "://" in text or not folder.is_dir():
        return {}
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    if any(_ONE_HOSPITAL.fullmatch(p.name) for p in entries):
        return {}
    found: dict[str, str] = {}
    for path in entries:
        if not (path.is_dir() or path.suffix.lower() in (".zip", *_DATABASES)):
            continue
        name = path.name if path.is_dir() else path.stem
        if name in found:
            raise BadInput(
                f"{folder} has two hospitals called '{name}', {Path(found[name]).name} and {path.name}: rename one of them",
                code="repeated-site",
            )
        found[name] = str(path)
    if not found:
        raise BadInput(
            f"{folder} has no records of a hospital: give a folder with person.csv (OMOP) or Patient.ndjson (FHIR), or one such "
            "folder or zip for each hospital",
            code="no-records",
        )
    return found


def cohort_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """List the settings of [data] that follow from its cohort, and the column of the hospital where there are several."""
    settings = implied_settings(read_agreed(data["cohort"]), data)
    named = data["site"] is not None or data["table"] in (None, AT_SITES, DATA_FRAME)
    return settings if named or not find_hospitals(data["table"]) else settings | {"site": SITE}


def read_records(agreed: object, where: str | Path, *, query: str | None, pending: bool) -> Table | None:
    """Read the table of a plan's cohort; None where the source has no clinical records, but one table."""
    return read_cohort_table(read_agreed(agreed), where, schema=query, pending=pending) if is_records(where, query) else None


def read_site_records(
    cohort: Cohort, where: str | Path, *, query: str | None, vocabulary: str | Path | None, pending: bool
) -> Table | None:
    """Read the table of an agreed cohort at one hospital; None where the source has no clinical records, but one table."""
    if not is_records(where, query):
        return None
    return read_hospital_table(cohort, where, schema=query, vocabulary=vocabulary, pending=pending)


def read_cohort_table(
    cohort: Cohort, where: str | Path, *, schema: str | None = None, pending: bool = False
) -> Table:
    """Read the table of a cohort from a hospital's records, or from those of several hospitals.

    Args:
        cohort: The cohort.
        where: A source of records, or a folder with one source for each hospital.
        schema: The schema of the OMOP tables, for a SQL URL.
        pending: Also take visits whose outcome is not known yet.

    Returns:
        The table; its `reading` has the selection of each hospital and a sentence for each assumption.

    Raises:
        BadInput: Records cannot be read, or no visit of a hospital is in the cohort.
    """
    hospitals = find_hospitals(where)
    if not hospitals:
        return read_hospital_table(cohort, where, schema=schema, pending=pending)
    parts = {name: _extract(cohort, source, pending) for name, source in hospitals.items()}
    return _with_reading(cohort, _join(parts, str(where)), parts)


def read_hospital_table(
    cohort: Cohort,
    where: str | Path,
    *,
    schema: str | None = None,
    vocabulary: str | Path | None = None,
    pending: bool = False,
) -> Table:
    """Read the table of a cohort from the records of one hospital, at that hospital.

    Args:
        cohort: The cohort.
        where: The source of records.
        schema: The schema of the OMOP tables in a database.
        vocabulary: A folder or zip with CONCEPT.csv, for records without a vocabulary.
        pending: Also take visits whose outcome is not known yet.

    Returns:
        The table, as `read_cohort_table` gives it.

    Raises:
        BadInput: Records cannot be read, or no visit is in the cohort.
    """
    one = _extract(cohort, str(where), pending, schema=schema, vocabulary=vocabulary)
    return _with_reading(cohort, one.table, {"": one})


def _extract(
    cohort: Cohort, where: str, pending: bool, *, schema: str | None = None, vocabulary: str | Path | None = None
) -> CohortTable:
    from grandrounds.capabilities.sources.cohort.sources import open_source

    source = open_source(_as_url(where), query=schema, vocabulary=vocabulary)
    try:
        return extract_table(cohort, source, pending=pending)
    finally:
        source.close()


def _as_url(where: str) -> str:
    """Write the file of a database as a SQL URL."""
    kind = None if "://" in where else _DATABASES.get(Path(where).suffix.lower())
    return where if kind is None else f"{kind}:///{Path(where).expanduser().resolve()}"


def _join(parts: Mapping[str, CohortTable], source: str) -> Table:
    """Join the tables of all hospitals, with a column that names the hospital."""
    tables = [part.table for part in parts.values()]
    site = np.repeat(np.array(list(parts), dtype=object), [len(table) for table in tables])
    columns: dict[str, Array] = {SITE: site}
    for name in tables[0].names:
        columns[name] = _concatenate([table.columns[name] for table in tables])
    return Table(columns, source)


def _concatenate(columns: Sequence[Array]) -> Array:
    """Join the cells of all hospitals; a column without any word at a hospital has no other type there."""
    if len({values.dtype for values in columns}) == 1:
        return np.concatenate(columns)
    return np.concatenate([v if v.dtype == np.object_ else np.full(len(v), None, dtype=object) for v in columns])


def _describe_selection(cohort: Cohort, selection: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """Describe the selection over all hospitals in one line."""
    steps = ", ".join(f"{step} {sum(rows.values()):,}" for step, rows in align_steps(selection).items())
    place = "" if len(selection) == 1 else f" at {len(selection)} hospitals"
    return f"cohort '{cohort.name}'{place}: {steps}"


def _with_reading(cohort: Cohort, table: Table, parts: Mapping[str, CohortTable]) -> Table:
    selection = {site: part.steps for site, part in parts.items()}
    notes = [_describe_selection(cohort, selection)]
    owners: dict[str, list[str]] = {}
    for site, part in parts.items():
        for note in part.notes:
            owners.setdefault(note, []).append(site)
    for note, sites in owners.items():
        notes.append(note if len(sites) == len(parts) else f"{', '.join(sites)}: {note}")
    reading = Reading(tuple(notes), selection=selection, row_names=(PATIENT, VISIT_START))
    return Table(table.columns, table.source, reading=reading)
