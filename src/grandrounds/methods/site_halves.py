"""The site halves that a plan needs."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.core.plan_types import Plan
from grandrounds.methods import method_class, regularizer_class
from grandrounds.methods.guard import server as guard
from grandrounds.methods.weigh import weighting_rule
from grandrounds.site.plugin import SitePlugin


def site_plugins(plan: Plan) -> tuple[type[SitePlugin], ...]:
    """List the site halves of a plan: of its local regularizer, its weighting, its method and its personal parts.

    Args:
        plan: The experiment's plan.

    Returns:
        Their classes, each once; a host builds these and no others.
    """
    return tuple(dict.fromkeys(_site_plugins(plan)))


def _site_plugins(plan: Plan) -> Iterator[type[SitePlugin]]:
    yield from regularizer_class(plan.method).site
    yield from method_class(plan.method.name).site
    yield from weighting_rule(plan.method.weigh).site
    yield from guard.site_plugins(plan)
