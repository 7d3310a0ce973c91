"""Rows of Table 1 from a table: which columns are numbers, categories and groups, and each site's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.statistics.question import Rows
from grandrounds.capabilities.statistics.small_cells import LEAST
from grandrounds.capabilities.statistics.table_terms import (
    MOST_GROUPS,
    MOST_LEVELS,
    CategoricalColumn,
    NumericColumn,
    TableTerms,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.schema import Column, infer_column
from grandrounds.data.table import Table, format_number, missing_mask, to_text

FEWEST_SITES = 3


@dataclass(frozen=True)
class TableRequest:
    """A Table 1 as a person asks for it.

    Attributes:
        site: Column that names the hospital of each row.
        group: Column whose values are the groups; "" without groups.
        columns: Columns of the table, in order; () for all.
        nonnormal: Columns with median and quartiles.
        categorical: Columns of numbers whose values are categories.
        tests: Test for differences between groups.
        least: Fewest patients of a count or a mean that is shown.
    """

    site: str
    group: str = ""
    columns: tuple[str, ...] = ()
    nonnormal: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    tests: bool = True
    least: int = LEAST


def choose_terms(table: Table, request: TableRequest) -> tuple[TableTerms, dict[str, str]]:
    """Choose the terms of a Table 1 from a table.

    Numbers 0 and 1 are categories. Dates, identifiers and free text are left out.

    Args:
        table: Rows of all sites.
        request: The request.

    Returns:
        The terms; columns that are left out, with the reason.

    Raises:
        BadInput: A column is not there, is named twice, or has no number where one is needed; groups are too many or too few.
    """
    names = _choose_columns(table, request)
    groups = _list_groups(table, request)
    numeric, categorical, left_out = [], [], dict[str, str]()
    for name in names:
        values = table.columns[name]
        if reason := _reject(values, infer_column(table, name), name, request):
            if name in request.nonnormal:
                raise BadInput(
                    f"column '{name}' of {table.source} has no median: {reason}; leave it out of the list (use --nonnormal)",
                    code="wrong-kind",
                )
            left_out[name] = reason
        elif _is_category(values, name, request):
            categorical.append(CategoricalColumn(name, list_levels(values)))
        else:
            numeric.append(NumericColumn(name, nonnormal=name in request.nonnormal))
    kept = {*(c.name for c in numeric), *(c.name for c in categorical)}
    if not kept:
        shown = "; ".join(f"'{name}': {reason}" for name, reason in list(left_out.items())[:8])
        raise BadInput(
            f"no column of {table.source} is left for Table 1 ({shown}); choose other columns (use --columns)",
            code="no-columns",
        )
    terms = TableTerms(
        tuple(numeric),
        tuple(categorical),
        request.group,
        groups,
        tuple(n for n in names if n in kept),
        request.least,
        request.tests,
    )
    return terms, left_out


def read_rows(table: Table, terms: TableTerms) -> Rows:
    """Read the rows of one site as Table 1 asks for them.

    Args:
        table: The site's rows.
        terms: The terms.

    Returns:
        Rows with numbers, codes of levels and groups. A level or group that is not agreed is missing.

    Raises:
        BadInput: A column is not there or holds text in place of numbers.
    """
    n = len(table)
    numeric = np.empty((n, len(terms.numeric)))
    for j, number in enumerate(terms.numeric):
        values = table.column(number.name)
        if values.dtype != np.float64:
            if not missing_mask(values).all():
                raise BadInput(
                    f"column '{number.name}' of {table.source} holds text; Table 1 reads numbers", code="wrong-kind"
                )
            values = np.full(n, np.nan)
        numeric[:, j] = values
    codes = np.empty((n, len(terms.categorical)), int)
    for j, category in enumerate(terms.categorical):
        codes[:, j] = _find_codes(table.column(category.name), category.levels)
    group = _find_codes(table.column(terms.group), terms.groups) if terms.groups else None
    return Rows(np.empty((n, 0)), np.zeros(n), group=group, numeric=numeric, codes=codes)


def split_sites(table: Table, site: str) -> dict[str, Table]:
    """Return the rows of each site, in order of first appearance.

    Raises:
        BadInput: The column is not there or has gaps, or fewer than three sites are in it.
    """
    names = to_text(table.column(site, flag="--site"))
    gaps = missing_mask(names)
    if gaps.any():
        raise BadInput(
            f"site column '{site}' of {table.source} has {int(gaps.sum())} rows without a value, first "
            f"{table.where(int(np.flatnonzero(gaps)[0]))}; fill them in",
            code="missing-sites",
        )
    sites = list(dict.fromkeys(names.tolist()))
    if len(sites) < FEWEST_SITES:
        raise BadInput(
            f"column '{site}' of {table.source} names {len(sites)} {'site' if len(sites) == 1 else 'sites'}; sums over fewer "
            f"than {FEWEST_SITES} sites tell each site the others' (choose another column with --site)",
            code="too-few-sites",
        )
    return {name: table.take(names == name) for name in sites}


def list_levels(values: Array) -> tuple[str, ...]:
    """List the levels of a column: numbers in order, texts by the alphabet."""
    if values.dtype == np.float64:
        return tuple(format_number(float(v)) for v in np.unique(values[~np.isnan(values)]))
    return tuple(sorted({v for v in values if v is not None}))


def _choose_columns(table: Table, request: TableRequest) -> list[str]:
    """Return the columns of the table, in order, checked."""
    roles = {"--site": request.site, **({"--group": request.group} if request.group else {})}
    for flag, name in roles.items():
        table.column(name, flag=flag)
    if request.site == request.group:
        raise BadInput(
            f"column '{request.site}' is both the site and the group; choose another column for one of them (use --group)",
            code="conflicting-roles",
        )
    for flag, listed in (
        ("--columns", request.columns),
        ("--nonnormal", request.nonnormal),
        ("--categorical", request.categorical),
    ):
        for name in listed:
            table.column(name, flag=flag)
    names = list(dict.fromkeys(request.columns)) or [n for n in table.names if n not in roles.values()]
    if clash := next((n for n in names if n in roles.values()), None):
        raise BadInput(
            f"column '{clash}' is the site or the group; leave it out of --columns", code="conflicting-roles"
        )
    names += [n for n in (*request.nonnormal, *request.categorical) if n not in names and n not in roles.values()]
    if both := set(request.nonnormal) & set(request.categorical):
        raise BadInput(
            f"column '{min(both)}' is listed with --nonnormal and --categorical; list it once", code="conflicting-roles"
        )
    return list(dict.fromkeys(names))


def _list_groups(table: Table, request: TableRequest) -> tuple[str, ...]:
    if not request.group:
        return ()
    groups = list_levels(table.columns[request.group])
    if len(groups) > MOST_GROUPS:
        raise BadInput(
            f"column '{request.group}' of {table.source} has {len(groups)} values, and Table 1 shows at most {MOST_GROUPS} "
            "groups; choose another column or merge values (use --group)",
            code="too-many-groups",
        )
    if len(groups) < 2:
        raise BadInput(
            f"column '{request.group}' of {table.source} has {'one value' if groups else 'no value'}; groups need two (use "
            "--group)",
            code="too-few-groups",
        )
    return groups


def _reject(values: Array, kind: Column, name: str, request: TableRequest) -> str:
    """Return the reason why a column is left out; "" if it is shown."""
    if missing_mask(values).all():
        return "no value in any row"
    if _is_category(values, name, request):
        if kind.kind in ("drop", "id") and name not in request.categorical:
            return "dates" if kind.kind == "drop" else kind.why
        levels = len(list_levels(values))
        if name in request.nonnormal:
            return "it holds categories"
        return f"{levels} levels; Table 1 shows at most {MOST_LEVELS}" if levels > MOST_LEVELS else ""
    return kind.why if kind.kind == "id" else ""


def _is_category(values: Array, name: str, request: TableRequest) -> bool:
    if values.dtype != np.float64 or name in request.categorical:
        return True
    present = values[~np.isnan(values)]
    return name not in request.nonnormal and bool(np.isin(present, (0, 1)).all())


def _find_codes(values: Array, levels: Sequence[str]) -> Array:
    """Return the place of each value among levels; -1 where it is missing or not among them."""
    places = {level: k for k, level in enumerate(levels)}
    return np.array([places.get(v, -1) for v in to_text(values)], int)
