"""The budget at a site: on disk before anything is released, one writer at a time, never silently empty."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys

import pytest

from grandrounds.privacy.accounting import Event
from grandrounds.privacy.budget import Overspent
from grandrounds.privacy.site_budget import SiteBudget
from tests.support import refused

DELTA = 1e-5
SUMS = Event("laplace", "sums", epsilon=0.1)
MOST = Event("laplace", "many sums", epsilon=0.4)


def child(code: str, *args: str) -> subprocess.Popen[str]:
    head = (
        "import sys, os, signal\n"
        "from grandrounds.privacy.accounting import Event\n"
        "from grandrounds.privacy.budget import Overspent\n"
        "from grandrounds.privacy.site_budget import SiteBudget\n"
        "sums = Event('laplace', 'sums', epsilon=0.1)\n"
        "purse = SiteBudget.open(sys.argv[1])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_it_is_kept_across_runs(tmp_path):
    path = tmp_path / "purse.json"
    assert SiteBudget.open(path, epsilon=0.25, delta=DELTA).charge(SUMS, run="a", key="round 1")
    assert SiteBudget.open(path).charge(SUMS, run="b", key="round 1")
    assert SiteBudget.open(path).spent() == pytest.approx(0.2, rel=1e-3)
    before = path.read_bytes()
    with refused("budget-overspent", match="0.2 is spent", kind=Overspent):
        SiteBudget.open(path).charge(SUMS, run="c", key="round 1")
    assert path.read_bytes() == before


def test_a_repeated_key_of_a_run_is_charged_once(tmp_path):
    purse = SiteBudget.open(tmp_path / "purse.json", epsilon=1.0, delta=DELTA)
    assert purse.charge(SUMS, run="a", key="round 1") is True
    assert purse.charge(SUMS, run="a", key="round 1") is False
    assert purse.charge(SUMS, run='a", "round', key="1") is True
    assert purse.budget().events == (SUMS, SUMS)
    with refused("repeated-release"):
        purse.charge(Event("laplace", "more", epsilon=0.1), run="a", key="round 1")


def test_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    purse.charge(SUMS, run="a", key="1")
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o600}


def test_a_limit_is_lowered_and_never_raised(tmp_path):
    path = tmp_path / "purse.json"
    with refused("missing-budget"):
        SiteBudget.open(path)
    SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    assert SiteBudget.open(path, epsilon=1.0, delta=DELTA).charge(SUMS, run="a", key="1")
    with refused("changed-budget-limit", match="from 1 to 50"):
        SiteBudget.open(path, epsilon=50.0)
    with refused("changed-budget-limit", match="delta"):
        SiteBudget.open(path, delta=0.1)
    assert SiteBudget.open(path).budget().epsilon == 1.0
    lower = SiteBudget.open(path, epsilon=0.3, delta=DELTA)
    assert (lower.budget().epsilon, lower.budget().events) == (0.3, (SUMS,)), "charges stay"
    assert lower.charge(SUMS, run="b", key="1")
    with refused("changed-budget-limit", match="from 0.3 to 1"):
        SiteBudget.open(path, epsilon=1.0)


def test_a_limit_below_what_is_spent_refuses_every_further_release(tmp_path):
    path = tmp_path / "purse.json"
    SiteBudget.open(path, epsilon=1.0, delta=DELTA).charge(MOST, run="a", key="1")
    lower = SiteBudget.open(path, epsilon=0.2, delta=DELTA)
    with refused("budget-overspent", match=r"the budget is 0.2 .* 0.4 is spent and 0 left", kind=Overspent):
        lower.charge(SUMS, run="a", key="2")
    assert lower.charge(MOST, run="a", key="1") is False, "a repeated request still has its answer"


@pytest.mark.parametrize(
    ("epsilon", "delta", "words", "refusal"),
    [
        (0.6, DELTA, "epsilon limit 1 -> 0.6; spent 0.4; remaining 0.2", False),
        (1.0, DELTA, "epsilon limit 1; spent 0.4; remaining 0.6", False),
        (0.2, DELTA, "epsilon limit 1 -> 0.2; spent 0.4; remaining nothing", False),
        (2.0, DELTA, "epsilon limit 1 -> 2; spent 0.4; remaining 0.6", True),
        (0.6, 0.1, "epsilon limit 1 -> 0.6; spent 0.4", True),
    ],
)
def test_a_change_of_limits_is_foreseen(epsilon, delta, words, refusal, tmp_path):
    path = tmp_path / "purse.json"
    SiteBudget.open(path, epsilon=1.0, delta=DELTA).charge(MOST, run="a", key="1")
    before = path.read_bytes()
    change = SiteBudget(path).foresee(epsilon, delta)
    assert change.describe().startswith(words), change.describe()
    assert bool(change.refusal) == refusal and path.read_bytes() == before


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"schema": 1}', "null", "\x00\x00"])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path, damage):
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    path.write_text(damage)
    for call in (lambda: purse.charge(SUMS, run="a", key="1"), lambda: SiteBudget.open(path, epsilon=1.0, delta=DELTA)):
        with refused("damaged-budget"):
            call()
    assert path.read_text() == damage


def test_a_file_cut_short_or_without_a_limit_is_refused(tmp_path):
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    purse.charge(SUMS, run="a", key="1")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused("damaged-budget"):
        purse.spent()
    path.write_text(json.dumps(json.loads(whole) | {"epsilon": None}))
    with refused("damaged-budget"):
        purse.spent()


def test_a_file_that_vanished_during_a_run_is_not_made_anew(tmp_path):
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    path.unlink()
    with refused("cannot-read"):
        purse.charge(SUMS, run="a", key="1")
    assert not path.exists()


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with refused("cannot-write"):
        SiteBudget.open(tmp_path / "none" / "purse.json", epsilon=1.0, delta=DELTA)


def test_killed_between_the_charge_and_the_release(tmp_path):
    """The charge is on disk; the same key costs nothing when the site is asked again."""
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=0.15, delta=DELTA)
    died = child("purse.charge(sums, run='a', key='round 1')\nos.kill(os.getpid(), signal.SIGKILL)", str(path))
    assert died.wait(60) == -signal.SIGKILL
    assert purse.budget().events == (SUMS,)
    assert purse.charge(SUMS, run="a", key="round 1") is False
    assert purse.spent() == pytest.approx(0.1, rel=1e-3)
    with refused("budget-overspent", kind=Overspent):
        purse.charge(SUMS, run="a", key="round 2")


def test_killed_in_its_turn_leaves_the_file_whole_and_the_lock_free(tmp_path):
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=1.0, delta=DELTA)
    before = path.read_bytes()
    died = child("with purse._turn():\n    os.kill(os.getpid(), signal.SIGKILL)", str(path))
    assert died.wait(60) == -signal.SIGKILL
    assert path.read_bytes() == before
    assert purse.charge(SUMS, run="a", key="1") is True


def test_two_writers_never_lose_a_charge_nor_overspend(tmp_path):
    """Two processes charge as fast as they can; epsilon 3 holds exactly thirty charges of 0.1."""
    path = tmp_path / "purse.json"
    purse = SiteBudget.open(path, epsilon=3.0, delta=0.0)
    code = (
        "done = 0\n"
        "try:\n"
        "    while True:\n"
        "        purse.charge(sums, run=sys.argv[2], key=str(done))\n"
        "        done += 1\n"
        "except Overspent:\n"
        "    print(done)\n"
    )
    writers = [child(code, str(path), name) for name in ("a", "b")]
    done = [int(w.communicate(timeout=120)[0]) for w in writers]
    assert sum(done) == len(purse.budget().events)
    assert sum(done) == 30
