"""Carry a signed message in a Flower message, and check the version of Flower.

This module serves the server's side (`engine/transport.py`) and the site's (`flower/node.py` of the keeper). A small message is a
bytes field (three Flower objects); a large one is a byte array, which Flower splits into chunks of 5 MiB. Nothing is
decoded here: `.data` is used as received, never `.numpy()`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput, install_extra

if TYPE_CHECKING:
    from flwr.app import RecordDict

MESSAGE_TYPE = "query.grandrounds"
RECORD, FIELD, STYPE = "letter", "sealed", "grandrounds.sealed"
SMALL = 256 * 1024
"""Largest message, in bytes, that is sent as one field: far below a gateway's 16 MiB, and enough for most messages of
tables.
"""

FLWR = ("1.41", "1.42")
"""Flower releases whose internals (runtime API, helpers, the node's loop) were reviewed for this module."""

REVIEWED = ("1.41.0", "1.42.0")
"""Versions whose SuperLink and SuperNode are started with waits (`protocol/flower_wait.py`); of the modules that are rebound,
the two differ in a middleware for tracing only.
"""


class NotAMessage(Exception):
    """A Flower message that does not carry exactly one signed message."""


def require_flower() -> None:
    """Check that a supported release of Flower is installed.

    Raises:
        BadInput: Flower is missing, or its version is not supported.
    """
    try:
        import flwr
    except ImportError:
        raise BadInput(f"Flower is not installed; {install_extra('flower')}", code="missing-package") from None
    version = str(flwr.__version__)
    if ".".join(version.split(".")[:2]) not in FLWR:
        supported, newest = " and ".join(FLWR), FLWR[-1]
        raise BadInput(
            f"flwr {version} is installed, but the keeper requires flwr {supported}: pip install 'flwr=={newest}.*'",
            code="unsupported-version",
        )


def is_reviewed() -> bool:
    """Check that names inside of the installed Flower may be rebound; say so on standard error if not."""
    import flwr

    version = str(flwr.__version__)
    if version not in REVIEWED:
        reviewed = " and ".join(REVIEWED)
        print(
            f"note: flwr {version} keeps its own polling intervals: exchanges are faster with {reviewed}",
            file=sys.stderr,
            flush=True,
        )
    return version in REVIEWED


def pack(letter: bytes) -> RecordDict:
    """Build the content of a Flower message that carries these bytes."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(letter) <= SMALL:
        return RecordDict({RECORD: ConfigRecord({FIELD: letter})})
    array = Array(dtype="uint8", shape=(len(letter),), stype=STYPE, data=letter)
    return RecordDict({RECORD: ArrayRecord({FIELD: array})})


def unpack(content: RecordDict) -> bytes:
    """Return the signed message in a Flower message.

    Raises:
        NotAMessage: The Flower message carries anything else.
    """
    record = content.get(RECORD)
    field = record.get(FIELD) if record is not None else None
    data = field if isinstance(field, bytes) else getattr(field, "data", None)
    if not isinstance(data, bytes):
        raise NotAMessage
    return data


def rebuild_parts(head: Any, tree: Any) -> dict[str, bytes]:
    """Rebuild the parts of an announced message that follow from its announcement, so that they need not be downloaded.

    Flower stores a message as a tree of objects: the message with its metadata, its content with the ids of its records, and
    the records. The first two of a message made by `pack` follow from metadata and ids. An id is the SHA-256 of its object, so
    a part counts only if its hash is the announced id.

    Args:
        head: The message as announced, without content (protobuf).
        tree: The tree of its objects (protobuf).

    Returns:
        Parts by id; empty for any other message.
    """
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER

    if len(tree.children) != 1 or len(tree.children[0].children) != 1:
        return {}
    content, record = tree.children[0].object_id, tree.children[0].children[0].object_id
    stored = ProtoMessage(metadata=head.metadata)
    stored.metadata.message_id = ""
    bodies = {
        tree.object_id: ("Message", content, stored.SerializeToString(deterministic=True)),
        content: ("RecordDict", record, json.dumps({RECORD: record}).encode()),
    }
    parts = {}
    for id, (kind, child, body) in bodies.items():
        part = HEAD_VALUE_DIVIDER.join((kind, child, str(len(body)))).encode() + HEAD_BODY_DIVIDER + body
        if hashlib.sha256(part).hexdigest() == id:
            parts[id] = part
    return parts
