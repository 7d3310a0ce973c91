"""The API of the console: JSON under /api, one module a resource. Routes of patients are in `cases.routes`."""

from grandrounds.console.api.audit import router as audit_router
from grandrounds.console.api.comparisons import router as compare_router
from grandrounds.console.api.live import STREAMS_BY_SESSION
from grandrounds.console.api.live import router as live_router
from grandrounds.console.api.parameters import (
    REFUSED,
    ComparisonName,
    Name,
    Responses,
    RoundNumber,
    RunName,
    RunNames,
    WithdrawnModel,
)
from grandrounds.console.api.privacy import router as privacy_router
from grandrounds.console.api.runs import router
from grandrounds.console.api.session import router as session_router

__all__ = [
    "REFUSED",
    "STREAMS_BY_SESSION",
    "ComparisonName",
    "Name",
    "Responses",
    "RoundNumber",
    "RunName",
    "RunNames",
    "WithdrawnModel",
    "audit_router",
    "compare_router",
    "live_router",
    "privacy_router",
    "router",
    "session_router",
]
