"""The content of explanations.json as typed values, and the blocks that figures and sections read from it.

The file answers two questions about a round. *Training*: how different are the explanations of the sites' own models on the
same reference rows? *Deployed*: how different are the explanations of the one common model for each site's own patients?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import ColumnLabels

KINDS = ("training", "deployed")


class Pairs(TypedDict, total=False):
    """Distances of every two sites' sketches, in the order of `sites`."""

    sites: Required[Sequence[str]]
    drift: Required[Sequence[Sequence[float | None]]]
    jaccard: Sequence[Sequence[float | None]]


class Block(TypedDict, total=False):
    """The sketches of one kind in one round, and how far they lie apart."""

    sketches: Mapping[str, Sequence[float]]
    error: Mapping[str, Sequence[float]]
    flat: Sequence[str]
    consensus: Sequence[float]
    to_consensus: Mapping[str, float | None]
    pairs: Pairs | None
    drift: float | None
    sampling: float | None
    consensus_drift: float | None
    jaccard: float | None
    rank_correlation: float | None
    k: int
    nsds: Mapping[str, float | None]
    blur: Mapping[str, Sequence[float]]
    spurious_masses: Mapping[str, float]


class ExplainedRound(TypedDict, total=False):
    """One round of explanations.json; a kind is missing where it was not explained in this round."""

    round: Required[int]
    training: Block
    deployed: Block


class SketchRecord(TypedDict, total=False):
    """The settings that sketches were made with."""

    explainer: Required[str]
    score: str | None


class Explanations(TypedDict, total=False):
    """explanations.json of a run."""

    schema: int
    sketch: SketchRecord
    features: Sequence[str]
    rounds: Required[Sequence[ExplainedRound]]
    final: Block | None


def blocks_by_round(explanations: Explanations, kind: str) -> dict[int, Block]:
    """Collect the blocks of one kind.

    Args:
        explanations: explanations.json.
        kind: "training" or "deployed".

    Returns:
        Round -> block, in the order of rounds; empty where no round has this kind.

    Raises:
        BadInput: The kind is unknown.
    """
    if kind not in KINDS:
        raise BadInput(f"kind is '{kind}': explanations are of kind {' or '.join(KINDS)}", code="unknown-kind")
    blocks = {
        r["round"]: r.get("training") if kind == "training" else r.get("deployed") for r in explanations["rounds"]
    }
    return {int(number): block for number, block in blocks.items() if block}


def newest_block(explanations: Explanations, kind: str) -> Block:
    """Return the newest block of a kind that exists; for "deployed" the final model's, where it was explained once more."""
    final = explanations.get("final")
    if kind == "deployed" and final:
        return final
    by_round = blocks_by_round(explanations, kind)
    return by_round[max(by_round)]


def importances(explanations: Explanations) -> dict[str, float]:
    """Return the share of each feature in what the deployed model relies on, over all sites; empty where it was not explained."""
    if not explanations.get("final") and not blocks_by_round(explanations, "deployed"):
        return {}
    return dict(zip(explanations["features"], newest_block(explanations, "deployed")["consensus"], strict=True))


def require_blocks(explanations: Explanations, kind: str) -> dict[int, Block]:
    """Collect the blocks of one kind, and refuse explanations without any.

    Raises:
        BadInput: The kind is unknown, or no round has it.
    """
    by_round = blocks_by_round(explanations, kind)
    if not by_round:
        raise BadInput(
            f"no round of these explanations has sketches of kind '{kind}': set explain.sketch and run again",
            code="nothing-to-draw",
        )
    return by_round


def farthest_sites(block: Block, sites: int) -> list[str]:
    """Return at most `sites` sites, the one whose sketch is farthest from the consensus first."""
    distances = block["to_consensus"]
    return sorted(distances, key=lambda s: (-(distances[s] or 0.0), s))[:sites]


def name_features(explanations: Explanations | None, labels: ColumnLabels) -> Explanations | None:
    """Return explanations whose features have the clinical names of their columns; as they are where two names would be equal.

    Args:
        explanations: explanations.json; None where there is none.
        labels: The names of the columns.
    """
    if explanations is None:
        return None
    names = [labels.find(str(feature)).name for feature in explanations["features"]]
    return {**explanations, "features": names} if len(set(names)) == len(names) else explanations
