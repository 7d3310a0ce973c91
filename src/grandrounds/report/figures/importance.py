"""Feature importances by site and over all, and the share of them on spurious features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.core.errors import BadInput
from grandrounds.report.explanations import KINDS, Explanations, farthest_sites, require_blocks
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import AMOUNT, COLOURS, MAX_SITES, QUIET, category, labels, largest, layout

COLOUR = {"training": COLOURS[0], "deployed": COLOURS[1]}
MEASURE = {"training": "training drift", "deployed": "deployed divergence"}
MEANING = {
    "training": "the sites' own models on the same reference rows",
    "deployed": "the common model on each site's own patients",
}


CONSENSUS = "consensus"
_TITLE = {
    "training": "Most important features of each site's own model",
    "deployed": "Most important features of the common model, by site",
}


def importance_heatmap(
    explanations: Explanations, kind: str = "training", round: int | None = None, top: int = 20
) -> Figure:
    """Draw the sketches of one round: sites by the most important features of the consensus.

    The first row is the consensus; sites follow from the farthest to the nearest, at most thirty of them.

    Args:
        explanations: explanations.json.
        kind: "training" or "deployed".
        round: The round; by default the last.
        top: Features that are shown.

    Raises:
        BadInput: The round has no sketches of this kind.
    """
    by_round = require_blocks(explanations, kind)
    chosen = max(by_round) if round is None else round
    if chosen not in by_round:
        explained = ", ".join(map(str, by_round))
        raise BadInput(
            f"round {chosen} has no sketches of kind '{kind}'; rounds that have: {explained}", code="unknown-round"
        )
    block = by_round[chosen]
    consensus, every = block["consensus"], explanations["features"]
    shown = sorted(range(len(every)), key=lambda f: (-consensus[f], f))[:top]
    sketches = block["sketches"]
    sites = [s for s in farthest_sites(block, len(block["to_consensus"])) if s in sketches][:MAX_SITES]
    flat = set(block.get("flat", ()))
    names = [CONSENSUS, *labels([f"{s} (flat)" if s in flat else s for s in sites])]
    rows = [consensus, *[sketches[s] for s in sites]]
    error = block.get("error", {})
    spread = [[None] * len(shown), *[[_shorten(error[s][f]) if s in error else None for f in shown] for s in sites]]
    features = labels([every[f] for f in shown])
    z = [[_shorten(row[f]) for f in shown] for row in rows]
    trace = {
        "type": "heatmap",
        "x": features,
        "y": names,
        "z": z,
        "customdata": spread,
        "zmin": 0,
        "zmax": largest(z),
        "colorscale": AMOUNT,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "share", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}<br>%{x}: %{z:.3f} (standard error %{customdata:.3f})<extra></extra>",
    }
    rest = len(every) - len(shown)
    total = len(block["to_consensus"])
    notes = [f"round {chosen}: {MEANING[kind]}"]
    if not sketches:
        notes.append(f"sketches of each of {total} sites are not kept")
    elif total > len(sites):
        notes.append(f"the {len(sites)} of {total} sites farthest from the consensus")
    notes += [f"{rest} less important features are not shown"] if rest else []
    return Figure(
        [trace],
        layout(
            _TITLE[kind],
            note="; ".join(notes),
            height=210 + 17 * len(names),
            xaxis=category(features, tickangle=-45, showgrid=False),
            yaxis=category(names, autorange="reversed", showgrid=False),
        ),
    )


def importances(
    names: Sequence[str],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    *,
    top: int = 20,
    title: str = "Importance of features",
) -> Figure:
    """Draw the importance of each feature over all rows, the greatest on top, with one standard error either way.

    Args:
        names: The features.
        values: Their importances.
        errors: Their standard errors.
        top: Features that are shown.
        title: The title.

    Raises:
        BadInput: Names, values and errors differ in length.
    """
    if len(names) != len(values) or (errors is not None and len(errors) != len(values)):
        raise BadInput(
            f"{len(names)} names, {len(values)} importances: give one of each (and of errors) for a feature",
            code="length-mismatch",
        )
    order = sorted(range(len(values)), key=lambda f: (-abs(values[f]), f))[:top]
    shown = labels([names[f] for f in order], width=34)
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": [values[f] for f in order],
        "y": shown,
        "marker": {"color": COLOURS[0]},
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
    }
    if errors is not None:
        trace["error_x"] = {"type": "data", "array": [errors[f] for f in order], "color": QUIET, "thickness": 1.2}
    rest = len(values) - len(order)
    return Figure(
        [trace],
        layout(
            title,
            note=f"{rest} less important features are not shown" if rest else "",
            x="importance",
            height=120 + 22 * max(3, len(order)),
            yaxis=category(shown, autorange="reversed", showgrid=False),
        ),
    )


def _shorten(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def spurious_masses(masses: Mapping[str, Mapping[str, float]], chance: float) -> Figure:
    """Draw the share of each site's sketch on the tile with its patch (SSE-AGG eq. 25), one bar per kind, and chance.

    Args:
        masses: Kind ("training", "deployed") -> site -> share. With many sites it shows those with the largest.
        chance: The share of a sketch that prefers no tile.

    Raises:
        BadInput: There are no shares.
    """
    by_kind = {kind: masses[kind] for kind in KINDS if masses.get(kind)}
    if not by_kind:
        raise BadInput(
            "no sketch was read at the tile with a patch: set data.shortcut.p and explain.sketch, run again",
            code="nothing-to-draw",
        )
    every = sorted({site for by_site in by_kind.values() for site in by_site})
    top = sorted(every, key=lambda s: -max(by_site.get(s, 0.0) for by_site in by_kind.values()))[:MAX_SITES]
    sites = [s for s in every if s in set(top)]
    names = labels(sites)
    bars = [
        {
            "type": "bar",
            "name": MEANING[kind],
            "x": names,
            "y": [by_site.get(s) for s in sites],
            "marker": {"color": COLOUR[kind]},
            "hovertemplate": "%{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        }
        for kind, by_site in by_kind.items()
    ]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": chance, "y1": chance}
    note = f"dotted: by chance, {chance:.4f}"
    return Figure(
        bars,
        layout(
            "Spurious mass: attribution on the tile with the patch",
            note=note + (f"; the {len(sites)} largest of {len(every)} sites" if len(every) > len(sites) else ""),
            y="share of the sketch",
            height=380,
            xaxis=category(names),
            yaxis={"rangemode": "tozero"},
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )
