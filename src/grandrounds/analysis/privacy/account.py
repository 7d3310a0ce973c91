"""The privacy account of a finished run, and of a site's budget over all runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.membership.attack import AttacksFile, read_attacks
from grandrounds.analysis.privacy.disclosures import list_disclosures
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RunSummary
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import promised, uncovered
from grandrounds.runs.privacy_recompute import RecomputedBudget, against_ledger, ledger_entries, recompute_spending

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SCHEMA = 1


@dataclass(frozen=True)
class Account:
    """The epsilon that a run guarantees and has spent, the data it disclosed, and differences from its record."""

    run: str
    summary: RunSummary
    recomputed: RecomputedBudget
    participants: tuple[str, ...]
    disclosures: tuple[str, ...]  # data that left each site, with their protection
    attacks: AttacksFile | None
    ledger: bool  # a ledger exists to compare with
    findings: tuple[str, ...]

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The privacy statement of the run."""
        return self.summary.privacy

    @property
    def promised(self) -> bool:
        """True if the run guarantees a finite epsilon."""
        return promised(self.privacy)

    @property
    def remaining(self) -> float | None:
        """The rest of the budget; None where there is none."""
        budget = self.privacy.get("budget")
        return None if budget is None else max(0.0, budget - self.recomputed.epsilon)

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON; an infinite epsilon is null, and `promised` is false."""
        values = {
            "schema": SCHEMA,
            "run": self.run,
            "promised": self.promised,
            **self.privacy,
            **({"not_covered": uncovered(self.privacy)} if "not_covered" in self.privacy else {}),
            "left": self.remaining,
            "took_part": self.participants,
            "rounds": [
                {"round": r.round, "releases": r.releases, "epsilon": r.epsilon} for r in self.recomputed.rounds
            ],
            "worked_out_again": self.recomputed.epsilon if self.recomputed.rounds else None,
            "disclosed": self.disclosures,
            "attacks": self.attacks,
            "ledger": self.ledger,
            "findings": self.findings,
        }
        return dict(plain(values))


def load_account(run: Run) -> Account:
    """Read a finished run and recompute its spending.

    Raises:
        BadInput: The run is not finished, or its records are damaged.
    """
    summary, rounds = run.summary, run.rounds
    try:
        ledger = ledger_entries(run.folder)
        recomputed = recompute_spending(summary["privacy"], rounds, None if ledger is None else ledger[1])
        disclosures = tuple(list_disclosures(Plan(run.plan), summary))
        asked_sites = {s for r in rounds for s in r["decision"]["asked"]}
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BadInput(
            f"{run.folder} is damaged: its summary or its rounds lack what was spent; run it again",
            code="damaged-record",
        ) from None
    attacks = read_attacks(run)
    entered = None if ledger is None else ledger[0]
    findings = [*recomputed.findings, *(() if entered is None else against_ledger(rounds, entered))]
    if attacks is not None and attacks["bound"] is not None and attacks["bound"]["broken"]:
        findings.append("an attack did better than epsilon allows")
    return Account(
        run=str(run.folder),
        summary=summary,
        recomputed=recomputed,
        participants=tuple(s for s in summary["rows"] if s in asked_sites),
        disclosures=disclosures,
        attacks=attacks,
        ledger=entered is not None,
        findings=tuple(findings),
    )


@dataclass(frozen=True)
class SiteBudgetStatus:
    """The content of a site's budget file: `spent` by kind of rows over all runs, and each run alone, with its releases."""

    path: str
    epsilon: float
    delta: float
    spent: Mapping[str, float]
    runs: Mapping[str, tuple[int, float]]

    def remaining(self, rows: str) -> float:
        """Return the rest of the budget for a kind of rows."""
        return max(0.0, self.epsilon - self.spent[rows])

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain JSON."""
        runs = {name: {"releases": n, "epsilon_alone": epsilon} for name, (n, epsilon) in self.runs.items()}
        remaining = {rows: self.remaining(rows) for rows in self.spent}
        limits = {"epsilon": self.epsilon, "delta": self.delta}
        return {
            "schema": SCHEMA,
            "file": self.path,
            **limits,
            "spent": dict(self.spent),
            "left": remaining,
            "runs": runs,
        }


def read_site_budget(path: Path) -> SiteBudgetStatus:
    """Read a site's budget file; it is not changed.

    Raises:
        BadInput: There is no such file, or it is damaged.
    """
    from grandrounds.privacy.accounting import epsilon_of
    from grandrounds.privacy.site_budget import SiteBudget

    if not path.is_file():
        raise BadInput(
            f"there is no budget file at {path}: a site makes one with grandrounds.privacy.site_budget.SiteBudget.open",
            code="file-not-found",
        )
    budget = SiteBudget(path).budget()
    assert budget.epsilon is not None  # a site budget without a limit is refused as damaged
    by_run: dict[str, list[Event]] = {}
    for key, events in budget.to_dict()["keys"].items():
        by_run.setdefault(_charged_run(key, path), []).extend(Event.from_dict(e) for e in events)
    if sum(map(len, by_run.values())) != len(budget.events):
        raise BadInput(
            f"the budget at {path} is damaged (releases without a run): restore it from a copy", code="damaged-file"
        )
    rows = dict.fromkeys(e.of for e in budget.events) or {"training": None}
    return SiteBudgetStatus(
        path=str(path),
        epsilon=budget.epsilon,
        delta=budget.delta,
        spent={row_kind: budget.spent(row_kind) for row_kind in rows},
        runs={n: (sum(e.count for e in events), epsilon_of(events, budget.delta)) for n, events in by_run.items()},
    )


def _charged_run(key: str, path: Path) -> str:
    """Return the run that a charge names."""
    try:
        run, _ = json.loads(key)
        return str(run)
    except (ValueError, TypeError):
        raise BadInput(
            f"the budget at {path} is damaged (a charge names no run): restore it from a copy", code="damaged-file"
        ) from None
