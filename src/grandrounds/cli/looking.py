"""`rounds list`, `rounds show`, `rounds init`: looking at what there is, and starting a file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from grandrounds.runs import Run


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
    app.command()(show)
    app.command()(init)


def _methods() -> dict[str, str]:
    from grandrounds.methods import METHODS

    return {name: m.title for name, m in METHODS.items()}


def _models() -> dict[str, str]:
    from grandrounds.models import MODELS

    return dict(MODELS)


def _data() -> dict[str, str]:
    from grandrounds.data.catalog import CATALOG

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
    from grandrounds.methods import STABILITIES

    return {name: s.title for name, s in STABILITIES.items()}


def _staleness() -> dict[str, str]:
    from grandrounds.methods.stale import RULES

    return RULES


def _attacks() -> dict[str, str]:
    from grandrounds.data.poison import KINDS as ATTACKS

    return ATTACKS


def _explainers() -> dict[str, str]:
    from grandrounds.explain.rule import EXPLAINERS

    return EXPLAINERS


KINDS = {
    "methods": _methods,
    "selection": _selection,
    "weighing": _weighing,
    "robust": _robust,
    "stability": _stability,
    "staleness": _staleness,
    "explainers": _explainers,
    "attacks": _attacks,
    "models": _models,
    "data": _data,
    "recipes": _recipes,
}


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what there is: methods and the parts they are put together from, models, data sets, recipes.

    In an experiment, selection is method.select, weighing is method.weigh; robust, stability and staleness likewise.
    """
    from grandrounds.errors import BadInput, nearest

    if what not in KINDS:
        raise BadInput(f"cannot list '{what}'; {nearest(what, KINDS)}")
    items = KINDS[what]()
    if as_json:
        typer.echo(json.dumps(items))
        return
    width = max(len(name) for name in items)
    for name, line in items.items():
        typer.echo(f"{name:<{width}}  {line}")


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    round_: Annotated[int | None, typer.Option("--round", help="One round: who answered, weights and why.")] = None,
    site: Annotated[str | None, typer.Option(help="One site: its figures over the rounds, and its weight.")] = None,
    sites: Annotated[bool, typer.Option("--sites", help="All sites, not only the worst twelve.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="How each column was read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Show what a run found: final figures, a round's decision, a site's course, or the schema."""
    from rich.console import Console

    from grandrounds.cli.screen import show_summary
    from grandrounds.runs import Run

    held, console = Run(run), Console()
    if round_ is not None:
        _show_round(held, round_, site)
    elif site is not None:
        _show_site(held, site)
    elif schema:
        _show_schema(held)
    elif as_json:
        typer.echo(json.dumps(held.summary))
    elif not held.finished:
        done, total = len(held.rounds), held.plan["method"]["rounds"]
        console.print(
            f"{held.folder}: {done} of {total} rounds done; `rounds resume {held.folder}` goes on", highlight=False
        )
    else:
        show_summary(console, held.summary, sites=10**6 if sites else 12)


def _record(held: Run, number: int) -> dict[str, Any]:
    from grandrounds.errors import BadInput

    for record in held.rounds:
        if record["round"] == number:
            return record
    raise BadInput(f"{held.folder} has no round {number}; it has rounds 1 to {len(held.rounds)}")


def _known_site(held: Run, site: str) -> None:
    from grandrounds.errors import BadInput, nearest

    names = {s for r in held.rounds for s in r["decision"]["asked"]} | set(
        held.summary["per_site"] if held.finished else []
    )
    if site not in names:
        raise BadInput(f"no site '{site}' in {held.folder}; {nearest(site, sorted(names))}")


def _show_round(held: Run, number: int, site: str | None) -> None:
    decision = _record(held, number)["decision"]
    if site is not None:
        _known_site(held, site)
        typer.echo(_why(decision, site))
        return
    typer.echo(f"round {number}: {len(decision['asked'])} sites asked, {len(decision['weights'])} answered")
    for name, why in decision["missing"].items():
        typer.echo(f"  without {name}: {why}")
    typer.echo(f"why: {decision['why']}")
    for name, weight in sorted(decision["weights"].items(), key=lambda item: -item[1]):
        signals = ", ".join(f"{s} {v[name]:g}" for s, v in decision["signals"].items() if v.get(name) is not None)
        typer.echo(f"  {name:<24} weight {weight:.4f}   {signals}")


def _why(decision: dict[str, Any], site: str) -> str:
    """Why a site got its weight in a round, in words."""
    where = f"round {decision['round']}, {site}"
    if site in decision["missing"]:
        return f"{where}: no weight, because it {decision['missing'][site]}"
    if site not in decision["weights"]:
        return f"{where}: was not asked to take part"
    weights = sorted(decision["weights"].values(), reverse=True)
    rank = weights.index(decision["weights"][site]) + 1
    known = {name: v[site] for name, v in decision["signals"].items() if v.get(site) is not None}
    signals = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in known.items())
    return (
        f"{where}: weight {decision['weights'][site]:.4f}, number {rank} of {len(weights)} "
        f"({signals}); {decision['why']}"
    )


def _show_site(held: Run, site: str) -> None:
    from grandrounds.cli.screen import number

    _known_site(held, site)
    typer.echo(f"{'round':>5} {'weight':>8} {'accuracy':>9} {'AUROC':>7} {'log loss':>9}")
    for record in held.rounds:
        weight = record["decision"]["weights"].get(site)
        own = {m: column.get(site) for m, column in record.get("sites", {}).items()}
        typer.echo(
            f"{record['round']:>5} {number(weight):>8} {number(own.get('accuracy')):>9} "
            f"{number(own.get('auroc'), 3):>7} {number(own.get('log_loss')):>9}"
        )
    for note in held.summary["notes"].get(site, []) if held.finished else []:
        typer.echo(f"note: {note}")


def _show_schema(held: Run) -> None:
    for column in held.schema["columns"]:
        levels = f" ({' < '.join(column['order'])})" if column["order"] else ""
        typer.echo(f"{column['name']:<32} {column['kind']:<12} {column['why']}{levels}")


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write an experiment file with every setting, its default and what it does."""
    from grandrounds.errors import BadInput
    from grandrounds.starter import starter_toml

    if path.exists() and not force:
        raise BadInput(f"{path} exists; give another name or --force")
    try:
        path.write_text(starter_toml(), encoding="utf-8")
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}") from None
    typer.echo(f"{path}: edit it, then  rounds run {path}")
