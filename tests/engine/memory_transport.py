"""A transport for tests: keepers in this process, behind a queue of messages, which each answers when they are collected."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.capabilities.hospital.keeper.runtime.run import SiteIdentity
from grandrounds.engine.transport import UNAVAILABLE, Reply
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.identity import Identity


class MemoryTransport:
    """Addresses are numbers in the order of the keepers; `down` are those that are not there."""

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self.keepers = {str(k): keeper for k, keeper in enumerate(keepers)}
        self.down: set[str] = set()
        self.messages: list[tuple[str, bytes]] = []
        self._waiting: dict[str, tuple[str, bytes]] = {}

    def addresses(self) -> tuple[str, ...]:
        return tuple(a for a in self.keepers if a not in self.down)

    def send(self, messages: Sequence[tuple[str, bytes]]) -> list[str]:
        tickets = []
        for address, data in messages:
            tickets.append(str(len(self.messages)))
            self.messages.append((address, data))
            self._waiting[tickets[-1]] = (address, data)
        return tickets

    def collect(self, tickets: Collection[str], *, wait: float) -> list[Reply]:
        out = []
        for ticket in [t for t in self._waiting if t in tickets]:
            address, data = self._waiting.pop(ticket)
            if address in self.down:
                out.append(Reply(ticket, None, UNAVAILABLE))
            else:
                out.append(Reply(ticket, self.keepers[address].handle(data)))
        return out


def simulated_keeper(name: str, rows, state: Path, *, seed: int, server: bytes, **more) -> Keeper:
    """A keeper with the keys and masks that a simulation of this seed has, so that both give the same numbers."""
    me = SiteIdentity(name, Identity.simulated(seed, name), Secret.simulated(seed, name))
    return Keeper(me, server=server, rows=lambda: rows, state=state / name, **more)
