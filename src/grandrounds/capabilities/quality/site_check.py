"""Page of a data check for a hospital's own staff: verdict, findings with fixes, and every column against the agreement.

The page may contain values of patients. It is written at the hospital and is not sent anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from grandrounds.capabilities.quality.assessment.report import ColumnQuality, QualityReport
from grandrounds.core.arrays import Array
from grandrounds.data.agreement.bins import as_numbers
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.counts import share_interval
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, AgreedSchema, DataSchema
from grandrounds.data.table import Table
from grandrounds.report.bars import STYLE, share_bars
from grandrounds.report.document import document, table, td, text_cell

STAYS = (
    "This page describes patients of this hospital and may contain their values. It stays at the hospital: do not send it to the "
    "server or to another site."
)
"""First sentence of the page."""

FIXES = {
    "missing-column": "Rename the column, or export it.",
    "extra-column": "Nothing to do: the column is left out. Remove it if it names patients.",
    "not-a-number": "Write numbers, or add the word to the marks for missing values.",
    "unknown-value": "Translate the codes to the agreed ones.",
    "label-values": "Translate the outcome to the agreed classes.",
    "one-class": "Check the outcome column, or widen the selection of patients.",
    "no-label": "Fill in the outcome, or leave these rows out.",
    "no-patient": "Fill in the patient of every row.",
    "all-missing": "Check the export of this column.",
    "mostly-missing": "Check the export of this column; it may be right.",
    "out-of-range": "Look at these values: typing errors, another unit, or codes for missing values such as 999.",
    "repeated-rows": "Remove copies: a join may have repeated them.",
    "repeated-patients": "Right only if patients return; the split keeps a patient's rows together.",
    "too-few-rows": "Take part with more rows, or not at all.",
    "units": "Convert the column to the agreed unit.",
    "unreadable": "Correct the file and check it again.",
    "recoded-category": "Translate the codes to the agreed ones, by the code book of the export.",
    "shifted-dates": "Compare dates with the source: a shift for anonymity must be undone, or agreed by all sites.",
    "impossible-date": "Correct these dates, or leave them empty.",
    "swapped-columns": "Exchange the two columns, or their names.",
    "misaligned-column": "Compare some rows with the source: a column may have been sorted or joined by itself.",
    "truncated-file": "Export the table again: its end is absent.",
    "mixed-encoding": "Export the table again in one encoding, UTF-8 if possible.",
    "mixed-decimals": "Write all numbers with the same decimal mark.",
    "row-count": "Compare with the number of rows in the source, and export again.",
    "label-leak": "Leave the column out if it is recorded after the outcome.",
    "label-prevalence": "Compare the outcome with the source: are classes exchanged, or patients selected?",
    "column-stops": "Export the column again: it has no values from some row on.",
    "same-patient": "Give rows of one patient the same identifier, or remove copies.",
}
"""Suggested fix of each code of a check; other findings have it in their text."""

_SHARES = (0.05, 0.20, 0.25, 0.25, 0.20, 0.05)  # of the bins between the agreed quantiles
_MOST_LEVELS = 12
_BARS = 8
_LEVEL_NAMES = ("5%", "25%", "median", "75%", "95%")


def check_page(
    report: QualityReport, schema: AgreedSchema, rows: Table | None = None, *, differences: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Write the page of a data check.

    Args:
        report: The quality report of the site's data.
        schema: The agreed schema.
        rows: The site's table, for histograms; None for images.
        differences: Differences from the totals of the consortium (`methods.quality`), where the site compared itself.

    Returns:
        HTML, with no reference to anything outside of it.
    """
    errors, warnings = ([f for f in report.findings if f.level == level] for level in ("error", "warning"))
    body = [
        f"<main><h1>Data check: {escape(report.source)}</h1>",
        f"<p class='stays'><b>{escape(STAYS)}</b></p>",
        _verdict(report, warnings),
        *_to_do(errors, warnings),
        *_group("Faults: fix them before the site takes part", errors),
        *_group("Warnings: somebody should look", warnings),
        *_differences(differences),
        *_overview(report, schema),
        *([] if not isinstance(schema, DataSchema) else _columns(report, schema, rows)),
        *_assumed(report),
        "</main>",
    ]
    return document(f"Data check of {report.source}", body, None, style=STYLE)


def _verdict(report: QualityReport, warnings: Sequence[Finding]) -> str:
    faults, looks = _plural(report.errors, "fault"), _plural(len(warnings), "warning")
    if report.fits:
        text = f"The data fit the schema of the consortium: {report.rows:,} rows, no fault, {looks}."
    else:
        text = f"The data do not fit the schema of the consortium: {faults} to fix, {looks}, {report.rows:,} rows."
    return f"<p class='verdict {'fits' if report.fits else 'unfit'}'><b>{escape(text)}</b></p>"


def _to_do(errors: Sequence[Finding], warnings: Sequence[Finding]) -> Iterator[str]:
    """List the next steps."""
    steps = []
    if errors:
        steps.append("Correct the faults below in the export, or in the query that writes it.")
    if warnings:
        steps.append("Look at the warnings with somebody who knows the data; a warning can be right.")
    steps.append("Run the same command again." if errors else "Start the site: rounds site start FOLDER --data FILE.")
    yield f"<h2>What to do</h2><ol>{''.join(f'<li>{escape(step)}</li>' for step in steps)}</ol>"


def _group(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    head = ["<th class='text'>column</th>", "<th class='text'>finding</th>", "<th class='text'>what to do</th>", "<th>code</th>"]
    rows = [
        [td(escape(f.column or "table")), text_cell(f.text), text_cell(FIXES.get(f.code, "")), _code(f.code)] for f in findings
    ]
    yield f"<h2>{escape(title)}</h2>{table(head, rows)}"


def _code(code: str) -> str:
    return td(f"<code>{escape(code)}</code>")


def _differences(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not found:
        return
    head = ["<th class='text'>column</th>", "<th class='text'>difference from the other sites</th>", "<th>effect</th>"]
    rows = [[td(escape(str(f["column"] or "rows"))), text_cell(f["text"]), td(f"{f['effect']:.0%}")] for f in found]
    yield f"<h2>Compared with the totals of the consortium</h2>{table(head, rows)}"


def _overview(report: QualityReport, schema: AgreedSchema) -> Iterator[str]:
    """Show the main figures: rows, patients, copies, dates and the outcome with its interval."""
    tiles = [("rows" if isinstance(schema, DataSchema) else "images", f"{report.rows:,}")]
    if report.patients is not None:
        tiles.append(("patients", f"{report.patients:,}"))
        tiles.append(("further rows of a patient", f"{report.repeated or 0:,}"))
    if isinstance(schema, DataSchema):
        tiles.append(("repeated rows", f"{report.copies:,}"))
        cells = sum(c.rows for c in report.columns)
        tiles.append(("missing cells", f"{sum(c.missing for c in report.columns) / cells:.1%}" if cells else "0%"))
    for c in report.columns:
        if c.first:
            tiles.append((f"dates in {c.name}", f"{c.first} to {c.last}"))
        if c.role == "label" and c.levels:
            tiles.append(_outcome(c, schema))
    cells_html = "".join(f"<div class='tile'>{escape(name)}<b>{escape(value)}</b></div>" for name, value in tiles)
    yield f"<h2>Overview</h2><div class='tiles'>{cells_html}</div>"


def _outcome(column: ColumnQuality, schema: AgreedSchema) -> tuple[str, str]:
    """State the share of the event with its 95% interval."""
    counts = dict(column.levels)
    event = schema.event or schema.positive or (schema.classes[-1] if schema.classes else column.levels[-1][0])
    n, events = sum(counts.values()), counts.get(event, 0)
    low, high = share_interval(events, n)
    return f"outcome '{event}' (95% interval)", f"{events / max(n, 1):.1%} ({low:.1%} to {high:.1%})"


def _columns(report: QualityReport, schema: DataSchema, rows: Table | None) -> Iterator[str]:
    yield "<h2>Columns</h2>"
    if any(c.quantiles for c in schema.columns):
        yield (
            "<p class='quiet'>Bars are shares of this site between the agreed 5, 25, 50, 75 and 95% quantiles; black marks are "
            "the shares that a site like the consortium has.</p>"
        )
    agreed = {c.name: c for c in schema.columns}
    noted = {f.column for f in report.findings}
    for c in sorted(report.columns, key=lambda c: c.name not in noted):
        values = None if rows is None or c.name not in rows.columns else rows.columns[c.name]
        yield _column(c, agreed.get(c.name), values, [f for f in report.findings if f.column == c.name])


def _column(c: ColumnQuality, agreed: AgreedColumn | None, values: Array | None, findings: Sequence[Finding]) -> str:
    unit = f", {agreed.unit}" if agreed is not None and agreed.unit else ""
    usual = getattr(agreed, "missing_share", None)
    missing = f"{c.missing:,} of {c.rows:,} rows have no value ({c.missing_share:.1%}"
    missing += f"; agreed about {usual:.1%})" if usual is not None else ")"
    about = escape(f"({c.role}, {c.kind}{unit})")
    parts = [
        f"<section class='column'><h3>{escape(c.name)} <span class='quiet'>{about}</span></h3>",
        *(f"<p class='{'bad' if f.level == 'error' else 'warn'}'>{escape(f.level)}: {escape(f.text)}</p>" for f in findings),
        f"<p>{escape(missing)}; {c.distinct:,} different values.</p>",
    ]
    if c.quantiles:
        parts.append(_quantiles(c, agreed))
    if c.kind == "number" and values is not None:
        parts.append(_histogram(c, agreed, values))
    elif c.levels:
        parts.append(_levels(c, agreed))
    return "".join(parts) + "</section>"


def _quantiles(c: ColumnQuality, agreed: AgreedColumn | None) -> str:
    """Compare quantiles with the agreed ones."""
    head = ["<th class='text'>quantile</th>", *(escape(n) for n in _LEVEL_NAMES), "lowest", "highest"]
    ends = ("", "") if c.range is None else tuple(f"{v:.5g}" for v in c.range)
    rows = [[td("this site"), *(td(f"{q:.5g}") for q in c.quantiles), *(td(e) for e in ends)]]
    if agreed is not None and (agreed.quantiles or agreed.range is not None):
        known = [f"{q:.5g}" for q in agreed.quantiles] or [""] * len(LEVELS)
        possible = ("", "") if agreed.range is None else tuple(f"{v:.5g}" for v in agreed.range)
        rows.append([td("agreed"), *(td(q) for q in known), *(td(e) for e in possible)])
    return table(head, rows)


def _histogram(c: ColumnQuality, agreed: AgreedColumn | None, values: Array) -> str:
    numbers = as_numbers(values)
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        return ""
    quantiles = agreed.quantiles if agreed is not None else ()
    if quantiles and len(set(quantiles)) == len(quantiles):
        place = np.searchsorted(quantiles, present, side="right")
        names = [f"below {quantiles[0]:.4g}", *(f"to {q:.4g}" for q in quantiles[1:]), "above"]
        shares = np.bincount(place, minlength=len(_SHARES)) / len(present)
        return share_bars(names, shares.tolist(), _SHARES, title=c.name)
    low, high = np.quantile(present, [0.01, 0.99])
    if not low < high:
        return ""
    edges = np.linspace(low, high, _BARS + 1)
    place = np.clip(np.searchsorted(edges, present, side="right") - 1, 0, _BARS - 1)
    names = [f"to {e:.4g}" for e in edges[1:]]
    return share_bars(names, (np.bincount(place, minlength=_BARS) / len(present)).tolist(), title=c.name)


def _levels(c: ColumnQuality, agreed: AgreedColumn | None) -> str:
    """List the levels with their shares, and how many of the agreed ones the site uses."""
    known = agreed.values if agreed is not None else ()
    shares = dict(zip(known, getattr(agreed, "shares", ()), strict=False))
    total = max(1, sum(n for _, n in c.levels))
    head = ["<th class='text'>value</th>", "rows", "share", *(["agreed share"] if shares else []), *(["agreed"] if known else [])]
    rows = []
    for word, n in c.levels[:_MOST_LEVELS]:
        row = [td(escape(word)), td(f"{n:,}"), td(f"{n / total:.1%}")]
        row += [td(f"{shares[word]:.1%}" if word in shares else "")] if shares else []
        row += [td("yes" if word in known else "<span class='bad'>no</span>")] if known else []
        rows.append(row)
    used = sum(word in known for word, _ in c.levels)
    note = f"{used} of {len(known)} agreed values are used; {c.coverage:.1%} of the cells have one of them." if known else ""
    unused = [word for word in known if word not in dict(c.levels)]
    note += f" Never used: {', '.join(unused[:10])}." if unused else ""
    more = len(c.levels) - _MOST_LEVELS
    note += f" {more} further values are not listed." if more > 0 else ""
    return table(head, rows) + (f"<p class='quiet'>{escape(note)}</p>" if note else "")


def _assumed(report: QualityReport) -> Iterator[str]:
    if report.assumptions:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.assumptions)
        yield f"<h2>Assumptions made to read the file</h2><ul>{items}</ul>"


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
