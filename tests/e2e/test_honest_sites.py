"""SSE-AGG at natural, honest units: other patients are no reason to be demoted, shuffled labels are.

`bench/honest_sites.py` measures the same over ten seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.data.sets.diabetes import load
from grandrounds.data.table import Table
from tests.support import slow

ROUNDS = 30
STABILITIES = ("none", "permuted_anchor", "anchored_scaffold")
SETS: dict[str, dict[str, Any]] = {
    "heart": {"data": {"name": "heart"}, "train": {"epochs": 2, "lr": 0.05, "l2": 0.01}},
    "eicu-demo": {"data": {"name": "eicu-demo"}, "train": {"epochs": 2, "lr": 0.02, "l2": 0.02}},
    "diabetes-130": {
        "data": {"label": "readmitted_30", "site": "medical_specialty", "patient": "patient_nbr", "id": "encounter_id"},
        "train": {"steps": 20, "batch": 64, "lr": 0.05},
    },
}
DIGITS = {
    "data": {"name": "digits"},
    "split": {"partition": "dirichlet", "sites": 5, "alpha": 1.0},
    "attacks": [{"kind": "label-shuffle", "count": 1}],
}
NETS = {
    "small": {"model": {"name": "logistic"}, "train": {"steps": 20, "lr": 0.1}},
    "study": {"model": {"name": "mlp", "hidden": [64]}, "train": {"steps": 40, "lr": 0.05}},
}


def run(values: dict[str, Any], out, *, rounds=ROUNDS, method=None, table=None) -> gr.Run:
    sets = {"rows": {"rows": 100}, "anchor": {"rows": 60, "labelled": False, "sent": True}}
    held = {"reference": sets, "explain": {"reference": "rows", "every": 0}, "evaluation": {"every": rounds}, **values}
    held["method"] = {"name": "sse-agg", "rounds": rounds, **(method or {})}
    return gr.run(gr.Experiment.parse(held), table=table, out=out)


def kept(done: gr.Run) -> Iterator[dict[str, float]]:
    """Each round's weights as shares of what rows alone would give."""
    for decision in (r["decision"] for r in done.rounds):
        rows = decision["signals"]["data_size"]
        yield {s: w * sum(rows.values()) / rows[s] for s, w in decision["weights"].items()}


def demoted(done: gr.Run) -> list[str]:
    """Sites that lost more than half of their rows' weight in three rounds or more."""
    every = list(kept(done))
    return [s for s in every[0] if sum(w[s] < 0.5 for w in every) >= 3]


def specialties(rows: int = 4000) -> Table:
    """Stays at the four most common specialties of diabetes-130."""
    held = load()
    special = held.column("medical_specialty").astype(str)
    named = ~np.isin(special, ["?", "", "nan", "None"])
    names, counts = np.unique(special[named], return_counts=True)
    of = np.flatnonzero(np.isin(special, names[np.argsort(-counts)[:4]]))
    return held.take(np.sort(np.random.default_rng(0).choice(of, rows, replace=False))).without(["weight"])


@pytest.mark.parametrize(
    ("name", "stability", "rounds"),
    [
        ("heart", "none", 12),
        pytest.param("eicu-demo", "none", 8, marks=pytest.mark.data("eicu_demo")),
        *(slow("heart", s, ROUNDS) for s in STABILITIES),
        pytest.param("eicu-demo", "none", ROUNDS, marks=[pytest.mark.slow, pytest.mark.data("eicu_demo")]),
        *(
            pytest.param("diabetes-130", s, ROUNDS, marks=[pytest.mark.slow, pytest.mark.data("diabetes130")])
            for s in STABILITIES[:2]
        ),
    ],
)
def test_honest_hospitals_with_other_patients_keep_their_weight(name, stability, rounds, tmp_path):
    table = specialties() if name == "diabetes-130" else None
    done = run(SETS[name], tmp_path / "r", rounds=rounds, method={"stability": stability}, table=table)
    assert demoted(done) == []


@pytest.mark.parametrize(
    ("net", "settings", "rounds"),
    [
        ("small", {}, 10),
        ("small", {"stability": "none"}, 10),
        ("small", {"preset": "defence"}, 10),
        *(slow("study", settings, ROUNDS) for settings in ({}, {"stability": "none"}, {"preset": "defence"})),
    ],
)
def test_the_site_with_shuffled_labels_is_found_and_nobody_else(net, settings, rounds, tmp_path):
    done = run({**DIGITS, **NETS[net]}, tmp_path / "r", rounds=rounds, method=settings)
    bad = list(done.summary["attacks"]["sites"])
    assert demoted(done) == bad
    assert list(kept(done))[-1][bad[0]] < 0.5
    notes = done.rounds[-1]["decision"]["notes"]
    assert any(n.startswith(f"{bad[0]}: ") and ("demoted" in n or "may lose all" in n) for n in notes)


def test_without_labels_no_site_falls_below_half(tmp_path):
    sets = {"rows": {"rows": 100, "labelled": False}}
    values = {**DIGITS, **NETS["small"], "reference": sets, "explain": {"reference": "rows", "score": "self"}}
    done = run(values, tmp_path / "r", rounds=6, method={"stability": "none"})
    assert min(w for each in kept(done) for w in each.values()) >= 0.5
    assert "harm" not in done.rounds[-1]["decision"]["signals"]
