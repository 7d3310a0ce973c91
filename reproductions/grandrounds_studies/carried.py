"""A study on two machines: its plans are written here, run where there is a GPU, and what was read off them comes back.

rounds reproduce sse-agg/skin-lesions --plans plans.json
python -m grandrounds_studies --from plans.json --out there     # needs neither pydantic nor a command line
rounds reproduce sse-agg/skin-lesions --import there            # readings.json has come back in `there`
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds_studies.digest import bring_defaults, today
from grandrounds_studies.kept import Kept
from grandrounds_studies.running import Said, read_beside, run_plans
from grandrounds_studies.study import Study

SCHEMA = 2


@dataclass(frozen=True)
class Carried:
    """The plans of a study by the names of their runs, and today's defaults, by which a plan is known."""

    study: str
    quick: bool
    seeds: int
    plans: dict[str, dict[str, Any]]
    defaults: dict[str, Any]

    @classmethod
    def of(cls, study: Study, *, quick: bool, seeds: int, kept: Kept) -> Carried:
        """The plans of runs that have no reading here yet."""
        plans = {cell: study.plan(cell) for cell in study.cells(seeds)}
        missing = {cell.name: plan for cell, plan in plans.items() if kept.reading(study, cell, plan) is None}
        return cls(study.name, quick, seeds, missing, today())

    def write(self, path: Path) -> None:
        held = {"schema": SCHEMA, **asdict(self)}
        try:
            write_atomic(path, json.dumps(held).encode())
        except OSError as e:
            raise BadInput(f"cannot write {path}: {e.strerror or e}") from None

    @classmethod
    def load(cls, path: Path) -> Carried:
        try:
            held = json.loads(path.read_text())
            plans, defaults = dict(held["plans"]), dict(held["defaults"])
            return cls(str(held["study"]), bool(held["quick"]), int(held["seeds"]), plans, defaults)
        except OSError as e:
            raise BadInput(f"cannot read {path}: {e.strerror or e}") from None
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                f"{path} holds no plans of a study: write it with `rounds reproduce NAME --plans {path}`"
            ) from None

    def run(self, study: Study, out: Path, *, jobs: int, progress: Said) -> dict[str, str]:
        """Run what is not done yet into `out` and keep what the study reads off it; says which runs failed, and why."""
        bring_defaults(self.defaults)
        kept = Kept.read(out)
        read_beside(study, self.plans, kept)
        todo = {name: plan for name, plan in self.plans.items() if not kept.has(name, plan)}
        return run_plans(study, todo, kept, jobs=jobs, progress=progress)
