"""The server's letters: a sealed Ask for each site, and what may be believed of the sealed Answer that comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grandrounds import __version__
from grandrounds.core.errors import BadInput
from grandrounds.protocol.codec import bundle, decode_answer, encode_ask, unbundle
from grandrounds.protocol.envelope import ANYBODY, Letter, peek, seal, unseal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import PROTOCOL, Answer, Ask, AskId
from grandrounds.protocol.packing import HELD, length
from grandrounds.protocol.tasks import HELLO

SERVER = "server"
UNREADABLE = "sent what cannot be read"
FOREIGN = "sent what is not signed with its key, or answers another question"
OTHER_VERSION = "speaks another version of the protocol"
SHAPE = "sent values of another shape"
TOO_LARGE = "sent more than an answer can have"


class Unbelievable(BadInput):
    """An answer that is not taken; its words are why, as the Decision has them."""


@dataclass
class Letters:
    """Writes and opens letters of one run. `keys`: the public key of each site."""

    identity: Identity
    run: str
    keys: Mapping[str, bytes]
    versions: dict[str, str] = field(default_factory=dict)  # of the package, by site, as their letters say

    def asks(self, asks: Sequence[Ask], site: str, layout: ParameterLayout | None) -> bytes:
        """Asks for one site."""
        return self._sealed(bundle([encode_ask(ask, site, layout) for ask in asks]), site)

    def hello(self, number: int) -> bytes:
        """Who are you? To whoever is at an address."""
        ask = Ask(HELLO, report=("site", "version", "ready"), id=AskId(self.run, 0, number))
        return self._sealed(encode_ask(ask, ANYBODY, None), ANYBODY)

    def _sealed(self, body: bytes, to: str) -> bytes:
        return seal(self.identity, Letter(SERVER, to, self.run, body, version=__version__))

    def bodies(self, data: bytes, site: str, sent: str, count: int) -> list[bytes]:
        """The bytes of a site's answers to the letter whose digest was `sent` and that had so many Asks."""
        try:
            found = unbundle(self._opened(data, site, sent).body)
        except Unbelievable:
            raise
        except BadInput:
            raise Unbelievable(UNREADABLE) from None
        if len(found) != count:
            raise Unbelievable(FOREIGN)
        return found

    def who(self, data: bytes, sent: str) -> str:
        """Which site answered a hello; nobody's key is known at the address, so the site's own word is checked by its key."""
        name = peek(data).sender
        self._opened(data, name, sent)
        return name

    def _opened(self, data: bytes, site: str, sent: str) -> Letter:
        if site not in self.keys:
            raise Unbelievable(FOREIGN)
        try:
            letter = unseal(data, public=self.keys[site])
        except BadInput:
            raise Unbelievable(FOREIGN) from None
        if (letter.sender, letter.to, letter.run, letter.about) != (site, SERVER, self.run, sent):
            raise Unbelievable(FOREIGN)
        if letter.protocol != PROTOCOL:
            raise Unbelievable(f"{OTHER_VERSION} ({letter.protocol}, version {letter.version[:20]})")
        self.versions[site] = letter.version[:20]
        return letter


def read_answer(body: bytes, site: str, ask: Ask, layout: ParameterLayout | None) -> Answer:
    """A site's answer to this Ask, with no more than the Ask has named; `Unbelievable` where it does not add up."""
    try:
        answer = decode_answer(body, site, layout)
        asked = {n: v for n, v in answer.values.items() if n == HELD or n.split(".")[0] in ask.report}
        if isinstance(told := asked.get(HELD), str):
            length(told)
    except (BadInput, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise Unbelievable(UNREADABLE) from None
    if answer.id != ask.id:
        raise Unbelievable(FOREIGN)
    size = getattr(layout, "size", None)
    for name in ("model", "update"):
        if size is not None and name in asked and np.shape(asked[name]) != (size,):
            raise Unbelievable(SHAPE)
    return Answer(site, answer.id, asked, error=answer.error)
