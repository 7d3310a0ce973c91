"""One run at one hospital: the host that answers its Asks, brought back from disk where the keeper was started again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.dataset import Dataset
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import AT_SITES, STROKES, apply_schema, split_keys, split_site_rows
from grandrounds.data.table import Table
from grandrounds.keeper.access import AccessControl
from grandrounds.keeper.codes import OTHER_SPLIT, REFUSED, STALE, Refusal
from grandrounds.keeper.policy.questions import Questions
from grandrounds.keeper.store import Store
from grandrounds.methods import SITE_PLUGINS
from grandrounds.privacy.events import protects_patients
from grandrounds.privacy.secagg import WITHHELD, Secret
from grandrounds.protocol.codec import decode_ask, encode_answer
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answer, Ask
from grandrounds.protocol.tasks import ERROR, LEND, spec_of
from grandrounds.site.company import UnknownPeers
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import task_class


@dataclass(frozen=True)
class SiteIdentity:
    """Who a site is, to its runs: its name, its key and what its masks and noise come from."""

    name: str
    identity: Identity
    secret: Secret


class SiteRun:
    """A run that this site takes part in."""

    def __init__(
        self,
        told: Mapping[str, Any],
        store: Store,
        rows: Table | ImageSet,
        me: SiteIdentity,
        gate: AccessControl,
        *,
        device: str,
    ) -> None:
        """`told`: as the Ask `open` has it; `rows`: the site's own, raw."""
        self.told, self.store, self._gate = dict(told), store, gate
        self.plan = Plan(told["plan"])
        self._me = me
        stack = own_stack(self.plan, rows, name=me.name, role=str(told["role"]), task=str(told["task"]))
        e = self.plan.engine
        self.host = SiteHost(
            stack,
            plugins=SITE_PLUGINS,
            kernel=e.kernel,
            device=device,
            precision=e.precision,
            identify=lambda _: me.identity,
            secret=lambda _: me.secret,
            largest_weight=min(float(told["largest_weight"]), gate.policy.secure.largest_weight),
            withheld_splits=tuple(dict.fromkeys((*told["untold"], *gate.policy.withheld_splits))),
            listed=gate.peers,
            fewest=gate.policy.secure.fewest,
            smallest=gate.policy.cells.smallest,
            reserved=True,
        )
        self.host.maps.files.folder = store.folder / "maps"
        self.account = gate.account(self.host, told["plan"], {})
        self.questions = Questions(told["plan"], {})
        self.refusals = 0  # questions that were not answered, by no fault of the server that this site could name
        self.last = 0
        self._counted = 0  # the round that the server last said counts

    @classmethod
    def again(
        cls, store: Store, rows: Table | ImageSet, me: SiteIdentity, gate: AccessControl, *, device: str
    ) -> SiteRun | None:
        """A run that was open when the keeper stopped; None where there is none."""
        told = store.opening()
        if told is None:
            return None
        run = cls(told, store, rows, me, gate, device=device)
        for data in store.setup():
            with suppress(UnknownPeers):  # whom it met is no longer listed: sums are refused until it meets others
                run._do(decode_ask(data, me.name, run.layout))
        run.recall()
        return run

    def recall(self) -> None:
        """Take up what the site remembers of this run."""
        held = self.store.load()
        if held is not None:
            arrays, facts = held
            self.host.restore(arrays)
            self.account = self._gate.account(self.host, self.told["plan"], facts)
            self.questions = Questions(self.told["plan"], facts)
            self.refusals = int(facts.get("refusals", 0))
            self.last, self._counted = int(facts["last"]), int(facts.get("counted", 0))

    @property
    def layout(self) -> Any:
        return None if self.host.model is None else self.host.model.layout

    def same_rows(self, told: Mapping[str, Any]) -> bool:
        """Whether a run opened so deals this site's rows as this one does."""
        return told["role"] == self.told["role"] and _dealt(told["plan"]) == _dealt(self.told["plan"])

    def check(self, ask: Ask) -> None:
        """Refuse what is of a round long done, since what a site knows would go back to it, and what the plan does not ask.

        A refusal tells one bit of what the site holds, so after `runs.refusals` of them the run is over for this site.
        """
        assert ask.id is not None
        spec = spec_of(ask.task)
        if ask.round < self.last - 1 and not (ask.round == 0 and (spec.setup or spec.is_repeatable)):
            raise Refusal(STALE)
        if self.refusals >= self._gate.policy.runs.refusals:
            raise Refusal(REFUSED)

    def count_refusal(self) -> None:
        """Remember, also over a restart, that a question was not answered."""
        self.refusals += 1
        self._save()

    def answer(self, ask: Ask, body: bytes) -> bytes:
        """Do what is asked, and have what the site remembers of it on disk before anybody hears of it."""
        assert ask.id is not None
        mine = self.host.stack.rows[0]
        rows = {"train": len(mine.train), "val": len(mine.val), "test": len(mine.test)}
        self._gate.permit(ask, self.told["plan"], self.account, self.questions, rows=rows["train"])
        try:
            values = self._do(ask)
        except UnknownPeers as e:
            raise self._gate.turned_away(ask, e) from None
        self.account.answered(ask, {name: [value] for name, value in values.items()})
        self.last = max(self.last, ask.round)
        if spec_of(ask.task).setup:
            name = f"{ask.task} {ask.shared['name']}" if ask.task == LEND else ask.task
            self.store.set_up("".join(c if c.isalnum() or c in "._-" else "_" for c in name), body)
        self.refusals += int(values.get(ERROR) == WITHHELD)
        self._save()
        return encode_answer(Answer(self._me.name, ask.id, self._gate.trimmed(ask, values, rows)), self.layout)

    def _save(self) -> None:
        facts = {"last": self.last, "counted": self._counted, "refusals": self.refusals}
        self.store.save(self.host.arrays(), {**facts, **self.account.facts(), **self.questions.facts()})

    def _do(self, ask: Ask) -> dict[str, Any]:
        """Round 0 is asked again by a server that goes on. It knows nothing of rounds yet, and nothing is taken back by it."""
        if ask.round:
            self._counted = int(ask.shared.get("committed", 0))
        ask = replace(ask, shared={**ask.shared, "committed": self._counted})
        columns = self.host.answer(ask, np.zeros(1, np.int64))
        return {name: column[0] for name, column in columns.items()}


def _dealt(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What of a plan says which rows are whose; the hash of data that the server has written in itself is no part of it."""
    data = {name: value for name, value in plan["data"].items() if name != "sha256"}
    return {"data": data, **{name: plan[name] for name in ("seed", "split", "tasks")}}


def told_to_open(ask: Ask) -> dict[str, Any]:
    """What the Ask `open` says, in plain values."""
    s = ask.shared
    return {
        "plan": json.loads(str(s["plan"])),
        "role": str(s["role"]),
        "task": str(s["task"]),
        "largest_weight": float(s["largest_weight"]),
        "untold": [p for p in str(s["untold"]).split(",") if p],
    }


def refuse_other_rows(before: SiteRun | None, told: Mapping[str, Any]) -> None:
    """A run that goes on must not deal the rows anew: what was a test row would be trained on."""
    if before is not None and not before.same_rows(told):
        raise Refusal(OTHER_SPLIT)


def own_stack(plan: Plan, given: Table | ImageSet, *, name: str, role: str, task: str) -> Stack:
    """One site's stack of a run: its rows, dealt to training, validation and test as the plan says."""
    data = _pictures(plan.data, given) if isinstance(given, ImageSet) else _table(plan.data, given)
    share = plan.split.test if plan.split.scheme == "within" else 0.0
    rows = split_site_rows(plan, data, name, np.arange(len(data)), role, test=share, keys=split_keys(plan, data))
    subgroup = plan.evaluation.subgroup
    groups = None if subgroup is None else data.groups(subgroup)
    if task:
        data = replace(data, label=_labels(plan, data, task))
    return Stack((name,), data, (rows,), groups, (task,), by_patient=protects_patients(plan))


def _table(settings: Any, given: Table) -> Dataset:
    if parse_image_shape(settings) is not None:
        raise BadInput(f"{given.source} is a table, and the run is one of pictures", code="other-data-kind")
    return apply_schema(settings, given)


def _pictures(settings: Any, given: ImageSet) -> ImageSet:
    """Pictures that are as the plan says: of its size and channels, with labels of its classes, and masks where it says so."""
    shape, labels = parse_image_shape(settings), settings.levels.plain().get(settings.label)
    if settings.kinds.plain():
        raise BadInput(f"{given.name} holds pictures, and the run is one of a table", code="other-data-kind")
    if shape is not None and given.shape != shape:
        raise BadInput(
            f"pictures of {given.name} have the shape {given.shape}, and {shape} is agreed", code="other-image-shape"
        )
    if shape is not None and labels and not set(given.label.tolist()) <= set(labels):
        raise BadInput(f"{given.name} has labels that are none of the agreed classes", code="unknown-class")
    if settings.masks == AT_SITES and given.masks is None:
        raise BadInput(f"{given.name} has no truth masks, which are agreed on", code="no-truth-masks")
    return replace(given, masks=stroke_masks(given.pixels)) if settings.masks == STROKES else given


def _labels(plan: Plan, data: Holdings, task: str) -> Any:
    """Labels of a site with a task of its own."""
    groups: Mapping[str, Sequence[str]] = plan.tasks.plain()[task]["classes"]
    grouped = {old: new for new, olds in groups.items() for old in olds}
    if any(word not in grouped for word in data.label.tolist()):
        raise BadInput(
            f"tasks.{task}.classes does not say what to do with every label of this site", code="unknown-class"
        )
    return np.array([task_class(task, grouped[word]) for word in data.label.tolist()], object)
