"""Access control of a site: policy and budget before an Ask is answered, and the policy again before the answer leaves.

Rejected peers of secure sums are noted in the site's folder as lines of JSON: run, code and names of sites. The notes
contain no patient data and are not sent to the server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.accounting.account import Account, describe
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms, check_own_split, declared_noise
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import NUMBERS, Policy, cohort_digest
from grandrounds.capabilities.hospital.keeper.store import Facts
from grandrounds.capabilities.sources.cohort.plan_cohort import read_agreed
from grandrounds.capabilities.statistics.methods.site import FORESEEN, read_question
from grandrounds.capabilities.statistics.question import unpack_blocks
from grandrounds.core.arrays import Array, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import PlanValues
from grandrounds.protocol.messages import Ask, Payload
from grandrounds.protocol.tasks import MEET, STATISTIC
from grandrounds.site.secure import UnknownPeers

if TYPE_CHECKING:
    from grandrounds.privacy.site_budget import SiteBudget
    from grandrounds.site.host import SiteHost

_log = logging.getLogger("grandrounds.keeper")

FILE = "strangers.jsonl"
"""File in which a site notes the peers that it rejected."""

_MAX_PEERS = 100
_MAX_TEXT = 500


@dataclass(frozen=True)
class RejectedPeer:
    """A peer that the site rejected for secure sums, in one run."""

    time: str
    run: str
    code: str
    description: str

    def to_json(self) -> str:
        return json.dumps({"at": self.time, "run": self.run, "code": self.code, "what": self.description})

    @classmethod
    def from_json(cls, line: str) -> RejectedPeer:
        values = json.loads(line)
        return cls(values["at"], values["run"], values["code"], values["what"])


class RejectedPeers:
    """The file of rejected peers, limited to the last hundred."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, run: str, code: str, description: str) -> None:
        """Note a rejected peer, unless it equals the last entry."""
        peer = RejectedPeer(datetime.now(UTC).isoformat(timespec="seconds"), run[:100], code, description[:_MAX_TEXT])
        before = self.all()
        if before and (before[-1].run, before[-1].description) == (peer.run, peer.description):
            return
        text = "".join(one.to_json() + "\n" for one in [*before, peer][-_MAX_PEERS:])
        write_atomic(self._path, text.encode())

    def all(self) -> list[RejectedPeer]:
        """Read all entries, the oldest first; an empty list if the file cannot be read."""
        try:
            return [RejectedPeer.from_json(line) for line in self._path.read_text().splitlines()]
        except (OSError, ValueError, KeyError, TypeError):
            return []


def _has_few(counts: Array, smallest: int) -> bool:
    return bool(((counts > 0) & (counts < smallest)).any())


@dataclass
class AccessControl:
    """A site's policy and its budget.

    Attributes:
        policy: The policy.
        budget: The site budget over all runs; None if there is none.
        split: File that records how rows were split in the site's first run.
        classes: Values of the label that the consortium agreed on.
        cohort: Digest of the cohort that the consortium agreed on; "" if there is none.
        peers: Keys of the sites that this one accepts in secure sums; None if it trusts the server's list.
        rejected_peers: File of rejected peers.
    """

    policy: Policy = field(default_factory=Policy)
    budget: SiteBudget | None = None
    split: Path | None = None
    classes: tuple[str, ...] = ()
    cohort: str = ""
    peers: Mapping[str, bytes] | None = None
    rejected_peers: RejectedPeers | None = None

    def check_opening(self, ask: Ask, plan: PlanValues) -> None:
        """Check that a run may be opened.

        Raises:
            Refusal: The policy does not allow it.
        """
        self._check(self.policy.refuses(ask, plan))
        self._check_cohort(plan)

    def _check_cohort(self, plan: PlanValues) -> None:
        """Refuse a plan whose cohort is not that of the site's folder, or whose digest is not that of its definition."""
        given = plan["data"].get("cohort")
        try:
            digest = "" if given is None else read_agreed(given).digest()
        except BadInput as e:
            _log.warning("the plan's cohort cannot be read: %s", e)
            raise Refusal(codes.OTHER_COHORT) from None
        if digest != self.cohort:
            _log.warning("the plan has cohort %s, this site's folder %s", digest[:12] or "none", self.cohort[:12] or "none")
            raise Refusal(codes.OTHER_COHORT)

    def account(self, host: SiteHost, plan: PlanValues, facts: Facts) -> Account:
        """Create the account of a run.

        If privacy is required, rows must be split as in the site's first run: test rows are not covered, and a server could
        make each patient a test patient in turn.

        Args:
            host: The site's host.
            plan: The plan of the run.
            facts: State that an earlier account stored.

        Returns:
            The account.
        """
        p, require = self.policy.privacy, self.policy.requires_privacy(plan)
        if require and self.split is not None and not check_own_split(self.split, host.stack):
            raise Refusal(codes.OTHER_SPLIT)
        privacy = plan["privacy"]
        noise = declared_noise(
            epsilon=privacy["epsilon"],
            delta=privacy["delta"],
            rounds=int(plan["method"]["rounds"]),
            noise=privacy["noise"],
        )
        terms = Terms(
            withheld_splits=self.policy.withheld_splits(plan),
            unprotected=("test",) if require else (),
            own_split=require and self.split is not None,
            honest=p.honest or None,
            trust_server=p.trust_server,
            declared=noise if p.trust_server else None,
            classes=self.classes,
        )
        return Account(host, terms, unbounded=bool(facts.get("unbounded", False)))

    def permit(
        self,
        ask: Ask,
        plan: PlanValues,
        account: Account,
        questions: Questions,
        *,
        rows: int,
        columns: int = 0,
        lost: bool = True,
    ) -> None:
        """Check that an Ask may be answered, and charge the budget for it.

        Args:
            ask: The Ask.
            plan: The plan of the run.
            account: The site's account of the run.
            questions: Requests that the plan declares.
            rows: Number of training rows.
            columns: Number of inputs of a row.
            lost: Charge again for an Ask that was charged before, because its answer left and is no longer stored. False:
                no answer to it ever left.

        Raises:
            Refusal: The policy or the budget does not allow it.
        """
        self._check(self.policy.refuses(ask, plan, rows=rows))
        if cohort_digest(plan) != self.cohort:  # a folder with another cohort was accepted since the run was opened
            raise Refusal(codes.OTHER_COHORT)
        questions.check(ask)
        if ask.task == STATISTIC:
            self._count_numbers(ask, questions, rows=rows, columns=columns)
        required, each_run = self.policy.requires_privacy(plan), self.policy.privacy.run_epsilon
        paid = account.pay(ask, self.budget, required=required, each_run=each_run, lost=lost)
        if paid.code:
            _log.warning("%s would tell: %s", ask.id, "; ".join(describe(paid.events)))
            raise Refusal(paid.code, paid.sentence)

    def _count_numbers(self, ask: Ask, questions: Questions, *, rows: int, columns: int) -> None:
        """Count the numbers of an exact method's question, and refuse too many of them."""
        numbers = questions.numbers + read_question(ask).numbers
        held, masked = max(rows, int(ask.shared.get("rows", 0))) * max(1, columns), "sums" in ask.withheld
        most = max(numbers, int(ask.shared.get(FORESEEN, 0)))
        if self.policy.sends_too_many(most, held=held, masked=masked):
            key = "exact.most_ratio" if masked else "exact.most_ratio_clear"
            _log.warning("%s: %d numbers would be sent in all for %d held, more than %s allows", ask.id, most, held, key)
            raise Refusal(NUMBERS)
        questions.numbers = numbers

    def check_cells(self, ask: Ask, values: Payload) -> None:
        """Refuse an answer in the clear that counts few patients. The code does not say so: it would disclose the count.

        Raises:
            Refusal: A count of this site is above 0 and below `cells.smallest`.
        """
        if ask.task != STATISTIC or "sums" not in values:
            return
        question = read_question(ask)
        blocks = unpack_blocks(question, np.asarray(values["sums"]))
        few = [n for n in question.cells if n in blocks and _has_few(blocks[n], self.policy.cells.smallest)]
        if few:
            _log.warning("%s: block '%s' counts fewer than %d patients", ask.id, few[0], self.policy.cells.smallest)
            raise Refusal(codes.REFUSED)

    def trim(self, ask: Ask, values: Payload, rows: Mapping[str, int]) -> Payload:
        """Return an answer as it may leave; `rows` is the number of training, validation and test rows."""
        return self.policy.trim(ask, values, rows=rows)

    def reject_peers(self, ask: Ask, why: UnknownPeers) -> Refusal:
        """Note rejected peers, and return the refusal that leaves the site."""
        _log.warning("%s: %s", ask.id, why)
        if self.rejected_peers is not None and ask.task == MEET and ask.id is not None:
            self.rejected_peers.note(ask.id.run, why.code, str(why))
        return Refusal(why.code, str(why))

    def _check(self, code: str) -> None:
        if code:
            raise Refusal(code)
