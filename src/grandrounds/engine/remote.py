"""The engine for sites that are elsewhere: every Ask is a sealed letter to each site, every answer one back.

The network is a `Post`. A site that is not there is asked again until the deadline; one that does not answer by then is
missing from the round, with the reason. The same Ask asked twice is answered from the site's own cache, so nothing is lost
by asking again. What sites remember stays with them: a checkpoint holds the Asks on their way and nothing of theirs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.engine.cost import UNCOUNTED, size_of_ask
from grandrounds.engine.courier import Courier, Errand, Patience
from grandrounds.engine.driver import Engine, EngineSettings, counted_as
from grandrounds.engine.letters import SHAPE, TOO_LARGE, Letters, Unbelievable, read_answer
from grandrounds.engine.post import Post, Reply
from grandrounds.engine.spool import Spool
from grandrounds.errors import RunFailed
from grandrounds.identity import Identity
from grandrounds.messages import Answer, Answers, Arrival, Ask
from grandrounds.models import build_model
from grandrounds.models.protocol import ParameterLayout
from grandrounds.privacy.tasks import TASKS
from grandrounds.wire import decode_ask, encode_ask

BROKE = "could not do it"
_CODE = 40
"""Characters of a refusal's code; what a site sends beyond is no code."""

_RAGGED = frozenset({"summary", "notes", "held"})
"""Reports whose shape is a site's own."""

Shapes = dict[str, tuple[int, ...]]


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
        largest: int = 64 * 2**20,
    ) -> None:
        """`spool`: where large answers wait; `largest`: bytes of an answer, besides four models, beyond which it is not read."""
        super().__init__(tuple(keys), settings)
        self._letters = Letters(identity, settings.run, keys)
        self._courier = Courier(post, self._letters, patience or Patience())
        self._largest = largest
        self._spool = Spool(spool)
        self._layout: ParameterLayout | None = None
        self._flights: list[Errand] = []
        self._landed: list[tuple[Errand, str]] = []  # whose answers wait to be received, and why there is none
        self._began = time.monotonic()

    @property
    def layout(self) -> ParameterLayout | None:
        return self._layout

    def _blocks(self, ask: Ask, to: tuple[str, ...]) -> Iterator[Answers]:
        if ask.task == "prepare":
            self._agree(json.loads(str(ask.shared["spec"])))
        self._began = time.monotonic()
        errands = [self._courier.errand(ask, site) for site in to]
        missing, shapes = self._gather(errands)
        if ask.task not in TASKS:
            missing |= _odd_ones(shapes)
        try:
            for errand in errands:
                if errand.site in missing:
                    yield Answers((), {}, missing={errand.site: missing[errand.site]})
                else:
                    yield Answers.from_rows([(errand.site, self._waiting(errand).values)])
        finally:
            self._spool.drop(errand.name for errand in errands)

    def _agree(self, spec: Mapping[str, Any]) -> None:
        """The model that sites are told to build: how its parameters travel."""
        s = self.settings
        self._layout = build_model(
            spec, kernel=s.kernel, device="cpu", precision=s.precision, own_code=True
        ).layout  # own code is the server's; a site refuses it

    def _gather(self, errands: Iterable[Errand]) -> tuple[dict[str, str], dict[str, Shapes]]:
        """Wait for all. Answers are in the spool then; who is missing and why, and the shapes of what the others sent."""
        missing: dict[str, str] = {}
        shapes: dict[str, Shapes] = {}
        left = list(errands)
        while left:
            for errand, answer in self._answered_by(left):
                left.remove(errand)
                if answer.error:
                    missing[errand.site] = answer.error
                else:
                    shapes[errand.site] = {n: np.shape(v) for n, v in answer.values.items() if not isinstance(v, str)}
        self.notes += [note for note in self._courier.notes if note not in self.notes]
        self._courier.notes.clear()
        return missing, shapes

    def _answered_by(self, errands: list[Errand]) -> list[tuple[Errand, Answer]]:
        """Errands that are done, well or not."""
        done = [(errand, self._believe(errand, reply)) for errand, reply in self._courier.go(errands, self._layout)]
        came = {errand for errand, _ in done}
        for errand in errands:
            why = "" if errand in came else self._courier.given_up(errand)
            if why:
                done.append((errand, _nothing(errand, why)))
        return done

    def _believe(self, errand: Errand, reply: Reply) -> Answer:
        """What a site answered, kept in the spool; an answer that is not taken has the reason as its error."""
        if reply.data is None:
            return _nothing(errand, BROKE)
        if len(reply.data) > self._largest + 32 * int(getattr(self._layout, "size", 0)):
            return _nothing(errand, TOO_LARGE)
        try:
            body = self._letters.body(reply.data, errand.site, errand.sent)
            answer = read_answer(body, errand.site, errand.ask, self._layout)
        except Unbelievable as e:
            return _nothing(errand, str(e))
        if answer.error:
            return _nothing(errand, f"refused ({answer.error[:_CODE]})")
        if errand.ask.task not in UNCOUNTED:
            self.meter.answered(counted_as(errand.ask), len(body), 1)
        self._spool.put(errand.name, body)
        return answer

    def _waiting(self, errand: Errand) -> Answer:
        return read_answer(self._spool.take(errand.name), errand.site, errand.ask, self._layout)

    def _took(self, ask: Ask, answers: Answers) -> float:
        return time.monotonic() - self._began

    def _send(self, ask: Ask) -> None:
        ask = self._number(ask)
        self.asked |= dict.fromkeys(ask.to or ())
        for site, size in size_of_ask(ask, self.layout).items():
            self.meter.asked(ask.task, size, 1)
            self._flights.append(self._courier.errand(ask, site))

    def _receive(self) -> Arrival:
        """Whichever answer is there first."""
        began = time.monotonic()
        while not self._landed:
            if not self._flights:
                raise RunFailed(f"round {self._round}: no answer is on its way; every site asked has dropped out")
            for errand, answer in self._answered_by(self._flights):
                self._flights.remove(errand)
                self._landed.append((errand, answer.error))
        self.clock += time.monotonic() - began
        return self._arrival(*self._landed.pop(0))

    def _arrival(self, errand: Errand, why: str) -> Arrival:
        id, site = errand.ask.id, errand.site
        assert id is not None
        if not why:
            rows = Answers.from_rows([(site, self._waiting(errand).values)])
            believed = self._believed(errand.ask, rows)
            if len(believed):
                self._answered[site] = id.round
                self.missing.pop(site, None)
                return Arrival(Answer(site, id, next(iter(believed))[1]), self.clock, id.round)
            why = believed.missing[site]
        self.missing[site] = why
        return Arrival(Answer(site, id, error=why), self.clock, id.round)

    def arrays(self) -> dict[str, Array]:
        """The Asks on their way. What sites remember stays with them."""
        asks = [encode_ask(e.ask, e.site, self.layout) for e in self._unread()]
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
            self._flights.append(self._courier.errand(ask, site))


def _nothing(errand: Errand, why: str) -> Answer:
    assert errand.ask.id is not None
    return Answer(errand.site, errand.ask.id, error=why)


def _odd_ones(shapes: Mapping[str, Shapes]) -> dict[str, str]:
    """Sites that sent an array of another shape than most did, where most agree and are more than two."""
    odd: dict[str, str] = {}
    for name in {n for told in shapes.values() for n in told if n.split(".")[0] not in _RAGGED}:
        usual, times = Counter(told.get(name) for told in shapes.values()).most_common(1)[0]
        if len(shapes) > 2 and times > len(shapes) / 2:
            odd |= {site: SHAPE for site, told in shapes.items() if told.get(name) != usual}
    return odd
