"""Small consortia for tests, made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.encoding import Encoding, EncodingRules, agree_ranges, make_encoding
from grandrounds.data.schema import infer_schema
from grandrounds.data.split import Rows
from grandrounds.data.summary import Moments, Summary
from grandrounds.data.table import Table
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Round, Server
from grandrounds.methods.exchanges import agree_on_encoding, prepare_sites
from grandrounds.methods.veil.site import VeilSite
from grandrounds.models import model_spec
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.site.plugin import SitePlugin
from grandrounds.site.stack import Stack
from grandrounds_studies.results import Results
from grandrounds_studies.running import conduct_study
from grandrounds_studies.study import Arm, Study, merged
from grandrounds_studies.written import write_results


def patients(sizes: list[int], *, classes: int = 2, seed: int = 0, gaps: float = 0.05) -> Table:
    """A table of patients at sites a, b, c ...: three measurements, a category, a label that follows from them."""
    rng = generator(seed, purpose="patients")
    n = sum(sizes)
    age, lactate, pressure = rng.normal(60, 12, n), rng.lognormal(0.5, 0.6, n), rng.normal(75, 15, n)
    ward = rng.choice(["medical", "surgical", "cardiac"], n)
    score = 0.04 * (age - 60) + 0.9 * (lactate - 1.9) - 0.03 * (pressure - 75) + 0.5 * (ward == "cardiac")
    noisy = score + rng.logistic(size=n)
    cuts = np.quantile(noisy, np.arange(1, classes) / classes)
    label = np.searchsorted(cuts, noisy).astype(float)
    for column in (age, lactate, pressure):
        column[rng.random(n) < gaps] = np.nan
    site = np.repeat([chr(ord("a") + k % 26) + (str(k // 26) if k >= 26 else "") for k in range(len(sizes))], sizes)
    columns = {"age": age, "lactate": lactate, "pressure": pressure, "ward": ward, "hospital": site, "died": label}
    return Table.from_mapping(columns, source="patients.csv")


def without_ledger(run: Path) -> Path:
    """The folder of a run whose ledger is taken away, so that a test may write its files anew."""
    for name in ("ledger.db", "ledger.head.json"):
        (run / name).unlink()
    return run


def dataset(table: Table) -> Dataset:
    schema = infer_schema(table, label="died", site="hospital")
    return build_dataset(table, schema, name="patients")


def stack(sizes: list[int], *, classes: int = 2, seed: int = 0) -> Stack:
    """Sites with all rows but two of each in training, one in validation, one in test."""
    data = dataset(patients(sizes, classes=classes, seed=seed))
    edges = np.cumsum([0, *sizes])
    rows = tuple(
        Rows(train=np.arange(a, b - 2), val=np.arange(b - 2, b - 1), test=np.arange(b - 1, b))
        for a, b in pairwise(edges)
    )
    names = tuple(dict.fromkeys(data.site.tolist()))
    return Stack(names, data, rows)


def agreed(parts: Sequence[Dataset], **rules) -> tuple[Encoding, Summary, Moments]:
    """The encoding that sites with these rows agree on, and their merged summaries, as they travel."""
    total = Summary.merge([Summary.from_payload(Summary.from_dataset(part).to_payload()) for part in parts])
    low, high = agree_ranges(total, clip=EncodingRules(**rules).clip)
    moments = Moments.merge(
        [Moments.from_payload(Moments.from_dataset(part, low, high).to_payload()) for part in parts]
    )
    names = {"numeric": parts[0].numeric_names, "categorical": parts[0].categorical_names}
    return make_encoding(total, moments, **names, rules=EncodingRules(**rules)), total, moments


def ready(
    held: Stack, *, model: str = "logistic", hidden: tuple[int, ...] = (5,), **settings
) -> tuple[LocalEngine, Encoding]:
    """An engine whose sites have prepared their data."""
    engine = LocalEngine(held, EngineSettings(run="test", seed=0, plugins=all_site_plugins(), **settings))
    encoding, _ = engine.drive(
        agree_on_encoding(
            numeric=held.data.numeric_names,
            categorical=held.data.categorical_names,
            rules=EncodingRules(),
            sites=held.names,
        ),
        round=0,
    )
    options = {**Experiment().model.model_dump(), "name": model, "hidden": hidden, "trees": 5, "depth": 4}
    spec = model_spec(Settings(options), inputs=encoding.inputs, classes=len(encoding.classes))
    spec["keeps"] = "none"
    engine.drive(prepare_sites(encoding, spec), round=0)
    return engine, encoding


def all_site_plugins() -> tuple[type[SitePlugin], ...]:
    """The site halves of all methods, regularizers and rules of weighting, and of personal parts; a run builds only its own."""
    from grandrounds.capabilities.personal.training import TrainedParts
    from grandrounds.methods import METHODS, REGULARIZERS
    from grandrounds.methods.guard.site import PersonalSite
    from grandrounds.methods.weigh import RULE_CLASSES

    kinds = [kind for table in (REGULARIZERS, METHODS, RULE_CLASSES) for kind in table.values()]
    return tuple(dict.fromkeys([*(plugin for kind in kinds for plugin in kind.site), TrainedParts, PersonalSite]))


def sections(method: dict | None = None, **train) -> tuple[Settings, Settings]:
    """[method] and [train] of an experiment: nine rounds, small batches, and what is given."""
    values = {
        "method": {"rounds": 9, "mu": 0.3, **(method or {})},
        "train": {"epochs": 2, "batch": 8, "lr": 0.1, **train},
    }
    plan = Experiment.parse(values).model_dump(mode="json")
    return Settings(plan["method"]), Settings(plan["train"])


def played(work: Round, answer: Callable[[Ask], Answers]) -> tuple[Outcome, list[Ask]]:
    """A method's round in which `answer` stands for all sites: what came of it, and what was asked."""
    asked: list[Ask] = []
    reply = None
    while True:
        try:
            asked.append(work.send(reply))
        except StopIteration as end:
            return end.value, asked
        reply = answer(asked[-1])


def rounds(engine, *, count=3, theta=None, start=0, method=None, state=None, reference=None, **train):
    """Drive a method for some rounds; the last outcome's model and the decisions. `state` is a dict to carry on in."""
    made = build_method(*sections(method, **train))
    theta = engine.hosts[0].model.init(0) if theta is None else theta
    held = {} if state is None else state
    counts = {name: int(h.stack.parts["train"].counts[k]) for h in engine.hosts for k, name in enumerate(h.stack.names)}
    decisions = []
    for r in range(start + 1, start + count + 1):
        server = Server(r, theta, engine.sites, 0, held.get("state", {}), rows=counts, assignment=held.get("served"))
        outcome = engine.drive(made.round(replace(server, reference=reference)), round=r)
        engine.commit()
        theta, held["served"], held["state"] = outcome.model, outcome.assignment, outcome.state
        decisions.append(outcome.decision.recorded(asked=tuple(engine.asked), missing=dict(engine.missing)))
    return theta, decisions


@contextmanager
def refused(
    code: str, *, match: str | None = None, kind: type[GrandRoundsError] = BadInput
) -> Iterator[pytest.ExceptionInfo[GrandRoundsError]]:
    """Expect an error of a code; sentences may be reworded. `match`: a value that the sentence must name."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code!r}: {caught.value}"


def averaging_methods() -> dict[str, type]:
    """Methods that train and average models; those that add sums or counts have tests of their own (tests/methods)."""
    from grandrounds.capabilities.quality.method.server import Quality
    from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
    from grandrounds.capabilities.statistics.methods.private_gam import PrivateGAM
    from grandrounds.capabilities.watch.method.server import Watch
    from grandrounds.methods import METHODS

    counting = ExactMethod | PrivateGAM | Watch | Quality
    return {name: method for name, method in METHODS.items() if not issubclass(method, counting)}


def slow(*values: object) -> Any:
    """A case that only `make test-slow` runs: others of its test show the same in less time."""
    return pytest.param(*values, marks=pytest.mark.slow)


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Cases of which `make test` runs every so many, from the first, and `make test-slow` the others."""
    return [
        case if k % every == 0 else slow(*case) if isinstance(case, tuple) else slow(case)
        for k, case in enumerate(cases)
    ]


def on_few_pictures(study: Study, *arms: Arm, out: Path) -> Results:
    """One seed of a study's quick version, of these arms, at sites of 100 pictures; the way to its report is the same."""
    small = study.small()
    few = {"split": {"partition": "grandrounds_studies.xfed.cost:a_few", "official": False}}
    points = tuple(replace(p, settings=merged(p.settings, few)) for p in small.points)
    found = conduct_study(replace(small, points=points, arms=arms), out, seeds=1, jobs=1, quick=True)
    write_results(found, out)
    return found


def bright_squares(path: Path, n: int, sites: Sequence[str], *, purpose: str) -> Path:
    """An .npz file of n pictures of 16 x 16: bright squares on the left or on the right; sites take turns."""
    rng = generator(0, purpose=purpose)
    y = rng.integers(0, 2, n)
    x = rng.integers(0, 90, (n, 16, 16, 1))
    for i in range(n):
        c = 2 if y[i] == 0 else 9
        x[i, 5:11, c : c + 5] += 140
    site = np.array(list(sites))[np.arange(n) % len(sites)]
    np.savez(path, images=x.astype(np.uint8), labels=np.array(["benign", "malignant"])[y], site=site)
    return path


def veil_sites(names: Sequence[str], rows: Stack, secret: Callable[[str], Any]) -> VeilSite:
    """VEIL's half at sites of these names, which hold these prepared rows, without a host around it."""
    site = SimpleNamespace(stack=rows, secret=secret, names_of=lambda members: [names[k] for k in members.tolist()])
    return VeilSite(site)
