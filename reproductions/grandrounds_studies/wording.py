"""Format the figures and verdicts of a reproduction, on the screen and on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds_studies.study import FAILS, HOLDS, INCONCLUSIVE, MOST_SEEDS, UNTESTED

VERDICTS = (HOLDS, FAILS, INCONCLUSIVE, UNTESTED)

QUICK = (
    "QUICK VERSION: fewer rounds, seeds, points or arms than the full reproduction. These are not its results, and the "
    "verdicts are those of the quick version only."
)


def repeats_words(values: Mapping[str, Any]) -> str:
    """Return the number of repetitions: "5 seeds", "1 fold"."""
    return f"{values['seeds']} {values['repeats']}{'' if values['seeds'] == 1 else 's'}"


def repeats_range(values: Mapping[str, Any]) -> str:
    """Return the repetitions by number: "seeds 0 to 4", "folds 0 to 4"."""
    first = int(values["first_repeat"])
    return f"{values['repeats']}s {first} to {first + values['seeds'] - 1}"


def shown_figures(values: Mapping[str, Any], point: str) -> list[Mapping[str, Any]]:
    """Return the figures of a point that belong in a table."""
    return [f for f in values["figures"] if f["point"] == point and values["measures"][f["measure"]]["shown"]]


def shown_claims(values: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    """Return the claims with their verdicts, and a sentence on those that are left out.

    A quick version runs few points and arms, and lists only claims that were tested of some arm; results.json has all of them.
    """
    claims = list(values["claims"])
    tested = {c["claim"] for c in claims if c["verdict"] != UNTESTED or not values["quick"]}
    others = [c for c in claims if c["claim"] not in tested]
    if not others:
        return claims, ""
    count = len({c["claim"] for c in others})
    said = f"{count} claim{'' if count == 1 else 's'} {UNTESTED} here: {others[0]['why']}{', and so on' if count > 1 else ''}"
    return [c for c in claims if c["claim"] in tested], f"{said} (results.json has the cause of each)"


def seeds_words(seeds: int | None, repeat: str) -> str:
    """Return the number of seeds that would decide an inconclusive claim, as a sentence; "" if there is no such number."""
    if seeds is None:
        return ""
    count = f"more than {MOST_SEEDS:,}" if seeds > MOST_SEEDS else f"{seeds:,}"
    return f"{count} {repeat}s would decide"


def why_words(claim: Mapping[str, Any], repeat: str) -> str:
    """Return the numbers behind a verdict, and how many seeds would decide an inconclusive one.

    Args:
        claim: An entry of `claims` in results.json.
        repeat: The word for a repetition: "seed" or "fold".
    """
    return "; ".join(filter(None, (str(claim["why"]), seeds_words(claim["seeds_to_decide"], repeat))))


def cell_words(figure: Mapping[str, Any], digits: int) -> str:
    """Format a mean and half of its 95% interval: "0.523 ± 0.011"; without an interval the mean alone."""
    if figure["mean"] is None:
        return "undefined"
    half = "" if figure["high"] is None else f" ± {figure['high'] - figure['mean']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{half}"


def published_words(value: float | None) -> str:
    """Format a published figure; a dash if there is none."""
    return "–" if value is None else f"{value:g}"
