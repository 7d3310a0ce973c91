"""Evidence of a dossier: files of the run, ledger entries with inclusion proofs, and outputs of commands.

A dossier has a copy of its evidence, so it can be verified where the run folder is not at hand.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.audit.entry import ROUND, plan_hash
from grandrounds.audit.files import read_file
from grandrounds.audit.watch_entry import NOTICE, READING
from grandrounds.capabilities.dossier.building.characteristics import describe_columns
from grandrounds.core.arrays import parse_json, plain
from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds.audit.book import Book
    from grandrounds.runs.run import Run

FOLDER = "evidence"
SUMMARY, SCHEMA, ENVIRONMENT, EXPERIMENT = "summary.json", "schema.json", "environment.json", "experiment.toml"
EXPLANATIONS, ATTACKS = "explanations.json", "attacks.json"
COPIED = (SUMMARY, SCHEMA, ENVIRONMENT, EXPERIMENT, EXPLANATIONS, ATTACKS)
"""Files that are copied from the run folder, if the run has them."""
PLAN, LEDGER, MADE = "plan.json", "ledger.json", "made.json"
AUDIT, PRIVACY, DISCLOSURES = "commands/audit.json", "commands/privacy.json", "commands/disclosures.json"
COMMANDS = {
    AUDIT: "rounds audit verify RUN --deep --json",
    PRIVACY: "rounds privacy RUN --json",
    DISCLOSURES: "rounds privacy RUN (data without a guarantee)",
}
"""Outputs that are kept, with the command that prints them."""
CHARACTERISTICS = "characteristics.json"
"""Means, quartiles and shares of the training rows, from percentiles.json (`dossier/characteristics.py`)."""
WATCH = "watch"
"""Folder of the status of watches at sites, where they are at hand: watch/SITE.json."""
WATCH_LEDGERS = "watch-ledgers"
"""Folder of the ledgers of these watches: entries with inclusion proofs, except readings and notices."""

_LARGEST = 8 * 2**20
"""Bytes of the largest file that is copied; explanations of many sites and rounds can be larger and are left out."""


@dataclass(frozen=True)
class Evidence:
    """Files by name, as they lie in the folder `evidence` of a dossier."""

    files: Mapping[str, bytes]

    def digest(self, name: str) -> str:
        """Compute the SHA-256 of a file."""
        return sha256(self.files[name]).hexdigest()

    def json(self, name: str) -> Any:
        """Parse a JSON file.

        Raises:
            BadInput: It is damaged.
        """
        return parse_json(self.files[name], where=f"{FOLDER}/{name}")

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """Read the evidence of a dossier.

        Args:
            folder: The dossier.

        Raises:
            BadInput: The folder is missing, or a file cannot be read.
        """
        root = folder / FOLDER
        paths = sorted(p for p in root.rglob("*") if not p.is_dir()) if root.is_dir() else []
        if not paths:
            raise BadInput(
                f"{folder} is not a dossier: it has no {FOLDER}/ (give the folder that `rounds dossier` printed)",
                code="not-a-dossier",
            )
        files = {}
        for path in paths:
            try:
                files[path.relative_to(root).as_posix()] = read_file(path)
            except BadInput as e:
                raise BadInput(f"{path} {e}", code=e.code) from None
        return cls(files)

    @classmethod
    def collect(cls, run: Run, *, date: str = "") -> Evidence:
        """Collect the evidence of a finished run.

        Args:
            run: The run; its ledger and privacy account are checked.
            date: Day on which the dossier is made, such as 2026-01-31; empty: today, UTC.

        Returns:
            The evidence.

        Raises:
            BadInput: The run is not finished, or a file is damaged.
        """
        run.summary  # noqa: B018  # refuses a run that is not finished
        files = {name: data for name in COPIED if (data := _copy(run.folder / name)) is not None}
        files[PLAN] = _dump(run.plan)
        percentiles = _copy(run.folder / "percentiles.json")
        if percentiles is not None:
            files[CHARACTERISTICS] = _dump(describe_columns(percentiles))
        if run.plan["privacy"].get("epsilon") is None:  # the budget does not cover what a watch found at a site
            files |= {f"{WATCH}/{site}.json": data for site, data in _watches(run)}
            files |= {f"{WATCH_LEDGERS}/{site}.json": data for site, data in _watch_ledgers(run)}
        files |= _ledger(run)
        files |= _outputs(run)
        made = {"date": date or datetime.datetime.now(datetime.UTC).date().isoformat(), "run": run.folder.resolve().name}
        files[MADE] = _dump({**made, "version": _version()})
        return cls(files)


def _version() -> str:
    from grandrounds.runs.environment import own_version

    return own_version()


def _dump(value: Any) -> bytes:
    return (json.dumps(plain(value), sort_keys=True, indent=1) + "\n").encode()


def _copy(path: Path) -> bytes | None:
    if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST:
        return None
    return read_file(path)


def _watches(run: Run) -> Iterator[tuple[str, bytes]]:
    """Yield the counts of each site's watch that lies in the run folder; its means of few patients stay there."""
    for path in sorted((run.folder / "at_sites").glob("*/watch/watch.json")):
        data = _copy(path)
        if data is not None:
            status = parse_json(data, where=str(path))
            counts = {name: status.get(name) for name in ("run", "site", "model", "patients", "labelled", "rate")}
            lists = {
                "checks": [{key: check.get(key) for key in ("name", "kind", "rate")} for check in status["checks"]],
                "alarms": [{key: alarm.get(key) for key in ("id", "check", "time", "state")} for alarm in status["alarms"]],
            }
            yield path.parent.parent.name, _dump({**counts, **lists})


def _watch_ledgers(run: Run) -> Iterator[tuple[str, bytes]]:
    """Yield the ledger of each site's watch that lies in the run folder."""
    from grandrounds.audit.ledger import Ledger

    for path in sorted((run.folder / "at_sites").glob("*/watch/ledger.db")):
        with Ledger.open(path) as ledger:
            yield path.parent.parent.name, prove_entries(ledger.book(), without=(READING, NOTICE))


def _ledger(run: Run) -> dict[str, bytes]:
    """Copy the entries other than those of rounds, with their proofs, and the newest signed head."""
    if not (run.folder / "ledger.db").exists():
        return {}
    with run.ledger as ledger:
        return {LEDGER: prove_entries(ledger.book())}


def prove_entries(book: Book, *, without: Sequence[str] = (ROUND,)) -> bytes:
    """Write the entries of a ledger, each with its inclusion proof, and the newest signed head.

    Args:
        book: The ledger.
        without: Kinds of entry that are left out, because there are many.

    Returns:
        Content of ledger.json.
    """
    from grandrounds.audit.head import longest
    from grandrounds.audit.merkle import Tree

    head = longest(book.heads)
    size = 0 if head is None else head.head.size
    tree = Tree(entry.leaf for entry in book.entries)
    entries = [
        {"entry": entry.content, "path": [node.hex() for node in tree.inclusion(number, size)]}
        for number, entry in enumerate(book.entries[:size])
        if entry.content["kind"] not in without
    ]
    return _dump({"head": None if head is None else head.to_dict(), "entries": entries, "size": size})


def _outputs(run: Run) -> dict[str, bytes]:
    """Run the commands whose output is evidence."""
    from grandrounds.analysis.audit.report import audit
    from grandrounds.analysis.privacy.account import load_account
    from grandrounds.analysis.privacy.disclosures import list_disclosures
    from grandrounds.core.plan_types import Plan

    outputs: dict[str, Any] = {}
    if (run.folder / "ledger.db").exists():
        outputs[AUDIT] = {**audit(run.folder, deep=True, reports=False).to_dict(), "where": run.folder.resolve().name}
    outputs[DISCLOSURES] = {"disclosures": list_disclosures(Plan(run.plan), run.summary)}
    outputs[PRIVACY] = {**load_account(run).to_dict(), "run": run.folder.resolve().name}
    outputs[PRIVACY].pop("attacks", None)  # attacks.json has them
    return {name: _dump(value) for name, value in outputs.items()}


def find_plan_difference(evidence: Evidence, closing: Mapping[str, Any]) -> bool:
    """Tell whether plan.json is another plan than the one that a closing entry names."""
    return "plan" in closing and plan_hash(evidence.json(PLAN)) != closing["plan"]
