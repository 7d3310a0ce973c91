"""Withdraw a hospital from a finished run: `gr.withdraw(run, "va")`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.progress import RunProgress, run_progress

if TYPE_CHECKING:
    from grandrounds.runs.run import Run
    from grandrounds.runs.withdraw import Withdrawal


def withdraw(
    run: Run | str | Path,
    site: str | int,
    *,
    keep_setup: bool = False,
    out: str | Path | None = None,
    table: Any = None,
    progress: RunProgress = None,
) -> Withdrawal:
    """Repeat a finished run without a site, and close the earlier run; an interrupted withdrawal is continued.

    Args:
        run: The run, or its folder.
        site: The site's name, or the number that its name ends with.
        keep_setup: Go on from the checkpoint before the site counted first. Its influence remains in the set-up statistics
            (scales, fill-in values, categories, reference rows), and the record says so.
        out: The folder of the repeated run; by default RUN-without-SITE.
        table: The rows again, where the run was made from a data frame.
        progress: As in `gr.run`.

    Returns:
        The withdrawal: `.run` is the run that is valid now, `.facts` what of the site remains, `.cost()` the cost.

    Raises:
        BadInput: The site is unknown or never took part, the run is not finished, in use or withdrawn already, or too few
            sites would be left.
        RunFailed: The repetition stopped; the same call continues it.

    Examples:
        >>> withdraw("runs/heart-fedavg-seed0", "va").run.summary.final  # doctest: +SKIP
    """
    from grandrounds.runs.run import Run
    from grandrounds.runs.withdraw import withdraw as repeat_without

    found = run if isinstance(run, Run) else Run(Path(run))
    with run_progress(progress) as report:
        place = None if out is None else Path(out)
        return repeat_without(found, site, keep_setup=keep_setup, out=place, table=table, progress=report)
