"""Heat maps that stay at a site: in a simulation the files at_sites/SITE/maps-ROUND.npz of the run folder.

A file has heat divided by its maximum as float16, the models' predictions, and the positions of the images in the site's test
rows (or the part they are from). It contains no image.
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
"""Maximum length of a site's folder name; a longer name ends in its digest."""


@dataclass
class MapFiles:
    """Heat maps stored by the sites of one host: on disk if there is a folder, and the latest in memory."""

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
        """Return the maps stored in a round; None if there are none. A restarted site reads its file."""
        when, arrays = self.last.get(site, (0, {}))
        if when == round:
            return arrays
        path = None if self.folder is None else file_of(self.folder, site, round)
        return read_maps(path) if path is not None and path.exists() else {}


def file_of(folder: Path, site: str, round: int) -> Path:
    """Return the file of a site's maps of a round; characters that a folder name cannot have are replaced."""
    name = quote(site, safe=" ")
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{hashlib.sha256(site.encode()).hexdigest()[:16]}"
    return folder / (name if name.strip(".") else name.replace(".", "%2E")) / f"maps-{round}.npz"


def read_maps(path: Path) -> Arrays:
    """Read the arrays of one file."""
    try:
        data = read_file(path)
        check_npz(io.BytesIO(data), where=str(path))
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except BadInput:
        raise
    except Exception:  # zipfile, zlib and numpy raise many types of errors
        raise BadInput(f"{path} is damaged: remove it and run the experiment again", code="damaged-file") from None


def rounded(heat: Array) -> Array:
    """Scale maps (..., H, W) by their maximum and convert them to half precision, as they are stored."""
    top = heat.max(axis=(-1, -2), keepdims=True)
    return np.asarray(heat / np.where(top > 0, top, 1.0), np.float16)


def with_names(heat: Mapping[str, Array], kind: str) -> Arrays:
    """Name the maps of one model as in a file."""
    return {f"{kind}.{name}": rounded(h) for name, h in heat.items()}
