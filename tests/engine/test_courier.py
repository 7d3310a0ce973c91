"""Letters to many sites are written and sent some at a time, each to its own site."""

from __future__ import annotations

import numpy as np

from grandrounds.engine import courier
from grandrounds.engine.courier import Courier, Patience
from grandrounds.engine.letters import SERVER, Letters
from grandrounds.engine.post import Reply
from grandrounds.protocol.envelope import ANYBODY, Letter, digest, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Ask, AskId

SITES = [f"h{k}" for k in range(7)]


class Recorded:
    """A post that answers hellos at once and keeps count of the letters that it was handed together."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sent: dict[str, tuple[str, bytes]] = {}
        self._hellos: dict[str, tuple[str, bytes]] = {}

    def addresses(self):
        return tuple(SITES)

    def send(self, letters):
        tickets = []
        for address, data in letters:
            tickets.append(str(len(self.sent) + len(self._hellos)))
            (self._hellos if peek(data).to == ANYBODY else self.sent)[tickets[-1]] = (address, data)
        if letters and peek(letters[0][1]).to != ANYBODY:
            self.sizes.append(len(letters))
        return tickets

    def collect(self, tickets, *, wait):
        out = []
        for ticket in [t for t in self._hellos if t in tickets]:
            site, data = self._hellos[ticket]
            out.append(
                Reply(ticket, seal(Identity.simulated(0, site), Letter(site, SERVER, "r", b"", about=digest(data))))
            )
        return out


def test_letters_go_before_others_are_written(monkeypatch):
    monkeypatch.setattr(courier, "_AT_ONCE", 9000)
    letters = Letters(Identity.simulated(0, SERVER), "r", {s: Identity.simulated(0, s).public for s in SITES})
    post = Recorded()
    ask = Ask("train", shared={"x": np.zeros(1000, np.float32)}, id=AskId("r", 1, 0))
    runner = Courier(post, letters, Patience(again=0.0, poll=0.0))
    errands = [runner.errand((ask,), site) for site in SITES]
    runner.go(errands, None)  # finds out who is where
    runner.go(errands, None)
    assert post.sizes == [3, 3, 1], "three letters of some 4,400 bytes are the first to pass 9,000"
    for errand in errands:
        address, data = post.sent[errand.ticket]
        assert (address, peek(data).to, digest(data)) == (errand.site, errand.site, errand.sent)
