"""Heat maps that stay at a site: in a simulation the files at_sites/SITE/maps-ROUND.npz of the run folder.

A file holds heat over its maximum as float16, what the models said, and which of the site's pictures it is of (their
places in its test rows, or whichever part was drawn from). It does not hold a picture.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from grandrounds.core.arrays import Array, check_npz, make_folder, read_file, write_atomic
from grandrounds.core.errors import BadInput

Arrays = dict[str, Array]

_LONGEST = 200
"""Characters of a site's folder; a name that takes more ends in a digest of it."""


@dataclass
class MapFiles:
    """What the sites of one host keep: on disk where there is a folder, and of the last time in memory."""

    folder: Path | None = None
    last: dict[str, tuple[int, Arrays]] = field(default_factory=dict)

    def write(self, site: str, round: int, arrays: Arrays) -> None:
        self.last[site] = (round, arrays)
        if self.folder is not None:
            path = file_of(self.folder, site, round)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.folder)
            make_folder(path.parent)
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            write_atomic(path, buffer.getvalue(), durable=False)

    def read(self, site: str, round: int) -> Arrays:
        """What was kept in that round; nothing where nothing was. A site that was started again looks at its file."""
        when, arrays = self.last.get(site, (0, {}))
        if when == round:
            return arrays
        path = None if self.folder is None else file_of(self.folder, site, round)
        return read_maps(path) if path is not None and path.exists() else {}


def file_of(folder: Path, site: str, round: int) -> Path:
    """Where a site's maps of a round are; a site's name may hold what a folder's may not."""
    name = quote(site, safe=" ")
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{hashlib.sha256(site.encode()).hexdigest()[:16]}"
    return folder / (name if name.strip(".") else name.replace(".", "%2E")) / f"maps-{round}.npz"


def read_maps(path: Path) -> Arrays:
    """The arrays of one file."""
    try:
        data = read_file(path)
        check_npz(io.BytesIO(data), where=str(path))
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except BadInput:
        raise
    except Exception:  # zipfile, zlib and numpy have a dozen words for one thing
        raise BadInput(f"{path} is damaged: take it away and run the experiment again", code="damaged-file") from None


def rounded(heat: Array) -> Array:
    """Maps (..., H, W) as they are kept: each over its maximum, in half precision."""
    top = heat.max(axis=(-1, -2), keepdims=True)
    return np.asarray(heat / np.where(top > 0, top, 1.0), np.float16)


def with_names(heat: Mapping[str, Array], kind: str) -> Arrays:
    """Maps of one model by the names they have in a file."""
    return {f"{kind}.{name}": rounded(h) for name, h in heat.items()}
