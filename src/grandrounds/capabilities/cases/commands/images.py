"""`rounds explain masks`, `rounds explain maps`: truth masks of images, and heat maps of models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.options import Set, TrustCode, build_experiment
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.capabilities.cases.heat_maps import MapSheet
    from grandrounds.capabilities.cases.mask_check import MaskCheck
    from grandrounds.capabilities.cases.rationale import RationaleReport, ScoredImage
    from grandrounds.data.images import ImageSet
    from grandrounds.experiment.experiment import Experiment


masks_app = typer.Typer(
    help="Truth masks of images: check them, and score a network's explanations with them.", no_args_is_help=True
)


@masks_app.callback()
def _masks() -> None:
    """Truth masks of images: check them, and score a network's explanations with them."""


@masks_app.command("check")
def check_truth(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SET | EXPERIMENT",
            help="A set of the catalog, a recipe, a TOML file, an .npz file, or module:function.",
        ),
    ],
    rows: Annotated[int, typer.Option(min=1, help="Images on the sheet.")] = 12,
    out: Annotated[Path | None, typer.Option(help="FILE.png or a folder (default: masks-NAME.png here).")] = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Draw truth masks over their images, count unusable masks, and print the scores of uninformative heat maps.

    If an experiment scores sites on another set (reference.NAME.source), the masks of that set are shown. The sheet shows
    images of the data: if they are of patients, treat it as part of their records.
    """
    from grandrounds.capabilities.cases.mask_check import check_masks
    from grandrounds.cli.terminal import Terminal

    checked = check_masks(_load_images(_experiment(source).with_settings(settings)))
    path = sheet_path(out, "masks", checked.images.name)
    write_sheet(path, checked.sheet(rows))
    console = Terminal()
    _show_check(console, checked)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


@masks_app.command("show")
@reads_run
def show_masks(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run on images.")],
    reference_set: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="SET",
            help="A reference set of the run, or a scoring set (drawn-shapes-scoring, xfed-mnist, xfed-cifar, xfed-cifar-30). "
            "Default: the set that the run was scored on (evaluation.rationale_set, or that of XFed).",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Images on the sheet.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.png or a folder (default: `reasons-RUN.png` here)."),
    ] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every image; draw only with --out.")] = False,
) -> None:
    """List the images that the final model gets right for the wrong reason, and draw where it looks.

    The sheet has five columns (XFed's Fig. 2): image, truth mask, heat of the true class, heat inside, heat outside. If
    the images are of patients, treat it as part of their records.
    """
    from grandrounds.capabilities.cases.rationale import evaluate_rationale, rationale_png
    from grandrounds.cli.terminal import Terminal
    from grandrounds.runs.run import load_run

    scored = evaluate_rationale(load_run(run, trust_code=trust_code), scoring_set=reference_set)
    path = None if as_json and out is None else sheet_path(out, "reasons", scored.run)
    if path is not None:
        write_sheet(path, rationale_png(scored, most=rows))
    if as_json:
        echo(json.dumps(scored.to_dict()))
        return
    console = Terminal()
    show_explanations(console, scored)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _experiment(source: str) -> Experiment:
    """Build the experiment that the argument names; a set comes before a recipe of the same name, which has the same images."""
    from grandrounds.core.plugins import is_path
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.experiment.experiment import Experiment

    if source in CATALOG or is_path(source):
        return Experiment.parse({"data": {"name": source}})
    return build_experiment(table=source) if source.lower().endswith(".npz") else build_experiment(source)


def _load_images(experiment: Experiment) -> ImageSet:
    """Load the images that explanations are scored on: those of a reference set with its own source, else the data's."""
    from grandrounds.core.errors import BadInput
    from grandrounds.core.plan_types import Plan
    from grandrounds.data.images import ImageSet
    from grandrounds.data.loading import load_data

    source = next((s.source for s in experiment.reference.values() if s.source is not None), None)
    if source is not None:
        experiment = _experiment(source)
    data, _ = load_data(Plan(experiment.plan()).data)
    if not isinstance(data, ImageSet):
        raise BadInput(
            f"{data.name} is a table, and truth masks are for images: name a set of images", code="needs-images"
        )
    return data


def _show_check(console: Console, check: MaskCheck) -> None:
    from rich.table import Table

    from grandrounds.capabilities.cases.mask_check import GRID

    area = check.area
    _, height, width = check.images.shape
    _print(
        console,
        f"{check.images.name}: {len(area):,} truth masks of {height} x {width} pixels, {check.usable:,} usable; "
        f"they mark {area.mean():.1%} of an image on average ({area.min():.1%} to {area.max():.1%})",
    )
    for note in check.notes:
        _print(console, f"{note}: left out of every score (numbers from 0)")
    table = Table("heat map without a model")
    for column in ("XAI accuracy", "grid accuracy"):
        table.add_column(column, justify="right")
    for name, line in check.baselines.items():
        table.add_row(name, *(f"{s.value:.4f} +- {s.error:.4f}" for s in (line.xai, line.grid)))
    console.print(table)
    scored = next(iter(check.baselines.values())).xai.count
    _print(
        console,
        f"XAI accuracy ({scored:,} images): the share whose mean heat inside the mask is above that outside; grid accuracy: "
        f"the share of scenes of {GRID} x {GRID} images whose warmest cell is the right one. Compare "
        "a network's score with these; +- is the standard error of a score on so many images",
    )


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


_LISTED = 12
_NARROW = 8  # characters of a baseline's name, so that a line fits 80 columns


def show_explanations(console: Console, scored: RationaleReport) -> None:
    """Print the four kinds of images, the scores of the net and its baselines, and the images explained wrongly.

    Args:
        console: The terminal.
        scored: The images of a set as a finished net sees them.
    """
    from rich.table import Table

    _print(
        console,
        f"{scored.run} on {scored.scoring_set}: {scored.figures['pictures']} images, "
        f"{scored.figures['scored']} with a usable mask",
    )
    table = Table("images")
    columns = next(iter(scored.table.values()))
    for column in columns:
        table.add_column(column, justify="right")
    for name, counts in scored.table.items():
        table.add_row(name, *(str(counts[column]) for column in columns))
    console.print(table)
    _show_scores(console, scored)
    _print_images(console, "right for the wrong reason", scored.select(right=True, reason=False))
    _print_images(console, "wrong for the right reason", scored.select(right=False, reason=True))


def _show_scores(console: Console, scored: RationaleReport) -> None:
    """Print the scores of a net, and of baselines that look at no image."""
    from rich.table import Table

    from grandrounds.report.sections.images import RATIONALE_COLUMNS, THIS_MODEL, rationale_rows

    columns = rationale_rows({**scored.figures, "baselines": scored.baselines})
    table = Table()
    table.add_column("scored", no_wrap=True)
    for name in columns:
        table.add_column(
            name, justify="right", no_wrap=name == THIS_MODEL, max_width=None if name == THIS_MODEL else _NARROW
        )
    for key, label in RATIONALE_COLUMNS.items():
        if any(key in cells for cells in columns.values()):
            table.add_row(label, *(cells.get(key, "-") for cells in columns.values()))
    console.print(table)
    _print(console, "compare a score with those to its right; +- is the standard error")


def _print_images(console: Console, title: str, pictures: Sequence[ScoredImage]) -> None:
    _print(console, f"{title}: {len(pictures) or 'none'}")
    for p in pictures[:_LISTED]:
        _print(console, f"  image {p.number}: {p.headline}")
    if len(pictures) > _LISTED:
        _print(console, f"  and {len(pictures) - _LISTED} more (--json has them all)")


maps_app = typer.Typer(help="Heat maps of local and common models on the images of a site.", no_args_is_help=True)


@maps_app.callback()
def _maps() -> None:
    """Heat maps of local and common models on the images of a site."""


@maps_app.command("show")
@reads_run
def show_maps(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run with explain.maps.")],
    site: Annotated[
        str | None,
        typer.Option(help="The site whose images are drawn; 3 is site-03. Default: print the numbers of all sites."),
    ] = None,
    rounds: Annotated[
        str, typer.Option(metavar="1,10", help="Rounds to show (default: the first and the last with maps).")
    ] = "",
    pictures: Annotated[int, typer.Option(min=1, help="Images on the sheet.")] = 5,
    out: Annotated[Path | None, typer.Option(help="FILE.png or a folder (default: maps-SITE.png here).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON; draw only with --out.")] = False,
) -> None:
    """Draw a site's images with the heat maps of its local model and of the common model, and print their scores.

    Make maps with `rounds run EXPERIMENT --set 'explain.maps=["grad_cam","normgrad"]' --set 'explain.maps_at=[1,10]'`.

    Each row of the sheet shows an image and its truth mask, if there is one. Then follow, for each map and round, the
    heat of the site's local model and of the common model after the round, both for the true class. A grey panel is a
    round in which the site did not train.

    Maps are stored in RUN/at_sites/SITE. They show images of the site's patients: treat them and the sheet as part of
    their records.
    """
    from grandrounds.capabilities.cases.heat_maps import choose_rounds, map_sheet, maps_png, read_map_records
    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.errors import BadInput
    from grandrounds.core.names import site_named
    from grandrounds.runs.run import load_run

    finished_run = load_run(run)
    records = read_map_records(finished_run)
    chosen = choose_rounds(list(records), _parse_rounds(rounds))
    console = Terminal()
    if site is None:
        if out is not None:
            raise BadInput("--out draws the images of one site: name it with --site", code="missing-option")
        last = records[chosen[-1]]
        echo(json.dumps({"round": chosen[-1], **last})) if as_json else show_all(console, chosen[-1], last)
        return
    name = site_named(site, list(records[chosen[-1]]["sites"]), where=run)
    numbers = {r: records[r]["sites"].get(name) for r in chosen}
    if as_json and out is None:
        echo(json.dumps({"site": name, "rounds": numbers}))
        return
    path = sheet_path(out, "maps", f"{name.replace('/', '-')}.png")
    sheet = map_sheet(finished_run, name, rounds=chosen, images=pictures)
    write_sheet(path, maps_png(sheet))
    if as_json:
        echo(json.dumps({"site": name, "rounds": numbers}))
        return
    show_site(console, name, numbers, sheet)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _parse_rounds(text: str) -> Sequence[int]:
    from grandrounds.core.errors import BadInput

    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise BadInput(
            f"--rounds {text}: give round numbers separated by commas, such as 1,10", code="invalid-option"
        ) from None


_SITES = {
    "concentration": "concentration",
    "inside": "inside",
    "insertion": "insertion",
    "own and common, SSIM / rank": "SSIM/rank",
}
"""Numbers that are shown of many sites, so that a table fits 80 columns, and their headings."""

_MEANS = "all sites"
_READING = (
    "first number: the model that the site trained; second: the common model; or SSIM and rank, which are 1 for the same map. "
    "Deletion is better low, insertion high; dark is the share of maps without any heat, which count nowhere else; - is unknown"
)


MapNumbers = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Numbers of heat maps at one site: map, then number, then model ("local", "common")."""


def show_site(console: Console, site: str, rounds: Mapping[int, MapNumbers | None], sheet: MapSheet) -> None:
    """Print the numbers of one site's maps: for each map a table with the rounds side by side.

    Args:
        console: The terminal.
        site: The site.
        rounds: The numbers of each round; None in a round in which the site did not train.
        sheet: The sheet that was drawn; it has the share of images that truth masks cover.
    """
    from rich.table import Table

    from grandrounds.explain.map_metrics import TITLES
    from grandrounds.report.sections.images import MAP_ROWS, map_pairs

    recorded = {r: numbers for r, numbers in rounds.items() if numbers is not None}
    for name in dict.fromkeys(n for numbers in recorded.values() for n in numbers):
        table = Table(title=f"{site}: {TITLES[name]}", title_justify="left")
        table.add_column("local / common")
        cells = {}
        for r, numbers in recorded.items():
            table.add_column(f"round {r}", justify="right")
            cells[r] = map_pairs(numbers[name])
        for row in MAP_ROWS:
            table.add_row(row, *(cells[r][row] for r in recorded))
        console.print(table)
    if sheet.covered is not None:
        _print(
            console,
            f"truth masks cover {sheet.covered:.1%} of the site's {sheet.count} images with maps: this share of the heat "
            "is inside by chance",
        )
    _print(console, _READING)


def show_all(console: Console, round: int, maps: Mapping[str, Any]) -> None:
    """Print the numbers of all sites' maps after one round, and their means.

    Args:
        console: The terminal.
        round: The round.
        maps: The record of the round's maps: "sites", "means" and "between".
    """
    from rich.table import Table

    from grandrounds.explain.map_metrics import TITLES
    from grandrounds.report.sections.images import format_number, map_pairs

    for name in maps["means"]:
        table = Table(title=f"{TITLES[name]} after round {round}, local/common", title_justify="left")
        table.add_column("site", no_wrap=True)
        for title in _SITES.values():
            table.add_column(title, justify="right")
        for site, numbers in {**maps["sites"], _MEANS: maps["means"]}.items():
            cells = map_pairs(numbers[name])
            table.add_row(
                site,
                *(cells[column].replace(" ", "") for column in _SITES),
                end_section=site == list(maps["sites"])[-1],
            )
        console.print(table)
        if name in maps.get("between", {}):
            b = maps["between"][name]
            _print(
                console,
                f"between sites, on reference images: SSIM {format_number(b['ssim'])}, rank {format_number(b['rank'])}",
            )
    _print(console, _READING)


def sheet_path(out: Path | None, kind: str, name: str) -> Path:
    """Resolve --out: a .png file, or a folder for KIND-NAME.png; None is the current folder.

    Args:
        out: The option.
        kind: The kind of sheet.
        name: What it shows.

    Returns:
        The file to write.

    Raises:
        BadInput: The file has another ending.
    """
    from grandrounds.core.errors import BadInput

    plain = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "unnamed"
    if out is None or out.is_dir() or not out.suffix:
        return (out or Path()) / f"{kind}-{plain}.png"
    if out.suffix.lower() != ".png":
        raise BadInput(f"--out {out}: give a file that ends in .png, or a folder", code="invalid-file-type")
    return out


def write_sheet(path: Path, sheet: bytes) -> None:
    """Write a sheet, whole or not at all.

    Args:
        path: The file.
        sheet: A PNG.

    Raises:
        BadInput: The file cannot be written.
    """
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, sheet, durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another --out", code="cannot-write") from None
