"""A site's keys for one sum, what it announces of them, and the keys that two sites agree on.

Everything is fresh for each sum: one X25519 pair for masks (its private half is shared out, and read again by the server
where the site drops out), one for sealing shares (its private half never leaves), and the seed of the site's own mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from grandrounds.privacy.secagg.context import Context, digest, joined
from grandrounds.privacy.secagg.prg import KEY_BYTES, derived
from grandrounds.privacy.secagg.secret import Secret
from grandrounds.privacy.secagg.shamir import SHARE_BYTES
from grandrounds.protocol.identity import SIGNATURE_BYTES, Identity

ANNOUNCED_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16
_NONCE = bytes(12)  # a sealing key is for one message
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(32)))


@dataclass(frozen=True)
class Announced:
    """What everybody may know of a site's keys, signed by the site: both public halves and a commitment to the seed."""

    mask: bytes
    seal: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def unpack(cls, data: bytes) -> Announced:
        mask, seal, commitment = (data[k * KEY_BYTES : (k + 1) * KEY_BYTES] for k in range(3))
        return cls(mask, seal, commitment, data[3 * KEY_BYTES :])

    def pack(self) -> bytes:
        return self.mask + self.seal + self.commitment + self.signature

    def statement(self, context: Context, site: str) -> bytes:
        """What the signature is over."""
        return joined("keys", context.bytes, site, self.mask, self.seal, self.commitment)

    @property
    def weak(self) -> bool:
        """Whether one of the keys is a point of low order: all secrets agreed with it are the same."""
        return _weak(self.mask) or _weak(self.seal)


class OwnKeys:
    """The private side; prints nothing of it."""

    def __init__(self, secret: Secret, context: Context, site: str) -> None:
        def fresh(purpose: str) -> bytes:
            return secret.bytes(f"{context}: {purpose}", KEY_BYTES)

        self.mask_private, self.seal_private, self.seed = fresh("mask key"), fresh("seal key"), fresh("self-mask")
        self.mask = X25519PrivateKey.from_private_bytes(self.mask_private)
        self.seal = X25519PrivateKey.from_private_bytes(self.seal_private)
        self._context, self._site = context, site

    def announce(self, identity: Identity) -> Announced:
        unsigned = Announced(
            self.mask.public_key().public_bytes_raw(),
            self.seal.public_key().public_bytes_raw(),
            commitment(self._context, self._site, self.seed),
            b"",
        )
        signature = identity.sign(unsigned.statement(self._context, self._site))
        return Announced(unsigned.mask, unsigned.seal, unsigned.commitment, signature)

    def __repr__(self) -> str:
        return f"OwnKeys({self._site})"


def commitment(context: Context, site: str, seed: bytes) -> bytes:
    """Binds a site to its seed before anybody sees a share; says nothing of 32 random bytes."""
    return digest("self-mask", context.bytes, site, seed)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mask_key(private: X25519PrivateKey, public: bytes, *, terms: bytes, pair: tuple[int, int]) -> bytes:
    """The key of the mask that two sites share, the same at either end; `pair` is their numbers on the roster."""
    return derived(_agreed(private, public), "mask", terms, min(pair), max(pair))


def self_mask_key(seed: bytes, *, terms: bytes, site: int) -> bytes:
    return derived(seed, "self-mask", terms, site)


def seal_keys(private: X25519PrivateKey, public: bytes, *, terms: bytes, own: int, other: int) -> tuple[bytes, bytes]:
    """The keys for what this site seals for another, and for what the other seals for it."""
    both = derived(_agreed(private, public), "seal", terms, min(own, other), max(own, other), size=2 * KEY_BYTES)
    up, down = both[:KEY_BYTES], both[KEY_BYTES:]
    return (up, down) if own < other else (down, up)


def seal(key: bytes, text: bytes, *, terms: bytes, sender: int, to: int) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, joined(terms, sender, to))


def unseal(key: bytes, sealed: bytes, *, terms: bytes, sender: int, to: int) -> bytes | None:
    """What was sealed, or None where it was sealed otherwise or altered."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, joined(terms, sender, to))
    except InvalidTag:
        return None


def _agreed(private: X25519PrivateKey, public: bytes) -> bytes:
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def _weak(public: bytes) -> bool:
    try:
        _agreed(_PROBE, public)
    except ValueError:
        return True
    return False
