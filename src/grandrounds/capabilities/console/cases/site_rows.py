"""The rows of one hospital: those of a run's own data, or those of a file of the hospital's.

Either way nobody else's row can be reached: a row number is looked up among those of the site, and is not there otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.methods.baselines import POOL
from grandrounds.runs.run_rows import (
    CaseRow,
    ComparisonRows,
    NewPatientRows,
    RunRows,
    column_text,
    comparison_rows,
    find_new_case,
    read_patients,
    row_sites,
    row_source,
)
from grandrounds.site.stack import PARTS

if TYPE_CHECKING:
    from grandrounds.data.schema import Schema
    from grandrounds.runs.run import Run


class SiteRows(Protocol):
    """The rows of one site. `parts`: the data split of each row, by row number from 1; None for a new patient."""

    @property
    def parts(self) -> Mapping[int, str | None]: ...

    def find(self, case: int) -> CaseRow:
        """Find one of `parts`."""

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        """Take several of them, with their outcomes where they are known."""

    def names(self, cases: list[int]) -> list[str | None]:
        """List the hospital's names of these patients, where its data have them."""

    def comparison(self, case: int | None = None) -> ComparisonRows:
        """Return the rows that one of them is compared with."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a site in the run's own data: test rows first, then validation, then training."""

    rows: RunRows
    site: str

    @cached_property
    def _index(self) -> dict[int, tuple[int, str]]:
        """The place in the data and the part of each row, by row number."""
        stack, pooled = self.rows.consortium.stack, self._pooled()
        out: dict[int, tuple[int, str]] = {}
        for part in reversed(PARTS):
            site_rows = getattr(stack.rows[stack.names.index(self.site)], part)
            for row in [*site_rows.tolist(), *(pooled if part == "train" else [])]:
                out[self.rows.number(int(row))] = (int(row), part)
        return out

    @cached_property
    def parts(self) -> dict[int, str | None]:
        return {number: part for number, (_, part) in self._index.items()}

    def find(self, case: int) -> CaseRow:
        return self.rows.find(case)

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        data, places = self.rows.consortium.data, self._places(cases)
        taken = data.take(places) if isinstance(data, ImageSet) else data.table.take(places)
        return taken, [str(word) for word in data.label[places].tolist()]

    def names(self, cases: list[int]) -> list[str | None]:
        patient = self.rows.consortium.data.patient
        return [None] * len(cases) if patient is None else [str(p) for p in patient[self._places(cases)].tolist()]

    def comparison(self, case: int | None = None) -> ComparisonRows:
        return self.rows

    def _places(self, cases: list[int]) -> Array:
        return np.array([self._index[case][0] for case in cases], np.int64)

    def _pooled(self) -> list[int]:
        """List this site's training rows in a run that pooled all of them, where the data name their sites."""
        stack, site = self.rows.consortium.stack, self.rows.consortium.data.site
        if POOL not in stack.names or site is None:
            return []
        pooled = stack.rows[stack.names.index(POOL)].train
        return [int(row) for row in pooled[site[pooled].astype(str) == self.site]]


@dataclass(frozen=True, eq=False)
class FileRows:
    """New patients of a site: the rows of a file, and of a file that names sites those of this one."""

    run: Run
    rows: Table | ImageSet
    site: str

    @classmethod
    def read(cls, run: Run, data: str, site: str, *, query: str | None) -> FileRows:
        """Read a file's rows, and check that they fit the run's model.

        Args:
            run: The run.
            data: The file or SQL URL.
            site: The site whose rows are kept, where the file names sites.
            query: The SELECT or table name, for a SQL URL.

        Returns:
            The rows.

        Raises:
            BadInput: They do not fit, or none is of the site.
        """
        rows = read_patients(run, data, query=query)
        name = row_source(rows)
        if not len(rows):
            raise BadInput(f"{name} has no rows", code="empty-table")
        find_new_case(run, rows, 1)  # images for a network, a table for other models
        if isinstance(rows, Table):
            assert run.model.schema is not None
            read_new_rows(rows, run.model.schema)
        else:
            run.model.predict(rows.take([0]))
        site_rows = cls(run, rows, site)
        if not site_rows.parts:
            raise BadInput(
                f"{name} has no row of {site}; {nearest(site, sorted({s for s in row_sites(run, rows) or () if s is not None}))}",
                code="unknown-site",
            )
        return site_rows

    @cached_property
    def parts(self) -> dict[int, str | None]:
        sites = row_sites(self.run, self.rows)
        return {k + 1: None for k in range(len(self.rows)) if sites is None or sites[k] == self.site}

    def find(self, case: int) -> CaseRow:
        took_part = self.site in self.run.summary.per_site
        return replace(find_new_case(self.run, self.rows, case), site=self.site if took_part else None)

    def take_cases(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        taken = self.rows.take(np.array(cases, np.int64) - 1)
        if isinstance(taken, ImageSet):
            return taken, [str(word) or None for word in taken.label.tolist()]
        return taken, column_text(taken, self._schema.label)

    def names(self, cases: list[int]) -> list[str | None]:
        if isinstance(self.rows, ImageSet):
            patient = self.rows.patient
            return [None if patient is None else str(patient[case - 1]) for case in cases]
        return column_text(self.rows.take(np.array(cases, np.int64) - 1), self._schema.patient)

    def comparison(self, case: int | None = None) -> ComparisonRows:
        compared = self._comparison
        return replace(compared, case=case) if isinstance(compared, NewPatientRows) else compared

    @cached_property
    def _comparison(self) -> RunRows | NewPatientRows:
        return comparison_rows(self.run, self.rows, None)

    @property
    def _schema(self) -> Schema:
        schema = self.run.model.schema
        assert schema is not None  # a table has one
        return schema
