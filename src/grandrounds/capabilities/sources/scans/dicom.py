"""Pixels of DICOM series in real units: rescale to Hounsfield units, colour, frames, and the window that a file states.

The functions of a window are those of DICOM PS3.3 C.11.2.1.2 (linear, linear exact, sigmoid) and C.11.2.1.1 (lookup tables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.scans.series import (
    Header,
    Series,
    frame_groups,
    load_pydicom,
    quiet_pydicom,
)
from grandrounds.capabilities.sources.scans.volume import WHITE, Axes, Volume, parse_axes
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import check_scan

_PLUGINS: Mapping[str, str] = {
    "JPEG-LS": "pyjpegls",
    "JPEG 2000": "pylibjpeg pylibjpeg-openjpeg",
    "High-Throughput": "pylibjpeg pylibjpeg-openjpeg",
    "HTJ2K": "pylibjpeg pylibjpeg-openjpeg",
    "JPEG": "pylibjpeg pylibjpeg-libjpeg",
}
"""Packages that decode a transfer syntax, by a word of its name; the first that matches counts."""

_VIDEO = ("MPEG", "HEVC", "JPIP", "SMPTE")


@dataclass
class _File:
    """One DICOM file while its pixels are read; a multi-frame file is parsed once."""

    header: Header
    dataset: Any = field(default=None, repr=False)

    def open(self) -> Any:
        if self.dataset is None:
            self.dataset = self._read()
        return self.dataset

    def tags(self) -> Any:
        """Read the tags alone, unless the file is open."""
        return self._read(stop_before_pixels=True) if self.dataset is None else self.dataset

    def _read(self, **options: bool) -> Any:
        pydicom = load_pydicom("reading DICOM")
        try:
            with quiet_pydicom():
                return pydicom.dcmread(self.header.path, force=True, **options)
        except Exception:  # as in series.read_header
            raise _damaged(self.header.path) from None

    def close(self) -> None:
        self.dataset = None


def open_series(series: Series, *, where: str = "", refuse: bool = True) -> Volume:
    """Open a DICOM series as a volume; pixels are decoded when slices are read.

    Args:
        series: The series.
        where: The row of the manifest, for messages.
        refuse: Refuse a series with an error; otherwise its findings have it, for people who look at it.

    Returns:
        The volume in the slice order of the series.

    Raises:
        BadInput: The tags state burnt-in annotation, or the files do not belong together.
    """
    where = where or series.name
    findings = tuple(series.check())
    for finding in findings:
        if finding.level == "error" and refuse:
            raise BadInput(f"{where}: {finding.text}", code=finding.code)
    for header in series.files:
        values_per_pixel = 3 if header.colour else 1
        check_scan(header.frames * header.size[0] * header.size[1] * values_per_pixel, where=str(header.path))
    first = series.first
    files = [_File(h) for h in series.files]
    places = _frame_order(files)
    spacing = first.pixel_spacing or (None, None)

    def values(indices: Sequence[int]) -> Array:
        out = []
        for position, i in enumerate(indices):
            file, frame = places[i]
            out.append(_decode(file, frame))
            after = places[indices[position + 1]][0] if position + 1 < len(indices) else None
            if file is not after:
                file.close()
        return np.stack(out)

    def show(i: int, pixels: Array) -> Array:
        file, frame = places[i]
        return apply_file_window(file.tags(), frame, pixels, source=str(file.header.path))

    return Volume(
        source=where,
        count=len(places),
        size=first.size,
        values=values,
        colour=first.colour,
        spacing=(_slice_distance(series, files), *spacing),
        axes=_series_axes(series),
        show=show if all(h.windowed for h in series.files) else None,
        inverse=first.inverse,
        modality=first.modality,
        findings=findings,
        instances=tuple(h.instance for h in series.files) if len(files) == len(places) else (),
        normal=None if first.normal is None else tuple(float(v) for v in first.normal),
        depths=_slice_depths(files),
    )


def _series_axes(series: Series) -> Axes | None:
    first = series.first
    if first.orientation is None or first.normal is None:
        return None
    try:
        return parse_axes(np.array([first.normal, first.orientation[3:], first.orientation[:3]]))
    except ValueError:
        return None


def _frame_order(files: Sequence[_File]) -> list[tuple[_File, int]]:
    """List file and frame of each slice; frames with known places are put in order along the normal."""
    out = []
    for file in files:
        depths = _frame_depths(file) if file.header.frames > 1 else []
        order = sorted(range(len(depths)), key=lambda i: depths[i]) if depths else range(file.header.frames)
        out += [(file, int(frame)) for frame in order]
    return out


def _frame_depths(file: _File) -> list[float]:
    """Compute the places of the frames along the normal; none where a frame does not say."""
    groups = file.tags().get("PerFrameFunctionalGroupsSequence") or ()
    if len(groups) != file.header.frames or file.header.normal is None:
        return []
    out = []
    for group in groups:
        plane = group.get("PlanePositionSequence")
        if not plane or plane[0].get("ImagePositionPatient") is None:
            return []
        place = np.array([float(v) for v in plane[0].ImagePositionPatient])
        out.append(round(float(np.dot(file.header.normal, place)), 4))
    return out


def _slice_depths(files: Sequence[_File]) -> tuple[float, ...]:
    """List the places of slices along the normal; none where one is unknown."""
    if len(files) == 1 and files[0].header.frames > 1:
        return tuple(sorted(_frame_depths(files[0])))
    places = [file.header.depth for file in files]
    return tuple(p for p in places if p is not None) if None not in places else ()


def _slice_distance(series: Series, files: Sequence[_File]) -> float | None:
    if len(files) == 1 and series.first.frames > 1:
        steps = np.diff(np.sort(np.array(_frame_depths(files[0]))))
        if len(steps) and float(np.median(steps)) > 0:
            return float(np.median(steps))
    return series.slice_distance()


def _decode(file: _File, frame: int) -> Array:
    """Decode one frame: float32 in real units, or uint8 colour."""
    dataset, path, header = file.open(), file.header.path, file.header
    try:
        with quiet_pydicom():
            samples = int(dataset.get("SamplesPerPixel", 1) or 1)
            check_scan(header.frames * header.size[0] * header.size[1] * samples, where=str(path))
            stored = load_pydicom("reading DICOM").pixels.pixel_array(dataset, index=frame if header.frames > 1 else 0)
            return _to_colour(dataset, stored) if header.colour else _to_units(dataset, stored, frame)
    except BadInput:
        raise
    except Exception:  # as in series.read_header
        raise _undecodable(dataset, path) from None


def _to_units(dataset: Any, stored: Array, frame: int) -> Array:
    """Apply the modality lookup table, or slope and intercept, of a frame."""
    if dataset.get("ModalityLUTSequence"):
        return np.asarray(load_pydicom("reading DICOM").pixels.apply_modality_lut(stored, dataset), np.float32)
    slope, intercept = _rescale(dataset, frame)
    return np.asarray(stored * slope + intercept, np.float32)


def _rescale(dataset: Any, frame: int) -> tuple[float, float]:
    for group in frame_groups(dataset, frame):
        if group.get("RescaleSlope") is not None and group.get("RescaleIntercept") is not None:
            return float(group.RescaleSlope), float(group.RescaleIntercept)
    return 1.0, 0.0


def _to_colour(dataset: Any, stored: Array) -> Array:
    """Convert to 8-bit RGB; a palette is looked up, YBR was converted when it was decoded."""
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        stored = load_pydicom("reading DICOM").pixels.apply_color_lut(stored, dataset)[..., :3]
        bits = 8 * stored.dtype.itemsize
    else:
        bits = int(dataset.get("BitsStored", 8))
    if stored.ndim == 2:
        stored = np.repeat(stored[..., None], 3, axis=2)
    if bits > 8:
        return np.asarray(stored >> (bits - 8)).astype(np.uint8)
    return stored.astype(np.uint8)


def apply_file_window(dataset: Any, frame: int, values: Array, *, source: str) -> Array:
    """Show values in the window that the file states for a frame.

    Args:
        dataset: The DICOM data set.
        frame: The number of the frame, from 0.
        values: The pixels in real units.
        source: The file, for messages.

    Returns:
        Values from 0 (black) to 255; those of 8-bit images without a window are unchanged.

    Raises:
        BadInput: The file states no window, or one without a width.
    """
    try:
        with quiet_pydicom():
            return _apply_stated_window(dataset, frame, values, source=source)
    except BadInput:
        raise
    except Exception:  # as in series.read_header
        raise _damaged(Path(source)) from None


def _apply_stated_window(dataset: Any, frame: int, values: Array, *, source: str) -> Array:
    groups = frame_groups(dataset, frame)
    table = next((g for g in groups if g.get("VOILUTSequence")), None)
    if table is not None:
        looked_up = load_pydicom("reading DICOM").pixels.apply_voi(np.rint(values).astype(np.int64), table)
        bits = int(table.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(looked_up * (WHITE / (2**bits - 1)), np.float32)
    stated = next((g for g in groups if g.get("WindowCenter") is not None and g.get("WindowWidth") is not None), None)
    if stated is not None:
        centre, width = _first(stated.WindowCenter), _first(stated.WindowWidth)
        return apply_window_function(values, centre, width, str(stated.get("VOILUTFunction") or "LINEAR"), source=source)
    bits = int(dataset.get("BitsStored", 16))
    if bits <= 8 and not int(dataset.get("PixelRepresentation", 0)) and _rescale(dataset, frame) == (1.0, 0.0):
        return np.asarray(values * (WHITE / (2**bits - 1)), np.float32)
    raise BadInput(
        f"{source} states no window; set data.scan.window, such as 'soft tissue' or [40, 400] for CT, 'percentiles' for MR",
        code="missing-window",
    )


def apply_window_function(values: Array, centre: float, width: float, function: str, *, source: str) -> Array:
    """Apply a window of DICOM: LINEAR, LINEAR_EXACT or SIGMOID.

    Returns:
        Values from 0 to 255.

    Raises:
        BadInput: The width is too small, or the function unknown.
    """
    function = function.upper()
    least = 1.0 if function == "LINEAR" else 0.0
    if width < least or (function != "LINEAR" and width <= 0) or function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise BadInput(
            f"{source} states a window of width {width:g} ({function}), which cannot be used; set data.scan.window",
            code="missing-window",
        )
    if function == "SIGMOID":
        return np.asarray(WHITE / (1 + np.exp(-4 * (values - centre) / width)), np.float32)
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return np.where(values > centre, WHITE, 0.0).astype(np.float32)
    return np.asarray(np.clip(((values - centre) / width + 0.5) * WHITE, 0, WHITE), np.float32)


def _first(value: Any) -> float:
    """Take the first of several windows; files list the most usual one first."""
    several = hasattr(value, "__iter__") and not isinstance(value, str)
    return float(next(iter(value)) if several else value)


def _undecodable(dataset: Any, path: Path) -> BadInput:
    """Explain why pixels could not be decoded: no decoder is installed, video, or a damaged file."""
    try:
        syntax = dataset.file_meta.TransferSyntaxUID
        name, compressed = str(syntax.name), bool(syntax.is_compressed)
    except Exception:  # no or an unknown syntax
        return _damaged(path)
    if compressed and any(word in name for word in _VIDEO):
        return BadInput(f"{path} is a video ({name}); export single frames", code="unsupported-format")
    if compressed and not _has_decoder(syntax):
        needed = next((p for word, p in _PLUGINS.items() if word in name), "'pylibjpeg[all]'")
        return BadInput(
            f"{path} is compressed as {name}, which needs a decoder; run: pip install {needed}", code="missing-package"
        )
    return _damaged(path)


def _has_decoder(syntax: Any) -> bool:
    try:
        return bool(load_pydicom("reading DICOM").pixels.get_decoder(syntax).is_available)
    except NotImplementedError:
        return False


def _damaged(path: Path) -> BadInput:
    return BadInput(
        f"{path} cannot be read as DICOM: it is damaged or cut off; export it again or leave it out", code="damaged-image"
    )
