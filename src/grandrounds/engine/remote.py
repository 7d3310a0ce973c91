"""The engine for sites that are elsewhere: every Ask is a sealed letter to each site, every answer one back.

The network is a `Post`. A site that is not there is asked again until the deadline; one that does not answer by then is
missing from the round, with the reason. The same Ask asked twice is answered from the site's own cache, so nothing is lost
by asking again. What sites remember stays with them: a checkpoint holds the Asks on their way and nothing of theirs.

An exchange takes seconds however little it carries. So an Ask whose answer nothing waits for (the test scores of a round, a
head to countersign) rides along with the next one, in the same letters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds import __version__
from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.engine.claims import BAD_ROWS, doubt
from grandrounds.engine.cost import size_of_ask
from grandrounds.engine.courier import Courier, Errand, Patience
from grandrounds.engine.driver import Engine, EngineSettings, Result, counted_as
from grandrounds.engine.letters import TOO_LARGE, Letters, Unbelievable, read_answer
from grandrounds.engine.post import Post, Reply
from grandrounds.engine.setup import Setup, refused
from grandrounds.engine.shapes import Shapes, odd_ones
from grandrounds.engine.spool import Spool
from grandrounds.engine.stacked import stacked
from grandrounds.models import build_model
from grandrounds.protocol.codec import decode_ask, encode_ask
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answer, Answers, Arrival, Ask
from grandrounds.protocol.tasks import PREPARE, spec_of

BROKE = "could not do it"


@dataclass(frozen=True)
class _Rider:
    """Work whose first Ask goes along with another."""

    ask: Ask
    work: Generator[Any, Any, Any]
    then: Callable[[Any], None]


class RemoteEngine(Engine):
    """Sites behind a post. `keys`: the public key of each site; `identity`: the server's own."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        post: Post,
        identity: Identity,
        keys: Mapping[str, bytes],
        spool: Path | None = None,
        patience: Patience | None = None,
        setup: Setup | None = None,
        largest: int = 64 * 2**20,
    ) -> None:
        """`spool`: where large answers wait; `setup`: what sites of a run that goes on answered before; `largest`: bytes of an
        answer, besides four models, beyond which it is not read."""
        super().__init__(tuple(keys), settings)
        self.setup = setup or Setup()
        self._letters = Letters(identity, settings.run, keys)
        self._courier = Courier(post, self._letters, patience or Patience())
        self._largest = largest
        self._spool = Spool(spool)
        self._layout: ParameterLayout | None = None
        self._riders: list[_Rider] = []
        self._aboard: list[_Rider] = []  # whose answers came with those of the Ask that they rode along with
        self._missing: dict[str, dict[str, str]] = {}  # Ask -> site -> why
        self._shapes: dict[str, dict[str, Shapes]] = {}  # Ask -> site -> the shapes that it sent
        self._flights: list[Errand] = []
        self._landed: list[tuple[Errand, str]] = []  # whose answers wait to be received, and why there is none
        self._told: set[str] = set()
        self._began = time.monotonic()

    @property
    def layout(self) -> ParameterLayout | None:
        return self._layout

    def along(self, work: Generator[Any, Any, Result], then: Callable[[Result], None]) -> None:
        """With the next letters. A secure sum takes steps of its own, so nothing is gained by waiting with it."""
        if self.secure is not None:
            super().along(work, then)
            return
        try:
            ask = work.send(None)
        except StopIteration as end:
            then(end.value)
        else:
            self._riders.append(_Rider(self._number(ask), work, then))

    def flush(self) -> int:
        riders, self._riders = self._riders, []
        if riders:
            self._gather([self._errand(asks, site) for site, asks in _by_site(riders).items()])
            self._aboard += riders
            self._alight()
        return len(riders)

    def _ask(self, ask: Ask) -> Answers:
        answers = super()._ask(ask)
        self._alight()
        return answers

    def _blocks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        if ask.task == PREPARE:
            self._agree(json.loads(str(ask.shared["spec"])))
        self._began = time.monotonic()
        riders, self._riders = self._riders, []
        with_them = _by_site(riders)
        self._missing[str(ask.id)] = later = self.setup.later(ask, to)
        errands = [self._errand((*with_them.pop(site, ()), ask), site) for site in to if site not in later]
        errands += [self._errand(asks, site) for site, asks in with_them.items()]
        self._gather(errands)
        self._aboard += riders
        yield from self._waiting(ask, to)

    def _errand(self, asks: Sequence[Ask], site: str) -> Errand:
        """After what the site has to do first."""
        return self._courier.errand(asks, site, first=self.setup.before(asks, site))

    def _alight(self) -> None:
        """Let those who rode along go on with their answers."""
        aboard, self._aboard = self._aboard, []
        for rider in aboard:
            to = rider.ask.to or ()
            answers = self._joined((self._believed(rider.ask, b) for b in self._waiting(rider.ask, to)), len(to))
            answers.id = rider.ask.id
            self.notes += [
                f"{s} was missing from {rider.ask.task} {rider.ask.id}: {w}" for s, w in answers.missing.items()
            ]
            self._count(rider.ask, answers)
            rider.then(self._driven(rider.work, answers))

    def _waiting(self, ask: Ask, to: Sequence[str]) -> Iterator[Answers]:
        """The answers to an Ask that came, in the order of the sites."""
        missing, shapes = self._missing.pop(str(ask.id), {}), self._shapes.pop(str(ask.id), {})
        if not spec_of(ask.task).is_sum_step:
            missing |= odd_ones(shapes)
        instead = self.setup.settle(ask, missing)
        try:
            for site in to:
                if site in instead:
                    yield Answers.from_rows([(site, instead[site])])
                elif site in missing:
                    yield Answers((), {}, missing={site: missing[site]})
                else:
                    yield Answers.from_rows([(site, self._taken(ask, site).values)])
        finally:
            self._spool.drop(_name(ask, site) for site in to)
            self.setup.write(ask)

    def _joined(self, blocks: Iterable[Answers], most: int) -> Answers:
        return stacked(blocks, most, self._spool.folder)

    def _agree(self, spec: Mapping[str, Any]) -> None:
        """The model that sites are told to build: how its parameters travel."""
        s = self.settings
        model = build_model(spec, kernel=s.kernel, device="cpu", precision=s.precision)
        self._layout = model.layout

    def _gather(self, errands: Sequence[Errand]) -> None:
        """Wait for all. Answers are in the spool then; who is missing from which Ask, and the shapes that others sent."""
        left = list(errands)
        while left:
            for errand, answers in self._answered_by(left):
                left.remove(errand)
                for ask, answer in zip(errand.asks, answers, strict=True):
                    if answer.error:
                        self._missing.setdefault(str(ask.id), {})[errand.site] = answer.error
                    else:
                        told = {n: np.shape(v) for n, v in answer.values.items() if not isinstance(v, str)}
                        self._shapes.setdefault(str(ask.id), {})[errand.site] = told
        versions, mine = self._letters.versions.items(), __version__
        said = [f"{s} runs version {v} of the package, the server {mine}" for s, v in versions if v != mine]
        for note in (*self._courier.notes, *said, *self.setup.notes):
            if note not in self._told:
                self._told.add(note)
                self.notes.append(note)

    def _answered_by(self, errands: list[Errand]) -> list[tuple[Errand, list[Answer]]]:
        """Errands that are done, well or not."""
        done = [(errand, self._believe(errand, reply)) for errand, reply in self._courier.go(errands, self._layout)]
        came = {errand for errand, _ in done}
        left = {errand: self._courier.given_up(errand) for errand in errands if errand not in came}
        return done + [(errand, _nothing(errand, why)) for errand, why in left.items() if why]

    def _believe(self, errand: Errand, reply: Reply) -> list[Answer]:
        """What a site answered, kept in the spool; an answer that is not taken has the reason as its error."""
        if reply.data is None:
            return _nothing(errand, BROKE)
        if len(reply.data) > self._largest + 32 * int(getattr(self._layout, "size", 0)):
            return _nothing(errand, TOO_LARGE)
        try:
            early = len(errand.first)
            bodies = self._letters.bodies(reply.data, errand.site, errand.sent, early + len(errand.asks))
            self.setup.catch_up(errand.site, errand.first, bodies[:early])
            self._renew_rows(errand.site, errand.first, bodies[:early])
        except Unbelievable as e:
            return _nothing(errand, str(e))
        return [self._kept(ask, errand.site, body) for ask, body in zip(errand.asks, bodies[early:], strict=True)]

    def _renew_rows(self, site: str, asks: Sequence[Ask], bodies: Sequence[bytes]) -> None:
        """Hold a site that was away to the rows that it told when it came back; that they are others is in the notes."""
        for ask, body in zip(asks, bodies, strict=True):
            values = read_answer(body, site, ask, None).values
            if ask.task != PREPARE or site not in self.agreed:
                continue
            if doubt(ask, Answers.from_rows([(site, values)]), {}):
                raise Unbelievable(BAD_ROWS)
            self.agreed[site] = {part: int(values[f"{part}_rows"]) for part in self.agreed[site]}

    def _kept(self, ask: Ask, site: str, body: bytes) -> Answer:
        assert ask.id is not None
        try:
            answer = read_answer(body, site, ask, self._layout)
        except Unbelievable as e:
            return Answer(site, ask.id, error=str(e))
        if answer.error:
            return Answer(site, ask.id, error=refused(answer.error))
        if spec_of(ask.task).is_counted:
            self.meter.answered(counted_as(ask), len(body), 1)
        self._spool.put(_name(ask, site), body)
        return answer

    def _taken(self, ask: Ask, site: str) -> Answer:
        body = self._spool.take(_name(ask, site))
        self.setup.answered(ask, site, body)
        return read_answer(body, site, ask, self._layout)

    def _took(self, ask: Ask, answers: Answers) -> float:
        return time.monotonic() - self._began

    def _send(self, ask: Ask) -> None:
        self.flush()
        ask = self._number(ask)
        self.asked |= dict.fromkeys(ask.to or ())
        for site, size in size_of_ask(ask, self.layout).items():
            self.meter.asked(ask.task, size, 1)
            self._flights.append(self._errand((ask,), site))

    def _receive(self) -> Arrival:
        """Whichever answer is there first."""
        self.flush()
        began = time.monotonic()
        while not self._landed:
            if not self._flights:
                raise RunFailed(
                    f"round {self._round}: no answer is on its way; every site asked has dropped out",
                    code="too-few-sites",
                )
            for errand, answers in self._answered_by(self._flights):
                self._flights.remove(errand)
                self._landed.append((errand, answers[0].error))
        self.clock += time.monotonic() - began
        return self._arrival(*self._landed.pop(0))

    def _arrival(self, errand: Errand, why: str) -> Arrival:
        ask, site = errand.asks[0], errand.site
        id = ask.id
        assert id is not None
        if not why:
            believed = self._believed(ask, Answers.from_rows([(site, self._taken(ask, site).values)]))
            if len(believed):
                self._answered[site] = id.round
                self.missing.pop(site, None)
                return Arrival(Answer(site, id, next(iter(believed))[1]), self.clock, id.round)
            why = believed.missing[site]
        self.missing[site] = why
        return Arrival(Answer(site, id, error=why), self.clock, id.round)

    def arrays(self) -> dict[str, Array]:
        """The Asks on their way. What sites remember stays with them."""
        asks = [encode_ask(e.asks[0], e.site, self.layout) for e in self._unread()]
        return {f"flight/{k}": np.frombuffer(data, np.uint8) for k, data in enumerate(asks)}

    def state(self) -> dict[str, Any]:
        return {"clock": self.clock, "accepted": self._accepted, "flights": [e.site for e in self._unread()]}

    def _unread(self) -> list[Errand]:
        """Whose answers no method has had yet: a resumed run asks again, and gets the same."""
        return [*(errand for errand, _ in self._landed), *self._flights]

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        self.clock = float(state["clock"])
        self._accepted = {str(s): int(r) for s, r in state["accepted"].items()}
        for k, site in enumerate(state["flights"]):
            ask = decode_ask(arrays[f"flight/{k}"].tobytes(), site, self.layout)
            self._flights.append(self._errand((ask,), site))


def _by_site(riders: Sequence[_Rider]) -> dict[str, tuple[Ask, ...]]:
    """What each site is asked along the way."""
    sites = dict.fromkeys(site for rider in riders for site in rider.ask.to or ())
    return {site: tuple(r.ask for r in riders if site in (r.ask.to or ())) for site in sites}


def _name(ask: Ask, site: str) -> str:
    """Under which an answer waits."""
    return f"{ask.id} {site}"


def _nothing(errand: Errand, why: str) -> list[Answer]:
    return [Answer(errand.site, ask.id, error=why) for ask in errand.asks if ask.id is not None]
