"""A transport that fetches large answers in parts, over any other transport.

A site announces a large answer (`protocol.parts`). This transport asks it for one range of bytes after another and gives the
whole answer to its caller. A range that does not arrive is asked for again, smaller; ranges that arrive quickly grow. So a line
that is cut loses a part of one range, a slow line is not given up while bytes arrive, and a site may be restarted in between.

The bytes are collected in a file without a name, which ends with the process.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.engine.transport import FAILED, GONE, RECEIVING, UNAVAILABLE, Reply, Transport
from grandrounds.protocol.parts import ANNOUNCE, BYTES, DONE, FETCH, LONGEST, MISSING, PartMessage, decode_part, is_part

FIRST, SHORTEST = 4 * 2**20, 2**20
"""Bytes of the first range, and of the smallest."""

QUICK, SLOW = 5.0, 20.0
"""Seconds: a range that arrives within the first is followed by one of twice the size, after the second by half of it."""

RETRY_SECONDS = 2.0
REFUSALS = 5
"""Failures in a row, of a site that is connected, after which its answer is given up."""

FORGET_SECONDS = 3600.0
"""Seconds after which an answer that the caller no longer waits for is forgotten."""


@dataclass(eq=False)
class _Transfer:
    """A large answer on its way."""

    ticket: str
    address: str
    digest: str
    size: int
    file: IO[bytes]
    length: int
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    received: int = 0
    sent: float = 0.0
    retry: float = 0.0
    refusals: int = 0
    wanted: float = 0.0


class PartsTransport:
    """A `Transport` that takes announced answers apart and puts them together.

    Args:
        transport: The transport that carries each part.
        folder: Folder of temporary files, on a disk with room for the answers; the system's by default.
        largest: Bytes of an answer from which on it counts as failed.
    """

    def __init__(self, transport: Transport, *, folder: Path | None = None, largest: int = 8 * 2**30) -> None:
        self._transport, self._folder, self._largest = transport, folder, largest
        self._addresses: dict[str, str] = {}  # of messages under way, by ticket
        self._transfers: dict[str, _Transfer] = {}  # by the caller's ticket
        self._ranges: dict[str, _Transfer] = {}  # by the ticket of the range under way
        self._notices: set[str] = set()  # tickets of messages whose answer does not matter

    def addresses(self) -> tuple[str, ...]:
        """List the nodes that are connected now."""
        return self._transport.addresses()

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        """Send messages, each to an address, and return their tickets, in order."""
        tickets = self._transport.send(messages)
        self._addresses |= {ticket: address for ticket, (address, _) in zip(tickets, messages, strict=True)}
        return tickets

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        """Return replies to these messages as soon as there are any; none after `wait` seconds.

        A reply with the error `receiving` is no outcome: a part of that answer has arrived.
        """
        end = time.monotonic() + wait
        while True:
            now = time.monotonic()
            for ticket in tickets:
                if (waiting := self._transfers.get(ticket)) is not None:
                    waiting.wanted = now
            self._forget(now)
            for transfer in self._transfers.values():
                if transfer not in self._ranges.values() and now >= transfer.retry:
                    self._ask_for_range(transfer)
            open_tickets = [ticket for ticket in tickets if ticket not in self._transfers]
            pending = [*open_tickets, *self._ranges, *self._notices]
            remaining = max(0.0, end - now)
            step = min(remaining, RETRY_SECONDS) if self._transfers else remaining
            received = self._transport.collect(pending, wait=step) if pending else []
            replies = [reply for one in received if (reply := self._take(one)) is not None]
            if replies or time.monotonic() >= end or not tickets:
                return replies
            if not pending:
                time.sleep(min(0.1, remaining))

    def _take(self, reply: Reply) -> Reply | None:
        """Process one reply of the transport; returns the caller's, if there is one."""
        if reply.ticket in self._notices:
            self._notices.discard(reply.ticket)
            return None
        transfer = self._ranges.pop(reply.ticket, None)
        if transfer is not None:
            return self._take_range(transfer, reply)
        address = self._addresses.pop(reply.ticket, "")
        if reply.data is None or not is_part(reply.data):
            return reply
        return self._begin(reply.ticket, address, reply.data)

    def _begin(self, ticket: str, address: str, data: bytes) -> Reply | None:
        try:
            announced = decode_part(data)
        except BadInput:
            return Reply(ticket, None, FAILED)
        if announced.kind != ANNOUNCE or not 0 < announced.size <= self._largest:
            return Reply(ticket, None, FAILED)
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        now = time.monotonic()
        self._transfers[ticket] = _Transfer(ticket, address, announced.digest, announced.size, file, FIRST, wanted=now)
        return Reply(ticket, None, RECEIVING)

    def _ask_for_range(self, transfer: _Transfer) -> None:
        length = min(transfer.length, transfer.size - transfer.received)
        request = PartMessage(FETCH, transfer.digest, offset=transfer.received, length=length)
        transfer.sent = time.monotonic()
        (ticket,) = self._transport.send([(transfer.address, request.encode())])
        self._ranges[ticket] = transfer

    def _take_range(self, transfer: _Transfer, reply: Reply) -> Reply | None:
        """Add a range to its answer; one that failed is asked for again, smaller."""
        part = _decode(reply.data)
        if part is not None and part.kind == MISSING:
            return self._end(transfer, UNAVAILABLE)  # the caller asks again, and the site answers anew
        if part is None or not _fits(part, transfer):
            if reply.error == GONE:
                return self._end(transfer, GONE)
            transfer.refusals += reply.error != UNAVAILABLE
            if transfer.refusals >= REFUSALS:
                return self._end(transfer, FAILED)
            transfer.length = max(SHORTEST, transfer.length // 2)
            transfer.retry = time.monotonic() + RETRY_SECONDS
            return None
        try:
            transfer.file.write(part.data)
        except OSError as e:
            raise RunFailed(
                f"an answer of {transfer.size / 2**20:.0f} MiB cannot be stored ({e.strerror or e}): free space at the server",
                code="cannot-write",
            ) from None
        transfer.hash.update(part.data)
        transfer.received += len(part.data)
        transfer.refusals = 0
        took = time.monotonic() - transfer.sent
        if took < QUICK:
            transfer.length = min(LONGEST, 2 * transfer.length)
        elif took > SLOW:
            transfer.length = max(SHORTEST, transfer.length // 2)
        if transfer.received < transfer.size:
            return Reply(transfer.ticket, None, RECEIVING)
        return self._finish(transfer)

    def _finish(self, transfer: _Transfer) -> Reply:
        """Check the whole answer, and have the site remove its file."""
        if transfer.hash.hexdigest() != transfer.digest:
            return self._end(transfer, FAILED)
        transfer.file.seek(0)
        data = transfer.file.read()
        self._end(transfer, "")
        self._notices |= set(self._transport.send([(transfer.address, PartMessage(DONE, transfer.digest).encode())]))
        return Reply(transfer.ticket, data)

    def _end(self, transfer: _Transfer, error: str) -> Reply:
        transfer.file.close()
        self._transfers.pop(transfer.ticket, None)
        return Reply(transfer.ticket, None, error)

    def _forget(self, now: float) -> None:
        for transfer in [t for t in self._transfers.values() if now - t.wanted > FORGET_SECONDS]:
            self._end(transfer, "")


def _decode(data: bytes | None) -> PartMessage | None:
    if data is None:
        return None
    try:
        return decode_part(data)
    except BadInput:
        return None


def _fits(part: PartMessage, transfer: _Transfer) -> bool:
    """Check that a part is the next range of an answer."""
    return (
        part.kind == BYTES
        and part.digest == transfer.digest
        and part.offset == transfer.received
        and 0 < len(part.data) <= transfer.size - transfer.received
    )
