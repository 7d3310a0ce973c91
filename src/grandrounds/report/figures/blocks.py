"""Reading explanations.json: which rounds speak of which question.

Two questions are asked of every round and never answered by one number. *Training*: how far apart do the sites' own
models reason on the same reference rows? *Deployed*: how differently does the one common model reason about each
site's own patients?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.paint import COLOURS

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
        raise BadInput(f"kind is '{kind}': explanations are of kind {' or '.join(KINDS)}")
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
            f"no round of these explanations has sketches of kind '{kind}': set explain.sketch and run again"
        )
    return found


def farthest(block: Mapping[str, Any], sites: int) -> list[str]:
    """The sites whose sketch is farthest from the consensus, that one first."""
    away = block["to_consensus"]
    return sorted(away, key=lambda s: (-(away[s] or 0.0), s))[:sites]
