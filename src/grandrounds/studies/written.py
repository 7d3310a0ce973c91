"""results.json and report.html of a study, in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from grandrounds.arrays import write_atomic
from grandrounds.errors import BadInput
from grandrounds.studies.page import study_page
from grandrounds.studies.results import Results

RESULTS, REPORT = "results.json", "report.html"


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
