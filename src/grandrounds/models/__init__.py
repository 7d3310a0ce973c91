"""What is trained. A model is a pure description: parameters are passed in, never held."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.models.dense import Dense

MODELS = {
    "logistic": "Logistic regression, binary or multi-class: coefficients that can be read.",
    "mlp": "Multi-layer perceptron with ReLU; model.hidden gives the widths, e.g. [64, 32].",
}
"""Name and one line for each model, as `rounds list models` prints them."""


def build_model(name: str, *, features: int, classes: int, hidden: Sequence[int] = ()) -> Dense:
    """The named model for data of this shape."""
    outputs = 1 if classes == 2 else classes
    return Dense((features, *(hidden if name == "mlp" else ()), outputs))


__all__ = ["MODELS", "Dense", "build_model"]
