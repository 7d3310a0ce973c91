"""Entries of the ledger: the start of a run, the decision of a round, a resume by another plan, the files at the end.

Canonical JSON throughout. An entry names its number and the hash of the one before, so that its place is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.files import FinalFiles
from grandrounds.audit.merkle import leaf_hash
from grandrounds.core.errors import BadInput
from grandrounds.models.protocol import Calibration
from grandrounds.protocol.identity import Identity, signed_by

Content = dict[str, Any]
"""The JSON of an entry; `find_fault` checks its form."""

SCHEMA = 1
OPEN, ROUND, RESUME, CLOSE = "open", "round", "resume", "close"
VERSION = 2
"""Version of what entries cover. Since 2 a closing entry names every file that people read; version 1 named model files alone."""
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
    def sign(cls, content: Mapping[str, object], *, number: int, previous: str, identity: Identity) -> Entry:
        """Sign an entry in its place."""
        body = canonical({**content, "schema": SCHEMA, "number": number, "previous": previous})
        return cls(body, identity.sign(_SIGNED + leaf_hash(body)))

    @cached_property
    def content(self) -> Content:
        """The content of the entry, parsed.

        Raises:
            BadInput: It is damaged, or of another schema.
        """
        value = parse(self.body)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise BadInput(f"is no entry of schema {SCHEMA}", code="bad-ledger-entry")
        return value

    @cached_property
    def leaf(self) -> bytes:
        return leaf_hash(self.body)

    @cached_property
    def hash(self) -> str:
        """The hash that the next entry calls `previous`."""
        return hashlib.sha256(self.body).hexdigest()

    def is_signed_by(self, key: bytes) -> bool:
        return signed_by(key, _SIGNED + self.leaf, self.signature)


def plan_hash(plan: Mapping[str, object]) -> str:
    """Return the SHA-256 of the resolved experiment; its seed as text, for it may be larger than a number in JSON."""
    return hashlib.sha256(canonical({**plan, "seed": str(plan["seed"])})).hexdigest()


def opening_entry(run: str, *, first: int, plan: str, server: bytes, sites: Mapping[str, bytes], keys: str) -> Content:
    """Make the first entry: the keys that sign the ledger, and its first round."""
    all_keys = {"server": server.hex(), "sites": {site: key.hex() for site, key in sites.items()}, "made": keys}
    return {"kind": OPEN, "run": run, "first": first, "plan": plan, "keys": all_keys, "version": VERSION}


def resume_entry(run: str, *, round: int, plan: str) -> Content:
    """Make the entry of a run that resumes by another plan: with more rounds, another calibration or another engine."""
    return {"kind": RESUME, "run": run, "round": round, "plan": plan}


def round_entry(run: str, record: Mapping[str, Any], *, reference: Mapping[str, str]) -> Content:
    """Make the entry of one round, from its line in the journal: the Decision, and the hashes taken in the round."""
    facts = record["ledger"]
    return {
        "kind": ROUND,
        "run": run,
        "round": record["round"],
        "decision": without_seconds(record["decision"]),
        "model": facts["model"],
        "served": facts["served"],
        "explanation": facts["explanation"],
        "commitments": facts["commitments"],
        "reference": dict(reference),
        "plan": facts["plan"],
    }


def without_seconds(decision: Mapping[str, Any]) -> Content:
    """Return a Decision without the seconds that it took on this machine: the same experiment gives the same ledger anywhere."""
    return {**decision, "cost": {name: value for name, value in decision["cost"].items() if name != "seconds"}}


def closing_entry(
    run: str,
    *,
    round: int,
    model: str,
    calibration: Calibration | None,
    plan: str,
    ended: FinalFiles,
    released: Sequence[Mapping[str, object]] = (),
) -> Content:
    """Make the last entry of a run: the round whose model was kept, its hash after calibration, and the hashes of all files.

    `released`: what patients were charged for outside the rounds, such as a private calibration; all of it so far.
    """
    temperature, platt = (None, None) if calibration is None else (calibration.temperature, calibration.platt)
    facts = {"round": round, "model": model, "temperature": temperature, "plan": plan, "files": dict(ended.files)}
    read_files = {
        "contents": {name: dict(keys) for name, keys in ended.contents.items()},
        "figures": dict(ended.figures),
    }
    more = {**({} if platt is None else {"platt": platt}), **({"released": list(released)} if released else {})}
    return {"kind": CLOSE, "run": run, **facts, **read_files, **more}


def covers_files(close: Mapping[str, object]) -> bool:
    """Tell a closing entry that names every file that people read from one of version 0.1, which names models alone."""
    return "contents" in close


def find_fault(content: Content) -> str:
    """Name the part of an entry that is missing or of the wrong type; nothing where it is as it should be."""
    kind = content.get("kind")
    wanted = _PARTS.get(str(kind))
    if wanted is None:
        return f"there is no kind of entry {str(kind)[:80]!r}"
    for name, (types, required) in wanted.items():
        if name not in content:
            if required:
                return f"it has no '{name}'"
        elif not isinstance(content[name], types) or isinstance(content[name], bool):
            return f"its '{name}' is of the wrong type"
    if kind == ROUND:
        return _decision_fault(content["decision"])
    if kind == CLOSE and not _are_texts(content["files"]):
        return "its 'files' are not hashes by name"
    if kind == CLOSE and not all(isinstance(v, dict) and _are_texts(v) for v in content.get("contents", {}).values()):
        return "its 'contents' are not hashes by file and key"
    if kind == OPEN and not isinstance(content["keys"].get("made"), str):
        return "its 'keys' do not say how they were made"
    return ""


_NULL = type(None)
_PARTS: Mapping[str, Mapping[str, tuple[Any, bool]]] = {
    OPEN: {
        "run": (str, True),
        "first": (int, True),
        "plan": (str, True),
        "keys": (dict, True),
        "version": (int, False),
    },
    ROUND: {
        "run": (str, True),
        "round": (int, True),
        "decision": (dict, True),
        "model": (str, True),
        "served": (str, True),
        "explanation": ((str, _NULL), True),
        "commitments": (dict, True),
        "reference": (dict, True),
        "plan": (str, True),
    },
    RESUME: {"run": (str, True), "round": (int, True), "plan": (str, True)},
    CLOSE: {
        "run": (str, True),
        "round": (int, True),
        "model": (str, True),
        "temperature": ((int, float, _NULL), True),
        "platt": ((dict, list), False),
        "files": (dict, True),
        "plan": (str, False),
        "contents": (dict, False),
        "figures": (dict, False),
        "released": (list, False),
    },
}
"""Parts of each kind of entry: their types, and which of them are always there."""

_DECISION = {"weights": dict, "signals": dict, "stages": list, "asked": list, "missing": dict, "cost": dict}


def _decision_fault(decision: Content) -> str:
    for name, kind in _DECISION.items():
        if not isinstance(decision.get(name), kind):
            return f"its decision has no '{name}' of the right type"
    stages = decision["stages"]
    if not all(
        isinstance(s, dict) and isinstance(s.get("weights"), dict) and isinstance(s.get("why"), str) for s in stages
    ):
        return "a stage of its decision has no weights"
    return ""


def _are_texts(values: Mapping[str, object]) -> bool:
    return all(isinstance(v, str) for v in values.values())
