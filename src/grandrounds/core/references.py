"""Find the reference sets that the method and the anchor use."""

from __future__ import annotations

from collections.abc import Collection

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan

ADD_ROWS = "add [reference.rows] with rows = 200 (--set reference.rows.rows=200)"
"""Fix where a method needs reference rows."""

USUAL = "anchor"
"""Default name of the anchor set, if several sets are sent and none is named."""


def which(names: Collection[str], named: str) -> str | None:
    """Return the shared reference set of a method: the named one, the default one, or the only one."""
    if named or USUAL in names:
        return named or USUAL
    return next(iter(names)) if len(names) == 1 else None


def watched_rows(plan: Plan) -> str | None:
    """Return the reference images that the model is scored on (evaluation.rationale_set), if any."""
    name: str | None = plan.evaluation.rationale_set
    return name


def unwatched(plan: Plan, names: Collection[str]) -> list[str]:
    """Return the candidate sets if none is named: all but the scoring set, unless it is the only one."""
    candidates = [name for name in names if name != watched_rows(plan)]
    return candidates or list(names)


def reference_name(plan: Plan) -> str | None:
    """Return the reference set that the method uses: the one it names, or the only one besides evaluation.rationale_set."""
    known_names, named = list(plan.reference.plain()), plan.method.reference
    if named is not None and named not in known_names:
        raise BadInput(
            f"method.reference is '{named}'; {nearest(named, known_names) if known_names else 'there is no [reference]'}",
            code="unknown-reference-set",
        )
    meant = unwatched(plan, known_names)
    return named or (meant[0] if len(meant) == 1 else None)
