"""Large answers in parts: a transport that loses messages, a site that keeps files, and the bytes between them."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.keeper.runtime import large_answers
from grandrounds.capabilities.hospital.keeper.runtime.large_answers import LargeAnswers
from grandrounds.core.errors import BadInput
from grandrounds.engine import parts as module
from grandrounds.engine.parts import PartsTransport
from grandrounds.engine.transport import FAILED, GONE, RECEIVING, UNAVAILABLE, Reply
from grandrounds.protocol.parts import ANNOUNCE, BYTES, PartMessage, decode_part, is_part

ANSWER = os.urandom(3_000_000)


class Line:
    """A transport to one site; `lose` decides by the number of the message, and `change` may alter an answer."""

    def __init__(self, site: LargeAnswers) -> None:
        self.site, self.lose, self.change = site, lambda n: "", lambda data: data
        self.messages, self.bytes = 0, 0
        self._replies: dict[str, Reply] = {}
        self._tickets = map(str, count())

    def addresses(self) -> tuple[str, ...]:
        return ("north",)

    def send(self, messages):
        tickets = []
        for _, data in messages:
            ticket, self.messages = next(self._tickets), self.messages + 1
            if error := self.lose(self.messages):
                self._replies[ticket] = Reply(ticket, None, error)
            else:
                answer = self.change(self.site.handle(data))
                self.bytes += len(answer)
                self._replies[ticket] = Reply(ticket, answer)
            tickets.append(ticket)
        return tickets

    def collect(self, tickets, *, wait):
        return [self._replies.pop(ticket) for ticket in tickets if ticket in self._replies]


@pytest.fixture
def line(tmp_path, monkeypatch):
    for name, value in {"FIRST": 100_000, "SHORTEST": 10_000, "RETRY_SECONDS": 0.0}.items():
        monkeypatch.setattr(module, name, value)
    return Line(LargeAnswers(tmp_path / "outgoing", lambda message: ANSWER, large=1_000_000))


def fetch(line: Line, tmp_path: Path) -> tuple[Reply, list[Reply]]:
    """The outcome of one message, and the notices of progress before it."""
    transport = PartsTransport(line, folder=tmp_path)
    (ticket,) = transport.send([("north", b"ask")])
    progress: list[Reply] = []
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for reply in transport.collect([ticket], wait=0.1):
            assert reply.ticket == ticket
            if reply.error != RECEIVING:
                transport.collect([], wait=0.0)
                return reply, progress
            progress.append(reply)
    raise AssertionError("no outcome")


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "outgoing").iterdir())


def test_a_large_answer_arrives_whole_and_the_site_removes_its_file(line, tmp_path):
    reply, progress = fetch(line, tmp_path)
    assert reply.data == ANSWER and len(progress) > 3
    assert files(tmp_path) == []


def test_a_small_answer_is_passed_on_as_it_is(line, tmp_path):
    line.site = LargeAnswers(tmp_path / "outgoing", lambda message: b"small", large=5)
    reply, progress = fetch(line, tmp_path)
    assert (reply.data, progress, line.messages) == (b"small", [], 1)


def test_only_lost_parts_are_sent_again(line, tmp_path):
    """Half of the messages are lost; what arrives is little more than the answer."""
    line.lose = lambda n: UNAVAILABLE if n > 1 and n % 2 == 0 else ""
    reply, _ = fetch(line, tmp_path)
    assert reply.data == ANSWER
    assert line.bytes < 1.01 * len(ANSWER)


def test_a_restarted_site_continues_with_its_file(line, tmp_path):
    def restart(n: int) -> str:
        """Start another process of the site before each request for a part; its handler would answer otherwise."""
        if n > 1:
            line.site = LargeAnswers(tmp_path / "outgoing", lambda message: os.urandom(2_000_000), large=1_000_000)
        return ""

    line.lose = restart
    reply, progress = fetch(line, tmp_path)
    assert reply.data == ANSWER and len(progress) > 3


def test_files_are_for_the_owner_only(line, tmp_path):
    announced = decode_part(line.site.handle(b"ask"))
    (file,) = files(tmp_path)
    assert (announced.kind, announced.size, file.name) == (ANNOUNCE, len(ANSWER), announced.digest)
    assert oct(file.stat().st_mode)[-3:] == "600" and oct(file.parent.stat().st_mode)[-3:] == "700"


def test_a_site_that_lost_its_file_is_asked_again(line, tmp_path):
    def lose_file(n: int) -> str:
        if n == 4:
            for file in files(tmp_path):
                file.unlink()
        return ""

    line.lose = lose_file
    assert fetch(line, tmp_path)[0].error == UNAVAILABLE


def test_a_changed_byte_is_refused(line, tmp_path):
    def flip(data: bytes) -> bytes:
        if is_part(data) and (part := decode_part(data)).kind == BYTES and part.offset:
            return PartMessage(BYTES, part.digest, part.size, part.offset, part.length, b"x" + part.data[1:]).encode()
        return data

    line.change = flip
    assert fetch(line, tmp_path)[0] == Reply("0", None, FAILED)


@pytest.mark.parametrize(
    "wrong",
    [
        PartMessage(BYTES, "0" * 64, offset=0, length=5, data=b"other"),
        PartMessage(BYTES, "0" * 64),
    ],
)
def test_parts_of_another_answer_are_not_taken(line, tmp_path, wrong):
    line.change = lambda data: data if decode_part(data).kind == ANNOUNCE else wrong.encode()
    assert fetch(line, tmp_path)[0].error == FAILED


def test_a_site_that_left_the_consortium_is_reported(line, tmp_path):
    line.lose = lambda n: GONE if n > 3 else ""
    assert fetch(line, tmp_path)[0].error == GONE


def test_an_announcement_without_end_is_refused(line, tmp_path):
    line.change = lambda data: PartMessage(ANNOUNCE, "0" * 64, size=2**50).encode()
    assert fetch(line, tmp_path)[0].error == FAILED


def test_a_full_disk_at_the_site_sends_the_answer_in_one_piece(line, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(large_answers.os, "fsync", fail)
    reply, progress = fetch(line, tmp_path)
    assert (reply.data, progress, files(tmp_path)) == (ANSWER, [], [])


def test_answers_that_nobody_fetches_are_removed_after_a_day(line, tmp_path):
    line.site.handle(b"ask")
    (file,) = files(tmp_path)
    before = time.time() - large_answers.KEEP_SECONDS - 1
    os.utime(file, (before, before))
    LargeAnswers(tmp_path / "outgoing", lambda message: b"")
    assert files(tmp_path) == []


@pytest.mark.parametrize("digest", ["../" * 21 + "x", "a" * 63, "g" * 64, "/etc/passwd"])
def test_a_name_that_is_no_digest_opens_no_file(line, digest):
    with pytest.raises(BadInput):
        line.site.handle(PartMessage("fetch", digest, length=10).encode())


@pytest.mark.parametrize("data", [b"GRP1", b"GRP1\x00\x00\x00\x02{}", b"GRP1\xff\xff\xff\xff{}", b"other"])
def test_malformed_messages_are_refused(data):
    with pytest.raises(BadInput):
        decode_part(data)
