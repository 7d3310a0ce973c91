"""`rounds` for tests: in this process, because starting one takes longer than most commands; or in one of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from grandrounds.cli import main


def rounds(*arguments, cwd: Path | str = ".", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess:
    """The command from its entry point, with these variables on top: exit code, standard output, standard error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["rounds", *map(str, arguments)])
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        code = _ended()
    return subprocess.CompletedProcess(sys.argv, code, *(s.buffer.getvalue().decode() for s in (out, err)))


def _ended() -> int:
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def rounds_in_a_process(*arguments, cwd=None, env=None) -> subprocess.CompletedProcess:
    """The command as a user's shell starts it; `env` is all that it is given."""
    command = [sys.executable, "-c", "from grandrounds.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
