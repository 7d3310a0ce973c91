"""Entries in the ledger of a register of models: roles, signatories, candidates, approvals, use and withdrawals.

The register signs each entry with its own key, which lies beside the ledger. A decision of a person also has that person's
signature, made with a key that only their passphrase opens. It covers the entry and, by the hash of the entry before it, the
whole history: it cannot be moved, repeated or used in another register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from grandrounds.audit.canonical import canonical
from grandrounds.protocol.identity import PUBLIC_BYTES, SIGNATURE_BYTES, Identity, signed_by

Content = dict[str, Any]

START, ROLES, SIGNATORY, END_SIGNATORY = "register-start", "roles", "signatory", "end-signatory"
CANDIDATE, APPROVE, USE, WITHDRAW_MODEL = "candidate", "approve", "use", "withdraw-model"
KINDS = (START, ROLES, SIGNATORY, END_SIGNATORY, CANDIDATE, APPROVE, USE, WITHDRAW_MODEL)
DECISIONS = (APPROVE, USE, WITHDRAW_MODEL)
"""Decisions of one signatory about one model."""

NAME = "register"
"""Name of the register in its entries and heads, where the ledger of a run has the run's name."""

LONGEST, MOST = 2000, 1000
"""Longest text of an entry in characters, and most names in a list."""

_SIGNED, _PROOF = b"grandrounds/register/1\x00", b"grandrounds/register-key/1\x00"
_PLACE = ("schema", "number", "previous")
_COMMON: Mapping[str, tuple[Any, bool]] = {"run": (str, True), "date": (str, True)}
_CHANGE: Mapping[str, tuple[Any, bool]] = {
    **_COMMON, "note": (str, True), "after": (str, True), "signatures": (dict, True),
}  # fmt: skip
_DECISION: Mapping[str, tuple[Any, bool]] = {
    **_CHANGE,
    "candidate": (int, True),
    "by": (str, True),
    "role": (str, True),
}
PARTS: Mapping[str, Mapping[str, tuple[Any, bool]]] = {
    START: {**_COMMON, "keys": (dict, True), "roles": (list, True), "note": (str, True)},
    ROLES: {**_CHANGE, "roles": (list, True)},
    SIGNATORY: {**_CHANGE, "name": (str, True), "role": (str, True), "key": (str, True), "proof": (str, True)},
    END_SIGNATORY: {**_CHANGE, "name": (str, True)},
    CANDIDATE: {
        **_COMMON,
        "model": (dict, True),
        "purpose": (str, True),
        "hospitals": (list, True),
        "by": (str, True),
        "note": (str, True),
    },
    APPROVE: _DECISION,
    USE: {**_DECISION, "hospitals": (list, True)},
    WITHDRAW_MODEL: _DECISION,
}
"""Parts of each kind of entry: types, and whether they are required."""

MODEL = {"run": str, "folder": str, "model": str, "summary": str, "entries": int, "root": str}
"""The model of a candidate: the run's name and folder, SHA-256 of model.safetensors and summary.json, and the head of the
run's ledger.
"""


def start_entry(*, date: str, key: bytes, roles: Sequence[str], note: str) -> Content:
    """Create the first entry of a register: its public key, and the roles that must approve a model."""
    keys = {"register": key.hex(), "made": "the register and every signatory have a key of their own"}
    return {"kind": START, "run": NAME, "date": date, "keys": keys, "roles": list(roles), "note": note}


def candidate_entry(
    *, date: str, model: Mapping[str, Any], purpose: str, hospitals: Sequence[str], by: str, note: str
) -> Content:
    """Create the entry by which a model becomes a candidate.

    Args:
        date: Day and time, UTC.
        model: As `MODEL` says.
        purpose: The intended use.
        hospitals: Hospitals at which the model may be used once it is approved.
        by: The person who proposes it; no signature is needed.
        note: A remark.

    Returns:
        The content.
    """
    facts = {"model": dict(model), "purpose": purpose, "hospitals": list(hospitals), "by": by, "note": note}
    return {"kind": CANDIDATE, "run": NAME, "date": date, **facts}


def decision_entry(
    kind: str, *, date: str, candidate: int, by: str, role: str, note: str, hospitals: Sequence[str] | None = None
) -> Content:
    """Create the entry of a signatory's decision about a candidate, still without `after` and `signatures`."""
    content = {"kind": kind, "run": NAME, "date": date, "candidate": candidate, "by": by, "role": role, "note": note}
    return content if hospitals is None else {**content, "hospitals": list(hospitals)}


def signatory_entry(*, date: str, name: str, role: str, identity: Identity, note: str) -> Content:
    """Create the entry that names a signatory; `proof` shows that the key is in this person's hands."""
    content = {"kind": SIGNATORY, "run": NAME, "date": date, "name": name, "role": role, "note": note}
    content["key"] = identity.public.hex()
    return {**content, "proof": identity.sign(_PROOF + canonical(content)).hex()}


def end_entry(*, date: str, name: str, note: str) -> Content:
    """Create the entry after which a signatory signs nothing more."""
    return {"kind": END_SIGNATORY, "run": NAME, "date": date, "name": name, "note": note}


def roles_entry(*, date: str, roles: Sequence[str], note: str) -> Content:
    """Create the entry that changes the roles that must approve a model."""
    return {"kind": ROLES, "run": NAME, "date": date, "roles": list(roles), "note": note}


def sign_entry(content: Content, signatories: Mapping[str, Identity], *, after: str) -> Content:
    """Add the signatures of people to an entry.

    Args:
        content: The entry.
        signatories: Each person's key by name; none while a register is being set up.
        after: Hash of the entry before it.

    Returns:
        The content with its signatures.
    """
    whole = {**content, "after": after}
    text = _SIGNED + canonical(whole)
    return {**whole, "signatures": {name: identity.sign(text).hex() for name, identity in signatories.items()}}


def is_signed_by_person(content: Content, name: str, key: bytes) -> bool:
    """Verify the signature of a person in an entry."""
    text = _SIGNED + canonical({n: v for n, v in content.items() if n not in (*_PLACE, "signatures")})
    return signed_by(key, text, bytes.fromhex(content["signatures"][name]))


def has_valid_proof(content: Content) -> bool:
    """Verify that the person whom an entry names has the key in it."""
    left_out = (*_PLACE, "signatures", "after", "proof")
    text = _PROOF + canonical({n: v for n, v in content.items() if n not in left_out})
    return signed_by(bytes.fromhex(content["key"]), text, bytes.fromhex(content["proof"]))


def part_fault(content: Content) -> str:
    """Name a part of an entry of a register whose values are of the wrong form; "" if there is none."""
    kind = content["kind"]
    if content["run"] != NAME or type(content.get("number", 0)) is not int:
        return f"its 'run' is not {NAME!r}, or its 'number' is no number"
    if not _is_time(content["date"]):
        return "its 'date' is not a time with its zone"
    for name, value in content.items():
        if isinstance(value, str) and len(value) > LONGEST:
            return f"its '{name}' has more than {LONGEST} characters"
    for name in ("roles", "hospitals"):
        values = content.get(name, [])
        if not all(isinstance(v, str) and v for v in values) or len(set(values)) != len(values) or len(values) > MOST:
            return f"its '{name}' are not different names"
    if kind in (START, ROLES) and not content["roles"]:
        return "it names no role"
    if kind == START and not (_is_hex(content["keys"].get("register"), PUBLIC_BYTES)):
        return "it does not name the register's key"
    if kind == CANDIDATE:
        model = content["model"]
        if set(model) != set(MODEL) or not all(type(model[name]) is type_ for name, type_ in MODEL.items()):
            return "it does not name the model by its run, its hashes and the head of the run's ledger"
    if kind == SIGNATORY and not (_is_hex(content["key"], PUBLIC_BYTES) and _is_hex(content["proof"], SIGNATURE_BYTES)):
        return "it does not have the signatory's key and its proof"
    signatures = content.get("signatures", {})
    if not all(_is_hex(value, SIGNATURE_BYTES) for value in signatures.values()):
        return "its 'signatures' are not signatures by name"
    if kind in DECISIONS and set(signatures) != {content["by"]}:
        return f"it is not signed by {content['by']!r} alone"
    return ""


def _is_hex(value: object, size: int) -> bool:
    return isinstance(value, str) and len(value) == 2 * size and not set(value) - set("0123456789abcdef")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
