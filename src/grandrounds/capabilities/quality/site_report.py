"""Report of `rounds site check` for the hospital's staff: the page, and the comparison with the consortium's totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

PAGE = "data-check.html"
"""Page of the last check, in the folder of the site's state."""

if TYPE_CHECKING:
    from grandrounds.capabilities.quality.assessment.report import QualityReport
    from grandrounds.data.agreement.schema import AgreedSchema
    from grandrounds.data.table import Table


def write_page(file: Path, page: str) -> None:
    """Write a page.

    Args:
        file: The HTML file; a folder that is not there is made.
        page: Its content.

    Raises:
        BadInput: It cannot be written.
    """
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, page.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {file}: {e.strerror or e}; choose another place", code="cannot-write") from None


def write_check(
    file: Path, report: QualityReport, schema: AgreedSchema, rows: Table | None, differences: list[dict[str, Any]]
) -> None:
    """Write the page of a data check, readable by its owner only: it may contain values of patients.

    Args:
        file: The HTML file.
        report: The quality report of the site's data.
        schema: The agreed schema.
        rows: The site's table; None for images.
        differences: Differences from the consortium's totals.

    Raises:
        BadInput: It cannot be written.
    """
    from grandrounds.capabilities.quality.site_check import check_page

    write_page(file, check_page(report, schema, rows, differences=differences))
    file.chmod(0o600)


def compare_at_home(totals: Path, schema: AgreedSchema, rows: Table | None) -> list[dict[str, Any]]:
    """Compare a site's table with the totals of a consortium: nothing is sent.

    Args:
        totals: JSON of `rounds quality RUN --json`, or a summary.json.
        schema: The agreed schema.
        rows: The site's table.

    Returns:
        Differences of this site from the others, as plain values.

    Raises:
        BadInput: The file cannot be read, or the data are images.
    """
    from grandrounds.capabilities.quality.method.result import compare_with_totals
    from grandrounds.core.errors import BadInput
    from grandrounds.data.agreement.bins import AgreedBins
    from grandrounds.data.agreement.counts import Roles, count_rows
    from grandrounds.data.agreement.schema import DataSchema

    if rows is None or not isinstance(schema, DataSchema):
        raise BadInput("images have no counts in agreed bins: leave out --totals", code="needs-table")
    try:
        plain = json.loads(totals.read_text("utf-8"))
        result = plain.get("quality", plain)
        bins = AgreedBins.from_dict(result["bins"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(
            f"{totals} has no totals of a consortium: give the file that `rounds quality RUN --json` wrote",
            code="unreadable-file",
        ) from None
    own = count_rows(bins, rows, Roles(schema.label, schema.time, schema.patient))
    return [f.to_dict() for f in compare_with_totals(result, own.rows)]
