"""A watch across hospitals as text: features by the number of sites where they moved, the model's scores, and sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.tables import TextTable

_ROWS = 20
"""Features in the table: those that moved, and others up to so many."""


def watch_tables(summary: Mapping[str, Any]) -> list[TextTable]:
    """Return the tables of a watch; none for another run.

    Args:
        summary: The summary of a finished run.

    Raises:
        BadInput: The record is damaged.
    """
    watch = summary.get("watch")
    if not watch:
        return []
    try:
        return [_features(watch), _model(watch), *([_sites(watch)] if watch["by_site"] else [])]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput(
            "summary.json is damaged: its watch cannot be read; run it again", code="damaged-record"
        ) from None


def headline(watch: Mapping[str, Any]) -> str:
    """Return the main sentence of a watch."""
    moved = [f for f in watch["features"] if f["moved"]]
    sites = int(watch["compared"])
    if not moved:
        return f"No feature moved at any of {sites} sites."
    named = "; ".join(f"{f['name']} at {_of(f['moved'], sites)}" for f in moved[:5])
    more = f"; and {len(moved) - 5} more features" if len(moved) > 5 else ""
    return f"Moved: {named}{more}."


def _features(watch: Mapping[str, Any]) -> TextTable:
    features, sites = watch["features"], int(watch["compared"])
    moved = [f for f in features if f["moved"] or f["explanation"]["moved"] or f["shifted"]]
    shown = features[: max(len(moved), min(_ROWS, len(features)))]
    rows = tuple(
        (
            f["name"],
            "" if watch["noise"] and not f["shifted"] else _change(f),
            f"{f['moved']} of {sites}",
            f"{f['explanation']['moved']} of {sites}",
            "" if f["psi"] is None else f"{f['psi']:.3f}",
            _p(f["p"]) + ("*" if f["shifted"] else ""),
        )
        for f in shown
    )
    own = watch.get("moved_by", "test") == "alarms"
    rule = ["Alarms of a site's own watch decide what moved there, where it has one."] if own else []
    notes = [
        *rule,
        f"Moved: the site's own new patients differ from its own reference patients. A site without a change reports any feature "
        f"with probability {watch['level']:g} at most, so {watch['by_chance']:.2g} of {sites} sites are expected to by chance.",
        "PSI: population stability index over all sites, each against its own reference patients; p is that of the sum, * where "
        "it stays below the level after Holm's correction over features.",
    ]
    if len(shown) < len(features):
        notes.append(f"{len(features) - len(shown)} further features did not move anywhere.")
    if watch["noise"]:
        notes.append(
            f"Every count of a site has noise of standard deviation {watch['noise']:.3g} patients: small shifts cannot be seen, "
            "and there is no stability index."
        )
    elif not watch["secure"]:
        notes.append(
            "Counts of few patients are not sent in the clear, and p and PSI are without them; secure aggregation sums all."
        )
    title = "Features that moved, by number of sites"
    before = (headline(watch), _patients(watch))
    return TextTable(title, ("feature", "change", "sites moved", "explanation moved", "PSI", "p"), rows, names=2, before=before,
                     notes=tuple(notes))  # fmt: skip


def _patients(watch: Mapping[str, Any]) -> str:
    about = "about " if watch["noise"] else ""
    few = len(watch["sites"]) - int(watch["compared"])
    missing = f" {few} of {len(watch['sites'])} sites had too few new patients." if few else ""
    counts = f"{about}{watch['patients']:,} new patients against {about}{watch['reference']:,} reference patients."
    return counts[0].upper() + counts[1:] + missing


def _change(feature: Mapping[str, Any]) -> str:
    """State the change of a feature: means of a number, or shares of the bin that changed most."""
    means, largest = feature["means"], feature["largest"]
    shares = ""
    if largest["new"] is not None:
        shares = f"{largest['bin']}: {largest['expected']:.0%} to {largest['new']:.0%}"
    if means is not None and not largest["bin"].startswith("missing"):
        return f"mean {means['expected']:.4g} to {means['new']:.4g}"
    return shares


def _model(watch: Mapping[str, Any]) -> TextTable:
    sites, score, calibration = int(watch["compared"]), watch["score"], watch["calibration"]
    e = watch["explanation"]
    psi = "" if score["psi"] is None else f"PSI {score['psi']:.3f}, "
    rows = [("scores", f"{psi}p {_p(score['p'])}", f"{score['moved']} of {sites}")]
    explained = sum(bool(f["explanation"]["moved"]) for f in watch["features"])
    distance = f"distance {e['distance']:.3f} ({e['by_chance']:.3f} by chance)"
    rows.append(("explanations", distance, f"{explained} feature{'' if explained == 1 else 's'} at a site or more"))
    if calibration is not None:
        ratio = "" if calibration["ratio"] is None else f"observed / expected {calibration['ratio']:.2f}, "
        rows.append(
            (
                "calibration",
                f"{ratio}p {_p(calibration['p'])}; change since training p {_p(calibration['change']['p'])}",
                f"{calibration['moved']} of {sites}",
            )
        )
    notes = (
        "The distance of explanations sums the changes of each feature's mean share in the attributions, from 0 to 2.",
        *([] if calibration is not None else ["Calibration needs labels, and in the clear enough events at each site."]),
    )
    return TextTable("Scores, explanations and calibration", ("", "all sites", "sites moved"), tuple(rows), names=2, notes=notes)


def _sites(watch: Mapping[str, Any]) -> TextTable:
    rows = tuple(
        (s["site"], ", ".join(s["moved"]) or "nothing" if s["compared"] else "too few patients", f"{s['patients']:,}")
        for s in watch["by_site"]
    )
    return TextTable("By site", ("site", "moved", "new patients"), rows, names=2)


def _of(count: int, sites: int) -> str:
    return f"{count} of {sites} sites"


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
