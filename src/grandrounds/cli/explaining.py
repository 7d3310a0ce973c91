"""`rounds explain`: why the model says this of this patient, and how it reasons at one site."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.why.case import Case, Site

FOLDER = "explain"
"""Where in a run folder explanations are kept."""


def register(app: typer.Typer) -> None:
    app.command()(explain)


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    case: Annotated[
        int | None, typer.Option(help="Row number, from 1: of the run's own data, or of --table. Shows its values.")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="How the model reasons at this site: its name, or 3 for the third.")
    ] = None,
    of: Annotated[
        str | None, typer.Option("--for", help="For --case: the site whose model explains (default: the row's own).")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="New patients: .csv, .csv.gz, .tsv, .parquet, .npz or a SQL URL.")
    ] = None,
    query: Annotated[str | None, typer.Option("--query", help="SELECT or table name, for a SQL URL.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="The explainer. For a case: shap (default), deep, kernel, integrated_gradients, lime, coefficients. "
            "For a site: what the run recorded (default), permutation, shap, gradient, ..."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Reasons to show.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="FILE.html, FILE.png or a folder (default: RUN/explain/case-12.html).")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="A PNG beside the page; of pictures there always is one.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON and nothing else; files only with --out or --png.")
    ] = False,
) -> None:
    """Explain one patient (--case) or one site (--site) of a finished run, for tables and pictures.

    It runs where the data are. With --case it shows one patient's values, on screen and in the file it writes: treat
    them as part of that patient's record.
    """
    from grandrounds.runs import Run
    from grandrounds.why.case import explain_case, explain_site
    from grandrounds.why.pages import has_picture, write

    held = Run(run)
    if (case is None) == (site is None):
        raise BadInput(
            "give --case N for one patient or --site NAME for one site (--for SITE: whose model explains a case)"
        )
    found: Case | Site
    if case is not None:
        found = explain_case(held, case, site=of, table=table, query=query, explainer=by)
        name = f"case-{case}" if table is None else f"case-{_plain(Path(table.split('://')[-1]).stem)}-{case}"
    else:
        for flag, given in (("--table", table), ("--query", query), ("--for", of)):
            if given is not None:
                raise BadInput(f"{flag} goes with --case, not with --site")
        found = explain_site(held, str(site), explainer=by)
        name = _plain(f"site-{found.site}".replace("site-site", "site"))
    name += "".join(f"-{_plain(more)}" for more in (by, of) if more is not None)
    asked = not as_json or out is not None or png
    paths = places(out, held.folder / FOLDER, name, png=png or has_picture(found)) if asked else []
    for path in paths:
        write(path, found, top=top)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
        return
    from rich.console import Console

    from grandrounds.cli.explain_view import show

    console = Console()
    show(console, found, top=top)
    for path in paths:
        console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def places(out: Path | None, folder: Path, name: str, *, png: bool) -> list[Path]:
    """The files to write: a page, a PNG, or both; `out` names one of them, or the folder they go to."""
    endings = [".html", ".png"] if png else [".html"]
    if out is None or out.is_dir() or not out.suffix:
        return [(folder if out is None else out) / f"{name}{ending}" for ending in endings]
    if out.suffix == ".png":
        return [out]
    if out.suffix != ".html":
        raise BadInput(f"--out {out}: give a file that ends in .html or .png, or a folder")
    return [out.with_suffix(ending) for ending in endings]


def _plain(name: str) -> str:
    """A name that can be part of a file's: letters and digits of any script."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"
