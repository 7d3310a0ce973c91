"""Assessment of a site's data before training: the checks of the agreed schema, and those of data quality.

One fault often shows in several checks: exchanged columns also look like other units, and text in two encodings like new
words. The finding that explains the others stays, and those it explains are left out (`EXPLAINS`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path

from grandrounds.capabilities.quality.assessment.categories import RECODED, check_categories
from grandrounds.capabilities.quality.assessment.dates import IMPOSSIBLE, SHIFTED, check_dates
from grandrounds.capabilities.quality.assessment.files import (
    ENCODING,
    TRUNCATED,
    FileFacts,
    check_rows,
    check_text,
    inspect_file,
)
from grandrounds.capabilities.quality.assessment.leaks import LEAK, PREVALENCE, check_leaks, check_prevalence
from grandrounds.capabilities.quality.assessment.missing import STOPS, check_stops
from grandrounds.capabilities.quality.assessment.patients import (
    SAME_PATIENT,
    check_fixed,
    check_returning,
    check_same_patients,
)
from grandrounds.capabilities.quality.assessment.report import QualityReport, count_repeated, describe_columns
from grandrounds.capabilities.quality.assessment.swaps import MISALIGNED, SWAPPED, check_exchanged
from grandrounds.capabilities.quality.assessment.units import check_units
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.check import (
    ALL_MISSING,
    AUTOMATIC,
    LABEL_VALUES,
    MOSTLY_MISSING,
    NOT_A_NUMBER,
    OUT_OF_RANGE,
    REPEATED_PATIENTS,
    REPEATED_ROWS,
    UNITS,
    UNKNOWN_VALUE,
    UNREADABLE,
    Finding,
    check_table,
    count_copies,
    examine_data,
    has_no_errors,
    put_errors_first,
    read_site_table,
)
from grandrounds.data.agreement.schema import AgreedSchema, DataSchema, ImageSchema
from grandrounds.data.formats import Format
from grandrounds.data.table import Table

FAULTS = {
    "wrong unit": (UNITS,),
    "swapped columns": (SWAPPED,),
    "shifted dates": (SHIFTED, IMPOSSIBLE),
    "duplicated patients": (REPEATED_ROWS, REPEATED_PATIENTS, SAME_PATIENT),
    "recoded category": (RECODED,),
    "truncated file": (TRUNCATED,),
    "mixed encodings": (ENCODING,),
    "label leak": (LEAK,),
}
"""Kinds of faults, and the codes that name them."""

EXPLAINS = {
    SWAPPED: (UNITS, OUT_OF_RANGE, UNKNOWN_VALUE, NOT_A_NUMBER, RECODED, MISALIGNED, MOSTLY_MISSING, ALL_MISSING, LEAK),
    ENCODING: (UNKNOWN_VALUE, RECODED, LABEL_VALUES, SWAPPED),
    UNITS: (OUT_OF_RANGE, MISALIGNED),
    RECODED: (UNKNOWN_VALUE, MISALIGNED),
    LEAK: (MISALIGNED, STOPS),
}
"""Code of a finding, and codes of the same column that it explains."""

_UNREADABLE = ("ragged-row", "malformed-csv", "undecodable-text", "not-text")
_INCOMPLETE = "damaged-file"


def assess_table(
    table: Table,
    schema: DataSchema,
    *,
    expected_rows: int | None = None,
    facts: FileFacts | None = None,
    today: datetime.date | None = None,
) -> QualityReport:
    """Describe a site's table, and list everything that differs from the agreed schema.

    Args:
        table: The site's table.
        schema: The agreed schema; quantiles and shares in it are the reference of what is normal.
        expected_rows: The number of rows that the site states its export has.
        facts: Evidence in the bytes of the file that the table was read from.
        today: The last possible day (default: now).

    Returns:
        The report; errors come first among its findings.
    """
    findings = [
        *(facts.findings if facts else ()),
        *check_table(table, schema),
        *check_rows(table, schema, expected_rows),
        *check_text(table, schema),
        *check_units(table, schema),
        *check_exchanged(table, schema),
        *check_categories(table, schema),
        *check_dates(table, schema, today=today),
        *check_returning(table, schema),
        *check_fixed(table, schema),
        *check_same_patients(table, schema),
        *check_leaks(table, schema),
        *check_prevalence(table, schema),
        *check_stops(table, schema),
    ]
    patients, repeated = count_repeated(table, schema)
    return QualityReport(
        source=table.source,
        rows=len(table),
        columns=describe_columns(table, schema),
        findings=tuple(put_errors_first(list(_leave_out_explained(findings)))),
        patients=patients,
        repeated=repeated,
        copies=count_copies(table, schema),
        assumptions=() if table.reading is None else table.reading.notes,
    )


def _leave_out_explained(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out findings that another one of the same column explains, and the second of the same code and column."""
    findings = list(findings)
    explained = {(f.column, code) for f in findings for code in EXPLAINS.get(f.code, ())}
    causes = {f.code for f in findings} & {SWAPPED, ENCODING}
    seen: set[tuple[str, str]] = set()
    for f in findings:
        key = (f.column, f.code)
        repeats = f.code in (ENCODING, TRUNCATED, UNITS, RECODED, REPEATED_PATIENTS) and key in seen
        followed = f.code == UNREADABLE and bool(causes)
        if key not in explained and not repeats and not followed:
            seen.add(key)
            yield f


def assess_data(
    agreed: AgreedSchema,
    data: str,
    *,
    query: str | None = None,
    form: Format = AUTOMATIC,
    expected_rows: int | None = None,
    vocabulary: Path | None = None,
) -> QualityReport:
    """Read a site's data and assess them; only data that cannot be read at all are refused.

    Args:
        agreed: The agreed schema.
        data: A table, a SQL URL, or images; with an agreed cohort clinical records.
        query: A SELECT or a table name, for a SQL URL.
        form: How a text file is written.
        expected_rows: The number of rows that the site states its export has.
        vocabulary: Of clinical records: a folder or zip with CONCEPT.csv.

    Returns:
        The report. A file that cannot be read because it is cut or has two encodings has a report with no rows.

    Raises:
        BadInput: The data cannot be read.
    """
    return read_and_assess(agreed, data, query=query, form=form, expected_rows=expected_rows, vocabulary=vocabulary)[0]


def read_and_assess(
    agreed: AgreedSchema,
    data: str,
    *,
    query: str | None = None,
    form: Format = AUTOMATIC,
    expected_rows: int | None = None,
    vocabulary: Path | None = None,
) -> tuple[QualityReport, Table | None]:
    """Read a site's data once, and assess them as `assess_data` does.

    Args:
        agreed: The agreed schema.
        data: A table, a SQL URL, or images.
        query: A SELECT or a table name, for a SQL URL.
        form: How a text file is written.
        expected_rows: The number of rows that the site states its export has.
        vocabulary: Of clinical records: a folder or zip with CONCEPT.csv.

    Returns:
        The report, and the table; None for images and for a file that cannot be read.

    Raises:
        BadInput: The data cannot be read.
    """
    if isinstance(agreed, ImageSchema):
        images = examine_data(agreed, data, query=query, form=form)
        return QualityReport(data, images.rows, (), tuple(images.findings), assumptions=images.assumptions), None
    facts = inspect_file(data, (*agreed.names, *agreed.date_names))
    try:
        table = read_site_table(data, query, agreed, form, vocabulary=vocabulary)
    except BadInput as e:
        if has_no_errors(facts.findings) or e.code not in (*_UNREADABLE, _INCOMPLETE):
            raise
        return QualityReport(data, 0, (), facts.findings), None
    return assess_table(table, agreed, expected_rows=expected_rows, facts=facts), table


__all__ = ["FAULTS", "IMPOSSIBLE", "PREVALENCE", "QualityReport", "assess_data", "assess_table", "read_and_assess"]
