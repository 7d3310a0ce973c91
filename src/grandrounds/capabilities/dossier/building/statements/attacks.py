"""Statements on the attacks that were run against a model, and on those that were not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from grandrounds.audit.entry import CLOSE
from grandrounds.capabilities.dossier.building.evidence import ATTACKS, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import (
    GUIDELINE,
    MissingFact,
    Source,
    Statement,
    Table,
    Value,
    say,
)

COMMAND = "rounds attack RUN"
_MOST = 10
"""Columns that the table of attribute inference shows."""


def show_interval(facts: Facts, file: str, *path: str | int, name: str, low: str, high: str, show: str = ".3f") -> Value:
    """Read a figure with its 95% interval.

    Args:
        facts: The facts.
        file: Name in the evidence.
        path: Path of the record that has the three numbers.
        name: Key of the figure.
        low: Key of the lower end.
        high: Key of the upper end.
        show: Form of a number.

    Returns:
        The figure; its text has the interval, or says that there is none.
    """
    figure = facts.value(file, *path, name, show=show)
    if not (facts.has(file, *path, low) and facts.has(file, *path, high)):
        return facts.derive(figure.value, "the figure, without an interval", figure, text=f"{figure.text} (no interval)")
    ends = facts.value(file, *path, low, show=show), facts.value(file, *path, high, show=show)
    text = f"{figure.text} ({ends[0].text} to {ends[1].text})"
    return facts.derive(figure.value, "the figure with its 95% interval", figure, *ends, text=text)


def tabulate_membership(facts: Facts) -> Table:
    """List the membership attacks with their AUC, its interval and the members found at 1% false alarms."""
    _require(facts, "attacks", "membership attack")
    rows = [_row(facts, "all sites", "attacks", k) for k in range(len(facts.raw(ATTACKS, "attacks")))]
    rows += [_row(facts, str(site), "sites", site) for site in facts.get(ATTACKS, "sites", default={})]
    columns = ("rows of", "attack", "members", "non-members", "AUC (95% interval)", "members found at 1% false alarms")
    return Table("Membership inference", columns, tuple(rows), (facts.source(ATTACKS, "attacks"),))


def _row(facts: Facts, where: str, *path: str | int) -> tuple[str | Value, ...]:
    return (
        facts.derive(where, "rows that were attacked", facts.source(ATTACKS, *path)),
        facts.value(ATTACKS, *path, "attack"),
        facts.value(ATTACKS, *path, "members"),
        facts.value(ATTACKS, *path, "nonmembers"),
        show_interval(facts, ATTACKS, *path, name="auc", low="low", high="high"),
        facts.value(ATTACKS, *path, "tpr", show=".1%"),
    )


def state_membership(facts: Facts) -> Iterator[Statement]:
    """State the best membership attack on all sites, and the bound that epsilon sets."""
    _require(facts, "attacks", "membership attack")
    attacks = facts.raw(ATTACKS, "attacks")
    best = max(range(len(attacks)), key=lambda k: float(attacks[k]["auc"]))
    auc = show_interval(facts, ATTACKS, "attacks", best, name="auc", low="low", high="high")
    name = facts.value(ATTACKS, "attacks", best, "attack")
    yield say("The best membership attack ({attack}) has an AUC of {auc}. Guessing has 0.5.", attack=name, auc=auc)
    low = attacks[best].get("low")
    if low is not None and low > 0.5:
        yield say("It does better than guessing: the model reveals something of who was trained on.", auc)
    elif low is not None:
        yield say("It does not do clearly better than guessing. Stronger attacks may.", auc)
    if not facts.raw(ATTACKS, "shadows"):
        yield say("Attacks with shadow models (LiRA) were not run.", facts.source(ATTACKS, "shadows"))
    if facts.has(ATTACKS, "bound"):
        yield say(
            "Epsilon limits any attack on covered data to an AUC of {auc} and to {tpr} of members at 1% false alarms.",
            auc=facts.value(ATTACKS, "bound", "auc", show=".3f"),
            tpr=facts.value(ATTACKS, "bound", "tpr", show=".1%"),
        )
        if facts.raw(ATTACKS, "bound", "broken"):
            yield say("An attack did better than epsilon allows.", facts.source(ATTACKS, "bound", "broken"))
    else:
        yield say("No epsilon per patient bounds other attacks.", facts.source(ATTACKS, "bound"))


def _require(facts: Facts, key: str, attack: str) -> None:
    """Require a part of attacks.json.

    Raises:
        MissingFact: The attack was not run, with the reason where the file has one.
    """
    if facts.get(ATTACKS, key):
        if _is_of_other_model(facts):
            raise MissingFact(f"{ATTACKS} is of another model than that of the run: `{COMMAND}` repeats it")
        return
    words = attack.split()[0].lower()
    reason = next((r for r in facts.get(ATTACKS, "not_tried", default=[]) if str(r).lower().startswith(words)), "")
    raise MissingFact(str(reason).rstrip(".") or f"no {attack} was run: `{COMMAND}` runs it")


def _is_of_other_model(facts: Facts) -> bool:
    """Tell whether the attacked model files are others than those that the closing entry names."""
    closing = facts.entries(CLOSE)
    attacked = facts.get(ATTACKS, "model")
    if not closing or attacked is None:
        return False
    files = closing[-1].value.get("files", {})
    names = ("model.safetensors", *sorted(set(facts.get(SUMMARY, "models", default={}).values())))
    if not all(name in files for name in names):
        return False
    return bool(sha256(b"".join(bytes.fromhex(files[name]) for name in names)).hexdigest() != attacked)


def state_attribute(facts: Facts) -> Iterator[Statement]:
    """State the column that the model tells most about, and the columns with a clear leak."""
    _require(facts, "attribute", "attribute inference")
    columns = facts.raw(ATTACKS, "attribute", "columns")
    worst = facts.get(ATTACKS, "attribute", "worst")
    k = next((k for k, column in enumerate(columns) if column["column"] == worst), None)
    if k is None:
        raise MissingFact("attribute inference named no column")
    path = ("attribute", "columns", k)
    yield say(
        "Column '{column}' differs most: a guess is right for {members} of training patients and {others} of others.",
        column=facts.value(ATTACKS, *path, "column"),
        members=facts.value(ATTACKS, *path, "accuracy_members", show=".1%"),
        others=facts.value(ATTACKS, *path, "accuracy_nonmembers", show=".1%"),
    )
    advantage = show_interval(facts, ATTACKS, *path, name="advantage", low="low_all", high="high_all", show="+.1%")
    yield say("The difference is {advantage}, with an interval over all columns.", advantage=advantage)
    leaking = facts.raw(ATTACKS, "attribute", "leaking")
    source = facts.source(ATTACKS, "attribute", "leaking")
    yield say(
        "Of {columns} columns, {leaking} have an advantage clearly above zero.",
        columns=facts.derive(len(columns), "columns that were attacked", facts.source(ATTACKS, "attribute", "columns")),
        leaking=facts.derive(len(leaking), "columns in attribute.leaking", source),
    )


def tabulate_attribute(facts: Facts) -> Table:
    """List the columns that were guessed, those with the largest advantage first."""
    _require(facts, "attribute", "attribute inference")
    columns = facts.raw(ATTACKS, "attribute", "columns")
    order = sorted(range(len(columns)), key=lambda k: -float(columns[k].get("advantage") or 0.0))[:_MOST]
    rows = tuple(_describe_column(facts, k) for k in order)
    title = "Attribute inference" if len(columns) <= _MOST else f"Attribute inference: {_MOST} columns of {len(columns)}"
    names = ("column", "right, training patients", "right, others", "advantage (95% interval)", "right without the model")
    return Table(title, names, rows, (facts.source(ATTACKS, "attribute", "columns"),))


def _describe_column(facts: Facts, k: int) -> tuple[str | Value, ...]:
    path = ("attribute", "columns", k)
    shares = ("accuracy_members", "accuracy_nonmembers")
    return (
        facts.value(ATTACKS, *path, "column"),
        *(facts.value(ATTACKS, *path, name, show=".1%") for name in shares),
        show_interval(facts, ATTACKS, *path, name="advantage", low="low", high="high", show="+.1%"),
        facts.value(ATTACKS, *path, "imputation", show=".1%") if facts.has(ATTACKS, *path, "imputation") else "",
    )


def state_reconstruction(facts: Facts) -> Iterator[Statement]:
    """State how many disclosed statistics were attacked, and the one that exposes the largest share of patients."""
    statistics = _list_statistics(facts)
    attacked = [k for k, s in enumerate(statistics) if s.get("attacked")]
    source = facts.source(ATTACKS, "reconstruction", "statistics")
    yield say(
        "Of {all} disclosed statistics, {attacked} were attacked.",
        all=facts.derive(len(statistics), "statistics that are listed", source),
        attacked=facts.derive(len(attacked), "statistics that were attacked", source),
    )
    rated = [k for k in attacked if statistics[k].get("share") is not None]
    if rated:
        worst = max(rated, key=lambda k: float(statistics[k]["share"]))
        path = ("reconstruction", "statistics", worst)
        unit = facts.get(ATTACKS, *path, "unit", default="patients or values")
        yield say(
            "The largest share is exposed by '{kind}' ({attack}): {share} of {unit}.",
            kind=facts.value(ATTACKS, *path, "kind"),
            attack=facts.value(ATTACKS, *path, "attack"),
            share=show_interval(facts, ATTACKS, *path, name="share", low="low", high="high", show=".1%"),
            unit=facts.derive(unit, "what the share counts", facts.source(ATTACKS, *path)),
        )


def tabulate_reconstruction(facts: Facts) -> Table:
    """List each disclosed statistic with its attack, the patients or values exposed, and what was found."""
    rows = []
    for k, statistic in enumerate(_list_statistics(facts)):
        path = ("reconstruction", "statistics", k)
        source = facts.source(ATTACKS, *path)
        exposed = share = facts.derive(None, "no share", source, text="-")
        if statistic.get("share") is not None:
            text = f"{statistic['exposed']:,} of {statistic['total']:,} {statistic.get('unit') or ''}".rstrip()
            exposed = facts.derive(statistic["exposed"], "exposed of all", source, text=text)
            share = show_interval(facts, ATTACKS, *path, name="share", low="low", high="high", show=".1%")
        attack = facts.derive(statistic["attack"], "attack", source, text=statistic["attack"] or "not attacked")
        rows.append((facts.value(ATTACKS, *path, "kind"), attack, exposed, share, facts.value(ATTACKS, *path, "finding")))
    columns = ("disclosed statistic", "attack", "exposed", "share (95% interval)", "finding")
    return Table("Reconstruction", columns, tuple(rows), (facts.source(ATTACKS, "reconstruction", "statistics"),))


def _list_statistics(facts: Facts) -> list[Mapping[str, Any]]:
    _require(facts, "reconstruction", "reconstruction")
    return list(facts.raw(ATTACKS, "reconstruction", "statistics"))


def state_inversion(facts: Facts) -> Iterator[Statement]:
    """Quote the result of model inversion."""
    for k, statistic in enumerate(_list_statistics(facts)):
        if statistic.get("attacked") and statistic.get("attack") == "model inversion":
            yield say("{finding}", finding=facts.value(ATTACKS, "reconstruction", "statistics", k, "finding"))
            return
    raise MissingFact("model inversion was not run: it is offered for models of classes")


def require_attacks(facts: Facts) -> Iterator[Statement]:
    """State nothing; leave a gap where no attack on this model was run.

    Raises:
        MissingFact: There is no attacks.json of this model.
    """
    if not facts.has(ATTACKS) or _is_of_other_model(facts):
        raise MissingFact(f"no attack on this model was run: `{COMMAND}` runs them")
    yield from ()


def tabulate_not_tried(facts: Facts) -> Iterator[Table]:
    """List the attacks that were not tried, with the reason; nothing where the file has no list."""
    found = facts.get(ATTACKS, "not_tried", default=[])
    if found:
        rows = tuple((facts.value(ATTACKS, "not_tried", k),) for k in range(len(found)))
        yield Table("Attacks that were not tried", ("attack and reason",), rows)


def tabulate_tests(facts: Facts) -> Table:
    """List the tests that the opinion names, each with its result or the command that runs it."""
    source = Source(GUIDELINE, "EDPB Opinion 28/2024, resistance to attacks")
    tests: dict[str, Callable[[Facts], Iterable[Statement]]] = {
        "membership inference": state_membership,
        "attribute inference": state_attribute,
        "inversion": state_inversion,
        "reconstruction": state_reconstruction,
    }
    rows: list[tuple[str | Value, ...]] = []
    for test, state in tests.items():
        try:
            said = list(state(facts))
            sources = [source for statement in said for source in statement.all_sources]
            text = " ".join(statement.text for statement in said[:2])
            rows.append((test, facts.derive(text, "first results of the test", *sources)))
        except MissingFact as e:
            rows.append((test, facts.derive(None, "no result in the evidence", source, text=str(e).replace("`", ""))))
    not_run = "not run: Grand Rounds has no such test"
    rows.append(("exfiltration and regurgitation", facts.derive(None, "no such test", source, text=not_run)))
    return Table("Tests named in the opinion", ("test", "result"), tuple(rows), (source,))
