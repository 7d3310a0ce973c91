"""`gr.watch` and `gr.watch_consortium`: watch a model at one hospital, or across hospitals in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, exchange_progress
from grandrounds.core.errors import BadInput
from grandrounds.core.sources import AT_SITES, DATA_FRAME

if TYPE_CHECKING:
    from grandrounds.capabilities.watch.at_sites.site_watch import WatchReading
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run


def watch(
    run: Run | str | Path,
    site: str | None,
    table: Any,
    *,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    labels: Any = None,
    query: str | None = None,
    baseline: Any = None,
    data: Any = None,
    folder: str | Path | None = None,
    key: str | Path | None = None,
) -> WatchReading:
    """Compare new patients of a hospital with its validation patients, and raise alarms.

    Patients, evidence and alarms are kept in the folder of the watch, as by `rounds watch`: call it again with further
    patients, and those who were read before are not counted again.

    Args:
        run: The run, or its folder.
        site: The hospital; None: the only one of the run.
        table: New patients: a data frame, the path of a table or folder, or a database URL with `query`.
        label: Column with the outcome, empty where it is not known; None: the run's label, where the table has it.
        id: Column that names the patient; None: a row is known by its values.
        time: Column with the patient's date; None: the time of the file.
        labels: Table with outcomes of patients who were read earlier; needs `id`.
        query: The SQL query.
        baseline: Labelled rows of the hospital, in place of the run's validation rows.
        data: The run's rows, where it was made from a data frame.
        folder: The folder of the watch; None: RUN/at_sites/SITE/watch.
        key: The site's private key for the record; None: that of the site's folder or of the simulation.

    Returns:
        The reading: `.alarms` are new alarms, `.status` the content of watch.json, `.new` and `.labelled` count patients.

    Raises:
        BadInput: The run is not finished or withdrawn, the site is unknown, it has too few validation patients, or the rows do
            not fit the model.

    Examples:
        >>> for alarm in watch("runs/heart-fedavg-seed0", "cleveland", "new.csv").alarms:  # doctest: +SKIP
        ...     print(alarm["sentence"], *alarm["advice"])
    """
    from grandrounds.capabilities.watch.at_sites.site_watch import PatientColumns, open_watch
    from grandrounds.capabilities.watch.at_sites.sources import Source
    from grandrounds.runs.run import Run

    found = run if isinstance(run, Run) else Run(Path(run))
    place, signed_by = (None if path is None else Path(path) for path in (folder, key))
    rows = None if baseline is None else Source(baseline)
    with open_watch(found, site, folder=place, baseline=rows, data=data, key=signed_by) as site_watch:
        return site_watch.read(
            Source(table, query),
            PatientColumns(label, id, time),
            labels=None if labels is None else Source(labels),
        )


def watch_consortium(
    run: Run | str | Path,
    *,
    table: str | Path | None = None,
    shifts: Sequence[str] = (),
    secure: bool = False,
    epsilon: float | None = None,
    level: float = 0.01,
    alarms: bool = False,
    rows: Any = None,
    out: str | Path | None = None,
    progress: RunProgress = None,
) -> Run:
    """Compare the new patients of all sites with those of training, from sums, in a simulation.

    Args:
        run: A finished run, or its folder.
        table: New patients of all sites, with the site column of the run; by default the test rows of each site are new.
        shifts: Changes to plant into new patients, to try it out: "COLUMN=FACTOR@SITE" or "COLUMN=missing@SITE".
        secure: Use secure aggregation: the sums of single sites are not seen.
        epsilon: Privacy budget of the watch; by default there is no noise.
        level: Chance that a site without a change reports one.
        alarms: Alarms of a site's own watch decide what moved there, where it has one; else tests of its new patients do.
        rows: The rows of the run again, where it was made from a data frame.
        out: The folder of the watch; by default `RUN-watch`, `RUN-watch-2` ...
        progress: True shows a bar, False none; by default a terminal or notebook shows one.

    Returns:
        The run of the watch; its summary has the key `watch`.

    Raises:
        BadInput: The run has no common model of a table, or the new patients do not fit it.
        RunFailed: The watch stopped.

    Examples:
        >>> watch_consortium("runs/heart-fedavg-seed0", shifts=["resting_bp=1.5@va"]).summary["watch"]  # doctest: +SKIP
    """
    from grandrounds.runs.run import Run, as_rows
    from grandrounds.runs.run import run as start
    from grandrounds.runs.runner import new_folder

    watched = run if isinstance(run, Run) else Run(Path(run))
    if watched.plan["data"]["table"] == AT_SITES:
        raise BadInput(
            f"{watched.folder} was run at hospitals: write a plan with `rounds watch {watched.folder} --plan FILE`, and "
            "submit it with `rounds server submit FILE`",
            code="rows-at-sites",
        )
    if watched.plan["data"]["table"] == DATA_FRAME and rows is None:
        raise BadInput(
            f"{watched.folder} was made from a {DATA_FRAME} in Python: watch it there, with "
            "grandrounds.watch_consortium(run, rows=frame)",
            code="data-frame-needed",
        )
    watched.refuse_code()
    built = build_watch(watched, table=table, shifts=shifts, secure=secure, epsilon=epsilon, level=level, alarms=alarms)
    folder = watched.folder.resolve()
    place = Path(out) if out is not None else new_folder(folder.parent, f"{folder.name}-watch")
    with exchange_progress(progress) as report:
        return start(built, out=place, table=as_rows(rows), progress=report)


def build_watch(run: Run, *, table: str | Path | None = None, **settings: Any) -> Experiment:
    """Build the experiment of a watch.

    Args:
        run: The finished run whose model is watched.
        table: New patients of a simulation.
        settings: `secure`, `epsilon`, `level`, `alarms` and `shifts`, as in `watch_consortium`.

    Raises:
        BadInput: The run has no common model of a table, or a setting is not valid.
    """
    from grandrounds.capabilities.watch.earlier_run import watch_values
    from grandrounds.experiment.experiment import Experiment

    values = watch_values(run, table=None if table is None else str(table), **settings)
    return Experiment.parse(values, where="settings")
