"""A site's letters: answers sealed with its key, also those that say no more than a code."""

from __future__ import annotations

from grandrounds import __version__
from grandrounds.core.errors import BadInput
from grandrounds.protocol.codec import bundle, encode_answer, peek_ask, unbundle
from grandrounds.protocol.envelope import Letter, digest, peek, seal
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, AskId

SERVER = "server"


def sealed(identity: Identity, site: str, body: bytes, *, run: str, about: str) -> bytes:
    """The answer of a site to the letter whose digest is `about`."""
    return seal(identity, Letter(site, SERVER, run, body, about=about, version=__version__))


def refusal(identity: Identity, site: str, letter: bytes, code: str) -> bytes:
    """The answer to this letter that there is none; of one that cannot be read, to no question at all."""
    run, ids = "", [AskId("", 0, 0)]
    try:
        opened = peek(letter)
        run, ids = opened.run, [peek_ask(body)[1] for body in unbundle(opened.body)]
    except BadInput:
        pass
    bodies = [encode_answer(Answer(site, id, error=code), None) for id in ids]
    return sealed(identity, site, bundle(bodies), run=run, about=digest(letter))
