"""A server in the background: started, waited for, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.deploy.serving import READY, serving_process
from grandrounds.deploy.superlink import Link

PATIENCE = 120.0


def start_in_background(link: Link, health: int) -> None:
    """Start `rounds server start --foreground` and wait until it takes runs."""
    link.prepare()
    if (found := serving_process(link)) is not None:
        raise BadInput(
            f"the server of {link.folder} is running already (process {found}): `rounds server stop` ends it"
        )
    (link.state / READY).unlink(missing_ok=True)
    flag = ["--health", str(health), *(["--insecure-loopback"] if link.insecure else [])]
    flag += ["--in-memory"] if link.in_memory else []
    log = link.logs / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "rounds"), "server", "start", str(link.folder), "--foreground", *flag],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end = time.monotonic() + PATIENCE
    while not (link.state / READY).exists():
        if process.poll() is not None:
            raise RunFailed(f"the server ended at once: {_last_line(log)}")
        if time.monotonic() > end:
            os.kill(process.pid, signal.SIGTERM)
            raise RunFailed(f"the SuperLink did not answer within {PATIENCE:.0f} s: see {link.logs / 'superlink.log'}")
        time.sleep(0.1)


def stop_in_background(link: Link) -> None:
    """End the server of a folder, and wait until it has."""
    process = serving_process(link)
    if process is None:
        raise BadInput(f"no server of {link.folder} is running")
    os.kill(process, signal.SIGTERM)
    end = time.monotonic() + 60.0
    while serving_process(link) is not None:
        if time.monotonic() > end:
            raise RunFailed(f"the server (process {process}) does not stop: see {link.logs / 'server.log'}")
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
