"""An explainer of your own: the importance of a column is the rise of the loss when its value is hidden.

    python examples/own_explainer.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import grandrounds as gr
from grandrounds.explain.explainer import measure
from grandrounds.explain.features import Features, build_features
from grandrounds.models.dense import targets


@dataclass(frozen=True)
class Hidden:
    """Importance of a column: the log loss with the column set to its mean, less the log loss as it is."""

    features: Features

    def rows(self, model, theta, x, target, offsets):
        """Return the importance of each feature for each row: (n, F) for one model, (K, n, F) for several."""
        out = []
        for feature in range(len(self.features)):
            hidden = np.where(self.features.feature_index == feature, 0, x)  # inputs are scaled to mean 0
            out.append(_loss(model, theta, hidden, target) - _loss(model, theta, x, target))
        return np.stack(out, axis=-1)


def _loss(model, theta, x, target):
    p = 1 / (1 + np.exp(-model.logits(theta, x)))
    return -np.log(np.where(target > 0.5, p, 1 - p)).sum(axis=-1)


def main() -> None:
    run = gr.run(gr.Experiment(name="own explainer", data={"name": "breast-cancer"}, method={"rounds": 5}))
    trained, rng = run.model, np.random.default_rng(0)
    x = rng.standard_normal((200, trained.encoding.inputs[0]))
    target = targets((trained.net.logits(trained.theta, x)[:, 0] > 0).astype(int), 1)
    features = build_features(trained.encoding, grid=0)
    found = measure(Hidden(features), trained.net, trained.theta[None], x, target).values[0]
    for k in np.argsort(-found)[:3]:
        print(f"{features.names[k]}: {found[k]:.4f} nats")


if __name__ == "__main__":
    main()
