"""The engine for remote sites: every Ask and every Answer is a sealed message.

The network is a `Transport`. A site that is not connected is asked again until the deadline; one that has not answered by then
is missing from the round, with the reason. A site answers a repeated Ask from its cache, so asking again is safe. The state of
sites stays with them: a checkpoint has only the pending Asks.

An exchange takes seconds regardless of its size. So an Ask that nothing waits for (the test scores of a round, a head to
countersign) is deferred and sent with the messages of the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.version import __version__
from grandrounds.engine.answer_store import AnswerSpool, join_on_disk
from grandrounds.engine.claims import BAD_ROWS, Shapes, doubt, inconsistent_shapes
from grandrounds.engine.cost import size_of_ask
from grandrounds.engine.dispatcher import Dispatcher, Request, Timeouts
from grandrounds.engine.driver import Engine, EngineSettings, EngineState, Result, counted_as
from grandrounds.engine.exchange_log import log_refused
from grandrounds.engine.sealing import TOO_LARGE, InvalidAnswer, MessageSealer, read_answer, refusal_reason
from grandrounds.engine.setup import Setup
from grandrounds.engine.transport import Reply, Transport
from grandrounds.models import build_model
from grandrounds.protocol.codec import decode_ask, encode_ask
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import Layout, ParameterLayout
from grandrounds.protocol.messages import Answer, Answers, Arrival, Ask
from grandrounds.protocol.tasks import PREPARE, spec_of

BROKE = "could not do it"


@dataclass(frozen=True)
class Deferred:
    """Work whose first Ask is sent with another."""

    ask: Ask
    work: Generator[Any, Any, Any]
    on_result: Callable[[Any], None]


class RemoteEngine(Engine):
    """Drive methods at sites behind a transport.

    Args:
        settings: The engine section of the experiment.
        transport: Carries messages to sites and back.
        identity: The server's key.
        keys: Public key of each site.
        spool: Folder in which large answers wait; None for the system's.
        timeouts: Waiting times for sites.
        setup: Answers of sites to the set-up of a run that is resumed.
        largest: Bytes of an answer, besides four models, beyond which it is not read.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        transport: Transport,
        identity: Identity,
        keys: Mapping[str, bytes],
        spool: Path | None = None,
        timeouts: Timeouts | None = None,
        setup: Setup | None = None,
        largest: int = 64 * 2**20,
    ) -> None:
        super().__init__(tuple(keys), settings)
        self.setup = setup or Setup()
        self._sealer = MessageSealer(identity, settings.run, keys)
        self._dispatcher = Dispatcher(transport, self._sealer, timeouts or Timeouts())
        self._largest = largest
        self._spool = AnswerSpool(spool)
        self._layout: ParameterLayout | None = None
        self._deferred: list[Deferred] = []
        self._answered_deferred: list[Deferred] = []  # whose answers came with those of another Ask
        self._missing: dict[str, dict[str, str]] = {}  # Ask -> site -> reason
        self._shapes: dict[str, dict[str, Shapes]] = {}  # Ask -> site -> the shapes that it sent
        self._in_flight: list[Request] = []
        self._landed: list[tuple[Request, str]] = []  # received answers that no method has read, or the reason why there is none
        self._noted: set[str] = set()
        self._exchange_start = time.monotonic()

    @property
    def layout(self) -> ParameterLayout | None:
        return self._layout

    def piggyback(self, work: Generator[Any, Any, Result], on_result: Callable[[Result], None]) -> None:
        """Defer work to the next messages. A secure sum needs its own steps, so it is not deferred."""
        if self.secure is not None:
            super().piggyback(work, on_result)
            return
        try:
            ask = work.send(None)
        except StopIteration as end:
            on_result(end.value)
        else:
            self._deferred.append(Deferred(self._number(ask), work, on_result))

    def flush(self) -> int:
        deferred, self._deferred = self._deferred, []
        if deferred:
            self._gather([self._request(asks, site) for site, asks in _asks_by_site(deferred).items()])
            self._answered_deferred += deferred
            self._resume_deferred()
        return len(deferred)

    def _ask(self, ask: Ask) -> Answers:
        answers = super()._ask(ask)
        self._resume_deferred()
        return answers

    def _blocks(self, ask: Ask, sites: tuple[str, ...]) -> Iterator[Answers]:
        if ask.task == PREPARE:
            self._agree_layout(json.loads(str(ask.shared["spec"])))
        self._exchange_start = time.monotonic()
        deferred, self._deferred = self._deferred, []
        deferred_asks = _asks_by_site(deferred)
        self._missing[str(ask.id)] = postponed = self.setup.postponed(ask, sites)
        requests = [self._request((*deferred_asks.pop(s, ()), ask), s) for s in sites if s not in postponed]
        requests += [self._request(asks, site) for site, asks in deferred_asks.items()]
        self._gather(requests)
        self._answered_deferred += deferred
        yield from self._collect(ask, sites)

    def _request(self, asks: Sequence[Ask], site: str) -> Request:
        return self._dispatcher.request(asks, site, prerequisites=self.setup.prerequisites(asks, site))

    def _resume_deferred(self) -> None:
        """Continue deferred work whose answers have come."""
        answered, self._answered_deferred = self._answered_deferred, []
        for deferred in answered:
            ask, sites = deferred.ask, deferred.ask.to or ()
            answers = self._join((self._validated(ask, block) for block in self._collect(ask, sites)), len(sites))
            answers.id = ask.id
            self.notes += [f"{s} was missing from {ask.task} {ask.id}: {why}" for s, why in answers.missing.items()]
            self._count(ask, answers)
            deferred.on_result(self._run(deferred.work, answers))

    def _collect(self, ask: Ask, sites: Sequence[str]) -> Iterator[Answers]:
        """Read the answers to an Ask that have arrived, in the order of the sites."""
        missing, shapes = self._missing.pop(str(ask.id), {}), self._shapes.pop(str(ask.id), {})
        if not spec_of(ask.task).is_sum_step:
            trees = self._layout is not None and not isinstance(self._layout, Layout)  # their vectors differ in length
            missing |= inconsistent_shapes(shapes, ragged=("model",) if trees else ())
        substitutes = self.setup.settle(ask, missing)
        try:
            for site in sites:
                if site in substitutes:
                    yield Answers.from_rows([(site, substitutes[site])])
                elif site in missing:
                    yield Answers((), {}, missing={site: missing[site]})
                else:
                    yield Answers.from_rows([(site, self._take(ask, site).values)])
        finally:
            self._spool.discard(_spool_name(ask, site) for site in sites)
            self.setup.write(ask)

    def _join(self, blocks: Iterable[Answers], max_sites: int) -> Answers:
        return join_on_disk(blocks, max_sites, self._spool.folder)

    def _agree_layout(self, spec: Mapping[str, Any]) -> None:
        """Build the sites' model, for the layout of its parameters in messages."""
        s = self.settings
        model = build_model(spec, kernel=s.kernel, device="cpu", precision=s.precision)
        self._layout = model.layout

    def _gather(self, requests: Sequence[Request]) -> None:
        """Wait for all requests; then answers are in the spool, with the missing sites and the shapes of the others."""
        pending = list(requests)
        while pending:
            for request, answers in self._finished(pending):
                pending.remove(request)
                for ask, answer in zip(request.asks, answers, strict=True):
                    if answer.error:
                        self._missing.setdefault(str(ask.id), {})[request.site] = answer.error
                    else:
                        shapes = {n: np.shape(v) for n, v in answer.values.items() if not isinstance(v, str)}
                        self._shapes.setdefault(str(ask.id), {})[request.site] = shapes
        versions = [
            f"{site} runs version {version} of the package, the server {__version__}"
            for site, version in self._sealer.versions.items()
            if version != __version__
        ]
        for note in (*self._dispatcher.notes, *versions, *self.setup.notes):
            if note not in self._noted:
                self._noted.add(note)
                self.notes.append(note)

    def _finished(self, requests: list[Request]) -> list[tuple[Request, list[Answer]]]:
        """Find requests that are finished, with answers or with the reason why there are none."""
        replies = self._dispatcher.exchange(requests, self._layout)
        finished = [(request, self._accept(request, reply)) for request, reply in replies]
        replied = {request for request, _ in finished}
        expired = {r: self._dispatcher.expiry_reason(r) for r in requests if r not in replied}
        return finished + [(request, _no_answers(request, why)) for request, why in expired.items() if why]

    def _accept(self, request: Request, reply: Reply) -> list[Answer]:
        """Check a reply and put its answers into the spool; an answer that is not accepted has the reason as its error."""
        if reply.data is None:
            return _no_answers(request, BROKE)
        if len(reply.data) > self._largest + 32 * int(getattr(self._layout, "size", 0)):
            return _no_answers(request, TOO_LARGE)
        try:
            first = len(request.prerequisites)
            count = first + len(request.asks)
            bodies = self._sealer.open_answers(reply.data, request.site, request.digest, count)
            answers = self.setup.catch_up(request.site, request.prerequisites, bodies[:first])
            self._renew_rows(request.site, request.prerequisites, answers)
        except InvalidAnswer as e:
            return _no_answers(request, str(e))
        return [self._store(ask, request.site, body) for ask, body in zip(request.asks, bodies[first:], strict=True)]

    def _renew_rows(self, site: str, asks: Sequence[Ask], answers: Sequence[Answer]) -> None:
        """Store the row counts of a returning site; `Setup` notes differences."""
        for ask, answer in zip(asks, answers, strict=True):
            if ask.task != PREPARE or site not in self.agreed:
                continue
            if doubt(ask, Answers.from_rows([(site, answer.values)]), {}):
                raise InvalidAnswer(BAD_ROWS)
            self.agreed[site] = {part: int(answer.values[f"{part}_rows"]) for part in self.agreed[site]}

    def _store(self, ask: Ask, site: str, body: bytes) -> Answer:
        assert ask.id is not None
        try:
            answer = read_answer(body, site, ask, self._layout)
        except InvalidAnswer as e:
            return Answer(site, ask.id, error=str(e))
        if answer.error:
            log_refused(ask, site, answer.error)
            return Answer(site, ask.id, error=refusal_reason(answer.error))
        if spec_of(ask.task).is_counted:
            self.meter.count_answers(counted_as(ask), len(body), 1)
        self._spool.put(_spool_name(ask, site), body, answer)
        return answer

    def _take(self, ask: Ask, site: str) -> Answer:
        spooled = self._spool.take(_spool_name(ask, site))
        self.setup.record(ask, site, spooled.body)
        return spooled.answer or read_answer(spooled.body, site, ask, self._layout)

    def _elapsed(self, ask: Ask, answers: Answers) -> float:
        return time.monotonic() - self._exchange_start

    def _send(self, ask: Ask) -> None:
        self.flush()
        ask = self._number(ask)
        self.asked |= dict.fromkeys(ask.to or ())
        for site, size in size_of_ask(ask, self.layout).items():
            self.meter.count_asks(ask.task, size, 1)
            self._in_flight.append(self._request((ask,), site))

    def _receive(self) -> Arrival:
        """Return whichever answer arrives first."""
        self.flush()
        start = time.monotonic()
        while not self._landed:
            if not self._in_flight:
                raise RunFailed(
                    f"round {self._round}: no answer is pending: every site that was asked has dropped out",
                    code="too-few-sites",
                )
            for request, answers in self._finished(self._in_flight):
                self._in_flight.remove(request)
                self._landed.append((request, answers[0].error))
        self.clock += time.monotonic() - start
        return self._arrival(*self._landed.pop(0))

    def _arrival(self, request: Request, why: str) -> Arrival:
        ask, site = request.asks[0], request.site
        id = ask.id
        assert id is not None
        if not why:
            answers = self._validated(ask, Answers.from_rows([(site, self._take(ask, site).values)]))
            if len(answers):
                self._answered[site] = id.round
                self.missing.pop(site, None)
                return Arrival(Answer(site, id, next(iter(answers))[1]), self.clock, id.round)
            why = answers.missing[site]
        self.missing[site] = why
        return Arrival(Answer(site, id, error=why), self.clock, id.round)

    def arrays(self) -> dict[str, Array]:
        """Return the pending Asks. The state of sites stays with them."""
        asks = [encode_ask(request.asks[0], request.site, self.layout) for request in self._unread()]
        return {f"flight/{k}": np.frombuffer(data, np.uint8) for k, data in enumerate(asks)}

    def state(self) -> EngineState:
        flights = [request.site for request in self._unread()]
        return {"clock": self.clock, "accepted": self._accepted, "flights": flights}

    def _unread(self) -> list[Request]:
        """List requests whose answers no method has read yet: a resumed run asks again, and gets the same."""
        return [*(request for request, _ in self._landed), *self._in_flight]

    def restore(self, arrays: Mapping[str, Array], state: EngineState) -> None:
        self.clock = float(state["clock"])
        self._accepted = {str(s): int(r) for s, r in state["accepted"].items()}
        for k, site in enumerate(state["flights"]):
            ask = decode_ask(arrays[f"flight/{k}"].tobytes(), site, self.layout)
            self._in_flight.append(self._request((ask,), site))


def _asks_by_site(deferred: Sequence[Deferred]) -> dict[str, tuple[Ask, ...]]:
    sites = dict.fromkeys(site for one in deferred for site in one.ask.to or ())
    return {site: tuple(one.ask for one in deferred if site in (one.ask.to or ())) for site in sites}


def _spool_name(ask: Ask, site: str) -> str:
    return f"{ask.id} {site}"


def _no_answers(request: Request, why: str) -> list[Answer]:
    return [Answer(request.site, ask.id, error=why) for ask in request.asks if ask.id is not None]
