"""Personal parts that are trained: FedRep's head, Ditto, APFL and fine-tuning against loops by hand; nothing of them leaves."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.personal.training import PartTrainer, body_of, head_of
from grandrounds.core import capability
from grandrounds.core.arrays import Array, load
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.engine import local
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import evaluate
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig
from tests.support import refused, slow

SITES = ("cleveland", "hungarian", "switzerland", "va")
KERNELS = ["numpy", "torch"]
DP_SGD = {
    "privacy": {"mechanism": "dp-sgd", "epsilon": 8.0},
    "data": {"encoding": "public"},
    "explain": {"sketch": "none"},
    "method": {"rounds": 1},
}
LR, L2, EPOCHS, STRENGTH, MIXTURE = 0.3, 0.02, 3, 0.4, 0.25


def experiment(part: str, **changes: dict[str, Any]) -> gr.Experiment:
    """Heart with whole batches of plain SGD, so that a loop by hand needs no order of rows."""
    base: dict[str, dict[str, Any]] = {
        "data": {"name": "heart"},
        "model": {"name": "mlp", "hidden": [4]},
        "method": {"rounds": 2},
        "train": {"lr": LR, "l2": L2, "batch": 0, "epochs": 2},
        "engine": {"precision": "float64", "device": "cpu"},
        "personal": {"part": part, "epochs": EPOCHS, "strength": STRENGTH, "mixture": MIXTURE, "differences": False},
    }
    return gr.Experiment.parse({k: {**base.get(k, {}), **changes.get(k, {})} for k in {**base, **changes}})


class Rounds:
    """Prepared sites, the rounds that they have behind them, and their answers."""

    def __init__(self, part: str, **changes: dict[str, Any]) -> None:
        if changes.get("engine", {}).get("kernel") == "torch":
            pytest.importorskip("torch")
        self.plan: Any = Settings(experiment(part, **changes).plan())
        self.engine = set_up_run(self.plan, assemble(self.plan), None).engine
        self.host = self.engine.hosts[0]
        self.model: Any = self.host.prepared_model()
        self.theta, self.done = self.model.init(0, np.float64), 0
        self.received: list[Array] = []

    def train(self, count: int) -> Rounds:
        for _ in range(count):
            self.done += 1
            self.received.append(self.theta)
            method = build_method(self.plan.method, self.plan.train)
            rows = dict(zip(SITES, self.train_rows.counts.tolist(), strict=True))
            server = Server(self.done, self.theta, SITES, 0, rows=rows)
            self.theta = self.engine.drive(method.round(server), round=self.done).model
            self.engine.commit()
        self.engine.drive(evaluate(ModelAssignment(self.theta), ("test",)), round=self.done + 1)  # commits the round at the sites
        return self

    @property
    def train_rows(self) -> Part:
        return self.host.stack.parts["train"]

    def kept(self, name: str = "personal") -> Array:
        values = self.host.states.read(name, np.arange(len(SITES)))
        assert values is not None
        return values

    def rows(self, k: int) -> tuple[Array, Array]:
        part = self.train_rows
        mine = slice(part.offsets[k], part.offsets[k + 1])
        return part.x[mine], part.target[mine]


class Net:
    """Gradients of an MLP with one hidden layer (or none), by hand."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def arrays(self, theta: Array) -> list[Array]:
        return list(self.model.layout.views(theta).values())

    def gradient(self, theta: Array, x: Array, t: Array) -> Array:
        out = np.zeros_like(theta)
        weights, grads = self.arrays(theta), self.arrays(out)
        hidden = x if len(weights) == 2 else np.maximum(x @ weights[0] + weights[1], 0)
        error = (1 / (1 + np.exp(-(hidden @ weights[-2] + weights[-1]))) - t) / len(x)
        grads[-2][...], grads[-1][...] = hidden.T @ error, error.sum(axis=0)
        if len(weights) == 4:
            back = (error @ weights[-2].T) * (hidden > 0)
            grads[0][...], grads[1][...] = x.T @ back, back.sum(axis=0)
        for w, g in zip(weights, grads, strict=True):
            g += L2 * w * (w.ndim == 2)
        return out

    def descend(self, theta: Array, x: Array, t: Array, *, epochs: int, only: Array | None = None) -> Array:
        theta = theta.copy()
        for _ in range(epochs):
            step = LR * self.gradient(theta, x, t)
            theta -= step if only is None else np.where(np.isin(np.arange(len(theta)), only), step, 0.0)
        return theta


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_ditto_follows_the_gradient_with_a_pull_towards_the_model_received(kernel: str, model: str) -> None:
    ran = Rounds("ditto", model={"name": model}, engine={"kernel": kernel}).train(2)
    net = Net(ran.model)
    for k in range(len(SITES)):
        x, t = ran.rows(k)
        v = ran.received[0].copy()
        for common in ran.received:
            for _ in range(EPOCHS):
                v -= LR * (net.gradient(v, x, t) + STRENGTH * (v - common))
        np.testing.assert_allclose(ran.kept()[k], v, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_apfl_takes_steps_of_its_own_model_by_the_gradient_at_the_mixture(kernel: str) -> None:
    ran = Rounds("apfl", engine={"kernel": kernel}).train(2)
    net = Net(ran.model)
    for k in range(len(SITES)):
        x, t = ran.rows(k)
        v = ran.received[0].copy()
        for common in ran.received:
            local_model = net.descend(common, x, t, epochs=2)
            for _ in range(EPOCHS):
                v -= LR * MIXTURE * net.gradient(MIXTURE * v + (1 - MIXTURE) * local_model, x, t)
        np.testing.assert_allclose(ran.kept()[k], v, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_fedrep_trains_the_head_first_and_then_the_body_which_alone_is_averaged(kernel: str) -> None:
    ran = Rounds("head", engine={"kernel": kernel}).train(2)
    net, head, body = Net(ran.model), head_of(ran.model), body_of(ran.model)
    assert len(head) == 5 and len(head) + len(body) == len(ran.theta)
    heads = [ran.received[0][head] for _ in SITES]
    common = ran.received[0]
    for _ in range(2):
        trained = []
        for k in range(len(SITES)):
            x, t = ran.rows(k)
            mine = common.copy()
            mine[head] = heads[k]
            mine = net.descend(mine, x, t, epochs=EPOCHS, only=head)
            mine = net.descend(mine, x, t, epochs=2, only=body)
            heads[k] = mine[head]
            trained.append(mine)
        common = common.copy()
        common[body] = np.average(trained, axis=0, weights=ran.train_rows.counts)[body]
    np.testing.assert_allclose(ran.theta, common, atol=1e-10)
    np.testing.assert_allclose(ran.kept("own"), heads, atol=1e-10)


def test_fine_tuning_continues_from_the_common_model() -> None:
    ran = Rounds("finetune", model={"name": "mlp"}).train(1)
    other = {"proximal": 9.0, "clip": 1.0, "rate": 0.5, "anchor": 1.0, "keep_optimizer": True}  # terms of methods and mechanisms
    config = TrainConfig.from_values({"seed": 0, "round": 2, "lr": LR, "batch": 0, "l2": L2, **other})
    train = PartTrainer(ran.host, EPOCHS, STRENGTH, MIXTURE, config)
    for k in (0, 2):
        tuned = train.refit("finetune", k, ran.theta, ran.train_rows)
        np.testing.assert_allclose(tuned, Net(ran.model).descend(ran.theta, *ran.rows(k), epochs=EPOCHS), atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", slow("momentum"), slow("adam"), "adamw"])
def test_frozen_entries_stay_and_others_agree_on_both_kernels(optimizer: str) -> None:
    pytest.importorskip("torch")
    results = {}
    for kernel in ("numpy", "torch"):
        ran = Rounds("none", engine={"kernel": kernel})
        config = TrainConfig(seed=0, round=1, lr=0.05, epochs=4, batch=16, optimizer=optimizer, weight_decay=0.1, l2=0.01)
        for part, frozen in (("head", body_of(ran.model)), ("body", head_of(ran.model))):
            theta = np.asarray(ran.host.train_apart(np.arange(4), ran.theta, config, frozen=frozen).theta)
            free = np.setdiff1d(np.arange(theta.shape[1]), frozen)
            assert np.array_equal(theta[:, frozen], np.broadcast_to(ran.theta[frozen], theta[:, frozen].shape))
            assert (theta[:, free] != ran.theta[free]).mean() > 0.9
            results[kernel, part] = theta
    for part in ("head", "body"):
        np.testing.assert_allclose(results["numpy", part], results["torch", part], atol=1e-9)


def test_ditto_and_apfl_in_batches_of_adam_move_with_the_class_weights() -> None:
    """The optimizer and the class weights are those of training; a pull of zero and a whole mixture are plain training."""
    ran = Rounds("none", train={"batch": 16, "optimizer": "adam"})
    config = TrainConfig(seed=0, round=1, lr=0.01, batch=16, optimizer="adam")
    start = np.broadcast_to(ran.theta, (4, len(ran.theta))).copy()
    members = np.arange(4)
    plain = PartTrainer(ran.host, 2, 0.0, 1.0, config)
    alone = np.asarray(ran.host.train_apart(members, start, replace(config, epochs=2)).theta)
    np.testing.assert_allclose(plain.ditto(members, start, start + 1.0), alone, atol=1e-12)
    np.testing.assert_allclose(plain.apfl(members, start, start + 1.0), alone, atol=1e-12)
    weighted = PartTrainer(ran.host, 2, 0.0, 1.0, config, np.array([1.0, 5.0]))
    assert np.abs(weighted.ditto(members, start, start) - alone).max() > 1e-3


def test_batch_norm_keeps_its_statistics_while_the_head_is_trained_and_apfl_extrapolates_none(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.uniform(0, 90, (40, 8, 8, 1)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "x.npz", images=x, labels=y, site=np.array(list("abcd"))[np.arange(40) // 10])
    pictures = {"data": {"table": str(tmp_path / "x.npz")}, "model": {"name": "deep-cnn", "norm": "batch"}}
    plan: Any = Settings(gr.Experiment.parse({**pictures, "engine": {"device": "cpu", "precision": "float64"}}).plan())
    host = set_up_run(plan, assemble(plan), None).engine.hosts[0]
    model: Any = host.prepared_model()
    start = model.init(0, np.float64)[None].repeat(4, axis=0)
    config = TrainConfig(seed=0, round=1, lr=0.05, batch=4)
    train = PartTrainer(host, 1, 0.1, 0.1, config)
    changed = np.flatnonzero((train.head(np.arange(4), start) != start).any(axis=0))
    assert len(changed) > 100 and set(changed) <= set(head_of(model))
    local_model = np.asarray(host.train_apart(np.arange(4), start, config).theta)
    own = train.apfl(np.arange(4), start, local_model)
    variances = [span for name, span, _ in model.layout.slices if name.endswith("running_var")]
    assert variances and all((own[:, span] > 0).all() for span in variances)


def test_strong_pull_gives_the_common_model_and_a_whole_mixture_is_a_model_of_its_own() -> None:
    ran = Rounds("none")
    config = TrainConfig(seed=0, round=1, lr=0.1, batch=0)
    start = np.broadcast_to(ran.theta, (4, len(ran.theta))).copy()
    pulled = PartTrainer(ran.host, 200, 9.0, 0.5, config).ditto(np.arange(4), start + 1.0, start)
    free = PartTrainer(ran.host, 200, 0.0, 0.5, config).ditto(np.arange(4), start + 1.0, start)
    assert np.abs(pulled - start).max() < 0.1 < np.abs(free - start).max()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedadam", "moon"])
def test_rounds_have_the_same_bits_with_models_beside_them(method: str) -> None:
    common = {Rounds(part, method={"name": method}).train(2).theta.tobytes() for part in ("none", "ditto", "apfl")}
    assert len(common) == 1


def sha256(run: Any) -> str:
    return hashlib.sha256(run.model.theta.tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (DP_SGD, ("ditto",)),
        slow({}, ("ditto", "apfl", "finetune")),
        slow({"privacy": {"secure": True}}, ("ditto", "apfl", "finetune")),
        slow(DP_SGD, ("apfl", "finetune")),
        slow({"method": {"name": "scaffold", "rounds": 2}}, ("ditto", "apfl")),
        slow({"method": {"name": "fedasync", "rounds": 4}}, ("ditto", "apfl")),
        slow({"method": {"name": "sse-agg", "rounds": 2}, "reference": {"rows": {"rows": 100}}}, ("ditto", "apfl")),
        slow({"method": {"name": "clustered", "rounds": 2}}, ("ditto", "apfl")),
    ],
)
def test_own_models_leave_every_bit_of_the_common_model_as_it_is(
    settings: dict[str, Any], parts: tuple[str, ...], tmp_path: Any
) -> None:
    runs = {p: gr.run(experiment(p, **settings), out=tmp_path / p) for p in ("none", *parts)}
    assert len({sha256(run) for run in runs.values()}) == 1
    for part in parts:
        deployed = [load(tmp_path / part / "at_sites" / s / "personal.safetensors")[0]["deployed"] for s in SITES]
        assert len({d.tobytes() for d in deployed}) == 4 and all(np.isfinite(d).all() for d in deployed)
        assert (runs[part].summary["personal"].get("final") is None) == ("epsilon" in settings.get("privacy", {}))


@pytest.mark.parametrize("part", ["head", "ditto", slow("apfl"), slow("finetune")])
def test_no_answer_has_a_number_of_a_personal_part(part: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of every site is read as bytes: four neighbouring numbers of a personal model are in none of them."""
    sent: list[bytes] = []
    answers: list[Any] = []

    def watch(answer: Any, layout: Any, encode: Any = local.encode_answer) -> bytes:
        data: bytes = encode(answer, layout)
        sent.append(data)
        answers.append(answer)
        return data

    monkeypatch.setattr(local, "encode_answer", watch)
    settings: dict[str, Any] = {"engine": {"precision": "float64", "wire": True}, "evaluation": {"calibrate": "none"}}
    run = gr.run(experiment(part, **settings), out=tmp_path / "run")
    assert len(sent) > 12
    everything = b"".join(sent)
    trained = [a.values["model"] for a in answers if "model" in a.values]
    assert len(trained) == 8 and all(np.asarray(m, np.float64)[:4].tobytes() in everything for m in trained)
    net: Any = run.model.net
    for site in SITES:
        deployed, facts = load(tmp_path / "run" / "at_sites" / site / "personal.safetensors")
        assert facts["choice"] == part
        theta = deployed["deployed"]
        own = theta[head_of(net)] if part == "head" else theta
        for kind in (np.float64, np.float32):
            pieces = [own.astype(kind)[i : i + 4].tobytes() for i in range(len(own) - 3)]
            assert not any(piece in everything for piece in pieces)
    if part == "head":
        start = net.init(0, np.float64)[head_of(net)]
        assert all(np.array_equal(np.asarray(m)[head_of(net)], start) for m in trained)
        np.testing.assert_array_equal(run.model.theta[head_of(net)], start)


@pytest.mark.parametrize(
    ("part", "kernel"), [("head", "numpy"), ("ditto", "torch"), ("apfl", "numpy"), slow("head", "torch"), slow("ditto", "numpy")]
)
def test_a_resumed_run_has_the_same_common_and_personal_models(part: str, kernel: str) -> None:
    settings = {"engine": {"kernel": kernel}, "train": {"batch": 16, "keep_optimizer": True, "optimizer": "momentum", "lr": 0.05}}
    straight = Rounds(part, **settings).train(3)
    before = Rounds(part, **settings).train(2)
    arrays, facts = {n: a.copy() for n, a in before.engine.arrays().items()}, before.engine.state()
    after = Rounds(part, **settings)
    after.engine.restore(arrays, facts)
    after.theta, after.done = before.theta, 2
    after.train(1)
    name = "own" if part == "head" else "personal"
    assert after.theta.tobytes() == straight.theta.tobytes()
    assert after.kept(name).tobytes() == straight.kept(name).tobytes()


@pytest.mark.slow
def test_a_run_that_goes_on_deploys_the_same_models(tmp_path: Any) -> None:
    whole = gr.run(experiment("ditto"), out=tmp_path / "whole")
    short = gr.run(experiment("ditto", method={"rounds": 1}), out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=2"])
    assert sha256(gone_on) == sha256(whole)
    for site in SITES:
        files = [load(run.folder / "at_sites" / site / "personal.safetensors")[0]["deployed"] for run in (whole, gone_on)]
        assert files[0].tobytes() == files[1].tobytes()


@pytest.mark.parametrize("part", [slow("head"), slow("ditto"), "apfl"])
def test_deployed_models_are_those_of_the_last_round(part: str, tmp_path: Any) -> None:
    ran = Rounds(part).train(2)
    gr.run(experiment(part), out=tmp_path / part)
    for k, site in enumerate(SITES):
        deployed = load(tmp_path / part / "at_sites" / site / "personal.safetensors")[0]["deployed"]
        expected = ran.theta.copy()
        if part == "head":
            expected[head_of(ran.model)] = ran.kept("own")[k]
        else:
            own = ran.kept()[k]
            expected = own if part == "ditto" else MIXTURE * own + (1 - MIXTURE) * ran.theta
        np.testing.assert_allclose(deployed, expected, atol=1e-12)


def test_secure_sums_of_bodies_leave_the_heads_at_the_sites(tmp_path: Any) -> None:
    plain = gr.run(experiment("head"), out=tmp_path / "plain")
    secure = gr.run(experiment("head", privacy={"secure": True}), out=tmp_path / "secure")
    np.testing.assert_allclose(secure.model.theta, plain.model.theta, atol=1e-4)
    assert secure.summary["personal"]["choices"] == dict.fromkeys(SITES, "head")
    masked, clear = (run.summary["personal"]["final"]["accuracy"] for run in (secure, plain))
    assert masked == pytest.approx(clear, abs=0.02)
    assert any("new hospital must train one" in w for w in secure.summary["warnings"])


@pytest.mark.parametrize("part", ["head", slow("ditto"), slow("apfl"), slow("finetune")])
def test_the_guard_may_choose_a_trained_part_on_either_rows(part: str, tmp_path: Any) -> None:
    for rows in ("train", "validation"):
        personal = {"guard": True, "rows": rows, "epochs": 2}
        run = gr.run(experiment(part, personal=personal, method={"rounds": 1}), out=tmp_path / rows)
        for site in SITES:
            facts = load(run.folder / "at_sites" / site / "personal.safetensors")[1]
            assert part in facts["losses"] and np.isfinite(facts["losses"][part])
            if part == "head":
                assert "intercept" not in facts["losses"] and facts["choice"] != "common"


REFUSED = {
    "a linear model has no head": ({"model": {"name": "logistic"}}, "head", "use 'intercept' or 'finetune'"),
    "forest": ({"model": {"name": "forest"}}, "ditto", "trees of a forest are joined"),
    "intercept of a forest": ({"model": {"name": "forest"}}, "intercept", "trees of a forest are joined"),
    "card": ({"model": {"name": "card"}, "method": {}}, "intercept", "a risk card prints its risks"),
    "gam": ({"model": {"name": "gam"}, "method": {}}, "finetune", "use 'intercept' or 'recalibration'"),
    "local": ({"method": {"name": "local"}}, "apfl", "no common model"),
    "pooled": ({"method": {"name": "pooled"}}, "finetune", "trains in one place"),
    "table": ({"method": {"name": "table1"}, "model": {"name": "logistic"}}, "intercept", "fits no model"),
    "veil": ({"method": {"name": "veil"}, "model": {"name": "logistic"}}, "ditto", "trains no local models"),
    "weights": ({"method": {"name": "sse-agg"}}, "head", "explains whole local models"),
    "drift": ({"reference": {"rows": {"rows": 50}}}, "head", "set explain.sketch = 'none'"),
    "calibration": ({"evaluation": {"calibrate": "platt"}}, "head", "set it to 'none'"),
    "stop": ({"train": {"early_stop": 2}}, "head", "set train.early_stop = 0"),
    "sent": ({"train": {"finetune": 1}}, "finetune", "set train.finetune = 0"),
    "privacy": (
        DP_SGD,
        "head",
        "trained without noise",
    ),
}


@pytest.mark.parametrize(("settings", "part", "words"), REFUSED.values(), ids=REFUSED)
def test_parts_that_make_no_sense_are_refused_in_a_sentence(
    settings: dict[str, Any], part: str, words: str, tmp_path: Any
) -> None:
    settings = {"engine": {}, "train": {}, "method": {"rounds": 1}, **settings}
    base = experiment(part).model_dump(exclude_unset=True)
    plan = {**base, "engine": {}, "train": {"lr": 0.1}, "method": {"rounds": 1}, "model": {"name": "mlp"}}
    for section, values in settings.items():
        plan[section] = {**plan.get(section, {}), **values} if values else plan.get(section, {})
    with pytest.raises(BadInput, match=words) as refused:
        gr.run(gr.Experiment.parse(plan), out=tmp_path / "run")
    assert refused.value.code == "method-does-not-fit" and "\n" not in str(refused.value)


@pytest.mark.parametrize("terms", [{"rate": 0.2, "clip": 1.0, "noise": 1.0}, {"longest": 1.0}])
def test_a_site_refuses_a_head_under_a_mechanism_whatever_the_server_says(terms: dict[str, float]) -> None:
    ran = Rounds("head")
    values = {"seed": 0, "round": 1, "lr": 0.1, "batch": 8, "model": ran.theta, **terms}
    ask = Ask("train", shared=values, report=("model",), id=AskId("test", 1, 1))
    with pytest.raises(BadInput, match="trained without noise"):
        ran.host.answer(ask, np.arange(4))


def test_nobody_is_asked_for_a_spread_that_no_candidate_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked: list[str] = []
    answer = SiteHost.answer
    monkeypatch.setattr(SiteHost, "answer", lambda self, ask, members: (asked.append(ask.task), answer(self, ask, members))[1])
    gr.run(experiment("ditto", method={"rounds": 1}), out=tmp_path / "run")
    assert "personal" in asked and "personal.spread" not in asked


def test_every_part_is_listed_with_its_meaning() -> None:
    from typing import get_args

    from grandrounds.methods.guard.candidates import CHOICES, part_titles
    from grandrounds.methods.guard.options import PersonalOptions

    parts = set(part_titles())
    assert {"none", *parts} == set(get_args(PersonalOptions.model_fields["part"].annotation)) and parts <= set(CHOICES)


def test_without_the_capability_the_guard_runs_and_its_parts_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(capability, "capabilities", lambda: ())
    guarded = experiment("none", personal={"guard": True, "differences": True}, method={"rounds": 1})
    personal = gr.run(guarded, out=tmp_path / "guard").summary.personal
    assert set(personal["choices"]) == set(SITES) and "differences" not in personal
    with refused("unknown-part", match="'ditto'"):
        gr.run(experiment("ditto"), out=tmp_path / "ditto")


def test_survival_has_no_intercept(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "survival.csv"
    lines = [f"{rng.normal():.3f},{'ab'[i % 2]},{rng.exponential():.3f},{int(rng.random() < 0.6)}" for i in range(120)]
    path.write_text("x,hospital,time,died\n" + "\n".join(lines))
    data = {"table": str(path), "label": "died", "site": "hospital", "duration": "time"}
    guarded = {"guard": True, "part": "ditto"}
    for personal, words in (({"part": "intercept"}, "no intercept"), (guarded, "losses of single rows")):
        made = gr.Experiment.parse({"data": data, "method": {"rounds": 1}, "personal": personal})
        with pytest.raises(BadInput, match=words):
            gr.run(made, out=tmp_path / "run")
    guard_alone = gr.Experiment.parse({"data": data, "method": {"rounds": 1}, "personal": {"guard": True}})
    run = gr.run(guard_alone, out=tmp_path / "guarded")
    assert any("a Cox model has no loss of single rows" in w for w in run.summary["warnings"])


def test_a_guard_without_anything_to_guard_is_named(tmp_path: Any) -> None:
    made = gr.Experiment.parse({"data": {"name": "heart"}, "method": {"name": "local", "rounds": 1}, "personal": {"guard": True}})
    run = gr.run(made, out=tmp_path / "run")
    assert any("personal.guard has no effect" in w for w in run.summary["warnings"])
    assert not run.summary.get("personal")
