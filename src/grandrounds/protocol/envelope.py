"""Messages between server and sites: a signed header with sender, recipient and run, and a body that is encrypted.

The transport can read the header, and can change nothing. The body is encrypted for the recipient (`sessions.py`), except in
the two messages that agree on the keys and in refusals, which are bare codes. A site accepts messages of its server only, and
only those addressed to it. The server accepts an answer only with the key of the site it asked, and only to that very request.
The header precedes the protocol's own content, so that two versions can recognise each other.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import SIGNATURE_BYTES, Identity, signed_by

ENVELOPE_PROTOCOL = 2
"""Version of this format: 1 had readable bodies, and is refused."""

MAGIC = b"GRL1"
_LENGTH = 4
_HEADER = 4096
"""Largest size of a header, in bytes."""

ANYBODY = "*"
"""Recipient of a message while the name of the site at an address is unknown."""


@dataclass(frozen=True)
class Envelope:
    """An opened message.

    Attributes:
        sender: Name of the site, or "server".
        to: Name of the recipient.
        run: Name of the run.
        body: Content, encrypted if there is a session.
        about: Digest of the message that it answers.
        version: Version of the sender's package.
        protocol: Version of the format.
        session: Id of the session whose keys encrypt the body; "" for a readable body.
        number: Number of the message in its session; an answer has that of the request.
    """

    sender: str
    to: str
    run: str
    body: bytes
    about: str = ""
    version: str = ""
    protocol: int = ENVELOPE_PROTOCOL
    session: str = ""
    number: int = 0

    def header(self) -> bytes:
        """Encode everything but the body.

        Raises:
            BadInput: The header is too long.
        """
        fields = {
            "from": self.sender,
            "to": self.to,
            "run": self.run,
            "about": self.about,
            "version": self.version,
            "protocol": self.protocol,
            "session": self.session,
            "number": self.number,
        }
        text = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
        if len(text) > _HEADER:
            raise BadInput(
                "the header of a message is too long: use shorter names for sites and runs", code="header-too-long"
            )
        return text


def seal(identity: Identity, message: Envelope) -> bytes:
    """Sign a message and encode it as bytes.

    Args:
        identity: The sender's private key.
        message: The message.

    Returns:
        Header, body and signature.

    Raises:
        BadInput: The header is too long.
    """
    text = message.header()
    data = MAGIC + len(text).to_bytes(_LENGTH, "big") + text + message.body
    return data + identity.sign(_signed(data))


def peek(data: bytes) -> Envelope:
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
        words = {name: header[name] for name in ("from", "to", "run", "about", "version")}
        words["session"] = header.get("session", "")  # protocol 1 has none
        protocol, number = header["protocol"], header.get("number", 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadInput("the header of a message cannot be read", code="malformed-message") from None
    if type(protocol) is not int or type(number) is not int or not all(isinstance(w, str) for w in words.values()):
        raise BadInput("the header of a message cannot be read", code="malformed-message")
    body = data[start + length : -SIGNATURE_BYTES]
    return Envelope(words.pop("from"), body=body, protocol=protocol, number=number, **words)


def unseal(data: bytes, *, public: bytes) -> Envelope:
    """Decode a message and verify its signature.

    Args:
        data: The encoded message.
        public: The sender's public key.

    Returns:
        The message.

    Raises:
        BadInput: It is malformed, or not signed with this key.
    """
    envelope = peek(data)
    if not signed_by(public, _signed(data[:-SIGNATURE_BYTES]), data[-SIGNATURE_BYTES:]):
        raise BadInput(
            f"a message from '{envelope.sender}' is not signed with that party's known key", code="bad-signature"
        )
    return envelope


def digest(data: bytes) -> str:
    """Return the SHA-256 of an encoded message, which identifies it."""
    return hashlib.sha256(data).hexdigest()


def request_id(digest: str) -> str:
    """Return the id by which the logs of server and site name a request: the first 16 digits of its digest."""
    return digest[:16]


def _signed(data: bytes) -> bytes:
    """Return the signed bytes: a hash with a prefix, so that no signature made for another purpose is valid."""
    return b"grandrounds letter\x00" + hashlib.sha256(data).digest()
