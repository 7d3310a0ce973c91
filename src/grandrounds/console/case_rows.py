"""Where a hospital's patients come from: the run's own rows of that site, or a file of the hospital's.

Either way nobody else's row can be reached: a row number is looked up among those of the site, and is not there otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from grandrounds.analysis.case.rows import (
    ComparisonRows,
    Found,
    GivenRows,
    RunRows,
    comparison_rows,
    find_new,
    read_new,
    sites_of,
    source_of,
    words_of,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table
from grandrounds.methods.pooled import POOL
from grandrounds.site.stack import PARTS

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


class SiteRows(Protocol):
    """The rows of one site. `parts`: row number, as users count -> what the run used it for, None for a new patient."""

    @property
    def parts(self) -> Mapping[int, str | None]: ...

    def find(self, case: int) -> Found:
        """One of `parts`."""

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        """Several of them, and their outcomes where they are known."""

    def names(self, cases: list[int]) -> list[str | None]:
        """What the hospital calls these patients, where its data say so."""

    def beside(self, case: int | None = None) -> ComparisonRows:
        """What one of them is compared with."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of a site in the run's own data: test rows first, then validation, then training."""

    rows: RunRows
    site: str

    @cached_property
    def _at(self) -> dict[int, tuple[int, str]]:
        """Row number -> its place in the data, and its part."""
        stack, pooled = self.rows.consortium.stack, self._pooled()
        out: dict[int, tuple[int, str]] = {}
        for part in reversed(PARTS):
            own = getattr(stack.rows[stack.names.index(self.site)], part)
            for row in [*own.tolist(), *(pooled if part == "train" else [])]:
                out[self.rows.number(int(row))] = (int(row), part)
        return out

    @cached_property
    def parts(self) -> dict[int, str | None]:
        return {number: part for number, (_, part) in self._at.items()}

    def find(self, case: int) -> Found:
        return self.rows.find(case)

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        data, at = self.rows.consortium.data, self._places(cases)
        taken = data.take(at) if isinstance(data, ImageSet) else data.table.take(at)
        return taken, [str(word) for word in data.label[at].tolist()]

    def names(self, cases: list[int]) -> list[str | None]:
        patient = self.rows.consortium.data.patient
        return [None] * len(cases) if patient is None else [str(p) for p in patient[self._places(cases)].tolist()]

    def beside(self, case: int | None = None) -> ComparisonRows:
        return self.rows

    def _places(self, cases: list[int]) -> Array:
        return np.array([self._at[case][0] for case in cases], np.int64)

    def _pooled(self) -> list[int]:
        """This site's training rows in a run that pooled all of them, where the data say whose they are."""
        stack, site = self.rows.consortium.stack, self.rows.consortium.data.site
        if POOL not in stack.names or site is None:
            return []
        held = stack.rows[stack.names.index(POOL)].train
        return [int(row) for row in held[site[held].astype(str) == self.site]]


@dataclass(frozen=True, eq=False)
class FileRows:
    """New patients of a site: the rows of a file, and of a file that names sites those of this one."""

    run: Run
    rows: Table | ImageSet
    site: str

    @classmethod
    def read(cls, run: Run, data: str, site: str, *, query: str | None) -> FileRows:
        """A file's rows, once they are known to fit the run's model."""
        rows = read_new(run, data, query=query)
        name = source_of(rows)
        if not len(rows):
            raise BadInput(f"{name} has no rows")
        find_new(run, rows, 1)  # pictures for a net, a table for the others
        if isinstance(rows, Table):
            assert run.model.schema is not None
            read_new_rows(rows, run.model.schema)
        else:
            run.model.predict(rows.take([0]))
        found = cls(run, rows, site)
        if not found.parts:
            raise BadInput(
                f"{name} has no row of {site}; {nearest(site, sorted({s for s in sites_of(run, rows) or () if s is not None}))}"
            )
        return found

    @cached_property
    def parts(self) -> dict[int, str | None]:
        sites = sites_of(self.run, self.rows)
        return {k + 1: None for k in range(len(self.rows)) if sites is None or sites[k] == self.site}

    def find(self, case: int) -> Found:
        known = self.site in self.run.summary["per_site"]
        return replace(find_new(self.run, self.rows, case), site=self.site if known else None)

    def some(self, cases: list[int]) -> tuple[Table | ImageSet, list[str | None]]:
        taken = self.rows.take(np.array(cases, np.int64) - 1)
        if isinstance(taken, ImageSet):
            return taken, [str(word) or None for word in taken.label.tolist()]
        return taken, words_of(taken, self._schema.label)

    def names(self, cases: list[int]) -> list[str | None]:
        if isinstance(self.rows, ImageSet):
            patient = self.rows.patient
            return [None if patient is None else str(patient[case - 1]) for case in cases]
        return words_of(self.rows.take(np.array(cases, np.int64) - 1), self._schema.patient)

    def beside(self, case: int | None = None) -> ComparisonRows:
        found = self._beside
        return replace(found, case=case) if isinstance(found, GivenRows) else found

    @cached_property
    def _beside(self) -> RunRows | GivenRows:
        return comparison_rows(self.run, self.rows, None)

    @property
    def _schema(self) -> Any:
        return self.run.model.schema
