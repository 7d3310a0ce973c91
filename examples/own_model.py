"""Train your own torch module across ten hospitals.

    python examples/own_model.py

From an experiment file: model.name = "own_model:Residual" (see own.toml).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import grandrounds as gr


class Residual(nn.Module):
    """A hidden layer with a residual block, for rows of a table or flattened images."""

    def __init__(self, *, inputs: tuple[int, ...], outputs: int, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.enter = nn.Linear(math.prod(inputs), width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enter(x.flatten(1)))
        logits: Tensor = self.head(h + self.block(h))
        return logits


def main() -> None:
    experiment = gr.Experiment(
        name="own model",
        data={"name": "breast-cancer"},
        model={"name": Residual, "options": {"width": 24}},
        method={"rounds": 10},
    )
    run = gr.run(experiment)
    summary = run.summary
    print(f"{summary['model']}: {summary['parameters']} parameters, AUROC {summary['final']['auroc']:.3f}")


if __name__ == "__main__":
    main()
