"""FedXChain's arithmetic: the paper's examples worked out again, eq. 3-8 by hand, and what holds whatever sites say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import entropy

from grandrounds.explain.trust import (
    SMOOTHING,
    TrustInputs,
    TrustRule,
    agreement,
    compute_trust,
    consistency,
    distribution,
    divergence,
    divergence_penalty,
    group_rest,
    is_possible,
    pool_shares,
    score,
    steadiness,
)
from tests.support import refused

UNKNOWN = np.nan


def said(accuracy, nsds, *, rows=None, steady=None, before=None, **more) -> TrustInputs:
    """What is known of sites with these accuracies of the round and these divergences."""
    now = np.array(accuracy, float)
    earlier = np.full((len(now), 2), UNKNOWN) if before is None else np.array(before, float)
    return TrustInputs(
        rows=np.full(len(now), 50.0) if rows is None else np.array(rows, float),
        accuracies=np.concatenate([earlier, now[:, None]], axis=1),
        steadiness=np.full(len(now), UNKNOWN) if steady is None else np.array(steady, float),
        nsds=np.array(nsds, float),
        **more,
    )


# The paper's own examples


def test_example_3_1_is_a_third_of_a_nat_and_not_what_is_printed():
    """Sec. III prints 0.427 for these four features. That is near the first term alone."""
    own = distribution(np.array([0.8, 0.2, 0.0, 0.1]))
    consortium = distribution(np.array([0.45, 0.45, 0.15, 0.05]))
    assert own == pytest.approx([0.8 / 1.1, 0.2 / 1.1, 0, 0.1 / 1.1], abs=1e-9)
    assert divergence(own, consortium) == pytest.approx(0.3340, abs=5e-5)
    assert own[0] * np.log(own[0] / consortium[0]) == pytest.approx(0.418, abs=5e-4)
    assert divergence(own, consortium) / np.log(2) == pytest.approx(0.4819, abs=5e-5), "in bits it is not .427 either"


@pytest.mark.parametrize(("steady", "trust"), [((0.475, 0.975), (0.66, 0.89)), ((1.0, 1.0), (0.765, 0.895))])
def test_hospitals_c_and_d_of_section_iii_g(steady, trust):
    """The printed trust needs consistencies that the paper does not state; of steady hospitals it is another."""
    found = score(TrustRule(), np.array([0.95, 0.85]), np.array([0.3, 0.9]), np.array(steady))
    assert found == pytest.approx(trust)


@pytest.mark.parametrize(("alignment", "agrees"), [(None, 0.5), (1.0, 0.5), (0.4, 0.2), (0.0, 0.0), (-0.9, 0.0)])
def test_agreement_is_halved_by_an_nsds_of_ln_2_and_by_signs_as_far_as_they_point_the_other_way(alignment, agrees):
    assert agreement(np.log(2), alignment) == pytest.approx(agrees)


@pytest.mark.parametrize(
    ("form", "tau", "kept"), [("exponential", 2.0, 0.25), ("printed", 1.0, 1 - np.log(2)), ("printed", 2.0, 0.0)]
)
def test_what_an_nsds_of_ln_2_leaves_of_a_weight(form, tau, kept):
    assert divergence_penalty(np.log(2), tau=tau, form=form) == pytest.approx(kept)


def test_eq_8_as_printed_goes_negative_from_tau_043_on_with_ten_sites():
    """NSDS of a site alone among ten is ln 10 at most: there 1 - tau NSDS crosses 0 at tau = 1 / ln 10 = .434."""
    alone = divergence(np.eye(10) * 1.0, pool_shares(np.eye(10), np.ones(10)))
    assert alone == pytest.approx(np.full(10, np.log(10)))
    near = said([0.9, 0.9], [np.log(10), 0.0])
    counts = compute_trust(TrustRule(tau=0.43, form="printed"), near).weights[0]
    nothing = compute_trust(TrustRule(tau=0.44, form="printed"), near)
    assert 0 < counts < 0.01
    assert nothing.weights.tolist() == [0.0, 1.0] and not nothing.alone, "floored at 0, not below"


def test_where_the_printed_form_leaves_no_weight_trust_alone_decides_and_it_is_said():
    rule = TrustRule(tau=1.0, form="printed")
    found = compute_trust(rule, said([1.0, 0.5], [2.0, 3.0]))
    trust = np.array([0.5 + 0.3 * np.exp(-2) + 0.2, 0.25 + 0.3 * np.exp(-3) + 0.2])
    assert found.alone
    np.testing.assert_allclose(found.weights, trust / trust.sum())
    usual = compute_trust(replace(rule, form="exponential"), said([1.0, 0.5], [2.0, 3.0]))
    assert not usual.alone and usual.weights == pytest.approx(trust * np.exp([-2, -3]) / (trust @ np.exp([-2, -3])))
    nobody = compute_trust(TrustRule(alpha=1, beta=0, gamma=0, form="printed"), said([0.0, 0.0], [0.0, 0.0]))
    assert nobody.alone and nobody.weights.tolist() == [0.5, 0.5], "where nobody is trusted all count alike"


# By hand


def test_trust_and_weights_by_hand():
    """Three sites: of .5/.3/.2, tau .5 (eq. 7 and 8); the second has no accuracy and counts as the mean of the others."""
    held = said(
        [0.9, UNKNOWN, 0.6], [0.0, 0.2, 1.0], steady=[1.0, 0.8, UNKNOWN], before=[[0.7, 0.8], [UNKNOWN] * 2, [0.6] * 2]
    )
    found = compute_trust(TrustRule(), held)
    spread = np.std([0.7, 0.8, 0.9]) / 0.5
    steady = np.array([(1 - spread + 1) / 2, (1 + 0.8) / 2, (1 + 1) / 2])
    trust = 0.5 * np.array([0.9, 0.75, 0.6]) + 0.3 * np.exp([0, -0.2, -1]) + 0.2 * steady
    np.testing.assert_allclose(found.consistency, steady)
    np.testing.assert_allclose(found.trust, trust)
    kept = trust * np.exp([0, -0.1, -0.5])
    np.testing.assert_allclose(found.weights, kept / kept.sum())


@pytest.mark.parametrize(
    ("accuracies", "even"),
    [
        ([UNKNOWN, UNKNOWN, 0.2], 1.0),
        ([UNKNOWN, 0.8, 0.8], 1.0),
        ([0.0, 1.0, UNKNOWN], 0.0),
        ([0.5, 0.7, 0.9], 1 - np.sqrt(0.08 / 3) / 0.5),
        ([UNKNOWN, 0.6, 0.8], 1 - 0.1 / 0.5),
        ([UNKNOWN] * 3, 1.0),
    ],
)
def test_consistency_by_hand(accuracies, even):
    """1 less the deviation over .5, the widest there is; 1 with fewer than two; averaged with the reasons' steadiness."""
    held = np.array([accuracies])
    assert consistency(held, np.array([0.4])) == pytest.approx((even + 0.4) / 2)
    assert consistency(held, np.array([UNKNOWN])) == pytest.approx((even + 1) / 2)


def test_steadiness_is_the_mass_that_stayed():
    before = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    now = np.array([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])
    assert steadiness(now, before) == pytest.approx([0.75, 0.0])


def test_the_consortiums_reasons_are_the_mean_by_trust():
    """Eq. 6; where nobody is trusted all count alike."""
    shares = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert pool_shares(shares, np.array([0.9, 0.3])) == pytest.approx([0.75, 0.25])
    assert pool_shares(shares, np.zeros(2)) == pytest.approx([0.5, 0.5])


def test_rows_count_by_the_power_kappa():
    rows = [10, 40, 160]
    flat = said([0.8] * 3, [0.1] * 3, rows=rows)
    assert compute_trust(TrustRule(kappa=0.0), flat).weights == pytest.approx([1 / 3] * 3)
    assert compute_trust(TrustRule(kappa=0.5), flat).weights == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert compute_trust(TrustRule(kappa=1.0), flat).weights == pytest.approx([1 / 21, 4 / 21, 16 / 21])
    huge = said([0.8] * 3, [0.1] * 3, rows=[1e300, 1e300, 0])
    assert compute_trust(TrustRule(kappa=1.0), huge).weights == pytest.approx([0.5, 0.5, 0])


def test_reasons_that_point_the_other_way_are_no_agreement_where_signs_count():
    held = said([0.8] * 3, [0.0] * 3, alignment=np.array([1.0, 0.5, -1.0]))
    assert compute_trust(TrustRule(), held).trust == pytest.approx([0.9] * 3), "|SHAP| alone does not see it"
    found = compute_trust(TrustRule(signed=True), held)
    assert found.trust == pytest.approx([0.9, 0.75, 0.6])
    assert found.weights == pytest.approx(np.array([0.9, 0.375, 0]) / 1.275), "and they have no weight"


def test_sse_aggs_agreement_multiplies_weights_where_it_has_a_say():
    held = said([0.8] * 2, [0.0] * 2, in_line=np.array([1.0, 0.25]))
    assert compute_trust(TrustRule(), held).weights == pytest.approx([0.5, 0.5])
    assert compute_trust(TrustRule(reasons=True), held).weights == pytest.approx([0.8, 0.2])


# What holds whatever sites say

counts = st.integers(2, 8)


@st.composite
def reasons(draw, *, least=1e-6):
    """Shares (K, F) of some sites, and how far each was trusted."""
    k, f = draw(counts), draw(st.integers(2, 12))
    values = draw(arrays(float, (k, f), elements=st.floats(0, 10, allow_nan=False)))
    trust = draw(arrays(float, k, elements=st.floats(max(least, 1e-6), 1)))
    return distribution(values), trust


@st.composite
def sayings(draw):
    k, width = draw(counts), draw(st.integers(1, 4))
    unit = st.floats(0, 1)
    unknown = st.one_of(unit, st.just(UNKNOWN))
    return TrustInputs(
        rows=draw(arrays(float, k, elements=st.integers(1, 10_000).map(float))),
        accuracies=draw(arrays(float, (k, width), elements=unknown)),
        steadiness=draw(arrays(float, k, elements=unknown)),
        nsds=draw(arrays(float, k, elements=st.floats(0, 25))),
        alignment=draw(arrays(float, k, elements=st.floats(-1, 1))),
        in_line=draw(arrays(float, k, elements=unit)),
    )


@st.composite
def rules(draw):
    parts = draw(arrays(float, 3, elements=st.floats(0.01, 1)))
    alpha, beta, gamma = (parts / parts.sum()).tolist()
    return TrustRule(
        alpha,
        beta,
        gamma,
        tau=draw(st.floats(0, 3)),
        kappa=draw(st.floats(0, 1)),
        form=draw(st.sampled_from(["exponential", "printed"])),
        signed=draw(st.booleans()),
        reasons=draw(st.booleans()),
    )


@examples(max_examples=150, deadline=None)
@given(reasons())
def test_divergence_is_that_of_scipy_never_negative_and_bounded_by_ones_share_of_trust(given_reasons):
    """A site is itself in the mean, with T_i / sum T: so P_global >= that x P_i, and NSDS <= ln(sum T / T_i)."""
    shares, trust = given_reasons
    consortium = pool_shares(shares, trust)
    found = divergence(shares, consortium)
    assert (found >= 0).all()
    assert (found <= np.log(trust.sum() / trust) + 1e-9).all()
    np.testing.assert_allclose(found, [entropy(own, consortium) for own in shares], atol=1e-9)
    assert divergence(shares[:1], shares[0]) == pytest.approx([0.0], abs=1e-12)


@examples(max_examples=100, deadline=None)
@given(reasons(), st.data())
def test_what_is_lumped_together_never_diverges_more(given_reasons, data):
    """Cover & Thomas 2.7: the log sum inequality. And lumped shares are shares."""
    shares, trust = given_reasons
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, shares.shape[1] - 1)))), int)
    few = group_rest(shares, kept)
    assert few.shape == (len(shares), len(kept) + 1)
    np.testing.assert_allclose(few.sum(axis=1), 1, atol=2 * SMOOTHING)
    whole, part = divergence(shares, pool_shares(shares, trust)), divergence(few, pool_shares(few, trust))
    assert (part <= whole + 1e-8).all()


@examples(max_examples=200, deadline=None)
@given(rules(), sayings(), st.randoms(use_true_random=False))
def test_trust_is_between_0_and_1_weights_are_shares_and_no_order_of_sites_matters(rule, held, random):
    assert held.is_complete(len(held.rows))
    found = compute_trust(rule, held)
    assert (found.trust >= 0).all() and (found.trust <= 1 + 1e-9).all()
    assert (found.consistency >= 0).all() and (found.consistency <= 1 + 1e-12).all()
    assert (found.weights >= 0).all() and found.weights.sum() == pytest.approx(1)
    order = list(range(len(held.rows)))
    random.shuffle(order)
    again = compute_trust(rule, TrustInputs.from_values({n: v[order] for n, v in held.to_values().items()}))
    np.testing.assert_allclose(again.trust, found.trust[order], atol=1e-12)
    np.testing.assert_allclose(again.weights, found.weights[order], atol=1e-12)


@examples(max_examples=60, deadline=None)
@given(rules(), sayings())
def test_a_rule_and_what_was_said_travel_and_give_the_same_to_the_bit(rule, held):
    there = TrustRule.from_json(rule.to_json())
    assert there == rule
    heard = TrustInputs.from_values(held.to_values())
    assert compute_trust(there, heard).weights.tobytes() == compute_trust(rule, held).weights.tobytes()


@examples(max_examples=60, deadline=None)
@given(sayings(), st.integers(0, 7))
def test_less_accuracy_or_more_divergence_never_earns_weight(held, which):
    """All else equal, for the site itself, as long as its accuracy is known: that is what trust is for."""
    k, rule = which % len(held.rows), TrustRule()
    held.accuracies[:, -1] = np.nan_to_num(held.accuracies[:, -1], nan=0.5)
    before = compute_trust(rule, held).weights[k]
    assert compute_trust(rule, replace(held, nsds=held.nsds + np.eye(len(held.rows))[k])).weights[k] <= before + 1e-12
    alone = replace(held, accuracies=held.accuracies[:, -1:])
    worse = np.where(np.arange(len(held.rows)) == k, alone.accuracies[:, 0] / 2, alone.accuracies[:, 0])[:, None]
    assert (
        compute_trust(rule, replace(alone, accuracies=worse)).weights[k]
        <= compute_trust(rule, alone).weights[k] + 1e-12
    )


# What cannot be


@pytest.mark.parametrize(
    ("name", "values", "fine"),
    [
        ("accuracy", [0.0, 1.0, UNKNOWN, 1.1, -0.1, np.inf], [1, 1, 1, 0, 0, 0]),
        ("nsds", [0.0, 40.0, UNKNOWN, -1.0, np.inf], [1, 1, 0, 0, 0]),
        ("alignment", [-1.0, 1.0 + 1e-9, 2.0, UNKNOWN], [1, 1, 0, 0]),
        ("shares", [[0.5, 0.5], [1.5, -0.5], [0.0, 0.0], [1.0, 1.0], [0.5, UNKNOWN]], [1, 0, 0, 0, 0]),
        ("direction", [[0.6, -0.8], [0.0, 0.0], [1.0, 1.0], [1e6, 0.0], [UNKNOWN, 0.0]], [1, 1, 0, 0, 0]),
    ],
)
def test_what_cannot_be_said_of_a_site(name, values, fine):
    assert is_possible(name, np.array(values)).tolist() == [bool(f) for f in fine]


def test_what_is_said_of_more_or_fewer_sites_than_there_are_is_not_whole():
    held = said([0.9, 0.8], [0.1, 0.2])
    assert held.is_complete(2) and not held.is_complete(3)
    assert not replace(held, nsds=np.array([0.1])).is_complete(2)
    assert not replace(held, accuracies=np.array([0.9, 0.8])).is_complete(2)
    assert not replace(held, nsds=np.array([0.1, -5.0])).is_complete(2), "exp(2.5) would outweigh the other"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no rule", "unreadable-rule"),
        ("[]", "unreadable-rule"),
        ('{"delta": 1}', "unreadable-rule"),
        (json.dumps({"alpha": 0.9, "beta": 0.9, "gamma": 0.9}), "bad-trust-rule"),
        (json.dumps({"alpha": 1.5, "beta": -0.5, "gamma": 0.0}), "bad-trust-rule"),
        (json.dumps({"alpha": "half"}), "unreadable-rule"),
        (json.dumps({"form": "softmax"}), "bad-trust-rule"),
        (json.dumps({"tau": -1}), "bad-trust-rule"),
        ('{"tau": NaN}', "bad-trust-rule"),
        ('{"alpha": NaN}', "bad-trust-rule"),
    ],
)
def test_a_rule_by_which_trust_would_leave_0_to_1_is_refused(text, code):
    with refused(code):
        TrustRule.from_json(text)
