"""Time of a dossier, and alterations of its figures that `rounds dossier verify` names.

    python bench/dossier.py RUN [--alterations 200]

Each alteration changes one digit, drawn by its seed, in one file of a copy of the dossier: a document (Markdown, HTML, JSON), the
evidence, the answers, the manifest or the PDF. It counts as named if the first differences that are printed name that file, and
its line or value where the file is text that is built again. Attack results must exist (`rounds attack RUN`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import grandrounds as gr
from grandrounds.capabilities.dossier.building.verify import Verification, verify_dossier
from grandrounds.capabilities.dossier.building.writer import write_dossier
from grandrounds.core.rng import generator
from grandrounds.runs.run import Run
from smoke import pick


@dataclass(frozen=True)
class Change:
    """One digit that was changed.

    Attributes:
        file: The file in the dossier.
        line: Number of the line, from 1.
        before: The line before, cut.
        after: The line after, cut.
    """

    file: str
    line: int
    before: str
    after: str


def alter_figure(folder: Path, rng: np.random.Generator) -> Change:
    """Change one digit of a number in one file of a dossier.

    Args:
        folder: The dossier; it is changed.
        rng: Draws the file, the place and the digit.

    Returns:
        The change.
    """
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    while True:
        name = names[int(rng.integers(len(names)))]
        data = (folder / name).read_bytes()
        places = [m.start() for m in re.finditer(rb"(?<![#&\w])\d", data)]
        if not places:
            continue
        place = places[int(rng.integers(len(places)))]
        digit = bytes([rng.choice([d for d in b"0123456789" if d != data[place]])])
        altered = data[:place] + digit + data[place + 1 :]
        (folder / name).write_bytes(altered)
        start = data.rfind(b"\n", 0, place) + 1
        window = slice(max(start, place - 30), place + 30)
        cuts = (d[window].decode("utf-8", "replace") for d in (data, altered))
        return Change(name, data.count(b"\n", 0, place) + 1, *cuts)


def is_named(change: Change, result: Verification) -> bool:
    """Tell whether a verification names the altered file, and the line where the file is built again."""
    named = [d for d in result.differences if change.file in d.line]
    is_built = change.file.endswith((".md", ".html", "dossier.json")) and "/" not in change.file
    return any(d.place == f"line {change.line}" for d in named) if is_built else bool(named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs=pick(None, "?"))
    parser.add_argument("--alterations", type=int, default=pick(200, 2))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run or gr.run("heart", settings={"method.rounds": 2}, out=Path(scratch) / "run", progress=False).folder
        folder = Path(scratch) / "dossier"
        start = time.perf_counter()
        made = write_dossier(Run(run, withdrawn=True), folder)
        seconds = time.perf_counter() - start
        print(f"written in {seconds:.1f} s{', without a PDF' if made.unprinted else ', with the PDF'}")
        for document in made.documents:
            print(f"{document.title}: " + ", ".join(f"{n} {state}" for state, n in document.count_states().items()))
        start = time.perf_counter()
        assert not verify_dossier(folder).differences
        print(f"verified in {time.perf_counter() - start:.1f} s")
        named, missed = Counter[str](), []
        for number in range(options.alterations):
            copy = Path(scratch) / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            change = alter_figure(copy, generator(number, purpose="alteration"))
            if is_named(change, verify_dossier(copy)):
                named[Path(change.file).suffix] += 1
            else:
                missed.append(change)
        print(f"named: {sum(named.values())} of {options.alterations} alterations ({dict(named)})")
        for change in missed:
            print(f"missed: {change}")


if __name__ == "__main__":
    main()
