"""A run that is gone on with while a site is away: it goes on without the site, which takes part again when it is back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grandrounds.audit.ledger import Ledger
from grandrounds.capabilities.hospital.keeper.policy.rules import TASK, Tasks
from grandrounds.core.errors import RunFailed
from grandrounds.engine.faults import DROPPED
from grandrounds.protocol.envelope import peek
from grandrounds.protocol.identity import load_public
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.runner import execute_plan
from tests.engine.decrypted import read, write
from tests.engine.disturbed import B, Disturbed, Killed, decisions, hospitals
from tests.engine.hospitals import Hospitals, final_model
from tests.engine.memory_transport import simulated_keeper
from tests.support import refused, thinned

ROUNDS, KILLED, BACK = 4, 1, 4
"""The server is killed after round 1; site b is away until round 4 begins."""

MLP = {"name": "mlp", "hidden": [4]}
RARELY = {"evaluation": {"every": ROUNDS}}
CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "fedavg": (False, {}),
    "fedavg, a keeper that starts again": (True, {}),
    "secure sums": (False, {"privacy": {"secure": True}, **RARELY}),
    "secure sums, a keeper that starts again": (True, {"privacy": {"secure": True}, **RARELY}),
    "scaffold": (True, {"method": "scaffold"}),
    "momentum that sites keep": (True, {"model": MLP, "train": {"optimizer": "momentum", "keep_optimizer": True}}),
}


def conducted(held: Hospitals, folder: Path, transport: Disturbed, *, sites: str = "abcd", **more: Any) -> Run:
    """`sites`: those of the consortium at that time."""
    run = RunFolder(folder)
    if not more.get("resume"):
        run.create()
    venue = held.venue(transport)
    keys = {site: key for site, key in venue.keys.items() if site in sites}
    execute_plan(held.at_sites, run, venue=replace(venue, keys=keys, checkpoint=run.checkpoint), **more)
    return Run(folder)


def killed(held: Hospitals, folder: Path, transport: Disturbed, **more: Any) -> None:
    def progress(event: dict) -> None:
        if event["event"] == "round" and event["round"] == KILLED:
            raise Killed

    with pytest.raises(Killed):
        conducted(held, folder, transport, progress=progress, **more)


def findings(run: Run) -> set[tuple[str, str]]:
    with Ledger.open(run.folder / "ledger.db") as ledger:
        return {(f.name, f.what) for f in ledger.verify(load_public(run.folder / "server.pub"))}


def away(transport: Disturbed, *, first: int, back: int) -> None:
    """Site b is not there from this round's first letter on, until the other's."""

    def happens(passing: Any) -> None:
        if first <= passing.round < back:
            transport.box.down.add(B)
        elif passing.round >= back:
            transport.box.down.discard(B)

    transport.before = happens


@pytest.mark.parametrize("case", thinned(CASES, 2))
def test_a_run_goes_on_without_a_site_and_with_it_again_when_it_is_back(tmp_path, disturbed, case):
    """The model is that of a run which nobody killed, and which the site was away from in the same rounds."""
    restarted, settings = CASES[case]
    held = hospitals(rounds=ROUNDS, **settings)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    transport.box.down.add(B)
    if restarted:
        transport.restart(B)
    away(transport, first=KILLED, back=BACK)
    run = conducted(held, tmp_path / "run", transport, resume=True)
    gone = [d["missing"] for d in decisions(run)]
    assert gone == [{}, {"b": DROPPED}, {"b": DROPPED}, {}]
    assert "b" in decisions(run)[-1]["weights"]
    noted = [n for n in decisions(run)[1]["notes"] if n.startswith("b was not there when the run was set up")]
    assert noted == [f"b was not there when the run was set up: {DROPPED}"]
    assert not [n for d in decisions(run) for n in d["notes"] if "otherwise" in n]

    steady = Disturbed.of(held.keepers(tmp_path / "others"), transport.clock)
    away(steady, first=KILLED + 1, back=BACK)
    other = conducted(held, tmp_path / "steady", steady)
    assert [d["missing"] for d in decisions(other)] == gone
    np.testing.assert_array_equal(final_model(run), final_model(other))
    assert findings(run) == set(), "the rounds record that b was away"


def gone_on(held: Hospitals, tmp_path: Path, transport: Disturbed, *, back: int = 3) -> Run:
    """Killed after round 1, and gone on with while b is away until this round."""
    killed(held, tmp_path / "run", transport)
    transport.box.down.add(B)
    away(transport, first=KILLED, back=back)
    return conducted(held, tmp_path / "run", transport, resume=True)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_what_was_on_its_way_to_a_site_that_is_away_is_given_up(tmp_path, disturbed, method):
    held = hospitals(method, rounds=10)
    run = gone_on(held, tmp_path, disturbed(held))
    weights = [set(d["weights"]) for d in decisions(run)]
    assert len(weights) == 10
    assert "b" not in weights[1]
    assert any("b" in of for of in weights[2:]), "it takes part again"


def test_a_site_that_has_forgotten_the_run_opens_it_again(tmp_path, disturbed):
    held = hospitals(rounds=3, privacy={"secure": True}, evaluation={"every": 3})
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    transport.box.down.add(B)
    shutil.rmtree(transport.box.keepers[B]._state)
    transport.restart(B)
    away(transport, first=KILLED, back=3)
    run = conducted(held, tmp_path / "run", transport, resume=True)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": DROPPED}, {}]


def test_a_site_that_allows_the_run_no_more_is_named_with_its_code_in_every_round(tmp_path, disturbed):
    """It has the run on disk, and would answer by what it was told before; that answer is not taken."""
    held = hospitals(rounds=3)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    kept = transport.box.keepers[B]
    kept._access = replace(kept._access, policy=replace(kept._access.policy, tasks=Tasks(deny=("prepare",))))
    transport.restart(B)
    run = conducted(held, tmp_path / "run", transport, resume=True)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": f"refused ({TASK})"}, {"b": f"refused ({TASK})"}]
    assert all("b" not in d["weights"] for d in decisions(run)[1:])
    trained = [p for p in transport.seen if p.address == B and p.asks_for("train", 2)]
    assert {task for task, _ in trained[0].asks} >= {"prepare", "train"}


def test_a_site_that_allows_the_run_again_gets_all_that_it_was_set_up_with(tmp_path, disturbed):
    """Others of a secure sum that it was to meet, too, though it was not asked to while it said no."""
    held = hospitals(rounds=3, privacy={"secure": True}, evaluation={"every": 3})
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    kept = transport.box.keepers[B]
    allowed = kept._access
    kept._access = replace(allowed, policy=replace(allowed.policy, tasks=Tasks(deny=("prepare",))))
    shutil.rmtree(kept._state)
    transport.restart(B)

    def happens(passing: Any) -> None:
        if passing.round == 3 and transport.box.keepers[B]._access is not allowed:
            transport.box.keepers[B]._access = allowed
            transport.restart(B)

    transport.before = happens
    run = conducted(held, tmp_path / "run", transport, resume=True)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": f"refused ({TASK})"}, {}]


def test_a_site_whose_rows_have_changed_meanwhile_is_noted(tmp_path, disturbed):
    held = hospitals(rounds=3)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    transport.box.down.add(B)
    fewer = held.rows["b"].take(np.arange(40))
    transport.box.keepers[B]._read = lambda: fewer
    transport.restart(B)
    away(transport, first=KILLED, back=3)
    run = conducted(held, tmp_path / "run", transport, resume=True)
    assert [d["missing"] for d in decisions(run)] == [{}, {"b": DROPPED}, {}]
    assert "b answers prepare differently than at the start of the run" in decisions(run)[2]["notes"]


def test_a_run_that_nobody_opens_fails_and_can_be_gone_on_with_later(tmp_path, disturbed):
    held = hospitals(rounds=3)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    transport.box.down |= set(transport.box.keepers)
    with refused("sites-away", match=r"4 of 4 sites .*\(a: .*; d: ", kind=RunFailed):
        conducted(held, tmp_path / "run", transport, resume=True)
    transport.box.down.clear()
    transport.before = lambda _: None
    assert [d["missing"] for d in decisions(conducted(held, tmp_path / "run", transport, resume=True))] == [{}, {}, {}]


def test_a_site_that_has_joined_the_consortium_since_does_not_join_the_run(tmp_path, disturbed):
    """Its ledger names who takes part; whoever else signed it would be a stranger there."""
    held = hospitals(rounds=2)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport, sites="acd")
    run = conducted(held, tmp_path / "run", transport, resume=True)
    assert [set(d["weights"]) for d in decisions(run)] == [{"a", "c", "d"}] * 2
    assert findings(run) == set()


def test_a_site_that_has_left_the_consortium_since_is_named(tmp_path, disturbed):
    held = hospitals(rounds=3)
    transport = disturbed(held)
    killed(held, tmp_path / "run", transport)
    run = conducted(held, tmp_path / "run", transport, sites="acd", resume=True)
    assert [set(d["weights"]) for d in decisions(run)] == [set("abcd"), set("acd"), set("acd")]
    assert "b has left the consortium since the run started" in decisions(run)[1]["notes"]
    assert findings(run) <= {("missing countersignature", "not countersigned by b")}


@pytest.mark.parametrize("resume", [False, True])
def test_before_a_round_counts_all_sites_must_open_the_run(tmp_path, disturbed, resume):
    """The encoding is agreed on anew then: a site that was told of another one must not go by it."""
    held = hospitals(rounds=2)
    transport = disturbed(held)
    if resume:

        def happens(passing: Any) -> None:
            if passing.asks_for("train", 1):
                raise Killed

        transport.before = happens
        with pytest.raises(Killed):
            conducted(held, tmp_path / "run", transport)
        transport.before = lambda _: None
    transport.box.down.add(B)
    with refused("setup-incomplete", match=rf"1 of 4 sites .* \(b: {DROPPED}\)", kind=RunFailed):
        conducted(held, tmp_path / "run", transport, resume=resume)


@pytest.mark.parametrize("task", ["prepare", "secagg.introduce"])
def test_a_site_that_leaves_while_a_run_is_set_up_ends_it_in_words(tmp_path, disturbed, task):
    held = hospitals(rounds=2, privacy={"secure": True})
    transport = disturbed(held)
    transport.before = lambda passing: transport.box.down.add(B) if passing.asks_for(task) else None
    with refused("setup-incomplete", match=rf"1 of 4 sites .* {task}.* \(b: {DROPPED}\)", kind=RunFailed):
        conducted(held, tmp_path / "run", transport)


# What is odd while sites open ------------------------------------------------------------------------------------------


def test_what_is_noted_before_the_first_round_is_in_its_decision(tmp_path, disturbed):
    """A node that is no site of the run, and a site of another version, are seen while sites open and never again."""
    held = hospitals(rounds=2)
    transport = disturbed(held)
    rows, server = held.rows["a"], transport.box.keepers["0"]._server
    transport.box.keepers["7"] = simulated_keeper("zed", rows, tmp_path / "others", seed=99, server=server)

    def older(passing: Any, reply: bytes) -> bytes:
        early = passing.address == B and passing.round == 0
        if not early or not peek(reply).session:  # a hello is part of the keys
            return reply
        return write(transport.box.keepers[B].me.identity, replace(read(reply), version="0.0.1"))

    transport.twist = older
    first, second = (d["notes"] for d in decisions(conducted(held, tmp_path / "run", transport)))
    assert [n for n in first if n.startswith("a node that is no site of this run")]
    assert [n for n in first if n.startswith("b runs version 0.0.1 of the package")]
    assert second == []
