"""`python -m grandrounds.keeper.child FOLDER --data TABLE`: the process that works with a site's data.

It answers letters that come in on standard input, one at a time. The warden that started it stops it where it takes too
long; what the site remembers is on disk, so the next one goes on from there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from grandrounds.core.errors import GrandRoundsError
from grandrounds.keeper.folder import SiteFolder
from grandrounds.keeper.frames import read_frame, write_frame
from grandrounds.keeper.parent import end_with_parent

READY = b"ready"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 the warden is gone, 1 failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m grandrounds.keeper.child")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--query")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    end_with_parent()  # nobody would stop it if it hung
    letters = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that a library prints gets among the letters
    try:
        keeper = SiteFolder(args.folder).keeper(args.data, query=args.query, device=args.device)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        return e.exit_code
    write_frame(letters, READY)
    while (letter := read_frame(sys.stdin.buffer)) is not None:
        write_frame(letters, keeper.handle(letter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
