"""What a round costs as sites grow from 10 to 10,000: seconds of training, evaluation and record, and memory.

    python bench/sites.py [--sites 10,100,1000,10000] [--rows 50] [--chunk 0]

Sites with the same number of rows (20 columns), logistic regression, one epoch in batches of 16. Every count runs in a
process of its own, so that the memory shown is its own. Cost should grow as sites do: the last column is seconds a round
and site, against that of the run with the most sites.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smoke import pick

ROUNDS = pick(6, 3)
COLUMNS = 20


def measure(sites: int, rows: int, chunk: int) -> dict[str, float]:
    """Medians over rounds after the first, and the most memory the process held."""
    import numpy as np

    from grandrounds.core.rng import generator
    from grandrounds.data.table import Table
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs import runner, setup
    from grandrounds.runs.folder import RunFolder

    rng = generator(0, purpose="sites")
    x = rng.standard_normal((sites * rows, COLUMNS)).astype(np.float32)
    y = (x @ rng.standard_normal(COLUMNS) + rng.standard_normal(len(x)) > 0).astype(int)
    site = np.repeat([f"h{k:05d}" for k in range(sites)], rows)
    table = Table.from_mapping({**{f"c{j}": x[:, j] for j in range(COLUMNS)}, "y": y, "site": site}, source="made")
    values = {
        "data": {"table": "data frame", "label": "y", "site": "site"},
        "method": {"rounds": ROUNDS},
        "train": {"epochs": 1, "batch": 16},
        "engine": {"chunk": chunk},
        "explain": {"sketch": "none"},
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    marks: dict[str, list[float]] = {"round": [], "train": [], "judge": []}
    drive, last = setup.LocalEngine.drive, [time.perf_counter()]

    def timed(self, work, *, round):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        out = drive(self, work, round=round)
        kind = "train" if type(out).__name__ == "Outcome" else "judge"
        marks[kind].append(time.perf_counter() - began)
        return out

    def progress(event) -> None:  # type: ignore[no-untyped-def]
        if event["event"] == "round":
            marks["round"].append(time.perf_counter() - last[0])
        last[0] = time.perf_counter()

    setup.LocalEngine.drive = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        run.create()
        runner.execute_plan(Experiment.parse(values).plan(), run, table=table, progress=progress)
    found = {kind: statistics.median(values[1:]) for kind, values in marks.items() if values}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**found, "mb_before": before / 1024, "mb": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default=pick("10,100,1000,10000", "3,6"))
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--chunk", type=int, default=0, help="sites trained at once (0: as many as fit)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.rows, args.chunk)))
        return
    found = {}
    for sites in (int(s) for s in args.sites.split(",")):
        command = [sys.executable, __file__, "--one", str(sites), "--rows", str(args.rows), "--chunk", str(args.chunk)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[sites] = json.loads(done.stdout)
    largest = found[max(found)]["round"] / max(found)
    print(
        "| sites | rows | round s | of it training | evaluation | record | ms a site | against the largest | peak MB |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for sites, m in found.items():
        record = m["round"] - m["train"] - m["judge"]
        cells = (f"{m['round']:.4f}", f"{m['train']:.4f}", f"{m['judge']:.4f}", f"{record:.4f}")
        each = m["round"] / sites
        print(
            f"| {sites} | {sites * args.rows} | {' | '.join(cells)} | {1e3 * each:.3f} | {each / largest:.2f} "
            f"| {m['mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
