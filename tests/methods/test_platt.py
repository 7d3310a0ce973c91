"""Platt's line across sites: that of the pooled rows, in every model that can hold it, and within a budget where there is one."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.data.split import Rows
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.platt import EXCHANGES, PlattSums, PrivatePlatt, fit_counts, fit_platt, score_moments
from grandrounds.methods.secure import SecureRule, exchange_identities
from grandrounds.models import Dense
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.export import score_json, to_json
from grandrounds.site.evaluate import score
from grandrounds.site.platt import add_laplace_noise, counts, line_sums
from grandrounds.site.stack import Stack
from tests.support import dataset, patients, ready, refused

SIZES = [120, 90, 150, 60, 80]


def pooled(scores, y) -> tuple[float, float]:
    """scikit-learn's slope and intercept, in our sign."""
    fitted = pytest.importorskip("sklearn.calibration")._SigmoidCalibration().fit(np.asarray(scores, float), y)
    return -fitted.a_, -fitted.b_


def consortium(*, survivors: bool = False, **engine):
    """Five sites with most of their rows in validation, or of these only who survived; and a model nobody has trained."""
    data = dataset(patients(SIZES))
    edges = np.cumsum([0, *SIZES])
    kept = (data.label == "0") | (not survivors)
    rows = tuple(
        Rows(
            train=np.arange(a, a + 20),
            val=np.arange(a + 20, b - 10)[kept[a + 20 : b - 10]],
            test=np.arange(b - 10, b),
        )
        for a, b in pairwise(edges)
    )
    held, _ = ready(Stack(tuple(dict.fromkeys(data.site.tolist())), data, rows), precision="float64", **engine)
    return held


def validation(engine, theta) -> tuple[np.ndarray, np.ndarray]:
    """What no server may do: scores and outcomes of all validation rows."""
    parts = [(h.model, h.stack.parts["val"]) for h in engine.hosts]
    return (
        np.concatenate([score(model, theta, p.x)[:, 0] for model, p in parts]),
        np.concatenate([p.y for _, p in parts]),
    )


def guess(engine, *, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """Weights that rank patients fairly, on a scale of their own."""
    model = engine.hosts[0].model
    theta = model.init(0, np.float64)
    views = model.layout.views(theta)
    views["layer0.weight"][:3, 0] = np.array([0.4, 0.6, -0.5]) * scale
    views["layer0.bias"][0] = shift
    return theta


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (6.0, 4.0), (0.05, -0.5), (20.0, 0.0), (1.0, -9.0)])
@pytest.mark.parametrize("wire", [False, True])
def test_the_line_is_that_of_the_pooled_rows(scale, shift, wire):
    engine = consortium(wire=wire)
    theta = guess(engine, scale=scale, shift=shift)
    found = engine.drive(fit_platt(ModelAssignment(theta)), round=1)
    s, y = validation(engine, theta)
    slope, intercept = pooled(s, y)
    assert found.refused == "" and found.exchanges <= 8
    assert found.slope == pytest.approx(slope, rel=1e-4) and found.intercept == pytest.approx(intercept, abs=2e-4)
    t = np.where(y, (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2))
    p = 1 / (1 + np.exp(-found.slope * s - found.intercept))
    assert abs((p - t).sum()) < 1e-6 and abs(((p - t) * s).sum()) < 1e-6 * max(1, np.abs(s).sum()), (
        "the gradient is zero"
    )


def test_under_secure_aggregation_only_sums_are_seen():
    """The same line to what the ring rounds away, and no Ask whose answer has a site's own numbers."""
    engine = consortium()
    theta = guess(engine, scale=3.0)
    plain = engine.drive(fit_platt(ModelAssignment(theta)), round=1)
    engine.secure = SecureRule(engine.drive(exchange_identities(engine.sites), round=1))
    asked, ask = [], engine._ask
    engine._ask = lambda question: asked.append((question, ask(question))) or asked[-1][1]
    hidden = engine.drive(fit_platt(ModelAssignment(theta)), round=2)
    assert hidden.slope == pytest.approx(plain.slope, abs=1e-5)
    assert hidden.intercept == pytest.approx(plain.intercept, abs=1e-5)
    answers = [found for question, found in asked if question.task == "platt"]
    assert answers and all(set(a.columns) == {"held"} and not a.totals for a in answers)


def test_by_hand():
    """Two scores, +1 and -1; 3 of 4 and 1 of 4 are positive. Targets: 5/6 and 1/6, so p(+1) = 3/4 * 5/6 + 1/4 * 1/6 = 2/3."""
    found = fit_counts(np.array([1.0, -1.0]), np.array([3.0, 1.0]), np.array([1.0, 3.0]))
    assert found.slope == pytest.approx(np.log(2), abs=1e-9) and found.intercept == pytest.approx(0, abs=1e-9)
    sums = PlattSums(np.array([4.0, 4.0, 2.0, -2.0]), np.array([[8 * np.log(2), 4.0, 0.0, 2.0, 0.0, 2.0]]))
    assert sums.targets == pytest.approx((4 * 5 / 6 + 4 / 6, 2 * 5 / 6 - 2 / 6))
    assert sums.losses(np.zeros((1, 2)))[0] == pytest.approx(8 * np.log(2))
    assert sums.step(0)[0] == pytest.approx([(8 / 6) / 2, 0.0])


def test_separable_scores_have_a_finite_line():
    """The smoothed targets: without them the slope would have no end."""
    s = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    y = (s > 0).astype(int)
    found = fit_counts(s, y.astype(float), 1.0 - y)
    assert found.slope == pytest.approx(pooled(s, y)[0], rel=1e-4) and found.slope < 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=4, max_size=60),
    st.floats(0.01, 4.0),
    st.floats(-20, 20),
)
def test_any_scores_end_at_the_bottom(rows, scale, shift):
    """Whatever the scores: it ends, and no line that is a little off has a lower loss."""
    s, y = np.array([scale * v + shift for v, _ in rows]), np.array([float(o) for _, o in rows])
    found = fit_counts(s, y, 1 - y)
    assert found.exchanges <= EXCHANGES
    owner = np.zeros(len(s), np.int64)
    outcomes = np.array([y.sum(), (1 - y).sum(), (y * s).sum(), ((1 - y) * s).sum()])
    near = [(found.slope + a, found.intercept + b) for a in (-0.01, 0, 0.01) for b in (-0.01, 0, 0.01)]
    lines = np.array([(found.slope, found.intercept), *near])
    losses = PlattSums(outcomes, line_sums(s, np.ones(len(s)), owner, lines, sites=1)[0]).losses(lines)
    assert losses[0] <= losses.min() + 1e-5
    assert bool(found.refused) == (found.slope <= 0)


def test_a_model_that_ranks_backwards_is_refused_a_line():
    engine = consortium()
    found = engine.drive(fit_platt(ModelAssignment(guess(engine, scale=-1.0))), round=1)
    assert found.slope < 0 and "would reverse the model's ranking" in found.refused
    one = fit_counts(np.array([0.3, 1.0]), np.array([2.0, 3.0]), np.zeros(2))
    assert one.slope <= 1e-6


def run(out, **changes):
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.3, "test": 0.2},
        "method": {"rounds": 4},
        "train": {"epochs": 6, "lr": 0.5},
        "explain": {"sketch": "none"},
        **changes,
    }
    return gr.run(gr.Experiment.parse(plan), table=patients([200, 150, 180]), out=out)


PLATT = {"evaluation": {"calibrate": "platt"}}


def log_odds(trained) -> np.ndarray:
    p = trained.model.predict(patients([40], seed=5)).risk
    return np.log(p / (1 - p))


MODELS = [
    ({"model": {"name": "logistic"}}, None),
    ({"model": {"name": "mlp", "hidden": [24]}}, None),
    ({"model": {"name": "mlp", "hidden": [24]}, "engine": {"kernel": "torch"}}, "torch"),
    ({"model": {"name": "lightgbm", "trees": 8}, "method": {"name": "pooled", "rounds": 2}}, "lightgbm"),
    ({"model": {"name": "lightgbm", "trees": 8}, "method": {"name": "local", "rounds": 2}}, "lightgbm"),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("changes", "needs"), MODELS, ids=["logistic", "mlp", "torch", "lightgbm", "separate"])
def test_every_model_holds_its_line(changes, needs, tmp_path):
    """The file scores on the line, ranks as before, and its validation loss is the lower one."""
    if needs:
        pytest.importorskip(needs)
    raw, held = run(tmp_path / "raw", **changes), run(tmp_path / "held", **changes, **PLATT)
    line = held.summary["platt"]
    assert line["slope"] != 1 and "platt" not in raw.summary and held.summary["temperature"] is None
    np.testing.assert_allclose(log_odds(held), line["slope"] * log_odds(raw) + line["intercept"], rtol=1e-4, atol=1e-4)
    assert held.summary["validation"]["log_loss"] < raw.summary["validation"]["log_loss"]
    assert held.summary["final"]["auroc"] == pytest.approx(raw.summary["final"]["auroc"], abs=5e-3)
    assert held.model.calibration.platt == line
    assert audit(held.folder, deep=True).findings == (), (
        "the ledger knows that the model was calibrated since its last round"
    )


def test_an_export_scores_as_the_calibrated_model(tmp_path):
    held = run(tmp_path / "held", **PLATT)
    values = json.loads(json.dumps(to_json(held.model)))
    assert values["platt"] == held.summary["platt"]
    table = patients([12], seed=9, gaps=0.0)
    rows = [{name: column[i] for name, column in table.columns.items()} for i in range(12)]
    np.testing.assert_allclose([score_json(values, r)[1] for r in rows], held.model.predict(table).risk, rtol=1e-5)


def test_what_cannot_hold_a_line_says_so_before_a_round(tmp_path):
    with refused("method-does-not-fit", match=r"model\.name"):
        run(tmp_path / "forest", model={"name": "forest"}, **PLATT)
    three = patients([60, 60], classes=3)
    plan = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}, **PLATT}
    with refused("method-does-not-fit", match="'platt'"):
        gr.run(gr.Experiment.parse(plan), table=three, out=tmp_path / "three")


def test_validation_rows_of_one_class_set_no_line():
    engine = consortium(survivors=True)
    assert "have only one class" in engine.drive(fit_platt(ModelAssignment(guess(engine))), round=1).refused


def test_a_line_that_would_turn_the_model_round_is_a_warning_and_no_more(tmp_path):
    """All training labels are flipped and the validation rows are true: a slope below zero would hide the harm."""
    flipped = {"attacks": [{"kind": "label-flip", "sites": ["a", "b", "c"], "share": 1.0}]}
    raw, held = run(tmp_path / "raw", **flipped), run(tmp_path / "held", **flipped, **PLATT)
    assert held.summary["final"]["auroc"] < 0.4 and "platt" not in held.summary
    assert any("would reverse the model's ranking" in w for w in held.summary["warnings"])
    np.testing.assert_array_equal(log_odds(raw), log_odds(held))


def test_dense_last_layer_by_hand():
    net = Dense((1, 1))
    theta = net.layout.pack({"layer0.weight": np.array([[2.0]]), "layer0.bias": np.array([-1.0])}, dtype=np.float64)
    np.testing.assert_allclose(net.with_platt(theta, slope=0.5, intercept=3.0), [1.0, 2.5])


def test_counts_by_hand():
    s, y, owner = np.array([-9.0, -0.1, 0.0, 0.4, 7.0]), np.array([0, 1, 0, 1, 1]), np.array([0, 0, 0, 1, 1])
    edges = np.array([-1.0, 0.0, 1.0])
    assert counts(s, y, owner, edges, by_outcome=False, sites=2).tolist() == [[2, 1], [0, 2]]
    assert counts(s, y, owner, edges, by_outcome=True, sites=2).tolist() == [[[1, 1], [1, 0]], [[0, 0], [0, 2]]]
    mean, deviation = score_moments(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert (mean, deviation) == pytest.approx((2.0, np.sqrt(1.5**2 - 1 / 12)))


def test_a_sites_noise_has_the_distribution_it_claims():
    """P(n) = (1 - q) / (1 + q) * q^|n| with q = e^-epsilon, so neighbours' odds differ by at most e^epsilon."""
    epsilon, draws = 0.7, 200_000
    noise = add_laplace_noise(np.zeros(draws, np.int64), epsilon, secret=Secret.simulated(3, "a"), purpose="test")
    q = np.exp(-epsilon)
    for n in range(-4, 5):
        p = (1 - q) / (1 + q) * q ** abs(n)
        assert abs(np.mean(noise == n) - p) < 5 * np.sqrt(p * (1 - p) / draws)
    own = [add_laplace_noise(np.zeros(50, np.int64), epsilon, secret=Secret.own(), purpose="test") for _ in range(2)]
    assert not np.array_equal(*own), "at a hospital it does not follow from anything that others know"


@pytest.mark.parametrize("secure", [False, True])
def test_a_private_line_is_near_the_pooled_one_and_costs_what_it_says(secure):
    engine = consortium()
    rule = None
    if secure:
        rule = engine.secure = SecureRule(engine.drive(exchange_identities(engine.sites), round=0))
    theta = guess(engine, scale=3.0)
    exact = engine.drive(fit_platt(ModelAssignment(theta)), round=1)
    private = PrivatePlatt(epsilon=4.0, delta=1e-5, secure=secure)
    found = engine.drive(private.fit(ModelAssignment(theta), rule), round=2)
    assert found.refused == "" and found.slope == pytest.approx(exact.slope, rel=0.35)
    assert found.slope != exact.slope
    events = private.events()
    assert [e.of for e in events] == ["validation"] * 2 and epsilon_of(events, 1e-5) <= 4.0 * (1 + 1e-3)
    assert epsilon_of(events, 1e-5) >= 3.9, "nothing of the budget is left lying"


def test_no_count_leaves_a_site_without_noise():
    engine = consortium()
    shared = {"model": guess(engine), "edges": np.linspace(-1, 1, 3), "by_outcome": True}
    host = engine.hosts[0]
    ask = Ask("platt", shared=shared, report=("counts",), id=AskId("test", 1, 1))
    with refused("raw-release"):
        host.answer(ask, np.arange(len(host.stack.names)))
    told = Ask("platt", shared={**shared, "epsilon": 0.5}, report=("counts",), id=AskId("test", 1, 2))
    assert set(host.answer(told, np.arange(5))) == {"counts"}


def test_a_budget_too_small_for_the_rows_refuses_or_ranks_as_before():
    """Noise far above the counts: no line that would turn the model round is ever used."""
    engine = consortium()
    for r in range(1, 9):
        found = engine.drive(PrivatePlatt(epsilon=0.02).fit(ModelAssignment(guess(engine))), round=r)
        assert found.refused or found.slope > 0
    with refused("setting-out-of-range"):
        PrivatePlatt(epsilon=0.0)
    with refused("needs-secure-aggregation"):
        engine.drive(PrivatePlatt(epsilon=1.0, secure=True).fit(ModelAssignment(guess(engine))), round=9)
