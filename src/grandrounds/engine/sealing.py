"""Encrypt and sign Asks for sites, and open and check the Answers that come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.core.version import __version__
from grandrounds.engine.claims import SHAPE
from grandrounds.protocol.codec import bundle, decode_answer, encode_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, ENVELOPE_PROTOCOL, Envelope, digest, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answer, Ask, AskId
from grandrounds.protocol.packing import LAYOUT, packed_size
from grandrounds.protocol.sessions import KEY, EphemeralKey, Handshake, Session, SessionError
from grandrounds.protocol.tasks import HELLO

SERVER = "server"
UNREADABLE = "sent an unreadable message"
FOREIGN = "sent a message that is not signed with its key, or answers another Ask"
OTHER_VERSION = "uses another version of the protocol"
TOO_LARGE = "sent more bytes than an answer can have"
REFUSED = "refused"
"""Start of the reason for a site that refuses."""
NO_SESSION = "no-session"
"""Code of a site that has no keys for a message: it is to be greeted again."""

_CODE_LENGTH = 40
"""Characters of a refusal's code that are read."""


class InvalidAnswer(BadInput):
    """An answer that is not accepted; its sentence is the reason that the Decision records."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code="invalid-answer")


class OtherVersion(InvalidAnswer):
    """An answer of a site whose messages have another format."""

    def __init__(self, envelope: Envelope) -> None:
        super().__init__(f"{OTHER_VERSION} ({envelope.protocol}, version {envelope.version[:20]})")
        self.site = envelope.sender


class SiteRefusal(InvalidAnswer):
    """A readable answer that is a bare code: the site could not decrypt the request, or its worker process failed."""

    def __init__(self, code: str) -> None:
        super().__init__(refusal_reason(code))
        self.refusal = code


@dataclass
class MessageSealer:
    """Encrypt, sign and open the messages of one run.

    Attributes:
        identity: The server's key.
        run: Name of the run.
        keys: Public key of each site.
        versions: Version of the package at each site, from its messages.
    """

    identity: Identity
    run: str
    keys: Mapping[str, bytes]
    versions: dict[str, str] = field(default_factory=dict)
    _key: EphemeralKey = field(default_factory=EphemeralKey, repr=False)
    _sessions: dict[str, Session] = field(default_factory=dict, repr=False)
    _former: dict[tuple[str, str], Session] = field(default_factory=dict, repr=False)  # by site and id: of answers under way

    def seal_asks(self, asks: Sequence[Ask], site: str, layout: ParameterLayout | None) -> bytes:
        """Seal Asks for one site, as one message. The site has answered a `hello` before."""
        body = bundle([encode_ask(ask, site, layout) for ask in asks])
        return seal(self.identity, self._sessions[site].encrypt_request(self._envelope(site, body)))

    def seal_hello(self, number: int) -> bytes:
        """Seal a message that asks a node for its name and its half of the session's keys."""
        report = ("site", "version", "ready", KEY)
        ask = Ask(HELLO, {KEY: self._key.public}, report=report, id=AskId(self.run, 0, number))
        return seal(self.identity, self._envelope(ANYBODY, encode_ask(ask, ANYBODY, None)))

    def _envelope(self, recipient: str, body: bytes) -> Envelope:
        return Envelope(SERVER, recipient, self.run, body, version=__version__)

    def open_answers(self, data: bytes, site: str, request_digest: str, count: int) -> list[bytes]:
        """Check a site's signature, decrypt its message and take its answers apart, without decoding them.

        Args:
            data: The received message.
            site: The site that was asked.
            request_digest: Digest of the message that it must answer.
            count: Number of Asks in that message.

        Returns:
            The bytes of each answer.

        Raises:
            InvalidAnswer: It is not signed by the site, answers something else, or cannot be read.
        """
        envelope = self._open(data, site, request_digest)
        if not envelope.session:
            raise _read_refusal(envelope, site)
        session = self._sessions.get(site)
        if session is None or session.id != envelope.session:
            session = self._former.get((site, envelope.session))
        if session is None:
            raise InvalidAnswer(FOREIGN)
        try:
            bodies = unbundle(session.decrypt(envelope))
        except SessionError:
            raise InvalidAnswer(FOREIGN) from None
        except BadInput:
            raise InvalidAnswer(UNREADABLE) from None
        if len(bodies) != count:
            raise InvalidAnswer(FOREIGN)
        return bodies

    def identify(self, data: bytes, hello: bytes) -> str:
        """Find the site that answered a hello, checked by its key, and derive the keys of its session.

        Args:
            data: The answer.
            hello: The message that it answers.

        Returns:
            The site's name.

        Raises:
            BadInput: It is not an answer of a site of this run, or has no key.
        """
        name = peek(data).sender
        envelope = self._open(data, name, digest(hello))
        if envelope.session:
            raise InvalidAnswer(FOREIGN)
        answer = decode_answer(envelope.body, name, None)
        if answer.error:
            raise InvalidAnswer(refusal_reason(answer.error))
        handshake = Handshake(self.identity.public, self.keys[name], hello, data)
        session = handshake.server_session(self._key, str(answer.values.get(KEY, "")))
        if (before := self._sessions.get(name)) is not None:  # a large answer may still be on its way in parts
            others = {key: one for key, one in self._former.items() if key[0] != name}
            self._former = {**others, (name, before.id): before}
        self._sessions[name] = session
        return name

    def needs_hello(self, data: bytes, site: str, request_digest: str) -> bool:
        """Tell whether a site refuses a message because it has no session: its worker process was restarted."""
        try:
            envelope = self._open(data, site, request_digest)
            return not envelope.session and _read_refusal(envelope, site).refusal == NO_SESSION
        except BadInput:
            return False

    def _open(self, data: bytes, site: str, request_digest: str) -> Envelope:
        if site not in self.keys:
            raise InvalidAnswer(FOREIGN)
        try:
            envelope = unseal(data, public=self.keys[site])
        except BadInput:
            raise InvalidAnswer(FOREIGN) from None
        if (envelope.sender, envelope.to, envelope.run, envelope.about) != (site, SERVER, self.run, request_digest):
            raise InvalidAnswer(FOREIGN)
        if envelope.protocol != ENVELOPE_PROTOCOL:
            raise OtherVersion(envelope)
        self.versions[site] = envelope.version[:20]
        return envelope


def _read_refusal(envelope: Envelope, site: str) -> SiteRefusal:
    """Read a message without encryption, which may be a bare code and nothing else.

    Raises:
        InvalidAnswer: It is something else.
    """
    try:
        answer = decode_answer(envelope.body, site, None)
    except (BadInput, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise InvalidAnswer(UNREADABLE) from None
    if answer.values or not answer.error:
        raise InvalidAnswer(FOREIGN)
    return SiteRefusal(answer.error)


def refusal_reason(code: str) -> str:
    """Return the reason of a site that refused."""
    return f"{REFUSED} ({code[:_CODE_LENGTH]})"


def read_answer(body: bytes, site: str, ask: Ask, layout: ParameterLayout | None) -> Answer:
    """Decode a site's answer, with no more reports than its Ask names.

    Args:
        body: The bytes of the answer, whose signature was checked.
        site: The site that sent it.
        ask: The Ask that it must answer.
        layout: How parameters of the model are laid out; None before sites have prepared.

    Raises:
        InvalidAnswer: It cannot be read, answers another Ask, or has a model of another size.
    """
    try:
        answer = decode_answer(body, site, layout)
        values = {n: v for n, v in answer.values.items() if n == LAYOUT or n.split(".")[0] in ask.report}
        if isinstance(withheld := values.get(LAYOUT), str):
            packed_size(withheld)
    except (BadInput, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise InvalidAnswer(UNREADABLE) from None
    if answer.id != ask.id:
        raise InvalidAnswer(FOREIGN)
    size = getattr(layout, "size", None)
    for name in ("model", "update"):
        if size is not None and name in values and np.shape(values[name]) != (size,):
            raise InvalidAnswer(SHAPE)
    return Answer(site, answer.id, values, error=answer.error)
