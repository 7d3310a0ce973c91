"""A budget says no before it is overspent, counts a repeated release once, and survives a checkpoint."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.privacy.accounting import Event, epsilon_of, noise_for
from grandrounds.privacy.budget import Budget, Overspent
from tests.support import refused

DELTA = 1e-5
ROUND = Event("sampled_gaussian", "models of the sites", count=10, sigma=4.0, rate=0.1)
PLATT = Event("gaussian", "Platt sums", count=6, sigma=12.0, of="validation")


def test_it_stops_before_the_limit_and_keeps_what_was_spent():
    budget = Budget(1.0, DELTA)
    with refused("budget-overspent", kind=Overspent) as refusal:
        for _ in range(1000):
            budget.charge(ROUND)
    rounds = len(budget.events)
    assert budget.spent() <= 1.0 < budget.would(ROUND)
    assert 5 < rounds < 1000
    assert budget.spent() == epsilon_of([ROUND] * rounds, DELTA)
    assert isinstance(refusal.value, RunFailed)
    for part in ("models of the sites", f"{budget.would(ROUND):.4g}; the budget is 1", f"{budget.spent():.4g} is spent", "left"):
        assert part in str(refusal.value)


def test_calibrated_noise_lasts_exactly_as_many_rounds_as_it_was_sized_for():
    noise = noise_for(2.0, DELTA, steps=60, rate=0.2)
    budget = Budget(2.0, DELTA)
    event = Event("sampled_gaussian", "models", count=3, sigma=noise, rate=0.2)
    for _ in range(20):
        budget.charge(event)
    assert budget.spent() > 1.99
    with refused("budget-overspent", kind=Overspent):
        budget.charge(event)


@pytest.mark.parametrize("parts", [3, 7, 10, 49])
def test_a_budget_split_evenly_is_all_spent_and_not_refused_for_rounding(parts):
    budget = Budget(0.7, 0.0)
    for _ in range(parts):
        budget.charge(Event("exponential", "draws", epsilon=0.7 / parts))
    assert budget.spent() == pytest.approx(0.7)
    with refused("budget-overspent", kind=Overspent):
        budget.charge(Event("exponential", "draws", epsilon=1e-6))


def test_asking_what_it_would_cost_costs_nothing():
    budget = Budget(1.0, DELTA)
    assert budget.would(ROUND) == epsilon_of([ROUND], DELTA)
    assert budget.events == () and budget.spent() == 0.0


def test_a_repeated_round_is_not_a_second_release():
    budget = Budget(5.0, DELTA)
    budget.charge(ROUND, key="run 1, round 3: models")
    budget.charge(ROUND, key="run 1, round 3: models")
    assert budget.events == (ROUND,)
    budget.charge(ROUND, key="run 1, round 4: models")
    assert budget.events == (ROUND, ROUND)
    with refused("repeated-release"):
        budget.charge(PLATT, key="run 1, round 3: models")


def test_a_refused_release_may_be_asked_for_again_with_more_noise():
    budget = Budget(0.5, DELTA)
    with refused("budget-overspent", kind=Overspent):
        budget.charge(Event("gaussian", "sums", sigma=1.0), key="sums")
    assert not budget.has("sums")
    budget.charge(Event("gaussian", "sums", sigma=50.0), key="sums")
    assert budget.has("sums")


def test_several_releases_are_charged_all_or_none():
    budget = Budget(1.0, DELTA)
    with refused("budget-overspent", kind=Overspent):
        budget.charge([ROUND, Event("laplace", "counts", epsilon=3.0)], key="round 1")
    assert budget.events == ()
    budget.charge([ROUND, Event("laplace", "counts", epsilon=0.1)], key="round 1")
    assert len(budget.events) == 2


def test_validation_patients_have_a_budget_of_their_own():
    budget = Budget(1.5, DELTA)
    while budget.would(ROUND) <= 1.5:
        budget.charge(ROUND)
    budget.charge(PLATT)
    assert budget.spent("validation") == epsilon_of([PLATT], DELTA)
    assert budget.spent("test") == 0.0
    with refused("budget-overspent", match="training rows", kind=Overspent):
        budget.charge(ROUND)


def test_without_a_limit_it_only_counts():
    budget = Budget(None, DELTA)
    budget.charge(ROUND)
    budget.charge(Event("raw", "signs of weights"))
    assert budget.spent() == math.inf and len(budget.events) == 2


def test_a_raw_release_is_refused_under_a_limit():
    budget = Budget(100.0, DELTA)
    with refused("budget-overspent", match="'validation loss' would be released without noise", kind=Overspent):
        budget.charge(Event("raw", "validation loss"))
    assert budget.events == ()


def test_a_resumed_run_goes_on_where_it_stood():
    budget = Budget(1.0, DELTA)
    for i in range(4):
        budget.charge(ROUND, key=f"round {i}")
    budget.charge(PLATT)
    again = Budget.from_dict(json.loads(json.dumps(budget.to_dict())))
    assert again.events == budget.events and again.epsilon == 1.0 and again.delta == DELTA
    assert again.spent() == budget.spent()
    again.charge(ROUND, key="round 3")
    assert again.events == budget.events
    assert again.would(ROUND) == budget.would(ROUND)


def test_a_new_process_finds_the_same_number_to_the_bit():
    """What is kept between rounds to be quick is no part of the result."""
    budget = Budget(5.0, DELTA)
    for _ in range(13):
        budget.charge([ROUND, Event("exponential", "draws", count=2, epsilon=0.05)])
        spent = budget.spent()
    code = (
        "import json, sys\n"
        "from grandrounds.privacy.budget import Budget\n"
        "print(repr(Budget.from_dict(json.load(sys.stdin)).spent()))"
    )
    told = json.dumps(budget.to_dict())
    again = subprocess.run([sys.executable, "-c", code], input=told, capture_output=True, text=True, check=True)
    assert float(again.stdout) == spent


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": 2},
        {"events": None},
        {"events": [{"kind": "gaussian", "what": "x", "sigma": "much"}]},
        {"keys": []},
        {"keys": {"a": 1}},
        {"delta": None},
        {"delta": 2.0},
        {"epsilon": "1"},
        {"epsilon": -1.0},
    ],
)
def test_a_damaged_budget_is_never_read_as_an_empty_one(damage):
    with pytest.raises(BadInput):
        Budget.from_dict(Budget(1.0, DELTA).to_dict() | damage)
    with refused("damaged-budget"):
        Budget.from_dict({})


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, DELTA), (math.nan, DELTA), (math.inf, DELTA), (1.0, 1.0), (1.0, -0.1)]
)
def test_limits_that_make_no_sense_are_refused(epsilon, delta):
    with pytest.raises(BadInput):
        Budget(epsilon, delta)
