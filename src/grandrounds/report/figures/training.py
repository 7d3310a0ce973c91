"""Rounds of a run as figures: scores, attendance, bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.metrics import HIGHER_IS_BETTER
from grandrounds.metrics.fairness import LEAST_ROWS
from grandrounds.metrics.local_models import local_means
from grandrounds.report.figure import Figure
from grandrounds.report.figures.weighting import bars, even
from grandrounds.report.paint import (
    COLOURS,
    FAINT,
    INK,
    MANY,
    QUIET,
    apart,
    category,
    labels,
    layout,
    safe,
    site_colours,
    words,
)

_NAMED = 3
"""Sites that have a colour and a line in the legend: the worst."""


def curves(rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None = None) -> Figure:
    """Accuracy and AUROC on the left, log loss on the right, on the rows of all sites.

    `summary`: of a finished run; a note says why its final figures differ from the ends of the curves.
    """
    judged = _judged(rounds)
    x = [r["round"] for r in judged]
    worst = [_lowest(r["sites"]) for r in judged]
    left = [
        _line(x, [r["test"]["accuracy"] for r in judged], "accuracy", COLOURS[0], width=3),
        _line(x, [r["test"]["auroc"] for r in judged], "AUROC", COLOURS[1], width=3),
        _line(x, worst, "lowest accuracy of a site", COLOURS[2]),
        _line(x, [r["test"]["majority"] for r in judged], "accuracy of the majority class", QUIET, dash="dot"),
    ]
    right = [
        _line(x, [r["test"]["log_loss"] for r in judged], "log loss, test", COLOURS[0], width=3),
        _line(x, [r["val"]["log_loss"] for r in judged], "log loss, validation", COLOURS[4], dash="dash"),
    ]
    for line in right:
        line |= {"xaxis": "x2", "yaxis": "y2"}
    note = unlike_the_end(summary)
    shape = layout("Test figures, round by round", note=note, x="round", y="test rows of all sites", height=360)
    shape["xaxis"] |= {"domain": [0, 0.46]}
    shape["xaxis2"] = {"title": {"text": "round"}, "domain": [0.56, 1], "anchor": "y2"}
    shape["yaxis2"] = {"title": {"text": "log loss (nats)"}, "anchor": "x2"}
    return Figure([*left, *right], shape)


def unlike_the_end(summary: Mapping[str, Any] | None) -> str:
    """Why the final figures of a run are not those of its last round; empty where they are."""
    if summary is None:
        return ""
    why = []
    if summary.get("temperature") is not None or summary.get("platt"):
        why.append("before calibration")
    if summary["threshold"] not in (None, 0.5):
        why.append(f"decided at 0.5, not at {summary['threshold']:.3g}")
    if summary.get("stopped"):
        why.append("also of rounds after the best, which was kept")
    return f"each round's model {', '.join(why)}: the final figures differ" if why else ""


def _lowest(sites: Mapping[str, Mapping[str, float | None]]) -> float | None:
    """The lowest accuracy of a site with enough test rows; of any site where rows were not recorded."""
    rows = sites.get("count")
    held = {s: v for s, v in sites["accuracy"].items() if v is not None}
    if rows is not None:
        held = {s: v for s, v in held.items() if (rows.get(s) or 0) >= LEAST_ROWS} or held
    return min(held.values(), default=None)


def site_curves(rounds: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> Figure:
    """A metric at every site over the rounds, the consortium's in bold and the worst three sites in colour.

    Of many sites it shows the thirty that ended worst.
    """
    judged = _judged(rounds)
    recorded = judged[-1]["sites"]
    if metric not in recorded:
        raise BadInput(
            f"no metric '{metric}' is recorded of each site; recorded are: {', '.join(recorded)}", code="unknown-metric"
        )
    x = [r["round"] for r in judged]
    down = HIGHER_IS_BETTER.get(metric) is False
    last = {s: v for s, v in recorded[metric].items() if v is not None}
    order = sorted(last, key=lambda s: (-last[s] if down else last[s], s))
    lines, note = _by_site(x, [r["sites"][metric] for r in judged], order, site_colours(rounds))
    whole = [r["test"].get(metric) for r in judged]
    lines.append({**_line(x, whole, "all sites together", INK, width=4), "legendrank": 1000})
    return Figure(
        lines,
        layout(
            f"{words(metric)[:1].upper()}{words(metric)[1:]} at each site",
            note=note,
            x="round",
            y=f"{words(metric)}, test rows",
            height=380,
        ),
    )


def local_curves(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """How right each site's own model is on its own training rows, beside the common model on the test rows of all sites.

    FL-XAI's Figs. 4.3 to 4.24, which print the first for the second. Of many sites it shows the thirty that ended worst.
    """
    told = _local(rounds)
    x = [r["round"] for r in told]
    by_round = [r["local"]["train_accuracy"] for r in told]
    last = {s: v for held in by_round for s, v in held.items() if v is not None}  # of a site that was away, its newest
    lines, note = _by_site(x, by_round, sorted(last, key=lambda s: (last[s], s)), site_colours(rounds))
    common = [r["test"]["accuracy"] for r in told]
    lines.append({**_line(x, common, "common model, test rows of all sites", INK, width=4), "legendrank": 1000})
    shape = layout("Each site's own model on its own training rows", note=note, x="round", y="accuracy", height=380)
    return Figure(lines, shape)


def lent_curves(rounds: Sequence[Mapping[str, Any]], rows: Mapping[str, Mapping[str, int]]) -> Figure:
    """Local models on the rows they know, on other sites' and on all test rows (FL-XAI Fig. 4.39); `rows`: the summary's.

    Means over sites, weighed by their rows.
    """
    told = [r for r in _local(rounds) if "external" in r["local"]]
    if not told:
        raise BadInput(
            "sites lent no scores in this run: set evaluation.local_models = 'crossed' and run it again",
            code="nothing-to-draw",
        )
    x = [r["round"] for r in told]
    means = [local_means(r["local"], rows) for r in told]
    names = {
        "train_accuracy": "own training rows",
        "others_train": "other sites' training rows",
        "external": "test rows of all sites",
    }
    lines = [_line(x, [m[key] for m in means], name, c) for (key, name), c in zip(names.items(), COLOURS, strict=False)]
    common = [r["test"]["accuracy"] for r in told]
    lines.append(_line(x, common, "common model, test rows of all sites", INK, width=4))
    return Figure(lines, layout("Local models on whose rows", x="round", y="accuracy, mean over sites", height=380))


def _local(rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    told = [r for r in rounds if r.get("local")]
    if not told:
        raise BadInput(
            "no local model of this run was scored: set evaluation.local_models and run it again", code="nothing-to-draw"
        )
    return told


def _by_site(
    x: Sequence[int],
    by_round: Sequence[Mapping[str, float | None]],
    order: Sequence[str],
    colours: Mapping[str, str],
) -> tuple[list[dict[str, Any]], str]:
    """A line a site, those that come first in `order` in colour and in the legend; and a note that says who is shown."""
    shown = order[:MANY]
    dashes = apart(shown[:_NAMED], colours)
    lines = []
    for rank, site in reversed(list(enumerate(shown))):
        named = rank < _NAMED
        y = [held.get(site) for held in by_round]
        line = _line(x, y, safe(site), colours.get(site, QUIET) if named else "#c3c9cf", width=2 if named else 1)
        line["line"]["dash"] = dashes.get(site, "solid")
        lines.append({**line, "showlegend": named, "legendrank": 1001 + rank})
    some = f"the {len(shown)} of {len(order)} sites that ended worst; " if len(shown) < len(order) else ""
    return lines, f"{some}the worst {min(_NAMED, len(shown))} in colour; names on hover"


def _judged(rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    judged = [r for r in rounds if "test" in r]
    if not judged:
        raise BadInput("no round of this run was judged: set evaluation.every to draw curves", code="nothing-to-draw")
    return judged


def _line(
    x: Sequence[int], y: Sequence[float | None], name: str, colour: str, *, dash: str = "solid", width: int = 2
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "hovertemplate": "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
    }


_NOT_ASKED, _MISSING, _THERE = 0, 1, 2
_STEPS = [[0, FAINT], [0.333, FAINT], [0.334, COLOURS[1]], [0.666, COLOURS[1]], [0.667, COLOURS[5]], [1, COLOURS[5]]]


def presence_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """For each site and round whether it took part, was asked and missing, or was not asked.

    Of many sites it shows those that were missing most often.
    """
    decisions = [r["decision"] for r in rounds]
    every = list(dict.fromkeys(s for d in decisions for s in (*d["asked"], *d["missing"])))
    missed = {s: sum(s in d["missing"] for d in decisions) for s in every}
    sites = sorted(every, key=lambda s: (-missed[s], s))[:MANY]
    shown = [decisions[i] for i in even(len(decisions))]
    z = [[_state(d, site) for d in shown] for site in sites]
    told = [[_words(d, site) for d in shown] for site in sites]
    x, y = [str(d["round"]) for d in shown], labels(sites)
    total = sum(missed.values())
    note = f"missing {total} times in {len(rounds)} rounds" if total else "nobody who was asked was missing"
    if len(every) > len(sites):
        note += f"; {len(sites)} of {len(every)} sites, most often missing first"
    trace = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": z,
        "text": told,
        "zmin": 0,
        "zmax": 2,
        "colorscale": _STEPS,
        "xgap": 1 if len(x) <= 60 else 0,
        "ygap": 1,
        "hovertemplate": "%{y}, round %{x}: %{text}<extra></extra>",
        "colorbar": {
            "tickvals": [0.33, 1.0, 1.67],
            "ticktext": ["not asked", "missing", "took part"],
            "thickness": 12,
        },
    }
    return Figure(
        [trace],
        layout(
            "Who took part",
            note=note,
            x="round",
            height=180 + 16 * len(sites),
            xaxis=category(x, showgrid=False),
            yaxis=category(y, autorange="reversed", showgrid=False),
        ),
    )


def bytes_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Megabytes to and from sites in each round, evaluation included."""
    shown = [rounds[i] for i in even(len(rounds))]
    x = [r["round"] for r in shown]
    down, up = ([r["decision"]["cost"][key] / 1e6 for r in shown] for key in ("bytes_down", "bytes_up"))
    drawn = [bars(x, down, "to sites", COLOURS[5], said=".4g"), bars(x, up, "from sites", COLOURS[0], said=".4g")]
    whole = sum(r["decision"]["cost"][key] for r in rounds for key in ("bytes_down", "bytes_up")) / 1e6
    note = f"{whole:,.2f} MB in rounds; setup and the final evaluation are not in it"
    return Figure(drawn, layout("Bytes", note=note, x="round", y="MB a round", height=340, barmode="stack"))


def seconds_over_rounds(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds of each round by the clock."""
    shown = [rounds[i] for i in even(len(rounds))]
    took = [r["decision"]["cost"]["seconds"] for r in shown]
    whole = sum(r["decision"]["cost"]["seconds"] for r in rounds)
    drawn = [bars([r["round"] for r in shown], took, "seconds", COLOURS[2], said=".4g")]
    return Figure(drawn, layout("Time", note=f"{whole:,.2f} s in rounds", x="round", y="seconds a round", height=340))


def _state(decision: Mapping[str, Any], site: str) -> int:
    if site in decision["missing"]:
        return _MISSING
    return _THERE if site in decision["asked"] else _NOT_ASKED


def _words(decision: Mapping[str, Any], site: str) -> str:
    if site in decision["missing"]:
        return safe(f"missing ({decision['missing'][site]})")
    return "took part" if site in decision["asked"] else "not asked"
