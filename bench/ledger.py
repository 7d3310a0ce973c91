"""What a ledger costs: durable entries a second, alone and in batches, against plain SQLite; and what it adds to a round.

    python bench/ledger.py [--entries 2000] [--sites 10] [--rounds 60]

Entries are those of a round of FedAvg. Plain SQLite inserts rows of the same bytes with the same syncing, and neither
hashes nor signs. Both write to the same folder, turn by turn; ratios are what to look at. A round is measured with and
without its ledger in one process, turn by turn as well, by the clock on the wall and by the processor's.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from grandrounds.analysis.audit.report import audit
from grandrounds.audit import entry as entries
from grandrounds.audit.canonical import canonical
from grandrounds.audit.ledger import Ledger
from grandrounds.protocol.identity import Identity
from grandrounds.runs import ledger as recording
from smoke import pick

SERVER = Identity.simulated(0, "server")


def said(number: int, sites: int) -> dict:  # type: ignore[type-arg]
    """A round's entry, as FedAvg makes it."""
    rows = {f"site-{k:05d}": 40.0 + k % 97 for k in range(sites)}
    weights = {s: n / sum(rows.values()) for s, n in rows.items()}
    decision = {
        "signals": {"data_size": rows},
        "weights": weights,
        "why": "by rows",
        "shares": {},
        "stages": [{"part": "weigh", "why": "by rows", "weights": weights}],
        "cohorts": {},
        "round": number,
        "asked": list(rows),
        "missing": {},
        "cost": {"bytes_down": 7620.0, "bytes_up": 410976.0, "seconds": 0.0201 + number},
        "privacy": {"mechanism": "none"},
        "notes": [],
    }
    facts = dict.fromkeys(("model", "served", "explanation", "plan"), f"{number:064x}")
    record = {"round": number, "decision": decision, "ledger": {**facts, "commitments": dict.fromkeys(rows, "ab" * 32)}}
    return entries.round_entry("bench-0", record, reference={})


def ledger_rate(path: Path, values: list[dict], batch: int) -> float:  # type: ignore[type-arg]
    """Entries a second, each batch synced."""
    with Ledger.open(path, identity=SERVER) as ledger:
        began = time.perf_counter()
        for at in range(0, len(values), batch):
            ledger.append("bench-0", *values[at : at + batch])
        return len(values) / (time.perf_counter() - began)


def plain_rate(path: Path, values: list[dict], batch: int) -> float:  # type: ignore[type-arg]
    """The same bytes into a table of SQLite's own."""
    bodies = [canonical(v) for v in values]
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB)")
    began = time.perf_counter()
    for at in range(0, len(bodies), batch):
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO rows (body) VALUES (?)", [(b,) for b in bodies[at : at + batch]])
        database.execute("COMMIT")
    rate = len(bodies) / (time.perf_counter() - began)
    database.close()
    return rate


def best(rate: Callable[[Path, list[dict], int], float], values: list[dict], batch: int) -> float:  # type: ignore[type-arg]
    """The best of three, each into a file of its own: others share the disk."""
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            found.append(rate(Path(folder) / "file.db", values, batch))
    return max(found)


def round_ms(sites: int, rounds: int, *, kept: bool) -> tuple[float, float, float]:
    """The median milliseconds of a round, wall and processor, and those that verifying the ledger of all took."""
    import numpy as np

    import grandrounds as gr
    from grandrounds.core.rng import generator
    from grandrounds.data.table import Table

    rng = generator(0, purpose="sites")
    x = rng.standard_normal((sites * 50, 20)).astype(np.float32)
    y = (x @ rng.standard_normal(20) + rng.standard_normal(len(x)) > 0).astype(int)
    site = np.repeat([f"h{k:05d}" for k in range(sites)], 50)
    table = Table.from_mapping({**{f"c{j}": x[:, j] for j in range(20)}, "y": y, "site": site}, source="made")
    values = {
        "data": {"table": "data frame", "label": "y", "site": "site"},
        "method": {"rounds": rounds},
        "train": {"epochs": 1, "batch": 16},
        "explain": {"sketch": "none"},
    }
    marks: list[tuple[float, float]] = []
    needed = recording.NEEDED_PACKAGES
    recording.NEEDED_PACKAGES = needed if kept else ("no such package",)
    try:
        with tempfile.TemporaryDirectory() as folder:

            def ended(event) -> None:  # type: ignore[no-untyped-def]
                if event["event"] == "round":
                    marks.append((time.perf_counter(), time.process_time()))

            run = gr.run(gr.Experiment.parse(values), out=Path(folder) / "run", table=table, progress=ended)
            began = time.perf_counter()
            if kept:
                assert not audit(run.folder, deep=True).findings
            verified = time.perf_counter() - began
    finally:
        recording.NEEDED_PACKAGES = needed
    wall, cpu = (1e3 * statistics.median(b[c] - a[c] for a, b in pairwise(marks)) for c in (0, 1))
    return wall, cpu, 1e3 * verified


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=pick(2000, 200))
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=pick(60, 6))
    args = parser.parse_args()
    values = [said(n, args.sites) for n in range(1, args.entries + 1)]
    print(f"entries of {len(canonical(values[0])):,} bytes ({args.sites} sites)\n")
    print("| entries a batch | ledger, entries a second | plain SQLite, rows a second | ratio |")
    print("|---:|---:|---:|---:|")
    for batch in (1, 10, 100):
        some = values[: pick(200, 2) * batch]
        ledger, plain = best(ledger_rate, some, batch), best(plain_rate, some, batch)
        print(f"| {batch} | {ledger:,.0f} | {plain:,.0f} | {ledger / plain:.2f} |")
    print("\n| sites | round without ms (cpu) | round with ms (cpu) | added cpu ms | verify --deep ms |")
    print("|---:|---:|---:|---:|---:|")
    grid = ((10, args.rounds), (100, args.rounds), (1000, args.rounds // 3), (10_000, 6))
    for sites, rounds in grid[: pick(None, 1)]:
        kept, bare = [], []
        for _ in range(3):
            bare.append(round_ms(sites, rounds, kept=False))
            kept.append(round_ms(sites, rounds, kept=True))
        (wall, cpu, _), (wall_with, cpu_with, verified) = (map(min, zip(*m, strict=True)) for m in (bare, kept))
        figures = f"{wall:.1f} ({cpu:.1f}) | {wall_with:.1f} ({cpu_with:.1f}) | {cpu_with - cpu:.1f}"
        print(f"| {sites:,} | {figures} | {verified:.0f} ({rounds} rounds) |", flush=True)


if __name__ == "__main__":
    main()
