"""Registry of federated methods and local regularizers. Each algorithm has its own file and one line here."""

from __future__ import annotations

from typing import Any

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import MethodSettings, TrainSettings
from grandrounds.methods.anchors import AnchoredScaffold, AttributionAlignment, PermutedAnchor, ReferenceAnchor
from grandrounds.methods.asynchronous import FedAsync, FedBuff
from grandrounds.methods.base import LocalRegularizer, Method
from grandrounds.methods.baselines import Local, Pooled
from grandrounds.methods.clustered import Clustered
from grandrounds.methods.cyclic import Cyclic
from grandrounds.methods.exact.card import RiskCardMethod
from grandrounds.methods.exact.describe import SurvivalMethod, TableOneMethod
from grandrounds.methods.exact.exchange import ExactMethod
from grandrounds.methods.exact.gam import Additive
from grandrounds.methods.exact.private_gam import PrivateGAM
from grandrounds.methods.exact.regression import CoxRegression, GeneralizedLinear
from grandrounds.methods.exact.trees import BoostedTrees
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.fedbn import FedBN
from grandrounds.methods.feddyn import FedDyn
from grandrounds.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedRMSProp, FedYogi
from grandrounds.methods.fedprox import FedProx, Proximal
from grandrounds.methods.fedxchain.server import FedXChain
from grandrounds.methods.moon import Contrastive, Moon
from grandrounds.methods.personal.site import PersonalSite
from grandrounds.methods.personal.training import TrainedParts
from grandrounds.methods.quality.server import Quality
from grandrounds.methods.scaffold import ControlVariates, Scaffold
from grandrounds.methods.sse_agg.method import SSEAgg
from grandrounds.methods.veil.server import Veil
from grandrounds.methods.watch.server import Watch
from grandrounds.methods.xfed.server import XFed
from grandrounds.site.plugin import SitePlugin

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        *(FedAvg, SSEAgg, FedXChain, XFed, FedProx, Scaffold, FedDyn, Moon, FedBN),
        *(FedAvgM, FedOpt, FedAdam, FedYogi, FedAdagrad, FedRMSProp),
        *(FedAsync, FedBuff, Clustered, Cyclic, Veil, Local, Pooled),
        *(GeneralizedLinear, CoxRegression, TableOneMethod, SurvivalMethod),
        *(Additive, PrivateGAM, BoostedTrees, RiskCardMethod, Watch, Quality),
    )
}
REGULARIZERS: dict[str, type[LocalRegularizer]] = {
    regularizer.name: regularizer
    for regularizer in (
        *(LocalRegularizer, Proximal, ControlVariates, Contrastive),
        *(ReferenceAnchor, PermutedAnchor, AnchoredScaffold, AttributionAlignment),
    )
}
SITE_PLUGINS: tuple[type[SitePlugin], ...] = tuple(
    dict.fromkeys(
        [p for stability in REGULARIZERS.values() for p in stability.site]
        + [p for m in METHODS.values() for p in m.site]
        + [TrainedParts, PersonalSite]
    )
)
"""Site plug-ins of all methods and regularizers, and those of personal parts. Every host is built with them."""


_EARLIER_HOOKS = {"joined": "train_and_aggregate", "work": "train_config", "holds": "regularizer_name"}
"""Hooks of a method by their name in version 0.1. An override under the old name would be ignored, so it is refused."""


def method_class(name: str) -> type[Method]:
    """Return the class of a method.

    Args:
        name: The name of a built-in method, or an import path.

    Returns:
        The class.

    Raises:
        BadInput: The import path names no Method, or a class with hooks of version 0.1.
    """
    if not plugins.is_path(name):
        return METHODS[name]
    resolved = plugins.resolve(name, key="method.name")
    if not (isinstance(resolved, type) and issubclass(resolved, Method)):
        raise BadInput(
            f"method.name is '{name}', which is not a subclass of grandrounds.methods.base.Method",
            code="wrong-base-class",
        )
    for old, new in _EARLIER_HOOKS.items():
        if hasattr(resolved, old):
            raise BadInput(
                f"method.name is '{name}', whose `{old}` would not be called: rename it to `{new}`", code="renamed-hook"
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
    return issubclass(method_class(name), METHODS[base])


def is_exact(name: str) -> bool:
    """Check whether a method computes its result from sums over hospitals.

    Args:
        name: The name of the method, or an import path.

    Returns:
        True for 'glm', 'cox' and other exact methods; False for an unknown name.
    """
    return (name in METHODS or plugins.is_path(name)) and issubclass(method_class(name), ExactMethod)


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
