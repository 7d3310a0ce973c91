"""What takes Flower's own waits of a minute and more: killed nodes, a killed SuperLink, hung and dead workers.

`make test-slow`, or `python -m pytest -m slow tests/capabilities/hospital/deploy/test_flower_faults.py`.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.control import Control, sync_nodes
from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.keys import make_keys
from grandrounds.capabilities.hospital.keeper.flower.node import BEAT
from grandrounds.engine.transport import FAILED, UNAVAILABLE
from tests.capabilities.hospital.deploy.flower_support import Consortium, start_node, until

pytestmark = pytest.mark.slow


class Handler:
    """Echoes; a letter `wait` is answered only when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, letter: bytes) -> bytes:
        if letter == b"wait":
            self.go.wait(300)
        return b"heard " + letter


@pytest.fixture
def consortium(tmp_path):
    found = Consortium(tmp_path, "north", "south", handler=Handler())
    try:
        found.start()
        until(lambda: found.online() == {"north", "south"})
        yield found
    finally:
        found.sites[0].handler.go.set()
        found.close()


def kill(kept) -> None:
    os.killpg(kept.process.pid, signal.SIGKILL)
    kept.process.wait()


def heard(run, who, letter: bytes) -> dict:
    got = run.exchange([(node, letter) for node in who], seconds=100)
    return {node: reply.data for node, reply in got.items()}


def test_a_killed_node_is_let_in_again_at_its_next_start(consortium, run):
    """The SuperLink refuses a node that it believes to be there, so the launcher deactivates the killed one first."""
    who = run.addresses(2)
    north = consortium.sites[0]
    starts = north.node.starts
    kill(north.node)

    def back() -> bool:
        north.node.tend()
        return north.node.program.log.read_text().count("SuperNode ID:") == 2

    until(back, seconds=150, every=0.5)
    assert north.node.starts == starts + 1, "it was not refused"
    assert heard(run, who, b"back") == dict.fromkeys(who, b"heard back")


def test_a_letter_that_was_with_a_killed_node_comes_back_as_unavailable(consortium, run):
    who = run.addresses(2)
    with Control.local(consortium.link) as control:
        named = {str(node.id): node.name for node in control.nodes()}
    north = next(site for site in consortium.sites if site.name == named[who[0]])
    ticket = run.transport.send([(who[0], b"wait")])
    until(lambda: "Received successfully" in north.node.program.log.read_text())
    kill(north.node)
    end = time.monotonic() + 120
    replies: list = []
    while not replies and time.monotonic() < end:
        replies = run.transport.collect(ticket, wait=1.0)
    assert [reply.error for reply in replies] == [UNAVAILABLE]


def test_a_killed_superlink_comes_back_with_its_nodes_and_the_run_goes_on(consortium, run):
    who = run.addresses(2)
    kill(consortium.superlink)
    time.sleep(1.0)
    consortium.superlink.start()
    consortium.answering()
    assert heard(run, who, b"again") == dict.fromkeys(who, b"heard again")


def test_a_worker_that_hangs_is_answered_for_and_blocks_nobody(consortium, run):
    """Stock Flower keeps such a node blocked for good."""
    who = run.addresses(2)
    for site in consortium.sites:
        site.stop.set()
        site.worker.join()
        site.stop.clear()
        site.start_worker(seconds=2.0)
    got = run.exchange([(who[0], b"wait"), (who[1], b"fine")])
    assert (got[who[0]].error, got[who[1]].data) == (FAILED, b"heard fine")
    assert run.exchange([(who[0], b"busy?")])[who[0]].error == FAILED  # its hand is still full
    consortium.sites[0].handler.go.set()
    time.sleep(0.5)
    assert run.exchange([(who[0], b"now")])[who[0]].data == b"heard now"


def test_heartbeats_carry_a_letter_that_takes_longer_than_flower_waits(consortium, run):
    """A SuperNode gives a task up after 60 s without a heartbeat."""
    who = run.addresses(2)
    consortium.sites[0].handler.go.clear()
    threading.Timer(75.0, consortium.sites[0].handler.go.set).start()
    assert BEAT < 30
    assert heard(run, who[:1], b"wait") == {who[0]: b"heard wait"}


def test_a_run_that_is_stopped_while_a_letter_is_fetched_blocks_no_other_run(consortium, run):
    """The SuperNode announces a letter before it is there, and drops it without a word when its run is stopped."""
    who = run.addresses(2)
    run.transport.send([(node, os.urandom(40 * 2**20)) for node in who])
    fetching = [site.node.program.log for site in consortium.sites]
    until(lambda: any("Receiving" in log.read_text() for log in fetching), every=0.01)
    with Control.local(consortium.link) as control:
        control.stop(run.task.run_id)
    run.finish()
    other = consortium.run()
    assert heard(other, other.addresses(2), b"next") == dict.fromkeys(who, b"heard next")
    assert any("Ignoring message" in log.read_text() for log in fetching)
    other.finish()


def test_a_node_that_withdrew_is_refused(consortium, tmp_path):
    public = make_keys(make_folder(tmp_path / "keys"), "stranger")
    listed = consortium.link.nodes / "stranger.pub"
    with Control.local(consortium.link) as control:
        listed.write_text(f"{public.node}\n")
        sync_nodes(control, consortium.link.nodes)
        listed.unlink()
        sync_nodes(control, consortium.link.nodes)
    assert start_node(consortium, tmp_path) == 1
