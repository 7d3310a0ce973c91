"""Encrypt the bodies of messages from end to end: keys of a session between the server and one site, for one run.

The server's first message to a site (`hello`) has an ephemeral X25519 key, and so has the site's answer. Both are signed with
the parties' Ed25519 keys, so a session belongs to exactly these two, and a gateway between them can neither read nor join it.
HKDF-SHA256 derives two ChaCha20-Poly1305 keys, one for each direction, from the shared secret, the two identities and the
digests of the two messages. The keys are in memory only: when a run has ended at both sides, nobody can decrypt what was
recorded of it, not even with the signing keys (forward secrecy).

Every message has a number. A recipient accepts a number once, so a recorded message cannot be sent again, and a nonce, which
is made of the number, encrypts one body only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from grandrounds.core.errors import BadInput
from grandrounds.protocol.envelope import Envelope, digest

KEY = "key"
"""Name of the ephemeral key in `hello` and its answer."""

TAG_BYTES = 16
_KEY, _ID = 32, 16
_INFO = b"grandrounds session 2\x00"
_PART = 2**30
"""Bytes that are encrypted at once: the cipher takes less than 2 GiB."""

_WINDOW = 1024
"""Numbers below the highest one that may still arrive late."""

_PER_RUN, _RUNS, _HELLOS = 4, 64, 4096
"""Sessions of a run, runs, and digests of hellos that a site keeps; the oldest is dropped."""


class SessionError(BadInput):
    """A body that cannot be decrypted, or a number that was used before."""


class EphemeralKey:
    """The private half of a key agreement. It is never stored."""

    def __init__(self) -> None:
        self._key = X25519PrivateKey.generate()

    @property
    def public(self) -> str:
        """The public half, in hexadecimal digits."""
        return self._key.public_key().public_bytes_raw().hex()

    def exchange(self, other: str) -> bytes:
        """Compute the shared secret.

        Raises:
            BadInput: The other half is not a key, or is of small order.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
        except (ValueError, TypeError):
            raise BadInput("the other party's session key is invalid", code="malformed-message") from None


@dataclass
class Session:
    """The keys between the server and a site. `sends` encrypts what this party sends, `receives` decrypts what it gets."""

    id: str
    sends: ChaCha20Poly1305 = field(repr=False)
    receives: ChaCha20Poly1305 = field(repr=False)
    _next: int = 0
    _highest: int = -1
    _used: set[int] = field(default_factory=set, repr=False)

    def encrypt_request(self, message: Envelope) -> Envelope:
        """Encrypt the body of the server's next message."""
        numbered = replace(message, session=self.id, number=self._next)
        self._next += 1
        return self._encrypt(numbered)

    def encrypt_answer(self, message: Envelope, request: Envelope) -> Envelope:
        """Encrypt the answer to a request, once: the request's number was accepted once."""
        return self._encrypt(replace(message, session=self.id, number=request.number))

    def decrypt(self, message: Envelope) -> bytes:
        """Decrypt the body of a message.

        Raises:
            SessionError: It was changed, was not made with these keys, or its number was used before.
        """
        number = message.number
        if not 0 <= number < 2**63 or number in self._used or number <= self._highest - _WINDOW:
            raise SessionError(f"message {number} of a session arrived before", code="replayed-message")
        body = self.read(message)
        self._highest = max(self._highest, number)
        self._used = {n for n in (*self._used, number) if n > self._highest - _WINDOW}
        return body

    def read(self, message: Envelope) -> bytes:
        """Decrypt the body of a message that may have been read before.

        Raises:
            SessionError: It was changed, or not made with these keys.
        """
        header = replace(message, body=b"").header()
        try:
            parts = [
                self.receives.decrypt(nonce, message.body[start:end], header)
                for nonce, start, end in _parts(message.number, len(message.body), _PART + TAG_BYTES)
            ]
        except InvalidTag:
            raise SessionError("the body of a message cannot be decrypted", code="bad-message") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _encrypt(self, message: Envelope) -> Envelope:
        header = message.header()
        parts = [
            self.sends.encrypt(nonce, message.body[start:end], header)
            for nonce, start, end in _parts(message.number, len(message.body), _PART)
        ]
        return replace(message, body=parts[0] if len(parts) == 1 else b"".join(parts))


def _parts(number: int, size: int, part: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield nonce, start and end of each part of a body. The nonce marks the last part, so that none can be cut off."""
    count = max(1, -(-size // part))
    for k in range(count):
        nonce = number.to_bytes(8, "big") + (2 * k + (k == count - 1)).to_bytes(4, "big")
        yield nonce, k * part, min(size, (k + 1) * part)


@dataclass(frozen=True)
class Handshake:
    """Facts of a key agreement that both parties know: their identities, and the two signed messages."""

    server: bytes
    site: bytes
    hello: bytes
    answer: bytes

    def server_session(self, key: EphemeralKey, other: str) -> Session:
        """Derive the server's side of the session; `other` is the site's ephemeral key."""
        to_site, to_server, id = self._derive(key.exchange(other))
        return Session(id, sends=to_site, receives=to_server)

    def site_session(self, key: EphemeralKey, other: str) -> Session:
        """Derive the site's side of the session; `other` is the server's ephemeral key."""
        to_site, to_server, id = self._derive(key.exchange(other))
        return Session(id, sends=to_server, receives=to_site)

    def _derive(self, secret: bytes) -> tuple[ChaCha20Poly1305, ChaCha20Poly1305, str]:
        transcript = b"".join((self.server, self.site, *(bytes.fromhex(digest(m)) for m in (self.hello, self.answer))))
        keys = HKDF(hashes.SHA256(), 2 * _KEY + _ID, salt=None, info=_INFO + transcript).derive(secret)
        return ChaCha20Poly1305(keys[:_KEY]), ChaCha20Poly1305(keys[_KEY : 2 * _KEY]), keys[2 * _KEY :].hex()


class SiteSessions:
    """The sessions of a site, by run. A run has several if its server was restarted."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, OrderedDict[str, Session]] = OrderedDict()
        self._hellos: OrderedDict[str, None] = OrderedDict()

    def check_hello(self, data: bytes) -> None:
        """Refuse a `hello` that was answered before: sent again, it would push out the sessions in use.

        Raises:
            SessionError: It arrived before.
        """
        if digest(data) in self._hellos:
            raise SessionError("a hello arrived before", code="replayed-message")
        self._hellos[digest(data)] = None
        if len(self._hellos) > _HELLOS:
            self._hellos.popitem(last=False)

    def add(self, run: str, session: Session) -> None:
        """Keep a session; the oldest of the run, or the run used least recently, is dropped if there are too many."""
        sessions = self._runs.setdefault(run, OrderedDict())
        sessions[session.id] = session
        self._runs.move_to_end(run)
        if len(sessions) > _PER_RUN:
            sessions.popitem(last=False)
        if len(self._runs) > _RUNS:
            self._runs.popitem(last=False)

    def find(self, message: Envelope) -> Session | None:
        """Find the session of a message."""
        session = self._runs.get(message.run, OrderedDict()).get(message.session)
        if session is not None:
            self._runs.move_to_end(message.run)
        return session

    def end(self, run: str) -> None:
        """Drop the sessions of a run, after which nobody can decrypt its messages."""
        self._runs.pop(run, None)
