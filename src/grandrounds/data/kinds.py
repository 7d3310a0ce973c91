"""Functions for tables and images alike: summaries of a site's data, and encodings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import NUMBER, Array, misfit
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding, EncodingRules
from grandrounds.data.event import Event, event_line
from grandrounds.data.image_encoding import KIND, ImageEncoding, ImageSummary, make_image_encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.outcome import MAX_CLASSES, Outcome
from grandrounds.data.schema import Schema
from grandrounds.data.subgroups import WordCounts, agree_groupings
from grandrounds.data.summary import Moments, Summary
from grandrounds.protocol.messages import Payload, Value

_TABLE = {
    "numeric": [{"name": str, "*": (str, bool, *NUMBER)}],
    "categorical": [{"name": str, "levels": [str]}],
    "classes": [str],
    "class_counts": [float],
    "groups": list,
    "event?": (str, None),
    "outcome?": {"task": str, "centre": NUMBER, "scale": NUMBER, "event?": (str, None)},
    "subgroups?": [{"column": str, "levels": [str], "edges": [float]}],
}
_SMALLEST_SCALE = 1e-30
"""Smallest scale of a column or an image channel; those of data are far larger."""

Holdings = Dataset | ImageSet
AnyEncoding = Encoding | ImageEncoding


def outcome_of(encoding: AnyEncoding) -> Outcome | None:
    """Return the outcome of an encoding; None for classification, as for all images."""
    return encoding.outcome if isinstance(encoding, Encoding) else None


def task_of(encoding: AnyEncoding) -> str:
    """Return the type of the outcome of an encoding."""
    return encoding.task if isinstance(encoding, Encoding) else CLASSIFICATION


def outcome_line(encoding: AnyEncoding, event: Event | None, schema: Schema | None) -> str:
    """Describe the outcome in the line that every command prints: the event, the classes, or the task and its label."""
    outcome = outcome_of(encoding)
    if outcome is None or schema is None:
        return event_line(event, encoding.classes)
    if outcome.task == SURVIVAL:
        title = schema.label if event is None else event.title
        return f"survival: {title}, follow-up time {schema.duration}"
    return f"{outcome.task}: {schema.label}"


def summary_payload(
    data: Holdings,
    *,
    groups: Sequence[str],
    subgroups: Mapping[str, WordCounts] | None = None,
    ranges: tuple[Array, Array] | None = None,
    smallest: int = 0,
) -> dict[str, Value]:
    """Summarise a site's training rows, as an Answer carries it.

    Args:
        data: The site's training rows or images.
        groups: The subgroup of each row.
        subgroups: Rows by group of each column of evaluation.subgroups whose groups are not known beforehand.
        ranges: Lower and upper ends of numeric columns; then the moments within them are given.
        smallest: A column with fewer values within its range has no moments.
    """
    if ranges is not None:
        if isinstance(data, ImageSet):
            raise BadInput("images have no columns with ranges", code="needs-table")
        return Moments.from_dataset(data, *ranges, smallest=smallest).to_payload()
    if isinstance(data, ImageSet):
        return ImageSummary.from_images(data, groups=groups, subgroups=subgroups).to_payload()
    return Summary.from_dataset(data, groups=groups, subgroups=subgroups).to_payload()


def agree_on_images(answers: Sequence[Payload], rules: EncodingRules) -> ImageEncoding:
    """Make one encoding from all sites' summaries of their images."""
    images = ImageSummary.merge([ImageSummary.from_payload(a) for a in answers])
    encoding = make_image_encoding(images, positive=rules.positive)
    return replace(encoding, subgroups=agree_groupings(rules.subgroups, rules.bands, images.subgroups))


def find_summary_fault(values: Payload) -> str:
    """Explain why a site's summary cannot be merged; "" where it can. One site must not set the classes of all without bounds."""
    try:
        rows, words = int(values["rows"]), json.loads(str(values["words"]))
        classes, levels = words["classes"], words.get("levels", ())
        if len(classes) > MAX_CLASSES:
            return f"it reported {len(classes):,} classes, and classification has at most {MAX_CLASSES}"
        for counts in (classes, *levels):
            numbers = list(counts.values())
            if any(not isinstance(n, int) or n < 1 for n in numbers) or sum(numbers) > rows:
                return f"it reported counts of values that are not those of {rows:,} rows"
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return "its summary cannot be read"
    return ""


def _check_scales(encoding: AnyEncoding) -> None:
    """Refuse numbers by which a row would have inputs that are not finite, so that an answer would single it out."""
    if isinstance(encoding, ImageEncoding):
        numbers, scales = [*encoding.mean, *encoding.std], list(encoding.std)
    else:
        numbers = [float(v) for r in encoding.numeric for v in (r.fill, r.low, r.high, r.centre, r.scale)]
        scales = [float(r.scale) for r in encoding.numeric]
    if not (np.isfinite(numbers).all() and all(s >= _SMALLEST_SCALE for s in scales)):
        raise BadInput(
            f"an encoding is damaged: it has a number that is not finite, or a scale below {_SMALLEST_SCALE:g}",
            code="damaged-encoding",
        )


def encoding_from(values: Mapping[str, Any]) -> AnyEncoding:
    """Read an encoding as it was saved or sent.

    Raises:
        BadInput: It lacks something, or a value is of another kind.
    """
    try:
        field = "" if values.get("kind") == KIND else misfit(values, _TABLE)
        if field:
            raise BadInput(f"an encoding is damaged: {field} is missing or of the wrong kind", code="damaged-encoding")
        encoding = ImageEncoding.from_dict(values) if values.get("kind") == KIND else Encoding.from_dict(values)
        _check_scales(encoding)
        return encoding
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise BadInput(
            f"an encoding is damaged ({type(e).__name__}): write it again with this version", code="damaged-encoding"
        ) from None
