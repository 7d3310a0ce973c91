"""The engine for one machine: drive a method's generator with all sites in this process.

Sites are answered in chunks that fit memory. With `wire = true` every site has its own host (K = 1) and every message is
serialised and parsed, as at real hospitals. `Send` and `Receive` run on a virtual clock, so asynchronous methods repeat to the
bit.
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
from grandrounds.engine.driver import Engine, EngineSettings, EngineState, counted_as
from grandrounds.engine.faults import REFUSED
from grandrounds.protocol.codec import decode_answer, decode_ask, encode_answer, encode_ask
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answer, Answers, Arrival, Ask
from grandrounds.protocol.tasks import EVALUATE, spec_of
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Stack

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Identity

Columns = dict[str, Any]

_CHUNK_BYTES = 256 * 2**20
_EVALUATION_CHUNK = 4096
"""Number of sites that are evaluated at once."""


@dataclass(order=True, frozen=True)
class _Flight:
    """A pending Ask: the time of its answer, its position in the order of sending, and its site."""

    time: float
    order: int
    site: str = field(compare=False)
    ask: Ask = field(compare=False)
    lost: str = field(compare=False, default="")  # reason why no answer will come


class LocalEngine(Engine):
    """All sites in one process."""

    def __init__(self, stack: Stack, settings: EngineSettings) -> None:
        super().__init__(stack.names, settings)
        s = settings  # the author runs the experiment, so its code may be imported
        host = partial(
            SiteHost,
            plugins=s.plugins,
            kernel=s.kernel,
            device=s.device,
            precision=s.precision,
            workers=s.workers,
            own_code=True,
            identify=partial(_identity, s.seed),
            secret=partial(_secret, s.seed),
            largest_weight=s.largest_weight,
            withheld_splits=s.withheld_splits,
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

    def _absent(self, ask: Ask, sites: tuple[str, ...]) -> dict[str, str]:
        return {s: why for s in sites if (why := self.settings.faults.absent(ask, s, seed=self.settings.seed))}

    def _elapsed(self, ask: Ask, answers: Answers) -> float:
        """Return the slowest site's virtual seconds, or the deadline if a site did not answer."""
        if answers.missing and ask.deadline is not None:
            return ask.deadline
        return max((self.settings.faults.seconds(s) for s in answers.sites), default=0.0)

    def _blocks(self, ask: Ask, sites: tuple[str, ...]) -> Iterator[Answers]:
        """Answer in chunks of sites, or serialised one by one, with the faults that the experiment injects."""
        for block in self._over_wire(ask, sites) if self.settings.wire else self._in_chunks(ask, sites):
            if not self.settings.wire and ask.id is not None and spec_of(ask.task).is_counted:
                self.meter.count_answers(counted_as(ask), size_of_answers(ask.id, block, self.layout), len(block))
            self.settings.faults.spoil(ask, block)
            yield block

    def _in_chunks(self, ask: Ask, sites: tuple[str, ...]) -> Iterator[Answers]:
        host = self.hosts[0]
        members = host.stack.number(sites)
        size = _EVALUATION_CHUNK if ask.task == EVALUATE else max(1, len(members))
        if spec_of(ask.task).is_training and host.model is not None:
            room = getattr(host.model, "room", _CHUNK_BYTES)
            size = self.settings.chunk or max(1, room // host.model.site_bytes)
        start = 0
        for count, columns in self._fitting_chunks(host, ask, members, size):
            yield Answers(sites[start : start + count], columns)
            start += count

    def _fitting_chunks(self, host: SiteHost, ask: Ask, members: Array, size: int) -> Iterator[tuple[int, Columns]]:
        """Yield numbers of members with their answers; halve the chunk if a device runs out of memory, with a note."""
        start = 0
        while start < len(members):
            columns = None
            try:
                columns = host.answer(ask, members[start : start + size])
            except (
                RuntimeError
            ) as e:  # torch's OutOfMemoryError, recognised by its text so that torch need not be imported
                if "out of memory" not in str(e).lower() or size == 1:
                    raise
            # here, not above: while the exception is handled, its frames keep their tensors on the device
            if columns is not None:
                yield min(size, len(members) - start), columns
                start += size
                continue
            host.make_room()
            size = (size + 1) // 2
            self.notes.append(f"the device ran out of memory: sites are trained {size} at a time")

    def _over_wire(self, ask: Ask, sites: tuple[str, ...]) -> Iterator[Answers]:
        for site in sites:
            answer = self._exchange(ask, site)
            if answer.error:
                yield Answers((), {}, missing={site: REFUSED})
            else:
                yield Answers.from_rows([(site, answer.values)])

    def _exchange(self, ask: Ask, site: str) -> Answer:
        """Get one site's answer by serialised messages."""
        host = self.hosts[self.sites.index(site)]
        received = decode_ask(encode_ask(ask, site, self.layout), site, host.model.layout if host.model else None)
        assert received.id is not None
        try:
            columns = host.answer(received, np.zeros(1, np.int64))
            answer = Answer(site, received.id, {name: column[0] for name, column in columns.items()})
        except BadInput:
            answer = Answer(site, received.id, error=REFUSED)
        data = encode_answer(answer, self.layout)
        if spec_of(ask.task).is_counted:
            self.meter.count_answers(counted_as(ask), len(data), 1)
        return decode_answer(data, site, self.layout)

    def _send(self, ask: Ask) -> None:
        """Send an Ask to each site. A drop-out is detected when the answer is due."""
        ask = self._number(ask)
        self.asked |= dict.fromkeys(ask.to or ())
        for site, size in size_of_ask(ask, self.layout).items():
            self.meter.count_asks(ask.task, size, 1)
            lost = self.settings.faults.absent(ask, site, seed=self.settings.seed)
            seconds = self.settings.faults.seconds(site)
            due = self.clock + (seconds if ask.deadline is None else min(seconds, ask.deadline))
            heapq.heappush(self._flights, _Flight(due, self._sent, site, ask, lost))
            self._sent += 1

    def _receive(self) -> Arrival:
        """Return the next answer by virtual time. It is computed on arrival, from the Ask that was sent."""
        if not self._flights:
            raise RunFailed(
                f"round {self._round}: no answer is pending: every site that was asked has dropped out", code="too-few-sites"
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
        """Skip the check of row counts: simulated sites lie only if the experiment says so."""
        return []

    def arrays(self) -> dict[str, Array]:
        """Return the sites' states and the pending Asks, for a checkpoint."""
        states = {f"{i}/{name}": a for i, host in enumerate(self.hosts) for name, a in host.arrays().items()}
        asks = {f"flight/{f.order}": encode_ask(f.ask, f.site, self.layout) for f in self._flights}
        return states | {name: np.frombuffer(data, np.uint8) for name, data in asks.items()}

    def state(self) -> EngineState:
        flights = [[f.time, f.order, f.site, f.lost] for f in sorted(self._flights)]
        return {"clock": self.clock, "accepted": self._accepted, "sent": self._sent, "flights": flights}

    def restore(self, arrays: Mapping[str, Array], state: EngineState) -> None:
        """Continue from a checkpoint."""
        self.clock = float(state["clock"])
        self._accepted = {str(s): int(r) for s, r in state["accepted"].items()}
        self._sent = int(state["sent"])
        for time, order, site, lost in state["flights"]:
            ask = decode_ask(arrays[f"flight/{order}"].tobytes(), site, self.layout)
            heapq.heappush(self._flights, _Flight(time, order, site, ask, lost))
        for i, host in enumerate(self.hosts):
            own = {n.removeprefix(f"{i}/"): a for n, a in arrays.items() if n.startswith(f"{i}/")}
            if own:
                host.restore(own)


def _secret(seed: int, site: str) -> Secret:
    """Derive the secret of a simulated site's masks: whoever knows the seed can remove them."""
    from grandrounds.privacy.secagg import Secret

    return Secret.simulated(seed, site)


def _identity(seed: int, site: str) -> Identity:
    """Derive the key of a simulated site."""
    from grandrounds.protocol.identity import Identity

    return Identity.simulated(seed, site)
