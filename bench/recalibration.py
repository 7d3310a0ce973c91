"""Recalibration by the number of events: does the closed test help, and does it harm a model that needs no change?

    python bench/recalibration.py

Draws log-odds of a model (mean -1.8, standard deviation 1.2: about 20% events), outcomes from a line of them, and fits as `rounds
recalibrate` does. The printed loss is the excess over the true risks on 20,000 further patients, in thousandths of log loss, so
that 0 is perfect: without an update, with the closed test (and its rule for few patients), and with slope and intercept always.
"""

from __future__ import annotations

import sys

import numpy as np

from grandrounds.capabilities.watch.recalibration.line_fit import NONE, apply_line, choose_update, fit_line_freely
from grandrounds.capabilities.watch.recalibration.recalibrate import LEAST, SLOPE_PATIENTS
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from smoke import pick

CHANGES = {
    "no change": (1.0, 0.0),
    "intercept +0.7": (1.0, 0.7),
    "slope 0.6": (0.6, 0.0),
    "slope 0.6, intercept +0.7": (0.6, 0.7),
}
"""Slope and intercept of the true log-odds on the model's."""
EVENTS = (20, 50, 100, 200)
REPEATS = pick(300, 3)


def draw(rng: np.random.Generator, n: int, slope: float, intercept: float) -> tuple[Array, Array]:
    """Draw log-odds of the model (n, 1) and true log-odds (n,)."""
    z = rng.normal(-1.8, 1.2, n)
    return z[:, None], slope * z + intercept


def excess(true: Array, used: Array) -> float:
    """Compute the expected log loss of used log-odds (n,) less that of the true ones, in thousandths."""
    p = 1 / (1 + np.exp(-true))

    def loss(z: Array) -> float:
        return float((np.logaddexp(0, z) - p * z).mean())

    return 1000 * (loss(used) - loss(true))


def main(repeats: int) -> None:
    """Print a table of the changes and numbers of events."""
    print(f"{'truth':26} {'events':>6} {'updated':>8} {'as it is':>9} {'closed test':>12} {'always both':>12}")
    for name, (slope, intercept) in CHANGES.items():
        for events in EVENTS:
            losses, updated = [], 0
            for repeat in range(repeats):
                rng = generator(repeat, purpose=f"bench recalibration {name} {events}")
                z, true = draw(rng, 40 * events, slope, intercept)
                y = rng.random(len(true)) < 1 / (1 + np.exp(-true))
                last = int(np.flatnonzero(np.cumsum(y) == events)[0]) + 1  # wait for so many events
                last = max(last, int(np.flatnonzero(np.cumsum(~y) == LEAST)[0]) + 1)
                rows, target, units = z[:last], y[:last, None].astype(float), np.arange(last)
                new, truth = draw(rng, 20_000, slope, intercept)
                try:
                    chosen = choose_update(rows, target, units, intercept_only=last < SLOPE_PATIENTS)
                    both = fit_line_freely(rows, target, units, slope=True)
                except BadInput:  # separated scores
                    continue
                updated += chosen.kind != NONE
                used = (new, apply_line(chosen.fit.line, new), apply_line(both.line, new))
                losses.append([excess(truth, scores[:, 0]) for scores in used])
            before, after, always = np.mean(losses, axis=0)
            print(f"{name:26} {events:6d} {updated / len(losses):8.0%} {before:9.1f} {after:12.1f} {always:12.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
