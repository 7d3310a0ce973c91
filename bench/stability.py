"""What holds sites' reasons together, and at what price: accuracy against training drift, and where each collapses.

    python bench/stability.py [--data digits,synthetic,diabetes-130] [--seeds 5] [--out runs/stability] [--jobs 2]
    python bench/stability.py --data mnist --seeds 3 --plans plans.json
    python bench/stability.py --from plans.json      # where there is a GPU; needs neither pydantic nor pandas

Five sites, Dirichlet 0.05. Tables: MLP with 64 hidden units, 50 rounds of 40 local steps of SGD (batch 32); pictures:
the small CNN, 30 rounds. FedAvg alone, and with each stability at growing strength. Drift is the mean over the last ten
rounds of the pairwise L1 distance of the local models' sketches (permutation, log loss, 3 repeats; pictures: 4x4 tiles
hidden) on 200 reference rows; anchors use 200 other rows. Both are held out of training and test. The paired
difference of accuracy to FedAvg has a 95% interval over seeds. A run whose training diverges is counted as a collapse,
as is one that ends more than ten points below FedAvg of the same seed. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grandrounds.analysis.compare import compare
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.metrics import paired_t
from grandrounds.report import figures
from grandrounds.runs.batch import run_all
from grandrounds.runs.run import Run, run_plan
from smoke import SMOKE, pick

ARMS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("none", "", (0.0,)),
    ("proximal", "mu", pick((0.1, 1.0), (1.0,))),
    ("anchor", "anchor", (0.3, 1.0, 3.0, 10.0, 30.0)),
    ("permuted_anchor", "anchor", (0.3, 1.0, 3.0, 10.0, 30.0)),
    ("alignment", "alignment", (0.3, 1.0, 3.0, 10.0, 30.0)),
    ("scaffold", "", (0.0,)),
)[: pick(None, 2)]
TABLES = {"digits": 0.05, "synthetic": 0.05, "diabetes-130": 0.02}  # learning rates, as in the independent check
PICTURES = {"mnist": 0.05}
COLLAPSED = 0.10

Arm = tuple[str, str, float]  # stability, the key of its weight, its weight
Cell = tuple[Arm, int]  # and the seed


def plan(data: str, arm: Arm, seed: int) -> dict[str, Any]:
    """One run."""
    from grandrounds.experiment.experiment import Experiment

    stability, key, weight = arm
    pictures = data in PICTURES
    values: dict[str, Any] = {
        "seed": seed,
        "data": {"name": data},
        "split": {"partition": "dirichlet", "sites": 5, "alpha": 0.05},
        "reference": {"rows": {"rows": 200}, "anchor": {"rows": 200, "sent": True, "labelled": False}},
        "model": {"name": "small-cnn"} if pictures else {"name": "mlp", "hidden": [64]},
        "method": {"stability": stability, "rounds": pick(30 if pictures else 50, 2), **({key: weight} if key else {})},
        "train": {"lr": {**TABLES, **PICTURES}[data], "steps": pick(40, 2)},
        "explain": {"sketch": "occlusion" if pictures else "permutation", "every": 1, "reference": "rows"},
    }
    return Experiment.parse(values).plan()


def plans(data: str, seeds: int) -> dict[str, dict[str, Any]]:
    """Every run of a data set by its name."""
    return {name(arm, seed): plan(data, arm, seed) for arm, seed in cells(seeds)}


def cells(seeds: int) -> list[Cell]:
    return [((s, key, w), seed) for s, key, weights in ARMS for w in weights for seed in range(seeds)]


def name(arm: Arm, seed: int) -> str:
    return f"{arm[0]}-{arm[2]:g}-{seed}"


def drift(run: Run) -> float:
    """Mean training drift of the last ten rounds."""
    return statistics.mean(r["training"]["drift"] for r in run.explanations["rounds"][-10:])


def finished(name: str, values: dict[str, Any], out: Path, *, here: bool) -> Run | None:
    """The run, in this process or in one of its own; None where its training diverged."""
    try:
        if here and not (out / name / "summary.json").exists():
            return run_plan(values, out=out / name)
        return run_all({name: values}, out, jobs=1, progress=lambda name, run: None)[0]
    except RunFailed:
        return None


def study(made: dict[str, dict[str, Any]], seeds: int, out: Path, jobs: int, *, here: bool) -> list[dict[str, Any]]:
    """A row for each arm: drift, accuracy and its paired difference to FedAvg, how many seeds collapsed."""
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda c: finished(name(*c), made[name(*c)], out, here=here), cells(seeds))
        runs = dict(zip(cells(seeds), done, strict=True))
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    first = {s: runs[arms[0], s] for s in range(seeds)}
    rows = []
    for arm in arms:
        pairs = [(first[s], run) for s in range(seeds) if (run := runs[arm, s]) is not None and first[s] is not None]
        accuracy = [(run.summary["final"]["accuracy"], base.summary["final"]["accuracy"]) for base, run in pairs]
        lost = seeds - len(pairs) + sum(mine < theirs - COLLAPSED for mine, theirs in accuracy)
        row: dict[str, Any] = {"stability": arm[0], "weight": arm[2], "collapsed": lost, "seeds": seeds}
        if pairs:
            kept = [run for _, run in pairs]
            base = statistics.mean(drift(b) for b, _ in pairs)
            found = compare(kept, metrics=("training_jaccard", "deployed_divergence", "worst_site_accuracy"))
            more = {m: statistics.mean(found.arms[0].values(m)) for m in found.metrics}
            row |= {
                "drift": statistics.mean(map(drift, kept)),
                "accuracy": statistics.mean(a for a, _ in accuracy),
                **more,
            }
            row["change"] = row["drift"] / base - 1
            if len(pairs) > 1 and arm != arms[0]:
                pair = paired_t([a for a, _ in accuracy], [b for _, b in accuracy])
                row |= {"difference": pair.difference, "low": pair.low, "high": pair.high}
        rows.append(row)
    return rows


def printed(data: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{data}\n")
    head = (
        "stability",
        "weight",
        "training drift",
        "change",
        "Jaccard@5",
        "deployed divergence",
        "accuracy",
        "to FedAvg",
    )
    print(f"| {' | '.join((*head, 'worst site', 'collapsed'))} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        if "drift" not in r:
            print(
                f"| {r['stability']} | {r['weight']:g} | - | - | - | - | - | - | - | {r['collapsed']} of {r['seeds']} |"
            )
            continue
        difference = f"{r['difference']:+.3f} [{r['low']:+.3f}, {r['high']:+.3f}]" if "difference" in r else "-"
        weight = f"{r['weight']:g}" if r["weight"] else "-"
        print(
            f"| {r['stability']} | {weight} | {r['drift']:.3f} | {r['change']:+.0%} | {r['training_jaccard']:.2f} "
            f"| {r['deployed_divergence']:.3f} | {r['accuracy']:.3f} | {difference} | {r['worst_site_accuracy']:.3f} "
            f"| {r['collapsed']} of {r['seeds']} |"
        )


def drawn(data: str, rows: list[dict[str, Any]], out: Path) -> None:
    """The accuracy-drift curves, as a picture where this machine can draw one."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "drift" in row:
            label = f"{row['weight']:g}" if row["weight"] else ""
            point = {"label": label, "training_drift": row["drift"], "accuracy": row["accuracy"]}
            curves.setdefault("FedAvg" if row["stability"] == "none" else row["stability"], []).append(point)
    figure = figures.trade_off(curves, x="training_drift")
    try:
        figure.write_png(out / f"{data}.png")
    except BadInput as e:
        print(f"\nno picture: {e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=pick("digits,synthetic", "digits"))
    parser.add_argument("--seeds", type=int, default=pick(5, 1))
    parser.add_argument("--out", type=Path, default=Path("runs/stability"))
    parser.add_argument("--jobs", type=int, default=pick(os.cpu_count() or 1, 1))
    parser.add_argument("--plans", type=Path, help="write the plans to this file instead of running them")
    parser.add_argument("--from", dest="planned", type=Path, help="run the plans of this file, in this process")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.planned:
        held = json.loads(args.planned.read_text())
        every, seeds, jobs = held["plans"], held["seeds"], 1
    else:
        every, seeds, jobs = {d: plans(d, args.seeds) for d in args.data.split(",")}, args.seeds, args.jobs
    if args.plans:
        args.plans.write_text(json.dumps({"seeds": seeds, "plans": every}))
        return
    for data, made in every.items():
        try:
            rows = study(made, seeds, args.out / data, jobs, here=bool(args.planned))
        except BadInput as e:
            if SMOKE:
                raise
            print(f"\n{data}: left out: {e}")
            continue
        printed(data, rows)
        (args.out / f"{data}.json").write_text(json.dumps(rows, indent=1))
        drawn(data, rows, args.out)


if __name__ == "__main__":
    main()
