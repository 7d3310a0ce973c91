"""The page of a site explanation: the importances at the site beside those at other sites."""

from __future__ import annotations

from html import escape

from grandrounds.capabilities.cases.case_page import notes_html, tiles_html
from grandrounds.capabilities.cases.site import SiteExplanation
from grandrounds.report.differences import describe_patients
from grandrounds.report.document import Charts, document, number, table, td, text_cell
from grandrounds.report.figure import Figure, packed_script
from grandrounds.report.style import COLOURS, QUIET, category, labels, layout


def site_figure(explanation: SiteExplanation, *, top: int) -> Figure:
    """Draw the most important columns at the site, with their importance at other sites."""
    shown = explanation.columns[:top]
    names = labels([c.column for c in shown], width=34)
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": f"at {escape(explanation.site)}",
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
        "x": [c.other_sites for c in shown],
        "y": names,
        "marker": {"color": COLOURS[1], "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
        "hovertemplate": "%{y}: %{x:.1%}<extra>other sites</extra>",
    }
    rest = len(explanation.columns) - len(shown)
    return Figure(
        [bars, dots],
        layout(
            f"Most important columns at {escape(explanation.site)}",
            note=f"{rest} less important columns are not shown" if rest else "bars with one standard error",
            x="share of importance",
            height=190 + 26 * max(3, len(shown)),
            xaxis={"tickformat": ".0%", "rangemode": "tozero"},
            yaxis=category(names, autorange="reversed", showgrid=False),
            legend={"y": -0.16},
        ),
    )


def site_page(explanation: SiteExplanation, *, top: int) -> str:
    """Write the page of one site."""
    charts = Charts(packed_script())
    figures_ = explanation.performance
    tiles = [
        (
            "from the consensus",
            f"{explanation.divergence:.2f}",
            f"scale 0 to 2; expected by chance: {explanation.sampling:.2f}",
        ),
        ("place", f"{explanation.rank} of {explanation.sites}", "1 is the site farthest from the consensus"),
        (
            "accuracy",
            number(figures_["accuracy"], 3),
            f"{figures_['count'] or 0:.0f} test rows, {escape(explanation.model_owner)}",
        ),
        ("AUROC", number(figures_["auroc"], 3), f"log loss {number(figures_['log_loss'], 3)}"),
    ]
    chart = charts.place(site_figure(explanation, top=top), wide=True)
    rows = [
        [
            td(escape(c.column)),
            td(f"{c.share:.1%}"),
            td(f"{c.error:.1%}"),
            td(f"{c.other_sites:.1%}"),
            td(f"{c.consensus:.1%}"),
            td(f"{100 * c.difference:+.1f}"),
            text_cell(("more here" if c.difference > 0 else "less here") if c.significant else "within sampling error"),
        ]
        for c in explanation.columns
    ]
    head = ["column", "here", "standard error", "other sites", "consensus", "difference, points", ""]
    title = f"Features that {explanation.model_owner} relies on at {explanation.site}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(explanation.source)}; {escape(explanation.explainer)} importance, "
        f"{escape(explanation.provenance)}</p>",
        tiles_html(tiles, html=True),
        *notes_html(explanation.notes),
        f"<p>{escape(comparison_text(explanation))}</p>",
        *_personal_html(explanation),
        charts.note,
        chart,
        "<h2>Columns</h2>",
        table(head, rows),
    ]
    return document(title, body, charts.script)


def _personal_html(explanation: SiteExplanation) -> list[str]:
    """Write the deployed model and the features that differ from the common model; empty without personal parts."""
    if explanation.personal is None:
        return []
    lines = "".join(f"<li>{escape(line)}</li>" for line in explanation.personal.sentences)
    return [f"<h2>The model of {escape(explanation.site)}</h2>", f"<ul>{lines}</ul>"]


def comparison_text(explanation: SiteExplanation) -> str:
    """Answer whether this hospital's patients differ, and name the columns that have another share here than elsewhere."""
    if explanation.flat:
        return "The model uses no column for this site's patients: its explanation there is flat."
    parts = []
    for word, columns in (("more", explanation.more), ("less", explanation.less)):
        shown = [c for c in columns if abs(c.difference) >= 0.0005]  # others would read as 0.0 points
        named = ", ".join(f"{c.column} ({100 * c.difference:+.1f} points)" for c in shown[:5])
        parts += [f"{word.capitalize()} important for these patients than at the other sites: {named}."] if named else []
    named = " ".join(parts) or "No column has a larger or smaller share here than at the other sites, beyond sampling error."
    patients = describe_patients(explanation.divergence, explanation.sampling, "here and of the consensus")
    return f"{patients} {named}"
