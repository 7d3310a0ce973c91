"""Secure sums as a site pays for them: by the noise that is in them for certain, whatever the server says of the others."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import JoinedSum, WithheldAnswer, sum_cost
from grandrounds.core.errors import RunFailed
from grandrounds.methods.secure import SecureRule, exchange_identities, secure_sum
from grandrounds.privacy.accounting import skellam_rho
from grandrounds.privacy.secagg import Context, Scale, Secret, Skellam
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.packing import describe_layout
from grandrounds.site.ask_cost import Disclosure
from tests.capabilities.hospital.keeper.charges_support import STRICT, Guarded, Site, told
from tests.support import ready, stack

UPDATE = WithheldAnswer(
    {"update": Disclosure("mean update", ("training",), 2.0, 2.0, unit="site")}, describe_layout({"update": np.zeros(30)}), "x"
)
COUNTS = WithheldAnswer(
    {"counts": Disclosure("counts", ("validation",), 1.0, 50.0)}, describe_layout({"counts": np.zeros((2, 8), np.int64)}), "x"
)
QUARTER, PLAIN = JoinedSum(4, (0.25,)), JoinedSum(4, ())
ASKED = {"noise": 1.5, "bound": 2.0, "parties": 4, "bits": 32, "reports": ""}


def of(asked=(), held=UPDATE, joined=QUARTER, honest=None):
    (event,) = sum_cost({**ASKED, **dict(asked)}, held, joined, honest)
    return event


def expected(sigma: float, weight: float = 0.25, parties: int = 4) -> float:
    """As privacy/accounting.py says of the noise that three honest sites of four leave in the sum."""
    fewest = math.ceil(2 * parties / 3)
    spare = Skellam(1.5, fewest).room(parties)
    step = Scale(32, 2.0, parties, weighted=True, spare=spare).step
    return skellam_rho(sigma, sensitivity=2.0 * weight, step=step, dimension=30)


def test_a_weighted_sum_costs_by_the_sites_own_weight():
    assert of() == of(honest=3)
    assert of().rho == pytest.approx(expected(1.5)) and of().unit == "site" and of().trust == "secure aggregation"
    assert of(joined=JoinedSum(4, (0.5,))).rho == pytest.approx(expected(1.5, weight=0.5))


def test_only_the_noise_of_sites_that_are_taken_for_honest_counts():
    """Shares are sized for three honest survivors of four; a site that trusts nobody has a third of the variance."""
    assert of(honest=1).rho == pytest.approx(expected(1.5 / math.sqrt(3)))
    assert of(honest=2).rho == pytest.approx(expected(1.5 * math.sqrt(2 / 3)))
    assert of(honest=100) == of(honest=3)


def test_a_number_of_parties_that_is_a_lie_makes_the_shares_small_and_the_price_high():
    """The site adds a share for 667 honest sites of 1,000, but the roster it masked for has four."""
    event = of({"parties": 1000})
    assert event.rho == pytest.approx(expected(1.5 * math.sqrt(3 / 667), parties=1000))
    assert event.rho > 200 * of().rho
    noise, scale = Skellam(1.5, 667), Scale(32, 2.0, 1000, weighted=True, spare=Skellam(1.5, 667).room(1000))
    shares = [
        scale.from_ring(noise.share(scale, 4000, secret=Secret.simulated(0, s), context=Context("r", 1, "t")))
        for s in "abc"
    ]
    assert np.std(np.sum(shares, axis=0)) == pytest.approx(1.5 * math.sqrt(3 / 667), rel=0.05), "and so it is"


def test_whole_numbers_under_rounded_normal_shares_are_a_gaussian_release():
    event = of({"noise": 4.0, "bound": 2.0**31, "bits": 64}, COUNTS, PLAIN)
    assert (event.kind, event.sigma, event.of, event.unit) == ("gaussian", 4.0, "validation", "patient")
    assert of({"noise": 4.0, "bound": 2.0**26, "bits": 32}, COUNTS, PLAIN).kind == "skellam", (
        "few steps: exact Skellam draws"
    )


@pytest.mark.parametrize(
    "lie",
    [
        {"noise": 0.0},
        {"noise": float("nan")},
        {"noise": 1e-9},
        {"bound": 1.9},
        {"bound": float("nan")},
        {"bound": 1e30},
        {"bits": 16},
        {"parties": 0},
        {"parties": 2**30},
    ],
)
def test_sums_without_a_bound_are_no_noise(lie):
    assert of(lie).kind == "raw"


def test_what_the_account_does_not_know_is_no_noise():
    assert {e.of for e in sum_cost(ASKED, None, QUARTER, None)} == {"training", "validation", "test"}
    assert of(joined=None).kind == "raw"
    assert of(joined=JoinedSum(4, (0.2, 0.2))).kind == "raw"
    assert of(held=replace(UPDATE, disclosures={"update": Disclosure("a model", ("training",))})).kind == "raw"


def test_what_is_private_already_costs_nothing_in_a_sum():
    assert sum_cost({**ASKED, "noise": 0.0}, replace(UPDATE, disclosures={}), QUARTER, None) == ()


def private_sum(monkeypatch, folder, *, epsilon=1e6, terms=STRICT, tampered=lambda ask: ask, twice=False):
    """A round of clipped updates of four sites, added up with noise; a server that asks `twice` leaves one out later."""
    engine, _ = ready(stack([40, 50, 60, 45]), wire=True)
    guarded = Guarded(monkeypatch, folder, terms, epsilon=epsilon, tampered=tampered)
    work = {"seed": 0, "round": 1, "lr": 0.1, "steps": 3, "longest": 2.0, "model": engine.hosts[0].model.init(0)}

    def once():
        peers = yield from exchange_identities(engine.sites)
        rule = SecureRule(peers)
        answers = yield Ask("train", work, to=engine.sites, report=("update", "count"), withheld=("update",))
        weights = {"update": dict.fromkeys(answers.sites, 0.25)}
        yield from secure_sum(rule, answers, weights=weights, bound=2.0, noise=1.5)
        if twice:
            yield from secure_sum(rule, answers.only([0, 1, 2], {}), weights=weights, bound=2.0, noise=1.5, purpose="b")

    def go():
        engine.drive(once(), round=1)

    return guarded, go


def test_an_honest_sum_is_paid_once_when_it_is_masked(tmp_path, monkeypatch):
    guarded, go = private_sum(monkeypatch, tmp_path)
    go()
    for purse in guarded.purses.values():
        (event,) = purse.budget().events
        assert (event.kind, event.unit) == ("skellam", "site")


@pytest.mark.parametrize("lie", [{"noise": 0.0}, {"bound": 0.01}, {"bits": 8}])
def test_a_server_that_spoils_the_noise_gets_no_sum(lie, tmp_path, monkeypatch):
    """A bound below what values can be is an unpaid question about them: a site refuses what is beyond it."""
    spoilt = lambda ask: told(ask, **lie) if ask.task == "secagg.masked" else ask  # noqa: E731
    guarded, go = private_sum(monkeypatch, tmp_path, tampered=spoilt)
    with pytest.raises(RunFailed):
        go()
    assert set(guarded.refused) == {("secagg.masked", "not-private")}
    assert not any(purse.budget().events for purse in guarded.purses.values())


def test_a_server_that_lies_about_the_parties_is_refused_by_the_purse(tmp_path, monkeypatch):
    """Shares for a million sites are so small that a hundred times the honest price does not pay for the sum."""
    lie = lambda ask: told(ask, parties=10**6) if ask.task == "secagg.masked" else ask  # noqa: E731
    honest, go = private_sum(monkeypatch, tmp_path)
    go()
    price = max(p.spent() for p in honest.purses.values())
    monkeypatch.undo()
    (tmp_path / "lied").mkdir()
    guarded, go = private_sum(monkeypatch, tmp_path / "lied", epsilon=100 * price, tampered=lie)
    with pytest.raises(RunFailed):
        go()
    assert set(guarded.refused) == {("secagg.masked", "budget-spent")}


def test_another_sum_of_the_same_answer_is_refused_and_costs_all_the_same(tmp_path, monkeypatch):
    """Two sums that differ by a site would give it away; nothing leaves, and the charge stands: never too little."""
    guarded, go = private_sum(monkeypatch, tmp_path, twice=True)
    with pytest.raises(RunFailed):
        go()
    assert not guarded.refused
    assert sorted(len(p.budget().events) for p in guarded.purses.values()) == [1, 2, 2, 2]


def test_two_answers_by_one_id_leave_open_which_is_held(tmp_path):
    """A short clip told last would make a long update, held since before, look cheap."""
    site = Site(tmp_path, epsilon=100.0).prepared()
    long = site.training("update", held=("update",), rate=0.0, longest=1000.0)
    masked = site.numbered(Ask("secagg.masked", {"of": str(long.id), "tag": "t", **ASKED}, report=("masked", "error")))
    known = []
    for ask in (long, long, told(long, longest=0.01), long):
        site.ask(ask)
        known.append("mean update" in site.account.charges(masked)[0].what)
    assert known == [True, True, False, False]
    assert site.pay(masked).code == "not-private"


def test_a_roster_that_the_site_refused_is_not_one_it_shares_masks_with(tmp_path):
    """Of a thousand names that the site does not know, none adds noise."""
    site = Site(tmp_path, epsilon=100.0).prepared()
    ask = site.training("update", held=("update",), rate=0.0, longest=2.0)
    site.ask(ask)
    key = np.frombuffer(Identity.simulated(0, site.name).public, np.uint8)
    alone = {"names": json.dumps([site.name]), "identities": key[None]}
    site.ask(site.numbered(Ask("secagg.meet", alone, report=("met",)), round=0))
    names = [site.name, *(f"site {k:04d}" for k in range(999))]
    keys = np.zeros((1000, 10), np.uint8)
    roster = {"names": json.dumps(sorted(names)), "keys": keys, "threshold": 667, "weights": np.full((1000, 1), 1e-3)}
    for step, shared, report in (("keys", {}, ("keys", "error")), ("shares", roster, ("sealed", "error"))):
        columns = site.ask(site.numbered(Ask(f"secagg.{step}", {"tag": "t", **shared}, report=report)))
    assert columns["error"] == ["malformed"]
    masked = Ask("secagg.masked", {"of": str(ask.id), "tag": "t", **ASKED}, report=("masked", "error"))
    assert site.pay(site.numbered(masked)).code == "not-private"
