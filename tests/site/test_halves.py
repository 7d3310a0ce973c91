"""Training on one half of a site's own patients, as a site that is suspected of harm is asked to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grandrounds.data.split import Rows
from grandrounds.protocol.messages import OWN_HALF, Answers, Ask
from grandrounds.site.stack import Stack
from tests.support import ready, stack

SIZES = [60, 43, 30]
WORK = {"seed": 3, "round": 1, "lr": 0.1, "steps": 4, "batch": 8}


def train(held: Stack, *, wire: bool = False, each: Any = None, like: Stack | None = None, **work) -> Answers:
    """One round at all sites of `held`, prepared as the sites of `like` agreed."""
    engine, _ = ready(like or held, wire=wire)
    if like is not None:
        engine.hosts[0].stack = replace(held, parts={**engine.hosts[0].stack.parts, **prepared(engine.hosts[0].stack, held)})
    theta = engine.hosts[0].model.init(0)

    def once():
        return (yield Ask("train", shared={**WORK, **work, "model": theta}, each=each or {}, report=("model", "count")))

    return engine.drive(once(), round=1)


def prepared(before: Stack, after: Stack) -> dict[str, Any]:
    """The training rows of `after`, which are some of those of `before`."""
    chosen = np.concatenate([np.isin(b.train, a.train) for b, a in zip(before.rows, after.rows, strict=True)])
    return {"train": before.parts["train"].only(chosen)}


def left(held: Stack, half: int) -> Stack:
    """The same sites, of which b holds one half of its patients."""
    first, own = held.first_half(1), held.rows[1]
    mine = own.train[first if half == 1 else ~first]
    return replace(held, rows=(held.rows[0], Rows(mine, own.val, own.test), held.rows[2]))


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("half", [1, 2])
def test_a_site_trains_on_the_half_it_is_asked_for_and_still_counts_all_rows(half, wire):
    held = stack(SIZES)
    found = train(held, wire=wire, each={"b": {OWN_HALF: half}})
    alone = train(left(held, half), like=held)
    whole = train(held)
    np.testing.assert_allclose(found["model"], alone["model"], rtol=1e-6)
    assert np.asarray(found["count"]).tolist() == [58, 41, 28]
    same = [np.allclose(a, b) for a, b in zip(found["model"], whole["model"], strict=True)]
    assert same == [True, False, True], "the others train on all of theirs"


@pytest.mark.parametrize("work", [{"longest": 0.5}, {"rate": 0.5, "noise": 1.0, "clip": 1.0, "epochs": 1}])
def test_a_promise_that_rests_on_all_rows_is_not_given_for_half_of_them(work):
    held = stack(SIZES)
    asked, whole = (train(held, each=each, **work) for each in ({"b": {OWN_HALF: 1}}, {}))
    np.testing.assert_array_equal(asked["model"], whole["model"])


def test_a_patient_stays_in_its_half_whoever_else_is_there():
    held = stack(SIZES)
    own = held.rows[0]
    whole = dict(zip(own.train.tolist(), held.first_half(0).tolist(), strict=True))
    assert 15 < sum(whole.values()) < 43
    for gone in (0, 17, 57):
        rows = Rows(np.delete(own.train, gone), own.val, own.test)
        fewer = replace(held, rows=(rows, *held.rows[1:]))
        assert all(whole[r] == f for r, f in zip(rows.train.tolist(), fewer.first_half(0).tolist(), strict=True))
    alone = held.alone(0)
    assert alone.first_half(0).tolist() == list(whole.values()), "a hospital by itself finds the same halves"


def test_the_rows_of_one_patient_are_in_one_half():
    held = stack(SIZES)
    patient = np.array([f"p{k // 3}" for k in range(len(held.data))], object)
    known = replace(held, data=replace(held.data, patient=patient))
    for k, rows in enumerate(known.rows):
        half = known.first_half(k)
        for name in np.unique(patient[rows.train].astype(str)):
            assert len(set(half[patient[rows.train] == name].tolist())) == 1
