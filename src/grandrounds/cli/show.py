"""`rounds list`, `rounds show`, `rounds init`: what there is to choose from, a run with its rounds and model, a first file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.options import TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.core.records import Decision
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


KINDS = {
    "methods": _methods,
    "selection": _selection,
    "weighing": _weighing,
    "robust": _robust,
    "stability": _stability,
    "staleness": _staleness,
    "proposals": _proposals,
    "explainers": _explainers,
    "attacks": _attacks,
    "models": _models,
    "data": _data,
    "recipes": _recipes,
    "studies": _studies,
}


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what there is: methods and the parts they are put together from, models, data sets, recipes.

    In an experiment, selection is method.select, weighing is method.weigh; robust, stability and staleness likewise;
    proposals is method.veil.selection.
    """
    from grandrounds.core.errors import BadInput, nearest

    if what not in KINDS:
        raise BadInput(f"cannot list '{what}'; {nearest(what, KINDS)}")
    items = KINDS[what]()
    if as_json:
        echo(json.dumps(items))
        return
    width = max(len(name) for name in items)
    for name, line in items.items():
        echo(f"{name:<{width}}  {line}")


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    round_: Annotated[int | None, typer.Option("--round", help="One round: who answered, weights and why.")] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="One site: its course over the rounds; with --round why it had its weight. A number will do: 3 is site-03."
        ),
    ] = None,
    sites: Annotated[bool, typer.Option("--sites", help="All sites, not only the worst twelve.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="How each column was read.")] = False,
    model: Annotated[
        bool,
        typer.Option("--model", help="A linear model's weights as odds ratios; with --site the model that it uses."),
    ] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary, a round, a site or a model as JSON.")
    ] = False,
) -> None:
    """Show what a run found: final figures, a round's decision, a site's course, the model, or the schema."""
    from grandrounds.cli.screen import show_summary
    from grandrounds.cli.terminal import Terminal
    from grandrounds.runs.run import Run

    held, console = Run(run, trust_code=trust_code), Terminal()
    if model:
        _show_model(held, site, as_json=as_json)
    elif round_ is not None:
        _show_round(held, round_, site, as_json=as_json)
    elif site is not None:
        _show_site(held, site, as_json=as_json)
    elif schema:
        _show_schema(held)
    elif as_json:
        echo(json.dumps(held.summary))
    elif not held.finished:
        done, total = len(held.rounds), held.plan["method"]["rounds"]
        echo(f"{held.folder}: {done} of {total} rounds done; `rounds resume {held.folder}` goes on")
    else:
        show_summary(console, held.summary, sites=10**6 if sites else 12)
        if "event" not in held.summary and held.event is not None:
            console.print(held.event.line, soft_wrap=True)


def _show_round(held: Run, round_: int, site: str | None, *, as_json: bool) -> None:
    """A round's decision; with a site, why that one had its weight."""
    from grandrounds.core.names import site_named

    decision = held.record(round_)["decision"]
    if site is None:
        echo(json.dumps(decision) if as_json else "\n".join(round_lines(decision)))
        return
    name = site_named(site, held.site_names, where=held.folder)
    text = held.why(round_, name)
    told = {"round": round_, "site": name, "weight": decision["weights"].get(name), "why": text.splitlines()}
    echo(json.dumps(told) if as_json else text)


def _show_site(held: Run, site: str, *, as_json: bool) -> None:
    from grandrounds.core.names import site_named

    name = site_named(site, held.site_names, where=held.folder)
    if as_json:
        echo(json.dumps({"site": name, "rounds": course(held.rounds, name)}))
        return
    echo("\n".join(course_lines(held.rounds, name)))
    for note in held.summary["notes"].get(name, []) if held.finished else []:
        echo(f"note: {note}")


def _show_model(held: Run, site: str | None, *, as_json: bool) -> None:
    from grandrounds.runs.readable_model import readable

    found = readable(held.model if site is None else held.model_for(site))
    echo(json.dumps(found.to_dict()) if as_json else "\n".join(model_lines(found)))


def _show_schema(held: Run) -> None:
    for column in held.schema["columns"]:
        levels = f" ({' < '.join(column['order'])})" if column["order"] else ""
        echo(f"{column['name']:<32} {column['kind']:<12} {column['why']}{levels}")


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write an experiment file with every setting, its default and what it does."""
    from grandrounds.core.errors import BadInput
    from grandrounds.experiment.template import starter_toml

    if path.exists() and not force:
        raise BadInput(f"{path} exists; give another name or --force")
    try:
        path.write_text(starter_toml(), encoding="utf-8")
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}") from None
    echo(f"{path}: edit it, then  rounds run {path}")


_FEATURES = 5
_OVER_ROUNDS = {"disagreement": "disagreement", "trust": "trust", "nsds": "NSDS", "reward": "reward"}
"""Signals that a site's course shows, where the run knows them."""


def round_lines(decision: Decision) -> Iterator[str]:
    """Who answered, each site's weight with the signals beside it, what each part of the method says, and the cohorts."""
    from grandrounds.report.weights.sentences import stage_reasons
    from grandrounds.report.weights.signals import missing_reason

    asked, sent = len(decision["asked"]), len(decision["weights"])
    answered = len(set(decision["asked"]) - set(decision["missing"])) if "place" in decision["signals"] else sent
    less = f", {sent} sent {'its' if sent == 1 else 'their'} model" if answered > sent else ""
    yield f"round {decision['round']}: {asked} site{'s' * (asked != 1)} asked, {answered} answered{less}"
    yield from (f"  without {name}: {missing_reason(why)}" for name, why in decision["missing"].items())
    yield from _weights(decision)
    yield from (f"{part.lower()}: {why}" for part, why in stage_reasons(decision))
    yield from _cohorts(decision.get("cohorts") or {})
    yield from _reasons(decision.get("reasons") or {})
    yield from (f"note: {note}" for note in decision.get("notes", ()))


def course_lines(rounds: Sequence[Mapping[str, Any]], site: str) -> Iterator[str]:
    """A site's weight and figures round by round; how far its reasons lay from the consensus, and its trust, where known."""
    from grandrounds.cli.screen import number

    held = course(rounds, site)
    looked = {key: name for key, name in _OVER_ROUNDS.items() if any(r.get(key) is not None for r in held)}
    heads = [f"{name:>{max(len(name), 7)}}" for name in looked.values()]
    yield " ".join([f"{'round':>5} {'weight':>8} {'accuracy':>9} {'AUROC':>7} {'log loss':>9}", *heads])
    for own in held:
        more = [f"{number(own[key]):>{len(head)}}" for key, head in zip(looked, heads, strict=True)]
        yield " ".join(
            [
                f"{own['round']:>5} {number(own['weight']):>8} "
                f"{number(own['accuracy']):>9} {number(own['auroc'], 3):>7} {number(own['log_loss']):>9}",
                *more,
            ]
        )


def course(rounds: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, Any]]:
    """The same as values, None for what a round does not know of the site."""
    from grandrounds.metrics.scores import Place, shown_in

    told = []
    for record in rounds:
        decision, judged = record["decision"], record.get("sites", {})
        figures = {m: judged.get(m, {}).get(site) for m in shown_in(Place.COURSE)}
        signals = {key: decision["signals"].get(key, {}).get(site) for key in _OVER_ROUNDS}
        told.append({"round": record["round"], "weight": decision["weights"].get(site), **figures, **signals})
    return told


def _weights(decision: Mapping[str, Any]) -> Iterator[str]:
    """A table of sites, the heaviest first: weight, signals, cohort; then those that were ranked and not chosen."""
    from grandrounds.cli.screen import number
    from grandrounds.metrics.names import metric_label

    signals, of = decision["signals"], (decision.get("cohorts") or {}).get("of", {})
    heads = ["site", "weight", *("rows" if name == "data_size" else metric_label(name) for name in signals)]
    heads += ["cohort"] if of else []
    rows = []
    ranked = dict.fromkeys(signals.get("place", {}))
    for site, weight in sorted(
        {**ranked, **decision["weights"]}.items(), key=lambda item: (-(item[1] or 0.0), item[0])
    ):
        row = [site, number(weight), *(_cell(values.get(site)) for values in signals.values())]
        rows.append([*row, str(of.get(site, "-"))] if of else row)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows) if rows else ():
        yield "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])


def _cohorts(cohorts: Mapping[str, Any]) -> Iterator[str]:
    """Who is with whom, and whether that is as it was."""
    of: Mapping[str, int] = cohorts.get("of", {})
    for cohort in sorted(set(of.values())):
        yield f"  cohort {cohort}: {', '.join(s for s, c in of.items() if c == cohort)}"
    said = {"silhouette": "silhouette", "consistency": "adjusted Rand index to the round before"}
    known = [f"{name} {cohorts[key]:.2f}" for key, name in said.items() if cohorts.get(key) is not None]
    if known:
        yield f"  {', '.join(known)}"


def _reasons(shares: Mapping[str, float]) -> Iterator[str]:
    """What the consortium goes by, where a method pools it."""
    from grandrounds.report.weights.record import percent

    most = sorted((name for name in shares), key=lambda n: (-shares[n], n))[:_FEATURES]
    if most:
        yield f"the consortium's reasons: {', '.join(f'{n} {percent(shares[n])}' for n in most)}"


def _cell(value: float | None) -> str:
    """A signal: rows and other whole numbers in full."""
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def model_lines(model: ReadableModel) -> Iterator[str]:
    """A table of the weights that are not zero, the largest first, and what else decides a risk."""
    from grandrounds.report.model_table import HEADS, cells, sentences

    total = len(model.weights) + model.zeros
    yield f"log-odds of {model.label} = {model.positive}: {len(model.weights)} of {total} weights are not zero"
    rows = [cells(w) for w in model.weights]
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    for row in (HEADS, *rows) if rows else ():
        name, weight, ratio, per, effect = (
            text.rjust(w) if k in (1, 2) else text.ljust(w) for k, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((name, weight, ratio, per, effect)).rstrip()
    yield from sentences(model)
