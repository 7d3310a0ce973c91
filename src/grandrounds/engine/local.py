"""The engine for one machine: drives a method's generator and answers its Asks with all sites in this process.

Sites are answered in chunks that fit memory. With `wire = true` every site is a host of its own
(K = 1) and every message goes through bytes and back: the cheapest proof that nothing but bytes is
needed. `Send` and `Receive` run on a virtual clock, so asynchronous methods repeat to the bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.engine.cost import size_of_answers, size_of_ask
from grandrounds.engine.driver import Engine, EngineSettings, counted_as
from grandrounds.engine.faults import REFUSED
from grandrounds.methods import SITE_PLUGINS
from grandrounds.protocol.codec import decode_answer, decode_ask, encode_answer, encode_ask
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answer, Answers, Arrival, Ask
from grandrounds.protocol.tasks import EVALUATE, spec_of
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Stack

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Identity

_CHUNK_BYTES = 256 * 2**20
_EVALUATED = 4096
"""Sites that are evaluated at once."""


@dataclass(order=True, frozen=True)
class _Flight:
    """An Ask on its way: when its answer arrives, in which order it was sent, and to whom."""

    time: float
    order: int
    site: str = field(compare=False)
    ask: Ask = field(compare=False)
    lost: str = field(compare=False, default="")  # why no answer will come


class LocalEngine(Engine):
    """All sites in one process."""

    def __init__(self, stack: Stack, settings: EngineSettings) -> None:
        super().__init__(stack.names, settings)
        s = settings  # the experiment is run by its author, so its own code may be imported
        host = partial(
            SiteHost,
            plugins=SITE_PLUGINS,
            kernel=s.kernel,
            device=s.device,
            precision=s.precision,
            workers=s.workers,
            own_code=True,
            identify=partial(_simulated, s.seed),
            secret=partial(_secret, s.seed),
            largest_weight=s.largest_weight,
            untold=s.untold,
        )
        if settings.wire:
            self.hosts = [host(stack.alone(k), cached=4) for k in range(len(stack.names))]
        else:
            self.hosts = [host(stack)]
        self._sent = 0
        self._flights: list[_Flight] = []

    @property
    def layout(self) -> ParameterLayout | None:
        model = self.hosts[0].model
        return model.layout if model else None

    def _absent(self, ask: Ask, to: tuple[str, ...]) -> dict[str, str]:
        return {s: why for s in to if (why := self.settings.faults.absent(ask, s, seed=self.settings.seed))}

    def _took(self, ask: Ask, answers: Answers) -> float:
        """The slowest site's virtual seconds, or the deadline where somebody was waited for in vain."""
        if answers.missing and ask.deadline is not None:
            return ask.deadline
        return max((self.settings.faults.seconds(s) for s in answers.sites), default=0.0)

    def _blocks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        """In whole columns, or byte by byte; spoilt where an experiment wants them spoilt."""
        for block in self._over_wire(ask, to) if self.settings.wire else self._in_chunks(ask, to):
            if not self.settings.wire and ask.id is not None and spec_of(ask.task).is_counted:
                self.meter.answered(counted_as(ask), size_of_answers(ask.id, block, self.layout), len(block))
            self.settings.faults.spoil(ask, block)
            yield block

    def _in_chunks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        host = self.hosts[0]
        members = host.stack.number(to)
        size = _EVALUATED if ask.task == EVALUATE else max(1, len(members))
        if spec_of(ask.task).is_training and host.model is not None:
            room = getattr(host.model, "room", _CHUNK_BYTES)
            size = self.settings.chunk or max(1, room // host.model.site_bytes)
        at = 0
        for count, columns in self._fitting(host, ask, members, size):
            yield Answers(to[at : at + count], columns)
            at += count

    def _fitting(self, host: SiteHost, ask: Ask, members: Array, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Members by the number, and their answers; where a device is out of memory, half as many at a time, as is noted."""
        at = 0
        while at < len(members):
            columns = None
            try:
                columns = host.answer(ask, members[at : at + size])
            except RuntimeError as e:  # torch's OutOfMemoryError, told by its words so that torch need not be imported
                if "out of memory" not in str(e).lower() or size == 1:
                    raise
            # here, not above: while the exception is handled, its frames keep their tensors on the device
            if columns is not None:
                yield min(size, len(members) - at), columns
                at += size
                continue
            host.make_room()
            size = (size + 1) // 2
            self.notes.append(f"the device ran out of memory: sites are trained {size} at a time")

    def _over_wire(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        for site in to:
            answer = self._exchange(ask, site)
            if answer.error:
                yield Answers((), {}, missing={site: REFUSED})
            else:
                yield Answers.from_rows([(site, answer.values)])

    def _exchange(self, ask: Ask, site: str) -> Answer:
        """One site's answer through bytes and back."""
        host = self.hosts[self.sites.index(site)]
        heard = decode_ask(encode_ask(ask, site, self.layout), site, host.model.layout if host.model else None)
        assert heard.id is not None
        try:
            columns = host.answer(heard, np.zeros(1, np.int64))
            answer = Answer(site, heard.id, {name: column[0] for name, column in columns.items()})
        except BadInput:
            answer = Answer(site, heard.id, error=REFUSED)
        data = encode_answer(answer, self.layout)
        if spec_of(ask.task).is_counted:
            self.meter.answered(counted_as(ask), len(data), 1)
        return decode_answer(data, site, self.layout)

    def _send(self, ask: Ask) -> None:
        """Put an Ask on its way to each site. What a site that drops out leaves unanswered is noticed when it was due."""
        ask = self._number(ask)
        self.asked |= dict.fromkeys(ask.to or ())
        for site, size in size_of_ask(ask, self.layout).items():
            self.meter.asked(ask.task, size, 1)
            lost = self.settings.faults.absent(ask, site, seed=self.settings.seed)
            takes = self.settings.faults.seconds(site)
            due = self.clock + (takes if ask.deadline is None else min(takes, ask.deadline))
            heapq.heappush(self._flights, _Flight(due, self._sent, site, ask, lost))
            self._sent += 1

    def _receive(self) -> Arrival:
        """The next answer by virtual time. It is worked out on arrival, from the Ask as it was sent."""
        if not self._flights:
            raise RunFailed(
                f"round {self._round}: no answer is on its way; every site asked has dropped out", code="too-few-sites"
            )
        flight = heapq.heappop(self._flights)
        self.clock = max(self.clock, flight.time)
        id = flight.ask.id
        assert id is not None
        answers = Answers((), {}) if flight.lost else self._answers(flight.ask, (flight.site,))
        if len(answers):
            self._answered[flight.site] = id.round
            self.missing.pop(flight.site, None)
            return Arrival(Answer(flight.site, id, next(iter(answers))[1]), flight.time, id.round)
        why = self.missing[flight.site] = flight.lost or answers.missing[flight.site]
        return Arrival(Answer(flight.site, id, error=why), flight.time, id.round)

    def agree_rows(self, rows: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Nobody is held to anything: simulated sites lie where the experiment says so, and methods are measured by it."""
        return []

    def arrays(self) -> dict[str, Array]:
        """The sites' states and the Asks on their way, for a checkpoint."""
        states = {f"{i}/{name}": a for i, host in enumerate(self.hosts) for name, a in host.arrays().items()}
        asks = {f"flight/{f.order}": encode_ask(f.ask, f.site, self.layout) for f in self._flights}
        return states | {name: np.frombuffer(data, np.uint8) for name, data in asks.items()}

    def state(self) -> dict[str, Any]:
        flights = [[f.time, f.order, f.site, f.lost] for f in sorted(self._flights)]
        return {"clock": self.clock, "accepted": self._accepted, "sent": self._sent, "flights": flights}

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Take up where a checkpoint left off."""
        self.clock = float(state["clock"])
        self._accepted = {str(s): int(r) for s, r in state["accepted"].items()}
        self._sent = int(state["sent"])
        for time, order, site, lost in state["flights"]:
            ask = decode_ask(arrays[f"flight/{order}"].tobytes(), site, self.layout)
            heapq.heappush(self._flights, _Flight(time, order, site, ask, lost))
        for i, host in enumerate(self.hosts):
            mine = {n.removeprefix(f"{i}/"): a for n, a in arrays.items() if n.startswith(f"{i}/")}
            if mine:
                host.restore(mine)


def _secret(seed: int, site: str) -> Secret:
    """What a site's masks come from in a simulation: whoever knows the seed can take them off."""
    from grandrounds.privacy.secagg import Secret

    return Secret.simulated(seed, site)


def _simulated(seed: int, site: str) -> Identity:
    """A site's key in a simulation."""
    from grandrounds.protocol.identity import Identity

    return Identity.simulated(seed, site)
