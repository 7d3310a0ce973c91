"""FedXChain as a Flower strategy: nodes are weighted by trust, from accuracy, agreement of SHAP values and consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from grandrounds.capabilities.integrations.flower.replies import Explain, ReplyContent, UsableReplies
from grandrounds.capabilities.integrations.flower.strategy import MethodStrategy, TrainingRound
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.trust import steadiness
from grandrounds.methods.base import Outcome, Server
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.protocol.tasks import WEIGHTS

_DIRECTION = "shap.direction"


class FedXChain(MethodStrategy):
    """Flower's FedAvg, weighted by trust (FedXChain eq. 3-8).

    Clients add `grandrounds.capabilities.integrations.flower.client.fedxchain_report` to their metrics.

    This is less than method 'fedxchain' of this package: SHAP shares and models reach the server without secure
    aggregation, nodes do not recompute the weights, and nothing is signed. The server computes the steadiness of
    explanations, since it sees them.

    Args:
        trust: Section [method.trust] of an experiment: preset, alpha, beta, gamma, tau, kappa and so on.
        features: Names of the features of SHAP values.
        explain: Explains nodes' models at the server.
        fedavg: Arguments of Flower's FedAvg.

    Raises:
        BadInput: A setting is not available in a Flower app.
    """

    method_name, section = "fedxchain", "trust"

    def __init__(
        self,
        trust: Mapping[str, object] | None = None,
        *,
        features: Sequence[str] = (),
        explain: Explain | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(trust, explain=explain, **fedavg)
        settings = self.method.settings.trust
        for key, only in (("accuracy_at", "site"), ("explained", "own"), ("top", 0)):
            if getattr(settings, key) != only:
                raise BadInput(
                    f"FedXChain: trust.{key} is {getattr(settings, key)!r}, but a Flower app supports only {only!r}",
                    code="unsupported-setting",
                )
        self.signed = bool(settings.signed)
        self.features = tuple(features)
        self._shares: dict[str, Array] = {}  # each node's attributions of its last round

    def expected_content(self, ask: Ask) -> ReplyContent:
        """Read the direction of attributions if it is used."""
        some = frozenset({_DIRECTION})
        content = super().expected_content(ask)
        return replace(content, required=some) if self.signed else replace(content, ignored=some)

    def complete(self, answers: Answers) -> Answers:
        """Add the steadiness of each node's explanations; NaN for a node's first round."""
        shares = np.asarray(answers["shap.shares"])
        steady = np.full(len(answers), np.nan)
        for k, node in enumerate(answers.sites):
            before = self._shares.get(node)
            if before is not None and before.shape == shares[k].shape:
                steady[k] = steadiness(shares[k], before)
        return Answers(answers.sites, {**answers.columns, "trust.steadiness": steady}, missing=answers.missing)

    def server(self, training: TrainingRound, answers: Answers | None = None) -> Server:
        """Build the method's server, with the names of features."""
        server = super().server(training, answers)
        if answers is None or not self.features:
            return server
        if len(self.features) != len(server.features):
            counts = f"{len(self.features)} names, but nodes send {len(server.features)} SHAP shares"
            raise BadInput(f"FedXChain: features has {counts}: give one name for each", code="length-mismatch")
        return replace(server, features=self.features)

    def reply(self, ask: Ask, answers: Answers) -> Answers:
        """Accept the weights in place of the nodes, which do not receive them; the record says so."""
        if ask.task != WEIGHTS:
            return super().reply(ask, answers)
        return Answers(answers.sites, {"agreed": np.ones(len(answers), bool)})

    def notes(self) -> Sequence[str]:
        """Note in the record that nodes did not check the weights."""
        return ("nodes of a Flower app were not shown the weights and did not check them",)

    def finish_round(
        self, training: TrainingRound, usable: UsableReplies, outcome: Outcome
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Remember each node's shares for the next round, and finish this one."""
        for node, row in usable.answers:
            self._shares[node] = np.asarray(row["shap.shares"], float)
        return super().finish_round(training, usable, outcome)
