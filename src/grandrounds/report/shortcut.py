"""The report's section on a shortcut that was planted in the pictures: what it was worth, and who looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from grandrounds.report import figures
from grandrounds.report.document import Charts, number, said, table, td
from grandrounds.report.figures.importance import KINDS, blocks, newest
from grandrounds.report.paint import words

_METRICS = ("auroc", "auprc", "accuracy", "majority", "balanced_accuracy", "log_loss", "ece")
_ROWS = 40


def shortcut(summary: Mapping[str, Any], explanations: Mapping[str, Any] | None, charts: Charts) -> list[str]:
    """The section, if the run studied a shortcut."""
    block = summary.get("shortcut")
    if not block:
        return []
    held = {} if explanations is None else {k: _masses(explanations, k) for k in KINDS if blocks(explanations, k)}
    masses = {kind: own for kind, own in held.items() if own}
    out = ["<h2>Shortcut</h2>", _words(block, measured=bool(masses)), _judged(summary["final"], block["ood"])]
    if masses:
        out.append(charts.place(figures.spurious_masses(masses, block["chance"]), wide=True))
    return [*out, "<h3>Where each site's patch sits</h3>", _patches(block["patches"], masses)]


def _masses(explanations: Mapping[str, Any], kind: str) -> Mapping[str, float]:
    found: Mapping[str, float] = newest(explanations, kind).get("spurious_masses", {})
    return found


def _words(block: Mapping[str, Any], *, measured: bool) -> str:
    """What was planted, and how to read what follows."""
    parts = [
        f"A patch was painted in a corner of the pictures of one class with a chance of {block['p']:g}; the corner is "
        "each site's own, and every third site ties it to the other class. The test rows are judged twice: as the model "
        "was trained, and with the patches gone. What is lost without them was read off the patch.",
        f"<b>Spurious gap</b> in AUROC: {number(block['spurious_gap'], 3)}.",
    ]
    if measured:
        parts.append(
            f"<b>Spurious mass</b> is the share of a sketch on the tile that holds the site's patch: "
            f"{number(block['sam'], 3)} of the sites' own models on clean reference pictures, "
            f"{number(block['sam_deployed'], 3)} of the model in use on sites' own pictures; a sketch that prefers no "
            f"tile has {number(block['chance'])}. On clean pictures there is no patch to hide, so a model that looks "
            "only for the patch can show little of it there."
        )
    return f"<p>{' '.join(parts)}</p>"


def _judged(final: Mapping[str, Any], ood: Mapping[str, Any]) -> str:
    """The same test rows with and without patches."""
    rows = []
    for m in _METRICS:
        if final.get(m) is not None and ood.get(m) is not None:
            cells = [number(final[m], 3), number(ood[m], 3), f"{ood[m] - final[m]:+.3f}"]
            rows.append([td(escape(words(m))), *map(td, cells)])
    return table(["", "with patches (ID)", "without (OOD)", "difference"], rows)


def _patches(patches: Mapping[str, Mapping[str, Any]], masses: Mapping[str, Mapping[str, float]]) -> str:
    head = ["site", "<th class='text'>corner</th>", "<th class='text'>on pictures of</th>"]
    rows = [
        [td(escape(site)), said(patch["corner"]), said(", ".join(patch["on"]))]
        + [td(number(own.get(site), 3)) for own in masses.values()]
        for site, patch in list(patches.items())[:_ROWS]
    ]
    more = f"<p class='quiet'>{_ROWS} of {len(patches)} sites.</p>" if len(patches) > _ROWS else ""
    return table([*head, *[f"{kind}: spurious mass" for kind in masses]], rows) + more
