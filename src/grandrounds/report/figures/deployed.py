"""Figure of deployed models: the loss of the common model and of the deployed one at each hospital."""

from __future__ import annotations

from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.report.deployed import Deployed, DeployedSite, shown_sites
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, MAX_SITES, QUIET, category, labels, layout, safe

_HOVER = "%{y}: %{x:.3f}<br>%{customdata}<extra></extra>"


def deployed_losses(found: Deployed) -> Figure | None:
    """Draw the loss on each hospital's test rows before and after: a grey ring for the common model, a dot for the deployed one.

    Args:
        found: The models that hospitals deploy.

    Returns:
        The figure; None where no hospital has both figures.
    """
    loss = found.loss
    sites = [
        s
        for s in shown_sites(found, MAX_SITES)
        if is_defined(s.common.get(loss)) and is_defined(s.deployed.get(loss))
    ]
    if not sites:
        return None
    names = labels([s.site for s in sites], width=30)
    ends: Trace = {
        "type": "scatter", "mode": "lines", "showlegend": False, "hoverinfo": "skip", "line": {"color": "#b6bec6", "width": 3},
        "x": [v for s in sites for v in (s.common[loss], s.deployed[loss], None)],
        "y": [v for name in names for v in (name, name, None)],
    }  # fmt: skip
    traces = [ends, _dots(sites, names, loss)]
    groups = (("deployed", False, COLOURS[0], "circle"), ("deployed, harmed", True, COLOURS[1], "diamond"))
    for label, is_harmed, colour, symbol in groups:
        pairs = [(name, s) for name, s in zip(names, sites, strict=True) if bool(s.harmed) is is_harmed]
        if pairs:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": label, "hovertemplate": _HOVER,
                    "x": [s.deployed[loss] for _, s in pairs],
                    "y": [name for name, _ in pairs],
                    "customdata": [safe(s.model) for _, s in pairs],
                    "marker": {"color": colour, "size": 11, "symbol": symbol},
                }
            )  # fmt: skip
    hidden = len(found.sites) - len(sites)
    note = "test rows of each hospital; lower is better" + (f"; {hidden} more hospitals are in the table" if hidden else "")
    word = metric_label(loss)
    return Figure(
        traces,
        layout(
            f"{word[0].upper()}{word[1:]} of the common and of the deployed model",
            note=note,
            x=word,
            height=180 + 26 * max(3, len(sites)),
            yaxis=category(names, autorange="reversed"),
            legend={"y": -0.16 - 0.5 / max(3, len(sites))},
        ),
    )


def _dots(sites: list[DeployedSite], names: list[str], loss: str) -> Trace:
    """Draw the common model's losses."""
    return {
        "type": "scatter", "mode": "markers", "name": "common model", "hovertemplate": _HOVER,
        "x": [s.common[loss] for s in sites],
        "y": names,
        "customdata": ["the common model"] * len(sites),
        "marker": {"color": "#ffffff", "size": 10, "line": {"color": QUIET, "width": 2}},
    }  # fmt: skip
