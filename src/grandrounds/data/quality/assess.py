"""Assessment of a site's data before training: the checks of the agreed schema, and those of data quality."""

from __future__ import annotations

from grandrounds.data.agreement.check import (
    AUTOMATIC,
    check_table,
    count_copies,
    examine_data,
    put_errors_first,
    read_site_table,
)
from grandrounds.data.agreement.schema import AgreedSchema, DataSchema, ImageSchema
from grandrounds.data.formats import Format
from grandrounds.data.quality.report import QualityReport, count_repeated, describe_columns
from grandrounds.data.table import Table


def assess_table(table: Table, schema: DataSchema, *, expected_rows: int | None = None) -> QualityReport:
    """Describe a site's table, and list everything that differs from the agreed schema.

    Args:
        table: The site's table.
        schema: The agreed schema; quantiles and shares in it are the reference of what is normal.
        expected_rows: The number of rows that the site states its export has.

    Returns:
        The report; errors come first among its findings.
    """
    findings = check_table(table, schema)
    patients, repeated = count_repeated(table, schema)
    return QualityReport(
        source=table.source,
        rows=len(table),
        columns=describe_columns(table, schema),
        findings=tuple(put_errors_first(findings)),
        patients=patients,
        repeated=repeated,
        copies=count_copies(table, schema),
        assumptions=() if table.reading is None else table.reading.notes,
    )


def assess_data(
    agreed: AgreedSchema,
    data: str,
    *,
    query: str | None = None,
    form: Format = AUTOMATIC,
    expected_rows: int | None = None,
) -> QualityReport:
    """Read a site's data and assess them; only data that cannot be read at all are refused.

    Args:
        agreed: The agreed schema.
        data: A table, a SQL URL, or images.
        query: A SELECT or a table name, for a SQL URL.
        form: How a text file is written.
        expected_rows: The number of rows that the site states its export has.

    Raises:
        BadInput: The data cannot be read.
    """
    if isinstance(agreed, ImageSchema):
        images = examine_data(agreed, data, query=query, form=form)
        return QualityReport(data, images.rows, (), tuple(images.findings), assumptions=images.assumptions)
    return assess_table(read_site_table(data, query, agreed, form), agreed, expected_rows=expected_rows)
