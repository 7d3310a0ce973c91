"""Letters between server and sites: bytes with a header that says whose they are, and a signature over both.

Whoever carries a letter can read it and cannot change it. A site opens letters of its server only, and only those that are
addressed to it; the server opens an answer only with the key of the site that it asked, and only where the answer is to
that very question. The header comes before the protocol's own words, so that two versions can tell each other apart.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import SIGNATURE_BYTES, Identity, signed_by
from grandrounds.protocol.messages import PROTOCOL

MAGIC = b"GRL1"
_LENGTH = 4
_HEADER = 4096
"""Bytes that a header may have."""

ANYBODY = "*"
"""Whom a letter is to before it is known who is at an address."""


@dataclass(frozen=True)
class Letter:
    """A letter that was opened. `about`: the digest of the letter that it answers; `version`: the sender's package."""

    sender: str
    to: str
    run: str
    body: bytes
    about: str = ""
    version: str = ""
    protocol: int = PROTOCOL


def seal(identity: Identity, letter: Letter) -> bytes:
    """A letter as bytes, signed."""
    header = {
        "from": letter.sender,
        "to": letter.to,
        "run": letter.run,
        "about": letter.about,
        "version": letter.version,
        "protocol": letter.protocol,
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    if len(text) > _HEADER:
        raise BadInput("a letter's header is too long: use shorter names for sites and runs", code="header-too-long")
    data = MAGIC + len(text).to_bytes(_LENGTH, "big") + text + letter.body
    return data + identity.sign(_signed(data))


def peek(data: bytes) -> Letter:
    """A letter's words before anything is known of its signature: to find out whose key it must be checked with."""
    start = len(MAGIC) + _LENGTH
    if len(data) < start + SIGNATURE_BYTES or data[: len(MAGIC)] != MAGIC:
        raise BadInput("a message is no letter of this package's", code="malformed-message")
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    if length > _HEADER or start + length + SIGNATURE_BYTES > len(data):
        raise BadInput("a letter is cut short", code="malformed-message")
    try:
        header: Any = json.loads(data[start : start + length])
        words = {name: header[name] for name in ("from", "to", "run", "about", "version", "protocol")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput("a letter's header cannot be read", code="malformed-message") from None
    if not isinstance(words.pop("protocol"), int) or not all(isinstance(w, str) for w in words.values()):
        raise BadInput("a letter's header cannot be read", code="malformed-message")
    body = data[start + length : -SIGNATURE_BYTES]
    sender = words.pop("from")
    return Letter(sender, body=body, protocol=header["protocol"], **words)


def unseal(data: bytes, *, public: bytes) -> Letter:
    """The letter, if the owner of this key signed it."""
    letter = peek(data)
    if not signed_by(public, _signed(data[:-SIGNATURE_BYTES]), data[-SIGNATURE_BYTES:]):
        raise BadInput(
            f"a letter from '{letter.sender}' is not signed with the key that is known of it", code="bad-signature"
        )
    return letter


def digest(data: bytes) -> str:
    """What stands for a letter."""
    return hashlib.sha256(data).hexdigest()


def _signed(data: bytes) -> bytes:
    """What is signed: a hash, under a name, so that no signature made for anything else fits."""
    return b"grandrounds letter\x00" + hashlib.sha256(data).digest()
