"""Table 1 of rows in one place: they are split by site, and sums alone are used."""

from __future__ import annotations

from dataclasses import replace

from grandrounds.data.table import Table
from grandrounds.statistics import ANSWERS
from grandrounds.statistics.question import fit_in_memory
from grandrounds.statistics.table_one import fit_table_one
from grandrounds.statistics.table_result import TableOne
from grandrounds.statistics.table_rows import TableRequest, choose_terms, read_rows, split_sites


def run_table_one(table: Table, request: TableRequest) -> TableOne:
    """Make a Table 1 from sums over sites.

    Args:
        table: Rows of all sites.
        request: Columns, groups and rules.

    Returns:
        The table.

    Raises:
        BadInput: The request does not match the table.
    """
    parts = split_sites(table, request.site)
    terms, left_out = choose_terms(table, request)
    sites = {name: read_rows(part, terms) for name, part in parts.items()}
    result = fit_in_memory(fit_table_one(terms), sites, ANSWERS)
    return replace(result, left_out={**left_out, **(result.left_out or {})})
