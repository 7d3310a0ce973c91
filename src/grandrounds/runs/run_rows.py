"""Rows of a finished run, read again: the patient in question, its site, and the rows to compare it with.

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

from grandrounds.core import sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.rng import generator
from grandrounds.core.sources import AT_SITES, DATA_FRAME, STROKES
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.corruption.attacks import DATA_KINDS
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import read_data
from grandrounds.data.new_patients import refuse_absent_columns
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


TRAINING_ROW = "the model was trained on this row, so it may fit it better than a new patient"
MAY_BE_TRAINING_ROW = (
    "the run does not say which rows its sites trained on: "
    "if this is one, the model may fit it better than a new patient"
)


def is_unseen(part: str | None) -> bool:
    """Check that a row is one that the model was neither fitted to nor chosen on: a test row or a new patient.

    Args:
        part: The data split of the row; None for a new patient.
    """
    return part in ("test", None)


@dataclass(frozen=True, eq=False)
class CaseRow:
    """The row to explain, with its site, use and outcome where they are known."""

    number: int  # from 1, as the user counts
    source: str
    rows: Table | ImageSet  # that row alone
    site: str | None = None
    part: str | None = None  # train, val, test, reference; None for a new patient
    outcome: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunRows:
    """The consortium of a finished run, assembled again."""

    consortium: Consortium
    plan: Plan
    note = ""

    @classmethod
    def read(cls, run: Run, data: Any = None) -> RunRows:
        """Read the run's own rows.

        Args:
            run: A finished run.
            data: The rows, where they came from memory: a data frame, a Table or an ImageSet.

        Raises:
            BadInput: The run is not finished, or its rows are not on this machine or have changed.
        """
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
        return cls(assemble(plan, to_rows(data)), plan)

    @property
    def sites(self) -> tuple[str, ...]:
        """The hospitals, without the place where a pooled run trains."""
        return tuple(name for name in self.consortium.stack.names if name != POOL)

    @cached_property
    def training(self) -> Array:
        """The training rows of all sites."""
        return np.concatenate([r.train for r in self.consortium.stack.rows])

    def task(self, site: str | None) -> str:
        """Return a site's task; "" is the main one."""
        stack = self.consortium.stack
        return stack.tasks[stack.names.index(site)] if site is not None and stack.tasks else ""

    def find(self, case: int) -> CaseRow:
        """Find row number `case` of the run's own data, counted from 1 as `rounds predict` counts the rows of the file."""
        data = self.consortium.data
        row = self._row(case)
        site, part = self._owner(row)
        attack = self.consortium.stack.attacks.get(site or "")
        notes = []
        if attack is not None and attack.kind in DATA_KINDS and part == "train":
            notes.append(f"{site} attacks in this study ({attack.kind}): its training rows are as it claims them to be")
        if part == "train":
            notes.append(TRAINING_ROW)
        rows = data.take([row]) if isinstance(data, ImageSet) else data.table.take([row])
        return CaseRow(case, base_name(data.name), rows, site, part, str(data.label[row]), tuple(notes))

    def background(self, *, site: str | None = None, budget: bool = False) -> tuple[Holdings, str]:
        """Choose the rows to compare a case with: reference rows, else a sample of training rows.

        Args:
            site: The patient's site.
            budget: Whether the run has a privacy budget: then training rows are those of `site` alone.

        Returns:
            The rows, and their description.

        Raises:
            BadInput: There is a budget and no site, or the site has no training rows.
        """
        sets = {name: r for name, r in self.consortium.reference.items() if len(r.rows)}  # no images of another set
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

    def test_rows(self, site: str) -> Array:
        """Return the test rows of a site."""
        rows: Array = self.consortium.stack.rows[self.consortium.stack.names.index(site)].test
        return rows

    def number(self, row: int) -> int:
        """Return a row's number in the file, from 1, with the rows that were left out included."""
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

    def all_rows(self, site: str) -> Array:
        """Return all rows of a site, of any use, as a run explains the model in use on them."""
        rows = self.consortium.stack.rows[self.consortium.stack.names.index(site)]
        return np.concatenate([getattr(rows, part) for part in PARTS])

    def evaluation_rows(self, site: str) -> tuple[Array, str]:
        """Return a site's test rows, else its validation rows, else its training rows; and their use."""
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
        positions = np.flatnonzero(origin == case - 1)
        if not len(positions):
            raise BadInput(
                f"row {case} of {data.name} has no label, or its hospital takes no part, so that it was left out of the run; "
                f"explain it as a new patient: --table FILE --case {case}",
                code="row-without-label",
            )
        return int(positions[0])

    def owner(self, row: int) -> str | None:
        """Return the hospital that holds a row."""
        return self._owner(row)[0]

    def _owner(self, row: int) -> tuple[str | None, str | None]:
        stack = self.consortium.stack
        for name, rows in zip(stack.names, stack.rows, strict=True):
            for part in PARTS:
                if (getattr(rows, part) == row).any():
                    return (self._hospital(row) if name == POOL else name), part
        is_reference = any((r.rows == row).any() for r in self.consortium.reference.values())
        return None, "reference" if is_reference else None

    def _hospital(self, row: int) -> str | None:
        """Return the hospital of a row in a pooled run, if the data have one."""
        site = self.consortium.data.site
        return None if site is None else str(site[row])


def find_new_case(run: Run, rows: Table | ImageSet, case: int) -> CaseRow:
    """Find row number `case` of new patients.

    Raises:
        BadInput: There is no such row, or the model scores another kind of data.
    """
    schema, source = run.model.schema, row_source(rows)
    if isinstance(rows, ImageSet) != (schema is None):
        wanted = "images: give an .npz file or an ImageSet" if schema is None else "the rows of a table, not images"
        raise BadInput(f"{source} cannot be explained by this model, which scores {wanted}", code="wrong-data-kind")
    if not 1 <= case <= len(rows):
        raise BadInput(f"{source} has no row {case}; its rows are 1 to {len(rows)}", code="unknown-row")
    one = rows.take([case - 1])
    if isinstance(one, ImageSet):
        if one.masks is None and run.plan["data"]["masks"] == STROKES:
            one = replace(one, masks=stroke_masks(one.pixels))
        facts = {"label": str(one.label[0]), "site": None if one.site is None else str(one.site[0])}
    else:
        assert schema is not None
        facts = {"label": column_text(one, schema.label)[0], "site": column_text(one, schema.site)[0]}
    site = facts["site"] if facts["site"] in run.summary["per_site"] else None
    notes = (MAY_BE_TRAINING_ROW,) if run.plan["data"]["table"] == AT_SITES else ()
    return CaseRow(case, file_name(rows), one, site, None, facts["label"], notes)


def read_patients(
    run: Run,
    table: Any,
    *,
    query: str | None = None,
    reading: Mapping[str, object] | None = None,
    pending: bool = False,
    allow_missing: bool = False,
) -> Table | ImageSet:
    """Read new patients, and check that they have the columns that the run's model relies on.

    A text file is read as the run's own was (marks for missing, kinds of columns, decimal mark where a cell can be read
    in two ways).

    Args:
        run: The run whose model scores them.
        table: A file's name, a data frame, a Table or an ImageSet. Images are an .npz file, or a folder as a keeper takes it.
        query: The SQL query, where the file is a database.
        reading: Settings of [data] that differ.
        pending: Of a run with a cohort, whose patients may come from clinical records: also take those whose outcome is not
            known yet.
        allow_missing: Also take rows without columns that the model relies on.

    Raises:
        BadInput: They cannot be read, are of another kind than the model's data, or lack columns that the model relies on.
    """
    if isinstance(table, (str, PathLike)):
        rows = _read_rows(run, str(table), query=query, reading=reading, pending=pending)
    else:
        rows = to_rows(table)
    if isinstance(rows, Table) and not allow_missing and isinstance(run.model.encoding, Encoding):
        refuse_absent_columns(rows, run.model.encoding, run.importances)
    return rows


def _read_rows(
    run: Run, where: str, *, query: str | None, reading: Mapping[str, object] | None, pending: bool
) -> Table | ImageSet:
    shape = parse_image_shape(Plan(run.plan).data)
    if shape is not None:
        return _read_site_images(where, shape, Plan(run.plan).data)
    if where.lower().endswith(".npz"):
        from grandrounds.data.image_files import read_npz

        return read_npz(where)
    overrides = {"text_encoding": "auto", "separator": "auto", "sheet": None, **(reading or {})}  # a file shows its own
    agreed = {"decimal": "auto", "censored": "value", **run.plan["data"], **overrides}
    try:
        return read_plan_table(DataSettings(agreed), where, query=query, pending=pending)
    except BadInput as e:
        sheet = run.plan["data"].get("sheet")
        if e.code != "sheet-not-set" or sheet is None:
            raise
    return read_plan_table(DataSettings({**agreed, "sheet": sheet}), where, query=query, pending=pending)


def overlap_warnings(run: Run, rows: Table | ImageSet) -> list[str]:
    """Warn where rows to evaluate on are rows that the run was trained on, as far as this machine has them."""
    if rows.sha256() == run.plan["data"]["sha256"]:
        return training_overlap_warnings(rows, None, same=True)
    if isinstance(rows, ImageSet) or run.plan["data"]["table"] in (None, AT_SITES, DATA_FRAME):
        return []
    try:
        consortium = RunRows.read(run).consortium
    except BadInput:  # the file is gone or is another by now
        return []
    data = consortium.data
    if isinstance(data, ImageSet):
        return []
    return training_overlap_warnings(
        rows, data.table.take(np.concatenate([r.train for r in consortium.stack.rows])), same=False
    )


def _read_site_images(where: str, shape: tuple[int, int, int], agreed: DataSettings) -> ImageSet:
    """Read the images of a hospital, by the names that its consortium agreed on."""
    from grandrounds.data.agreement.images import is_image_source, read_site_images
    from grandrounds.data.agreement.schema import ImageSchema
    from grandrounds.data.scan_options import parse_options

    if not is_image_source(where):
        raise BadInput(
            f"{where} holds no images, which this model scores: give an .npz file, or a folder with labels.csv",
            code="wrong-data-kind",
        )
    channels, *size = shape
    assert agreed.label is not None
    schema = ImageSchema(
        (size[0], size[1]),
        channels,
        label=agreed.label,
        patient=agreed.patient,
        file=agreed.file,
        missing=tuple(agreed.missing),
        scan=None if agreed.scan is None else parse_options(agreed.scan.plain()),
    )
    return read_site_images(where, schema)


def row_sites(run: Run, rows: Table | ImageSet) -> list[str | None] | None:
    """Return the site of each new row; None where the rows do not say."""
    if isinstance(rows, ImageSet):
        return None if rows.site is None else [str(word) for word in rows.site.tolist()]
    schema = run.model.schema
    if schema is None or schema.site is None or schema.site not in rows.columns:
        return None
    return column_text(rows, schema.site)


def outcome_for_task(run: Run, task: str, word: str | None) -> str | None:
    """Translate a label to the class of a site's task; None where that task has no class for it."""
    tasks = run.plan["tasks"]
    if word is None or task_of_class(word, tasks) == task:
        return word
    groups = tasks[task]["classes"] if task else {}
    return next((task_class(task, new) for new, olds in groups.items() if word in olds), None)


def to_rows(data: Any) -> Any:
    """Convert a data frame to a Table; a Table, an ImageSet or None stays as it is."""
    return data if data is None or isinstance(data, (Table, ImageSet)) else Table.from_pandas(data)


def row_source(rows: Table | ImageSet) -> str:
    """Return the source of new rows."""
    return rows.name if isinstance(rows, ImageSet) else rows.source


def file_name(rows: Table | ImageSet) -> str:
    """Return the source of new rows without the folders of this machine: for a patient's record."""
    return base_name(row_source(rows))


def base_name(source: str) -> str:
    """Strip the folders of this machine from the name of a file or data set."""
    return source if "://" in source else PurePath(source).name


def column_text(rows: Table, column: str | None) -> list[str | None]:
    """Return a column as text, None where it or its value is missing."""
    if column is None or column not in rows.columns:
        return [None] * len(rows)
    return [None if word is None else str(word) for word in to_text(rows.columns[column]).tolist()]


class ComparisonRows(Protocol):
    """Rows to compare a patient with. `note`: a warning about them; "" for none."""

    @property
    def note(self) -> str: ...

    def task(self, site: str | None) -> str:
        """Return a site's task; "" is the main one."""

    def background(self, *, site: str | None, budget: bool) -> tuple[Holdings, str]:
        """Choose at most BACKGROUND rows, and describe them."""


@dataclass(frozen=True, eq=False)
class NewPatientRows:
    """Rows of the file that new patients come from. `case`: the patient's own, left out; `why`: the run's rows are not here."""

    run: Run
    rows: Table | ImageSet
    case: int | None
    why: str

    @property
    def note(self) -> str:
        return f"{self.why}: compared with rows of {file_name(self.rows)} alone, other hospitals' patients are not among them"

    def task(self, site: str | None) -> str:
        """Read the task from the record: at hospitals all sites have opened a run before it begins."""
        return "" if site is None else tasks_of(self.run.plan["tasks"], self.run.site_names)[site]

    def background(self, *, site: str | None = None, budget: bool = False) -> tuple[Holdings, str]:
        """Choose rows of the patient's own hospital, where the file says whose they are.

        The run's seed draws them, so that all its patients are compared with nearly the same ones. A budget keeps no hospital
        from its own rows.
        """
        assert isinstance(self.rows, Table) and self.run.model.schema is not None
        sites = row_sites(self.run, self.rows)
        site_name = None if sites is None or self.case is None else sites[self.case - 1]
        order = generator(self.run.plan["seed"], purpose="background").permutation(len(self.rows)).tolist()
        candidates = [k for k in order if k + 1 != self.case and (sites is None or sites[k] == site_name)]
        origin = f"{'' if site_name is None else f'{site_name} in '}{file_name(self.rows)}"
        if not candidates:
            raise BadInput(
                f"this model compares a patient with others; {self.why}, and there is no other row of {origin}: give a file "
                "with more of the hospital's patients",
                code="no-comparison-rows",
            )
        drawn: Array = np.sort(candidates[:BACKGROUND])
        count = f"{len(drawn)} of the {len(candidates)}" if len(drawn) < len(candidates) else f"{len(drawn)}"
        return read_new_rows(self.rows.take(drawn), self.run.model.schema), f"{count} other rows of {origin}"


def comparison_rows(
    run: Run, rows: Table | ImageSet, case: int | None, *, data: Any = None
) -> RunRows | NewPatientRows:
    """Choose the rows to compare a new patient with.

    Args:
        run: The run whose model is explained.
        rows: The file that the patient is in.
        case: The patient's row number in it.
        data: The run's own rows, where they came from memory.
    """
    if data is not None:
        return RunRows.read(run, data)
    settings = Plan(run.plan).data
    why = _why_missing(settings)
    if not why:
        read = read_data(settings)
        if settings.sha256 in (None, read.sha256()):
            return RunRows.read(run, read)
        why = "the run's own data have changed since"
    return NewPatientRows(run, rows, case, why)


def _why_missing(settings: DataSettings) -> str:
    """Explain why the rows that [data] names are not on this machine; "" where they should be."""
    table = settings.table
    if settings.name is not None or table is None:
        return ""
    if sources.rows_refused(settings.plain()):
        return "the run was not made here, so its own table is not opened"
    if "://" in table:
        return ""
    if table == AT_SITES:
        return "the run's rows are at its sites"
    if table == DATA_FRAME:
        return "the run's rows were a data frame in memory"
    return "" if Path(table).expanduser().exists() else f"the run's own {PurePath(table).name} is not here"
