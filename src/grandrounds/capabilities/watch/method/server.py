"""The server's half of method 'watch': one exchange of sums, and which features moved at how many sites.

The sites compare their new patients with their own reference patients (`site.py`) and send sums. With secure aggregation the
server sees their total over at least three sites, without it those of each site, in which counts of few patients are left out.
Under privacy.epsilon each site adds the whole noise to its own counts, with or without secure aggregation, because the yes or no
of a feature follows from the site's own noisy counts. The whole budget is charged once, before the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.watch.method.bins import WatchBins
from grandrounds.capabilities.watch.method.result import SiteSums, describe_watch
from grandrounds.capabilities.watch.method.site import ALARMS, WatchLayout, WatchSite, watch_layout
from grandrounds.capabilities.watch.method.task import COUNTS, WATCH, watch_sensitivity
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.methods.base import Round, Server
from grandrounds.methods.sums import SingleExchange, describe_exchange, digest, run_epsilon
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import MASKED, TALLIES


class Watch(SingleExchange):
    """Watch a model across hospitals: one exchange, and no model of its own."""

    name = "watch"
    title = "watch a model in use: which feature moved at how many hospitals, from sums"
    site = (WatchSite,)
    earlier_model = "grandrounds.capabilities.watch.earlier_run:read_watched"
    new_patients = "grandrounds.capabilities.watch.earlier_run:add_new_patients"
    release: ClassVar[str] = COUNTS

    @classmethod
    def asks(cls, plan: Plan) -> Mapping[str, Mapping[str, Value]]:
        return {WATCH: {"noise": float(under_budget(plan))}, MASKED: {"tag": f"{TALLIES} 1"}}

    def round(self, server: Server) -> Round:
        layout, sigma = self.layout(server), self.noise(server)
        ask = Ask(WATCH, shared=self.question(server, layout, sigma), to=server.available_sites, report=("sums",))
        vectors = yield from self.exchange(server, ask)
        w, sites = self.settings.watch, vectors.sites
        sums = SiteSums.read(layout, vectors.total, sites=len(sites))
        each = {site: SiteSums.read(layout, vector) for site, vector in vectors.by_site.items()}
        result = describe_watch(
            sums, each, _table(server.encoding), level=float(w.level), least=int(w.least), noise=sigma
        )
        result = {"run": str(w.run), "model": str(w.model), "sites": list(sites), "secure": server.secure is not None, **result}
        result["moved_by"] = str(w.moved)
        moved = sum(1 for f in result["features"] if f["moved"])
        why = (
            f"one exchange of {layout.size} sums over {len(sites)} sites (total {digest({'sums': vectors.total})[:16]}); "
            f"{moved} of {len(result['features'])} features moved at a site or more"
        )
        if sigma:
            why += f"; counts have noise of standard deviation {sigma:.3g} (sensitivity to one patient {self.reach(server):.3g})"
        asked = self.question(server, layout, 0.0).values()
        down = sum(len(v) if isinstance(v, str) else np.asarray(v).nbytes for v in asked)
        held = result["patients"] * max(1, len(layout.bins.columns))
        facts = describe_exchange(layout.size, held=held, down=down, sites=sites, rows=result["patients"])
        return self.end(server, vectors, why, {"watch": result, "statistic": facts}, noun="sums")

    def question(self, server: Server, layout: WatchLayout, sigma: float) -> dict[str, Value]:
        """Return the values of the Ask: the model by its hash, the bins of the plan and the rules of comparison."""
        w = self.settings.watch
        background = np.zeros(len(_table(server.encoding).features)) if server.background is None else server.background
        return {
            "model": server.model,
            "digest": str(w.model),
            "edges": layout.bins.edges_json(),
            "background": np.asarray(background, float).ravel(),
            "level": float(w.level),
            "least": int(w.least),
            "labels": int(bool(w.labels)),
            "moved": str(w.moved),
            "columns": len(layout.bins.columns),
            **({"noise": sigma} if sigma else {}),
        }

    def layout(self, server: Server) -> WatchLayout:
        """Return the layout of the answers, which follows from the plan and the encoding of the model."""
        encoding = _table(server.encoding)
        bins = WatchBins.from_encoding(encoding, self.settings.watch.edges.plain())
        return watch_layout(encoding, bins, private=run_epsilon(server) is not None)

    def reach(self, server: Server) -> float:
        """Return the largest L2 change of a site's counts by one patient."""
        encoding = _table(server.encoding)
        columns = len(encoding.numeric) + len(encoding.categorical)
        return watch_sensitivity(columns, labels=bool(self.settings.watch.labels))

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        told = "the watched model and the agreed bins, which the watched run made"
        if plan.privacy.epsilon is not None:
            return (told,)
        return (told, "sums over new and reference patients in agreed bins, and which features moved")

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        if pictures:
            yield "method 'watch' needs the columns of a table, and the data are images: watch each site by itself"
        if plan.privacy.epsilon is not None and plan.method.watch.moved == ALARMS:
            yield "alarms of a site's own watch have no noise: set method.watch.moved = 'test', or remove privacy.epsilon"
        if plan.privacy.mechanism != "none":
            yield "method 'watch' has its own privacy mechanism: remove privacy.mechanism"
        if plan.train.early_stop or plan.train.finetune:
            yield "method 'watch' has no training steps: set train.early_stop = 0 and train.finetune = 0"
        if plan.tasks.plain():
            yield "method 'watch' watches one outcome: remove [tasks]"
        if plan.plain()["attacks"]:
            yield "method 'watch' has no local models to attack: remove [[attacks]]"


def _table(encoding: AnyEncoding | None) -> Encoding:
    if not isinstance(encoding, Encoding):
        raise BadInput("method 'watch' needs the columns of a table, and the data are images", code="needs-table")
    return encoding
