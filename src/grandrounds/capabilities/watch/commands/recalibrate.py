"""`rounds recalibrate`: fit slope and intercept of a model's risks to recent patients of one hospital."""

from __future__ import annotations

import getpass
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Query, Reading, TrustCode, expand_options, show_reading
from grandrounds.cli.terminal import Terminal, echo, reads_run

if TYPE_CHECKING:
    from grandrounds.capabilities.watch.at_sites.signer import Signer
    from grandrounds.capabilities.watch.recalibration.recalibrate import Recalibration
    from grandrounds.runs.run import Run


def register(app: typer.Typer) -> None:
    app.command()(reads_run(recalibrate))


@dataclass(frozen=True)
class Place:
    """The hospital whose model is changed: its name, the folder of its watch and its key."""

    site: str
    watch: Path
    signer: Signer


@expand_options
def recalibrate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    site: Annotated[str | None, typer.Option(help="The hospital; 3 is site-03.")] = None,
    table: Annotated[
        str | None, typer.Option(help="Recent patients with known outcomes: .csv, .parquet, .xlsx, .dta, .sav or a SQL URL.")
    ] = None,
    query: Query = None,
    reading: Reading = Reading(),
    label: Annotated[str | None, typer.Option("--label", help="Column with the outcome (default: that of the run).")] = None,
    patient: Annotated[
        str | None, typer.Option("--id", help="Column that names the patient (default: that of the run).")
    ] = None,
    intercept_only: Annotated[bool, typer.Option("--intercept-only", help="Leave the slope as it is.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Go back to the model before the last recalibration.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the figures and write nothing.")] = False,
    by: Annotated[str | None, typer.Option(help="Person who decides, for the record (default: the login name).")] = None,
    note: Annotated[str, typer.Option(help="A remark for the record.")] = "",
    alarm: Annotated[str | None, typer.Option(help="The alarm of the watch that this answers, such as A1.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="At a hospital: the site's folder, which receives the model and the record.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Recalibrate the model at one hospital: fit slope and intercept of its risks to recent patients with known outcomes.

    A closed test chooses between no change, the intercept, and slope and intercept. Figures after the change are
    cross-validated by patient. The new model is a further file in the hospital's folder, which `rounds predict --for`,
    `explain`, `evaluate` and `watch` use from then on; `--undo` goes back. The run's own files stay as they are, and the
    action is recorded in the site's ledger of the watch.

    Example: `rounds recalibrate runs/heart-fedavg-seed0 --site va --table recent.csv --by "A. Smith"`
    """
    from grandrounds.capabilities.watch.recalibration.action import recalibrate_and_record
    from grandrounds.capabilities.watch.recalibration.recalibrate import recalibrate as fit
    from grandrounds.core.arrays import plain
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import read_patients

    finished_run = Run(run, trust_code=trust_code)
    finished_run.refuse_withdrawn()
    place = _find_place(finished_run, site, folder)
    person = by or _login_name()
    if undo:
        if table is not None or dry_run:
            raise BadInput("--undo needs no table and cannot be tried: leave --table and --dry-run out", code="option-conflict")
        _undo(finished_run, place, person, note, as_json=as_json)
        return
    if table is None:
        raise BadInput("no labelled patients are given: add --table FILE", code="missing-option")
    merged = reading.merge(finished_run.plan["data"]["missing"])
    rows = read_patients(finished_run, table, query=query, reading=merged)
    show_reading(rows)
    if dry_run:
        done = fit(
            finished_run, place.site, rows, intercept_only=intercept_only, label=label, patient=patient, by=person, write=False
        )
    else:
        done = recalibrate_and_record(
            finished_run, place.site, rows, place.watch, place.signer, by=person, intercept_only=intercept_only,
            label=label, patient=patient, alarm=alarm, note=note,
        )  # fmt: skip
    if as_json:
        echo(json.dumps(plain(done.to_dict())))
    else:
        where = f"--site {shlex.quote(done.site)}" if folder is None else f"--folder {shlex.quote(str(folder))}"
        _print(done, table, f"rounds recalibrate {shlex.quote(str(run))} {where} --undo", dry_run=dry_run)


def _find_place(run: Run, site: str | None, folder: Path | None) -> Place:
    """Find the hospital, the folder of its watch and its key: in the run folder of a simulation, or in the site's own folder."""
    from grandrounds.capabilities.watch.at_sites.signer import find_signer
    from grandrounds.core.errors import BadInput
    from grandrounds.core.names import site_named
    from grandrounds.core.sources import AT_SITES

    if folder is not None:
        from grandrounds.capabilities.hospital.keeper.site_models import find_watch_folder, use_site_models

        name, watch = use_site_models(run, folder, site), find_watch_folder(run, folder)
        return Place(name, watch, find_signer(watch, site=name, run=run.folder))
    if site is None:
        raise BadInput("no hospital is named: add --site NAME, at a hospital --folder FOLDER", code="missing-option")
    if run.plan["data"]["table"] == AT_SITES:
        raise BadInput(
            f"{run.folder} was run at hospitals, and each has its own folder: add --folder FOLDER", code="missing-option"
        )
    name = site_named(site, list(run.summary["per_site"]), where=run.folder)
    watch = run.folder / "at_sites" / name / "watch"
    return Place(name, watch, find_signer(watch, site=name, run=run.folder))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _undo(run: Run, place: Place, by: str, note: str, *, as_json: bool) -> None:
    from grandrounds.capabilities.watch.recalibration.action import undo_and_record

    undone, used, models = undo_and_record(run, place.site, place.watch, place.signer, by=by, note=note)
    if as_json:
        echo(json.dumps({"site": place.site, "undone": str(undone), "file": str(used), **models}))
        return
    echo(f"{place.site} uses {used} again; the recalibration is {undone}")


def _print(done: Recalibration, table: str, undo: str, *, dry_run: bool) -> None:
    """Print the figures before and after, the tests and the decision."""
    from rich.table import Table

    from grandrounds.capabilities.watch.recalibration.figures import figure_rows
    from grandrounds.cli.terminal import warn

    console = Terminal()
    patients = "" if done.patients == done.rows else f" of {done.patients} patients"
    *_, events = done.by_class.values()
    counts = ", ".join(f"{count} with {word}" for word, count in done.by_class.items())
    echo(f"{done.site}: {done.rows} labelled rows{patients}, {f'{events} with {done.label}' if done.label else counts}")
    for sentence in done.warnings:
        console.print(warn(sentence), soft_wrap=True)
    view = Table(title="calibration with 95% intervals; after: 5-fold cross-validation by patient")
    for column in ("figure", "perfect", "before", "after"):
        view.add_column(column, justify="left" if column == "figure" else "right")
    for row in figure_rows(done.before, done.after, [done.label] if done.label else list(done.by_class)):
        view.add_row(*row)
    console.print(view)
    for line in _lines(done, dry_run=dry_run):
        echo(line)
    if done.file is not None:
        echo(f"recorded by {done.by}; `{undo}` goes back")
        echo(
            "the watch starts afresh with the new model; if these patients are the usual ones now, add "
            f"--baseline-table {shlex.quote(table)} to `rounds watch`"
        )


def _lines(done: Recalibration, *, dry_run: bool) -> Iterator[str]:
    from grandrounds.capabilities.watch.recalibration.line_fit import NONE
    from grandrounds.capabilities.watch.recalibration.recalibrate import SLOPE_PATIENTS

    if done.intercept_only and done.patients < SLOPE_PATIENTS:
        yield f"slope: not tried, because there are fewer than {SLOPE_PATIENTS} patients"
    for test in done.update.tests:
        yield f"test: {test.sentence}"
    yield done.update.reason
    if done.update.kind == NONE:
        return
    intercepts = ", ".join(f"{v:+.3f}" for v in done.line.intercept)
    yield f"log-odds become {done.line.slope:.3f} times the earlier ones, plus {intercepts}"
    gain = done.gain
    verb = "falls" if gain.value >= 0 else "rises"
    yield f"log loss {verb} by {abs(gain.value):.3f} (change {-gain.value:+.3f}, 95% CI {-gain.high:+.3f} to {-gain.low:+.3f})"
    if gain.low <= 0:
        yield "note: the interval of the log loss includes no change; compare the other figures before you rely on the new model"
    if done.decisions is not None:
        before, after = done.decisions
        yield (
            f"decisions at risk {before.threshold:.3g}: {before.flagged} rows flagged before, {after.flagged} after, "
            f"{done.changed} changed; sensitivity {before.sensitivity:.3f} to {after.sensitivity:.3f}, "
            f"specificity {before.specificity:.3f} to {after.specificity:.3f}, "
            f"net benefit {before.net_benefit:.3f} to {after.net_benefit:.3f}"
        )
    else:
        yield f"decisions: {done.changed} of {done.rows} rows change their class"
    if done.file is None:
        yield "nothing was written (--dry-run)" if dry_run else "nothing was written"
        return
    yield f"saved: {done.file} (before: {done.file_before}, which stays)"
