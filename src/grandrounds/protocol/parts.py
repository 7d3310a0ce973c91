"""Messages about the parts of a large answer, which the server fetches one after another.

A site keeps a large sealed answer on its disk and sends an announcement in its place. The server asks for ranges of its bytes,
as large as the line allows, and puts them together; a range that is lost is asked for again, and nothing else. The bytes are
those of the sealed answer: encrypted, and signed by the site as a whole. So these messages carry no signature of their own. A
transport that changes a part changes the digest, and the answer is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from grandrounds.core.errors import BadInput

MAGIC = b"GRP1"
_LENGTH = 4
_HEADER = 1024

LARGE = 16 * 2**20
"""Answers of more bytes are fetched in parts."""

LONGEST = 64 * 2**20
"""Largest part in bytes."""

ANNOUNCE, FETCH, BYTES, DONE, MISSING = "announce", "fetch", "bytes", "done", "missing"


@dataclass(frozen=True)
class PartMessage:
    """One message about parts.

    Attributes:
        kind: `announce` (a site has an answer of `size` bytes), `fetch` (the server asks for a range), `bytes` (that range),
            `done` (the server has all of it; also the answer to that), `missing` (the site has no such answer any more).
        digest: SHA-256 of the whole answer, in hexadecimal digits.
        size: Bytes of the whole answer.
        offset: First byte of a range.
        length: Bytes of a range.
        data: The bytes of a range.
    """

    kind: str
    digest: str
    size: int = 0
    offset: int = 0
    length: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        """Encode the message as bytes."""
        fields = {name: value for name, value in asdict(self).items() if name != "data"}
        head = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
        return MAGIC + len(head).to_bytes(_LENGTH, "big") + head + self.data


def is_part(message: bytes) -> bool:
    """Check whether a message is about parts."""
    return message[: len(MAGIC)] == MAGIC


def decode_part(message: bytes) -> PartMessage:
    """Decode a message about parts.

    Raises:
        BadInput: It is not such a message.
    """
    start = len(MAGIC) + _LENGTH
    length = int.from_bytes(message[len(MAGIC) : start], "big")
    try:
        if not is_part(message) or length > _HEADER:
            raise ValueError
        head: dict[str, Any] = json.loads(message[start : start + length])
        found = PartMessage(**head, data=message[start + length :])
    except (ValueError, TypeError, RecursionError):
        raise BadInput("received a malformed message about parts of an answer", code="malformed-message") from None
    numbers = (found.size, found.offset, found.length)
    is_digest = isinstance(found.digest, str) and len(found.digest) == 64 and set(found.digest) <= set("0123456789abcdef")
    if not is_digest or not all(type(n) is int and n >= 0 for n in numbers):
        raise BadInput("received a malformed message about parts of an answer", code="malformed-message")
    return found
