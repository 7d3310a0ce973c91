"""Platt scaling within a budget: two noisy histograms against noisy Newton steps, on a generated cohort's scores.

    python bench/private_platt.py [--cohort 7] [--epsilon 1] [--repeats 60] [--out runs/private-platt]

A logistic model is trained by FedAvg on 152 generated hospitals (one fold, unseen hospitals as test). Its validation scores,
as they are and on two other scales, are calibrated with noise; what counts is the log loss on the test rows above that of
the exact line. Noise at each hospital, or one draw in shares as secure aggregation adds it. delta = 1e-5.

Both ways were set on cohort 0 (cells, width, share and cut of the histograms in 24 settings, after single histograms of 10 to
80 cells; clip, steps and floor of Newton's steps in 60), so look at another cohort.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.data.sets.cohort import generate
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.platt import PlattLine, PrivatePlatt, fit_counts
from grandrounds.privacy.accounting import noise_for
from grandrounds.privacy.secagg import fewest_honest
from grandrounds.runs.federation import assemble
from grandrounds.site.evaluate import score
from grandrounds.site.platt import counts
from smoke import pick

SCALES = {"as trained": (1.0, 0.0), "2.5 s + 2": (2.5, 2.0), "0.3 s - 0.5": (0.3, -0.5)}
DELTA = 1e-5


@dataclass
class Scores:
    """Scores and outcomes: of validation rows with their hospital, and of test rows."""

    s: Any
    y: Any
    site: Any
    test: Any
    outcome: Any

    @property
    def sites(self) -> int:
        return int(self.site.max()) + 1


@dataclass(frozen=True)
class Rehearsed(PrivatePlatt):
    """The same fit on scores that lie at hand, with noise from a generator in place of the sites' secrets."""

    held: Any = None
    rng: Any = field(default_factory=np.random.default_rng)

    def _counts(
        self, served: Any, edges: Any, share: float, rule: Any, *, by_outcome: bool
    ) -> Generator[Any, Any, Any]:
        yield from ()
        h, k = self.held, self.held.sites
        zero = np.zeros(len(h.s), np.int64)
        found = counts(h.s, h.y, zero, edges, by_outcome=by_outcome, sites=1)[0]
        if self.secure:
            deviation = self._sigma(share) * np.sqrt(k / fewest_honest(k))
            return found + np.rint(self.rng.normal(0, deviation, found.shape)), deviation
        e = share * self.epsilon
        p = -np.expm1(-e)
        noise = self.rng.geometric(p, (k, *found.shape)) - self.rng.geometric(p, (k, *found.shape))
        return found + noise.sum(axis=0), np.sqrt(2 * k * np.exp(-e)) / p


def histograms(held: Scores, epsilon: float, rng: Any, *, secure: bool) -> PlattLine:
    work = Rehearsed(epsilon, DELTA, secure, held, rng).fit(ModelAssignment(np.zeros(1)))
    try:
        next(work)
    except StopIteration as end:
        return end.value
    raise AssertionError("a rehearsal asks nobody")


def newton_steps(held: Scores, epsilon: float, rng: Any, *, secure: bool) -> PlattLine:
    """Each row's gradient and Hessian entries, clipped together to a norm, summed with noise, in a few steps.

    Eigenvalues of the Hessian below `floor` deviations of the noise are raised to it, and no step is longer than 2.
    """
    clip, steps, floor = (4.0, 4, 2.0) if secure else (4.0, 3, 4.0)
    k = held.sites
    noise = clip * noise_for(epsilon, DELTA, steps=steps) * np.sqrt(k / fewest_honest(k) if secure else k)
    x, line = np.clip(held.s, -8, 8), np.array([1.0, 0.0])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-line[0] * x - line[1]))
        v = p * (1 - p)
        rows = np.stack([(p - held.y) * x, p - held.y, v * x * x, v * x, v], axis=1)
        rows /= np.maximum(1, np.linalg.norm(rows, axis=1) / clip)[:, None]
        g0, g1, aa, ab, bb = rows.sum(axis=0) + rng.normal(0, noise, 5)
        size, turn = np.linalg.eigh(np.array([[aa, ab], [ab, bb]]))
        step = -(turn @ ((turn.T @ np.array([g0, g1])) / np.maximum(size, floor * noise)))
        line = line + step * min(1.0, 2 / np.linalg.norm(step))
    return PlattLine(float(line[0]), float(line[1]), steps, "" if line[0] > 0 else "turned round")


def scores_of(cohort: int, out: Path) -> Scores:
    """Train once (kept in `out`), and score the rows."""
    table = generate(cohort)
    plan = gr.Experiment.parse(
        {
            "name": "private-platt",
            "data": {"label": "died", "site": "hospital", "patient": "patient_id", "drop": ["stay_id"]},
            "split": {"scheme": "group-kfold"},
            "method": {"rounds": pick(20, 2)},
            "train": {"epochs": 1, "batch": 64, "lr": 0.1},
            "explain": {"sketch": "none"},
        }
    )
    run = gr.load_run(out) if (out / "summary.json").exists() else gr.run(plan, table=table, out=out)
    held = assemble(Settings(run.plan), table)
    model: Any = run.model

    def scored(rows: Any) -> tuple[Any, Any]:
        data = held.data.take(rows)
        x = model.encoding.encode(data, model.theta.dtype)
        return score(model.net, model.theta, x)[:, 0].astype(float), model.encoding.labels(data)

    own = [r.val for r in held.stack.rows if len(r.val)]
    s, y = scored(np.concatenate(own))
    test, outcome = scored(np.concatenate([r.test for r in held.stack.rows]))
    return Scores(s, y, np.repeat(np.arange(len(own)), [len(r) for r in own]), test, outcome)


def log_loss(line: PlattLine, s: Any, y: Any) -> float:
    z = line.slope * s + line.intercept
    return float(np.mean(np.logaddexp(0, z) - y * z))


def main() -> None:
    say = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    say.add_argument("--cohort", type=int, default=7)
    say.add_argument("--epsilon", type=float, default=1.0)
    say.add_argument("--repeats", type=int, default=pick(60, 3))
    say.add_argument("--out", type=Path, default=Path("runs/private-platt"))
    asked = say.parse_args()
    found = scores_of(asked.cohort, asked.out)
    rows = f"{len(found.s):,} validation rows ({found.y.sum():.0f} positive) of {found.sites} sites"
    print(f"{rows}; {len(found.test):,} test rows")
    ways: dict[str, Callable[..., PlattLine]] = {"histograms": histograms, "newton": newton_steps}
    print(f"{'scores':12} {'noise':8} {'way':11} {'excess loss':>11} {'90th':>7} {'refused':>8}   (uncalibrated)")
    for name, (a, b) in SCALES.items():
        held = Scores(a * found.s + b, found.y, found.site, a * found.test + b, found.outcome)
        exact = log_loss(fit_counts(held.s, held.y.astype(float), 1.0 - held.y), held.test, held.outcome)
        raw = log_loss(PlattLine(1.0, 0.0), held.test, held.outcome) - exact
        for secure in (True, False):
            for way, fit in ways.items():
                rng = np.random.default_rng(0)
                lines = [fit(held, asked.epsilon, rng, secure=secure) for _ in range(asked.repeats)]
                excess = [log_loss(line, held.test, held.outcome) - exact for line in lines if not line.refused]
                numbers = f"{np.mean(excess):11.4f} {np.quantile(excess, 0.9):7.4f}"
                noise = "secure" if secure else "local"
                print(f"{name:12} {noise:8} {way:11} {numbers} {len(lines) - len(excess):8d}   {raw:.4f}")


if __name__ == "__main__":
    main()
