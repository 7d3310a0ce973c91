"""What an entry of the ledger says: how a run began, what a round decided, which files a run ended with.

Canonical JSON throughout. An entry names its number and the hash of the one before, so that its place is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.merkle import leaf_hash
from grandrounds.errors import BadInput
from grandrounds.identity import Identity, signed_by
from grandrounds.models.calibrated import Calibration

SCHEMA = 1
OPEN, ROUND, CLOSE = "open", "round", "close"
NOTHING = "0" * 64
"""The hash before the first entry."""

SIMULATED = "every key follows from the experiment's seed: whoever knows it can sign as anybody"
OWN = "the server and every site have a key of their own"
_SIGNED = b"grandrounds/entry/1\x00"


@dataclass(frozen=True)
class Entry:
    """One entry as it is stored: canonical bytes and the server's signature."""

    body: bytes
    signature: bytes

    @classmethod
    def signed(cls, said: Mapping[str, Any], *, number: int, previous: str, identity: Identity) -> Entry:
        """An entry in its place."""
        body = canonical({**said, "schema": SCHEMA, "number": number, "previous": previous})
        return cls(body, identity.sign(_SIGNED + leaf_hash(body)))

    @cached_property
    def said(self) -> dict[str, Any]:
        """What it says; an entry that is damaged is refused."""
        value = parse(self.body)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise BadInput(f"is no entry of schema {SCHEMA}")
        return value

    @cached_property
    def leaf(self) -> bytes:
        return leaf_hash(self.body)

    @cached_property
    def hash(self) -> str:
        """What the next entry calls `previous`."""
        return hashlib.sha256(self.body).hexdigest()

    def is_signed_by(self, key: bytes) -> bool:
        return signed_by(key, _SIGNED + self.leaf, self.signature)


def plan_hash(plan: Mapping[str, Any]) -> str:
    """SHA-256 of the resolved experiment; its seed as text, for it may be larger than a number in JSON."""
    return hashlib.sha256(canonical({**plan, "seed": str(plan["seed"])})).hexdigest()


def opening(run: str, *, first: int, plan: str, server: bytes, sites: Mapping[str, bytes], keys: str) -> dict[str, Any]:
    """How a ledger begins: whose keys sign it, from which round on."""
    known = {"server": server.hex(), "sites": {site: key.hex() for site, key in sites.items()}, "made": keys}
    return {"kind": OPEN, "run": run, "first": first, "plan": plan, "keys": known}


def of_round(run: str, record: Mapping[str, Any], *, reference: Mapping[str, str]) -> dict[str, Any]:
    """One round, from its line in the journal: the Decision with weights and signals, and the hashes taken in the round."""
    facts = record["ledger"]
    return {
        "kind": ROUND,
        "run": run,
        "round": record["round"],
        "decision": timeless(record["decision"]),
        "model": facts["model"],
        "served": facts["served"],
        "explanation": facts["explanation"],
        "commitments": facts["commitments"],
        "reference": dict(reference),
        "plan": facts["plan"],
    }


def timeless(decision: Mapping[str, Any]) -> dict[str, Any]:
    """A Decision without the seconds it took on this machine: the same experiment gives the same ledger anywhere."""
    return {**decision, "cost": {name: value for name, value in decision["cost"].items() if name != "seconds"}}


def closing(
    run: str,
    *,
    round: int,
    model: str,
    calibration: Calibration | None,
    files: Mapping[str, str],
    released: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """How a run ended: the round whose model was kept, its hash after calibration, and the SHA-256 of the model files.

    `released`: what patients were charged for outside the rounds, such as a private calibration; all of it so far.
    """
    temperature, platt = (None, None) if calibration is None else (calibration.temperature, calibration.platt)
    facts = {"round": round, "model": model, "temperature": temperature, "files": dict(files)}
    more = {**({} if platt is None else {"platt": platt}), **({"released": list(released)} if released else {})}
    return {"kind": CLOSE, "run": run, **facts, **more}
