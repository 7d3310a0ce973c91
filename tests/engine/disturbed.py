"""A letterbox that things happen to: messages are watched on their way, keepers start again, answers are changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.capabilities.hospital.keeper.runtime.run import SiteIdentity, SiteRun
from grandrounds.engine.transport import UNAVAILABLE, Reply
from grandrounds.protocol.codec import bundle, decode_answer, encode_answer, peek_answer, peek_ask, unbundle
from grandrounds.protocol.envelope import MAGIC, peek
from grandrounds.protocol.messages import Answer, AskId
from grandrounds.runs.run import Run
from tests.engine.decrypted import read, write
from tests.engine.hospitals import Hospitals, final_model
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients

SIZES = [60, 50, 40, 45]
B = "1"
"""The address of site b, to which things happen."""

DATA = {"table": "data frame", "label": "died", "site": "hospital"}


class Killed(BaseException):
    """The server's process ends here: nothing catches it, as nothing catches a SIGKILL."""


@dataclass
class Clock:
    """Seconds that pass only while nothing arrives: what is waited for is the same on a busy machine."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass(frozen=True)
class Passing:
    """A message that is about to be handed over to the keeper at an address."""

    address: str
    asks: tuple[tuple[str, AskId], ...]
    data: bytes

    def asks_for(self, task: str, round: int | None = None) -> bool:
        return any(t == task and round in (None, id.round) for t, id in self.asks)

    @property
    def round(self) -> int:
        return max(id.round for _, id in self.asks)


@dataclass
class Disturbed:
    """Keepers behind a transport, one answer at a time. `before` sees each letter first; `twist` may change each answer.

    `seen`: messages that were delivered or tried to be; `replies`: all that left the keepers.
    """

    box: MemoryTransport
    clock: Clock
    before: Callable[[Passing], None] = lambda _: None
    twist: Callable[[Passing, bytes], bytes] = lambda _, data: data
    seen: list[Passing] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    answered: dict[bytes, bytes] = field(default_factory=dict)
    restarted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, keepers: Sequence[Keeper], clock: Clock, **hooks: Any) -> Disturbed:
        return cls(MemoryTransport(keepers), clock, **hooks)

    def addresses(self) -> tuple[str, ...]:
        return self.box.addresses()

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        return self.box.send(messages)

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        ticket = next((t for t in self.box._waiting if t in tickets), None)
        if ticket is None:
            self.clock.now += max(wait, 0.01)
            return []
        address, data = self.box._waiting.pop(ticket)
        passing = Passing(address, tuple(peek_ask(body) for body in unbundle(read(data).body)), data)
        self.seen.append(passing)
        self.before(passing)
        if address not in self.addresses():
            return [Reply(ticket, None, UNAVAILABLE)]
        answer = self.box.keepers[address].handle(data)
        if answer.startswith(MAGIC) and peek(answer).session:
            self.restarted.discard(address)
        self.replies.append(answer)
        self.answered[data] = answer
        return [Reply(ticket, self.twist(passing, answer))]

    def restart(self, address: str) -> bool:
        """The keeper's process ends, and another begins on the same folder, unless the last one has not answered yet.

        The sessions are gone with the process, so the server greets the site and asks again.
        """
        if address in self.restarted:
            return False
        self.restarted.add(address)
        old = self.box.keepers[address]
        me = SiteIdentity(old.me.name, old.me.identity, old.me.secret)
        self.box.keepers[address] = Keeper(
            me, server=old._server, rows=old._read, state=old._state, access=old._access, device=old._device
        )
        return True

    def move(self, address: str, to: str) -> None:
        """The keeper goes on under another address."""
        self.box.keepers[to] = self.box.keepers.pop(address)

    def codes(self) -> Counter[str]:
        """How often each code left the keepers."""
        told = [peek_answer(body) for data in self.replies for body in unbundle(read(data).body)]
        return Counter(code for code in told if code)


def lying(keeper: Keeper, reply: bytes, change: Callable[[Answer], Answer]) -> bytes:
    """A reply with other values, signed by the site itself: a site that lies, and not one that is impersonated."""
    plain = read(reply)
    run = keeper._runs.get(plain.run)
    layout = None if run is None else run.layout
    parts = [change(decode_answer(body, keeper.me.name, layout)) for body in unbundle(plain.body)]
    return write(keeper.me.identity, replace(plain, body=bundle([encode_answer(part, None) for part in parts])))


def counting(monkeypatch: Any) -> Counter[tuple[str, str]]:
    """How often each site did each task, and not by reading what it had answered before."""
    done: Counter[tuple[str, str]] = Counter()
    do = SiteRun._do

    def counted(self: SiteRun, ask: Any) -> dict[str, Any]:
        done[self._me.name, ask.task] += 1
        return do(self, ask)

    monkeypatch.setattr(SiteRun, "_do", counted)
    return done


def hospitals(method: dict | str = "fedavg", *, rounds: int = 3, **settings: Any) -> Hospitals:
    """Four hospitals a to d, and an experiment that explains nothing unless it is said."""
    said = {"name": method} if isinstance(method, str) else method
    settings = {"explain": {"sketch": "none"}, **settings}
    return Hospitals.of(patients(SIZES), name="faults", data=DATA, method={"rounds": rounds, **said}, **settings)


def decisions(run: Run) -> list[dict[str, Any]]:
    return [record["decision"] for record in run.rounds]


def close_to(run: Run, undisturbed: Run) -> None:
    np.testing.assert_allclose(final_model(run), final_model(undisturbed), atol=1e-5, rtol=1e-5)
