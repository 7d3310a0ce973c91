"""Report section on local models (evaluation.local_models): accuracy on their own rows, and on those of other sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import RoundRecord, RunSummary
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


def local_facts(summary: RunSummary) -> list[MethodFact]:
    """Describe the accuracy of local models on their own rows, beside that of the common model on all test rows."""
    local = summary.local
    if not local:
        return []
    shown = {name: "-" if local.get(name) is None else f"{local[name]:.3f}" for name in FIGURES}
    clauses = [
        f"{shown['train_accuracy']} on their own training rows (log loss {shown['train_loss']})",
        f"{shown['test_accuracy']} on their own test rows",
    ]
    if "external" in local:
        clauses += [
            f"{shown['others_train']} on other sites' training rows",
            f"{shown['external']} on the test rows of all sites",
        ]
    common = summary.final.get("accuracy")
    note = "" if common is None else f"the common model has {common:.3f} on all test rows"
    label = f"local models in round {local['round']}, accuracy, mean over sites"
    return [MethodFact(label, ", ".join(clauses), note)]


def local_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on local models; empty where they were not scored."""
    scored = [r for r in rounds if r.local]
    if not summary.local or not scored:
        return []
    drawn = [figures.local_curves(scored)]
    if any("external" in r.local for r in scored):
        drawn.append(figures.crossed_curves(scored, summary.rows))
    return [
        "<h2>Local models</h2>",
        f"<p>{_intro(scored[-1])}</p>",
        charts.place(*drawn, wide=len(drawn) == 1),
        _site_table(scored[-1].local, summary.rows),
    ]


def _intro(last: RoundRecord) -> str:
    text = (
        "A local model is what a site has trained in a round, before aggregation. Accuracy on the rows it was "
        "trained on says how well it fits them, not how good it is: that is for test rows. "
    )
    if "external" in last.local:
        text += (
            "Every local model was sent to every other site, which scored it on its own rows and told the score; means weigh "
            "sites by their rows. "
        )
    return f"{text}In the table: round {last.round}, the least accurate on its own training rows first."


def _site_table(local: Mapping[str, Mapping[str, float | None]], rows: Mapping[str, Mapping[str, int]]) -> str:
    columns = [name for name in FIGURES if name in local]
    accuracies = local["train_accuracy"]
    order = sorted(accuracies, key=lambda s: (accuracies[s] is not None, accuracies[s] or 0.0, s))
    body = [
        [td(escape(s)), td(str(rows[s]["train"])), *[td(number(local[name].get(s), 3)) for name in columns]]
        for s in order[:_ROWS]
    ]
    more = f"<p>And {len(order) - _ROWS} more sites (round_logs.json has them all).</p>" if len(order) > _ROWS else ""
    return table(["site", "train rows", *[_COLUMNS[name] for name in columns]], body) + more
