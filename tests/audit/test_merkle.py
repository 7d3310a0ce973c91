"""RFC 6962: the eight-leaf vectors of Certificate Transparency, parity with pymerkle, and proofs that cannot be bent."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree, verify_consistency, verify_inclusion

from grandrounds.audit.merkle import EMPTY, Tree, extends, includes, leaf_hash

LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
A, B, C = (
    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
)
D, E, F = (
    "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
    "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
)
PATHS = [(0, 8, [A, B, C]), (5, 8, [D, E, ROOTS[3]]), (2, 3, [ROOTS[1]]), (0, 1, [])]
CONSISTENT = [(1, 8, [A, B, C]), (6, 8, [F, E, ROOTS[3]]), (2, 5, [B, D]), (1, 1, [])]
TREE = Tree(leaf_hash(bytes.fromhex(leaf)) for leaf in LEAVES)


def test_roots_of_the_reference_tree():
    assert [TREE.root(size).hex() for size in range(1, 9)] == ROOTS
    assert Tree().root() == TREE.root(0) == EMPTY == hashlib.sha256(b"").digest()


@pytest.mark.parametrize(("number", "size", "path"), PATHS)
def test_inclusion_paths_of_the_reference_tree(number, size, path):
    assert [node.hex() for node in TREE.inclusion(number, size)] == path


@pytest.mark.parametrize(("first", "second", "path"), CONSISTENT)
def test_consistency_proofs_of_the_reference_tree(first, second, path):
    assert [node.hex() for node in TREE.consistency(first, second)] == path


def grown(size: int) -> tuple[Tree, InmemoryTree]:
    theirs = InmemoryTree(algorithm="sha256")
    for n in range(size):
        theirs.append_entry(str(n).encode())
    return Tree(leaf_hash(str(n).encode()) for n in range(size)), theirs


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 21])
def test_every_root_and_proof_satisfies_another_implementation(size):
    """pymerkle states its proofs otherwise; what it computes from its own must be our roots, and its roots ours."""
    ours, theirs = grown(size)
    assert ours.root() == theirs.get_root()
    for n in range(1, size + 1):
        assert ours.root(n) == theirs.get_root(n)
        proof = theirs.prove_inclusion(n, size)
        verify_inclusion(theirs.get_leaf(n), ours.root(), proof)
        assert ours.leaf(n - 1) == theirs.get_leaf(n)
        verify_consistency(ours.root(n), ours.root(), theirs.prove_consistency(n, size))


@given(st.data())
def test_every_proof_holds_and_no_bent_one_does(data):
    size = data.draw(st.integers(1, 70))
    tree = Tree(leaf_hash(bytes([n])) for n in range(size))
    number = data.draw(st.integers(0, size - 1))
    path, root = tree.inclusion(number), tree.root()
    assert includes(root, size, number=number, leaf=tree.leaf(number), path=path)
    other = data.draw(st.integers(0, size - 1).filter(lambda n: n != number)) if size > 1 else None
    if other is not None:
        assert not includes(root, size, number=other, leaf=tree.leaf(number), path=path)
        assert not includes(root, size, number=number, leaf=tree.leaf(other), path=path)
    assert not includes(root, size, number=size, leaf=tree.leaf(number), path=path)
    assert not includes(root, size, number=number, leaf=tree.leaf(number), path=[*path, root])
    for at in range(len(path)):
        bent = [*path]
        bent[at] = bytes([bent[at][0] ^ 1]) + bent[at][1:]
        assert not includes(root, size, number=number, leaf=tree.leaf(number), path=bent)
        assert not includes(root, size, number=number, leaf=tree.leaf(number), path=path[:at] + path[at + 1 :])


@given(st.data())
def test_every_beginning_is_shown_and_no_other_history_is(data):
    second = data.draw(st.integers(1, 70))
    first = data.draw(st.integers(0, second))
    tree = Tree(leaf_hash(bytes([n])) for n in range(second))
    forked = Tree(leaf_hash(bytes([n, 1 if n == first - 1 else 0][: 1 + (n == first - 1)])) for n in range(second))
    before, after, path = tree.root(first), tree.root(), tree.consistency(first)
    assert extends(before, after, first=first, second=second, path=path)
    if first:
        assert not extends(forked.root(first), after, first=first, second=second, path=path)
        assert not extends(before, forked.root(), first=first, second=second, path=forked.consistency(first))
    assert not extends(before, after, first=first, second=second, path=[*path, before])
    for at in range(len(path)):
        bent = [*path]
        bent[at] = bytes([bent[at][0] ^ 1]) + bent[at][1:]
        assert not extends(before, after, first=first, second=second, path=bent)


def test_what_is_not_there_is_an_error():
    with pytest.raises(IndexError):
        TREE.root(9)
    with pytest.raises(IndexError):
        TREE.inclusion(8)
    with pytest.raises(IndexError):
        TREE.consistency(5, 4)
