"""Who takes part in a sum: names and signed keys, sorted by name, the same for all."""

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
    """The sites of one sum with their announced keys (`ANNOUNCED_BYTES` each), how many shares open a secret, and weights."""

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
        """A roster of what sites announced; without a threshold, the least that sites accept."""
        names = tuple(sorted(announced))
        if threshold is None:
            threshold = least(build_graph(len(names), b"", degree).around)
        keys = b"".join(announced[name] for name in names)
        return cls(context, names, keys, threshold, degree, table_of(weights, names))

    @classmethod
    def read(cls, message: Any, context: Context, degree: int) -> Roster:
        """A roster as it came; its form is checked, not yet its truth."""
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
        """The hash of names and signed keys: what the graph follows from."""
        return digest("roster", self.context.bytes, json.dumps(self.names), self.keys)

    @cached_property
    def terms(self) -> bytes:
        """The hash of all that must be the same at every site; masks and seals of sites told otherwise do not fit."""
        table = self.weights.astype("<f8").tobytes()
        return digest("terms", self.digest, self.threshold, self.degree, self.weights.shape[1], table)

    @property
    def graph(self) -> Graph:
        return build_graph(len(self), self.digest, self.degree)

    def announced(self, site: int) -> Announced:
        return Announced.unpack(self.keys[site * ANNOUNCED_BYTES : (site + 1) * ANNOUNCED_BYTES])

    def check(self, peers: Mapping[str, bytes], *, largest: float = 1.0) -> None:
        """Refuse what a site must not take part in.

        `peers`: the public identity of every site it knows; `largest`: the share beyond which one site is the sum.
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
        """What sites sign once it is known whose values came."""
        return digest("survivors", self.terms, as_numbers(survivors).tobytes())


@lru_cache(maxsize=8)
def _flaw(context: Context, names: tuple[str, ...], keys: bytes, publics: tuple[bytes, ...]) -> str:
    """The code of what is wrong with announced keys, or nothing. Sites of one process look at one roster once."""
    for k, (name, public) in enumerate(zip(names, publics, strict=True)):
        announced = Announced.unpack(keys[k * ANNOUNCED_BYTES : (k + 1) * ANNOUNCED_BYTES])
        if not signed_by(public, announced.statement(context, name), announced.signature):
            return "peer-signature"
        if announced.weak:
            return "weak-key"
    return ""


@lru_cache(maxsize=4096)
def has_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """As `signed_by`; sites of one process that are shown the same signatures look at each once."""
    return signed_by(public, statement, signature)
