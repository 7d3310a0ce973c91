"""Opening of a hospital's records: an OMOP database, a folder or zip of OMOP tables, or a FHIR export."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from grandrounds.capabilities.sources.cohort.omop import OmopSource
from grandrounds.capabilities.sources.cohort.omop_files import FileTables, has_person
from grandrounds.capabilities.sources.cohort.records import ClinicalSource
from grandrounds.capabilities.sources.cohort.vocabulary import Vocabulary, open_vocabulary
from grandrounds.core.errors import BadInput

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://")
_SHOWN = 8  # names that a message lists


def open_source(where: str | Path, *, query: str | None = None, vocabulary: str | Path | None = None) -> ClinicalSource:
    """Open the records of a hospital.

    Args:
        where: A database URL (`postgresql://host/name`, `sqlite:///omop.db`, `duckdb:///omop.duckdb`) with the tables of OMOP
            CDM 5.3 or 5.4; a folder or zip of such tables as CSV or Parquet; or a folder or zip of FHIR R4 ndjson files.
        query: The schema of the tables in a database, such as "cdm"; also `?schema=cdm` in the URL.
        vocabulary: A folder or zip with CONCEPT.csv as downloaded from Athena, for records that come without a vocabulary.

    Returns:
        The records; call `close` on them at the end.

    Raises:
        BadInput: It is none of these; the sentence lists what is there.
    """
    concepts = None if vocabulary is None else open_vocabulary(vocabulary)
    if isinstance(where, str) and _URL.match(where):
        from grandrounds.capabilities.sources.cohort.omop_sql import SqlTables

        return OmopSource(SqlTables(where, schema=query), concepts)
    if query is not None:
        raise BadInput(
            f"a schema ('{query}') is set but {where} is no database; leave it out or give a database URL",
            code="conflicting-settings",
        )
    path = Path(where).expanduser()
    if not path.exists():
        raise BadInput(f"{where} not found; give a folder, a zip or a database URL", code="file-not-found")
    if has_person(path):
        return OmopSource(FileTables(path), concepts)
    return _open_fhir(path, concepts)


def _open_fhir(path: Path, vocabulary: Vocabulary | None) -> ClinicalSource:
    from grandrounds.capabilities.sources.cohort.fhir import FhirSource
    from grandrounds.capabilities.sources.cohort.fhir_files import is_export

    if is_export(path):
        return FhirSource(path, vocabulary)
    raise BadInput(
        f"{path} is no folder or zip of OMOP tables (person.csv or person.parquet) nor of FHIR ndjson; {_list_content(path)}",
        code="unknown-clinical-source",
    )


def _list_content(path: Path) -> str:
    """List the files of a folder or zip, for messages."""
    try:
        if path.is_dir():
            names = sorted(p.name for p in path.iterdir())
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = sorted(archive.namelist())
        else:
            return "it is a single file: give its folder"
    except OSError as error:
        return f"it cannot be listed: {error.strerror or error}"
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"it has: {', '.join(names[:_SHOWN])}{more}" if names else "it is empty"
