"""Write TOML, which the standard library only reads. None is left out, as TOML has no such value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(values: Mapping[str, Any], *, head: str = "") -> str:
    """Return TOML text that `tomllib` reads back to the same values."""
    lines = [head] if head else []
    _table(values, (), lines)
    return "\n".join(lines).strip() + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    lists = {k: v for k, v in values.items() if isinstance(v, list | tuple) and v and isinstance(v[0], Mapping)}
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping) and k not in lists}
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    if path and (plain or not tables):
        lines += ["", f"[{'.'.join(key(p) for p in path)}]"]
    lines += [f"{key(name)} = {literal(value)}" for name, value in plain.items()]
    for name, value in tables.items():
        _table(value, (*path, name), lines)
    for name, entries in lists.items():
        for entry in entries:
            lines += ["", f"[[{'.'.join(key(p) for p in (*path, name))}]]"]
            lines += [f"{key(k)} = {literal(v)}" for k, v in entry.items() if v is not None]


def key(name: str) -> str:
    """Return a bare key if TOML allows one, else a quoted one."""
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else literal(name)


def literal(value: Any) -> str:
    """Return one value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's string escapes are TOML's too, except for DEL, which JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key(k)} = {literal(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    return f"[{', '.join(literal(v) for v in value)}]"
