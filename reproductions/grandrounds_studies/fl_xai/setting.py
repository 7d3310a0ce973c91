"""The set-up of the FL-XAI study's experiments: what the thesis gives, what it leaves open, and what is run small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grandrounds_studies.study import Arm, Point, Settings
from grandrounds_studies.xfed.photos import CIFAR, PART, TESTED, TRAINED

THESIS = "FL-XAI (the thesis on federated learning with Grad-CAM and NormGrad)"
OURS = "our question"
SEEDS = 3
MANY_SEEDS = 10
"""Seeds of the experiments in which the number of local epochs can decide a claim."""

BASE: dict[str, Any] = {
    "data": {"name": CIFAR},
    "split": {"partition": "equal", "sites": 10, "val": 0.0},
    "model": {"name": "small-cnn"},
    "method": {"rounds": 10},
    "train": {"epochs": 5, "batch": 32, "lr": 0.001, "optimizer": "adam"},
    "engine": {"workers": 1},
}
OWN: dict[str, Any] = {"evaluation": {"local_models": "own"}}
"""Sites say how right their own models are on their own training rows: what the thesis prints as accuracy."""

MAPS = ("grad_cam", "normgrad", "gradient_norm")
MAPPED: dict[str, Any] = {"explain": {"maps": MAPS, "maps_rows": 16}}
"""Heat maps after the last round, of local models and of the common one, on images of each site."""

QUICK: dict[str, Any] = {
    "split": {"partition": "grandrounds_studies.xfed.cost:a_few", "official": False, "sites": 4},
    "method": {"rounds": 2},
    "train": {"steps": 3},
    "explain": {"maps_rows": 2},
}
"""Four sites of 100 images, two rounds of three steps."""

FEW_STEPS: dict[str, Any] = {
    "split": {"sites": 2},
    "reference": {"aside": {"rows": (TRAINED + TESTED) // 2}},
    "method": {"rounds": 2},
    "train": {"steps": 5},
}
"""Settings if an arm is a way of dealing images: two sites, and half of all images set aside, which nobody uses."""

EPOCHS = (1, 2, 5)
"""Local epochs a round. The thesis states none; the other experiments have the last."""


def epochs_label(epochs: int) -> str:
    return f"{epochs} local epoch{'' if epochs == 1 else 's'}"


def training_lengths(of: Callable[[int], Mapping[str, Settings]] = lambda epochs: {}) -> tuple[Point, ...]:
    """Return a point for each number of local epochs; `of(epochs)` gives settings of single arms there."""
    return tuple(
        Point(epochs_label(n), {"train": {"epochs": n}}, x=float(n), group="local epochs", of=of(n)) for n in EPOCHS
    )


LENGTHS = tuple(epochs_label(n) for n in EPOCHS)
SHORT, LONG = LENGTHS[0], LENGTHS[-1]

FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}})
HERE = Point("CIFAR-10, 10 sites", {})
AT = HERE.label

_OF_PART = (
    f"Two fifths of CIFAR-10: {TRAINED:,} images to train on and {TESTED:,} to test on, where the thesis has 50,000 and 10,000; "
    "the majority class alone is right on 10.0% of them. Fewer images make a weaker net, so accuracies are to be compared with "
    "each other and not against the printed ones."
)
_OF_ALL = (
    f"All of CIFAR-10, as in the thesis: {TRAINED:,} images to train on and {TESTED:,} to test on; the majority class alone is "
    "right on 10.0% of them."
)
PICTURES = _OF_PART if CIFAR == PART else _OF_ALL
TRAINING = (
    "The thesis gives no learning rate, batch size or number of local epochs. Chosen: Adam at 0.001, PyTorch's default, batches "
    "of 32, five epochs a round. Adam's moments start anew in every round."
)
LENGTH = (
    "The thesis gives no learning rate, batch size or number of local epochs. Chosen: Adam at 0.001, PyTorch's default, batches "
    f"of 32. Each claim is tested with {', '.join(map(str, EPOCHS[:-1]))} and {EPOCHS[-1]} local epochs a round, and its verdict "
    "names the lengths under which it is reproduced. Adam's moments start anew in every round."
)
NET = (
    "The net is the described one, two convolutions with max-pools and three dense layers, as in PyTorch's own tutorial: 62,006 "
    "parameters. Images are normalised by means and deviations of the channels, from sums that sites send."
)
ACCURACY_IS = (
    "Accuracy is of the common model on the test images of all sites. Training accuracy is of each site's own model, after it "
    "trained in the round, on the images that it trained on; sites weigh by their images."
)


def intervals(seeds: str) -> str:
    return (
        f"Our ± is half of Student's 95% interval over {seeds} seeds, which deal the images to sites, start the net and draw the "
        "batches; differences are paired by seed. The thesis has one run of each."
    )


INTERVALS, MANY_INTERVALS = intervals("three"), intervals("ten")
MEASURED = (
    "The thesis judges heat maps by eye, on one to five images. Here they are numbers, means over test images, each map of "
    "the image's own class. Concentration is 1 - entropy / ln(pixels), the Gini index is that of the pixels' heat: 0 spread "
    "evenly, near 1 all on one pixel. Deletion and insertion are mean probabilities of the class while the hottest pixels give "
    "way to the mean or come out of it: low and high are good. Grad-CAM of a class that speaks against the image is dark; "
    "dark maps are counted, and left out of the other numbers."
)
AT_SITES = "Maps are of 16 test images of each site, after the last round, by the common model and by each site's own."
KINDS = (
    "'NormGrad' is two things. The thesis's (3.6) is the norm of the gradient at the pixels, drawn between its least and its "
    "largest value: `gradient_norm`. The paper that it cites (Rebuffi et al. 2020) has the norms of a layer's activations times "
    "those of its gradients: `normgrad`. Both are tested."
)
LOOK = (
    "No images are shown here, since CIFAR-10 states no licence. After `rounds run fl-xai/maps --out RUN`, `rounds explain maps "
    "show RUN --site site-01` draws them."
)
SETTLED = (PICTURES, TRAINING, NET)
SETTLED_BY_LENGTH = (PICTURES, LENGTH, NET)


def source(section: str, what: str) -> str:
    """Return the place in the thesis: "sec. 4.3, Table 4.1"."""
    return f"{THESIS}, sec. {section}, {what}"
