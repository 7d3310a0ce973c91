"""Roster of a secure sum: names and signed keys of its sites, sorted by name, equal for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.privacy.secagg.keys import ANNOUNCED_BYTES, Announced
from grandrounds.privacy.secagg.payload import Malformed, as_bytes, as_numbers, part
from grandrounds.privacy.secagg.terms import (
    DEGREE,
    FEWEST_SITES,
    Context,
    Graph,
    Refused,
    are_shares,
    build_graph,
    digest,
    hide,
    least,
    table_of,
)
from grandrounds.protocol.identity import signed_by
from grandrounds.protocol.messages import Value


@dataclass(frozen=True)
class Roster:
    """Sites of one sum with their announced keys (`ANNOUNCED_BYTES` each), the threshold of shares, and the weights."""

    context: Context
    names: tuple[str, ...]
    keys: bytes
    threshold: int
    degree: int
    weights: Array = field(compare=False)  # (n, S); S = 0 for a plain sum

    @classmethod
    def of(
        cls,
        context: Context,
        announced: Mapping[str, bytes],
        *,
        threshold: int | None = None,
        degree: int = DEGREE,
        weights: Mapping[str, Sequence[float]] | None = None,
    ) -> Roster:
        """Build a roster from announced keys; the default threshold is the lowest that sites accept."""
        names = tuple(sorted(announced))
        if threshold is None:
            threshold = least(build_graph(len(names), b"", degree).around)
        keys = b"".join(announced[name] for name in names)
        return cls(context, names, keys, threshold, degree, table_of(weights, names))

    @classmethod
    def read(cls, message: Any, context: Context, degree: int) -> Roster:
        """Parse a roster from a message; its form is checked, but not its content."""
        keys = part(message, "keys", np.uint8, (None, ANNOUNCED_BYTES))
        weights = part(message, "weights", np.float64, (len(keys), None))
        threshold = message.get("threshold")
        try:
            names = json.loads(message.get("names"))
        except (TypeError, ValueError):
            raise Malformed("names") from None
        if not isinstance(names, list) or len(names) != len(keys) or not all(isinstance(name, str) for name in names):
            raise Malformed("names")
        if not isinstance(threshold, int) or isinstance(threshold, bool):
            raise Malformed("threshold")
        return cls(context, tuple(names), keys.tobytes(), threshold, degree, weights)

    def message(self) -> dict[str, Value]:
        keys = as_bytes(self.keys).reshape(len(self.names), ANNOUNCED_BYTES)
        return {"names": json.dumps(self.names), "keys": keys, "threshold": self.threshold, "weights": self.weights}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> bytes:
        """Hash of names and signed keys, from which the graph follows."""
        return digest("roster", self.context.bytes, json.dumps(self.names), self.keys)

    @cached_property
    def terms(self) -> bytes:
        """Hash of everything that must be equal at every site; masks and seals made with other terms do not fit."""
        table = self.weights.astype("<f8").tobytes()
        return digest("terms", self.digest, self.threshold, self.degree, self.weights.shape[1], table)

    @property
    def graph(self) -> Graph:
        return build_graph(len(self), self.digest, self.degree)

    def announced(self, site: int) -> Announced:
        return Announced.unpack(self.keys[site * ANNOUNCED_BYTES : (site + 1) * ANNOUNCED_BYTES])

    def check(self, peers: Mapping[str, bytes], *, largest: float = 1.0) -> None:
        """Check that the site may take part.

        Args:
            peers: Public key of every known site.
            largest: Largest share of one site in a weighted sum.

        Raises:
            Refused: The roster violates a rule of the protocol.
        """
        if len(self) < FEWEST_SITES:
            raise Refused("too-few-sites")
        if list(self.names) != sorted(set(self.names)):
            raise Refused("malformed")
        if any(name not in peers for name in self.names):
            raise Refused("unknown-site")
        publics = tuple(peers[name] for name in self.names)
        if len(set(publics)) != len(publics):
            raise Refused("same-identity")
        if not least(self.graph.around) <= self.threshold <= self.graph.around:
            raise Refused("threshold")
        if not (are_shares(self.weights) and hide(self.weights, range(len(self)), largest=largest)):
            raise Refused("weight")
        flaw = _flaw(self.context, self.names, self.keys, publics)
        if flaw:
            raise Refused(flaw)

    def survivors_statement(self, survivors: tuple[int, ...]) -> bytes:
        """Return the bytes that sites sign once the survivors are known."""
        return digest("survivors", self.terms, as_numbers(survivors).tobytes())


@lru_cache(maxsize=8)
def _flaw(context: Context, names: tuple[str, ...], keys: bytes, publics: tuple[bytes, ...]) -> str:
    """Return the code of the first fault in announced keys, or an empty string. Sites of one process check a roster once."""
    for k, (name, public) in enumerate(zip(names, publics, strict=True)):
        announced = Announced.unpack(keys[k * ANNOUNCED_BYTES : (k + 1) * ANNOUNCED_BYTES])
        if not signed_by(public, announced.statement(context, name), announced.signature):
            return "peer-signature"
        if announced.weak:
            return "weak-key"
    return ""


@lru_cache(maxsize=4096)
def has_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Verify a signature like `signed_by`; sites of one process check each signature once."""
    return signed_by(public, statement, signature)
