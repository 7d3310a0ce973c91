"""Pictures made comparable: channel means and deviations agreed from sums, as for the columns of a table.

A site says how many pixels it has and, for each channel, their sum and sum of squares: whole
numbers, so the merged values are those of the pooled pixels to the last bit, in any grouping.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.encoding import class_numbers, ordered_classes, place_in
from grandrounds.data.images import ImageSet, dark_pictures, mask_notes, size_text
from grandrounds.data.summary import added_counts

KIND = "image"
"""Says in a payload or a saved model that the inputs are pictures, not columns."""

Shape = tuple[int, int, int]
_BLOCK = 1 << 20  # pixels at a time, to bound memory


@dataclass(frozen=True)
class ImageSummary:
    """Mergeable facts about pictures of C channels."""

    rows: int
    shape: Shape  # (C, H, W)
    pixels: int  # of one channel, over all rows
    sums: Array  # (C,) int64, of values 0..255
    squares: Array  # (C,) int64
    classes: Mapping[str, int]
    groups: Mapping[str, int]  # levels of the subgroup column, where one is named

    @classmethod
    def of(cls, pictures: ImageSet, *, groups: Sequence[str] = ()) -> ImageSummary:
        """The summary of one site's pictures."""
        counts = _value_counts(pictures.pixels)
        value = np.arange(256)
        return cls(
            rows=len(pictures),
            shape=pictures.shape,
            pixels=int(counts[0].sum()),
            sums=counts @ value,
            squares=counts @ value**2,
            classes=Counter(pictures.label.tolist()),
            groups=Counter(groups),
        )

    @classmethod
    def merge(cls, parts: Sequence[ImageSummary]) -> ImageSummary:
        """The summary of all pictures of all sites, in any grouping; they must be of one size."""
        shapes = Counter(s.shape for s in parts).most_common()
        if len(shapes) > 1:
            shown = ", ".join(f"{_shape_text(shape)} at {n} {'site' if n == 1 else 'sites'}" for shape, n in shapes[:3])
            raise BadInput(
                f"sites hold pictures of different sizes: {shown}; bring them to one size at every site",
                code="image-size-mismatch",
            )
        return cls(
            rows=sum(s.rows for s in parts),
            shape=shapes[0][0],
            pixels=sum(s.pixels for s in parts),
            sums=np.sum([s.sums for s in parts], axis=0),
            squares=np.sum([s.squares for s in parts], axis=0),
            classes=added_counts([s.classes for s in parts]),
            groups=added_counts([s.groups for s in parts]),
        )

    def give_aways(self, names: Sequence[str]) -> list[str]:
        """No single pixel is a column that could give the label away; shortcuts show in sketches."""
        return []

    def to_payload(self) -> dict[str, Any]:
        """Arrays and short strings, as an Answer carries them."""
        return {
            "kind": KIND,
            "rows": self.rows,
            "shape": np.array(self.shape, np.int64),
            "pixels": self.pixels,
            "sums": self.sums,
            "squares": self.squares,
            "words": json.dumps({"classes": self.classes, "groups": self.groups}),
        }

    @classmethod
    def from_payload(cls, values: Mapping[str, Any]) -> ImageSummary:
        words = json.loads(values["words"])
        channels, height, width = (int(n) for n in values["shape"])
        return cls(
            rows=int(values["rows"]),
            shape=(channels, height, width),
            pixels=int(values["pixels"]),
            sums=np.asarray(values["sums"]),
            squares=np.asarray(values["squares"]),
            classes=words["classes"],
            groups=words["groups"],
        )


@dataclass(frozen=True)
class ImageEncoding:
    """How pictures become inputs (n, C, H, W): (pixel / 255 - mean) / std of each channel."""

    mean: tuple[float, ...]  # (C,) on the scale 0..1
    std: tuple[float, ...]
    shape: Shape
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    groups: tuple[str, ...] = ()
    event: str | None = None  # the class whose probability is the risk; None: of version 0.1, the last

    @property
    def features(self) -> tuple[str, ...]:
        """Pixels have no names; `inputs` says how many there are."""
        return ()

    @property
    def inputs(self) -> Shape:
        """The shape of one input: (C, H, W)."""
        return self.shape

    def encode(self, pictures: ImageSet, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """The inputs (n, C, H, W), contiguous; pictures of another size than agreed are refused."""
        if pictures.shape != self.shape:
            raise BadInput(
                f"pictures of {pictures.name} are {_shape_text(pictures.shape)}, but the model was made for "
                f"{_shape_text(self.shape)}; bring them to that size",
                code="image-size-mismatch",
            )
        out = np.empty((len(pictures), *self.shape), dtype)
        for c, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            table = ((np.arange(256) / 255 - mean) / std).astype(dtype)
            for rows in _blocks(pictures.pixels):
                out[rows, c] = table.take(pictures.pixels[rows, ..., c])
        return out

    def decode(self, x: Array) -> Array:
        """Inputs (n, C, H, W) as pictures again: uint8 (n, H, W, C), drawn in to what can be shown."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        pixels = np.clip(np.rint((x * std + mean) * 255), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.moveaxis(pixels, 1, 3))

    def notes(self, pictures: ImageSet) -> list[str]:
        """Pictures that show nothing, and truth masks without an inside or an outside."""
        dark = dark_pictures(pictures)
        out = [] if pictures.masks is None else mask_notes(pictures.masks)
        if dark:
            out.insert(0, f"{len(dark)} of {len(pictures)} pictures {'is' if len(dark) == 1 else 'are'} black")
        return out

    def labels(self, pictures: ImageSet) -> Array:
        """Class numbers (n,); a label the consortium has never trained on is refused."""
        return class_numbers(pictures.label, self.classes, where=pictures.name)

    def group_numbers(self, groups: Sequence[str]) -> Array:
        """Subgroup numbers (n,); the last number is for subgroups never seen in training."""
        return place_in(groups, self.groups)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": KIND, **{name: v for name, v in asdict(self).items() if v is not None}}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> ImageEncoding:
        channels, height, width = d["shape"]
        return cls(
            mean=tuple(d["mean"]),
            std=tuple(d["std"]),
            shape=(channels, height, width),
            classes=tuple(d["classes"]),
            class_counts=tuple(d["class_counts"]),
            groups=tuple(d["groups"]),
            event=d.get("event"),
        )


def make_image_encoding(
    total: ImageSummary, *, shape: Shape | None = None, positive: str | None = None
) -> ImageEncoding:
    """The encoding that the merged summary of all sites asks for; `shape` is what the model needs, if it does."""
    if shape is not None and shape != total.shape:
        raise BadInput(
            f"the sites' pictures are {_shape_text(total.shape)}, but the model needs {_shape_text(shape)}; "
            "bring them to that size, or choose a model that takes theirs",
            code="image-size-mismatch",
        )
    n = max(total.pixels, 1)
    # n * squares - sums^2 in whole numbers: nothing cancels, however flat the pictures are
    sums, squares = total.sums.tolist(), total.squares.tolist()
    spread = [(n * q - s * s) / (n * n) for s, q in zip(sums, squares, strict=True)]
    std = [float(v) ** 0.5 / 255 for v in spread]
    return ImageEncoding(
        mean=tuple(s / (n * 255) for s in sums),
        std=tuple(v if v > 1e-12 else 1.0 for v in std),
        shape=total.shape,
        **ordered_classes(total.classes, positive),
        groups=tuple(sorted(total.groups)),
    )


def _value_counts(pixels: Array) -> Array:
    """How often each value 0..255 occurs in each channel: (C, 256)."""
    counts = np.zeros((pixels.shape[3], 256), np.int64)
    for c in range(len(counts)):
        for rows in _blocks(pixels):
            counts[c] += np.bincount(pixels[rows, ..., c].ravel(), minlength=256)
    return counts


def _blocks(pixels: Array) -> list[slice]:
    """Some pictures at a time: counting and looking up need eight bytes a pixel."""
    n, height, width, _ = pixels.shape
    step = max(1, _BLOCK // (height * width))
    return [slice(at, at + step) for at in range(0, n, step)]


def _shape_text(shape: Shape) -> str:
    channels, *size = shape
    return f"{size_text(size)} with {channels} {'channel' if channels == 1 else 'channels'}"
