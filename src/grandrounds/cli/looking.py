"""`rounds list`, `rounds show`, `rounds init`: looking at what there is, and starting a file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.running import TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
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
    from grandrounds.methods.weighing import RULES

    return RULES


def _robust() -> dict[str, str]:
    from grandrounds.methods.robust import RULES

    return RULES


def _stability() -> dict[str, str]:
    from grandrounds.methods import STABILITIES

    return {name: s.title for name, s in STABILITIES.items()}


def _staleness() -> dict[str, str]:
    from grandrounds.methods.stale import RULES

    return RULES


def _proposals() -> dict[str, str]:
    from grandrounds.methods.veil import SELECTIONS

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
    from grandrounds.cli.round_view import round_lines
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
    from grandrounds.cli.round_view import course, course_lines
    from grandrounds.core.names import site_named

    name = site_named(site, held.site_names, where=held.folder)
    if as_json:
        echo(json.dumps({"site": name, "rounds": course(held.rounds, name)}))
        return
    echo("\n".join(course_lines(held.rounds, name)))
    for note in held.summary["notes"].get(name, []) if held.finished else []:
        echo(f"note: {note}")


def _show_model(held: Run, site: str | None, *, as_json: bool) -> None:
    from grandrounds.cli.model_view import model_lines
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
