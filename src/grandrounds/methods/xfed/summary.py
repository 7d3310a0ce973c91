"""XFed's own numbers: the sites that were not asked for their models, by which score, and the uploads that this saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import Decision, Part
from grandrounds.methods.xfed.ranking import EXPLANATIONS, SiteScores, count_selected, rank_sites

_BYTES = 4  # of a number of a model that is sent
_NAMED, _LISTED = 8, 6
"""Sites, and rounds of a site, that a fact names."""


def left_out_sites(decision: Decision, keep: float) -> tuple[str, ...]:
    """List the sites that trained and were not asked for their models, the best first; empty without a selection."""
    place = decision.signals.get("place", {})
    return tuple(s for s in sorted(place, key=lambda s: place[s]) if place[s] > count_selected(len(place), keep))


def selection_summary(x: Any, decisions: Sequence[Decision]) -> dict[str, object]:
    """Return XFed's numbers of a run.

    Args:
        x: Section [method.xfed].
        decisions: The Decision of each round.

    Returns:
        The rule (`score`, `measure`, `keep`, `xai_share`); `rounds`, those with a selection; `uploads`, models that all sites of
        these rounds would have sent, and `saved`, those that were not; `left_out`, by site the `rounds` and the mean `score` in
        them; `selected_score`, the mean score of the others; `changed`, the rounds in which another site would have been left out
        by accuracy (or cross-entropy) alone. Empty without a selection.
    """
    selected = [d for d in decisions if "place" in d.signals and len(d.signals["place"]) > 1]
    if not selected:
        return {}
    left_out: dict[str, list[tuple[int, float]]] = {}
    kept: list[float] = []
    for d in selected:
        names, score = left_out_sites(d, x.keep), d.signals["score"]
        kept += [score[s] for s in score if s not in names]
        for site in names:
            left_out.setdefault(site, []).append((d.round, score[site]))
    return {
        **{name: getattr(x, name) for name in ("score", "measure", "keep", "xai_share")},
        "rounds": [d.round for d in selected],
        "uploads": sum(len(d.signals["place"]) for d in selected),
        "saved": sum(map(len, left_out.values())),
        "left_out": {
            site: {"rounds": [r for r, _ in times], "score": float(np.mean([score for _, score in times]))}
            for site, times in sorted(left_out.items(), key=lambda item: (-len(item[1]), item[0]))
        },
        "selected_score": float(np.mean(kept)),
        "changed": [d.round for d in selected if _is_changed(d, x)],
    }


def _is_changed(decision: Decision, x: Any) -> bool:
    """Check that explanations changed which sites were left out."""
    sites = tuple(decision.signals["place"])
    nothing = dict.fromkeys(sites, float("nan"))
    scores = SiteScores(**{
        name: np.array([decision.signals.get(name, nothing)[s] for s in sites], float)
        for name in ("accuracy", "cross_entropy", "xai", "grid")
    })
    alone = rank_sites(scores.performance(x.measure), scores.accuracy, sites, keep=x.keep)
    return set(sites) - set(alone.best(sites)) != set(left_out_sites(decision, x.keep))


def describe_selection(numbers: Part, *, parameters: int) -> tuple[MethodFact, ...]:
    """Describe XFed's numbers: uploads saved, the sites left out, and the part of explanations in it.

    Args:
        numbers: The result of `selection_summary`.
        parameters: The size of the model.
    """
    if not numbers:
        return ()
    saved, uploads, rounds = numbers["saved"], numbers["uploads"], len(numbers["rounds"])
    named = EXPLANATIONS[numbers["score"]]
    rule = f"{numbers['xai_share']:g} x {named} + {1 - numbers['xai_share']:g} x {numbers['measure']}"
    places = [f"{site} in {rounds_text(of['rounds'])} (score {of['score']:.3f})" for site, of in numbers["left_out"].items()]
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    megabytes = saved * parameters * _BYTES / 1e6
    return (
        MethodFact(
            "model uploads saved",
            f"{saved} of {uploads} ({saved / uploads:.1%}), {megabytes:.2f} MB",
            "compared with asking every site that trained for its model",
        ),
        MethodFact(
            "sites not asked for their models",
            "; ".join(places[:_NAMED]) + more,
            f"lowest {rule} on the scoring images; mean score of the others {numbers['selected_score']:.3f}",
        ),
        MethodFact(
            "rounds in which explanations changed the selection",
            f"{len(numbers['changed'])} of {rounds}",
            f"compared with selecting by {numbers['measure']} alone",
        ),
    )


def rounds_text(rounds: Sequence[int]) -> str:
    """Format rounds: 'round 3', 'rounds 1, 2, 3', 'rounds 1 to 12 (10 of them)'."""
    if len(rounds) > _LISTED:
        return f"rounds {rounds[0]} to {rounds[-1]} ({len(rounds)} of them)"
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
