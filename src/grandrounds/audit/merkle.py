"""An append-only Merkle tree (RFC 6962), whose root represents all entries in order.

An inclusion proof shows that an entry is under a root, a consistency proof that an older tree is the beginning of a newer
one. Both are a few hashes, checked as in RFC 9162 (2.1.3.2 and 2.1.4.2) without the tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

EMPTY = hashlib.sha256(b"").digest()
"""Root of an empty tree."""


def leaf_hash(entry: bytes) -> bytes:
    """Compute SHA-256(0x00 || entry), so that no entry can be mistaken for an inner node."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """Hashes of all complete subtrees by height: a root or a proof costs a few look-ups for any size."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for leaf in leaves:
            self.append(leaf)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Append the hash of an entry."""
        height, node = 0, leaf
        self._levels[0].append(node)
        while len(self._levels[height]) % 2 == 0:
            node = node_hash(self._levels[height][-2], node)
            height += 1
            if height == len(self._levels):
                self._levels.append([])
            self._levels[height].append(node)

    def leaf(self, number: int) -> bytes:
        return self._levels[0][number]

    def root(self, size: int | None = None) -> bytes:
        """Compute the root (MTH) of the first `size` entries, by default of all."""
        size = self._checked(len(self) if size is None else size)
        return self._hash(0, size) if size else EMPTY

    def inclusion(self, number: int, size: int | None = None) -> list[bytes]:
        """Compute the inclusion proof PATH(number, D[size]): hashes from an entry to the root, leaf first."""
        size = self._checked(len(self) if size is None else size)
        if not 0 <= number < size:
            raise IndexError(f"there is no entry {number} among {size}")
        path: list[bytes] = []
        start = 0
        while size > 1:
            half = _split(size)
            if number - start < half:
                path.append(self._hash(start + half, size - half))
                size = half
            else:
                path.append(self._hash(start, half))
                start, size = start + half, size - half
        return path[::-1]

    def consistency(self, first: int, second: int | None = None) -> list[bytes]:
        """Compute the consistency proof PROOF(first, D[second]): the first entries are the beginning of the others."""
        second = self._checked(len(self) if second is None else second)
        if not 0 <= first <= second:
            raise IndexError(f"there is no tree of {first} entries within one of {second}")
        if first in (0, second):
            return []
        path: list[bytes] = []
        start, size, is_complete = 0, second, True
        while first != size:
            half = _split(size)
            if first <= half:
                path.append(self._hash(start + half, size - half))
                size = half
            else:
                path.append(self._hash(start, half))
                start, first, size, is_complete = start + half, first - half, size - half, False
        if not is_complete:
            path.append(self._hash(start, size))
        return path[::-1]

    def _checked(self, size: int) -> int:
        if not 0 <= size <= len(self):
            raise IndexError(f"there is no tree of {size} entries: the ledger has {len(self)}")
        return size

    def _hash(self, start: int, size: int) -> bytes:
        """Compute MTH of `size` entries from `start` on, which is a multiple of the largest power of two in `size`."""
        if size & (size - 1) == 0:
            height = size.bit_length() - 1
            return self._levels[height][start >> height]
        half = _split(size)
        return node_hash(self._hash(start, half), self._hash(start + half, size - half))


def includes(root: bytes, size: int, *, number: int, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Check that the entry with this leaf hash is entry `number` of the tree with this root and size."""
    if not 0 <= number < size:
        return False
    position, last, reached = number, size - 1, leaf
    for node in path:
        if last == 0:
            return False
        if position % 2 or position == last:
            reached = node_hash(node, reached)
            while position % 2 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            reached = node_hash(reached, node)
        position, last = position >> 1, last >> 1
    return last == 0 and reached == root


def extends(before: bytes, after: bytes, *, first: int, second: int, path: Sequence[bytes]) -> bool:
    """Check that the tree of `first` entries with root `before` is the beginning of that of `second` with root `after`."""
    if first == second:
        return before == after and not path
    if first == 0:
        return before == EMPTY and not path
    if not 0 < first < second or not path:
        return False
    nodes = [before, *path] if first & (first - 1) == 0 else list(path)
    position, last = first - 1, second - 1
    while position % 2:
        position, last = position >> 1, last >> 1
    old = new = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if position % 2 or position == last:
            old, new = node_hash(node, old), node_hash(node, new)
            while position % 2 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            new = node_hash(new, node)
        position, last = position >> 1, last >> 1
    return last == 0 and old == before and new == after


def _split(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)
