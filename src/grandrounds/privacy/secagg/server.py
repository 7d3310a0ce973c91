"""The server's side of one secure sum: ask step by step, add up the answers, and remove the masks from the sum.

A site may send anything. A site whose answer is provably wrong is excluded, with a cause; too few remaining sites halt the
sum. `missing` lists the sites whose values are not in it, `faults` those that failed after their values were added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.keys import (
    ANNOUNCED_BYTES,
    SEALED_BYTES,
    Announced,
    apply_masks,
    commitment,
    mask_key,
    public_of,
    self_mask_key,
)
from grandrounds.privacy.secagg.payload import Malformed, as_numbers, as_rows, numbers, part, raw, rows
from grandrounds.privacy.secagg.ring import Scale
from grandrounds.privacy.secagg.roster import Roster
from grandrounds.privacy.secagg.shamir import SHARE_BYTES, Recovered, recover
from grandrounds.privacy.secagg.terms import DEGREE, FEWEST_SITES, STEPS, Context, Halted, hide, least
from grandrounds.protocol.identity import SIGNATURE_BYTES, signed_by
from grandrounds.protocol.messages import Payload

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Question:
    """The next request: a part for all sites, a part for each, and the recipients."""

    step: str
    to: tuple[str, ...]
    shared: Payload = field(default_factory=dict)
    each: Mapping[str, Payload] = field(default_factory=dict)


class SecureSum:
    """One secure sum. `ask` closes a step and opens the next; `take` accepts an answer; after the last step, `total`
    returns the sum.
    """

    def __init__(
        self,
        context: Context,
        *,
        peers: Mapping[str, bytes],
        scale: Scale,
        size: int,
        weights: Mapping[str, Sequence[float]] | None = None,
        threshold: int | None = None,
        degree: int = DEGREE,
    ) -> None:
        """Create a sum.

        Args:
            context: Run, round and tag of the sum.
            peers: Public key of every site that is asked.
            scale: Fixed-point scale.
            size: Length of each site's vector.
            weights: For a weighted sum, each site's weights, one for each part of its vector. Sites multiply; all sites see
                all weights.
            threshold: Number of shares that reconstruct a secret; by default the lowest that sites accept.
            degree: Number of neighbours of a site.

        Raises:
            BadInput: The scale has room for fewer sites than are asked.
        """
        if len(peers) > scale.parties:
            raise BadInput(
                f"the scale of this sum has room for {scale.parties} sites, but {len(peers)} are asked",
                code="too-many-sites",
            )
        self.context, self.scale, self.size = context, scale, size
        self.missing: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self._peers, self._weights, self._threshold, self._degree = dict(peers), weights, threshold, degree
        self._step = -1
        self._waiting: set[str] = set()
        self._announced: dict[str, bytes] = {}
        self._roster: Roster | None = None
        self._number: dict[str, int] = {}
        self._around: list[frozenset[int]] = []  # each site's neighbourhood, itself included
        self._sealed: dict[int, dict[int, bytes]] = {}  # sender -> neighbour -> sealed shares
        self._sum = np.zeros(size, scale.dtype)
        self._survivors: set[int] = set()
        self._statement = b""  # the list that the sites sign
        self._signatures: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}  # owner -> holder -> share
        self._unreadable: dict[int, int] = {}
        self._takes: dict[str, Callable[[str, Any], None]] = {
            "keys": self._take_keys,
            "shares": self._take_shares,
            "masked": self._take_masked,
            "sign": self._take_signature,
            "unmask": self._take_unmasking,
        }

    @property
    def step(self) -> str:
        return STEPS[self._step] if self._step >= 0 else ""

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites whose values are in the sum."""
        return tuple(self._roster.names[k] for k in sorted(self._survivors)) if self._roster else ()

    def ask(self) -> Question:
        """Close the open step and return the next request.

        Raises:
            Halted: Too few sites are left.
        """
        self._close()
        self._step += 1
        asks = (self._ask_keys, self._ask_shares, self._ask_masked, self._ask_sign, self._ask_unmask)
        question = asks[self._step]()
        self._waiting = set(question.to)
        return question

    def take(self, site: str, answer: Any) -> None:
        """Accept one site's answer to the open step. An unexpected one (from another party, or a second one) is ignored."""
        if site not in self._waiting:
            return
        self._waiting.discard(site)
        try:
            self._takes[self.step](site, answer)
        except Malformed as e:
            self._out(site, f"sent an invalid '{e}'")

    def lost(self, site: str, why: str) -> None:
        """Record that this site will not answer the open step: it refused, or was too late."""
        if site in self._waiting:
            self._waiting.discard(site)
            self._out(site, why)

    def total(self) -> Array:
        """Remove the masks and return the sum over `sites` in float64, (size,).

        Raises:
            Halted: The sum cannot be computed, or is impossible for honest sites.
        """
        self._close()
        roster = self._agreed()
        add: list[bytes] = []
        take: list[bytes] = []
        suspects: set[int] = set()
        for k in sorted(self._sealed):
            if k in self._survivors:
                seed = self._recover(k, "self-mask", suspects, self._proves_seed(k))
                take.append(self_mask_key(seed, terms=roster.terms, site=k))
                continue
            private = X25519PrivateKey.from_private_bytes(self._recover(k, "mask key", suspects, self._proves_mask(k)))
            for peer in sorted((self._around[k] & self._survivors) - {k}):
                key = mask_key(private, roster.announced(peer).mask, terms=roster.terms, pair=(k, peer))
                (take if peer < k else add).append(key)
        plain = self._sum.copy()
        apply_masks(plain, add=add, take=take)
        if not self.scale.possible(plain):
            raise self._halted("the sum is impossible for honest sites: one of them did not mask as agreed")
        return self.scale.from_ring(plain)

    def _ask_keys(self) -> Question:
        return Question("keys", tuple(sorted(self._peers)))

    def _ask_shares(self) -> Question:
        self._enough(len(self._announced), FEWEST_SITES)
        roster = Roster.of(
            self.context, self._announced, threshold=self._threshold, degree=self._degree, weights=self._weights
        )
        self._hidden(roster, range(len(roster)))
        self._roster = roster
        self._number = {name: k for k, name in enumerate(roster.names)}
        self._around = [frozenset((k, *roster.graph.neighbours(k))) for k in range(len(roster))]
        return Question("shares", roster.names, shared=roster.message())

    def _ask_masked(self) -> Question:
        self._enough_around(self._sealed)
        each: dict[str, Payload] = {}
        for k in sorted(self._sealed):
            senders = sorted((self._around[k] & self._sealed.keys()) - {k})
            rows = as_rows([self._sealed[s][k] for s in senders], SEALED_BYTES)
            each[self._agreed().names[k]] = {"senders": as_numbers(senders), "sealed": rows}
        return Question("masked", tuple(each), each=each)

    def _ask_sign(self) -> Question:
        self._enough_around(self._survivors)
        self._hidden(self._agreed(), self._survivors)
        self._statement = self._agreed().survivors_statement(tuple(sorted(self._survivors)))
        return Question("sign", self.sites, shared={"survivors": as_numbers(self._survivors)})

    def _ask_unmask(self) -> Question:
        self._enough_around(self._signatures)
        roster, each = self._agreed(), dict[str, Payload]()
        for k in sorted(self._signatures):
            near = sorted(self._signatures.keys() & {k, *roster.graph.within(k, 2)})
            signatures = as_rows([self._signatures[s] for s in near], SIGNATURE_BYTES)
            each[roster.names[k]] = {"signers": as_numbers(near), "signatures": signatures}
        return Question("unmask", tuple(each), shared={"survivors": as_numbers(self._survivors)}, each=each)

    def _take_keys(self, site: str, answer: Any) -> None:
        data = raw(answer, "keys", ANNOUNCED_BYTES)
        announced = Announced.unpack(data)
        if not signed_by(self._peers[site], announced.statement(self.context, site), announced.signature):
            self._out(site, "its keys are not signed by it")
        elif announced.weak:
            self._out(site, "its keys are weak")
        else:
            self._announced[site] = data

    def _take_shares(self, site: str, answer: Any) -> None:
        k = self._number[site]
        neighbours = self._agreed().graph.neighbours(k)
        self._sealed[k] = dict(
            zip(neighbours, rows(answer, "sealed", SEALED_BYTES, count=len(neighbours)), strict=True)
        )

    def _take_masked(self, site: str, answer: Any) -> None:
        k = self._number[site]
        masked = part(answer, "masked", self.scale.dtype.type, (self.size,))
        unreadable = numbers(answer, "unreadable", below=len(self._agreed()))
        self._sum += masked
        self._survivors.add(k)
        for owner in unreadable:
            self._unreadable[owner] = self._unreadable.get(owner, 0) + 1

    def _take_signature(self, site: str, answer: Any) -> None:
        signature = raw(answer, "signature", SIGNATURE_BYTES)
        if not signed_by(self._peers[site], self._statement, signature):
            self._out(site, "its signature of the survivors is invalid")
        else:
            self._signatures[self._number[site]] = signature

    def _take_unmasking(self, site: str, answer: Any) -> None:
        holder = self._number[site]
        owners = numbers(answer, "owners", below=len(self._agreed()))
        shares = rows(answer, "shares", SHARE_BYTES, count=len(owners))
        if not self._around[holder].issuperset(owners):
            raise Malformed("owners")
        for owner, share in zip(owners, shares, strict=True):
            self._shares.setdefault(owner, {})[holder] = share

    def _recover(self, owner: int, secret: str, suspects: set[int], proves: Callable[[bytes], bool]) -> bytes:
        """Reconstruct a secret of one site; holders of false shares are recorded as faults."""
        roster = self._agreed()
        shares = {holder + 1: share for holder, share in self._shares.get(owner, {}).items()}
        if len(shares) < roster.threshold:
            unread = self._unreadable.get(owner, 0)
            more = f" ({unread} could not read theirs)" if unread else ""
            raise self._halted(
                f"the {secret} of {roster.names[owner]} needs {roster.threshold} shares, but {len(shares)} arrived{more}"
            )
        recovered: Recovered | None = recover(
            shares, threshold=roster.threshold, proves=proves, suspects=frozenset(suspects)
        )
        if recovered is None:
            raise self._halted(
                f"the {secret} of {roster.names[owner]} cannot be reconstructed from {len(shares)} shares: that site or "
                "some of their holders sent false ones"
            )
        suspects |= recovered.false
        for point in recovered.false:
            self.faults.setdefault(roster.names[point - 1], "sent, or was dealt, a share that does not fit")
        return recovered.secret

    def _proves_seed(self, owner: int) -> Callable[[bytes], bool]:
        name, committed = self._agreed().names[owner], self._agreed().announced(owner).commitment
        return lambda secret: commitment(self.context, name, secret) == committed

    def _proves_mask(self, owner: int) -> Callable[[bytes], bool]:
        public = self._agreed().announced(owner).mask
        return lambda secret: public_of(secret) == public

    def _close(self) -> None:
        """Exclude the sites that have not answered the open step."""
        for site in sorted(self._waiting):
            self._out(site, NO_ANSWER)
        self._waiting = set()

    def _out(self, site: str, why: str) -> None:
        contributed = site in self._number and self._number[site] in self._survivors
        (self.faults if contributed else self.missing).setdefault(site, f"{self.step}: {why}")

    def _enough(self, have: int, need: int) -> None:
        if have < need:
            closed = STEPS[self._step - 1]
            raise self._halted(
                f"after step '{closed}' {have} of {len(self._peers)} sites are left, but {need} are needed"
            )

    def _enough_around(self, survivors: Collection[int]) -> None:
        """Check that enough sites are left in total, and in every neighbourhood whose secrets must be reconstructed."""
        roster = self._agreed()
        need = roster.threshold
        self._enough(len(survivors), max(least(len(roster)), need if roster.graph.complete else 0))
        present = frozenset(survivors)
        for k in () if roster.graph.complete else self._sealed:
            if len(self._around[k] & present) < need:
                closed = STEPS[self._step - 1]
                raise self._halted(
                    f"after step '{closed}' {len(self._around[k] & present)} of the {roster.graph.around} sites around "
                    f"{roster.names[k]} are left, but {need} are needed"
                )

    def _hidden(self, roster: Roster, survivors: Collection[int]) -> None:
        if not hide(roster.weights, survivors, largest=1.0):
            raise self._halted(f"fewer than {FEWEST_SITES} of the remaining sites have any weight in the sum")

    def _halted(self, reason: str) -> Halted:
        return Halted(f"{self.context}: {reason}", missing=self.missing, faults=self.faults)

    def _agreed(self) -> Roster:
        assert self._roster is not None, "the sites have not been asked for shares yet: close step 'keys' first"
        return self._roster
