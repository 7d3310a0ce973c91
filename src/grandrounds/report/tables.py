"""Tables of a run as text, which the report and the console draw: differences between hospitals, Table 1, survival curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.report.document import table, td, text_cell
from grandrounds.report.estimates import describe_p, heterogeneity_head, heterogeneity_note, heterogeneity_rows

if TYPE_CHECKING:  # importing them takes scipy, which most reports do not need
    from grandrounds.capabilities.statistics.kaplan_meier import Estimate, KaplanMeier, SurvivalCurve
    from grandrounds.capabilities.statistics.log_rank import LogRank
    from grandrounds.capabilities.statistics.meta import MetaAnalysis
    from grandrounds.capabilities.statistics.table_result import TableOne


@dataclass(frozen=True)
class TextTable:
    """A table as text.

    Attributes:
        title: Its heading.
        head: Heads of the columns.
        rows: Rows of text, one for each head.
        names: Columns at the left that hold names; the others hold numbers.
        before: Sentences before the table.
        notes: Sentences below it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    before: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def html(self, *, heading: str = "h3") -> str:
        """Write the table as HTML; all text is escaped."""
        head = [f"<th class='text'>{escape(h)}</th>" if k < self.names else escape(h) for k, h in enumerate(self.head)]
        rows = [
            [text_cell(cell) if 0 < k < self.names else td(escape(cell)) for k, cell in enumerate(row)]
            for row in self.rows
        ]
        title = f"<{heading}>{escape(self.title)}</{heading}>" if self.title else ""
        before = "".join(f"<p>{escape(line)}</p>" for line in self.before)
        notes = "".join(f"<p class='quiet'>{escape(note)}</p>" for note in self.notes)
        return f"{title}{before}{table(head, rows) if rows else ''}{notes}"


def heterogeneity_table(found: MetaAnalysis) -> TextTable:
    """Return the differences between hospitals as a table."""
    notes = tuple(note if note.endswith(".") else f"{note}." for note in found.notes)
    return TextTable(
        "Differences between hospitals",
        heterogeneity_head(found.model),
        tuple(heterogeneity_rows(found)),
        before=(heterogeneity_note(found),),
        notes=notes,
    )


def read_table_one(summary: Mapping[str, Any]) -> TableOne | None:
    """Read Table 1 of a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        The table; None for a run without it.

    Raises:
        BadInput: The record is damaged.
    """
    values = summary.get("table1")
    if not values:
        return None
    from grandrounds.capabilities.statistics.table_result import TableOne

    try:
        return TableOne.from_dict(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged("Table 1") from None


def read_survival(summary: Mapping[str, Any]) -> KaplanMeier | None:
    """Read the survival curves of a summary.

    Args:
        summary: The summary of a finished run.

    Returns:
        The curves; None for a run without them.

    Raises:
        BadInput: The record is damaged.
    """
    values = summary.get("survival")
    if not values or "overall" not in values:
        return None
    from grandrounds.capabilities.statistics.kaplan_meier import KaplanMeier

    try:
        return KaplanMeier.from_dict(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged("survival curves") from None


def _damaged(part: str) -> BadInput:
    return BadInput(
        f"summary.json is damaged: its {part} cannot be read; run the experiment again", code="damaged-record"
    )


def table_one(found: TableOne) -> TextTable:
    """Return Table 1 as text, with the columns of sites where it has them."""
    head = ("variable", "", *found.header()[2:])
    rows, before = [], ""
    for row in found.rows():
        rows.append(("" if row[0] == before else row[0], *row[1:]))
        before = row[0]
    title = "Table 1" + (f" by {found.group}" if found.groups else "")
    sent = f"Each hospital answered {found.exchanges} questions with sums." if found.exchanges else ""
    notes = (*found.footnotes(), *([sent] if sent else []))
    return TextTable(title, head, tuple(rows), names=2, notes=notes)


def selection_table(summary: Mapping[str, Any]) -> TextTable | None:
    """Return the selection of a cohort: visits that are left after each step, at each hospital; None without it.

    Args:
        summary: The summary of a finished run.

    Raises:
        BadInput: The record is damaged.
    """
    cohort = summary.get("cohort")
    if not cohort:
        return None
    try:
        steps = [(str(step), {str(site): int(n) for site, n in rows.items()}) for step, rows in cohort.get("steps", ())]
        title, digest = f"Selection of patients: cohort '{cohort['name']}'", str(cohort["digest"])
        sites = [site for site in (steps[0][1] if steps else ()) if site]
        rows = tuple((step, _few(sum(n.values())), *(_few(n[site]) for site in sites)) for step, n in steps)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged("cohort") from None
    stays = () if steps else ("The steps of the selection stay at each hospital: `rounds site check` shows them there.",)
    return TextTable(title, ("visits left", "all", *sites), rows, notes=(*stays, f"Digest of the cohort: {digest}."))


def _few(count: int) -> str:
    """Write a count; below the smallest that a table shows, that it is smaller."""
    from grandrounds.capabilities.statistics.small_cells import LEAST

    return f"<{LEAST}" if 0 < count < LEAST else f"{count:,}"


def survival_table(found: KaplanMeier) -> TextTable:
    """Return the survival curves as a table: rows, events, median and restricted mean of each group."""
    curves = (found.overall, *found.groups)
    head = ("group", "rows", "events", "median (95% CI)", f"mean up to {_time(found.overall.horizon)} (95% CI)")
    rows = tuple(
        (c.group, _count(c.rows, c), _count(c.events, c), _estimate(c.median), _estimate(c.restricted_mean))
        for c in curves
    )
    before = (log_rank_sentence(found.log_rank),) if found.log_rank is not None else ()
    notes = tuple(note if note.endswith(".") else f"{note}." for note in found.notes)
    exchanges = found.facts.get("exchanges")
    sent = (f"Each hospital answered {exchanges} questions with counts.",) if exchanges else ()
    return TextTable("Survival", head, rows, before=before, notes=(*_how(curves), *notes, *sent))


def has_curve(found: KaplanMeier) -> bool:
    """Tell whether a group, or all rows where there is none, has the events for a curve."""
    return any(c.times for c in (found.groups or (found.overall,)))


def log_rank_sentence(test: LogRank) -> str:
    """Describe the log-rank test in a sentence."""
    verdict = "differs between groups" if test.p < 0.05 else "does not clearly differ between groups"
    return (
        f"Survival {verdict}: log-rank test within hospitals, chi-squared {test.statistic:.2f} with {test.degrees} "
        f"{'degree' if test.degrees == 1 else 'degrees'} of freedom, {describe_p(test.p)}."
    )


def _how(curves: Sequence[SurvivalCurve]) -> tuple[str, ...]:
    if all(c.grid == "days" for c in curves):
        return ("The curves have a step at each time.",)
    least = max(c.least for c in curves)
    return (
        f"The curves are known at the ends of intervals with at least {least} events, and are straight in between.",
    )


def _count(count: int | None, curve: SurvivalCurve) -> str:
    return f"<{curve.least}" if count is None else f"{count:,}"


def _estimate(found: Estimate) -> str:
    if found.value is None:
        return "not reached"
    low, high = ("–" if end is None else _time(end) for end in (found.low, found.high))
    return f"{_time(found.value)} ({low} to {high})"


def _time(value: float | None) -> str:
    return "the end" if value is None else f"{value:.4g}"
