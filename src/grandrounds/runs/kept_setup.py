"""Go on from the checkpoint before the round in which a site counted first, without the site and with the old set-up.

The states of the other sites, the model and the optimiser of the server are those of the checkpoint. So the model has the same
bits as that of a run in which the site left at that round.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core import plugins
from grandrounds.core.arrays import Array, read_file, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.sources import AT_SITES
from grandrounds.data.kinds import encoding_from
from grandrounds.engine.checkpoint import Checkpoint, Snapshot
from grandrounds.experiment.checks.participation import there
from grandrounds.methods import method_class
from grandrounds.methods.dp import CLIENT
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.sums import SUMS
from grandrounds.runs.folder import PERCENTILES, RunFolder
from grandrounds.runs.run import Run

_SERVER_STATE = ("m", "v", "velocity")
"""State of a method that is of all sites together: moments of the server's optimiser."""

_LEAVE_OUT = "withdraw it without --keep-setup, which repeats the run from round 1"


def check_kept_setup(run: Run, site: str, first: int | None) -> None:
    """Check that a run can go on from the checkpoint before a site counted.

    Args:
        run: The earlier run.
        site: The site.
        first: The round in which it counted first; None where it never did.

    Raises:
        BadInput: It cannot; the sentence says why.
    """
    plan = Plan(run.plan)
    for reason in _reasons(plan, site, first):
        raise BadInput(f"--keep-setup: {reason}; {_LEAVE_OUT}", code="cannot-keep-setup")
    assert first is not None
    file = Checkpoint(run.folder / "checkpoint").file_before(first)
    if not file.exists():
        raise BadInput(
            f"--keep-setup: {file} is missing, the state before round {first}, in which {site} counted first; a run with "
            f"a larger engine.keep_states stores it; {_LEAVE_OUT}",
            code="no-checkpoint",
        )


def _reasons(plan: Plan, site: str, first: int | None) -> Iterator[str]:
    name = plan.method.name
    if plan.data.table == AT_SITES:
        yield "hospitals keep their own state, which cannot be set back"
    if first is None:
        yield f"{site} counted in no round, only in the set-up, which would be kept"
    elif first == 1:
        yield f"{site} counted from round 1 on, so there is no round to keep"
    if plugins.is_path(name) or method_class(name).round is not FedAvg.round:
        yield f"method '{name}' has no round without a site that can be compared; averaging methods have"
    if plan.privacy.mechanism == CLIENT:
        yield "privacy.mechanism 'client' needs the same sites in every round"


def describe_remains(plan: Plan, site: str, first: int) -> tuple[str, ...]:
    """Return sentences on the influence of a site that remains where the set-up is kept."""
    out = []
    if plan.data.encoding != "public" and site in there(plan, [site], 1):
        out.append(
            f"{site} took part in the set-up statistics, which are kept: scales, fill-in values, categories and percentiles"
        )
    drawn = [name for name, settings in plan.reference.plain().items() if not settings.get("source")]
    if drawn:
        out.append(f"reference rows are kept and may contain rows of {site}: {', '.join(drawn)}")
    out.append(f"scores of rounds 1 to {first - 1} in the record include test and validation rows of {site}")
    if plan.train.early_stop:
        out.append(f"train.early_stop compared rounds by validation rows of {site}, too")
    return tuple(out)


def start_from_checkpoint(run: Run, folder: RunFolder, site: str, first: int) -> None:
    """Write the checkpoint of the repeated run: that of the earlier run before a round, without a site.

    Args:
        run: The earlier run.
        folder: The new folder, which is empty but for its checkpoint folder.
        site: The site that withdrew.
        first: The round in which it counted first.

    Raises:
        BadInput: The checkpoint holds a state of the site that cannot be taken out.
    """
    earlier, new = Checkpoint(run.folder / "checkpoint"), Checkpoint(folder.checkpoint)
    snapshot = earlier.read_before(first)
    sites = list(run.summary["rows"])
    arrays = without_site(snapshot, sites, sites.index(site), wire=bool(run.plan["engine"]["wire"]))
    engine = dict(snapshot.facts["engine"])
    engine["accepted"] = {s: r for s, r in engine.get("accepted", {}).items() if s != site}
    if plugins.is_stamped(run.folder, run.plan):
        plugins.stamp(folder.path, run.plan)
    if (run.folder / PERCENTILES).is_file():
        shutil.copyfile(run.folder / PERCENTILES, folder.path / PERCENTILES)
    new.start(run.plan)
    write_atomic(new.journal, read_file(earlier.journal)[: snapshot.journal])
    new.write_state(arrays, {**snapshot.facts, "engine": engine})


def without_site(snapshot: Snapshot, sites: Sequence[str], place: int, *, wire: bool) -> dict[str, Array]:
    """Return the arrays of a checkpoint without those of one site.

    Args:
        snapshot: The checkpoint.
        sites: All sites, in the engine's order.
        place: The place of the site.
        wire: Each site has a host of its own.

    Raises:
        BadInput: An array holds a state of sites in a form that is not known here.
    """
    return dict(_without(snapshot.arrays, len(sites), place, wire=wire))


def _without(arrays: Mapping[str, Array], count: int, place: int, *, wire: bool) -> Iterator[tuple[str, Array]]:
    for name, value in arrays.items():
        kind, _, rest = name.partition("/")
        if kind in ("served", "best") and rest == "of":
            raise _unknown("sites have different models")
        if kind == "method" and rest not in _SERVER_STATE:
            raise _unknown(f"the method keeps '{rest}' of its sites")
        if kind != "sites":
            yield name, value
            continue
        host, _, state = rest.partition("/")
        if state.startswith("witness/"):
            continue  # heads of the earlier ledger; the new one has its own
        if state != "rounds" and not state.startswith("value/"):
            raise _unknown(f"sites keep '{state}'")
        if not wire:
            yield name, _drop(value, count, place)
        elif int(host) != place:
            yield f"sites/{int(host) - (int(host) > place)}/{state}", value


def _drop(value: Array, count: int, place: int) -> Array:
    """Leave one site out of an array (3, K, ...)."""
    if value.ndim < 2 or value.shape[1] != count:
        raise _unknown("the states of sites have another shape")
    return np.delete(value, place, axis=1)


def _unknown(what: Any) -> BadInput:
    return BadInput(
        f"--keep-setup: {what}, from which one site cannot be taken out; {_LEAVE_OUT}", code="cannot-keep-setup"
    )


def can_subtract(run: Run, site: str) -> bool:
    """Check that the fit over the other sites follows from stored sums, equal to a fit with an encoding agreed without the site.

    Args:
        run: The earlier run.
        site: The site that withdraws.
    """
    snapshot = Checkpoint(run.folder / "checkpoint").read()
    return snapshot is not None and _sums_without(run, snapshot, site) is not None


def _sums_without(run: Run, snapshot: Snapshot, site: str) -> Mapping[str, Array] | None:
    """Return the stored sums of a run without those of a site, as entries of the method's state; None for most runs."""
    if not _has_sums(snapshot):
        return None
    plan, encoding = Plan(run.plan), encoding_from(snapshot.facts["encoding"])
    return method_class(plan.method.name).sums_without(plan, snapshot.part("method"), encoding, site)


def _has_sums(snapshot: Snapshot) -> bool:
    return any(name.startswith(f"method/{SUMS}") for name in snapshot.arrays)


def describe_subtraction() -> tuple[str, ...]:
    """Return the sentence on what remains of a site whose sums were subtracted."""
    return (
        "centre and scale of inputs are those of all sites; predictions and coefficients in original units do not depend on them",
    )


def start_from_sums(run: Run, folder: RunFolder, site: str) -> None:
    """Write the checkpoint before round 1 of a fit that asks nobody: the sums of the sites that are left.

    Args:
        run: The earlier run, for which `can_subtract` is true.
        folder: The new folder, which is empty but for its checkpoint folder.
        site: The site that withdrew.
    """
    earlier, new = Checkpoint(run.folder / "checkpoint"), Checkpoint(folder.checkpoint)
    snapshot = earlier.read()
    assert snapshot is not None
    sums = _sums_without(run, snapshot, site)
    assert sums is not None
    sites = list(run.summary["rows"])
    other = {n: a for n, a in snapshot.arrays.items() if n.startswith("sites/")}
    states = dict(_without(other, len(sites), sites.index(site), wire=bool(run.plan["engine"]["wire"])))
    arrays = {"served/model": np.zeros_like(snapshot.arrays["served/model"]), **states}
    arrays |= {f"method/{name}": value for name, value in sums.items()}
    new.start(run.plan)
    facts = {"schema": snapshot.facts["schema"], "journal": 0, "encoding": snapshot.facts["encoding"], "warnings": []}
    facts |= {"round": 0, "best_round": 0, "best_loss": None, "seconds": 0.0, "cost": {}, "stopped": "", "clock": 0.0}
    new.write_state(arrays, {**facts, "engine": {"clock": 0.0, "accepted": {}, "sent": 0, "flights": []}})


def forget_sums(run: Run) -> None:
    """Remove stored sums by site from the checkpoint of a closed run: with them the site's could be read."""
    checkpoint = Checkpoint(run.folder / "checkpoint")
    snapshot = checkpoint.read()
    if snapshot is not None and _has_sums(snapshot):
        rest = {n: a for n, a in snapshot.arrays.items() if not n.startswith(f"method/{SUMS}")}
        checkpoint.write_state(rest, snapshot.facts)
