"""`rounds maps show`: where local and common models look on a site's own pictures, drawn and as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.sheets import place, write
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(help="Heat maps: where local and common models look on sites' own pictures.", no_args_is_help=True)


@app.callback()
def _maps() -> None:
    """Heat maps: where local and common models look on sites' own pictures."""


@app.command()
@reads_run
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run with explain.maps.")],
    site: Annotated[
        str | None, typer.Option(help="Whose pictures to draw; a number will do. Not given: all sites, as numbers.")
    ] = None,
    rounds: Annotated[
        str, typer.Option(metavar="1,10", help="Rounds to show (default: the first and the last with maps).")
    ] = "",
    pictures: Annotated[int, typer.Option(min=1, help="Pictures on the sheet.")] = 5,
    out: Annotated[Path | None, typer.Option(help="FILE.png or a folder (default: maps-SITE.png here).")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON; draw only where --out is given.")
    ] = False,
) -> None:
    """Draw a site's pictures with the heat maps of its own and of the common model, and print the maps' numbers.

    Make maps with `rounds run EXPERIMENT --set 'explain.maps=["grad_cam","normgrad"]' --set 'explain.maps_at=[1,10]'`.

    Each row of the sheet is a picture: the picture, its truth mask where there is one, then for each map and round the heat of
    the model that the site trained in the round and of the common model after it. Both are heat of the picture's own label.
    A grey panel is a round in which the site did not train.

    Maps lie in RUN/at_sites/SITE, which stands for the site: they are of its patients' pictures, so treat them and the sheet as
    part of their records.
    """
    from grandrounds.analysis.case.heat_maps import choose_rounds, map_sheet, maps_png, read_map_records
    from grandrounds.cli.maps_view import show_all, show_site
    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.errors import BadInput
    from grandrounds.core.names import site_named
    from grandrounds.runs.run import load_run

    held = load_run(run)
    known = read_map_records(held)
    chosen = choose_rounds(list(known), _numbers(rounds))
    console = Terminal()
    if site is None:
        if out is not None:
            raise BadInput("--out draws one site's pictures: say whose with --site")
        last = known[chosen[-1]]
        echo(json.dumps({"round": chosen[-1], **last})) if as_json else show_all(console, chosen[-1], last)
        return
    name = site_named(site, list(known[chosen[-1]]["sites"]), where=run)
    numbers = {r: known[r]["sites"].get(name) for r in chosen}
    if as_json and out is None:
        echo(json.dumps({"site": name, "rounds": numbers}))
        return
    path = place(out, "maps", f"{name.replace('/', '-')}.png")
    sheet = map_sheet(held, name, rounds=chosen, pictures=pictures)
    write(path, maps_png(sheet))
    if as_json:
        echo(json.dumps({"site": name, "rounds": numbers}))
        return
    show_site(console, name, numbers, sheet)
    console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _numbers(text: str) -> Sequence[int]:
    from grandrounds.core.errors import BadInput

    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise BadInput(f"--rounds {text}: give round numbers with commas between, such as 1,10") from None
