"""A process that works with the data and hangs or dies: the letter is answered with a code, and another process goes on."""

from __future__ import annotations

import sys

import psutil
import pytest

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.runtime.worker import Supervisor
from grandrounds.core.errors import RunFailed
from grandrounds.protocol.codec import bundle, decode_answer, encode_ask, unbundle
from grandrounds.protocol.envelope import Envelope, digest, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.runs.ledger import SERVER
from tests.support import refused

ME = Identity.simulated(0, "b")
CHILD = """
import os, signal, sys, time
from grandrounds.capabilities.hospital.keeper.runtime.answers import AnsweredMessage
from grandrounds.capabilities.hospital.keeper.runtime.worker import READY, read_frame, write_frame
write_frame(sys.stdout.buffer, READY)
while (letter := read_frame(sys.stdin.buffer)) is not None:
    if b"hang" in letter:
        time.sleep(600)
    if b"die once" in letter and not os.path.exists("ONCE"):
        open("ONCE", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if b"die always" in letter:
        os.kill(os.getpid(), signal.SIGKILL)
    write_frame(sys.stdout.buffer, AnsweredMessage(str(os.getpid()).encode(), ()).to_bytes())
"""


@pytest.fixture
def supervisor(tmp_path):
    child = CHILD.replace("ONCE", str(tmp_path / "died"))
    found = Supervisor([sys.executable, "-c", child], ME, "b", seconds=1.0, log=tmp_path / "work.log")
    found.start()
    yield found
    found.close()


def letter(*tasks: str) -> bytes:
    asks = [encode_ask(Ask(task, id=AskId("run", 4, k)), "b", None) for k, task in enumerate(tasks)]
    return seal(Identity.simulated(0, SERVER), Envelope("server", "b", "run", bundle(asks)))


@pytest.mark.parametrize(("task", "code", "ended"), [("hang", codes.LATE, 1), ("die always", codes.CRASHED, 2)])
def test_a_process_that_hangs_or_dies_twice_is_answered_for_and_another_takes_its_place(supervisor, task, code, ended):
    first = int(supervisor.handle(letter("work")).message)
    asked = letter("work", task)
    reply = unseal(supervisor.handle(asked).message, public=ME.public)
    assert (reply.sender, reply.to, reply.run, reply.about) == ("b", "server", "run", digest(asked))
    (answer,) = (decode_answer(body, "b", None) for body in unbundle(reply.body))
    assert (reply.session, answer.id, answer.error, answer.values) == ("", AskId("run", 0, 0), code, {})
    second = int(supervisor.handle(letter("work")).message)
    assert second != first and not psutil.pid_exists(first)
    assert int(supervisor.handle(letter("work")).message) == second
    assert supervisor.restarts == ended


def test_a_message_whose_worker_was_killed_once_is_answered_by_the_next_worker(supervisor):
    first = int(supervisor.handle(letter("work")).message)
    assert int(supervisor.handle(letter("die once")).message) != first
    assert supervisor.restarts == 1


def test_a_process_that_was_killed_between_two_letters_is_not_noticed_by_the_server(supervisor):
    first = int(supervisor.handle(letter("work")).message)
    child = psutil.Process(first)
    child.kill()
    psutil.wait_procs([child], timeout=5)
    assert int(supervisor.handle(letter("work")).message) != first
    assert supervisor.restarts == 1


def test_what_is_no_letter_is_answered_for_too(supervisor):
    reply = peek(supervisor.handle(b"hang, and no letter").message)
    assert decode_answer(reply.body, "b", None).error == codes.LATE


def test_a_process_that_does_not_start_is_said_with_the_log_that_says_why(tmp_path):
    log = tmp_path / "work.log"
    broken = Supervisor([sys.executable, "-c", "raise SystemExit('no rows here')"], ME, "b", seconds=1.0, log=log)
    with refused("worker-did-not-start", match=r"work\.log", kind=RunFailed):
        broken.start()
    assert "no rows here" in log.read_text()
    assert decode_answer(peek(broken.handle(letter("work")).message).body, "b", None).error == codes.CRASHED
