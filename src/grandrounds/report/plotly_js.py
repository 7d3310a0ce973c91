"""The script that draws figures in a page: plotly.min.js, packed, without importing plotly.

The file is 4.8 MB; packed it is 1.5 MB, and the browser unpacks it. Packing takes a fifth of a second, so it is done
once a machine and kept in the user's cache folder.
"""

from __future__ import annotations

import base64
import gzip
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from grandrounds.data.store import cache_folder

_LEVEL = 6
_QUICK = 1  # where nothing can be kept, and every page pays


def script_file() -> Path | None:
    """plotly.min.js of the installed plotly; None where there is none."""
    try:
        spec = find_spec("plotly")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=1)
def packed() -> str | None:
    """The script as gzip in base64; None where plotly is not installed."""
    path = script_file()
    return None if path is None else base64.b64encode(_gzip(path)).decode()


def _gzip(path: Path) -> bytes:
    facts = path.stat()
    kept = cache_folder() / f"plotly-{facts.st_size}-{facts.st_mtime_ns}.js.gz"
    found = _read(kept, size=facts.st_size)
    if found is not None:
        return found
    text = path.read_bytes()
    part: Path | None = None
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=".part-", delete=False) as f:
            part = Path(f.name)
            data = gzip.compress(text, _LEVEL, mtime=0)
            f.write(data)
        part.replace(kept)
    except OSError:
        if part is not None:
            part.unlink(missing_ok=True)
        return gzip.compress(text, _QUICK, mtime=0)
    return data


def _read(path: Path, *, size: int) -> bytes | None:
    """What is kept, if it is whole: gzip's last four bytes say how long the text was."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    whole = data[:2] == b"\x1f\x8b" and int.from_bytes(data[-4:], "little") == size % 2**32
    return data if whole else None
