"""How a letter (sealed bytes) lies in a Flower message, and which Flower this was read for.

The only place that says either, for the server's side (`engine/transport.py`) and the site's (`keeper/flower/node.py`).
A small letter is a bytes field, three Flower objects a message; a large one is an array of bytes, which Flower cuts
into chunks of 5 MiB. Nothing is decoded here: `.data` is taken as it came, never `.numpy()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from flwr.app import RecordDict

MESSAGE_TYPE = "query.grandrounds"
RECORD, FIELD, STYPE = "letter", "sealed", "grandrounds.sealed"
SMALL = 256 * 1024
"""Bytes up to which a letter travels whole: well under a gateway's 16 MiB, and most letters of tables."""

FLWR = ("1.41", "1.42")
"""The releases whose internals (runtime API, its helpers, the node's loop) were read for this."""


class NotALetter(Exception):
    """A Flower message that carries something else than one letter."""


def require_flower(*, exactly: Sequence[str] = ()) -> None:
    """Refuse in words when Flower is missing, or is a release that nobody has read yet; `exactly`: versions to keep to."""
    try:
        import flwr
    except ImportError:
        raise BadInput("Flower is not installed: pip install 'grandrounds[flower]'", code="missing-package") from None
    version = str(flwr.__version__)
    if exactly and version not in exactly:
        supported = " or ".join(exactly)
        raise BadInput(
            f"this works with flwr {supported} only, and flwr {version} is installed: start without it",
            code="unsupported-version",
        )
    if ".".join(version.split(".")[:2]) not in FLWR:
        supported, newest = " and ".join(FLWR), FLWR[-1]
        raise BadInput(
            f"flwr {version} is installed, and the keeper speaks to flwr {supported}: pip install 'flwr=={newest}.*'",
            code="unsupported-version",
        )


def pack(letter: bytes) -> RecordDict:
    """The content of a Flower message that carries this letter."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(letter) <= SMALL:
        return RecordDict({RECORD: ConfigRecord({FIELD: letter})})
    array = Array(dtype="uint8", shape=(len(letter),), stype=STYPE, data=letter)
    return RecordDict({RECORD: ArrayRecord({FIELD: array})})


def unpack(content: RecordDict) -> bytes:
    """The letter that a Flower message carries."""
    record = content.get(RECORD)
    field = record.get(FIELD) if record is not None else None
    data = field if isinstance(field, bytes) else getattr(field, "data", None)
    if not isinstance(data, bytes):
        raise NotALetter
    return data
