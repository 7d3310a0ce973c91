"""Send requests to sites, wait for their answers and retry, over any transport.

The dispatcher finds addresses of sites by asking, and agrees on session keys in the same step. It identifies a site by its
signature alone, so a site that returns under another address is found again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from grandrounds.core.errors import BadInput
from grandrounds.core.version import __version__
from grandrounds.engine.exchange_log import log_hello, log_identified, log_received, log_sent
from grandrounds.engine.faults import DROPPED, LATE
from grandrounds.engine.sealing import UNREADABLE, InvalidAnswer, MessageSealer, OtherVersion
from grandrounds.engine.transport import FAILED, RECEIVING, UPLOAD, Reply, Transport
from grandrounds.protocol.envelope import digest
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Ask

_BATCH_BYTES = 32 * 2**20
"""Bytes of messages that are written before they are sent."""


@dataclass(frozen=True)
class Timeouts:
    """Waiting times of a dispatcher, in seconds.

    Attributes:
        answer: For an answer, where an experiment names no deadline.
        absent: For a site that is not connected; part of `answer`.
        retry: Between two attempts.
        poll: For the transport at a time.
    """

    answer: float = 600.0
    absent: float = 60.0
    retry: float = 1.0
    poll: float = 1.0


@dataclass(eq=False)
class Request:
    """Asks to one site, in one message, after those that it must do first.

    A request without a ticket waits until its site connects.
    """

    site: str
    asks: tuple[Ask, ...]
    expires: float
    absent_since: float
    prerequisites: tuple[Ask, ...] = ()
    ticket: str = ""
    digest: str = ""  # of its message
    sent: float = 0.0
    retry_time: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class _Hello:
    """A message that asks the node at an address for its name and its session key."""

    address: str
    data: bytes
    sent: float


class Dispatcher:
    """Send requests over a transport. `notes` lists problems of connected nodes."""

    def __init__(self, transport: Transport, sealer: MessageSealer, timeouts: Timeouts) -> None:
        self._transport, self._sealer, self.timeouts = transport, sealer, timeouts
        self._addresses: dict[str, str] = {}  # by site
        self._hellos: dict[str, _Hello] = {}  # by ticket
        self._next_hello: dict[str, float] = {}  # by address: time of the next question for its name
        self._hello_count = 0
        self._next_discovery = 0.0
        self.notes: list[str] = []

    def request(self, asks: Sequence[Ask], site: str, *, prerequisites: Sequence[Ask] = ()) -> Request:
        """Make a request that starts now and expires when its last Ask is due."""
        now = time.monotonic()
        wait = self.timeouts.answer if asks[-1].deadline is None else asks[-1].deadline
        return Request(site, tuple(asks), expires=now + wait, absent_since=now, prerequisites=tuple(prerequisites))

    def exchange(self, requests: Sequence[Request], layout: ParameterLayout | None) -> list[tuple[Request, Reply]]:
        """Send the requests that are not under way, and wait a little.

        Args:
            requests: All pending requests.
            layout: How parameters of the model are laid out; None before sites have prepared.

        Returns:
            Requests with their replies; a request that is to be sent again is not among them.
        """
        now = time.monotonic()
        if any(r.site not in self._addresses for r in requests) and now >= self._next_discovery:
            self._discover()
        ready = [r for r in requests if not r.ticket and r.site in self._addresses and now >= r.retry_time]
        self._send(ready, layout)
        waiting = {r.ticket: r for r in requests if r.ticket}
        retries = (r.retry_time for r in requests if not r.ticket and r.retry_time > now)
        soonest = min((*(r.expires for r in requests), *retries))
        wait = max(0.0, min(self.timeouts.poll, soonest - time.monotonic()))
        replies = []
        # in the order sent, independent of the hashes of tickets
        for reply in self._transport.collect([*waiting, *self._hellos], wait=wait):
            if reply.ticket in self._hellos:
                self._identify(reply)
            elif reply.ticket in waiting:
                if reply.error != RECEIVING:
                    log_received(waiting[reply.ticket], reply.data, reply.error)
                if not self._retry(waiting[reply.ticket], reply):
                    replies.append((waiting[reply.ticket], reply))
        return replies

    def _send(self, requests: Sequence[Request], layout: ParameterLayout | None) -> None:
        """Send messages in batches, because all of them together have a model for every site."""
        start = 0
        while start < len(requests):
            batch: list[tuple[str, bytes]] = []
            while start + len(batch) < len(requests) and sum(len(data) for _, data in batch) < _BATCH_BYTES:
                request = requests[start + len(batch)]
                asks = (*request.prerequisites, *request.asks)
                batch.append((self._addresses[request.site], self._sealer.seal_asks(asks, request.site, layout)))
            for request, (_, data), ticket in zip(requests[start:], batch, self._transport.send(batch), strict=False):
                request.ticket, request.digest, request.sent = ticket, digest(data), time.monotonic()
                log_sent(request, len(data))
            start += len(batch)

    def expiry_reason(self, request: Request) -> str:
        """Return the reason why a request has expired; empty while it is pending."""
        now = time.monotonic()
        if now >= request.expires:
            return LATE if request.ticket else DROPPED
        is_away = not request.ticket and request.site not in self._addresses
        return DROPPED if is_away and now - request.absent_since >= self.timeouts.absent else ""

    def _retry(self, request: Request, reply: Reply) -> bool:
        """Reschedule a request whose site was not connected, failed once or needs a new session; False if the reply is final."""
        no_session = reply.data is not None and self._sealer.needs_hello(reply.data, request.site, request.digest)
        if reply.data is not None and not no_session:
            return False
        now = time.monotonic()
        if reply.error == RECEIVING:  # a slow line is not given up while parts arrive; a deadline of the plan is kept
            if request.asks[-1].deadline is None:
                request.expires = max(request.expires, now + UPLOAD)
            return True
        if reply.error == FAILED:
            request.failures += 1
            if request.failures > 1:
                return False
        else:
            address = self._addresses.pop(request.site, "")
            self._next_hello.pop(address, None)  # another node may have it by now
            request.absent_since = now
        request.ticket, request.retry_time = "", now + self.timeouts.retry
        return True

    def _discover(self) -> None:
        """Ask nodes for their names at addresses where no site is known."""
        now = time.monotonic()
        self._next_discovery = now + self.timeouts.retry
        connected = self._transport.addresses()
        self._addresses = {site: address for site, address in self._addresses.items() if address in connected}
        self._hellos = {
            ticket: hello
            for ticket, hello in self._hellos.items()
            if hello.address in connected and now - hello.sent <= self.timeouts.absent
        }
        identified = {*self._addresses.values(), *(hello.address for hello in self._hellos.values())}
        new = [a for a in connected if a not in identified and now >= self._next_hello.get(a, 0.0)]
        messages = [(a, self._sealer.seal_hello(self._hello_count + k)) for k, a in enumerate(new)]
        self._hello_count += len(new)
        self._next_hello |= dict.fromkeys(new, now + 10 * self.timeouts.retry)
        for (address, data), ticket in zip(messages, self._transport.send(messages), strict=True):
            self._hellos[ticket] = _Hello(address, data, now)
            log_hello(digest(data), len(data))

    def _identify(self, reply: Reply) -> None:
        """Take the address of a site that answered a hello; note a node whose answer is not a site's."""
        hello = self._hellos.pop(reply.ticket)
        if reply.data is None:
            return
        try:
            site = self._sealer.identify(reply.data, hello.data)
            self._addresses[site] = hello.address
            log_identified(digest(hello.data), site, len(reply.data), hello.sent)
        except BadInput as e:
            reason = str(e) if isinstance(e, InvalidAnswer) else UNREADABLE
            who = e.site if isinstance(e, OtherVersion) else "a node that is no site of this run"
            hint = f": install version {__version__} there" if isinstance(e, OtherVersion) else ""
            note = f"{who} {reason}{hint}"
            if note not in self.notes:
                self.notes.append(note)
