"""An honest run costs a site what the server's own account says, whatever the mechanism; and nothing leaves unpaid."""

from __future__ import annotations

from dataclasses import replace

import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.accounting.terms import declared_noise
from grandrounds.core.errors import RunFailed
from grandrounds.privacy.accounting import epsilon_of
from tests.capabilities.hospital.keeper.charges_support import DELTA, STRICT, Guarded, consortium, experiment
from tests.support import refused, thinned

UNIFORM = {"weigh": "uniform"}
PLATT = {"calibrate": "platt"}
TRUSTING = replace(STRICT, trust_server=True, declared=declared_noise(epsilon=2.0, delta=DELTA, rounds=3))


def veil(selection: str, **more) -> dict:
    return {"name": "veil", "rounds": 4, "veil": {"stages": 2, "selection": selection, **more}}


def run(out, **changes):
    return gr.run(experiment(**changes), out=out)


RUNS = {
    "dp-sgd, platt": ({"privacy": {"mechanism": "dp-sgd"}, "evaluation": PLATT}, STRICT),
    "dp-sgd, platt, secure": ({"privacy": {"mechanism": "dp-sgd", "secure": True}, "evaluation": PLATT}, STRICT),
    "scaffold, dp-sgd": ({"privacy": {"mechanism": "dp-sgd"}, "method": {"name": "scaffold"}}, STRICT),
    "client, secure": ({"privacy": {"mechanism": "client", "secure": True}, "method": UNIFORM}, STRICT),
    "client, trusted": ({"privacy": {"mechanism": "client"}, "method": UNIFORM}, TRUSTING),
    "veil, score": ({"method": veil("score")}, STRICT),
    "veil, score, percentiles": ({"method": veil("score", percentiles=0.1)}, STRICT),
    "veil, sums": ({"method": veil("select_then_fit")}, STRICT),
    "veil, moments": ({"method": veil("moments")}, STRICT),
    "veil, sums, secure": ({"method": veil("select_then_fit"), "privacy": {"secure": True}}, STRICT),
    "veil, moments, secure": ({"method": veil("moments"), "privacy": {"secure": True}}, STRICT),
    "private-gam": ({"method": {"name": "private-gam"}}, STRICT),
    "private-gam, platt, secure": (
        {"method": {"name": "private-gam"}, "privacy": {"secure": True}, "evaluation": PLATT}, STRICT
    ),
    "veil, percentiles, secure": ({"method": veil("moments", percentiles=0.1), "privacy": {"secure": True}}, STRICT),
    "dp-sgd, guarded": ({"privacy": {"mechanism": "dp-sgd"}, "personal": {"guard": True}}, STRICT),
}


SHORTER = ("veil, sums, secure", "veil, percentiles, secure")
"""The server counts rounding in sums of all features; those of the chosen few are shorter, and a site sees how long they are.
So it does in counts for percentiles, by the columns that have most cells."""


@pytest.mark.parametrize("name", thinned(RUNS, 2))
def test_an_honest_run_costs_what_the_server_says(name, tmp_path, monkeypatch):
    changes, terms = RUNS[name]
    guarded = Guarded(monkeypatch, tmp_path, terms)
    server = run(tmp_path / "run", **changes).summary["privacy"]
    assert not guarded.refused
    assert set(guarded.purses) == set(consortium().names)
    for purse in guarded.purses.values():
        spent = {of: purse.spent(of) for of in server["spent"]}
        assert spent == pytest.approx(server["spent"], abs=1e-8 if name in SHORTER else 1e-9)
        assert all(spent[of] <= most + 1e-9 for of, most in server["spent"].items())
        assert {e.of for e in purse.budget().events} == set(server["spent"])
    for events in guarded.events.values():
        assert {(e.kind, e.of) for e in events if e.kind == "raw"} <= {("raw", "test")}


def test_a_purse_that_is_smaller_than_the_plan_stops_the_run(tmp_path, monkeypatch):
    """The sites refuse once theirs is spent, whatever the server's own account says."""
    guarded = Guarded(monkeypatch, tmp_path, STRICT, epsilon=1.9)
    with refused("too-few-sites", match="refused", kind=RunFailed):
        run(tmp_path / "run", privacy={"mechanism": "dp-sgd"})
    assert set(guarded.refused) == {("train", "budget-spent")}
    for purse in guarded.purses.values():
        assert 0 < purse.spent() <= 1.9
        assert len(purse.budget().events) == 2


def test_what_a_plan_without_noise_asks_is_refused_at_once(tmp_path, monkeypatch):
    guarded = Guarded(monkeypatch, tmp_path, STRICT)
    with refused("too-few-sites", match="refused", kind=RunFailed):
        run(tmp_path / "run", privacy={"epsilon": None})
    assert {code for _, code in guarded.refused} == {"not-private"}
    assert all(not purse.budget().events for purse in guarded.purses.values())


def test_client_noise_without_trust_in_the_server_is_no_noise(tmp_path, monkeypatch):
    guarded = Guarded(monkeypatch, tmp_path, STRICT)
    with refused("too-few-sites", match="refused", kind=RunFailed):
        run(tmp_path / "run", privacy={"mechanism": "client"}, method=UNIFORM)
    assert set(guarded.refused) == {("train", "not-private")}


def test_a_site_that_weighs_less_pays_less_than_the_server_says(tmp_path, monkeypatch):
    """The server's account is of the site with the largest weight; a site's own is of its own."""
    guarded = Guarded(monkeypatch, tmp_path, STRICT)
    changes = {"mechanism": "client", "secure": True, "public_counts": True, "largest_weight": 0.9}
    server = run(tmp_path / "run", privacy=changes, method={"weigh": "data_size"}).summary["privacy"]
    spent = sorted(epsilon_of(p.budget().events, DELTA) for p in guarded.purses.values())
    assert spent[-1] == pytest.approx(server["epsilon"], rel=1e-3)
    assert spent[0] < 0.99 * spent[-1]


@pytest.mark.parametrize("selection", ["strongly_convex", "non_expansive"])
def test_veils_study_forms_have_no_bound_that_a_site_could_check(selection, tmp_path, monkeypatch):
    """The server charges them as draws, by how many rows a site has; for one patient more or less that is no bound."""
    guarded = Guarded(monkeypatch, tmp_path, STRICT)
    with refused("too-few-sites", match="refused", kind=RunFailed):
        run(tmp_path / selection, method=veil(selection))
    assert set(guarded.refused) == {("veil.propose", "not-private")}
