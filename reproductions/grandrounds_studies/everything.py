"""Many studies, one after the other: one that cannot be run here, or fails, does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grandrounds.core.errors import BadInput, GrandRoundsError, nearest
from grandrounds_studies import FOLDER, load_study, reproduce, studies
from grandrounds_studies.lines import Line, brief, line, line_of
from grandrounds_studies.running import NotHere, Said
from grandrounds_studies.study import Study


def chosen(systems: Sequence[str]) -> list[Study]:
    """The studies of these systems; of all where none is named."""
    known = dict.fromkeys(s.system for s in studies().values())
    for one in systems:
        if one in studies():
            raise BadInput(f"'{one}' is one study: --list and --all take systems ({', '.join(known)})")
        if one not in known:
            raise BadInput(f"no system '{one}'; {nearest(one, known)}")
    return [s for s in studies().values() if not systems or s.system in systems]


def folder_in(out: Path | None, name: str, *, quick: bool) -> Path:
    """Return the folder of a study if all go below `out`."""
    return (FOLDER if out is None else out) / (f"{name}-quick" if quick else name)


def write_reports(wanted: Sequence[Study], *, quick: bool, out: Path | None) -> list[Path]:
    """Write the report of each paper whose studies these are."""
    from grandrounds_studies.written import write_paper

    by: dict[str, list[Study]] = {}
    for study in wanted:
        by.setdefault(study.system, []).append(study)
    paths = [write_paper(system, held, out or FOLDER, quick=quick) for system, held in by.items()]
    return [path for path in paths if path is not None]


def in_a_line(name: str, *, quick: bool, seeds: int | None, jobs: int, out: Path | None, progress: Said) -> Line:
    """Run a study, or what is missing of it; what prevents it is in its line, and stops nobody."""
    asked = load_study(name, quick=quick)
    folder = folder_in(out, name, quick=quick)
    try:
        found = reproduce(name, quick=quick, seeds=seeds, jobs=jobs, out=folder, progress=progress)
    except NotHere as e:
        return line(asked, None, (), note=f"not run: {brief(str(e).removeprefix(f'{name}: '))}")
    except GrandRoundsError as e:
        return line(asked, None, (), note=f"failed: {str(e).removeprefix(f'{name}: ')}", failed=True)
    return line_of(asked, found.to_dict())
