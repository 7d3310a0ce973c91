"""The secure sum is the plain sum: for any number of sites, over many rounds, whoever drops out when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.privacy.secagg import STEPS, Context, Halted, Scale, least
from tests.privacy.secagg.rehearsal import rehearse
from tests.support import refused, slow


def made(n: int, size: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    rng = generator(seed, purpose="secure sum")
    return {f"s{k:04d}": rng.uniform(-1, 1, size) for k in range(n)}


def check(found, values, scale, weights=None):
    plain = sum(values[s] * (weights[s] if weights else 1.0) for s in found.sites)
    np.testing.assert_allclose(found.total, plain, rtol=0, atol=scale.error + 1e-14 * len(values))


def test_two_sites_are_refused():
    with refused("secure-sum-halted", match="2 of 2 sites are left, but 3 are needed", kind=Halted):
        rehearse(made(2, 3), scale=Scale(32, 1.0, 2))


def test_a_rehearsal_of_nobody_is_refused():
    with pytest.raises(BadInput, match="needs the values of three sites at least"):
        rehearse({}, scale=Scale(32, 1.0, 3))


@pytest.mark.parametrize(
    ("drops", "said"),
    [
        ({"masked": ["s0001", "s001"]}, "there is no site 's001' to drop out at step 'masked'; did you mean 's0001'"),
        ({"share": ["s0001"]}, "a sum has no step 'share'; did you mean 'shares'"),
        ({"masked": "s0001"}, r"given as a list: \['s0001'\]"),
    ],
    ids=["site", "step", "text"],
)
def test_drop_outs_that_nothing_would_come_of_are_refused(drops, said):
    with pytest.raises(BadInput, match=f"drops: .*{said}"):
        rehearse(made(4, 3), scale=Scale(32, 1.0, 4), drops=drops)


SOME = (3, 4, 5, 6, 7, 8, 11, 16, 27)  # the work grows with the square


@pytest.mark.parametrize("n", [n if n in SOME else slow(n) for n in range(3, 51)])
def test_any_number_of_sites(n):
    values, scale = made(n, 5, seed=n), Scale(32 if n % 2 else 64, 1.0, n)
    found = rehearse(values, scale=scale, seed=n)
    assert found.sites == tuple(values)
    assert not found.missing and not found.faults
    check(found, values, scale)


@pytest.mark.parametrize("n", [40, slow(100)])
def test_some_sites_are_gone_at_every_step(n):
    values, scale = made(n, 20), Scale(32, 1.0, n)
    names = list(values)
    drops = {step: names[k::20] for k, step in enumerate(STEPS)}  # n / 20 sites at each of the five steps
    found = rehearse(values, scale=scale, drops=drops)
    assert set(found.missing) == {*names[0::20], *names[1::20], *names[2::20]}
    assert set(found.faults) == {*names[3::20], *names[4::20]}
    check(found, values, scale)


@pytest.mark.parametrize(("n", "masked", "shares", "sign"), [(200, 30, 75, 60), slow(1000, 100, 250, 200)])
def test_many_sites_on_a_sparse_graph(n, masked, shares, sign):
    values, scale = made(n, 8), Scale(64, 1.0, n)
    names = list(values)
    drops = {"masked": names[5::masked], "shares": names[77::shares], "sign": names[11::sign]}
    found = rehearse(values, scale=scale, drops=drops, degree=12)
    assert set(found.missing) == {*drops["masked"], *drops["shares"]}
    check(found, values, scale)


@pytest.mark.parametrize("rounds", [20, slow(200)])
def test_rounds_of_five_sites(rounds):
    """Fresh keys each round; in every other round somebody drops out, at a step that changes."""
    scale, rng = Scale(32, 1.0, 5), generator(3, purpose="drops")
    masks = set()
    for r in range(1, rounds + 1):
        values = made(5, 6, seed=r)
        drops = {STEPS[r % 5]: [f"s{rng.integers(5):04d}"]} if r % 2 else {}
        seen = {}

        def watch(step, site, answer, seen=seen):
            if step == "masked":
                seen[site] = answer["masked"].tobytes()
            return answer

        found = rehearse(values, scale=scale, drops=drops, tamper=watch, context=Context("long", r, "model"))
        check(found, values, scale)
        assert len(found.sites) >= 4
        masks |= set(seen.values())
    assert len(masks) > 4.5 * rounds  # no masked vector came twice


@given(
    n=st.integers(3, 9),
    width=st.sampled_from([32, 64]),
    degree=st.sampled_from([4, 100]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_above_the_threshold_the_sum_of_those_who_sent_below_it_a_halt(n, width, degree, data):
    values = {
        f"s{k}": data.draw(hnp.arrays(np.float64, 3, elements=st.floats(-4, 4)), label=f"values {k}") for k in range(n)
    }
    when = {s: data.draw(st.sampled_from([None, None, None, *STEPS]), label=f"{s} drops") for s in values}
    drops = {step: [s for s in values if when[s] == step] for step in STEPS}
    scale = Scale(width, 4.0, n)
    sent = [s for s in values if when[s] in (None, "sign", "unmask")]
    began = n - len(drops["keys"])
    try:
        found = rehearse(values, scale=scale, drops=drops, degree=degree, seed=data.draw(st.integers(0, 5)))
    except Halted as e:
        left = sum(w is None for w in when.values())
        if degree >= began - 1:  # on a sparse graph a neighbourhood may be short though all together are enough
            assert left < least(began)
        assert set(e.missing) >= set(drops["keys"])
    else:
        assert found.sites == tuple(sent)
        assert set(found.missing) == set(values) - set(sent)
        assert len(sent) >= least(began)
        check(found, values, scale)


def test_weighted_sum_is_the_weighted_mean():
    values = made(7, 50)
    shares = np.arange(1.0, 8.0) / 28
    weights = dict(zip(values, shares.tolist(), strict=True))
    scale = Scale(32, 1.0, 7, weighted=True)
    found = rehearse(values, scale=scale, weights=weights, drops={"masked": ["s0003"]})
    check(found, values, scale, weights)
    assert scale.error < 1e-8


def test_values_at_the_edge_come_out_whole():
    for width in (32, 64):
        scale = Scale(width, 3.0, 5)
        values = {f"s{k}": np.array([3.0, -3.0, 0.0]) for k in range(5)}
        np.testing.assert_array_equal(rehearse(values, scale=scale).total, [15.0, -15.0, 0.0])


def test_entropy_of_the_system_serves_as_well_as_a_seed():
    values, scale = made(4, 5), Scale(32, 1.0, 4)
    check(rehearse(values, scale=scale, seed=None), values, scale)


def test_an_empty_vector_adds_up_to_an_empty_one():
    assert rehearse(made(3, 0), scale=Scale(32, 1.0, 3)).total.shape == (0,)


def test_bytes_are_those_of_the_protocol():
    """The masked vector is as large as its float32, but for the digits that say how long it is; the rest does not grow."""
    short, long = (rehearse(made(10, size), scale=Scale(32, 1.0, 10)) for size in (1000, 101_000))
    assert 0 <= long.up["masked"] - short.up["masked"] - 10 * 400_000 <= 10 * 16
    rest = [{**found.up, "masked": 0} for found in (short, long)]
    assert rest[0] == rest[1]
    assert short.down == long.down
