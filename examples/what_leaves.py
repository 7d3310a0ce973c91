"""What one site sends in a run, message by message: names, shapes, bytes. And what a reader could make of it.

    python examples/what_leaves.py [RECIPE] [SITE]

Default: breast-cancer and its first site. One round is run with `engine.wire = true`, where every message goes
through bytes, and we listen on that wire.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.consortium import assemble
from grandrounds.data.quantiles import grid_value
from grandrounds.engine import local
from grandrounds.recipes import load_recipe
from grandrounds.settings import Settings


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
            self.heard[self.task] = dict(answer.values), len(data)
        return data


def main(recipe: str = "breast-cancer", site: str = "") -> None:
    settings = ["engine.wire=true", "method.rounds=1", "evaluation.calibrate=temperature"]
    experiment = load_recipe(recipe).with_settings(settings)
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
            kind = f"{len(value)} characters" if isinstance(value, str) else f"numbers {np.shape(value)}"
            print(f"  {name:<22} {kind}")

    print("\nWhat can be read from them:")
    heard, own = listener.heard["summarise"][0], held.data.take(rows.train).numeric
    said = {name.removeprefix("summary."): value for name, value in heard.items()}
    for j, name in enumerate(held.data.numeric_names[:3]):
        mine = said["cell_column"] == j
        rebuilt = np.sort(np.repeat(grid_value(said["cell"][mine]), said["cell_count"][mine]))
        true = np.sort(own[~np.isnan(own[:, j]), j])
        worst = float(np.max(np.abs(rebuilt - true) / np.maximum(np.abs(true), 1e-9), initial=0))
        print(f"  {name}: all {len(true)} values of the training rows, to {worst:.2%} (not whose they are)")
    histogram = np.asarray(listener.heard["evaluate"][0]["test.histogram"])
    filled = int((histogram > 0).sum())
    print(
        f"  evaluate: {histogram.sum()} scores of test rows with their true class, in {filled} cells of the histogram"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
