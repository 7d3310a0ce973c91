"""Result of an audit: findings, state and colour."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from grandrounds.audit.verify import Finding

VERIFIES, FAILS, OPEN_END, RUNNING = "verifies", "does NOT verify", "is UNFINISHED", "is going on"
"""States of an audit."""
RED, YELLOW, GREEN = "red", "yellow", "green"


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    Attributes:
        where: The folder or file.
        findings: Faults.
        checked: Parts that were compared and are correct, one line each.
        unchecked: Parts that could not be compared.
        notes: Further information.
        unfinished: Cause why the ledger has no valid end; empty if it has one.
        running: A process is running this run now, so it has no end yet.
        simulated: The keys follow from the experiment's seed.
        close: Description of the valid closing entry and its model.
        withdrawn: The withdrawal of a site, after which the model is not valid any more; empty if there is none.
        alarms: Alarms in the ledger of a watch; None for the ledger of a run.
    """

    where: str
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    entries: int = 0
    rounds: int = 0
    root: str = ""
    deep: bool = False
    files: bool = False
    checked: tuple[str, ...] = ()
    unfinished: str = ""
    running: bool = False
    simulated: bool = False
    close: str = ""
    withdrawn: str = ""
    alarms: int | None = None

    @property
    def state(self) -> str:
        """One of FAILS, OPEN_END, RUNNING and VERIFIES."""
        if self.findings:
            return FAILS
        if self.unfinished:
            return OPEN_END
        return RUNNING if self.running else VERIFIES

    @property
    def fails(self) -> bool:
        """True if there is a finding or the ledger has no valid end: exit code 3."""
        return self.state in (FAILS, OPEN_END)

    @property
    def colour(self) -> str:
        """Red for failures, yellow for a run in progress, a withdrawn model and simulated keys, green otherwise."""
        if self.fails:
            return RED
        return YELLOW if self.simulated or self.running or self.withdrawn else GREEN

    @property
    def verdict(self) -> str:
        """The state as text, with its scope."""
        if self.state == FAILS:
            return FAILS
        if self.state == OPEN_END:
            return f"{OPEN_END}: {self.unfinished}"
        if self.state == RUNNING:
            return "is going on, and its ledger verifies so far: a closing entry follows when the run ends"
        text = (
            "verifies, with its alarms and figures"
            if self.alarms is not None and self.files
            else "the ledger verifies; alarms and figures in files were not checked"
            if self.alarms is not None
            else "verifies, with model and records"
            if self.deep
            else "verifies, with model and figures"
            if self.files
            else ""
        )
        text = text or "the ledger verifies; model and records were not checked"
        text += "; its model is WITHDRAWN" if self.withdrawn else ""
        return f"{text}, by SIMULATED keys: it proves nothing against anyone who knows the seed" if self.simulated else text

    @property
    def line(self) -> str:
        """The verdict with the number of checked entries."""
        entries = f"{self.entries} entr{'y' if self.entries == 1 else 'ies'}"
        if self.findings:
            many = len(self.findings)
            return f"{FAILS}: {many} finding{'s' * (many > 1)} ({entries})"
        many, what = (self.rounds, "round") if self.alarms is None else (self.alarms, "alarm")
        return f"{self.verdict} ({entries}, {many} {what}{'s' * (many != 1)}, root {self.root[:16]}...)"

    def to_dict(self) -> dict[str, object]:
        verdict = {"verifies": self.state == VERIFIES, "state": self.state, "colour": self.colour}
        values = asdict(self)
        if self.alarms is None:
            del values["alarms"]
        return {**verdict, **values}
