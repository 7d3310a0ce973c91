"""MOON against plain torch with autograd, on both kernels; without strength or without a past it is FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.rng import generator
from grandrounds.engine.faults import Faults
from grandrounds.models import build_model
from grandrounds.site.batches import BatchPlan
from grandrounds.site.kernels import trainer
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.support import patients, ready, refused, rounds, slow, stack

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

SIZES = [40, 22, 61, 9, 33]
MOON = {"name": "moon", "moon_mu": 3.0, "temperature": 0.4}


def double(held, **settings):
    engine, _ = ready(held, model="mlp", hidden=(8,), precision="float64", device="cpu", **settings)
    host = engine.hosts[0]
    return engine, host.stack.parts["train"], host.model.init(0, np.float64)


def contrastive(z, towards, away, temperature: float):
    """Li et al. 2021, eq. 3, as it is printed, for each row."""
    near = torch.exp(F.cosine_similarity(z, towards, dim=-1) / temperature)
    far = torch.exp(F.cosine_similarity(z, away, dim=-1) / temperature)
    return -torch.log(near / (near + far))


def cross_entropy(logits, y):
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits[:, 0], y.double())
    return F.cross_entropy(logits, y)


class Reference:
    """Algorithm 1 of the paper on a net with one hidden layer; each site remembers the last model it trained."""

    def __init__(self, part, names, layout, theta, *, mu: float, temperature: float) -> None:
        self.part, self.names, self.layout = part, names, layout
        self.mu, self.temperature = mu, temperature
        self.model = self.net(theta)
        self.previous: dict = {}

    def net(self, theta) -> list:
        return [torch.tensor(theta[at].reshape(shape)) for _, at, shape in self.layout.slices]

    def round(self, number: int, taking_part, *, lr: float, epochs: int, batch: int) -> None:
        part = self.part
        members = np.array([k for k, name in enumerate(self.names) if name in taking_part])
        work = TrainConfig(seed=0, round=number, lr=lr, epochs=epochs, batch=batch)
        plan = BatchPlan.draw(part, members, names=self.names, config=work)
        models, counts = [], []
        for j, k in enumerate(members[plan.order]):
            before = self.previous.get(k, self.model)
            net = [p.clone() for p in self.model]
            for s in range(int(plan.steps_in_order[j])):
                rows, _ = plan.batch(s, j)
                x, y = torch.tensor(part.x[rows]), torch.tensor(part.y[rows])
                net = [p.detach().requires_grad_() for p in net]
                z = features(net, x)
                pull = contrastive(z, features(self.model, x), features(before, x), self.temperature).mean()
                loss = cross_entropy(z @ net[2] + net[3], y) + self.mu * pull
                net = [p - lr * g for p, g in zip(net, torch.autograd.grad(loss, net), strict=True)]
            self.previous[k] = [p.detach() for p in net]
            models.append(self.previous[k])
            counts.append(int(part.counts[k]))
        share = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        self.model = [sum(w * m[i] for w, m in zip(share, models, strict=True)) for i in range(4)]

    @property
    def theta(self) -> np.ndarray:
        return torch.cat([p.ravel() for p in self.model]).numpy()


def features(net, x):
    return torch.relu(x @ net[0] + net[1])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("case", ["all", slow("some"), "spoilt"])
def test_both_kernels_do_what_plain_torch_does(kernel, classes, case):
    """Sites of 9 to 61 rows in batches of 8: last batches are short, and sites take different numbers of steps.

    Only some sites take part in a round, or what c sends in rounds 2 and 3 is of no use: its previous model is then
    that of the last round that counted.
    """
    method = {**MOON, "select": {"rule": "random", "fraction": 0.6}} if case == "some" else MOON
    engine, part, first = double(stack(SIZES, classes=classes), kernel=kernel)
    layout = engine.hosts[0].model.layout
    expected = Reference(part, engine.sites, layout, first, mu=3.0, temperature=0.4)
    theta, asked, count = first, set(), 3 if case == "all" else 5
    for r in range(1, count + 1):
        spoilt = ("c",) if case == "spoilt" and r in (2, 3) else ()
        engine.settings = replace(engine.settings, faults=Faults(nan=spoilt))
        theta, (decision,) = rounds(engine, count=1, start=r - 1, theta=theta, method=method, lr=0.2)
        expected.round(r, decision.weights, lr=0.2, epochs=2, batch=8)
        asked.add(tuple(decision.weights))
        assert np.isfinite(expected.theta).all()
        np.testing.assert_allclose(theta, expected.theta, atol=1e-8, rtol=0)
    assert (len(asked) > 1) == (case != "all")
    plain, _ = rounds(engine, count=count, theta=first, method={**method, "moon_mu": 0.0}, lr=0.2)
    assert np.abs(theta - plain).max() > 1e-3, "a contrast that changes nothing would prove nothing"


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_without_strength_it_is_fedavg_to_the_bit(kernel):
    held = stack(SIZES)
    one, other = (
        rounds(ready(held, model="mlp", kernel=kernel, device="cpu")[0], method=m)[0]
        for m in ({}, {**MOON, "moon_mu": 0.0})
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_in_the_first_round_nothing_is_contrasted(kernel):
    """The previous model is the global one, so the loss is log 2 whatever the features are."""
    held = stack(SIZES)

    def after(count: int, method: dict) -> np.ndarray:
        return rounds(ready(held, model="mlp", kernel=kernel, device="cpu")[0], count=count, method=method)[0]

    np.testing.assert_array_equal(after(1, MOON), after(1, {}))
    assert not np.array_equal(after(2, MOON), after(2, {}))


def test_bytes_and_chunks_change_nothing():
    held = stack(SIZES)
    whole, _ = rounds(ready(held, model="mlp")[0], method=MOON)
    parts, _ = rounds(ready(held, model="mlp", chunk=2)[0], method=MOON)
    wired, _ = rounds(ready(held, model="mlp", wire=True)[0], method=MOON)
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_allclose(wired, whole, atol=1e-5)


def test_previous_models_survive_a_resume():
    held = stack(SIZES)
    straight, _ = rounds(ready(held, model="mlp")[0], count=4, method=MOON)
    before, _ = ready(held, model="mlp")
    halfway, _ = rounds(before, count=2, method=MOON)
    arrays, facts = {n: a.copy() for n, a in before.arrays().items()}, before.state()
    after, _ = ready(held, model="mlp")
    after.restore(arrays, facts)
    np.testing.assert_array_equal(rounds(after, count=2, start=2, theta=halfway, method=MOON)[0], straight)
    forgetful, _ = ready(held, model="mlp")
    assert not np.array_equal(rounds(forgetful, count=2, start=2, theta=halfway, method=MOON)[0], straight)


def test_a_logistic_model_has_nothing_to_contrast(tmp_path):
    import pandas as pd

    table = pd.DataFrame({name: list(column) for name, column in patients([30, 30]).columns.items()})
    for method in (MOON, {"name": "fedavg", "stability": "moon"}):
        asked = gr.Experiment.parse({"data": {"label": "died", "site": "hospital"}, "method": method})
        with refused("method-does-not-fit", match="'mlp'"):
            gr.run(asked, table=table, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


# Nets for pictures


@pytest.fixture(scope="module")
def pictures() -> Part:
    """Two sites with 11 and 6 grey pictures of 16 x 16."""
    rng = generator(0, purpose="pictures")
    y = rng.integers(0, 2, 17)
    x = rng.normal(size=(17, 1, 16, 16)) + y[:, None, None, None]
    return Part(x=x, y=y, target=y[:, None].astype(float), group=np.zeros(17, int), offsets=np.array([0, 11, 17]))


@pytest.fixture(scope="module")
def cnn():
    spec = {"name": "small-cnn", "inputs": [1, 16, 16], "classes": 2, "hidden": [], "trees": 1, "depth": 1}
    more = {"norm": "group", "stem": "small", "weights": None, "statistics": "averaged", "options": {}}
    return build_model(spec | more, device="cpu", precision="float64")


def by_hand(net, x):
    """What small-cnn's last layer is fed."""
    x = F.max_pool2d(F.relu(F.conv2d(x, net[0], net[1])), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, net[2], net[3])), 2)
    x = F.relu(x.flatten(1) @ net[4].T + net[5])
    return F.relu(x @ net[6].T + net[7])


def views(cnn, theta) -> list:
    return [torch.tensor(theta[at].reshape(shape)) for _, at, shape in cnn.layout.slices]


def test_features_are_what_the_last_layer_is_fed(cnn, pictures):
    theta = cnn.init(1, np.float64)
    net = views(cnn, theta)
    expected = by_hand(net, torch.tensor(pictures.x))
    assert cnn.last_layer == "fc3"
    np.testing.assert_allclose(cnn.features(theta, pictures.x), expected.numpy(), atol=1e-12)
    params = dict(zip(cnn.trainable, cnn.point_at(cnn.tensor(theta)), strict=True))
    for given in (params, dict(zip(cnn.trainable, net, strict=True))):  # its own parameters, and others swapped in
        logits, fed = cnn.with_features(given, cnn.tensor(pictures.x))
        np.testing.assert_allclose(fed.detach().numpy(), expected.numpy(), atol=1e-12)
        np.testing.assert_allclose((fed @ net[8].T + net[9]).detach(), logits.detach(), atol=1e-12)
        np.testing.assert_allclose(logits.detach(), cnn.logits(theta, pictures.x), atol=1e-12)
    assert not cnn.net.fc3._forward_pre_hooks, "a hook that stays would collect features for ever"


def test_a_cnn_is_contrasted_as_in_plain_torch(cnn, pictures):
    """Both sites have a past of their own; what they train is what autograd on the written-out net gives."""
    start, members = cnn.init(1, np.float64), np.array([1, 0])
    previous = np.stack([cnn.init(seed, np.float64) for seed in (2, 3)])
    work = TrainConfig(seed=0, round=4, lr=0.05, epochs=2, batch=4, contrast=5.0, contrast_temperature=0.4)
    got = trainer(cnn)(TrainJob(cnn, pictures, members, start, work, names=("a", "b"), previous=previous))
    plan = BatchPlan.draw(pictures, members, names=("a", "b"), config=work)
    shared = views(cnn, start)
    for j, member in enumerate(plan.order):
        net, before = shared, views(cnn, previous[member])
        for s in range(int(plan.steps_in_order[j])):
            rows, _ = plan.batch(s, j)
            x, y = torch.tensor(pictures.x[rows]), torch.tensor(pictures.y[rows])
            net = [p.detach().clone().requires_grad_() for p in net]
            z = by_hand(net, x)
            pull = contrastive(z, by_hand(shared, x), by_hand(before, x), 0.4).mean()
            loss = cross_entropy(z @ net[8].T + net[9], y) + 5.0 * pull
            net = [p - 0.05 * g for p, g in zip(net, torch.autograd.grad(loss, net), strict=True)]
        expected = torch.cat([p.ravel() for p in net]).detach().numpy()
        np.testing.assert_allclose(got.theta[member], expected, atol=1e-9)
    without = trainer(cnn)(TrainJob(cnn, pictures, members, start, work, names=("a", "b"), previous=np.stack([start] * 2)))
    assert np.abs(got.theta - without.theta).max() > 1e-3


def test_a_run_on_pictures_repeats_and_differs_from_fedavg(tmp_path):
    rng = generator(1, purpose="pictures")
    y, site = rng.integers(0, 2, 60), np.array(["north", "south", "west"])[np.arange(60) % 3]
    x = rng.integers(0, 90, (60, 16, 16, 1)) + 100 * y[:, None, None, None]
    np.savez(tmp_path / "x.npz", images=x.astype(np.uint8), labels=np.array(["no", "yes"])[y], site=site)
    base = {"data": {"table": str(tmp_path / "x.npz")}, "model": {"name": "small-cnn"}, "engine": {"device": "cpu"}}
    base |= {"train": {"lr": 0.05, "batch": 8, "epochs": 1}}
    theta = {}
    for name, method in {"moon": MOON, "again": MOON, "fedavg": {}}.items():
        run = gr.run(gr.Experiment.parse({**base, "method": {**method, "rounds": 2}}), out=tmp_path / name)
        theta[name] = run.model.theta
        assert np.isfinite(run.summary["final"]["log_loss"])
    np.testing.assert_array_equal(theta["moon"], theta["again"])
    assert not np.array_equal(theta["moon"], theta["fedavg"])
