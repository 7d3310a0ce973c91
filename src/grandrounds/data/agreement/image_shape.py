"""What a plan says of pictures that hospitals hold themselves: their shape, in data.pictures, and nothing else of them.

The server knows with it what a model's inputs are before any site has answered, and a site knows what it must have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grandrounds.data.images import size_text
from grandrounds.data.loading import AT_SITES

_TOLD = re.compile(rf"{AT_SITES}: (\d{{1,5}})x(\d{{1,5}}), (\d) channels?")


def told(size: Sequence[int], channels: int) -> str:
    """What data.pictures says where every hospital has its own, of this (height, width): "at the sites: 28x28, 1 channel"."""
    return f"{AT_SITES}: {shape_text(size, channels)}"


def told_shape(data: Any) -> tuple[int, int, int] | None:
    """(channels, height, width) that a plan's [data] says; None where it is of a table, or says no shape."""
    found = _TOLD.fullmatch(data.pictures or "")
    if found is None:
        return None
    height, width, channels = (int(n) for n in found.groups())
    return channels, height, width


def shape_text(size: Sequence[int], channels: int) -> str:
    """A size and channels in words, such as 28x28, 1 channel."""
    return f"{size_text(size)}, {channels} {'channel' if channels == 1 else 'channels'}"
