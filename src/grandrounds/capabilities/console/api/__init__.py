"""The API of the console: JSON under /api/v1, one module a subject. Patients' routes are defined in `cases.routes`."""

from grandrounds.capabilities.console.api import (
    audit,
    comparisons,
    hospitals,
    live,
    models,
    privacy,
    register,
    rounds,
    run_files,
    run_tables,
    runs,
    session,
)
from grandrounds.capabilities.console.api.live import STREAMS_BY_SESSION
from grandrounds.capabilities.console.api.parameters import (
    ComparisonName,
    Name,
    RoundNumber,
    RunName,
    RunNames,
    WithdrawnModel,
)
from grandrounds.capabilities.console.api.resources import REFUSED, Responses

RESOURCES = (
    *(runs.resources, hospitals.resources, rounds.resources, models.resources),
    *(run_files.resources, run_tables.resources, comparisons.resources, register.resources),
    *(audit.resources, privacy.resources, live.resources, session.resources),
)
"""All resources but those of patients, in the order of the description."""
audit_router, privacy_router = audit.resources.old_router, privacy.resources.old_router

__all__ = [
    "REFUSED",
    "RESOURCES",
    "STREAMS_BY_SESSION",
    "ComparisonName",
    "Name",
    "Responses",
    "RoundNumber",
    "RunName",
    "RunNames",
    "WithdrawnModel",
    "audit_router",
    "privacy_router",
]
