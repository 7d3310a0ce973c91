"""One run at one hospital: the host that answers its Asks, restored from disk after a restart of the keeper."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import (
    FEW_CHANGED_ROWS,
    NO_NEW_PATIENTS,
    NOT_FINITE,
    OTHER_SPLIT,
    REFUSED,
    SCHEMA,
    STALE,
    Refusal,
)
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.store import Opening, Store
from grandrounds.capabilities.hospital.keeper.watched import COUNTED, EarlierWatches
from grandrounds.capabilities.hospital.keeper.watched import FILE as WATCHED
from grandrounds.core.errors import BadInput, reading_rows
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.sources import AT_SITES, STROKES
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.dataset import Dataset
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import apply_schema, split_keys, split_site_rows
from grandrounds.data.new_patients import NewPatients, read_alarms, read_new_patients
from grandrounds.data.subgroups import count_words, plan_bands
from grandrounds.data.table import Table
from grandrounds.methods import is_variant_of
from grandrounds.methods.site_halves import site_plugins
from grandrounds.privacy.events import protects_patients
from grandrounds.privacy.secagg import WITHHELD, Secret
from grandrounds.protocol.codec import decode_ask, encode_answer
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answer, Ask, Payload
from grandrounds.protocol.tasks import ERROR, LEND, may_be_nan, spec_of
from grandrounds.site.host import SiteHost
from grandrounds.site.secure import UnknownPeers
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import task_class

_log = logging.getLogger("grandrounds.keeper")


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name, its key, and the secret of its masks and noise."""

    name: str
    identity: Identity
    secret: Secret


class SiteRun:
    """A run that this site takes part in.

    Args:
        opening: The terms on which the server opened it.
        store: Its folder.
        rows: The site's data, raw.
        me: The site's name, key and secret.
        access: Policy and budget of the site.
        device: Device to train on.
        new: The site's new patients, for a run of method 'watch'.
    """

    @reading_rows()
    def __init__(
        self,
        opening: Opening,
        store: Store,
        rows: Table | ImageSet,
        me: SiteIdentity,
        access: AccessControl,
        *,
        device: str,
        new: NewPatients | None = None,
    ) -> None:
        self.opening, self.store, self._access = opening, store, access
        self.plan = Plan(opening.plan)
        self._me = me
        stack = build_stack(self.plan, rows, name=me.name, role=opening.role, task=opening.task)
        if is_variant_of(self.plan.method.name, "watch"):
            stack = _add_new_patients(stack, new)
            if self.plan.privacy.epsilon is None and access.split is not None:
                watches = EarlierWatches(access.split.with_name(WATCHED))
                watches.admit(stack.new[0], smallest=access.policy.cells.smallest)
        if is_variant_of(self.plan.method.name, "quality") and self.plan.privacy.epsilon is None and access.split is not None:
            if not isinstance(stack.data, Dataset):
                raise Refusal(SCHEMA)
            counts = EarlierWatches(access.split.with_name(COUNTED), FEW_CHANGED_ROWS)
            counts.admit(stack.data, smallest=access.policy.cells.smallest)
        e = self.plan.engine
        self.host = SiteHost(
            stack,
            plugins=site_plugins(self.plan),
            kernel=e.kernel,
            device=device,
            precision=e.precision,
            identify=lambda _: me.identity,
            secret=lambda _: me.secret,
            largest_weight=min(opening.largest_weight, access.policy.secure.largest_weight),
            withheld_splits=tuple(dict.fromkeys((*opening.withheld_splits, *access.policy.withheld_splits(opening.plan)))),
            listed=access.peers,
            fewest=access.policy.secure.fewest,
            smallest=access.policy.cells.smallest,
            reserved=True,
            objectives=access.policy.objectives,
        )
        self.host.maps.files.folder = store.folder / "maps"
        self.host.keep_personal(store.folder / "personal")
        self.account = access.account(self.host, opening.plan, {})
        self.questions = Questions(opening.plan, {})
        self.refusals = 0  # unanswered requests for which this site can blame no specific fault of the server
        self.last = 0
        self._counted = 0  # the last round that the server committed

    @classmethod
    def load(
        cls,
        store: Store,
        rows: Table | ImageSet,
        me: SiteIdentity,
        access: AccessControl,
        *,
        device: str,
        new: NewPatients | None = None,
    ) -> SiteRun | None:
        """Load a run that was open when the keeper stopped; None if there is none."""
        opening = store.opening()
        if opening is None:
            return None
        store.remove_leftovers()
        run = cls(opening, store, rows, me, access, device=device, new=new)
        for data in store.setup():
            with suppress(UnknownPeers):  # a known peer is no longer listed: sums are refused until it is replaced
                run._do(decode_ask(data, me.name, run.layout))
        run.restore()
        return run

    def restore(self) -> None:
        """Restore the site's state of this run."""
        stored = self.store.load()
        if stored is not None:
            arrays, facts = stored
            self.host.restore(arrays)
            self.account = self._access.account(self.host, self.opening.plan, facts)
            self.questions = Questions(self.opening.plan, facts)
            self.refusals = int(facts.get("refusals", 0))
            self.last, self._counted = int(facts["last"]), int(facts.get("counted", 0))

    @property
    def layout(self) -> ParameterLayout | None:
        return None if self.host.model is None else self.host.model.layout

    def has_same_rows(self, opening: Opening) -> bool:
        """Check that a run opened on these terms splits the rows of this site in the same way."""
        return opening.role == self.opening.role and _split_settings(opening.plan) == _split_settings(self.opening.plan)

    def check(self, ask: Ask) -> None:
        """Refuse Asks of a round that ended long ago, and all Asks after too many refusals.

        An old Ask would reset the site's state. A refusal discloses one bit about the site's data, so after `runs.refusals`
        of them the run is over for this site.
        """
        assert ask.id is not None
        spec = spec_of(ask.task)
        if ask.round < self.last - 1 and not (ask.round == 0 and (spec.setup or spec.is_repeatable)):
            raise Refusal(STALE)
        if self.refusals >= self._access.policy.runs.refusals:
            raise Refusal(REFUSED)

    def count_refusal(self) -> None:
        """Count a request that was not answered, also across restarts."""
        self.refusals += 1
        self._save()

    def answer(self, ask: Ask, body: bytes, digest: str) -> bytes:
        """Answer an Ask with this digest. The charge, then the state after it, are on disk before the answer leaves."""
        assert ask.id is not None
        split = self.host.stack.rows[0]
        rows = {"train": len(split.train), "val": len(split.val), "test": len(split.test)}
        columns = len(getattr(self.host.encoding, "features", ()))
        is_first = self.store.begin(ask.id, digest)
        try:
            self._access.permit(
                ask, self.opening.plan, self.account, self.questions, rows=rows["train"], columns=columns, lost=is_first
            )
        except Refusal:
            if is_first:
                self.store.abandon(digest)
            raise
        try:
            values = self._do(ask)
        except UnknownPeers as e:
            raise self._access.reject_peers(ask, e) from None
        self._check_finite(values)
        self._access.check_cells(ask, values)
        self.account.record(ask, {name: [value] for name, value in values.items()})
        self.last = max(self.last, ask.round)
        if spec_of(ask.task).setup:
            name = f"{ask.task} {ask.shared['name']}" if ask.task == LEND else ask.task
            self.store.set_up("".join(c if c.isalnum() or c in "._-" else "_" for c in name), body)
        self.refusals += int(values.get(ERROR) == WITHHELD)
        self._save()
        return encode_answer(Answer(self._me.name, ask.id, self._access.trim(ask, values, rows)), self.layout)

    def _check_finite(self, values: Payload) -> None:
        """Refuse an answer with numbers that are not finite. It stays charged, because the refusal discloses something too."""
        for name, value in values.items():
            array = np.asarray(value)
            if array.dtype.kind == "f" and not may_be_nan(name) and not np.isfinite(array).all():
                _log.warning("report '%s' has numbers that are not finite: it does not leave", name)
                self.count_refusal()
                raise Refusal(NOT_FINITE)

    def _save(self) -> None:
        facts = {"last": self.last, "counted": self._counted, "refusals": self.refusals}
        self.store.save(self.host.arrays(), {**facts, **self.account.facts(), **self.questions.facts()})

    def _do(self, ask: Ask) -> Payload:
        """Let the host answer. A server that resumes asks round 0 again, which reverts no round."""
        if ask.round:
            self._counted = int(ask.shared.get("committed", 0))
        ask = replace(ask, shared={**ask.shared, "committed": self._counted})
        columns = self.host.answer(ask, np.zeros(1, np.int64))
        return {name: column[0] for name, column in columns.items()}


def _split_settings(plan: PlanValues) -> PlanValues:
    """Return the settings that decide the split of rows, without the hash of data that the server added."""
    data = {name: value for name, value in plan["data"].items() if name != "sha256"}
    return {"data": data, **{name: plan[name] for name in ("seed", "split", "tasks")}}


def read_opening(ask: Ask) -> Opening:
    """Read the terms of an Ask `open`."""
    s = ask.shared
    return Opening(
        plan=json.loads(str(s["plan"])),
        role=str(s["role"]),
        task=str(s["task"]),
        largest_weight=float(s["largest_weight"]),
        withheld_splits=tuple(p for p in str(s["untold"]).split(",") if p),
    )


def refuse_other_rows(before: SiteRun | None, opening: Opening) -> None:
    """Refuse a resumed run that splits the rows anew, since a former test row would be trained on."""
    if before is not None and not before.has_same_rows(opening):
        raise Refusal(OTHER_SPLIT)


def build_stack(plan: Plan, rows: Table | ImageSet, *, name: str, role: str, task: str) -> Stack:
    """Build one site's stack of a run: its rows, split into training, validation and test by the plan."""
    data = _check_images(plan.data, rows) if isinstance(rows, ImageSet) else _check_table(plan.data, rows)
    share = plan.split.test if plan.split.scheme == "within" else 0.0
    split = split_site_rows(plan, data, name, np.arange(len(data)), role, test=share, keys=split_keys(plan, data))
    subgroup = plan.evaluation.subgroup
    groups = None if subgroup is None else data.groups(subgroup)
    subgroups, bands = tuple(plan.evaluation.subgroups), plan_bands(plan.evaluation)
    count_words(data, subgroups, bands)  # refuses a column that is not there
    if task:
        data = replace(data, label=_labels(plan, data, task))
    stack = Stack((name,), data, (split,), groups, (task,), by_patient=protects_patients(plan))
    return replace(stack, subgroups=subgroups, bands=bands)


def _add_new_patients(stack: Stack, new: NewPatients | None) -> Stack:
    """Add the new patients that the site names; without them its test rows would be taken for new."""
    if new is None or not isinstance(stack.data, Dataset):
        raise Refusal(NO_NEW_PATIENTS)
    rows = read_new_patients(new.read(), stack.data.schema)
    return replace(stack, new=(rows,), alarms=(read_alarms(new.folder),))


def _check_table(settings: DataSettings, table: Table) -> Dataset:
    if parse_image_shape(settings) is not None:
        raise BadInput(f"{table.source} is a table, but the run needs images", code="other-data-kind")
    return apply_schema(settings, table)


def _check_images(settings: DataSettings, images: ImageSet) -> ImageSet:
    """Check that images have the size, channels and classes of the plan, and masks if it requires them."""
    shape = parse_image_shape(settings)
    labels = None if settings.label is None else settings.levels.plain().get(settings.label)
    if settings.kinds.plain():
        raise BadInput(f"{images.name} contains images, but the run needs a table", code="other-data-kind")
    if shape is not None and images.shape != shape:
        raise BadInput(
            f"images of {images.name} have shape {images.shape}, but {shape} is agreed", code="image-size-mismatch"
        )
    if shape is not None and labels and not set(images.label.tolist()) <= set(labels):
        raise BadInput(f"{images.name} has labels outside the agreed classes", code="unknown-class")
    if settings.masks == AT_SITES and images.masks is None:
        raise BadInput(f"{images.name} has no truth masks, but the consortium agreed on them", code="no-truth-masks")
    return replace(images, masks=stroke_masks(images.pixels)) if settings.masks == STROKES else images


def _labels(plan: Plan, data: Holdings, task: str) -> Any:
    """Map the labels of a site with its own task to the classes of that task."""
    groups: Mapping[str, Sequence[str]] = plan.tasks.plain()[task]["classes"]
    grouped = {old: new for new, olds in groups.items() for old in olds}
    if any(word not in grouped for word in data.label.tolist()):
        raise BadInput(
            f"tasks.{task}.classes does not cover every label of this site: add the missing labels", code="unknown-class"
        )
    return np.array([task_class(task, grouped[word]) for word in data.label.tolist()], object)
