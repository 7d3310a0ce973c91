"""Status of a consortium: its keys and certificates, its sites, and the progress of its runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from grandrounds.audit.ledger import Ledger
from grandrounds.audit.verify import UNREADABLE, Finding
from grandrounds.capabilities.hospital.deploy.consortium import Member
from grandrounds.capabilities.hospital.deploy.control import Control
from grandrounds.capabilities.hospital.deploy.folders import Folders, operator_folders
from grandrounds.capabilities.hospital.deploy.keys import PublicKeys
from grandrounds.capabilities.hospital.deploy.manifest import ManifestCheck, check_manifest
from grandrounds.capabilities.hospital.deploy.pki import common_name, load_certificate, read_revocations, serial_text
from grandrounds.capabilities.hospital.deploy.records import (
    BY_OPERATOR,
    DONE,
    RUNNING,
    STOPPED,
    ConsortiumState,
    RunRecord,
    RunRecords,
    consortium_state,
    verify_record,
)
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.core.errors import BadInput
from grandrounds.core.names import folder_name
from grandrounds.protocol.identity import load_public

SOON = 30
"""Days before the end of a certificate from which on a warning is given."""

HOLDS, ENDS_SOON, ENDED, REVOKED, WITHDRAWN = "holds", "ends soon", "has ended", "revoked", "withdrawn"
INVITED, ASKED, TAKES_PART = "invited", "asked", "takes part"
OPERATOR_MADE = "keys made by the operator: rotate"


@dataclass(frozen=True)
class KeyStatus:
    """Status of one certificate or one site."""

    kind: str
    name: str
    fingerprint: str
    state: str
    ends: str = ""
    days: int | None = None

    def to_dict(self) -> dict[str, str | int | None]:
        """Return all fields as plain JSON values."""
        return {
            "what": self.kind,
            "name": self.name,
            "mark": self.fingerprint,
            "state": self.state,
            "ends": self.ends,
            "days": self.days,
        }


class SiteRow(TypedDict):
    """A registered site and the status of its SuperNode."""

    site: str
    there: str


class RunRow(TypedDict):
    """A submitted run and its progress."""

    run: str
    state: str
    rounds: int | None
    missing_in_last_round: str
    since: str
    flower: int | None


def list_keys(out: Path, *, now: datetime | None = None) -> list[KeyStatus]:
    """List the status of all certificates, then of all sites."""
    folders = Folders.open(out)
    now = now or datetime.now(UTC)
    return [*_certificates(folders, now), *_site_keys(folders, now)]


def verify_all(out: Path, key: bytes | None = None) -> list[ManifestCheck]:
    """Verify the record, the server's lists against the record, and every folder against its manifest."""
    folders = Folders.open(out)
    current = load_public(folders.server / "server.pub")
    handed = [*(folders.site(name) for name in folders.recipients()), *operator_folders(folders).values()]
    return [_check_record(folders, key or current), *(check_manifest(f, current) for f in handed)]


def _check_record(folders: Folders, key: bytes) -> ManifestCheck:
    where = str(folders.record)
    try:
        with Ledger.open(folders.record) as ledger:
            findings = verify_record(ledger.book(), key)
        findings += [] if findings else list(_compare_record(folders, consortium_state(folders.record)))
    except BadInput as e:
        findings = [Finding(UNREADABLE, folders.record.name, str(e))]
    return ManifestCheck(where, tuple(str(f) for f in findings))


def _compare_record(folders: Folders, now: ConsortiumState) -> Iterator[Finding]:
    """Find keys and revocations on the server's disk that the record does not have, and vice versa."""
    unknown_files = {p.name for p in (folders.server / "nodes").glob("*.pub")}
    for name in now.sites:
        unknown_files.discard(f"{folder_name(name)}.pub")
        try:
            keys = PublicKeys.load(folders.server, folder_name(name)).fingerprints
        except BadInput as e:
            yield Finding("missing key", name, str(e))
            continue
        if keys != now.sites[name]:
            yield Finding("foreign key", name, "the key on the server's list is not the recorded one")
    for name in sorted(unknown_files):
        yield Finding("foreign key", name, "it is on the list of nodes, but no current site has it")
    if not folders.insecure:
        listed = {serial_text(s) for s in read_revocations(folders.crl)}
        for serial in sorted(set(now.revoked) - listed):
            yield Finding("lost revocation", serial, "it was revoked but is not on the gateway's list")


def _certificates(folders: Folders, now: datetime) -> Iterator[KeyStatus]:
    if folders.insecure:
        return
    revoked = read_revocations(folders.crl)
    server_files = [
        ("authority", "server-ca"),
        ("authority", "operator-ca"),
        ("server", "superlink"),
        ("server", "gateway"),
    ]
    paths = [(kind, folders.pki / f"{name}.pem") for kind, name in server_files]
    paths += [("operator", folder / "operator.pem") for folder in operator_folders(folders).values()]
    for kind, path in paths:
        one = load_certificate(path)
        days = (one.not_valid_after_utc - now).days
        state = HOLDS if days >= SOON else ENDED if one.not_valid_after_utc < now else ENDS_SOON
        state = REVOKED if kind == "operator" and one.serial_number in revoked else state
        ends = one.not_valid_after_utc.date().isoformat()
        yield KeyStatus(kind, common_name(one), serial_text(one.serial_number), state, ends, days)


def _site_keys(folders: Folders, now: datetime) -> Iterator[KeyStatus]:
    state = consortium_state(folders.record)
    for site in folders.consortium().sites:
        key = state.sites.get(site.name, {}).get("node", "")[:16]
        words = list(_site_state(folders, state, site.name, now))
        if words:
            yield KeyStatus("site", site.name, key, ", ".join(words))


def _site_state(folders: Folders, state: ConsortiumState, name: str, now: datetime) -> Iterator[str]:
    """List the states of one site: it takes part, is invited, or has withdrawn."""
    if name in state.sites:
        yield TAKES_PART
        void = len(state.void.get(name, ()))
        if void:
            yield f"{void} earlier key{'s' * (void > 1)} void"
        if state.made[name] == BY_OPERATOR:
            yield OPERATOR_MADE
    if name in state.invited:
        ends = datetime.fromisoformat(state.invited[name]["ends"])
        word = ASKED if folders.request(name).exists() else INVITED
        yield f"{word} until {ends:%Y-%m-%d}" if ends > now else f"{word}, but the code ended {ends:%Y-%m-%d}"
    elif name in state.withdrawn:
        yield f"{WITHDRAWN} {state.withdrawn[name][:10]}"


def list_sites(control: Control, sites: Sequence[Member] = ()) -> list[SiteRow]:
    """List registered sites by their names in consortium.toml; Flower knows only their slugs."""
    names = {site.slug: site.name for site in sites}
    nodes = [(names.get(node.name, node.name) or f"(node {node.id})", node.status) for node in control.nodes()]
    return [{"site": name, "there": status} for name, status in sorted(nodes)]


def list_runs(link: Link) -> list[RunRow]:
    """List every run that was submitted here. A run is done when its folder says so, whatever Flower says.

    A run without a record, for example after a restore of run folders only, counts as stopped.
    """
    records = RunRecords(link.state / "runs").all()
    begun = sorted(path.parents[1].name for path in link.runs.glob("*/checkpoint/plan.json"))
    lost = [name for name in begun if name not in {record["run"] for record in records}]
    stopped: list[RunRecord] = [{"run": name, "state": STOPPED, "flower": [], "history": []} for name in lost]
    return [_run_row(record, link.runs / record["run"]) for record in [*stopped, *records]]


def _run_row(record: RunRecord, folder: Path) -> RunRow:
    rounds = _journal(folder / "checkpoint" / "rounds.jsonl")
    finished = (folder / "summary.json").exists()
    state = DONE if finished else record.get("state", "")
    if state == DONE and not finished:
        state = "failed"  # its process ended well, but left no summary
    missing = sorted(_missing_sites(rounds[-1])) if rounds else []
    return {
        "run": record["run"],
        "state": state,
        "rounds": len(rounds) if rounds else (None if state != RUNNING else 0),
        "missing_in_last_round": ", ".join(missing),
        "since": record["history"][-1][1] if record["history"] else "",
        "flower": record["flower"][-1] if record["flower"] else None,
    }


def _journal(path: Path) -> list[Mapping[str, Any]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    rounds = []
    for line in lines:
        try:
            rounds.append(json.loads(line))
        except ValueError:
            break  # being written
    return rounds


def _missing_sites(entry: Mapping[str, Any]) -> list[str]:
    decision = entry.get("decision", entry)
    missing = decision.get("missing", {}) if isinstance(decision, dict) else {}
    return list(missing)
