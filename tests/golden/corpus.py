"""The corpus as a file: digests of every case, and the machine that they were made on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from tests.golden.digest import Digest, fingerprint

CORPUS = Path(__file__).with_name("corpus.json")


@dataclass(frozen=True)
class Corpus:
    """Digests by case and by value, and the processor and libraries of the machine that made them."""

    machine: dict[str, str]
    cases: dict[str, dict[str, Digest]]

    @classmethod
    def empty(cls) -> Corpus:
        return cls(fingerprint(), {})

    @classmethod
    def read(cls) -> Corpus:
        stored = json.loads(CORPUS.read_text())
        cases = {case: {n: Digest.parse(d) for n, d in values.items()} for case, values in stored["cases"].items()}
        return cls(stored["machine"], cases)

    def with_case(self, name: str, digests: dict[str, Digest]) -> Corpus:
        return replace(self, cases={**self.cases, name: digests})

    def write(self) -> None:
        """Write a line a value, in the order of names."""
        cases = []
        for case, digests in sorted(self.cases.items()):
            lines = [f"   {json.dumps(n)}: {json.dumps(d.stored())}" for n, d in sorted(digests.items())]
            cases.append(f"  {json.dumps(case)}: {{\n" + ",\n".join(lines) + "\n  }")
        text = f'{{\n "machine": {json.dumps(self.machine)},\n "cases": {{\n' + ",\n".join(cases) + "\n }\n}\n"
        CORPUS.write_text(text)


def find_differences(corpus: Corpus, name: str, digests: dict[str, Digest]) -> list[str]:
    """Name the values of a case that are not those of the corpus.

    On the corpus's machine they must be the same to the last bit; elsewhere floats are close and all else is equal.
    """
    if name not in corpus.cases:
        return ["is not in the corpus: make it with --make"]
    before, here = corpus.cases[name], corpus.machine == fingerprint()
    out = [
        f"{value}: only {'before' if value in before else 'now'}" for value in sorted(before.keys() ^ digests.keys())
    ]
    for value in sorted(before.keys() & digests.keys()):
        now = digests[value]
        if now != before[value] and (here or not before[value].is_close(now)):
            out.append(f"{value}: {'values' if now.frame == before[value].frame else 'form or text'} differ")
    return out
