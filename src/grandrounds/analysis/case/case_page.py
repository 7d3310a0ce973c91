"""How a case is put in words and drawn, and one site on a self-contained page: the figure, the columns as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from grandrounds.analysis.case.attributions import LOG_ODDS
from grandrounds.analysis.case.site import SiteReasons
from grandrounds.analysis.case.table import Reason, TableCase
from grandrounds.analysis.case.values import share_text, short
from grandrounds.report import figures
from grandrounds.report.document import Charts, document, number, said, table, td
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, QUIET, category, heading, labels, layout
from grandrounds.report.plotly_js import packed

PARTS = {"train": "training row", "val": "validation row", "test": "test row", "reference": "reference row"}
_SEEN = 0.005


def case_title(case: TableCase) -> str:
    """Which patient, at which site."""
    where = f" at {case.site}" if case.site else ""
    return f"Row {case.number} of {case.source}{where}"


def case_figure(case: TableCase, *, top: int) -> Figure:
    """The patient's score as a waterfall, from the background's to the patient's own."""
    names = [r.column for r in case.reasons]
    parts = [r.contribution for r in case.reasons]
    end = case.base + sum(parts) if accounted(case) else case.score
    drawn = figures.waterfall(names, parts, case.base, end, [value_text(r) for r in case.reasons], top=top)
    shown = f"from {case.baseline:.1%} at the start (dotted) to {case.probability:.1%} for this patient"
    drawn["layout"]["title"] = heading(f"Why {escape(case.event)}: row {case.number}", shown)
    drawn["layout"]["xaxis"]["title"] = {"text": escape(score_words(case))}
    drawn["layout"]["margin"] = {"t": 72}
    if case.unit != LOG_ODDS or len(case.classes) > 2:  # the figure's own hover takes every score for log-odds of two
        drawn["data"][0]["hovertemplate"] = "%{y}: %{text}<br>so far %{customdata[0]:.3f}<extra></extra>"
    return drawn


def accounted(case: TableCase) -> bool:
    """Whether the reasons add up, to the digits that are shown."""
    return abs(case.remainder) < _SEEN


def score_words(case: TableCase) -> str:
    """What the contributions add up to."""
    if case.unit != LOG_ODDS:
        return f"probability of {case.event}"
    return f"log-odds of {case.event}" + (" against the mean of the other classes" if len(case.classes) > 2 else "")


def risk_word(case: TableCase) -> str:
    """What a probability is called: of two classes the second is a risk."""
    return "risk" if len(case.classes) == 2 else "probability"


def value_text(reason: Reason) -> str:
    """The patient's value as a person writes it."""
    if reason.value is None:
        return "missing"
    return short(reason.value) if isinstance(reason.value, float) else str(reason.value)


def breakable(name: str) -> str:
    """A name as HTML that may be broken after an underscore, so that long ones do not widen a table."""
    return escape(name).replace("_", "_<wbr>")


def standing(reason: Reason) -> str:
    """Where the value stands among the training patients of all sites."""
    noise = "" if reason.margin is None else f" ± {max(1.0, reason.margin):.0f} (noised)"
    if reason.percentile is not None:
        p = reason.percentile
        return f"percentile {'<1' if p < 1 else '>99' if p > 99 else f'{p:.0f}'}{noise}"
    if reason.share is None:
        return "" if reason.margin is None else f"not told: noise of ± {reason.margin:.0f} points"
    return f"{'missing in' if reason.value is None else 'the same in'} {share_text(reason.share)}{noise}"


def site_figure(reasons: SiteReasons, *, top: int) -> Figure:
    """The columns that count most at the site, beside what they count elsewhere."""
    shown = reasons.columns[:top]
    names = labels([c.column for c in shown], width=34)
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": f"at {escape(reasons.site)}",
        "x": [c.share for c in shown],
        "y": names,
        "error_x": {"type": "data", "array": [c.error for c in shown], "color": QUIET, "thickness": 1.2},
        "marker": {"color": COLOURS[5]},
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "the other sites, on average",
        "x": [c.others for c in shown],
        "y": names,
        "marker": {"color": COLOURS[1], "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
        "hovertemplate": "%{y}: %{x:.1%}<extra>other sites</extra>",
    }
    rest = len(reasons.columns) - len(shown)
    return Figure(
        [bars, dots],
        layout(
            f"What counts at {escape(reasons.site)}",
            note=f"{rest} less important columns are not shown" if rest else "bars with one standard error",
            x="share of importance",
            height=190 + 26 * max(3, len(shown)),
            xaxis={"tickformat": ".0%", "rangemode": "tozero"},
            yaxis=category(names, autorange="reversed", showgrid=False),
            legend={"y": -0.16},
        ),
    )


def site_page(reasons: SiteReasons, *, top: int) -> str:
    """The whole page of one site."""
    charts = Charts(packed())
    figures_ = reasons.performance
    tiles = [
        ("from the consensus", f"{reasons.divergence:.2f}", f"of at most 2; sampling alone: {reasons.sampling:.2f}"),
        ("place", f"{reasons.rank} of {reasons.sites}", "1 is the site farthest from the consensus"),
        ("accuracy", number(figures_["accuracy"], 3), f"{figures_['count'] or 0:.0f} test rows, {escape(reasons.by)}"),
        ("AUROC", number(figures_["auroc"], 3), f"log loss {number(figures_['log_loss'], 3)}"),
    ]
    chart = charts.place(site_figure(reasons, top=top), wide=True)
    rows = [
        [
            td(escape(c.column)),
            td(f"{c.share:.1%}"),
            td(f"{c.error:.1%}"),
            td(f"{c.others:.1%}"),
            td(f"{c.consensus:.1%}"),
            td(f"{100 * c.difference:+.1f}"),
            said(("more here" if c.difference > 0 else "less here") if c.sure else "within sampling error"),
        ]
        for c in reasons.columns
    ]
    head = ["column", "here", "standard error", "other sites", "consensus", "difference, points", ""]
    title = f"How {reasons.by} reasons at {reasons.site}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(reasons.source)}; {escape(reasons.explainer)} importance, {escape(reasons.measured)}</p>",
        tiles_html(tiles, html=True),
        *notes_html(reasons.notes),
        f"<p>{escape(compared(reasons))}</p>",
        charts.note,
        chart,
        "<h2>Columns</h2>",
        table(head, rows),
    ]
    return document(title, body, charts.script)


def compared(reasons: SiteReasons) -> str:
    """Which columns count more and less here than elsewhere, in a sentence."""
    if reasons.flat:
        return "No column counts for the model on this site's patients: its reasons there are flat."
    parts = []
    for word, columns in (("more", reasons.more), ("less", reasons.less)):
        named = ", ".join(f"{c.column} ({100 * c.difference:+.1f} points)" for c in columns[:5])
        parts += [f"Counts {word} here than at the other sites: {named}."] if named else []
    text = " ".join(parts) or "No column counts more or less here than at the other sites, beyond sampling error."
    if reasons.divergence <= reasons.sampling:
        text += " The distance to the consensus is no larger than sampling error alone would make it."
    return text


def tiles_html(tiles: Iterable[tuple[str, str, str]], *, html: bool = False) -> str:
    """Boxes of a name, a figure and a note; with `html` these are escaped already."""
    safe = str if html else escape
    inner = [
        f"<div class='tile'>{safe(n)}<b>{safe(v)}</b><span class='quiet'>{safe(t)}</span></div>" for n, v, t in tiles
    ]
    return f"<div class='tiles'>{''.join(inner)}</div>"


def notes_html(notes: Sequence[str]) -> list[str]:
    """What to be careful about, in one box."""
    lines = [f"<div>{escape(note)}</div>" for note in notes]
    return [f"<div class='warn'>{''.join(lines)}</div>"] if lines else []
