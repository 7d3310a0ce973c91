"""The result of a regression as text, LaTeX, CSV and HTML: coefficients in original units, as statistics packages print them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from grandrounds.core.errors import visible
from grandrounds.report.estimates import (
    DISPERSIONS,
    ERRORS,
    INTERCEPTS,
    MODELS,
    RATIOS,
    EstimatesRecord,
    describe_differences,
    disclosure_sentence,
    format_fact,
    has_tests,
    is_intercept,
    score_rows,
    to_ratio,
)

WARNING = "warning: "
"""First word of a line with a warning of the run."""

_WIDTH = 78
_LONGEST_NAME = 32
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"}  # fmt: skip


def coefficient_rows(record: EstimatesRecord) -> list[dict[str, Any]]:
    """Return one row for each coefficient, with the names of columns in statsmodels' manner.

    Args:
        record: The estimates of a run.

    Returns:
        Rows with name, coef, std_err, z or t, p, low, high, the ratio with its interval, and the reason of a column that was
        left out. Values that do not exist are None.
    """
    estimates = record.original
    ratio = RATIOS.get(estimates.model, "").replace(" ", "_")
    statistic = "z" if estimates.degrees is None else "t"
    rows = []
    for c in estimates.coefficients:
        row: dict[str, Any] = {"name": c.name, "coef": c.estimate, "std_err": c.error}
        row |= {statistic: c.statistic, "p": c.p, "low": c.low, "high": c.high}
        if ratio:
            values = [None] * 3 if is_intercept(c) else [to_ratio(v) for v in (c.estimate, c.low, c.high)]
            row |= dict(zip((ratio, f"{ratio}_low", f"{ratio}_high"), values, strict=True))
        rows.append({**row, "left_out": c.reason})
    return rows


def summary_text(
    record: EstimatesRecord,
    *,
    label: str = "",
    hospitals: int | None = None,
    duration: str = "",
    references: Sequence[str] = (),
    width: int = 120,
) -> str:
    """Write the result as statistics packages print it: a block of facts, the coefficients, and notes.

    Args:
        record: The estimates of a run.
        label: Name of the outcome.
        hospitals: Number of hospitals.
        duration: Name of the column of follow-up time.
        references: Reference levels, such as "sex=female".
        width: Width of the terminal. Where the table is wider, ratios are printed below the coefficients.

    Returns:
        Lines for a terminal, without an end of line.
    """
    estimates = record.original
    heads, rows = _coefficient_cells(record)
    blocks = [(heads, rows)]
    first = len(heads) - (3 if estimates.model in RATIOS else 0)
    if _measure(heads, rows) > width and first < len(heads):
        kept = [
            r
            for r, c in zip(rows, estimates.coefficients, strict=True)
            if c.estimate is not None and not is_intercept(c)
        ]
        ratios = [[r[0], *r[first:]] for r in kept]
        blocks = [(heads[:first], [r[:first] for r in rows]), (["", *heads[first:]], ratios)]
    total = max(_WIDTH, *(_measure(*block) for block in blocks))
    title = MODELS.get(estimates.model, estimates.model)
    lines = [f"{_capital(title)} across hospitals".center(total).rstrip(), "=" * total]
    lines += _facts(record, total, label=label, hospitals=hospitals, duration=duration, references=references)
    lines.append("=" * total)
    for block_heads, block_rows in blocks:
        widths = _column_widths(block_heads, block_rows)
        lines += [_line(block_heads, widths), "-" * total, *(_line(row, widths) for row in block_rows), "=" * total]
    return "\n".join([*lines, *_remarks(record)])


def _column_widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(heads, *rows, strict=True)]


def _measure(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = _column_widths(heads, rows)
    return sum(widths) + 2 * (len(widths) - 1)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]).rstrip()


def _coefficient_cells(record: EstimatesRecord) -> tuple[list[str], list[list[str]]]:
    """Format the table of coefficients; a name that is too long is shortened."""
    estimates = record.original
    tests, ratio = has_tests(estimates), RATIOS.get(estimates.model)
    statistic = "z" if estimates.degrees is None else "t"
    heads = ["", "coef", "std err", *((statistic, f"P>|{statistic}|") if tests else ()), "[0.025", "0.975]"]
    heads += [ratio, "[0.025", "0.975]"] if ratio else []
    rows = []
    for c in estimates.coefficients:
        name = visible(c.name)
        cells = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."]
        if c.estimate is None:
            rows.append([*cells, "left out", *[""] * (len(heads) - 2)])
            continue
        cells += [format_cell(c.estimate), format_cell(c.error)]
        if tests:
            cells += ["" if c.statistic is None else f"{c.statistic:.3f}", format_p(c.p)]
        cells += [format_cell(c.low), format_cell(c.high)]
        if ratio:
            cells += (
                ["", "", ""] if is_intercept(c) else [format_cell(to_ratio(v)) for v in (c.estimate, c.low, c.high)]
            )
        rows.append(cells)
    return heads, rows


def format_cell(value: float | None) -> str:
    """Format a number with four decimals; more for small numbers, so that three digits are shown; powers of ten beyond."""
    if value is None or not math.isfinite(value):
        return ""
    size = abs(value)
    if size and not 1e-7 < size < 1e6:
        return f"{value:.3e}"
    decimals = 4 if size == 0 or size >= 0.01 else min(9, 2 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def format_p(p: float | None) -> str:
    """Format a p-value with three decimals; "<0.001" below."""
    return "" if p is None else "<0.001" if p < 0.0005 else f"{p:.3f}"


def _facts(
    record: EstimatesRecord,
    width: int,
    *,
    label: str,
    hospitals: int | None,
    duration: str,
    references: Sequence[str],
) -> list[str]:
    """Lay out the facts of a fit in two columns, and those that are long on lines of their own."""
    facts, sent = record.original.facts, record.exchanges
    outcome = f"{duration} until {label}" if duration else label
    pairs = [("Outcome", outcome), ("Hospitals", _whole(hospitals)), ("Rows", _whole(facts.get("n")))]
    pairs += [("Events", _whole(facts.get("events"))), ("Log-likelihood", _decimal(facts.get("log_likelihood")))]
    pairs += [("Deviance", _decimal(facts.get("deviance"))), ("AIC", _decimal(facts.get("aic")))]
    pairs += [(_capital(DISPERSIONS.get(record.original.model, "")), _number(facts.get("dispersion")))]
    pairs += [("Ridge penalty", _plain(facts.get("ridge"))), ("Ties", str(facts.get("ties") or ""))]
    pairs += [("Exchanges", _exchanges(sent)), ("Numbers sent / held", _ratio(sent))]
    pairs = [(visible(name), visible(value)) for name, value in pairs if value]
    half = (width - 2) // 2
    short = [p for p in pairs if len(p[0]) + len(p[1]) + 3 <= half]
    long = [p for p in pairs if p not in short]
    kind, tau2 = str(facts.get("intercept") or ""), facts.get("tau2")
    spread = f"; variance {tau2:g}" if kind == "random" and isinstance(tau2, int | float) else ""
    long += [("Intercept", f"{INTERCEPTS.get(kind, kind)}{spread}")] if kind else []
    long += [("Reference levels", visible(", ".join(references)))] if references else []
    long.append(("Standard errors", ERRORS.get(record.original.errors, record.original.errors)))
    rows = math.ceil(len(short) / 2)
    left, right = short[:rows], [*short[rows:], *[("", "")] * (2 * rows - len(short))]
    lines = [f"{_pair(a, half)}  {_pair(b, half)}".rstrip() for a, b in zip(left, right, strict=True)]
    return lines + [f"{name}: {value}" for name, value in long]


def _pair(pair: tuple[str, str], width: int) -> str:
    name, value = pair
    return " " * width if not name else f"{name}:{value.rjust(width - len(name) - 1)}"


def _whole(value: Any) -> str:
    return "" if value is None else f"{int(value):,}"


def _decimal(value: Any) -> str:
    return "" if value is None else f"{float(value):,.2f}"


def _number(value: Any) -> str:
    return "" if value is None else format_fact(value)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _plain(value: Any) -> str:
    return "" if not value else f"{value:g}" if isinstance(value, int | float) else str(value)


def _exchanges(sent: Any) -> str:
    """State the number of exchanges, and how many of them the fit itself took; the others compared hospitals."""
    count, fit = _whole(sent.get("count")), sent.get("fit")
    return count if not count or fit in (None, sent["count"]) else f"{count} ({_whole(fit)} for the fit)"


def _ratio(sent: Any) -> str:
    ratio = sent.get("ratio")
    if ratio is None:
        return ""
    shown = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    if sent.get("numbers_sent") is None or not sent.get("numbers_held"):
        return shown
    return f"{sent['numbers_sent']:,.0f} / {sent['numbers_held']:,.0f} = {shown}"


def _remarks(record: EstimatesRecord) -> list[str]:
    """List what was left out and why, the notes, warnings of the run, and what hospitals say of their rows."""
    out = [f"left out: {visible(c.name)}: {visible(c.reason)}" for c in record.left_out]
    out += [f"between hospitals: {visible(line)}" for line in describe_differences(record)]
    if record.scores is not None:
        out += [f"{name}: {value}" for name, value in score_rows(record.scores)]
    out += [f"note: {visible(note)}" for note in record.all_notes]
    sentence = disclosure_sentence(record.exchanges)
    out += [f"disclosure: {sentence}"] if sentence else []
    out += [f"{WARNING}{visible(warning)}" for warning in record.warnings]
    return out + [visible(f"{site}: {note}") for site, notes in record.site_notes.items() for note in notes]


def to_csv(record: EstimatesRecord) -> str:
    """Write the coefficients as CSV, with all digits.

    Args:
        record: The estimates of a run.

    Returns:
        The text of a CSV file.
    """
    rows = coefficient_rows(record)
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else ["name"], lineterminator="\n")
    writer.writeheader()
    writer.writerows([{k: repr(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows])
    return out.getvalue()


def to_latex(record: EstimatesRecord, *, caption: str = "") -> str:
    """Write the coefficients as a LaTeX table, with the notes below it; it needs the package booktabs.

    Args:
        record: The estimates of a run.
        caption: Caption; "" for the name of the model.

    Returns:
        The text of a table environment.
    """
    heads, rows = _coefficient_cells(record)
    names = [c.name for c in record.original.coefficients]
    estimates = record.original
    body = []
    for name, row in zip(names, rows, strict=True):
        cells = [_to_latex(name), *(_math(cell) for cell in row[1:])]
        body.append("    " + " & ".join(cells) + r" \\")
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{_to_latex(caption or MODELS.get(estimates.model, estimates.model).capitalize())}}}",
        f"  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join("$P>|" + h[3] + "|$" if h.startswith("P>|") else _to_latex(h) for h in heads) + r" \\",
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        *(rf"  \par{{\footnotesize {_to_latex(line)}}}" for line in _remarks(record)),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _to_latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in visible(text)).replace("--", "-{}-")  # no dash of a flag


def _math(cell: str) -> str:
    """Set a negative number with a minus sign, and "<0.001" in mathematics."""
    return f"${cell}$" if cell.startswith(("-", "<")) else _to_latex(cell)


def to_html(
    record: EstimatesRecord,
    *,
    label: str = "",
    hospitals: int | None = None,
    duration: str = "",
    references: Sequence[str] = (),
) -> str:
    """Write the result as HTML for a notebook.

    Args:
        record: The estimates of a run.
        label: Name of the outcome.
        hospitals: Number of hospitals.
        duration: Name of the column of follow-up time.
        references: Reference levels, such as "sex=female".

    Returns:
        A table and paragraphs.
    """
    heads, rows = _coefficient_cells(record)
    facts = _facts(record, _WIDTH, label=label, hospitals=hospitals, duration=duration, references=references)
    model = MODELS.get(record.original.model, record.original.model).capitalize()
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    names = [c.name for c in record.original.coefficients]
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(visible(name))}</th>"
        + "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for name, row in zip(names, rows, strict=True)
    )
    remarks = "".join(f"<p>{escape(line)}</p>" for line in _remarks(record))
    return (
        f"<div><p><b>{escape(model)}</b></p><pre>{escape(chr(10).join(facts))}</pre>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{remarks}</div>"
    )
