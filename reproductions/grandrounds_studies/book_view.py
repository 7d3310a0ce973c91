"""Show reproductions in one line each: stored results, or results of a run in progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds_studies.lines import Line
    from grandrounds_studies.study import Study
    from grandrounds_studies.tally import Tally

_WHAT, _PUBLISHED, _OURS = 42, 9, 16
"""Columns of text; with the longest name and a verdict a line takes about 120."""


def show_book(systems: Sequence[str], *, as_json: bool) -> None:
    """Show the reproduction report of full-size runs: a line per study, and counts of verdicts."""
    from grandrounds_studies.book import load_book, tallies, waiting
    from grandrounds_studies.everything import chosen
    from grandrounds_studies.kept import NOT_MEASURED
    from grandrounds_studies.lines import line

    wanted = chosen(systems)
    book = load_book()
    lines = [book[s.name].line(s) if s.name in book else line(s, None, (), note=NOT_MEASURED) for s in wanted]
    papers, ours = tallies([book[s.name] for s in wanted if s.name in book])
    wait = waiting(wanted, book)
    if as_json:
        counts = {"papers": asdict(papers) | {"waiting": wait}, "ours": asdict(ours)}
        echo(json.dumps({"studies": [asdict(one) for one in lines], "claims": counts}))
        return
    rows = Rows(wanted)
    rows.head()
    for one in lines:
        rows.show(one)
    _tallies(rows.console, papers, ours, wait)


def run_everything(
    wanted: Sequence[Study],
    *,
    quick: bool,
    seeds: int | None,
    jobs: int,
    out: Path | None,
    as_json: bool,
    bar: Callable[[], AbstractContextManager[Callable[[str, int, int], None]]],
) -> bool:
    """Run these studies with a line for each as it ends; says whether all went well."""
    from grandrounds_studies.everything import in_a_line, write_reports

    rows = Rows(wanted)
    if not as_json:
        rows.head("ours (quick)" if quick else "ours")
    begun = time.monotonic()
    lines = []
    for study in wanted:
        with bar() as progress:
            lines.append(in_a_line(study.name, quick=quick, seeds=seeds, jobs=jobs, out=out, progress=progress))
        if not as_json:
            rows.show(lines[-1])
    took = time.monotonic() - begun
    failed = [one for one in lines if one.failed]
    reports = [str(path) for path in write_reports(wanted, quick=quick, out=out)]
    if as_json:
        echo(json.dumps({"studies": [asdict(one) for one in lines], "seconds": took, "reports": reports}))
    else:
        _ended(rows.console, lines, failed, took, quick=quick, reports=reports)
    return not failed


class Rows:
    """Table of studies that is printed line by line, with column widths fixed beforehand."""

    def __init__(self, studies: Iterable[Study]) -> None:
        from grandrounds.cli.terminal import Terminal

        self.console: Console = Terminal(soft_wrap=True)
        self._name = max(len(s.name) for s in studies)

    def head(self, ours: str = "ours") -> None:
        self.console.print(f"{self._row('study', 'what', 'published', ours)}verdict (claims reproduced)", style="dim")

    def show(self, one: Line) -> None:
        from grandrounds.cli.terminal import styled
        from grandrounds_studies.wording import published_words

        left = self._row(one.study, one.what, published_words(one.published), one.ours or "–")
        self.console.print(styled(left, *_verdict(one)))

    def _row(self, name: str, what: str, published: str, ours: str) -> str:
        return f"{name:<{self._name}}  {_cut(what):<{_WHAT}}  {published:>{_PUBLISHED}}  {ours:>{_OURS}}  "


def _verdict(one: Line) -> list[str | tuple[str, str]]:
    from grandrounds_studies.study import FAILS, HOLDS

    shade = {HOLDS: "green", FAILS: "red"}.get(one.verdict, "yellow")
    count = f" ({one.reproduced} of {one.tested})" if one.tested > 1 else ""
    verdict: list[str | tuple[str, str]] = [(one.verdict, shade), count] if one.verdict else []
    note: list[str | tuple[str, str]] = [(one.note, "yellow")] if one.note else []
    return [*verdict, *(["; "] if verdict and note else []), *note] or ["no claim"]


def _cut(text: str) -> str:
    return text if len(text) <= _WHAT else f"{text[: _WHAT - 1]}…"


def _tallies(console: Console, papers: Tally, ours: Tally, wait: int) -> None:
    console.print(f"\n{papers.all} claims of papers: {papers}{f'; {wait} wait for a study to be measured' if wait else ''}")
    console.print(f"{ours.all} questions of our own: {ours}")
    console.print(
        "A claim counts once, in the paper's own form. The verdict of a line is that of its main claim. "
        "Details: docs/results",
        style="dim",
    )


def _ended(
    console: Console,
    lines: Sequence[Line],
    failed: Sequence[Line],
    took: float,
    *,
    quick: bool,
    reports: Sequence[str],
) -> None:
    from grandrounds_studies.wording import QUICK

    away = [one for one in lines if one.note.startswith("not run")]
    minutes, seconds = divmod(round(took), 60)
    console.print(
        f"\n{len(lines)} studies in {minutes} min {seconds} s: {len(lines) - len(away) - len(failed)} ran, "
        f"{len(away)} not run here, {len(failed)} with a run that failed"
    )
    if quick:
        console.print(QUICK, style="yellow")
    for path in reports:
        console.print(f"report: {path}", markup=False)
