"""`python -m grandrounds.job PLAN.json --out RUN`: run a resolved plan with NumPy alone.

For machines without pydantic or a command line: `rounds plan` writes the plan (and with
`--with-data` the table beside it), this runs it, and the run folder is carried back. A folder
with an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grandrounds.core import plugins
from grandrounds.core.errors import BadInput, GrandRoundsError
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.runs.facts import adopt_facts
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.runner import execute_plan


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed run, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m grandrounds.job", description="Run a resolved plan.")
    parser.add_argument("plan", type=Path, help="PLAN.json, as `rounds plan` writes it")
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    args = parser.parse_args(arguments)
    try:
        _run(args.plan, RunFolder(args.out), quiet=args.quiet)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    except ImportError as e:  # forests and cohorts take scikit-learn, nets torch
        print(f"error: {args.plan} needs more than NumPy: {e}", file=sys.stderr)
        return BadInput.exit_code
    return 0


def _run(path: Path, folder: RunFolder, *, quiet: bool) -> None:
    plan = _read(path)
    plugins.allow(plan)
    exists = (folder.checkpoint / "plan.json").exists()
    if folder.summary.exists():
        return
    if exists:
        begun = Checkpoint(folder.checkpoint).plan()
        plan = adopt_facts(plan, begun)
        if "code" in begun:
            plan = {**plan, "code": begun["code"]}
            plugins.allow(plan)  # now by the hashes of the modules that it was begun with
    else:
        folder.create()
    execute_plan(plan, folder, progress=lambda event: None if quiet else _print(event), resume=exists)


def _read(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text())
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None
    except ValueError:
        raise BadInput(f"{path} is not JSON; write it with `rounds plan`", code="not-json") from None
    if not isinstance(plan, dict) or not {"data", "method", "train"} <= set(plan):
        raise BadInput(f"{path} is not a resolved plan; write it with `rounds plan`", code="not-a-plan")
    table = plan["data"]["table"]
    if table is not None and "://" not in table and not Path(table).is_absolute():
        plan["data"]["table"] = str((path.parent / table).resolve())
    return plan


def _print(event: Mapping[str, Any]) -> None:
    if event["event"] == "round" and "test" in event:
        print(
            f"round {event['round']}: log loss {event['test']['log_loss']:.4f}, accuracy {event['test']['accuracy']:.4f}"
        )
    elif event["event"] == "done":
        print(f"done: {event['folder']}")


if __name__ == "__main__":
    sys.exit(main())
