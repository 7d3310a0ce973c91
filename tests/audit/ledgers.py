"""Small ledgers for tests: real keys, real files, no run behind them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from grandrounds.audit import entry as entries
from grandrounds.audit.ledger import Ledger
from grandrounds.protocol.identity import Identity

SERVER = Identity.simulated(7, "server")
SITES = {name: Identity.simulated(7, name) for name in ("a", "b", "c")}
RUN = "small-7"


def opening() -> dict:
    keys = {name: one.public for name, one in SITES.items()}
    return entries.opening_entry(RUN, first=1, plan="00" * 32, server=SERVER.public, sites=keys, keys=entries.SIMULATED)


def of_round(number: int, **changes) -> dict:
    """A round in which the three sites have 10, 20 and 70 rows."""
    rows = {"a": 10.0, "b": 20.0, "c": 70.0}
    weights = {s: n / 100 for s, n in rows.items()}
    stage = {"part": "weigh", "why": "by rows", "weights": weights}
    decision = {
        "signals": {"data_size": rows},
        "weights": weights,
        "why": "by rows",
        "shares": {},
        "stages": [stage],
        "cohorts": {},
        "asked": [*rows],
        "missing": {},
        "notes": ["b: is late again", "something of all"],
        "cost": {"bytes_up": 512.0, "seconds": 0.25 * number},
        "round": number,
    }
    facts = {"model": f"{number:064x}", "served": f"{number:064x}", "explanation": None, "plan": "00" * 32}
    facts["commitments"] = {s: f"{number + k:064x}" for k, s in enumerate(rows)}
    record = {"round": number, "decision": {**decision, **changes}, "ledger": facts}
    return entries.round_entry(RUN, record, reference={})


def made(path: Path, *, rounds: int = 6, said=of_round) -> Path:
    """A ledger of an opening entry and some rounds, one head each, all countersigned."""
    with Ledger.open(path, identity=SERVER) as ledger:
        for value in (opening(), *(said(n) for n in range(1, rounds + 1))):
            head = ledger.append(RUN, value)
            ledger.add_countersignatures(head.with_witnesses({s: head.head.countersign(one) for s, one in SITES.items()}))
    return path


MEASURED = ("summary.json", "round_logs.json", "environment.json", "report.html")
"""Files with seconds, memory or the machine in them: two runs of one experiment differ in these alone."""


def lasting(book, *, but: str = "") -> list[dict]:
    """Entries without what differs from machine to machine: the hashes of measured files, in closing entries."""
    out = []
    for said in (entry.content for entry in book.entries):
        if said["kind"] == "close":
            files = {name: digest for name, digest in said["files"].items() if name not in (*MEASURED, but)}
            contents = {name: keys for name, keys in said["contents"].items() if name not in (*MEASURED, but)}
            said = {**said, "files": files, "contents": contents}
        out.append(said)
    return out


def countersigned(path: Path, *, seed: int, sites) -> None:
    """Countersign all heads of a ledger with the keys that a simulation's sites have."""
    with Ledger.open(path, identity=Identity.simulated(seed, "server")) as ledger:
        for head in ledger.book().heads:
            ledger.add_countersignatures(
                head.with_witnesses({s: head.head.countersign(Identity.simulated(seed, s)) for s in sites})
            )


def tampered(path: Path, *statements: str, values: tuple = ()) -> None:
    """Change a ledger as who owns the file can: without its triggers."""
    database = sqlite3.connect(path)
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        database.execute(statement, values if "?" in statement else ())
    database.commit()
    database.close()


def found(path: Path, **options) -> list[str]:
    """The names of what is found in a ledger."""
    with Ledger.open(path) as ledger:
        return [finding.name for finding in ledger.verify(SERVER.public, **options)]
