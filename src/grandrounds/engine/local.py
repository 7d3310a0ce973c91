"""The engine for one machine: drives a method's generator and answers its Asks with all sites in this process.

Sites are answered in chunks that fit memory. With `wire = true` every site is a host of its own
(K = 1) and every message goes through bytes and back: the cheapest proof that nothing but bytes is
needed. `Send` and `Receive` run on a virtual clock, so asynchronous methods repeat to the bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from grandrounds.arrays import Array
from grandrounds.engine.cost import (
    UNCOUNTED,
    Meter,
    arrays_of_answers,
    arrays_of_ask,
    size_of_answers,
    size_of_ask,
)
from grandrounds.engine.faults import IMPOSSIBLE, NOT_FINITE, REFUSED, Faults, finite_rows, possible_rows
from grandrounds.errors import BadInput, RunFailed
from grandrounds.messages import KEEP, UPLOAD, WORK, Answer, Answers, Arrival, Ask, AskId, Receive, Send
from grandrounds.methods.secure import SecureRule, secured
from grandrounds.models.protocol import ParameterLayout
from grandrounds.privacy.tasks import ASKED_AFTER, ERROR, LATE, TALLIES, TASKS
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Stack
from grandrounds.wire import decode_answer, decode_ask, encode_answer, encode_ask

if TYPE_CHECKING:
    from grandrounds.identity import Identity
    from grandrounds.privacy.secagg import Secret

Result = TypeVar("Result")
_CHUNK_BYTES = 256 * 2**20
_TRAINING = ("train", "finetune")
_CODE = 20
"""Characters of a refusal's code; what a site sends beyond is no code."""

_EVALUATED = 4096
"""Sites that are evaluated at once."""


@dataclass(frozen=True)
class EngineSettings:
    """The experiment's [engine] section, as the engine needs it."""

    run: str
    seed: int
    wire: bool = False
    kernel: str = "auto"
    device: str = "auto"
    precision: str = "float32"
    workers: int = 1
    chunk: int = 0
    min_sites: int = 1
    deadline: float | None = None
    faults: Faults = field(default_factory=Faults)
    largest_weight: float = 1.0
    untold: tuple[str, ...] = ()


@dataclass(order=True, frozen=True)
class _Flight:
    """An Ask on its way: when its answer arrives, in which order it was sent, and to whom."""

    time: float
    order: int
    site: str = field(compare=False)
    ask: Ask = field(compare=False)
    lost: str = field(compare=False, default="")  # why no answer will come


class LocalEngine:
    """All sites in one process. `asked` and `missing` tell who took part since the last `begin`."""

    def __init__(self, stack: Stack, settings: EngineSettings) -> None:
        self.settings = settings
        self.sites = stack.names
        s = settings  # the experiment is run by its author, so its own code may be imported
        host = partial(
            SiteHost,
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
        self.meter = Meter()
        self.clock = 0.0
        self.asked: dict[str, None] = {}
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []  # what went otherwise than planned since the last round began
        self._accepted: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._round = 0
        self._step = 0
        self._sent = 0
        self._flights: list[_Flight] = []
        self.secure: SecureRule | None = None  # how totals are added up where no single answer may be seen

    @property
    def round(self) -> int:
        """The round that was driven last."""
        return self._round

    @property
    def layout(self) -> ParameterLayout | None:
        model = self.hosts[0].model
        return model.layout if model else None

    def drive(self, work: Generator[Any, Any, Result], *, round: int) -> Result:
        """Run a generator to its end, answering whatever it yields."""
        if round != self._round:
            self._round, self._step = round, 0
            self.asked, self.missing, self.notes = {}, {}, []
        if self.secure is not None:
            work = secured(work, self.secure)
        reply: Any = None
        while True:
            try:
                effect = work.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(effect, Send):
                self._send(effect.ask)
                reply = None
            elif isinstance(effect, Receive):
                reply = self._receive()
            else:
                reply = self._ask(effect)

    def commit(self) -> None:
        """The round counts: those whose answers it was made of may move their state on."""
        self._accepted |= self._answered
        self._answered = {}

    def _number(self, ask: Ask) -> Ask:
        """Give the Ask its id, its readers, and the round each of them may count as done."""
        id = AskId(self.settings.run, self._round, self._step)
        self._step += 1
        to = self.sites if ask.to is None else ask.to
        latest = max(self._accepted.values(), default=0)
        behind = {s: self._accepted.get(s, 0) for s in to if self._accepted.get(s, 0) != latest}
        each = {**ask.each, **{s: {**ask.each.get(s, {}), "committed": r} for s, r in behind.items()}}
        deadline = self.settings.deadline if ask.deadline is None else ask.deadline
        shared = {**ask.shared, "committed": latest}
        return replace(ask, shared=shared, each=each, to=to, deadline=deadline, id=id)

    def _ask(self, ask: Ask) -> Answers:
        ask = self._number(ask)
        to, training = ask.to or (), ask.task in WORK
        if training:
            self.asked |= dict.fromkeys(to)
        absent = {s: why for s in to if (why := self.settings.faults.absent(ask, s, seed=self.settings.seed))}
        answers = self._answers(ask, tuple(s for s in to if s not in absent))
        answers.id = ask.id
        answers.missing |= absent
        if ask.task not in LATE:  # who leaves that late is in the sum
            self.missing |= answers.missing
        if ask.task not in UNCOUNTED:
            self.meter.asked(_counted_as(ask), sum(size_of_ask(ask, self.layout).values()), len(to))
            self.meter.carried(_counted_as(ask), arrays_of_ask(ask), arrays_of_answers(answers))
        self._check_enough(ask, answers)
        if ask.task in (*_TRAINING, UPLOAD) and not ask.shared.get(KEEP):  # what a site keeps counts once it is sent
            self._answered |= dict.fromkeys(answers.sites, self._round)
        if training:
            slowest = max((self.settings.faults.seconds(s) for s in answers.sites), default=0.0)
            self.clock += slowest if not answers.missing or ask.deadline is None else ask.deadline
        for site in answers.missing if ask.task not in LATE else ():
            self._answered.pop(site, None)
        return answers

    def _check_enough(self, ask: Ask, answers: Answers) -> None:
        need = self.settings.min_sites if ask.task in WORK else int(ask.task not in (*TASKS, *ASKED_AFTER))
        if ask.task == UPLOAD:  # fewer may have been chosen
            need = min(self.settings.min_sites, len(ask.to or ()))
        if len(answers) < need:
            if len(answers.missing) == len(ask.to or ()) and set(answers.missing.values()) == {NOT_FINITE}:
                raise RunFailed(
                    f"round {self._round}: training diverged at every site: lower train.lr (or data.clip outliers)"
                )
            who = ", ".join(f"{s} ({why})" for s, why in sorted(answers.missing.items()))
            raise RunFailed(
                f"round {self._round}: only {len(answers)} of {len(ask.to or ())} sites answered, "
                f"engine.min_sites is {need}; missing: {who}"
            )

    def _answers(self, ask: Ask, to: tuple[str, ...]) -> Answers:
        """The answers of these sites, in whole columns or byte by byte; who sends what is no number is left out."""
        blocks = []
        for block in self._over_wire(ask, to) if self.settings.wire else self._in_chunks(ask, to):
            if not self.settings.wire and ask.id is not None and ask.task not in UNCOUNTED:
                self.meter.answered(_counted_as(ask), size_of_answers(ask.id, block, self.layout), len(block))
            self.settings.faults.spoil(ask, block)
            block = _without_refusals(block)
            if ask.total:
                block = block.summed(ask.total)
            for look, why in ((finite_rows, NOT_FINITE), (possible_rows, IMPOSSIBLE)):
                good = look(block)
                if not good.all():
                    block = block.only(np.flatnonzero(good), {block.sites[k]: why for k in np.flatnonzero(~good)})
            blocks.append(block)
        return Answers.join(blocks) if blocks else Answers((), {})

    def _in_chunks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        host = self.hosts[0]
        members = host.stack.number(to)
        size = _EVALUATED if ask.task == "evaluate" else max(1, len(members))
        if ask.task in _TRAINING and host.model is not None:
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
        if ask.task not in UNCOUNTED:
            self.meter.answered(_counted_as(ask), len(data), 1)
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
            raise RunFailed(f"round {self._round}: no answer is on its way; every site asked has dropped out")
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

    def arrays(self) -> dict[str, Array]:
        """The sites' states and the Asks on their way, for a checkpoint."""
        states = {f"{i}/{name}": a for i, host in enumerate(self.hosts) for name, a in host.arrays().items()}
        asks = {f"flight/{f.order}": encode_ask(f.ask, f.site, self.layout) for f in self._flights}
        return states | {name: np.frombuffer(data, np.uint8) for name, data in asks.items()}

    def state(self) -> dict[str, Any]:
        flights = [[f.time, f.order, f.site, f.lost] for f in sorted(self._flights)]
        return {"clock": self.clock, "accepted": self._accepted, "sent": self._sent, "flights": flights}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
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


def _counted_as(ask: Ask) -> str:
    """The task that an Ask's bytes are counted under: to add up tallies securely, or to lend scores, is part of evaluating."""
    adding = ask.task in TASKS and str(ask.shared["tag"]).startswith(TALLIES)
    return "evaluate" if adding or (ask.task == "score" and "parts" in ask.shared) else ask.task


def _without_refusals(answers: Answers) -> Answers:
    """The answers without those of sites that answered with the code of a refusal."""
    if ERROR not in answers:
        return answers
    codes = [str(code)[:_CODE] for code in answers[ERROR]]
    refused = {site: f"refused ({code})" for site, code in zip(answers.sites, codes, strict=True) if code}
    return answers.only([k for k, code in enumerate(codes) if not code], refused) if refused else answers


def _secret(seed: int, site: str) -> Secret:
    """What a site's masks come from in a simulation: whoever knows the seed can take them off."""
    from grandrounds.privacy.secagg import Secret

    return Secret.simulated(seed, site)


def _simulated(seed: int, site: str) -> Identity:
    """A site's key in a simulation."""
    from grandrounds.identity import Identity

    return Identity.simulated(seed, site)
