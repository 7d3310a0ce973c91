"""Report sections on images: agreement of explanations with marked regions, and heat maps over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.explain.agreement import standard_error
from grandrounds.explain.map_metrics import COMMON, LOCAL, MAP_NUMBERS, REPORT, TITLES
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
"""Scores and their labels."""

_COUNT_KEY = {"accuracy": "pictures", "xai": "scored", "grid": "pictures", "masked_accuracy": "scored"}
"""Scores that are shares of images, with the count for their standard error."""

THIS_MODEL = "this model"


def rationale_rows(scores: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Format the scores of the model and of each baseline; only the model's have a standard error.

    Args:
        scores: Rationale scores, the summary's `reasons`.

    Returns:
        Name of the row -> score -> text; the model comes first.
    """
    rows = {THIS_MODEL: {key: _score_text(scores, key) for key in RATIONALE_COLUMNS if key in scores}}
    for name, baseline in scores["baselines"].items():
        rows[name] = {key: format_number(baseline[key]) for key in RATIONALE_COLUMNS if key in baseline}
    return rows


def rationale_facts(reasons: Mapping[str, Any]) -> list[MethodFact]:
    """Summarise the summary's `reasons`: accuracy and explanations on the scoring images, beside their baselines."""
    keys = [key for key in ("accuracy", "xai", "grid", "masked_accuracy") if key in reasons]
    images = f"on {reasons['pictures']} images of reference '{reasons['on']}'" if keys else ""
    labels = {**RATIONALE_COLUMNS, "accuracy": "scoring accuracy"}
    return [MethodFact(labels[key], _score_text(reasons, key), _baseline_text(reasons, key) or images) for key in keys]


def rationale_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on agreement of heat maps with masks; empty where the model was not scored."""
    reasons = summary.reasons
    if not reasons:
        return []
    rows = rationale_rows(reasons)
    columns = [key for key in RATIONALE_COLUMNS if any(key in cells for cells in rows.values())]
    body = [
        [td(escape(name)), *[td(cells.get(key, "&ndash;").replace("+-", "&plusmn;")) for key in columns]]
        for name, cells in rows.items()
    ]
    scored = [r for r in rounds if r.reasons]
    drawn = [figures.rationale_over_rounds(scored, reasons["baselines"])] if len(scored) > 1 else []
    return [
        "<h2>Right for the right reason</h2>",
        f"<p>{_rationale_text(reasons)}</p>",
        table(["", *[RATIONALE_COLUMNS[key] for key in columns]], body),
        charts.place(*drawn, wide=True),
    ]


def _rationale_text(reasons: Mapping[str, Any]) -> str:
    sentences = [
        f"The server scored the model in use on {reasons['pictures']} reference images ({escape(str(reasons['on']))}).",
    ]
    if "xai" in reasons:
        sentences.append(
            f"{reasons['scored']} of them have a truth mask of use. <b>XAI accuracy</b> is the share whose heat (integrated "
            "gradients of the true class) is drawn to the mask (IoU-ratio above 1), <b>in-mask share</b> how much of the mask "
            "is among the hottest pixels, <b>IoU</b> the overlap of these pixels and the mask, <b>masked accuracy</b> the share "
            "that is called right from the inside of the mask alone."
        )
    if "grid" in reasons:
        sentences.append(
            "<b>Grid accuracy</b> is the share of scenes, each image in one cell among others, whose warmest cell is the "
            "right one."
        )
    sentences.append(
        "Baselines: noise, a blob that ignores the image, and the same network with shuffled weights; "
        "&plusmn; is the standard error."
    )
    return " ".join(sentences)


def _score_text(reasons: Mapping[str, Any], key: str) -> str:
    value = reasons[key]
    if value is None or key not in _COUNT_KEY:
        return format_number(value)
    return f"{value:.3f} +- {standard_error(value, reasons[_COUNT_KEY[key]]):.3f}"


def _baseline_text(reasons: Mapping[str, Any], key: str) -> str:
    """Write the baselines of a score of explanations; "" for accuracy, which needs none."""
    clauses = [f"{name} {format_number(b[key])}" for name, b in reasons["baselines"].items() if key in b]
    return ", ".join(clauses) if key in ("xai", "grid") else ""


MAP_ROWS = {
    **{"Gini" if name == "gini" else name: (LOCAL, COMMON, name) for name in MAP_NUMBERS},
    "own and common, SSIM / rank": ("alike", "alike", ""),
    "own and its last, SSIM / rank": ("since", "since", LOCAL),
    "common and its last, SSIM / rank": ("since", "since", COMMON),
}
"""Rows of the table of heat maps; the first ones have a number for the local and for the common model."""


def map_pairs(numbers: Mapping[str, Mapping[str, float | None]]) -> dict[str, str]:
    """Format the numbers of one map at one site (or their means).

    Returns:
        Label of the row -> 'local / common'.
    """
    return {label: " / ".join(format_number(v) for v in _pair(numbers, label)) for label in MAP_ROWS}


def map_facts(maps: Mapping[str, Any]) -> list[MethodFact]:
    """Summarise the summary's `maps`: concentration and similarity of each kind of heat map, and its share in the masks."""
    facts = []
    for name, numbers in (maps.get("last") or {}).items():
        kind, images = f"{TITLES[name]} heat maps", f"round {maps['rounds'][-1]}, mean over {maps['pictures']} images a site"
        facts.append(MethodFact(f"{kind}, concentration", _both(numbers, "concentration"), f"0 even, 1 on one pixel; {images}"))
        facts.append(MethodFact(f"{kind}, local and common model", _alike(numbers["alike"]), "1: the same map"))
        if numbers[COMMON]["inside"] is not None:
            facts.append(MethodFact(f"{kind}, share inside the mask", _both(numbers, "inside"), "1: all heat is on the object"))
        if name in maps.get("between", {}):
            facts.append(MethodFact(f"{kind}, between sites", _alike(maps["between"][name]), "local models, the same images"))
    return facts


def _both(numbers: Mapping[str, Mapping[str, float | None]], key: str) -> str:
    return f"{format_number(numbers[LOCAL][key])} (local models), {format_number(numbers[COMMON][key])} (common)"


def _alike(similarity: Mapping[str, float | None]) -> str:
    return f"SSIM {format_number(similarity['ssim'])}, rank correlation {format_number(similarity['rank'])}"


def maps_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on heat maps; empty where sites made none."""
    maps = summary.get(REPORT)
    if not maps or not maps.get("last"):
        return []
    last = {name: map_pairs(n) for name, n in maps["last"].items()}
    body = [[td(escape(label)), *[td(cells[label]) for cells in last.values()]] for label in MAP_ROWS]
    for key in ("ssim", "rank") if maps.get("between") else ():
        cells = [td(format_number(maps["between"][name][key])) for name in last]
        body.append([td(f"between sites, {'SSIM' if key == 'ssim' else key}"), *cells])
    drawn = [figures.map_concentration(rounds), figures.map_similarity(rounds)] if len(maps["rounds"]) > 1 else []
    return [
        "<h2>Heat maps</h2>",
        f"<p>{_maps_text(maps)}</p>",
        table(["", *[TITLES[name] for name in last]], body),
        charts.place(*drawn),
    ]


def _maps_text(maps: Mapping[str, Any]) -> str:
    text = (
        f"Means over sites after round {maps['rounds'][-1]}. Each site looked at {maps['pictures']} images of its own at most, "
        "with the model it trained in the round (first number) and with the common model (second); maps are of the image's "
        "label and stayed at the site. <b>Concentration</b> and <b>Gini</b>: 0 spread evenly, towards 1 on one spot. "
        "<b>Inside</b>: share of the heat in the truth mask. <b>Deletion</b> (low is good) and <b>insertion</b> (high is good): "
        "mean probability of the label while the hottest pixels go or come first. <b>Dark</b>: share of maps without any heat, "
        "which are left out of the other numbers. <b>SSIM</b> and <b>rank</b> are 1 for the same map."
    )
    return text + (" Between sites: their models on the same reference images." if maps.get("between") else "")


def _pair(numbers: Mapping[str, Mapping[str, float | None]], label: str) -> tuple[float | None, float | None]:
    first, second, key = MAP_ROWS[label]
    if key in MAP_NUMBERS:
        return numbers[first].get(key), numbers[second].get(key)
    stem = f"{key}_" if key else ""
    return numbers[first].get(f"{stem}ssim"), numbers[second].get(f"{stem}rank")


def format_number(value: float | None) -> str:
    """Format with three decimals; a dash where there is no number."""
    return "-" if value is None else f"{value:.3f}"
