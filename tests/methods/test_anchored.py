"""Anchors and alignment as parts of methods: what they are for, what the server remembers, what is refused."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.experiment.checks.methods import refuse_what_it_cannot
from grandrounds.explain.features import Features
from grandrounds.methods import build_method
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import share_reference
from grandrounds.models import build_model, model_spec
from grandrounds.models.dense import class_probabilities
from grandrounds.protocol.messages import Ask
from grandrounds.runs.federation import assemble
from grandrounds.runs.setup import set_up_run
from tests.site.test_anchor import BIG, lent_engine
from tests.support import patients, refused, rounds, sections, thinned

STABILITIES = ["anchor", "permuted_anchor", "alignment"]


# What it is for


@pytest.fixture(scope="module")
def digits():
    """Five sites that hold a few digits each, reference rows to lend, and others to compare local models on."""
    values = {
        "data": {"name": "digits"},
        "split": {"partition": "dirichlet", "alpha": 0.05, "sites": 5},
        "model": {"name": "mlp", "hidden": [32]},
        "reference": {"anchor": {"rows": 200, "sent": True}, "rows": {"rows": 150}},
        "method": {"stability": "anchor"},
    }
    plan = Settings(gr.Experiment.parse(values).plan())
    consortium = assemble(plan, None)
    opening = set_up_run(plan, consortium, None)

    def encoded(name):
        return consortium.data.take(consortium.reference[name].rows)

    x = opening.encoding.encode(encoded("anchor"), np.float32)
    features = Features.from_columns(opening.encoding.sources)
    opening.engine.drive(share_reference("anchor", x, features, None, consortium.training), round=0)
    held = encoded("rows")
    return opening.engine, opening.encoding.encode(held, np.float32), opening.encoding.labels(held)


def watched(engine, made, server):
    """A round, with the Asks and Answers of its training."""
    heard: list[tuple[Ask, object]] = []

    def listening():
        talk, reply = made.round(server), None
        while True:
            try:
                effect = talk.send(reply)
            except StopIteration as end:
                return end.value
            reply = yield effect
            heard.append((effect, reply))

    return engine.drive(listening(), round=server.round), heard


def local_models(engine, method: dict, *, count: int):
    """The global model after some rounds, and the sites' local models in the last one."""
    made = build_method(*sections(method, steps=40, batch=32, lr=0.05))
    theta, state = engine.hosts[0].model.init(0), {}
    for r in range(1, count + 1):
        server = Server(r, theta, engine.sites, 0, state, rows=dict.fromkeys(engine.sites, 1))
        outcome, heard = watched(engine, made, server)
        engine.commit()
        theta, state = outcome.model, outcome.state
    return theta, np.asarray(heard[-1][1]["model"]), heard[-1][1]


def permutation_sketches(model, thetas, x, y) -> np.ndarray:
    """How much the log loss rises when a column is shuffled, the same way for all, on the simplex: (K, F)."""
    order = generator(0, purpose="shuffle").permutation(len(x))

    def log_loss(theta, rows):
        p = class_probabilities(model.logits(theta, rows).astype(float))
        return -np.log(np.clip(p[np.arange(len(y)), y], 1e-12, 1)).mean()

    found = np.zeros((len(thetas), x.shape[1]))
    for k, theta in enumerate(thetas):
        whole = log_loss(theta, x)
        for j in range(x.shape[1]):
            rows = x.copy()
            rows[:, j] = x[order, j]
            found[k, j] = max(log_loss(theta, rows) - whole, 0)
    return found / found.sum(axis=1, keepdims=True)


def drift(sketches) -> float:
    return float(np.mean([np.abs(a - b).sum() for a, b in combinations(sketches, 2)]))


def test_anchors_hold_reasons_together_where_labels_are_skewed(digits):
    """Drift between the sites' local models, on rows that nobody was anchored to; accuracy does not suffer."""
    engine, x, y = digits
    model = engine.hosts[0].model
    found, right = {}, {}
    for name in ("none", "anchor", "permuted_anchor"):
        theta, local, _ = local_models(engine, {"stability": name, "anchor": 3.0}, count=12)
        found[name] = drift(permutation_sketches(model, local, x, y))
        right[name] = float((model.logits(theta, x).argmax(axis=1) == y).mean())
    assert found["anchor"] < 0.5 * found["none"]
    assert found["permuted_anchor"] < 0.5 * found["none"]
    assert min(right.values()) > 0.85
    assert min(right["anchor"], right["permuted_anchor"]) > right["none"] - 0.05


def test_alignment_holds_the_sketch_together_that_it_is_made_of(digits):
    engine, *_ = digits
    loose, tight = (
        drift(local_models(engine, {"stability": "alignment", "alignment": w}, count=8)[2]["reasons"])
        for w in (1e-9, 1.0)
    )
    assert tight < loose / 3


# What the server remembers and tells


def test_the_consensus_is_the_mean_by_rows_and_is_told_in_the_next_round():
    engine = lent_engine()
    made = build_method(*sections({"stability": "alignment", "select": {"rule": "random", "fraction": 0.6}}))
    rows = dict(zip(engine.sites, [38, 30, 59, 22, 31], strict=True))
    theta, state = engine.hosts[0].model.init(0), {}
    for r in (1, 2, 3):
        before = state.get("consensus")
        outcome, heard = watched(engine, made, Server(r, theta, engine.sites, 0, state, rows=rows))
        engine.commit()
        ((ask, answers),) = heard
        told = ask.shared.get("consensus")
        assert (told is None) == (r == 1)
        if r > 1:
            np.testing.assert_array_equal(told, before)
        reasons = np.asarray(answers["reasons"])
        np.testing.assert_allclose(reasons.sum(axis=1), 1, rtol=1e-5)
        weights = np.array([rows[s] for s in answers.sites])
        expected = (weights[:, None] * reasons).sum(axis=0) / weights.sum()
        np.testing.assert_allclose(outcome.state["consensus"], expected, rtol=1e-5)
        theta, state = outcome.model, outcome.state


@pytest.mark.parametrize("name", ["anchor", "permuted_anchor"])
def test_an_anchor_sends_nothing_more_and_hears_nothing_more(name):
    engine = lent_engine()
    server = Server(11, engine.hosts[0].model.init(0), engine.sites, 0, rows=dict.fromkeys(engine.sites, 1))
    (plain, *_), (anchored, answers) = (
        watched(engine, build_method(*sections(m)), server)[1][0] for m in ({}, {"stability": name, "anchor": 2.0})
    )
    extra = {k: v for k, v in anchored.shared.items() if k not in plain.shared}
    assert extra == {"anchor": 2.0, "anchor_rows": "", "permuted": name == "permuted_anchor"}
    assert set(answers.columns) == {"model", "count", "steps"}


@pytest.mark.parametrize("name", ["anchor", "permuted_anchor"])
def test_an_anchor_comes_in_over_the_first_ten_rounds(name):
    """What an untrained net says is not worth keeping: nothing in round 1, half in round 6, all of it from round 11 on."""
    engine = lent_engine()
    made = build_method(*sections({"stability": name, "anchor": 2.0}))
    start, rows = engine.hosts[0].model.init(0), dict.fromkeys(engine.sites, 1)

    def told(round: int) -> float:
        _, ((ask, _),) = watched(engine, made, Server(round, start, engine.sites, 0, rows=rows))
        return ask.shared["anchor"]

    expected = {1: 0.0, 2: 0.2, 6: 1.0, 10: 1.8, 11: 2.0, 12: 2.0, 500: 2.0}
    assert {r: told(r) for r in expected} == pytest.approx(expected)


def test_a_resumed_run_goes_on_to_the_same_bits():
    for name in STABILITIES:
        method = {"stability": name, "select": {"rule": "random", "fraction": 0.6}}
        straight, _ = rounds(lent_engine(), count=5, method=method)
        before, state = lent_engine(), {}
        halfway, _ = rounds(before, count=3, method=method, state=state)
        arrays, facts = {n: a.copy() for n, a in before.arrays().items()}, before.state()
        after = lent_engine()
        after.restore(arrays, facts)
        resumed, _ = rounds(after, count=2, start=3, theta=halfway, method=method, state=state)
        np.testing.assert_array_equal(resumed, straight)
        if name == "alignment":
            forgot, _ = rounds(lent_engine(), count=2, start=3, theta=halfway, method=method, state={})
            assert not np.array_equal(forgot, straight)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("stability", STABILITIES)
@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedavgm", "fedbuff", "fedasync", "clustered"])
def test_methods_that_average_take_it(name, stability):
    """And the sites learn something else by it."""
    plain, held = (
        rounds(lent_engine(), count=8, method={"name": name, "stability": s, "anchor": 3.0})[0]
        for s in ("none", stability)
    )
    assert np.isfinite(held).all()
    assert not np.allclose(plain, held, atol=1e-4)


def test_a_strong_anchor_leaves_local_models_where_they_started():
    """On the rows it is anchored to, a site's model answers like its start, the more the stronger."""
    engine = lent_engine(sizes=BIG)
    host = engine.hosts[0]
    model, x = host.model, host.references["anchor"].x
    start = model.init(0)
    gaps = []
    for w in (1e-9, 1.0, 30.0):
        made = build_method(*sections({"stability": "anchor", "anchor": w}, steps=60, lr=0.05))
        server = Server(11, start, engine.sites, 0, rows=dict.fromkeys(engine.sites, 1))
        _, heard = watched(engine, made, server)
        local = np.asarray(heard[0][1]["model"])
        said, before = (class_probabilities(model.logits(theta, x)) for theta in (local, start))
        gaps.append(np.abs(said - before).mean())
    assert gaps[0] > 1.2 * gaps[1] > 2 * gaps[2]


# What is refused

BASE = {
    "data": {"label": "died", "site": "hospital"},
    "model": {"name": "mlp", "hidden": [3]},
    "reference": {"anchor": {"rows": 20, "sent": True}, "rows": {"rows": 20}},
}


def plan(stability="anchor", *, method=None, **changes) -> Settings:
    values = {**BASE, "method": {"stability": stability, **(method or {})}, **changes}
    return Settings(gr.Experiment.parse(values).model_dump(mode="json"))


def assert_refused(words: tuple[str, ...], asked: Settings, *, inputs=(4,), classes=2, **build) -> None:
    model = build_model(model_spec(asked.model, inputs=inputs, classes=classes), **build)
    with refused("method-does-not-fit") as e:
        refuse_what_it_cannot(model, asked, sites=5)
    for word in words:
        assert word in str(e.value)


def test_the_rows_that_are_lent():
    assert anchor_reference(plan()) == "anchor"
    assert anchor_reference(plan("none")) is None
    assert anchor_reference(plan("proximal")) is None
    only = {"mine": {"sent": True}, "rows": {}}
    assert anchor_reference(plan(reference=only)) == "mine"
    assert anchor_reference(plan(method={"anchor_rows": "rows"}, reference={**only, "rows": {"sent": True}})) == "rows"
    with refused("unknown-reference-set", match="'ancor'.*'anchor'"):
        anchor_reference(plan(method={"anchor_rows": "ancor"}))
    with refused("unknown-reference-set", match="method.anchor_rows is 'x'"):
        anchor_reference(plan(method={"anchor_rows": "x"}, reference={}))


@pytest.mark.parametrize("name", STABILITIES)
def test_rows_that_may_not_be_sent_are_not(name):
    assert_refused(
        (f"'{name}'", "add [reference.anchor] with rows = 200 and sent = true"),
        plan(name, reference={"rows": {}}),
    )
    assert_refused(
        (f"'{name}'", "set reference.anchor.sent = true"),
        plan(name, reference={"anchor": {}}),
    )
    assert_refused(
        (f"'{name}'", "set method.anchor_rows"),
        plan(name, reference={"a": {"sent": True}, "b": {"sent": True}}),
    )


@pytest.mark.parametrize("name", STABILITIES)
def test_models_that_cannot_are_refused(name):
    """A forest, but not a logistic model, which an anchor holds as well as any."""
    for model in ("forest", "logistic"):
        asked = plan(name, model={"name": model})
        net = build_model(model_spec(asked.model, inputs=(4,), classes=2))
        if model == "logistic":
            refuse_what_it_cannot(net, asked, sites=5)
            continue
        with pytest.raises(
            BadInput, match="model.name is 'forest': a forest has no gradient, .*; use stability 'none'"
        ):
            refuse_what_it_cannot(net, asked, sites=5)


def test_batchnorm_and_several_tasks_are_refused():
    pytest.importorskip("torch")
    net = {"name": "resnet18", "norm": "batch"}
    on = {"inputs": (3, 32, 32), "classes": 3, "device": "cpu"}
    assert_refused(
        ("'anchor'", "set model.norm = 'group'"),
        plan(model=net),
        **on,
    )
    refuse_what_it_cannot(
        build_model(
            model_spec(plan(model={**net, "norm": "group"}).model, inputs=(3, 32, 32), classes=3), device="cpu"
        ),
        plan(model={**net, "norm": "group"}),
        sites=5,
    )
    assert_refused(
        ("'alignment'", "use stability 'proximal'"),
        plan("alignment", tasks={"other": {"classes": {"x": ["0"], "y": ["1"]}}}),
    )


def test_methods_with_another_stability_refuse():
    assert_refused(("'scaffold'", "for 'anchor' set method.name = 'fedavg'"), plan(method={"name": "scaffold"}))
    assert_refused(("'local'", "method.stability"), plan(method={"name": "local"}))


# From an experiment to its folder


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stability", STABILITIES)
def test_a_run_is_anchored_and_goes_on_after_a_break(stability, tmp_path):
    import pandas as pd

    table = pd.DataFrame({name: list(column) for name, column in patients([40, 30, 50]).columns.items()})

    def experiment(count, **method):
        return gr.Experiment.parse({**BASE, "method": {"rounds": count, **method}})

    whole = gr.run(experiment(4, stability=stability), table=table, out=tmp_path / "whole")
    short = gr.run(experiment(2, stability=stability), table=table, out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=4"], table=table)
    np.testing.assert_array_equal(gone_on.model.theta, whole.model.theta)
    plain = gr.run(experiment(4), table=table, out=tmp_path / "plain")
    assert not np.array_equal(plain.model.theta, whole.model.theta)


@pytest.mark.parametrize("stability", thinned(STABILITIES, 3))
def test_a_run_on_pictures_hides_tiles(stability, tmp_path):
    pytest.importorskip("torch")
    from grandrounds.data.images import ImageSet

    rng = generator(0, purpose="pictures")
    y = rng.integers(0, 3, 150)
    x = rng.integers(0, 60, (150, 16, 16, 1))
    x[np.arange(150), 2 + 5 * y] += 150
    site = np.array([f"s{k}" for k in np.repeat(np.arange(3), 50)], object)
    data = ImageSet("bars", x.astype(np.uint8), np.array([f"c{c}" for c in y], object), site)
    values = {
        "data": {"label": "label", "site": "site"},
        "model": {"name": "small-cnn"},
        "reference": {"anchor": {"rows": 12, "sent": True}},
        "method": {"rounds": 2, "stability": stability},
        "train": {"epochs": 1, "batch": 8, "lr": 0.05},
        "engine": {"device": "cpu", "workers": 1},
    }
    one, again = (gr.run(gr.Experiment.parse(values), table=data, out=tmp_path / n) for n in ("one", "again"))
    np.testing.assert_array_equal(one.model.theta, again.model.theta)
    plain = gr.run(
        gr.Experiment.parse({**values, "method": {"rounds": 2}}), table=data, out=tmp_path / "plain"
    ).model.theta
    assert np.abs(one.model.theta - plain).max() > 1e-5
