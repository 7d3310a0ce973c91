"""`rounds privacy`: the privacy guarantee of a run, the budget it spent, data without a guarantee; a site's budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.audit import FAILED
from grandrounds.cli.groups import ParentCommand
from grandrounds.cli.options import TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.analysis.privacy.account import Account, SiteBudgetStatus
    from grandrounds.runs.privacy_recompute import RoundSpent


def register(app: typer.Typer) -> None:
    app.command(cls=ParentCommand)(reads_run(privacy, verified=False))
    app.command("privacy budget")(budget)


def privacy(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the privacy guarantee of a run, the privacy budget it spent, and the data that no guarantee covers.

    Epsilon is recomputed from the releases in every round's Decision. It is compared with the epsilon of the run and with the
    ledger. Exit code 3: they differ, or an attack did better than the guarantee allows.

    Example: `rounds privacy runs/breast-cancer-fedavg-seed0`
    """
    from grandrounds.analysis.privacy.account import load_account
    from grandrounds.runs.run import Run

    account = load_account(Run(run, trust_code=trust_code))
    echo(json.dumps(account.to_dict()) if as_json else "\n".join(account_lines(account)))
    if account.findings:
        raise typer.Exit(FAILED)


def budget(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A site's budget file, state/purse.json of its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the privacy budget of a site: the part that each run spent, and the rest."""
    from grandrounds.analysis.privacy.account import read_site_budget

    site_budget = read_site_budget(file)
    echo(json.dumps(site_budget.to_dict()) if as_json else "\n".join(site_budget_lines(site_budget)))


_WIDTH = 100
_SHOWN = 8
"""Rounds in the table; --json has all."""
_NAMED = 6
"""Sites that are named."""


def account_lines(account: Account) -> Iterator[str]:
    """Describe the privacy account of a run in lines of text."""
    from grandrounds.privacy.in_words import quote

    s = account.summary
    yield f"{account.run}: {s['data']}, {s['method']}, {s['rounds']} round{'s' * (s['rounds'] != 1)}"
    yield ""
    yield from _promise(account) if account.promised else _no_promise(account)
    if not account.findings:
        yield from ("", quote(account.summary))
    yield from _attacks(account)
    yield from _agreement(account)


def site_budget_lines(budget: SiteBudgetStatus) -> Iterator[str]:
    """Describe a site's budget file in lines of text."""
    from grandrounds.privacy.in_words import plain, rounded_down, rounded_up

    yield f"{budget.path}: a budget of epsilon = {budget.epsilon:g} at delta = {plain(budget.delta)}, over all runs"
    for part, spent in budget.spent.items():
        yield f"{part} rows: {rounded_up(spent)} is spent, {rounded_down(budget.remaining(part))} is left"
    if not budget.runs:
        yield "no run has been charged"
        return
    yield ""
    rows = [(name, str(n), rounded_up(epsilon)) for name, (n, epsilon) in budget.runs.items()]
    yield from _table(("run", "releases", "epsilon alone"), rows)
    yield from _wrap(
        "The epsilon of single runs does not add up to the total: several releases together "
        "disclose less than their sum."
    )


def _promise(account: Account) -> Iterator[str]:
    from grandrounds.privacy.events import Event
    from grandrounds.privacy.in_words import (
        beside,
        mechanism,
        odds,
        plain,
        release,
        rounded_down,
        rounded_up,
        secure_aggregation,
        simulated,
        trust,
        uncovered,
        whom,
    )

    statement = account.privacy
    epsilon, delta, unit = account.recomputed.epsilon, statement["delta"], statement["unit"]
    amounts = f"epsilon = {rounded_up(epsilon)}, delta = {plain(delta)}"
    yield f"Guarantee to each {whom(statement)}: {amounts} (one {unit} more or less)"
    remaining = account.remaining
    if remaining is None:
        yield from _wrap("No budget was set (privacy.epsilon): the epsilon spent is counted, and nothing limits it.")
    else:
        yield f"budget: {statement['budget']:g}; spent: {rounded_up(epsilon)}; left: {rounded_down(remaining)}"
    yield from _wrap(f"By {mechanism(statement['mechanism'], account.summary['method'], unit)}.")
    if "sensitivity" in statement:
        yield from _wrap(
            f"The sum of updates is divided by {statement['sites']} (privacy.sites), whichever sites take part: one "
            f"site changes it by at most {statement['sensitivity']:.3g}."
        )
    yield from _wrap(_trained_on(account))
    for line in (
        *odds(epsilon, delta, unit),
        *trust(account.summary),
        " ".join(secure_aggregation(account.summary)),
        *beside(statement),
        *simulated(account.summary),
    ):
        yield from _wrap(line)
    yield from ("", "Spent round by round")
    yield from _table(
        ("round", "releases", "epsilon so far"),
        [(str(r.round), str(r.releases), rounded_up(r.epsilon)) for r in _pick_rounds(account.recomputed.rounds)],
    )
    if len(account.recomputed.rounds) > _SHOWN:
        yield f"({_SHOWN} of {len(account.recomputed.rounds)} rounds; --json has all)"
    yield from ("", "Released with protection")
    yield from _bullets(release(Event.from_dict(e), unit) for e in statement["events"])
    if len(statement["spent"]) > 1:
        apart = ", ".join(f"{rows} rows {rounded_up(value)}" for rows, value in statement["spent"].items())
        yield from _wrap(f"Epsilon by rows: {apart}. No patient is in two of them, so the largest holds for all.")
    yield from ("", "Data that left each site")
    yield from _bullets(account.disclosures)
    yield from ("", "Not covered by the guarantee")
    yield from _bullets(uncovered(statement))


def _no_promise(account: Account) -> Iterator[str]:
    from grandrounds.privacy.in_words import secure_aggregation

    statement = account.privacy
    raw = list(dict.fromkeys(e["what"] for e in statement.get("events", ()) if e["kind"] == "raw"))
    yield f"No formal guarantee{' (epsilon = infinity)' if raw else ''}: this run has no differential privacy"
    yield from _wrap("Disclosed data may reveal something about single patients, and nothing limits how much.")
    yield from _wrap(" ".join(secure_aggregation(account.summary)))
    yield from ("", "Released without protection")
    yield from _bullets([*raw, *account.disclosures])
    if account.summary["privacy"].get("numbers"):
        yield from _wrap(
            "Exact methods have no differential privacy. For a guarantee use model gam, method veil or fedavg with "
            "privacy.mechanism=dp-sgd, each with privacy.epsilon."
        )
        return
    yield from _wrap(
        "To give patients a guarantee: --set privacy.mechanism=dp-sgd --set privacy.epsilon=3, or method veil with "
        "privacy.epsilon; for a guarantee to sites: --set privacy.mechanism=client."
    )


def _trained_on(account: Account) -> str:
    from grandrounds.methods.baselines import POOL

    rows = account.summary["rows"]
    trained = account.participants
    patients = sum(rows[s]["train"] for s in trained)
    if POOL in trained:
        return f"Trained on: {patients:,} rows of all sites, pooled."
    few = f" ({', '.join(trained)})" if len(trained) <= _NAMED else ""
    rest = "" if len(trained) == len(rows) else "; no row of the others was trained on"
    return f"Trained on: {patients:,} rows of {len(trained)} of {len(rows)} sites{few}{rest}."


def _attacks(account: Account) -> Iterator[str]:
    yield from ("", "Attacks")
    if account.attacks is None:
        yield from _wrap(f"Not yet: `rounds attack {account.run}` runs membership inference attacks.")
        return
    for a in account.attacks["attacks"]:
        interval = "" if a["low"] is None else f" (95% CI {a['low']:.3f} to {a['high']:.3f})"
        yield f"{a['attack']}: AUC {a['auc']:.3f}{interval}, {a['members']} members, {a['nonmembers']} others"
    for line in (*account.attacks["sentences"], *(f"Note: {note}." for note in account.attacks["notes"])):
        yield from _wrap(line)


def _agreement(account: Account) -> Iterator[str]:
    yield from ("", "Check")
    for line in account.findings:
        yield from _wrap(f"FOUND  {line}")
    if account.findings:
        yield from _wrap("The privacy statement of this run does not agree with its record: do not rely on it.")
        return
    number = len(account.recomputed.rounds)
    if number:
        yield from _wrap(
            f"Epsilon, recomputed from the releases in {number} Decisions, agrees with the run in every round and in total."
        )
    where = "The Decisions are those in the ledger; `rounds audit verify` checks its signatures."
    yield from _wrap(where if account.ledger else "There is no ledger to compare the Decisions with.")


def _pick_rounds(rounds: Sequence[RoundSpent]) -> list[RoundSpent]:
    """Pick rounds to show, evenly spread, with the first and the last."""
    if len(rounds) <= _SHOWN:
        return list(rounds)
    places = [round(k * (len(rounds) - 1) / (_SHOWN - 1)) for k in range(_SHOWN)]
    return [rounds[k] for k in places]


def _wrap(text: str) -> Iterator[str]:
    yield from wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _bullets(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield from wrap(
            line, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(
            text.ljust(w) if k == 0 else text.rjust(w) for k, (text, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
