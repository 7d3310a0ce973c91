"""Models to train. A model is a pure description: parameters are passed in, never stored in it.

A `spec` is the JSON a site needs to build the same model as the server: name, inputs, classes, options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import ModelSettings
from grandrounds.core.plugins import is_path
from grandrounds.models.dense import Dense
from grandrounds.models.losses import LOSSES
from grandrounds.models.protocol import TABLE_MODELS, Model, ModelSpec

if TYPE_CHECKING:
    from grandrounds.data.kinds import AnyEncoding

TABLES = {
    "logistic": "Logistic regression, binary or multi-class, with interpretable coefficients (tables)",
    "linear": "Linear model of a number, of the log of a count, or of the log hazard (tables; data.task)",
    "mlp": "Multi-layer perceptron with ReLU; model.hidden gives the widths, e.g. [64, 32] (tables)",
    "lightgbm": "Gradient-boosted trees by LightGBM, for methods 'pooled' and 'local'; model.trees a round (tables)",
    "forest": "Random forest, trained at sites and joined as a union of trees; model.trees, model.depth (tables)",
}
TABLES |= {name: model.title for name, model in TABLE_MODELS.items()}
COLUMN_MODELS = tuple(name for name, model in TABLE_MODELS.items() if model.options)
"""Models that read whole columns. Each is fitted by the method of the same name, or by 'pooled' and 'local'."""
READS_COLUMNS = frozenset(TABLE_MODELS)
"""Models of whole columns, which imply data.coding = "columns"."""
IMAGES = {
    "small-cnn": "2 convolutions, 2 max-pools, 3 dense layers (images)",
    "deep-cnn": "6 convolutions in 3 blocks, 2 dense layers (images)",
    "resnet18": "ResNet-18; model.stem = small or imagenet, model.norm = group or batch (images)",
    "mobilenet-v2": "MobileNetV2 (images)",
    "mobilenet-v3-small": "MobileNetV3-small (images)",
    "mobilenet-v3-large": "MobileNetV3-large (images)",
    "shufflenet-v2": "ShuffleNetV2 x1.0 (images)",
}
MODELS = TABLES | IMAGES
"""Name and one line for each model, as `rounds list models` prints them."""


def model_spec(
    settings: ModelSettings,
    *,
    inputs: tuple[int, ...],
    classes: int,
    task: str = CLASSIFICATION,
    encoding: AnyEncoding | None = None,
    options: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Describe the model that an experiment's [model] section names, for data of this shape.

    Args:
        settings: The section.
        inputs: Shape of one row or image.
        classes: Number of classes; 0 for other tasks.
        task: The type of the outcome.
        encoding: The agreed encoding of rows, for models that read whole columns.
        options: The settings of their fit.

    Returns:
        The JSON that a site needs to build the same model.
    """
    other: dict[str, Any] = {} if task == CLASSIFICATION else {"task": task}
    if settings.name in READS_COLUMNS:
        other["columns"] = load(TABLE_MODELS[settings.name].model).columns_of(encoding)
    return {
        **other,  # type: ignore[typeddict-item]
        "name": model_name(settings.name, task),
        "inputs": list(inputs),
        "classes": classes,
        "hidden": list(settings.hidden) if settings.name == "mlp" else [],
        "trees": settings.trees,
        "depth": settings.depth,
        "norm": settings.norm,
        "stem": settings.stem,
        "weights": settings.weights,
        "statistics": settings.statistics,
        "options": settings.options.plain() if options is None else dict(options),
    }


def model_name(name: str, task: str) -> str:
    """Return the model of a task: a logistic model of a number, a count or a hazard is a linear model.

    Raises:
        BadInput: The model is for another task.
    """
    if task == CLASSIFICATION and name == "linear":
        raise BadInput(
            "model.name is 'linear', which predicts numbers, counts and hazards, and the task is classification: use 'logistic'",
            code="model-does-not-fit",
        )
    if task != CLASSIFICATION and name not in ("logistic", "linear", "mlp", *COLUMN_MODELS) and not is_path(name):
        raise BadInput(
            f"model.name is '{name}', which is for classification, and the task is {task}: use 'linear' or 'mlp'",
            code="model-does-not-fit",
        )
    return "linear" if task != CLASSIFICATION and name == "logistic" else name


def build_model(
    spec: Mapping[str, Any],
    *,
    kernel: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    own_code: bool = False,
) -> Model:
    """Build the model of a spec, on the lightest kernel that fits: NumPy for dense models unless torch or a GPU is asked for.

    A spec may come from a message, so an import path in it is imported only with `own_code`, and no file of weights is opened
    without.
    """
    if is_path(spec["name"]) and not own_code:
        raise BadInput(
            f"model '{spec['name']}' is an import path, and a site imports no code that a message names",
            code="code-not-allowed",
        )
    if not own_code:
        spec = {**spec, "weights": None}
    classes, inputs = int(spec["classes"]), tuple(spec["inputs"])
    outputs = 1 if classes == 2 else classes
    if spec["name"] == "forest":
        from grandrounds.models.forest import ForestModel

        return ForestModel(features=inputs[0], classes=classes, trees=spec["trees"], depth=spec["depth"])
    if spec["name"] == "lightgbm":
        from grandrounds.models.boosted import BoostedModel

        return BoostedModel(features=inputs[0], classes=classes, trees=spec["trees"], depth=spec["depth"])
    if spec["name"] in READS_COLUMNS:
        return cast("Model", load(TABLE_MODELS[spec["name"]].model).from_spec(spec))
    if spec["name"] in TABLES:
        task = str(spec.get("task", CLASSIFICATION))
        widths = (inputs[0], *spec["hidden"], 1 if task != CLASSIFICATION else outputs)
        dense = Dense(widths, LOSSES[task], spec.get("weights"))
        if kernel != "torch" and device != "cuda":
            return dense
        from grandrounds.models.torch_build import torch_dense

        return torch_dense(dense, device=device, precision=precision)
    if is_path(spec["name"]):
        try:
            from grandrounds.models.custom_net import build_custom_net
        except ImportError:
            raise BadInput(
                f"a custom model needs torch; {install_extra('imaging')}", code="missing-package"
            ) from None
        task = str(spec.get("task", CLASSIFICATION))
        outputs = outputs if task == CLASSIFICATION else 1
        model = build_custom_net(cast("ModelSpec", spec), outputs=outputs, device=device, precision=precision)
        model.loss = LOSSES[task]
        return model
    from grandrounds.models.torch_build import torch_net

    return torch_net(cast("ModelSpec", spec), outputs=outputs, device=device, precision=precision)


__all__ = [
    "COLUMN_MODELS",
    "IMAGES",
    "MODELS",
    "READS_COLUMNS",
    "TABLES",
    "Dense",
    "Model",
    "ModelSpec",
    "build_model",
    "model_name",
    "model_spec",
]
