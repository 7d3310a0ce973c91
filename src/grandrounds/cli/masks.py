"""`rounds masks check`: are the truth masks right, and what does a score on them mean? `rounds masks show`: who looks there?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.running import Set, TrustCode
from grandrounds.cli.sheets import place, write
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.analysis.case.mask_check import MaskCheck
    from grandrounds.data.images import ImageSet
    from grandrounds.experiment.experiment import Experiment

app = typer.Typer(help="Truth masks: what pictures are about, to score a net's reasons by.", no_args_is_help=True)


@app.callback()
def _masks() -> None:
    """Truth masks: what pictures are about, to score a net's reasons by."""


@app.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SET | EXPERIMENT",
            help="A set of the catalog, a recipe, a TOML file, an .npz file, or module:function.",
        ),
    ],
    rows: Annotated[int, typer.Option(min=1, help="Pictures on the sheet.")] = 12,
    out: Annotated[Path | None, typer.Option(help="FILE.png or a folder (default: masks-NAME.png here).")] = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Draw truth masks over their pictures, count those of no use, and say what heat that looks at nothing scores on them.

    Where an experiment scores sites on another set (reference.NAME.source), that set's masks are shown. The sheet shows
    pictures of the data: where these are patients', treat it as part of their records.
    """
    from grandrounds.analysis.case.mask_check import check_masks
    from grandrounds.cli.terminal import Terminal

    found = check_masks(_pictures(_experiment(source).with_settings(settings)))
    path = place(out, "masks", found.pictures.name)
    write(path, found.sheet(rows))
    console = Terminal()
    _show(console, found)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


@app.command()
@reads_run
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run of pictures.")],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="A reference set of the run, or a scoring set (xfed-mnist, xfed-cifar, xfed-cifar-30). Not given: the one that "
            "the run was scored on (evaluation.reasons, or XFed's own).",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Pictures on the sheet.")] = 12,
    out: Annotated[Path | None, typer.Option(help="FILE.png or a folder (default: reasons-RUN.png here).")] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, of every picture; draw only where --out is given.")
    ] = False,
) -> None:
    """Which pictures the final model calls right for the wrong reason, and where it looks: in the truth mask or beside it.

    The sheet has five columns (XFed's Fig. 2): picture, truth mask, heat of the true class, heat inside, heat outside. Where the
    pictures are patients', treat it as part of their records.
    """
    from grandrounds.analysis.case.rationale import reasoned, reasons_png
    from grandrounds.cli.reasons_view import show_reasoned
    from grandrounds.cli.terminal import Terminal
    from grandrounds.runs.run import load_run

    found = reasoned(load_run(run, trust_code=trust_code), on=on)
    path = None if as_json and out is None else place(out, "reasons", found.run)
    if path is not None:
        write(path, reasons_png(found, most=rows))
    if as_json:
        echo(json.dumps(found.to_dict()))
        return
    console = Terminal()
    show_reasoned(console, found)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _experiment(source: str) -> Experiment:
    """What the argument names: a set before a recipe of the same name, which holds the same pictures."""
    from grandrounds.cli.running import experiment_from
    from grandrounds.core.plugins import is_path
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.experiment.experiment import Experiment

    if source in CATALOG or is_path(source):
        return Experiment.parse({"data": {"name": source}})
    return experiment_from(table=source) if source.lower().endswith(".npz") else experiment_from(source)


def _pictures(experiment: Experiment) -> ImageSet:
    """The pictures that reasons are scored on: those of a reference set with a source of its own, else the data's."""
    from grandrounds.core.errors import BadInput
    from grandrounds.core.plan import Settings
    from grandrounds.data.images import ImageSet
    from grandrounds.data.loading import load_data

    source = next((s.source for s in experiment.reference.values() if s.source is not None), None)
    if source is not None:
        experiment = _experiment(source)
    data, _ = load_data(Settings(experiment.plan()).data)
    if not isinstance(data, ImageSet):
        raise BadInput(f"{data.name} is a table: truth masks belong to pictures")
    return data


def _show(console: Console, found: MaskCheck) -> None:
    from rich.table import Table

    from grandrounds.analysis.case.mask_check import GRID

    area = found.area
    _, height, width = found.pictures.shape
    _say(
        console,
        f"{found.pictures.name}: {len(area):,} truth masks of {height} x {width} pixels, {found.usable:,} of use; "
        f"they mark {area.mean():.1%} of a picture on average ({area.min():.1%} to {area.max():.1%})",
    )
    for note in found.notes:
        _say(console, f"{note}: left out of every score (numbers from 0)")
    table = Table("heat that looks at no picture")
    for column in ("XAI accuracy", "grid accuracy"):
        table.add_column(column, justify="right")
    for name, line in found.baselines.items():
        table.add_row(name, *(f"{s.value:.4f} +- {s.error:.4f}" for s in (line.xai, line.grid)))
    console.print(table)
    scored = next(iter(found.baselines.values())).xai.count
    _say(
        console,
        f"XAI accuracy ({scored:,} pictures): the share whose mean heat inside the mask is above that outside; grid accuracy: "
        f"the share of scenes of {GRID} x {GRID} pictures whose warmest cell is the right one. A net's score says "
        "something as far as it is above these; +- is the standard error of a score on so many pictures",
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
