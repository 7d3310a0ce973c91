"""Download files from their publishers over HTTPS: progress, resume after a broken connection, published checksums.

Bytes collect in `NAME.part`. Beside it `NAME.part.json` holds the server's mark of the file (ETag or date), so that a
later call asks for the rest (HTTP Range with If-Range) and starts anew where the file has changed. A file gets its
name only after its checksum was found right.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
LARGEST = 1 << 30  # the most that is accepted of a file whose size is not known
ATTEMPTS = 4  # connections in a row that may bring nothing before the command gives up
PAUSE = 1.0  # seconds before the second of them, twice as many before the third
BUSY = (429, 500, 502, 503, 504)  # answers that may be another one a moment later

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, its bytes so far, and its bytes in all (None where nobody says)."""


def no_progress(name: str, received: int, total: int | None) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Source:
    """A file at a public address.

    Args:
        name: its name in the folder of downloads.
        urls: its address, then mirrors; the next is tried where one fails or holds another file.
        bytes: its size; None where the publisher states none.
        checksum: "md5:..." or "sha256:..." as published; None where there is none, and the result is checked instead.
    """

    name: str
    urls: tuple[str, ...]
    bytes: int | None = None
    checksum: str | None = None


class WrongFile(BadInput):
    """The address holds another file than the one that was published."""


class ConnectionBroken(Exception):
    """The connection broke; the bytes so far are kept."""


def fetch(source: Source, folder: Path, *, progress: Progress = no_progress) -> Path:
    """Fetch a file into `folder`, or check the one that is there; mirrors are tried in turn.

    Raises:
        BadInput: the address is not https, no address holds the published file, or the folder cannot be written to.
        RunFailed: no server could be reached, or connections keep breaking.
    """
    target = folder / source.name
    if target.is_file() and _fault(target, source) is None:
        progress(source.name, target.stat().st_size, target.stat().st_size)
        return target
    failures: list[GrandRoundsError] = []
    for url in sorted(source.urls, key=lambda url: url != _Mark.read(_part(target)).url):  # kept bytes first
        try:
            return _fetch_from(url, source, target, progress)
        except (WrongFile, RunFailed) as e:
            failures.append(e)
    reasons = "; ".join(str(e) for e in failures)
    by_hand = f"download the file yourself to {target}"
    if all(isinstance(e, WrongFile) for e in failures):
        raise WrongFile(f"{reasons}; the publisher may have changed it: {by_hand}", code="unexpected-file")
    raise RunFailed(
        f"{reasons}; run the command again (it goes on where it broke off), or {by_hand}", code="download-failed"
    )


def remaining_bytes(source: Source, folder: Path) -> int:
    """Count the bytes that are still to be downloaded; 0 where the publisher states no size."""
    target = folder / source.name
    have = next((p.stat().st_size for p in (target, _part(target)) if p.is_file()), 0)
    return max((source.bytes or 0) - have, 0)


def check_space(folder: Path, needed: int, *, name: str) -> None:
    """Refuse a download that does not fit on the disk, before it starts."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise BadInput(
            f"{name} needs {size_text(needed)} of disk space in {folder}, and {size_text(free)} are free; "
            "free some, or set XDG_CACHE_HOME to a folder on a larger disk",
            code="disk-full",
        )


def size_text(count: int) -> str:
    """Format a number of bytes: 2.8 GB, 11.6 MB, 40 kB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}" if count < 100 * scale else f"{count / scale:.0f} {unit}"
    return f"{count} bytes"


def check_address(url: str) -> None:
    """Refuse addresses that are not https; http is for a server on this machine (tests) only."""
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != ("http", "127.0.0.1"):
        raise BadInput(f"{url} is not an https address; only those are fetched", code="insecure-address")


@contextmanager
def write_faults(path: Path) -> Iterator[None]:
    """Turn a disk that is full or cannot be written to into one sentence."""
    try:
        yield
    except OSError as e:
        raise BadInput(
            f"cannot write {path}: {e.strerror or e}; set XDG_CACHE_HOME to a folder that can be written to",
            code="cannot-write",
        ) from None


def _fetch_from(url: str, source: Source, target: Path, progress: Progress) -> Path:
    """Fetch the file from one address; a connection that breaks is opened again, and the rest asked for."""
    check_address(url)
    part = _part(target)
    with write_faults(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    resumed = _size(part) > 0 and _Mark.read(part).url == url
    failures = 0
    while True:
        before = _size(part)
        try:
            _continue(url, source, part, progress)
            fault = _fault(part, source)
            if fault is None:
                break
            raise WrongFile(f"{url} is not the published file: {fault}", code="unexpected-file")
        except ConnectionBroken as e:
            failures = 0 if _size(part) > before else failures + 1
            if failures >= ATTEMPTS - 1:
                raise RunFailed(str(e), code="download-failed") from None
            time.sleep(PAUSE * failures)
        except WrongFile:
            _drop(part)
            if not resumed:
                raise
            resumed = False  # the kept bytes may be of an older file: once more from the start
    with write_faults(target):
        part.replace(target)
        _mark_path(part).unlink(missing_ok=True)
    return target


def _continue(url: str, source: Source, part: Path, progress: Progress) -> None:
    """Open one connection: it brings the rest of the file where the server can send it, else all of it."""
    import http.client  # here: a run whose data are on disk should not wait for them
    import urllib.error
    import urllib.request

    mark = _Mark.read(part)
    have = _size(part) if mark.url == url else 0
    headers = {"User-Agent": "grandrounds", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": mark.validator} if mark.validator else {})
    try:
        opener = urllib.request.build_opener(_redirects())
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            start = _start_of(answer, have)
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else source.bytes
            if source.bytes is not None and total != source.bytes:
                offers = f"its server offers {total:,} bytes where there should be {source.bytes:,}"
                raise WrongFile(f"{url} is not the published file: {offers}", code="unexpected-file")
            with write_faults(part):
                _Mark(url, _validator(answer.headers)).write(part)
                file = part.open("r+b" if start else "wb")
            with file:
                file.seek(start)
                file.truncate()
                received = _copy(answer, file, source, url, start, total, progress)
    except urllib.error.HTTPError as e:
        if e.code == 416 and have:  # no such range: the kept bytes are no part of today's file
            _drop(part)
            raise ConnectionBroken(f"{url} has no bytes after {have:,}") from None
        failure = f"cannot fetch {url}: the server answers {e.code} {e.reason}"
        if e.code in BUSY:
            raise ConnectionBroken(failure) from None
        raise RunFailed(failure, code="download-failed") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        raise ConnectionBroken(f"cannot fetch {url}: {getattr(e, 'reason', None) or e}") from None
    if total is not None and received < total:
        raise ConnectionBroken(f"{url} broke off after {received:,} of {total:,} bytes")


def _copy(
    answer: Any, file: IO[bytes], source: Source, url: str, received: int, total: int | None, progress: Progress
) -> int:
    """Write what the server sends behind the first `received` bytes; never more than the file is known to have."""
    limit = source.bytes if source.bytes is not None else LARGEST
    while piece := answer.read(CHUNK):
        received += len(piece)
        if received > limit:
            raise WrongFile(
                f"{url} is not the published file: it sends more than {limit:,} bytes", code="unexpected-file"
            )
        with write_faults(Path(file.name)):
            file.write(piece)
        progress(source.name, received, total)
    with write_faults(Path(file.name)):
        file.flush()
    return received


def _start_of(answer: Any, have: int) -> int:
    """Find the position of the first byte that the server sends: after ours, or 0 where it sends the whole file."""
    sent = str(answer.headers.get("Content-Range", ""))
    return have if answer.status == 206 and sent.startswith(f"bytes {have}-") else 0


def _redirects() -> Any:
    """Follow redirects to https addresses only."""
    import urllib.request

    class OnlyHttps(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            check_address(newurl)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return OnlyHttps()


@dataclass(frozen=True)
class _Mark:
    """The address that kept bytes came from, and the server's mark of that version of the file."""

    url: str | None = None
    validator: str | None = None

    @classmethod
    def read(cls, part: Path) -> _Mark:
        try:
            fields = json.loads(_mark_path(part).read_text(encoding="utf-8"))
            return cls(str(fields["url"]), fields["validator"] if isinstance(fields["validator"], str) else None)
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, part: Path) -> None:
        fields = {"url": self.url, "validator": self.validator}
        _mark_path(part).write_text(json.dumps(fields), encoding="utf-8")


def _validator(headers: Any) -> str | None:
    """Read a strong ETag, else the date; a weak ETag does not guarantee the same bytes (RFC 9110, 13.1.5)."""
    etag, date = headers.get("ETag"), headers.get("Last-Modified")
    mark = etag if etag and not etag.startswith("W/") else date
    return None if mark is None else str(mark)


def _fault(path: Path, source: Source) -> str | None:
    """Say how a whole file differs from the published one; None where it does not."""
    size = path.stat().st_size
    if source.bytes is not None and size != source.bytes:
        return f"it should have {source.bytes:,} bytes and has {size:,}"
    if source.checksum is None:
        return None
    kind, _, expected = source.checksum.partition(":")
    digest = file_digest(path, kind)
    return None if digest == expected else f"its {kind.upper()} should be {expected} and is {digest}"


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Compute the SHA-256 or MD5 of a file in hexadecimal."""
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    except OSError as e:
        raise BadInput(
            f"cannot read {path}: {e.strerror or e}; check its permissions", code="unreadable-file"
        ) from None


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _mark_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _drop(part: Path) -> None:
    with write_faults(part):
        part.unlink(missing_ok=True)
        _mark_path(part).unlink(missing_ok=True)
