"""The report's section on heat maps of local and common models: where they look at each site, as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.explain.mapped import COMMON, LOCAL, OF_ONE, REPORT, TITLES
from grandrounds.report import figures
from grandrounds.report.document import Charts, table, td

ROWS = {
    **{"Gini" if name == "gini" else name: (LOCAL, COMMON, name) for name in OF_ONE},
    "own and common, SSIM / rank": ("alike", "alike", ""),
    "own and its last, SSIM / rank": ("since", "since", LOCAL),
    "common and its last, SSIM / rank": ("since", "since", COMMON),
}
"""What is told of a map, two numbers in each row: of the first ones the local model's and the common one's."""


def pairs(numbers: Mapping[str, Mapping[str, float | None]]) -> dict[str, str]:
    """The numbers of one map at one site (or their means) as a table's cells: what -> 'local / common'."""
    return {what: " / ".join(in_digits(v) for v in _pair(numbers, what)) for what in ROWS}


def in_lines(maps: Mapping[str, Any]) -> list[str]:
    """The summary's `maps` for a screen."""
    if not maps.get("last"):
        return []
    out = []
    for name, n in maps["last"].items():
        told = [
            f"concentration {in_digits(n[LOCAL]['concentration'])} (own model) and {in_digits(n[COMMON]['concentration'])} "
            f"(common); alike SSIM {in_digits(n['alike']['ssim'])}, rank {in_digits(n['alike']['rank'])}"
        ]
        if n[COMMON]["inside"] is not None:
            told.append(f"inside the mask {in_digits(n[LOCAL]['inside'])} and {in_digits(n[COMMON]['inside'])}")
        if name in maps.get("between", {}):
            b = maps["between"][name]
            told.append(f"between sites SSIM {in_digits(b['ssim'])}, rank {in_digits(b['rank'])}")
        out.append(f"heat maps ({TITLES[name]}, round {maps['rounds'][-1]}): {'; '.join(told)}")
    return out


def maps_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if sites made maps."""
    maps = summary.get(REPORT)
    if not maps or not maps.get("last"):
        return []
    last = {name: pairs(n) for name, n in maps["last"].items()}
    body = [[td(escape(what)), *[td(cells[what]) for cells in last.values()]] for what in ROWS]
    for key in ("ssim", "rank") if maps.get("between") else ():
        cells = [td(in_digits(maps["between"][name][key])) for name in last]
        body.append([td(f"between sites, {'SSIM' if key == 'ssim' else key}"), *cells])
    drawn = [figures.maps_sharp(rounds), figures.maps_alike(rounds)] if len(maps["rounds"]) > 1 else []
    return [
        "<h2>Heat maps</h2>",
        f"<p>{_explained(maps)}</p>",
        table(["", *[TITLES[name] for name in last]], body),
        charts.place(*drawn),
    ]


def _explained(maps: Mapping[str, Any]) -> str:
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
    first, second, key = ROWS[what]
    if key in OF_ONE:
        return numbers[first].get(key), numbers[second].get(key)
    stem = f"{key}_" if key else ""
    return numbers[first].get(f"{stem}ssim"), numbers[second].get(f"{stem}rank")


def in_digits(value: float | None) -> str:
    """Three digits; a dash for what is unknown."""
    return "-" if value is None else f"{value:.3f}"
