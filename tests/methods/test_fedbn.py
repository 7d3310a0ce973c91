"""FedBN: BatchNorm stays each site's own, in training, in scoring and after a resume; others get the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.engine.faults import Faults
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.protocol.messages import Answers
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from tests.support import patients, sections

pytest.importorskip("torch")

FEDBN = {"name": "fedbn"}
TRAINED = ("north", "south", "west")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Bright squares, left or right, in 8 x 8 pixels; four sites whose scanners differ in brightness and contrast."""
    rng = generator(0, purpose="pictures")
    n = 80
    y, site = rng.integers(0, 2, n), np.arange(n) % 4
    x = rng.uniform(0, 60, (n, 8, 8, 1))
    for i in range(n):
        x[i, 2:6, 4 * y[i] : 4 * y[i] + 4] += 60
    x = x * np.array([1.0, 0.5, 1.8, 0.8])[site][:, None, None, None] + 20 * site[:, None, None, None]
    path = tmp_path_factory.mktemp("npz") / "squares.npz"
    names = np.array([*TRAINED, "new"])[site]
    np.savez(path, images=np.clip(x, 0, 255).astype(np.uint8), labels=np.array(["benign", "malignant"])[y], site=names)
    return path


def experiment(path, **changes) -> gr.Experiment:
    base = {
        "data": {"table": str(path)},
        "split": {"scheme": "holdout", "holdout": ["new"]},
        "model": {"name": "deep-cnn", "norm": "batch"},
        "method": {**FEDBN, "rounds": 2},
        "train": {"lr": 0.05, "batch": 8, "epochs": 1},
        "engine": {"device": "cpu"},
    }
    return gr.Experiment.parse(base | changes)


def rows_of(site: str) -> str:
    return "test" if site == "new" else "train"


class Consortium:
    """Prepared sites of which "new" never trains, and the rounds they have behind them."""

    def __init__(self, path, **changes) -> None:
        plan = Settings(experiment(path, **changes).plan())
        self.engine = set_up_run(plan, assemble(plan), None).engine
        self.host = self.engine.hosts[0]
        self.model = self.host.model
        self.own = self.model.site_entries("norm")
        self.theta, self.done, self.weights = self.model.init(0), 0, {}

    def train(self, count: int = 1, *, theta=None, faults: Faults | None = None) -> np.ndarray:
        self.engine.settings = replace(self.engine.settings, faults=faults or Faults(), deadline=5.0)
        self.theta = self.theta if theta is None else theta
        for _ in range(count):
            self.done += 1
            method = build_method(*sections(FEDBN, lr=0.05, epochs=1))
            outcome = self.engine.drive(method.round(Server(self.done, self.theta, TRAINED, 0)), round=self.done)
            self.engine.commit()
            self.theta, self.weights = outcome.model, outcome.decision.weights
        return self.theta

    def losses(self, theta) -> dict[str, float]:
        """Each site's mean log loss, as it works it out itself: on its training rows, or on "new"'s test rows."""
        out = {}
        for site in (*TRAINED, "new"):
            tally = self.engine.drive(evaluate(ModelAssignment(theta), (rows_of(site),), sites=(site,)), round=self.done)
            total = tally.totals[rows_of(site)].sum(axis=0)
            out[site] = float(total.log_loss / total.count)
        return out

    def loss_by_hand(self, site: str, theta) -> float:
        part, k = self.host.stack.parts[rows_of(site)], self.host.stack.names.index(site)
        rows = slice(part.offsets[k], part.offsets[k + 1])
        z = self.model.logits(theta, part.x[rows])[:, 0].astype(float)
        return float(np.logaddexp(0, -z * (2 * part.y[rows] - 1)).mean())

    def kept(self) -> dict[str, np.ndarray]:
        """What each site that has trained keeps for itself."""
        members = self.host.stack.number(TRAINED)
        self.engine.drive(
            evaluate(ModelAssignment(self.theta), ("train",), sites=TRAINED), round=self.done
        )  # who counted hears of it
        assert self.host.states.known(members).all()
        return dict(zip(TRAINED, self.host.states.read("own", members), strict=True))

    def with_own(self, theta, site: str) -> np.ndarray:
        out = theta.copy()
        out[self.own] = self.kept()[site]
        return out

    def scrambled(self, theta) -> np.ndarray:
        """A model of which nobody should use the BatchNorm entries."""
        out = theta.copy()
        out[self.own] = 7.0
        return out


@pytest.fixture(scope="module")
def trained(pictures) -> Consortium:
    """Two rounds done. Tests only look."""
    made = Consortium(pictures)
    made.train(2)
    return made


def test_what_is_kept_is_every_batch_norm_and_nothing_else(trained):
    layout, own = trained.model.layout, set(trained.own.tolist())
    kept = {name for name, at, _ in layout.slices if set(range(at.start, at.stop)) <= own}
    norms = {name.rsplit(".", 1)[0] for name, _ in layout.shapes if name.endswith("running_mean")}
    assert len(norms) == 6
    parts = ("weight", "bias", "running_mean", "running_var")
    assert kept == {f"{norm}.{part}" for norm in norms for part in parts}
    assert len(own) == sum(at.stop - at.start for name, at, _ in layout.slices if name in kept)
    statistics = set(trained.model.site_entries("statistics").tolist())
    assert statistics == set(range(trained.model.learnt, layout.size))
    assert len(trained.model.site_entries("none")) == 0


def test_sites_come_to_batch_norms_of_their_own(trained):
    kept, average = trained.kept(), trained.theta[trained.own]
    for site in TRAINED:
        assert np.abs(kept[site] - average).max() > 1e-2
        for other in TRAINED:
            assert other == site or np.abs(kept[site] - kept[other]).max() > 1e-2
    mean = sum(trained.weights[s] * kept[s].astype(float) for s in TRAINED)
    np.testing.assert_allclose(average, mean, rtol=1e-5, atol=1e-6)


def test_a_trained_site_scores_with_its_own_and_a_new_one_with_the_mean(trained):
    losses, spoilt = trained.losses(trained.theta), trained.losses(trained.scrambled(trained.theta))
    for site in TRAINED:
        assert spoilt[site] == losses[site], "the server's BatchNorm entries are nothing to it"
        by_hand = trained.loss_by_hand(site, trained.with_own(trained.theta, site))
        assert losses[site] == pytest.approx(by_hand, rel=1e-5)
        assert abs(losses[site] - trained.loss_by_hand(site, trained.theta)) > 1e-5
    assert losses["new"] == pytest.approx(trained.loss_by_hand("new", trained.theta), rel=1e-5)
    assert spoilt["new"] == pytest.approx(trained.loss_by_hand("new", trained.scrambled(trained.theta)), rel=1e-5)
    assert abs(spoilt["new"] - losses["new"]) > 1e-3


def test_a_site_trains_on_from_its_own_and_takes_the_rest_from_the_server(pictures):
    """The next round does not depend on the server's BatchNorm entries; on the others it does."""
    first = Consortium(pictures)
    shared = first.train(1)
    again, other = Consortium(pictures), Consortium(pictures)
    np.testing.assert_array_equal(again.train(1), shared)
    other.train(1)
    after = first.train(1)
    np.testing.assert_array_equal(again.train(1, theta=again.scrambled(shared)), after)
    moved = shared.copy()
    moved[np.setdiff1d(np.arange(len(moved)), first.own)] *= 1.1
    assert not np.array_equal(other.train(1, theta=moved), after)


def test_the_first_round_is_fedavgs_and_the_second_is_not(pictures):
    fedbn = Consortium(pictures)
    one = fedbn.train(1)
    two = fedbn.train(1)
    for count, mine in ((1, one), (2, two)):
        shared = Consortium(pictures, method={"name": "fedavg", "rounds": 2})
        assert np.array_equal(shared.train(count), mine) == (count == 1)


def test_a_site_whose_answer_did_not_count_goes_on_from_its_old_ones(pictures):
    """What north sends in round 2 is of no use: round 3 is as if it had never trained in round 2, being too late."""
    third = {}
    for case, faults in {
        "spoilt": Faults(nan=("north",)),
        "late": Faults(slow={"north": 9.0}),
        "counted": Faults(),
    }.items():
        made = Consortium(pictures)
        made.train(1)
        old = made.kept()["north"]
        made.train(1, faults=faults)
        assert ("north" in made.weights) == (case == "counted")
        assert np.array_equal(made.kept()["north"], old) == (case != "counted")
        third[case] = made.train(1)
        assert len(made.weights) == 3
    np.testing.assert_array_equal(third["spoilt"], third["late"])
    assert not np.array_equal(third["counted"], third["late"])


def test_batch_norms_survive_a_resume(pictures):
    straight = Consortium(pictures)
    straight.train(3)
    before = Consortium(pictures)
    halfway = before.train(2)
    arrays, facts = {n: a.copy() for n, a in before.engine.arrays().items()}, before.engine.state()
    after = Consortium(pictures)
    after.engine.restore(arrays, facts)
    after.theta, after.done = halfway, 2
    assert after.losses(halfway) == before.losses(halfway)
    np.testing.assert_array_equal(after.train(1), straight.theta)
    assert after.losses(after.theta) == straight.losses(straight.theta)


def test_a_resumed_run_folder_holds_the_same_model_and_scores(pictures, tmp_path):
    train = {"lr": 0.05, "batch": 8, "epochs": 1}
    whole = gr.run(experiment(pictures, train=train), out=tmp_path / "whole")
    short = gr.run(experiment(pictures, train=train, method={**FEDBN, "rounds": 1}), out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=2"])
    np.testing.assert_array_equal(gone_on.model.theta, whole.model.theta)
    for figures in ("per_site", "training", "validation"):
        assert repr(gone_on.summary[figures]) == repr(whole.summary[figures])
    wired = gr.run(experiment(pictures, train=train, engine={"device": "cpu", "wire": True}), out=tmp_path / "wired")
    np.testing.assert_allclose(wired.model.theta, whole.model.theta, atol=1e-4)


@pytest.mark.parametrize(
    "model", [{"name": "deep-cnn", "norm": "group"}, {"name": "small-cnn", "norm": "batch"}, {"name": "logistic"}]
)
def test_models_without_batch_norm_are_refused_in_words(model, tmp_path):
    import pandas as pd

    asked = {"method": {**FEDBN, "rounds": 1}, "model": model, "engine": {"device": "cpu"}}
    table = None
    if model["name"] == "logistic":
        table = pd.DataFrame({name: list(column) for name, column in patients([30, 30]).columns.items()})
        asked["data"] = {"label": "died", "site": "hospital"}
    else:
        x = generator(0, purpose="pictures").integers(0, 255, (40, 16, 16)).astype(np.uint8)
        np.savez(tmp_path / "x.npz", images=x, labels=np.arange(40) % 2, site=np.arange(40) // 20)
        asked["data"] = {"table": str(tmp_path / "x.npz")}
    with pytest.raises(
        BadInput, match="'fedbn' keeps BatchNorm layers at sites and this model has none: set model.norm"
    ):
        gr.run(gr.Experiment.parse(asked), table=table, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_early_stop_is_refused_because_sites_keep_no_earlier_batch_norms(pictures, tmp_path):
    changes = {"train": {"lr": 0.05, "batch": 8, "epochs": 1, "early_stop": 2}}
    with pytest.raises(
        BadInput, match=r"sites do not keep BatchNorm layers of earlier rounds: set train.early_stop = 0"
    ):
        gr.run(experiment(pictures, **changes), out=tmp_path / "run")


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_a_server_step_leaves_measured_statistics_at_their_mean(name):
    """The last entry is a variance: a step beyond the mean of .3 and .28 would take it below zero."""
    method = build_method(*sections({"name": name, "server": {"lr": 1.0}}))
    theta, state = np.array([1.0, 1.0]), {}
    for r, variance in ((1, 0.3), (2, 0.28)):
        server = Server(r, theta, ("a", "b"), 0, state, statistics=1)
        work = method.round(server)
        next(work)
        models = np.array([[0.5, variance], [0.5, variance]])
        try:
            work.send(Answers(("a", "b"), {"model": models, "count": np.array([5, 5]), "steps": np.array([1, 1])}))
        except StopIteration as end:
            theta, state = end.value.model, end.value.state
        assert theta[1] == pytest.approx(variance)
    assert theta[0] != pytest.approx(0.5), "what is learnt takes the step"
