"""`rounds run`, `rounds resume`, `rounds plan`: train, continue a run, write the resolved experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import (
    AddedOptions,
    ExperimentOptions,
    Json,
    Quiet,
    Set,
    TrustCode,
    Verbose,
    expand_options,
    show_reading,
)
from grandrounds.cli.terminal import echo, reads_run, show_progress

if TYPE_CHECKING:
    from grandrounds.cli.screen import Watch
    from grandrounds.runs.run import Run


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(reads_run(resume, verified=False))
    app.command()(plan)


@expand_options
def run(
    options: ExperimentOptions = ExperimentOptions(),
    out: Annotated[Path | None, typer.Option(help="Run folder (default: runs/DATA-METHOD-seedN).")] = None,
    added: AddedOptions = AddedOptions("run"),
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train across hospitals: a recipe, a TOML file, or your own table.

    Examples: `rounds run` -- `rounds run heart --set method.name=fedprox` --
    `rounds run patients.csv --label died --site hospital --drop note,bed --guard` --
    `rounds run heart --model mlp --personal ditto`
    """
    experiment = options.build()
    from grandrounds.runs.run import run as start

    with show_progress(quiet or as_json), _watch(quiet or as_json) as progress:
        finished_run = start(experiment, out=out, progress=progress)
    _report(finished_run, as_json=as_json, quiet=quiet, verbose=verbose)
    added.finish(finished_run, quiet=quiet or as_json)


@expand_options
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    settings: Set = [],  # noqa: B006
    added: AddedOptions = AddedOptions("resume"),
    trust_code: TrustCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue an interrupted run. The model is bit for bit that of a run without interruption.

    `--set method.rounds=40` trains for more rounds. Settings of engine and evaluation may change too.
    """
    from grandrounds.runs.run import resume as continue_run

    with _watch(quiet or as_json) as progress:
        finished_run = continue_run(folder, settings=settings, progress=progress, trust_code=trust_code)
    _report(finished_run, as_json=as_json, quiet=quiet, verbose=verbose)
    added.finish(finished_run, quiet=quiet or as_json)


@expand_options
def plan(
    options: ExperimentOptions = ExperimentOptions(),
    out: Annotated[Path | None, typer.Option(help="File to write the plan to (default: standard output).")] = None,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Write the table next to the plan, for a machine without it.")
    ] = False,
) -> None:
    """Write the experiment with all settings as JSON. `python -m grandrounds.job PLAN.json --out RUN` runs it."""
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    experiment = options.build()
    values = experiment.plan()
    if with_data:
        if out is None:
            raise BadInput(
                "--with-data writes a file next to the plan: name the plan with --out PLAN.json", code="missing-option"
            )
        from grandrounds.core.plan_types import Plan
        from grandrounds.data.loading import read_data
        from grandrounds.data.row_files import write_bundle

        rows = read_data(Plan({**values, "data": {**values["data"], "table": experiment.data.table}}).data)
        show_reading(rows)
        values["data"] |= {"name": None, "table": write_bundle(rows, out).name, "query": None, "pictures": None}
    text = json.dumps(values, indent=1)
    if out is None:
        echo(text)
    else:
        try:
            write_atomic(out, text.encode() + b"\n")
        except OSError as e:
            raise BadInput(f"cannot write {out}: {e.strerror or e}", code="cannot-write") from None
        echo(f"{out}: run it with  python -m grandrounds.job {out} --out RUN", err=True)


def _watch(quiet: bool) -> Watch:
    from grandrounds.cli.screen import Watch
    from grandrounds.cli.terminal import Terminal

    return Watch(Terminal(stderr=True), quiet=quiet)


def _report(run: Run, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Print the result of a run."""
    if as_json:
        echo(json.dumps(run.summary))
        return
    if not quiet:
        from grandrounds.cli.screen import print_own_result, show_summary
        from grandrounds.cli.terminal import Terminal

        console = Terminal()
        if verbose or not print_own_result(run):
            show_summary(console, run.summary, verbose=verbose)
        console.print(f"report: {run.folder / 'report.html'}", highlight=False, soft_wrap=True)
        console.print(f"run folder: {run.folder}", highlight=False, soft_wrap=True)
    else:
        echo(str(run.folder))
