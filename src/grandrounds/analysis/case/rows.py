"""Rows of a finished run, read again where they are: the patient in question, its site, and the rows to compare it with.

The comparison rows are the run's own where they are at hand, else the other rows of the patient's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.rng import generator
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.corruption.attacks import DATA_KINDS
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import AT_SITES, DATA_FRAME, STROKES, read_data
from grandrounds.data.readers import read_plan_table
from grandrounds.data.table import Table, to_text
from grandrounds.data.warnings import training_overlap_warnings
from grandrounds.methods.baselines import POOL
from grandrounds.runs.federation import Consortium, assemble
from grandrounds.site.stack import PARTS
from grandrounds.site.tasks import task_class, task_of_class, tasks_of

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

BACKGROUND = 100
"""Rows that a case is compared with: SHAP values settle to two digits with about so many."""


TRAINED_ON = "the model was trained on this row, so it may fit it better than a new patient"
MAY_BE = "the run does not say which rows its sites trained on: if this is one, the model may fit it better than a new patient"


@dataclass(frozen=True, eq=False)
class Found:
    """The one row to be explained, and what is known of it."""

    number: int  # from 1, as the user counts
    source: str
    rows: Table | ImageSet  # that row alone
    site: str | None = None
    part: str | None = None  # train, val, test, reference; None for a new patient
    outcome: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunRows:
    """The consortium of a finished run, put together again as it was."""

    consortium: Consortium
    plan: Plan
    note = ""

    @classmethod
    def read(cls, run: Run, data: Any = None) -> RunRows:
        """The run's own rows; `data` gives them where they came from memory, as a frame, a Table or an ImageSet."""
        if not run.finished:
            raise BadInput(
                f"{run.folder} is not finished, so it has no model to explain: `rounds resume {run.folder}`",
                code="run-not-finished",
            )
        plan = Plan(run.plan)
        if plan.data.table == DATA_FRAME and data is None:
            raise BadInput(
                f"{run.folder} was made from a {DATA_FRAME} in Python: explain it there, "
                "with explain_case(run, case, data=frame)",
                code="rows-not-available",
            )
        if plan.data.table == AT_SITES and data is None:
            raise BadInput(
                f"{run.folder} holds no rows, they are at its sites: a hospital explains patients of its own with "
                "--case N --table FILE",
                code="rows-not-available",
            )
        return cls(assemble(plan, as_rows(data)), plan)

    @property
    def sites(self) -> tuple[str, ...]:
        """The hospitals; the place where a pooled run trains is none."""
        return tuple(name for name in self.consortium.stack.names if name != POOL)

    @cached_property
    def training(self) -> Array:
        """The training rows of all sites."""
        return np.concatenate([r.train for r in self.consortium.stack.rows])

    def task(self, site: str | None) -> str:
        """A site's task; "" is the main one."""
        stack = self.consortium.stack
        return stack.tasks[stack.names.index(site)] if site is not None and stack.tasks else ""

    def find(self, case: int) -> Found:
        """Row number `case` of the run's own data, counted from 1 as `rounds predict` counts the rows of the file."""
        data = self.consortium.data
        row = self._row(case)
        site, part = self._owner(row)
        attack = self.consortium.stack.attacks.get(site or "")
        notes = []
        if attack is not None and attack.kind in DATA_KINDS and part == "train":
            notes.append(f"{site} attacks in this study ({attack.kind}): its training rows are as it claims them to be")
        if part == "train":
            notes.append(TRAINED_ON)
        rows = data.take([row]) if isinstance(data, ImageSet) else data.table.take([row])
        return Found(case, without_folders(data.name), rows, site, part, str(data.label[row]), tuple(notes))

    def background(self, *, site: str | None = None, budget: bool = False) -> tuple[Holdings, str]:
        """The rows that a case is compared with, and what they are: reference rows, else a sample of training rows.

        Under a `budget` other sites' training rows are not looked at: those of the patient's own `site` stand in.
        """
        sets = {name: r for name, r in self.consortium.reference.items() if len(r.rows)}  # no pictures of another set
        if sets:
            name = "background" if "background" in sets else next(iter(sets))
            rows, words = sets[name].rows, f"reference rows ('{name}')"
        elif budget:
            if site is None:
                raise BadInput(
                    "this run has a privacy budget and no reference rows, so a patient is compared with one hospital's: "
                    "name it with --for SITE",
                    code="site-required",
                )
            rows, words = self._own_training(site), f"training rows of {site}"
        else:
            rows, words = self.training, "training rows of all sites"
        if len(rows) > BACKGROUND:
            drawn = generator(self.plan.seed, purpose="background").permutation(len(rows))[:BACKGROUND]
            return self.consortium.data.take(rows[np.sort(drawn)]), f"{BACKGROUND} of the {len(rows)} {words}"
        return self.consortium.data.take(rows), f"{len(rows)} {words}"

    def tested(self, site: str) -> Array:
        """The test rows of a site."""
        rows: Array = self.consortium.stack.rows[self.consortium.stack.names.index(site)].test
        return rows

    def number(self, row: int) -> int:
        """The number that a user counts a row by: of the file, from 1, the rows left out included."""
        data = self.consortium.data
        origin = None if isinstance(data, ImageSet) else data.table.origin
        return row + 1 if origin is None else int(origin[row]) + 1

    def _own_training(self, site: str) -> Array:
        rows: Array = self.consortium.stack.rows[self.consortium.stack.names.index(site)].train
        if not len(rows):
            raise BadInput(
                f"{site} has no training rows to compare a patient with; name another site with --for",
                code="no-training-rows",
            )
        return rows

    def patients(self, site: str) -> Array:
        """All rows of a site, whatever they were used for, as a run explains the model in use on them."""
        rows = self.consortium.stack.rows[self.consortium.stack.names.index(site)]
        return np.concatenate([getattr(rows, part) for part in PARTS])

    def own_rows(self, site: str) -> tuple[Array, str]:
        """A site's test rows, else its validation rows, else its training rows; and which they are."""
        rows = self.consortium.stack.rows[self.consortium.stack.names.index(site)]
        part = next((p for p in reversed(PARTS) if len(getattr(rows, p))), "train")
        return getattr(rows, part), part

    def _row(self, case: int) -> int:
        data = self.consortium.data
        origin = None if isinstance(data, ImageSet) else data.table.origin
        count = len(data) if origin is None else int(origin.max()) + 1
        if not 1 <= case <= count:
            raise BadInput(f"{data.name} has no row {case}; its rows are 1 to {count}", code="unknown-row")
        if origin is None:
            return case - 1
        at = np.flatnonzero(origin == case - 1)
        if not len(at):
            raise BadInput(
                f"row {case} of {data.name} has no label and was left out of the run; "
                f"explain it as a new patient: --table FILE --case {case}",
                code="row-without-label",
            )
        return int(at[0])

    def owner(self, row: int) -> str | None:
        """The hospital that holds a row."""
        return self._owner(row)[0]

    def _owner(self, row: int) -> tuple[str | None, str | None]:
        stack = self.consortium.stack
        for name, rows in zip(stack.names, stack.rows, strict=True):
            for part in PARTS:
                if (getattr(rows, part) == row).any():
                    return (self._hospital(row) if name == POOL else name), part
        held = any((r.rows == row).any() for r in self.consortium.reference.values())
        return None, "reference" if held else None

    def _hospital(self, row: int) -> str | None:
        """Where a row of a pooled run came from, if the data say so."""
        site = self.consortium.data.site
        return None if site is None else str(site[row])


def find_new(run: Run, rows: Table | ImageSet, case: int) -> Found:
    """Row number `case` of new patients."""
    schema, source = run.model.schema, source_of(rows)
    if isinstance(rows, ImageSet) != (schema is None):
        wanted = "pictures: give an .npz file or an ImageSet" if schema is None else "the rows of a table, not pictures"
        raise BadInput(f"{source} cannot be explained by this model, which scores {wanted}", code="wrong-data-kind")
    if not 1 <= case <= len(rows):
        raise BadInput(f"{source} has no row {case}; its rows are 1 to {len(rows)}", code="unknown-row")
    one = rows.take([case - 1])
    if isinstance(one, ImageSet):
        if one.masks is None and run.plan["data"]["masks"] == STROKES:
            one = replace(one, masks=stroke_masks(one.pixels))
        said = {"label": str(one.label[0]), "site": None if one.site is None else str(one.site[0])}
    else:
        assert schema is not None
        said = {"label": words_of(one, schema.label)[0], "site": words_of(one, schema.site)[0]}
    site = said["site"] if said["site"] in run.summary["per_site"] else None
    notes = (MAY_BE,) if run.plan["data"]["table"] == AT_SITES else ()
    return Found(case, file_name(rows), one, site, None, said["label"], notes)


def read_new(
    run: Run, table: Any, *, query: str | None = None, reading: Mapping[str, Any] | None = None
) -> Table | ImageSet:
    """New rows: a file's name, a frame, a Table or an ImageSet. Pictures are an .npz file, or what a site's keeper takes.

    A text file is read as the run's own was (marks for missing, kinds of columns, decimal mark where a cell can be read
    in two ways); `reading` has settings of [data] that differ.
    """
    if not isinstance(table, (str, PathLike)):
        rows: Table | ImageSet = as_rows(table)
        return rows
    where = str(table)
    shape = parse_image_shape(Plan(run.plan).data)
    if shape is not None:
        return _own_pictures(where, shape, Plan(run.plan).data)
    if where.lower().endswith(".npz"):
        from grandrounds.data.image_files import read_npz

        return read_npz(where)
    here = {"text_encoding": "auto", "separator": "auto", **(reading or {})}  # a file shows its own
    agreed = {"decimal": "auto", "censored": "value", **run.plan["data"], **here}
    return read_plan_table(DataSettings(agreed), where, query=query)


def overlap_warnings(run: Run, rows: Table | ImageSet) -> list[str]:
    """A warning where rows to evaluate on are rows that the run was trained on, as far as this machine has them."""
    if rows.sha256() == run.plan["data"]["sha256"]:
        return training_overlap_warnings(rows, None, same=True)
    if isinstance(rows, ImageSet) or run.plan["data"]["table"] in (None, AT_SITES, DATA_FRAME):
        return []
    try:
        own = RunRows.read(run).consortium
    except BadInput:  # the file is gone or is another by now
        return []
    data = own.data
    if isinstance(data, ImageSet):
        return []
    return training_overlap_warnings(rows, data.table.take(np.concatenate([r.train for r in own.stack.rows])), same=False)


def _own_pictures(where: str, shape: tuple[int, int, int], agreed: Any) -> ImageSet:
    """Pictures of a hospital, by the names that its consortium agreed on."""
    from grandrounds.data.agreement.images import is_image_source, read_site_images
    from grandrounds.data.agreement.schema import ImageSchema

    if not is_image_source(where):
        raise BadInput(
            f"{where} holds no pictures, which this model scores: give an .npz file, or a folder with labels.csv",
            code="wrong-data-kind",
        )
    channels, *size = shape
    names = {"label": agreed.label, "patient": agreed.patient, "file": agreed.file}
    return read_site_images(where, ImageSchema((size[0], size[1]), channels, **names, missing=tuple(agreed.missing)))


def sites_of(run: Run, rows: Table | ImageSet) -> list[str | None] | None:
    """Whose each of some new rows is; None where they do not say."""
    if isinstance(rows, ImageSet):
        return None if rows.site is None else [str(word) for word in rows.site.tolist()]
    schema = run.model.schema
    if schema is None or schema.site is None or schema.site not in rows.columns:
        return None
    return words_of(rows, schema.site)


def outcome_in(run: Run, task: str, word: str | None) -> str | None:
    """A label in the words of a site's task; None where that task has no class for it."""
    tasks = run.plan["tasks"]
    if word is None or task_of_class(word, tasks) == task:
        return word
    groups = tasks[task]["classes"] if task else {}
    return next((task_class(task, new) for new, olds in groups.items() if word in olds), None)


def as_rows(data: Any) -> Any:
    """A Table, an ImageSet or nothing as it is; a data frame as a Table."""
    return data if data is None or isinstance(data, (Table, ImageSet)) else Table.from_pandas(data)


def source_of(rows: Table | ImageSet) -> str:
    """Where new rows came from."""
    return rows.name if isinstance(rows, ImageSet) else rows.source


def file_name(rows: Table | ImageSet) -> str:
    """The same without the folders of this machine: for a patient's record."""
    return without_folders(source_of(rows))


def without_folders(source: str) -> str:
    """The name of a file or data set, without the folders of this machine."""
    return source if "://" in source else PurePath(source).name


def words_of(rows: Table, column: str | None) -> list[str | None]:
    """A column as text, None where it or its value is missing."""
    if column is None or column not in rows.columns:
        return [None] * len(rows)
    return [None if word is None else str(word) for word in to_text(rows.columns[column]).tolist()]


class ComparisonRows(Protocol):
    """Rows to compare a patient with. `note`: what a reader must know of them; "" for nothing."""

    @property
    def note(self) -> str: ...

    def task(self, site: str | None) -> str:
        """A site's task; "" is the main one."""

    def background(self, *, site: str | None, budget: bool) -> tuple[Holdings, str]:
        """At most BACKGROUND rows, and what they are."""


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows of the file that new patients come from. `case`: the patient's own, left out; `why`: the run's are not here."""

    run: Run
    rows: Table | ImageSet
    case: int | None
    why: str

    @property
    def note(self) -> str:
        return f"{self.why}: compared with rows of {file_name(self.rows)} alone, other hospitals' patients are not among them"

    def task(self, site: str | None) -> str:
        """By the record: at hospitals all sites have opened a run before it begins."""
        return "" if site is None else tasks_of(self.run.plan["tasks"], self.run.site_names)[site]

    def background(self, *, site: str | None = None, budget: bool = False) -> tuple[Holdings, str]:
        """Rows of the patient's own hospital, where the file says whose they are; by the run's seed, so that all its
        patients are put beside nearly the same ones. A budget keeps no hospital from its own rows."""
        assert isinstance(self.rows, Table) and self.run.model.schema is not None
        whose = sites_of(self.run, self.rows)
        own = None if whose is None or self.case is None else whose[self.case - 1]
        order = generator(self.run.plan["seed"], purpose="background").permutation(len(self.rows)).tolist()
        others = [k for k in order if k + 1 != self.case and (whose is None or whose[k] == own)]
        of = f"{'' if own is None else f'{own} in '}{file_name(self.rows)}"
        if not others:
            raise BadInput(
                f"this model compares a patient with others; {self.why}, and there is no other row of {of}: give a file "
                "with more of the hospital's patients",
                code="no-comparison-rows",
            )
        drawn: Array = np.sort(others[:BACKGROUND])
        count = f"{len(drawn)} of the {len(others)}" if len(drawn) < len(others) else f"{len(drawn)}"
        return read_new_rows(self.rows.take(drawn), self.run.model.schema), f"{count} other rows of {of}"


def comparison_rows(run: Run, given: Table | ImageSet, case: int | None, *, data: Any = None) -> RunRows | GivenRows:
    """What a new patient, of row `case` of `given`, is compared with; `data` gives the run's own rows again, from memory."""
    if data is not None:
        return RunRows.read(run, data)
    held = Plan(run.plan).data
    why = _away(held)
    if not why:
        read = read_data(held)
        if held.sha256 in (None, read.sha256()):
            return RunRows.read(run, read)
        why = "the run's own data have changed since"
    return GivenRows(run, given, case, why)


def _away(held: Any) -> str:
    """Why the rows that [data] names are not on this machine; "" where they should be."""
    if held.name is not None or "://" in held.table:
        return ""
    if held.table == AT_SITES:
        return "the run's rows are at its sites"
    if held.table == DATA_FRAME:
        return "the run's rows were a data frame in memory"
    return "" if Path(held.table).expanduser().exists() else f"the run's own {PurePath(held.table).name} is not here"
