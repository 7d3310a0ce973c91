"""SSE-AGG, FedXChain and XFed as strategies for existing Flower apps.

from grandrounds.capabilities.integrations.flower import SSEAgg
strategy = SSEAgg(fraction_train=0.5)          # in place of FedAvg(fraction_train=0.5)

A strategy runs the package's own method, so its weights equal those of `grandrounds.run`. The module `client` in this package
computes the metrics that clients add to their replies; it needs only NumPy and imports no Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.capabilities.integrations.flower.fedxchain import FedXChain
    from grandrounds.capabilities.integrations.flower.strategy import SSEAgg
    from grandrounds.capabilities.integrations.flower.uploads import answer_with, send_kept_model
    from grandrounds.capabilities.integrations.flower.xfed import XFed

__all__ = ["FedXChain", "SSEAgg", "XFed", "answer_with", "send_kept_model"]

_HOME = {
    "SSEAgg": "strategy",
    "FedXChain": "fedxchain",
    "XFed": "xfed",
    "answer_with": "uploads",
    "send_kept_model": "uploads",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module
    from importlib.util import find_spec

    from grandrounds.core.errors import install_extra

    if find_spec("flwr") is None:
        raise ImportError(f"{__name__}.{name} needs Flower; {install_extra('flower')}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
