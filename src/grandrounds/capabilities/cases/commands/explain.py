"""`rounds explain`: explain a prediction for one patient, list near misses, or describe the model at one site."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.groups import ParentCommand
from grandrounds.cli.options import AllowMissing, Personal, Reading, TrustCode, Withdrawn, expand_options, use_personal
from grandrounds.cli.terminal import echo, reads_run, styled, warn
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainers.registry import DEFAULT_CASE, Use, explainers_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from grandrounds.capabilities.cases.image import ImageExplanation, SiteImageExplanation
    from grandrounds.capabilities.cases.near_misses import NearMisses
    from grandrounds.capabilities.cases.outcome import OutcomeExplanation
    from grandrounds.capabilities.cases.pages import Explanation
    from grandrounds.capabilities.cases.site import SiteExplanation
    from grandrounds.capabilities.cases.table import Attribution, CaseExplanation
    from grandrounds.runs.run import Run


FOLDER = "explain"
"""The folder of explanations in a run folder."""


NEAR_MISSES = "--near-misses"
_CASES = ", ".join(f"{name} (default)" if name == DEFAULT_CASE else name for name in explainers_for(Use.CASE))


_USUAL = "10"  # how many near misses are listed where no number is given


def register(app: typer.Typer) -> None:
    app.command(cls=ExplainCommand)(reads_run(explain))


class ExplainCommand(ParentCommand):
    """The command `explain`, whose option `--near-misses` needs no number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if NEAR_MISSES in args:
            position = args.index(NEAR_MISSES) + 1
            if position == len(args) or not re.fullmatch(r"-?\d+", args[position]):
                args = [*args[:position], _USUAL, *args[position:]]
        return super().parse_args(ctx, args)


@expand_options
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    case: Annotated[
        int | None,
        typer.Option(
            "--case", "--row", help="Row number, from 1: of the run's own data, or of --table. Shows its values."
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Describe what the model relies on at this site, the model it deploys and the features that differ there: "
            "its name, or 3 for the third."
        ),
    ] = None,
    model_site: Annotated[
        str | None,
        typer.Option("--for", help="For --case: explain the model of this site (default: the row's own site)."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="New patients: .csv, .tsv, .parquet, .xlsx, .dta, .sav, .npz or a SQL URL.")
    ] = None,
    query: Annotated[str | None, typer.Option("--query", help="SELECT or table name, for a SQL URL.")] = None,
    reading: Reading = Reading(),
    allow_missing: AllowMissing = False,
    explainer: Annotated[
        str | None,
        typer.Option(
            "--by",
            help=f"The explainer. For a case: {_CASES}. "
            "For a site: the one that the run recorded (default), permutation, shap, gradient, ...",
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
    top: Annotated[int, typer.Option(min=1, help="Features to show in each direction.")] = 8,
    out: Annotated[
        Path | None, typer.Option(help="FILE.html, FILE.png or a folder (default: RUN/explain/case-12.html).")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write a PNG; for images it is always written.")] = False,
    personal: Personal = None,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON and nothing else; files only with --out or --png.")
    ] = False,
) -> None:
    """Explain one patient (--case) or one site (--site) of a finished run, or list near misses (--near-misses).

    Run it where the data are. With --case it shows one patient's values, on screen and in the file it writes: treat them
    as part of that patient's record.

    Examples: `rounds explain runs/heart-fedavg-seed0 --case 12` -- `rounds explain runs/heart-fedavg-seed0 --site va`
    """
    from grandrounds.capabilities.cases.case import explain_case
    from grandrounds.capabilities.cases.pages import has_image, write_page
    from grandrounds.core.arrays import make_folder
    from grandrounds.runs.run import Run

    finished_run = Run(run, trust_code=trust_code, withdrawn=withdrawn)
    finished_run.refuse_withdrawn()
    model_site = use_personal(finished_run, model_site, personal)
    explanation: Explanation
    if case is not None and site is None and near_misses is None:
        explanation = explain_case(
            finished_run,
            case,
            site=model_site,
            table=table,
            query=query,
            reading=reading.merge(finished_run.plan["data"]["missing"]),
            allow_missing=allow_missing,
            explainer=explainer,
            protected=tuple(protected or ()),
        )
        name = f"case-{case}" if table is None else f"case-{_file_name(Path(table.split('://')[-1]).stem)}-{case}"
    else:
        _check_case_options({"--table": table, "--query": query, "--for": model_site, "--protected": protected}, case)
        explanation, name = _explain_several(finished_run, case, site, near_misses, explainer)
    name += "".join(f"-{_file_name(more)}" for more in (explainer, model_site) if more is not None)
    writes_files = not as_json or out is not None or png
    paths = (
        output_paths(out, finished_run.folder / FOLDER, name, png=png or has_image(explanation)) if writes_files else []
    )
    if paths and out is None:
        make_folder(finished_run.folder / FOLDER)
    for path in paths:
        write_page(path, explanation, top=top)
    if as_json:
        echo(json.dumps(explanation.to_dict(), allow_nan=False))
        return
    from grandrounds.cli.terminal import Terminal

    console = Terminal()
    show(console, explanation, run=run, top=top)
    for path in paths:
        console.print(f"saved: {path}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _check_case_options(options: Mapping[str, object], case: int | None) -> None:
    for flag, value in options.items():
        if value and case is None:
            raise BadInput(f"{flag} is for one patient: add --case N", code="missing-option")


def _explain_several(
    run: Run, case: int | None, site: str | None, limit: int | None, explainer: str | None
) -> tuple[Explanation, str]:
    """Explain more than one patient: a site, or the near misses; also return the name of the file."""
    from grandrounds.capabilities.cases.case import explain_site, near_misses

    if case is not None or (site is None and limit is None):
        raise BadInput(
            "give --case N for one patient, --site NAME for one site, or --near-misses (--for "
            "SITE chooses the model of a case)",
            code="missing-option",
        )
    if limit is None:
        reasons = explain_site(run, str(site), explainer=explainer)
        return reasons, _file_name(f"site-{reasons.site}".replace("site-site", "site"))
    if explainer is not None:
        raise BadInput(
            "--by chooses an explainer, and near misses are not explained: explain one of them with --case N",
            code="conflicting-options",
        )
    misses = near_misses(run, most=limit, site=site)
    return misses, "near-misses" + (f"-{_file_name(misses.site)}" if misses.site else "")


def output_paths(out: Path | None, folder: Path, name: str, *, png: bool) -> list[Path]:
    """List the files to write: a page, a PNG, or both.

    Args:
        out: The option --out: one of the files, or the folder they go to; None for `folder`.
        folder: The folder without --out.
        name: The name of the files, without ending.
        png: Write a PNG too.

    Returns:
        The files.

    Raises:
        BadInput: --out has another ending.
    """
    endings = [".html", ".png"] if png else [".html"]
    if out is None or out.is_dir() or not out.suffix:
        return [(folder if out is None else out) / f"{name}{ending}" for ending in endings]
    if out.suffix == ".png":
        return [out]
    if out.suffix != ".html":
        raise BadInput(f"--out {out}: give a file that ends in .html or .png, or a folder", code="invalid-file-type")
    return [out.with_suffix(ending) for ending in endings]


def _file_name(name: str) -> str:
    """Make a name fit for a file: letters and digits of any script."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"


_COLOURS = {"raises": "dark_orange", "lowers": "deep_sky_blue3"}


def show(console: Console, explanation: Explanation, *, run: Path, top: int) -> None:
    """Print an explanation: a few lines and a short table.

    Args:
        console: The terminal.
        explanation: The explanation.
        run: The run folder as the user named it.
        top: Features to print, of each direction.
    """
    from grandrounds.capabilities.cases.image import ImageExplanation, SiteImageExplanation
    from grandrounds.capabilities.cases.near_misses import NearMisses
    from grandrounds.capabilities.cases.outcome import OutcomeExplanation
    from grandrounds.capabilities.cases.table import CaseExplanation

    if isinstance(explanation, NearMisses):
        _show_near_misses(console, explanation, run)
        return
    if isinstance(explanation, CaseExplanation):
        _show_case(console, explanation, top)
    elif isinstance(explanation, OutcomeExplanation):
        _show_outcome(console, explanation, top)
    elif isinstance(explanation, ImageExplanation):
        _show_image(console, explanation)
    elif isinstance(explanation, SiteImageExplanation):
        _show_images(console, explanation)
    else:
        _show_site(console, explanation, top)
    for note in explanation.notes:
        console.print(warn(note, "note:"), highlight=False, soft_wrap=True)


def _show_case(console: Console, case: CaseExplanation, top: int) -> None:
    from grandrounds.capabilities.cases.case_page import (
        PARTS,
        case_title,
        column_value,
        decision_text,
        event_name,
        missing_lines,
        outcome_text,
        patient_name,
        risk_interval_text,
        risk_name,
        score_description,
        verdict_lines,
        verdict_text,
    )
    from grandrounds.capabilities.cases.values import quality_lines

    part = PARTS.get(case.part or "", "new patient")
    _line(console, styled((patient_name(case), "bold")))
    _line(console, f"{case_title(case)} ({part}, {case.model_owner})", "dim")
    ends = risk_interval_text(case)
    _line(
        console,
        styled(
            f"{risk_name(case)} of {event_name(case)}: ",
            (f"{case.probability:.1%}", "bold"),
            f" (95% CI {ends})" if ends else "",
            f", baseline {case.baseline:.1%}; decision: {decision_text(case)}; outcome: {outcome_text(case)}",
            f" ({verdict_text(case)})" if case.verdict else "",
        ),
    )
    for line in (*verdict_lines(case), *missing_lines(case)):
        _line(console, line, "bold yellow")
    console.print(_attribution_table(case, top))
    _line(
        console,
        f"{case.explainer}; from {case.base:+.3f} ({case.start}) to {case.score:+.3f}, {score_description(case)}",
        "dim",
    )
    comparison = (
        case.population.words if case.population.summary is None else f"among patients: {case.population.words}"
    )
    _line(console, comparison, "dim")
    for flag in case.bias:
        shown = next(column_value(r, case.labels) for r in case.attributions if r.column == flag.column)
        _line(console, styled(("non-clinical factor:", "red"), f" {shown} ({flag.kind}) {flag.words}"))
    for text, _ in quality_lines(case.quality, case.zero_weight_columns, case.labels):
        _line(console, warn(text, "data:"))


def _show_outcome(console: Console, case: OutcomeExplanation, top: int) -> None:
    """Print the explanation of a number, a count or a hazard; of many columns the strongest."""
    from rich.table import Table

    from grandrounds.capabilities.cases.case_page import PARTS, case_title, patient_name
    from grandrounds.capabilities.cases.outcome_page import (
        contribution_rows,
        format_prediction,
        outcome_guide,
        prediction_interval_text,
        prediction_title,
    )
    from grandrounds.capabilities.cases.values import quality_lines

    part, ends = PARTS.get(case.part or "", "new patient"), prediction_interval_text(case)
    _line(console, styled((patient_name(case), "bold")))
    _line(console, f"{case_title(case)} ({part}, {case.model_owner})", "dim")
    _line(
        console,
        styled(
            f"{prediction_title(case)}: ",
            (format_prediction(case, case.prediction), "bold"),
            f" (95% CI {ends})" if ends else "",
            f"; outcome {case.outcome or 'not known'}",
        ),
    )
    head, rows = contribution_rows(case)
    table = Table()
    for k, name in enumerate(head):
        table.add_column(name, justify="left" if k == 0 or name == "among patients" else "right")
    for row in rows[: 2 * top + 1]:
        table.add_row(*map(styled, row))
    console.print(table)
    if len(rows) > 2 * top + 1:
        _line(console, f"{len(rows) - 2 * top - 1} weaker contributions are not shown; --top shows more", "dim")
    _line(console, outcome_guide(case)[1], "dim")
    for text, _ in quality_lines(case.quality, case.zero_weight_columns, case.labels):
        _line(console, warn(text, "data:"))


def _attribution_table(case: CaseExplanation, top: int) -> Table:
    """Tabulate the columns that raise and lower the risk, the `top` strongest of each; then all others together."""
    from rich.table import Table

    from grandrounds.capabilities.cases.case_page import (
        has_intervals,
        interval_text,
        is_complete,
        percentile_text,
        points_text,
        risk_name,
        value_with_unit,
    )

    table = Table()
    two, known = len(case.classes) == 2, has_intervals(case)
    has_percentiles = any(percentile_text(r) for r in case.attributions)
    columns = ["", "value", *(["among patients"] if has_percentiles else []), case.unit]
    columns += [*(["95% CI"] if known else []), *(["points"] if two else [])]
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "among patients") else "right")
    blank = [""] * columns[1:].index(case.unit)
    rest: list[Attribution] = []
    for title, direction, reasons in (
        (f"Raises the {risk_name(case)}", "raises", case.amplifiers),
        (f"Lowers the {risk_name(case)}", "lowers", case.mitigators),
    ):
        colour = _COLOURS[direction]
        shown = reasons[:top]
        rest += reasons[top:]
        table.add_row(styled((title, f"bold {colour}"), ("" if shown else " none", "dim")))
        for r in shown:
            value = styled(value_with_unit(r, case.labels), (" (imputed)" if r.imputed else "", "dim"))
            points = [*([interval_text(r)] if known else []), *([points_text(r)] if two else [])]
            number = styled((f"{r.contribution:+.3f}", colour))
            label = f"  {case.labels.find(r.column).name}"
            table.add_row(label, value, *([percentile_text(r)] if has_percentiles else []), number, *points)
    if rest:
        together = sum(r.contribution for r in rest)
        table.add_row(styled((f"{len(rest)} others together", "dim")), *blank, f"{together:+.3f}")
    if not is_complete(case):
        table.add_row(styled(("not explained", "dim")), *blank, f"{case.remainder:+.3f}")
    return table


def _show_near_misses(console: Console, misses: NearMisses, run: Path) -> None:
    from rich.table import Table

    from grandrounds.capabilities.cases.case_page import near_misses_text, near_misses_title

    _line(console, styled((near_misses_title(misses), "bold"), f" ({misses.source})"))
    _line(console, near_misses_text(misses))
    if not misses.cases:
        return
    table = Table()
    for column in ("case", "site", "risk", "points below"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for m in misses.cases:
        table.add_row(str(m.case), m.site, f"{m.risk:.1%}", f"{100 * (misses.threshold - m.risk):.1f}")
    console.print(table)
    if misses.near > len(misses.cases):
        _line(console, f"{misses.near - len(misses.cases)} more; --near-misses {misses.near} lists all", "dim")
    _line(console, f"why: rounds explain {run} --case {misses.cases[0].case}", "dim")


def _show_site(console: Console, reasons: SiteExplanation, top: int) -> None:
    from rich.table import Table

    from grandrounds.capabilities.cases.site_page import comparison_text
    from grandrounds.cli.screen import number

    figures = reasons.performance
    _line(console, styled((reasons.site, "bold"), f": features that {reasons.model_owner} relies on there"))
    _line(
        console,
        f"{figures['count'] or 0:.0f} test rows, accuracy {number(figures['accuracy'], 3)}, AUROC {number(figures['auroc'], 3)}",
    )
    table = Table()
    for column in ("column", "here", "std. error", "other sites", "consensus", ""):
        table.add_column(column, justify="left" if column in ("column", "") else "right")
    for c in reasons.columns[:top]:
        word = ("more here" if c.difference > 0 else "less here") if c.significant else ""
        shares = (f"{v:.1%}" for v in (c.share, c.error, c.other_sites, c.consensus))
        table.add_row(c.column, *shares, word)
    console.print(table)
    _line(console, comparison_text(reasons))
    _line(console, f"number {reasons.rank} of {reasons.sites} from the farthest", "dim")
    _line(console, f"{reasons.explainer} importance, {reasons.provenance}", "dim")
    for line in () if reasons.personal is None else reasons.personal.sentences:
        _line(console, line)


def _show_image(console: Console, case: ImageExplanation) -> None:
    from grandrounds.capabilities.cases.case_page import PARTS
    from grandrounds.capabilities.cases.image import MAPS
    from grandrounds.capabilities.cases.image_page import heat_note, image_title, verdict
    from grandrounds.cli.screen import number

    part = PARTS.get(case.part or "", "new row").replace("row", "picture")
    _line(console, styled((image_title(case), "bold"), f" ({part}, {case.model_owner}): {verdict(case)}"))
    rows = [
        (MAPS[n], _share(h.inside), number(h.iou_ratio, 2), number(h.concentration, 3)) for n, h in case.numbers.items()
    ]
    if rows:
        _show_heat(console, ("heat map", "heat inside the mask", "IoU-ratio", "concentration"), rows)
        _line(console, heat_note(case), "dim")


def _show_images(console: Console, site: SiteImageExplanation) -> None:
    from grandrounds.capabilities.cases.case_page import PARTS
    from grandrounds.capabilities.cases.image import NAMES
    from grandrounds.capabilities.cases.image_page import heat_note, site_images_title, verdict
    from grandrounds.cli.screen import number

    part = PARTS[site.part].replace("row", "pictures")
    _line(console, styled((site_images_title(site), "bold"), f": {site.rows} {part}, {site.model_owner}"))
    for case in site.cases:
        _line(console, f"  image {case.number}: {verdict(case)}")
    rows = [
        (
            NAMES[name],
            _share(m.inside),
            "-" if m.xai_accuracy is None else f"{m.xai_accuracy.value:.2f} +- {m.xai_accuracy.error:.2f}",
            number(m.concentration, 3),
        )
        for name, m in site.means.items()
    ]
    _show_heat(console, (f"mean of {site.scored}", "heat inside the mask", "XAI accuracy", "concentration"), rows)
    _line(console, heat_note(site), "dim")


def _show_heat(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print numbers about heat maps; a column without any is left out."""
    from rich.table import Table

    table = Table()
    columns = [i for i in range(len(head)) if i == 0 or any(row[i] != "-" for row in rows)]
    for i in columns:
        table.add_column(head[i], justify="right" if i else "left")
    for row in rows:
        table.add_row(*(row[i] for i in columns))
    console.print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _line(console: Console, text: str | Text, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True)
