"""Count what makes a code base hard to read: files, lines, upward imports, circles, vague names, untyped values.

    python tools/census.py [SOURCE]        # SOURCE: src/grandrounds
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_layers import ORDER  # noqa: E402
from tools.structure import Structure  # noqa: E402

VAGUE = frozenset({
    "found", "held", "said", "told", "own", "kept", "made", "given", "known", "asked", "seen", "done", "left", "gone", "here",
    "there", "what", "which", "whole", "thing", "things", "stuff", "another", "others", "among", "beside", "of", "at", "by", "to",
    "on", "but",
})  # fmt: skip
"""Words that say nothing of a value, and prepositions."""

UNTYPED = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")


def local_names(tree: ast.AST) -> Iterator[str]:
    """Names that functions give to their parameters and values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def upward(tree: ast.AST, package: str) -> Iterator[str]:
    """Modules that lie above the package which imports them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            modules = [a.name for a in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            known = parts[0] == "grandrounds" and len(parts) > 1 and {parts[1], package} <= set(ORDER)
            if known and ORDER.index(parts[1]) > ORDER.index(package):
                yield module


def census(source: Path) -> dict[str, str]:
    """Count a package.

    Args:
        source: Its folder.

    Returns:
        What was counted, as words.
    """
    structure = Structure(source)
    files = sorted(source.rglob("*.py"))
    texts = {file: file.read_text() for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    lines = [text.count("\n") for text in texts.values()]
    names = [name for tree in trees.values() for name in local_names(tree)]
    vague = [name for name in names if name.strip("_") in VAGUE]
    up = [module for file, tree in trees.items() for module in upward(tree, file.relative_to(source).parts[0])]
    return {
        "source files": f"{len(files):,}",
        "lines": f"{sum(lines):,}",
        "median file": f"{statistics.median(lines):.0f} lines; {sum(n < 50 for n in lines)} files under 50",
        "modules at the root": f"{sum(1 for _ in source.glob('*.py'))}",
        "imports that point up": f"{len(up)}",
        "circles of files": f"{len(structure.circles())}",
        "folders that import each other": f"{len(structure.mutual_folders())} pairs",
        "imports inside functions": f"{structure.late_imports():,}",
        "functions over 50 lines": f"{len(structure.long_functions())}",
        "vague local names": f"{len(vague) / len(names):.1%} of {len(names):,}",
        "dict[str, Any] and Mapping[str, Any]": f"{sum(len(UNTYPED.findall(text)) for text in texts.values()):,}",
    }


def main() -> None:
    """Print the census of a package."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "grandrounds"
    for what, count in census(source).items():
        print(f"{what:<38} {count}")


if __name__ == "__main__":
    main()
