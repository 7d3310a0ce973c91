"""Schedule runs: take submitted runs from the SuperLink and run them one by one, each in its own process.

It replaces Flower's SuperExec and ServerApp processes. It takes only settings from a run, never code: whoever can submit
runs can start experiments and nothing else. If a process dies, it is started again as a new Flower run that continues from
the run folder's checkpoint; so is a run that Flower ended and no operator stopped. It is a new Flower run because half-sent
messages keep SuperNodes waiting for up to three minutes in the old one, and are dropped when that one ends.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.capabilities.hospital.deploy.control import FINISHED, OPERATOR_STOPPED, PENDING, Control, FlowerRun
from grandrounds.capabilities.hospital.deploy.processes import end
from grandrounds.capabilities.hospital.deploy.records import DONE, FAILED, QUEUED, RUNNING, STOPPED, RunRecords
from grandrounds.capabilities.hospital.deploy.superlink import Link, flower_environment
from grandrounds.capabilities.hospital.keeper.flower.node import ACQUIRE, runtime_secret
from grandrounds.core.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from flwr.supercore.runtime import RuntimeHttpClient


BEAT = 3.0
"""Seconds between heartbeats of a running run."""

LOOK = 1.0
"""Seconds between two questions for a submitted run while none is running."""

STARTS = 10
"""Starts of a run that ended without a result and without an error of its own, after which the run is abandoned. Regular exits
(codes 0 to 3) are final.
"""

TRY_AGAIN = 75
"""Exit code of a run that may continue: the SuperLink ended it, or no site was there when it was resumed."""

ROUND = 40.0
"""Seconds that a stopping server waits for the end of the current round."""

FINAL = (0, 1, 2, 3)
WORKER = (sys.executable, "-m", "grandrounds.capabilities.hospital.deploy.run_worker")


@dataclass(frozen=True)
class Task:
    """Task of a run's process, sent on its standard input: the token is never on a command line."""

    address: str
    authority: str | None
    token: str
    run_id: int
    task_id: int
    server: str
    name: str
    plan: str
    resume: bool
    log_format: str = "json"


class RunScheduler:
    """Scheduler that runs one run at a time. The server calls `tick` repeatedly."""

    def __init__(self, link: Link, *, command: Sequence[str] = WORKER) -> None:
        self._link, self._command = link, command
        self._records = RunRecords(link.state / "runs")
        self._task: Task | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_heartbeat = 0.0
        self._last_look = float("-inf")
        self._runtime_client = open_client(link, secret=link.secret)
        self._task_client: RuntimeHttpClient | None = None

    @property
    def current_run(self) -> str:
        """Name of the running run; "" if there is none."""
        return self._task.name if self._task is not None else ""

    def tick(self) -> None:
        """Take a run if none is running, else check the running one. An unreachable SuperLink is asked again next time.

        Raises:
            BadInput: The SuperLink refuses the secret.
        """
        import httpx

        try:
            if self._task is None:
                if time.monotonic() - self._last_look > LOOK:
                    self._last_look = time.monotonic()
                    self._take_run()
            elif self._process is not None and self._process.poll() is not None:
                self._handle_exit(self._process.returncode)
            elif time.monotonic() - self._last_heartbeat > BEAT and not self._send_heartbeat():
                self._give_up()
        except httpx.HTTPStatusError as e:
            if e.response.status_code == 401 and self._task is None:
                raise BadInput(
                    f"the SuperLink refuses {self._link.secret}: start both with the same file", code="server-refuses"
                ) from None
            if e.response.status_code in (401, 403):
                self._give_up()
        except (httpx.TransportError, ValueError, RunFailed):
            pass

    def resume_interrupted(self) -> list[str]:
        """Resume runs that a server had taken or started when it was killed. Call it once, before the first `tick`.

        A run that still waits at the SuperLink is left there. One that had not begun is started with its submitted plan.

        Returns:
            Their names.
        """
        taken = [record for record in self._records.all() if record.get("state") in (RUNNING, QUEUED)]
        if not taken:
            return []
        names = []
        with Control.local(self._link) as control:
            listed = control.runs()
            for record in taken:
                flower_runs = [run for run in listed if run.name == record["run"]]
                if record["state"] == QUEUED and any(run.status == PENDING for run in flower_runs):
                    continue
                for run in flower_runs:
                    if not run.status.startswith(FINISHED):
                        with contextlib.suppress(RunFailed):  # Flower may have ended it meanwhile
                            control.stop(run.id)
                flower = control.start({"run": record["run"], "plan": _submitted_plan(flower_runs), "resume": True})
                self._records.update(record["run"], state=QUEUED, flower=flower)
                names.append(record["run"])
        return names

    def close(self) -> None:
        """Stop the running process, after its current round if that ends in time; its run can be resumed."""
        if self._process is not None:
            end(self._process, grace=ROUND)
        if self._task is not None:
            self._records.update(self._task.name, state=STOPPED)
        self._runtime_client.close()

    def _take_run(self) -> None:
        taken = take_task(self._runtime_client, self._link)
        if taken is None:
            return
        self._task, self._task_client = taken
        self._last_heartbeat = time.monotonic()
        try:
            self._records.update(self._task.name, state=RUNNING, flower=self._task.run_id)
        except BadInput:
            self._finish(2)  # an invalid name: submitted without our command
        else:
            self._start()

    def _start(self) -> None:
        assert self._task is not None
        log = self._link.logs / f"run-{self._task.name}.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=flower_environment(self._link.state / "flower-run"),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as into:
            into.write(json.dumps(asdict(self._task)).encode())

    def _handle_exit(self, code: int) -> None:
        assert self._task is not None
        task = self._task
        stopped = code == TRY_AGAIN and self._was_stopped(task.run_id)
        again = code not in FINAL and not stopped and self._count_start(task.name)
        state = RUNNING if again else DONE if code == 0 else STOPPED if stopped else FAILED
        self._finish(code, state=state)
        if again:
            self._submit_again(task)
        else:
            self._record_ending(task.name, code, stopped=stopped)

    def _count_start(self, name: str) -> bool:
        """Count a start that ended without a result; return whether the run may be started again."""
        starts = int((self._records.get(name) or {}).get("starts", 0)) + 1
        self._records.update(name, starts=starts)
        return starts < STARTS

    def _was_stopped(self, run_id: int) -> bool:
        """Return whether an operator stopped a Flower run."""
        with Control.local(self._link) as control:
            return any(run.id == run_id and run.status == OPERATOR_STOPPED for run in control.runs())

    def _submit_again(self, task: Task) -> None:
        from grandrounds.runs.ending import clear_ending

        with contextlib.suppress(OSError):
            clear_ending(self._link.runs / task.name)
        with Control.local(self._link) as control:
            flower = control.start({"run": task.name, "plan": task.plan, "resume": True})
        self._records.update(task.name, state=QUEUED, flower=flower)

    def _send_heartbeat(self) -> bool:
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        assert self._task_client is not None
        alive = bool(self._task_client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        self._last_heartbeat = time.monotonic()
        return alive

    def _finish(self, code: int, *, state: str = FAILED) -> None:
        """Report the end of the run to Flower, and record the exit code. A run that is started again stays running."""
        import httpx
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        assert self._task is not None and self._task_client is not None
        status = SubStatus.COMPLETED if code == 0 else SubStatus.FAILED
        name = self._task.name
        self._task, self._process = None, None
        if name:
            self._records.update(name, exit=code, **({} if state == RUNNING else {"state": state}))
        try:
            with contextlib.suppress(httpx.HTTPStatusError):  # Flower may have ended it meanwhile
                self._task_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=f"exit {code}"))
        finally:
            self._task_client.close()

    def _give_up(self) -> None:
        """End the process of a run that Flower ended. One that no operator stopped is submitted again.

        Flower ends a run whose heartbeats it misses: the SuperLink was unreachable for too long, or its clock jumped.

        Raises:
            RunFailed: The SuperLink cannot be asked; the next `tick` tries again.
        """
        assert self._task is not None
        task = self._task
        if self._process is not None:
            end(self._process)
            self._process = None
        stopped = self._was_stopped(task.run_id)
        again = not stopped and self._count_start(task.name)
        self._records.update(task.name, state=RUNNING if again else STOPPED)
        if again:
            self._submit_again(task)
        else:
            self._record_ending(task.name, TRY_AGAIN, stopped=stopped)
        self._task = None

    def _record_ending(self, name: str, code: int, *, stopped: bool) -> None:
        """Record in the run folder why a run ended for good, unless its own process has recorded an error.

        Args:
            name: The run.
            code: The exit code of its process.
            stopped: An operator stopped it.
        """
        if not name or code == 0:
            return
        from grandrounds.core.ending import FAILED as RUN_FAILED
        from grandrounds.core.ending import STOPPED as RUN_STOPPED
        from grandrounds.core.ending import Ending
        from grandrounds.engine.checkpoint import Checkpoint
        from grandrounds.runs.ending import finished_rounds, read_ending, record_ending

        folder = self._link.runs / name
        done = finished_rounds(Checkpoint(folder / "checkpoint"))
        if stopped:
            ending = Ending(RUN_STOPPED, "stopped-by-operator", "An operator stopped it (rounds server stop-run).", "", done)
        elif read_ending(folder) is None:
            sentence = f"Its process ended with exit code {code} and recorded no error."
            ending = Ending(RUN_FAILED, "process-ended", sentence, f"See logs/run-{name}.log at the server.", done)
        else:
            return
        record_ending(folder, ending)


def _submitted_plan(flower_runs: Sequence[FlowerRun]) -> str:
    """Return the plan that a run was submitted with, which it needs if it has not begun; "{}" if Flower lost it."""
    return next((run.plan for run in flower_runs if run.plan not in ("", "{}")), "{}")


def take_task(runtime_client: RuntimeHttpClient, link: Link) -> tuple[Task, RuntimeHttpClient] | None:
    """Take the next waiting run from the SuperLink, with a client for it. Its app is not opened."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
    from flwr.supercore.constant import TaskType

    taken = runtime_client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    if not taken.token:
        return None
    task_client = open_client(link, token=taken.token)
    task_input = task_client.PullTaskInput(PullTaskInputRequest())
    config = task_input.run.override_config
    task = Task(
        address=link.address,
        authority=str(link.authority) if link.authority is not None else None,
        token=taken.token,
        run_id=task_input.run.run_id,
        task_id=task_input.task_id,
        server=str(link.folder),
        name=config["run"].string,
        plan=config["plan"].string,
        resume=config["resume"].bool,
        log_format=link.log_format,
    )
    return task, task_client


def open_client(link: Link, *, secret: Path | None = None, token: str = "") -> RuntimeHttpClient:
    """Open a client of the SuperLink's runtime routes: with the secret it may take runs, with a token act for one."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptor: Any = RuntimeTokenHttpInterceptor(token) if token else None
    if secret is not None:
        interceptor = SuperExecAuthHttpInterceptor(
            master_secret=runtime_secret(secret), protected_methods=frozenset({ACQUIRE})
        )
    return RuntimeHttpClient.from_server_address(
        server_address=link.address,
        insecure=link.insecure,
        root_certificates=link.authority.read_bytes() if link.authority is not None else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"), interceptor],
    )
