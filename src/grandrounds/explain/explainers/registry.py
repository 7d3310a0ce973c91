"""Registry of explainers: use, description, requirements and code, which is imported on demand.

An explainer is added by a file with its arithmetic and one entry here. The settings `explain.sketch` and `explain.maps`, the
checks of an experiment, `rounds list explainers` and `rounds explain --explainer` use this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

_HOME = "grandrounds.explain.explainers"


class Use(Enum):
    """Uses of an explainer."""

    TABLE_SKETCH = "importances of a table's columns, in the loop"
    IMAGE_SKETCH = "importances of an image's tiles, in the loop"
    HEAT_MAP = "heat map of an image"
    CASE = "contributions of columns to one patient's score"


@dataclass(frozen=True)
class ExplainerSpec:
    """One explainer in one use.

    Attributes:
        name: As experiments and commands name it.
        use: Its use; one name may have several uses.
        words: One-line description.
        code: Module and name below this package. A sketch's is a class with `from_rule(rule, features, background)`, a case's
            a function of a `cases.Question`; heat maps are rules of `heat`.
        needs_gradient: Does not explain forests and boosted trees.
        needs_linear: Explains linear and logistic models alone.
        needs_background: Compares a patient with an agreed background.
        needs_labels: Reads the true classes of the rows; those that hide features do so unless explain.score is 'self'.
        needs_layer: Reads the map of a net's last convolution.
        hides_features: Scores the model with a feature hidden (explain.score).
        mean_suffices: For a linear model, the background's mean is sufficient (cases).
        title: Name of a heat map that a run can make (explain.maps); empty for those that it cannot.
        short: A shorter title.
        drawn: `rounds explain` draws the heat map of an image.
    """

    name: str
    use: Use
    words: str
    code: str = ""
    needs_gradient: bool = False
    needs_linear: bool = False
    needs_background: bool = False
    needs_labels: bool = True
    needs_layer: bool = False
    hides_features: bool = False
    mean_suffices: bool = True
    title: str = ""
    short: str = ""
    drawn: bool = False

    def load(self) -> Any:
        """Import the explainer's code."""
        module, _, name = self.code.partition(":")
        return getattr(import_module(f"{_HOME}.{module}"), name)


_T, _I, _H, _C = Use.TABLE_SKETCH, Use.IMAGE_SKETCH, Use.HEAT_MAP, Use.CASE
EXPLAINER_SPECS: tuple[ExplainerSpec, ...] = (
    ExplainerSpec("permutation", _T,
                  "permutation importance: loss of the score when a column is shuffled (explain.score, explain.repeats)",
                  "permutation:Permutation", hides_features=True),
    ExplainerSpec("gradient", _T, "mean |input x gradient of the loss|: one backward pass, for every round",
                  "gradients:Gradient", needs_gradient=True, needs_background=True),
    ExplainerSpec("shap", _T, "mean |SHAP|: exact for linear models, path gradients for MLPs, TreeExplainer for trees; "
                  "one background for all",
                  "shapley:Shap", needs_background=True),
    ExplainerSpec("integrated_gradients", _T, "mean |integrated gradients| from the consortium's mean patient",
                  "gradients:IntegratedGradients", needs_gradient=True, needs_background=True),
    ExplainerSpec("coefficients", _T, "the weights of a linear model on standardised inputs",
                  "linear:Coefficients", needs_gradient=True, needs_linear=True, needs_labels=False),
    ExplainerSpec("occlusion", _I, "occlusion: loss of the net's score when a tile is hidden (explain.score, explain.tiles)",
                  "occlusion:Occlusion", hides_features=True),
    ExplainerSpec("gradient", _I, "mean |pixel x gradient of the loss| in each tile", "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("saliency", _I, "|gradient of the class score| in each tile", "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("gradient_norm", _I, "norm of the input gradient, scaled from 0 to 1: the thesis's 'NormGrad' (3.6)",
                  "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("grad_cam", _I, "Grad-CAM at the last convolution", "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("normgrad", _I, "NormGrad as published: norms of activations times norms of gradients at a layer",
                  "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("integrated_gradients", _I, "integrated gradients with SmoothGrad", "occlusion:Tiles", needs_gradient=True),
    ExplainerSpec("grad_cam", _H, "Grad-CAM: the last map's channels weighted by their mean gradient; positive evidence only",
                  needs_layer=True, title="Grad-CAM", drawn=True),
    ExplainerSpec("normgrad", _H, "NormGrad: norm of the last map's activations x norm of its gradients, at each position",
                  needs_layer=True, title="NormGrad", drawn=True),
    ExplainerSpec("gradient_norm", _H, "norm of the input gradient over channels, scaled to [0, 1] in each image",
                  title="gradient norm", short="grad. norm"),
    ExplainerSpec("integrated_gradients", _H,
                  "integrated gradients averaged over noisy copies (SmoothGrad), absolute, summed over channels",
                  title="integrated gradients", short="int. grad.", drawn=True),
    ExplainerSpec("saliency", _H,
                  "absolute input gradient of the class score, summed over channels",
                  title="saliency"),
    ExplainerSpec("gradient", _H, "input x gradient of the loss, absolute, summed over channels: cheap enough for every round"),
    ExplainerSpec("shap", _C, "exact for linear models and trees; for nets path gradients, averaged over the background",
                  "cases:explain_shap"),
    ExplainerSpec("deep", _C, "SHAP's DeepExplainer, layer by layer, for MLPs and nets (needs torch)",
                  "cases:explain_deep_shap", needs_gradient=True),
    ExplainerSpec("kernel", _C, "SHAP's KernelExplainer, by sampling, for any model; slow", "cases:explain_kernel_shap"),
    ExplainerSpec("integrated_gradients", _C,
                  "gradients along the straight line from the background's mean row to this patient",
                  "cases:explain_integrated_gradients", needs_gradient=True),
    ExplainerSpec("lime", _C, "LIME: a local linear model around this patient; values do not sum exactly to the score",
                  "cases:explain_lime", mean_suffices=False),
    ExplainerSpec("coefficients", _C, "a linear model's coefficients times the patient's standardised values",
                  "cases:explain_coefficients", needs_gradient=True, needs_linear=True),
)  # fmt: skip
"""Every explainer in every use, in the order of lists."""


def explainers_for(use: Use) -> Mapping[str, ExplainerSpec]:
    """Return the explainers of a use by name."""
    return {spec.name: spec for spec in EXPLAINER_SPECS if spec.use is use}


DEFAULT_CASE = "shap"
"""Default explainer of a case."""
SKETCHES: tuple[str, ...] = tuple(dict.fromkeys((*explainers_for(_T), *explainers_for(_I))))
"""Values of explain.sketch."""
MAPS: Mapping[str, str] = {name: spec.title for name, spec in explainers_for(_H).items() if spec.title}
"""Values of explain.maps, with the titles of the maps."""
