"""Run one plan at the sites, in its own process: `python -m grandrounds.capabilities.hospital.deploy.run_worker`.

The scheduler sends its task on standard input.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from grandrounds.capabilities.hospital.deploy.counts import FAILED, FILE, FINISHED, ROUND, STARTED, CountEvents
from grandrounds.capabilities.hospital.deploy.plan_encryption import decrypt_plan
from grandrounds.capabilities.hospital.deploy.scheduler import TRY_AGAIN, Task
from grandrounds.capabilities.hospital.deploy.site_plan import PlainPlan, plan_at_sites
from grandrounds.capabilities.hospital.keeper.runtime.worker import end_with_parent
from grandrounds.core.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.core.event_log import LineFile, event_fields, log_event, start_logging
from grandrounds.engine.exchange_log import logger as exchange

REQUESTS = "requests.jsonl"
"""Log of all requests and answers, in the server's folder of logs."""

UNEXPECTED = 70
"""Exit code of an error that is not raised on purpose; the run is started again, from its last committed round."""

CONTINUED = ("ended-by-flower", "sites-away")
"""Codes of errors after which the scheduler resumes the run."""

_log = logging.getLogger("grandrounds.run")

_STOP = threading.Event()
"""Set by SIGTERM: the run ends after its current round, so that no site has answered for a round that does not count."""

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

    from grandrounds.engine.transport import Transport


def main(stream: IO[str] = sys.stdin) -> int:
    """Run one task.

    Args:
        stream: The stream with the task.

    Returns:
        The exit code: 0 done, 1 failed run, 2 bad input, TRY_AGAIN, UNEXPECTED for any other error.
    """
    task = Task(**json.loads(stream.read()))
    _start_logs(task)
    try:
        end_with_parent()  # a run without its scheduler has no heartbeats
        signal.signal(signal.SIGTERM, lambda *_: _STOP.set())
        _run_task(task)
    except GrandRoundsError as e:
        log_event(_log, FAILED, f"error: {e}", level=logging.ERROR, run=task.name, code=e.code)
        return TRY_AGAIN if e.code in CONTINUED else e.exit_code
    except Exception as e:  # a fault of this program or of Flower: the scheduler starts the process again
        sentence = f"the process ended by {type(e).__name__}"
        fields = {"run": task.name, "code": "unexpected-error"}
        _log.error(sentence, exc_info=True, extra=event_fields(FAILED, **fields))
        return UNEXPECTED
    return 0


def _start_logs(task: Task) -> None:
    """Log events to standard error, and every request to a file beside; count both for the server's page."""
    server = Path(task.server)
    start_logging("text" if task.log_format == "text" else "json")
    logging.getLogger().handlers[0].addFilter(lambda line: line.name != exchange.name or line.levelno > logging.INFO)
    events = logging.getLogger("grandrounds")
    events.addHandler(LineFile(server / "logs" / REQUESTS))
    events.addHandler(CountEvents(server / "state" / FILE))


def _run_task(task: Task) -> None:
    try:
        plan = json.loads(decrypt_plan(task.plan, Path(task.server), run=task.name))
    except ValueError:
        plan = None
    if not isinstance(plan, dict):
        raise BadInput("the run has no plan: submit it with `rounds server submit`", code="missing-plan")
    from grandrounds.engine.parts import PartsTransport
    from grandrounds.engine.transport import FlowerTransport

    server = Path(task.server)
    grid = open_grid(task)
    try:
        transport = PartsTransport(FlowerTransport(grid), folder=server / "state")
        _run_at_sites(plan, server / "runs" / task.name, transport, server, task.resume)
    finally:
        grid.close()


def _run_at_sites(plan: PlainPlan, folder: Path, transport: Transport, server: Path, resume: bool) -> None:
    """Run at the current sites; a run that was begun continues only with `resume`."""
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.withdraw import begin_repetition, finish_repetition
    from grandrounds.capabilities.hospital.deployment import Deployment
    from grandrounds.protocol.identity import load_public
    from grandrounds.runs.folder import RunFolder
    from grandrounds.runs.runner import execute_plan

    folders, run = Folders(server.parent), RunFolder(folder)
    begun = (run.checkpoint / "plan.json").exists()
    if run.summary.exists():
        finish_repetition(server, run, folders.identity())
        return
    if begun and not resume:
        raise BadInput(
            f"run {folder.name} was begun before: continue it with `rounds server submit --resume {folder.name}`",
            code="run-already-begun",
        )
    if not begun and not plan:
        raise BadInput(
            f"run {folder.name} has not begun, so it cannot be resumed: submit it again", code="run-not-begun"
        )
    if not folders.members():
        raise BadInput("no site takes part in the consortium yet: approve their requests to join first", code="not-joined")
    if not begun:
        run.create()
        begin_repetition(server, run)
    keys = {name: load_public(folders.site_key(name)) for name in folders.members()}
    if begun:
        check_keys(folder, folders.identity().public, keys)
    spool = server / "state" / "spool" / folder.name
    venue = Deployment(transport, folders.identity(), keys, folder.name, spool=spool, checkpoint=run.checkpoint)
    full_plan = load_started_plan(run.checkpoint) if begun else plan_at_sites(plan, folders.consortium().data)
    execute_plan(full_plan, run, resume=begun, venue=venue, progress=_log_progress(folder.name))
    finish_repetition(server, run, folders.identity())


def check_keys(folder: Path, server: bytes, sites: Mapping[str, bytes]) -> None:
    """Check that no key has changed since the run's ledger was opened: signatures of a new key would not verify there.

    Raises:
        BadInput: The server or a site has another key.
    """
    from grandrounds.audit.book import read_keys
    from grandrounds.audit.ledger import ledger_at

    if not (folder / "ledger.db").exists():
        return
    with ledger_at(folder) as ledger:
        first = next(iter(ledger.entries()), None)
    if first is None:
        return
    server_before, sites_before = read_keys(first)
    changed = [name for name, key in sites.items() if sites_before.get(name, key) != key]
    who = ", ".join((["the server"] if server_before != server else []) + changed)
    if who:
        raise BadInput(
            f"run {folder.name} was begun with other keys of {who}, so its ledger cannot continue: submit a new run",
            code="other-keys",
        )


def load_started_plan(checkpoint: Path) -> PlainPlan:
    """Load the plan with which a run was begun, as its sites received it; the digest of [data] was added at its start."""
    from grandrounds.engine.checkpoint import Checkpoint

    plan = Checkpoint(checkpoint).plan()
    return {**plan, "data": {**plan["data"], "sha256": None}}


def _log_progress(run: str) -> Callable[[Mapping[str, Any]], None]:
    """Return the function that logs the start, each round and the end of a run."""

    def log(event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            log_event(_log, STARTED, run=run, round=event["done"], rounds=event["rounds"], sites=event["training"])
        elif event["event"] == "round":
            seconds, missing = round(float(event["seconds"]), 3), dict(event["missing"])
            log_event(
                _log, ROUND, f"round {event['round']}", run=run, round=event["round"], seconds=seconds, missing=len(missing)
            )
            if _STOP.is_set():
                raise RunFailed(
                    f"the run was stopped after round {event['round']}: continue it with `rounds server submit --resume {run}`",
                    code="run-stopped",
                )
        elif event["event"] == "done":
            log_event(_log, FINISHED, "done", run=run)

    return log


def open_grid(task: Task) -> HttpGrid:
    """Open Flower's grid for a run with its token."""
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    from grandrounds.engine.transport import limit_retries

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, task.run_id, SUPERLINK_NODE_ID
    grid = HttpGrid(
        task.address,
        insecure=task.authority is None,
        root_certificates=Path(task.authority).read_bytes() if task.authority is not None else None,
        token=task.token,
    )
    grid.set_run(Run.create_empty(task.run_id))
    return limit_retries(grid)


if __name__ == "__main__":
    sys.exit(main())
