"""FedXChain as a Flower strategy: nodes are weighed by trust, made of accuracy, agreement of SHAP values and steadiness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.trust import steadiness
from grandrounds.integrations.flower.reading import Explain, Heard, Wanted
from grandrounds.integrations.flower.strategy import Begun, ByMethod
from grandrounds.methods.base import Outcome, Server
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.protocol.tasks import WEIGHTS

_DIRECTION = "shap.direction"


class FedXChain(ByMethod):
    """Flower's FedAvg, weighed by trust (FedXChain eq. 3-8).

    `trust` is the section [method.trust] of an experiment: preset, alpha, beta, gamma, tau, kappa and so on. `features` are
    the names of what SHAP values are of. Clients add `grandrounds.flower.client.fedxchain_report` to their metrics.

    Less than method 'fedxchain' of this package: SHAP shares and models come to the server without masks, nodes do not work
    the weights out again, and nothing is signed. How steady reasons are is worked out by the server, which sees them.
    """

    method_name, section = "fedxchain", "trust"

    def __init__(
        self,
        trust: Mapping[str, Any] | None = None,
        *,
        features: Sequence[str] = (),
        explain: Explain | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(trust, explain=explain, **fedavg)
        told = self.method.settings.trust
        for key, only in (("accuracy_at", "site"), ("explained", "own"), ("top", 0)):
            if getattr(told, key) != only:
                raise BadInput(
                    f"FedXChain: trust.{key} can be {only!r} alone in a Flower app, not {getattr(told, key)!r}",
                    code="unsupported-setting",
                )
        self.signed = bool(told.signed)
        self.features = tuple(features)
        self._shares: dict[str, Array] = {}  # each node's reasons of the last round that it had a part in

    def wanted(self, ask: Ask) -> Wanted:
        """Which way reasons point is read where it counts."""
        some = frozenset({_DIRECTION})
        wanted = super().wanted(ask)
        return replace(wanted, must=some) if self.signed else replace(wanted, never=some)

    def completed(self, answers: Answers) -> Answers:
        """With how steady each node's reasons are; not known of one that comes for the first time."""
        shares = np.asarray(answers["shap.shares"])
        steady = np.full(len(answers), np.nan)
        for k, node in enumerate(answers.sites):
            before = self._shares.get(node)
            if before is not None and before.shape == shares[k].shape:
                steady[k] = steadiness(shares[k], before)
        return Answers(answers.sites, {**answers.columns, "trust.steadiness": steady}, missing=answers.missing)

    def server(self, begun: Begun, answers: Answers | None = None) -> Server:
        """With the names of features."""
        server = super().server(begun, answers)
        if answers is None or not self.features:
            return server
        if len(self.features) != len(server.features):
            told = f"{len(self.features)} names and nodes send {len(server.features)} SHAP shares"
            raise BadInput(f"FedXChain: features has {told}: give one name for each", code="length-mismatch")
        return replace(server, features=self.features)

    def reply(self, ask: Ask, answers: Answers) -> Answers:
        """Nodes of a Flower app are not shown the weights: all go along, as the record says."""
        if ask.task != WEIGHTS:
            return super().reply(ask, answers)
        return Answers(answers.sites, {"agreed": np.ones(len(answers), bool)})

    def notes(self) -> Sequence[str]:
        return ("nodes of a Flower app were not shown the weights and did not check them",)

    def ended(self, begun: Begun, heard: Heard, outcome: Outcome) -> tuple[ArrayRecord, MetricRecord]:
        for node, row in heard.answers:
            self._shares[node] = np.asarray(row["shap.shares"], float)
        return super().ended(begun, heard, outcome)
