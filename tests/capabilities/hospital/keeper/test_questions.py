"""A server that asks a site what the plan does not declare: each question is refused, and nothing is learnt by asking on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import REPEATS, Questions
from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.data.summary import Moments
from grandrounds.experiment.experiment import Experiment
from grandrounds.privacy.secagg import WITHHELD
from grandrounds.privacy.secagg.terms import hide
from grandrounds.protocol.codec import bundle, decode_answer, decode_ask, encode_ask, peek_answer, unbundle
from grandrounds.protocol.envelope import Envelope
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import OWN_HALF, Ask, AskId
from grandrounds.runs.ledger import SERVER
from tests.engine.decrypted import deliver, read
from tests.engine.disturbed import DATA, SIZES, Disturbed, Killed, Passing
from tests.engine.hospitals import Hospitals
from tests.support import patients, refused

B = "1"


def consortium(tmp_path, clock, **sections) -> tuple[Hospitals, Disturbed]:
    """Four hospitals that have done a round and a half: the server is gone before the second sum."""
    told = {"method": {"rounds": 3}, "explain": {"sketch": "none"}, "train": {"steps": 2, "batch": 16}, **sections}
    held = Hospitals.of(patients(SIZES), name="probed", data=DATA, **told)
    return held, Disturbed.of(held.keepers(tmp_path / "state"), clock)


def until(held: Hospitals, post: Disturbed, tmp_path, task: str, round: int) -> Envelope:
    """The letter to site b that asks for this, which it was never given."""
    kept: list[bytes] = []

    def before(passing: Passing) -> None:
        if passing.address == B and passing.asks_for(task, round):
            kept.append(passing.data)
            raise Killed

    post.before = before
    with pytest.raises(Killed):
        held.deployed(tmp_path, post)
    return replace(read(kept[0]), session="", number=0)


def asked(letter: Envelope, task: str, layout=None) -> Ask:
    """The question of this task in a letter."""
    return next(a for a in (decode_ask(b, "b", layout) for b in unbundle(letter.body)) if a.task == task)


def send(keeper: Keeper, letter: Envelope, ask: Ask, layout=None) -> bytes:
    """What the site answers to a question that the server has signed."""
    body = bundle([encode_ask(ask, "b", layout)])
    return unbundle(deliver(keeper, Identity.simulated(0, SERVER), replace(letter, body=body)).body)[0]


def test_the_bound_of_a_secure_sum_is_the_plans(tmp_path, quick):
    """Version 0.1 answered `beyond-bound` or not to any bound, as often as asked: the largest parameter was read by halving."""
    held, post = consortium(tmp_path, quick, privacy={"secure": True})
    letter = until(held, post, tmp_path, "secagg.masked", 2)
    keeper = post.box.keepers[B]
    question = asked(letter, "secagg.masked")
    for bound in (0.01, 0.02, 0.04, 0.08, 63.9, 1e9):
        probing = replace(question, shared={**question.shared, "bound": bound})
        assert peek_answer(send(keeper, letter, probing)) == codes.NOT_IN_PLAN
        hidden = replace(question, each={"b": {**question.each.get("b", {}), "bound": bound}})
        assert peek_answer(send(keeper, letter, hidden)) == codes.NOT_IN_PLAN
    honest = decode_answer(send(keeper, letter, question), "b", None)
    assert not honest.error and not honest.values["error"]


def test_values_that_do_not_fit_a_sum_are_withheld_without_a_reason_and_counted(tmp_path, quick):
    """With the plan's bound a model that the server moved could still be probed: ten answers of one bit, and no more."""
    held, post = consortium(tmp_path, quick, privacy={"secure": True, "secure_range": 1e-4})
    letter = until(held, post, tmp_path, "secagg.masked", 1)
    keeper = post.box.keepers[B]
    answer = decode_answer(send(keeper, letter, asked(letter, "secagg.masked")), "b", None)
    assert answer.values["error"] == WITHHELD and not np.size(answer.values["masked"])
    assert keeper._runs[letter.run].refusals == 1
    assert Keeper._run(_again(keeper), letter.run, keeper._runs[letter.run].store).refusals == 1


def _again(keeper: Keeper) -> Keeper:
    """The same site after its process was started anew."""
    return Keeper(
        keeper.me, server=keeper._server, rows=keeper._read, state=keeper._state, access=keeper._access, device="cpu"
    )


def test_after_ten_questions_that_a_site_could_not_answer_the_run_is_over_there(tmp_path, quick):
    held, post = consortium(tmp_path, quick)
    letter = until(held, post, tmp_path, "train", 2)
    keeper = post.box.keepers[B]
    run = keeper._runs[letter.run]
    question = asked(letter, "train", run.layout)
    broken = replace(
        question, shared={**question.shared, "class_weight": np.zeros(0)}
    )  # no such classes: the host breaks
    for k in range(3):
        again = replace(broken, id=AskId(letter.run, 2, 50 + k))
        assert peek_answer(send(keeper, letter, again, run.layout)) == codes.REFUSED
    run.refusals = keeper._access.policy.runs.refusals
    assert peek_answer(send(keeper, letter, question, run.layout)) == codes.REFUSED


@pytest.mark.parametrize(
    "other",
    [
        *({"epochs": 500}, {"batch": 1}, {"lr": 50.0}, {"seed": 3}, {"steps": 9}, {"l2": 1.0}, {"round": 7}),
        {"continue_epoch": True},
    ],
)
def test_training_with_numbers_that_are_not_the_plans_is_refused(other):
    plan = Experiment.parse({"data": DATA, "method": {"rounds": 3}, "train": {"steps": 2}}).plan()
    told = dict.fromkeys(
        ("epochs", "momentum", "weight_decay", "l2", "optimizer", "keep_optimizer", "augment", "batch")
    )
    told = {name: plan["train"][name] for name in told}
    work = {**told, "steps": 2, "seed": plan["seed"], "round": 1, "lr": plan["train"]["lr"]}
    ask = Ask("train", work, report=("model", "count", "steps"), id=AskId("x", 1, 0))
    Questions(plan, {}).check(ask)
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(replace(ask, shared={**work, **other}))
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(replace(ask, each={"b": other}))


@pytest.mark.parametrize(
    ("sections", "half", "allowed"),
    [
        ({"method": {"name": "sse-agg"}}, 1, True),
        ({"method": {"name": "sse-agg"}}, 2, True),
        ({"method": {"name": "sse-agg"}}, 3, False),
        ({"method": {"name": "sse-agg", "weigh": {"own_halves": False}}}, 1, False),
        ({"method": {"name": "sse-agg"}, "privacy": {"mechanism": "dp-sgd", "noise": 1.0}}, 1, False),
        ({}, 1, False),
    ],
)
def test_a_model_of_half_of_the_patients_is_sent_only_where_the_plan_says_so(sections, half, allowed):
    plan = Experiment.parse({"data": DATA, **sections}).plan()
    names = (
        "epochs",
        "momentum",
        "weight_decay",
        "l2",
        "optimizer",
        "keep_optimizer",
        "augment",
        "batch",
        "steps",
        "lr",
    )
    work = {**{n: plan["train"][n] for n in names}, "seed": plan["seed"], "round": 1}
    work |= {"clip": plan["privacy"]["clip"], "rate": plan["privacy"]["sampling_rate"]} if "privacy" in sections else {}
    ask = Ask("train", work, report=("model", "count", "steps"), id=AskId("x", 1, 0))
    Questions(plan, {}).check(ask)
    for halved in (replace(ask, shared={**work, OWN_HALF: half}), replace(ask, each={"b": {OWN_HALF: half}})):
        if allowed:
            Questions(plan, {}).check(halved)
        else:
            with refused("not-in-plan", kind=Refusal):
                Questions(plan, {}).check(halved)


PLAN = Experiment.parse({"data": DATA, "method": {"rounds": 3}}).plan()


def summarise(step: int, **ranges: np.ndarray) -> Ask:
    return Ask("summarise", ranges, report=("summary",), id=AskId("x", 0, step))


def test_ranges_are_named_once_in_a_run_also_after_a_restart():
    questions = Questions(PLAN, {})
    first = {"low": np.array([0.0, 1.0]), "high": np.array([5.0, 2.0])}
    questions.check(summarise(0))
    questions.check(summarise(1, **first))
    later = Questions(PLAN, json.loads(json.dumps(questions.facts())))
    later.check(summarise(2, **first))
    with refused("not-in-plan", kind=Refusal):
        later.check(summarise(3, **{**first, "high": np.array([5.0, 2.5])}))


def test_a_question_is_asked_no_more_often_than_declared():
    questions = Questions(PLAN, {})
    ask = Ask("evaluate", {}, report=("test", "figures"), id=AskId("x", 1, 0))
    for step in range(3 * REPEATS):
        questions.check(replace(ask, id=AskId("x", 1, step)))
    with refused("not-in-plan", kind=Refusal):
        questions.check(ask)
    questions.check(replace(ask, id=AskId("x", 2, 0)))  # another round has its own


@pytest.mark.parametrize(
    "ask",
    [
        Ask("platt", report=("sums",)),
        Ask("finetune", report=("model",)),
        Ask("score", report=("loss",)),
        Ask("train", report=("model", "val_loss")),
        Ask("veil.moments", report=("moments",)),
        Ask("evaluate", report=("test",), id=AskId("x", 9, 0)),
    ],
)
def test_what_the_plan_never_asks_is_refused(ask):
    with refused("not-in-plan", kind=Refusal):
        Questions(PLAN, {}).check(ask if ask.id else replace(ask, id=AskId("x", 1, 0)))


def test_a_secure_plan_has_no_model_in_the_clear():
    plan = Experiment.parse({"data": DATA, "privacy": {"secure": True}}).plan()
    ask = Ask("evaluate", report=("test", "figures"), withheld=("test",), id=AskId("x", 1, 0))
    Questions(plan, {}).check(ask)
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(replace(ask, withheld=()))


def test_a_column_with_few_values_inside_a_range_has_no_mean():
    """A range around nothing would count the values above it: here 4 of 10, and each bound moved tells another value."""
    rows = np.arange(10.0)[:, None]
    data = type("Rows", (), {"numeric": rows})()
    told = Moments.from_dataset(data, np.array([5.1]), np.array([5.2]), smallest=5)
    assert told.count.tolist() == [0] and told.mean.tolist() == [0] and told.m2.tolist() == [0]
    wide = Moments.from_dataset(data, np.array([1.0]), np.array([5.0]), smallest=5)
    assert wide.count.tolist() == [10] and wide.mean[0] == pytest.approx((1 + 1 + 2 + 3 + 4 + 5 * 5) / 10)


@pytest.mark.parametrize(
    ("weights", "hidden"),
    [
        ([0.949, 0.051, 1e-300, 1e-300, 1e-300], False),
        ([0.94, 0.05, 9.4e-4, 9.4e-4, 9.4e-4], False),
        ([0.94, 0.05, 0.01, 0, 0], True),
        ([0.96, 0.02, 0.02, 0, 0], False),
        ([0.2] * 5, True),
    ],
)
def test_three_sites_must_weigh_something_in_a_secure_sum(weights, hidden):
    assert hide(np.array(weights)[:, None], range(5), largest=0.95) is hidden
