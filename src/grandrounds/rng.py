"""Random numbers from (seed, round, site, purpose), never from global state.

The same four words give the same stream in any order of calls, in any chunking of sites, in a
simulation or at one hospital alone. Privacy noise and keys do not come from here in a deployed
run: the server knows the seed, so it could subtract them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def generator(seed: int, *, purpose: str, round: int = 0, site: str = "") -> np.random.Generator:
    """A generator of its own for one purpose at one site in one round."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, round, site)))


def site_generators(seed: int, *, purpose: str, round: int, sites: Iterable[str]) -> Iterator[np.random.Generator]:
    """`generator` for each of many sites in turn, several times as fast: one generator set anew, so use it before the next."""
    bits = np.random.Philox(key=0)
    stream = np.random.Generator(bits)
    empty = np.zeros(4, np.uint64)
    for site in sites:
        state: Any = {"counter": empty, "key": _key(seed, purpose, round, site)}
        bits.state = {
            "bit_generator": "Philox", "state": state, "buffer": empty, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        yield stream


def _key(seed: int, purpose: str, round: int, site: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    words = f"{seed}\x1f{round}\x1f{site}\x1f{purpose}".encode()
    return np.frombuffer(hashlib.blake2b(words, digest_size=16).digest(), dtype="<u8")
