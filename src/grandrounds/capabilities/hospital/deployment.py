"""Deployed runs: hospitals hold the rows, and the server sees only their answers to its messages.

The server knows the consortium's schema: columns and their kinds, without rows. Reference rows are the server's own, from a
file without patients of the hospitals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.audit.entry import OWN
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.outcome import COUNT, REGRESSION
from grandrounds.core.plan_types import Plan
from grandrounds.core.plugins import is_path
from grandrounds.core.sources import AT_SITES
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.dataset import Dataset
from grandrounds.data.design import check_products
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import agreed_task, check_known_sites
from grandrounds.data.reference_sets import Reference, load_reference_images, read_reference_table
from grandrounds.data.schema import Column, Schema
from grandrounds.data.split import Rows, assign_roles
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.engine.dispatcher import Timeouts
from grandrounds.engine.driver import Engine
from grandrounds.engine.remote import RemoteEngine
from grandrounds.engine.setup import Setup
from grandrounds.engine.transport import Transport
from grandrounds.methods import is_variant_of
from grandrounds.methods.baselines import POOLED
from grandrounds.models import IMAGES, TABLES
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.identity import Identity, Signers
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.runs.federation import Consortium
from grandrounds.runs.setup import engine_settings
from grandrounds.runs.withdrawal import Repetition
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import tasks_of


@dataclass
class Deployment:
    """Sites behind a transport.

    Attributes:
        transport: Carries messages to sites and back.
        identity: The server's key.
        keys: Public key of each site.
        run: A name that no other run of the consortium has.
        checkpoint: The checkpoint of the run, which stores the answers of sites to the set-up. Without it a run can resume
            only with all sites.
    """

    transport: Transport
    identity: Identity
    keys: Mapping[str, bytes]
    run: str
    spool: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    checkpoint: Path | None = None
    simulated: bool = False
    _engine: RemoteEngine | None = None

    def __post_init__(self) -> None:
        """Restrict a resumed run to the sites that it was started with: its ledger names them."""
        self._setup = self._held()
        if self._setup.sites:
            self.keys = {site: key for site, key in self.keys.items() if site in self._setup.sites}

    def assemble(self, plan: Plan) -> Consortium:
        """Return the sites, and a schema without rows."""
        refuse_unfit(plan)
        without = tuple(plan.split.without)
        repetition = None if self.checkpoint is None else Repetition.read(self.checkpoint)
        if not self._setup.sites and repetition is None:  # a site that withdrew may have left the consortium, too
            check_known_sites(without, self.keys)
        self.keys = {site: key for site, key in self.keys.items() if site not in without}
        names = tuple(self.keys)
        data = empty(plan)
        task = tasks_of(plan.tasks.plain(), names)
        nothing = np.empty(0, np.int64)
        none = Rows(nothing, nothing, nothing)
        stack = Stack(names, data, tuple(none for _ in names), tasks=tuple(task.values()))
        role = _roles(plan, names)
        training = tuple(s for s in names if role[s] != "test")
        reference = {name: _reference(plan, name, settings, data) for name, settings in plan.reference.plain().items()}
        settings = json.dumps(plan.plain()["data"], sort_keys=True)
        return Consortium(data, stack, training, reference, hashlib.sha256(settings.encode()).hexdigest())

    def engine(self, plan: Plan, consortium: Consortium) -> Engine:
        """Return an engine whose sites have opened the run.

        A new run needs all sites. A run with finished rounds continues without a missing site, which is asked again in every
        round and takes part as soon as it opens the run.
        """
        names = consortium.stack.names
        settings = engine_settings(plan, names, run=self.run)
        engine = RemoteEngine(
            settings,
            transport=self.transport,
            identity=self.identity,
            keys=self.keys,
            spool=self.spool,
            timeouts=self.timeouts,
            setup=self._setup,
        )
        missing = [site for site in self._setup.sites if site not in self.keys]
        engine.notes += [f"{site} has left the consortium since the run started" for site in missing]
        payload: dict[str, Value] = {"plan": json.dumps(plan.plain()), "untold": ",".join(settings.withheld_splits)}
        payload["largest_weight"] = settings.largest_weight
        tasks = dict(zip(names, consortium.stack.tasks, strict=True))
        each = {s: {"role": r, "task": tasks[s]} for s, r in _roles(plan, names).items()}
        engine.drive(_open(payload, each), round=0)
        away = engine.setup.incomplete
        if len(away) == len(names):
            who = "; ".join(f"{site}: {why}" for site, why in sorted(away.items()))
            raise RunFailed(f"{len(away)} of {len(names)} sites did not open the run ({who})", code="sites-away")
        self._engine = engine
        return engine

    def _held(self) -> Setup:
        """Return the answers of sites to the set-up, where the run has finished rounds."""
        if self.checkpoint is None:
            return Setup()
        return Setup(self.checkpoint / "setup.safetensors", resumed=Checkpoint(self.checkpoint).state_file.exists())

    def signers(self, plan: Plan, sites: Sequence[str]) -> Signers:
        return Signers(self.identity, {site: self.keys[site] for site in sites}, OWN)

    def secret(self, plan: Plan) -> Secret | None:
        return Secret.own()

    def close(self) -> None:
        """Tell sites that the run is over. All results are on disk, so a site may miss this message."""
        if self._engine is not None:
            with suppress(RunFailed):
                self._engine.drive(_close(), round=self._engine.round)


def empty(plan: Plan) -> Holdings:
    """Return the consortium's columns without rows; for images their agreed shape, without images.

    A model's inputs and classes follow from the sites' summaries. Where no site is asked (data.encoding = "public"), and for
    images of the server's own, the shape is the agreed one.
    """
    d = plan.data
    none = np.empty(0, object)
    shape = parse_image_shape(d)
    if shape is not None or plan.model.name in IMAGES:
        _refuse_other_model(plan, shape)
        channels, height, width = shape or (1, 1, 1)
        patient = None if d.patient is None else none
        return ImageSet(AT_SITES, np.empty((0, height, width, channels), np.uint8), none, patient=patient)
    columns = tuple(_column(n, kind if not d.features or n in d.features else "drop") for n, kind in d.kinds.plain().items())
    if d.label is None:
        raise BadInput("data.label names no column: set it to the column that hospitals predict", code="label-not-set")
    task, duration = agreed_task(d), d.duration
    schema = Schema(columns, d.label, None, d.patient, d.time, task, duration)
    check_products(d.products, schema)
    held: dict[str, Any] = {c.name: none for c in columns} | {d.label: none}
    return Dataset(
        name=AT_SITES,
        schema=schema,
        table=Table(held, AT_SITES),
        numeric=np.empty((0, len(schema.numeric_like))),
        codes=np.empty((0, len(schema.categorical)), np.int32),
        vocabulary=tuple(() for _ in schema.categorical),
        label=none,
        site=None,
        patient=None if d.patient is None else none,
        time=None if d.time is None else np.empty(0),
        outcome=np.empty(0) if task in (REGRESSION, COUNT) else None,
        duration=None if duration is None else np.empty(0),
    )


def _refuse_other_model(plan: Plan, shape: tuple[int, int, int] | None) -> None:
    """Raise where the model does not fit the sites' kind of data, or the size of images is not agreed."""
    name = plan.model.name
    if shape is not None and name in TABLES:
        raise BadInput(
            f"model.name is '{name}', which is for tables, and the sites have images: use {', '.join(IMAGES)}",
            code="model-does-not-fit",
        )
    if shape is None and plan.data.kinds.plain():
        raise BadInput(
            f"model.name is '{name}', which is for images, and the sites have tables: use {', '.join(TABLES)}",
            code="model-does-not-fit",
        )
    if shape is None and plan.data.encoding == "public":
        raise BadInput(
            "data.encoding = 'public' asks no site, so the size of images must be agreed on: see [data]",
            code="no-image-size",
        )


def _column(name: str, kind: Any) -> Column:
    if isinstance(kind, str):
        return Column(name, kind, "as the consortium agreed")  # type: ignore[arg-type]
    return Column(name, "ordinal", "as the consortium agreed", tuple(kind))


def _roles(plan: Plan, names: tuple[str, ...]) -> dict[str, str]:
    s = plan.split
    site_roles = assign_roles(names, scheme=s.scheme, seed=plan.seed, fold=s.fold, folds=s.folds, holdout=tuple(s.holdout))
    return dict(site_roles)


def _reference(plan: Plan, name: str, settings: Mapping[str, Any], data: Holdings) -> Reference:
    """Return reference rows of the server's own: a file, or published images."""
    if not settings.get("source"):
        raise BadInput(
            f"reference.{name} would be taken from hospitals' rows, which the server does not have: "
            f"set reference.{name}.source to a table (or .npz file of images) of the server's own",
            code="no-reference-rows",
        )
    if isinstance(data, ImageSet):
        reference = load_reference_images(name, settings["source"])
        shape = parse_image_shape(plan.data)
        assert isinstance(reference.images, ImageSet)
        if shape is not None and reference.images.shape != shape:
            raise BadInput(
                f"reference.{name}.source '{settings['source']}' has images of another size than the sites agreed on",
                code="image-size-mismatch",
            )
        return reference
    return read_reference_table(name, plan, data.schema)


def _open(payload: Mapping[str, Any], each: Mapping[str, Mapping[str, Any]]) -> Generator[Ask, Answers, None]:
    """Have sites open a run."""
    yield Ask("open", shared=payload, each=each)


def _close() -> Generator[Ask, Answers, None]:
    yield Ask("close")


def refuse_unfit(plan: Plan) -> None:
    """Refuse an experiment that cannot run at hospitals."""
    for reason in _reasons(plan):
        raise BadInput(reason, code="not-for-hospitals")


def _reasons(plan: Plan) -> Iterator[str]:
    """List the reasons why an experiment cannot run at hospitals."""
    d, e = plan.data, plan.engine
    if d.table != AT_SITES:
        yield f"data.table must be '{AT_SITES}': a run at hospitals reads no table at the server"
    named = [("model.name", plan.model.name), ("method.name", plan.method.name)]
    named += [("evaluation.metrics", name) for name in plan.evaluation.metrics]
    own_code = next((key for key, name in named if is_path(name)), None)
    if own_code is not None:
        yield f"{own_code} names your own code, which neither the server nor a site runs for a submitted experiment: leave it out"
        return
    if is_variant_of(plan.method.name, POOLED):
        yield f"method '{plan.method.name}' pools the rows of all sites, which hospitals do not allow: use another method"
    if plan.plain()["attacks"]:
        yield "[[attacks]] are for simulations: leave them out"
    if d.shift.strength or d.shortcut.p:
        yield "data.shift and data.shortcut change images of a simulation: leave them out"
    if e.faults.drop or e.faults.nan or e.faults.slow.plain() or e.speed_spread:
        yield "engine.faults and engine.speed_spread are for simulations: leave them out"
    if e.absences.plain():
        yield "engine.absences is for simulations: a real site that is away is missing from the round"
