"""A site's privacy account: the cost of each Ask, computed at the site and charged before the Ask is answered.

The server is not trusted. The releases of an answer follow from the Ask and from the site's rows (`ask_costs`). They are
charged to the site budget, which covers all runs. An Ask that does not fit, or whose answer has no noise, is refused.

    paid = account.pay(ask, budget, required=policy.privacy.require)     # before
    columns = host.answer(ask, members)
    account.record(ask, columns)                                      # after: the withheld reports, for a later sum
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.hospital.keeper import codes
from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import JoinedSum, WithheldAnswer, ask_cost, sum_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.core.errors import BadInput
from grandrounds.privacy.budget import Overspent
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.packing import LAYOUT
from grandrounds.protocol.tasks import ERROR, MASK_SHARES, MASKED
from grandrounds.site.ask_cost import AskCost, RowCounts, raw

if TYPE_CHECKING:
    from grandrounds.privacy.site_budget import SiteBudget
    from grandrounds.site.host import SiteHost

_REMEMBERED = 16
"""Number of withheld answers, and sums, that an account remembers: more than a host stores."""


@dataclass(frozen=True)
class Paid:
    """Result of a charge.

    Attributes:
        code: Refusal code; empty if the Ask is allowed.
        events: All releases of the answer.
        new: False if the same Ask was charged before. If an answer to it ever left, it must be answered from the cache, or
            not at all, since other noise under the same charge would be a second release.
        sentence: Why the budget refuses it, for the site's staff.
    """

    code: str
    events: tuple[Event, ...]
    new: bool = True
    sentence: str = ""


class Account:
    """The account of one site in one run.

    It remembers the reports withheld for secure sums, and whether the site trained without noise.

    Args:
        host: The host of the site.
        terms: Rules of accounting.
        unbounded: As in `facts` before a restart. A site that trained without noise cannot become private later.
    """

    def __init__(self, host: SiteHost, terms: Terms, *, unbounded: bool = False) -> None:
        if len(host.stack.names) != 1:
            raise ValueError("an account belongs to one site")
        self._host = host
        self._site, self._rows, self._terms = host.stack.names[0], RowCounts.from_host(host), terms
        self._unbounded = unbounded
        self._withheld: OrderedDict[str, WithheldAnswer | None] = OrderedDict()
        self._joined: OrderedDict[str, JoinedSum] = OrderedDict()

    def charges(self, ask: Ask) -> tuple[Event, ...]:
        """List the releases of an answer: raw if it has no noise, none if it uses no patient's data."""
        try:
            return self._summed(ask) if ask.task == MASKED else self._released(ask)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise BadInput(
                f"the Ask '{ask.task}' has an invalid form, so its privacy cost cannot be computed", code="malformed-ask"
            ) from None

    def due(self, ask: Ask) -> tuple[Event, ...]:
        """List the part of `charges` that must be charged under the site's terms."""
        return self._terms.due(self.charges(ask))

    def pay(
        self,
        ask: Ask,
        budget: SiteBudget | None,
        *,
        required: bool,
        each_run: float | None = None,
        lost: bool = False,
    ) -> Paid:
        """Charge the budget for an Ask, on disk, or refuse it with a code and charge nothing.

        Args:
            ask: The Ask.
            budget: The site budget; None if there is none.
            required: Refuse releases without noise; otherwise they are only listed.
            each_run: An epsilon that no run may exceed.
            lost: Charge again for an answer that was charged and is no longer stored: the next one has other noise and is
                another release. Otherwise `new` is False for it.

        Returns:
            The result.

        Raises:
            BadInput: The budget cannot be read; nothing is released.
        """
        assert ask.id is not None
        events = self.charges(ask)
        due = self._terms.due(events)
        if any(e.kind == "raw" for e in due):
            if required:
                return Paid(codes.NOT_PRIVATE, events)
            due = tuple(e for e in due if e.kind != "raw")
        self._unbounded |= self._read(ask).unbounded  # before the work: interrupted work may already have changed the state
        if not due:
            return Paid("", events)
        if budget is None:
            return Paid(codes.NOT_PRIVATE if required else "", events)
        before = budget.budget()
        if len({e.unit for e in (*before.events, *due)}) > 1:  # guarantees to patients and to sites do not add up
            return Paid(codes.NOT_PRIVATE, events)
        key = self.key(ask)
        while lost and before.has(_charge_name(ask.id.run, key)):
            key = f"{key} again"
        if each_run is not None and not _fits(before.to_dict(), due, ask.id.run, key, each_run):
            most = f"the run would spend more than privacy.run_epsilon = {each_run:g} of policy.toml"
            return Paid(codes.BUDGET, events, sentence=most)
        try:
            return Paid("", events, new=budget.charge(due, run=ask.id.run, key=key))
        except Overspent as e:
            return Paid(codes.BUDGET, events, sentence=str(e))

    def record(self, ask: Ask, columns: Mapping[str, Sequence[Value]]) -> None:
        """Record the reports that the host withholds now, and the sum that it joined; a later Ask is charged by them.

        If two Asks have one id, it is unclear which answer is withheld, so a sum of it can no longer be accounted.
        """
        if ask.withheld:
            disclosures = {
                r: t for r, t in self._read(ask).disclosures.items() if r in {h.split(".")[0] for h in ask.withheld}
            }
            withheld, earlier = (
                WithheldAnswer(disclosures, str(columns[LAYOUT][0]), self.key(ask)),
                self._withheld.get(str(ask.id), None),
            )
            again = str(ask.id) in self._withheld and (earlier is None or earlier.digest != withheld.digest)
            self._withheld[str(ask.id)] = None if again else withheld
            _forget(self._withheld)
        if ask.task == MASK_SHARES:
            self._joined.pop(self._sum_name(ask), None)
            if ERROR in columns and not columns[ERROR][0]:
                self._joined[self._sum_name(ask)] = JoinedSum.from_settings(ask.for_site(self._site), self._site)
                _forget(self._joined)

    def facts(self) -> dict[str, bool]:
        """Facts that must survive a restart. Withheld answers do not survive it."""
        return {"unbounded": self._unbounded}

    def key(self, ask: Ask) -> str:
        """Return the name of a charge: the Ask's id and a digest of its content without the deadline."""
        from grandrounds.privacy.secagg.payload import fingerprint

        terms = [ask.task, sorted(ask.report), sorted(ask.withheld), ask.protocol]
        content = fingerprint(ask.for_site(self._site)) + json.dumps(terms).encode()
        return f"{ask.id} {hashlib.sha256(content).hexdigest()}"

    def _released(self, ask: Ask) -> tuple[Event, ...]:
        reading = self._read(ask)
        sized = () if self._of_fixed_size or not (reading.unbounded and ask.withheld) else self._rows.present("train")
        leaves = [t for name, t in reading.disclosures.items() if name in ask.report and name not in ask.withheld]
        bare = dict.fromkeys(e for t in leaves for e in raw(t.description, t.rows))
        return (*reading.events, *bare, *raw("how large a model has grown", sized))

    @property
    def _of_fixed_size(self) -> bool:
        """Check that a withheld model discloses nothing by its shape; number and depth of trees depend on patients."""
        return self._host.model is None or self._host.model.kernel in ("numpy", "torch")

    def _summed(self, ask: Ask) -> tuple[Event, ...]:
        settings = ask.for_site(self._site)
        withheld, joined = self._withheld.get(str(settings.get("of", ""))), self._joined.get(self._sum_name(ask))
        return sum_cost(settings, withheld, joined, self._terms.honest)

    def _read(self, ask: Ask) -> AskCost:
        return ask_cost(ask, self._rows, self._terms, unbounded=self._unbounded)

    def _sum_name(self, ask: Ask) -> str:
        """Name the sum of a step as the host does."""
        assert ask.id is not None
        return f"{ask.id.run}/{ask.id.round}/{ask.for_site(self._site).get('tag', '')}"


def describe(events: tuple[Event, ...]) -> list[str]:
    """Describe each release for the site's log, with its noise and rows, without patient values."""
    from grandrounds.privacy.in_words import release

    counts: dict[Event, int] = {}
    for e in events:
        one = replace(e, count=1)
        counts[one] = counts.get(one, 0) + e.count
    return [release(replace(e, count=n)) for e, n in counts.items()] or ["nothing about patients"]


def _charge_name(run: str, key: str) -> str:
    """Return a charge's name in the budget's file."""
    return json.dumps([run, key])


def _fits(before: Mapping[str, Any], due: tuple[Event, ...], run: str, key: str, epsilon: float) -> bool:
    """Check that this run stays within its own limit; releases that it charged before cost nothing more."""
    from grandrounds.privacy.accounting import epsilon_of

    paid = {name: [Event.from_dict(e) for e in events] for name, events in before["keys"].items()}
    spent = [e for name, events in paid.items() if json.loads(name)[0] == run for e in events]
    return _charge_name(run, key) in paid or epsilon_of([*spent, *due], before["delta"]) <= epsilon * (1 + 1e-9)


def _forget(table: OrderedDict[str, Any]) -> None:
    while len(table) > _REMEMBERED:
        table.popitem(last=False)
