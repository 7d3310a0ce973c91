"""`rounds compare`: compare finished runs, or run several methods or models and compare them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Columns, Quiet, Reading, Set, TableFile, build_experiment, expand_options
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from rich.table import Table

    from grandrounds.analysis.compare import Comparison
    from grandrounds.analysis.comparison_plans import Plans
    from grandrounds.runs.run import Run


def register(app: typer.Typer) -> None:
    app.command()(reads_run(compare))


@expand_options
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN ... | [RECIPE | FILE.toml]",
            help="Run folders; with --methods or --models a recipe or a TOML file.",
        ),
    ] = [],  # noqa: B006
    methods: Annotated[str | None, typer.Option(help="Run these methods: fedavg,fedprox.")] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Run these models across the hospitals: logistic,gam,trees,card,forest,mlp; or all. Each takes its own method."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --methods or --models: seeds 0 to N-1 of each.")] = 5,
    vary: Annotated[
        list[str], typer.Option("--vary", help="Also run each of these values (repeatable): --vary split.fold=0,1,2.")
    ] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = max(1, (os.cpu_count() or 1)),
    metrics: Annotated[
        str | None, typer.Option(help="Metrics to show: decision_accuracy,auroc,worst_site_auroc.")
    ] = None,
    references: Annotated[
        bool, typer.Option(
            help="With --methods: also each site alone (local) and all rows in one place (pooled). With --models: also LightGBM "
            "and an EBM on pooled rows."
        )
    ] = True,
    virtual_seconds: Annotated[
        float | None,
        typer.Option(
            "--at", help="Compare after this many simulated seconds (engine.speed_spread) instead of at the end."
        ),
    ] = None,
    table: TableFile = None,
    columns: Columns = Columns(),
    reading: Reading = Reading(),
    settings: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison (default: runs/compare-NAME).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare finished runs, or run methods or models over seeds and compare them.

    Prints mean, standard deviation, Student-t 95% interval and CV over seeds and folds, and a paired t-test against the
    first method. Two references are run as well: each hospital alone, and all rows pooled (for tables also with
    LightGBM). A last table has the price: exchanges, bytes that a site sends, CPU time. The last lines say which arms
    differ from the first beyond chance. If it is interrupted, run the same command again: finished runs are not repeated.

    Example: `rounds compare breast-cancer --methods fedavg,fedprox --seeds 5`

    Example: `rounds compare heart --models logistic,gam,trees,card,forest,mlp`
    """
    from grandrounds.analysis.compare import check_metrics
    from grandrounds.analysis.compare import compare as join
    from grandrounds.analysis.comparison_plans import comparison_plans, model_plans, write_comparison
    from grandrounds.core.errors import BadInput
    from grandrounds.metrics.names import with_auroc
    from grandrounds.runs.run import Run

    chosen = with_auroc([m.strip() for m in metrics.split(",")]) if metrics else None
    if methods is not None and models is not None:
        raise BadInput("give --methods or --models, not both: one comparison has one question", code="conflicting-options")
    if methods is None and models is None:
        if len(runs) < 2:
            raise BadInput(
                "give at least two run folders, or methods or models to run: rounds compare RECIPE --methods fedavg,fedprox",
                code="too-few-runs",
            )
        result = join([Run(Path(r)) for r in runs], metrics=chosen, virtual_seconds=virtual_seconds)
    else:
        if len(runs) > 1:
            raise BadInput(
                "with --methods or --models give one recipe or TOML file, not several run folders", code="conflicting-options"
            )
        base = build_experiment(
            runs[0] if runs else "",
            table=table,
            columns=columns,
            reading=reading,
            settings=settings,
        )
        check_metrics(chosen or (), base.evaluation.metrics)
        names = [m.strip() for m in (methods or models or "").split(",") if m.strip()]
        make = comparison_plans if models is None else model_plans
        plans, labels = make(base, names, seeds=seeds, vary=vary, references=references)
        out = out or Path("runs") / f"compare-{base.name}"
        result = join(
            _run(plans, out, jobs=jobs, quiet=quiet or as_json),
            metrics=chosen,
            named=labels,
            virtual_seconds=virtual_seconds,
        )
    report = None if out is None else write_comparison(result, out, virtual_seconds=virtual_seconds)
    if as_json:
        echo(json.dumps(result.to_dict()))
    elif quiet:
        echo(str(out or ""))
    else:
        _show(result)
        if out is not None:
            echo(f"comparison: {out / 'comparison.json'}")
            echo(f"report: {report}")


def _headline(run: Run) -> str:
    """Name the metric that ranks runs of this task, with its value."""
    from grandrounds.cli.screen import number
    from grandrounds.metrics.names import metric_label
    from grandrounds.metrics.scores import HEADLINE

    metric = HEADLINE[run.summary.task]
    return f"{metric_label(metric)} {number(run.summary.final[metric], 3)}"


def _run(plans: Plans, out: Path, *, jobs: int, quiet: bool) -> list[Run]:
    from grandrounds.cli.screen import runs_bar
    from grandrounds.runs.batch import run_all

    with runs_bar(quiet=quiet) as bar:
        task = bar.add_task("", total=len(plans))
        bar.update(task, description=f"{jobs} at a time")

        def show_progress(name: str, run: Run) -> None:
            bar.update(task, advance=1, description=f"{name}: {_headline(run)}")

        return run_all(plans, out, jobs=jobs, progress=show_progress)


def _show(result: Comparison) -> None:
    from rich.table import Table

    from grandrounds.cli.screen import number
    from grandrounds.cli.terminal import Terminal, warn
    from grandrounds.metrics.names import metric_label

    console = Terminal()
    console = Terminal(width=max(console.width, 110))
    for sentence in result.warnings:
        console.print(warn(sentence), soft_wrap=True)
    for note in result.notes:
        console.print(note, highlight=False, soft_wrap=True)
    for metric in result.metrics:
        table = Table(title=metric_label(metric), title_justify="left")
        for column in ("", "n", "mean", "std", "95% CI", "CV %", f"difference to {result.arms[0].label} (paired)", "p"):
            table.add_column(column, justify="left" if not column else "right")
        for arm in result.arms:
            s, pair = result.summary(arm, metric), result.paired(arm, metric)
            none = f"{s.n} runs: no interval" if s.n == 2 else "-"
            interval = none if s.low != s.low else f"{_format(s.low)} to {_format(s.high)}"
            cells = [arm.label, str(s.n), _format(s.mean), _format(s.std), interval, _format(s.cv, 2)]
            if pair is None or pair.difference != pair.difference:
                cells += ["", ""]
            else:
                cells += [
                    f"{pair.difference:+.4f}"
                    + ("" if pair.low != pair.low else f" [{_format(pair.low)}, {_format(pair.high)}]"),
                    number(pair.p, 3) if pair.p == pair.p else "-",
                ]
            table.add_row(*cells)
        console.print(table)
    console.print(_price_table(result))
    for sentence in result.conclusion:
        console.print(sentence, highlight=False, soft_wrap=True)


def _price_table(result: Comparison) -> Table:
    """Make the table of what each arm costs, beside the metric that ranks models."""
    from rich.table import Table

    from grandrounds.analysis.comparison_page import format_bytes
    from grandrounds.metrics.names import metric_label

    metric = result.headline
    table = Table(title="Price: means over runs", title_justify="left")
    for column in ("", metric_label(metric), "95% CI", "exchanges", "sent by a site", "CPU seconds of a run"):
        table.add_column(column, justify="left" if not column else "right")
    for arm in result.arms:
        s, price = result.summary(arm, metric), result.price(arm)
        interval = "-" if s.low != s.low else f"{_format(s.low)} to {_format(s.high)}"
        sent = "-" if price.bytes_up is None else format_bytes(price.bytes_up)
        sent_cells = ["rows leave", "all rows"] if price.exchanges is None else [f"{price.exchanges:,.0f}", sent]
        seconds = "-" if price.cpu_seconds is None else f"{price.cpu_seconds:,.1f}"
        table.add_row(arm.label, _format(s.mean), interval, *sent_cells, seconds)
    return table


def _format(value: float, digits: int = 4) -> str:
    return "-" if value != value else f"{value:.{digits}f}"
