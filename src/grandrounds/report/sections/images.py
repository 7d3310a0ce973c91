"""Report sections on images: agreement of explanations with marked regions, and heat maps over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.explain.agreement import standard_error
from grandrounds.explain.mapped import COMMON, LOCAL, OF_ONE, REPORT, TITLES
from grandrounds.report import figures
from grandrounds.report.document import Charts, table, td

RATIONALE_COLUMNS = {
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

THIS_MODEL = "this model"


def rationale_rows(reasons: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The model, then each baseline: score -> its words. Only the model's own has a standard error."""
    rows = {THIS_MODEL: {key: _words(reasons, key) for key in RATIONALE_COLUMNS if key in reasons}}
    for name, found in reasons["baselines"].items():
        rows[name] = {key: _number(found[key]) for key in RATIONALE_COLUMNS if key in found}
    return rows


def rationale_line(reasons: Mapping[str, Any]) -> str:
    """The summary's `reasons` for a screen."""
    known = [key for key in ("accuracy", "xai", "grid", "masked_accuracy") if key in reasons]
    said = [f"{RATIONALE_COLUMNS[key]} {_words(reasons, key)}{_against(reasons, key)}" for key in known]
    return f"reasons scored on {reasons['pictures']} pictures ('{reasons['on']}'): {', '.join(said)}"


def rationale_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if the model in use was scored."""
    reasons = summary.get("reasons")
    if not reasons:
        return []
    rows = rationale_rows(reasons)
    kept = [key for key in RATIONALE_COLUMNS if any(key in cells for cells in rows.values())]
    body = [
        [td(escape(name)), *[td(cells.get(key, "&ndash;").replace("+-", "&plusmn;")) for key in kept]]
        for name, cells in rows.items()
    ]
    told = [r for r in rounds if r.get("reasons")]
    drawn = [figures.reasons_over_rounds(told, reasons["baselines"])] if len(told) > 1 else []
    return [
        "<h2>Right for the right reason</h2>",
        f"<p>{_rationale_text(reasons)}</p>",
        table(["", *[RATIONALE_COLUMNS[key] for key in kept]], body),
        charts.place(*drawn, wide=True),
    ]


def _rationale_text(reasons: Mapping[str, Any]) -> str:
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


MAP_ROWS = {
    **{"Gini" if name == "gini" else name: (LOCAL, COMMON, name) for name in OF_ONE},
    "own and common, SSIM / rank": ("alike", "alike", ""),
    "own and its last, SSIM / rank": ("since", "since", LOCAL),
    "common and its last, SSIM / rank": ("since", "since", COMMON),
}
"""What is told of a map, two numbers in each row: of the first ones the local model's and the common one's."""


def map_pairs(numbers: Mapping[str, Mapping[str, float | None]]) -> dict[str, str]:
    """The numbers of one map at one site (or their means) as a table's cells: what -> 'local / common'."""
    return {what: " / ".join(format_number(v) for v in _pair(numbers, what)) for what in MAP_ROWS}


def maps_lines(maps: Mapping[str, Any]) -> list[str]:
    """The summary's `maps` for a screen."""
    if not maps.get("last"):
        return []
    out = []
    for name, n in maps["last"].items():
        told = [
            f"concentration {format_number(n[LOCAL]['concentration'])} (own model) and "
            f"{format_number(n[COMMON]['concentration'])} (common); "
            f"alike SSIM {format_number(n['alike']['ssim'])}, rank {format_number(n['alike']['rank'])}"
        ]
        if n[COMMON]["inside"] is not None:
            told.append(f"inside the mask {format_number(n[LOCAL]['inside'])} and {format_number(n[COMMON]['inside'])}")
        if name in maps.get("between", {}):
            b = maps["between"][name]
            told.append(f"between sites SSIM {format_number(b['ssim'])}, rank {format_number(b['rank'])}")
        out.append(f"heat maps ({TITLES[name]}, round {maps['rounds'][-1]}): {'; '.join(told)}")
    return out


def maps_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if sites made maps."""
    maps = summary.get(REPORT)
    if not maps or not maps.get("last"):
        return []
    last = {name: map_pairs(n) for name, n in maps["last"].items()}
    body = [[td(escape(what)), *[td(cells[what]) for cells in last.values()]] for what in MAP_ROWS]
    for key in ("ssim", "rank") if maps.get("between") else ():
        cells = [td(format_number(maps["between"][name][key])) for name in last]
        body.append([td(f"between sites, {'SSIM' if key == 'ssim' else key}"), *cells])
    drawn = [figures.maps_sharp(rounds), figures.maps_alike(rounds)] if len(maps["rounds"]) > 1 else []
    return [
        "<h2>Heat maps</h2>",
        f"<p>{_maps_text(maps)}</p>",
        table(["", *[TITLES[name] for name in last]], body),
        charts.place(*drawn),
    ]


def _maps_text(maps: Mapping[str, Any]) -> str:
    said = (
        f"Means over sites after round {maps['rounds'][-1]}. Each site looked at {maps['pictures']} pictures of its own at most, "
        "with the model it trained in the round (first number) and with the common model (second); maps are of the picture's "
        "label and stayed at the site. <b>Concentration</b> and <b>Gini</b>: 0 spread evenly, towards 1 on one spot. "
        "<b>Inside</b>: share of the heat in the truth mask. <b>Deletion</b> (low is good) and <b>insertion</b> (high is good): "
        "mean probability of the label while the hottest pixels go or come first. <b>Dark</b>: share of maps without any heat, "
        "which are left out of the other numbers. <b>SSIM</b> and <b>rank</b> are 1 for the same map."
    )
    return said + (" Between sites: their models on the same reference pictures." if maps.get("between") else "")


def _pair(numbers: Mapping[str, Mapping[str, float | None]], what: str) -> tuple[float | None, float | None]:
    first, second, key = MAP_ROWS[what]
    if key in OF_ONE:
        return numbers[first].get(key), numbers[second].get(key)
    stem = f"{key}_" if key else ""
    return numbers[first].get(f"{stem}ssim"), numbers[second].get(f"{stem}rank")


def format_number(value: float | None) -> str:
    """Three digits; a dash for what is unknown."""
    return "-" if value is None else f"{value:.3f}"
