"""A site's own randomness, and what is bound to which sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grandrounds.privacy.secagg import Context, Secret
from grandrounds.privacy.secagg.keys import seal, unseal
from grandrounds.privacy.secagg.terms import joined


def test_a_simulated_secret_repeats_by_seed_site_and_purpose():
    secret = Secret.simulated(3, "a")
    assert secret.bytes("key", 32) == Secret.simulated(3, "a").bytes("key", 32)
    streams = {
        Secret.simulated(seed, site).bytes(purpose, 32)
        for seed in (3, 4)
        for site in ("a", "b")
        for purpose in ("key", "noise")
    }
    assert len(streams) == 8
    assert secret.is_simulated


def test_a_deployed_secret_never_repeats():
    secret = Secret.own()
    assert secret.bytes("key", 32) != secret.bytes("key", 32)
    assert not secret.is_simulated


parts = st.lists(st.binary(max_size=6), max_size=4)


@given(parts, parts)
def test_parts_cannot_be_shifted_between_one_another(first, second):
    assert (joined(*first) == joined(*second)) == (first == second)


def test_contexts_differ_where_words_could_run_together():
    assert Context("a/1", 2, "b").bytes != Context("a", 1, "2/b").bytes
    assert len({Context("r", 1, "11").bytes, Context("r", 11, "1").bytes, Context("r1", 1, "1").bytes}) == 3


def test_a_sealed_share_opens_for_its_reader_in_its_sum_only():
    key, terms = bytes(32), b"t" * 32
    sealed = seal(key, b"share", terms=terms, sender=1, receiver=2)
    assert unseal(key, sealed, terms=terms, sender=1, receiver=2) == b"share"
    assert unseal(key, sealed, terms=terms, sender=2, receiver=1) is None
    assert unseal(key, sealed, terms=b"u" * 32, sender=1, receiver=2) is None
    assert unseal(b"\1" * 32, sealed, terms=terms, sender=1, receiver=2) is None
    assert unseal(key, sealed[:-1] + b"\0", terms=terms, sender=1, receiver=2) is None
