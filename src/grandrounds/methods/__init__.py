"""Registry of federated methods and local regularizers. Each algorithm has its own file and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import MethodSettings, TrainSettings
from grandrounds.core.registry import Registry

if TYPE_CHECKING:
    from grandrounds.methods.base import LocalRegularizer, Method

_HERE = "grandrounds.methods"
METHODS: Registry[Method] = Registry(
    {
        "fedavg": f"{_HERE}.fedavg:FedAvg",
        "sse-agg": f"{_HERE}.sse_agg.method:SSEAgg",
        "fedxchain": f"{_HERE}.fedxchain.server:FedXChain",
        "xfed": f"{_HERE}.xfed.server:XFed",
        "fedprox": f"{_HERE}.fedprox:FedProx",
        "scaffold": f"{_HERE}.scaffold:Scaffold",
        "feddyn": f"{_HERE}.feddyn:FedDyn",
        "moon": f"{_HERE}.moon:Moon",
        "fedbn": f"{_HERE}.fedbn:FedBN",
        "fedavgm": f"{_HERE}.fedopt:FedAvgM",
        "fedopt": f"{_HERE}.fedopt:FedOpt",
        "fedadam": f"{_HERE}.fedopt:FedAdam",
        "fedyogi": f"{_HERE}.fedopt:FedYogi",
        "fedadagrad": f"{_HERE}.fedopt:FedAdagrad",
        "fedrmsprop": f"{_HERE}.fedopt:FedRMSProp",
        "fedasync": f"{_HERE}.asynchronous:FedAsync",
        "fedbuff": f"{_HERE}.asynchronous:FedBuff",
        "clustered": f"{_HERE}.clustered:Clustered",
        "cyclic": f"{_HERE}.cyclic:Cyclic",
        "veil": f"{_HERE}.veil.server:Veil",
        "local": f"{_HERE}.baselines:Local",
        "pooled": f"{_HERE}.baselines:Pooled",
    },
    member="methods",
)
REGULARIZERS: Registry[LocalRegularizer] = Registry(
    {
        "none": f"{_HERE}.base:LocalRegularizer",
        "proximal": f"{_HERE}.fedprox:Proximal",
        "scaffold": f"{_HERE}.scaffold:ControlVariates",
        "moon": f"{_HERE}.moon:Contrastive",
        "anchor": f"{_HERE}.anchors:ReferenceAnchor",
        "permuted_anchor": f"{_HERE}.anchors:PermutedAnchor",
        "anchored_scaffold": f"{_HERE}.anchors:AnchoredScaffold",
        "alignment": f"{_HERE}.anchors:AttributionAlignment",
    }
)


def method_class(name: str) -> type[Method]:
    """Return the class of a method.

    Args:
        name: The name of a built-in method, or an import path.

    Returns:
        The class.

    Raises:
        BadInput: The import path names no Method.
    """
    if not plugins.is_path(name):
        return METHODS[name]
    resolved = plugins.resolve(name, key="method.name")
    from grandrounds.methods.base import Method

    if not (isinstance(resolved, type) and issubclass(resolved, Method)):
        raise BadInput(
            f"method.name is '{name}', which is not a subclass of grandrounds.methods.base.Method",
            code="wrong-base-class",
        )
    return resolved


def is_variant_of(name: str, base: str) -> bool:
    """Check whether a method is a built-in one or a subclass of it.

    Args:
        name: The name of the method, or an import path.
        base: The name of a built-in method.

    Returns:
        True for the method itself and for its subclasses.
    """
    return name == base or any(vars(kind).get("name") == base for kind in method_class(name).__mro__)


def is_exact(name: str) -> bool:
    """Check whether a method computes its result from sums over hospitals.

    Args:
        name: The name of the method, or an import path.

    Returns:
        True for 'glm', 'cox' and other exact methods; False for an unknown name.
    """
    return (name in METHODS or plugins.is_path(name)) and method_class(name).is_exact


def regularizer_class(settings: Any) -> type[LocalRegularizer]:
    """Return the local regularizer of a method: the one it requires, else method.stability.

    Args:
        settings: The section [method].

    Returns:
        The class of the regularizer.
    """
    named = "none" if settings.stability == "auto" else settings.stability
    return REGULARIZERS[method_class(settings.name).regularizer_name or named]


def build_method(settings: MethodSettings, train: TrainSettings) -> Method:
    """Build the method of an experiment with its local regularizer.

    Args:
        settings: The section [method].
        train: The section [train].

    Returns:
        The method.

    Raises:
        BadInput: The method, or one of its options, is unknown.
    """
    return method_class(settings.name)(settings, train, regularizer_class(settings)(settings))
