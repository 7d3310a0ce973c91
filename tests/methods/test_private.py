"""DP-FedAvg: fixed weights, updates clipped twice, and one site never moves the sum by more than w_max * clip."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.errors import RunFailed
from grandrounds.core.plan import Settings
from grandrounds.methods.base import Method, Server
from grandrounds.methods.dp import PrivacyTerms, aggregate_dp, expected_sites, round_events
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Answers, Ask
from tests.support import refused

PRIVATE = PrivacyTerms(
    "client", 3.0, 1e-5, clip=1.0, noise=2.0, sampling_rate=1.0, secure=False, secret=Secret.simulated(0, "server")
)


def server(sites: str = "abcd", *, size: int = 3, private: PrivacyTerms | None = PRIVATE, **more) -> Server:
    return Server(1, np.zeros(size, np.float32), tuple(sites), 7, private=private, **more)


def method(rule: str = "uniform") -> Method:
    return SimpleNamespace(settings=Settings({"weigh": {"rule": rule}, "select": {"rule": "all"}}))  # type: ignore[return-value]


def joined(at: Server, models: dict[str, list[float]], *, rule: str = "uniform"):
    """What the round makes of these models; whoever is not among them does not answer."""
    work = aggregate_dp(at, Ask("train", to=at.sites), method(rule))
    next(work)
    values = np.array(list(models.values()), np.float32)
    with pytest.raises(StopIteration) as end:
        work.send(Answers(tuple(models), {"model": values}))
    return end.value.value[0]


QUIET = replace(PRIVATE, noise=0.0)


def test_updates_are_clipped_again_and_averaged_over_those_who_were_asked():
    at = server(private=QUIET)
    made = joined(at, {"a": [3, 0, 4], "b": [0, 0.5, 0], "d": [0, 0, 0]})
    np.testing.assert_allclose(made.model, [0.6 / 4, 0.5 / 4, 0.8 / 4], rtol=1e-5)
    assert made.weights.tolist() == [0.25] * 3, "a site that is missing does not make the others count more"


def test_the_sum_is_divided_by_the_planned_number_of_sites():
    """Review M7: divided by how many there are, the sum moves by 2 clip / K when a site leaves, not by clip / K."""
    four = replace(QUIET, sites=4)
    models = {"a": [1.0, 0, 0], "b": [1.0, 0, 0], "c": [1.0, 0, 0]}
    whole = joined(server("abcd", private=four), {**models, "d": [-1.0, 0, 0]}).model
    silent = joined(server("abcd", private=four), models).model
    removed = joined(server("abc", private=four), models).model
    np.testing.assert_allclose(whole, [0.5, 0, 0], rtol=1e-4)
    np.testing.assert_array_equal(removed, silent)
    assert np.linalg.norm(removed - whole) == pytest.approx(1 / 4, rel=1e-4), "clip / sites"
    unplanned = joined(server("abc", private=QUIET), models).model
    assert np.linalg.norm(unplanned - whole) == pytest.approx(2 / 4, rel=1e-4), "what it was before: twice as much"


def test_a_random_draw_is_divided_by_the_number_that_is_drawn():
    drawn = Settings({"weigh": {"rule": "uniform"}, "select": {"rule": "random", "fraction": 0.5}})
    half = SimpleNamespace(settings=drawn)
    assert expected_sites(server("abc", private=replace(QUIET, sites=8)), half) == 4
    assert expected_sites(server("abc", private=replace(QUIET, sites=0)), half) == 2


def test_public_rows_may_weigh():
    at = server(private=QUIET, rows={"a": 10, "b": 30, "c": 40, "d": 20})
    made = joined(at, {"a": [1, 0, 0], "c": [0, 1, 0]}, rule="data_size")
    np.testing.assert_allclose(made.model, [0.1, 0.4, 0], rtol=1e-5)


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from(["uniform", "data_size"]), st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_one_site_moves_the_sum_by_at_most_its_weight_times_the_clip(seed, sites, rule, clip):
    rng = np.random.default_rng(seed)
    names = "abcdef"[:sites]
    rows = {s: int(rng.integers(1, 1000)) for s in names}
    at = server(names, private=replace(QUIET, clip=clip), rows=rows)
    models = {s: (rng.normal(size=3) * rng.choice([1e-3, 1, 1e6])).tolist() for s in names}
    without = {s: m for s, m in models.items() if s != names[-1]}
    largest = max(rows.values()) / sum(rows.values()) if rule == "data_size" else 1 / sites
    moved = joined(at, models, rule=rule).model - joined(at, without, rule=rule).model if without else None
    if moved is not None:
        assert np.linalg.norm(moved) <= largest * clip * (1 + 1e-9)


def test_the_noise_is_of_the_sensitivity_and_from_the_servers_secret():
    size = 20_000
    at = server(size=size, private=replace(PRIVATE, clip=0.5))
    models = {s: [0.0] * size for s in "abcd"}
    drawn = joined(at, models).model
    assert drawn.std() == pytest.approx(2.0 * 0.5 / 4, rel=0.03)
    np.testing.assert_array_equal(joined(at, models).model, drawn)
    other = joined(replace(at, round=2), models).model
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.05
    own = server(size=size, private=replace(PRIVATE, secret=Secret.own()))
    assert not (joined(own, models).model == joined(own, models).model).any()
    with refused("missing-secret", kind=RunFailed):
        joined_without = server(private=replace(PRIVATE, secret=None))
        work = aggregate_dp(joined_without, Ask("train", to=("a",)), method())
        next(work)
        work.send(Answers(("a",), {"model": np.zeros((1, 3))}))


def test_what_a_round_spends():
    assert round_events(server(private=None)) == ()
    assert round_events(server(private=replace(PRIVATE, mechanism="none"))) == ()
    (one,) = round_events(server())
    assert (one.kind, one.sigma, one.unit, one.trust) == ("gaussian", 2.0, "site", "trusted server")
    (step,) = round_events(server(private=replace(PRIVATE, mechanism="dp-sgd", sampling_rate=0.2, steps=5)))
    assert (step.kind, step.count, step.rate, step.unit) == ("sampled_gaussian", 5, 0.2, "patient")
    (shares,) = round_events(server("abcdefgh", size=1000, private=replace(PRIVATE, secure=True)))
    plain, rounded = epsilon_of([one], 1e-5), epsilon_of([shares], 1e-5)
    assert shares.trust == "secure aggregation" and plain <= rounded < 1.2 * plain


def test_a_secret_is_never_shown():
    assert "Secret(simulated)" in repr(PRIVATE) and str(PRIVATE.secret._root) not in repr(PRIVATE)
