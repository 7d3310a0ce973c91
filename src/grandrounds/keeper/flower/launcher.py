"""`python -m grandrounds.keeper.flower.launcher ...`: the `flower-supernode` command with shorter sleeps.

Flower's SuperNode sleeps 3 s when no message waits and 0.5 s until a reply is ready, and waits a second for a late object.
This launcher rebinds two names in one of its modules, in this process only; Flower's files are not changed. It is off by
default, and refuses versions of flwr whose loop was not reviewed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.protocol.flower_message import require_flower

READ_FOR = ("1.41.0", "1.42.0")
"""Reviewed versions: flwr/supernode/start_client_internal.py is the same file in both."""
SLEEP = "GRANDROUNDS_NODE_SLEEP"
DEFAULT, LEAST, MOST = 0.1, 0.01, 3.0
OFFSET = "GRANDROUNDS_CLOCK_OFFSET"
"""Environment variable with the seconds that the server's clock is ahead of this machine's."""


def command(
    *, superlink: str, authority: Path | None, key: Path | None, port: int, secret: Path, fast: bool = False
) -> list[str]:
    """Build the command that starts a site's SuperNode.

    The node connects to the gateway, identifies itself by its key, listens on loopback only, starts no process and installs
    nothing.

    Args:
        superlink: Address of the gateway.
        authority: Certificate of the server's authority; None together with `key` for plain text on one machine.
        key: The node's private key.
        port: Loopback port of its runtime API.
        secret: File with the runtime secret.
        fast: Shorten its sleeps.

    Returns:
        The command line.
    """
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
    """Return the longest sleep of the SuperNode in seconds, from the environment."""
    text = os.environ.get(SLEEP, str(DEFAULT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not LEAST <= seconds <= MOST:
        raise BadInput(f"{SLEEP} is {text}: give seconds between {LEAST} and {MOST}", code="out-of-range")
    return seconds


def cap_sleeps(cap: float) -> None:
    """Limit the sleeps of the SuperNode's loop, in this process, to `cap` seconds."""
    require_flower(exactly=READ_FOR)
    import flwr.supernode.start_client_internal as node

    loop: Any = node
    loop.time = types.SimpleNamespace(
        sleep=lambda seconds: time.sleep(min(seconds, cap)), time=time.time, monotonic=time.monotonic
    )
    loop.pull_objects = functools.partial(loop.pull_objects, initial_backoff=cap / 2, backoff_cap=1.0)


def correct_clock(seconds: float) -> None:
    """Add `seconds` to the times that the SuperNode signs, in this process; see `keeper.network.clock`."""
    require_flower(exactly=READ_FOR)
    import flwr.supernode.node_auth_http_interceptor as authentication

    module: Any = authentication
    now = module.now
    module.now = lambda: now() + timedelta(seconds=seconds)


def main() -> int:
    """Start the SuperNode with the arguments of this command."""
    try:
        cap_sleeps(longest_sleep())
        if offset := float(os.environ.get(OFFSET, 0.0)):
            correct_clock(offset)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()
    return 0


if __name__ == "__main__":
    sys.exit(main())
