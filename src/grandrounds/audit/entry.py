"""Entries of the ledger: start of a run, decision of a round, resume with another plan, files at the end, withdrawal of a site.

Entries of a watch are in `watch_entry.py`, those of a register of models in `register_entry.py`. All entries are canonical
JSON. An entry contains its number and the hash of the previous one, so its position is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grandrounds.audit import register_entry, watch_entry
from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.files import FinalFiles
from grandrounds.audit.merkle import leaf_hash
from grandrounds.core.errors import BadInput
from grandrounds.models.protocol import Calibration
from grandrounds.protocol.identity import Identity, signed_by

Content = dict[str, Any]
"""JSON of an entry; `find_fault` checks its form."""

SCHEMA = 1
OPEN, ROUND, RESUME, CLOSE, WITHDRAW = "open", "round", "resume", "close", "withdraw"
VERSION = 2
"""Version of the entries, in the opening entry: a closing entry names every file that people read."""
NOTHING = "0" * 64
"""The hash before the first entry."""

SIMULATED = "every key follows from the experiment's seed: whoever knows it can sign as anybody"
SIMULATED_KEYS = f"keys are simulated: {SIMULATED}"
OWN = "the server and every site have a key of their own"
_SIGNED = b"grandrounds/entry/1\x00"


@dataclass(frozen=True)
class Entry:
    """One stored entry: canonical bytes and the server's signature."""

    body: bytes
    signature: bytes

    @classmethod
    def sign(cls, content: Mapping[str, object], *, number: int, previous: str, identity: Identity) -> Entry:
        """Sign an entry at its position."""
        body = canonical({**content, "schema": SCHEMA, "number": number, "previous": previous})
        return cls(body, identity.sign(_SIGNED + leaf_hash(body)))

    @cached_property
    def content(self) -> Content:
        """Parsed content of the entry.

        Raises:
            BadInput: It is damaged, or has another schema.
        """
        value = parse(self.body)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise BadInput(f"is not an entry of schema {SCHEMA}", code="bad-ledger-entry")
        return value

    @cached_property
    def leaf(self) -> bytes:
        return leaf_hash(self.body)

    @cached_property
    def hash(self) -> str:
        """Hash that the next entry names as `previous`."""
        return hashlib.sha256(self.body).hexdigest()

    def is_signed_by(self, key: bytes) -> bool:
        return signed_by(key, _SIGNED + self.leaf, self.signature)


def plan_hash(plan: Mapping[str, object]) -> str:
    """Compute the SHA-256 of the resolved experiment, with its seed as text, because it may exceed a JSON number."""
    return hashlib.sha256(canonical({**plan, "seed": str(plan["seed"])})).hexdigest()


def opening_entry(
    run: str,
    *,
    first: int,
    plan: str,
    server: bytes,
    sites: Mapping[str, bytes],
    keys: str,
    repeats: Mapping[str, object] | None = None,
    cohort: str | None = None,
) -> Content:
    """Create the first entry: the keys that sign the ledger, and its first round.

    `repeats`: the earlier run that this one repeats without a site that withdrew, by its ledger's head and its model. `cohort`:
    digest of the cohort that the plan has.
    """
    all_keys = {"server": server.hex(), "sites": {site: key.hex() for site, key in sites.items()}, "made": keys}
    entry = {"kind": OPEN, "run": run, "first": first, "plan": plan, "keys": all_keys, "version": VERSION}
    entry |= {} if cohort is None else {"cohort": cohort}
    return entry if repeats is None else {**entry, "repeats": dict(repeats)}


def withdrawal_entry(run: str, *, site: str, date: str, valid: Mapping[str, object]) -> Content:
    """Create the entry after which the model of a run is no longer valid, because a site withdrew.

    Args:
        run: Name of the run.
        site: The site.
        date: Day and time of the withdrawal, UTC.
        valid: The run that is valid now: its name, its folder, the head of its ledger and the hash of its model.

    Returns:
        The content.
    """
    return {"kind": WITHDRAW, "run": run, "site": site, "date": date, "valid": dict(valid)}


def resume_entry(run: str, *, round: int, plan: str) -> Content:
    """Create the entry of a run that is resumed with another plan: more rounds, another calibration or another engine."""
    return {"kind": RESUME, "run": run, "round": round, "plan": plan}


def round_entry(run: str, record: Mapping[str, Any], *, reference: Mapping[str, str]) -> Content:
    """Create the entry of one round from its line in the journal: the Decision, and the round's hashes."""
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
    """Return a Decision without its measured seconds, so that the same experiment has the same ledger on any machine."""
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
    """Create the last entry of a run: the round of the final model, its hash after calibration, and the hashes of all
    files.

    Args:
        run: Name of the run.
        round: Round of the final model.
        model: Hash of the model.
        calibration: The fitted calibration, if any.
        plan: Hash of the plan.
        ended: The files of the run.
        released: All privacy charges outside the rounds, such as a private calibration.

    Returns:
        The content.
    """
    temperature, platt = (None, None) if calibration is None else (calibration.temperature, calibration.platt)
    facts = {"round": round, "model": model, "temperature": temperature, "plan": plan, "files": dict(ended.files)}
    read_files = {
        "contents": {name: dict(keys) for name, keys in ended.contents.items()},
        "figures": dict(ended.figures),
    }
    more = {**({} if platt is None else {"platt": platt}), **({"released": list(released)} if released else {})}
    return {"kind": CLOSE, "run": run, **facts, **read_files, **more}


def find_fault(content: Content) -> str:
    """Name the part of an entry that is missing or of the wrong type; empty if the entry is valid."""
    kind = content.get("kind")
    wanted = _PARTS.get(str(kind))
    if wanted is None:
        return f"its kind {str(kind)[:80]!r} is unknown"
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
    if kind == CLOSE and not all(isinstance(v, dict) and _are_texts(v) for v in content["contents"].values()):
        return "its 'contents' are not hashes by file and key"
    other = content.get("repeats" if kind == OPEN else "valid", _OTHER_RUN)
    if kind in (OPEN, WITHDRAW) and not all(isinstance(other.get(name), type(v)) for name, v in _OTHER_RUN.items()):
        return "it does not name the other run by its run, folder, entries, root and model"
    if kind == OPEN and content["version"] != VERSION:
        return f"its version is {content['version']}, and this version of Grand Rounds reads ledgers of version {VERSION}"
    if kind == OPEN and not isinstance(content["keys"].get("made"), str):
        return "its 'keys' do not state how they were made"
    if kind in register_entry.KINDS:
        return register_entry.part_fault(content)
    return watch_entry.part_fault(content) if kind in watch_entry.KINDS else ""


_OTHER_RUN = {"run": "", "folder": "", "entries": 0, "root": "", "model": ""}
"""Parts by which an entry names another run, with an example of each type."""

_NULL = type(None)
_PARTS: Mapping[str, Mapping[str, tuple[Any, bool]]] = {
    OPEN: {
        "run": (str, True),
        "first": (int, True),
        "plan": (str, True),
        "keys": (dict, True),
        "version": (int, True),
        "repeats": (dict, False),
        "cohort": (str, False),
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
    WITHDRAW: {"run": (str, True), "site": (str, True), "date": (str, True), "valid": (dict, True)},
    CLOSE: {
        "run": (str, True),
        "round": (int, True),
        "model": (str, True),
        "temperature": ((int, float, _NULL), True),
        "platt": ((dict, list), False),
        "files": (dict, True),
        "plan": (str, True),
        "contents": (dict, True),
        "figures": (dict, True),
        "released": (list, False),
    },
    **watch_entry.PARTS,
    **register_entry.PARTS,
}
"""Parts of each kind of entry: types, and whether they are required."""

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
