"""Where the files of the catalog's sets are: a folder of the user's, the package, the cache, or the publisher.

Every file is known by its SHA-256 and hashed each time it is opened (a few milliseconds a
megabyte), so a run never starts on data that was cut short, edited or replaced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from grandrounds.errors import BadInput, RunFailed

VARIABLE = "GRANDROUNDS_DATA"
INCLUDED = Path(__file__).parent / "files"  # small sets whose licence lets us pass them on
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
LARGEST = 1 << 30  # a download past this is not one of ours

Progress = Callable[[int, int | None], None]
"""Called with bytes so far and bytes in all (None where the server does not say)."""


@dataclass(frozen=True)
class DataFile:
    """One file: its `path` inside a data folder, its digest and size, and where it can be had.

    `member` is its name inside the zip archive at `url`. `also` lists the same data in another
    wrapping (the .csv.gz of a .csv, say): any of them will do.
    """

    path: str
    sha256: str
    bytes: int
    url: str | None = None
    member: str | None = None
    also: tuple[DataFile, ...] = ()


def cache_folder() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/grandrounds, or ~/.cache/grandrounds."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grandrounds"


def folders() -> tuple[Path, ...]:
    """Where files are looked for, in this order: the user's own folder where one is named, the package, and the cache."""
    own = os.environ.get(VARIABLE)
    if own and not Path(own).is_dir():
        raise BadInput(f"{VARIABLE} is '{own}', which is not a folder; set it to the one with the data files")
    return (*((Path(own),) if own else ()), INCLUDED, cache_folder())


def is_included(file: DataFile) -> bool:
    """The file comes with the package."""
    return (INCLUDED / file.path).is_file()


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """A file to write, which gets its place in the cache in one move when the block ends well.

    Another process, or a crash, never sees half of one; a cache that cannot be written to is said before the block
    does its work.
    """
    target = cache_folder() / path
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-", delete=False) as f:
            part = Path(f.name)
            yield f
        part.replace(target)
    except OSError as e:
        raise BadInput(
            f"cannot write {target}: {e.strerror or e}; set XDG_CACHE_HOME to a folder that can be written to"
        ) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def locate(
    file: DataFile, *, download: bool = False, name: str | None = None, progress: Progress | None = None
) -> Path:
    """The file in $GRANDROUNDS_DATA, else in the package, else in the cache, else (with `download`) from its publisher.

    `name` is the catalog's name of the set, for messages.
    """
    if download:
        return get([file], name=name, progress=progress)[0]
    found = _find(file, name=name)
    if found is None:
        raise BadInput(_missing(file, name=name))
    return found


def get(files: Sequence[DataFile], *, name: str | None = None, progress: Progress | None = None) -> tuple[Path, ...]:
    """Every file, downloaded to the cache where it is in no place; an archive is fetched once.

    A file gets its name only after its digest was found right, in one move: another process, or a
    crash, never sees half of one. A damaged copy in the cache is replaced.
    """
    have = [_find(file, name=name, mend=True) for file in files]
    fetched: dict[str, Path] = {}
    out: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="grandrounds-") as folder:
        for file, path in zip(files, have, strict=True):
            if path is None:
                if file.url is None:
                    raise BadInput(_missing(file, name=name))
                if file.url not in fetched:
                    to = Path(folder) / str(len(fetched))
                    _download(file.url, to=to, progress=progress)
                    fetched[file.url] = to
                path = _install(fetched[file.url], file)
            out.append(path)
    return tuple(out)


def _find(file: DataFile, *, name: str | None, mend: bool = False) -> Path | None:
    """The first copy there is, its digest checked; `mend` takes a bad copy in the cache for none."""
    ours = cache_folder()
    for folder in folders():
        for one in (file, *file.also):
            path = folder / one.path
            if not path.is_file():
                continue
            digest = _digest(path)
            if digest == one.sha256:
                return path
            if folder == INCLUDED:
                way = "install grandrounds again"
            elif folder != ours:
                way = f"put the publisher's file there, or unset {VARIABLE}"
            elif not file.url:
                way = "put the right file in its place"
            elif mend:
                continue
            else:
                way = f"`{_command(name)}` replaces it"
            raise BadInput(f"{path} is not the file we know: {_differs(one.sha256, digest)}; {way}")
    return None


def _download(url: str, *, to: Path, progress: Progress | None) -> None:
    """The bytes at `url`, all of them: a connection that ends early is an error."""
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != ("http", "127.0.0.1"):
        raise BadInput(f"{url} is not an https address; only those are fetched")
    import http.client  # here: a run whose data are on disk should not wait for them
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "grandrounds"})
    done = 0
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, to.open("wb") as f:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            while piece := answer.read(CHUNK):
                f.write(piece)
                done += len(piece)
                if done > LARGEST:
                    raise RunFailed(f"{url} sends more than {LARGEST:,} bytes; it cannot be the right file")
                if progress:
                    progress(done, total)
    except urllib.error.HTTPError as e:
        raise RunFailed(f"cannot fetch {url}: the server answers {e.code} {e.reason}; {_by_hand()}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        reason = getattr(e, "reason", None) or e
        raise RunFailed(f"cannot fetch {url}: {reason}; try again, or {_by_hand()}") from None
    if total is not None and done < total:
        raise RunFailed(f"{url} broke off after {done:,} of {total:,} bytes; try again, or {_by_hand()}")


def _install(fetched: Path, file: DataFile) -> Path:
    """The file out of what was fetched, checked and moved to its place in the cache."""
    data = _content(fetched, file)
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise BadInput(
            f"{file.path} from {file.url} is not the file we know: {_differs(file.sha256, digest)}; "
            f"the publisher may have changed it: {_by_hand()}"
        )
    with new_file(file.path) as f:
        f.write(data)
    return cache_folder() / file.path


def _content(fetched: Path, file: DataFile) -> bytes:
    """The file's bytes, never more than one past the size we know (an archive may lie about it)."""
    if file.member is None:
        with fetched.open("rb") as f:
            return f.read(file.bytes + 1)
    try:
        with zipfile.ZipFile(fetched) as archive:
            inside = [n for n in archive.namelist() if f"/{n}".endswith(f"/{file.member}")]
            if not inside:
                raise BadInput(f"{file.url} holds no '{file.member}' any more; {_by_hand()}")
            with archive.open(min(inside, key=len)) as member:
                return member.read(file.bytes + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
        raise BadInput(f"{file.url} is not a zip archive we can read ({e}); {_by_hand()}") from None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}; check its permissions") from None


def _differs(expected: str, found: str) -> str:
    return f"its SHA-256 should be {expected} and is {found}"


def _missing(file: DataFile, *, name: str | None) -> str:
    either = f", or run `{_command(name)}`" if file.url else " (it has no public address to fetch it from)"
    return f"{file.path} is not on this machine; set {VARIABLE} to a folder that holds {file.path}{either}"


def _command(name: str | None) -> str:
    return f"rounds data get {name or 'NAME'}"


def _by_hand() -> str:
    return f"fetch it by hand and set {VARIABLE} to its folder"
