"""SSE-AGG as a Flower strategy: nodes whose reasons stand out lose weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.integrations.flower.reading import Explain
from grandrounds.integrations.flower.strategy import ByMethod


class SSEAgg(ByMethod):
    """Flower's FedAvg, weighed by how nodes' explanations agree (SSE-AGG eq. 4-8, 20-21).

    `weigh` is the section [method.weigh] of an experiment: form, explanation_weight or lambdas, sharpness, floor and so on.
    Clients add `grandrounds.flower.client.sse_report` to their metrics; or the server makes it (`explain`), and they add
    nothing. Stabilities (SCAFFOLD, anchors) are training, which is the app's own business here: only the weighing is done.
    """

    method_name, section = "sse-agg", "weigh"

    def __init__(
        self, weigh: Mapping[str, Any] | None = None, *, explain: Explain | None = None, **fedavg: Any
    ) -> None:
        super().__init__(weigh, explain=explain, **fedavg)
