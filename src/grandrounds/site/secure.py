"""Secure aggregation at the sites: each site takes its own steps, with its own keys.

Summed values leave a site only masked. A site that refuses answers with a code and nothing else.

A site takes part only with listed peers and their listed keys, and with enough of them. The server introduces sites to each
other. Without the list, it could simulate all other sites with its own keys, and subtract their values from the sum
(docs/threat-model.md). A refusal is a code; names stay at the site.
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
"""Number of sums that a site stores at a time."""


UNKNOWN, OTHER_KEY, TOO_FEW, NOT_MET = "unknown-peer", "other-peer-key", "too-few-peers", "not-met"
_SHOWN = 80
"""Maximum length of a name from the server in messages."""


class UnknownPeers(BadInput):
    """A site rejects the peers that the server introduces. Only `code` may be sent; the text has names."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def check_peers(introduced: Mapping[str, bytes], listed: Mapping[str, bytes] | None, *, fewest: int) -> None:
    """Raise the reason why a site rejects an introduction.

    `introduced`: names and keys from the server; `listed`: those of the site's own list, None to trust the server.
    """
    strangers = [] if listed is None else sorted(name for name in introduced if name not in listed)
    if strangers:
        raise UnknownPeers(UNKNOWN, f"{_named(strangers)} introduced but not on this site's list (peers.json)")
    changed = [] if listed is None else sorted(name for name, key in introduced.items() if listed[name] != key)
    if changed:
        raise UnknownPeers(OTHER_KEY, f"{_named(changed)} introduced with another key than on this site's list (peers.json)")
    if len(introduced) < fewest:
        raise UnknownPeers(
            TOO_FEW, f"{len(introduced)} sites are introduced, but this site's policy requires at least {fewest} (secure.fewest)"
        )


def _named(names: list[str]) -> str:
    listed = ", ".join(name[:_SHOWN] for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{listed} {'is' if len(names) == 1 else 'are'}"


def no_secret(site: str) -> Secret:
    """Refuse secure sums at a host without secrets."""
    raise BadInput("this site has no secret, so it cannot mask its values", code="missing-secret")


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
        """`largest_weight`: the largest share of a sum that a site accepts: beyond it, the sum would be its own values.
        `agreed`: the model weights that a site accepted in a round; None if it received none. `listed`: keys of accepted peers;
        None to trust the server. `fewest`: smallest number of sites in a sum. `reserved`: a site that gives no values does not
        report the cause, which may depend on them.
        """
        self._names, self._withheld = tuple(names), withheld_reports
        self._identify, self._secret, self._largest, self._went_along = identify, secret, largest_weight, agreed
        self._listed, self._fewest, self._reserved = listed, fewest, reserved
        self._peers: dict[str, bytes] = {}
        self._met, self._apart = False, UnknownPeers(NOT_MET, "a secure sum is requested before the sites were introduced")
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
        """Store the introduced peers once: a name with another key is refused later.

        After a refusal the site takes part in no sum until it accepts another introduction.
        """
        keys = np.asarray(ask.shared["identities"], np.uint8)
        introduced = {name: row.tobytes() for name, row in zip(json.loads(str(ask.shared["names"])), keys, strict=True)}
        self._met = False
        try:
            check_peers(introduced, self._listed, fewest=self._fewest)
            if any(self._peers.get(name, key) != key for name, key in introduced.items()):
                raise UnknownPeers(OTHER_KEY, "a site is introduced with another key than before")
            if any(introduced.get(self._names[k]) != self._identify(self._names[k]).public for k in members):
                raise UnknownPeers(OTHER_KEY, "the server introduces this site with a key that is not its own")
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
                    _log.warning("%s: this site gave no values to the sum: %s", ask.id, e)
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
        """Compute this site's withheld values times their weights, in the ring, with its share of the noise.

        The site itself computes the fewest honest sites that may remain, which sets the noise.
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
        whole = bool(payload.get("whole", 0))
        scale = Scale(int(payload["bits"]), bound, parties, weighted=bool(weights), spare=spare, whole=whole)
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
        """Check that models are summed by the weights that this site accepted, except for sites that have left."""
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
        """Return this site's state in the requested sum."""
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
