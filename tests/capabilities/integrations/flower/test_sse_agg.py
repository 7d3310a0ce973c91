"""SSE-AGG as a Flower strategy: the package's weights and model, and what becomes of replies that cannot be used."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.capabilities.integrations.flower import SSEAgg
from grandrounds.capabilities.integrations.flower.client import sse_report_of
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import Answers
from tests import support
from tests.capabilities.integrations.flower.grid import app_grid
from tests.capabilities.integrations.flower.nodes import ours, played, raises, says, vector
from tests.support import refused

F = 4
BLEND = {"lambdas": {"data": 0.25, "agreement": 0.25, "worst_site": 0.25, "calibration": 0.25}, "form": "inverse"}


def reports(rng, k):
    """What k sites say, as columns of the package's Answers."""
    sketch = rng.dirichlet(np.ones(F), k)
    return {
        "count": rng.integers(5, 500, k).astype(float),
        "sketch": sketch,
        "sketch.total": rng.uniform(0.1, 2, k),
        "sketch.flat": np.zeros(k, np.int64),
        "val_loss": rng.uniform(0.2, 1.5, k),
        "ece": rng.uniform(0, 0.3, k),
    }


def nodes(columns, models):
    """The same as clients of Flower nodes 11, 12 ..."""
    out = {}
    for k in range(len(models)):
        own = {n: c[k].tolist() for n, c in columns.items() if n != "count"}
        out[11 + k] = says(models[k], **{"num-examples": int(columns["count"][k])}, **ours(**own))
    return out


def by_package(weigh, k, rounds, start):
    """The models of some rounds by the package's own method, and its decisions; `rounds`: (columns, models) of each."""
    method, train = support.sections(
        {"name": "sse-agg", "stability": "none", "weigh": {"rule": "explanations", **weigh}}
    )
    sites = tuple(str(11 + i) for i in range(k))
    theta, state, decisions = start, {}, []
    for number, (columns, models) in enumerate(rounds, 1):
        server = Server(number, theta, sites, 0, state)
        answers = Answers(sites, {**columns, "model": models})
        outcome, _ = support.played(build_method(method, train).round(server), lambda _, a=answers: a)
        theta, state = outcome.model, outcome.state
        decisions.append(outcome.decision)
    return theta, decisions


@settings(max_examples=25, deadline=None)
@given(
    k=st.integers(2, 7),
    p=st.integers(2, 40),
    seed=st.integers(0, 10**6),
    weigh=st.sampled_from([{}, {"form": "inverse", "floor": 0.05}, {"form": "exponential", "every": 2}, BLEND]),
)
def test_same_replies_give_the_package_s_weights_and_model(k, p, seed, weigh):
    rng = np.random.default_rng(seed)
    start = rng.normal(size=p)
    rounds = [(reports(rng, k), rng.normal(size=(k, p))) for _ in range(3)]
    strategy = SSEAgg(weigh, min_train_nodes=k)
    theta = start
    for number, (columns, models) in enumerate(rounds, 1):
        arrays, metrics = played(strategy, nodes(columns, models), theta, round=number)
        theta = vector(arrays)
    expected, decisions = by_package(weigh, k, rounds, start)
    assert np.allclose(theta, expected, rtol=0, atol=1e-9)
    for own, theirs in zip(strategy.decisions, decisions, strict=True):
        assert own["weights"] == pytest.approx(dict(theirs.weights), abs=1e-12)
        assert own["why"] == theirs.why
    assert {n: metrics[f"weight.{n}"] for n in decisions[-1].weights} == pytest.approx(dict(decisions[-1].weights))


def test_equation_5_by_hand():
    """Two sketches at L1 distance 0.4 from their mean, one at 0.8: weights as 1 / (0.01 + D), whatever the rows."""
    sketches = {11: [0.7, 0.3], 12: [0.7, 0.3], 13: [0.1, 0.9]}
    apps = {
        node: says(np.full(2, float(node)), **{"num-examples": 10 * node}, **sse_report_of(np.array([sketch])))
        for node, sketch in sketches.items()
    }
    strategy = SSEAgg({"form": "inverse"}, min_train_nodes=3)
    arrays, metrics = played(strategy, apps, np.zeros(2))
    near, far = 1 / 0.41, 1 / 0.81
    weights = np.array([near, near, far]) / (2 * near + far)
    assert [metrics[f"weight.{n}"] for n in (11, 12, 13)] == pytest.approx(weights)
    assert [metrics[f"disagreement.{n}"] for n in (11, 12, 13)] == pytest.approx([0.4, 0.4, 0.8])
    assert vector(arrays) == pytest.approx([weights @ [11, 12, 13]] * 2)


def test_without_a_say_of_reasons_it_is_flower_s_fedavg():
    rng = np.random.default_rng(0)
    columns, models = reports(rng, 4), rng.normal(size=(4, 6))
    ours_, _ = played(SSEAgg({"explanation_weight": 0.0}, min_train_nodes=4), nodes(columns, models), np.zeros(6))
    theirs, _ = played(FedAvg(min_train_nodes=4), nodes(columns, models), np.zeros(6))
    assert np.allclose(vector(ours_), vector(theirs), rtol=0, atol=1e-15)


def test_flower_s_wrapper_for_differential_privacy_goes_around_it():
    """Updates are clipped on their way in: one of length 5 becomes one of length 1. Noise would be added to the mean."""
    nodes_ = {
        n: says(np.array([3.0, 4.0]), **{"num-examples": 5}, **sse_report_of(np.ones((1, 2)))) for n in (11, 12, 13)
    }
    wrapped = DifferentialPrivacyServerSideFixedClipping(SSEAgg(min_train_nodes=3), 1e-12, 1.0, 3)
    arrays, _ = played(wrapped, nodes_, np.zeros(2))
    assert vector(arrays) == pytest.approx([0.6, 0.8], abs=1e-6)


def test_what_cannot_be_used_is_left_out_and_named():
    rng = np.random.default_rng(1)
    columns, models = reports(rng, 8), rng.normal(size=(8, 6))
    apps = nodes(columns, models)
    good = {"num-examples": 10, **sse_report_of(np.ones((1, F)))}
    apps[13] = says(np.full(6, np.nan), **good)
    apps[14] = says(np.ones(9), **good)
    apps[15] = says(np.ones(6), **(good | sse_report_of(np.ones((1, F + 1)))))
    apps[16] = says(np.ones(6), **{"num-examples": 10})
    apps[17] = raises("the patient of room 7 is 83")
    apps[18] = says(np.ones(6), **(good | {"num-examples": 0}))
    strategy = SSEAgg(min_train_nodes=8)
    arrays, _ = played(strategy, apps, np.zeros(6), spoil=lambda r: None if r.metadata.src_node_id == 12 else r)
    decision = strategy.decisions[0]
    assert decision["weights"] == {"11": 1.0} and vector(arrays) == pytest.approx(models[0])
    assert decision["asked"] == [str(n) for n in range(11, 19)]
    assert decision["missing"] == {
        "12": "did not answer",
        "13": "sent values that are not finite numbers",
        "14": "sent a model whose arrays have other names or shapes than the one it received",
        "15": "sent 5 numbers in 'grandrounds.sketch', but most nodes sent 4",
        "16": "sent no 'grandrounds.sketch' in its MetricRecord: add the result of "
        "grandrounds.capabilities.integrations.flower.client.sse_report to the reply's metrics",
        "17": "failed (Flower's error code 2)",
        "18": "sent a 'num-examples' that is not a number of rows above 0",
    }
    assert "room 7" not in json.dumps(strategy.decisions)


def test_a_key_that_no_client_sends_is_said_with_the_helper_that_makes_it():
    apps = {n: says(np.ones(2), **{"num-examples": 5}) for n in (11, 12)}
    helper = "grandrounds.capabilities.integrations.flower.client.sse_report"
    with refused("missing-report", match=f"node 11 sent no 'grandrounds.sketch' .* {helper}"):
        played(SSEAgg(), apps, np.zeros(2))
    rows = {n: says(np.ones(2), **sse_report_of(np.ones((1, 2)))) for n in (11, 12)}
    with refused("missing-report", match="sent no 'num-examples' in its MetricRecord"):
        played(SSEAgg(), rows, np.zeros(2))


def test_a_round_without_a_usable_answer_keeps_the_model_and_says_so():
    strategy = SSEAgg()
    assert played(strategy, {n: raises("no") for n in (11, 12)}, np.zeros(2)) == (None, None)
    assert strategy.decisions[0]["why"] == "no answer was usable, so the model is unchanged"
    assert list(strategy.decisions[0]["missing"]) == ["11", "12"]


def test_a_node_that_comes_later_leaves_what_is_known_of_the_others():
    """Node 14 stood out before 10 came. It agrees now, and half of what was found of it, at most 10, still counts."""
    rng = np.random.default_rng(3)
    sketch = np.array([[0.5, 0.3, 0.1, 0.1], [0.52, 0.28, 0.1, 0.1], [0.5, 0.28, 0.12, 0.1], [0.1, 0.1, 0.2, 0.6]])
    columns = {**reports(rng, 4), "sketch": sketch, "sketch.total": np.ones(4)}
    strategy, start = SSEAgg(), np.zeros(2)
    played(strategy, nodes(columns, np.ones((4, 2))), start, round=1)
    assert strategy.decisions[0]["signals"]["standing"]["14"] > 10
    agreeing = nodes({**columns, "sketch": sketch[[0, 1, 2, 0]]}, np.ones((4, 2)))
    newcomer = {10: says(np.ones(2), **{"num-examples": 50}, **sse_report_of(sketch[:1]))}
    strategy.min_train_nodes = 5
    played(strategy, {**newcomer, **agreeing}, start, round=2)
    standing = strategy.decisions[1]["signals"]["standing"]
    assert standing["10"] < 1 and 5 <= standing["14"] < 6


def test_a_server_with_reference_rows_explains_models_itself_and_clients_add_nothing():
    apps = {n: says(np.array(v), **{"num-examples": 10}) for n, v in {11: [3.0, 1], 12: [3.0, 1], 13: [1.0, 3]}.items()}
    seen = []

    def explain(arrays):
        seen.append(vector(arrays))
        return sse_report_of(np.abs(vector(arrays))[None])

    apps[14] = says(np.full(2, np.nan), **{"num-examples": 10})
    strategy = SSEAgg({"form": "inverse"}, explain=explain, min_train_nodes=4)
    played(strategy, apps, np.zeros(2))
    assert len(seen) == 3 and strategy.decisions[0]["missing"] == {"14": "sent values that are not finite numbers"}
    assert strategy.decisions[0]["signals"]["disagreement"] == pytest.approx({"11": 1 / 3, "12": 1 / 3, "13": 2 / 3})


def test_bad_settings_are_said_in_the_experiment_s_words():
    with refused("unknown-choice", match=r"method\.weigh\.form"):
        SSEAgg({"form": "invers"})


def test_aggregate_train_needs_the_round_s_model():
    with refused("round-not-configured"):
        SSEAgg().aggregate_train(1, [])


def test_integer_arrays_keep_their_type():
    """BatchNorm's counter of batches comes back as the whole number that load_state_dict wants."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32)), "seen": Array(np.array(0, np.int64))})

    @app.train()
    def train(message, context):
        k = context.node_id
        arrays = ArrayRecord({"w": Array(np.full(2, k, np.float32)), "seen": Array(np.array(k, np.int64))})
        metrics = MetricRecord({"num-examples": 1, **sse_report_of(np.ones((1, 2)))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid, strategy = app_grid({1: app, 2: app}), SSEAgg()
    messages = strategy.configure_train(1, start, ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays["w"].numpy().dtype == np.float32 and arrays["w"].numpy() == pytest.approx([1.5, 1.5])
    assert arrays["seen"].numpy().dtype == np.int64 and arrays["seen"].numpy() == 2
