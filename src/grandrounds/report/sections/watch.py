"""Report section on a watch across hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from grandrounds.report.watch import watch_tables


def watch_section(summary: Mapping[str, Any]) -> list[str]:
    """Write the section on a watch; empty for another run."""
    tables = watch_tables(summary)
    if not tables:
        return []
    watch = summary["watch"]
    told = f"Watched model: {watch['model'][:16]} of {watch['run']}."
    return [tables[0].html(heading="h2"), *(t.html() for t in tables[1:]), f"<p class='quiet'>{escape(told)}</p>"]
