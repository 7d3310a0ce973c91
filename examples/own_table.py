"""Train on your own table from Python: write a small CSV, run, read the results, score new patients.

    python examples/own_table.py [FOLDER]

The script writes patients.csv, new_patients.csv and the run folder `run` to FOLDER (default: own_table), which must
not contain a run. The patients are generated: three hospitals of unequal size, a laboratory value with missing entries,
an ordered severity grade, and patients with several stays.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from pathlib import Path

import pandas as pd

import grandrounds as gr

HOSPITALS = {"north": 260, "south": 200, "harbour": 120}
SEVERITY = ["mild", "moderate", "severe"]
COLUMNS = ["stay_id", "patient", "hospital", "admitted", "age", "sex", "lactate", "severity", "ward", "died"]


def stays(rng: random.Random) -> list[dict[str, object]]:
    """Generate stays; older and sicker patients with a high lactate die more often."""
    rows: list[dict[str, object]] = []
    patient, age, sex = 0, 0, ""
    for hospital, n in HOSPITALS.items():
        for stay in range(n):
            if stay == 0 or rng.random() > 0.1:  # otherwise the same patient returns
                patient += 1
                age, sex = round(min(max(rng.gauss(66, 14), 18), 95)), rng.choice(["female", "male"])
            grade = rng.choices(range(3), [5, 3, 2])[0]
            lactate = round(math.exp(rng.gauss(0.5 + 0.3 * grade, 0.4)), 1)
            risk = 1 / (1 + math.exp(-(-6.6 + 0.05 * age + 1.1 * grade + 0.6 * lactate)))
            rows.append(
                {
                    "stay_id": len(rows) + 1,
                    "patient": f"P{patient:04d}",
                    "hospital": hospital,
                    "admitted": f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
                    "age": age,
                    "sex": sex,
                    "lactate": "" if rng.random() < 0.15 else lactate,
                    "severity": SEVERITY[grade],
                    "ward": rng.choice(["medical", "surgical", "cardiac"]),
                    "died": "yes" if rng.random() < risk else "no",
                }
            )
    return rows


def write_csv(path: Path, rows: list[dict[str, object]], columns: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "own_table").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = stays(random.Random(7))
    write_csv(folder / "patients.csv", rows, COLUMNS)
    unlabelled = [c for c in COLUMNS if c != "died"]
    write_csv(folder / "new_patients.csv", stays(random.Random(8))[:5], unlabelled)

    experiment = gr.Experiment(
        name="own table",
        data={
            "table": str(folder / "patients.csv"),
            "label": "died",
            "site": "hospital",
            "patient": "patient",
            "kinds": {"severity": SEVERITY},  # ordered levels, low to high
        },
        method={"rounds": 15},
        evaluation={"threshold": "youden", "subgroup": "sex"},
    )
    run = gr.run(experiment, out=folder / "run")

    final, worst = run.summary["final"], run.summary["worst_site"]
    print(f"{run.folder.name}: AUROC {final['auroc']:.3f} [{final['auroc_low']:.3f}, {final['auroc_high']:.3f}]")
    print(f"accuracy {final['decision_accuracy']:.3f} (majority class {final['majority']:.3f})")
    if worst:
        print(f"worst site: {worst['site']}, AUROC {worst['auroc']:.3f} of {worst['count']:.0f} rows")
    print(f"privacy: {run.summary['privacy']['mechanism']}")

    weights = run.rounds[-1]["decision"]["weights"]
    print("weights:", ", ".join(f"{site} {weight:.3f}" for site, weight in weights.items()))

    made = run.model.predict(pd.read_csv(folder / "new_patients.csv"))
    for risk, decision in zip(made.risk, made.decisions, strict=True):
        print(f"risk {risk:.3f} -> {decision}")


if __name__ == "__main__":
    main()
