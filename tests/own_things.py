"""Models, methods, partitions, loaders and metrics as a user might write them, good and bad: for test_plugins.py."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import nn

from grandrounds.core.records import Decision
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet
from grandrounds.methods.base import Method
from grandrounds.methods.baselines import Pooled
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedbn import FedBN
from tests.support import patients


class Net(nn.Module):
    """A hidden layer with dropout, for tables and pictures."""

    def __init__(self, *, inputs, outputs, width=6, dropout=0.2):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(inputs)), width), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Normed(Net):
    def __init__(self, *, inputs, outputs):
        super().__init__(inputs=inputs, outputs=outputs)
        self.body = nn.Sequential(self.body, nn.BatchNorm1d(6))


class Squashed(Net):
    """Its last layer does not give the logits themselves."""

    def forward(self, x):
        return 3 * torch.tanh(super().forward(x))


class HeadFirst(nn.Module):
    """Its last parameters are not those of the layer that gives the logits."""

    def __init__(self, *, inputs, outputs):
        super().__init__()
        self.head = nn.Linear(6, outputs)
        self.body = nn.Linear(inputs[0], 6)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Wide(Net):
    def __init__(self, *, inputs, outputs):
        super().__init__(inputs=inputs, outputs=outputs + 2)


class Idle(Net):
    def __init__(self, *, inputs, outputs):
        super().__init__(inputs=inputs, outputs=outputs)
        self.spare = nn.Linear(3, 3)


class Broken(Net):
    def forward(self, x):
        return self.head(x[:, :2])


class Fragile(Net):
    """Goes wrong in training only."""

    def forward(self, x):
        if self.training:
            raise ZeroDivisionError("no")
        return super().forward(x)


def linear(*, inputs, outputs):
    return nn.Linear(inputs[0], outputs)


def frozen(*, inputs, outputs):
    net = nn.Sequential(nn.Linear(inputs[0], 4), nn.Linear(4, outputs))
    return net.requires_grad_(False)


def empty(*, inputs, outputs):
    return nn.Flatten()


def no_module(*, inputs, outputs):
    return {"inputs": inputs}


class Halfway(Method):
    """Goes half of the way to the mean; a method with a setting of its own."""

    parts = frozenset()
    defaults: ClassVar = {"share": 0.5}

    def round(self, server):
        answers = yield self.ask_to_train(server, server.sites)
        mean = server.combine(answers, np.full(len(answers), 1 / len(answers)))
        decision = Decision(weights=dict.fromkeys(answers.sites, self.options["share"] / len(answers)), why="halfway")
        return server.next(server.model + self.options["share"] * (mean - server.model), decision)


class Failing(FedAvg):
    def step(self, server, model):
        raise KeyError("velocity")


class Endless(Method):
    def round(self, server):
        yield self.ask_to_train(server, server.sites)


class OwnBN(FedBN):
    pass


class OwnPooled(Pooled):
    pass


def two_sites(y, *, sites, rng):
    return {"left": np.flatnonzero(rng.random(len(y)) < 0.5)[:100], "right": np.arange(len(y) - 40, len(y))}


def by_turns(y, *, sites, rng):
    order = rng.permutation(len(y))
    return [order[k::sites] for k in range(sites)]


def by_patient(y, *, sites, rng, groups):
    number = np.unique(groups.astype(str), return_inverse=True)[1]
    return [np.flatnonzero(number % sites == k) for k in range(sites)]


def too_few(y, *, sites, rng):
    return by_turns(y, sites=sites, rng=rng)[1:]


def twice(y, *, sites, rng):
    return [np.arange(len(y))] * sites


def beyond(y, *, sites, rng):
    return [rows + 1 for rows in by_turns(y, sites=sites, rng=rng)]


def halves(y, *, sites, rng):
    return [rows / 2 for rows in by_turns(y, sites=sites, rng=rng)]


def one_empty(y, *, sites, rng):
    return [[], *by_turns(y, sites=sites, rng=rng)[1:]]


def owners(y, *, sites, rng):
    return rng.integers(sites, size=len(y))


def broken_partition(y, *, sites, rng):
    return y["nothing"]


def frame():
    return pd.DataFrame(dict(table().columns))


def table():
    return patients([60, 50, 40])


def pictures():
    rng = generator(0, purpose="own pictures")
    pixels = rng.integers(0, 200, (120, 8, 8, 1), np.uint8)
    label = np.array(["normal", "abnormal"], object)[np.arange(120) % 2]
    pixels[label == "abnormal", 2:5, 2:5] += 55
    return ImageSet("own pictures", pixels, label, site=np.array(["a", "b", "c"], object)[np.arange(120) // 2 % 3])


def pictures_of_patients():
    held = pictures()
    return ImageSet(held.name, held.pixels, held.label, patient=np.array([f"p{i // 3}" for i in range(120)], object))


def no_data():
    return [1, 2, 3]


def broken_data():
    raise FileNotFoundError("ward.db is not there")


def harm(counted):
    return (counted.confusion[0, 1] + 10 * counted.confusion[1, 0]) / counted.count


def accuracy(counted):
    return 1.0


def undefined(counted):
    return float("nan")


def words(counted):
    return "good"


def broken_metric(counted):
    return counted.nothing


NUMBER = 3
