"""report.html: one self-contained page about a run, for a laptop or for paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.metrics import DESCRIPTIONS
from grandrounds.report.charts import line_chart

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #d0d7de }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid #e5e8eb }
th:first-child, td:first-child { text-align: left }
td.text { text-align: left; color: #57606a }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem }
figure { margin: 0 }
figcaption { font-weight: 600; margin: .3rem 0 }
svg text { font: 12px system-ui, sans-serif; fill: #57606a }
svg .grid { stroke: #e5e8eb }
.tiles { display: flex; gap: 1rem; flex-wrap: wrap }
.tile { border: 1px solid #d0d7de; border-radius: 8px; padding: .6rem 1rem; min-width: 8rem }
.tile b { display: block; font-size: 1.5rem }
.warn { background: #fff8c5; padding: .4rem .8rem; border-radius: 6px }
.quiet { color: #57606a }
@media print { body { margin: 0 } h2 { break-after: avoid } table, svg { break-inside: avoid } }
@media (max-width: 700px) { .charts { grid-template-columns: 1fr } }
"""


def report_page(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> str:
    """The whole page. Every name that came from data is escaped."""
    title = f"{summary['data']}: {summary['method']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{summary['sites']['all']} sites ({summary['sites']['training']} train), "
        f"{summary['rounds']} rounds, {escape(summary['model'])} with {summary['parameters']} parameters, "
        f"seed {summary['seed']}</p>",
        *[f"<p class='warn'>{escape(w)}</p>" for w in summary["warnings"]],
        _tiles(summary),
        "<h2>Rounds</h2>",
        _charts(rounds),
        "<h2>Final model, test rows of all sites</h2>",
        _metrics(summary),
        "<h2>Sites, worst first</h2>",
        _sites(summary),
        *_subgroups(summary),
        *_tasks(summary),
        *_separate(summary),
        *_decision(summary),
        "<h2>Who was missing</h2>",
        _missing(rounds),
        "<h2>Cost, privacy, provenance</h2>",
        _provenance(summary, environment),
    ]
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}</body></html>"


def _f(value: Any, digits: int = 4) -> str:
    return "&ndash;" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are already HTML."""
    top = "".join(f"<th>{h}</th>" for h in head)
    return f"<table><tr>{top}</tr>{''.join('<tr>' + ''.join(row) + '</tr>' for row in rows)}</table>"


def _td(text: str) -> str:
    return f"<td>{text}</td>"


def _tiles(summary: Mapping[str, Any]) -> str:
    final = summary["final"]
    tiles = [
        ("accuracy", _f(final["accuracy"], 3), f"majority class {_f(final['majority'], 3)}"),
        ("AUROC", _f(final["auroc"], 3), _interval(final)),
        ("log loss", _f(final["log_loss"], 3), f"ECE {_f(final['ece'], 3)}"),
    ]
    if summary["worst_site"]:
        worst = summary["worst_site"]
        tiles.append(("worst site", _f(worst["accuracy"], 3), escape(str(worst["site"]))))
    inner = "".join(f"<div class='tile'>{n}<b>{v}</b><span class='quiet'>{note}</span></div>" for n, v, note in tiles)
    return f"<div class='tiles'>{inner}</div>"


def _interval(final: Mapping[str, Any]) -> str:
    if final["auroc_low"] is None:
        return "one against the rest"
    return f"95% CI {_f(final['auroc_low'], 3)} to {_f(final['auroc_high'], 3)}"


def _charts(rounds: Sequence[Mapping[str, Any]]) -> str:
    judged = [r for r in rounds if "test" in r]
    x = [float(r["round"]) for r in judged]
    loss = {part: [r[part]["log_loss"] for r in judged] for part in ("val", "test")}
    good = {name: [r["test"][m] for r in judged] for name, m in (("accuracy", "accuracy"), ("AUROC", "auroc"))}
    worst = [min((v for v in r["sites"]["accuracy"].values() if v is not None), default=None) for r in judged]
    good["accuracy of the worst site"] = worst
    good["accuracy of the majority class"] = [r["test"]["majority"] for r in judged]
    charts = (
        line_chart(x, good, x_title="round", y_title="accuracy and AUROC"),
        line_chart(x, loss, x_title="round", y_title="log loss"),
    )
    return f"<div class='charts'>{''.join(f'<figure>{c}</figure>' for c in charts)}</div>"


def _metrics(summary: Mapping[str, Any]) -> str:
    final, train = summary["final"], summary["training"]
    own = {escape(name): "A metric of this experiment's own." for name in final if name not in DESCRIPTIONS}
    rows = [
        [_td(name.replace("_", " ")), _td(_f(final[name])), _td(_f(train[name])), f"<td class='text'>{text}</td>"]
        for name, text in (DESCRIPTIONS | own).items()
        if final.get(name) is not None and name != "count"
    ]
    return _table(["metric", "test", "train", ""], rows)


def _sites(summary: Mapping[str, Any]) -> str:
    sites = sorted(summary["per_site"].items(), key=lambda item: (item[1]["accuracy"] or 0, item[0]))
    columns = ("accuracy", "majority", "auroc", "log_loss", "ece")
    rows = [
        [
            _td(escape(site)),
            _td(str(summary["rows"][site]["train"])),
            _td(f"{m['count']:.0f}"),
            *[_td(_f(m[c], 3)) for c in columns],
            f"<td class='text'>{escape('; '.join(summary['notes'].get(site, [])[:2]))}</td>",
        ]
        for site, m in sites
        if m["count"]
    ]
    return _table(["site", "train rows", "test rows", *[c.replace("_", " ") for c in columns], ""], rows)


def _subgroups(summary: Mapping[str, Any]) -> list[str]:
    if not summary["subgroups"]:
        return []
    columns = ("accuracy", "auroc", "sensitivity", "specificity", "ece")
    rows = [
        [_td(escape(name)), _td(f"{m['count']:.0f}"), *[_td(_f(m[c], 3)) for c in columns]]
        for name, m in summary["subgroups"].items()
    ]
    return ["<h2>Subgroups</h2>", _table(["subgroup", "rows", *columns], rows)]


def _tasks(summary: Mapping[str, Any]) -> list[str]:
    if not summary["tasks"]:
        return []
    columns = ("sites", "classes", "count")
    figures = ("accuracy", "majority", "auroc", "log_loss")
    rows = [
        [_td(escape(name)), *[_td(f"{m[c]:.0f}") for c in columns], *[_td(_f(m[c], 3)) for c in figures]]
        for name, m in summary["tasks"].items()
    ]
    return ["<h2>Tasks</h2>", _table(["task", *columns, *[f.replace("_", " ") for f in figures]], rows)]


def _separate(summary: Mapping[str, Any]) -> list[str]:
    """Fine-tuned sites, models that stay apart, attackers: where there are any."""
    out = []
    if summary["finetuned"]:
        tuned = summary["finetuned"]
        columns = ("accuracy", "auroc", "log_loss")
        before = summary["per_site"]
        rows = [
            [_td(escape(site)), *[_td(f"{_f(before[site][c], 3)} &rarr; {_f(m[c], 3)}") for c in columns]]
            for site, m in tuned["per_site"].items()
            if m["count"]
        ]
        title = f"<h2>After {tuned['epochs']} epochs of fine-tuning at each site</h2>"
        out += [title, _table(["site", *[c.replace("_", " ") for c in columns]], rows)]
    if summary["models"]:
        rows = [[_td(escape(s)), f"<td class='text'>{escape(file)}</td>"] for s, file in summary["models"].items()]
        out += ["<h2>Models that stay separate</h2>", _table(["site", "model"], rows)]
    if summary["attacks"]:
        kinds = [[_td(escape(s)), f"<td class='text'>{escape(k)}</td>"] for s, k in summary["attacks"]["sites"].items()]
        out += ["<h2>Attackers in this study</h2>", _table(["site", "attack"], kinds)]
        for target, hit in summary["attacks"].get("backdoor_success", {}).items():
            out.append(f"<p>Stamped test pictures taken for {escape(target)}: {_f(hit, 3)}</p>")
    return out


def _decision(summary: Mapping[str, Any]) -> list[str]:
    curve = summary["decision_curve"]
    if not curve:
        return []
    floor = -0.05
    lines = {
        "the model": curve["model"],
        "treat everyone": [v if v is not None and v >= floor else None for v in curve["treat_all"]],
        "treat nobody": [0.0] * len(curve["thresholds"]),
    }
    chart = line_chart(curve["thresholds"], lines, x_title="threshold probability", y_title="net benefit", last=False)
    return ["<h2>Decision curve</h2>", f"<div class='charts'><figure>{chart}</figure></div>"]


def _missing(rounds: Sequence[Mapping[str, Any]]) -> str:
    gaps = [(r["round"], site, why) for r in rounds for site, why in r["decision"]["missing"].items()]
    if not gaps:
        return "<p>Nobody: every site that was asked answered in every round.</p>"
    items = "".join(f"<li>round {r}: {escape(site)} ({escape(why)})</li>" for r, site, why in gaps[:200])
    return f"<ul>{items}</ul>"


def _provenance(summary: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    cost = summary["cost"]
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items())
    sent = f"{cost['bytes_down'] / 1e6:.2f} MB to sites, {cost['bytes_up'] / 1e6:.2f} MB from them"
    lines = [
        f"{sent}, in {cost['messages']:.0f} messages; {cost['seconds']:.2f} s of rounds",
        escape(summary["privacy"]["statement"]),
        f"Python {environment['python']} ({escape(packages)}); {escape(str(environment['processor']))}, "
        f"{environment['cores']} cores, {environment['memory_gib']} GiB",
        "The experiment is in experiment.toml beside this page; running it again gives the same bits.",
    ]
    return "".join(f"<p>{line}</p>" for line in lines)
