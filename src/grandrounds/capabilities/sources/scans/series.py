"""DICOM files on disk: finding them without a suffix, reading headers, grouping into series, and choosing a series by tags."""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.scans.deidentify import (
    FLAGS,
    IDENTIFYING,
    Identity,
    check_identity,
    read_identity,
)
from grandrounds.core.arrays import Array, largest_unpacked, refuse_bomb
from grandrounds.core.errors import BadInput, install_extra, nearest
from grandrounds.data.progress import report_progress
from grandrounds.data.scan_options import ScanFinding

_KEY = secrets.token_bytes(16)  # of this process alone


DICOMDIR = "DICOMDIR"
MIXED, GAPS, REPEATED, NO_SPACING, NO_WINDOW = (
    "mixed-series", "missing-slices", "repeated-positions", "no-spacing", "missing-window",
)  # fmt: skip

_PREAMBLE = 128
_MAGIC = b"DICM"
_SUFFIXES = (".dcm", ".dicom", ".ima")
_GEOMETRY = (
    "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "SeriesNumber", "SeriesDescription", "InstanceNumber",
    "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "ImagerPixelSpacing", "SliceThickness",
    "SpacingBetweenSlices", "Rows", "Columns", "NumberOfFrames", "PhotometricInterpretation", "WindowCenter", "WindowWidth",
    "VOILUTSequence", "BitsStored", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
_DEFLATED = "1.2.840.10008.1.2.1.99"  # Deflated Explicit VR Little Endian
_MOST_DEFLATED = 1032  # bytes that one byte of it can become
_GAP = 1.5  # of the usual distance between slices
_SAME = 1e-4  # mm


@dataclass(frozen=True, eq=False)
class Header:
    """The tags of one DICOM image that reading needs; none of them names a patient."""

    path: Path
    study: str = ""
    series: str = ""
    instance: str = ""  # SOPInstanceUID
    number: int | None = None  # InstanceNumber
    series_number: str = ""
    description: str = ""
    modality: str = ""
    image_type: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)  # rows, columns
    frames: int = 1
    pixel_spacing: tuple[float, float] | None = None
    thickness: float | None = None
    position: tuple[float, ...] | None = None
    orientation: tuple[float, ...] | None = None
    colour: bool = False
    inverse: bool = False  # MONOCHROME1
    windowed: bool = False  # a window or a lookup table is in the file, or it has 8 bits
    identity: Identity = field(default_factory=Identity)
    patient: str = ""  # the same for files of one patient, in this process alone; says nothing about the patient
    selection: Mapping[str, str] = field(default_factory=dict)  # tags that choose a series, as text

    @property
    def has_pixels(self) -> bool:
        """True for images; reports and plans have no rows and columns."""
        return min(self.size) > 0

    @property
    def normal(self) -> Array | None:
        """The direction across slices; None where the orientation is unknown."""
        if self.orientation is None:
            return None
        return np.cross(np.array(self.orientation[:3]), np.array(self.orientation[3:]))

    @property
    def depth(self) -> float | None:
        """The place of the slice in mm along the normal; None where it is unknown."""
        if self.normal is None or self.position is None:
            return None
        return float(np.dot(self.normal, np.array(self.position)))


@dataclass(frozen=True, eq=False)
class Series:
    """The files of one DICOM series in the order of their slices."""

    files: tuple[Header, ...]

    @property
    def first(self) -> Header:
        return self.files[0]

    @property
    def slices(self) -> int:
        """The number of slices: frames of a multi-frame file, otherwise files."""
        return sum(h.frames for h in self.files)

    @property
    def name(self) -> str:
        """Name the series for messages, without any tag that could identify."""
        if len(self.files) == 1:
            return str(self.first.path)
        return f"the series of {len(self.files)} files from {self.first.path}"

    def slice_distance(self) -> float | None:
        """The usual distance of slices in mm; the stated thickness for a single slice."""
        steps = self._steps()
        return float(np.median(steps)) if len(steps) else self.first.thickness

    def check(self) -> list[ScanFinding]:
        """List findings about the slices and the identity."""
        findings = check_identity([h.identity for h in self.files])
        kinds = Counter((h.size, h.orientation, h.pixel_spacing, h.colour) for h in self.files)
        if len(kinds) > 1:
            text = f"its {len(self.files)} files differ in size, orientation or pixel spacing ({len(kinds)} kinds): split them"
            findings.append(ScanFinding("error", MIXED, text))
            return findings
        steps = self._steps()
        apart = np.sort(steps[steps > _SAME])
        if len(apart):
            usual = float(apart[(len(apart) - 1) // 2])
            gaps = int((steps > _GAP * usual).sum())
            if gaps:
                text = f"{gaps} gap{'' if gaps == 1 else 's'} between slices {usual:g} mm apart: slices are missing"
                findings.append(ScanFinding("warning", GAPS, text))
        again = int((steps <= _SAME).sum())
        if again:
            findings.append(ScanFinding("warning", REPEATED, f"{again} slices at the place of another: several phases"))
        if self.first.pixel_spacing is None:
            findings.append(ScanFinding("note", NO_SPACING, "no pixel spacing: its images cannot be brought to a spacing in mm"))
        if not all(h.windowed or h.colour for h in self.files):
            findings.append(ScanFinding("note", NO_WINDOW, "no window: data.scan.window has to state one"))
        return findings

    def _steps(self) -> Array:
        places = [h.depth for h in self.files if h.depth is not None]
        return np.diff(np.sort(np.array(places))) if len(places) == len(self.files) > 1 else np.empty(0)


@contextmanager
def quiet_pydicom() -> Iterator[None]:
    """Silence the warnings of pydicom, which quote values of tags."""
    import logging

    log = logging.getLogger("pydicom")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def load_pydicom(purpose: str) -> Any:
    """Import pydicom for a purpose.

    Raises:
        BadInput: It is not installed.
    """
    try:
        import pydicom
        import pydicom.datadict
        import pydicom.pixels
    except ImportError:
        raise BadInput(
            f"{purpose} needs pydicom; {install_extra('scans')}", code="missing-package"
        ) from None
    module: Any = pydicom
    return module


def is_dicom(path: Path) -> bool:
    """Tell whether a file is DICOM by its first bytes; an old file without them is known by its suffix."""
    try:
        with path.open("rb") as opened:
            start = opened.read(_PREAMBLE + len(_MAGIC))
    except OSError:
        return False
    return start[_PREAMBLE:] == _MAGIC or (path.suffix.lower() in _SUFFIXES and len(start) > 8)


def find_dicom_files(folder: Path) -> list[Path]:
    """Find the DICOM files below a folder, in the order of their paths; hidden files and DICOMDIR are left out."""
    if not folder.is_dir():
        raise BadInput(f"folder {folder} not found; check the path", code="folder-not-found")
    inside = (p for p in sorted(folder.rglob("*")) if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    return [p for p in inside if p.is_file() and not p.name.upper().startswith(DICOMDIR) and is_dicom(p)]


def read_header(path: Path, *, tags: Iterable[str] = ()) -> Header:
    """Read the header of a DICOM file, without its pixels.

    Args:
        path: The file.
        tags: Keywords of further tags, to choose series by.

    Raises:
        BadInput: The file cannot be read.
    """
    pydicom = load_pydicom("reading DICOM")
    wanted = [*_GEOMETRY, *FLAGS, *IDENTIFYING, *tags]
    try:
        size = Path(path).stat().st_size
        with quiet_pydicom():
            _refuse_deflated(path, size)
            dataset = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted, force=True)
            header = _parse_header(path, dataset, tags)
        if header.frames > max(1, size):
            raise ValueError("a frame has at least one byte")
        return header
    except BadInput:
        raise
    except Exception:  # pydicom raises many kinds on damaged files, with values of tags in their texts
        raise BadInput(
            f"{path} cannot be read as DICOM: it is damaged or cut off; export it again or leave it out", code="damaged-image"
        ) from None


def _refuse_deflated(path: Path, size: int) -> None:
    """Refuse a file that pydicom would unpack whole, where that could be more than the budget."""
    if size * _MOST_DEFLATED > largest_unpacked():
        from pydicom.filereader import read_file_meta_info

        if read_file_meta_info(path).get("TransferSyntaxUID") == _DEFLATED:
            refuse_bomb(size * _MOST_DEFLATED, where=str(path))


def _parse_header(path: Path, dataset: Any, tags: Iterable[str]) -> Header:
    groups = frame_groups(dataset, 0)
    orientation = _floats(_find(groups, "ImageOrientationPatient"), 6)
    spacing = _floats(_find(groups, "PixelSpacing"), 2) or _floats(dataset.get("ImagerPixelSpacing"), 2)
    thickness = _floats(_find(groups, "SpacingBetweenSlices") or _find(groups, "SliceThickness"), 1)
    windowed = any(_find(groups, k) is not None for k in ("WindowCenter", "VOILUTSequence"))
    return Header(
        path=path,
        study=str(dataset.get("StudyInstanceUID", "") or ""),
        series=str(dataset.get("SeriesInstanceUID", "") or ""),
        instance=str(dataset.get("SOPInstanceUID", "") or ""),
        number=_whole(dataset.get("InstanceNumber")),
        series_number=str(dataset.get("SeriesNumber", "") or ""),
        description=str(dataset.get("SeriesDescription", "") or ""),
        modality=str(dataset.get("Modality", "") or ""),
        image_type=tuple(str(w) for w in (dataset.get("ImageType") or ())),
        size=(_whole(dataset.get("Rows")) or 0, _whole(dataset.get("Columns")) or 0),
        frames=max(1, _whole(dataset.get("NumberOfFrames")) or 1),
        pixel_spacing=None if spacing is None or min(spacing) <= 0 else (spacing[0], spacing[1]),
        thickness=None if thickness is None or thickness[0] <= 0 else thickness[0],
        position=_floats(_find(groups, "ImagePositionPatient"), 3),
        orientation=None if orientation is None else tuple(round(v, 4) for v in orientation),
        colour=not str(dataset.get("PhotometricInterpretation", "MONOCHROME2")).startswith("MONOCHROME"),
        inverse=str(dataset.get("PhotometricInterpretation", "")) == "MONOCHROME1",
        windowed=windowed or (_whole(dataset.get("BitsStored")) or 16) <= 8,
        identity=read_identity(dataset),
        patient=_patient_key(dataset),
        selection={tag: _tag_text(dataset.get(tag)) for tag in tags},
    )


def _patient_key(dataset: Any) -> str:
    """Hash the patient's number with a key of this process, so that files can be grouped and nothing can be looked up."""
    number = str(dataset.get("PatientID", "") or "").strip()
    issuer = str(dataset.get("IssuerOfPatientID", "") or "").strip()
    study = str(dataset.get("StudyInstanceUID", "") or "")
    text = f"patient {issuer} {number}" if number else f"study {study}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), key=_KEY, digest_size=16).hexdigest()


def frame_groups(dataset: Any, frame: int) -> list[Any]:
    """List the data sets in which a tag of a frame may be: its own groups, the shared groups, the file."""
    out: list[Any] = []
    per_frame = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    shared = dataset.get("SharedFunctionalGroupsSequence") or ()
    for group in [*per_frame[frame : frame + 1], *shared[:1]]:
        for element in group:
            if element.VR == "SQ" and len(element.value):
                out.append(element.value[0])
    return [*out, dataset]


def _find(groups: Sequence[Any], keyword: str) -> Any:
    return next((g.get(keyword) for g in groups if g.get(keyword) not in (None, "")), None)


def _floats(value: Any, count: int) -> tuple[float, ...] | None:
    try:
        numbers = tuple(float(v) for v in (value if count > 1 else [value]))
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and bool(np.isfinite(numbers).all()) else None


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _tag_text(value: Any) -> str:
    if value is None:
        return ""
    is_list = not isinstance(value, str) and hasattr(value, "__iter__") and not hasattr(value, "components")
    return "\\".join(str(v) for v in value) if is_list else str(value)


def group_series(headers: Iterable[Header]) -> list[Series]:
    """Group images by series and put the slices of each in order: by place along the normal, then by number and path."""
    groups: dict[tuple[str, str], list[Header]] = defaultdict(list)
    for header in headers:
        if header.has_pixels:
            key = (header.study, header.series) if header.series else ("", str(header.path))
            groups[key].append(header)
    return [order_slices(files) for files in groups.values()]


def order_slices(files: Sequence[Header]) -> Series:
    """Put the files of one series in the order of their slices."""
    places = [h.depth for h in files]
    by_place = len({h.orientation for h in files}) == 1 and all(p is not None for p in places)

    def key(header: Header) -> tuple[float, float, str]:
        number = float("inf") if header.number is None else float(header.number)
        return (round(header.depth or 0.0, 4) if by_place else 0.0, number, str(header.path))

    return Series(tuple(sorted(files, key=key)))


def list_series(
    folder: Path, *, tags: Iterable[str] = (), damaged: list[Path] | None = None
) -> list[Series]:
    """List the series below a folder.

    Args:
        folder: The folder.
        tags: Keywords of further tags, to choose series by.
        damaged: Collects files that cannot be read; None: the first is refused.

    Raises:
        BadInput: The folder has no DICOM file, or one that cannot be read.
    """
    files = find_dicom_files(folder)
    headers = []
    wanted = tuple(tags)
    for done, path in enumerate(files, start=1):
        try:
            headers.append(read_header(path, tags=wanted))
        except BadInput as e:
            if damaged is None or e.code != "damaged-image":
                raise
            damaged.append(path)
        report_progress("files", done, len(files))
    return group_series(headers)


def missing_from_dicomdir(folder: Path) -> list[str]:
    """List the files that a DICOMDIR names and that are not there."""
    path = next((p for p in (folder / DICOMDIR, folder / DICOMDIR.lower()) if p.is_file()), None)
    if path is None:
        return []
    pydicom = load_pydicom("reading DICOMDIR")
    try:
        with quiet_pydicom():
            records = pydicom.dcmread(path).get("DirectoryRecordSequence") or ()
            named = [r.get("ReferencedFileID") for r in records if r.get("ReferencedFileID")]
            parts = [[p] if isinstance(p, str) else [str(word) for word in p] for p in named]
    except Exception:  # as in read_header
        raise BadInput(f"{path} is damaged: remove it, or export the folder again", code="damaged-image") from None
    return ["/".join(p) for p in parts if ".." not in p and not folder.joinpath(*p).is_file()]


def check_tags(tags: Iterable[str], *, where: str = "data.scan.series") -> None:
    """Refuse a keyword that DICOM does not have, and one that identifies a patient.

    Raises:
        BadInput: A keyword is unknown or identifying.
    """
    dictionary = load_pydicom("choosing a series").datadict
    for tag in tags:
        if dictionary.tag_for_keyword(tag) is None:
            known = [entry[4] for entry in dictionary.DicomDictionary.values() if entry[4][:1] == tag[:1].upper()]
            raise BadInput(f"{where} names the tag '{tag}', which DICOM does not have; {nearest(tag, known)}", code="unknown-tag")
        if tag in IDENTIFYING:
            raise BadInput(
                f"{where} names {tag}, which identifies patients or staff; choose series by tags such as Modality or "
                "SeriesDescription",
                code="identifying-tag",
            )


def match_series(series: Iterable[Series], patterns: Mapping[str, str]) -> list[Series]:
    """Select the series whose tags match all patterns, such as "*axial*"; case is ignored."""

    def fits(one: Series) -> bool:
        return all(fnmatchcase(one.first.selection.get(t, "").lower(), p.lower()) for t, p in patterns.items())

    return [one for one in series if fits(one)]


def choose_series(series: Sequence[Series], patterns: Mapping[str, str], *, where: str) -> Series:
    """Choose the one series whose tags match.

    Raises:
        BadInput: None or several match.
    """
    chosen = match_series(series, patterns)
    if len(chosen) == 1:
        return chosen[0]
    kinds = ", ".join(f"{s.first.modality or 'no modality'} of {s.slices}" for s in series[:5])
    listed = f"{len(series)} series ({kinds}{', ...' if len(series) > 5 else ''} slices)" if series else "no DICOM image"
    if not chosen and len(series) == 1:
        odd = [tag for tag, p in patterns.items() if not match_series(series, {tag: p})]
        found = f" (it is {series[0].first.modality or 'empty'})" if odd[0] == "Modality" else ""
        text = f"{where}: its series does not match data.scan.series: {odd[0]} is not '{patterns[odd[0]]}'{found}"
        raise BadInput(f"{text}; leave the row out, or name another series", code="no-series")
    if not chosen:
        asked = f", and none matches data.scan.series ({', '.join(patterns)})" if patterns and series else ""
        raise BadInput(f"{where} has {listed}{asked}; `rounds scans list` shows them", code="no-series")
    raise BadInput(
        f"{where} has {listed}, and {len(chosen)} match; choose one by tags in data.scan.series, or name it in a column 'series'",
        code="several-series",
    )
