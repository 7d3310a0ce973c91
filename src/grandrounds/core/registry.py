"""Tables of import paths: what a name stands for is imported when it is looked up, and nothing before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """Classes by name, in the order of the table: `Registry({"fedavg": "grandrounds.methods.fedavg:FedAvg"})`.

    To iterate over names, to count them or to test one imports nothing; to look one up imports its module.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = dict(paths)

    def __getitem__(self, name: str) -> type[T]:
        module, _, attribute = self.paths[name].partition(":")
        found: type[T] = getattr(import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def lists(self, kind: type) -> bool:
        """Tell whether a class is in the table, under any name."""
        return f"{kind.__module__}:{kind.__qualname__}" in self.paths.values()
