"""What a dishonest server may try with one site: each is stopped by the site's own purse or for want of noise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.accounting.account import Account
from grandrounds.core.errors import BadInput
from grandrounds.methods.veil.site import CENSUS, MOMENTS, PROPOSE, SCORES
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event
from grandrounds.privacy.site_budget import SiteBudget
from grandrounds.protocol.messages import UPLOAD, Ask, AskId
from grandrounds.site.dp_sgd import add_clipped
from tests.capabilities.hospital.keeper.charges_support import DELTA, NOBODY, STRICT, Site, told
from tests.support import refused

PRICE = epsilon_of([Event("sampled_gaussian", "x", count=5, sigma=2.0, rate=0.1)], DELTA)
"""Of one Ask as `Site.training` makes it."""


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path).prepared()


@pytest.mark.parametrize(
    "lie",
    [
        {"noise": 0.0},
        {"noise": 1e-9},
        {"noise": float("nan")},
        {"noise": float("inf")},
        {"clip": 1e-44},
        {"clip": 1e30},
        {"clip": float("nan")},
        {"rate": 0.0},
        {"rate": 1e-300},
        {"rate": float("nan")},
        {"rate": 2.0},
        {"steps": -5},
        {"steps": 10**12},
        {"steps": 0, "epochs": 10**12},
        {"steps": 0, "epochs": -1},
    ],
)
def test_numbers_that_no_promise_holds_for_are_no_noise(site, lie):
    assert site.pay(site.training(**lie)).code == "not-private"
    assert not site.purse.budget().events


def test_a_clip_among_the_smallest_floats_does_not_clip(site):
    """Why there is a least clip: in single precision a vector is rounded up to more than its length."""
    model, part = site.host.model, site.host.stack.parts["train"]

    def longest(clip: float) -> float:
        lengths = []
        for i in range(40):
            theta, total = (np.zeros((1, len(site.model)), np.float32) for _ in range(2))
            row = (part.x[None, i : i + 1], part.target[None, i : i + 1], np.ones((1, 1), np.float32))
            add_clipped(model, model.layers(theta), model.layers(total), *row, clip=clip)
            lengths.append(np.linalg.norm(total.astype(float)))
        return max(lengths) / clip

    assert longest(1e-44) > 1.1 and longest(1e-6) <= 1 and longest(1.0) <= 1


@pytest.mark.parametrize("lie", [{"noise": 0.3}, {"rate": 1.0}, {"steps": 10**6}, {"steps": 0, "epochs": 1000}])
def test_little_noise_and_many_steps_cost_what_they_are(site, lie):
    assert site.pay(site.training()).code == ""
    assert site.pay(site.training(**lie)).code == "budget-spent"
    assert site.purse.spent() == pytest.approx(PRICE)


def test_a_site_with_too_few_rows_takes_no_step_and_pays_nothing(site):
    answer = site.ask(site.training(fewest=10**9))
    assert np.array_equal(answer["model"][0], site.model) and answer["error"] == ["too-few-rows"]
    assert not site.purse.budget().events


def test_it_is_on_disk_before_the_site_is_asked(site):
    ask = site.training()
    assert site.pay(ask).new
    assert SiteBudget(site.purse.path).budget().events == site.account.charges(ask)
    assert site.purse.spent() == pytest.approx(PRICE)


def test_the_same_ask_costs_nothing_more_and_is_not_new(site):
    ask = site.training()
    assert [site.pay(ask).new for _ in range(3)] == [True, False, False]
    assert site.pay(replace(ask, deadline=5.0)).new is False
    assert site.purse.spent() == pytest.approx(PRICE)


@pytest.mark.parametrize("other", [{"lr": 0.2}, {"committed": 7}, {"seed": 1}, {"class_weight": np.array([0.0, 1.0])}])
def test_the_same_id_with_other_content_is_another_release(site, other):
    """Its answer would have noise of its own, and the mean of two answers has less."""
    ask = site.training()
    once, again = site.ask(ask), site.ask(told(ask, **other))
    assert not np.array_equal(once["model"], again["model"])
    assert len(site.purse.budget().events) == 2


def test_an_answer_that_was_lost_is_paid_for_again(site):
    """A server that has a run closed and opened again, and its cache emptied, gets other noise: that is a second release."""
    ask = site.training()
    assert [site.pay(ask, lost=True).new for _ in range(3)] == [True, True, True]
    assert len(site.purse.budget().events) == 3
    done = [site.pay(ask, lost=True).code for _ in range(40)]
    assert done[-1] == "budget-spent"


def test_a_round_repeated_under_new_ids_is_paid_every_time(site):
    asks = [site.training() for _ in range(40)]
    done = [site.pay(ask).code for ask in asks]
    paid = done.index("budget-spent")
    assert set(done[:paid]) == {""} and set(done[paid:]) == {"budget-spent"}
    one = Event("sampled_gaussian", "x", count=5 * paid, sigma=2.0, rate=0.1)
    assert epsilon_of([one], DELTA) <= 1.0 < epsilon_of([replace(one, count=5 * (paid + 1))], DELTA)


def test_another_name_of_the_run_is_paid_from_the_same_purse(site):
    done = [site.pay(site.training(run=f"run {k}")).code for k in range(40)]
    assert done[0] == "" and done[-1] == "budget-spent" and site.purse.spent() <= 1.0


def test_a_run_has_a_limit_of_its_own_beside_the_purse(site):
    asks = [site.training(run="first") for _ in range(4)]
    done = [site.pay(ask, each_run=1.5 * PRICE).code for ask in asks]
    assert done[0] == "" and done[-1] == "budget-spent"
    assert site.pay(asks[0], each_run=1.5 * PRICE).new is False
    assert site.pay(site.training(run="second"), each_run=1.5 * PRICE).code == ""


def test_counts_of_scores_with_an_epsilon_too_small_to_draw_have_no_noise(site):
    """Noise of that size cannot be drawn: the site refuses it, and does not answer without noise."""
    shared = {"model": site.model, "edges": np.linspace(-8, 8, 9), "by_outcome": True, "epsilon": 1e-300}
    ask = site.numbered(Ask("platt", shared, report=("counts",)))
    with refused("bad-noise-scale"):
        site.host.answer(ask, NOBODY)
    assert site.pay(ask).code == "not-private"
    assert site.pay(told(ask, epsilon=0.5)).code == ""
    assert site.purse.budget().events == (
        Event("laplace", "validation scores by outcome", epsilon=0.5, of="validation"),
    )
    assert site.pay(told(ask, epsilon=50.0)).code == "budget-spent"


@pytest.mark.parametrize(
    "work",
    [
        {"noise": 2.0, "rate": 0.0},
        {"rate": 0.0, "keep_optimizer": True},
        {"rate": 0.0, "longest": 1.0},
        {"rate": 0.0, "longest": 1.0, "gradient_noise": 3.0},
    ],
)
def test_a_site_that_trained_without_noise_makes_nothing_private_of_it_later(site, work):
    """Held back it tells nothing, but the optimiser's memory is of raw gradients and would be in the next model."""
    assert site.pay(site.training()).code == ""
    quiet = site.training("update", "count", held=("update",), **work)
    assert site.ask(quiet)["count"] == len(site.stack.rows[0].train)
    assert site.account.facts() == {"unbounded": True}
    assert site.pay(site.training(keep_optimizer=True, round=2)).code == "not-private"
    assert site.pay(site.training(fewest=10**9, round=2)).code == "not-private"
    again = Account(site.host, STRICT, **site.account.facts())
    assert again.pay(site.training(round=2), site.purse, required=True).code == "not-private"


def test_models_that_are_kept_for_later_are_paid_for_when_they_are_trained(site):
    kept = site.training("count", keep=True)
    site.ask(kept)
    assert site.purse.spent() == pytest.approx(PRICE)
    upload = site.numbered(Ask(UPLOAD, {"of": str(kept.id)}, report=("model",)))
    assert site.ask(upload)["model"].shape == (1, len(site.model))
    assert site.purse.spent() == pytest.approx(PRICE)
    site.ask(site.training("count", keep=True, rate=0.0))
    assert site.pay(upload).code == "not-private"


@pytest.mark.parametrize(
    ("report", "rows"), [("val_loss", {"validation"}), ("local", {"test"}), ("something new", {"training", "test"})]
)
def test_a_private_model_does_not_pay_for_figures_of_own_rows(site, report, rows):
    bare = [e for e in site.account.charges(site.training("model", report)) if e.kind == "raw"]
    assert rows <= {e.of for e in bare}
    assert not [e for e in site.account.charges(site.training("model", "sketch", "variate")) if e.kind == "raw"]


@pytest.mark.parametrize(
    "said", [{"attribute": "{}", "attribute_on": ""}, {"attribute_judged": ""}, {"attribute_judged": "x", "rate": 0.0}]
)
def test_reasons_and_accuracy_are_told_even_where_they_are_held(site, said):
    """A site compares what it is shown with what it found: to ask until it agrees is to ask for the number."""
    ask = site.training("count", held=("shap", "trust"), **said)
    assert site.pay(ask).code == "not-private"


def test_clipped_sums_cost_by_the_clipping_that_the_ask_names(site):
    """Sensitivities worked out by hand; noise of 30 on a vector no longer than 3 is ten times what a patient can change."""

    def sigma(task, **shared):
        (event,) = site.account.charges(
            site.numbered(Ask(task, {"value": 1.0, "noise": 30.0, **shared}, report=("x",)))
        )
        return event.sigma if event.kind == "gaussian" else None

    assert sigma(SCORES, norm=3.0) == pytest.approx(10)
    assert sigma(CENSUS) == pytest.approx(30 / 2**0.5)
    assert sigma(CENSUS, norm=6.0) == pytest.approx(30 / 3**0.5)
    assert sigma(MOMENTS, norm=2.0, outcome=2.0, prior=0.3) == pytest.approx(30 / (2 * 8**0.5))
    assert sigma(MOMENTS, norm=2.0, outcome=2.0, prior=100.0) == pytest.approx(30 / (2 * (4 + 4e4) ** 0.5))
    for lie in (
        {"norm": 1e-320},
        {"norm": float("inf")},
        {"norm": 3.0, "value": float("inf")},
        {"norm": 3.0, "noise": 0.0},
    ):
        assert sigma(SCORES, **lie) is None


@pytest.mark.parametrize(
    "lie", [{"epsilon": 0.0}, {"epsilon": 1e-300}, {"selection": "paper"}, {"value": 1e-300}, {"k": 0}]
)
def test_proposals_are_paid_by_the_draw(site, lie):
    ask = site.numbered(Ask(PROPOSE, {"selection": "score", "k": 4, "epsilon": 0.1, "value": 1.0}, report=("votes",)))
    (event,) = site.account.charges(ask)
    assert (event.kind, event.count, event.epsilon) == ("exponential", 4, 0.1)
    assert site.pay(told(ask, **lie)).code == "not-private"


def test_a_promise_to_sites_and_one_to_patients_share_no_purse(tmp_path):
    site = Site(tmp_path, terms=replace(STRICT, trust_server=True, declared=30.0), epsilon=1.0).prepared()
    assert site.pay(site.training(rate=0.0, longest=1.0)).code == ""
    assert {e.unit for e in site.purse.budget().events} == {"site"}
    site.account = Account(site.host, STRICT)
    assert site.pay(site.training()).code == "not-private"


def test_rows_that_a_server_can_deal_anew_pay_for_each_other(tmp_path):
    """Who is a test patient of one run is a training patient of the next: nobody is left out, and epsilons add up."""
    site = Site(tmp_path, terms=replace(STRICT, own_split=False)).prepared()
    assert site.pay(site.numbered(Ask("evaluate", {"model": site.model}, report=("test",)))).code == "not-private"
    site.pay(site.training())
    counts = Ask("platt", {"epsilon": 0.3, "edges": np.ones(2), "by_outcome": False}, report=("counts",))
    assert site.pay(site.numbered(counts)).code == ""
    spent = {of: site.purse.spent(of) for of in ("training", "validation", "test")}
    assert len(set(spent.values())) == 1 and spent["test"] > 1.01 * max(PRICE, 0.3)


def test_without_a_purse_nothing_with_a_price_leaves(site):
    assert site.account.pay(site.training(), None, required=True).code == "not-private"
    site.purse.path.write_text("{")
    with refused("damaged-budget"):
        site.pay(site.training())


@pytest.mark.parametrize(
    "ask",
    [
        Ask("train", {"rate": "much"}, report=("model",)),
        Ask("train", {}, report=("model",)),
        Ask("prepare", {"encoding": "[1"}, report=("train_rows",)),
        Ask("prepare", {"encoding": json.dumps({"numeric": [1]})}, report=("train_rows",)),
        Ask("platt", {"epsilon": np.ones(3)}, report=("counts",)),
        Ask("veil.scores", {"norm": "x"}, report=("scores",)),
    ],
)
def test_an_ask_out_of_form_is_refused_in_words(site, ask):
    with refused("malformed-ask"):
        site.pay(ask.numbered(AskId("run", 1, 0), (site.name,)))


def test_the_same_calibration_asked_for_again_is_charged_again(site):
    """Review H2, at a site: other noise is another release, whatever the server's account says of it."""
    counts = Ask(
        "platt",
        {"model": site.model, "epsilon": 0.3, "edges": np.linspace(-8, 8, 33), "by_outcome": False},
        report=("counts",),
    )
    asks = [site.numbered(counts, round=r) for r in (4, 5, 6, 7)]
    for spent, ask in enumerate(asks[:3], 1):
        site.ask(ask)
        assert site.purse.spent("validation") == pytest.approx(0.3 * spent, rel=1e-3)
    assert site.pay(asks[0]).new is False and site.purse.spent("validation") == pytest.approx(0.9, rel=1e-3)
    with pytest.raises(BadInput, match="budget-spent"):
        site.ask(asks[3])
