"""Read and rewrite encrypted messages in tests, with the keys of the sessions that keepers of this process agreed on."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.engine.sealing import MessageSealer
from grandrounds.protocol.envelope import Envelope, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.sessions import EphemeralKey, Handshake, Session
from grandrounds.runs.ledger import SERVER

_SESSIONS: dict[str, Session] = {}
_FRESH = count(10_000)
_site_session = Handshake.site_session


def _record(self: Handshake, key: EphemeralKey, other: str) -> Session:
    session = _site_session(self, key, other)
    _SESSIONS[session.id] = session
    return session


Handshake.site_session = _record  # type: ignore[method-assign]


def _direction(envelope: Envelope) -> Session:
    """The session from which this message comes: it encrypts and decrypts in the same direction."""
    site = _SESSIONS[envelope.session]
    key = site.receives if envelope.sender == SERVER else site.sends
    return Session(envelope.session, sends=key, receives=key)


def read(data: bytes) -> Envelope:
    """A message with its body as it was before encryption."""
    envelope = peek(data)
    return replace(envelope, body=_direction(envelope).read(envelope)) if envelope.session else envelope


def write(identity: Identity, plain: Envelope, *, session: Envelope | None = None) -> bytes:
    """Encrypt a message under its own header and sign it. `session`: a message whose session is used, if the sender differs."""
    if not plain.session:
        return seal(identity, plain)
    return seal(identity, _direction(session or plain)._encrypt(plain))


def deliver(keeper: Keeper, server: Identity, plain: Envelope) -> Envelope:
    """Have a keeper answer a message in a session of its own, as after a restart of the server; its answer, decrypted."""
    name = keeper.me.name
    sealer = MessageSealer(server, plain.run, {name: keeper.me.identity.public})
    hello = sealer.seal_hello(next(_FRESH))
    sealer.identify(keeper.handle(hello), hello)
    return read(keeper.handle(seal(server, sealer._sessions[name].encrypt_request(plain))))
