"""`python -m grandrounds.keeper.flower.launcher ...`: the `flower-supernode` command with its sleeps capped.

Flower's SuperNode sleeps 3 s when no message waits and 0.5 s until a reply is there, fixed, and waits a second for an object
that is a moment late. This rebinds two names in one of its modules, in this process; Flower's files stay as they are.
Off by default. It refuses another flwr than the one whose loop was read.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.protocol.flower_message import require_flower

READ_FOR = ("1.41.0", "1.42.0")
"""Versions whose loop was read: flwr/supernode/start_client_internal.py is the same file in both."""
SLEEP = "GRANDROUNDS_NODE_SLEEP"
DEFAULT, LEAST, MOST = 0.1, 0.01, 3.0


def command(
    *, superlink: str, authority: Path | None, key: Path | None, port: int, secret: Path, fast: bool = False
) -> list[str]:
    """How a site's SuperNode is started: it dials the gateway, knows itself by its key, listens on loopback only, starts no
    process and installs nothing. `authority` and `key` are None together: plain text, on one machine."""
    programs = Path(sys.executable).parent
    start = (
        [sys.executable, "-m", "grandrounds.keeper.flower.launcher"] if fast else [str(programs / "flower-supernode")]
    )
    tls = ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]
    return [
        *start,
        *("--superlink", superlink),
        *(["--insecure"] if authority is None else tls),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def longest_sleep() -> float:
    """Seconds that the SuperNode may sleep at most, from the environment."""
    text = os.environ.get(SLEEP, str(DEFAULT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not LEAST <= seconds <= MOST:
        raise BadInput(f"{SLEEP} is {text}: seconds between {LEAST} and {MOST} are needed", code="out-of-range")
    return seconds


def cap_sleeps(cap: float) -> None:
    """Let the SuperNode's loop, in this process, sleep `cap` seconds at most."""
    require_flower(exactly=READ_FOR)
    import flwr.supernode.start_client_internal as node

    loop: Any = node
    loop.time = types.SimpleNamespace(
        sleep=lambda seconds: time.sleep(min(seconds, cap)), time=time.time, monotonic=time.monotonic
    )
    loop.pull_objects = functools.partial(loop.pull_objects, initial_backoff=cap / 2, backoff_cap=1.0)


def main() -> int:
    """Start the SuperNode with the arguments of this command."""
    try:
        cap_sleeps(longest_sleep())
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()
    return 0


if __name__ == "__main__":
    sys.exit(main())
