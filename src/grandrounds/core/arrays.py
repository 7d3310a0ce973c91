"""Encode named arrays in the safetensors format, with NumPy alone, and read and write files safely.

Everything that travels or is stored (messages, models, checkpoints) is a flat dict of arrays plus
a small JSON value. The format is a length, a JSON header and raw little-endian bytes, so nothing
is ever unpickled. The header is checked entry by entry before any data is read, because it may
come from an untrusted peer.

Run folders may be untrusted too. `read_file` and `read_json` follow no links, wait for no pipe and have a size limit.
`write_atomic` writes to a new file and renames it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite, prod
from pathlib import Path
from types import NoneType
from typing import IO, Any

import numpy as np

from grandrounds.core.errors import BadInput, visible

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_BY_DTYPE = {np.dtype(code): name for name, code in _NAMES.items()}
_MAX_HEADER = 100_000_000
LARGEST = 4 * 2**30
"""Bytes of a file that are read; of a JSON file `LARGEST_JSON`."""
LARGEST_JSON = 512 * 2**20


Shapes = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


def _header(arrays: Mapping[str, Array], meta: Any) -> bytes:
    facts = json.dumps({"__metadata__": {"meta": json.dumps(meta, sort_keys=True)}}, separators=(",", ":"))
    listed, _ = _listed(tuple((name, a.dtype, a.shape) for name, a in arrays.items()))
    text = (facts[:-1] + listed + "}").encode()
    return text + b" " * (-len(text) % 8)


@lru_cache(maxsize=64)
def _listed(shapes: Shapes) -> tuple[str, int]:
    """Return the header's text about arrays, and their bytes. Cached, because it is the same in every round."""
    head: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape in shapes:
        kind = _BY_DTYPE.get(dtype.newbyteorder("<"))
        if kind is None:
            raise TypeError(f"array '{name}' has type {dtype}, which messages do not support")
        end = offset + dtype.itemsize * prod(shape)
        head[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(head, separators=(",", ":"))
    return ("," + text[1:-1] if head else ""), offset


def encode(arrays: Mapping[str, Array], meta: Any = None) -> bytes:
    """Encode named arrays and a JSON value as bytes that `safetensors` can read."""
    head = _header(arrays, meta)
    parts = [len(head).to_bytes(8, "little"), head]
    parts += [np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()]
    return b"".join(parts)


def encoded_size(arrays: Mapping[str, Array], meta: Any = None) -> int:
    """Return the number of bytes that `encode` would return, without copying the data."""
    return 8 + len(_header(arrays, meta)) + sum(a.nbytes for a in arrays.values())


def decode(data: bytes, *, where: str = "message") -> tuple[dict[str, Array], Any]:
    """Decode arrays and a JSON value from bytes; inconsistent data raises BadInput."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(_MAX_HEADER, len(data) - 8):
            raise ValueError("header length")
        head = json.loads(data[8 : 8 + size])
        meta = json.loads(head.pop("__metadata__", {}).get("meta", "null"))
        body = memoryview(data)[8 + size :]
        arrays = {}
        end = 0
        for name, entry in head.items():
            dtype = np.dtype(_NAMES[entry["dtype"]])
            shape = tuple(int(n) for n in entry["shape"])
            start, stop = (int(n) for n in entry["data_offsets"])
            count = int(np.prod(shape, dtype=object)) if shape else 1
            if start != end or stop - start != count * dtype.itemsize or stop > len(body) or min(shape, default=0) < 0:
                raise ValueError(f"offsets of '{name}'")
            arrays[name] = np.frombuffer(body[start:stop], dtype=dtype).reshape(shape)
            end = stop
        if end != len(body):
            raise ValueError("bytes left over")
    except RecursionError:
        raise BadInput(
            f"{where} is not a readable array file (nested too deeply); it is damaged", code="damaged-file"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OverflowError) as e:
        words = visible(" ".join(str(e).split()))[:120]
        raise BadInput(
            f"{where} is not a readable array file ({words}); it may be damaged or cut short", code="damaged-file"
        ) from None
    return arrays, meta


def write_atomic(path: Path, data: bytes, *, durable: bool = True, replace: bool = True) -> None:
    """Write a file atomically: readers, and a crash, never see half a file.

    It is written to a new file under a name that nobody can know before, so that no link in the folder is followed; a link
    at `path` is replaced by the file, and what it led to stays as it was. Without `replace`, whatever is at `path` stays.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            if durable:
                os.fsync(f.fileno())
        if replace:
            part.replace(path)
        else:
            _put_new(part, path)
        if durable:
            _sync_folder(path.parent)
    except IsADirectoryError:
        part.unlink(missing_ok=True)
        raise BadInput(
            f"{path} is a folder where a file is expected: move it away", code="folder-in-the-way"
        ) from None
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _put_new(part: Path, path: Path) -> None:
    """Move a file to a path at which there is none; another one there stays."""
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        part.replace(path)
    part.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove unfinished files that a killed process left in a folder while it wrote `name`; others must not write there now."""
    for path in folder.glob(f".{name}.*.part"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: Path, arrays: Mapping[str, Array], meta: Any = None, *, durable: bool = True) -> None:
    """Write named arrays to a .safetensors file, atomically."""
    write_atomic(path, encode(arrays, meta), durable=durable)


def load(path: Path, *, links: bool = False) -> tuple[dict[str, Array], Any]:
    """Read a .safetensors file. A missing or damaged file raises BadInput. `links` as in `read_file`."""
    return decode(read_file(path, links=links), where=str(path))


def load_meta(path: Path) -> Any:
    """Read the JSON value of a .safetensors file without its arrays.

    Args:
        path: The file. A link or a pipe is refused.

    Returns:
        The value that `save` was given as `meta`.

    Raises:
        BadInput: The file is missing or damaged, or cut short.
    """
    try:
        with os.fdopen(open_file(path), "rb") as f:
            size, whole = int.from_bytes(f.read(8), "little"), os.fstat(f.fileno()).st_size
            if size > min(_MAX_HEADER, whole - 8):
                raise ValueError("header length")
            head = json.loads(f.read(size))
        meta = json.loads(head.pop("__metadata__", {}).get("meta", "null"))
        if max((int(entry["data_offsets"][1]) for entry in head.values()), default=0) != whole - 8 - size:
            raise ValueError("length")
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as e:
        raise BadInput(
            f"{path} is not a readable array file ({type(e).__name__}); it may be damaged or cut short",
            code="damaged-file",
        ) from None
    return meta


def open_file(path: Path, flags: int = os.O_RDONLY, *, links: bool = False) -> int:
    """Open a plain file: no link, pipe, device or folder.

    Args:
        path: The file.
        flags: Of `os.open`; O_CREAT makes a file with mode 0644.
        links: Follow a link at `path`, for files that the user names.

    Returns:
        The handle, for the caller to close.

    Raises:
        BadInput: It is not a plain file.
        OSError: It cannot be opened.
    """
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW), 0o644)
    except OSError as e:
        if path.is_symlink() and not links:
            raise BadInput(
                f"{path} is a link, which is not followed in a run folder: put the file itself there",
                code="link-not-followed",
            ) from None
        if e.errno == errno.ENXIO or path.is_dir():
            raise BadInput(f"{path} is not a plain file: it is not read", code="not-a-plain-file") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadInput(f"{path} is not a plain file: it is not read", code="not-a-plain-file")
    return handle


def read_file(path: Path, *, largest: int = LARGEST, links: bool = False) -> bytes:
    """Read a plain file of a run folder.

    Args:
        path: The file.
        largest: Bytes from which on it is refused.
        links: Follow a link at `path`.

    Returns:
        Its bytes.

    Raises:
        BadInput: It is not there, not a plain file, or larger.
    """
    try:
        handle = open_file(path, links=links)
        with os.fdopen(handle, "rb") as f:
            size = os.fstat(handle).st_size
            if size > largest:
                raise BadInput(
                    f"{path} has {size:,} bytes, and at most {largest:,} of such a file are read: it is not opened",
                    code="file-too-large",
                )
            return f.read(size + 1)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None
    except MemoryError:
        raise BadInput(f"{path} is larger than the memory of this machine", code="file-too-large") from None


def parse_json(data: bytes | str, *, where: str, finite: bool = True) -> Any:
    """Parse JSON of a run folder: standard JSON, without NaN and infinities.

    Args:
        data: The text.
        where: Its name, for errors.
        finite: Refuse numbers that are too large for a float. Without it parsing is three times as fast, and the caller
            has to check for infinities.

    Returns:
        The value.

    Raises:
        BadInput: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite if finite else None)
    except RecursionError:
        raise BadInput(f"{where} is damaged: it is nested too deeply", code="damaged-file") from None
    except (ValueError, OverflowError) as e:
        why = str(e) if isinstance(e, _NotFinite) else "it is not JSON"
        raise BadInput(f"{where} is damaged: {why}", code="damaged-file") from None


def read_json(path: Path, *, largest: int = LARGEST_JSON) -> Any:
    """Read a JSON file of a run folder. Raises BadInput as `read_file` and `parse_json` do."""
    return parse_json(read_file(path, largest=largest), where=str(path))


def plain(value: Any) -> Any:
    """Convert to JSON types; a number that is not finite becomes null."""
    kind = type(value)
    if kind is float:
        return value if isfinite(value) else None
    if kind in (str, int, bool, NoneType):
        return value
    if kind is list or kind is tuple:
        return [plain(v) for v in value]
    if kind is dict or isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return plain(value.item()) if isinstance(value, np.generic) else value


def _all_fit(values: Iterable[Any], kind: Any) -> bool:
    """Compare the types of many values at once; False where they have to be compared one by one."""
    allowed = kind if isinstance(kind, tuple) else (kind,)
    if not all(one is None or isinstance(one, type) for one in allowed):
        return False
    types = {NoneType if one is None else one for one in allowed} | ({int} if float in allowed else set())
    return set(map(type, values)) <= types


NUMBER = (int, float, None)
"""Kind of a metric, which may be undefined; see `misfit`."""


def misfit(value: Any, kind: Any, *, at: str = "") -> str:
    """Compare a JSON value with what it should be.

    Args:
        value: The value.
        kind: A type, or a tuple of types and None: one of them, where float takes whole numbers and int no flags. A dict: an
            object with these keys (of one that ends in "?" only where it is there), where "*" means all others. A
            list of one kind: a list of such values. In a tuple {} is
            the empty object.
        at: The place of the value, for the answer.

    Returns:
        The first place that does not fit, such as "per_site.north.count"; "" where everything does.
    """
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return at or "the whole"
        named = {key.removesuffix("?"): key for key in kind if key != "*"}
        for key, name in named.items():
            path = f"{at}.{key}".lstrip(".")
            if key not in value and name == key:
                return path
            fault = misfit(value[key], kind[name], at=path) if key in value else ""
            if fault:
                return fault
        if "*" not in kind or _all_fit([v for k, v in value.items() if k not in named], kind["*"]):
            return ""
        unnamed = ((k, v) for k, v in value.items() if k not in named)
        return next((f for k, v in unnamed if (f := misfit(v, kind["*"], at=f"{at}.{k}".lstrip(".")))), "")
    if isinstance(kind, list):
        if not isinstance(value, list):
            return at or "the whole"
        if _all_fit(value, kind[0]):
            return ""
        return next((f for n, v in enumerate(value) if (f := misfit(v, kind[0], at=f"{at}.{n}".lstrip(".")))), "")
    allowed = kind if isinstance(kind, tuple) else (kind,)
    fits = (
        value is None if one is None
        else value == {} if one == {}
        else isinstance(value, dict) and not misfit(value, one) if isinstance(one, dict)
        else isinstance(value, list) and not misfit(value, one) if isinstance(one, list)
        else type(value) in ((int, float) if one is float else (one,))
        for one in allowed
    )  # fmt: skip
    return "" if any(fits) else at or "the whole"


UNPACKED = "GRANDROUNDS_LARGEST"
"""The variable that raises the limit of `largest_unpacked`: "8G"."""


def largest_unpacked() -> int:
    """Return the largest size of a compressed file (.gz, .npz, .parquet) when unpacked: 2 GiB, or GRANDROUNDS_LARGEST.

    Returns:
        The limit in bytes.

    Raises:
        BadInput: GRANDROUNDS_LARGEST is not a size.
    """
    text = os.environ.get(UNPACKED, "2G")
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)", text.strip().upper())
    if match is None:
        raise BadInput(
            f"{UNPACKED} is '{text[:40]}': write a size in bytes, such as 8G or 500M", code="bad-memory-limit"
        )
    return int(match[1]) << (10 * " KMGT".index(match[2] or " "))


def refuse_bomb(size: int, *, where: str) -> None:
    """Raise BadInput if a file would have more bytes unpacked than `largest_unpacked` allows."""
    limit = largest_unpacked()
    if size > limit:
        raise BadInput(
            f"{where} unpacks to more than {limit:,} bytes: if you trust it and have the memory, set {UNPACKED}=8G (or more)",
            code="unpacks-too-large",
        )


def check_npz(data: Path | IO[bytes], *, where: str) -> None:
    """Check the sizes that an .npz file states, before anything of that size is allocated.

    Args:
        data: The file, or its bytes as a stream.
        where: Its name, for errors.

    Raises:
        BadInput: It unpacks to more than is allowed, or an array is not of the size that its header states.
        OSError, ValueError, zipfile.BadZipFile: As `numpy.load` raises.
    """
    with zipfile.ZipFile(data) as archive:
        members = archive.infolist()
        refuse_bomb(sum(m.file_size for m in members), where=where)
        for member in members:
            with archive.open(member) as f:
                version = np.lib.format.read_magic(f)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(f)
                stored_bytes = member.file_size - f.tell()
            if not dtype.hasobject and prod(shape) * dtype.itemsize != stored_bytes:
                raise BadInput(
                    f"{where} is damaged: array '{member.filename[:60]}' has {stored_bytes:,} bytes, not shape {shape}",
                    code="damaged-file",
                )


def make_folder(path: Path) -> Path:
    """Make a folder inside a run folder, or find it there.

    Args:
        path: The folder; the one that it is in exists.

    Returns:
        The same path.

    Raises:
        BadInput: A link or a file is in its place, or it cannot be made.
    """
    try:
        path.mkdir(exist_ok=True)
    except OSError as e:
        raise BadInput(f"cannot make {path}: {e.strerror or e}", code="cannot-make-folder") from None
    if path.is_symlink():
        raise BadInput(
            f"{path} is a link, which is not followed in a run folder: put a folder there", code="link-not-followed"
        )
    return path


class _NotFinite(ValueError):
    pass


def _refuse_constant(word: str) -> Any:
    raise _NotFinite(f"it holds {word}, which is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _NotFinite("it holds a number that is too large")
    return value
