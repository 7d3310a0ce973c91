"""`python -m grandrounds_studies --from PLANS.json --out FOLDER`: run a study's plans on a machine without pydantic.

Bring FOLDER/readings.json back and call `rounds reproduce NAME --out FOLDER` there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grandrounds.core.errors import GrandRoundsError
from grandrounds_studies import load_study
from grandrounds_studies.carried import Carried


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 a run failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m grandrounds_studies", description="Run the plans of a study.")
    parser.add_argument("--from", dest="plans", type=Path, required=True, help="as `rounds reproduce --plans` wrote it")
    parser.add_argument("--out", type=Path, required=True, help="the study's folder")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args(arguments)
    try:
        carried = Carried.load(args.plans)
        chosen = load_study(carried.study, quick=carried.quick)
        failed = carried.run(chosen, args.out, jobs=args.jobs, progress=_print)
    except GrandRoundsError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    print(f"{args.out / 'readings.json'}: {len(carried.plans) - len(failed)} of {len(carried.plans)} runs")
    return 1 if failed else 0


def _print(text: str, ended: int, total: int) -> None:
    print(f"{ended} of {total}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
