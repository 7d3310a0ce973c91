"""Messages to many sites are written and sent some at a time, each to its own site."""

from __future__ import annotations

import numpy as np

from grandrounds.engine import dispatcher
from grandrounds.engine.dispatcher import Dispatcher, Timeouts
from grandrounds.engine.sealing import SERVER, MessageSealer
from grandrounds.engine.transport import Reply
from grandrounds.protocol.codec import encode_answer
from grandrounds.protocol.envelope import ANYBODY, Envelope, digest, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, Ask, AskId
from grandrounds.protocol.sessions import EphemeralKey

SITES = [f"h{k}" for k in range(7)]


class Recorded:
    """A transport that answers hellos at once and keeps count of the messages that it was handed together."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sent: dict[str, tuple[str, bytes]] = {}
        self._hellos: dict[str, tuple[str, bytes]] = {}

    def addresses(self):
        return tuple(SITES)

    def send(self, messages):
        tickets = []
        for address, data in messages:
            tickets.append(str(len(self.sent) + len(self._hellos)))
            (self._hellos if peek(data).to == ANYBODY else self.sent)[tickets[-1]] = (address, data)
        if messages and peek(messages[0][1]).to != ANYBODY:
            self.sizes.append(len(messages))
        return tickets

    def collect(self, tickets, *, wait):
        out = []
        for ticket in [t for t in self._hellos if t in tickets]:
            site, data = self._hellos[ticket]
            body = encode_answer(Answer(site, AskId("r", 0, 0), {"key": EphemeralKey().public}), None)
            sealed = seal(Identity.simulated(0, site), Envelope(site, SERVER, "r", body, about=digest(data)))
            out.append(Reply(ticket, sealed))
        return out


def test_messages_go_before_others_are_written(monkeypatch):
    monkeypatch.setattr(dispatcher, "_BATCH_BYTES", 9000)
    sealer = MessageSealer(Identity.simulated(0, SERVER), "r", {s: Identity.simulated(0, s).public for s in SITES})
    transport = Recorded()
    ask = Ask("train", shared={"x": np.zeros(1000, np.float32)}, id=AskId("r", 1, 0))
    runner = Dispatcher(transport, sealer, Timeouts(retry=0.0, poll=0.0))
    requests = [runner.request((ask,), site) for site in SITES]
    runner.exchange(requests, None)  # finds out who is where
    runner.exchange(requests, None)
    assert transport.sizes == [3, 3, 1], "three messages of some 4,400 bytes are the first to pass 9,000"
    for request in requests:
        address, data = transport.sent[request.ticket]
        assert (address, peek(data).to, digest(data)) == (request.site, request.site, request.digest)
