"""What clients add to their replies: one key of the MetricRecord for each number, and who makes it.

The names are those of the package's own reports with `grandrounds.` before them, so that they meet no key of the app's own.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "grandrounds."
"""Before every key of ours in a MetricRecord."""

KEEP, ROUND = f"{PREFIX}keep", f"{PREFIX}round"
"""In a message's ConfigRecord: that the node is to keep its model until it is asked for, and the round it trained in."""

SITE = f"{PREFIX}site"
"""In a ConfigRecord of a reply: what the node calls itself, for the record alone."""

UPLOAD = "grandrounds_upload"
"""The action of the message that asks for a model that was kept: `@app.train("grandrounds_upload")`."""


@dataclass(frozen=True)
class Report:
    """A report of a method: the columns it is made of, which of them are lists, which may be left out, who makes them."""

    columns: tuple[str, ...]
    lists: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    helper: str = ""


REPORTS = {
    "sketch": Report(("sketch", "sketch.total", "sketch.flat"), lists=("sketch",), helper="sse_report"),
    "val_loss": Report(("val_loss",), helper="sse_report(..., validation=(x, y))"),
    "ece": Report(("ece",), helper="sse_report(..., validation=(x, y))"),
    "shap": Report(
        ("shap.shares", "shap.direction"),
        lists=("shap.shares", "shap.direction"),
        optional=("shap.direction",),
        helper="fedxchain_report",
    ),
    "trust": Report(("trust.accuracy",), helper="fedxchain_report(..., accuracy=...)"),
    "rationale": Report(
        ("rationale.accuracy", "rationale.loss", "rationale.xai", "rationale.grid"),
        optional=("rationale.loss", "rationale.xai", "rationale.grid"),
        helper="xfed_report",
    ),
}
"""By the names that methods ask for; `model`, `count` and `steps` are Flower's own business."""


def key_of(column: str) -> str:
    """The MetricRecord's key of a report's column."""
    return f"{PREFIX}{column}"
