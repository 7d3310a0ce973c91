"""`rounds watch`: watch the model of a finished run at one hospital, and show the watches of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.capabilities.watch.commands import alarms as watch_alarms
from grandrounds.cli.groups import ParentCommand
from grandrounds.cli.options import Personal, Query, Reading, TrustCode, expand_options
from grandrounds.cli.terminal import Terminal, echo, echo_error, reads_run, styled, warn

if TYPE_CHECKING:
    from grandrounds.capabilities.watch.at_sites.baseline import SiteRows
    from grandrounds.capabilities.watch.at_sites.site_watch import SiteWatch, WatchReading
    from grandrounds.runs.run import Run

ALARM = 3
"""Exit code of a reading with a new alarm."""


def register(app: typer.Typer) -> None:
    app.command(cls=ParentCommand)(reads_run(watch))
    app.command("watch show")(show)
    watch_alarms.register(app)


@dataclass(frozen=True)
class Patients:
    """New patients, their columns, and outcomes that come later."""

    table: Annotated[
        str | None,
        typer.Option(
            "--table", help="New patients: a table that grows, a folder that fills up with tables, or a SQL URL (with --query)."
        ),
    ] = None
    query: Query = None
    label: Annotated[
        str | None, typer.Option("--label", help="Column with the outcome, empty where it is not known (default: the run's).")
    ] = None
    patient: Annotated[
        str | None, typer.Option("--id", help="Column that names the patient: each is counted once (default: by all values).")
    ] = None
    date: Annotated[
        str | None, typer.Option("--time", help="Column with the date of each patient (default: the time of the file).")
    ] = None
    labels: Annotated[
        str | None, typer.Option("--labels", help="Table with outcomes of patients who were read earlier; needs --id.")
    ] = None
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Site:
    """The hospital, its baseline and its folder."""

    site: Annotated[str | None, typer.Option("--site", help="The hospital; 3 is site-03.")] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline-table",
            help="Labelled rows of the hospital that the model was not trained on (default: the run's validation rows).",
        ),
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="At a hospital: the site's folder, whose folder watch/ receives the files of the watch."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="At a hospital: the table or images that it had in the run, whose validation rows are the baseline.",
        ),
    ] = None
    data_query: Annotated[
        str | None, typer.Option("--data-query", help="SELECT or table name, where --data is a SQL URL.")
    ] = None
    personal: Personal = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The site's private key for the record (default: keys/site.key of the site's folder)."
        ),
    ] = None


@dataclass(frozen=True)
class Alerts:
    """Commands that an alarm calls."""

    commands: Annotated[
        list[str],
        typer.Option(
            "--on-alarm", metavar="COMMAND", help="Command for each new alarm, with its JSON on standard input (repeatable)."
        ),
    ] = field(default_factory=list)
    seconds: Annotated[float, typer.Option("--alarm-timeout", help="Time limit of such a command in seconds.")] = 30.0


@dataclass(frozen=True)
class Consortium:
    """A watch across all hospitals, from sums."""

    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Watch all sites of a simulation, from sums: which feature moved at how many sites."),
    ] = False
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Write the plan of such a watch at hospitals, for `rounds server submit`."),
    ] = None
    shifts: Annotated[
        list[str],
        typer.Option(
            "--shift", metavar="COLUMN=FACTOR@SITE", help="Plant a change into new patients, to try it; or COLUMN=missing@SITE."
        ),
    ] = field(default_factory=list)
    secure: Annotated[bool, typer.Option("--secure", help="Secure aggregation: no site's own sums are seen.")] = False
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Privacy budget of the watch; noise is added at each site.")
    ] = None
    level: Annotated[
        float, typer.Option("--level", help="Chance that a site without a change reports one, in a watch of all sites.")
    ] = 0.01
    alarms: Annotated[
        bool, typer.Option("--alarms", help="A site's own watch decides what moved there, where it has one; not with --epsilon.")
    ] = False
    out: Annotated[Path | None, typer.Option("--out", help="Folder of a watch of all sites (default: RUN-watch).")] = None

    def first_flag(self) -> str | None:
        """Return the first option that needs --simulate or --plan; None where none is given."""
        given = {"--shift": self.shifts, "--secure": self.secure, "--epsilon": self.epsilon}
        given |= {"--alarms": self.alarms, "--out": self.out}
        return next((flag for flag, value in given.items() if value), None)


@expand_options
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    patients: Patients,
    place: Site,
    alerts: Alerts,
    consortium: Consortium,
    every: Annotated[
        float | None, typer.Option("--every", min=0.01, metavar="MINUTES", help="Read again and again; Ctrl-C stops.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print watch.json with new alarms, one line for each reading.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print new alarms and nothing else.")] = False,
) -> None:
    """Watch the model at one hospital: compare new patients with the hospital's validation patients.

    Checks inputs (missing values, unknown codes, range, distribution), scores and explanations, and with outcomes prevalence,
    calibration, discrimination and net benefit. All checks together raise at most about one false alarm in 5,000 patients like
    the validation patients. The watch stays in RUN/at_sites/SITE/watch: nothing leaves the hospital. A patient is counted once,
    also after a crash.

    With --simulate all sites of a simulation send sums, and the result is which feature moved at how many sites.

    Exit code 0: no new alarm. 3: a new alarm that nobody silenced.

    Example: `rounds watch runs/heart-fedavg-seed0 --site cleveland --table new_patients.csv`
    """
    from grandrounds.core.errors import BadInput

    if consortium.simulate or consortium.plan is not None:
        _watch_all(run, patients, consortium, trust_code=trust_code, as_json=as_json, quiet=quiet)
        return
    if (flag := consortium.first_flag()) is not None:
        raise BadInput(
            f"{flag} is for a watch of all sites: add --simulate, or --plan FILE for hospitals", code="missing-option"
        )
    if patients.table is None:
        raise BadInput("no new patients are given: add --table FILE, a folder, or a SQL URL with --query", code="missing-option")
    alarmed, repeated = False, False
    try:
        while True:
            alarmed |= _read_once(run, patients, place, alerts, repeated=repeated, trust_code=trust_code, as_json=as_json,
                                  quiet=quiet)  # fmt: skip
            if every is None:
                break
            repeated = True
            time.sleep(60 * every)
    except KeyboardInterrupt:
        echo("stopped; patients that were read are counted", err=True)
        if not repeated:
            raise
    if alarmed:
        raise typer.Exit(ALARM)


def _watch_all(
    run: Path, patients: Patients, consortium: Consortium, *, trust_code: bool, as_json: bool, quiet: bool
) -> None:
    """Watch all sites of a simulation, or write the plan of such a watch."""
    from grandrounds.capabilities.watch.commands.consortium import simulate, write_plan
    from grandrounds.runs.run import Run

    c, watched = consortium, Run(run, trust_code=trust_code)
    if c.plan is not None:
        write_plan(watched, c.plan, secure=c.secure, epsilon=c.epsilon, level=c.level, alarms=c.alarms)
        return
    simulate(
        watched,
        table=patients.table,
        shifts=c.shifts,
        secure=c.secure,
        epsilon=c.epsilon,
        level=c.level,
        alarms=c.alarms,
        out=c.out,
        as_json=as_json,
        quiet=quiet,
    )


def _read_once(
    run: Path, patients: Patients, place: Site, alerts: Alerts, *, repeated: bool, trust_code: bool, as_json: bool, quiet: bool
) -> bool:
    """Read what is new, print it, and tell whether there is a new alarm. An error in a repeated reading is printed."""
    from grandrounds.capabilities.watch.at_sites.hooks import Hook
    from grandrounds.core.errors import GrandRoundsError
    from grandrounds.runs.run import Run

    hooks = [Hook.parse(line, seconds=alerts.seconds) for line in alerts.commands]
    try:
        with _open(Run(run, trust_code=trust_code), patients, place, quiet=quiet or as_json) as site_watch:
            result = _read(site_watch, patients, quiet=quiet or as_json)
            failures = site_watch.notify(hooks)
    except GrandRoundsError as e:
        if not repeated:
            raise
        echo_error(f"{e}; the next reading tries again", e.code)
        return False
    if repeated and not (result.new or result.labelled or result.alarms or as_json):
        if not quiet:
            echo(f"{time.strftime('%H:%M')} {result.status['site']}: nothing new, alarms open: {len(result.open_alarms)}")
    else:
        _print(result, as_json=as_json, quiet=quiet)
    for sentence in failures:
        echo(f"warning: {sentence}", err=True)
    return any(alarm["state"] == "open" for alarm in result.alarms)


def _open(run: Run, patients: Patients, place: Site, *, quiet: bool) -> SiteWatch:
    """Open the watch of the hospital, with the model that it uses."""
    from grandrounds.capabilities.watch.at_sites.site_watch import open_watch
    from grandrounds.capabilities.watch.at_sites.sources import Source
    from grandrounds.cli.options import use_personal
    from grandrounds.core.errors import BadInput

    run.refuse_withdrawn()
    site = use_personal(run, place.site, place.personal) if run.finished else place.site
    folder, own = None, None
    if place.folder is not None:
        folder = place.folder / "watch"
        if (place.folder / "site.toml").exists():
            from grandrounds.capabilities.hospital.keeper.site_models import find_watch_folder, use_site_models

            site, folder = use_site_models(run, place.folder, site), find_watch_folder(run, place.folder)
            own = None if place.data is None else _read_own_rows(run, place)
    if place.data is not None and own is None:
        raise BadInput(
            "--data is the table of a hospital with a folder of its own: add --folder FOLDER, or leave --data out",
            code="missing-option",
        )
    reading = patients.reading.merge(run.plan["data"]["missing"])
    baseline = None if place.baseline is None else Source(place.baseline, reading=reading)
    return open_watch(run, site, folder=folder, baseline=baseline, own=own, key=place.key, say=None if quiet else _say)


def _read_own_rows(run: Run, place: Site) -> SiteRows:
    """Read the rows that a hospital had in the run, from its own table."""
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.watch_rows import read_site_rows

    assert place.folder is not None and place.data is not None
    return read_site_rows(run, SiteFolder(place.folder), place.data, query=place.data_query)


def _say(sentence: str) -> None:
    echo(sentence, err=True)


def _read(site_watch: SiteWatch, patients: Patients, *, quiet: bool) -> WatchReading:
    """Read the sources, with a progress bar where that takes long."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress

    from grandrounds.capabilities.watch.at_sites.site_watch import PatientColumns
    from grandrounds.capabilities.watch.at_sites.sources import Source
    from grandrounds.cli.terminal import plain_column

    reading = patients.reading.merge(site_watch.run.plan["data"]["missing"])
    source = Source(patients.table, patients.query, reading)
    labels = None if patients.labels is None else Source(patients.labels, reading=reading)
    columns = PatientColumns(patients.label, patients.patient, patients.date)
    with Progress(
        plain_column("patients"), BarColumn(), MofNCompleteColumn(), console=Terminal(stderr=True), disable=quiet, transient=True
    ) as bar:
        task = bar.add_task("patients", total=None)
        return site_watch.read(
            source, columns, labels=labels, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _print(result: WatchReading, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        new = {"new": result.new, "new_labelled": result.labelled, "new_alarms": [a["id"] for a in result.alarms]}
        echo(json.dumps({**result.status, **new, "notes": list(result.notes), "folder": str(result.folder)}))
        return
    console = Terminal()
    if not quiet:
        for note in result.notes:
            echo(f"note: {note}", err=True)
        echo(f"{result.status['site']}: {result.new:,} new patients, {result.labelled:,} new outcomes")
        _show_checks(console, result.status)
    _show_alarms(console, result.status, result.alarms)
    if not quiet:
        earlier = len(result.open_alarms) - sum(alarm["state"] != "acknowledged" for alarm in result.alarms)
        if earlier:
            echo(f"{earlier} earlier alarm{'s are' if earlier > 1 else ' is'} open: `rounds watch show {result.folder}`")
        echo(f"files: {result.folder}")


def show(
    place: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run, or the folder of a watch.")],
    site: Annotated[str | None, typer.Option("--site", help="The hospital, where a run has several watches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print watch.json and nothing else.")] = False,
) -> None:
    """Show watches: patients, checks by group, and all alarms with their states.

    Example: `rounds watch show runs/heart-fedavg-seed0 --site cleveland`
    """
    from grandrounds.capabilities.watch.at_sites.record import STATUS
    from grandrounds.capabilities.watch.at_sites.signer import find_watch, list_watches
    from grandrounds.capabilities.watch.at_sites.status import read_status, refuse_damage

    watches = list_watches(place)
    folders = [find_watch(place, site)] if site is not None or not watches else list(watches.values())
    for folder in folders:
        if not as_json and not (folder / STATUS).exists():
            echo(f"{folder.parent.name}: no watch has started")
            _show_actions(folder)
            continue
        with refuse_damage(folder):
            status = read_status(folder)
            if as_json:
                echo(json.dumps(status))
                continue
            console = Terminal()
            echo(f"{status['site']}: {status['patients']:,} patients, {status['labelled']:,} of them with their outcome")
            for line in status["watched"]:
                echo(f"  {line}")
            _show_checks(console, status)
            _show_alarms(console, status, status["alarms"])
        _show_actions(folder)
        echo(f"files: {folder}")


def _show_actions(folder: Path) -> None:
    """Print the recorded actions, such as recalibrations."""
    from grandrounds.audit.watch_entry import ACTION
    from grandrounds.capabilities.watch.at_sites.record import LEDGER, WatchRecord

    if not (folder / LEDGER).exists():
        return
    with WatchRecord.open(folder) as record:
        for entry in [e for e in record.entries if e["kind"] == ACTION]:
            answers = f", for {entry['alarm']}" if entry["alarm"] else ""
            echo(f"action: {entry['action']} by {entry['by']} on {entry['date'][:10]}{answers}")


def _show_checks(console: Terminal, status: Mapping[str, Any]) -> None:
    """Print a line for each group of checks."""
    from rich.table import Table

    from grandrounds.capabilities.watch.at_sites.status import summarize_groups

    rate, reference = status["rate"]["alarms_per_5000"], status["reference"]
    title = f"{status['patients']:,} patients since the start, against {reference['source']}"
    caption = f"level: log evidence, an alarm at 0; false alarms of all checks: at most {rate:g} in 5,000 patients, by resampling"
    view = Table(title=title, caption=caption)
    for column in ("checks", "number", "status", "closest to an alarm", "level"):
        view.add_column(column, justify="right" if column in ("number", "level") else "left")
    for group in summarize_groups(status):
        closest, raised = group["closest"], group["alarms"]
        state = styled((f"{raised} open", "red")) if raised else styled(("no alarm", "green"))
        text, level = ("-", "-") if closest is None else (closest["text"], f"{closest['evidence']:.1f}")
        view.add_row(group["group"], str(group["checks"]), state, text, level)
    console.print(view)


def _show_alarms(console: Terminal, status: Mapping[str, Any], alarms: Sequence[Mapping[str, Any]]) -> None:
    """Print alarms in sentences, and what became of the change since."""
    from grandrounds.capabilities.watch.at_sites.alarm_states import OPEN
    from grandrounds.capabilities.watch.at_sites.words import percent
    from grandrounds.capabilities.watch.at_sites.words import show as show_number

    checks = {check["name"]: check for check in status["checks"]}
    for alarm in alarms:
        console.print(warn(f"{alarm['id']} ({alarm['state']}): {alarm['sentence']}", "alarm"), soft_wrap=True)
        for sentence in (alarm["since_sentence"], alarm["harm_sentence"]):
            console.print(f"  {sentence}", soft_wrap=True)
        check = checks.get(alarm["check"])
        if check is not None and None not in (check["current"], check["reference"]) and not alarm["labelled"]:
            form = percent if alarm["kind"] in ("missing", "unseen", "range") else show_number
            echo(f"  In the newest patients: {form(check['current'])}, in the reference: {form(check['reference'])}.")
        others = [checks[name]["text"] for name in alarm["others"] if name in checks][:3]
        if others:
            console.print(f"  At its limit as well: {'; '.join(others)}.", soft_wrap=True)
        for sentence in alarm["advice"]:
            console.print(f"  - {sentence}", soft_wrap=True)
        if alarm.get("state_text", OPEN) != OPEN:
            echo(f"  {alarm['state_text'][0].upper()}{alarm['state_text'][1:]}.")
