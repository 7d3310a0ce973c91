"""`anchors.json` of a run folder: on which chain, in which contract and transactions its rounds were anchored.

A help for people, not a proof: what counts is what the chain says.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.chain.contract import Contract
from grandrounds.audit.chain.node import Receipt
from grandrounds.audit.chain.spans import Span
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput

NAME = "anchors.json"


@dataclass(frozen=True)
class Record:
    """The part of a run's record that is about one contract on one chain."""

    path: Path
    chain: int
    contract: str

    @classmethod
    def begin(cls, folder: Path, contract: Contract, run: bytes) -> Record:
        """Write down where a run is anchored; the same contract on another chain is a node that was mistaken."""
        made = cls(folder / NAME, contract.node.chain, contract.address)
        known = made._load()
        for place in known:
            if place["contract"] == made.contract and place["chain"] != made.chain:
                raise BadInput(
                    f"{made.path} has contract {made.contract} on chain {place['chain']}, but the node at "
                    f"{contract.node.place} is of chain {made.chain}: check --rpc",
                    code="other-chain",
                )
        if not any(made._is(place) for place in known):
            known.append({"chain": made.chain, "contract": made.contract, "run": run.hex(), "spans": []})
            made._save(known)
        return made

    def add(self, span: Span, receipt: Receipt) -> None:
        """One more span, with the transaction that anchored it."""
        known = self._load()
        [place] = [p for p in known if self._is(p)]
        facts = {k: v for k, v in asdict(receipt).items() if k != "contract"}
        place["spans"].append({"first": span.first, "last": span.last, "hash": span.hash.hex(), **facts})
        self._save(known)

    def _is(self, place: dict[str, Any]) -> bool:
        return bool(place["chain"] == self.chain and place["contract"] == self.contract)

    def _load(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            places: list[dict[str, Any]] = json.loads(self.path.read_bytes())["anchors"]
            for place in places:
                _ = place["chain"], place["contract"], place["spans"]
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(
                f"{self.path} cannot be read: move it away; the chain itself is what counts", code="damaged-file"
            ) from None
        return places

    def _save(self, places: list[dict[str, Any]]) -> None:
        data = json.dumps({"schema": 1, "anchors": places}, indent=1).encode()
        try:
            write_atomic(self.path, data)
        except OSError as e:
            raise BadInput(f"cannot write {self.path}: {e.strerror or e}", code="cannot-write") from None
