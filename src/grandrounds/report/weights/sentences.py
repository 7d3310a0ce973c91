"""Sentences that say why a site had its weight in a round.

Every number is read from the round's record, and for features from the explanations; nothing is computed anew that a
method decided. The sentences omit what a record does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.sse_agg.weights import HARM_BY_HALF
from grandrounds.methods.weigh import (
    HARM,
    HARM_ALONE,
    MATERIAL_HARM,
    MIN_NEIGHBOURS,
    MIN_ROWS_TO_HALVE,
    is_comparable,
    outlier_ratio_beyond_sampling,
)
from grandrounds.report.weights.record import Decided, listed, parts, percent, sentence, whole
from grandrounds.report.weights.signals import (
    lateness_sentences,
    other_signals,
    refusal_sentences,
    refused,
    robust_sentences,
    score_sentences,
    selection_sentences,
    trust_sentences,
    uses_trust,
)

_FEATURES = 3
_SEEN = 0.005
_ALL = 0.9995
_SAME_DISTANCE = 1e-4


def explanation_sentences(told: Decided, explanations: Mapping[str, Any] | None) -> list[str]:
    """The sentences on agreement, in a round that weighed by it."""
    if told.own("disagreement") is None:
        return _between(told)
    if told.own("flat"):
        return [_flat(told)]
    block = _block(told, explanations)
    names = explanations["features"] if explanations is not None else ()
    said = [_distance(told), *_over_rounds(told), *_spared(told)]
    return [*said, *_strength(told), *_features(told, names, block), *_gained(told)]


def cohort_sentences(told: Decided) -> list[str]:
    """Who it was grouped with, and what that meant for its reasons."""
    if told.cohort is None:
        return []
    count = told.cohorts["count"]
    if count == 1:
        return ["All sites that answered form one cohort."]
    asked = told.asks("disagreement")
    if not told.companions:
        compared = ", so its reasons were compared with all sites'" if told.alone and asked else ""
        return [f"It is alone in cohort {told.cohort} of {count}{compared}.", *_own_model(told)]
    compared = "; its reasons were compared with theirs only" if told.within and asked else ""
    return [f"It is in cohort {told.cohort} of {count} with {listed(told.companions)}{compared}.", *_own_model(told)]


def _own_model(told: Decided) -> list[str]:
    """What it counts in the model that its cohort keeps for itself, where cohorts do."""
    whole_of_it = sum(told.weights.get(s, 0.0) for s in (told.site, *told.companions))
    if told.setting("cohorts", "models") != "separate" or not whole_of_it:
        return []
    return [f"Cohorts keep models of their own: in that of its cohort it counts {percent(told.weight / whole_of_it)}."]


def _distance(told: Decided) -> str:
    """How far off it is, and what that did.

    The paper's forms compare sketches that sum to 1, so that 2 is the end; the outlier form compares importances as they
    are, in parts of the consensus's own, so that a model which uses no feature is at 1.
    """
    away = told.known("disagreement")
    of = "its cohort" if told.within else "the sites"
    scale = "2 nothing in common" if told.own("in_line") is None else "1 as far off as a model that uses no feature"
    said = f"Its reasons lie {away[told.site]:.2f} from the consensus of {of} (0 the same, {scale})"
    if not told.alone:  # the others' distances are to another consensus
        usual = float(np.median([away[s] for s in _members(told) if s in away]))
        said += f"; the usual distance (their median) is {usual:.2f}"
    return f"{said}. {_taken(told)}"


def _strength(told: Decided) -> list[str]:
    """How much its features count, all together, where that was part of the comparison."""
    every = told.known("importance")
    usual = float(np.median([every[s] for s in _members(told) if s in every] or [0.0]))
    if told.site not in every or usual <= 0:
        return []
    return [
        f"All together, its features count for {whole(every[told.site] / usual)} of what they usually do (the median)."
    ]


def _taken(told: Decided) -> str:
    """What the distance cost it: by the outlier form of its rows' weight, by the paper's forms of the nearest site's."""
    kept, counts = told.own("in_line"), told.own("agreement")
    by = "by agreement it" if len(told.shares) > 1 else "it"
    if kept is not None:
        return f"{_verdict(told, kept)}: {by} keeps {_kept(kept)}."
    of = " of its cohort" if told.within else ""
    if counts is not None and counts < _ALL:
        return f"By agreement it counts {whole(counts)} of what the site{of} nearest to the consensus counts."
    away = told.known("disagreement")
    nearest = not told.alone and away[told.site] <= min(away[s] for s in _members(told) if s in away)
    nearer = f"None{of} lies nearer to the consensus, so by agreement none{of} counts more."
    return nearer if nearest else f"By agreement none{of} counts more."


def _verdict(told: Decided, kept: float) -> str:
    """Whether they stand out; where the rounds before decided that, against this one or without it, it is said."""
    standing, now = told.own("standing"), _this_round(told)
    if standing is None and told.asks("standing"):
        return "Reasons lie too far apart to say whose stand out"
    if standing is None:  # a record from before rounds were remembered
        return "They stand out" if kept < _ALL else "They do not stand out"
    if now is not None and np.isnan(now):
        before = "its own did" if standing > 1 else "its own did not"
        return f"Reasons lie too far apart in this round to say whose stand out; in rounds before {before}"
    if now is not None and now <= 1 < standing:
        return "They do not stand out in this round, but did in rounds before"
    if now is not None and standing <= 1 < now:
        return "They stand out in this round, but not with the rounds before in mind"
    return "They stand out" if standing > 1 else "They do not stand out"


def _over_rounds(told: Decided) -> list[str]:
    """How far it stands out with the rounds before in mind, which is what decides, where this round alone says otherwise."""
    standing, now = told.own("standing"), _this_round(told)
    if standing is None or not (standing > 1 or (now is not None and now > 1)):
        return []
    if now is not None and abs(now - standing) < _SAME_DISTANCE * now:
        return []
    return [f"Over the rounds its reasons lie {standing:.3g} times as far off as passes unnoticed."]


def _spared(told: Decided) -> list[str]:
    """Say why a site was demoted or was not, by the harm that it does on reference rows."""
    standing, harm, least = told.own("standing"), told.own("harm"), told.setting("weigh", "least_share")
    if least is None:  # a record of an earlier version
        return []
    out = standing is not None and standing > 1
    if harm is not None and harm > (HARM if out else HARM_ALONE):
        worse = (
            f"With it the model is worse on the reference rows, by {harm:.1f} standard errors more than {MATERIAL_HARM:.0%}"
        )
        if _confirmed(told):
            return [f"{worse}: it was demoted."]
        spared = f"at least {whole(least)} of its weight" if out and least else "its weight"
        return [f"{worse}, but this is not confirmed with either half of its own patients: it keeps {spared}."]
    if not out or not least:
        return []
    why = (
        "No labelled reference rows tell of harm" if harm is None else "It does the model no harm on the reference rows"
    )
    return [f"{why}, so it keeps at least {whole(least)} of its weight."]


def _confirmed(told: Decided) -> bool:
    """Tell whether the model is worse with either half of its own patients, where that was to be tried."""
    if not told.setting("weigh", "own_halves"):
        return True
    halves = [told.own(name) for name in HARM_BY_HALF]
    return (told.own("data_size") or 0) < MIN_ROWS_TO_HALVE or all(half is not None and half > 0 for half in halves)


def _this_round(told: Decided) -> float | None:
    """How many times as far off as passes unnoticed it lies in this round, by the recorded distances; None: they do not say.

    NaN: sites lie too far apart for that. Where sites are compared within their cohorts, a site alone is compared with all,
    whose distances to that consensus are not in the record.
    """
    away, flat, tolerance = told.known("disagreement"), told.known("flat"), told.setting("weigh", "tolerance")
    if told.alone or tolerance is None:
        return None
    among = np.array([away[s] for s in _members(told) if s in away and not flat.get(s)])
    near, margin = told.own("neighbours"), told.own("sampling") or 0.0
    near = float(MIN_NEIGHBOURS) if near is None else near
    distance, sampling, neighbours = (np.array([value]) for value in (away[told.site], margin, near))
    ratio = outlier_ratio_beyond_sampling(distance, sampling, neighbours, tolerance=tolerance, among=among)
    now = float(ratio[0])
    return now if is_comparable(among) or (told.own("standing") or 0.0) > 1 else float("nan")


def _kept(share: float) -> str:
    if share >= _ALL:
        return "all that its rows give it"
    return f"{whole(share)} of what its rows would give it (before weights are made to sum to 1)"


def _flat(told: Decided) -> str:
    everyone = told.known("flat")
    if all(everyone.values()):
        return "No site's model used any feature at all, so reasons say nothing of any of them."
    said = "Its model used no feature at all, so its reasons say nothing: it counts no more than the site that agrees least"
    kept = told.own("in_line")
    return f"{said}, and keeps {_kept(kept)}." if kept is not None else f"{said}."


def _between(told: Decided) -> list[str]:
    """A round in which reasons were not asked for."""
    last, counts = told.own("in_line"), told.own("agreement")
    said = "Reasons were not asked for in this round"
    if last is not None:
        return [f"{said}; how far it was last found in line with the others stands: {whole(last)}."]
    if counts is None:
        return []
    return [
        f"{said}; by the last known agreement it counts {whole(counts)} of what the site nearest to the consensus did."
    ]


def _gained(told: Decided) -> list[str]:
    """Weight that others lost goes to those that are in line."""
    rows, kept = told.known("data_size"), told.known("in_line")
    total = sum(rows.get(s, 0.0) for s in told.weights)
    others = any(k < _ALL for s, k in kept.items() if s != told.site)
    if not total or told.why("robust") or kept.get(told.site, 0.0) < _ALL or not others:
        return []
    more = told.weight > rows.get(told.site, 0.0) / total + 1 - _ALL
    return ["Others lost weight for their reasons, which leaves it more than its rows alone would."] if more else []


def _features(told: Decided, names: Sequence[str], block: Mapping[str, Any]) -> list[str]:
    """The features in which it differs most from the consensus, or where that is not at hand from the others' mean."""
    sketches, consensus = _speaking(told, block), _consensus(told, block)
    own = sketches.pop(told.site, None)
    if own is None or not sketches:
        return []
    middle = np.mean(list(sketches.values()), axis=0) if consensus is None else consensus
    apart = np.abs(own - middle)
    most = [int(f) for f in np.argsort(-apart.round(9), kind="stable")[:_FEATURES] if apart[f] >= _SEEN]
    word = "others" if consensus is None else "consensus"
    said = ", ".join(f"{names[f]} {percent(own[f])} ({word} {percent(middle[f])})" for f in most)
    return [f"What it goes by differently: {said}."] if most else []


def _consensus(told: Decided, block: Mapping[str, Any]) -> Array | None:
    """The consensus (F,), in shares, that the recorded distance was taken to: a mean of sketches (eq. 5), or a median of
    importances.

    None where sketches were not kept, or where neither gives that distance: nothing is said of a consensus that did not
    decide.
    """
    sketches, size = _speaking(told, block), told.known("importance")
    if told.site not in sketches or (size and not set(sketches) <= set(size)):
        return None
    taken = {s: sketch * size.get(s, 1.0) for s, sketch in sketches.items()}
    every = np.array(list(taken.values()))
    middle = np.median(every, axis=0) if size else every.mean(axis=0)
    whole_of_it = float(middle.sum())
    if whole_of_it <= 0:
        return None
    distance = float(np.abs(taken[told.site] - middle).sum()) / (whole_of_it if size else 1.0)
    out: Array = middle / whole_of_it
    return out if abs(distance - told.known("disagreement")[told.site]) < _SAME_DISTANCE else None


def _speaking(told: Decided, block: Mapping[str, Any]) -> dict[str, Array]:
    """The sketches of those that it was compared with, and its own, without those of models that use no feature."""
    held, flat = block.get("sketches", {}), set(block.get("flat", ()))
    return {s: np.asarray(held[s], float) for s in _members(told) if s in held and s not in flat}


def _members(told: Decided) -> list[str]:
    """Those whose reasons it was compared with, and itself."""
    return [told.site, *told.companions] if told.within else list(told.known("disagreement"))


def _block(told: Decided, explanations: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The round's sketches of local models, where they were kept."""
    rounds = explanations["rounds"] if explanations is not None else []
    found = (r.get("training") for r in rounds if r["round"] == told.decision["round"])
    return next(found, None) or {}


STAGES = {
    "select": "Who took part",
    "weigh": "Weighing",
    "cohorts": "Cohorts",
    "robust": "Against outliers",
    "secure": "Adding up",
    "stability": "While training",
}
"""The parts of a method as a reader knows them."""

_AFTER = {"weigh": "weighing", "cohorts": "joining cohorts", "robust": "the robust rule", "secure": "the secure sum"}
_SAME_WEIGHT = 1e-12


def weight_in_words(
    record: Mapping[str, Any],
    site: str,
    *,
    explanations: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> list[str]:
    """The sentences, the first with the weight itself.

    `explanations` (explanations.json) adds the features a site goes by differently, `plan` what the rules were set to.
    """
    told = Decided(record["decision"], site, (plan or {}).get("method", {}))
    where = f"round {told.decision['round']}, {site}"
    if site not in told.weights:
        return [f"{where}: no weight, because it {_absent(told)}.", *selection_sentences(told)]
    return [
        f"{where}: {_head(told)}.",
        *selection_sentences(told),
        *_rows(told),
        *cohort_sentences(told),
        *([] if uses_trust(told) else explanation_sentences(told, explanations)),
        *trust_sentences(told),
        *score_sentences(told),
        *_parts(told),
        *_raised(told),
        *robust_sentences(told),
        *lateness_sentences(told),
        *other_signals(told),
        *_course(told),
        *_rules(told),
        *refusal_sentences(told),
        *_notes(told),
    ]


def _absent(told: Decided) -> str:
    decision, site = told.decision, told.site
    if site in decision["missing"]:
        return refused(str(decision["missing"][site]))
    if told.own("loss") is not None:
        return "was asked for its loss only"
    if (place := told.own("place")) is not None:
        return f"trained and was ranked number {place:.0f}, and was not asked for its model"
    if "staleness" in decision["signals"]:
        return "had sent no answer by then"
    return "was not asked to take part"


def _head(told: Decided) -> str:
    """Its weight, and its place among those it is a share among."""
    weight, among = f"weight {percent(told.weight)}", told.sharing or list(told.weights)
    own, rest = told.weight, [told.weights[s] for s in among if s != told.site]
    cluster = told.own("cluster")
    weight += f" in cluster {cluster:.0f}" if cluster is not None else ""
    if not rest:
        return f"{weight}, the only answer" + (" there" if cluster is not None else "")
    level = sum(abs(w - own) <= _SAME_WEIGHT for w in rest)
    if level == len(rest):
        return f"{weight}, as every site that answered" + (" there" if cluster is not None else "")
    rank = 1 + sum(w > own + _SAME_WEIGHT for w in rest)
    ties = f", level with {level} other{'s' if level > 1 else ''}" if level else ""
    return f"{weight}, number {rank} of {len(among)}{ties}"


def _rows(told: Decided) -> list[str]:
    """What its rows alone would have given it (FedAvg)."""
    rows = {s: n for s, n in told.known("data_size").items() if s in told.sharing}
    if told.site not in rows or len(rows) < 2:
        return []
    share = rows[told.site] / sum(rows.values())
    of = f"{rows[told.site]:,.0f} of {sum(rows.values()):,.0f}"
    if percent(share) == percent(told.weight):
        return [f"That is its share of the training rows: {of}."]
    return [f"By its rows alone ({of}) it would have had {percent(share)}."]


def _parts(told: Decided) -> list[str]:
    """What each signal contributed to its weight."""
    if not told.shares:
        return []
    words = {
        "data": "data size",
        "agreement": "agreement" if told.own("in_line") is None else "its rows as far as its reasons are in line",
        "worst_site": "its validation loss",
        "calibration": "its calibration error",
    }
    said = parts(told.shares)
    if len(said) == 1:
        only = next(iter(said))
        return [f"All of its weight comes from {words.get(only, only.replace('_', ' '))}."]
    names = [(words.get(name, name.replace("_", " ")), value) for name, value in said.items()]
    (first, most), *others = names
    rest = listed([f"{value} % from {name}" for name, value in others])
    return [f"Of its weight, {most} % comes from {first}{', ' if len(others) > 1 else ' and '}{rest}."]


def _raised(told: Decided) -> list[str]:
    """That the floor held it: who was raised has the least weight of all, below the floor since all then sum to 1."""
    floor = told.setting("weigh", "floor")
    blended: Mapping[str, float] = next((s["weights"] for s in told.stages if s["part"] == "weigh"), {})
    if not floor or not set(told.decision.get("shares") or ()) - {"data"} or told.site not in blended:
        return []
    least = min(blended.values())
    if blended[told.site] > least + _SAME_WEIGHT or least >= floor:
        return []
    return [f"It was raised to the least weight there is, {floor:g}, before all were made to sum to 1."]


def _course(told: Decided) -> list[str]:
    """Its weight after each part of the method, where a later part changed it."""
    held = [(_AFTER.get(s["part"], s["part"]), s["weights"].get(told.site)) for s in told.stages if s.get("weights")]
    known = [(part, percent(weight)) for part, weight in held if weight is not None]
    if len({weight for _, weight in known}) < 2:
        return []
    return [f"Its weight was {listed([f'{weight} after {part}' for part, weight in known])}."]


def rules(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(part, what it says of the round), part by part; what no part says, or the whole before there were parts, last."""
    stages = [s for s in decision.get("stages") or () if s["why"]]
    rest = decision["why"]
    for stage in stages:
        rest = rest.replace(stage["why"], "")
    rest = "; ".join(words for words in rest.split("; ") if words.strip())
    return [*((STAGES.get(s["part"], s["part"]), s["why"]) for s in stages), *([("Why", rest)] if rest else [])]


def _rules(told: Decided) -> list[str]:
    return [sentence(f"{part}: {why}") for part, why in rules(told.decision) if part != STAGES["select"]]


def _notes(told: Decided) -> list[str]:
    """What there is to note of the round; what is noted of other sites is theirs, and that it is flat has been said."""
    theirs = tuple(f"{s}: " for s in told.decision["asked"] if s != told.site or told.own("flat"))
    return [sentence(f"Note: {note}") for note in told.decision.get("notes", ()) if not note.startswith(theirs)]
