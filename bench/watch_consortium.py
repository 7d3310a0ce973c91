"""False alarms and findings of a watch across hospitals, on the heart data.

    python bench/watch_consortium.py                  # 100 splits without a change
    python bench/watch_consortium.py --splits 20

A run on heart is watched with its own test rows as new patients, for many splits of the rows. A site reports a false alarm if any
feature, explanation, score or calibration moved. The second half multiplies resting_bp by 1.5 at two of four sites.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grandrounds as gr
from grandrounds.capabilities.watch.earlier_run import watch_values
from smoke import pick

SHIFTS = ("resting_bp=1.5@va", "resting_bp=1.5@hungarian")


def watch(run: gr.Run, out: Path, *, seed: int, shifts: Sequence[str] = ()) -> dict[str, Any]:
    """Watch the model with another split of the rows."""
    values = {**watch_values(run, shifts=shifts), "seed": seed}
    return dict(gr.run(gr.Experiment.parse(values), out=out / f"{seed}-{len(shifts)}").summary["watch"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=pick(100, 1))
    splits = parser.parse_args().splits
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        run = gr.run("heart", settings=pick({}, {"method.rounds": 2}), out=out / "run", progress=False)
        sites = alarms = found = right = others = 0
        for seed in range(1000, 1000 + splits):
            for site in watch(run, out, seed=seed)["by_site"]:
                sites += site["compared"]
                alarms += bool(site["moved"])
            features = {f["name"]: f["moved"] for f in watch(run, out, seed=seed, shifts=SHIFTS)["features"]}
            found += features["resting_bp"]
            right += features["resting_bp"] == len(SHIFTS)
            others += sum(n for name, n in features.items() if name != "resting_bp")
    print(f"without a change: {alarms} of {sites} sites reported a feature ({alarms / sites:.2%})")
    print(
        f"resting_bp times 1.5 at 2 of 4 sites: found at {found} of {2 * splits} sites, at both in {right} of {splits} splits; "
        f"{others} times at another feature"
    )


if __name__ == "__main__":
    main()
