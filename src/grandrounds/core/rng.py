"""Derive random numbers from (seed, round, site, purpose), never from global state.

The same four words give the same stream in any order of calls, in any chunking of sites, in a
simulation or at one hospital alone. Privacy noise and keys do not come from here in a deployed
run: the server knows the seed, so it could subtract them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Keys = np.ndarray[Any, np.dtype[np.uint64]]


def generator(seed: int, *, purpose: str, round: int = 0, site: str = "") -> np.random.Generator:
    """Return the generator of one purpose at one site in one round."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, round, site)))


def site_generators(seed: int, *, purpose: str, round: int, sites: Iterable[str]) -> Iterator[np.random.Generator]:
    """Yield `generator` for each site, several times as fast. The generator is reused: finish with it before the next."""
    bits = np.random.Philox(key=0)
    stream = np.random.Generator(bits)
    empty = np.zeros(4, np.uint64)
    for site in sites:
        state: Any = {"counter": empty, "key": _key(seed, purpose, round, site)}
        bits.state = {
            "bit_generator": "Philox", "state": state, "buffer": empty, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        yield stream


def hash_words(words: Sequence[str]) -> Keys:
    """Return a 64-bit key (n,) of each word, the same on every machine."""
    digests = b"".join(hashlib.blake2b(word.encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def mix_bits(keys: Keys) -> Keys:
    """Scramble 64-bit keys one by one (the finaliser of SplitMix64, a bijection)."""
    x = np.asarray(keys, np.uint64).copy()
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def draw_by_key(keys: Keys, *, seed: int, purpose: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a number in [0, 1) for each key (n,), which depends on (seed, purpose) and that key only.

    Use it wherever removing one patient must not change the draw of another.
    """
    first, second = _key(seed, purpose, 0, "")
    mixed = mix_bits(mix_bits(np.asarray(keys, np.uint64) ^ first) + second)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _key(seed: int, purpose: str, round: int, site: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    words = f"{seed}\x1f{round}\x1f{site}\x1f{purpose}".encode()
    return np.frombuffer(hashlib.blake2b(words, digest_size=16).digest(), dtype="<u8")
