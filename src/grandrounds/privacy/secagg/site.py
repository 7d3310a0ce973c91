"""A site's side of one secure sum: it answers five requests, checks each, and refuses to unmask another site.

The server is not trusted. Keys are valid only if their owners signed them, and shares can be read only by the site they are
sealed for. For every neighbour either the share of its mask key or that of its self-mask leaves, according to the one list
of survivors that enough sites signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.privacy.secagg.keys import (
    SEALED_BYTES,
    OwnKeys,
    Secret,
    apply_masks,
    mask_key,
    seal,
    seal_keys,
    self_mask_key,
    unseal,
)
from grandrounds.privacy.secagg.payload import Malformed, as_bytes, as_numbers, as_rows, fingerprint, numbers, rows
from grandrounds.privacy.secagg.roster import Roster, has_signed
from grandrounds.privacy.secagg.shamir import COEFFICIENT_BYTES, SHARE_BYTES, split
from grandrounds.privacy.secagg.terms import DEGREE, Context, Message, Refused, Steps, hide, least
from grandrounds.protocol.identity import SIGNATURE_BYTES, Identity
from grandrounds.protocol.messages import Payload


class SecureSite:
    """One site in one sum. The methods are the steps in order; requests and answers are plain values."""

    def __init__(
        self,
        name: str,
        context: Context,
        *,
        identity: Identity,
        peers: Mapping[str, bytes],
        secret: Secret,
        degree: int = DEGREE,
        largest: float = 1.0,
    ) -> None:
        """Create a site's side of a sum.

        Args:
            name: Name of the site.
            context: Run, round and tag of the sum.
            identity: The site's private signing key.
            peers: Public key of every site that this one knows, its own included.
            secret: Source of the site's randomness.
            degree: Number of neighbours of a site.
            largest: Largest share of one site in a weighted sum.
        """
        self.name, self.context = name, context
        self._identity, self._peers, self._secret, self._degree = identity, dict(peers), secret, degree
        self._largest = largest
        self._steps = Steps()
        self._keys = OwnKeys(secret, context, name)
        self._announced = self._keys.announce(identity).pack()
        self._roster: Roster | None = None
        self._me = -1
        self._neighbours: tuple[int, ...] = ()
        self._sealing: dict[int, tuple[bytes, bytes]] = {}
        self._own_shares: tuple[bytes, bytes] = (b"", b"")
        self._held: dict[int, tuple[bytes, bytes]] = {}  # peer -> shares of its mask key and of its self-mask
        self._shared: frozenset[int] = frozenset()  # this site and the neighbours who sent it shares, readable or not
        self._survivors: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"SecureSite({self.name}, {self.context})"

    @property
    def weights(self) -> tuple[float, ...]:
        """This site's weights, one for each part of its vector, as on the roster; known after `shares`."""
        return tuple(self._agreed().weights[self._me].tolist())

    @property
    def terms(self) -> str:
        """Identify this sum by its context and the hash of participants, keys and weights."""
        return f"{self.context} {self._agreed().terms.hex()}"

    @property
    def everybody(self) -> dict[str, tuple[float, ...]]:
        """Every site's weights by name, as on the roster."""
        roster = self._agreed()
        return {name: tuple(weights) for name, weights in zip(roster.names, roster.weights.tolist(), strict=True)}

    def keys(self) -> Message:
        """Announce fresh signed keys: `keys`."""
        return self._steps.take("keys", b"", lambda: {"keys": as_bytes(self._announced)})

    def shares(self, question: Payload) -> Message:
        """Share out the secrets that remove the masks, sealed: `sealed`, one row for each neighbour.

        The request contains the roster: `names`, `keys`, `threshold`, `weights`.
        """
        return self._step("shares", question, lambda: self._share(question))

    def masked(self, values: Array, question: Payload) -> Message:
        """Mask ring elements (P,) of `Scale.to_ring`: `masked`, and the senders of unreadable shares: `unreadable`.

        The request contains the shares for this site: `senders` and their `sealed` rows.
        """
        if values.ndim != 1 or values.dtype not in (np.uint32, np.uint64):
            raise TypeError("only ring elements can be masked: convert values with Scale.to_ring")
        fingerprint_of_values = hashlib.sha256(np.ascontiguousarray(values).data).digest()
        return self._step("masked", question, lambda: self._mask(values, question), fingerprint_of_values)

    def sign(self, question: Payload) -> Message:
        """Sign a list of `survivors`, the sites whose values arrived: `signature`. Only one list is signed."""
        return self._step("sign", question, lambda: self._sign(question))

    def unmask(self, question: Payload) -> Message:
        """Return a share for each neighbour that removes its masks: `owners`, `shares`.

        The share is of its self-mask if it survived, else of its mask key. The request contains the signed list:
        `survivors`, `signers` and their `signatures`, as far as they concern its neighbours.
        """
        return self._step("unmask", question, lambda: self._unmask(question))

    def _step(self, step: str, question: Any, work: Callable[[], Message], content: bytes = b"") -> Message:
        if not isinstance(question, Mapping):
            raise Refused("malformed")
        try:
            return self._steps.take(step, fingerprint(question) + content, work)
        except Malformed:
            raise Refused("malformed") from None

    def _share(self, question: Payload) -> Message:
        roster = Roster.read(question, self.context, self._degree)
        roster.check(self._peers, largest=self._largest)
        if self.name not in roster.names:
            raise Refused("own-keys")
        me = roster.names.index(self.name)
        if roster.announced(me).pack() != self._announced:
            raise Refused("own-keys")
        neighbours, keys = roster.graph.neighbours(me), self._keys
        points = [k + 1 for k in (me, *neighbours)]
        mask_shares = self._split(keys.mask_private, points, roster.threshold, "mask key")
        seed_shares = self._split(keys.seed, points, roster.threshold, "self-mask")
        sealing = {
            k: seal_keys(keys.seal, roster.announced(k).seal, terms=roster.terms, site=me, other=k) for k in neighbours
        }
        sealed = [
            seal(sealing[k][0], mask_shares[place] + seed_shares[place], terms=roster.terms, sender=me, receiver=k)
            for place, k in enumerate(neighbours, start=1)
        ]
        self._roster, self._me, self._neighbours, self._sealing = roster, me, neighbours, sealing
        self._own_shares = mask_shares[0], seed_shares[0]
        return {"sealed": as_rows(sealed, SEALED_BYTES)}

    def _mask(self, values: Array, question: Payload) -> Message:
        roster, me, keys = self._agreed(), self._me, self._keys
        senders = numbers(question, "senders", below=len(roster))
        sealed = dict(zip(senders, rows(question, "sealed", SEALED_BYTES, count=len(senders)), strict=True))
        if not set(senders) <= set(self._neighbours):
            raise Refused("malformed")
        opened = {k: unseal(self._sealing[k][1], sealed[k], terms=roster.terms, sender=k, receiver=me) for k in senders}
        readable = {k: (text[:SHARE_BYTES], text[SHARE_BYTES:]) for k, text in opened.items() if text is not None}
        if len(readable) + 1 < roster.threshold:
            raise Refused("shares")
        pair = {k: mask_key(keys.mask, roster.announced(k).mask, terms=roster.terms, pair=(me, k)) for k in senders}
        out = values.copy()
        add = [self_mask_key(keys.seed, terms=roster.terms, site=me), *(pair[k] for k in senders if k > me)]
        apply_masks(out, add=add, take=[pair[k] for k in senders if k < me])
        self._held = {**readable, me: self._own_shares}
        self._shared = frozenset((me, *senders))
        return {"masked": out, "unreadable": as_numbers(set(senders) - set(readable))}

    def _sign(self, question: Payload) -> Message:
        roster = self._agreed()
        survivors = numbers(question, "survivors", below=len(roster))
        near = {self._me, *self._neighbours} & set(survivors)
        enough = len(near) >= roster.threshold and len(survivors) >= least(len(roster))
        if self._me not in near or not near <= self._shared or not enough:
            raise Refused("survivors")
        if not hide(roster.weights, survivors, largest=self._largest):
            raise Refused("weight")
        self._survivors = survivors
        return {"signature": as_bytes(self._identity.sign(roster.survivors_statement(survivors)))}

    def _unmask(self, question: Payload) -> Message:
        roster, survivors = self._agreed(), numbers(question, "survivors", below=len(self._agreed()))
        if survivors != self._survivors:
            raise Refused("survivors")
        signers = numbers(question, "signers", below=len(roster))
        signatures = zip(signers, rows(question, "signatures", SIGNATURE_BYTES, count=len(signers)), strict=True)
        statement = roster.survivors_statement(survivors)
        agreed = {k for k, signature in signatures if has_signed(self._peers[roster.names[k]], statement, signature)}
        # counted among the holders of the owner's shares: two lists for one owner must share an honest site
        for owner in self._shared:
            if len(agreed & {owner, *roster.graph.neighbours(owner)}) < roster.threshold:
                raise Refused("signatures")
        owners = sorted(self._held)
        lived = set(survivors)
        shares = [self._held[k][1 if k in lived else 0] for k in owners]
        return {"owners": as_numbers(owners), "shares": as_rows(shares, SHARE_BYTES)}

    def _agreed(self) -> Roster:
        if self._roster is None:
            raise Refused("out-of-order")
        return self._roster

    def _split(self, secret: bytes, points: list[int], threshold: int, purpose: str) -> list[bytes]:
        entropy = self._secret.bytes(f"{self.context}: shares of the {purpose}", COEFFICIENT_BYTES * (threshold - 1))
        return split(secret, points, threshold=threshold, entropy=entropy)
