"""Weights that SSE-AGG's outlier form gives: honest hospitals with other patients, and a site with shuffled labels.

    python bench/honest_sites.py [--data heart,eicu-demo,...] [--seeds 10-19] [--stability none,permuted_anchor]
    python bench/honest_sites.py --data heart,eicu-demo --reference 20 [--no-halves]     # where harm is known badly
    python bench/honest_sites.py --shuffled [--data digits,synthetic,icu-cohort] [--seeds 10-14]

Honest: nobody is bad; sites are natural units. A site-run is one site in one run. It is demoted where it keeps less than half of
the weight of its rows in three rounds or more of 30 (also told: in any round, in the last). "At the floor": less than 0.75 in
three rounds or more. "Tried": it was asked to train on halves of its own patients. The bound is the largest rate that leaves a 5%
chance of so few demotions, if site-runs were independent. They are not: seeds of heart and eicu-demo deal the same patients anew.
Seeds of diabetes-130 (ten parts by patient) and icu-cohort (six other hospitals each) share no row.

Shuffled: the largest of the sites learns from shuffled labels. FedAvg, SSE-AGG with preset default and with preset defence:
in how many runs the bad site is demoted, the share of its rows' weight that it keeps (mean of the last five rounds), accuracy,
and the paired difference of accuracy to FedAvg with its 95% interval over seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

import grandrounds as gr
from grandrounds.data.sets import cohort, diabetes
from grandrounds.data.table import Table
from grandrounds.metrics import paired_t
from smoke import pick

Done = tuple[list[Any], dict[str, Any]]
"""The Decisions of a run, and its summary."""

ROUNDS = pick(30, 3)
ROWS = 600
"""Rows of an icu-cohort hospital that are used, at most."""

SPECIALTY, PAYER = "medical_specialty", "payer_code"
HONEST: dict[str, dict[str, Any]] = {
    "heart": {"data": {"name": "heart"}, "train": {"epochs": 2, "lr": 0.05, "l2": 0.01}},
    "eicu-demo": {"data": {"name": "eicu-demo"}, "train": {"epochs": 2, "lr": 0.02, "l2": 0.02}},
    "diabetes-130 by specialty": {"data": SPECIALTY, "train": {"steps": 20, "batch": 64, "lr": 0.05}},
    "diabetes-130 by payer": {"data": PAYER, "train": {"steps": 20, "batch": 64, "lr": 0.05}},
    "icu-cohort": {
        "data": {"label": "died", "site": "hospital", "patient": "patient_id", "id": "stay_id"},
        "train": {"epochs": 1, "lr": 0.05},
    },
}
SHUFFLED = {
    **{
        name: {
            "data": {"name": name},
            "split": {"partition": "dirichlet", "sites": 5, "alpha": 1.0},
            "model": {"name": "mlp", "hidden": [64]},
            "train": {"steps": 40, "lr": 0.05},
        }
        for name in ("digits", "synthetic")
    },
    **{name: HONEST[name] for name in ("icu-cohort", "heart", "eicu-demo")},
}
ARMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "SSE-AGG, default": {"name": "sse-agg"},
    "SSE-AGG, defence": {"name": "sse-agg", "preset": "defence"},
}


@cache
def _all_of_diabetes() -> Table:
    return diabetes.load()


@cache
def _all_of_icu() -> Table:
    return cohort.generate()


def part_of_diabetes(unit: str, seed: int) -> Table:
    """The stays of every tenth patient at the four largest units of a column."""
    held = _all_of_diabetes()
    of = held.column(unit).astype(str)
    names, counts = np.unique(of[of != "None"], return_counts=True)
    largest = names[np.argsort(-counts)[:4]]
    mine = held.column("patient_nbr").astype(np.int64) % 10 == seed % 10
    return held.take(np.flatnonzero(np.isin(of, largest) & mine)).without(["weight"])


def six_hospitals(seed: int) -> Table:
    """The first stays of six hospitals of icu-cohort, other ones for each seed of ten; the largest for those that end in 0."""
    held = _all_of_icu()
    of = held.column("hospital").astype(str)
    names, counts = np.unique(of, return_counts=True)
    six = names[np.argsort(-counts, kind="stable")][6 * (seed % 10) :][:6]
    return held.take(np.sort(np.concatenate([np.flatnonzero(of == name)[:ROWS] for name in six])))


def setting(name: str, seed: int) -> tuple[dict[str, Any], Table | None]:
    """An experiment but for its method, and its table where it is no set of the catalog."""
    values = {"seed": seed, **(HONEST | SHUFFLED)[name]}
    table: Table | None = None
    if isinstance(values["data"], str):
        table = part_of_diabetes(values["data"], seed)
        site = {"label": "readmitted_30", "site": values["data"], "patient": "patient_nbr", "id": "encounter_id"}
        values["data"] = site
    elif name == "icu-cohort":
        table = six_hospitals(seed)
    return values, table


def run(values: dict[str, Any], table: Table | None, method: dict[str, Any], reference: int = 100) -> Done:
    """One run; rows that sites are sent only where a stability needs them."""
    sets: dict[str, Any] = {"rows": {"rows": reference}}
    if "anchor" in str(method.get("stability", "")):
        sets["anchor"] = {"rows": 60, "labelled": False, "sent": True}
    more = {"reference": sets, "explain": {"reference": "rows"}, "evaluation": {"every": ROUNDS}}
    experiment = gr.Experiment.parse({**more, **values, "method": {"rounds": ROUNDS, **method}})
    with tempfile.TemporaryDirectory() as folder:
        done = gr.run(experiment, table=table, out=Path(folder) / "run")
        return [r["decision"] for r in done.rounds], done.summary


def kept(decisions: list[Any]) -> list[dict[str, float]]:
    """Each round's weights as shares of what rows alone would give."""
    out = []
    for decision in decisions:
        rows = decision["signals"]["data_size"]
        out.append({s: w * sum(rows.values()) / rows[s] for s, w in decision["weights"].items()})
    return out


def tried(decisions: list[Any]) -> set[str]:
    """The sites that were asked to train on a half of their own patients."""
    notes = [n for decision in decisions for n in decision["notes"]]
    return {n.split(":")[0] for n in notes if "in this round it trained on the" in n}


def bound(demoted: int, of: int) -> float:
    """The largest rate at which so few are demoted with a chance of 5%."""
    return float(beta.ppf(0.95, demoted + 1, of - demoted)) if demoted < of else 1.0


def honest(names: list[str], seeds: list[int], stabilities: list[str], reference: int, halves: bool) -> Iterator[str]:
    """A line for each set and stability, and one for all."""
    head = ("site-runs", "demoted", "in any round", "in the last", "at the floor", "tried", "least share", "95% bound")
    yield f"| set | stability | {' | '.join(head)} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    every: list[tuple[bool, ...]] = []
    for name in names:
        for stability in stabilities:
            found, lowest = [], np.inf
            for seed in seeds:
                method = {"name": "sse-agg", "stability": stability, "weigh": {"own_halves": halves}}
                decisions, _ = run(*setting(name, seed), method, reference)
                shares, asked = kept(decisions), tried(decisions)
                for site in shares[0]:
                    own = np.array([w[site] for w in shares])
                    lowest = min(lowest, own.min())
                    below = int((own < 0.5).sum())
                    found.append((below >= 3, below > 0, own[-1] < 0.5, int((own < 0.75).sum()) >= 3, site in asked))
            every += found
            yield _line(name, stability, found, f"{lowest:.2f}")
    yield _line("all", "", every, "")


def _line(name: str, stability: str, found: list[tuple[bool, ...]], lowest: str) -> str:
    counts = [sum(column) for column in zip(*found, strict=True)]
    told = [name, stability, str(len(found)), *map(str, counts), lowest, f"{bound(counts[0], len(found)):.1%}"]
    return f"| {' | '.join(told)} |"


def shuffled(names: list[str], seeds: list[int], reference: int) -> Iterator[str]:
    """A line for each set and arm."""
    yield "| set | arm | bad site demoted | keeps | in the worst seed | accuracy | to FedAvg | honest demoted |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for name in names:
        first: list[float] = []
        for arm, method in ARMS.items():
            shares, right, found, demoted, runs = [], [], 0, 0, 0
            for seed in seeds:
                values, table = setting(name, seed)
                values["attacks"] = [{"kind": "label-shuffle", "count": 1}]
                decisions, summary = run(values, table, method, reference)
                bad, weights = next(iter(summary["attacks"]["sites"])), kept(decisions)
                shares.append(float(np.mean([w[bad] for w in weights[-5:]])))
                right.append(float(summary["final"]["accuracy"]))
                lost = [s for s in weights[0] if sum(w[s] < 0.5 for w in weights) >= 3]
                found, demoted, runs = found + (bad in lost), demoted + len({*lost} - {bad}), runs + len(weights[0]) - 1
            first = first or right
            pair = paired_t(right, first)
            gap = "" if right is first else f"{pair.difference:+.3f} ({pair.low:+.3f} to {pair.high:+.3f})"
            weight = f"{found} of {len(seeds)} | {np.mean(shares):.2f} | {max(shares):.2f}"
            yield f"| {name} | {arm} | {weight} | {np.mean(right):.3f} | {gap} | {demoted} of {runs} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shuffled", action="store_true", help="one site learns from shuffled labels")
    parser.add_argument("--data", default=pick("", "heart"), help="sets, with commas; not given: all")
    parser.add_argument("--seeds", default=pick("10-19", "10-10"), help="first and last")
    parser.add_argument("--stability", default="none", help="with commas; of honest sites only")
    parser.add_argument("--reference", type=int, default=100, help="reference rows")
    parser.add_argument("--no-halves", action="store_true", help="harm need not be confirmed on halves; of honest sites only")
    given = parser.parse_args()
    known: dict[str, Any] = SHUFFLED if given.shuffled else HONEST
    first, last = map(int, given.seeds.split("-"))
    names, seeds = given.data.split(",") if given.data else list(known), list(range(first, last + 1))
    if given.shuffled:
        lines = shuffled(names, seeds, given.reference)
    else:
        lines = honest(names, seeds, given.stability.split(","), given.reference, not given.no_halves)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
