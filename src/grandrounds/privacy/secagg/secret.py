"""A site's own randomness: keys and noise come from here, never from the experiment's seed in a deployed run."""

from __future__ import annotations

import hashlib
import os

from grandrounds.privacy.secagg.context import joined


class Secret:
    """Bytes that nobody else knows. It prints as its kind only."""

    def __init__(self, root: bytes | None) -> None:
        self._root = root

    @classmethod
    def own(cls) -> Secret:
        """From the operating system's entropy, anew at every call.

        Not derived from a stored root on purpose: a site that forgot a sum half-way and is asked again must not mask
        other values with the same masks.
        """
        return cls(None)

    @classmethod
    def simulated(cls, seed: int, site: str) -> Secret:
        """Follows from the seed, so that runs repeat; whoever knows the seed can then undo every mask."""
        return cls(hashlib.sha256(joined("grandrounds simulated secret", seed, site)).digest())

    @property
    def is_simulated(self) -> bool:
        return self._root is not None

    def bytes(self, purpose: str, size: int) -> bytes:
        """So many bytes for one purpose; a simulated secret gives the same for the same purpose."""
        if self._root is None:
            return os.urandom(size)
        return hashlib.shake_256(joined(self._root, purpose)).digest(size)

    def __repr__(self) -> str:
        return "Secret(simulated)" if self.is_simulated else "Secret(own)"
