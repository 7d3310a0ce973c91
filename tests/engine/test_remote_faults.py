"""What can happen to sites and to the server: every event is in the Decision, and no round is lost."""

from __future__ import annotations

import pytest

from grandrounds.audit.ledger import Ledger
from grandrounds.engine.faults import DROPPED
from grandrounds.protocol.identity import load_public
from tests.engine.disturbed import SIZES, B, Killed, close_to, counting, decisions, hospitals
from tests.support import patients, slow, thinned

MLP = {"name": "mlp", "hidden": [4]}


# A site that goes away ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_site_that_goes_away_in_mid_round_is_missing_from_it_and_back_later(tmp_path, disturbed, elsewhere):
    held = hospitals()
    transport = disturbed(held)

    def happens(passing) -> None:
        if passing.address == B and passing.asks_for("train", 2):
            transport.box.down.add(B)
        if passing.asks_for("train", 3) and B in transport.box.down:
            transport.box.down.clear()
            if elsewhere:
                transport.move(B, "9")

    transport.before = happens
    first, second, third = decisions(held.deployed(tmp_path, transport))
    assert first["missing"] == {}
    assert second["missing"] == {"b": DROPPED}
    assert set(second["weights"]) == {"a", "c", "d"}
    assert set(third["weights"]) == {"a", "b", "c", "d"}


# A keeper that starts again -------------------------------------------------------------------------------------------

REMEMBERED = {
    "fedavg": {},
    "fedavg, some sites a round": {"method": {"name": "fedavg", "select": {"rule": "random", "fraction": 0.5}}},
    "momentum that sites keep": {"model": MLP, "train": {"optimizer": "momentum", "keep_optimizer": True}},
    "scaffold": {"method": "scaffold"},
    "moon": {"method": "moon", "model": MLP},
    "clustered": {"method": "clustered"},
    "fedasync": {"method": "fedasync"},
    "fedbuff": {"method": "fedbuff"},
    "fedxchain": {"method": "fedxchain"},
    "explained": {"explain": {"sketch": "permutation"}},
}


IN_ORDER = [case for case in REMEMBERED if case not in ("fedasync", "fedbuff")]
"""A site that is greeted again answers after others, which counts where a method takes who comes first."""


@pytest.mark.parametrize("case", thinned(IN_ORDER, 3))
def test_keepers_that_start_again_before_every_letter_give_the_same_answers(tmp_path, disturbed, case):
    held = hospitals(**REMEMBERED[case])
    transport = disturbed(held)
    transport.before = lambda passing: transport.restart(passing.address)
    there = held.deployed(tmp_path, transport)
    here = held.simulated(tmp_path / "here", patients(SIZES))
    close_to(there, here)
    assert [set(d["weights"]) for d in decisions(there)] == [set(d["weights"]) for d in decisions(here)]
    assert [d["missing"] for d in decisions(there)] == [d["missing"] for d in decisions(here)]


@pytest.mark.parametrize("step", thinned(["keys", "shares", "masked", "sign", "unmask"], 2))
def test_a_keeper_that_starts_again_within_a_secure_sum_is_left_out_of_that_sum_alone(tmp_path, disturbed, step):
    """Its masks are gone with the process. Once its masked values have left they count, and the others take its masks off."""
    held = hospitals(privacy={"secure": True}, rounds=3)
    transport, over = disturbed(held), set()

    def happens(passing) -> None:
        if passing.address == B and passing.asks_for(f"secagg.{step}", 2) and not over:
            over.add(step)
            transport.restart(B)

    transport.before = happens
    first, second, third = decisions(held.deployed(tmp_path, transport))
    assert over
    if step == "keys":  # what it was to add up is gone too, which shows when it is to be masked
        assert set(second["missing"]) == {"b"}
    elif step in ("shares", "masked"):
        assert set(second["missing"]) == {"b"}
        assert set(second["weights"]) == {"a", "c", "d"}
    else:
        assert set(second["weights"]) == {"a", "b", "c", "d"}
    for other in (first, third):
        assert other["missing"] == {}
        assert set(other["weights"]) == {"a", "b", "c", "d"}


# A server that is killed ----------------------------------------------------------------------------------------------


def resumed(held, tmp_path, transport, *, after=None) -> object:
    """The run, killed by `transport` or after a round, and gone on with by another server at the same keepers."""

    def progress(event) -> None:
        if after is not None and event["event"] == "round" and event["round"] == after:
            raise Killed

    with pytest.raises(Killed):
        held.deployed(tmp_path, transport, progress=progress)
    transport.before = lambda _: None
    return held.deployed(tmp_path, transport, resume=True)


@pytest.mark.parametrize("after", [slow(1), 2, slow(3)])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbuff"])
def test_a_server_killed_after_a_round_goes_on_with_the_run(tmp_path, disturbed, monkeypatch, method, after):
    held = hospitals(method)
    done = counting(monkeypatch)
    run = resumed(held, tmp_path, disturbed(held), after=after)
    trained = {site: n for (site, task), n in done.items() if task == "train"}
    here = held.simulated(tmp_path / "here", patients(SIZES))
    close_to(run, here)
    assert [d["weights"].keys() for d in decisions(run)] == [d["weights"].keys() for d in decisions(here)]
    verified(run)
    if method != "fedbuff":
        assert trained == dict.fromkeys("abcd", 3), "nothing is trained twice"


@pytest.mark.parametrize("at", ["train", "evaluate"])
def test_a_server_killed_in_mid_round_is_answered_from_what_sites_kept(tmp_path, disturbed, monkeypatch, at):
    held = hospitals("scaffold")
    done = counting(monkeypatch)
    transport = disturbed(held)

    def happens(passing) -> None:
        if passing.address == "2" and passing.asks_for(at, 2):
            raise Killed

    transport.before = happens
    run = resumed(held, tmp_path, transport)
    assert {site: n for (site, task), n in done.items() if task == "train"} == dict.fromkeys("abcd", 3)
    close_to(run, held.simulated(tmp_path / "here", patients(SIZES)))
    verified(run)


def test_server_and_keepers_that_both_start_again_go_on_together(tmp_path, disturbed, monkeypatch):
    held = hospitals("scaffold")
    done = counting(monkeypatch)
    transport = disturbed(held)

    def happens(passing) -> None:
        if passing.address == "2" and passing.asks_for("train", 2):
            for address in list(transport.box.keepers):
                transport.restart(address)
            raise Killed

    transport.before = happens
    run = resumed(held, tmp_path, transport)
    assert {site: n for (site, task), n in done.items() if task == "train"} == dict.fromkeys("abcd", 3)
    close_to(run, held.simulated(tmp_path / "here", patients(SIZES)))


def verified(run) -> None:
    with Ledger.open(run.folder / "ledger.db") as ledger:
        assert ledger.verify(load_public(run.folder / "server.pub")) == []
