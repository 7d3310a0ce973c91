"""Random numbers from (seed, round, site, purpose), never from global state.

The same four words give the same stream in any order of calls, in any chunking of sites, in a
simulation or at one hospital alone. Privacy noise and keys do not come from here in a deployed
run: the server knows the seed, so it could subtract them.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *, purpose: str, round: int = 0, site: str = "") -> np.random.Generator:
    """A generator of its own for one purpose at one site in one round."""
    words = f"{seed}\x1f{round}\x1f{site}\x1f{purpose}".encode()
    key = np.frombuffer(hashlib.blake2b(words, digest_size=16).digest(), dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key))
