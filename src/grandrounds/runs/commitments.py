"""What each site answered in a round, as one hash a site: a server cannot say later that it was something else.

A commitment is SHA-256(salt || SHA-256(answer) ...), over all answers the method was sent in the round. Salted, because
training repeats to the bit: who guessed a site's rows but for one patient could otherwise train twice and see from the
bare hash whether that patient was there. The salt follows from the server's key; with it, and the answer that the site
kept, the two can show anybody what was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import Any

from grandrounds.audit.digest import row_digests
from grandrounds.methods.base import Effect, Round
from grandrounds.methods.relay import relayed
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answers, Arrival, Payload

_PURPOSE = b"grandrounds/commitments/1\x00"


def commitment(salt: bytes, *answers: Payload) -> str:
    """The commitment to one site's answers of a round, in their order."""
    return _sealed(salt, b"".join(row_digests({n: [v] for n, v in a.items()}, 1)[0] for a in answers))


class Commitments:
    """Hashes the answers of a round as they pass by to the method."""

    def __init__(self, identity: Identity, run: str) -> None:
        self._key = hashlib.sha256(identity.sign(_PURPOSE + run.encode())).digest()
        self._heard: dict[str, bytes] = {}

    def salt(self, round: int, site: str) -> bytes:
        """What the server must tell a site that wants to see its commitment opened."""
        return hashlib.blake2b(f"{round}\x1f{site}".encode(), key=self._key, digest_size=32).digest()

    def watched(self, work: Round) -> Round:
        """The method's round; what it is sent is hashed first."""
        self._heard = {}

        def through(effect: Effect) -> Generator[Effect, Any, Any]:
            reply = yield effect
            self._hear(reply)
            return reply

        return relayed(work, through)

    def of_round(self, round: int) -> dict[str, str]:
        """Site -> commitment, of the round that was watched last."""
        return {site: _sealed(self.salt(round, site), heard) for site, heard in self._heard.items()}

    def _hear(self, reply: Any) -> None:
        if isinstance(reply, Arrival):
            if not reply.answer.error:
                columns = {name: [value] for name, value in reply.answer.values.items()}
                self._add(reply.answer.site, row_digests(columns, 1)[0])
        elif isinstance(reply, Answers):
            for site, found in zip(reply.sites, row_digests(reply.columns, len(reply)), strict=True):
                self._add(site, found)

    def _add(self, site: str, found: bytes) -> None:
        self._heard[site] = self._heard.get(site, b"") + found


def _sealed(salt: bytes, digests: bytes) -> str:
    return hashlib.sha256(salt + digests).hexdigest()
