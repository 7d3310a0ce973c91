"""A case, a site or a list of near misses as the terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grandrounds.analysis.case.case_page import (
    PARTS,
    accounted,
    case_title,
    compared,
    near_misses_title,
    near_misses_words,
    points_text,
    risk_word,
    score_words,
    standing,
    value_text,
    verdict_lines,
)
from grandrounds.analysis.case.image import MAPS, NAMES, PictureCase, PictureSite
from grandrounds.analysis.case.image_page import numbers_words, picture_title, site_title, verdict
from grandrounds.analysis.case.near_misses import NearMisses
from grandrounds.analysis.case.pages import Explanation
from grandrounds.analysis.case.site import SiteReasons
from grandrounds.analysis.case.table import Reason, TableCase
from grandrounds.analysis.case.values import quality_lines
from grandrounds.cli.screen import number
from grandrounds.cli.terminal import styled, warn

_COLOURS = {"raises": "dark_orange", "lowers": "deep_sky_blue3"}


def show(console: Console, found: Explanation, *, run: Path, top: int) -> None:
    """The few lines and the short table that answer the question about `run`."""
    if isinstance(found, NearMisses):
        _near_misses(console, found, run)
        return
    if isinstance(found, TableCase):
        _case(console, found, top)
    elif isinstance(found, PictureCase):
        _picture(console, found)
    elif isinstance(found, PictureSite):
        _pictures(console, found)
    else:
        _site(console, found, top)
    for note in found.notes:
        console.print(warn(note, "note:"), highlight=False, soft_wrap=True)


def _case(console: Console, case: TableCase, top: int) -> None:
    of = PARTS.get(case.part or "", "new patient")
    _line(console, styled((case_title(case), "bold"), f" ({of}, {case.by})"))
    _line(
        console,
        styled(
            f"{risk_word(case)} of {case.event}: ",
            (f"{case.probability:.1%}", "bold"),
            f", baseline {case.baseline:.1%}; decision {case.decision}, outcome {case.outcome or 'not known'}",
            f" ({case.verdict})" if case.verdict else "",
        ),
    )
    for line in verdict_lines(case):
        _line(console, line, "bold yellow")
    console.print(_reasons(case, top))
    _line(
        console,
        f"{case.explainer}; from {case.base:+.3f} ({case.start}) to {case.score:+.3f}, {score_words(case)}",
        "dim",
    )
    others = case.among.words if case.among.population is None else f"among patients: {case.among.words}"
    _line(console, others, "dim")
    for flag in case.bias:
        shown = next(value_text(r) for r in case.reasons if r.column == flag.column)
        _line(console, styled(("bias?", "red"), f" {flag.column} = {shown} ({flag.kind}) {flag.words}"))
    for text, _ in quality_lines(case.quality, case.unread):
        _line(console, warn(text, "data:"))


def _reasons(case: TableCase, top: int) -> Table:
    """Amplifiers and mitigators, the `top` strongest of each; then all others together."""
    table = Table()
    two = len(case.classes) == 2
    known = any(standing(r) for r in case.reasons)
    columns = ["", "value", *(["among patients"] if known else []), case.unit, *(["points"] if two else [])]
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "among patients") else "right")
    blank = [""] * columns[1:].index(case.unit)
    rest: list[Reason] = []
    for title, direction, reasons in (
        ("amplifiers", "raises", case.amplifiers),
        ("mitigators", "lowers", case.mitigators),
    ):
        colour = _COLOURS[direction]
        shown = reasons[:top]
        rest += reasons[top:]
        table.add_row(styled((title, f"bold {colour}"), ("" if shown else " none", "dim")))
        for r in shown:
            value = styled(value_text(r), (" (imputed)" if r.imputed else "", "dim"))
            points = [points_text(r)] if two else []
            number = styled((f"{r.contribution:+.3f}", colour))
            table.add_row(f"  {r.column}", value, *([standing(r)] if known else []), number, *points)
    if rest:
        together = sum(r.contribution for r in rest)
        table.add_row(styled((f"{len(rest)} others together", "dim")), *blank, f"{together:+.3f}")
    if not accounted(case):
        table.add_row(styled(("not accounted for", "dim")), *blank, f"{case.remainder:+.3f}")
    return table


def _near_misses(console: Console, found: NearMisses, run: Path) -> None:
    _line(console, styled((near_misses_title(found), "bold"), f" ({found.source})"))
    _line(console, near_misses_words(found))
    if not found.cases:
        return
    table = Table()
    for column in ("case", "site", "risk", "points below"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for m in found.cases:
        table.add_row(str(m.case), m.site, f"{m.risk:.1%}", f"{100 * (found.threshold - m.risk):.1f}")
    console.print(table)
    if found.near > len(found.cases):
        _line(console, f"{found.near - len(found.cases)} more; --near-misses {found.near} lists all", "dim")
    _line(console, f"why: rounds explain {run} --case {found.cases[0].case}", "dim")


def _site(console: Console, reasons: SiteReasons, top: int) -> None:
    figures = reasons.performance
    _line(console, styled((reasons.site, "bold"), f": how {reasons.by} reasons there"))
    _line(
        console,
        f"{figures['count'] or 0:.0f} test rows, accuracy {number(figures['accuracy'], 3)}, AUROC {number(figures['auroc'], 3)}",
    )
    table = Table()
    for column in ("column", "here", "std. error", "other sites", "consensus", ""):
        table.add_column(column, justify="left" if column in ("column", "") else "right")
    for c in reasons.columns[:top]:
        word = ("more here" if c.difference > 0 else "less here") if c.sure else ""
        shares = (f"{v:.1%}" for v in (c.share, c.error, c.others, c.consensus))
        table.add_row(c.column, *shares, word)
    console.print(table)
    _line(
        console,
        f"distance to the consensus {reasons.divergence:.2f} of at most 2 (sampling alone would give {reasons.sampling:.2f}), "
        f"number {reasons.rank} of {reasons.sites} from the farthest",
    )
    _line(console, compared(reasons))
    _line(console, f"{reasons.explainer} importance, {reasons.measured}", "dim")


def _picture(console: Console, case: PictureCase) -> None:
    of = PARTS.get(case.part or "", "new row").replace("row", "picture")
    _line(console, styled((picture_title(case), "bold"), f" ({of}, {case.by}): {verdict(case)}"))
    rows = [
        (MAPS[n], _share(h.inside), number(h.iou_ratio, 2), number(h.concentration, 3)) for n, h in case.numbers.items()
    ]
    _heat(console, ("heat map", "heat inside the mask", "IoU-ratio", "concentration"), rows)
    _line(console, numbers_words(case), "dim")


def _pictures(console: Console, site: PictureSite) -> None:
    part = PARTS[site.part].replace("row", "pictures")
    _line(console, styled((site_title(site), "bold"), f": {site.rows} {part}, {site.by}"))
    for case in site.cases:
        _line(console, f"  picture {case.number}: {verdict(case)}")
    rows = [
        (
            NAMES[name],
            _share(m.inside),
            "-" if m.drawn is None else f"{m.drawn.value:.2f} +- {m.drawn.error:.2f}",
            number(m.concentration, 3),
        )
        for name, m in site.means.items()
    ]
    _heat(console, (f"mean of {site.scored}", "heat inside the mask", "XAI accuracy", "concentration"), rows)
    _line(console, numbers_words(site), "dim")


def _heat(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Numbers about heat maps; what nothing is known of is left out."""
    table = Table()
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] != "-" for row in rows)]
    for i in kept:
        table.add_column(head[i], justify="right" if i else "left")
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    console.print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _line(console: Console, text: str | Text, style: str | None = None) -> None:
    console.print(text, style=style, soft_wrap=True)
