"""Hospitals that rely on other features: planted differences that are found, and false alarms.

    python bench/differences.py [--cases 50] [--data heart,icu-cohort,diabetes-130] [--size 2] [--fewest 50]
    python bench/differences.py --size 1.5 --planted                                # without the cases that have none
    python bench/differences.py --data eicu-demo --cases 8 --size 2 --fewest 20     # about 40 events, 105 columns
    python bench/differences.py --cost

Columns, gaps, patients and hospitals are real (icu-cohort: generated). Outcomes are drawn: a pooled logistic regression of the
real outcomes, with an intercept for each hospital, gives the risk of each row. Without a difference every hospital has these
coefficients. With one, a random column has another coefficient at one random hospital: `--size` log-odds more or less for a
standard deviation of the column there. Drawn from are hospitals with `--fewest` rows with the event and as many without, and
columns with at least 15% other values than the usual one. Then FedAvg trains the common model on the rows of all hospitals, this
one included, each hospital keeps an intercept of its own, and tests its columns as in any run.

Found: the planted column is named at that hospital. False alarm: the hospital drawn is named in a run without a difference; also
told for all hospitals of these runs. A case has its own seed, hospital, column and outcomes. Sets of eicu-demo and diabetes-130
need GRANDROUNDS_DATA. `--cost`: CPU seconds of the test at all 152 hospitals of icu-cohort.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression

import grandrounds as gr
from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.data.sets.catalog import find_entry
from grandrounds.data.table import Table
from honest_sites import part_of_diabetes, six_hospitals
from smoke import pick

LEAST_SHARE, RARE = 0.15, 0.03
SETS: dict[str, dict[str, Any]] = {
    "heart": {"label": "disease", "site": "hospital"},
    "icu-cohort": {"label": "died", "site": "hospital", "patient": "patient_id", "id": "stay_id"},
    "eicu-demo": {"label": "died_in_hospital", "site": "silo", "patient": "uniquepid"},
    "diabetes-130": {
        "label": "readmitted_30", "site": "medical_specialty", "patient": "patient_nbr", "id": "encounter_id",
    },
}  # fmt: skip
PLAN = {
    "method": {"name": "fedavg", "rounds": pick(30, 3)},
    "train": {"epochs": 2, "lr": 0.05},
    "personal": {"part": "intercept"},
    "explain": {"sketch": "none"},
    "evaluation": {"every": pick(30, 3)},
}


@cache
def load(name: str, part: int) -> Table:
    """Return the real rows: all of heart and eicu-demo, a tenth of diabetes-130, six hospitals of icu-cohort."""
    if name == "icu-cohort":
        return six_hospitals(part)
    if name == "diabetes-130":
        return part_of_diabetes(SETS[name]["site"], part)
    entry = find_entry(name)
    table = entry.load()
    assert isinstance(table, Table)
    return table.without(entry.drop)


@cache
def risks(name: str, part: int) -> tuple[dict[str, Array], Array, Array, Array]:
    """Return the inputs of each column (n, q), the log-odds of each row, its hospital, and its real outcome."""
    table, roles = load(name, part), SETS[name]
    site = table.column(roles["site"]).astype(str)
    inputs = {}
    for column in table.columns:
        if column in roles.values():
            continue
        x = _numbers(table.column(column))
        if x is not None:
            spread = np.nanstd(x)
            inputs[column] = np.nan_to_num(np.clip((x - np.nanmean(x)) / spread, -4, 4))[:, None] if spread > 0 else None
        else:
            words, place, counts = np.unique(table.column(column).astype(str), return_inverse=True, return_counts=True)
            common = np.flatnonzero((counts > RARE * len(site)) & (words != "None"))
            inputs[column] = (place.ravel()[:, None] == common).astype(float) if 1 < len(words) <= 30 and len(common) else None
    kept = {column: x for column, x in inputs.items() if x is not None}
    hospitals = (site[:, None] == np.unique(site)).astype(float)
    design = np.concatenate([*kept.values(), hospitals], axis=1)
    label = table.column(roles["label"]).astype(str)
    outcome = label == sorted(set(label))[-1]
    fitted = LogisticRegression(C=0.1, max_iter=500).fit(design, outcome)
    return kept, np.asarray(fitted.decision_function(design)), site, outcome


def _numbers(values: Array) -> Array | None:
    """Return a column as numbers; None for a category."""
    try:
        return np.array([np.nan if v is None else v for v in values], float)
    except (TypeError, ValueError):
        return None


def draw_case(name: str, seed: int, size: float, fewest: int = 50) -> tuple[Table, str, str]:
    """Draw outcomes; return the table, and the hospital and the column of the difference."""
    inputs, risk, site, outcome = risks(name, seed % 10 if name in ("icu-cohort", "diabetes-130") else 0)
    table, roles = load(name, seed % 10 if name in ("icu-cohort", "diabetes-130") else 0), SETS[name]
    rng = generator(seed, purpose=f"planted differences {name}")
    rarer = {s: min(outcome[site == s].sum(), (~outcome[site == s]).sum()) for s in np.unique(site)}
    hospital = str(rng.choice([s for s, n in rarer.items() if n >= fewest] or [max(rarer, key=lambda s: rarer[s])]))
    here = site == hospital
    fit = []
    for column, x in inputs.items():
        usual = [np.mean(v == np.median(v)) for v in x[here].T]
        fit += [(column, i) for i, share in enumerate(usual) if share <= 1 - LEAST_SHARE]
    column, i = fit[int(rng.integers(len(fit)))]
    x = inputs[column][:, i]
    change = size * rng.choice([-1, 1]) * (x - x[here].mean()) / x[here].std()
    died = rng.random(len(risk)) < 1 / (1 + np.exp(-(risk + np.where(here, change, 0.0))))
    columns = {c: table.column(c) for c in table.columns if c != roles["label"]}
    return Table.from_mapping({**columns, roles["label"]: died.astype(float)}, source=f"{name}.csv"), hospital, column


def test_case(name: str, seed: int, size: float, fewest: int) -> tuple[dict[str, list[str]], str, str]:
    """Run one case; return the columns that are named at each hospital, the hospital and the column."""
    table, hospital, column = draw_case(name, seed, size, fewest)
    experiment = gr.Experiment.parse({**PLAN, "seed": seed, "data": dict(SETS[name])})
    with tempfile.TemporaryDirectory() as folder:
        done = gr.run(experiment, table=table, out=Path(folder) / "run")
        found = done.summary.personal["differences"]
    whole = "(all features)"
    named = {
        site: [f["feature"] for f in record["features"] if f["differs"] and f["feature"] != whole]
        for site, record in found.items()
    }
    return named, hospital, column


def interval(found: int, cases: int) -> str:
    """Return Clopper and Pearson's 95% interval of a share."""
    low = beta.ppf(0.025, found, cases - found + 1) if found else 0.0
    high = beta.ppf(0.975, found + 1, cases - found) if found < cases else 1.0
    return f"{low:.0%} to {high:.0%}"


def measure(names: list[str], cases: int, size: float, fewest: int, planted: bool) -> None:
    """Print a line for each set and kind, and the sum."""
    print("| set | planted | found | also named | false alarms | hospitals named without a difference |")
    print("|---|---:|---:|---:|---:|---:|")
    sums = np.zeros(6, int)
    for k, name in enumerate(names):
        seeds = range(k, cases, len(names))
        row = np.zeros(6, int)
        for seed in seeds:
            named, hospital, column = test_case(name, seed, size, fewest)
            row[:3] += (1, column in named.get(hospital, []), bool(set(named.get(hospital, [])) - {column}))
            if planted:
                continue
            named, hospital, _ = test_case(name, seed + 10_000, 0.0, fewest)
            row[3:] += (bool(named.get(hospital)), sum(bool(v) for v in named.values()), len(named))
        sums += row
        print(_line(name, row), flush=True)
    print(_line("all", sums))
    n = int(sums[0])
    alarms = "" if planted else f"; false alarms {sums[3]} of {n} ({interval(int(sums[3]), n)})"
    print(f"\nfound {sums[1]} of {n} ({interval(int(sums[1]), n)}){alarms}")


def _line(name: str, row: Array) -> str:
    return f"| {name} | {row[0]} | {row[1]} | {row[2]} | {row[3]} of {row[0]} | {row[4]} of {row[5]} |"


def cost() -> None:
    """Print the CPU seconds of the test at all hospitals of icu-cohort."""
    import grandrounds.runs.finalize as finalize

    spent = []
    drive = finalize.Finalizer._differences

    def timed(*arguments: Any) -> Any:
        start = time.process_time()
        out = drive(*arguments)
        spent.append(time.process_time() - start)
        return out

    finalize.Finalizer._differences = timed  # type: ignore[method-assign]
    values = {**PLAN, "method": {"name": "fedavg", "rounds": 5}, "data": {"name": "icu-cohort"}, "evaluation": {"every": 5}}
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        done = gr.run(gr.Experiment.parse(values), out=Path(folder) / "run")
        found = done.summary.personal
    whole = time.process_time() - start
    print(f"{len(found['differences'])} hospitals: {spent[0]:.1f} of {whole:.1f} CPU seconds; {len(found['differs'])} differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=pick(50, 1))
    parser.add_argument("--data", default=pick("heart,icu-cohort,diabetes-130", "heart"))
    parser.add_argument("--fewest", type=int, default=50, help="rows with the event, and without, of a hospital")
    parser.add_argument("--planted", action="store_true", help="only cases with a difference")
    parser.add_argument("--size", type=float, default=2.0, help="log-odds for a standard deviation of the column")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    if given.cost:
        cost()
    else:
        measure(given.data.split(","), given.cases, given.size, given.fewest, given.planted)


if __name__ == "__main__":
    main()
