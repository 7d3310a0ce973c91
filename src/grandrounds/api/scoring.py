"""`gr.predict` and `gr.evaluate`: use the model of a finished run on new patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.sources import is_frame, memory_rows
from grandrounds.core.errors import warn_user

if TYPE_CHECKING:
    from pandas import DataFrame

    from grandrounds.core.records import Scores
    from grandrounds.runs.run import Run


@dataclass(frozen=True)
class EvaluationResult:
    """Scores of a model on labelled rows.

    Attributes:
        overall: Scores on all rows.
        per_site: Scores of each site; one entry "all rows" where the rows name no site.
        threshold: The probability from which on the event is predicted.
        event: The class whose probability is the risk; None with three classes or more.
        notes: Sentences on values that were missing.
        warnings: Sentences on rows that the model was trained on.
        task: The type of the outcome.
    """

    overall: Scores
    per_site: Mapping[str, Scores]
    threshold: float | None
    event: Mapping[str, Any] | None
    notes: Sequence[str]
    warnings: Sequence[str]
    task: str = "classification"

    @property
    def frame(self) -> DataFrame:
        """The scores as a data frame: the line "overall", then one line per site."""
        from pandas import DataFrame

        lines = {"overall": self.overall, **self.per_site}
        return DataFrame.from_dict(lines, orient="index").rename_axis("site")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, as `rounds evaluate --json` prints it."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def predict(
    run: Run | str | Path, rows: Any, *, site: str | None = None, task: str = "", allow_missing: bool = False
) -> DataFrame:
    """Score new patients with the model of a finished run.

    Args:
        run: The run, or its folder.
        rows: A pandas DataFrame, or the path of a table, with the columns of the training data. A label is not needed.
        site: The site whose local model scores the rows, where sites have models of their own.
        task: A further task of the model; "" is the main one.
        allow_missing: Also score rows without columns that the model relies on.

    Returns:
        One line per row with the index of the data frame: the risk of the event (or a probability for each class), and
        the decision; of other tasks the predicted number, the expected count or the risk score. A column `missing_inputs`
        names columns of the model that the rows lack. `attrs["notes"]` lists what was missing; each note is also a warning.

    Raises:
        BadInput: The run is not finished, or the rows do not fit its model: absent columns have more than 5% of the importance.
    """
    from pandas import DataFrame

    finished_run = _open(run)
    table, index = _read(finished_run, rows, pending=True, allow_missing=allow_missing)
    made = finished_run.model_for(site).predict(table, task=task, corrected=True)
    frame = DataFrame(made.columns, index=index)
    frame.attrs["notes"] = list(made.notes)
    warn_user(made.notes)
    return frame


def evaluate(
    run: Run | str | Path, rows: Any, *, site: str | None = None, allow_missing: bool = False
) -> EvaluationResult:
    """Validate the model of a finished run on labelled rows, such as those of another hospital.

    Args:
        run: The run, or its folder.
        rows: A pandas DataFrame, or the path of a table, with the label column.
        site: The site whose local model is evaluated, where sites have models of their own.
        allow_missing: Also score rows without columns that the model relies on.

    Returns:
        The scores on all rows and at each site. Warnings on training rows among them are also Python warnings.

    Raises:
        BadInput: The run is not finished, the rows do not fit its model, or they have no label.
    """
    from grandrounds.core.arrays import plain
    from grandrounds.runs.run_rows import overlap_warnings

    finished_run = _open(run)
    table, _ = _read(finished_run, rows, allow_missing=allow_missing)
    values = plain(finished_run.model_for(site).evaluate(table))
    sentences = overlap_warnings(finished_run, table)
    warn_user(sentences)
    return EvaluationResult(**values, warnings=sentences)


def _open(run: Run | str | Path) -> Run:
    from grandrounds.api.opening import load_run
    from grandrounds.runs.run import Run

    return run if isinstance(run, Run) else load_run(run)


def _read(run: Run, rows: Any, *, pending: bool = False, allow_missing: bool) -> tuple[Any, Any]:
    """Read new patients; also return the index of a data frame (else None)."""
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run_rows import read_patients

    if isinstance(rows, str | Path):
        return read_patients(run, rows, pending=pending, allow_missing=allow_missing), None
    given = memory_rows(rows)
    if given is None:
        raise BadInput(
            f"rows is an object of type {type(rows).__name__}: give a file, or a pandas DataFrame with the columns of the "
            "training data",
            code="not-a-table",
        )
    return read_patients(run, given, allow_missing=allow_missing), given.index if is_frame(given) else None
