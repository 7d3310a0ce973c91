"""Rules of your own for selection, weighting and robust aggregation: three subclasses of FedAvg.

    python examples/own_rules.py

From an experiment file: method.name = "own_rules:SquareRoot".
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

import grandrounds as gr
from grandrounds.methods.base import PARTS, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.select import Selection
from grandrounds.methods.weigh import WeightingResult, data_size
from grandrounds.protocol.messages import Answers, Ask


class LargestHalf(FedAvg):
    """Selection: the half of the sites with the most training rows."""

    title = "FedAvg with the larger half of the sites"
    parts = PARTS - {"select"}

    def select_sites(self, server: Server) -> Generator[Ask, Answers, Selection]:
        yield from ()  # a rule that asks sites first yields an Ask here and receives their Answers
        by_rows = sorted(server.available_sites, key=lambda s: (-server.rows[s], s))
        chosen = set(by_rows[: (len(by_rows) + 1) // 2])
        sites = tuple(s for s in server.available_sites if s in chosen)
        return Selection(sites, why=f"the {len(sites)} sites with the most training rows take part")


class SquareRoot(FedAvg):
    """Weighting: by the square root of a site's training rows."""

    title = "FedAvg weighted by the square root of training rows"
    parts = PARTS - {"weigh"}

    def weigh_answers(self, server: Server, answers: Answers) -> WeightingResult:
        weights = data_size(np.sqrt(answers["count"]))
        return WeightingResult(weights, {}, "a site's weight is the square root of its training rows, as a share of all")


class DropLongest(FedAvg):
    """Robust aggregation: leave out the site whose update is longest."""

    title = "FedAvg without the longest update"
    parts = PARTS - {"weigh", "robust"}

    def weigh_answers(self, server: Server, answers: Answers) -> WeightingResult:
        norm = np.linalg.norm(np.asarray(answers["model"]) - server.model, axis=1)
        kept = np.where(np.arange(len(norm)) == norm.argmax(), 0, answers["count"])
        left_out = answers.sites[int(norm.argmax())]
        return WeightingResult(data_size(kept), {"norm": norm}, f"{left_out} has the longest update and is left out")


def main() -> None:
    for rule in (LargestHalf, SquareRoot, DropLongest):
        method = {"name": rule, "rounds": 10}
        run = gr.run(gr.Experiment(name="own rules", data={"name": "breast-cancer"}, method=method))
        print(f"{rule.__name__}: accuracy {run.summary['final']['accuracy']:.3f}; {run.rounds[-1]['decision']['why']}")


if __name__ == "__main__":
    main()
