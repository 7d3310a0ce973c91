"""Shares: any so many give the secret, one fewer fits every secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.privacy.secagg.shamir import (
    COEFFICIENT_BYTES,
    PRIME,
    Recovered,
    combine,
    fits,
    recover,
    split,
    value_at,
)

secrets = st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32])


def probably_prime(n: int) -> bool:
    """Miller-Rabin with the first forty bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
            return False
    return True


def test_modulus_is_the_first_prime_above_every_secret():
    assert probably_prime(PRIME)
    assert not any(probably_prime(n) for n in range(2**256, PRIME))


def test_worked_by_hand():
    """Threshold 2: the line secret + 5 x."""
    entropy = (5).to_bytes(COEFFICIENT_BYTES, "big")
    shares = split((7).to_bytes(32, "big"), [1, 2, 10], threshold=2, entropy=entropy)
    assert [int.from_bytes(s, "big") for s in shares] == [12, 17, 57]
    assert combine({2: shares[1], 10: shares[2]}) == (7).to_bytes(32, "big")


@given(secrets, st.integers(1, 12), st.integers(0, 8), st.data())
@settings(max_examples=80, deadline=None)
def test_any_threshold_of_them_give_the_secret(secret, threshold, more, data):
    points = data.draw(
        st.lists(st.integers(1, 2000), min_size=threshold + more, max_size=threshold + more, unique=True)
    )
    entropy = data.draw(st.binary(min_size=48 * (threshold - 1), max_size=48 * (threshold - 1)))
    shares = dict(zip(points, split(secret, points, threshold=threshold, entropy=entropy), strict=True))
    some = data.draw(st.permutations(points))[:threshold]
    chosen = {p: shares[p] for p in some}
    assert combine(chosen) == secret
    assert all(fits(chosen, p, shares[p]) for p in points)


@given(secrets, secrets, st.integers(2, 8), st.binary(min_size=48 * 7, max_size=48 * 7))
@settings(max_examples=50, deadline=None)
def test_one_share_fewer_fits_every_other_secret(secret, other, threshold, entropy):
    """For each other secret there is one further share with which it would come out: fewer shares tell nothing."""
    points = list(range(1, threshold))
    shares = split(secret, points, threshold=threshold, entropy=entropy[: 48 * (threshold - 1)])
    held = dict(zip(points, shares, strict=True))
    further = value_at(threshold, {0: other.rjust(33, b"\0"), **held}).to_bytes(33, "big")
    assert combine({**held, threshold: further}) == other


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError):
        split(bytes(31), [1, 2], threshold=1, entropy=b"")
    with pytest.raises(ValueError):
        split(bytes(32), [1, 2], threshold=2, entropy=bytes(47))


def dealt(n: int, threshold: int) -> tuple[bytes, dict[int, bytes]]:
    secret = bytes(range(32))
    entropy = bytes((7 * k) % 251 for k in range(48 * (threshold - 1)))
    return secret, dict(
        zip(range(1, n + 1), split(secret, range(1, n + 1), threshold=threshold, entropy=entropy), strict=True)
    )


@pytest.mark.parametrize(
    ("n", "threshold", "liars"), [(4, 3, [1]), (5, 4, [3]), (9, 6, [1, 2, 6]), (100, 67, [1, 50, 99])]
)
def test_false_shares_are_worked_around_and_their_holders_named(n, threshold, liars):
    secret, shares = dealt(n, threshold)
    for liar in liars:
        shares[liar] = bytes(reversed(shares[liar]))
    found = recover(shares, threshold=threshold, proves=lambda s: s == secret)
    assert found == Recovered(secret, frozenset(liars))
    assert secret.hex() not in repr(found)
    assert str(secret) not in repr(found)


def test_too_few_true_shares_give_nothing():
    secret, shares = dealt(5, 4)
    shares[1] = shares[2] = bytes(33)
    assert recover(shares, threshold=4, proves=lambda s: s == secret) is None
    assert recover({1: bytes(33)}, threshold=4, proves=lambda s: True) is None


def test_a_suspect_is_asked_last():
    secret, shares = dealt(5, 4)
    shares[1] = b"\xff" * 33
    tried = []
    found = recover(shares, threshold=4, proves=lambda s: tried.append(s) or s == secret, suspects=frozenset([1]))
    assert found is not None and found.secret == secret
    assert len(tried) == 1
