"""Withdrawal of a site: repeat a finished run without it, and close the earlier run.

By default everything starts again without the site: its rows are in no summary, no scale, no reference set and no round. The
model has the same bits as that of a run that never had the site. Both ledgers refer to each other, and say which model is
valid.
"""

from __future__ import annotations

import copy
import datetime
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named, slug
from grandrounds.core.packages import NEEDED_PACKAGES, is_installed
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.core.sources import AT_SITES, DATA_FRAME
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.experiment.checks.participation import there
from grandrounds.experiment.checks.secure_aggregation import FEWEST
from grandrounds.methods import is_exact
from grandrounds.methods.baselines import POOL
from grandrounds.methods.sums import FEWEST_SITES
from grandrounds.runs.context import Progress
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.kept_setup import (
    can_subtract,
    check_kept_setup,
    describe_remains,
    describe_subtraction,
    forget_sums,
    start_from_checkpoint,
    start_from_sums,
)
from grandrounds.runs.ledger import SERVER
from grandrounds.runs.run import Run, as_rows
from grandrounds.runs.runner import execute_plan
from grandrounds.runs.withdrawal import (
    AGAIN,
    KEPT,
    SUBTRACTED,
    OtherRun,
    Repetition,
    Withdrawn,
    read_mark,
    read_withdrawn,
    write_mark,
)

if TYPE_CHECKING:
    from grandrounds.protocol.identity import Identity


@dataclass(frozen=True)
class Withdrawal:
    """A withdrawal that was carried out.

    Attributes:
        earlier: The run from which the site withdrew; its model is not valid any more.
        run: The run that replaces it.
        facts: How the run was repeated, and what of the site remains.
        mark: The entry of the earlier run's ledger.
    """

    earlier: Run
    run: Run
    facts: Repetition
    mark: Withdrawn

    @property
    def site(self) -> str:
        """The site that withdrew."""
        return self.facts.site

    def privacy_sentence(self) -> str | None:
        """State the epsilon of both runs together; None where the earlier run gave no guarantee."""
        both = self.run.summary["withdrawal"].get("both")
        if both is None or self.facts.privacy is None:
            return None
        now = float(both["epsilon"]) - float(self.facts.privacy["epsilon"])
        return (
            f"the repetition is charged to the sites that are left: epsilon {now:.3g} for each {both['unit']}, "
            f"{both['epsilon']:.3g} with the earlier run (delta {both['delta']:.3g}), whose releases cannot be undone"
        )

    def cost(self) -> dict[str, dict[str, float]]:
        """Compare rounds, bytes and seconds of the repetition with those of the earlier run."""
        now = cost_of(self.run)
        if self.facts.from_round > 1:  # rounds before are those of the earlier run
            before = [r for r in self.run.rounds if r["round"] < self.facts.from_round]
            spent = [r["decision"]["cost"] for r in before]
            now = {
                "rounds": now["rounds"] - len(before),
                "bytes": now["bytes"] - sum(c["bytes_down"] + c["bytes_up"] for c in spent),
                "seconds": now["seconds"] - sum(c["seconds"] for c in spent),
            }
        return {"repetition": now, "earlier run": dict(self.facts.cost)}


def withdraw(
    run: Run,
    site: str | int,
    *,
    keep_setup: bool = False,
    out: Path | None = None,
    table: Any = None,
    progress: Progress = lambda event: None,
) -> Withdrawal:
    """Repeat a simulated run without a site, and close the earlier run. An interrupted withdrawal is continued.

    Args:
        run: A finished run.
        site: The site's name, or the number that its name ends with.
        keep_setup: Go on from the checkpoint before the site counted first, with the set-up statistics that it took part in.
        out: The folder of the repeated run; None: RUN-without-SITE.
        table: The rows again, where the run was made from a data frame.
        progress: Called with each event of the repeated run.

    Returns:
        The withdrawal.

    Raises:
        BadInput: The site cannot be withdrawn, or the run cannot be repeated.
        RunFailed: The repetition stopped; the same command continues it.
    """
    name = check_withdrawal(run, site)
    if run.plan["data"]["table"] == AT_SITES:
        raise BadInput(
            f"{run.folder} was run at hospitals: withdraw {name} with `rounds withdraw` on the server's host",
            code="rows-at-sites",
        )
    if run.plan["data"]["table"] == DATA_FRAME and table is None:
        raise BadInput(
            f"{run.folder} was made from a {DATA_FRAME} in Python: withdraw {name} there, with "
            "grandrounds.withdraw(run, site, table=frame)",
            code="data-frame-needed",
        )
    run.refuse_code()
    earlier = Checkpoint(run.folder / "checkpoint")
    earlier.lock()
    try:
        facts = describe_repetition(run, name)
        if keep_setup:
            check_kept_setup(run, name, facts.first_round)
            assert facts.first_round is not None
            remains = (*facts.remains, *describe_remains(Plan(run.plan), name, facts.first_round))
            facts = replace(facts, setup=KEPT, from_round=facts.first_round, remains=remains)
        elif can_subtract(run, name):
            facts = replace(facts, setup=SUBTRACTED, remains=describe_subtraction())
        folder = RunFolder(out or repetition_folder(run.folder, name))
        _repeat(run, folder, facts, table=as_rows(table), progress=progress)
        repeated = Run(folder.path, trust_code=run.trust_code)
        mark = close_earlier(run, repeated, facts, **_simulated_keys(run, repeated))
        forget_sums(run)
    finally:
        earlier.unlock()
    return Withdrawal(run, repeated, facts, mark)


def repetition_folder(folder: Path, site: str) -> Path:
    """Return the folder of the run that repeats another without a site."""
    named = folder if folder.name else folder.resolve()  # "." has no name
    return named.with_name(f"{named.name}-without-{slug(site) or 'site'}")


def check_withdrawal(run: Run, site: str | int) -> str:
    """Check that a site can be withdrawn from a run.

    Args:
        run: The run.
        site: The site's name, or the number that its name ends with.

    Returns:
        The site's name.

    Raises:
        BadInput: The run is not finished, in use or withdrawn already; the site is unknown or never took part; or too few
            sites are left.
    """
    if Checkpoint(run.folder / "checkpoint").is_locked():
        raise BadInput(
            f"{run.folder} is being run by another process: wait for it, or stop it first", code="run-in-use"
        )
    if not run.finished:
        raise BadInput(
            f"{run.folder} is not finished, so it has no model to withdraw a site from: `rounds resume {run.folder}` first",
            code="run-not-finished",
        )
    mark = read_withdrawn(run.folder)
    if mark is not None:
        if read_mark(run.folder) is None:  # the ledger is the source of truth
            write_mark(run.folder, mark)
        raise BadInput(
            f"{run.folder} is withdrawn already: {mark.sentence}; withdraw further sites from that run",
            code="withdrawn-run",
        )
    trained = {s: rows["train"] for s, rows in run.summary["rows"].items() if s != POOL}
    if POOL in run.summary["rows"]:  # all training rows are in one place
        trained = dict.fromkeys(trained, 1)
    name = site_named(site, list(trained), where=run.folder)
    if not trained[name] or (_first_round(run, name) is None and not _counted_in_setup(run, name)):
        raise BadInput(
            f"{name} never took part in {run.folder}: it is in no round and no set-up statistic, so there is nothing to withdraw",
            code="never-took-part",
        )
    _refuse_too_few(Plan(run.plan), name, [s for s, n in trained.items() if n and s != name])
    return name


def _refuse_too_few(plan: Plan, site: str, left: Sequence[str]) -> None:
    needs = {1: "a run needs", plan.engine.min_sites: "engine.min_sites is"}
    if plan.privacy.secure:
        needs[FEWEST] = "secure aggregation needs"
    if is_exact(plan.method.name):
        needs[FEWEST_SITES] = f"method '{plan.method.name}' needs"
    fewest = max(needs)
    if len(left) < fewest:
        raise BadInput(
            f"without {site} {len(left)} training site{'s' * (len(left) != 1)} would be left, and {needs[fewest]} {fewest}: use "
            "another method for the sites that are left",
            code="too-few-sites",
        )


def _first_round(run: Run, site: str) -> int | None:
    """Return the first round in which a site's answer counted; None where there is none."""
    counted = (
        r["round"] for r in run.rounds if site in r["decision"]["asked"] and site not in r["decision"]["missing"]
    )
    return next(counted, None)


def _counted_in_setup(run: Run, site: str) -> bool:
    """Check that a training site was there when the sites agreed on their encoding."""
    return run.plan["data"]["encoding"] != "public" and site in there(Plan(run.plan), [site], 1)


def cost_of(run: Run) -> dict[str, float]:
    """Return the rounds, bytes and seconds of a run."""
    cost = run.summary["cost"]
    return {
        "rounds": run.summary["rounds"],
        "bytes": cost["bytes_down"] + cost["bytes_up"],
        "seconds": cost["seconds"],
    }


def describe_repetition(run: Run, site: str) -> Repetition:
    """Collect the facts about a run that is about to be repeated without a site, from its first round on."""
    promised = run.summary["privacy"]
    epsilon = promised.get("epsilon")
    privacy = None
    if epsilon is not None:
        privacy = {"epsilon": epsilon, "delta": promised.get("delta") or 0.0, "unit": promised.get("unit") or "patient"}
    return Repetition(
        site=site,
        repeats=describe_run(run),
        setup=AGAIN,
        first_round=_first_round(run, site),
        from_round=1,
        remains=_initial_weights(run, site),
        cost=cost_of(run),
        privacy=privacy,
    )


def _initial_weights(run: Run, site: str) -> tuple[str, ...]:
    """State that a model started from given weights, which are kept; nothing where it started from random ones."""
    weights = run.plan["model"].get("weights")
    if not weights:
        return ()
    return (f"the run starts from {weights} again: if {site} took part in training it, its influence remains there",)


def describe_run(run: Run) -> OtherRun:
    """Name a finished run by the head of its ledger and the hash of its model; a run without a ledger by its folder."""
    if not (run.folder / "ledger.db").exists() or not all(map(is_installed, NEEDED_PACKAGES)):
        return OtherRun(str(run.summary["name"]), run.folder.resolve().name, 0, "", "")
    from grandrounds.audit.entry import CLOSE

    with run.ledger as ledger:
        findings = ledger.verify()
        if findings:
            raise BadInput(
                f"the ledger of {run.folder} does not verify: {findings[0]}; `rounds audit verify {run.folder}` lists all",
                code="ledger-does-not-verify",
            )
        last, tree = ledger.last() or {}, ledger.tree()
    if last.get("kind") != CLOSE:
        raise BadInput(
            f"the ledger of {run.folder} has no closing entry: `rounds resume {run.folder}` completes it",
            code="run-not-finished",
        )
    return OtherRun(str(last["run"]), run.folder.resolve().name, len(tree), tree.root().hex(), str(last["model"]))


def leave_out(values: Mapping[str, Any], site: str, *, keep_setup: bool = False) -> PlanValues:
    """Return a plan without a site, in which no setting names it.

    Args:
        values: The plan of the earlier run.
        site: The site.
        keep_setup: The set-up statistics of the earlier run are kept.

    Raises:
        BadInput: The plan cannot be run without the site.
    """
    plan: dict[str, Any] = copy.deepcopy(dict(values))
    split, engine = plan["split"], plan["engine"]
    split["without"] = [*split.get("without", []), site]
    split["keep_setup"] = keep_setup
    faults, shift = engine.get("faults", {}), plan["data"].get("shift", {})
    for section, key in ((split, "holdout"), (faults, "nan"), (shift, "clean"), *((t, "sites") for t in plan["tasks"].values())):
        if site in section.get(key, ()):
            section[key] = [s for s in section[key] if s != site]
    for section, key in ((engine, "absences"), (faults, "slow")):
        if site in section.get(key, {}):
            section[key] = {s: value for s, value in section[key].items() if s != site}
    if split["scheme"] == "holdout" and not split["holdout"]:
        raise BadInput(
            f"{site} is the only site that split.holdout names: without it there is nothing to test on", code="no-test-sites"
        )
    plan["attacks"] = _attacks_without(plan["attacks"], site)
    return plan


def _attacks_without(attacks: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, Any]]:
    """Take a site out of simulated attacks; an attack of this site alone is left out."""
    named = [{**attack, "sites": [s for s in attack["sites"] if s != site]} for attack in attacks]
    return [new for new, old in zip(named, attacks, strict=True) if new["sites"] or not old["sites"]]


def _repeat(run: Run, folder: RunFolder, facts: Repetition, *, table: Any, progress: Progress) -> None:
    """Run the plan without the site; continue a withdrawal that was interrupted."""
    plan = leave_out(run.plan, facts.site, keep_setup=facts.setup != AGAIN)
    if not _begun(folder, facts):
        folder.create()
        facts.write(folder.checkpoint)
        if facts.setup == AGAIN:
            execute_plan(plan, folder, progress=progress, table=table)
            return
        try:
            if facts.setup == KEPT:
                start_from_checkpoint(run, folder, facts.site, facts.from_round)
            else:
                start_from_sums(run, folder, facts.site)
        except BadInput:
            shutil.rmtree(folder.path)
            raise
        finally:
            folder.release()
    if not folder.summary.exists():
        plan = plan if facts.setup != AGAIN else Checkpoint(folder.checkpoint).plan()
        execute_plan(plan, folder, progress=progress, table=table, resume=True)


def _begun(folder: RunFolder, facts: Repetition) -> bool:
    """Check whether an earlier call has begun this repetition; what it left before the first plan is removed."""
    begun = Repetition.read(folder.checkpoint) if folder.checkpoint.is_dir() else None
    if begun is None:
        return False
    if begun != facts:
        raise BadInput(
            f"{folder.path} is the repetition of another run: remove it, or choose another --out", code="folder-in-use"
        )
    checkpoint = Checkpoint(folder.checkpoint)
    if checkpoint.state_file.exists() or (facts.setup == AGAIN and checkpoint.plan_file.exists()):
        return True
    shutil.rmtree(folder.path)
    return False


def _simulated_keys(run: Run, repeated: Run) -> dict[str, Any]:
    """Return the keys of a simulation that sign the withdrawal: the server's, and those of the sites that are left."""
    if not all(map(is_installed, NEEDED_PACKAGES)):
        return {"identity": None, "witnesses": {}}
    from grandrounds.protocol.identity import Identity

    seed = int(run.plan["seed"])
    sites = {site: Identity.simulated(seed, site) for site in repeated.summary["rows"]}
    return {"identity": Identity.simulated(seed, SERVER), "witnesses": sites}


def close_earlier(
    run: Run, repeated: Run, facts: Repetition, *, identity: Identity | None, witnesses: Mapping[str, Identity]
) -> Withdrawn:
    """Sign the withdrawal in the ledger of the earlier run, and mark its folder.

    Args:
        run: The earlier run.
        repeated: The finished run that replaces it.
        facts: How it was repeated.
        identity: The server's key; None where the run has no ledger.
        witnesses: Keys of sites that countersign, in a simulation.

    Returns:
        The withdrawal.
    """
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    mark = Withdrawn(facts.site, date, describe_run(repeated))
    if (run.folder / "ledger.db").exists() and identity is not None:
        from grandrounds.audit.book import read_keys
        from grandrounds.audit.entry import withdrawal_entry
        from grandrounds.audit.ledger import Ledger

        with Ledger.open(run.folder / "ledger.db", identity=identity) as ledger:
            known = read_keys(next(ledger.entries()))[1]
            entry = withdrawal_entry(facts.repeats.run, site=mark.site, date=date, valid=mark.to_dict()["valid"])
            head = ledger.append(facts.repeats.run, entry)
            signers = {s: key for s, key in witnesses.items() if s in known and s in head.head.witnesses(list(known))}
            head = replace(head, witnesses={s: head.head.countersign(key) for s, key in signers.items()})
            ledger.add_countersignatures(head)
        write_atomic(run.folder / "ledger.head.json", head.to_bytes())
    write_mark(run.folder, mark)
    return mark
