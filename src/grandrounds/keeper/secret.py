"""The runtime secret: who may take work from a SuperNode or a SuperLink on its own machine."""

from __future__ import annotations

from pathlib import Path

from grandrounds.core.errors import BadInput


def runtime_secret(path: Path) -> bytes:
    """A secret file's exact bytes, ends of lines and all, as Flower's own programs read it: both sides must agree."""
    try:
        found = path.read_bytes()
    except OSError as e:
        raise BadInput(f"cannot read the runtime secret {path}: {e.strerror or e}") from None
    if not found:
        raise BadInput(f"the runtime secret {path} is empty: bring the handed-over file back")
    return found
