"""A sum in slow motion: sites and server side by side, so that a test can be the malicious server or the liar."""

from __future__ import annotations

import numpy as np

from grandrounds.privacy.secagg import Context, Scale, Secret, SecureSite, SecureSum
from grandrounds.protocol.identity import Identity

CONTEXT = Context("run", 7, "model")


class Play:
    """`n` honest sites s00, s01 ... and a server. `questions[step][site]` is what the honest server asked, once `until` has."""

    def __init__(
        self,
        n: int,
        *,
        size: int = 4,
        bits: int = 32,
        degree: int = 100,
        context: Context = CONTEXT,
        weights: list[float] | None = None,
        largest: float = 1.0,
    ) -> None:
        self.names = [f"s{k:02d}" for k in range(n)]
        self.who = {name: Identity.simulated(1, name) for name in self.names}
        self.peers = {name: identity.public for name, identity in self.who.items()}
        self.scale = Scale(bits, 1.0, n)
        self.values = {name: np.full(size, (k + 1) / (n + 1)) for k, name in enumerate(self.names)}
        self.sites = {
            name: SecureSite(
                name,
                context,
                identity=self.who[name],
                peers=self.peers,
                secret=Secret.simulated(1, name),
                degree=degree,
                largest=largest,
            )
            for name in self.names
        }
        table = None if weights is None else {name: (w,) for name, w in zip(self.names, weights, strict=True)}
        self.server = SecureSum(context, peers=self.peers, scale=self.scale, size=size, weights=table, degree=degree)
        self.questions: dict[str, dict[str, dict]] = {}

    def until(self, step: str) -> Play:
        """Play honestly up to the question of this step; nobody has answered it yet."""
        while self.server.step != step:
            self.answer_all()
        return self

    def answer_all(self, *, without: tuple[str, ...] = ()) -> None:
        """Everybody asked answers the open step, if one is open; then the next is asked."""
        step = self.server.step
        for name, asked in self.questions.get(step, {}).items():
            if name not in without:
                self.server.take(name, self.say(name, step, asked))
        question = self.server.ask()
        self.questions[question.step] = {
            name: {**question.shared, **question.each.get(name, {})} for name in question.to
        }

    def say(self, name: str, step: str, asked: dict):
        site = self.sites[name]
        if step == "keys":
            return site.keys()
        if step == "masked":
            return site.masked(self.scale.to_ring(self.values[name]), asked)
        return getattr(site, step)(asked)
