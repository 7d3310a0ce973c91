"""Sentences about the agreement of a site's explanations with the others', and about its cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.sse_agg.harm import HARM, HARM_ALONE, HARM_BY_HALF, MATERIAL_HARM, MIN_ROWS_TO_HALVE
from grandrounds.methods.sse_agg.outliers import MIN_NEIGHBOURS, is_comparable, outlier_ratio_beyond_sampling
from grandrounds.methods.sse_agg.summary import KEEPS_ALL
from grandrounds.report.explanations import Block, Explanations
from grandrounds.report.weights.record import SiteView, join_names, percent, whole_percent

_FEATURES = 3
_LEAST_DIFFERENCE = 0.005
_SAME_DISTANCE = 1e-4


def explanation_sentences(view: SiteView, explanations: Explanations | None) -> list[str]:
    """Explain the agreement of explanations, in a round that weighed by it."""
    if view.value("disagreement") is None:
        return _unexplained_round(view)
    if view.value("flat"):
        return [_flat_sentence(view)]
    block = _block(view, explanations)
    names = explanations["features"] if explanations is not None else ()
    sentences = [_distance_sentence(view), *_remembered_sentences(view), *_harm_sentences(view)]
    return [*sentences, *_strength_sentences(view), *_feature_sentences(view, names, block), *_gain_sentences(view)]


def demotion_sentences(demoted: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Name the sites that lost weight for their explanations until the run ended.

    Args:
        demoted: The summary's `demoted`.
    """
    return [
        f"{site} relies on other features than the consensus since round {of['since']:.0f}: its weight is "
        f"{percent(of['weight'])}, not {percent(of['by_rows'])} as its rows give (`rounds show RUN --round {of['since']:.0f} "
        f"--site {site}`)."
        for site, of in demoted.items()
    ]


def cohort_sentences(view: SiteView) -> list[str]:
    """Name the sites that it was grouped with, and the effect on the comparison of its explanations."""
    if view.cohort is None:
        return []
    count = view.cohorts["count"]
    if count == 1:
        return ["All sites that answered form one cohort."]
    compared_round = view.has_signal("disagreement")
    if not view.cohort_peers:
        compared = (
            ", so its explanations were compared with all sites'" if view.alone_in_cohort and compared_round else ""
        )
        return [f"It is alone in cohort {view.cohort} of {count}{compared}.", *_cohort_model_sentences(view)]
    compared = "; its explanations were compared with theirs only" if view.within_cohort and compared_round else ""
    return [
        f"It is in cohort {view.cohort} of {count} with {join_names(view.cohort_peers)}{compared}.",
        *_cohort_model_sentences(view),
    ]


def _cohort_model_sentences(view: SiteView) -> list[str]:
    """Give its weight in the model that its cohort keeps for itself, where cohorts do."""
    whole_of_it = sum(view.weights.get(s, 0.0) for s in (view.site, *view.cohort_peers))
    if view.setting("cohorts", "models") != "separate" or not whole_of_it:
        return []
    return [f"Cohorts keep models of their own: in that of its cohort it counts {percent(view.weight / whole_of_it)}."]


def _distance_sentence(view: SiteView) -> str:
    """Give its distance from the consensus, and the effect on its weight.

    The paper's forms compare sketches that sum to 1, so that 2 is the end; the outlier form compares importances as they
    are, in parts of the consensus's own, so that a model which uses no feature is at 1.
    """
    away = view.values("disagreement")
    group = "its cohort" if view.within_cohort else "the sites"
    scale = "2 nothing in common" if view.value("in_line") is None else "1 as far off as a model that uses no feature"
    text = f"Its explanations lie {away[view.site]:.2f} from the consensus of {group} (0 the same, {scale})"
    if not view.alone_in_cohort:  # the others' distances are to another consensus
        usual = float(np.median([away[s] for s in _compared_sites(view) if s in away]))
        text += f"; the usual distance (their median) is {usual:.2f}"
    return f"{text}. {_distance_cost(view)}"


def _strength_sentences(view: SiteView) -> list[str]:
    """Compare the total importance of its features with the usual one, where that was part of the comparison."""
    every = view.values("importance")
    usual = float(np.median([every[s] for s in _compared_sites(view) if s in every] or [0.0]))
    if view.site not in every or usual <= 0:
        return []
    return [
        f"In total, its features are {whole_percent(every[view.site] / usual)} as important as usual (the median)."
    ]


def _distance_cost(view: SiteView) -> str:
    """Give the cost of the distance: by the outlier form of its rows' weight, by the paper's forms of the nearest site's."""
    share, counts = view.value("in_line"), view.value("agreement")
    subject = "by agreement it" if len(view.shares) > 1 else "it"
    if share is not None:
        return f"{_verdict(view)}: {subject} keeps {_remaining_share(share)}."
    suffix = " of its cohort" if view.within_cohort else ""
    if counts is not None and counts < KEEPS_ALL:
        return (
            f"By agreement it counts {whole_percent(counts)} of what the site{suffix} nearest to the consensus counts."
        )
    away = view.values("disagreement")
    nearest = not view.alone_in_cohort and away[view.site] <= min(away[s] for s in _compared_sites(view) if s in away)
    nearer = f"None{suffix} lies nearer to the consensus, so by agreement none{suffix} counts more."
    return nearer if nearest else f"By agreement none{suffix} counts more."


def _verdict(view: SiteView) -> str:
    """Tell whether its explanations are outliers, by this round alone and over the rounds."""
    standing, now = view.value("standing"), _outlier_ratio_now(view)
    if standing is None:
        return "Explanations differ too much to identify outliers"
    if now is not None and np.isnan(now):
        before = "its own were" if standing > 1 else "its own were not"
        return f"Explanations differ too much in this round to identify outliers; in earlier rounds {before}"
    if now is not None and now <= 1 < standing:
        return "They are not outliers in this round, but were in earlier rounds"
    if now is not None and standing <= 1 < now:
        return "They are outliers in this round, but not over all rounds so far"
    return "They are outliers" if standing > 1 else "They are not outliers"


def _remembered_sentences(view: SiteView) -> list[str]:
    """Give its outlier ratio over the rounds, which decides, where this round alone says otherwise."""
    standing, now = view.value("standing"), _outlier_ratio_now(view)
    if standing is None or not (standing > 1 or (now is not None and now > 1)):
        return []
    if now is not None and abs(now - standing) < _SAME_DISTANCE * now:
        return []
    return [f"Over all rounds, its explanations lie {standing:.3g} times as far off as the outlier limit."]


def _harm_sentences(view: SiteView) -> list[str]:
    """Say why a site was demoted or was not, by the harm that it does on reference rows."""
    standing, harm, least = view.value("standing"), view.value("harm"), view.setting("weigh", "least_share")
    if least is None:  # the plan is not known, or has another form
        return []
    out = standing is not None and standing > 1
    if harm is not None and harm > (HARM if out else HARM_ALONE):
        worse = f"With it the model is worse on the reference rows, by {harm:.1f} standard errors more than {MATERIAL_HARM:.0%}"
        if _harm_is_confirmed(view):
            return [f"{worse}: it was demoted."]
        spared = f"at least {whole_percent(least)} of its weight" if out and least else "its weight"
        return [f"{worse}, but this is not confirmed with either half of its own patients: it keeps {spared}."]
    if not out or not least:
        return []
    why = "It does not harm the model on the reference rows"
    if harm is None:
        why = "There are no labelled reference rows to measure harm"
    return [f"{why}, so it keeps at least {whole_percent(least)} of its weight."]


def _harm_is_confirmed(view: SiteView) -> bool:
    """Tell whether the model is worse with either half of its own patients, where that was to be tried."""
    if not view.setting("weigh", "own_halves"):
        return True
    halves = [view.value(name) for name in HARM_BY_HALF]
    return (view.value("data_size") or 0) < MIN_ROWS_TO_HALVE or all(half is not None and half > 0 for half in halves)


def _outlier_ratio_now(view: SiteView) -> float | None:
    """Compute the outlier ratio in this round from the recorded distances; None where they do not allow it.

    NaN: sites lie too far apart for that. Where sites are compared within their cohorts, a site alone is compared with all,
    whose distances to that consensus are not in the record.
    """
    away, flat, tolerance = view.values("disagreement"), view.values("flat"), view.setting("weigh", "tolerance")
    if view.alone_in_cohort or tolerance is None:
        return None
    peers = np.array([away[s] for s in _compared_sites(view) if s in away and not flat.get(s)])
    near, margin = view.value("neighbours"), view.value("sampling") or 0.0
    near = float(MIN_NEIGHBOURS) if near is None else near
    distance, sampling, neighbours = (np.array([value]) for value in (away[view.site], margin, near))
    ratio = outlier_ratio_beyond_sampling(distance, sampling, neighbours, tolerance=tolerance, peers=peers)
    now = float(ratio[0])
    return now if is_comparable(peers) or (view.value("standing") or 0.0) > 1 else float("nan")


def _remaining_share(share: float) -> str:
    if share >= KEEPS_ALL:
        return "all that its rows give it"
    return f"{whole_percent(share)} of the weight by its rows (before normalisation)"


def _flat_sentence(view: SiteView) -> str:
    everyone = view.values("flat")
    if all(everyone.values()):
        return "No site's model used any feature, so explanations carry no information."
    text = "Its model used no feature, so its explanations carry no information: it counts at most as the site that agrees least"
    share = view.value("in_line")
    return f"{text}, and keeps {_remaining_share(share)}." if share is not None else f"{text}."


def _unexplained_round(view: SiteView) -> list[str]:
    """Describe a round in which explanations were not requested."""
    last, counts = view.value("in_line"), view.value("agreement")
    text = "Explanations were not requested in this round"
    if last is not None:
        return [f"{text}; its last known agreement with the others applies: {whole_percent(last)}."]
    if counts is None:
        return []
    return [
        f"{text}; by the last known agreement it counts {whole_percent(counts)} of what the site nearest to the consensus did."
    ]


def _gain_sentences(view: SiteView) -> list[str]:
    """Tell whether it gained weight that others lost for their explanations."""
    rows, shares = view.values("data_size"), view.values("in_line")
    total = sum(rows.get(s, 0.0) for s in view.weights)
    lost = any(k < KEEPS_ALL for s, k in shares.items() if s != view.site)
    if not total or view.stage_reason("robust") or shares.get(view.site, 0.0) < KEEPS_ALL or not lost:
        return []
    more = view.weight > rows.get(view.site, 0.0) / total + 1 - KEEPS_ALL
    return (
        ["Others lost weight because of their explanations, so it has more than its rows alone would give."] if more else []
    )


def _feature_sentences(view: SiteView, names: Sequence[str], block: Block) -> list[str]:
    """Name the features in which it differs most from the consensus, or from the others' mean where there is no consensus."""
    sketches, consensus = _compared_sketches(view, block), _consensus(view, block)
    sketch = sketches.pop(view.site, None)
    if sketch is None or not sketches:
        return []
    middle = np.mean(list(sketches.values()), axis=0) if consensus is None else consensus
    apart = np.abs(sketch - middle)
    most = [int(f) for f in np.argsort(-apart.round(9), kind="stable")[:_FEATURES] if apart[f] >= _LEAST_DIFFERENCE]
    word = "others" if consensus is None else "consensus"
    differences = ", ".join(f"{names[f]} {percent(sketch[f])} ({word} {percent(middle[f])})" for f in most)
    return [f"Features it relies on differently: {differences}."] if most else []


def _consensus(view: SiteView, block: Block) -> Array | None:
    """Recompute the consensus (F,), in shares, of the recorded distance: a mean of sketches (eq. 5) or a median of importances.

    None where sketches were not kept, or where neither gives that distance: a consensus that did not decide is not described.
    """
    sketches, size = _compared_sketches(view, block), view.values("importance")
    if view.site not in sketches or (size and not set(sketches) <= set(size)):
        return None
    taken = {s: sketch * size.get(s, 1.0) for s, sketch in sketches.items()}
    every = np.array(list(taken.values()))
    middle = np.median(every, axis=0) if size else every.mean(axis=0)
    whole_of_it = float(middle.sum())
    if whole_of_it <= 0:
        return None
    distance = float(np.abs(taken[view.site] - middle).sum()) / (whole_of_it if size else 1.0)
    out: Array = middle / whole_of_it
    return out if abs(distance - view.values("disagreement")[view.site]) < _SAME_DISTANCE else None


def _compared_sketches(view: SiteView, block: Block) -> dict[str, Array]:
    """Return the sketches of the sites that it was compared with, and its own, without flat ones."""
    sketches, flat = block.get("sketches", {}), set(block.get("flat", ()))
    return {s: np.asarray(sketches[s], float) for s in _compared_sites(view) if s in sketches and s not in flat}


def _compared_sites(view: SiteView) -> list[str]:
    """Return the sites whose explanations it was compared with, and itself."""
    return [view.site, *view.cohort_peers] if view.within_cohort else list(view.values("disagreement"))


def _block(view: SiteView, explanations: Explanations | None) -> Block:
    """Return the round's sketches of local models, where they were kept."""
    rounds = explanations["rounds"] if explanations is not None else []
    blocks = (r.get("training") for r in rounds if r["round"] == view.decision.round)
    return next(blocks, None) or {}
