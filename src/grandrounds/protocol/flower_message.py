"""Carry a signed message in a Flower message, and check the version of Flower.

This module serves the server's side (`engine/transport.py`) and the site's (`keeper/flower/node.py`). A small message is a
bytes field (three Flower objects); a large one is a byte array, which Flower splits into chunks of 5 MiB. Nothing is
decoded here: `.data` is used as received, never `.numpy()`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput

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
        raise BadInput("Flower is not installed: pip install 'grandrounds[flower]'", code="missing-package") from None
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
