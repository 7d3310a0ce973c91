"""Every error that is raised on purpose has a code; sentences may be reworded, codes may not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "grandrounds"
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+){1,4}")


@cache
def raised() -> list[tuple[str, ast.Call]]:
    """All calls that make an error, with their place."""
    calls = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("BadInput", "RunFailed"):
                calls.append((f"{path.relative_to(SOURCE)}:{node.lineno}", node))
    return calls


def test_every_error_has_a_code():
    calls = raised()
    assert len(calls) > 1000
    assert not [place for place, call in calls if not any(k.arg == "code" for k in call.keywords)]


def test_codes_are_a_few_words():
    codes = [
        (place, k.value.value)
        for place, call in raised()
        for k in call.keywords
        if k.arg == "code" and isinstance(k.value, ast.Constant)
    ]
    assert not [(place, code) for place, code in codes if not CODE.fullmatch(code)]
