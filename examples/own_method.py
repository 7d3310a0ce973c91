"""Write a federated method in one file: FedAvg with more weight for hospitals with a higher loss.

    python examples/own_method.py

From an experiment file: method.name = "own_method:LossWeighted" (see own.toml).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

import grandrounds as gr
from grandrounds.core.records import Decision
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.select import choose
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers, Ask


class LossWeighted(Method):
    """w_k ~ n_k * loss_k^q, with the loss of the global model on the site's training rows; q = 0 is FedAvg.

    The weights are those of q-FFL (Li et al. 2020); its server step is different.
    """

    title = "sites with a higher loss have more weight (method.options.q)"
    parts = frozenset({"select", "stability"})
    defaults: ClassVar = {"q": 1.0}

    def round(self, server: Server) -> Round:
        chosen = yield from choose(server, self.settings.select)
        scored: Answers = yield Ask("score", shared={"model": server.model}, to=chosen.sites, report=("loss",))
        answers: Answers = yield self.ask_to_train(server, scored.sites)
        loss = scored.by_site("loss")
        pull = np.array([max(loss[s], 1e-12) for s in answers.sites]) ** self.options["q"]
        weights = data_size(answers["count"] * pull)
        decision = Decision(
            signals={"data_size": answers.by_site("count"), "loss": {s: loss[s] for s in answers.sites}},
            weights=dict(zip(answers.sites, weights.tolist(), strict=True)),
            why=f"a site's weight is its rows times its loss to the power {self.options['q']:g}, as a share of all",
        )
        return server.next(server.combine(answers, weights), decision, **self.regularizer.update(server, answers))


def main() -> None:
    for q in (0.0, 2.0):
        method = {"name": LossWeighted, "rounds": 10, "options": {"q": q}}
        run = gr.run(gr.Experiment(name="own method", data={"name": "digits"}, method=method))
        weights = run.rounds[-1]["decision"]["weights"].values()
        print(f"q = {q:g}: weights {min(weights):.3f} to {max(weights):.3f}, ", end="")
        print(f"highest loss of a site {max(m['log_loss'] for m in run.summary['per_site'].values()):.3f}")


if __name__ == "__main__":
    main()
