"""Figures 1 and 2 of XFed, of the nets of Table 1: images that are right for the wrong reason, and heat inside and outside of
the mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.report.figure import Figure
from grandrounds.report.figures import image_grid
from grandrounds.report.figures.comparison import arm_colour
from grandrounds.report.style import layout, safe
from grandrounds_studies.claims import up
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FAILS, HOLDS, Cell, Claim, Headline, Measure, Quick, Study, Verdict
from grandrounds_studies.xfed import looked
from grandrounds_studies.xfed.claims import beats, below
from grandrounds_studies.xfed.drawing import Drawn
from grandrounds_studies.xfed.looked import LIFT, LUCKY, QUARTERS
from grandrounds_studies.xfed.measures import ACCURACY, IN_MASK, IOU, MASKED, XAI, baselines
from grandrounds_studies.xfed.setting import FEDAVG, PHOTOS, PLAIN, QUICK, SETTLED, XFEDAVG, figure_of_photos

MOST = 8
"""Images that Figure 1 shows of a net."""

EVERY = 5
"""Figure 2 shows every fifth image: which, nobody has chosen."""

_CAPTION = "what it is, what it is called (probability)"
_AT = PHOTOS.label
_ARMS = (FEDAVG, XFEDAVG)
_BOTH = (FEDAVG.label, XFEDAVG.label)
_SETTLED = (
    *SETTLED,
    "Images are of the final model in the run with seed 0, shares are of all seeds; the runs are those of Table 1. Heat is "
    "worked out anew from the kept model in float32: an image with r near 1 may fall on the other side than in the run.",
)
_LICENCE = "XFed's images carry no licence: do not pass on this report, which shows them, nor readings.json, which holds them."


def _lucky(found: Results, arm: str) -> Verdict:
    """Some images are right for the wrong reason, in every seed."""
    values = found.values(_AT, arm, LUCKY.name)
    if any(v != v for v in values):
        raise NotRun(f"a run of {arm} did not end")
    right = [sum(found.values(_AT, arm, m.name)[i] for m in QUARTERS[:2]) for i in range(found.seeds)]
    words = "; ".join(f"{r:.1f}% and {v:.1f}%" for v, r in zip(values, right, strict=True))
    why = f"images that are called right, and those of them with r <= 1, in % of all, by seed: {words}"
    return Verdict(HOLDS if min(values) > 0 else FAILS, why)


def _clearly_positive(found: Results, arm: str) -> Verdict:
    values = found.values(_AT, arm, LIFT.name)
    if any(v != v for v in values):
        raise NotRun(f"in a run of {arm} all explanations are right, or none is")
    s = found.summary(_AT, arm, LIFT.name)
    why = f"{LIFT.words}: {s.mean:+.1f} (95% CI {s.low:+.1f} to {s.high:+.1f})"
    return up(s, why)


def _of(results: Results, arm: str) -> Sequence[Mapping[str, Any]]:
    """The kept images of an arm's run with seed 0."""
    reading = results.readings.get(Cell(_AT, arm, 0))
    return [] if reading is None else list(reading.kept.get("pictures", []))


def _called(p: Mapping[str, Any]) -> str:
    """Describe an image: its class and its prediction."""
    return f"{p['truth']}: {'right' if p['right'] else p['predicted']} ({p['probability']:.2f})"


def _ratio(p: Mapping[str, Any]) -> str:
    """An infinite r was kept as none."""
    return (
        "r not known" if p["reason"] is None else "no heat outside" if p["ratio"] is None else f"r = {p['ratio']:.2f}"
    )


def _heat(values: Array) -> Array:
    """Bytes as a heat map: floats are drawn in colours of heat."""
    out: Array = values / looked.STEPS
    return out


def quarters(results: Results) -> list[Drawn]:
    """Plot images by answer and reason: a column an arm."""
    arms = results.arms_at(_AT)
    traces = [
        {
            "type": "bar",
            "name": safe(m.words.removesuffix(" (%)")),
            "x": [safe(a) for a in arms],
            "y": [results.summary(_AT, a, m.name).mean for a in arms],
            "marker": {"color": arm_colour(k)},
            "hovertemplate": "%{x}: %{y:.1f}%<extra>%{fullData.name}</extra>",
        }
        for k, m in enumerate(QUARTERS)
    ]
    axis = {"range": [0, 100], "ticksuffix": "%"}
    shape = layout(
        "Answers and explanations", note="share of images, mean over seeds", height=400, barmode="stack", yaxis=axis
    )
    return [("Answers and explanations", [Figure(traces, shape)])]


def lucky(results: Results) -> list[Drawn]:
    """Fig. 1: images called right whose heat is more outside of the mask than inside, the clearest first."""
    out: list[Drawn] = []
    for arm in results.arms_at(_AT):
        held = sorted(
            (p for p in _of(results, arm) if p["right"] and p["reason"] is False), key=lambda p: p["ratio"] or 0.0
        )
        panels = []
        for p in held[:MOST]:
            arrays = looked.unpacked(p)
            panels += [(_called(p), arrays["pixels"]), (f"where it looks, {_ratio(p)}", _heat(arrays["heat"]))]
        heading = f"Right for the wrong reason: {arm}, {len(held)} of {len(_of(results, arm))} images"
        if panels:
            out.append((heading, [image_grid(panels, title=f"{arm}, seed 0, smallest r first: {_CAPTION}")]))
    return out


def inside_and_outside(results: Results) -> list[Drawn]:
    """Fig. 2: image, mask, heat, heat inside and heat outside, an image a row."""
    out: list[Drawn] = []
    for arm in results.arms_at(_AT):
        panels: list[tuple[str, Array]] = []
        for p in _of(results, arm)[::EVERY]:
            arrays = looked.unpacked(p)
            mask, heat = arrays["mask"] > 0, _heat(arrays["heat"])
            panels += [
                (_called(p), arrays["pixels"]),
                ("truth mask", arrays["mask"]),
                (f"heat map, {_ratio(p)}", heat),
                ("inside", np.where(mask, heat, 0.0)),
                ("outside", np.where(mask, 0.0, heat)),
            ]
        if panels:
            title = f"{arm}, seed 0, every fifth image: {_CAPTION}"
            out.append((f"Heat and mask: {arm}", [image_grid(panels, title=title, across=5)]))
    return out


def _study(
    number: int,
    title: str,
    measures: tuple[Measure, ...],
    claims: tuple[Claim, ...],
    draws: Any,
    unpublished: str,
    shown: Measure,
) -> Study:
    return figure_of_photos(
        number,
        title=title,
        headline=Headline(_AT, XFEDAVG.label, shown.name),
        arms=_ARMS,
        measures=measures,
        claims=claims,
        unpublished=unpublished,
        settled=_SETTLED,
        remarks=(_LICENCE,),
        draws=draws,
        keeps=looked.pictures,
        withheld=_LICENCE,
        quick=Quick(QUICK),
    )


FIGURE_1 = _study(
    1,
    "Images that are right for the wrong reason",
    (*QUARTERS, LIFT, ACCURACY, XAI),
    (
        Claim(
            "images are correctly identified by features of the background rather than of the object (read as: in every run "
            "some images that are called right have r <= 1)",
            "Fig. 1",
            _BOTH,
            _lucky,
        ),
        Claim(
            "XFed leaves fewer images that are right for the wrong reason",
            "sec. 1",
            (XFEDAVG.label,),
            below(_AT, LUCKY.name, PLAIN),
        ),
        Claim(
            "wrong features lead to wrong judgments (read as: a net is clearly more often right where it looks at the object)",
            "Fig. 1",
            _BOTH,
            _clearly_positive,
        ),
    ),
    lambda results: [*quarters(results), *lucky(results)],
    "four images as an example, and no count",
    LUCKY,
)

FIGURE_2 = _study(
    2,
    "Heat maps and truth masks: image, mask, heat, heat inside, heat outside",
    (XAI, IN_MASK, IOU, MASKED, *baselines(IN_MASK.name)),
    (
        *(
            Claim(
                f"heat lies inside of the truth mask (read as: more of the mask is hot than by {called})",
                "Fig. 2",
                _BOTH,
                beats(_AT, IN_MASK.name, f"{short}_{IN_MASK.name}"),
            )
            for short, called in (
                ("noise", "noise"),
                ("shuffled", "the same net with its weights shuffled"),
                ("blob", "a blob in the middle"),
            )
        ),
    ),
    inside_and_outside,
    "images as examples, and no count",
    IN_MASK,
)
