"""Records of rounds in a tenth of the memory: numbers by site as an array, names and texts stored once.

A round of 150 sites has about 1,500 numbers, each of which costs a dict entry and an object. A long run has thousands of
rounds, and a program that shows it keeps them all.
"""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from math import inf, isnan, nan
from types import NoneType
from typing import Any, cast

from grandrounds.core.records import RoundRecord

FEWEST = 6
"""Entries from which on numbers are stored as an array."""
_NUMBERS = ({float}, {NoneType}, {float, NoneType})


class NumbersByName(Mapping[str, Any]):
    """Numbers by name, read-only: equal to the dict that it was made from.

    Args:
        index: The place of each name; shared by all values with these names.
        values: The numbers; nan stands for None.
    """

    __slots__ = ("_index", "_values")

    def __init__(self, index: Mapping[str, int], values: array[float] | array[int]) -> None:
        self._index, self._values = index, values

    def __getitem__(self, name: str) -> float | None:
        value = self._values[self._index[name]]
        return None if value != value else value

    def get(self, name: str, default: Any = None) -> Any:
        place = self._index.get(name)
        if place is None:
            return default
        value = self._values[place]
        return None if value != value else value

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.plain(), **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self.plain()}

    def __repr__(self) -> str:
        return repr(self.plain())

    def items(self) -> ItemsView[str, Any]:
        return self.plain().items()

    def values(self) -> Any:
        return self.plain().values()

    def plain(self) -> dict[str, Any]:
        """Return a dict of the same names and numbers."""
        values = self._values
        if values.typecode == "d":
            return {name: None if isnan(v) else v for name, v in zip(self._index, values, strict=True)}
        return dict(zip(self._index, values, strict=True))


class Packer:
    """Packs the records of one run; equal names, lists of names and texts of different rounds become one object."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._indexes: dict[tuple[str, ...], dict[str, int]] = {}
        self._lists: dict[tuple[str, ...], list[str]] = {}

    def pack(self, record: RoundRecord) -> RoundRecord:
        """Return a record that is equal to this one and needs less memory.

        Raises:
            ValueError: A number is infinite.
        """
        return RoundRecord.from_dict(self._pack(record))

    def _pack(self, value: Any) -> Any:
        kind = type(value)
        if kind is float and (value == inf or value == -inf):
            raise ValueError("a number is infinite")
        if kind is str:
            return self._texts.setdefault(value, value)
        if isinstance(value, Mapping):
            return self._pack_object(value)
        if kind is list or kind is tuple:
            return self._pack_list(value)
        return value

    def _pack_object(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(value) >= FEWEST:
            kinds = set(map(type, value.values()))
            try:
                if kinds in _NUMBERS:
                    return NumbersByName(self._index(value), _to_array(value, complete=NoneType not in kinds))
                if kinds == {int}:
                    return NumbersByName(self._index(value), array("q", value.values()))
            except OverflowError:  # a whole number of more than 64 bits
                pass
        return {self._texts.setdefault(name, name): self._pack(v) for name, v in value.items()}

    def _index(self, value: Mapping[str, Any]) -> dict[str, int]:
        names = tuple(value)
        index = self._indexes.get(names)
        if index is None:
            index = {self._texts.setdefault(name, name): k for k, name in enumerate(names)}
            self._indexes[tuple(index)] = index
        return index

    def _pack_list(self, value: list[Any] | tuple[Any, ...]) -> list[Any]:
        if len(value) >= FEWEST and all(type(v) is str for v in value):
            names = tuple(value)
            if names not in self._lists:
                names = tuple(self._texts.setdefault(v, v) for v in names)
                self._lists[names] = list(names)
            return self._lists[names]
        return [self._pack(v) for v in value]


def _to_array(value: Mapping[str, float | None], *, complete: bool) -> array[float]:
    values = cast("Iterable[float]", value.values()) if complete else [nan if v is None else v for v in value.values()]
    numbers = array("d", values)
    if inf in numbers or -inf in numbers:
        raise ValueError("a number is infinite")
    return numbers
