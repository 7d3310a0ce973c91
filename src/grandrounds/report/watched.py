"""The report's section on reasons that are scored (evaluation.reasons): is the model right, and for the right reason?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.explain.agreement import standard_error
from grandrounds.report import figures
from grandrounds.report.document import Charts, table, td

COLUMNS = {
    "accuracy": "accuracy",
    "xai": "XAI accuracy",
    "grid": "grid accuracy",
    "in_mask": "in-mask share",
    "iou": "IoU",
    "masked_accuracy": "masked accuracy",
}
"""What is scored, and what it is called."""

_COUNTED = {"accuracy": "pictures", "xai": "scored", "grid": "pictures", "masked_accuracy": "scored"}
"""Shares of pictures have a standard error; by which count."""

OWN = "this model"


def held_beside(reasons: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The model, then each baseline: score -> its words. Only the model's own has a standard error."""
    rows = {OWN: {key: _words(reasons, key) for key in COLUMNS if key in reasons}}
    for name, found in reasons["baselines"].items():
        rows[name] = {key: _number(found[key]) for key in COLUMNS if key in found}
    return rows


def in_one_line(reasons: Mapping[str, Any]) -> str:
    """The summary's `reasons` for a screen."""
    known = [key for key in ("accuracy", "xai", "grid", "masked_accuracy") if key in reasons]
    said = [f"{COLUMNS[key]} {_words(reasons, key)}{_against(reasons, key)}" for key in known]
    return f"reasons scored on {reasons['pictures']} pictures ('{reasons['on']}'): {', '.join(said)}"


def watched_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if the model in use was scored."""
    reasons = summary.get("reasons")
    if not reasons:
        return []
    rows = held_beside(reasons)
    kept = [key for key in COLUMNS if any(key in cells for cells in rows.values())]
    body = [
        [td(escape(name)), *[td(cells.get(key, "&ndash;").replace("+-", "&plusmn;")) for key in kept]]
        for name, cells in rows.items()
    ]
    told = [r for r in rounds if r.get("reasons")]
    drawn = [figures.reasons_over_rounds(told, reasons["baselines"])] if len(told) > 1 else []
    return [
        "<h2>Right for the right reason</h2>",
        f"<p>{_explained(reasons)}</p>",
        table(["", *[COLUMNS[key] for key in kept]], body),
        charts.place(*drawn, wide=True),
    ]


def _explained(reasons: Mapping[str, Any]) -> str:
    said = [
        f"The server scored the model in use on {reasons['pictures']} reference pictures ({escape(str(reasons['on']))}).",
    ]
    if "xai" in reasons:
        said.append(
            f"{reasons['scored']} of them have a truth mask of use. <b>XAI accuracy</b> is the share whose heat (integrated "
            "gradients of the true class) is drawn to the mask (IoU-ratio above 1), <b>in-mask share</b> how much of the mask "
            "is among the hottest pixels, <b>IoU</b> the overlap of these pixels and the mask, <b>masked accuracy</b> the share "
            "that is called right from the inside of the mask alone."
        )
    if "grid" in reasons:
        said.append(
            "<b>Grid accuracy</b> is the share of scenes, each picture in one cell among others, whose warmest cell is the "
            "right one."
        )
    said.append(
        "A score says something as far as it is above noise, blobs that look at no picture, and the same net with its "
        "weights shuffled; &plusmn; is the standard error."
    )
    return " ".join(said)


def _words(reasons: Mapping[str, Any], key: str) -> str:
    value = reasons[key]
    if value is None or key not in _COUNTED:
        return _number(value)
    return f"{value:.3f} +- {standard_error(value, reasons[_COUNTED[key]]):.3f}"


def _against(reasons: Mapping[str, Any], key: str) -> str:
    """What the same score is worth without a look, in brackets; of accuracy only shuffled weights have one."""
    found = [f"{name} {_number(b[key])}" for name, b in reasons["baselines"].items() if key in b]
    return f" ({', '.join(found)})" if found and key in ("xai", "grid") else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
