"""The page of a run in sections: their names, the figures of each, and the settings of the experiment as a table.

A section is at most two screens high (1440 x 900). Where a section has more figures than fit, the others are chosen by a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.capabilities.console.views.run import FigurePlace, RunHead
from grandrounds.core.redact import hide
from grandrounds.report import catalogue

SUMMARY, ESTIMATES, PERFORMANCE, HOSPITALS = "summary", "estimates", "performance", "hospitals"
EXPLANATIONS, WEIGHTS, TRAINING, PRIVACY, SETTINGS = "explanations", "weights", "training", "privacy", "settings"
LABELS = {
    SUMMARY: "Summary",
    ESTIMATES: "Estimates",
    PERFORMANCE: "Performance",
    HOSPITALS: "Hospitals and groups",
    EXPLANATIONS: "Explanations",
    WEIGHTS: "Weights",
    TRAINING: "Training",
    PRIVACY: "Privacy and cost",
    SETTINGS: "Settings",
}
"""Sections of a run's page, in their order."""
TABLES = "Tables"
"""The name of the section ESTIMATES for a run without estimates."""
_SECTION_BY_CHAPTER = {
    catalogue.ESTIMATES: ESTIMATES,
    catalogue.SURVIVAL: ESTIMATES,
    catalogue.CALIBRATION: PERFORMANCE,
    catalogue.DEPLOYED: HOSPITALS,
    catalogue.GROUPS: HOSPITALS,
    catalogue.HOSPITALS: HOSPITALS,
    catalogue.RISK_CARD: EXPLANATIONS,
    catalogue.SHAPES: EXPLANATIONS,
    catalogue.EXPLANATIONS: EXPLANATIONS,
    catalogue.IMAGES: EXPLANATIONS,
    catalogue.WEIGHTS: WEIGHTS,
    catalogue.TRUST: WEIGHTS,
    catalogue.TREES: TRAINING,
    catalogue.TRAINING: TRAINING,
    catalogue.COST: PRIVACY,
    catalogue.PRIVACY: PRIVACY,
}
"""Sections by chapter of the catalogue of figures; a chapter that is not here belongs to Performance."""
_FIGURE_LABELS = {
    "hospitals": "Hospitals compared",
    "thresholds": "Decisions by threshold",
    "curves": "Training curves",
    "sites-accuracy": "Accuracy by site",
    "sites-auroc": "AUROC by site",
    "sites-log-loss": "Log loss by site",
    "sites-ece": "Calibration error by site",
    "local": "Local models",
    "reliability": "Calibration",
    "decision-curve": "Decision curve",
    "deployed": "Models that hospitals deploy",
    "group-gaps": "Gaps between groups",
    "weights": "Weights by round",
    "weights-by-signal": "Signals of one round",
    "disagreement": "Sites whose explanations differ",
    "drift": "Explanation drift",
    "jaccard": "Overlap of top features",
    "importances": "Most important features",
    "heat-training": "Features by site, in training",
    "heat-deployed": "Features by site, final model",
    "pairs-training": "Disagreement between sites, in training",
    "pairs-deployed": "Disagreement between sites, final model",
    "differences": "Do hospitals differ?",
    "trust-parts": "Parts of trust",
    "nsds": "Node-specific divergence",
    "maps-sharp": "Concentration of heat maps",
    "maps-alike": "Similarity of heat maps",
    "right-reasons": "Attention inside the mask",
    "presence": "Participation",
    "bytes": "Traffic by round",
    "seconds": "Time by round",
    "epsilon": "Privacy loss by round",
    "risk-card": "Risk by total points",
}
_BUDGET = {WEIGHTS: 1000, HOSPITALS: 700, PERFORMANCE: 900, ESTIMATES: 700, SUMMARY: 480}
"""Pixels for figures in a section that has tables or controls as well."""
_ALONE = 1300
"""Pixels for figures in another section."""
_GAP, _FRAME, _UNKNOWN = 16, 64, 560
"""Pixels between figures, around one (its border and the line of its numbers), and of one whose height is not known."""


@dataclass(frozen=True)
class Choice:
    """A figure that a link chooses. `is_here`: it is shown now."""

    name: str
    label: str
    is_here: bool


@dataclass(frozen=True)
class Section:
    """One section of a run's page.

    Attributes:
        key: The section in an address.
        figures: Figures that are shown.
        choices: Links to all figures of the section; none where all of them are shown.
        chosen: The figure that a link chose; "" for the first ones.
    """

    key: str
    figures: tuple[FigurePlace, ...] = ()
    choices: tuple[Choice, ...] = ()
    chosen: str = ""

    @property
    def label(self) -> str:
        """The section's name."""
        return LABELS[self.key]


def list_sections(head: RunHead, *, has_tables: bool) -> list[str]:
    """List the sections that a run has something to show in.

    Args:
        head: The run.
        has_tables: It has estimates or tables of patients.

    Returns:
        The sections, in their order.
    """
    drawn = {section_of(place) for place in head.figures}
    shown = {SUMMARY, SETTINGS, *drawn}
    if head.finished:
        shown |= {PRIVACY}
    if head.final:
        shown |= {PERFORMANCE, HOSPITALS}
    if has_tables:
        shown.add(ESTIMATES)
    if head.rounds and not head.is_exact:
        shown.add(WEIGHTS)
    return [key for key in LABELS if key in shown]


def section_of(place: FigurePlace) -> str:
    """Return the section that a figure belongs to."""
    return _SECTION_BY_CHAPTER.get(place.section, PERFORMANCE)


def make_section(run_index: RunIndex, head: RunHead, key: str, *, figure: str = "") -> Section:
    """Choose the figures of a section that fit on two screens.

    Args:
        run_index: The runs.
        head: The run.
        key: The section.
        figure: The figure that a link chose; another name shows the first ones.

    Returns:
        The section.
    """
    places = [p for p in head.figures if section_of(p) == key]
    if key == SUMMARY and not head.finished:
        places = [p for p in head.figures if p.name == "curves"]
    chosen = next((p for p in places if p.name == figure), None)
    if chosen is not None:
        shown = [chosen.model_copy(update={"wide": True})]
    else:
        shown = _fit(run_index, head, places, _BUDGET.get(key, _ALONE))
    all_fit = chosen is None and len(shown) == len(places)
    here = {p.name for p in shown}
    choices = () if all_fit else tuple(Choice(p.name, label_figure(p.name), p.name in here) for p in places)
    return Section(key, tuple(shown), choices, "" if chosen is None else chosen.name)


def label_figure(name: str) -> str:
    """Name a figure in a link."""
    return _FIGURE_LABELS.get(name, name.replace("-", " ").capitalize())


def _fit(run_index: RunIndex, head: RunHead, places: Sequence[FigurePlace], budget: int) -> list[FigurePlace]:
    """Take figures in their order, two in a row where they are not wide, until the next row would be too high."""
    shown: list[FigurePlace] = []
    used = 0
    for row in _rows(places):
        height = max(_height(run_index, head, place) for place in row) + _FRAME + _GAP
        if shown and used + height > budget:
            break
        shown += row
        used += height
    return shown


def _rows(places: Sequence[FigurePlace]) -> Iterator[list[FigurePlace]]:
    waiting: list[FigurePlace] = []
    for place in places:
        if place.wide:
            if waiting:
                yield [waiting.pop().model_copy(update={"wide": True})]
            yield [place]
        elif waiting:
            yield [waiting.pop(), place]
        else:
            waiting.append(place)
    if waiting:
        yield [waiting.pop().model_copy(update={"wide": True})]


def _height(run_index: RunIndex, head: RunHead, place: FigurePlace) -> int:
    """Return the height of a figure; a running run's is not drawn for that."""
    if not head.finished:
        return _UNKNOWN
    return int(run_view.figure(run_index, head.name, place.name)["layout"].get("height") or _UNKNOWN)


_TITLES = {
    "data": "Data",
    "split": "Split",
    "model": "Model",
    "method": "Method",
    "train": "Training at sites",
    "privacy": "Privacy",
    "explain": "Explanations",
    "evaluation": "Evaluation",
    "reference": "Reference rows",
}
_MAIN = {
    "data": (
        "name",
        "table",
        "label",
        "event",
        "task",
        "site",
        "patient",
        "time",
        "features",
        "drop",
        "impute",
        "scale",
    ),
    "split": ("partition", "val", "test", "by", "scheme", "holdout"),
    "model": ("name",),
    "method": ("name", "rounds", "preset", "select.rule", "select.fraction", "weigh.rule", "robust.rule", "stability"),
    "train": ("epochs", "batch", "lr", "optimizer", "l2", "class_weights", "early_stop"),
    "privacy": ("mechanism", "epsilon", "delta", "clip", "noise", "unit", "min_rows", "secure"),
    "explain": ("sketch", "every", "rows"),
    "evaluation": ("threshold", "calibrate", "subgroup", "every"),
    "reference": ("rows.rows", "rows.labelled", "rows.sent"),
}
"""Settings that a reader looks for first; the whole experiment is a file to store."""


def settings_tables(run_index: RunIndex, name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the main settings of a run's experiment by part, without folders and passwords.

    Args:
        run_index: The runs.
        name: The run.

    Returns:
        Title of each part, and its settings as names and values.
    """
    plan = run_index.run(name).plan
    general: list[tuple[str, str]] = [(key, write_setting(plan[key])) for key in ("name", "seed") if key in plan]
    parts = [("Experiment", general)]
    for part, keys in _MAIN.items():
        found = [(key, value) for key in keys if (value := _find(plan.get(part), key)) not in (None, "", [], {})]
        if found:
            parts.append((_TITLES[part], [(key, write_setting(value)) for key, value in found]))
    return parts


def _find(values: Any, key: str) -> Any:
    for word in key.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(word)
    return values


def write_setting(value: Any) -> str:
    """Write a setting; a path without its folders, an address without its password."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(write_setting(item) for item in value)
    if isinstance(value, str):
        return PurePath(value).name if PurePath(value).is_absolute() else hide(value)
    return str(value)
