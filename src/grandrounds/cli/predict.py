"""`rounds predict`, `rounds evaluate`, `rounds export`: use the model of a finished run."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import NewRows, Personal, TrustCode, Withdrawn, expand_options, use_personal
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.core.arrays import Array
    from grandrounds.data.images import ImageSet
    from grandrounds.data.table import Table
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
ForSite = Annotated[
    str | None,
    typer.Option(
        "--for", help="Use the model of this site (3 is site-03), where sites have separate, fine-tuned or personal models."
    ),
]


def _refuse_invalid(run: Run, *, withdrawn: bool) -> None:
    """Refuse a model that the register of models calls withdrawn or not valid, unless it is used all the same.

    Raises:
        BadInput: It does.
    """
    from grandrounds.core.capability import collect, load
    from grandrounds.core.errors import BadInput

    banner = collect("model_register").get("banner")
    warning = load(banner)(run.folder) if banner else ""
    if warning and not withdrawn:
        raise BadInput(f"{run.folder}: {warning} (--withdrawn uses it all the same)", code="model-not-valid")
    if warning:
        echo(f"warning: {warning}", err=True)


def _model(run: Run, site: str | None, personal: Path | None = None, *, withdrawn: bool) -> TrainedModel:
    """Return the model of a site; print a note if it is one that no site uses."""
    _refuse_invalid(run, withdrawn=withdrawn)
    site = use_personal(run, site, personal)
    model = run.model_for(site)
    if run.withdrawn is not None:
        echo(f"warning: the model is not valid: {run.withdrawn.sentence}", err=True)
    if run.summary.personal and site is not None and run.personal_file(site) is None:
        echo(
            f"note: this is the common model: {site}'s personal model is at the hospital (--personal FOLDER uses it there)",
            err=True,
        )
    if site is None and run.summary.personal:
        echo(
            "note: this is the common model; sites deploy personal models in this run (choose a site's with --for SITE)", err=True
        )
    if site is None and run.summary.models and not run.summary.finetuned:
        echo(
            "note: sites have separate models in this run; this is their mean (choose a site's with --for SITE)",
            err=True,
        )
    return model


def _name_visits(rows: Table | ImageSet) -> dict[str, Array]:
    """Return patient and start of each visit where the rows were made from clinical records, which have no row numbers."""
    from grandrounds.data.images import ImageSet

    if isinstance(rows, ImageSet) or rows.reading is None:
        return {}
    return {name: rows.columns[name] for name in rows.reading.row_names}


def register(app: typer.Typer) -> None:
    app.command()(reads_run(predict, prints_data=True))
    app.command()(reads_run(evaluate))
    app.command()(reads_run(export))


@expand_options
def predict(
    run: RunFolder,
    new: NewRows,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file (default: standard output).")] = None,
    task: Annotated[str, typer.Option(help="One of the model's further tasks (default: the main one).")] = "",
    site: ForSite = None,
    personal: Personal = None,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
) -> None:
    """Predict new patients: for each row the risk of the event (or the probability of each class) and the decision.

    Of other tasks than classification one number: the predicted number, the expected count, or for survival the log
    hazard as a risk score (higher: an earlier event).

    Probabilities are calibrated where the run was (evaluation.calibrate). A correction by group of patients is applied where the
    run has one (evaluation.mitigation), and a note says so. The columns must be those of the training data; a label is not
    needed.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    finished_run = Run(run, trust_code=trust_code, withdrawn=withdrawn)
    finished_run.refuse_withdrawn()
    rows = new.read(finished_run, pending=True)
    prediction = _model(finished_run, site, personal, withdrawn=withdrawn).predict(rows, task=task, corrected=True)
    for note in prediction.notes:
        echo(f"note: {note}", err=True)
    if prediction.event is not None:
        echo(prediction.event.line, err=True)
    columns = {**_name_visits(rows), **prediction.columns}
    try:
        stream = out.open("w", newline="", encoding="utf-8") if out else sys.stdout
    except OSError as e:
        raise BadInput(f"cannot write {out}: {e.strerror or e}", code="cannot-write") from None
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", *columns])
    lines = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    for i, line in enumerate(lines, start=1):
        writer.writerow([i, *(f"{v:.6f}" if isinstance(v, float) else v for v in line)])
    if out:
        stream.close()
        echo(f"{len(lines)} rows scored: {out}", err=True)


@expand_options
def evaluate(
    run: RunFolder,
    new: NewRows,
    model_site: ForSite = None,
    personal: Personal = None,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Validate a finished run's model externally, on another hospital's labelled rows."""
    from grandrounds.core.arrays import plain
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import overlap_warnings

    finished_run = Run(run, trust_code=trust_code, withdrawn=withdrawn)
    finished_run.refuse_withdrawn()
    rows = new.read(finished_run)
    result = plain(_model(finished_run, model_site, personal, withdrawn=withdrawn).evaluate(rows))
    result["warnings"] = overlap_warnings(finished_run, rows)
    if as_json:
        echo(json.dumps(result))
        return
    from rich.table import Table

    from grandrounds.cli.screen import number, with_interval
    from grandrounds.cli.terminal import Terminal, warn
    from grandrounds.core.outcome import CLASSIFICATION
    from grandrounds.data.event import Event
    from grandrounds.metrics import Place, shown_in
    from grandrounds.metrics.fairness import decision_metric
    from grandrounds.metrics.names import metric_label

    console, test_scores = Terminal(), finished_run.summary.final
    view = Table(title=f"{new.table}: {result['overall']['count']:.0f} rows")
    for column in ("metric", "here", "in the run's own test"):
        view.add_column(column, justify="left" if column == "metric" else "right")
    task = result.get("task", CLASSIFICATION)
    for metric in shown_in(Place.SCREEN, task):
        value = decision_metric(metric, result["overall"])
        if value is not None:
            view.add_row(metric_label(metric), number(value), number(decision_metric(metric, test_scores)))
    console.print(view)
    if result["event"]:
        console.print(Event.from_dict(result["event"]).line, soft_wrap=True)
    if len(result["per_site"]) > 1:
        for site, m in result["per_site"].items():
            if task != CLASSIFICATION:
                columns = shown_in(Place.SCREEN_SITES, task)
                figures = ", ".join(f"{metric_label(k)} {number(m[k], 3)}" for k in columns)
                console.print(f"{site}: {m['count']:.0f} rows, {figures}")
                continue
            console.print(
                f"{site}: {m['count']:.0f} rows, AUROC {with_interval(m, 'auroc')}, "
                f"accuracy {number(decision_metric('accuracy', m))} (majority {number(m['majority'])})"
            )
    for note in result["notes"]:
        console.print(f"note: {note}", style="dim", highlight=False)
    for warning in result["warnings"]:
        console.print(warn(warning), soft_wrap=True)


def export(
    run: RunFolder,
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="onnx, or json with the coefficients and the preprocessing; of model 'trees' also lightgbm and xgboost.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write (default: RUN/model.onnx, .json, .lightgbm.txt or .xgboost.json)."),
    ] = None,
    model_site: ForSite = None,
    personal: Personal = None,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
) -> None:
    """Export the model of a finished run for other programs, with its preprocessing."""
    from grandrounds.runs.export import FILES
    from grandrounds.runs.export import export as write
    from grandrounds.runs.run import Run

    finished_run = Run(run, trust_code=trust_code, withdrawn=withdrawn)
    path = out or finished_run.folder / FILES.get(target, "model")
    model = _model(finished_run, model_site, personal, withdrawn=withdrawn)
    if model.mitigation is not None:
        echo(
            f"note: the exported model has one rule for all; the correction by {model.mitigation.grouping.column} "
            "(evaluation.mitigation) is applied by `rounds predict` only", err=True
        )
    write(model, target, path)
    echo(str(path))
