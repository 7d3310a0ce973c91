"""The golden corpus: what runs, commands and hospitals leave behind, so that a rebuilt package is known to do the same.

    python tools/golden.py                     # every case, compared with the corpus (12 minutes on two cores)
    python tools/golden.py --part commit       # three minutes, before a commit
    python tools/golden.py "recipe heart" watch          # some cases
    python tools/golden.py --keep FOLDER       # also keep all values there, and with
    python tools/golden.py --against FOLDER    # name each value that differs from those kept there
    python tools/golden.py --make              # write the corpus anew, for a change on purpose

The corpus is `tests/golden/corpus.json`: digests by case and file. On its machine every value must be the same to the last bit;
where the processor or a library is another, sums of floats must be close and all else equal.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.cases import all_cases  # noqa: E402
from tests.golden.corpus import CORPUS, Corpus, find_differences  # noqa: E402
from tests.golden.digest import differences  # noqa: E402
from tests.golden.running import Case, Left, run_cases  # noqa: E402

SHOWN = 12
"""Differences of a case that are printed."""


def main() -> int:
    """Run cases and compare them; the exit code is 1 if any differs."""
    args = _parse()
    cases = _chosen(args.names, args.part)
    corpus = Corpus.read() if CORPUS.exists() else Corpus.empty()
    begun, wrong = time.monotonic(), 0
    keep = bool(args.keep or args.against)
    for k, (case, left) in enumerate(run_cases(cases, jobs=args.jobs, keep=keep), start=1):
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            _file(args.keep, case).write_bytes(left.values)
        if args.make:
            corpus = corpus.with_case(case.name, left.digests)
            print(f"{k:4} of {len(cases)}  {time.monotonic() - begun:5.0f} s  {case.name}", flush=True)
        elif lines := _compare(corpus, case, left, args.against):
            wrong += 1
            print(f"DIFFERS  {case.name}", *lines[:SHOWN], sep="\n    ", flush=True)
    if args.make:
        corpus.write()
    print(f"{len(cases)} cases in {time.monotonic() - begun:.0f} s, {wrong} differ")
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases, or beginnings of their names (default: all of --part)")
    parser.add_argument("--part", choices=("test", "commit", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--make", action="store_true", help="write these cases into the corpus")
    parser.add_argument("--keep", type=Path, help="folder for all values")
    parser.add_argument("--against", type=Path, help="folder with the values of an earlier --keep")
    return parser.parse_args()


def _chosen(names: list[str], part: str) -> list[Case]:
    """Cases by their names' beginnings, else those of a part; the longest first, so that the last ones end together."""
    parts = {"test": ("test",), "commit": ("test", "commit"), "all": ("test", "commit", "all")}[part]
    cases = all_cases().values()
    if names:
        return [c for c in cases if any(c.name.startswith(name) for name in names)]
    return sorted((c for c in cases if c.part in parts), key=lambda c: -len(c.steps))


def _compare(corpus: Corpus, case: Case, left: Left, against: Path | None) -> list[str]:
    found = find_differences(corpus, case.name, left.digests)
    if found and against is not None:
        before, values = (
            json.loads(gzip.decompress(data)) for data in (_file(against, case).read_bytes(), left.values)
        )
        return [line for name in values for line in differences(before.get(name), values[name], name)] or found
    return found


def _file(folder: Path, case: Case) -> Path:
    return folder / f"{case.name.replace('/', '_')}.json.gz"


if __name__ == "__main__":
    sys.exit(main())
