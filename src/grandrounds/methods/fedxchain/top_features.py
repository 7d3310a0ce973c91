"""Compressed attributions (sec. VI-B, future work): the largest features are reported separately, all others as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.trust import SMOOTHING

_OTHER_FEATURES = "all others"


def tracked_features(last: Array | None, top: int) -> Array | None:
    """Return the `top` features that are reported separately, by the last pooled attributions; None: all of them."""
    if not top or last is None or top >= len(last) - 1:
        return None
    return np.sort(np.argsort(-last, kind="stable")[:top])


def expand_shares(shares: Array, last: Array | None, tracked: Array | None) -> Array:
    """Return the consortium's attributions of all features; the common share of the others is split as in the round before."""
    if tracked is None:
        return shares
    assert last is not None
    out = np.array(last, float)
    rest = np.setdiff1d(np.arange(len(out)), tracked)
    out[tracked] = shares[:-1]
    out[rest] *= shares[-1] / max(out[rest].sum(), SMOOTHING)
    return out


def name_features(names: Sequence[str], shares: Array, tracked: Array | None) -> dict[str, float]:
    """Return the consortium's attributions by the name of the feature."""
    if tracked is not None:
        names = (*(names[j] for j in tracked), _OTHER_FEATURES)
    return dict(zip(names, shares.tolist(), strict=True))
