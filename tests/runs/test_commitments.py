"""Commitments: the same for an answer however it came, another for any other answer, and nothing to guess by."""

from __future__ import annotations

import numpy as np

from grandrounds.audit.digest import arrays_digest, model_digest, row_digests, value_digest
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, Answers, Arrival, Ask, AskId, Receive
from grandrounds.runs.ledger_recorder import Commitments, commitment

ME = Identity.simulated(0, "server")
MODELS = np.arange(12, dtype=np.float32).reshape(3, 4)
ANSWERS = Answers(("a", "b", "c"), {"model": MODELS, "count": np.array([5, 6, 7]), "steps": np.array([1, 2, 3])})


def driven(work, *replies):
    """What a round commits to when it is sent these replies."""
    held = Commitments(ME, "run")
    watched, sent = held.watched(work), None
    for reply in (*replies, None):
        try:
            watched.send(sent)
        except StopIteration:
            break
        sent = reply
    return held


def asking(times: int):
    for _ in range(times):
        yield Ask("train")
    return "outcome"


def test_a_site_can_open_its_commitment_with_its_answer_and_the_salt():
    held = driven(asking(1), ANSWERS)
    found = held.of_round(3)
    for k, site in enumerate(ANSWERS.sites):
        mine = {"model": MODELS[k], "count": ANSWERS["count"][k], "steps": ANSWERS["steps"][k]}
        assert found[site] == commitment(held.salt(3, site), mine)
        assert found[site] != commitment(held.salt(4, site), mine)
        assert found[site] != commitment(held.salt(3, site), {**mine, "count": 99})
        assert found[site] != commitment(held.salt(3, site), {**mine, "model": np.nextafter(MODELS[k], 100)})


def test_an_answer_that_arrives_alone_has_the_commitment_it_has_among_others():
    def arriving():
        yield Receive()
        return "outcome"

    mine = {"model": MODELS[1], "count": np.int64(6), "steps": np.int64(2)}
    alone = driven(arriving(), Arrival(Answer("b", AskId("run", 1, 0), mine), 1.0, 1)).of_round(1)
    assert alone["b"] == driven(asking(1), ANSWERS).of_round(1)["b"]
    lost = driven(arriving(), Arrival(Answer("b", AskId("run", 1, 0), error="dropped out"), 1.0, 1))
    assert lost.of_round(1) == {}


def test_all_answers_of_a_round_count_in_their_order():
    one, two = ANSWERS, Answers(("a",), {"losses": np.ones((1, 2))})
    once, both, back = driven(asking(1), one), driven(asking(2), one, two), driven(asking(2), two, one)
    assert len({h.of_round(1)["a"] for h in (once, both, back)}) == 3
    assert once.of_round(1)["b"] == both.of_round(1)["b"]


def test_equal_answers_of_two_sites_or_rounds_look_unlike():
    same = Answers(("a", "b"), {"count": np.array([5, 5])})
    held = driven(asking(1), same)
    assert len({*held.of_round(1).values(), *held.of_round(2).values()}) == 4
    assert held.of_round(1) == driven(asking(1), same).of_round(1)
    other = Commitments(Identity.simulated(1, "server"), "run")
    assert other.salt(1, "a") != held.salt(1, "a")


def test_columns_and_lists_hash_alike_and_text_has_its_place():
    columns = {"model": MODELS, "word": ["x", "y", "z"]}
    rows = [{"model": [MODELS[k]], "word": [columns["word"][k]]} for k in range(3)]
    assert row_digests(columns, 3) == [row_digests(row, 1)[0] for row in rows]
    fine = row_digests({"model": MODELS}, 3)
    assert fine == [row_digests({"model": [m]}, 1)[0] for m in MODELS]
    assert fine != row_digests({"model": MODELS.astype(float)}, 3)
    assert fine != row_digests({"model": MODELS.reshape(3, 2, 2)}, 3)
    assert fine == row_digests({"model": MODELS.astype(">f4")}, 3)
    assert fine == row_digests({"model": np.asfortranarray(MODELS)}, 3)


def test_hashes_of_models_and_explanations_follow_every_number():
    assert model_digest(MODELS[0]) != model_digest(MODELS[1])
    assert arrays_digest({"a": MODELS, "b": MODELS}) == arrays_digest({"b": MODELS, "a": MODELS})
    assert arrays_digest({"a": MODELS}) != arrays_digest({"b": MODELS})
    told = {"drift": 0.5, "sketches": {"a": [0.25, 0.75], "b": [1.0, 0.0]}, "pairs": None, "flat": ["a"], "k": 3}
    hashes = {value_digest(told)}
    for change in (
        {"drift": 0.25},
        {"sketches": {"a": [0.75, 0.25], "b": [1.0, 0.0]}},
        {"sketches": {"a": [0.25], "b": [0.75, 1.0, 0.0]}},
        {"pairs": []},
        {"flat": []},
        {"flat": ["b"]},
        {"k": True},
        {"more": 1},
    ):
        hashes.add(value_digest({**told, **change}))
    assert len(hashes) == 9
