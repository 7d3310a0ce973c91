"""The import graph of the package, and what makes it hard to follow: circles, folders that need each other, late imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "grandrounds"


@dataclass(frozen=True)
class Import:
    """One import of one of the package's own modules.

    Attributes:
        importer: The module that imports.
        imported: The module that is imported.
        late: Inside a function.
        for_types: Under TYPE_CHECKING.
    """

    importer: str
    imported: str
    late: bool
    for_types: bool


@dataclass(frozen=True)
class Structure:
    """All files of a source folder, parsed."""

    source: Path

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """The syntax tree of each module."""
        return {self._module(file): ast.parse(file.read_text()) for file in sorted(self.source.rglob("*.py"))}

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import of an own module by another."""
        return tuple(i for module, tree in self.trees.items() for i in self._imports(module, tree, late=False, types=False))

    def circles(self) -> list[list[str]]:
        """Find groups of modules that need each other, the largest first; imports for types alone do not count."""
        graph: dict[str, set[str]] = {module: set() for module in self.trees}
        for i in self.imports:
            if not i.for_types:
                graph[i.importer].add(i.imported)
        return sorted((sorted(group) for group in _components(graph) if len(group) > 1), key=lambda g: -len(g))

    def mutual_folders(self) -> list[tuple[str, str]]:
        """Find pairs of sub-folders of one package that import each other; imports for types alone do not count."""
        pairs = {(_folder(i.importer), _folder(i.imported)) for i in self.imports if not i.for_types}
        return sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs and a.split(".")[0] == b.split(".")[0])

    def late_imports(self) -> int:
        """Count imports of own modules inside functions."""
        return sum(i.late for i in self.imports)

    def long_functions(self, lines: int = 50) -> list[str]:
        """List functions of more lines than this."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = ((m, n) for m, tree in self.trees.items() for n in ast.walk(tree) if isinstance(n, kinds))
        return [f"{m}.{n.name}" for m, n in nodes if (n.end_lineno or 0) - n.lineno + 1 > lines]

    def _module(self, file: Path) -> str:
        parts = file.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _imports(self, module: str, node: ast.AST, *, late: bool, types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                targets = {self._nearest(name) for name in _names(child)} - {None, module}
                yield from (Import(module, t, late, types) for t in sorted(t for t in targets if t is not None))
            inner = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            yield from self._imports(module, child, late=inner, types=for_types)

    def _nearest(self, name: str) -> str | None:
        """The own module that an imported name is, or is in."""
        parts = name.split(".")
        if parts[0] != PACKAGE:
            return None
        own = parts[1:]
        while own and ".".join(own) not in self.trees:
            own = own[:-1]
        return ".".join(own)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _folder(module: str) -> str:
    """The folder of a module below the source: "audit.chain" of "audit.chain.anchor"."""
    return module.rpartition(".")[0] or module


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []
    for root in graph:
        work = [(root, iter(sorted(graph[root])))] if root not in index else []
        while work:
            node, targets = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for target in targets:
                if target not in index:
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    out.append(stack[cut:])
                    del stack[cut:]
    return out
