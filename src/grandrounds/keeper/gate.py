"""The site's own say in a run: its policy before an Ask is done, its purse, and its policy again before an answer leaves."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.arrays import write_atomic
from grandrounds.keeper import codes
from grandrounds.keeper.charges import Account, describe
from grandrounds.keeper.charges_terms import Terms
from grandrounds.keeper.codes import Refusal
from grandrounds.keeper.policy import Policy
from grandrounds.messages import Ask

if TYPE_CHECKING:
    from grandrounds.privacy.purse import Purse
    from grandrounds.site.host import SiteHost

_log = logging.getLogger("grandrounds.keeper")
_DEALT = ("seed", "split")


@dataclass
class Gate:
    """A site's policy and its purse. `split`: the file that says how rows are dealt, where that is settled once for all runs.

    Without it a server could have a patient's row tested on in one run and trained on in the next, and what is promised to
    rows of one kind would be promised to nobody.
    """

    policy: Policy = field(default_factory=Policy)
    purse: Purse | None = None
    split: Path | None = None
    classes: tuple[str, ...] = ()

    def opens(self, ask: Ask, plan: Mapping[str, Any]) -> None:
        """Let a run be opened, or raise why not."""
        self._check(self.policy.refuses(ask, plan))
        if self.split is not None and self.policy.privacy.require:
            dealt = json.dumps({name: plan.get(name) for name in _DEALT}, sort_keys=True).encode()
            digest = hashlib.sha256(dealt).hexdigest()
            if not self.split.exists():
                write_atomic(self.split, digest.encode())
            elif self.split.read_text() != digest:
                raise Refusal(codes.OTHER_SPLIT)

    def account(self, host: SiteHost, facts: Mapping[str, Any]) -> Account:
        """What the site charges a run; `facts` as the account left them."""
        required = self.policy.privacy.require
        terms = Terms(
            untold=self.policy.untold,
            as_they_are=("test",) if required else (),
            own_split=required and self.split is not None,
            classes=self.classes,
        )
        return Account(host, terms, unbounded=bool(facts.get("unbounded", False)))

    def lets(self, ask: Ask, plan: Mapping[str, Any], account: Account, *, rows: int) -> None:
        """Let an Ask be done, and have it paid for, or raise why not."""
        self._check(self.policy.refuses(ask, plan, rows=rows))
        p = self.policy.privacy
        paid = account.pay(ask, self.purse, required=p.require, each_run=p.run_epsilon)
        if paid.code:
            _log.warning("%s would tell: %s", ask.id, "; ".join(describe(paid.events)))
        self._check(paid.code)
        if not paid.new:
            raise Refusal(codes.LOST)

    def trimmed(self, ask: Ask, values: Mapping[str, Any], rows: Mapping[str, int]) -> dict[str, Any]:
        """An answer as it may leave; `rows`: how many the site has for training, validation and test."""
        return self.policy.trimmed(ask, values, rows=rows)

    def _check(self, code: str) -> None:
        if code:
            raise Refusal(code)
