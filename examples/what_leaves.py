"""Print the data that one site discloses in a run, message by message, and what a reader can infer from it.

    python examples/what_leaves.py [RECIPE] [SITE] [SECTION.KEY=VALUE ...]

Default: breast-cancer and its first site. The script runs one round with `engine.wire = true`, which serialises every
message, and intercepts the messages. Settings such as privacy.mechanism=dp-sgd privacy.epsilon=3 show the disclosed data
under them. Empty parts of an answer are marked "nothing".
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.data.dataset import Dataset
from grandrounds.data.summary import grid_value
from grandrounds.engine import local
from grandrounds.recipes import load_recipe
from grandrounds.runs.federation import assemble


class Listener:
    """Intercept messages and record one site's answer to each kind of Ask."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.task = ""
        self.heard: dict[str, tuple[dict[str, Any], int]] = {}
        self._decode_ask, self._encode_answer = local.decode_ask, local.encode_answer
        local.decode_ask, local.encode_answer = self.ask, self.answer

    def ask(self, data: bytes, site: str, layout: Any) -> Any:
        heard = self._decode_ask(data, site, layout)
        self.task = f"{heard.task} (deployed model)" if heard.shared.get("personal") else heard.task
        return heard

    def answer(self, answer: Any, layout: Any) -> bytes:
        data = self._encode_answer(answer, layout)
        if answer.site == self.site:
            known, size = self.heard.get(self.task, ({}, 0)) if self.task == "summarise" else ({}, 0)  # sent twice
            self.heard[self.task] = {**known, **answer.values}, size + len(data)
        return data


def main(recipe: str = "breast-cancer", site: str = "", *settings: str) -> None:
    own = settings or ("evaluation.calibrate=temperature",)
    experiment = load_recipe(recipe).with_settings(["engine.wire=true", "method.rounds=1", *own])
    held = assemble(Settings(experiment.plan()))
    k = held.stack.names.index(site) if site else 0
    rows = held.stack.rows[k]
    print(f"{held.stack.names[k]}: {len(rows.train)} training, {len(rows.val)} validation, {len(rows.test)} test rows")

    listener = Listener(held.stack.names[k])
    with tempfile.TemporaryDirectory() as folder:
        gr.run(experiment, out=Path(folder) / "run")
    for task, (values, size) in listener.heard.items():
        print(f"\n{task}: {size:,} bytes")
        for name, value in values.items():
            print(f"  {name:<22} {_kind(task, name, value)}")

    print("\nInferred from them:")
    if "summarise" in listener.heard and isinstance(held.data, Dataset):
        _values(listener.heard["summarise"][0], held.data.take(rows.train).numeric, held.data.numeric_names[:3])
    _scores(listener.heard["evaluate"][0])


def _kind(task: str, name: str, value: Any) -> str:
    """Describe an entry; a tally without patients is 'nothing'."""
    if isinstance(value, str):
        return f"{len(value)} characters"
    if task == "evaluate" and name.startswith(("train.", "val.", "test.")) and not np.any(value):
        return "nothing"
    return f"numbers {np.shape(value)}"


def _values(heard: dict[str, Any], own: Any, names: Any) -> None:
    """Reconstruct column values from the summary and compare them with the true ones."""
    said = {name.removeprefix("summary."): value for name, value in heard.items()}
    for j, name in enumerate(names):
        mine = said["cell_column"] == j
        rebuilt = np.sort(np.repeat(grid_value(said["cell"][mine]), said["cell_count"][mine]))
        true = np.sort(own[~np.isnan(own[:, j]), j])
        worst = float(np.max(np.abs(rebuilt - true) / np.maximum(np.abs(true), 1e-9), initial=0))
        print(f"  {name}: all {len(true)} values of the training rows, to {worst:.2%} (not whose they are)")


def _scores(heard: dict[str, Any]) -> None:
    """Count the patients' scores in the histograms of each kind of rows."""
    for part, rows in (("train", "training"), ("val", "validation"), ("test", "test")):
        if f"{part}.histogram" not in heard:
            continue
        histogram = np.asarray(heard[f"{part}.histogram"])
        said = f"{histogram.sum()} scores of {rows} rows with their true class, in {(histogram > 0).sum()} cells"
        print(f"  evaluate: {said if histogram.any() else f'nothing of {rows} rows'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
