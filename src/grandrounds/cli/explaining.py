"""`rounds explain`: why the model says this of this patient, and how it reasons at one site."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from grandrounds.cli.reading import Censored, Decimal, Missing, Separator, TextEncoding, merge_reading, reading_settings
from grandrounds.cli.running import TrustCode
from grandrounds.cli.terminal import echo, reads_run
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from grandrounds.analysis.case.pages import Explanation
    from grandrounds.runs.run import Run

FOLDER = "explain"
"""Where in a run folder explanations are kept."""


NEAR_MISSES = "--near-misses"
_USUAL = "10"  # how many near misses are listed where no number is given


def register(app: typer.Typer) -> None:
    app.command(cls=ExplainCommand)(reads_run(explain))


class ExplainCommand(TyperCommand):
    """`--near-misses` may stand without its number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if NEAR_MISSES in args:
            at = args.index(NEAR_MISSES) + 1
            if at == len(args) or not re.fullmatch(r"-?\d+", args[at]):
                args = [*args[:at], _USUAL, *args[at:]]
        return super().parse_args(ctx, args)


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
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    missing: Missing = None,
    censored: Censored = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="The explainer. For a case: shap (default), deep, kernel, integrated_gradients, lime, coefficients. "
            "For a site: what the run recorded (default), permutation, shap, gradient, ..."
        ),
    ] = None,
    near_misses: Annotated[
        int | None,
        typer.Option(
            NEAR_MISSES,
            metavar="[N]",
            help="List N test patients (default 10) whose event happened though their risk stayed just below the "
            "threshold; with --site those of one site.",
        ),
    ] = None,
    protected: Annotated[
        list[str] | None,
        typer.Option(
            help="For --case: flag this column where it moves the risk, in place of those known by name (sex, ethnicity, "
            "insurance, region, ...). May be given several times."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Reasons to show, of each direction.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="FILE.html, FILE.png or a folder (default: RUN/explain/case-12.html).")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="A PNG beside the page; of pictures there always is one.")] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON and nothing else; files only with --out or --png.")
    ] = False,
) -> None:
    """Explain one patient (--case) or one site (--site) of a finished run, or list near misses (--near-misses).

    It runs where the data are. With --case it shows one patient's values, on screen and in the file it writes: treat
    them as part of that patient's record.
    """
    from grandrounds.analysis.case.case import explain_case
    from grandrounds.analysis.case.pages import has_image, write_page
    from grandrounds.core.arrays import make_folder
    from grandrounds.runs.run import Run

    held = Run(run, trust_code=trust_code)
    found: Explanation
    if case is not None and site is None and near_misses is None:
        reading = reading_settings(decimal, text_encoding, separator, missing, censored)
        found = explain_case(
            held,
            case,
            site=of,
            table=table,
            query=query,
            reading=merge_reading(reading, held.plan["data"]["missing"]),
            explainer=by,
            protected=tuple(protected or ()),
        )
        name = f"case-{case}" if table is None else f"case-{_plain(Path(table.split('://')[-1]).stem)}-{case}"
    else:
        _only_with_a_case({"--table": table, "--query": query, "--for": of, "--protected": protected}, case)
        found, name = _several(held, case, site, near_misses, by)
    name += "".join(f"-{_plain(more)}" for more in (by, of) if more is not None)
    asked = not as_json or out is not None or png
    paths = places(out, held.folder / FOLDER, name, png=png or has_image(found)) if asked else []
    if paths and out is None:
        make_folder(held.folder / FOLDER)
    for path in paths:
        write_page(path, found, top=top)
    if as_json:
        echo(json.dumps(found.to_dict(), allow_nan=False))
        return
    from grandrounds.cli.explain_view import show
    from grandrounds.cli.terminal import Terminal

    console = Terminal()
    show(console, found, run=run, top=top)
    for path in paths:
        console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _only_with_a_case(given: Mapping[str, object], case: int | None) -> None:
    for flag, value in given.items():
        if value and case is None:
            raise BadInput(f"{flag} goes with --case")


def _several(held: Run, case: int | None, site: str | None, most: int | None, by: str | None) -> tuple[Explanation, str]:
    """What is said of more than one patient: a site, or the near misses; and what its file is called."""
    from grandrounds.analysis.case.case import explain_site, near_misses

    if case is not None or (site is None and most is None):
        raise BadInput(
            "give --case N for one patient, --site NAME for one site, or --near-misses (--for SITE: whose model explains a case)"
        )
    if most is None:
        reasons = explain_site(held, str(site), explainer=by)
        return reasons, _plain(f"site-{reasons.site}".replace("site-site", "site"))
    if by is not None:
        raise BadInput(
            "--by chooses an explainer, and near misses are listed, not explained: give --case N for one of them"
        )
    found = near_misses(held, most=most, site=site)
    return found, "near-misses" + (f"-{_plain(found.site)}" if found.site else "")


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
