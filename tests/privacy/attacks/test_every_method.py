"""Every registered method can be attacked: its models in use are judged, and its plan runs as a shadow of itself."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.membership import shadows as shadow_runs
from grandrounds.analysis.membership.attack import attack_run
from grandrounds.analysis.membership.shadows import find_target
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.run_rows import RunRows
from grandrounds.runs.runner import execute_plan
from tests.runs.test_run import frame
from tests.support import averaging_methods, bright_squares, patients

LENT = {"reference": {"root": {"rows": 20, "sent": True}}}
NEEDS: dict[str, dict] = {
    "sse-agg": {"reference": {"rows": {"rows": 20}}, "explain": {"sketch": "auto"}},
    "fedxchain": LENT,
    "moon": {"model": {"name": "mlp", "hidden": [4]}},
    "xfed": {
        "method": {"rounds": 1, "xfed": {"steps": 1, "samples": 1, "score": "grid"}},
        "reference": {"scoring": {"rows": 8, "sent": True}},
    },
    "fedbn": {"model": {"name": "deep-cnn", "norm": "batch"}, "method": {"rounds": 1}},
    "cyclic": {"method": {"rounds": 4}},
    "glm": {"method": {"rounds": 30}},
    "private-gam": {
        "privacy": {"epsilon": 5.0},
        "data": {
            "ranges": {"age": [30, 90], "lactate": [0.5, 6], "pressure": [45, 105]},
            "levels": {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]},
        },
    },
    "veil": {"privacy": {"epsilon": 5.0}, "method": {"rounds": 1, "veil": {"selection": "moments"}}},
}
"""What a method cannot run without. One that is new and needs nothing is attacked as it is."""

OF_IMAGES = ("xfed", "fedbn")
APART = ("local", "clustered", "fedbn")
"""Methods whose sites may end with models of their own."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    home = tmp_path_factory.mktemp("every")
    frame(patients([40, 36, 44, 32])).to_csv(home / "patients.csv", index=False)
    return {"rows": home / "patients.csv", "images": bright_squares(home / "squares.npz", 120, "abcd", purpose="squares")}


def values_for(name: str, tables) -> dict:
    images = name in OF_IMAGES
    data = {"table": str(tables["images"])} if images else {"table": str(tables["rows"]), "label": "died", "site": "hospital"}
    values = {
        "data": data,
        "split": {"val": 0.2, "test": 0.3},
        "method": {"name": name, "rounds": 2},
        "train": {"steps": 2, "batch": 8},
        "explain": {"sketch": "none"},
        **({"model": {"name": "small-cnn"}, "engine": {"device": "cpu"}} if images else {}),
    }
    for section, own in NEEDS.get(name, {}).items():
        values[section] = {**values.get(section, {}), **own}
    return values


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [*averaging_methods(), "glm", "private-gam"])
def test_a_run_of_it_is_attacked_and_shadowed(name, tables, tmp_path):
    if name in OF_IMAGES:
        pytest.importorskip("torch")
    run = gr.run(gr.Experiment.parse(values_for(name, tables)), out=tmp_path / "run")
    found = attack_run(run)
    (threshold,) = found.attacks
    assert 0 <= threshold.auc <= 1 and threshold.members > 20 < threshold.nonmembers
    assert found.separate == bool(run.summary["models"]) and (not found.separate or name in APART)
    assert (found.promise is not None) == (name in ("veil", "private-gam"))
    held = RunRows.read(run)
    rows, given = shadow_runs._shadow_rows(held)
    bundle = (run.folder / "attacks").resolve() / "given.rows.safetensors"
    shadow_runs._write(given, bundle)
    folder = RunFolder(run.folder / "attacks" / "shadow-001")
    folder.create()
    execute_plan(shadow_runs._shadow_plan(run, held, bundle, 0), folder)  # in this process: starting another takes longer
    shadow = Run(folder.path)
    target = find_target(run, held)
    confidence, inside = shadow_runs._query_shadow(shadow, given, np.searchsorted(rows, target.rows))
    assert np.isfinite(confidence).all() and confidence.shape == inside.shape == target.rows.shape
    assert inside.any() and not inside.all(), "so LiRA has rows that the shadow saw, and rows that it did not"
