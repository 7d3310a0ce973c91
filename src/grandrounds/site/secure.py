"""A host's part in secure sums: each of its sites takes its own steps, with keys that only it knows.

What is summed never leaves the vault but under masks. A site that refuses answers with the code of its reason, and with
nothing else.

A site adds up only with the peers that its own people listed, by the keys that they listed, and with enough of them. The
server introduces sites to one another. Were it believed, it could play all the others with keys of its own, and the sum
less its own values would be the one site's (docs/threat-model.md). A refusal is a code; the names behind it stay at the site.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.trust import CLOSE
from grandrounds.protocol.messages import Ask, Columns, Value
from grandrounds.protocol.packing import pack
from grandrounds.protocol.tasks import ERROR, INTRODUCE, MEET, SUM_STEPS
from grandrounds.site.withheld import WithheldReports

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret, SecureSite
    from grandrounds.protocol.identity import Identity

_log = logging.getLogger("grandrounds.site")
_SUMS = 4
"""Sums that a site remembers at a time."""


UNKNOWN, OTHER_KEY, TOO_FEW, NOT_MET = "unknown-peer", "other-peer-key", "too-few-peers", "not-met"
_SHOWN = 80
"""Characters of a name that a server made up."""


class UnknownPeers(BadInput):
    """A site does not add up with whom it is introduced to. `code` is all that may leave; the words have names in them."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def check_peers(introduced: Mapping[str, bytes], listed: Mapping[str, bytes] | None, *, fewest: int) -> None:
    """Raise why a site does not go along with an introduction.

    `introduced`: names and keys as the server says; `listed`: as the site's own list says, None where it takes the server's word.
    """
    strangers = [] if listed is None else sorted(name for name in introduced if name not in listed)
    if strangers:
        raise UnknownPeers(UNKNOWN, f"{_named(strangers)} introduced and not on this site's list")
    changed = [] if listed is None else sorted(name for name, key in introduced.items() if listed[name] != key)
    if changed:
        raise UnknownPeers(OTHER_KEY, f"{_named(changed)} introduced with another key than this site's list has")
    if len(introduced) < fewest:
        raise UnknownPeers(
            TOO_FEW, f"{len(introduced)} sites are introduced, and this site adds up with {fewest} or more"
        )


def _named(names: list[str]) -> str:
    listed = ", ".join(name[:_SHOWN] for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{listed} {'is' if len(names) == 1 else 'are'}"


def no_secret(site: str) -> Secret:
    """A host that was given no secrets takes part in no secure sum."""
    raise BadInput("this site holds no secret of its own, so it cannot mask what it sends", code="missing-secret")


class SecureSums:
    """The sums that the sites of one host take part in."""

    def __init__(
        self,
        names: Sequence[str],
        withheld_reports: WithheldReports,
        *,
        identify: Callable[[str], Identity],
        secret: Callable[[str], Secret],
        largest_weight: float = 1.0,
        agreed: Callable[[str, int], Mapping[str, float] | None] = lambda site, round: None,
        listed: Mapping[str, bytes] | None = None,
        fewest: int = 0,
        reserved: bool = False,
    ) -> None:
        """`largest_weight`: a share of a sum beyond which a site does not take part: the sum would be its own values.

        `agreed`: the weights of models that a site went along with in a round; None where it was shown none.
        `listed`: the keys of all whom it adds up with; None where it takes the server's word for them. `fewest`: sites of a
        sum, besides what the protocol itself wants. `reserved`: whether a site that gives no values says only that: its
        reason may follow from the values.
        """
        self._names, self._withheld = tuple(names), withheld_reports
        self._identify, self._secret, self._largest, self._went_along = identify, secret, largest_weight, agreed
        self._listed, self._fewest, self._reserved = listed, fewest, reserved
        self._peers: dict[str, bytes] = {}
        self._met, self._apart = False, UnknownPeers(NOT_MET, "a secure sum is asked for before the sites have met")
        self._sums: OrderedDict[str, dict[int, SecureSite]] = OrderedDict()
        self.tasks: dict[str, Callable[[Ask, Array], Columns]] = {
            INTRODUCE: self._introduce,
            MEET: self._meet,
            **dict.fromkeys(SUM_STEPS, self._step),
        }

    def _introduce(self, ask: Ask, members: Array) -> Columns:
        keys = [self._identify(self._names[k]).public for k in members]
        return {"identity": np.frombuffer(b"".join(keys), np.uint8).reshape(len(members), -1)}

    def _meet(self, ask: Ask, members: Array) -> Columns:
        """Learn who the others are, once: a name that comes with another key later is refused.

        After a refusal no sum is taken part in, until the site is introduced to others whom it goes along with.
        """
        keys = np.asarray(ask.shared["identities"], np.uint8)
        introduced = {name: row.tobytes() for name, row in zip(json.loads(str(ask.shared["names"])), keys, strict=True)}
        self._met = False
        try:
            check_peers(introduced, self._listed, fewest=self._fewest)
            if any(self._peers.get(name, key) != key for name, key in introduced.items()):
                raise UnknownPeers(OTHER_KEY, "a site is introduced with another key than before")
            if any(introduced.get(self._names[k]) != self._identify(self._names[k]).public for k in members):
                raise UnknownPeers(OTHER_KEY, "this site is introduced to others with a key that is not its own")
        except UnknownPeers as e:
            self._apart = e
            raise
        self._peers |= introduced
        self._met = True
        return {"met": np.full(len(members), len(introduced))}

    def _step(self, ask: Ask, members: Array) -> Columns:
        from grandrounds.privacy.secagg import WITHHELD, Refused

        if not self._met:
            raise UnknownPeers(self._apart.code, str(self._apart))
        step = ask.task.removeprefix("secagg.")
        names = tuple(name for name in SUM_STEPS[ask.task] if name != ERROR)
        columns: Columns = {name: [] for name in (*names, ERROR)}
        for k in members.tolist():
            payload = {n: v for n, v in ask.for_site(self._names[k]).items() if n not in ("committed", "tag")}
            try:
                reply: Mapping[str, Value] = self._answer(step, self._site(ask, k), payload, k)
                error = ""
            except Refused as e:
                reply, error = dict.fromkeys(names, np.empty(0, np.uint8)), e.code
                if self._reserved and step == "masked":
                    _log.warning("%s: nothing was given to the sum: %s", ask.id, e)
                    error = WITHHELD
            for name in names:
                columns[name].append(reply[name])
            columns[ERROR].append(error)
        return columns

    def _answer(self, step: str, site: SecureSite, payload: dict[str, Value], k: int) -> Mapping[str, Value]:
        from grandrounds.privacy.secagg import Refused

        if step == "keys":
            return site.keys()
        if step == "shares":
            reply = site.shares(payload)
            self._refuse_few(site)
            return reply
        if step == "masked":
            self._refuse_few(site)
            sealed = {name: payload.pop(name) for name in ("senders", "sealed")}
            return site.masked(self._summand(payload, k, site), sealed)
        if np.size(payload.get("survivors", ())) < self._fewest:
            raise Refused("survivors")
        return {"sign": site.sign, "unmask": site.unmask}[step](payload)

    def _refuse_few(self, site: SecureSite) -> None:
        from grandrounds.privacy.secagg import Refused

        if len(site.everybody) < self._fewest:
            raise Refused("too-few-sites")

    def _summand(self, payload: Mapping[str, Value], k: int, site: SecureSite) -> Array:
        """What this site holds of the answer that is summed, times its weights, in the ring; with its share of the noise.

        How few honest sites may stay, which the noise is sized for, the site works out itself.
        """
        from grandrounds.privacy.secagg import Refused, Scale, Skellam, fewest_honest

        wanted = [report for report in str(payload["reports"]).split(",") if report]
        withheld = self._withheld.take(str(payload["of"]), k, context=site.terms, reports=wanted)
        parts = sorted({name.split(".")[0] for name in withheld})
        weights = dict(zip(parts, site.weights, strict=True)) if site.weights else {}
        if "model" in parts and not self._as_agreed(site, parts.index("model")):
            raise Refused("other-weights")
        bound, parties, sigma = float(payload["bound"]), int(payload["parties"]), float(payload["noise"])
        if parties < len(site.everybody):
            raise Refused("malformed")
        noise = Skellam(sigma, fewest_honest(parties)) if sigma else None
        spare = noise.room(parties) if noise else 0.0
        scale = Scale(int(payload["bits"]), bound, parties, weighted=bool(weights), spare=spare)
        vector = pack(withheld, {})
        if not np.isfinite(vector).all():
            raise Refused("not-finite")
        if len(vector) and np.abs(vector).max() > bound:
            raise Refused("beyond-bound")
        ring = scale.to_ring(pack(withheld, weights))
        if noise is not None:
            ring += noise.share(scale, len(ring), secret=self._secret(self._names[k]), context=site.context)
        return ring

    def _as_agreed(self, site: SecureSite, part: int) -> bool:
        """Whether models are summed by the weights that this site went along with, but for sites that left since."""
        agreed = self._went_along(site.name, site.context.round)
        if agreed is None:
            return True
        weights = site.everybody
        if not site.weights or not weights.keys() <= agreed.keys():
            return False
        now, then = (
            np.array([site_weights[part] for site_weights in weights.values()]),
            np.array([agreed[name] for name in weights]),
        )
        return bool(np.allclose(now * then.sum(), then * now.sum(), rtol=CLOSE, atol=CLOSE))

    def _site(self, ask: Ask, k: int) -> SecureSite:
        """This site in the sum that is asked for, from its first step to its last."""
        from grandrounds.privacy.secagg import Context, SecureSite

        assert ask.id is not None
        context = Context(ask.id.run, ask.id.round, str(ask.shared["tag"]))
        sites = self._sums.setdefault(str(context), {})
        while len(self._sums) > _SUMS:
            self._sums.popitem(last=False)
        if k not in sites:
            name = self._names[k]
            sites[k] = SecureSite(
                name,
                context,
                identity=self._identify(name),
                peers=self._peers,
                secret=self._secret(name),
                largest=self._largest,
            )
        return sites[k]
