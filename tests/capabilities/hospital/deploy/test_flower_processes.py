"""Letters over real Flower processes on loopback: a SuperLink with TLS and node keys, two SuperNodes, our workers."""

from __future__ import annotations

import os
import threading

import httpx
import pytest

from tests.support import refused

pytest.importorskip("flwr")

from grandrounds.capabilities.hospital.deploy.control import Control, sync_nodes
from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.keys import make_keys
from grandrounds.capabilities.hospital.keeper.flower.node import serve
from grandrounds.core.errors import RunFailed
from grandrounds.engine.transport import FAILED
from tests.capabilities.hospital.deploy.flower_support import Consortium, start_node, until

PATIENT = "patient with a creatinine of 3.2"


def answer(letter: bytes) -> bytes:
    if letter == b"raise":
        raise ValueError(PATIENT)
    return b"heard " + letter


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    found = Consortium(tmp_path_factory.mktemp("consortium"), "north", "south", handler=answer)
    try:
        found.start()
        until(lambda: found.online() == {"north", "south"}, seconds=180)
        yield found
    finally:
        found.close()


def test_letters_come_back_answered_small_and_large(consortium, run):
    who = run.addresses(2)
    large = os.urandom(6 * 2**20)  # more than one of Flower's chunks
    for letter in (b"", b"hello", large):
        got = run.exchange([(node, letter) for node in who])
        assert {node: reply.data for node, reply in got.items()} == dict.fromkeys(who, b"heard " + letter)
    again = run.exchange([(who[0], b"hello")])  # the same letter once more is a letter of its own
    assert again[who[0]].data == b"heard hello"


def test_what_a_site_raises_leaves_as_a_code_and_the_site_goes_on(consortium, run):
    who = run.addresses(2)
    got = run.exchange([(who[0], b"raise"), (who[1], b"fine")])
    assert (got[who[0]].data, got[who[0]].error) == (None, FAILED)
    assert got[who[1]].data == b"heard fine"
    assert run.exchange([(who[0], b"after")])[who[0]].data == b"heard after"
    logs = [site.node.program.log for site in consortium.sites] + [consortium.link.logs / "superlink.log"]
    kept = [*logs, *consortium.link.state.glob("link.db*")]
    assert not any(b"creatinine" in path.read_bytes() for path in kept)


def test_a_worker_without_the_secret_is_refused(consortium):
    site = consortium.sites[0]
    with refused("wrong-secret"):
        serve(answer, address=f"127.0.0.1:{site.port}", secret=b"another secret", stop=threading.Event())
    bare = httpx.post(
        f"http://127.0.0.1:{site.port}/v1/runtime/acquire-task", headers={"content-type": "application/protobuf"}
    )
    assert bare.status_code == 401


def test_runs_at_the_superlink_are_taken_with_the_secret_only(consortium):
    url = f"https://{consortium.link.address}/v1/runtime/acquire-task"
    bare = httpx.post(url, headers={"content-type": "application/protobuf"}, verify=str(consortium.link.authority))
    assert bare.status_code == 401


def test_a_node_with_an_unknown_key_is_refused(consortium, tmp_path):
    make_keys(make_folder(tmp_path / "keys"), "stranger")
    assert start_node(consortium, tmp_path) == 1
    assert consortium.online() == {"north", "south"}


def test_the_list_of_nodes_is_the_folder_of_keys(consortium, tmp_path):
    public = make_keys(make_folder(tmp_path / "keys"), "stranger")
    listed = consortium.link.nodes / "stranger.pub"
    with Control.local(consortium.link) as control:
        listed.write_text(f"{public.node}\n")
        assert sync_nodes(control, consortium.link.nodes) == (["stranger"], [])
        assert sync_nodes(control, consortium.link.nodes) == ([], [])
        listed.unlink()
        assert sync_nodes(control, consortium.link.nodes) == ([], ["stranger"])
        assert {node.name for node in control.nodes()} == {"north", "south"}


@pytest.mark.slow
def test_a_node_that_is_stopped_and_started_answers_again(consortium, run):
    who = run.addresses(2)
    north = consortium.sites[0]
    north.node.stop()
    until(lambda: north.words[-1:] == ["away"])
    north.node.start()
    until(lambda: north.words[-1:] == ["connected"], seconds=180)
    assert run.addresses(2) == who
    got = run.exchange([(node, b"back") for node in who])
    assert {node: reply.data for node, reply in got.items()} == dict.fromkeys(who, b"heard back")


@pytest.mark.slow
def test_a_node_that_is_killed_returns_before_its_heartbeat_expires(consortium, run):
    who = run.addresses(2)
    north = consortium.sites[0]
    assert north.node.process is not None
    north.node.process.kill()
    north.node.process.wait()
    north.node.start()  # a stock SuperNode is refused for a minute, and ends
    until(lambda: north.words[-2:] == ["away", "connected"], seconds=180)
    until(lambda: consortium.online() == {"north", "south"} and "SuperNode ID" in north.node.program.log.read_text())
    assert run.addresses(2) == who
    assert north.node.process.poll() is None and north.node.starts == len(
        [line for line in north.node.program.log.read_text().splitlines() if "SuperNode ID" in line]
    )
    got = run.exchange([(node, b"back") for node in who])
    assert {node: reply.data for node, reply in got.items()} == dict.fromkeys(who, b"heard back")


def test_a_run_that_is_stopped_says_so(consortium, run):
    who = run.addresses(2)
    with Control.local(consortium.link) as control:
        control.stop(run.task.run_id)
    with refused("ended-by-flower", kind=RunFailed):
        run.transport.send([(who[0], b"too late")])
