"""Verify a dossier: the ledger's proofs, the evidence that the closing entry names, and every figure, by building it again."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from grandrounds.audit.book import read_keys
from grandrounds.audit.canonical import canonical
from grandrounds.audit.entry import CLOSE, OPEN, SIMULATED
from grandrounds.audit.files import hash_values, read_file
from grandrounds.audit.head import SignedHead, unhex
from grandrounds.audit.merkle import includes, leaf_hash
from grandrounds.audit.watch_entry import START
from grandrounds.capabilities.dossier.building.documents import build_documents
from grandrounds.capabilities.dossier.building.evidence import (
    DISCLOSURES,
    FOLDER,
    LEDGER,
    MADE,
    PLAN,
    SUMMARY,
    WATCH_LEDGERS,
    Evidence,
    find_plan_difference,
)
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import FILE as ANSWERS
from grandrounds.capabilities.dossier.building.writer import ALL, MANIFEST, PDF, load_answers, render, write_manifest
from grandrounds.core.errors import BadInput

_SHOWN = 160
_LEAST_DIGITS = 16
"""Digits of a SHA-256 that a signature must give at least."""
_DAMAGE = (BadInput, ValueError, KeyError, TypeError, AttributeError, LookupError, RecursionError)


@dataclass(frozen=True)
class Difference:
    """A fault of a dossier.

    Attributes:
        file: The file.
        place: Line, value or entry in it; empty for the whole file.
        fault: What differs, with the right text where it is known.
    """

    file: str
    place: str
    fault: str

    @property
    def line(self) -> str:
        """The fault as one line."""
        return f"{self.file}{f', {self.place}' if self.place else ''}: {self.fault}"


@dataclass
class Verification:
    """Result of verifying a dossier.

    Attributes:
        differences: Faults; none if the dossier is as it was written.
        checked: Parts that were compared, one line each.
        signed: Files of the evidence that the ledger covers, and that are as it names them.
        unsigned: Files that only the manifest covers, because the ledger's closing entry does not name them.
        notes: Further information.
        manifest: SHA-256 of manifest.json.
    """

    differences: list[Difference] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    signed: set[str] = field(default_factory=set)
    unsigned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    manifest: str = ""

    def add(self, file: str, place: str, fault: str) -> None:
        """Add a fault."""
        self.differences.append(Difference(file, place, fault))

    def to_dict(self) -> dict[str, Any]:
        return {
            "verifies": not self.differences,
            "differences": [vars(d) for d in self.differences],
            "checked": self.checked,
            "unsigned": self.unsigned,
            "notes": self.notes,
            "manifest": self.manifest,
        }


def verify_dossier(folder: Path, *, key: bytes | None = None, manifest: str = "", run: Path | None = None) -> Verification:
    """Verify a dossier and name each altered figure.

    Args:
        folder: The dossier.
        key: The server's public key; None: the one that the ledger's first entry names.
        manifest: SHA-256 of manifest.json, or its first digits, as a signature names it; empty: not compared.
        run: The run folder, to collect the evidence again and compare it too.

    Returns:
        The result.

    Raises:
        BadInput: The folder is not a dossier.
    """
    out = Verification()
    evidence, files = Evidence.read(folder), _read_files(folder)
    closing = _check_ledger(out, evidence, key)
    _check_watches(out, evidence)
    _check_evidence(out, evidence, closing)
    listed = _read_manifest(out, files, manifest)
    right = _check_documents(out, folder, files, evidence, listed)
    _check_manifest(out, files, listed, right)
    if run is not None:
        _compare_run(out, evidence, run)
    return out


def _read_files(folder: Path) -> dict[str, bytes]:
    paths = sorted(p for p in folder.rglob("*") if not p.is_dir())
    return {p.relative_to(folder).as_posix(): read_file(p) for p in paths}


def _check_ledger(out: Verification, evidence: Evidence, key: bytes | None) -> Mapping[str, Any] | None:
    """Check the inclusion proofs and the head; return the closing entry if they are valid."""
    if LEDGER not in evidence.files:
        out.notes.append("the run has no ledger: the evidence is covered by the manifest alone")
        return None
    where, before = f"{FOLDER}/{LEDGER}", len(out.differences)
    try:
        head, entries = _check_inclusion(out, where, evidence.json(LEDGER))
        size, opening = head.head.size, entries[0]
        if opening.get("kind") != OPEN:
            out.add(where, "entries", "the first entry is not the start of the run")
            return None
        named, sites = read_keys(opening)
        if not head.head.is_signed_by(key or named, head.signature):
            out.add(where, "head", "it is not signed with the server's key")
        for site, signature in head.witnesses.items():
            if site not in sites or not head.head.is_countersigned_by(sites[site], signature):
                out.add(where, "head", f"the countersignature of {site[:80]} is not valid")
        if opening["keys"].get("made") == SIMULATED:
            out.notes.append("the ledger's keys are simulated: whoever knows the seed can sign it")
    except _DAMAGE as e:
        out.add(where, "", f"it is damaged ({type(e).__name__}: {str(e)[:_SHOWN]})")
        return None
    if len(out.differences) > before:
        return None
    out.checked.append(f"{LEDGER}: {len(entries)} entries by inclusion proofs, and the signed head over {size} entries")
    return next((entry for entry in reversed(entries) if entry["kind"] == CLOSE), None)


def _check_inclusion(out: Verification, where: str, values: Any) -> tuple[SignedHead, list[dict[str, Any]]]:
    """Check the inclusion proofs of a ledger's entries; return its head and the entries."""
    head = SignedHead.from_json(values["head"])
    proved = [(dict(item["entry"]), [unhex(n, 32, "a hash") for n in item["path"]]) for item in values["entries"]]
    size = head.head.size
    if values["size"] != size:
        out.add(where, "size", f"it is {values['size']}, the signed head is over {size} entries")
    for entry, path in proved:
        number, leaf = entry.get("number"), leaf_hash(canonical(entry))
        if type(number) is not int or not includes(head.head.root, size, number=number, leaf=leaf, path=path):
            place = f"entry {str(number)[:20]} ({str(entry.get('kind'))[:20]})"
            out.add(where, place, "it is not the entry under the signed head")
    return head, [entry for entry, _ in proved]


def _check_watches(out: Verification, evidence: Evidence) -> None:
    """Check the inclusion proofs and the signed head of each site's watch, by the key that its first entry names."""
    for name in sorted(n for n in evidence.files if n.startswith(f"{WATCH_LEDGERS}/")):
        where, before = f"{FOLDER}/{name}", len(out.differences)
        try:
            head, entries = _check_inclusion(out, where, evidence.json(name))
            if entries[0].get("kind") != START:
                out.add(where, "entries", "the first entry is not the start of a watch")
            elif not head.head.is_signed_by(bytes.fromhex(entries[0]["keys"]["site"]), head.signature):
                out.add(where, "head", "it is not signed with the site's key")
        except _DAMAGE as e:
            out.add(where, "", f"it is damaged ({type(e).__name__}: {str(e)[:_SHOWN]})")
            continue
        if len(out.differences) == before:
            out.checked.append(f"{name}: {len(entries)} entries by inclusion proofs, and the head that the site signed")


def _check_evidence(out: Verification, evidence: Evidence, closing: Mapping[str, Any] | None) -> None:
    """Compare the evidence with the hashes of the closing entry."""
    hashes: Mapping[str, str] = {} if closing is None else closing.get("files", {})
    for name in evidence.files:
        if name in hashes and closing is not None:
            if evidence.digest(name) != hashes[name]:
                for place, fault in _locate(evidence, name, closing):
                    out.add(f"{FOLDER}/{name}", place, fault)
            else:
                out.signed.add(name)
                out.checked.append(f"{name}: by the SHA-256 in the ledger's closing entry")
    try:
        if closing is not None and find_plan_difference(evidence, closing):
            out.add(f"{FOLDER}/{PLAN}", "", "it is not the plan that the ledger's closing entry names")
        elif closing is not None and "plan" in closing:
            out.signed.add(PLAN)
            out.checked.append(f"{PLAN}: by its hash in the ledger's closing entry")
    except _DAMAGE as e:
        out.add(f"{FOLDER}/{PLAN}", "", f"it is damaged ({type(e).__name__})")
    _check_disclosures(out, evidence)
    covered = {*hashes, *({PLAN} if closing is not None else ()), *out.signed, LEDGER}
    out.unsigned += [name for name in sorted(evidence.files) if name not in covered]


def _locate(evidence: Evidence, name: str, closing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name the values of an altered file, as far as the closing entry has their hashes."""
    known: Mapping[str, str] = closing.get("contents", {}).get(name, {})
    try:
        values = evidence.json(name) if known else {}
    except BadInput:
        yield "", "it is damaged, and is not the file that the ledger's closing entry names"
        return
    actual = hash_values(values)
    changed = [key for key in (*known, *(k for k in actual if k not in known)) if known.get(key) != actual.get(key)]
    figures = closing.get("figures", {}) if name == SUMMARY else {}
    found = False
    for key in changed:
        if key == "final" and isinstance(values.get(key), dict):
            for figure, right in figures.items():
                if values[key].get(figure) != right:
                    found = True
                    yield f"final.{figure}", f"it is {values[key].get(figure)!r}, the ledger has {right!r}"
            if found:
                continue
        found = True
        yield key, "its value is not the one that the ledger's closing entry names"
    if not found:
        yield "", "it is not the file that the ledger's closing entry names"


def _check_disclosures(out: Verification, evidence: Evidence) -> None:
    """List the disclosures again from the plan and the summary."""
    from grandrounds.analysis.privacy.disclosures import list_disclosures
    from grandrounds.core.plan_types import Plan
    from grandrounds.core.records import RunSummary

    try:
        summary = RunSummary.from_dict(evidence.json(SUMMARY), where=SUMMARY)
        right = list_disclosures(Plan(evidence.json(PLAN)), summary)
        stored = evidence.json(DISCLOSURES)["disclosures"]
    except _DAMAGE as e:
        out.add(f"{FOLDER}/{DISCLOSURES}", "", f"it cannot be compared ({type(e).__name__})")
        return
    if stored != right:
        wrong = [line for line in stored if line not in right] or [line for line in right if line not in stored]
        out.add(f"{FOLDER}/{DISCLOSURES}", "", f"it differs from what the plan and the summary give: {str(wrong[:1])[:_SHOWN]}")
    elif {PLAN, SUMMARY} <= out.signed:
        out.signed.add(DISCLOSURES)
        out.checked.append(f"{DISCLOSURES}: by listing the disclosures again from the plan and the summary")


def _read_manifest(out: Verification, files: Mapping[str, bytes], expected: str) -> dict[str, str]:
    """Read the hashes of the manifest, and compare its own hash with the expected one."""
    if MANIFEST not in files:
        out.add(MANIFEST, "", "it does not exist")
        return {}
    out.manifest = sha256(files[MANIFEST]).hexdigest()
    if expected and not (len(expected) >= _LEAST_DIGITS and out.manifest.startswith(expected.lower())):
        out.add(MANIFEST, "", f"its SHA-256 is {out.manifest}, not {expected[:64]}")
    try:
        values = json.loads(files[MANIFEST])
        listed = {str(name): str(digest) for name, digest in values["files"].items()}
        if write_manifest(listed) != files[MANIFEST]:
            out.add(MANIFEST, "", "it is not in the form in which it was written")
    except _DAMAGE:
        out.add(MANIFEST, "", "it is damaged")
        return {}
    return listed


def _check_manifest(out: Verification, files: Mapping[str, bytes], listed: Mapping[str, str], right: Mapping[str, bytes]) -> None:
    """Compare all files with the manifest. A file that is as the evidence gives it shows that the manifest was altered."""
    named = {d.file for d in out.differences}
    for name in sorted({*listed, *files} - {MANIFEST}) if listed else ():
        if name not in files:
            out.add(name, "", "it is listed in the manifest and does not exist")
        elif name not in listed:
            out.add(name, "", "the manifest does not list it")
        elif sha256(files[name]).hexdigest() != listed[name] and name not in named:
            if files[name] == right.get(name) or name.removeprefix(f"{FOLDER}/") in out.signed:
                out.add(MANIFEST, name, "its SHA-256 is not that of the file, which is as the evidence and the ledger give it")
            else:
                out.add(name, "", f"its SHA-256 is not the one in {MANIFEST}: one of the two was altered")
    if PDF in listed and PDF in files:
        out.unsigned.append(PDF)


def _check_documents(
    out: Verification, folder: Path, files: Mapping[str, bytes], evidence: Evidence, listed: Mapping[str, str]
) -> dict[str, bytes]:
    """Build the documents again and compare them line by line.

    Documents that are as the manifest lists them are not compared with evidence that was altered.

    Returns:
        The documents as the evidence gives them; empty where it was altered.
    """
    from grandrounds.runs.environment import own_version

    names = {name: f"{FOLDER}/{name}" for name in evidence.files}
    altered = {n for n, listing in names.items() if listing in listed and evidence.digest(n) != listed[listing]} - out.signed
    try:
        answers = load_answers(folder / ANSWERS)
        made = evidence.json(MADE)
        if made["version"] != own_version():
            out.notes.append(
                f"version {str(made['version'])[:20]} wrote it and this is {own_version()}: sentences may differ unaltered"
            )
        facts = Facts(evidence, answers, digests={name: listed[names[name]] for name in altered})
        right = render(build_documents(facts), evidence, answers)
    except _DAMAGE as e:
        out.add("documents", "", f"they cannot be built again from the evidence ({type(e).__name__}: {str(e)[:_SHOWN]})")
        return {}
    before = len(out.differences)
    for name, data in right.items():
        if name not in files:
            out.add(name, "", "it does not exist")
        elif files[name] != data and not (altered and sha256(files[name]).hexdigest() == listed.get(name)):
            for place, fault in _compare_lines(files[name], data):
                out.add(name, place, fault)
    if len(out.differences) == before and not altered:
        out.checked.append(f"{len(right)} files ({ALL} and documents): every figure, by building them again from the evidence")
    elif altered:
        out.notes.append(f"altered evidence was used to build the documents again: {', '.join(sorted(altered))}")
    return {} if altered else right


def _compare_lines(actual: bytes, right: bytes) -> Iterator[tuple[str, str]]:
    """Name the lines that differ, with the text that the evidence gives."""
    theirs, ours = actual.decode("utf-8", "replace").splitlines(), right.decode().splitlines()
    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False) if len(theirs) != len(ours) else None
    if matcher is None:
        changes = [(n, n + 1, n, n + 1) for n, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
    else:
        changes = [(a, b, c, d) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
    if not changes:
        yield "", "its line ends differ from those that were written"
    for a, b, c, d in changes:
        has, gives = " ".join(theirs[a:b]), " ".join(ours[c:d])
        start = max(next((n for n, (x, y) in enumerate(zip(has, gives, strict=False)) if x != y), 0) - 60, 0)
        has, gives = has[start : start + _SHOWN].strip(), gives[start : start + _SHOWN].strip()
        yield f"line {a + 1}", f"it has '{has}' where the evidence gives '{gives}'"


def _compare_run(out: Verification, evidence: Evidence, folder: Path) -> None:
    """Collect the evidence again from the run folder and compare it."""
    from grandrounds.runs.run import Run

    date = str(evidence.json(MADE)["date"])
    anew = Evidence.collect(Run(folder, withdrawn=True), date=date)
    for name in sorted({*anew.files, *evidence.files}):
        if name == MADE:
            continue
        if name not in evidence.files:
            out.notes.append(f"the run has {name} now, which the dossier does not have")
        elif name not in anew.files:
            out.add(f"{FOLDER}/{name}", "", f"{folder} does not give it")
        elif anew.files[name] != evidence.files[name]:
            for place, fault in _compare_lines(evidence.files[name], anew.files[name]):
                out.add(f"{FOLDER}/{name}", place, f"{fault} (from {folder})")
    out.checked.append(f"the evidence, by collecting it again from {folder}")
