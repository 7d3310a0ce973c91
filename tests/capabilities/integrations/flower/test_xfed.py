"""XFed as a Flower strategy: two exchanges a round, models of the chosen alone, the package's choice and mean."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.capabilities.integrations.flower import XFed, answer_with, send_kept_model
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.protocol.messages import UPLOAD, Answers
from tests import support
from tests.capabilities.integrations.flower.grid import app_grid
from tests.capabilities.integrations.flower.nodes import model, ours, says, vector
from tests.support import refused


def scored(xai, accuracy, loss=0.5, **more):
    return ours(rationale__xai=xai, rationale__accuracy=accuracy, rationale__loss=loss, **more)


def keeps(theta, **metrics) -> ClientApp:
    """A client that keeps its model until it is asked for."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context) -> Message:
        content = RecordDict({"arrays": model(theta), "metrics": MetricRecord(metrics)})
        return answer_with(message, context, content)

    app.train("grandrounds_upload")(send_kept_model)
    return app


def one_round(strategy, grid, start, number=1):
    messages = strategy.configure_train(number, model(start), ConfigRecord(), grid)
    return strategy.aggregate_train(number, grid.send_and_receive(messages))


def uploads(grid):
    return [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train.grandrounds_upload"]


@settings(max_examples=25, deadline=None)
@given(
    k=st.integers(2, 8),
    p=st.integers(2, 30),
    seed=st.integers(0, 10**6),
    xfed=st.sampled_from(
        [{}, {"keep": 0.5}, {"weights": "rank"}, {"score": "grid", "xai_share": 0.9}, {"measure": "cross-entropy"}]
    ),
)
def test_same_scores_give_the_package_s_choice_and_model(k, p, seed, xfed):
    rng = np.random.default_rng(seed)
    sites, start = tuple(str(11 + i) for i in range(k)), rng.normal(size=p)
    models, rows = rng.normal(size=(k, p)), rng.integers(5, 300, k)
    columns = {
        "rationale.accuracy": rng.integers(0, 5, k) / 4,
        "rationale.loss": rng.uniform(0, 2, k),
        "rationale.xai": rng.integers(0, 5, k) / 4,
        "rationale.grid": rng.integers(0, 5, k) / 4,
    }
    clients = {}
    for i in range(k):
        own = ours(**{n: float(c[i]) for n, c in columns.items()})
        clients[11 + i] = keeps(models[i], **{"num-examples": int(rows[i])}, **own)
    grid, strategy = app_grid(clients), XFed(xfed, min_train_nodes=k)
    arrays, _ = one_round(strategy, grid, start)

    def answer(ask):
        if ask.task != UPLOAD:
            return Answers(sites, {**columns, "count": rows.astype(float)})
        return Answers(ask.to, {"model": models[[sites.index(s) for s in ask.to]]})

    method, train = support.sections({"name": "xfed", "weigh": "data_size", "xfed": xfed})
    outcome, asked = support.played(build_method(method, train).round(Server(1, start, sites, 0)), answer)
    assert np.allclose(vector(arrays), outcome.model, rtol=0, atol=1e-9)
    assert strategy.decisions[0]["weights"] == pytest.approx(dict(outcome.decision.weights), abs=1e-12)
    assert sorted(uploads(grid)) == [int(s) for s in asked[1].to] and len(asked[1].to) < k
    assert strategy.decisions[0]["signals"]["place"] == dict(outcome.decision.signals["place"])


def test_the_one_that_is_right_for_the_wrong_reason_is_not_asked_for_its_model():
    """Scores by hand, share .2: .2 * .9 + .8 * .8 = .82, .2 * .1 + .8 * .85 = .70, .2 * .8 + .8 * .8 = .80."""
    clients = {
        n: keeps(np.full(2, float(n)), **{"num-examples": 10}, **scored(xai, accuracy))
        for n, (xai, accuracy) in {11: (0.9, 0.8), 12: (0.1, 0.85), 13: (0.8, 0.8)}.items()
    }
    grid, strategy = app_grid(clients), XFed(min_train_nodes=3)
    arrays, metrics = one_round(strategy, grid, np.zeros(2))
    assert sorted(uploads(grid)) == [11, 13] and vector(arrays) == pytest.approx([12.0, 12.0])
    assert strategy.decisions[0]["signals"]["score"] == pytest.approx({"11": 0.82, "12": 0.7, "13": 0.8})
    assert metrics["score.12"] == pytest.approx(0.7) and "weight.12" not in metrics
    assert "not asked: 12, which saves the upload of 2 numbers" in strategy.decisions[0]["why"] + str(
        strategy.decisions[0]["stages"]
    )


def test_training_replies_carry_no_model_until_it_is_asked_for():
    clients = {n: keeps(np.ones(2), **{"num-examples": 10}, **scored(0.5, 0.5 + n / 100)) for n in (11, 12, 13)}
    heard = []

    def listen(reply):
        heard.append((reply.metadata.message_type, len(reply.content.array_records)))
        return reply

    grid = app_grid(clients, spoil=listen)
    one_round(XFed(min_train_nodes=3), grid, np.zeros(2))
    assert sorted(heard) == [("train", 0)] * 3 + [("train.grandrounds_upload", 1)] * 2


def test_a_client_that_sends_its_model_with_its_scores_works_and_the_record_says_what_it_cost():
    clients = {n: says(np.full(2, float(n)), **{"num-examples": 10}, **scored(0.5, n / 20)) for n in (11, 12, 13)}
    grid, strategy = app_grid(clients), XFed(min_train_nodes=3)
    arrays, _ = one_round(strategy, grid, np.zeros(2))
    assert vector(arrays) == pytest.approx([12.5, 12.5]) and uploads(grid) == []
    note = "3 of 3 nodes sent their models with their scores, so those uploads were not saved"
    assert strategy.decisions[0]["notes"] == [note]


def test_a_chosen_node_that_is_gone_when_it_is_asked_is_left_out():
    clients = {n: keeps(np.full(2, float(n)), **{"num-examples": 10}, **scored(0.5, n / 20)) for n in (11, 12, 13)}

    def lost(reply):
        gone = reply.metadata.message_type != "train" and reply.metadata.src_node_id == 13
        return None if gone else reply

    strategy = XFed(min_train_nodes=3)
    arrays, _ = one_round(strategy, app_grid(clients, spoil=lost), np.zeros(2))
    assert vector(arrays) == pytest.approx([12.0, 12.0])
    assert strategy.decisions[0]["missing"] == {"13": "did not answer"}


def test_after_the_last_round_with_a_choice_it_is_fedavg_in_one_exchange():
    clients = {n: keeps(np.full(2, float(n)), **{"num-examples": 10}, **scored(0.5, 0.5)) for n in (11, 12, 13)}
    grid, strategy = app_grid(clients), XFed({"until": 1}, min_train_nodes=3)
    one_round(strategy, grid, np.zeros(2), 1)
    before = len(uploads(grid))
    arrays, _ = one_round(strategy, grid, np.zeros(2), 2)
    assert before == 2 == len(uploads(grid)) and vector(arrays) == pytest.approx([12.0, 12.0])


def test_a_model_of_another_round_is_not_sent():
    client = keeps(np.ones(2), **{"num-examples": 10})
    grid = app_grid({11: client})
    from grandrounds.capabilities.integrations.flower.client import KEEP, ROUND

    def send(kind, **config):
        content = RecordDict({"config": ConfigRecord(config)})
        return grid.send_and_receive([Message(content, dst_node_id=11, message_type=kind)])[0]

    send("train", **{KEEP: True, "server-round": 3})
    assert send("train.grandrounds_upload", **{ROUND: 3}).content["arrays"].keys() == {"a", "b"}
    assert "has no stored model of round 4" in send("train.grandrounds_upload", **{ROUND: 4}).error.reason


def test_missing_scores_and_settings_a_flower_app_cannot_have():
    clients = {n: keeps(np.ones(2), **{"num-examples": 10}, **scored(0.5, 0.5)) for n in (11, 12)}
    with refused("missing-report", match="sent no 'grandrounds.rationale.grid' .*client.xfed_report"):
        one_round(XFed({"score": "grid"}), app_grid(clients), np.zeros(2))
    with refused("unsupported-setting"):
        XFed({"score_at": "server"})
