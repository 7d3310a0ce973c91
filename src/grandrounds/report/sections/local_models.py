"""The report's section on local models (evaluation.local_models): how right they are on the rows they know, and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.metrics.local_models import FIGURES
from grandrounds.report import figures
from grandrounds.report.document import Charts, number, table, td

_COLUMNS = {
    "train_accuracy": "own training rows",
    "train_loss": "log loss there",
    "test_accuracy": "own test rows",
    "others_train": "others' training rows",
    "external": "all test rows",
}
_ROWS = 40


def local_line(summary: Mapping[str, Any]) -> str:
    """The summary's `local` for a screen."""
    local = summary["local"]
    shown = {name: "-" if local.get(name) is None else f"{local[name]:.3f}" for name in FIGURES}
    said = [
        f"{shown['train_accuracy']} on their own training rows (log loss {shown['train_loss']})",
        f"{shown['test_accuracy']} on their own test rows",
    ]
    if "external" in local:
        said += [
            f"{shown['others_train']} on other sites' training rows",
            f"{shown['external']} on the test rows of all sites",
        ]
    return f"local models in round {local['round']}, accuracy, mean over sites: {', '.join(said)}"


def local_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if local models were scored."""
    told = [r for r in rounds if r.get("local")]
    if not summary.get("local") or not told:
        return []
    drawn = [figures.local_curves(told)]
    if any("external" in r["local"] for r in told):
        drawn.append(figures.lent_curves(told, summary["rows"]))
    return [
        "<h2>Local models</h2>",
        f"<p>{_explained(told[-1])}</p>",
        charts.place(*drawn, wide=len(drawn) == 1),
        _sites(told[-1]["local"], summary["rows"]),
    ]


def _explained(last: Mapping[str, Any]) -> str:
    said = (
        "A local model is what a site has trained in a round, before the sites' models are joined. Accuracy on the rows it was "
        "trained on says how well it fits them, not how good it is: that is for test rows. "
    )
    if "external" in last["local"]:
        said += (
            "Every local model was sent to every other site, which scored it on its own rows and told the score; means weigh "
            "sites by their rows. "
        )
    return f"{said}In the table: round {last['round']}, the least accurate on its own training rows first."


def _sites(local: Mapping[str, Mapping[str, float | None]], rows: Mapping[str, Mapping[str, int]]) -> str:
    kept = [name for name in FIGURES if name in local]
    known = local["train_accuracy"]
    order = sorted(known, key=lambda s: (known[s] is not None, known[s] or 0.0, s))
    body = [
        [td(escape(s)), td(str(rows[s]["train"])), *[td(number(local[name].get(s), 3)) for name in kept]]
        for s in order[:_ROWS]
    ]
    more = f"<p>And {len(order) - _ROWS} more sites (round_logs.json has them all).</p>" if len(order) > _ROWS else ""
    return table(["site", "train rows", *[_COLUMNS[name] for name in kept]], body) + more
