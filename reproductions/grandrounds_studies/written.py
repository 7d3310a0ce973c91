"""results.json and report.html of a study, in its folder, and the report of a paper, beside its studies'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds_studies import PAPERS
from grandrounds_studies.page import study_page
from grandrounds_studies.paper import paper_page
from grandrounds_studies.results import SCHEMA, Results
from grandrounds_studies.study import Study

RESULTS, REPORT = "results.json", "report.html"


def write_paper(system: str, wanted: Sequence[Study], folder: Path, *, quick: bool) -> Path | None:
    """Write the report of a paper from the results of its studies below a folder; None where none was run."""
    ending = "-quick" if quick else ""
    results, missing, reports = [], {}, {}
    for study in wanted:
        place = folder / f"{study.name}{ending}"
        try:
            values = json.loads((place / RESULTS).read_text())
            if values["schema"] != SCHEMA:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            missing[study.name] = "it has no results of this version here"
            continue
        results.append(values)
        reports[study.name] = Path(place.name) / REPORT
    if not results:
        return None
    path = folder / system / f"report{ending}.html"
    try:
        write_atomic(path, paper_page(PAPERS.get(system, system), results, missing, reports).encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another --out") from None
    return path


def refuse_another(name: str, folder: Path) -> None:
    """Refuse a folder that has the results of another study: they would be written over."""
    try:
        held = json.loads((folder / RESULTS).read_text())
    except (OSError, ValueError):
        return
    other = held.get("study") if isinstance(held, dict) else None
    if other not in (None, name):
        raise BadInput(f"{folder} holds the results of {other}, not of {name}: choose another --out")


def write_results(results: Results, folder: Path) -> Path:
    """Write both; gives the report's path."""
    values = results.to_dict()
    page = study_page(values, results.charts())
    try:
        write_atomic(folder / RESULTS, json.dumps(values, indent=1).encode())
        write_atomic(folder / REPORT, page.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write to {folder}: {e.strerror or e}; choose another --out") from None
    return folder / REPORT
