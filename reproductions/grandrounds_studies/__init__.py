"""Reproductions of published papers: `rounds reproduce SYSTEM/WHAT`, `grandrounds.reproduce("sse-agg/table-1")`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.errors import BadInput

if TYPE_CHECKING:
    from grandrounds_studies.results import Results
    from grandrounds_studies.study import Study

PAPERS = {
    "sse-agg": "SSE-AGG",
    "veil": "VEIL",
    "fedxchain": "FedXChain",
    "xfed": "XFed",
    "fl-xai": "FL-XAI",
    "flamby": "FLamby",
    "privacy": "Differential privacy",
}
"""Name of each system; the first part of its studies' names is the key."""

SYSTEMS = ("sse_agg", "veil", "fedxchain", "privacy", "xfed", "fl_xai", "flamby")
"""Modules of this package, each with its studies in STUDIES. A new system is a new file and its name here."""

FOLDER = Path("runs") / "reproduce"


@cache
def studies() -> dict[str, Study]:
    """Every study by its name."""
    found = [s for system in SYSTEMS for s in import_module(f"{__name__}.{system}").STUDIES]
    return {s.name: s for s in found}


def titles() -> dict[str, str]:
    """The title of every study by its name."""
    return {name: study.title for name, study in studies().items()}


def load_study(name: str, *, quick: bool = False) -> Study:
    """The study of this name, or its small version."""
    from grandrounds_studies.study import named

    found = named(name, studies())
    return found.small() if quick else found


def folder_of(name: str, *, quick: bool = False) -> Path:
    """Default folder of a study's runs and report."""
    return FOLDER / (f"{name}-quick" if quick else name)


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Results:
    """Run a reproduction of a paper, or its missing runs, and compare the results with the published figures.

    Args:
        name: The reproduction, such as "sse-agg/table-1" (`rounds list studies`).
        quick: Run a small version, which shows the workflow in seconds and gives no results of the study.
        seeds: Number of seeds or folds of each arm, of which only missing ones are run; by default the study's own, or as many
            as are there.
        jobs: Runs at a time.
        out: The folder of runs, results.json and report.html; by default runs/reproduce/NAME.
        progress: Called after each run with a sentence, the number of finished runs, and the number of all.

    Returns:
        Results with `.figures` (published, ours over seeds), `.claims` (with verdicts) and `.to_dict()`.

    Raises:
        BadInput: There is no such reproduction, or its data are not on this machine.
    """
    from grandrounds_studies.running import conduct_study, nobody
    from grandrounds_studies.written import refuse_another, write_results

    chosen = load_study(name, quick=quick)
    if seeds is not None and seeds < 1:
        raise BadInput(f"a study takes one seed or more, not {seeds}")
    folder = folder_of(name, quick=quick) if out is None else Path(out)
    refuse_another(name, folder)
    results = conduct_study(chosen, folder, seeds=seeds, jobs=jobs, quick=quick, progress=progress or nobody)
    write_results(results, folder)
    return results


def reproduce_paper(
    system: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Run all reproductions of a paper, or their missing runs, and write one report of them.

    Args:
        system: The paper's system, such as "sse-agg".
        quick: Run small versions, which give no results.
        seeds: As for `reproduce`.
        jobs: Runs at a time.
        out: The folder of all systems; by default runs/reproduce.
        progress: As for `reproduce`.

    Returns:
        The report, OUT/SYSTEM/report.html (report-quick.html of small versions).

    Raises:
        BadInput: There is no such system, or none of its reproductions can be run on this machine.
    """
    from grandrounds_studies.everything import chosen, in_a_line, write_reports
    from grandrounds_studies.running import nobody

    wanted, place = chosen([system]), None if out is None else Path(out)
    for study in wanted:
        in_a_line(study.name, quick=quick, seeds=seeds, jobs=jobs, out=place, progress=progress or nobody)
    reports = write_reports(wanted, quick=quick, out=place)
    if not reports:
        raise BadInput(f"none of the reproductions of {system} can be run here: `rounds reproduce --all {system}` says why")
    return reports[0]


__all__ = ["FOLDER", "PAPERS", "SYSTEMS", "folder_of", "reproduce", "reproduce_paper", "load_study", "studies", "titles"]
