"""FedXChain: sites explain themselves by SHAP, their trust sets their weights, and every weight can be worked out again."""

from __future__ import annotations

from collections.abc import Generator

from grandrounds.methods.aggregate import Joined, join
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.rewards import rewarded
from grandrounds.methods.secretly import add_up
from grandrounds.methods.trusting import Trusting
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.site.trusting import SiteTrust


class FedXChain(FedAvg):
    """FedAvg weighed by trust, with models and reasons under masks where privacy.secure is set.

    The four steps of a round: reasons are pooled by last round's trust (eq. 6); each site's divergence from them (eq. 4) and
    its accuracy make its trust (eq. 7); every site checks everybody's weights (eq. 8); models are added up by them. With
    method.weigh 'data_size' or 'uniform' trust is watched and has no say, so that other methods can be compared.
    """

    name = "fedxchain"
    site = (SiteTrust,)
    title = "FedXChain: weighs sites by trust, made of accuracy, agreement of SHAP values and steadiness"

    def joined(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Joined, Answers]]:
        trusting = Trusting(server, self.settings)
        ask = trusting.asks(ask)
        shares = self.stability.sums(server)
        answers: Answers = yield ask if server.secure is None else ask.holding("model", "shap", *shares)
        weighed, answers = yield from trusting.weighed(answers)
        if server.secure is None:
            joined = join(server, answers, self, weighed)
        else:
            joined, answers = yield from add_up(server, server.secure, answers, weighed, shares)
        joined = yield from rewarded(server, self.settings, joined, answers)
        return joined, answers
