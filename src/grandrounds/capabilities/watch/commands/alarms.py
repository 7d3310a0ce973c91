"""`rounds watch acknowledge`, `silence` and `act`: decisions of people about alarms, signed into the record of a watch."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.capabilities.watch.at_sites.record import WatchRecord

Place = Annotated[
    Path, typer.Argument(metavar="FOLDER|RUN", help="The folder of a watch, of a site, or of a run with watches.")
]
Site = Annotated[str | None, typer.Option(help="The site, where a run has several watches; 3 is site-03.")]
By = Annotated[str, typer.Option(help="Person who decides.")]
Note = Annotated[str, typer.Option(help="A remark for the record.")]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The site's private key (default: keys/site.key beside the watch; a simulation has one)."),
]
RunFolder = Annotated[
    Path | None, typer.Option("--run", metavar="RUN", help="The run's folder, for a simulated watch outside of it.")
]


def register(app: typer.Typer) -> None:
    app.command("watch acknowledge")(acknowledge)
    app.command("watch silence")(silence)
    app.command("watch act")(act)


def acknowledge(
    place: Place,
    alarm: Annotated[str, typer.Option(help="The alarm, such as A1.")],
    by: By,
    note: Note = "",
    site: Site = None,
    key: Key = None,
    run: RunFolder = None,
) -> None:
    """Acknowledge an alarm of a watch: nobody is notified of it any more, and the record has the name and the note.

    Example: `rounds watch acknowledge runs/heart --site va --alarm A1 --by "M. Curie" --note "new monitor, unit is corrected"`
    """
    with _open(place, site, key, run) as record:
        done = record.acknowledge(alarm, by=by, note=note)
        _write_metrics(record)
    echo(f"{done.id}: {done.content['sentence']}")
    echo(done.state_sentence)


def silence(
    place: Place,
    check: Annotated[str, typer.Option(help="The check, as `rounds watch show` names it.")],
    by: By,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Day on which the silence ends, at its end (UTC): 2026-12-31.")
    ] = None,
    patients: Annotated[int | None, typer.Option(min=1, help="Number of further patients after which it ends.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End the silence of this check now.")] = False,
    note: Note = "",
    site: Site = None,
    key: Key = None,
    run: RunFolder = None,
) -> None:
    """Silence a check of a watch for a time: its alarms are recorded, but call no command and change no exit code.

    A later silence of the same check replaces this one. When it ends, alarms that nobody acknowledged are open again.

    Example: `rounds watch silence runs/heart --site va --check "age up" --until 2026-12-31 --by "M. Curie" --note "known"`
    """
    ends = _end_of(until, end=end)
    with _open(place, site, key, run) as record:
        done = record.silence(check, by=by, note=note, until=ends, patients=patients)
        _write_metrics(record)
    echo(f"'{check}' is not silenced any more" if end else f"'{check}' is {done.sentence}")


def act(
    place: Place,
    action: Annotated[str, typer.Option(help="The action in a few words: retraining, repaired column, ...")],
    by: By,
    alarm: Annotated[str | None, typer.Option(help="The alarm that it answers, such as A1.")] = None,
    note: Note = "",
    site: Site = None,
    key: Key = None,
    run: RunFolder = None,
) -> None:
    """Record an action, such as a repaired column; the alarm that it answers is acknowledged.

    `rounds recalibrate` records its own action.

    Example: `rounds watch act runs/heart --site va --alarm A1 --action "unit of chol corrected in the export" --by IT`
    """
    with _open(place, site, key, run) as record:
        record.act(action, by=by, alarm=alarm, note=note)
        _write_metrics(record)
    echo(f"recorded for {alarm}: {action}" if alarm else f"recorded: {action}")


def _open(place: Path, site: str | None, key: Path | None, run: Path | None) -> WatchRecord:
    """Open the record of a watch with the site's key."""
    from grandrounds.capabilities.watch.at_sites.record import WatchRecord
    from grandrounds.capabilities.watch.at_sites.signer import find_signer, find_watch
    from grandrounds.core.errors import BadInput

    folder = find_watch(place, site)
    with WatchRecord.open(folder) as record:
        started = record.started
    if started is None:
        raise BadInput(f"the watch in {folder} has not started, so it has no alarms", code="no-watch-record")
    return WatchRecord.open(folder, signer=find_signer(folder, site=str(started["site"]), run=run, key=key))


def _write_metrics(record: WatchRecord) -> None:
    """Write the metrics with the new states, where the watch has read patients."""
    from grandrounds.capabilities.watch.at_sites.metrics import write_metrics
    from grandrounds.capabilities.watch.at_sites.record import STATUS

    if (record.folder / STATUS).exists():
        write_metrics(record.folder, record)


def _end_of(until: str | None, *, end: bool) -> datetime | None:
    """Return the time at which a silence ends: the end of a day, or now."""
    from grandrounds.core.errors import BadInput

    if end:
        if until is not None:
            raise BadInput("--end ends the silence now, and --until on a day: give one of the two", code="conflicting-options")
        return datetime.now(UTC)
    if until is None:
        return None
    try:
        ends = datetime.combine(date.fromisoformat(until), datetime.min.time(), UTC) + timedelta(days=1)
    except ValueError:
        raise BadInput(f"--until {until} is not a day: write it as 2026-12-31", code="bad-date") from None
    if ends <= datetime.now(UTC):
        raise BadInput(f"--until {until} is over: name a later day, or end the silence with --end", code="bad-date")
    return ends
