"""Sec. 4.7: Gaussian noise on gradients, its "privacy score", and what does measure privacy: epsilon and an attack."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.sets.images import CIFAR_CLASSES
from grandrounds.explain.quality import correlation
from grandrounds.metrics import paired_t
from grandrounds_studies.claims import Test, signed, steps
from grandrounds_studies.fl_xai import drawing
from grandrounds_studies.fl_xai.claims import along, apart, beyond, one_for_another
from grandrounds_studies.fl_xai.looked import coarse, final_numbers, of_final
from grandrounds_studies.fl_xai.maps import CALLED, name_of
from grandrounds_studies.fl_xai.measures import courses
from grandrounds_studies.fl_xai.setting import (
    AT,
    BASE,
    HERE,
    INTERVALS,
    KINDS,
    LOOK,
    MEASURED,
    OURS,
    QUICK,
    SEEDS,
    SETTLED,
    source,
)
from grandrounds_studies.measures import ACCURACY, LOG_LOSS
from grandrounds_studies.privacy.measures import EPSILON
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Arm, Cell, Claim, Headline, Measure, Quick, Study, Verdict

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

LEVELS = (0.01, 0.05, 0.1, 0.5, 1.0)
EPSILONS = (8.0, 3.0)
PRIVATE_LR = 0.002

PUBLIC: dict[str, Any] = {"encoding": "public", "levels": {"object": list(CIFAR_CLASSES)}}
"""With a privacy guarantee no site is asked how bright its images are, nor which classes it has."""

NONE = Arm("no noise", {"train": {"noise": 0.0}})
NOISY = {level: Arm(f"noise {level:g}", {"train": {"noise": level}}) for level in LEVELS}
PROMISED = {
    e: Arm(
        f"DP-SGD, epsilon {e:g}",
        {"privacy": {"mechanism": "dp-sgd", "epsilon": e}, "train": {"lr": PRIVATE_LR}, "data": PUBLIC},
    )
    for e in EPSILONS
}
BY_HEART = Arm(
    "no noise, 100 pictures a site learnt by heart",  # language: ok (the name of stored runs)
    {},
    over={
        "split": {"partition": "grandrounds_studies.fl_xai.noise:two_hundred", "official": False, "test": 0.5},
        "train": {"steps": 100},
    },
)
_IN_TEXT = tuple(a.label for a in (NONE, *(NOISY[level] for level in LEVELS[:3])))
_SWEEP = (NONE.label, *(arm.label for arm in NOISY.values()))
_NOISES = tuple(arm.label for arm in NOISY.values())
_PRIVATE = tuple(arm.label for arm in PROMISED.values())


def two_hundred(y: Array, *, sites: int, rng: np.random.Generator) -> list[Array]:
    """200 images for each site, half of which are to be its test images: few enough to be learnt by heart."""
    return list(rng.permutation(len(y))[: 200 * sites].reshape(sites, 200))


@lru_cache(maxsize=2)
def _threshold(folder: Path) -> float:
    from grandrounds.analysis.membership.attack import attack_run
    from grandrounds.runs.run import Run

    return attack_run(Run(folder)).attacks[0].auc


PROXY = Measure(
    "privacy_proxy", "'privacy score' 1 - accuracy (no measure of privacy)", lambda run: 1 - ACCURACY.read(run)
)
ATTACK = Measure("attack_auc", "membership attack (AUC)", lambda run: _threshold(run.folder), lower=True)
GAP = Measure("gap", "training less test accuracy", lambda run: _trained(run) - ACCURACY.read(run), lower=True)


def _trained(run: Run) -> float:
    """The common model's accuracy on all training images; under a budget sites do not tell it."""
    value = run.summary["training"].get("accuracy")
    return float("nan") if value is None else float(value)


def wanders(map: str, *, to: str, arms: tuple[str, ...]) -> Test:
    """Along these arms maps of the same images are ever less like those of the other arm's model, cell by cell (`steps`)."""

    def test(found: Results, arm: str) -> Verdict:
        levels = [a for a in arms if a in found.arms_at(AT) and a != to]
        if len(levels) < 2 or to not in found.arms_at(AT):
            raise NotRun("it takes two levels of noise, and none")
        if found.seeds < 2:
            raise NotRun("one seed has no interval; give --seeds 2 or more")
        likeness = [[_likeness(found, a, to, map, seed) for seed in range(found.seeds)] for a in levels]
        told = ", ".join(f"{a} {np.mean(v):.3f}" for a, v in zip(levels, likeness, strict=True))
        each = [paired_t(b, a) for a, b in pairwise(likeness)]
        end = paired_t(likeness[-1], likeness[0])
        why = (
            f"mean correlation of {CALLED[map]} over 8 x 8 cells with '{to}': {told}; from first to last {signed(end)}"
        )
        return steps(each, end, why, falling=True)

    return test


def _likeness(found: Results, arm: str, to: str, map: str, seed: int) -> float:
    """Mean correlation over images; a dark map is like no other and is left out."""
    held = [found.readings.get(Cell(AT, name, seed)) for name in (arm, to)]
    if any(reading is None or not reading.kept.get("cells") for reading in held):
        raise NotRun(f"maps of {arm} or {to} were not kept")
    mine, theirs = (np.asarray(reading.kept["cells"][map], float) for reading in held if reading is not None)
    values = correlation(mine, theirs)
    if not np.isfinite(values).any():
        raise NotRun(f"all maps of {arm} or {to} are dark")
    return float(np.nanmean(values))


NOISE = Study(
    name="fl-xai/4.7",
    title="Noise on gradients, its privacy score, and what measures privacy",
    source=source("4.7", "Figs. 4.30 to 4.35 and Table 4.5"),
    headline=Headline(AT, NOISY[0.1].label, ACCURACY.name, "accuracy consistently declines"),
    unpublished="words and plots only: Table 4.5 has 'high', 'slightly reduced', 'moderate' and 'low'",
    base=BASE,
    points=(HERE,),
    arms=(NONE, *NOISY.values(), *PROMISED.values(), BY_HEART),
    measures=(
        ACCURACY,
        LOG_LOSS,
        PROXY,
        EPSILON,
        ATTACK,
        GAP,
        *final_numbers("concentration", "gini", "insertion"),
        of_final("grad_cam", "dark"),
    ),
    claims=(
        Claim(
            "accuracy consistently declines as noise rises (0, .01, .05, .1: the text's levels)",
            "Table 4.5",
            (_IN_TEXT[-1],),
            along(ACCURACY.name, AT, _IN_TEXT, falling=True),
        ),
        Claim(
            "... to 'low' at .1 (read as: ten points or more below no noise)",
            "Table 4.5",
            (_IN_TEXT[-1],),
            apart(ACCURACY.name, AT, to=NONE.label, by=0.1),
        ),
        Claim(
            "accuracy declines over all levels of text and captions",
            "Figs. 4.30 to 4.35",
            (_SWEEP[-1],),
            along(ACCURACY.name, AT, _SWEEP, falling=True),
        ),
        Claim(
            "Grad-CAM's attention disperses with noise (read as: its concentration falls, 0 to .1)",
            "Table 4.5",
            (_IN_TEXT[-1],),
            along(name_of("grad_cam", "concentration"), AT, _IN_TEXT, falling=True),
        ),
        *(
            Claim(
                f"maps become less coherent with noise (read as: {CALLED[map]} is ever less like the noiseless net's)",
                "sec. 4.7",
                (_SWEEP[-1],),
                wanders(map, to=NONE.label, arms=_SWEEP),
            )
            for map in ("grad_cam", "normgrad", "gradient_norm")
        ),
        Claim(
            "a higher privacy score, 1 - accuracy, reflects stronger protection (read as: the attack finds clearly less than "
            "without noise)",
            "sec. 4.7",
            (*_NOISES, *_PRIVATE, BY_HEART.label),
            one_for_another(PROXY.name, ATTACK.name, AT, to=NONE.label),
        ),
        Claim(
            "without noise the attack tells who was trained on: its AUC is clearly above .5",
            OURS,
            (NONE.label, BY_HEART.label),
            beyond(ATTACK.name, AT, 0.5),
        ),
    ),
    settled=(
        *SETTLED,
        "The text has noise at 0, 0.01, 0.05 and 0.1, the captions at 0, 0.1, 0.5 and 1: all are run. It is the deviation of "
        "Gaussian noise on every entry of every step's gradient (train.noise), before Adam. Nothing is clipped, so that no "
        "finite epsilon goes with it: 'undefined' in the table.",
        "DP-SGD clips each image's gradient to 1 and keeps (epsilon, 1e-5) for every image by its accountant, over all "
        f"rounds; a tenth of a site's images is drawn for each step, Adam at {PRIVATE_LR:g}, and pixels are scaled without "
        "asking sites.",
        "'Learnt by heart' has no noise and 100 training and 100 test images a site, for 100 steps a round: a control that the "
        "score must call less private than the others if it measures anything.",
        "The attack is the loss threshold (`rounds attack RUN`): the area under the ROC curve of the final model's confidence in "
        "training against test images; 0.5 is guessing. Stronger attacks exist, so it is a lower bound of what can be reported.",
        "Heat maps are of the final common model, on 80 test images, worked out from the finished runs: under a budget sites "
        "tell none.",
        MEASURED,
        KINDS,
        LOOK,
        INTERVALS,
    ),
    remarks=(
        "1 - accuracy is no measure of privacy: it calls a net that guesses private, and one that knows its training images by "
        "heart and nothing else as well. The last arm shows it.",
        "Adam divides a gradient by its own size, so that noise that is small beside the loss may be large beside a gradient's "
        "entries; with plain SGD the same deviation is another amount of noise.",
    ),
    draws=lambda results: [
        *drawing.accuracy(results, "Fig. 4.30"),
        *drawing.side_by_side(results, (ACCURACY, PROXY, ATTACK), "Figs. 4.30 and 4.31"),
    ],
    keeps=lambda run: {**courses(run), **coarse(run)},
    quick=Quick(QUICK, arms=(NONE.label, NOISY[1.0].label, PROMISED[8.0].label)),
    seeds=SEEDS,
)
