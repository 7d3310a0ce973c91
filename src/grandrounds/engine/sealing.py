"""Seal Asks for sites, and open and check the sealed Answers that come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grandrounds import __version__
from grandrounds.core.errors import BadInput
from grandrounds.engine.claims import SHAPE
from grandrounds.protocol.codec import bundle, decode_answer, encode_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, Letter, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import PROTOCOL, Answer, Ask, AskId
from grandrounds.protocol.packing import LAYOUT, packed_size
from grandrounds.protocol.tasks import HELLO

SERVER = "server"
UNREADABLE = "sent an unreadable message"
FOREIGN = "sent a message that is not signed with its key, or answers another Ask"
OTHER_VERSION = "uses another version of the protocol"
TOO_LARGE = "sent more bytes than an answer can have"


class InvalidAnswer(BadInput):
    """An answer that is not accepted; its sentence is the reason that the Decision records."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code="invalid-answer")


@dataclass
class MessageSealer:
    """Seal and open the messages of one run.

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

    def seal_asks(self, asks: Sequence[Ask], site: str, layout: ParameterLayout | None) -> bytes:
        """Seal Asks for one site, as one message."""
        return self._seal(bundle([encode_ask(ask, site, layout) for ask in asks]), site)

    def seal_hello(self, number: int) -> bytes:
        """Seal a message that asks a node for its name."""
        ask = Ask(HELLO, report=("site", "version", "ready"), id=AskId(self.run, 0, number))
        return self._seal(encode_ask(ask, ANYBODY, None), ANYBODY)

    def _seal(self, body: bytes, recipient: str) -> bytes:
        return seal(self.identity, Letter(SERVER, recipient, self.run, body, version=__version__))

    def open_answers(self, data: bytes, site: str, request_digest: str, count: int) -> list[bytes]:
        """Check a site's signature and take its answers apart, without decoding them.

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
        try:
            bodies = unbundle(self._open(data, site, request_digest).body)
        except InvalidAnswer:
            raise
        except BadInput:
            raise InvalidAnswer(UNREADABLE) from None
        if len(bodies) != count:
            raise InvalidAnswer(FOREIGN)
        return bodies

    def identify(self, data: bytes, request_digest: str) -> str:
        """Find the site that answered a hello: the name that the answer gives, checked by that site's key."""
        name = peek(data).sender
        self._open(data, name, request_digest)
        return name

    def _open(self, data: bytes, site: str, request_digest: str) -> Letter:
        if site not in self.keys:
            raise InvalidAnswer(FOREIGN)
        try:
            envelope = unseal(data, public=self.keys[site])
        except BadInput:
            raise InvalidAnswer(FOREIGN) from None
        if (envelope.sender, envelope.to, envelope.run, envelope.about) != (site, SERVER, self.run, request_digest):
            raise InvalidAnswer(FOREIGN)
        if envelope.protocol != PROTOCOL:
            raise InvalidAnswer(f"{OTHER_VERSION} ({envelope.protocol}, version {envelope.version[:20]})")
        self.versions[site] = envelope.version[:20]
        return envelope


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
