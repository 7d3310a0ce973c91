"""`rounds tune`: hyperparameter search on validation rows, with its privacy cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Columns, Reading, Seed, Set, Source, TableFile, build_experiment, expand_options
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.capabilities.tuning.trial import Trial, TuningResult


_SHOWN = 5


def register(app: typer.Typer) -> None:
    app.command()(tune)


@expand_options
def tune(
    source: Source = "",
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials (default: 50).")] = None,
    space: Annotated[
        list[str],
        typer.Option(
            "--space", help="Search space of a setting: train.lr=1e-3..1:log, or method.mu=0.001,0.01,0.1 (repeatable)."
        ),
    ] = [],  # noqa: B006
    metric: Annotated[
        str | None, typer.Option(help="Metric on the validation rows (default: auroc for two classes, else accuracy).")
    ] = None,
    direction: Annotated[str | None, typer.Option(help="maximize or minimize (default: by the metric).")] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Share of the training and validation rows to tune on, such as 0.2 (default: 1)."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Tune on another data set: of the catalog, a file, or module:function.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials in parallel, each in its own process.")] = 1,
    table: TableFile = None,
    columns: Columns = Columns(),
    reading: Reading = Reading(),
    settings: Set = [],  # noqa: B006
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the search (default: runs/tune/NAME).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the path of best.toml and nothing else.")] = False,
) -> None:
    """Search for the settings with the best score on validation rows; test rows are not used.

    The search space is --space, or [tune.space] of the file, or else the default space of the method. Writes best.toml
    (the experiment with the best settings) and results.json. If it is interrupted, or to add trials with --trials, run
    the same command again.

    Examples: `rounds tune breast-cancer` -- `rounds tune heart --trials 20 --space train.lr=1e-3..1:log`
    """
    from grandrounds.capabilities.tuning.space import parse_space
    from grandrounds.capabilities.tuning.tune import tune as search
    from grandrounds.core.errors import BadInput

    column_options = [name for name, value in vars(columns).items() if value is not None]
    if table is None and column_options:
        raise BadInput(
            f"--{column_options[0]} is for a table: add --table FILE, or use --set "
            f"data.{column_options[0]}=... for an experiment",
            code="missing-option",
        )
    experiment = build_experiment(source, table=table, columns=columns, reading=reading, settings=settings, seed=seed)
    sought = {**experiment.tune.space, **parse_space(space)} if space else None
    with _bar(quiet=quiet or as_json) as progress:
        tuned = search(
            experiment,
            trials=trials,
            space=sought,
            out=out,
            metric=metric,
            direction=direction,
            share=share,
            data=data,
            jobs=jobs,
            progress=progress,
        )
    if as_json:
        echo((tuned.folder / "results.json").read_text())
    elif quiet:
        echo(str(tuned.folder / "best.toml"))
    else:
        _show(tuned)


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar over trials; failures stay on the screen, a success is replaced by the next."""
    from grandrounds.cli.screen import runs_bar

    bar = runs_bar(quiet=quiet)
    task = bar.add_task("", total=None, visible=False)

    def show_progress(text: str, ended: int, total: int) -> None:
        bar.start()
        if " failed: " in text and not quiet:
            bar.console.print(text, style="yellow", highlight=False)
        bar.update(task, completed=ended, total=total, visible=True, description=text or None)

    try:
        yield show_progress
    except KeyboardInterrupt:
        echo("stopped; finished trials are saved: the same command continues the search", err=True)
        raise
    finally:
        if bar.live.is_started:
            bar.stop()


def _show(tuned: TuningResult) -> None:
    """Print the best five trials, the importance of settings, the privacy cost, and the file of the best experiment."""
    from rich.table import Table

    from grandrounds.cli.screen import number
    from grandrounds.cli.terminal import Terminal, warn
    from grandrounds.metrics.names import metric_label

    console = Terminal(soft_wrap=True)
    ranking, failures = tuned.ranking, tuned.failures
    name = metric_label(tuned.goal.metric)
    title = f"{tuned.experiment.name}: best of {len(tuned.trials)} trials, by {name} of {tuned.rows} validation rows"
    console.print(title, style="bold")
    shown = Table()
    shown.add_column("trial", justify="right")
    shown.add_column(name, justify="right")
    for setting in tuned.searched:
        shown.add_column(setting, justify="right")
    for trial in ranking[:_SHOWN]:
        shown.add_row(str(trial.number), number(trial.value), *(_word(trial, s) for s in tuned.searched))
    needed = 30 + sum(len(setting) + 3 for setting in tuned.searched)
    Terminal(width=max(console.width, needed)).print(shown)
    for line in _remarks(tuned):
        console.print(line)
    if failures:
        first = failures[0]
        console.print(warn(f"trial {first.number}: {first.failed}", f"{len(failures)} failed and count as worst:"))
    console.print(f"privacy: {tuned.privacy['statement']}", style="dim")
    console.print(f"all trials: {tuned.folder / 'results.json'}")
    console.print(f"run the best: rounds run {tuned.folder / 'best.toml'}")


def _remarks(tuned: TuningResult) -> Iterator[str]:
    if tuned.importance:
        parts = ", ".join(f"{name} {share:.0%}" for name, share in tuned.importance.items())
        yield f"importance of settings (share of the variance): {parts}"
    first = tuned.trials[0]
    if first.value is not None:
        yield f"trial 0, the experiment without changes: {first.value:.4f}"
    again = sum(t.same_as is not None for t in tuned.trials)
    if again:
        yield f"trials with settings that were tried before, not repeated: {again}"
    if tuned.equals > 1:
        alike = "all of them" if tuned.equals == len(tuned.ranking) else f"{tuned.equals} settings"
        yield f"{alike} have the best score on these rows; the first is used"
    folds = tuned.experiment.split.scheme in ("group-kfold", "leave-one-site-out")
    if folds and not tuned.privacy.get("elsewhere"):
        yield "tuned without the test hospitals of fold 0; in other folds the search has used the test hospitals"


def _word(trial: Trial, setting: str) -> str:
    if setting not in trial.settings:
        return "not set"
    value = trial.settings[setting]
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
