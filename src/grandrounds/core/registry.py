"""Tables of import paths: what a name stands for is imported when it is looked up, and nothing before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

from grandrounds.core.capability import collect, load

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """Classes by name, in the order of the table: `Registry({"fedavg": "grandrounds.methods.fedavg:FedAvg"})`.

    Capabilities add to it what their manifests have under the name of `member`.

    To iterate over names, to count them or to test one imports nothing; to look one up imports its module.
    """

    def __init__(self, paths: Mapping[str, str], member: str = "") -> None:
        self._kernel = dict(paths)
        self._member = member

    @cached_property
    def paths(self) -> dict[str, str]:
        """All names with their import paths."""
        return self._kernel | (collect(self._member) if self._member else {})

    def __getitem__(self, name: str) -> type[T]:
        found: type[T] = load(self._kernel.get(name) or self.paths[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, name: object) -> bool:
        return name in self._kernel or name in self.paths

    def lists(self, kind: type) -> bool:
        """Tell whether a class is in the table, under any name."""
        return f"{kind.__module__}:{kind.__qualname__}" in self.paths.values()
