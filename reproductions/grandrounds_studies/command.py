"""`rounds reproduce`: what a paper says, what comes out here, and whether each of its claims holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds_studies.carried import Carried


_ACROSS = 6
"""Measures that fit beside each other."""

_WIDE = 160
"""Characters that a table may take on a narrower screen."""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SYSTEM/WHAT]", help="A study (`rounds list studies`); with --list or --all systems."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="A line for each study as it came out in full: published, ours, verdict.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Run every study, or those of some systems, with a line for each.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small version that shows how it goes, in seconds.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds, or folds, 0 to N-1 of each arm (default: its own).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time (default: as many as there are cores).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The study's folder (default: runs/reproduce/SYSTEM/WHAT); with --all that of all of them."),
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(help="Write the plans of its missing runs to this file, for another machine, and run nothing."),
    ] = None,
    planned: Annotated[
        Path | None, typer.Option("--from", help="Run the plans of this file, and nothing else, into --out.")
    ] = None,
    imported: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="Add readings of another machine: readings.json, or its folder; with --all a folder of SYSTEM/WHAT. "
            "Runs nothing. May be given several times.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
) -> None:
    """Run what a paper ran, and hold its figures and claims against what comes out.

    Prints published figure, ours (mean over seeds with a 95% interval), and a verdict on each claim; writes results.json
    and report.html. Interrupted, it goes on where it was: finished runs are not run again.

    A full study takes minutes to hours on two cores, a `--quick` one seconds to minutes. Where progress cannot be drawn, as in
    a file, it is a line for each run that ends, at most one in ten seconds.

    All of them: `rounds reproduce --list` shows what came out in full, `rounds reproduce --all --quick` runs small versions.

    With more --seeds than were run, only the missing ones are run.

    Elsewhere: `rounds reproduce NAME --plans p.json` here, `python -m grandrounds_studies --from p.json --out F` there,
    bring F/readings.json back, `rounds reproduce NAME --import F`. Parts from several machines are imported one by one.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds_studies import folder_of, load_study
    from grandrounds_studies import reproduce as run_study
    from grandrounds_studies.carried import Carried
    from grandrounds_studies.kept import Kept

    given = {"--quick": quick, "--seeds": seeds, "--jobs": jobs, "--out": out, "--plans": plans, "--from": planned}
    options = {k for k, v in given.items() if v} | ({"--import"} if imported else set())
    _refuse_both(names or [], options, listed=listed, everything=everything)
    jobs = jobs or max(1, os.cpu_count() or 1)
    if listed:
        from grandrounds_studies.book_view import show_book

        show_book(names or [], as_json=as_json)
        return
    if imported:
        _import(names or [], imported, everything=everything, quick=quick, out=out)
        return
    if everything:
        _everything(names or [], quick=quick, seeds=seeds, jobs=jobs, out=out, as_json=as_json)
        return
    name = names[0] if names else ""
    if planned is not None:
        carried = Carried.load(planned)
        if name and name != carried.study:
            raise BadInput(f"{planned} holds plans of {carried.study}, not of {name}")
        if plans is not None:
            raise BadInput("--plans writes plans and --from runs them: give one")
        _elsewhere(carried, out or folder_of(carried.study, quick=carried.quick), jobs=jobs, quiet=as_json)
        return
    if not name:
        _list()
        return
    chosen = load_study(name, quick=quick)
    if plans is not None:
        here = Kept.read(out or folder_of(name, quick=quick))
        carried = Carried.of(chosen, quick=quick, seeds=chosen.seeds if seeds is None else seeds, kept=here)
        carried.write(plans)
        echo(
            f"{plans}: {len(carried.plans)} runs; there: python -m grandrounds_studies --from {plans} --out FOLDER",
            err=True,
        )
        return
    folder = out or folder_of(name, quick=quick)
    before = os.times()
    with _bar(quiet=as_json) as progress:
        results = run_study(name, quick=quick, seeds=seeds, jobs=jobs, out=folder, progress=progress)
    values = results.to_dict()
    if as_json:
        echo(json.dumps(values))
        return
    show(values)
    spent = sum(os.times()[:4]) - sum(before[:4])  # of this process and of those it started
    echo(f"CPU time of this command: {spent:.0f} s (stored runs take none)")
    echo(f"results: {folder / 'results.json'}")
    echo(f"report: {folder / 'report.html'}")


def _refuse_both(names: list[str], given: set[str], *, listed: bool, everything: bool) -> None:
    """Refuse what cannot be meant together."""
    from grandrounds.core.errors import BadInput

    if listed and everything:
        raise BadInput("--list shows what came out in full and --all runs: give one")
    if listed and given:
        raise BadInput(f"--list shows what came out in full and runs nothing: leave out {', '.join(sorted(given))}")
    if "--import" in given and (more := sorted(given - {"--import", "--out", "--quick"})):
        raise BadInput(f"--import adds readings and runs nothing: leave out {', '.join(more)}")
    if "--import" in given and not (everything or names):
        raise BadInput("--import needs the name of the study that the readings are of, or --all")
    carried = sorted(given & {"--plans", "--from"})
    if everything and carried:
        raise BadInput(f"{carried[0]} is of one study: leave out --all and name it")
    if len(names) > 1 and not (listed or everything):
        raise BadInput(f"one study at a time, not {len(names)}: --all runs every study of the systems that are named")


def _everything(
    systems: list[str], *, quick: bool, seeds: int | None, jobs: int, out: Path | None, as_json: bool
) -> None:
    from grandrounds_studies.book_view import run_everything
    from grandrounds_studies.everything import chosen

    bar = partial(_bar, quiet=as_json, stays=False)
    if not run_everything(chosen(systems), quick=quick, seeds=seeds, jobs=jobs, out=out, as_json=as_json, bar=bar):
        raise typer.Exit(1)


def _import(names: list[str], paths: list[Path], *, everything: bool, quick: bool, out: Path | None) -> None:
    """Add readings from files; with `everything` from all studies below a folder."""
    from grandrounds.core.errors import BadInput
    from grandrounds_studies import folder_of, load_study
    from grandrounds_studies.everything import chosen, folder_in
    from grandrounds_studies.kept import READINGS, Kept

    wanted = [s.name for s in chosen(names)] if everything else names
    found = False
    for name in wanted:
        folder = folder_in(out, name, quick=quick) if everything else out or folder_of(name, quick=quick)
        for path in paths:
            place = path / name if everything else path
            files = [f for f in (place, place / READINGS, place.with_name(f"{place.name}.json.gz")) if f.is_file()]
            if files:
                found = True
                study = load_study(name, quick=quick)
                kept = Kept.read(folder)
                echo(f"{name}: {kept.take(study, files[0])}; whole {study.repeats.word}s: {kept.seeds(study)} of {study.seeds}")
    if not found:
        raise BadInput(f"no {READINGS} in {', '.join(map(str, paths))}")


def _list() -> None:
    from grandrounds_studies import studies

    width = max(map(len, studies()))
    for name, study in studies().items():
        echo(f"{name:<{width}}  {study.title}")


def _elsewhere(carried: Carried, out: Path, *, jobs: int, quiet: bool) -> None:
    from grandrounds_studies import load_study

    with _bar(quiet=quiet) as progress:
        failed = carried.run(load_study(carried.study, quick=carried.quick), out, jobs=jobs, progress=progress)
    for why in failed.values():
        echo(f"failed: {why}", err=True)
    echo(f"{out / 'readings.json'}: {len(carried.plans) - len(failed)} of {len(carried.plans)} runs")
    if failed:
        raise typer.Exit(1)


@contextmanager
def _bar(*, quiet: bool, stays: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar over runs; what it gives is called with a sentence about each that ends. `stays`: after the last."""
    from grandrounds.cli.screen import runs_bar

    try:
        with runs_bar(quiet=quiet) as bar:
            bar.live.transient = not stays
            task = bar.add_task("", total=None, visible=False)
            yield lambda text, ended, total: bar.update(
                task, completed=ended, total=total, description=text, visible=True
            )
    except KeyboardInterrupt:
        echo("stopped; what is done is on disk: the same command goes on", err=True)
        raise


def show(values: Mapping[str, Any]) -> None:
    """The whole of results.json for a person: figures, then verdicts, then what is to be known of both."""
    from grandrounds.cli.terminal import Terminal, warn
    from grandrounds_studies.wording import QUICK, shown_claims

    console = Terminal(soft_wrap=True)
    console.print(f"{values['study']}: {values['title']}", style="bold")
    console.print(f"{values['source']}", style="dim")
    if values["quick"]:
        console.print(QUICK, style="bold yellow")
    for point, why in values["left_out"].items():
        console.print(warn(f"{point}, because {why}", "left out:"))
    if values["unpublished"]:
        console.print(f"published: {values['unpublished']}")
    for point in dict.fromkeys(f["point"] for f in values["figures"]):
        _table(console, values, point)
    claims, others = shown_claims(values)
    _verdicts(console, claims, values["repeats"])
    if others:
        console.print(f"\n{others}", markup=False)
    for line in values["remarks"]:
        console.print(f"note: {line}")
    for why in values["failed"].values():
        console.print(warn(why, "failed:"))


def _table(console: Console, values: Mapping[str, Any], point: str) -> None:
    """Arms down and measures across; with many measures the other way round, where the arms' names fit beside each other."""
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal
    from grandrounds_studies.wording import repeats_words

    head, lines = _lines(values, point)
    names = sum(max(map(len, label)) + 3 for label, _ in lines)
    if len(head) > _ACROSS and names + max(map(len, head)) < _WIDE:
        flat = [["", *("\n".join(label) for label, _ in lines)]]
        flat += [[name, *(cells[k] for _, cells in lines)] for k, name in enumerate(head)]
    else:
        flat = [["", "", *head]] + [[*label, *cells] for label, cells in lines]
    table = Table(title=f"{point}; ours: mean ± 95% interval over {repeats_words(values)}", title_justify="left")
    for k, name in enumerate(flat[0]):
        table.add_column(name, justify="right" if k and name else "left", no_wrap=bool(k))
    for row in flat[1:]:
        table.add_row(*row)
    Terminal(width=max(console.width, _WIDE)).print(table)


def _lines(values: Mapping[str, Any], point: str) -> tuple[list[str], list[tuple[tuple[str, str], list[str]]]]:
    """Return the names of measures, and for each arm the published figures, if any, and ours."""
    from grandrounds_studies.wording import cell_words, published_words, shown_figures

    by = {(f["arm"], f["measure"]): f for f in shown_figures(values, point)}
    measures = list(dict.fromkeys(m for _, m in by))
    lines = []
    for arm in dict.fromkeys(a for a, _ in by):
        published = [by[arm, m]["published"] for m in measures]
        if any(p is not None for p in published):
            lines.append(((arm, "published"), [published_words(p) for p in published]))
        ours = [cell_words(by[arm, m], values["measures"][m]["digits"]) for m in measures]
        lines.append((("" if lines and lines[-1][0] == (arm, "published") else arm, "ours"), ours))
    return [values["measures"][m]["words"] for m in measures], lines


def _verdicts(console: Console, claims: list[Mapping[str, Any]], repeat: str) -> None:
    from grandrounds.cli.terminal import styled
    from grandrounds_studies.study import FAILS, HOLDS
    from grandrounds_studies.wording import why_words

    colour = {HOLDS: "green", FAILS: "red"}
    before = ""
    for c in claims:
        if c["claim"] != before:
            console.print(f'\n"{c["claim"]}" ({c["where"]})', markup=False)
        before = c["claim"]
        word, why = c["verdict"], why_words(c, repeat)
        shade = colour.get(word, "yellow")
        console.print(styled(f"  {c['arm']}: ", (word, f"bold {shade}"), f": {why}"))
