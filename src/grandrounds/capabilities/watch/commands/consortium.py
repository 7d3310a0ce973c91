"""`rounds watch RUN --simulate` and `--plan`: watch a model across hospitals."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def simulate(
    run: Run,
    *,
    table: str | None = None,
    shifts: Sequence[str] = (),
    secure: bool = False,
    epsilon: float | None = None,
    level: float = 0.01,
    alarms: bool = False,
    out: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Watch a model across the sites of a simulation, and print the features that moved.

    Args:
        run: A finished run.
        table: New patients of all sites; None: the test rows of each site.
        shifts: Changes to plant into them.
        secure: Use secure aggregation.
        epsilon: Privacy budget of the watch.
        level: Chance that a site without a change reports one.
        alarms: Alarms of sites' own watches decide what moved.
        out: The folder of the watch.
        as_json: Print JSON and nothing else.
        quiet: Print the folder and nothing else.

    Raises:
        BadInput: The run cannot be watched, or an option does not fit it.
        RunFailed: The watch stopped.
    """
    from grandrounds.capabilities.watch.api.watching import watch_consortium

    watched = watch_consortium(
        run,
        table=table,
        shifts=shifts,
        secure=secure,
        epsilon=epsilon,
        level=level,
        alarms=alarms,
        out=out,
        progress=None if sys.stderr.isatty() else False,
    )
    if as_json:
        echo(json.dumps(watched.summary["watch"]))
    elif quiet:
        echo(str(watched.folder))
    else:
        from grandrounds.cli.screen import show_watch
        from grandrounds.cli.terminal import Terminal

        show_watch(Terminal(), watched.summary)
        epsilon_spent = watched.summary["privacy"].get("epsilon")
        if epsilon_spent is not None:
            echo(f"privacy: epsilon {epsilon_spent:.3g} at delta {watched.summary['privacy']['delta']:g}, charged once")
        echo(f"run: {watched.folder}")


def write_plan(
    run: Run, file: Path, *, secure: bool = False, epsilon: float | None = None, level: float = 0.01, alarms: bool = False
) -> None:
    """Write the experiment of a watch at hospitals, for `rounds server submit`.

    Args:
        run: A finished run of the consortium, on its server.
        file: The TOML file.
        secure: Use secure aggregation.
        epsilon: Privacy budget of the watch.
        level: Chance that a site without a change reports one.
        alarms: Alarms of sites' own watches decide what moved.

    Raises:
        BadInput: The run cannot be watched, or the file cannot be written.
    """
    from grandrounds.capabilities.watch.earlier_run import watch_values
    from grandrounds.core import toml
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput
    from grandrounds.experiment.experiment import Experiment

    values = watch_values(run, secure=secure, epsilon=epsilon, level=level, alarms=alarms)
    values["data"] = {name: v for name, v in values["data"].items() if name not in ("sha256", "site")}
    values["split"] = {name: v for name, v in values["split"].items() if name not in ("partition", "sites", "alpha")}
    Experiment.parse(values, where="settings")
    head = "# A watch of a model across hospitals, for `rounds server submit`. Sites name their new patients in their site.toml."
    try:
        write_atomic(file, toml.dumps(values, head=head).encode())
    except OSError as e:
        raise BadInput(f"cannot write {file}: {e.strerror or e}; choose another place", code="cannot-write") from None
    echo(f"wrote {file}: submit it with `rounds server submit {file}`")
