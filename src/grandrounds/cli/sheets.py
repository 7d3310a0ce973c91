"""Where a sheet of pictures is saved, and saving it."""

from __future__ import annotations

import re
from pathlib import Path


def place(out: Path | None, kind: str, name: str) -> Path:
    """What --out means: a .png file, or a folder for KIND-NAME.png; not given: this folder."""
    from grandrounds.core.errors import BadInput

    plain = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "unnamed"
    if out is None or out.is_dir() or not out.suffix:
        return (out or Path()) / f"{kind}-{plain}.png"
    if out.suffix.lower() != ".png":
        raise BadInput(f"--out {out}: give a file that ends in .png, or a folder")
    return out


def write(path: Path, sheet: bytes) -> None:
    """The sheet, whole or not at all."""
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, sheet, durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another --out") from None
