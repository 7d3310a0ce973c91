"""Files of a FHIR R4 bulk export: a folder or zip of ndjson files, one resource in each line.

The type of a file is the `resourceType` of its first line, so that its name does not matter. Files of types that a cohort
does not read are left alone.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from grandrounds.core.arrays import refuse_bomb
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import BROKEN_ARCHIVE, open_gzip, read_bounded_lines

Resource = Mapping[str, Any]
Opener = Callable[[], AbstractContextManager[Iterator[bytes]]]

_ENDINGS = (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # also of whole pairs
_SHOWN = 40  # characters of a wrong value in a message


@dataclass(frozen=True)
class ResourceFile:
    """One file of the export, all of whose lines are resources of one type."""

    name: str
    type: str
    open: Opener


class Line(NamedTuple):
    """A parsed line, with its place for messages."""

    file: str
    number: int
    resource: Resource

    def fault(self, element: str, value: object, fix: str) -> str:
        """Say in one sentence that an element is wrong."""
        return f"{self.file} line {self.number}: {element} is '{_show(value)}'; {fix}"


def _show(value: object) -> str:
    """Write a value of JSON in at most `_SHOWN` characters."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def is_export(where: Path) -> bool:
    """Return True where a folder or zip has ndjson files."""
    try:
        return bool(_list_members(where))
    except BadInput:
        return False


def list_files(where: Path) -> tuple[ResourceFile, ...]:
    """List the resource files of an export, each with its type.

    Args:
        where: A folder of ndjson files (also gzip), a zip of them, or one such file.

    Raises:
        BadInput: There is none, a file is a Bundle or is not ndjson, or there are no patients.
    """
    files: list[ResourceFile] = []
    for name, opener in _list_members(where):
        kind = _read_type(name, opener)
        if kind is not None:
            files.append(ResourceFile(name, kind, opener))
    if not files:
        raise BadInput(
            f"{where} has no FHIR resources: put the ndjson files of a bulk export ($export) there", code="no-resources"
        )
    if not any(file.type == "Patient" for file in files):
        types = ", ".join(sorted({file.type for file in files}))
        raise BadInput(
            f"{where} has no Patient file (it has {types}); add the export's Patient.ndjson to the folder",
            code="no-patients",
        )
    return tuple(files)


def read_lines(file: ResourceFile, contains: re.Pattern[bytes] | None = None) -> Iterator[Line]:
    """Parse the lines of a file.

    Args:
        file: The file.
        contains: Lines in which this is not found are left out unparsed; None parses all.

    Raises:
        BadInput: A line is not JSON or another type of resource, or the file is cut short; with file and line.
    """
    number = 0
    try:
        with file.open() as stream:
            for number, text in enumerate(stream, start=1):
                if contains is not None and text[-1:] == b"\n" and contains.search(text) is None:
                    continue
                resource = _parse(file.name, number, text)
                if resource is None:
                    continue
                if resource.get("resourceType") != file.type:
                    raise BadInput(
                        f"{file.name} line {number}: resourceType is '{_show(resource.get('resourceType'))}' in a file "
                        f"of {file.type} resources; write each type of resource to a file of its own",
                        code="mixed-resources",
                    )
                yield Line(file.name, number, resource)
    except BROKEN_ARCHIVE as e:
        raise BadInput(
            f"{file.name} cannot be read after line {number} ({e}): the file is damaged, cut short or encrypted; export it again",
            code="truncated-file",
        ) from None


def _list_members(where: Path) -> list[tuple[str, Opener]]:
    """List the ndjson files of a folder or zip, by name."""
    if where.is_dir():
        found = sorted(p for p in where.iterdir() if p.name.lower().endswith(_ENDINGS) and not p.name.startswith("."))
        if not found and (bundles := sorted(where.glob("*.json"))):
            raise BadInput(
                f"{where} has {len(bundles)} .json files such as {bundles[0].name} and no .ndjson: a bulk export "
                "($export) has one resource in each line; write the entries of Bundles to ndjson",
                code="fhir-bundle",
            )
        return [(p.name, _opener(p)) for p in found]
    if not where.is_file():
        raise BadInput(f"the FHIR export {where} is not there; give a folder of ndjson files", code="missing-file")
    if where.name.lower().endswith(_ENDINGS):
        return [(where.name, _opener(where))]
    try:
        with zipfile.ZipFile(where) as archive:
            names = sorted(n for n in archive.namelist() if n.lower().endswith(_ENDINGS) and "__MACOSX" not in n)
    except (OSError, zipfile.BadZipFile) as e:
        raise BadInput(
            f"{where} is no zip of ndjson files: {e}; give a folder or a zip of a bulk export", code="unreadable-file"
        ) from None
    return [(name, _zip_opener(where, name)) for name in names]


def _opener(path: Path) -> Opener:
    return partial(_open_lines, path, None)


def _zip_opener(path: Path, name: str) -> Opener:
    return partial(_open_lines, path, name)


@contextmanager
def _open_lines(path: Path, member: str | None) -> Iterator[Iterator[bytes]]:
    """Open a file, or a member of a zip, as lines; one that unpacks to too much is refused."""
    name = member or path.name
    with ExitStack() as stack:
        stream: IO[bytes]
        if member is None:
            stream = stack.enter_context(path.open("rb"))
        else:
            archive = stack.enter_context(zipfile.ZipFile(path))
            refuse_bomb(archive.getinfo(member).file_size, where=name)
            stream = stack.enter_context(archive.open(member))
        yield read_bounded_lines(open_gzip(stream, where=name) if name.lower().endswith(".gz") else stream, where=name)


def _read_type(name: str, opener: Opener) -> str | None:
    """Read the type of a file from its first resource; None where the file is empty."""
    try:
        with opener() as stream:
            for number, text in enumerate(stream, start=1):
                resource = _parse(name, number, text)
                if resource is None:
                    continue
                kind = resource.get("resourceType")
                if kind == "Bundle":
                    raise BadInput(
                        f"{name} is a Bundle, not ndjson: write each resource of its entries to a line of its own, "
                        "or use the server's bulk export ($export)",
                        code="fhir-bundle",
                    )
                if not isinstance(kind, str):
                    raise BadInput(
                        f"{name} line {number} has no resourceType: it is no FHIR resource; give the files of a bulk export",
                        code="not-a-resource",
                    )
                return kind
    except BROKEN_ARCHIVE as e:
        raise BadInput(
            f"{name} cannot be read ({e}): the file is damaged, cut short or encrypted; export it again", code="truncated-file"
        ) from None
    return None


def _parse(name: str, number: int, text: bytes) -> Resource | None:
    """Parse one line; None where it is blank."""
    try:
        resource = json.loads(text)
        if (b"\\u" in text or b"\xed" in text) and _HALF_PAIR.search(text):  # a half cannot be written: "?" replaces it
            resource = json.loads(json.dumps(resource, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        _explain_broken_line(name, number, text)
        return None
    if not isinstance(resource, dict):
        raise BadInput(
            f"{name} line {number} is no resource but {type(resource).__name__}; a line of ndjson is one JSON object",
            code="not-a-resource",
        )
    return resource


def _explain_broken_line(name: str, number: int, text: bytes) -> None:
    """Refuse a line that is not JSON; a blank line and a byte order mark alone are no fault."""
    plain = text.strip().removeprefix(b"\xef\xbb\xbf").strip()
    if not plain:
        return
    if number == 1 and plain == b"{":
        raise BadInput(
            f"{name} line 1 is a brace alone: the file is indented JSON; write each resource in one line (ndjson)",
            code="not-ndjson",
        )
    if plain.startswith(b"{") and not text.endswith(b"\n"):
        raise BadInput(
            f"{name} line {number} ends in the middle of a resource: the file is cut short; export or copy it again",
            code="truncated-file",
        )
    raise BadInput(
        f"{name} line {number} is not JSON; a line of ndjson is one resource, so export the file again",
        code="not-ndjson",
    )
