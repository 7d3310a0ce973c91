"""results.json and report.html of a study, in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds_studies.page import study_page
from grandrounds_studies.results import Results

RESULTS, REPORT = "results.json", "report.html"


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
