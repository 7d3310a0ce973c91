"""Signed messages between server and sites: a header with sender, recipient and run, a body, and a signature over both.

The transport can read a message but cannot change it. A site accepts messages of its server only, and only those addressed
to it. The server accepts an answer only with the key of the site it asked, and only to that very request. The header
precedes the protocol's own content, so that two versions can recognise each other.
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
"""Largest size of a header, in bytes."""

ANYBODY = "*"
"""Recipient of a message while the name of the site at an address is unknown."""


@dataclass(frozen=True)
class Letter:
    """An opened message. `about` is the digest of the message that it answers; `version` is the sender's package version."""

    sender: str
    to: str
    run: str
    body: bytes
    about: str = ""
    version: str = ""
    protocol: int = PROTOCOL


def seal(identity: Identity, message: Letter) -> bytes:
    """Sign a message and encode it as bytes.

    Args:
        identity: The sender's private key.
        message: The message.

    Returns:
        Header, body and signature.

    Raises:
        BadInput: The header is too long.
    """
    header = {
        "from": message.sender,
        "to": message.to,
        "run": message.run,
        "about": message.about,
        "version": message.version,
        "protocol": message.protocol,
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    if len(text) > _HEADER:
        raise BadInput("the header of a message is too long: use shorter names for sites and runs", code="header-too-long")
    data = MAGIC + len(text).to_bytes(_LENGTH, "big") + text + message.body
    return data + identity.sign(_signed(data))


def peek(data: bytes) -> Letter:
    """Read a message without checking its signature, to find the key that it must be checked with.

    Args:
        data: The encoded message.

    Returns:
        The message.

    Raises:
        BadInput: The bytes are not a message, or are truncated or malformed.
    """
    start = len(MAGIC) + _LENGTH
    if len(data) < start + SIGNATURE_BYTES or data[: len(MAGIC)] != MAGIC:
        raise BadInput("received bytes that are not a message of this package", code="malformed-message")
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    if length > _HEADER or start + length + SIGNATURE_BYTES > len(data):
        raise BadInput("a message is truncated", code="malformed-message")
    try:
        header: Any = json.loads(data[start : start + length])
        words = {name: header[name] for name in ("from", "to", "run", "about", "version", "protocol")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput("the header of a message cannot be read", code="malformed-message") from None
    if not isinstance(words.pop("protocol"), int) or not all(isinstance(w, str) for w in words.values()):
        raise BadInput("the header of a message cannot be read", code="malformed-message")
    body = data[start + length : -SIGNATURE_BYTES]
    sender = words.pop("from")
    return Letter(sender, body=body, protocol=header["protocol"], **words)


def unseal(data: bytes, *, public: bytes) -> Letter:
    """Decode a message and verify its signature.

    Args:
        data: The encoded message.
        public: The sender's public key.

    Returns:
        The message.

    Raises:
        BadInput: It is malformed, or not signed with this key.
    """
    letter = peek(data)
    if not signed_by(public, _signed(data[:-SIGNATURE_BYTES]), data[-SIGNATURE_BYTES:]):
        raise BadInput(
            f"a message from '{letter.sender}' is not signed with that party's known key", code="bad-signature"
        )
    return letter


def digest(data: bytes) -> str:
    """Return the SHA-256 of an encoded message, which identifies it."""
    return hashlib.sha256(data).hexdigest()


def _signed(data: bytes) -> bytes:
    """Return the signed bytes: a hash with a prefix, so that no signature made for another purpose is valid."""
    return b"grandrounds letter\x00" + hashlib.sha256(data).digest()
