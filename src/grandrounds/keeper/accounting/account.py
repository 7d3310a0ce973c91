"""A site's own account: what each Ask would cost its patients, worked out here and paid before anything is answered.

No server is believed. Which releases an answer is follows from the Ask and from the site's rows (`ask_costs`); they are
charged to the site's own purse, which outlives runs, and what does not fit, or has no noise, is refused.

    paid = account.pay(ask, purse, required=policy.privacy.require)     # before
    columns = host.answer(ask, members)
    account.answered(ask, columns)                                      # after: what is held now, for a later sum
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grandrounds.core.errors import BadInput
from grandrounds.keeper import codes
from grandrounds.keeper.accounting.ask_costs import JoinedSum, WithheldAnswer, ask_cost, sum_cost
from grandrounds.keeper.accounting.terms import AskCost, RowCounts, Terms, raw
from grandrounds.privacy.budget import Overspent
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.packing import LAYOUT
from grandrounds.protocol.tasks import ERROR, MASK_SHARES, MASKED

if TYPE_CHECKING:
    from grandrounds.privacy.purse import Purse
    from grandrounds.site.host import SiteHost

_REMEMBERED = 16
"""Withheld answers, and sums, that an account knows at a time: more than a host holds."""


@dataclass(frozen=True)
class Paid:
    """What became of a charge. `code`: why the Ask is refused, or nothing; `events`: what the answer tells, all of it.

    `new`: False where the very same Ask was paid for before: it must be answered from the cache, or not at all, since other
    noise under the same charge would be a second release.
    """

    code: str
    events: tuple[Event, ...]
    new: bool = True


class Account:
    """The account of one site in one run: it remembers what the site holds for secure sums, and whether it trained without
    noise."""

    def __init__(self, host: SiteHost, terms: Terms, *, unbounded: bool = False) -> None:
        """`unbounded`: as `facts` said before a restart; a site that trained without noise makes nothing private of it later."""
        if len(host.stack.names) != 1:
            raise ValueError("an account is of one site")
        self._host = host
        self._site, self._rows, self._terms = host.stack.names[0], RowCounts.of(host), terms
        self._unbounded = unbounded
        self._held: OrderedDict[str, WithheldAnswer | None] = OrderedDict()
        self._joined: OrderedDict[str, JoinedSum] = OrderedDict()

    def charges(self, ask: Ask) -> tuple[Event, ...]:
        """What answering this Ask releases: raw where nothing stands before it, nothing where no patient has a part in it."""
        try:
            return self._summed(ask) if ask.task == MASKED else self._released(ask)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise BadInput(
                f"an Ask '{ask.task}' is not of the agreed form, so nobody can say what it costs", code="malformed-ask"
            ) from None

    def due(self, ask: Ask) -> tuple[Event, ...]:
        """As `charges`, what has to be paid for under the site's terms."""
        return self._terms.due(self.charges(ask))

    def pay(
        self,
        ask: Ask,
        purse: Purse | None,
        *,
        required: bool,
        each_run: float | None = None,
        lost: bool = False,
    ) -> Paid:
        """Charge the purse for this Ask, on disk, or say by a code why it is refused; then nothing was charged.

        `required`: whether what has no noise is refused; where not, it is only listed. `each_run`: an epsilon that no run may
        spend more of. `lost`: whether an answer that was paid for, and is not there any more, is paid for anew: the next one
        has other noise and is another release. Else `new` is False for it.
        A purse that cannot be read is `BadInput`: nothing is released then.
        """
        assert ask.id is not None
        events = self.charges(ask)
        due = self._terms.due(events)
        if any(e.kind == "raw" for e in due):
            if required:
                return Paid(codes.NOT_PRIVATE, events)
            due = tuple(e for e in due if e.kind != "raw")
        self._unbounded |= self._read(ask).unbounded  # before it is done: work that breaks off may have been remembered
        if not due:
            return Paid("", events)
        if purse is None:
            return Paid(codes.NOT_PRIVATE if required else "", events)
        before = purse.budget()
        if len({e.unit for e in (*before.events, *due)}) > 1:  # a promise to patients and one to sites do not add up
            return Paid(codes.NOT_PRIVATE, events)
        key = self.key(ask)
        while lost and before.has(_named(ask.id.run, key)):
            key = f"{key} again"
        if each_run is not None and not _fits(before.to_dict(), due, ask.id.run, key, each_run):
            return Paid(codes.BUDGET, events)
        try:
            return Paid("", events, new=purse.charge(due, run=ask.id.run, key=key))
        except Overspent:
            return Paid(codes.BUDGET, events)

    def answered(self, ask: Ask, columns: Mapping[str, Any]) -> None:
        """Note what the host holds now, and which sum it has joined: a later Ask is charged by it.

        Two questions by one id leave it open which of the answers is held, so a sum of it has no account any more.
        """
        if ask.withheld:
            told = {r: t for r, t in self._read(ask).disclosures.items() if r in {h.split(".")[0] for h in ask.withheld}}
            held, known = WithheldAnswer(told, str(columns[LAYOUT][0]), self.key(ask)), self._held.get(str(ask.id), None)
            again = str(ask.id) in self._held and (known is None or known.digest != held.digest)
            self._held[str(ask.id)] = None if again else held
            _forget(self._held)
        if ask.task == MASK_SHARES:
            self._joined.pop(self._sum(ask), None)
            if ERROR in columns and not columns[ERROR][0]:
                self._joined[self._sum(ask)] = JoinedSum.of(ask.for_site(self._site), self._site)
                _forget(self._joined)

    def facts(self) -> dict[str, bool]:
        """Facts that must outlive a restart. Withheld answers do not, and neither does what is known of them."""
        return {"unbounded": self._unbounded}

    def key(self, ask: Ask) -> str:
        """What a charge is known by: the Ask's id and a digest of all that it says. Its deadline is no part of it."""
        from grandrounds.privacy.secagg.payload import fingerprint

        said = [ask.task, sorted(ask.report), sorted(ask.withheld), ask.protocol]
        content = fingerprint(ask.for_site(self._site)) + json.dumps(said).encode()
        return f"{ask.id} {hashlib.sha256(content).hexdigest()}"

    def _released(self, ask: Ask) -> tuple[Event, ...]:
        reading = self._read(ask)
        sized = () if self._of_fixed_size or not (reading.unbounded and ask.withheld) else self._rows.present("train")
        leaves = [t for name, t in reading.disclosures.items() if name in ask.report and name not in ask.withheld]
        bare = dict.fromkeys(e for t in leaves for e in raw(t.what, t.rows))
        return (*reading.events, *bare, *raw("how large a model has grown", sized))

    @property
    def _of_fixed_size(self) -> bool:
        """Whether a model that is held tells nothing by its shape: trees are as many and as deep as patients make them."""
        return self._host.model is None or self._host.model.kernel in ("numpy", "torch")

    def _summed(self, ask: Ask) -> tuple[Event, ...]:
        told = ask.for_site(self._site)
        held, joined = self._held.get(str(told.get("of", ""))), self._joined.get(self._sum(ask))
        return sum_cost(told, held, joined, self._terms.honest)

    def _read(self, ask: Ask) -> AskCost:
        return ask_cost(ask, self._rows, self._terms, unbounded=self._unbounded)

    def _sum(self, ask: Ask) -> str:
        """Which sum a step is of, as the host tells them apart."""
        assert ask.id is not None
        return f"{ask.id.run}/{ask.id.round}/{ask.for_site(self._site).get('tag', '')}"


def describe(events: tuple[Event, ...]) -> list[str]:
    """For the site's log: each release in words, with its noise and whose rows it is of. No value of a patient is in it."""
    from grandrounds.privacy.in_words import release

    counts: dict[Event, int] = {}
    for e in events:
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [release(replace(e, count=n)) for e, n in counts.items()] or ["nothing of patients"]


def _named(run: str, key: str) -> str:
    """A charge's name in the purse's file."""
    return json.dumps([run, key])


def _fits(before: Mapping[str, Any], due: tuple[Event, ...], run: str, key: str, epsilon: float) -> bool:
    """Whether this run stays within its own limit; what it has paid for before costs nothing more."""
    from grandrounds.privacy.accounting import epsilon_of

    paid = {name: [Event.from_dict(e) for e in events] for name, events in before["keys"].items()}
    mine = [e for name, events in paid.items() if json.loads(name)[0] == run for e in events]
    return _named(run, key) in paid or epsilon_of([*mine, *due], before["delta"]) <= epsilon * (1 + 1e-9)


def _forget(table: OrderedDict[str, Any]) -> None:
    while len(table) > _REMEMBERED:
        table.popitem(last=False)
