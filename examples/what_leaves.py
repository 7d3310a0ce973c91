"""What one site sends in a run, message by message: names, shapes, bytes. And what a reader could make of it.

    python examples/what_leaves.py [RECIPE] [SITE] [SECTION.KEY=VALUE ...]

Default: breast-cancer and its first site. One round is run with `engine.wire = true`, where every message goes
through bytes, and we listen on that wire. With settings, such as privacy.mechanism=dp-sgd privacy.epsilon=3, one sees
what leaves under them; what an answer has room for and does not say is marked "nothing".
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
    """Stands between the engine and the bytes; keeps what one site answers to each kind of Ask."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.task = ""
        self.heard: dict[str, tuple[dict[str, Any], int]] = {}
        self._decode_ask, self._encode_answer = local.decode_ask, local.encode_answer
        local.decode_ask, local.encode_answer = self.ask, self.answer

    def ask(self, data: bytes, site: str, layout: Any) -> Any:
        heard = self._decode_ask(data, site, layout)
        self.task = heard.task
        return heard

    def answer(self, answer: Any, layout: Any) -> bytes:
        data = self._encode_answer(answer, layout)
        if answer.site == self.site:
            known, size = self.heard.get(self.task, ({}, 0)) if self.task == "summarise" else ({}, 0)  # asked twice
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

    print("\nWhat can be read from them:")
    if "summarise" in listener.heard and isinstance(held.data, Dataset):
        _values(listener.heard["summarise"][0], held.data.take(rows.train).numeric, held.data.numeric_names[:3])
    _scores(listener.heard["evaluate"][0])


def _kind(task: str, name: str, value: Any) -> str:
    """What an entry is, in a word; a tally that holds no patient says nothing."""
    if isinstance(value, str):
        return f"{len(value)} characters"
    if task == "evaluate" and name.startswith(("train.", "val.", "test.")) and not np.any(value):
        return "nothing"
    return f"numbers {np.shape(value)}"


def _values(heard: dict[str, Any], own: Any, names: Any) -> None:
    """The values of columns, put together again from the summary, against the true ones."""
    said = {name.removeprefix("summary."): value for name, value in heard.items()}
    for j, name in enumerate(names):
        mine = said["cell_column"] == j
        rebuilt = np.sort(np.repeat(grid_value(said["cell"][mine]), said["cell_count"][mine]))
        true = np.sort(own[~np.isnan(own[:, j]), j])
        worst = float(np.max(np.abs(rebuilt - true) / np.maximum(np.abs(true), 1e-9), initial=0))
        print(f"  {name}: all {len(true)} values of the training rows, to {worst:.2%} (not whose they are)")


def _scores(heard: dict[str, Any]) -> None:
    """How many patients' scores lie in the histograms of each kind of rows."""
    for part, rows in (("train", "training"), ("val", "validation"), ("test", "test")):
        if f"{part}.histogram" not in heard:
            continue
        histogram = np.asarray(heard[f"{part}.histogram"])
        said = f"{histogram.sum()} scores of {rows} rows with their true class, in {(histogram > 0).sum()} cells"
        print(f"  evaluate: {said if histogram.any() else f'nothing of {rows} rows'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
