"""The server's half of method 'watch': one exchange of sums, and which features moved at how many sites.

The sites compare their new patients with their own reference patients (`site.py`) and send sums. With secure aggregation the
server sees their total over at least three sites, without it those of each site, in which counts of few patients are left out.
Under privacy.epsilon each site adds the whole noise to its own counts, with or without secure aggregation, because the yes or no
of a feature follows from the site's own noisy counts. The whole budget is charged once, before the exchange.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, Stage
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Method, Outcome, Round, Server
from grandrounds.methods.exact.exchange import ENDED, FEWEST_SITES, RESULT, digest
from grandrounds.methods.secure import STATISTIC_BITS, STATISTIC_BOUND, secure_sum
from grandrounds.methods.watch.bins import WatchBins
from grandrounds.methods.watch.result import SiteSums, describe_watch
from grandrounds.methods.watch.site import ALARMS, WatchLayout, WatchSite, watch_layout, watch_sensitivity
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import TALLIES, WATCH

COUNTS = "counts of new and reference patients in agreed bins"
"""Name of the release in budgets."""


class Watch(Method):
    """Watch a model across hospitals: one exchange, and no model of its own."""

    name = "watch"
    title = "watch a model in use: which feature moved at how many hospitals, from sums"
    parts = frozenset[str]()
    site = (WatchSite,)
    has_model: ClassVar[bool] = False
    scores_rounds = False
    noise_is_optional: ClassVar[bool] = True
    keeps_encoding: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False

    def round(self, server: Server) -> Round:
        layout, sigma = self.layout(server), self.noise(server)
        total, by_site, sites, missing = yield from self._exchange(server, layout, sigma)
        w = self.settings.watch
        sums = SiteSums.read(layout, total, sites=len(sites))
        each = {site: SiteSums.read(layout, vector) for site, vector in by_site.items()}
        result = describe_watch(
            sums, each, _table(server.encoding), level=float(w.level), least=int(w.least), noise=sigma
        )
        result = {"run": str(w.run), "model": str(w.model), "sites": list(sites), "secure": server.secure is not None, **result}
        result["moved_by"] = str(w.get("moved", "test"))
        shares = dict.fromkeys(sites, 1 / len(sites))
        moved = sum(1 for f in result["features"] if f["moved"])
        why = (
            f"one exchange of {layout.size} sums over {len(sites)} sites (total {digest({'sums': total})[:16]}); {moved} of "
            f"{len(result['features'])} features moved at a site or more"
        )
        if sigma:
            why += f"; counts have noise of standard deviation {sigma:.3g} (sensitivity to one patient {self.reach(server):.3g})"
        notes = [f"{s} is not in the sums: {reason}" for s, reason in missing.items()]
        ended = f"{ENDED} after one exchange"
        decision = Decision(weights=shares, why=why, stages=(Stage("sums", why, shares),), notes=(*notes, ended))
        record = {"watch": result, "statistic": self._facts(server, layout, sites, patients=result["patients"])}
        kept = {RESULT: np.frombuffer(json.dumps(record).encode(), np.uint8)}
        outcome = server.next(server.model, decision, **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=ended)

    def _exchange(
        self, server: Server, layout: WatchLayout, sigma: float
    ) -> Generator[Ask, Answers, tuple[Array, dict[str, Array], tuple[str, ...], Mapping[str, str]]]:
        """Ask for the sums: of each site, or by secure aggregation."""
        ask = Ask(WATCH, shared=self.question(server, layout, sigma), to=server.available_sites, report=("sums",))
        if server.secure is None:
            answers: Answers = yield ask
            if not len(answers):
                raise RunFailed(
                    f"round {server.round}: no site answered ({_reasons(answers.missing)})", code="too-few-sites"
                )
            vectors = np.asarray(answers["sums"], float)
            return vectors.sum(axis=0), dict(zip(answers.sites, vectors, strict=True)), answers.sites, answers.missing
        withheld: Answers = yield ask.withholding("sums")
        summed = yield from secure_sum(server.secure, withheld, bits=STATISTIC_BITS, bound=STATISTIC_BOUND, purpose=TALLIES)
        if len(summed.sites) < FEWEST_SITES:
            raise RunFailed(
                f"round {server.round}: only {len(summed.sites)} sites are in the secure sum, and {FEWEST_SITES} are needed "
                f"({_reasons(summed.missing)})",
                code="too-few-sites",
            )
        return np.asarray(summed.values["sums"], float), {}, summed.sites, summed.missing

    def _facts(self, server: Server, layout: WatchLayout, sites: Sequence[str], *, patients: int) -> dict[str, Any]:
        """Return how many numbers a site sent, and how many all sites hold of their new patients."""
        held = patients * max(1, len(layout.bins.columns))
        down = sum(
            len(v) if isinstance(v, str) else np.asarray(v).nbytes for v in self.question(server, layout, 0.0).values()
        )
        exchanges = {
            "count": 1,
            "numbers_sent": layout.size,
            "numbers_held": held,
            "ratio": layout.size / max(1, held),
            "bytes_up": layout.size * STATISTIC_BITS // 8,
            "bytes_down": down,
        }
        return {"exchanges": exchanges, "sites": list(sites), "rows": patients}

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
            "moved": str(w.get("moved", "test")),
            "columns": len(layout.bins.columns),
            **({"noise": sigma} if sigma else {}),
        }

    def layout(self, server: Server) -> WatchLayout:
        """Return the layout of the answers, which follows from the plan and the encoding of the model."""
        encoding = _table(server.encoding)
        bins = WatchBins.from_encoding(encoding, self.settings.watch.edges.plain())
        return watch_layout(encoding, bins, private=_epsilon(server) is not None)

    def reach(self, server: Server) -> float:
        """Return the largest L2 change of a site's counts by one patient."""
        encoding = _table(server.encoding)
        columns = len(encoding.numeric) + len(encoding.categorical)
        return watch_sensitivity(columns, labels=bool(self.settings.watch.labels))

    def noise(self, server: Server) -> float:
        """Return the standard deviation of the noise in every count of a site; 0 without a budget."""
        epsilon = _epsilon(server)
        if epsilon is None:
            return 0.0
        from grandrounds.privacy.accounting import noise_for

        assert server.private is not None
        return noise_for(epsilon, server.private.delta, steps=1) * self.reach(server)

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the one release, which is charged before the exchange; reference patients are training and validation rows."""
        if server.round != 1 or _epsilon(server) is None:
            return ()
        sigma = self.noise(server) / self.reach(server)
        return tuple(Event("gaussian", COUNTS, sigma=sigma, of=rows) for rows in ("training", "validation"))

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        if RESULT not in state:
            return {}
        record: dict[str, object] = json.loads(np.asarray(state[RESULT], np.uint8).tobytes().decode())
        return record

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
        if plan.privacy.epsilon is not None and plan.method.watch.get("moved", "test") == ALARMS:
            yield "alarms of a site's own watch have no noise: set method.watch.moved = 'test', or remove privacy.epsilon"
        if plan.privacy.mechanism != "none":
            yield "method 'watch' has its own privacy mechanism: remove privacy.mechanism"
        if plan.train.early_stop or plan.train.finetune:
            yield "method 'watch' has no training steps: set train.early_stop = 0 and train.finetune = 0"
        if plan.tasks.plain():
            yield "method 'watch' watches one outcome: remove [tasks]"
        if plan.plain()["attacks"]:
            yield "method 'watch' has no local models to attack: remove [[attacks]]"

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        if plan.privacy.on_halt == "skip":
            yield "and 'watch' has one round, which cannot be skipped: set privacy.on_halt = 'retry' or 'stop'"


def _epsilon(server: Server) -> float | None:
    return None if server.private is None else server.private.epsilon


def _table(encoding: AnyEncoding | None) -> Encoding:
    if not isinstance(encoding, Encoding):
        raise BadInput("method 'watch' needs the columns of a table, and the data are images", code="needs-table")
    return encoding


def _reasons(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {why}" for site, why in missing.items()) or "no site was asked"
