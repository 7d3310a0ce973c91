"""`rounds list`, `rounds show`, `rounds init`: list choices, show a run, write a first experiment file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.options import TrustCode, Verbose, Withdrawn
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.records import Decision, RoundRecord
    from grandrounds.data.sets.labels import ColumnLabels
    from grandrounds.report.model_table import ReadableModel
    from grandrounds.runs.run import Run


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
    app.command()(reads_run(show))
    app.command()(init)


def _methods() -> dict[str, str]:
    from grandrounds.methods import METHODS

    return {name: m.title for name, m in METHODS.items()}


def _models() -> dict[str, str]:
    from grandrounds.models import MODELS

    return dict(MODELS)


def _data() -> dict[str, str]:
    from grandrounds.data.sets.catalog import CATALOG

    return {name: f"{e.title} ({e.rows:,} rows; {e.licence})" for name, e in CATALOG.items()}


def _recipes() -> dict[str, str]:
    from grandrounds.recipes import recipes

    return recipes()


def _selection() -> dict[str, str]:
    from grandrounds.methods.select import RULES

    return RULES


def _weighing() -> dict[str, str]:
    from grandrounds.methods.weigh import RULES

    return RULES


def _robust() -> dict[str, str]:
    from grandrounds.methods.robust import RULES

    return RULES


def _stability() -> dict[str, str]:
    from grandrounds.methods import REGULARIZERS

    return {name: s.title for name, s in REGULARIZERS.items()}


def _staleness() -> dict[str, str]:
    from grandrounds.methods.asynchronous import RULES

    return RULES


def _personal() -> dict[str, str]:
    from grandrounds.methods.guard.candidates import part_titles

    return part_titles()


def _proposals() -> dict[str, str]:
    from grandrounds.methods.veil.server import SELECTIONS

    return SELECTIONS


def _attacks() -> dict[str, str]:
    from grandrounds.data.corruption.attacks import KINDS as ATTACKS

    return ATTACKS


def _explainers() -> dict[str, str]:
    from grandrounds.explain.rule import EXPLAINERS

    return EXPLAINERS


def _studies() -> dict[str, str]:
    from grandrounds.core.reproductions import load_part

    titles: dict[str, str] = load_part("titles")()
    return titles


KINDS: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "methods": (_methods, "federated methods: method.name"),
    "selection": (_selection, "rules of client selection: method.select"),
    "weighing": (_weighing, "rules of aggregation weights: method.weigh"),
    "robust": (_robust, "rules of robust aggregation: method.robust"),
    "stability": (_stability, "local regularizers: method.stability"),
    "staleness": (_staleness, "weights of late answers in asynchronous methods: method.staleness"),
    "personal": (_personal, "parts of the model that each site has for itself: personal.part"),
    "proposals": (_proposals, "rules of feature selection in VEIL: method.veil.selection"),
    "explainers": (_explainers, "feature attribution methods: explain.sketch"),
    "attacks": (_attacks, "attacks that sites can simulate: [[attacks]]"),
    "models": (_models, "models: model.name"),
    "data": (_data, "data sets of the catalog: data.name"),
    "recipes": (_recipes, "experiments that are ready to run: rounds run NAME"),
    "studies": (_studies, "reproductions of published experiments: rounds reproduce NAME"),
}
"""Kinds of things that `rounds list` lists, each with a function that reads them and the setting they are values of."""


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]", help=f"One of: {', '.join(KINDS)}. Not given: list these with their numbers of entries."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the available methods, models, data sets, recipes and other choices, with a line on each.

    Examples: `rounds list` -- `rounds list methods`
    """
    from grandrounds.core.errors import BadInput, nearest

    if not kind:
        _list_kinds(as_json=as_json)
        return
    if kind not in KINDS:
        raise BadInput(f"cannot list '{kind}'; {nearest(kind, KINDS)}", code="unknown-list")
    items = KINDS[kind][0]()
    if as_json:
        echo(json.dumps(items))
        return
    width = max(len(name) for name in items)
    for name, line in items.items():
        echo(f"{name:<{width}}  {line}")


def _list_kinds(*, as_json: bool) -> None:
    """Print the kinds that can be listed, with their numbers of entries; a kind whose package is not installed has none."""
    from grandrounds.core.errors import GrandRoundsError

    counts: dict[str, int | None] = {}
    for kind, (read, _) in KINDS.items():
        try:
            counts[kind] = len(read())
        except GrandRoundsError:
            counts[kind] = None
    if as_json:
        echo(json.dumps(counts))
        return
    width = max(map(len, KINDS))
    for kind, count in counts.items():
        echo(f"{kind:<{width}}  {'-' if count is None else count:>3}  {KINDS[kind][1]}")
    echo("List the entries of one of these with: rounds list methods")


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    round_: Annotated[
        int | None,
        typer.Option("--round", help="One round: sites that answered, their weights, and the reasons for them."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="One site: its scores over the rounds; with --round the reason for its weight. 3 is site-03."
        ),
    ] = None,
    sites: Annotated[bool, typer.Option("--sites", help="Print all sites instead of the worst twelve.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="The type of each column.")] = False,
    model: Annotated[
        bool,
        typer.Option(
            "--model",
            help="The weights of a linear model as odds ratios; shapes, trees or a risk card; with --site a model of that site.",
        ),
    ] = False,
    verbose: Verbose = False,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary, a round, a site or a model as JSON.")
    ] = False,
) -> None:
    """Show a run: its findings and scores, a round's decision, a site over the rounds, the model, or the schema."""
    from grandrounds.cli.screen import print_own_result, show_summary
    from grandrounds.cli.terminal import Terminal, warn
    from grandrounds.runs.run import Run

    finished_run, console = Run(run, trust_code=trust_code, withdrawn=withdrawn or not model), Terminal()  # figures are a record
    if finished_run.withdrawn is not None and not as_json:
        console.print(warn(f"WITHDRAWN: {finished_run.withdrawn.sentence}; this model is not valid any more"), soft_wrap=True)
    if finished_run.finished and finished_run.summary.withdrawal and not as_json:
        facts = finished_run.summary.withdrawal
        console.print(f"repeats {facts['repeats']['folder']} without {facts['site']}, which withdrew", soft_wrap=True)
    if model:
        _show_model(finished_run, site, as_json=as_json)
    elif round_ is not None:
        _show_round(finished_run, round_, site, as_json=as_json)
    elif site is not None:
        _show_site(finished_run, site, as_json=as_json)
    elif schema:
        _show_schema(finished_run)
    elif as_json:
        echo(json.dumps(finished_run.summary if finished_run.finished else _unfinished(finished_run)))
    elif not finished_run.finished:
        _show_unfinished(finished_run, console)
    elif verbose or not print_own_result(finished_run):
        show_summary(console, finished_run.summary, sites=10**6 if sites else 12, verbose=verbose)
        if "event" not in finished_run.summary and finished_run.event is not None:
            console.print(finished_run.event.line, soft_wrap=True)


def _unfinished(run: Run) -> dict[str, Any]:
    """Return the state of a run that is not finished, as `rounds show RUN --json` prints it."""
    from grandrounds.runs.overview import run_overview

    view = run_overview(run)
    ending = None if view.ending is None else view.ending.to_dict()
    state = {"name": view.name, "state": view.state, "rounds": view.rounds, "of": view.of}
    return {**state, "end": ending, "next": view.next_command}


def _show_unfinished(run: Run, console: Terminal) -> None:
    """Print the state of a run that is not finished: its cause, the suggested fix and the command that continues it."""
    from grandrounds.cli.terminal import warn
    from grandrounds.runs.overview import run_overview

    view = run_overview(run)
    line = f"{run.folder}: {view.state_text}"
    console.print(line if view.ending is None else warn(line), soft_wrap=True)
    if view.ending is not None:
        facts = [f"code: {view.ending.code}"] if view.ending.code else []
        facts += [f"time: {view.ending.time}"] if view.ending.time else []
        console.print("  ".join(facts), soft_wrap=True)
        if view.ending.fix:
            console.print(view.ending.fix, soft_wrap=True)
        console.print(f"continue: {view.next_command}", soft_wrap=True)


def _show_round(run: Run, round_: int, site: str | None, *, as_json: bool) -> None:
    """Print a round's decision; with a site, the reason for its weight."""
    from grandrounds.core.names import site_named

    decision = run.record(round_).decision
    if site is None:
        echo(json.dumps(decision) if as_json else "\n".join(round_lines(decision)))
        return
    name = site_named(site, run.site_names, where=run.folder)
    text = run.why(round_, name)
    record = {"round": round_, "site": name, "weight": decision.weights.get(name), "why": text.splitlines()}
    echo(json.dumps(record) if as_json else text)


def _show_site(run: Run, site: str, *, as_json: bool) -> None:
    from grandrounds.core.names import site_named

    name = site_named(site, run.site_names, where=run.folder)
    if as_json:
        echo(json.dumps({"site": name, "rounds": course(run.rounds, name)}))
        return
    echo("\n".join(course_lines(run.rounds, name)))
    for note in run.summary.notes.get(name, []) if run.finished else []:
        echo(f"note: {note}")


def _show_model(run: Run, site: str | None, *, as_json: bool) -> None:
    from grandrounds.data.sets.labels import ColumnLabels
    from grandrounds.report.shapes_text import model_texts
    from grandrounds.runs.readable_model import readable

    run.refuse_withdrawn()
    texts = model_texts(run.summary) if run.finished and site is None else []
    if texts:
        parts = {key: run.summary.get(key) for key in ("card", "shapes", "trees") if run.summary.get(key)}
        echo(json.dumps(parts) if as_json else "\n\n".join(texts))
        return
    model = readable(run.model if site is None else run.model_for(site))
    labels = ColumnLabels.of_plan(run.plan["data"])
    echo(json.dumps(model.to_dict()) if as_json else "\n".join(model_lines(model, labels)))


def _show_schema(run: Run) -> None:
    for column in run.schema["columns"]:
        levels = f" ({' < '.join(column['order'])})" if column["order"] else ""
        echo(f"{column['name']:<32} {column['kind']:<12} {column['why']}{levels}")


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
    everything: Annotated[bool, typer.Option("--all", help="Write every setting, with its default.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a short experiment file to start from; with --all every setting, its default and its meaning."""
    from grandrounds.core.errors import BadInput
    from grandrounds.experiment.template import short_toml, starter_toml

    if path.exists() and not force:
        raise BadInput(f"{path} exists: give another name, or overwrite it with --force", code="file-exists")
    try:
        path.write_text(starter_toml() if everything else short_toml(), encoding="utf-8")
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
    echo(f"wrote {path}: edit it, then run it with  rounds run {path}")


_FEATURES = 5
_OVER_ROUNDS = {"disagreement": "disagreement", "trust": "trust", "nsds": "NSDS", "reward": "reward"}
"""Signals that are shown round by round, where the run has them."""


def round_lines(decision: Decision) -> Iterator[str]:
    """Describe a round: answers, each site's weight and signals, the rule of each part of the method, and cohorts.

    Args:
        decision: The Decision of the round.

    Returns:
        Lines for people.
    """
    from grandrounds.report.weights.sentences import stage_reasons
    from grandrounds.report.weights.signals import missing_reason

    asked_count, sent = len(decision.asked), len(decision.weights)
    answered = len(set(decision.asked) - set(decision.missing)) if "place" in decision.signals else sent
    less = f", {sent} sent {'its' if sent == 1 else 'their'} model" if answered > sent else ""
    yield f"round {decision.round}: {asked_count} site{'s' * (asked_count != 1)} asked, {answered} answered{less}"
    yield from (f"  without {name}: {missing_reason(why)}" for name, why in decision.missing.items())
    yield from _weights(decision)
    yield from (f"{part.lower()}: {why}" for part, why in stage_reasons(decision))
    yield from _cohorts(decision)
    yield from _attributions(decision.reasons or {})
    yield from (f"note: {note}" for note in decision.notes)


def course_lines(rounds: Sequence[RoundRecord], site: str) -> Iterator[str]:
    """Describe a site's weight and scores round by round; its disagreement with the consensus and its trust, where known.

    Args:
        rounds: The records of the rounds.
        site: The site.

    Returns:
        Lines of a table.
    """
    from grandrounds.cli.screen import number
    from grandrounds.metrics import Place, shown_in
    from grandrounds.metrics.names import metric_label

    points = course(rounds, site)
    signals = {key: name for key, name in _OVER_ROUNDS.items() if any(r.get(key) is not None for r in points)}
    heads = [f"{name:>{max(len(name), 7)}}" for name in signals.values()]
    metrics = shown_in(Place.COURSE, _task(rounds))
    names = [f"{metric_label(m):>{max(len(metric_label(m)), _WIDTHS.get(m, 8))}}" for m in metrics]
    yield " ".join([f"{'round':>5} {'weight':>8}", *names, *heads])
    for point in points:
        more = [f"{number(point[key]):>{len(head)}}" for key, head in zip(signals, heads, strict=True)]
        values = [
            f"{number(point[m], 3 if m == 'auroc' else 4):>{len(name)}}" for m, name in zip(metrics, names, strict=True)
        ]
        yield " ".join([f"{point['round']:>5} {number(point['weight']):>8}", *values, *more])


_WIDTHS = {"accuracy": 9, "auroc": 7, "log_loss": 9}
"""Widths of columns over rounds; others are 8 wide."""


def _task(rounds: Sequence[RoundRecord]) -> str:
    """Tell the task from the scores of sites in the records: each task has a headline metric of its own."""
    from grandrounds.core.outcome import CLASSIFICATION
    from grandrounds.metrics import HEADLINE

    known = {name for record in rounds for name in record.sites or {}}
    return next((task for task, metric in HEADLINE.items() if metric in known), CLASSIFICATION)


def course(rounds: Sequence[RoundRecord], site: str) -> list[dict[str, float | None]]:
    """Collect a site's weight, scores and signals round by round; None for what a round does not know of the site.

    Args:
        rounds: The records of the rounds.
        site: The site.

    Returns:
        One object a round, as `rounds show RUN --site SITE --json` prints it.
    """
    from grandrounds.metrics.scores import Place, shown_in

    points: list[dict[str, float | None]] = []
    for record in rounds:
        decision = record.decision
        scores = {m: record.sites.get(m, {}).get(site) for m in shown_in(Place.COURSE, _task(rounds))}
        signals = {key: decision.signals.get(key, {}).get(site) for key in _OVER_ROUNDS}
        points.append({"round": record.round, "weight": decision.weights.get(site), **scores, **signals})
    return points


def _weights(decision: Decision) -> Iterator[str]:
    """Tabulate sites, the heaviest first: weight, signals, cohort; then those that were ranked and not chosen."""
    from grandrounds.cli.screen import number
    from grandrounds.metrics.names import metric_label

    signals, cohort_by_site = decision.signals, (decision.cohorts or {}).get("of", {})
    heads = ["site", "weight", *("rows" if name == "data_size" else metric_label(name) for name in signals)]
    heads += ["cohort"] if cohort_by_site else []
    rows = []
    weights: dict[str, float | None] = {**dict.fromkeys(signals.get("place", {})), **decision.weights}
    for site, weight in sorted(weights.items(), key=lambda item: (-(item[1] or 0.0), item[0])):
        row = [site, number(weight), *(_cell(values.get(site)) for values in signals.values())]
        rows.append([*row, str(cohort_by_site.get(site, "-"))] if cohort_by_site else row)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows) if rows else ():
        yield "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])


def _cohorts(decision: Decision) -> Iterator[str]:
    """List the cohorts, and how similar they are to those of the round before."""
    cohorts = decision.cohorts or {}
    cohort_by_site: Mapping[str, int] = cohorts.get("of", {})
    for cohort in sorted(set(cohort_by_site.values())):
        yield f"  cohort {cohort}: {', '.join(s for s, c in cohort_by_site.items() if c == cohort)}"
    labels = {"silhouette": "silhouette", "consistency": "adjusted Rand index to the round before"}
    scores = [f"{name} {cohorts[key]:.2f}" for key, name in labels.items() if cohorts.get(key) is not None]
    if scores:
        yield f"  {', '.join(scores)}"


def _attributions(shares: Mapping[str, float]) -> Iterator[str]:
    """Name the features that the consortium's model relies on most, where a method pools attributions."""
    from grandrounds.report.weights.record import percent

    most = sorted((name for name in shares), key=lambda n: (-shares[n], n))[:_FEATURES]
    if most:
        yield f"feature attributions of the consortium: {', '.join(f'{n} {percent(shares[n])}' for n in most)}"


def _cell(value: float | None) -> str:
    """Format a signal: rows and other whole numbers in full."""
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def model_lines(model: ReadableModel, labels: ColumnLabels) -> Iterator[str]:
    """Tabulate the weights that are not zero, the largest first, then say what else decides a risk."""
    from grandrounds.report.model_table import cells, equation_title, heads, sentences

    total = len(model.weights) + model.zeros
    yield f"{equation_title(model, labels)}: {len(model.weights)} of {total} weights are not zero"
    first, rows = heads(model), [cells(w, model.task, labels) for w in model.weights]
    widths = [max(map(len, column)) for column in zip(first, *rows, strict=True)]
    numbers = range(1, len(first) - 2)
    for row in (first, *rows) if rows else ():
        texts = (text.rjust(w) if k in numbers else text.ljust(w) for k, (text, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(texts).rstrip()
    yield from sentences(model, labels)
