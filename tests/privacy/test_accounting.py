"""The accountant against closed forms, numerical integration, other libraries, and exact small mechanisms."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ive, logsumexp

from grandrounds.core.errors import BadInput
from grandrounds.privacy import composition
from grandrounds.privacy.accounting import Event, epsilon_of, noise_for, skellam_rho, statement, total_rho
from grandrounds.privacy.composition import ORDERS, WHOLE, curve, tallied
from tests.support import refused

DELTA = 1e-5


def normal(count: int = 1, sigma: float = 1.0, rate: float = 1.0) -> Event:
    return Event("sampled_gaussian", "a step", count=count, sigma=sigma, rate=rate)


def draws(count: int, epsilon: float) -> Event:
    return Event("exponential", "draws", count=count, epsilon=epsilon)


def renyi(p, q, order: float) -> float:
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))


def hockey_stick(epsilon: float, sigma: float) -> float:
    """delta of one Gaussian release at any epsilon (Balle & Wang 2018, theorem 8)."""
    a, b = 1 / (2 * sigma), epsilon * sigma
    return float(stats.norm.cdf(a - b) - np.exp(epsilon) * stats.norm.cdf(-a - b))


# Gaussian noise


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("sigma", "count"), [(0.5, 1), (1.0, 1), (4.0, 1), (20.0, 1), (5.0, 12), (50.0, 400)])
def test_gaussian_noise_is_the_analytic_gaussian_mechanism(sigma, count, delta):
    exact = brentq(lambda e: hockey_stick(e, sigma / math.sqrt(count)) - delta, 0, 100, xtol=1e-12)
    assert epsilon_of([Event("gaussian", "sums", count=count, sigma=sigma)], delta) == pytest.approx(exact, rel=1e-6)
    found = composition.losses(tallied([normal(count, sigma)]), delta)
    assert exact * (1 - 1e-6) <= found <= 1.02 * exact
    assert composition.renyi(tallied([normal(count, sigma)]), delta) >= exact


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 1.0), (0.5, 0.7), (0.02, 0.6)])
def test_one_sampled_step_covers_adding_and_removing(rate, sigma):
    """Hockey-stick divergences integrated numerically, in both directions: the larger epsilon is what holds."""
    x = np.linspace(-14, 15, 400_001)
    without = stats.norm.pdf(x, 0, sigma)
    within = (1 - rate) * without + rate * stats.norm.pdf(x, 1, sigma)

    def exact(p, q) -> float:
        return brentq(lambda e: np.trapezoid(np.maximum(p - np.exp(e) * q, 0), x) - DELTA, 0, 60)

    removed, added = exact(within, without), exact(without, within)
    assert removed > added
    assert removed * (1 - 1e-4) <= epsilon_of([normal(1, sigma, rate)], DELTA) <= 1.01 * removed


SETTINGS = [
    (0.01, 0.8, 1000, 1e-5),
    (0.01, 1.1, 10_000, 1e-6),
    (0.1, 1.0, 200, 1e-5),
    (0.1, 6.0, 2000, 1e-5),
    (0.5, 8.0, 300, 1e-4),
    (1.0, 30.0, 100, 1e-5),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), SETTINGS)
def test_private_training_agrees_with_opacus(rate, sigma, steps, delta):
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.RDPAccountant()
    theirs.history = [(sigma, rate, steps)]
    ours = composition.renyi(tallied([normal(steps, sigma, rate)]), delta, whole_orders=True)
    orders = [int(a) for a in ORDERS[WHOLE]]
    assert ours == pytest.approx(theirs.get_epsilon(delta, alphas=orders), rel=1e-6)
    assert 0.75 * theirs.get_epsilon(delta) < epsilon_of([normal(steps, sigma, rate)], delta)
    assert epsilon_of([normal(steps, sigma, rate)], delta) <= theirs.get_epsilon(delta) * (1 + 1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), SETTINGS[:4])
def test_loss_distributions_agree_with_another_numerical_accountant(rate, sigma, steps, delta):
    accountants = pytest.importorskip("opacus.accountants")
    theirs = accountants.PRVAccountant()
    theirs.history = [(sigma, rate, steps)]
    upper = theirs.get_epsilon(delta, eps_error=0.01)
    assert epsilon_of([normal(steps, sigma, rate)], delta) == pytest.approx(upper, abs=0.03)


def test_rounds_charged_one_by_one_are_the_whole_training():
    whole = epsilon_of([normal(700, 3.0, 0.1)], DELTA)
    assert epsilon_of([normal(7, 3.0, 0.1)] * 100, DELTA) == pytest.approx(whole, rel=1e-4)


# Pure releases


@settings(max_examples=150, deadline=None)
@given(
    scores=st.lists(st.floats(-6, 6), min_size=2, max_size=6),
    moves=st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    epsilon=st.floats(0.05, 8),
)
def test_exponential_mechanisms_stay_below_an_eighth_of_epsilon_squared(scores, moves, epsilon):
    """The bounded-range bound, on exact Renyi divergences of small mechanisms with neighbouring scores."""
    found = []
    for s in (np.array(scores), np.array(scores) + np.array(moves[: len(scores)])):
        p = np.exp((s - s.max()) * epsilon / 2)
        found.append(p / p.sum())
    bound = curve(composition.Release("exponential", 0.0, 1.0, epsilon, None))
    for order, most in zip(ORDERS[::7], bound[::7], strict=True):
        exact = renyi(*found, order)
        assert exact <= most * (1 + 1e-9) + 1e-12
        assert most <= order * epsilon**2 / 8 + 1e-12


def test_randomised_response_needs_half_of_epsilon_squared():
    """It is the worst pure mechanism: above the bound that exponential mechanisms have, and below its own."""
    epsilon = 1.0
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    p, q = [keep, 1 - keep], [1 - keep, keep]
    bound = curve(composition.Release("randomised_response", 0.0, 1.0, epsilon, None))
    exact = np.array([renyi(p, q, a) for a in ORDERS[ORDERS < 100]])
    assert (exact <= bound[ORDERS < 100] + 1e-12).all()
    assert (exact[ORDERS[ORDERS < 100] < 3] > ORDERS[ORDERS < 3] * epsilon**2 / 8).all()


@pytest.mark.parametrize(("epsilon", "first"), [(1.0, 5), (5.0, 6), (10.0, 8)])
def test_few_draws_add_up_and_many_compose(epsilon, first):
    """The number of draws from which zCDP lets each be larger than epsilon / draws."""
    rho = total_rho(epsilon, DELTA)
    by_zcdp = [k for k in range(1, 20) if math.sqrt(8 * rho / k) > epsilon / k]
    assert by_zcdp == list(range(first, 20))
    few, many = draws(first - 2, epsilon / (first - 2)), draws(100, epsilon / 100)
    assert epsilon_of([few], DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert composition.renyi(tallied([few]), DELTA) > epsilon
    assert epsilon_of([many], DELTA) < epsilon / 2


def test_pure_releases_need_no_delta_and_normal_ones_do():
    laplace = Event("laplace", "counts", count=3, epsilon=0.2)
    assert epsilon_of([laplace], 0.0) == pytest.approx(0.6)
    assert epsilon_of([laplace, normal()], 0.0) == math.inf


def test_pure_and_normal_releases_together_against_the_exact_divergence():
    """Randomised response shifts a Gaussian's loss by plus or minus its own epsilon."""
    sigma, pure = 1.5, 0.7
    keep = np.exp(pure) / (1 + np.exp(pure))

    def delta(e: float) -> float:
        return keep * hockey_stick(e - pure, sigma) + (1 - keep) * hockey_stick(e + pure, sigma)

    exact = brentq(lambda e: delta(e) - DELTA, 0, 50)
    both = [normal(1, sigma), Event("randomised_response", "answers", epsilon=pure)]
    assert exact * (1 - 1e-6) <= epsilon_of(both, DELTA) <= 1.01 * exact
    assert epsilon_of(both, DELTA) <= epsilon_of(both[:1], DELTA) + pure + 1e-9


# Skellam noise


@pytest.mark.parametrize("mu", [2.0, 9.0, 60.0, 1000.0])
@pytest.mark.parametrize("shift", [2, 5])
def test_skellam_noise_stays_below_its_rho(mu, shift):
    """Exact Renyi divergences of whole orders; a sensitivity of shift - 1 steps and one step of rounding."""
    rho = skellam_rho(math.sqrt(mu), sensitivity=shift - 1.0, step=1.0, dimension=1)
    reach = int(12 * math.sqrt(mu) + 60)
    k = np.arange(-reach, reach + 1)
    with np.errstate(divide="ignore"):
        p, q = np.log(ive(np.abs(k), mu)), np.log(ive(np.abs(k - shift), mu))
    seen = np.isfinite(p) & np.isfinite(q)
    for order in (2, 3, 5, 8):
        exact = np.log(np.sum(np.exp(order * p[seen] + (1 - order) * q[seen]))) / (order - 1)
        assert exact <= order * rho
        assert mu < 9 or exact > 0.5 * order * shift**2 / (2 * mu)


def test_rho_of_a_secure_sum_by_hand():
    """Sensitivity 3 on a grid of 1/2 in four entries: D2 = 8, D1 = 16, mu = 400."""
    rho = skellam_rho(10.0, sensitivity=3.0, step=0.5, dimension=4)
    assert rho == pytest.approx(64 / 800 + 64 / (2 * 400**2) + 1.5 * 16 / 400**2)
    fine = skellam_rho(10.0, sensitivity=3.0, step=1e-7, dimension=4)
    assert fine == pytest.approx(9 / 200, rel=1e-5)


@pytest.mark.parametrize("parts", [1, 3, 6])
def test_sums_of_rounded_normal_shares_are_no_worse_than_the_gaussian(parts):
    """What `Skellam` draws at large variances, here at small ones where a difference could show."""
    k = np.abs(np.arange(-90, 91))
    one = stats.norm.sf((k - 0.5) / 3) - stats.norm.sf((k + 0.5) / 3)
    total = one
    for _ in range(parts - 1):
        total = np.convolve(total, one)
    shift, variance = 4, 9 * parts
    p, q = total[shift:], total[:-shift]
    seen = (p > 1e-250) & (q > 1e-250)
    for order in (1.5, 2, 4):
        divergence = renyi(p[seen], q[seen], order)
        assert 0.9 * order * shift**2 / (2 * variance) < divergence
        assert divergence <= order * shift**2 / (2 * variance) * (1 + 1e-6)


def test_skellam_noise_composes_at_whole_orders_only():
    rho = 0.3
    sums = Event("skellam", "sums", rho=rho, trust="secure aggregation")
    assert np.isinf(curve(composition.Release("skellam", 0.0, 1.0, 0.0, rho))[~WHOLE]).all()
    assert epsilon_of([sums], DELTA) >= epsilon_of([Event("gaussian", "sums", sigma=1.0, rho=rho)], DELTA)
    with refused("missing-rho"):
        Event("skellam", "sums", sigma=2.0)


# Budgets


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0, 15.0])
def test_total_rho_is_the_most_that_fits(epsilon):
    rho = total_rho(epsilon, DELTA)
    assert epsilon_of([Event("skellam", "sums", rho=rho)], DELTA) <= epsilon
    assert epsilon_of([Event("skellam", "sums", rho=1.001 * rho)], DELTA) > epsilon
    # Bun & Steinke's plainer conversion rho + 2 sqrt(rho ln(1/delta)) is never better
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("epsilon", "steps", "rate"), [(1.0, 100, 0.1), (3.0, 2000, 0.02), (8.0, 50, 0.5), (0.5, 1, 1.0), (2.0, 40, 1.0)]
)
def test_noise_for_is_the_least_that_keeps_epsilon(epsilon, steps, rate):
    noise = noise_for(epsilon, DELTA, steps=steps, rate=rate)
    assert 0.999 * epsilon < epsilon_of([normal(steps, noise, rate)], DELTA) <= epsilon
    assert epsilon_of([normal(steps, 0.999 * noise, rate)], DELTA) > epsilon


@pytest.mark.slow
def test_more_steps_and_smaller_budgets_take_more_noise():
    assert noise_for(1.0, DELTA, steps=200, rate=0.1) > noise_for(1.0, DELTA, steps=100, rate=0.1)
    assert noise_for(1.0, DELTA, steps=100, rate=0.1) > noise_for(2.0, DELTA, steps=100, rate=0.1)
    assert noise_for(1.0, DELTA, steps=100, rate=0.2) > noise_for(1.0, DELTA, steps=100, rate=0.1)


# What adds up with what


def test_a_raw_release_has_no_epsilon():
    assert epsilon_of([normal(1, 100.0), Event("raw", "signs of weights")], DELTA) == math.inf


def test_rows_of_different_patients_are_apart():
    training, validation = normal(10, 5.0), Event("gaussian", "Platt sums", count=6, sigma=2.0, of="validation")
    alone = [epsilon_of([e], DELTA) for e in (training, validation)]
    assert epsilon_of([training, validation], DELTA) == max(alone)
    assert epsilon_of([], DELTA) == 0.0


def test_a_site_holds_all_its_rows():
    a = Event("gaussian", "models", count=10, sigma=5.0, unit="site")
    b = Event("gaussian", "sums", count=10, sigma=5.0, unit="site", of="validation")
    assert epsilon_of([a, b], DELTA) == epsilon_of([Event("gaussian", "x", count=20, sigma=5.0, unit="site")], DELTA)
    with refused("mixed-privacy-units"):
        epsilon_of([a, normal()], DELTA)


def test_order_and_words_do_not_matter():
    events = [normal(3, 2.0, 0.3), draws(4, 0.1), Event("laplace", "counts", epsilon=0.3)]
    renamed = [Event(**(e.to_dict() | {"what": "else"})) for e in reversed(events)]
    assert epsilon_of(events, DELTA) == epsilon_of(renamed, DELTA)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([normal(5, 4.0, 0.2), normal(1, 9.0), draws(3, 0.05)]), min_size=1, max_size=6))
def test_one_release_more_never_costs_less(events):
    assert epsilon_of(events[:-1], DELTA) <= epsilon_of(events, DELTA) * (1 + 1e-6)


def test_events_are_written_and_read_back():
    for event in (
        normal(3, 2.0, 0.3),
        draws(2, 0.5),
        Event("skellam", "sums", rho=0.1, of="validation"),
        Event("raw", "x"),
    ):
        assert Event.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"kind": "gausian"}, "unknown-event-kind"),
        ({"sigma": 0.0}, "bad-privacy-parameter"),
        ({"sigma": math.nan}, "bad-privacy-parameter"),
        ({"count": 0}, "bad-privacy-parameter"),
        ({"count": 1.5}, "bad-privacy-parameter"),
        ({"rate": 0.5}, "bad-sampling-rate"),
        ({"kind": "sampled_gaussian", "rate": 1.5}, "bad-sampling-rate"),
        ({"kind": "laplace"}, "bad-epsilon"),
        ({"rho": -1.0}, "bad-privacy-parameter"),
        ({"of": "holdout"}, "unknown-event-kind"),
        ({"unit": "person"}, "unknown-event-kind"),
    ],
)
def test_releases_that_make_no_sense_are_refused(changed, code):
    with refused(code):
        Event(**({"kind": "gaussian", "what": "sums", "sigma": 1.0} | changed))


@pytest.mark.parametrize(
    "found", [{}, [], {"kind": "raw"}, {"kind": "raw", "what": "x", "more": 1}, {"kind": 1, "what": "x"}]
)
def test_damaged_releases_are_refused(found):
    with refused("damaged-event"):
        Event.from_dict(found)


def test_limits_that_make_no_sense_are_refused():
    for call in (
        lambda: epsilon_of([normal()], 1.0),
        lambda: total_rho(0.0, DELTA),
        lambda: total_rho(1.0, 0.0),
        lambda: noise_for(math.inf, DELTA, steps=1),
        lambda: noise_for(1.0, DELTA, steps=0),
        lambda: noise_for(1.0, DELTA, steps=1, rate=0.0),
        lambda: skellam_rho(0.0, sensitivity=1.0, step=1.0, dimension=1),
    ):
        with pytest.raises(BadInput):
            call()


# In words


def test_a_promise_has_its_units():
    events = [normal(5, 6.0, 0.1)] * 40 + [draws(3, 0.1)]
    said = statement(events, DELTA, rounds=40)
    head, rest = said.split(", ", 1)
    value = float(head.removeprefix("epsilon = "))
    assert epsilon_of(events, DELTA) <= value <= epsilon_of(events, DELTA) + 0.1
    assert rest == "delta = 1e-5, for each patient, add/remove, noise at the sites, 40 rounds, 2 mechanisms"


def test_a_promise_says_who_is_trusted_and_what_it_leaves_out():
    server = Event("gaussian", "models", sigma=50.0, unit="site", trust="trusted server")
    assert "for each site, add/remove, noise at a trusted server, 1 mechanism" in statement([server], 1e-3)
    said = statement([normal(1, 9.0), Event("raw", "signs")], DELTA, simulated=True)
    assert said.endswith(
        "simulated: the noise follows from the seed; "
        "not covered (epsilon = infinity), because released without noise: signs"
    )
    assert statement([Event("raw", "signs")], DELTA).startswith("not covered")
    assert statement([], DELTA) == "no data of patients were released"


def test_importing_it_does_not_import_the_library_behind_it():
    code = "import sys, grandrounds.privacy.site_budget, grandrounds.privacy.mechanisms; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
