"""Whether a site's rows are training, validation and test rows of the same patients in every run.

A plan names the split, and who opens a run names the site's role in it: a server could make a test patient of everybody in turn,
and test rows are not covered.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.site.stack import Stack


def own_split(path: Path, stack: Stack, *, most_test: float = 0.5) -> bool:
    """Whether this site's rows are dealt as in its first run, which is noted in `path`: what `Terms.own_split` asks for.

    It is the rows themselves that are compared, whatever the plan says. A split with more test rows than `most_test` is never
    the site's own, and is not noted.
    """
    dealt = stack.rows[0]
    parts = (dealt.train, dealt.val, dealt.test)
    if len(dealt.test) > most_test * sum(map(len, parts)):
        return False
    said = hashlib.sha256(b"|".join(np.ascontiguousarray(p, "<i8").tobytes() for p in parts)).hexdigest()
    if not path.exists():
        write_atomic(path, json.dumps(said).encode())
        return True
    try:
        return bool(json.loads(path.read_bytes()) == said)
    except (OSError, ValueError):
        raise BadInput(f"{path} is damaged: restore it from a copy; nothing is released") from None
