"""Flower's strategies and ours, given the same client models round after round, come to the same global models."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import Answers
from grandrounds.site.batches import BatchPlan
from grandrounds.site.train_job import TrainConfig
from tests.support import ready, rounds, sections, stack

pytest.importorskip("flwr")

SITES = ("a", "b", "c", "d", "e")
SIZE = 40
SHAPES = ((2, 3), (34,))

FLOWER_DEFAULTS = {"lr": 0.1, "tau": 1e-3, "v0": 0.0}
CASES = {
    "fedavg": ("FedAvg", {}, {"name": "fedavg"}),
    "fedprox": ("FedProx", {"proximal_mu": 0.3}, {"name": "fedprox", "mu": 0.3}),
    "fedadam": ("FedAdam", {}, {"name": "fedadam", "server": {**FLOWER_DEFAULTS, "bias_correction": True}}),
    "fedadam, tau of the old class": (
        "FedAdam",
        {"tau": 1e-9},
        {"name": "fedadam", "server": {"lr": 0.1, "tau": 1e-9, "v0": 0.0, "bias_correction": True}},
    ),
    "fedadam, other settings": (
        "FedAdam",
        {"eta": 0.03, "beta_1": 0.5, "beta_2": 0.8, "tau": 0.2},
        {
            "name": "fedopt",
            "server": {
                **{"rule": "adam", "lr": 0.03, "beta1": 0.5, "beta2": 0.8, "tau": 0.2},
                **{"v0": 0.0, "bias_correction": True},
            },
        },
    ),
    "fedyogi": ("FedYogi", {"eta": 0.1}, {"name": "fedyogi", "server": FLOWER_DEFAULTS}),
    "fedyogi, other settings": (
        "FedYogi",
        {"eta": 0.03, "beta_1": 0.5, "beta_2": 0.8, "tau": 0.2},
        {"name": "fedyogi", "server": {"lr": 0.03, "beta1": 0.5, "beta2": 0.8, "tau": 0.2, "v0": 0.0}},
    ),
    "fedadagrad": ("FedAdagrad", {}, {"name": "fedadagrad", "server": FLOWER_DEFAULTS}),
    "fedavgm": ("FedAvgM", {"server_momentum": 0.9}, {"name": "fedavgm"}),
    "fedavgm, slow": (
        "FedAvgM",
        {"server_momentum": 0.5, "server_learning_rate": 0.3},
        {"name": "fedavgm", "server": {"momentum": 0.5, "lr": 0.3}},
    ),
    "fedavgm without momentum": (
        "FedAvgM",
        {"server_learning_rate": 0.3},
        {"name": "fedavgm", "server": {"momentum": 0.0, "lr": 0.3}},
    ),
}


@pytest.fixture(autouse=True)
def in_a_server_app(monkeypatch):
    """Flower's messages carry the identity of the process that words them."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)


class Nodes:
    """All that a strategy asks of Flower's grid before it words its messages."""

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(SITES) + 1))


class Flower:
    """A strategy, driven through its own `configure_train` and `aggregate_train`."""

    def __init__(self, name: str, options: dict) -> None:
        import flwr.serverapp.strategy as strategies

        self.strategy = getattr(strategies, name)(**options)
        self.model = start()
        self.told: dict = {}

    def round(self, number: int, updates: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The next model from clients that change it by these updates (K, P)."""
        from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict

        arrays = ArrayRecord(layers(self.model))
        asked = list(self.strategy.configure_train(number, arrays, ConfigRecord(), Nodes()))
        self.told = dict(asked[0].content["config"])
        sent = np.concatenate([a.ravel() for a in asked[0].content["arrays"].to_numpy_ndarrays()])
        replies = []
        for node, (update, count) in enumerate(zip(updates, counts, strict=True)):
            metrics = MetricRecord({"num-examples": int(count)})
            content = RecordDict({"arrays": ArrayRecord(layers(sent + update)), "metrics": metrics})
            replies.append(Message(content, metadata=Metadata(1, "", node, 0, "", "", 0.0, 60.0, "train")))
        made, _ = self.strategy.aggregate_train(number, replies)
        self.model = np.concatenate([a.ravel() for a in made.to_numpy_ndarrays()])
        return self.model


class Ours:
    """A method, driven through its own generator."""

    def __init__(self, settings: dict) -> None:
        self.method = build_method(*sections(settings))
        self.model, self.state, self.told = start(), {}, {}

    def round(self, number: int, sites: tuple[str, ...], updates: np.ndarray, counts: np.ndarray) -> np.ndarray:
        talk = self.method.round(Server(number, self.model, SITES, 0, self.state))
        ask = next(talk)
        assert ask.task == "train"
        assert ask.to == SITES
        self.told = dict(ask.shared)
        models = ask.shared["model"] + updates
        with pytest.raises(StopIteration) as end:
            talk.send(Answers(sites, {"model": models, "count": counts, "steps": np.ones(len(sites), int)}))
        outcome = end.value.value
        self.model, self.state = outcome.model, outcome.state
        return self.model


def start() -> np.ndarray:
    return generator(0, purpose="start").normal(size=SIZE)


def layers(model: np.ndarray) -> list[np.ndarray]:
    cut = int(np.prod(SHAPES[0]))
    return [model[:cut].reshape(SHAPES[0]), model[cut:]]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", CASES)
def test_flower_comes_to_the_same_models(case):
    """Six rounds; updates grow and shrink and change sign, some entries never move, and now and then a site is missing."""
    name, theirs, settings = CASES[case]
    flower, ours = Flower(name, theirs), Ours(settings)
    for r in range(1, 7):
        rng = generator(r, purpose="updates")
        here = [k for k in range(len(SITES)) if k == 0 or (k + r) % 4]
        updates = rng.normal(size=(len(here), SIZE)) * 10.0 ** rng.integers(-4, 2, SIZE)
        updates[:, :3] = 0
        counts = rng.integers(5, 500, len(here))
        expected = flower.round(r, updates, counts)
        got = ours.round(r, tuple(SITES[k] for k in here), updates, counts)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
        assert not np.allclose(got[3:], start()[3:])


@pytest.mark.filterwarnings("default")
def test_both_tell_clients_the_same_proximal_strength():
    flower, ours = Flower("FedProx", {"proximal_mu": 0.3}), Ours({"name": "fedprox", "mu": 0.3})
    updates, counts = np.zeros((5, SIZE)), np.ones(5, int)
    flower.round(1, updates, counts)
    ours.round(1, SITES, updates, counts)
    assert flower.told["proximal-mu"] == ours.told["proximal"] == 0.3


def test_reddis_defaults_are_not_flowers():
    """Ours start the second moment at tau^2 and leave out the bias correction; with Flower's v0 alone they differ."""
    flower, ours = Flower("FedAdam", {}), Ours({"name": "fedadam", "server": {"lr": 0.1}})
    updates, counts = generator(0, purpose="updates").normal(size=(5, SIZE)) / 1000, np.ones(5, int)
    assert np.abs(flower.round(1, updates, counts) - ours.round(1, SITES, updates, counts)).max() > 1e-3


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("mu", [0.3, 4.0])
def test_the_proximal_term_is_the_one_flower_documents(kernel, mu):
    """Flower's documented client, in plain torch: loss + mu / 2 * (w - w_t).norm(2)^2 over all parameters."""
    torch = pytest.importorskip("torch")
    sizes = [40, 22, 9]
    engine, _ = ready(stack(sizes), model="mlp", precision="float64", kernel=kernel, device="cpu")
    host = engine.hosts[0]
    part, layout, names = host.stack.parts["train"], host.model.layout, host.stack.names
    first = host.model.init(0, np.float64)
    got, _ = rounds(engine, count=2, theta=first, method={"name": "fedprox", "mu": mu})
    plain, _ = rounds(engine, count=2, theta=first, method={"name": "fedprox", "mu": 0.0})
    assert np.abs(got - plain).max() > 1e-3

    expected = torch.as_tensor(first)
    for r in (1, 2):
        plan = BatchPlan.draw(part, np.arange(3), names=names, config=TrainConfig(seed=0, round=r, lr=0.1, epochs=2, batch=8))
        models = []
        for j in range(3):
            views = [expected[at].reshape(shape).clone() for _, at, shape in layout.slices]
            net = [v.clone().requires_grad_() for v in views]
            for s in range(int(plan.steps_in_order[j])):
                rows, _ = plan.batch(s, j)
                hidden = torch.relu(torch.as_tensor(part.x[rows]) @ net[0] + net[1])
                logits = hidden @ net[2] + net[3]
                proximal = sum((local - shared).norm(2) ** 2 for local, shared in zip(net, views, strict=True))
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.as_tensor(part.target[rows]))
                slopes = torch.autograd.grad(loss + mu / 2 * proximal, net)
                net = [(p - 0.1 * g).detach().requires_grad_() for p, g in zip(net, slopes, strict=True)]
            models.append(torch.cat([p.detach().ravel() for p in net]))
        share = torch.as_tensor(part.counts[plan.order] / part.counts.sum())
        expected = (share[:, None] * torch.stack(models)).sum(0)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-9, atol=1e-9)
