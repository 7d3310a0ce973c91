"""Statements on the attacks that were run against a model, and on those that were not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from grandrounds.analysis.dossier.evidence import ATTACKS
from grandrounds.analysis.dossier.facts import Facts
from grandrounds.analysis.dossier.statement import GUIDELINE, MissingFact, Source, Statement, Table, Value, say

COMMAND = "rounds attack RUN"


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
    if not facts.has(ATTACKS):
        raise MissingFact(f"no membership attack was run: `{COMMAND}` runs one")
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
    if not facts.has(ATTACKS):
        raise MissingFact(f"no membership attack was run: `{COMMAND}` runs one")
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


def state_attribute(facts: Facts) -> Iterator[Statement]:
    """State the results of attribute inference."""
    raise MissingFact(f"no attribute inference was run: `{COMMAND}` runs it")


def state_reconstruction(facts: Facts) -> Iterator[Statement]:
    """State the results of reconstruction."""
    raise MissingFact(f"no reconstruction was run: `{COMMAND}` runs it")


def tabulate_tests(facts: Facts) -> Table:
    """List the tests that the opinion names, each with its result or the command that runs it."""
    source = Source(GUIDELINE, "EDPB Opinion 28/2024, resistance to attacks")
    tests: dict[str, Callable[[Facts], Iterable[Statement]]] = {
        "membership inference": state_membership,
        "attribute inference": state_attribute,
        "reconstruction and inversion": state_reconstruction,
    }
    rows: list[tuple[str | Value, ...]] = []
    for test, state in tests.items():
        try:
            first = next(iter(state(facts)))
            rows.append((test, facts.derive(first.text, "first result of the test", *first.all_sources)))
        except MissingFact as e:
            rows.append((test, facts.derive(None, "no result in the evidence", source, text=str(e))))
    not_run = "not run: Grand Rounds has no such test"
    rows.append(("exfiltration and regurgitation", facts.derive(None, "no such test", source, text=not_run)))
    return Table("Tests named in the opinion", ("test", "result"), tuple(rows), (source,))
