"""What `rounds status` tells: which sites are there, and how far every run is by its own record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grandrounds.deploy.consortium_file import Member
from grandrounds.deploy.control import Control
from grandrounds.deploy.run_records import DONE, RUNNING, STOPPED, Records
from grandrounds.deploy.superlink import Link


def site_rows(control: Control, sites: Sequence[Member] = ()) -> list[dict[str, Any]]:
    """Registered sites, by the names that consortium.toml has; Flower knows their slugs alone."""
    names = {site.slug: site.name for site in sites}
    found = [(names.get(node.name, node.name) or f"(node {node.id})", node.status) for node in control.nodes()]
    return [{"site": name, "there": there} for name, there in sorted(found)]


def run_rows(link: Link) -> list[dict[str, Any]]:
    """Every run that was submitted here. A run is done when its folder says so, whatever Flower says.

    One whose record is lost, as where only the folders of runs were brought back from a copy, has stopped.
    """
    records = Records(link.state / "runs").all()
    begun = sorted(path.parents[1].name for path in link.runs.glob("*/checkpoint/plan.json"))
    lost = [name for name in begun if name not in {record["run"] for record in records}]
    records = [*({"run": name, "state": STOPPED, "flower": [], "history": []} for name in lost), *records]
    return [_row(record, link.runs / record["run"]) for record in records]


def _row(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    rounds = _journal(folder / "checkpoint" / "rounds.jsonl")
    finished = (folder / "summary.json").exists()
    state = DONE if finished else record.get("state", "")
    if state == DONE and not finished:
        state = "failed"  # its process ended well, and left no summary
    missing = sorted(_missing(rounds[-1])) if rounds else []
    return {
        "run": record["run"],
        "state": state,
        "rounds": len(rounds) if rounds else (None if state != RUNNING else 0),
        "missing_in_last_round": ", ".join(missing),
        "since": record["history"][-1][1] if record["history"] else "",
        "flower": record["flower"][-1] if record["flower"] else None,
    }


def _journal(path: Path) -> list[dict[str, Any]]:
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


def _missing(entry: dict[str, Any]) -> list[str]:
    decision = entry.get("decision", entry)
    missing = decision.get("missing", {}) if isinstance(decision, dict) else {}
    return list(missing)
