"""The server's half of method 'quality': one exchange of counts, and the sites that differ from all others.

Without secure aggregation the server receives each site's counts, without those of few patients, and compares sites. With secure
aggregation it receives totals over at least three sites: it cannot compare sites, and each site compares itself with the totals
at home (`rounds site check --totals FILE`). Under privacy.epsilon each site adds the whole noise to its own counts; the budget is
charged once, before the exchange.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, Stage
from grandrounds.data.agreement.bins import AgreedBins
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Method, Outcome, Round, Server
from grandrounds.methods.exact.exchange import ENDED, FEWEST_SITES, RESULT, digest
from grandrounds.methods.quality.comparison import Rules
from grandrounds.methods.quality.result import describe_quality
from grandrounds.methods.quality.site import QualitySite, count_blocks, count_reach, read_bins
from grandrounds.methods.secure import STATISTIC_BITS, STATISTIC_BOUND, secure_sum
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import QUALITY, TALLIES

COUNTS = "counts of rows in agreed bins"
"""Name of the release in budgets."""


class Quality(Method):
    """Quality of the sites' data: one exchange of counts, and no model."""

    name = "quality"
    title = "quality of the sites' data before training: counts, and sites that differ from all others"
    parts = frozenset[str]()
    site = (QualitySite,)
    has_model: ClassVar[bool] = False
    scores_rounds = False
    noise_is_optional: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False
    asks_notes: ClassVar[bool] = False

    def round(self, server: Server) -> Round:
        bins, sigma = read_bins(self.settings.quality), self.noise(server)
        total, by_site, sites, missing = yield from self._exchange(server, bins, sigma)
        q = self.settings.quality
        result = describe_quality(
            bins,
            total,
            by_site,
            event=str(getattr(server.encoding, "event", "") or ""),
            rules=Rules(float(q.level), float(q.effect), int(q.least), sigma),
        )
        result = {"sites": list(sites), "secure": server.secure is not None, **result}
        shares = dict.fromkeys(sites, 1 / len(sites))
        found = sum(f["level"] == "error" for f in result["findings"])
        why = (
            f"one exchange of {bins.size} counts over {len(sites)} sites (total {digest({'counts': total})[:16]}); "
            f"{found} differences named"
        )
        if sigma:
            why += f"; counts have noise of standard deviation {sigma:.3g}"
        notes = [f"{s} is not in the counts: {reason}" for s, reason in missing.items()]
        ended = f"{ENDED} after one exchange"
        decision = Decision(weights=shares, why=why, stages=(Stage("sums", why, shares),), notes=(*notes, ended))
        record = {"quality": result, "statistic": self._facts(bins, sites, rows=result["rows"])}
        kept = {RESULT: np.frombuffer(json.dumps(record).encode(), np.uint8)}
        outcome = server.next(server.model, decision, **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=ended)

    def _exchange(
        self, server: Server, bins: AgreedBins, sigma: float
    ) -> Generator[Ask, Answers, tuple[Array, dict[str, Array], tuple[str, ...], Mapping[str, str]]]:
        """Ask for the counts: of each site, or by secure aggregation."""
        ask = Ask(QUALITY, shared=self.question(bins, sigma), to=server.available_sites, report=("counts",))
        if server.secure is None:
            answers: Answers = yield ask
            if not len(answers):
                raise RunFailed(f"round {server.round}: no site answered ({_causes(answers.missing)})", code="too-few-sites")
            vectors = np.asarray(answers["counts"], float)
            total = np.where(vectors < 0, 0.0, vectors).sum(axis=0) if not sigma else vectors.sum(axis=0)
            return total, dict(zip(answers.sites, vectors, strict=True)), answers.sites, answers.missing
        withheld: Answers = yield ask.withholding("counts")
        summed = yield from secure_sum(server.secure, withheld, bits=STATISTIC_BITS, bound=STATISTIC_BOUND, purpose=TALLIES)
        if len(summed.sites) < FEWEST_SITES:
            raise RunFailed(
                f"round {server.round}: only {len(summed.sites)} sites are in the secure sum, and {FEWEST_SITES} are needed "
                f"({_causes(summed.missing)})",
                code="too-few-sites",
            )
        return np.asarray(summed.values["counts"], float), {}, summed.sites, summed.missing

    def question(self, bins: AgreedBins, sigma: float) -> dict[str, Value]:
        """Return the values of the Ask: the bins of the plan and the smallest count in the clear."""
        return {
            "bins": bins.to_json(),
            "blocks": count_blocks(bins),
            "least": int(self.settings.quality.least),
            **({"noise": sigma} if sigma else {}),
        }

    def noise(self, server: Server) -> float:
        """Return the standard deviation of the noise in every count of a site; 0 without a budget."""
        epsilon = _epsilon(server)
        if epsilon is None:
            return 0.0
        from grandrounds.privacy.accounting import noise_for

        assert server.private is not None
        return noise_for(epsilon, server.private.delta, steps=1) * self.reach()

    def reach(self) -> float:
        """Return the largest L2 change of a site's counts by one patient."""
        return count_reach(count_blocks(read_bins(self.settings.quality)))

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the one release, which is charged before the exchange; all rows are counted."""
        if server.round != 1 or _epsilon(server) is None:
            return ()
        sigma = self.noise(server) / self.reach()
        return tuple(Event("gaussian", COUNTS, sigma=sigma, of=rows) for rows in ("training", "validation"))

    def _facts(self, bins: AgreedBins, sites: Sequence[str], *, rows: int) -> dict[str, Any]:
        """Return how many numbers a site sent, and how many all sites hold."""
        held = rows * max(1, len(bins.columns))
        exchanges = {
            "count": 1,
            "numbers_sent": bins.size,
            "numbers_held": held,
            "ratio": bins.size / max(1, held),
            "bytes_up": bins.size * STATISTIC_BITS // 8,
            "bytes_down": len(bins.to_json()),
        }
        return {"exchanges": exchanges, "sites": list(sites), "rows": rows}

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        if RESULT not in state:
            return {}
        record: dict[str, object] = json.loads(np.asarray(state[RESULT], np.uint8).tobytes().decode())
        return record

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

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        if plan.privacy.on_halt == "skip":
            yield "and 'quality' has one round, which cannot be skipped: set privacy.on_halt = 'retry' or 'stop'"


def _epsilon(server: Server) -> float | None:
    return None if server.private is None else server.private.epsilon


def _causes(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {why}" for site, why in missing.items()) or "no site was asked"
