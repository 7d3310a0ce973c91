"""Access control of a site: its policy and its account before an Ask is done, and its policy again before an answer leaves.

Peers that a site refuses to add up with are noted in its own folder, in lines of JSON: a run's name, a code and names of
sites, which the server is not told. Nothing of patients is in them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import write_atomic
from grandrounds.keeper import codes
from grandrounds.keeper.accounting.account import Account, describe
from grandrounds.keeper.accounting.terms import Terms, declared_noise, own_split
from grandrounds.keeper.codes import Refusal
from grandrounds.keeper.policy.questions import Questions
from grandrounds.keeper.policy.rules import Policy
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import MEET
from grandrounds.site.company import UnknownPeers

if TYPE_CHECKING:
    from grandrounds.privacy.purse import Purse
    from grandrounds.site.host import SiteHost

_log = logging.getLogger("grandrounds.keeper")

FILE = "strangers.jsonl"
"""Where a site notes the peers that it rejected."""

_KEPT = 100
_WORDS = 500


@dataclass(frozen=True)
class RejectedPeer:
    """A peer that the site refused to add up with, in one run."""

    at: str
    run: str
    code: str
    what: str


class RejectedPeers:
    """The file that refusals are noted in; the last hundred of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, run: str, code: str, what: str) -> None:
        """Write one down, unless it is the last one again."""
        said = RejectedPeer(datetime.now(UTC).isoformat(timespec="seconds"), run[:100], code, what[:_WORDS])
        before = self.all()
        if before and (before[-1].run, before[-1].what) == (said.run, said.what):
            return
        text = "".join(json.dumps(asdict(one)) + "\n" for one in [*before, said][-_KEPT:])
        write_atomic(self._path, text.encode())

    def all(self) -> list[RejectedPeer]:
        """All that are noted, the oldest first; none where the file cannot be read."""
        try:
            return [RejectedPeer(**json.loads(line)) for line in self._path.read_text().splitlines()]
        except (OSError, ValueError, TypeError):
            return []


@dataclass
class AccessControl:
    """A site's policy and its purse. `split`: the file that says how its rows were dealt in its first run.

    `peers`: the keys of those whom the site adds up with; None where it takes the server's word. `strangers`: where others
    are noted.
    """

    policy: Policy = field(default_factory=Policy)
    purse: Purse | None = None
    split: Path | None = None
    classes: tuple[str, ...] = ()
    peers: Mapping[str, bytes] | None = None
    strangers: RejectedPeers | None = None

    def opens(self, ask: Ask, plan: Mapping[str, Any]) -> None:
        """Let a run be opened, or raise why not."""
        self._check(self.policy.refuses(ask, plan))

    def account(self, host: SiteHost, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> Account:
        """What the site charges a run; `facts` as the account left them.

        Where privacy is required, rows must be dealt as in the site's first run: test rows are not covered, and a server
        could make a test patient of everybody in turn.
        """
        p = self.policy.privacy
        if p.require and self.split is not None and not own_split(self.split, host.stack):
            raise Refusal(codes.OTHER_SPLIT)
        said = plan["privacy"]
        noise = declared_noise(
            epsilon=said["epsilon"], delta=said["delta"], rounds=int(plan["method"]["rounds"]), noise=said["noise"]
        )
        terms = Terms(
            withheld_splits=self.policy.withheld_splits,
            as_they_are=("test",) if p.require else (),
            own_split=p.require and self.split is not None,
            honest=p.honest or None,
            trust_server=p.trust_server,
            declared=noise if p.trust_server else None,
            classes=self.classes,
        )
        return Account(host, terms, unbounded=bool(facts.get("unbounded", False)))

    def permit(self, ask: Ask, plan: Mapping[str, Any], account: Account, questions: Questions, *, rows: int) -> None:
        """Let an Ask be done, and have it paid for, or raise why not."""
        self._check(self.policy.refuses(ask, plan, rows=rows))
        questions.check(ask)
        p = self.policy.privacy
        paid = account.pay(ask, self.purse, required=p.require, each_run=p.run_epsilon, lost=True)
        if paid.code:
            _log.warning("%s would tell: %s", ask.id, "; ".join(describe(paid.events)))
        self._check(paid.code)

    def trimmed(self, ask: Ask, values: Mapping[str, Any], rows: Mapping[str, int]) -> dict[str, Any]:
        """An answer as it may leave; `rows`: how many the site has for training, validation and test."""
        return self.policy.trimmed(ask, values, rows=rows)

    def turned_away(self, ask: Ask, why: UnknownPeers) -> Refusal:
        """What leaves where the site does not go along with whom it is introduced to; who that was is noted here."""
        _log.warning("%s: %s", ask.id, why)
        if self.strangers is not None and ask.task == MEET and ask.id is not None:
            self.strangers.note(ask.id.run, why.code, str(why))
        return Refusal(why.code)

    def _check(self, code: str) -> None:
        if code:
            raise Refusal(code)
