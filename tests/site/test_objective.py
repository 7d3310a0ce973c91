"""Local objectives by import path: the built-in's bits on both kernels, DP-SGD's limits, and a hospital's list of modules."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.policy.rules import OWN_CODE, Cells, Policy, Reports
from grandrounds.core import plugins
from grandrounds.core.errors import GrandRoundsError, RunFailed
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.host import SiteHost
from grandrounds.site.objective import LocalFit, LocalObjective
from tests.engine.disturbed import SIZES as HOSPITALS
from tests.engine.disturbed import close_to, hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.support import all_site_plugins, bright_squares, patients, ready, refused, rounds, stack

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = [40, 22, 61, 9, 33]
HERE = __name__
MODULE = "own_objective"


class CrossEntropy(LocalObjective):
    """The usual loss, written as a plug-in."""

    def loss_gradient(self, logits, target, xp):
        return 1 / (1 + xp.exp(-logits)) - target


class Pull(LocalObjective):
    """FedProx's term, written as a plug-in."""

    defaults: ClassVar = {"mu": 0.3}

    def penalty_gradient(self, theta, start, state):
        return self.options["mu"] * (theta - start)


class Sgd(LocalObjective):
    """Plain SGD as a training loop."""

    def fit(self, work: LocalFit):
        theta = work.start.copy()
        for batch in work.batches:
            theta = theta - work.lr * work.gradient(theta, batch)
        return theta


class Short(LocalObjective):
    def penalty_gradient(self, theta, start, state):
        return theta[..., :1]


class Forgetful(LocalObjective):
    state = ("dual",)


class Broken(LocalObjective):
    def penalty_gradient(self, theta, start, state):
        return theta / state["nothing"]


class NotOne:
    pass


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    sys.modules.pop(MODULE, None)


def own(kind) -> dict:
    """Settings of [train] that name a class of this file or of the example, which this process may import."""
    name = kind if isinstance(kind, str) else f"{HERE}:{kind.__name__}"
    plugins.allow({"train": {"objective": name}, "method": {"name": f"{MODULE}:FedDynServer"}})
    return {"objective": name}


def trained(kernel="numpy", *, method=None, model="mlp", sizes=SIZES, count=3, **train):
    engine, _ = ready(stack(sizes), model=model, kernel=kernel, device="cpu")
    return rounds(engine, count=count, method=method, **train)[0]


# --- the worked example -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["all", {"rule": "random", "fraction": 0.5}], ids=["all sites", "half of them"])
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("train", [{}, {"l2": 0.01, "optimizer": "momentum"}, {"optimizer": "adam"}], ids=str)
def test_feddyn_as_a_plugin_has_the_built_ins_bits(examples, kernel, train, select):
    built_in = trained(kernel, method={"name": "feddyn", "select": select, "options": {"alpha": 0.2}}, count=4, **train)
    plugin = own(f"{MODULE}:DynamicRegularizer") | {"objective_options": {"alpha": 0.2}}
    mine = trained(kernel, method={"name": f"{MODULE}:FedDynServer", "select": select}, count=4, **plugin, **train)
    assert mine.tobytes() == built_in.tobytes()


def test_feddyn_on_images_has_the_built_ins_bits(examples, tmp_path):
    table = bright_squares(tmp_path / "x.npz", 60, "abc", purpose="objective")
    base = {"data": {"table": str(table)}, "model": {"name": "small-cnn"}, "explain": {"sketch": "none"}}
    plugin = {"objective": f"{MODULE}:DynamicRegularizer"}
    built_in = gr.run(gr.Experiment.parse({**base, "method": {"name": "feddyn", "rounds": 3}}), out=tmp_path / "a")
    experiment = {**base, "method": {"name": f"{MODULE}:FedDynServer", "rounds": 3}, "train": plugin}
    mine = gr.run(gr.Experiment.parse(experiment), out=tmp_path / "b")
    assert mine.model.theta.tobytes() == built_in.model.theta.tobytes()


def test_duals_survive_a_resume_and_the_plan_lists_the_modules_hash(examples, tmp_path):
    train, method = {"objective": f"{MODULE}:DynamicRegularizer"}, {"name": f"{MODULE}:FedDynServer"}
    base = {"data": {"name": "breast-cancer"}, "split": {"sites": 3}, "train": train}
    whole = gr.run(gr.Experiment.parse({**base, "method": {**method, "rounds": 4}}), out=tmp_path / "whole")
    half = gr.run(gr.Experiment.parse({**base, "method": {**method, "rounds": 2}}), out=tmp_path / "half")
    sha = hashlib.sha256((EXAMPLES / f"{MODULE}.py").read_bytes()).hexdigest()
    assert half.plan["code"] == {MODULE: sha}
    resumed = gr.resume(half.folder, settings=["method.rounds=4"])
    assert resumed.model.theta.tobytes() == whole.model.theta.tobytes()


# --- hooks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_loss_of_ones_own_is_the_same_on_both_kernels(examples, model):
    usual = trained(model=model)
    np.testing.assert_allclose(trained(model=model, **own(CrossEntropy)), usual, atol=2e-6)
    np.testing.assert_allclose(trained("torch", model=model, **own(CrossEntropy)), usual, atol=1e-5)
    brier = own(f"{MODULE}:BrierLoss")
    there = trained(model=model, **brier)
    np.testing.assert_allclose(trained("torch", model=model, **brier), there, atol=1e-5)
    assert np.abs(there - usual).max() > 1e-3


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_a_penalty_of_ones_own_is_fedprox(kernel):
    proximal = trained(kernel, method={"name": "fedprox"}, l2=0.02)
    assert trained(kernel, l2=0.02, **own(Pull)).tobytes() == proximal.tobytes()


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_a_training_loop_of_ones_own(examples, kernel):
    for settings in ({}, {"l2": 0.02}, {"class_weights": "none", "steps": 5}):
        np.testing.assert_allclose(trained(kernel, **settings, **own(Sgd)), trained(kernel, **settings), atol=1e-5)
    prox = {"name": "fedprox"}
    np.testing.assert_allclose(trained(kernel, method=prox, **own(Sgd)), trained(kernel, method=prox), atol=1e-5)
    assert np.abs(trained(kernel, **own(f"{MODULE}:SharpnessAware")) - trained(kernel)).max() > 1e-4


def test_sam_is_the_same_on_both_kernels_and_for_a_site_alone(examples):
    sam = own(f"{MODULE}:SharpnessAware")
    here = trained(**sam)
    np.testing.assert_allclose(trained("torch", **sam), here, atol=1e-5)
    engine, _ = ready(stack(SIZES), model="mlp", kernel="numpy", wire=True)
    first = ready(stack(SIZES), model="mlp")[0].hosts[0].model.init(0)
    assert rounds(engine, count=3, theta=first, **sam)[0].tobytes() == here.tobytes()


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [(Short, {}, "bad-own-code"), (Forgetful, {}, "bad-own-code"), (Pull, {"mew": 1}, "unknown-option"),
     (NotOne, {}, "wrong-base-class")],
)  # fmt: skip
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_mistakes_in_an_objective_are_said_with_its_name(kernel, kind, options, code):
    with refused(code, match=kind.__name__):
        trained(kernel, objective_options=options, **own(kind))


def run(tmp_path, name="r", **sections):
    base = {"data": {"name": "breast-cancer"}, "method": {"rounds": 2}, "split": {"sites": 3}}
    merged = {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
    return gr.run(gr.Experiment.parse(merged), out=tmp_path / name)


def test_a_failing_hook_names_its_line(tmp_path):
    with refused("own-code-failed", match="KeyError: 'nothing', test_objective.py line", kind=RunFailed):
        run(tmp_path, train=own(Broken))


@pytest.mark.parametrize(
    ("kind", "sections", "match"),
    [
        (Pull, {"model": {"name": "forest"}}, "not trained by gradients"),
        (Pull, {"method": {"name": "veil"}}, "trains no local models"),
        (Pull, {"train": {"finetune": 1}}, "set train.finetune = 0"),
        (Sgd, {"train": {"keep_optimizer": True}}, "train.keep_optimizer is no part of"),
        (Sgd, {"train": {"optimizer": "adam"}}, "train.optimizer 'adam'"),
        (Sgd, {"method": {"name": "scaffold"}}, "method.stability 'scaffold'"),
        (CrossEntropy, {"method": {"stability": "anchor"}, "reference": {"anchor": {"rows": 20, "sent": True}}}, "replaces"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(tmp_path, kind, sections, match):
    train = {**sections.get("train", {}), **own(kind)}
    with refused("method-does-not-fit", match=match):
        run(tmp_path, **{**sections, "train": train})


def test_a_name_that_is_no_import_path_is_refused():
    with refused("bad-setting", match="write a local objective as module:Class"):
        gr.Experiment.parse({"train": {"objective": "feddyn"}})
    assert gr.Experiment(train={"objective": Pull}).train.objective == f"{HERE}:Pull"


# --- privacy ------------------------------------------------------------------------------------------------------------

DP = {"mechanism": "dp-sgd", "epsilon": 8.0, "noise": 1.5, "sampling_rate": 0.2, "min_rows": 10}


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_dp_sgd_takes_a_penalty_and_has_the_built_ins_bits_and_epsilon(tmp_path, kernel):
    more = {"privacy": DP, "data": {"encoding": "fitted"}, "engine": {"kernel": kernel}, "explain": {"sketch": "none"}}
    proximal = run(tmp_path, "a", method={"name": "fedprox", "mu": 0.3}, **more)
    mine = run(tmp_path, "b", train=own(Pull), **more)
    assert mine.model.theta.tobytes() == proximal.model.theta.tobytes()
    assert mine.summary["privacy"]["spent"] == proximal.summary["privacy"]["spent"]


@pytest.mark.parametrize(("kind", "hook"), [(CrossEntropy, "loss_gradient"), (Sgd, "fit")])
def test_dp_sgd_refuses_another_loss_and_another_loop(tmp_path, kind, hook):
    with refused("privacy-does-not-fit", match=f"{hook} may mix rows"):
        run(tmp_path, train=own(kind), privacy=DP)


@pytest.mark.parametrize("kind", [CrossEntropy, Sgd])
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_a_site_refuses_them_too_whatever_the_server_checked(kernel, kind):
    engine, _ = ready(stack(SIZES), kernel=kernel, device="cpu")
    theta = engine.hosts[0].model.init(0)
    shared = {"model": theta, "seed": 0, "round": 1, "lr": 0.1, "rate": 0.2, "clip": 1.0, "noise": 1.0, **own(kind)}
    ask = Ask("train", shared=shared, report=("model",)).numbered(AskId("test", 1, 9), engine.sites)
    with refused("unsupported-with-dp", match="DP-SGD clips the gradient of each row"):
        engine.hosts[0].answer(ask, np.arange(len(SIZES)))


def test_client_level_privacy_clips_the_update_of_any_loop():
    engine, _ = ready(stack(SIZES))
    theta = engine.hosts[0].model.init(0)
    shared = {"model": theta, "seed": 0, "round": 1, "lr": 50.0, "longest": 0.5, **own(Sgd)}
    ask = Ask("train", shared=shared, report=("update",)).numbered(AskId("test", 1, 9), engine.sites)
    update = engine.hosts[0].answer(ask, np.arange(len(SIZES)))["update"]
    assert np.linalg.norm(update, axis=1).max() <= 0.5


# --- at hospitals -------------------------------------------------------------------------------------------------------

BRIER = f"{MODULE}:BrierLoss"
SHA = hashlib.sha256((EXAMPLES / f"{MODULE}.py").read_bytes()).hexdigest()


def listing(*lines: str) -> Policy:
    return Policy.parse("\n".join(["[objectives]", *lines]))


def test_a_policy_lists_modules_by_hash(examples):
    plan = gr.Experiment.parse({"data": {"name": "heart"}, "train": {"objective": BRIER}}).plan()
    ask = Ask("train", shared={"objective": BRIER}, report=("model",)).numbered(AskId("r", 1, 1), ())
    assert listing(f'{MODULE} = "{SHA}"').refuses(ask, plan) == ""
    for policy in (Policy(), listing(f'{MODULE} = "{"0" * 64}"'), listing(f'other = "{SHA}"')):
        assert policy.refuses(ask, plan) == OWN_CODE
        assert policy.refuses(Ask("open"), plan) == OWN_CODE
    assert MODULE not in sys.modules  # a policy reads files, it imports nothing


@pytest.mark.parametrize("line", [f'{MODULE} = "abc"', f"{MODULE} = 3", f'"own objective" = "{SHA}"', f'a.b = "{SHA}"'])
def test_a_policy_with_no_hash_is_refused(line):
    with refused("bad-policy-value"):
        listing(line)


def test_a_package_is_listed_with_its_modules(tmp_path, monkeypatch):
    (tmp_path / "own_pack").mkdir()
    for name in ("__init__", "terms"):
        (tmp_path / "own_pack" / f"{name}.py").write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = plugins.hashes(["own_pack.terms:X"])
    assert plugins.unlisted("own_pack.terms:X", found) == ""
    assert "own_pack with" in plugins.unlisted("own_pack.terms:X", {"own_pack.terms": found["own_pack.terms"]})
    assert "not installed" in plugins.unlisted("no_such_pack:X", {"no_such_pack": SHA})
    assert "sha256" in plugins.unlisted("own_pack.terms:X", {**found, "own_pack.terms": SHA})


def host(**settings) -> SiteHost:
    engine, _ = ready(stack([30]))
    made = SiteHost(engine.hosts[0].stack, plugins=all_site_plugins(), **settings)
    made.model = engine.hosts[0].model
    return made


def test_a_site_imports_no_objective_because_a_message_names_it(examples):
    plugins._decided.pop(BRIER, None)
    made = host()
    shared = {"model": made.model.init(0), "seed": 0, "round": 1, "lr": 0.1, "objective": BRIER}
    ask = Ask("train", shared=shared, report=("model",)).numbered(AskId("test", 1, 1), ("a",))
    with refused("code-not-run", match="does not list module own_objective with its SHA-256"):
        made.answer(ask, np.zeros(1, np.int64))
    assert MODULE not in sys.modules
    assert "model" in host(objectives={MODULE: SHA}).answer(ask, np.zeros(1, np.int64))


def test_hospitals_with_the_module_train_the_model_of_a_simulation(examples, tmp_path):
    held = hospitals("fedavg", rounds=2, train={"objective": BRIER})
    here = held.simulated(tmp_path / "here", patients(HOSPITALS))
    policy = Policy(cells=Cells(smallest=1), reports=Reports(notes=True), objectives={MODULE: SHA})
    there = held.deployed(tmp_path, MemoryTransport(held.keepers(tmp_path / "state", access=AccessControl(policy))))
    close_to(there, here)
    assert "code" not in json.loads((there.folder / "checkpoint" / "plan.json").read_text())


def test_hospitals_without_it_refuse_the_run_with_a_code(examples, tmp_path):
    held = hospitals("fedavg", rounds=1, train={"objective": BRIER})
    with pytest.raises(GrandRoundsError, match=OWN_CODE):
        held.deployed(tmp_path)
