"""Report sections on explanations: drift between sites, importances, and shortcuts that the model uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RunSummary, Scores
from grandrounds.metrics.scores import LOSS, Place, shown_in
from grandrounds.report import figures
from grandrounds.report.document import Charts, number, table, td, text_cell
from grandrounds.report.explanations import (
    KINDS,
    Block,
    Explanations,
    SketchRecord,
    blocks_by_round,
    farthest_sites,
    newest_block,
)
from grandrounds.report.figure import Figure
from grandrounds.report.figures.importance import MEASURE
from grandrounds.report.style import words

_ROWS = 40
_MOST_SIDE_BY_SIDE = 15
"""Largest number of sites for which two heat maps of pairs fit next to each other."""
_TOP = 3
_NUMBERS = ("drift", "sampling", "consensus_drift", "jaccard", "rank_correlation")


def explanations_section(
    explanations: Explanations | None, charts: Charts, *, task: str = CLASSIFICATION
) -> list[str]:
    """Write the section on drift and importances; empty for a run without explanations.

    Args:
        explanations: explanations.json; None where there is none.
        charts: The figures of the page.
        task: The type of the outcome, whose loss measures permutation importance.
    """
    if explanations is None or not any(blocks_by_round(explanations, kind) for kind in KINDS):
        return []
    kinds = [kind for kind in KINDS if blocks_by_round(explanations, kind)]
    last = {kind: newest_block(explanations, kind) for kind in kinds}
    out = ["<h2>Explanations</h2>", _intro(explanations["sketch"], kinds, task), _drift_table(last)]
    if any(len(blocks_by_round(explanations, kind)) > 1 for kind in kinds):
        out.append(charts.place(figures.drift_over_rounds(explanations), figures.jaccard_over_rounds(explanations)))
    apart = [figure for kind in kinds if (figure := _distance_figure(explanations, kind)) is not None]
    if "deployed" in last:
        words, shares = "Most important features of the common model", last["deployed"]["consensus"]
        apart.insert(0, figures.importances(explanations["features"], shares, top=12, title=words))
    side_by_side = all(len(block["to_consensus"]) <= _MOST_SIDE_BY_SIDE for block in last.values())
    out.append(charts.place(*apart, wide=not side_by_side))
    for kind in kinds:
        out.append(charts.place(figures.importance_heatmap(explanations, kind), wide=True))
    return [*out, "<h3>Sites, farthest from the consensus first</h3>", _site_table(explanations["features"], last)]


def _distance_figure(explanations: Explanations, kind: str) -> Figure | None:
    """Draw distances pair by pair where pairs were kept, else each site's distance to the consensus by round.

    None for a single round without pairs: the table of sites has the same distances.
    """
    if any(b.get("pairs") for b in blocks_by_round(explanations, kind).values()):
        return figures.pairwise_drift(explanations, kind)
    if len(blocks_by_round(explanations, kind)) < 2:
        return None
    return figures.distance_to_consensus(explanations, kind)


def _intro(sketch: SketchRecord, kinds: Sequence[str], task: str) -> str:
    """Define the measures of the section."""
    meaning = {
        "training": "<b>Training drift</b>: do the sites' models rely on different features after local training? It compares "
        "the models of a round on the same reference rows.",
        "deployed": "<b>Deployed divergence</b>: are patients different, so that other features decide about them? It "
        "compares explanations on each site's own patients. Whether a feature has another effect at a hospital is another "
        "question, with a test of its own (Do hospitals differ?).",
    }
    both = "The two measures answer different questions; do not compare one with the other." if len(kinds) > 1 else ""
    how = f"Explanations are by {escape(str(sketch['explainer']).replace('_', ' '))}"
    if sketch.get("score"):
        measure = LOSS[task] if sketch["score"] == LOSS[CLASSIFICATION] else sketch["score"]
        score = escape(words(str(measure)))
        how += f" (local models by {score}, the final model by the change in its predictions)"
    scale = (
        "A sketch gives each feature its share of the total importance; shares sum to 1. Distances between sketches run from "
        "0 (identical) to 2 (no feature in common). Compare deployed divergence with the value expected by chance, which comes "
        "from sampling patients. Training drift uses the same rows for all sites, so it has no chance level."
    )
    parts = [*[meaning[kind] for kind in kinds], both, f"{how}.", scale]
    return f"<p>{' '.join(p for p in parts if p)}</p>"


def _drift_table(last: Mapping[str, Block]) -> str:
    """Tabulate the newest numbers, one row per kind."""
    k = next(iter(last.values()))["k"]
    head = ["", "distance of two sites", "expected by chance", "change of consensus", f"Jaccard of top {k}"]
    rows = [
        [
            td(MEASURE[kind]),
            *[td(number(block.get(key), 3)) for key in _NUMBERS],
        ]
        for kind, block in last.items()
    ]
    return table([*head, "rank correlation"], rows)


def _site_table(features: Sequence[str], last: Mapping[str, Block]) -> str:
    """Tabulate each site's distance from the consensus and its most important features, the farthest site first."""
    first = next(iter(last.values()))
    every = list(dict.fromkeys([*farthest_sites(first, 10**9), *[s for b in last.values() for s in b["to_consensus"]]]))
    head = ["site"]
    for kind in last:
        head += [f"{kind}: distance", f"<th class='text'>{kind}: most important features</th>"]
    rows = []
    for site in every[:_ROWS]:
        cells = [td(escape(site))]
        for block in last.values():
            cells += [td(number(block["to_consensus"].get(site), 3)), _top_features(features, block, site)]
        rows.append(cells)
    more = f"<p class='quiet'>The {_ROWS} farthest of {len(every)} sites.</p>" if len(every) > _ROWS else ""
    return table(head, rows) + more


def _top_features(features: Sequence[str], block: Block, site: str) -> str:
    """Name the most important features of a site; a flat sketch (a model that uses none of them) names none."""
    if site in block.get("flat", ()):
        return "<td class='text'>flat: the model uses no feature</td>"
    sketch = block.get("sketches", {}).get(site)
    if sketch is None:
        return "<td class='text'>&ndash;</td>"
    order = sorted(range(len(sketch)), key=lambda f: (-sketch[f], f))[:_TOP]
    names = ", ".join(f"{escape(str(features[f]))} {sketch[f]:.0%}" for f in order)
    return f"<td class='text'>{names}</td>"


_SHORTCUT_ROWS = 40


def shortcut_section(summary: RunSummary, explanations: Explanations | None, charts: Charts) -> list[str]:
    """Write the section on a planted shortcut; empty for a run without one."""
    block = summary.shortcut
    if not block:
        return []
    by_kind = (
        {}
        if explanations is None
        else {k: _spurious_masses(explanations, k) for k in KINDS if blocks_by_round(explanations, k)}
    )
    masses = {kind: by_site for kind, by_site in by_kind.items() if by_site}
    out = [
        "<h2>Shortcut</h2>",
        _shortcut_intro(block, measured=bool(masses)),
        _shortcut_scores(summary.final, block["ood"]),
    ]
    if masses:
        out.append(charts.place(figures.spurious_masses(masses, block["chance"]), wide=True))
    return [*out, "<h3>Where each site's patch sits</h3>", _patch_table(block["patches"], masses)]


def _spurious_masses(explanations: Explanations, kind: str) -> Mapping[str, float]:
    masses: Mapping[str, float] = newest_block(explanations, kind).get("spurious_masses", {})
    return masses


def _shortcut_intro(block: Mapping[str, Any], *, measured: bool) -> str:
    """Describe the planted patch, and how to read the numbers."""
    parts = [
        f"A patch was painted in a corner of the images of one class with a chance of {block['p']:g}; the corner is "
        "each site's own, and every third site ties it to the other class. The test rows are judged twice: as the model "
        "was trained, and without patches. The score that is lost without them came from the patch.",
        f"<b>Spurious gap</b> in AUROC: {number(block['spurious_gap'], 3)}.",
    ]
    if measured:
        parts.append(
            f"<b>Spurious mass</b> is the share of a sketch on the tile that holds the site's patch: "
            f"{number(block['sam'], 3)} of the sites' own models on clean reference images, "
            f"{number(block['sam_deployed'], 3)} of the model in use on sites' own images; a sketch that prefers no "
            f"tile has {number(block['chance'])}. On clean images there is no patch to hide, so a model that looks "
            "only for the patch can show little of it there."
        )
    return f"<p>{' '.join(parts)}</p>"


def _shortcut_scores(final: Scores, ood: Scores) -> str:
    """Compare scores on the same test rows with and without patches."""
    rows = []
    for m in shown_in(Place.REPORT_SHORTCUT):
        with_patches, without = final.get(m), ood.get(m)
        if with_patches is not None and without is not None:
            cells = [number(with_patches, 3), number(without, 3), f"{without - with_patches:+.3f}"]
            rows.append([td(escape(words(m))), *map(td, cells)])
    return table(["", "with patches (ID)", "without (OOD)", "difference"], rows)


def _patch_table(patches: Mapping[str, Mapping[str, Any]], masses: Mapping[str, Mapping[str, float]]) -> str:
    head = ["site", "<th class='text'>corner</th>", "<th class='text'>on images of</th>"]
    rows = [
        [td(escape(site)), text_cell(patch["corner"]), text_cell(", ".join(patch["on"]))]
        + [td(number(by_site.get(site), 3)) for by_site in masses.values()]
        for site, patch in list(patches.items())[:_SHORTCUT_ROWS]
    ]
    more = f"<p class='quiet'>{_SHORTCUT_ROWS} of {len(patches)} sites.</p>" if len(patches) > _SHORTCUT_ROWS else ""
    return table([*head, *[f"{kind}: spurious mass" for kind in masses]], rows) + more
