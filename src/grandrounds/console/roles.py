"""Who may look at what. A user has one or more roles, and every page and API route belongs to one area."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from grandrounds.core.errors import BadInput, nearest


class Role(StrEnum):
    """What a user is to the consortium."""

    VIEWER = "viewer"
    CLINICIAN = "clinician"
    AUDITOR = "auditor"


class Area(StrEnum):
    """What a route shows."""

    RUNS = "runs"
    COMPARE = "compare"
    CASES = "cases"
    AUDIT = "audit"
    PRIVACY = "privacy"


_EVERYBODY = frozenset(Role)
OPEN_TO: dict[Area, frozenset[Role]] = {
    Area.RUNS: _EVERYBODY,
    Area.COMPARE: _EVERYBODY,
    Area.CASES: frozenset({Role.CLINICIAN}),
    Area.AUDIT: frozenset({Role.AUDITOR}),
    Area.PRIVACY: frozenset({Role.AUDITOR}),
}
"""Cases are of patients, so they are the clinician's alone; how patients are protected is the auditor's to check."""


def may_see(roles: Iterable[Role], area: Area) -> bool:
    return not OPEN_TO[area].isdisjoint(roles)


def parse_roles(words: Iterable[str]) -> tuple[Role, ...]:
    """Roles by name; an unknown one is refused in words."""
    known = [r.value for r in Role]
    found = []
    for word in words:
        if word not in known:
            raise BadInput(f"there is no role '{word}'; {nearest(word, known)}")
        found.append(Role(word))
    if not found:
        raise BadInput(f"a user needs a role: {', '.join(known)}")
    return tuple(dict.fromkeys(found))
