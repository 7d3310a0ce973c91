"""Masks: the published stream, in any block, and gone without a trace when taken away."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from grandrounds.privacy.secagg.keys import apply_masks, derived
from grandrounds.privacy.secagg.terms import joined


def test_stream_is_aes_256_in_counter_mode():
    """Key and block of zeros: the NIST AESAVS value (first block); then the block cipher on a counter of one."""
    out = np.zeros(8, np.uint32)
    apply_masks(out, add=[bytes(32)])
    assert out.tobytes()[:16].hex() == "dc95c078a2408989ad48a21492842087"
    assert out.tobytes()[16:].hex() == "530f8afbc74536b9a963b4f1c4cb738b"


def test_derived_is_hkdf_sha256():
    """RFC 5869 by hand: extract with a salt of zeros, expand by one block."""
    info = joined("grandrounds secagg", "mask", b"terms", 3)
    key = hmac.digest(bytes(32), b"secret", hashlib.sha256)
    assert derived(b"secret", "mask", b"terms", 3) == hmac.digest(key, info + b"\x01", hashlib.sha256)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 3, 32_768, 65_536, 65_537, 200_001])
def test_masks_do_not_depend_on_blocks_and_can_be_taken_away(dtype, size):
    keys = [bytes([k]) * 32 for k in range(5)]
    start = np.arange(size, dtype=dtype)
    out = start.copy()
    apply_masks(out, add=keys[:3], take=keys[3:])
    alone = start.copy()
    for key in keys[:3]:
        apply_masks(alone, add=[key])
    for key in keys[3:]:
        apply_masks(alone, take=[key])
    np.testing.assert_array_equal(out, alone)
    if size > 10:
        short = start[:7].copy()
        apply_masks(short, add=keys[:3], take=keys[3:])
        np.testing.assert_array_equal(short, out[:7])
        assert (out != start).any()
    apply_masks(out, add=keys[3:], take=keys[:3])
    np.testing.assert_array_equal(out, start)


def test_more_masks_than_streams_at_once():
    keys = [k.to_bytes(32, "big") for k in range(700)]
    out = np.zeros(3, np.uint64)
    apply_masks(out, add=keys, take=keys[1:])
    only = np.zeros(3, np.uint64)
    apply_masks(only, add=keys[:1])
    np.testing.assert_array_equal(out, only)
