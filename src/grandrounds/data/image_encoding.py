"""Encoding of images: channel means and deviations agreed from sums, as for the columns of a table.

A site says how many pixels it has and, for each channel, their sum and sum of squares: whole
numbers, so the merged values are those of the pooled pixels to the last bit, in any grouping.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.encoding import class_numbers, index_in, order_classes
from grandrounds.data.images import ImageSet, find_dark_images, mask_notes, size_text
from grandrounds.data.subgroups import Grouping, WordCounts, add_words, groupings_from, groupings_to_dict
from grandrounds.data.summary import add_counts
from grandrounds.protocol.messages import Payload, Value

KIND = "image"
"""Says in a payload or a saved model that the inputs are images, not columns."""

Shape = tuple[int, int, int]
_BLOCK = 1 << 20  # pixels at a time, to bound memory


@dataclass(frozen=True)
class ImageSummary:
    """Mergeable facts about images of C channels."""

    rows: int
    shape: Shape  # (C, H, W)
    pixels: int  # of one channel, over all rows
    sums: Array  # (C,) int64, of values 0..255
    squares: Array  # (C,) int64
    classes: Mapping[str, int]
    groups: Mapping[str, int]  # levels of the subgroup column, where one is named
    subgroups: Mapping[str, WordCounts] = field(default_factory=dict)  # rows by group of each column of evaluation.subgroups

    @classmethod
    def from_images(
        cls, images: ImageSet, *, groups: Sequence[str] = (), subgroups: Mapping[str, WordCounts] | None = None
    ) -> ImageSummary:
        """Summarise one site's images."""
        counts = _value_counts(images.pixels)
        value = np.arange(256)
        return cls(
            rows=len(images),
            shape=images.shape,
            pixels=int(counts[0].sum()),
            sums=counts @ value,
            squares=counts @ value**2,
            classes=Counter(images.label.tolist()),
            groups=Counter(groups),
            subgroups=subgroups or {},
        )

    @classmethod
    def merge(cls, parts: Sequence[ImageSummary]) -> ImageSummary:
        """Merge the summaries of all sites, in any grouping; the images must be of one size."""
        shapes = Counter(s.shape for s in parts).most_common()
        if len(shapes) > 1:
            shown = ", ".join(f"{_shape_text(shape)} at {n} {'site' if n == 1 else 'sites'}" for shape, n in shapes[:3])
            raise BadInput(
                f"sites hold images of different sizes: {shown}; bring them to one size at every site",
                code="image-size-mismatch",
            )
        return cls(
            rows=sum(s.rows for s in parts),
            shape=shapes[0][0],
            pixels=sum(s.pixels for s in parts),
            sums=np.sum([s.sums for s in parts], axis=0),
            squares=np.sum([s.squares for s in parts], axis=0),
            classes=add_counts([s.classes for s in parts]),
            groups=add_counts([s.groups for s in parts]),
            subgroups=add_words([s.subgroups for s in parts]),
        )

    def leak_warnings(self, names: Sequence[str]) -> list[str]:
        """Return no warnings: no single pixel gives the label away; shortcuts show in sketches."""
        return []

    def to_payload(self) -> dict[str, Value]:
        """Pack into arrays and short strings, as an Answer carries them."""
        return {
            "kind": KIND,
            "rows": self.rows,
            "shape": np.array(self.shape, np.int64),
            "pixels": self.pixels,
            "sums": self.sums,
            "squares": self.squares,
            "words": json.dumps(
                {"classes": self.classes, "groups": self.groups, **({"subgroups": self.subgroups} if self.subgroups else {})}
            ),
        }

    @classmethod
    def from_payload(cls, values: Payload) -> ImageSummary:
        words = json.loads(str(values["words"]))
        channels, height, width = (int(n) for n in np.asarray(values["shape"]))
        return cls(
            rows=int(values["rows"]),
            shape=(channels, height, width),
            pixels=int(values["pixels"]),
            sums=np.asarray(values["sums"]),
            squares=np.asarray(values["squares"]),
            classes=words["classes"],
            groups=words["groups"],
            subgroups=words.get("subgroups", {}),
        )


@dataclass(frozen=True)
class ImageEncoding:
    """The rule that turns images into inputs (n, C, H, W): (pixel / 255 - mean) / std of each channel."""

    mean: tuple[float, ...]  # (C,) on the scale 0..1
    std: tuple[float, ...]
    shape: Shape
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    groups: tuple[str, ...] = ()
    event: str | None = None  # the class whose probability is the risk; None: there are not two
    subgroups: tuple[Grouping, ...] = ()  # groups of the columns of evaluation.subgroups

    @property
    def features(self) -> tuple[str, ...]:
        """Pixels have no names; `inputs` says how many there are."""
        return ()

    @property
    def inputs(self) -> Shape:
        """The shape of one input: (C, H, W)."""
        return self.shape

    def encode(self, images: ImageSet, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """Encode images as inputs (n, C, H, W), contiguous; images of another size than agreed are refused."""
        if images.shape != self.shape:
            raise BadInput(
                f"images of {images.name} are {_shape_text(images.shape)}, but the model was made for "
                f"{_shape_text(self.shape)}; bring them to that size",
                code="image-size-mismatch",
            )
        out = np.empty((len(images), *self.shape), dtype)
        for c, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            table = ((np.arange(256) / 255 - mean) / std).astype(dtype)
            for rows in _blocks(images.pixels):
                out[rows, c] = table.take(images.pixels[rows, ..., c])
        return out

    def decode(self, x: Array) -> Array:
        """Convert inputs (n, C, H, W) back to images: uint8 (n, H, W, C), clipped to what can be shown."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        pixels = np.clip(np.rint((x * std + mean) * 255), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.moveaxis(pixels, 1, 3))

    def notes(self, images: ImageSet) -> list[str]:
        """List images that show nothing, and truth masks without an inside or an outside."""
        dark = find_dark_images(images)
        out = [] if images.masks is None else mask_notes(images.masks)
        if dark:
            out.insert(0, f"{len(dark)} of {len(images)} images {'is' if len(dark) == 1 else 'are'} black")
        return out

    def labels(self, images: ImageSet) -> Array:
        """Number the classes (n,); a label the consortium has never trained on is refused."""
        return class_numbers(images.label, self.classes, where=images.name)

    def group_numbers(self, groups: Sequence[str]) -> Array:
        """Number the subgroups (n,); the last number is for subgroups never seen in training."""
        return index_in(groups, self.groups)

    def to_dict(self) -> dict[str, object]:
        values = {name: v for name, v in asdict(self).items() if v is not None and name != "subgroups"}
        return {"kind": KIND, **values, **groupings_to_dict(self.subgroups)}

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
            subgroups=groupings_from(d),
        )


def make_image_encoding(
    total: ImageSummary, *, shape: Shape | None = None, positive: str | None = None
) -> ImageEncoding:
    """Make the encoding from the merged summary of all sites; `shape` is what the model needs, if it does."""
    if shape is not None and shape != total.shape:
        raise BadInput(
            f"the sites' images are {_shape_text(total.shape)}, but the model needs {_shape_text(shape)}; "
            "bring them to that size, or choose a model that takes theirs",
            code="image-size-mismatch",
        )
    n = max(total.pixels, 1)
    # n * squares - sums^2 in whole numbers: nothing cancels, however flat the images are
    sums, squares = total.sums.tolist(), total.squares.tolist()
    spread = [(n * q - s * s) / (n * n) for s, q in zip(sums, squares, strict=True)]
    std = [float(v) ** 0.5 / 255 for v in spread]
    return ImageEncoding(
        mean=tuple(s / (n * 255) for s in sums),
        std=tuple(v if v > 1e-12 else 1.0 for v in std),
        shape=total.shape,
        **order_classes(total.classes, positive),
        groups=tuple(sorted(total.groups)),
    )


def _value_counts(pixels: Array) -> Array:
    """Count each value 0..255 in each channel: (C, 256)."""
    counts = np.zeros((pixels.shape[3], 256), np.int64)
    for c in range(len(counts)):
        for rows in _blocks(pixels):
            counts[c] += np.bincount(pixels[rows, ..., c].ravel(), minlength=256)
    return counts


def _blocks(pixels: Array) -> list[slice]:
    """Cut images into blocks: counting and looking up need eight bytes a pixel."""
    n, height, width, _ = pixels.shape
    step = max(1, _BLOCK // (height * width))
    return [slice(start, start + step) for start in range(0, n, step)]


def _shape_text(shape: Shape) -> str:
    channels, *size = shape
    return f"{size_text(size)} with {channels} {'channel' if channels == 1 else 'channels'}"
