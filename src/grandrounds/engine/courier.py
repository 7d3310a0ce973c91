"""Errands: letters that are sent, waited for and sent again, to sites whose addresses are found out by asking.

Who is at an address is believed by its signature alone. A site that comes back under another address is found again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from grandrounds.core.errors import BadInput
from grandrounds.engine.faults import DROPPED, LATE
from grandrounds.engine.letters import Letters, Unbelievable
from grandrounds.engine.post import FAILED, Post, Reply
from grandrounds.protocol.envelope import digest
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Ask

_AT_ONCE = 32 * 2**20
"""Bytes of letters after which those that are written go before others are."""


@dataclass(frozen=True)
class Patience:
    """Seconds: `answer`, for an answer where an experiment names no deadline; `absent`, for a site that is not there, within
    that; `again`, between two tries; `poll`, for the post at a time."""

    answer: float = 600.0
    absent: float = 60.0
    again: float = 1.0
    poll: float = 1.0


@dataclass(eq=False)
class Errand:
    """Asks to one site, in one letter, after what it is to do `first`. Without a ticket it waits for the site to be there,
    which it was not since `since`."""

    site: str
    asks: tuple[Ask, ...]
    end: float
    since: float
    first: tuple[Ask, ...] = ()
    ticket: str = ""
    sent: str = ""  # the digest of its letter
    next: float = 0.0
    fails: int = 0


class Courier:
    """Runs errands over a post. `notes`: what is odd about those who are there."""

    def __init__(self, post: Post, letters: Letters, patience: Patience) -> None:
        self._post, self._letters, self.patience = post, letters, patience
        self._book: dict[str, str] = {}  # site -> address
        self._hellos: dict[
            str, tuple[str, str, float]
        ] = {}  # ticket -> address, digest of the letter, when it was sent
        self._greet: dict[str, float] = {}  # address -> when it may be asked again who it is
        self._count = 0
        self._next_roll = 0.0
        self.notes: list[str] = []

    def errand(self, asks: Sequence[Ask], site: str, *, first: Sequence[Ask] = ()) -> Errand:
        """To begin now; it ends when its last Ask is due."""
        now = time.monotonic()
        wait = self.patience.answer if asks[-1].deadline is None else asks[-1].deadline
        return Errand(site, tuple(asks), end=now + wait, since=now, first=tuple(first))

    def go(self, errands: Sequence[Errand], layout: ParameterLayout | None) -> list[tuple[Errand, Reply]]:
        """Send what is not on its way yet, and wait a little; what came, but for letters that are to be sent again."""
        now = time.monotonic()
        if any(e.site not in self._book for e in errands) and now >= self._next_roll:
            self._call_roll()
        ready = [e for e in errands if not e.ticket and e.site in self._book and now >= e.next]
        self._dispatch(ready, layout)
        waiting = {e.ticket: e for e in errands if e.ticket}
        soonest = min((*(e.end for e in errands), *(e.next for e in errands if not e.ticket and e.next > now)))
        wait = max(0.0, min(self.patience.poll, soonest - time.monotonic()))
        came = []
        # in the order sent: answers that come together are taken in it, whatever the hashes of their tickets are
        for reply in self._post.collect([*waiting, *self._hellos], wait=wait):
            if reply.ticket in self._hellos:
                self._met(reply)
            elif reply.ticket in waiting and not self._again(waiting[reply.ticket], reply):
                came.append((waiting[reply.ticket], reply))
        return came

    def _dispatch(self, errands: Sequence[Errand], layout: ParameterLayout | None) -> None:
        """Send letters, some at a time: each is written for its site, and all of them would be a model for every site."""
        at = 0
        while at < len(errands):
            letters: list[tuple[str, bytes]] = []
            while at + len(letters) < len(errands) and sum(len(data) for _, data in letters) < _AT_ONCE:
                errand = errands[at + len(letters)]
                asks = (*errand.first, *errand.asks)
                letters.append((self._book[errand.site], self._letters.asks(asks, errand.site, layout)))
            for errand, (_, data), ticket in zip(errands[at:], letters, self._post.send(letters), strict=False):
                errand.ticket, errand.sent = ticket, digest(data)
            at += len(letters)

    def given_up(self, errand: Errand) -> str:
        """Why an errand is not waited for any longer; nothing where it is."""
        now = time.monotonic()
        if now >= errand.end:
            return LATE if errand.ticket else DROPPED
        gone = not errand.ticket and errand.site not in self._book
        return DROPPED if gone and now - errand.since >= self.patience.absent else ""

    def _again(self, errand: Errand, reply: Reply) -> bool:
        """Whether a letter that came back unanswered is to be sent once more: its site was not there, or failed once."""
        if reply.data is not None:
            return False
        now = time.monotonic()
        if reply.error == FAILED:
            errand.fails += 1
            if errand.fails > 1:
                return False
        else:
            address = self._book.pop(errand.site, "")
            self._greet.pop(address, None)  # it may be another node's by now
            errand.since = now
        errand.ticket, errand.next = "", now + self.patience.again
        return True

    def _call_roll(self) -> None:
        """Ask those at addresses where nobody is known to be who they are."""
        now = time.monotonic()
        self._next_roll = now + self.patience.again
        here = self._post.addresses()
        self._book = {site: address for site, address in self._book.items() if address in here}
        late = [t for t, (a, _, sent) in self._hellos.items() if a not in here or now - sent > self.patience.absent]
        for ticket in late:
            del self._hellos[ticket]
        known = {*self._book.values(), *(address for address, _, _ in self._hellos.values())}
        new = [a for a in here if a not in known and now >= self._greet.get(a, 0.0)]
        letters = [(a, self._letters.hello(self._count + k)) for k, a in enumerate(new)]
        self._count += len(new)
        self._greet |= dict.fromkeys(new, now + 10 * self.patience.again)
        for (address, data), ticket in zip(letters, self._post.send(letters), strict=True):
            self._hellos[ticket] = (address, digest(data), now)

    def _met(self, reply: Reply) -> None:
        """Somebody said who they are; one who cannot show it is nobody, which is noted."""
        address, sent, _ = self._hellos.pop(reply.ticket)
        if reply.data is None:
            return
        try:
            self._book[self._letters.who(reply.data, sent)] = address
        except BadInput as e:
            said = str(e) if isinstance(e, Unbelievable) else "sent what cannot be read"
            note = f"a node that no site of this run is at {said}"
            if note not in self.notes:
                self.notes.append(note)
