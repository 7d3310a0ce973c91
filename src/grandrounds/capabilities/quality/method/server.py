"""The server's half of method 'quality': one exchange of counts, and the sites that differ from all others.

Without secure aggregation the server receives each site's counts, without those of few patients, and compares sites. With secure
aggregation it receives totals over at least three sites: it cannot compare sites, and each site compares itself with the totals
at home (`rounds site check --totals FILE`). Under privacy.epsilon each site adds the whole noise to its own counts; the budget is
charged once, before the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.quality.method.comparison import Rules
from grandrounds.capabilities.quality.method.result import describe_quality
from grandrounds.capabilities.quality.method.site import QualitySite
from grandrounds.capabilities.quality.method.task import COUNTS, QUALITY, count_blocks, count_reach, read_bins
from grandrounds.core.plan_types import Plan
from grandrounds.data.agreement.bins import AgreedBins
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.methods.base import Round, Server
from grandrounds.methods.sums import SingleExchange, describe_exchange, digest
from grandrounds.protocol.messages import Ask, Value
from grandrounds.protocol.tasks import MASKED, TALLIES


class Quality(SingleExchange):
    """Quality of the sites' data: one exchange of counts, and no model."""

    name = "quality"
    title = "quality of the sites' data before training: counts, and sites that differ from all others"
    site = (QualitySite,)
    release: ClassVar[str] = COUNTS
    asks_notes: ClassVar[bool] = False
    needs_public = "which asks sites for summaries, and method 'quality' asks for counts alone: remove it"

    @classmethod
    def asks(cls, plan: Plan) -> Mapping[str, Mapping[str, Value]]:
        return {QUALITY: {"noise": float(under_budget(plan))}, MASKED: {"tag": f"{TALLIES} 1"}}

    def round(self, server: Server) -> Round:
        bins, sigma = read_bins(self.settings.quality), self.noise(server)
        ask = Ask(QUALITY, shared=self.question(bins, sigma), to=server.available_sites, report=("counts",))
        vectors = yield from self.exchange(server, ask)
        q, sites, total = self.settings.quality, vectors.sites, vectors.total
        if vectors.by_site and not sigma:  # hidden counts are below 0
            total = np.where((stacked := np.array(list(vectors.by_site.values()))) < 0, 0.0, stacked).sum(axis=0)
        result = describe_quality(
            bins,
            total,
            vectors.by_site,
            event=str(getattr(server.encoding, "event", "") or ""),
            rules=Rules(float(q.level), float(q.effect), int(q.least), sigma),
        )
        result = {"sites": list(sites), "secure": server.secure is not None, **result}
        found = sum(f["level"] == "error" for f in result["findings"])
        why = (
            f"one exchange of {bins.size} counts over {len(sites)} sites (total {digest({'counts': total})[:16]}); "
            f"{found} differences named"
        )
        if sigma:
            why += f"; counts have noise of standard deviation {sigma:.3g}"
        held = result["rows"] * max(1, len(bins.columns))
        facts = describe_exchange(bins.size, held=held, down=len(bins.to_json()), sites=sites, rows=result["rows"])
        return self.end(server, vectors, why, {"quality": result, "statistic": facts}, noun="counts")

    def question(self, bins: AgreedBins, sigma: float) -> dict[str, Value]:
        """Return the values of the Ask: the bins of the plan and the smallest count in the clear."""
        return {
            "bins": bins.to_json(),
            "blocks": count_blocks(bins),
            "least": int(self.settings.quality.least),
            **({"noise": sigma} if sigma else {}),
        }

    def reach(self, server: Server) -> float:
        """Return the largest L2 change of a site's counts by one patient."""
        return count_reach(count_blocks(read_bins(self.settings.quality)))

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        if plan.privacy.epsilon is not None:
            return ()
        return ("counts of rows in agreed bins of every column, without noise",)

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        if pictures:
            yield "method 'quality' counts columns of a table, and the data are images: check each site with `rounds site check`"
        if not plan.method.quality.bins.plain():
            yield "method 'quality' needs agreed bins (method.quality.bins): write the plan with `rounds quality --plan FILE`"
        if plan.data.encoding != "public":
            yield "method 'quality' asks sites for counts alone: set data.encoding = 'public'"
        if plan.privacy.mechanism != "none":
            yield "method 'quality' has its own privacy mechanism: remove privacy.mechanism"
        if plan.train.early_stop or plan.train.finetune:
            yield "method 'quality' has no training steps: set train.early_stop = 0 and train.finetune = 0"
        if plan.tasks.plain():
            yield "method 'quality' counts one outcome: remove [tasks]"
        if plan.plain()["attacks"]:
            yield "method 'quality' has no local models to attack: remove [[attacks]]"
