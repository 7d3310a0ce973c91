"""How a run begins: the engine, the sites' summaries, the encoding they agree on, and their prepared rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grandrounds.consortium import Consortium
from grandrounds.data.encoding import EncodingRules
from grandrounds.data.kinds import AnyEncoding, encoding_from
from grandrounds.engine.checkpoint import Snapshot
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.errors import BadInput
from grandrounds.methods.exchanges import agree, prepare
from grandrounds.models import model_spec
from grandrounds.settings import Settings


@dataclass(frozen=True)
class Opening:
    """What stands before the first round."""

    engine: LocalEngine
    encoding: AnyEncoding
    spec: dict[str, Any]  # the model, as sites were told to build it
    rows: dict[str, dict[str, int]]  # by site: train, val, test
    notes: dict[str, list[str]]  # by site: what had to be made up
    warnings: tuple[str, ...]


def open_run(plan: Settings, consortium: Consortium, snapshot: Snapshot | None) -> Opening:
    """Round 0: summaries to the server, the encoding back, rows prepared. A resumed run takes the encoding it had."""
    engine = LocalEngine(consortium.stack, engine_settings(plan, consortium.stack.names))
    warnings: tuple[str, ...]
    if snapshot is None:
        d = plan.data
        work = agree(
            numeric=getattr(consortium.data, "numeric_names", ()),
            categorical=getattr(consortium.data, "categorical_names", ()),
            rules=EncodingRules(d.scale, d.impute, d.clip, d.max_categories, d.positive),
            to=consortium.training,
        )
        encoding, warnings = engine.drive(work, round=0)
    else:
        encoding, warnings = encoding_from(snapshot.facts["encoding"]), tuple(snapshot.facts["warnings"])
    spec = model_spec(plan.model, inputs=encoding.inputs, classes=len(encoding.classes))
    spec["tasks"] = list(plan.tasks.plain())
    rows, notes = engine.drive(prepare(encoding, spec), round=0)
    if snapshot is not None:
        engine.restore(snapshot.part("sites"), dict(snapshot.facts["engine"]))
        engine.meter.read()  # preparing again was counted the first time
    return Opening(engine, encoding, spec, rows, notes, warnings)


def engine_settings(plan: Settings, sites: tuple[str, ...]) -> EngineSettings:
    """The plan's [engine] section; faults that name no site are refused."""
    e = plan.engine
    unknown = sorted((set(e.faults.nan) | set(e.faults.slow.plain())) - set(sites))
    if unknown:
        raise BadInput(f"engine.faults names '{unknown[0]}', which is no site; sites are: {', '.join(sites)}")
    return EngineSettings(
        run=f"{plan.name}-{plan.seed}",
        seed=plan.seed,
        wire=e.wire,
        kernel=e.kernel,
        device=e.device,
        precision=e.precision,
        chunk=e.chunk,
        min_sites=e.min_sites,
        deadline=e.deadline,
        faults=Faults(e.faults.drop, tuple(e.faults.nan), e.faults.slow.plain()),
    )
