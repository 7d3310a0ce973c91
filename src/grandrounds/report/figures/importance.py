"""Feature importances by site and over all, and the share of them on spurious features.

Reads `explanations.json`, which answers two questions about a round. *Training*: how different are the explanations of
the sites' own models on the same reference rows? *Deployed*: how different are the explanations of the one common
model for each site's own patients?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import AMOUNT, COLOURS, MANY, QUIET, category, labels, largest, layout

KINDS = ("training", "deployed")
COLOUR = {"training": COLOURS[0], "deployed": COLOURS[1]}
MEASURE = {"training": "training drift", "deployed": "deployed divergence"}
MEANING = {
    "training": "the sites' own models on the same reference rows",
    "deployed": "the common model on each site's own patients",
}


def blocks(explanations: Mapping[str, Any], kind: str) -> dict[int, Mapping[str, Any]]:
    """Round -> what was found of this kind, in the order of rounds."""
    if kind not in KINDS:
        raise BadInput(f"kind is '{kind}': explanations are of kind {' or '.join(KINDS)}", code="unknown-kind")
    return {int(r["round"]): r[kind] for r in explanations["rounds"] if r.get(kind)}


def newest(explanations: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The newest of a kind, of which there is some: of the model in use that of the final one, where it was explained
    once more."""
    found = blocks(explanations, kind)
    final: Mapping[str, Any] = explanations.get("final") or {}
    return final if kind == "deployed" and final else found[max(found)]


def needed(explanations: Mapping[str, Any], kind: str) -> dict[int, Mapping[str, Any]]:
    """The same, of which there must be some."""
    found = blocks(explanations, kind)
    if not found:
        raise BadInput(
            f"no round of these explanations has sketches of kind '{kind}': set explain.sketch and run again",
            code="nothing-to-draw",
        )
    return found


def farthest(block: Mapping[str, Any], sites: int) -> list[str]:
    """The sites whose sketch is farthest from the consensus, that one first."""
    away = block["to_consensus"]
    return sorted(away, key=lambda s: (-(away[s] or 0.0), s))[:sites]


CONSENSUS = "consensus"
_TITLE = {
    "training": "What each site's own model goes by",
    "deployed": "What the common model goes by at each site",
}


def importance_heatmap(
    explanations: Mapping[str, Any], kind: str = "training", round: int | None = None, top: int = 20
) -> Figure:
    """Sketches of one round (the last, if none is named): sites by the `top` features of the consensus.

    The first row is the consensus; sites follow from the farthest to the nearest, at most thirty of them.
    """
    found = needed(explanations, kind)
    at = max(found) if round is None else round
    if at not in found:
        known = ", ".join(map(str, found))
        raise BadInput(f"round {at} has no sketches of kind '{kind}'; rounds that have: {known}", code="unknown-round")
    block = found[at]
    consensus, every = block["consensus"], explanations["features"]
    shown = sorted(range(len(every)), key=lambda f: (-consensus[f], f))[:top]
    held = block["sketches"]
    sites = [s for s in farthest(block, len(block["to_consensus"])) if s in held][:MANY]
    flat = set(block.get("flat", ()))
    names = [CONSENSUS, *labels([f"{s} (flat)" if s in flat else s for s in sites])]
    rows = [consensus, *[held[s] for s in sites]]
    error = block.get("error", {})
    spread = [[None] * len(shown), *[[_short(error[s][f]) if s in error else None for f in shown] for s in sites]]
    features = labels([every[f] for f in shown])
    z = [[_short(row[f]) for f in shown] for row in rows]
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
    notes = [f"round {at}: {MEANING[kind]}"]
    if not held:
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
    """Importance of each feature over all rows, the greatest on top, with one standard error either way."""
    if len(names) != len(values) or (errors is not None and len(errors) != len(values)):
        raise BadInput(
            f"{len(names)} names, {len(values)} importances: give one of each (and of errors) for a feature",
            code="length-mismatch",
        )
    order = sorted(range(len(values)), key=lambda f: (-abs(values[f]), f))[:top]
    shown = labels([names[f] for f in order], width=34)
    trace: dict[str, Any] = {
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


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def spurious_masses(masses: Mapping[str, Mapping[str, float]], chance: float) -> Figure:
    """The share of each site's sketch on the tile with its patch (SSE-AGG eq. 25), one bar a question, and chance.

    `masses`: kind ("training", "deployed") -> site -> share. Of many sites it shows those with the largest.
    """
    held = {kind: masses[kind] for kind in KINDS if masses.get(kind)}
    if not held:
        raise BadInput(
            "no sketch was read at the tile with a patch: set data.shortcut.p and explain.sketch, run again",
            code="nothing-to-draw",
        )
    every = sorted({site for own in held.values() for site in own})
    top = sorted(every, key=lambda s: -max(own.get(s, 0.0) for own in held.values()))[:MANY]
    sites = [s for s in every if s in set(top)]
    names = labels(sites)
    bars = [
        {
            "type": "bar",
            "name": MEANING[kind],
            "x": names,
            "y": [own.get(s) for s in sites],
            "marker": {"color": COLOUR[kind]},
            "hovertemplate": "%{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        }
        for kind, own in held.items()
    ]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": chance, "y1": chance}
    said = f"dotted: by chance, {chance:.4f}"
    return Figure(
        bars,
        layout(
            "Spurious mass: reasons on the tile with the patch",
            note=said + (f"; the {len(sites)} largest of {len(every)} sites" if len(every) > len(sites) else ""),
            y="share of the sketch",
            height=380,
            xaxis=category(names),
            yaxis={"rangemode": "tozero"},
            shapes=[{**line, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}],
        ),
    )
