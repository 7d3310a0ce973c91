"""Store of the catalog's files: a folder of the user's, the package, the cache, or the publisher.

Every file is known by its SHA-256 and hashed each time it is opened (a few milliseconds a
megabyte), so a run never starts on data that was cut short, edited or replaced. Some files are made
here from what their publisher offers (`Build`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from grandrounds.core.errors import BadInput
from grandrounds.data.download import Progress, Source, check_space, fetch, file_digest, no_progress, remaining_bytes

VARIABLE = "GRANDROUNDS_DATA"
INCLUDED = Path(__file__).parent / "files"  # small sets whose licence lets us pass them on

Convert = Callable[[Mapping[str, Path], Progress], dict[str, bytes]]
"""Takes downloads by name, and returns the files to put in the cache, by path."""


@dataclass(frozen=True)
class Build:
    """Published files, and the code that converts them to files of the catalog.

    `ready` refuses, before the download, where a package is missing that the conversion needs. `notes` say in a
    sentence each what the conversion assumes.
    """

    sources: tuple[Source, ...]
    convert: Convert
    ready: Callable[[], object] = lambda: None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataFile:
    """One file: its `path` inside a data folder, its digest and size, and where it can be had.

    `member` is its name inside the zip archive at `url`. `also` lists the same data in another
    wrapping (the .csv.gz of a .csv, say): any of them will do. `build` makes one of `also` from what the
    publisher offers. A file without a `sha256` was made on this machine; its digest lies beside it.
    """

    path: str
    sha256: str | None
    bytes: int
    url: str | None = None
    member: str | None = None
    also: tuple[DataFile, ...] = ()
    build: Build | None = None


def cache_folder() -> Path:
    """Find the folder of downloads: $XDG_CACHE_HOME/grandrounds, or ~/.cache/grandrounds."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grandrounds"


def search_folders() -> tuple[Path, ...]:
    """List the folders that are searched, in order: the user's own where one is named, the package, and the cache."""
    own_folder = os.environ.get(VARIABLE)
    if own_folder and not Path(own_folder).is_dir():
        raise BadInput(
            f"{VARIABLE} is '{own_folder}', which is not a folder; set it to the one with the data files",
            code="folder-not-found",
        )
    return (*((Path(own_folder),) if own_folder else ()), INCLUDED, cache_folder())


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """Open a file to write, which gets its place in the cache in one move when the block ends well.

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
            f"cannot write {target}: {e.strerror or e}; set XDG_CACHE_HOME to a folder that can be written to",
            code="cannot-write",
        ) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def locate_file(
    file: DataFile, *, download: bool = False, name: str | None = None, progress: Progress | None = None
) -> Path:
    """Find the file in $GRANDROUNDS_DATA, the package or the cache, or (with `download`) get it from its publisher.

    `name` is the catalog's name of the set, for messages.
    """
    if download:
        return get_files([file], name=name, progress=progress)[0]
    path = _find(file, name=name)
    if path is None:
        raise BadInput(_describe_missing(file, name=name), code="data-not-downloaded")
    return path


def get_files(
    files: Sequence[DataFile], *, name: str | None = None, progress: Progress | None = None, keep: bool = False
) -> tuple[Path, ...]:
    """Get every file: downloaded to the cache, or made there from downloads, where it is in no place.

    A file gets its name only after its digest was found right, in one move: another process, or a
    crash, never sees half of one. A damaged copy in the cache is replaced. Downloads that are not
    wanted themselves (an archive, what was converted) are removed at the end unless `keep` is set;
    a download that breaks off is kept, and continued the next time.
    """
    progress = progress or no_progress
    have = {file.path: _find(file, name=name, mend=True) for file in files}
    wanted = [file for file in files if have[file.path] is None]
    for file in wanted:
        if not (file.url or file.build):
            raise BadInput(_describe_missing(file, name=name), code="data-not-downloaded")
        if file.build:
            file.build.ready()
    sources = sources_of(wanted)
    results = sum(max(one.bytes for one in (file, *file.also)) for file in wanted)
    check_space(
        download_folder(),
        sum(remaining_bytes(s, download_folder()) for s in sources) + results,
        name=name or "the download",
    )
    fetched = {source.name: fetch(source, download_folder(), progress=progress) for source in sources}
    try:
        for file in wanted:
            if file.url is not None:
                have[file.path] = _install(fetched[_source(file).name], file)
        for build in builds_of(wanted):
            _convert(build, [file for file in wanted if file.build is build], fetched, progress)
    except BadInput:
        for source in sources:
            if source.checksum is None:  # nothing else says that it is the right file: fetch it anew the next time
                fetched[source.name].unlink(missing_ok=True)
        raise
    if not keep:
        for path in fetched.values():
            path.unlink(missing_ok=True)
    paths = [have[file.path] or _find(file, name=name) for file in files]
    return tuple(path for path in paths if path is not None)


def download_folder() -> Path:
    """Find the folder of downloads that are not finished, or not converted yet."""
    return cache_folder() / "downloads"


def sources_of(files: Sequence[DataFile]) -> tuple[Source, ...]:
    """List what has to be downloaded for these files, each source once."""
    lists = [file.build.sources if file.build else (_source(file),) for file in files if file.url or file.build]
    return tuple(dict.fromkeys(source for sources in lists for source in sources))


def builds_of(files: Sequence[DataFile]) -> tuple[Build, ...]:
    """List the conversions that make these files, each once."""
    return tuple(dict.fromkeys(file.build for file in files if file.build is not None))


def download_size(files: Sequence[DataFile]) -> int | None:
    """Bytes to download for these files (of an archive: those of its members); None where no publisher states them."""
    sizes = {source: source.bytes for source in sources_of(files)}
    for file in files:
        if file.member is not None:
            source = _source(file)
            sizes[source] = (sizes[source] or 0) + file.bytes
    return None if None in sizes.values() else sum(size or 0 for size in sizes.values())


def _source(file: DataFile) -> Source:
    """Find the file's own address, or that of the archive that holds it."""
    url = str(file.url)
    if file.member is None:
        return Source(file.path, (url,), file.bytes, f"sha256:{file.sha256}")
    return Source(f"{Path(file.path).parent}/{Path(urlsplit(url).path).name}", (url,))


def _convert(build: Build, files: Sequence[DataFile], fetched: Mapping[str, Path], progress: Progress) -> None:
    """Make the files of a build and put them in the cache, each with its SHA-256 beside it."""
    digest_by_path = {one.path: one.sha256 for file in files for one in (file, *file.also)}
    for path, data in build.convert({s.name: fetched[s.name] for s in build.sources}, progress).items():
        digest = hashlib.sha256(data).hexdigest()
        if digest_by_path.get(path) not in (None, digest):
            difference = _describe_difference(str(digest_by_path[path]), digest)
            raise BadInput(
                f"{path}, made from the published files, is not the file we know: {difference}; "
                "please report this, with the versions of Python and NumPy",
                code="checksum-mismatch",
            )
        with new_file(path) as f:
            f.write(data)
        with new_file(f"{path}.sha256") as f:
            f.write(f"{digest}  {Path(path).name}\n".encode())


def _find(file: DataFile, *, name: str | None, mend: bool = False) -> Path | None:
    """Find the first copy there is, its digest checked; `mend` takes a bad copy in the cache for none."""
    ours = cache_folder()
    for folder in search_folders():
        for one in (file, *file.also):
            path = folder / one.path
            if not path.is_file():
                continue
            digest = file_digest(path)
            expected = one.sha256 or _read_noted_digest(path)
            if digest == expected:
                return path
            if folder == INCLUDED:
                way = "install grandrounds again"
            elif folder != ours:
                way = f"put the publisher's file there, or unset {VARIABLE}"
            elif not (file.url or file.build):
                way = "put the right file in its place"
            elif mend:
                continue
            else:
                way = f"`{_command(name)}` replaces it"
            raise BadInput(
                f"{path} is not the file we know: {_describe_difference(expected, digest)}; {way}",
                code="checksum-mismatch",
            )
    return None


def _read_noted_digest(path: Path) -> str:
    """Read the SHA-256 that was written beside a file when it was made here; such a file depends on the machine."""
    try:
        return path.with_name(f"{path.name}.sha256").read_text(encoding="utf-8").split()[0]
    except (OSError, ValueError, IndexError):
        return "noted beside it"


def _install(fetched: Path, file: DataFile) -> Path:
    """Take the file out of what was fetched, check it and move it to its place in the cache."""
    data = _content(fetched, file)
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise BadInput(
            f"{file.path} from {file.url} is not the file we know: {_describe_difference(str(file.sha256), digest)}; "
            f"the publisher may have changed it: {_by_hand()}",
            code="checksum-mismatch",
        )
    with new_file(file.path) as f:
        f.write(data)
    return cache_folder() / file.path


def _content(fetched: Path, file: DataFile) -> bytes:
    """Read the file's bytes, never more than one past the size we know (an archive may lie about it)."""
    if file.member is None:
        with fetched.open("rb") as f:
            return f.read(file.bytes + 1)
    try:
        with zipfile.ZipFile(fetched) as archive:
            inside = [n for n in archive.namelist() if f"/{n}".endswith(f"/{file.member}")]
            if not inside:
                raise BadInput(f"{file.url} holds no '{file.member}' any more; {_by_hand()}", code="incomplete-archive")
            with archive.open(min(inside, key=len)) as member:
                return member.read(file.bytes + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
        raise BadInput(
            f"{file.url} is not a zip archive we can read ({e}); {_by_hand()}", code="damaged-file"
        ) from None


def _describe_difference(expected: str, actual: str) -> str:
    return f"its SHA-256 should be {expected} and is {actual}"


def _describe_missing(file: DataFile, *, name: str | None) -> str:
    either = (
        f", or run `{_command(name)}`" if file.url or file.build else " (it has no public address to fetch it from)"
    )
    return f"{file.path} is not on this machine; set {VARIABLE} to a folder that holds {file.path}{either}"


def _command(name: str | None) -> str:
    return f"rounds data get {name or 'NAME'}"


def _by_hand() -> str:
    return f"fetch it by hand and set {VARIABLE} to its folder"
