"""`anchors.json` of a run folder: chain, contract and transactions of its anchored rounds.

It helps people and proves nothing; only the chain counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.spans import Span
from grandrounds.capabilities.integrations.chain.contract import Contract
from grandrounds.capabilities.integrations.chain.node import Receipt
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput

NAME = "anchors.json"

Place = dict[str, Any]
"""One contract on one chain in the file, as JSON."""


@dataclass(frozen=True)
class Record:
    """The part of a run's record about one contract on one chain."""

    path: Path
    chain: int
    contract: str

    @classmethod
    def begin(cls, folder: Path, contract: Contract, run: bytes) -> Record:
        """Record the contract of a run; the same contract on another chain indicates a wrong node."""
        record = cls(folder / NAME, contract.node.chain, contract.address)
        places = record._load()
        for place in places:
            if place["contract"] == record.contract and place["chain"] != record.chain:
                raise BadInput(
                    f"{record.path} has contract {record.contract} on chain {place['chain']}, but the node at "
                    f"{contract.node.place} is of chain {record.chain}: check --rpc",
                    code="other-chain",
                )
        if not any(record._matches(place) for place in places):
            places.append({"chain": record.chain, "contract": record.contract, "run": run.hex(), "spans": []})
            record._save(places)
        return record

    def add(self, span: Span, receipt: Receipt) -> None:
        """Add a span with its transaction."""
        places = self._load()
        [place] = [p for p in places if self._matches(p)]
        facts = {k: v for k, v in asdict(receipt).items() if k != "contract"}
        place["spans"].append({"first": span.first, "last": span.last, "hash": span.hash.hex(), **facts})
        self._save(places)

    def _matches(self, place: Place) -> bool:
        return bool(place["chain"] == self.chain and place["contract"] == self.contract)

    def _load(self) -> list[Place]:
        if not self.path.exists():
            return []
        try:
            places: list[Place] = json.loads(self.path.read_bytes())["anchors"]
            for place in places:
                _ = place["chain"], place["contract"], place["spans"]
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(
                f"{self.path} cannot be read: move it away; only the chain itself counts", code="damaged-file"
            ) from None
        return places

    def _save(self, places: list[Place]) -> None:
        data = json.dumps({"schema": 1, "anchors": places}, indent=1).encode()
        try:
            write_atomic(self.path, data)
        except OSError as e:
            raise BadInput(f"cannot write {self.path}: {e.strerror or e}", code="cannot-write") from None
