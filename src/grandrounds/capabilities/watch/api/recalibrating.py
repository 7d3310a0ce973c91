"""Recalibrate a model at one hospital: `gr.recalibrate(run, "va", rows)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.capabilities.watch.recalibration.recalibrate import Recalibration
    from grandrounds.runs.run import Run


def recalibrate(
    run: Run | str | Path,
    site: str | int,
    rows: Any,
    *,
    by: str,
    intercept_only: bool = False,
    patient: str | None = None,
    write: bool = True,
) -> Recalibration:
    """Fit slope and intercept of a model's risks to recent patients of one hospital.

    The model that the hospital uses from then on is a further file in RUN/at_sites/SITE; the run's own files stay as they are.
    The action is recorded in the site's ledger of the watch. `rounds recalibrate RUN --site SITE --undo` goes back.

    Args:
        run: The run of a simulation, or its folder. Hospitals with a folder of their own use the command.
        site: The hospital's name, or the number that its name ends with.
        rows: A pandas DataFrame, or the path of a table, with the label column.
        by: The person who decides, for the record.
        intercept_only: Leave the slope as it is.
        patient: Column that names the patient; by default that of the run.
        write: Write and record the new model; else it is only computed.

    Returns:
        The recalibration: `.update.kind` and `.update.reason`, `.line`, `.before`, `.after`, `.file`.

    Raises:
        BadInput: The model cannot be recalibrated, the rows do not fit it or are too few, or the record does not verify.

    Examples:
        >>> recalibrate("runs/heart-fedavg-seed0", "va", "recent.csv", by="A. Smith").update.reason  # doctest: +SKIP
    """
    from grandrounds.capabilities.watch.at_sites.signer import find_signer
    from grandrounds.capabilities.watch.recalibration.action import recalibrate_and_record
    from grandrounds.capabilities.watch.recalibration.recalibrate import recalibrate as fit
    from grandrounds.core.names import site_named
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import read_patients

    finished_run = run if isinstance(run, Run) else Run(Path(run))
    name = site_named(site, list(finished_run.summary["per_site"]), where=finished_run.folder)
    patients = read_patients(finished_run, rows)
    if not write:
        return fit(finished_run, name, patients, intercept_only=intercept_only, patient=patient, by=by, write=False)
    watch = finished_run.folder / "at_sites" / name / "watch"
    signer = find_signer(watch, site=name, run=finished_run.folder)
    return recalibrate_and_record(
        finished_run, name, patients, watch, signer, intercept_only=intercept_only, patient=patient, by=by
    )
