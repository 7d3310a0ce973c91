"""Answer a hospital's question before it joins: is the common model better for our patients than a model of our own?

    python examples/why_join.py [RECIPE] [SEED]

Default: the four heart hospitals. The recipe has the guard switched on, so each hospital compares candidates on its own
training rows and deploys one. The table has the log loss of each on the hospital's test rows, lower is better. In a simulation
the files of all hospitals are on this machine; at real hospitals each reads its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import grandrounds as gr

COLUMNS = ("common", "own", "majority", "deployed")


def main(recipe: str = "heart", seed: str = "0") -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = gr.run(recipe, seed=int(seed), out=Path(folder) / "run", progress=False)
        personal = run.summary.personal
        heads = " ".join(f"{name:>8}" for name in ("patients", *COLUMNS))
        print(f"{'hospital':<14} {'deploys':<12} {heads}  p-value of harm")
        for site, choice in personal["choices"].items():
            facts = json.loads((run.folder / "at_sites" / site / "personal.json").read_text(encoding="utf-8"))
            test = facts["test"]
            losses = " ".join(f"{test['losses'][name]:8.3f}" if name in test["losses"] else f"{'-':>8}" for name in COLUMNS)
            p_value = "not tested" if test["p_value"] is None else f"{test['p_value']:.2f}"
            print(f"{site:<14} {choice:<12} {test['patients']:>8} {losses}  {p_value}")
        harmed = personal["harmed"] or []
        print(f"harmed: {', '.join(harmed) or 'none'} of {len(personal['tested'])} hospitals that can be tested")


if __name__ == "__main__":
    main(*sys.argv[1:])
