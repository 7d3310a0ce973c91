"""Heat maps as numbers: of a run that made maps of its local and common models, as means over sites in its last round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grandrounds.explain.map_metrics import TITLES
from grandrounds_studies.fl_xai.measures import number
from grandrounds_studies.fl_xai.setting import MAPS
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

CALLED = {map: TITLES[map] for map in MAPS}
WORDS: dict[str, tuple[str, bool | None]] = {
    "concentration": ("concentration", False),
    "gini": ("Gini index", False),
    "inside": ("share inside the lesion", False),
    "deletion": ("deletion", True),
    "insertion": ("insertion", False),
    "dark": ("share of dark maps", True),
}
"""Numbers of a map: what they are called, and whether less is better."""

SHARP = ("concentration", "gini")


def name_of(map: str, figure: str, *, of: str = "common") -> str:
    """A measure's name: "normgrad_gini", "local_normgrad_gini"."""
    return f"{'' if of == 'common' else f'{of}_'}{map}_{figure}"


def of_map(map: str, figure: str, *, of: str = "common") -> Measure:
    """A number of one kind of map of the common model, or of the local ones ("local")."""
    words, lower = WORDS[figure]
    whose = "" if of == "common" else ", local models"

    def read(run: Run) -> float:
        return number(_last(run).get(map, {}).get(of, {}).get(figure))

    return Measure(name_of(map, figure, of=of), f"{CALLED[map]}: {words}{whose}", read, lower)


def alike(map: str) -> Measure:
    """How like a site's own map the common model's is: Spearman's rank correlation over pixels."""

    def read(run: Run) -> float:
        return number(_last(run).get(map, {}).get("alike", {}).get("rank"))

    return Measure(f"{map}_alike", f"{CALLED[map]}: local and common alike (rank)", read, lower=False)


def _last(run: Run) -> dict[str, Any]:
    return dict(run.summary.get("maps", {}).get("last", {}))


def numbers(*figures: str, maps: tuple[str, ...] = MAPS) -> tuple[Measure, ...]:
    """These numbers of the common model's maps."""
    return tuple(of_map(m, f) for m in maps for f in figures)
