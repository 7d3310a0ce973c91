"""Records of a withdrawal: the earlier run that a run repeats without a site, and the mark of a run whose model is not valid.

The ledger is the source of truth: its last entry says that a site withdrew. withdrawn.json in the run folder repeats it for
people, and for machines that cannot read a ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import NUMBER, misfit, read_json, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.packages import NEEDED_PACKAGES, is_installed

SCHEMA = 1
MARK = "withdrawn.json"
"""File of a run folder that says that the model is not valid any more."""

FACTS = "withdrawal.json"
"""File in the checkpoint of a run that repeats an earlier run without a site."""

AGAIN, KEPT, SUBTRACTED = "agreed again", "kept", "subtracted"
"""Set-up statistics of a repeated run: agreed again without the site, or kept; or the site's sums were subtracted."""

_OTHER = {"run": str, "folder": str, "entries": int, "root": str, "model": str}
_MARK = {"schema": int, "site": str, "date": str, "valid": _OTHER}
_FACTS = {
    "schema": int, "site": str, "repeats": _OTHER, "setup": str, "first_round": (int, None), "from_round": int,
    "remains": [str], "cost": {"*": NUMBER}, "privacy": (None, {"*": (str, *NUMBER)}),
}  # fmt: skip


@dataclass(frozen=True)
class OtherRun:
    """Another run, as a ledger names it: its name, its folder, the head of its ledger and the hash of its model."""

    run: str
    folder: str
    entries: int
    root: str
    model: str


@dataclass(frozen=True)
class Withdrawn:
    """The withdrawal of a site from a run: the run that is valid now, and the day and time (UTC)."""

    site: str
    date: str
    valid: OtherRun

    @property
    def sentence(self) -> str:
        """The withdrawal in one sentence."""
        return f"{self.site} withdrew on {self.date[:10]}, and {self.valid.folder} replaces this run"

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Withdrawn:
        """Read a mark, or an entry of a ledger."""
        valid = values["valid"]
        return cls(values["site"], values["date"], OtherRun(**{name: valid[name] for name in _OTHER}))


@dataclass(frozen=True)
class Repetition:
    """Facts about a run that repeats an earlier one without a site.

    Attributes:
        site: The site that withdrew.
        repeats: The earlier run.
        setup: AGAIN, KEPT or SUBTRACTED.
        first_round: The round in which the site counted first in the earlier run; None where it never did.
        from_round: The first round that is run again.
        remains: Sentences on the influence of the site that remains; empty where none does.
        cost: Rounds, bytes and seconds of the earlier run.
        privacy: Epsilon of the earlier run, for the sum over both; None without a guarantee.
    """

    site: str
    repeats: OtherRun
    setup: str
    first_round: int | None
    from_round: int
    remains: tuple[str, ...]
    cost: Mapping[str, float]
    privacy: Mapping[str, Any] | None

    @property
    def earlier_releases(self) -> tuple[str, ...]:
        """Releases that no privacy statement of the repeated run covers: those of the earlier run."""
        if self.privacy is None:
            return ()
        p = self.privacy
        return (
            f"releases of {self.repeats.folder}, which this run repeats without {self.site}: its epsilon = {p['epsilon']:.3g} "
            f"(delta = {p['delta']:.3g}) adds to this one for rows of the sites that are left",
        )

    @property
    def differencing(self) -> str:
        """The risk that sums over all sites and over the sites left are compared, in one sentence."""
        return (
            f"a server that kept the sums of {self.repeats.folder} can subtract the new ones and come close to the sums of "
            f"{self.site}: only noise bounds this, so delete copies of earlier sums"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "remains": list(self.remains)}

    def add_epsilon(self, promised: Mapping[str, Any]) -> dict[str, Any] | None:
        """Add the epsilon of both runs, as the sites that are left have spent it; None where a run has no guarantee.

        Epsilon and delta add up by sequential composition, whatever the runs released.

        Args:
            promised: The privacy statement of the repeated run, as in summary.json.
        """
        now, before = promised.get("epsilon"), self.privacy
        if before is None or now is None:
            return None
        return {
            "epsilon": float(before["epsilon"]) + float(now),
            "delta": float(before["delta"]) + float(promised.get("delta") or 0.0),
            "unit": str(before["unit"]),
        }

    def write(self, checkpoint: Path) -> None:
        """Write the facts to the checkpoint of the repeated run, before it starts."""
        write_atomic(checkpoint / FACTS, json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def read(cls, checkpoint: Path) -> Repetition | None:
        """Read the facts; None where the run repeats no other.

        Raises:
            BadInput: The file is damaged.
        """
        values = _read_facts(checkpoint / FACTS, _FACTS)
        if values is None:
            return None
        return cls(
            values["site"],
            OtherRun(**{name: values["repeats"][name] for name in _OTHER}),
            values["setup"],
            values["first_round"],
            values["from_round"],
            tuple(values["remains"]),
            dict(values["cost"]),
            values["privacy"],
        )


def write_mark(folder: Path, withdrawn: Withdrawn) -> None:
    """Write withdrawn.json to a run folder."""
    write_atomic(folder / MARK, json.dumps(withdrawn.to_dict(), indent=1).encode())


def read_mark(folder: Path) -> Withdrawn | None:
    """Read withdrawn.json; None where there is none.

    Raises:
        BadInput: The file is damaged.
    """
    values = _read_facts(folder / MARK, _MARK)
    return None if values is None else Withdrawn.from_dict(values)


def _read_facts(path: Path, kind: Any) -> Any:
    """Read a JSON file of this kind; None where there is none."""
    if not path.is_symlink() and not path.exists():
        return None
    values = read_json(path)
    fault = misfit(values, kind)
    if fault:
        raise BadInput(f"{path} is damaged: {fault} is missing or of the wrong kind", code="damaged-file")
    return values


def read_withdrawn(folder: Path) -> Withdrawn | None:
    """Read the withdrawal from a run: from its ledger, or from its mark where the ledger cannot be read here.

    Args:
        folder: The run folder.

    Returns:
        The withdrawal; None where the model is valid.

    Raises:
        BadInput: The mark is damaged.
    """
    mark = read_mark(folder)
    if mark is not None or not (folder / "ledger.db").is_file() or not all(map(is_installed, NEEDED_PACKAGES)):
        return mark
    from grandrounds.audit.entry import WITHDRAW, find_fault
    from grandrounds.audit.ledger import Ledger

    try:
        with Ledger.open(folder / "ledger.db") as ledger:
            last = ledger.last()
    except BadInput:
        return None  # `rounds audit verify` names the damage
    if last is None or last.get("kind") != WITHDRAW or find_fault(last):
        return None
    return Withdrawn.from_dict(last)


def refuse_withdrawn(folder: Path, *, option: str = "--withdrawn") -> None:
    """Refuse to use the model of a run from which a site withdrew.

    Args:
        folder: The run folder.
        option: The way to use the model all the same, for the sentence.

    Raises:
        BadInput: A site withdrew.
    """
    withdrawn = read_withdrawn(folder)
    if withdrawn is not None:
        raise BadInput(
            f"the model of {folder} is not valid: {withdrawn.sentence}; use that run, or {option} to use this one all the same",
            code="withdrawn-run",
        )
