"""Withdrawal of a hospital from a run of the consortium: submit the repeated run, and close the earlier one when it is done.

The facts about the earlier run wait in the server's state folder until the repeated run begins. The process of the repeated run
signs the withdrawal with the server's key, after its last file is written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from grandrounds.capabilities.hospital.deploy.control import Control
from grandrounds.capabilities.hospital.deploy.plan_encryption import encrypt_plan
from grandrounds.capabilities.hospital.deploy.records import check_run_name
from grandrounds.capabilities.hospital.deploy.submit import known_runs, start_run
from grandrounds.capabilities.hospital.deploy.superlink import Link
from grandrounds.capabilities.hospital.deployment import refuse_unfit
from grandrounds.core.errors import BadInput
from grandrounds.core.names import slug
from grandrounds.core.plan_types import Plan
from grandrounds.protocol.identity import Identity
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.run import Run
from grandrounds.runs.withdraw import check_withdrawal, close_earlier, describe_repetition, leave_out
from grandrounds.runs.withdrawal import FACTS, Repetition, read_withdrawn


def submit_withdrawal(control: Control, link: Link, run: Run, site: str | int) -> tuple[str, str, int]:
    """Submit a run of the consortium again, without a site.

    Args:
        control: A connection to the SuperLink.
        link: The server's folder.
        run: The finished run, in the server's folder of runs.
        site: The site that withdraws.

    Returns:
        The site's name, the name of the repeated run, and Flower's id.

    Raises:
        BadInput: The site cannot be withdrawn, the run is of another server, or the repeated run was submitted before.
    """
    name = check_withdrawal(run, site)
    if run.folder.resolve().parent != link.runs.resolve():
        raise BadInput(
            f"{run.folder} is no run of the server in {link.folder}: give a folder below {link.runs}", code="other-run"
        )
    repeated = check_run_name(f"{run.folder.name}-without-{slug(name) or 'site'}")
    if repeated in known_runs(control, link):
        raise BadInput(
            f"run {repeated} was submitted before: see `rounds server status`; `rounds server submit --resume {repeated}` "
            "continues it",
            code="run-exists",
        )
    plan = leave_out(run.plan, name)
    refuse_unfit(Plan(plan))
    sealed = encrypt_plan(json.dumps(plan), link.folder, run=repeated)
    describe_repetition(run, name).write(waiting_folder(link.folder, repeated))
    return name, repeated, start_run(control, link, run=repeated, plan=sealed, resume=False)


def waiting_folder(server: Path, run: str) -> Path:
    """Return the folder with the facts of a repeated run that was submitted; it is made if missing."""
    folder = server / "state" / "withdrawals" / check_run_name(run)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def begin_repetition(server: Path, run: RunFolder) -> None:
    """Put the facts of a withdrawal into the checkpoint of the run that repeats the earlier one; nothing for other runs."""
    facts = server / "state" / "withdrawals" / run.path.name / FACTS
    if facts.is_file():
        shutil.copyfile(facts, run.checkpoint / FACTS)


def finish_repetition(server: Path, run: RunFolder, identity: Identity) -> None:
    """Close the earlier run of a finished repetition; nothing for other runs, and where it is closed already.

    Args:
        server: The server's folder.
        run: The finished run.
        identity: The server's key.
    """
    facts = Repetition.read(run.checkpoint)
    if facts is None:
        return
    earlier = server / "runs" / Path(facts.repeats.folder).name
    if read_withdrawn(earlier) is None:
        close_earlier(Run(earlier, trust_code=None), Run(run.path, trust_code=None), facts, identity=identity, witnesses={})
    shutil.rmtree(server / "state" / "withdrawals" / run.path.name, ignore_errors=True)
