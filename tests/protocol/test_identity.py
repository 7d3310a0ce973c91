"""Keys and signatures: RFC 8032's own vectors, and what is no key or no signature is told apart without a traceback."""

from __future__ import annotations

import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.protocol.identity import Identity, load_public, public_pem, signed_by
from tests.support import refused

VECTORS = [  # RFC 8032, section 7.1, tests 1 to 3: secret, public, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), VECTORS)
def test_signatures_are_those_of_rfc_8032(secret, public, message, signature):
    me = Identity(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)))
    assert me.public.hex() == public
    assert me.sign(bytes.fromhex(message)).hex() == signature
    assert signed_by(me.public, bytes.fromhex(message), bytes.fromhex(signature))


@given(st.binary(max_size=40), st.integers(0, 511))
def test_any_flipped_bit_of_a_signature_is_noticed(message, bit):
    me = Identity.simulated(0, "a")
    signature = bytearray(me.sign(message))
    signature[bit // 8] ^= 1 << bit % 8
    assert not signed_by(me.public, message, bytes(signature))
    assert not signed_by(me.public, message + b"x", me.sign(message))


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_what_is_no_key_or_no_signature_is_not_signed(key, signature):
    assert not signed_by(key, b"message", signature)


def test_simulated_keys_follow_from_seed_and_name_alone():
    keys = {Identity.simulated(seed, who).public for seed in (0, 1) for who in ("server", "a", "b")}
    assert len(keys) == 6
    assert Identity.simulated(0, "a").public == Identity.simulated(0, "a").public
    assert Identity.new().public != Identity.new().public


def test_a_key_comes_back_from_its_file_and_is_its_owners_alone(tmp_path):
    me, path = Identity.new(), tmp_path / "key.pem"
    me.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).public == me.public
    with refused("cannot-write"):
        Identity.new().save(path)
    assert Identity.load(path).public == me.public


def test_public_keys_are_read_as_pem_and_as_digits(tmp_path):
    me = Identity.simulated(3, "server")
    (tmp_path / "server.pub").write_bytes(public_pem(me.public))
    (tmp_path / "server.hex").write_text(me.public.hex() + "\n")
    assert load_public(tmp_path / "server.pub") == load_public(tmp_path / "server.hex") == me.public


def test_other_files_are_refused_in_words(tmp_path):
    other = generate_private_key(SECP256R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "ec.pem").write_bytes(other.private_bytes(*form))
    (tmp_path / "ec.pub").write_bytes(other.public_key().public_bytes(*public))
    (tmp_path / "text").write_text("no key")
    (tmp_path / "short").write_text("00" * 31)
    for name, code in (("text", "bad-key"), ("short", "bad-key"), ("none", "cannot-read")):
        with refused(code):
            load_public(tmp_path / name)
        with refused(code):
            Identity.load(tmp_path / name)
    with refused("wrong-key-type"):
        load_public(tmp_path / "ec.pub")
    with refused("wrong-key-type"):
        Identity.load(tmp_path / "ec.pem")


def test_the_private_half_is_in_no_word_of_it():
    me = Identity.simulated(0, "server")
    secret = me._key.private_bytes_raw().hex()
    assert secret not in repr(me) and secret not in str(vars(me))
    assert me.public.hex() in repr(me)
