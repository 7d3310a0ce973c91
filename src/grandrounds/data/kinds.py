"""Tables and pictures side by side: what a site holds, says about it, and agrees on, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding, EncodingRules, make_encoding
from grandrounds.data.image_encoding import KIND, ImageEncoding, ImageSummary, make_image_encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.summary import Summary

Holdings = Dataset | ImageSet
AnyEncoding = Encoding | ImageEncoding


def summary_payload(data: Holdings, *, groups: Sequence[str]) -> dict[str, Any]:
    """What a site says about its training rows, as an Answer carries it."""
    if isinstance(data, ImageSet):
        return ImageSummary.of(data, groups=groups).to_payload()
    return Summary.of(data, groups=groups).to_payload()


def agreed_encoding(
    answers: Sequence[Mapping[str, Any]], *, numeric: Sequence[str], categorical: Sequence[str], rules: EncodingRules
) -> tuple[AnyEncoding, tuple[str, ...]]:
    """One encoding from all sites' summaries, and warnings about columns that give the label away."""
    if answers[0].get("kind") == KIND:
        pictures = ImageSummary.merge([ImageSummary.from_payload(a) for a in answers])
        return make_image_encoding(pictures, positive=rules.positive), ()
    total = Summary.merge([Summary.from_payload(a) for a in answers])
    encoding = make_encoding(total, numeric=numeric, categorical=categorical, rules=rules)
    return encoding, tuple(total.give_aways([*numeric, *categorical]))


def encoding_from(values: Mapping[str, Any]) -> AnyEncoding:
    """An encoding as it was saved or sent."""
    return ImageEncoding.from_dict(values) if values.get("kind") == KIND else Encoding.from_dict(values)
