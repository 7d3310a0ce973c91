"""Table 2 of XFed and its sec. 5.4: what the IoU-ratio costs, of four nets, on a small image and on a large one."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds_studies.claims import Test, cannot_fail, verdict
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import Arm, Cell, Claim, Headline, Point, Quick, Study, Verdict
from grandrounds_studies.xfed.cost_measures import (
    COUNTED,
    FORWARD,
    IG_BOTH,
    IG_FORWARD,
    LARGE_COUNT,
    LARGE_SECONDS,
    MEASURED,
    MEGABYTES,
    ONE,
    PARAMETERS,
    PTFLOPS,
    TOGETHER,
    machine,
)
from grandrounds_studies.xfed.setting import PAPER

SET, SET_SECONDS = 30, 0.78
BAR = 1.0
"""Milliseconds that a sample of ResNet-18 may take here."""

PICTURE = Point("CIFAR picture (3, 32, 32)", {})
MOBILE_2 = Arm("MobileNetV2", {"model": {"name": "mobilenet-v2"}})
MOBILE_3 = Arm("MobileNetV3-large", {"model": {"name": "mobilenet-v3-large"}})
RESNET = Arm("ResNet-18", {"model": {"name": "resnet18"}})
SHUFFLE = Arm("ShuffleNetV2", {"model": {"name": "shufflenet-v2"}})
_ARMS = (MOBILE_2, MOBILE_3, RESNET, SHUFFLE)
_ALL = tuple(arm.label for arm in _ARMS)

_IN_TABLE = (PARAMETERS.name, PTFLOPS.name, IG_FORWARD.name, ONE.name)
_TABLE = {
    MOBILE_2.label: (3.5, 7.79, 194.75, 24.78),
    MOBILE_3.label: (5.48, 8.6, 215.0, 25.94),
    RESNET.label: (11.69, 37.69, 942.25, 15.38),
    SHUFFLE.label: (2.28, 4.08, 102.0, 25.10),
}
PUBLISHED = {(PICTURE.label, arm): dict(zip(_IN_TABLE, row, strict=True)) for arm, row in _TABLE.items()}
PUBLISHED[PICTURE.label, MOBILE_2.label] |= {LARGE_COUNT.name: 5.89, LARGE_SECONDS.name: 562.0, MEGABYTES.name: 82.6}


def a_few(y: Array, *, sites: int, rng: np.random.Generator) -> list[Array]:
    """100 images for each site: nothing is to be learnt here, and a CPU would judge all of CIFAR-10 for minutes."""
    return list(rng.permutation(len(y))[: 100 * sites].reshape(sites, 100))


def as_printed(measure: str, *, beside: str = "") -> Test:
    """The count is the printed one to two digits behind the point; another count is reported beside it."""

    def test(found: Results, arm: str) -> Verdict:
        ours, theirs = _mean(found, arm, measure), PUBLISHED[PICTURE.label, arm][measure]
        why = f"{found.study.measure(measure).words} {ours:.4f}, printed {theirs:g}"
        if beside:
            why += f"; {found.study.measure(beside).words} {_mean(found, arm, beside):.4f}"
        return verdict(abs(ours - theirs) <= 0.005, why)

    return test


def at_most(measure: str, limit: float | None = None, *, times: float = 1.0, unit: str) -> Test:
    """`times` the measured figure is at most this; without a limit, what is printed of the net."""

    def test(found: Results, arm: str) -> Verdict:
        most = PUBLISHED[PICTURE.label, arm][measure] if limit is None else limit
        ours = times * _mean(found, arm, measure)
        return verdict(ours <= most, f"{ours:,.3f} {unit} against {most:g} {unit} on {_gpu(found, arm, ours, unit)}")

    return test


def about(measure: str, *, share: float, unit: str) -> Test:
    """The measured figure is the printed one, give or take this share of it."""

    def test(found: Results, arm: str) -> Verdict:
        ours, theirs = _mean(found, arm, measure), PUBLISHED[PICTURE.label, arm][measure]
        why = f"{ours:.1f} {unit} against {theirs:g} {unit} on {_gpu(found, arm, ours, unit)}"
        return verdict(abs(ours - theirs) <= share * theirs, why)

    return test


def forward_alone(found: Results, arm: str) -> Verdict:
    """Test whether a heat map takes 25 times a forward's multiply-adds and no more."""
    one, heat = _mean(found, arm, FORWARD.name), _mean(found, arm, IG_BOTH.name)
    why = (
        f"{heat / one:.0f} times, {heat:.2f} M for {one:.2f} M: each of 25 gradients goes through the net backwards too"
    )
    return verdict(heat <= 25 * one, why)


def _mean(found: Results, arm: str, measure: str) -> float:
    mean = found.summary(PICTURE.label, arm, measure).mean
    if mean != mean:
        raise NotRun(f"{found.study.measure(measure).words}: not measured in every run (on a CPU it is not)")
    return mean


def _gpu(found: Results, arm: str, ours: float, unit: str) -> str:
    """The machines that these figures are of; the paper's are of a GPU, which no CPU is compared with."""
    held = [found.readings.get(Cell(PICTURE.label, arm, i)) for i in range(found.seeds)]
    kept = [reading.kept for reading in held if reading is not None]
    machines = " and ".join(sorted({str(k["machine"]) for k in kept}))
    if not all(k["gpu"] for k in kept):
        raise NotRun(f"{ours:,.3f} {unit} on {machines}, and the claim is of a GPU")
    return machines


TABLE_2 = Study(
    name="xfed/table-2",
    title="Cost of the IoU-ratio: four nets, a small and a large image",
    headline=Headline("CIFAR picture (3, 32, 32)", "ResNet-18", "ms_one", claim="the IoU-ratio takes 24.78"),
    source=f"{PAPER}, Table 2 and sec. 5.4",
    base={
        "data": {"name": "cifar-10"},
        "split": {"partition": "grandrounds_studies.xfed.cost:a_few", "sites": 2, "official": False, "val": 0.0},
        "model": {"stem": "imagenet", "norm": "batch"},
        "method": {"rounds": 1},
        "train": {"steps": 1, "batch": 32, "lr": 0.01},
        "engine": {"device": "cuda"},
    },
    points=(PICTURE,),
    arms=_ARMS,
    measures=(*COUNTED, *MEASURED),
    published=PUBLISHED,
    claims=(
        Claim("the nets have 3.5, 5.48, 11.69 and 2.28 M parameters", "Table 2", _ALL, as_printed(PARAMETERS.name)),
        Claim(
            "a forward takes 7.79, 8.6, 37.69 and 4.08 M multiply-adds",
            "Table 2",
            _ALL,
            as_printed(PTFLOPS.name, beside=FORWARD.name),
        ),
        Claim("IG-SmoothGrad takes 25 times the multiply-adds of a forward", "Table 2", _ALL, forward_alone),
        Claim(
            "the IoU-ratio takes 24.78, 25.94, 15.38 and 25.10 ms a sample (read as: at most)",
            "Table 2",
            _ALL,
            at_most(ONE.name, unit="ms"),
        ),
        Claim(
            "a test set of 30 samples takes less than 0.78 s (one at a time)",
            "sec. 5.4",
            _ALL,
            at_most(ONE.name, SET_SECONDS, times=SET / 1e3, unit="s"),
        ),
        Claim(
            "IG-SmoothGrad takes 82.6 MB at nt_samples = 5 (read as: within a tenth)",
            "sec. 5.4",
            (MOBILE_2.label,),
            about(MEGABYTES.name, share=0.1, unit="MB"),
        ),
        Claim("a 720p image takes 5.89 G multiply-adds", "sec. 5.4", (MOBILE_2.label,), as_printed(LARGE_COUNT.name)),
        Claim(
            "the IoU-ratio of a 720p image takes 562 s (read as: at most)",
            "sec. 5.4",
            (MOBILE_2.label,),
            cannot_fail(at_most(LARGE_SECONDS.name, unit="s"), "another machine, years later"),
        ),
        Claim(
            "the IoU-ratio takes less than 1 ms a sample, 30 in one pass",
            "our bar",
            (RESNET.label,),
            at_most(TOGETHER.name, BAR, unit="ms"),
        ),
    ),
    settled=(
        "The paper's 'mobilenetv3' has 5.48 M parameters, which is MobileNetV3-large with 1000 outputs, and its counts are of "
        "nets with the stem for ImageNet, on 32 x 32 pixels. Ours are counted with 1000 outputs and timed with CIFAR-10's ten.",
        "Each run trains the net for one step at two sites of 100 images, so that what is timed is a run's model; batch norm, "
        "as the published nets have it. Times do not depend on what a net has learnt.",
        "The IoU-ratio is timed as in the paper, from the image in memory to r: 5 noisy copies x 5 steps, the heat map, heat "
        "inside against outside. Medians after a pass that is not counted: of 30 samples one at a time, and of five passes of "
        "30 samples. On a CPU two samples replace 30, and neither memory nor the 720p image is measured.",
        "The 720p image is given to every net, with 3 x 720 x 1280 numbers; the paper gives it to MobileNetV2.",
        "Memory is what the GPU holds at most while one heat map is made, less what it held before.",
        "Times are of one machine that does nothing else: run it with --jobs 1.",
    ),
    remarks=(
        "The printed multiply-adds, 5.89 G included, are those of the counter ptflops: to the products of convolutions and dense "
        "layers it adds one for each bias, two for each normalised number, and one for each number that enters a ReLU or a pool; "
        "hard-swish is free. They are 0.4% (ResNet-18) to 6.5% (720p) more than products alone.",
        "The printed 'IG-S Mult-Adds' are 25 times the forward. A heat map needs 25 gradients at the image, and going back "
        "costs as many multiply-adds as going forward: 50 times. (Training needs the weights' gradients too: three times a "
        "forward.)",
        "82.6 MB is five times 16.52 MB, which is the 'estimated total size' that torchsummary works out for MobileNetV2 and one "
        "such image: 13.37 for weights, 3.14 for activations and gradients, 0.01 for the image. So the weights are in it "
        "five times, and 5 of the 25 points that go through the net.",
        "562 s for a 720p image are 22,700 times the 24.78 ms of a small one, for 756 times the multiply-adds: something else "
        "than the arithmetic took that time. 0.78 s is 30 x 25.94 ms, the slowest net.",
        "The paper timed on an 'NVidia P8 GPU'. We know of no such card; P8 is the performance state that nvidia-smi shows of "
        "an idle one.",
    ),
    keeps=machine,
    quick=Quick({"engine": {"device": "auto"}}, arms=(RESNET.label, SHUFFLE.label)),
    seeds=3,
)
