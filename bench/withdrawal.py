"""Withdrawal of a hospital: bar W1 and the cost. Prints the tables of docs/benchmarks.md.

    python bench/withdrawal.py

Each row repeats a run of the four heart hospitals (of 18 institutions for Cox regression) without one of them, and compares it
with a fresh run that never had it: the same table without the hospital's rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.analysis.membership.withdrawal import prove_withdrawal
from grandrounds.audit.digest import model_digest
from grandrounds.core.plan_types import Plan
from grandrounds.data.loading import read_data
from grandrounds.data.table import Table
from smoke import pick

SITE = "va"
COX, INSTITUTION = "Cox, lung, 18 institutions", "institution-01"
FITS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "linear, sums subtracted": ("glm", {"label": "age", "features": ["sex", "chest_pain", "exercise_angina"]}),
    "linear, own intercepts": ("glm", {"label": "age", "features": ["sex", "chest_pain", "exercise_angina"]}),
    "logistic": ("glm", {"label": "disease", "features": ["age", "sex", "chest_pain", "exercise_angina"]}),
    COX: ("cox", {}),
}


def heart() -> Table:
    """Read the four hospitals' rows."""
    table = read_data(Plan(gr.Experiment.parse({"data": {"name": "heart"}}).plan()).data)
    assert isinstance(table, Table)
    return table


def lung() -> Table:
    """Read the complete rows of the NCCTG lung cancer patients at 18 institutions, from lifelines."""
    from lifelines.datasets import load_lung

    frame = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog", "wt.loss"]].dropna().astype(float)
    frame["status"] -= frame["status"].min()
    columns = {name: frame[name].to_numpy() for name in frame if name != "inst"}
    hospital = np.array([f"institution-{inst:02.0f}" for inst in frame["inst"]], object)
    return Table.from_mapping({**columns, "hospital": hospital}, source="lung")


def fit_run(name: str, table: Table, out: Path) -> gr.Run:
    """Run one fit of FITS over a table."""
    method, columns = FITS[name]
    exact: dict[str, Any] = {"heterogeneity": False}
    data: dict[str, Any] = {"site": "hospital", "coding": "reference", "complete": True, "clip": 0.0, **columns}
    if name == COX:
        data |= {"label": "status", "duration": "time", "features": ["age", "sex", "ph.ecog", "wt.loss"]}
    elif name.startswith("linear"):
        data["task"] = "regression"
        exact["intercept"] = "common" if "subtracted" in name else "own"
    else:
        exact["intercept"] = "common"
    values = {"data": data, "method": {"name": method, "exact": exact}, "split": {"val": 0.0, "test": 0.0, "min_rows": 1}}
    return gr.run(gr.Experiment.parse(values), table=table, out=out, progress=False)


def estimates(run: gr.Run) -> np.ndarray:
    """Return estimates and standard errors in original units."""
    rows = run.summary["estimates"]["original"]["coefficients"]
    return np.array([[c["estimate"], c["error"]] for c in rows if c["estimate"] is not None], float)


def compare_fits(table: Table, folder: Path) -> None:
    """Print the largest relative difference of each fit from a fresh run, and its exchanges."""
    print("fit | largest difference from a fresh run | exchanges | exchanges of a fresh run")
    print("---|---|---|---")
    for name in list(FITS)[: pick(None, 1)]:
        place = folder / name.replace(" ", "-").replace(",", "")
        rows, site = (lung(), INSTITUTION) if name == COX else (table, SITE)
        done = gr.withdraw(fit_run(name, rows, place), site, table=rows, progress=False)
        fresh = fit_run(name, rows.take(rows.columns["hospital"] != site), place.with_name(f"{place.name}-fresh"))
        now, then = estimates(done.run), estimates(fresh)
        worst = float(np.abs(now / then - 1).max())
        asked = sum(bool(r["decision"]["asked"]) for r in done.run.rounds)
        print(f"{name} | {worst:.1e} | {asked} | {len(fresh.rounds)}")


def compare_models(table: Table, folder: Path) -> None:
    """Print whether models have the bits of a fresh run, and the membership attack on the rows of the site."""
    print("\nmodel | same bits as a fresh run | attack on the earlier model (AUC) | on the model without the site")
    print("---|---|---|---")
    rest = table.take(table.columns["hospital"] != SITE)
    data = {"label": "disease", "site": "hospital"}
    plans: dict[str, dict[str, Any]] = {
        "FedAvg, logistic": {"method": {"rounds": pick(20, 2)}},
        "FedAvg, MLP, 60 rounds": {"method": {"rounds": 60}, "model": {"name": "mlp"}, "train": {"epochs": 10}},
        "SSE-AGG": {"method": {"name": "sse-agg", "rounds": 10}, "reference": {"rows": {"rows": 60}}},
        "boosted trees": {"model": {"name": "trees"}},
    }
    for name, sections in list(plans.items())[: pick(None, 1)]:
        experiment = gr.Experiment.parse({"data": data, **sections})
        place = folder / name.replace(" ", "-").replace(",", "")
        earlier = gr.run(experiment, table=table, out=place, progress=False)
        done = gr.withdraw(earlier, SITE, table=table, progress=False)
        fresh = gr.run(experiment, table=rest, out=place.with_name(f"{place.name}-fresh"), progress=False)
        same = model_digest(done.run.model.theta) == model_digest(fresh.model.theta)
        proof = prove_withdrawal(gr.load_run(place, withdrawn=True), done.run, SITE, data=table)
        before, after = (f"{a.auc:.3f} ({a.low:.3f} to {a.high:.3f})" for a in (proof.before, proof.after))
        print(f"{name} | {'yes' if same else 'NO'} | {before} | {after}")


def compare_cost(table: Table, folder: Path) -> None:
    """Print the cost of a withdrawal by the round in which the site counted first, against a full re-run."""
    late, last = pick((15, 20), (3, 4))
    print(f"\nwithdrawal of a site that joined in round {late} of {last} | rounds | MB | s | set-up statistics")
    print("---|---|---|---|---")
    data = {"label": "disease", "site": "hospital"}
    sections: dict[str, Any] = {"data": data, "method": {"rounds": last}, "engine": {"absences": {SITE: [1, late - 1]}}}
    for keep in (False, True):
        place = folder / f"late-{keep}"
        earlier = gr.run(gr.Experiment.parse(sections), table=table, out=place, progress=False)
        began = time.perf_counter()
        done = gr.withdraw(earlier, SITE, keep_setup=keep, table=table, progress=False)
        seconds, cost = time.perf_counter() - began, done.cost()["repetition"]
        name = "`--keep-setup`" if keep else "default, a full re-run"
        print(f"{name} | {cost['rounds']:.0f} | {cost['bytes'] / 1e6:.2f} | {seconds:.1f} | {done.facts.setup}")


def main() -> int:
    """Print all tables."""
    table = heart()
    with tempfile.TemporaryDirectory() as folder:
        compare_fits(table, Path(folder))
        compare_models(table, Path(folder))
        compare_cost(table, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
