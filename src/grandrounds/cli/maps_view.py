"""On the screen: numbers of heat maps, of one site over rounds or of all sites in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from grandrounds.explain.mapped import TITLES
from grandrounds.report.sections.images import MAP_ROWS, format_number, map_pairs

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.analysis.case.heat_maps import MapSheet

_SITES = {
    "concentration": "concentration",
    "inside": "inside",
    "insertion": "insertion",
    "own and common, SSIM / rank": "SSIM/rank",
}
"""What is shown of many sites, so that all stands on a screen of 80, and its heading."""

_MEANS = "all sites"
_READING = (
    "first number: the model that the site trained; second: the common model; or SSIM and rank, which are 1 for the same map. "
    "Deletion is better low, insertion high; dark is the share of maps without any heat, which count nowhere else; - is unknown"
)


def show_site(console: Console, site: str, rounds: Mapping[int, Mapping[str, Any] | None], sheet: MapSheet) -> None:
    """One site: for each map a table with the rounds side by side, and what `inside` is to be held against."""
    told = {r: numbers for r, numbers in rounds.items() if numbers is not None}
    for name in dict.fromkeys(n for numbers in told.values() for n in numbers):
        table = Table(title=f"{site}: {TITLES[name]}", title_justify="left")
        table.add_column("local / common")
        cells = {}
        for r, numbers in told.items():
            table.add_column(f"round {r}", justify="right")
            cells[r] = map_pairs(numbers[name])
        for what in MAP_ROWS:
            table.add_row(what, *(cells[r][what] for r in told))
        console.print(table)
    if sheet.covered is not None:
        _say(
            console,
            f"truth masks cover {sheet.covered:.1%} of the site's {sheet.count} pictures that maps are made of: so much heat "
            "would lie inside by chance",
        )
    _say(console, _READING)


def show_all(console: Console, round: int, maps: Mapping[str, Any]) -> None:
    """All sites after one round, and their means."""
    for name in maps["means"]:
        table = Table(title=f"{TITLES[name]} after round {round}, local/common", title_justify="left")
        table.add_column("site", no_wrap=True)
        for title in _SITES.values():
            table.add_column(title, justify="right")
        for site, numbers in {**maps["sites"], _MEANS: maps["means"]}.items():
            cells = map_pairs(numbers[name])
            table.add_row(
                site, *(cells[what].replace(" ", "") for what in _SITES), end_section=site == list(maps["sites"])[-1]
            )
        console.print(table)
        if name in maps.get("between", {}):
            b = maps["between"][name]
            _say(
                console,
                f"between sites, on reference pictures: SSIM {format_number(b['ssim'])}, rank {format_number(b['rank'])}",
            )
    _say(console, _READING)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
