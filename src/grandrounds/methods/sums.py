"""Methods that add sums of all sites, and those whose result is one exchange: a vector of each site, and no model.

With secure aggregation the server receives the total over at least three sites, without it the vector of each site. Under
privacy.epsilon each site adds the whole noise to its own vector; the budget is charged once, before the exchange.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, Stage
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Method, Outcome, Server
from grandrounds.methods.secure import STATISTIC_BITS, STATISTIC_BOUND, secure_sum
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.protocol.tasks import TALLIES

FEWEST_SITES = 3
"""Fewest sites of a sum: of two, each could subtract its own part and read the other's."""

ENDED = "the fit ended"
"""First words of the reason for which the run of a method of sums stops: its fit is complete."""

RESULT = "result"
"""Entry of the method's state with the result, as JSON in bytes."""

SUMS = "sums."
"""First letters of entries of the method's state with sums by site, from which a fit over fewer sites follows."""


@dataclass(frozen=True, eq=False)
class SiteVectors:
    """Vectors of one exchange: the total, and without secure aggregation those of each site."""

    total: Array
    by_site: Mapping[str, Array]
    sites: tuple[str, ...]
    missing: Mapping[str, str]


class SingleExchange(Method):
    """One exchange of vectors, and no model."""

    parts = frozenset[str]()
    has_model: ClassVar[bool] = False
    scores_rounds = False
    noise_is_optional: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False
    release: ClassVar[str]  # name of the release in budgets

    @abstractmethod
    def reach(self, server: Server) -> float:
        """Return the largest L2 change of a site's vector by one patient."""

    def end(self, server: Server, vectors: SiteVectors, why: str, record: Mapping[str, Any], *, noun: str) -> Outcome:
        """End the run after its one exchange.

        Args:
            server: The server.
            vectors: The answers.
            why: The explanation of the decision.
            record: The entries of the summary.
            noun: The word for the vectors, for notes on sites that are not in them.
        """
        shares = dict.fromkeys(vectors.sites, 1 / len(vectors.sites))
        notes = [f"{s} is not in the {noun}: {cause}" for s, cause in vectors.missing.items()]
        ended = f"{ENDED} after one exchange"
        decision = Decision(weights=shares, why=why, stages=(Stage("sums", why, shares),), notes=(*notes, ended))
        kept = {RESULT: np.frombuffer(json.dumps(record).encode(), np.uint8)}
        outcome = server.next(server.model, decision, **kept)
        return Outcome(outcome.assignment, outcome.decision, outcome.state, ended=ended)

    def exchange(self, server: Server, ask: Ask) -> Generator[Ask, Answers, SiteVectors]:
        """Ask for the one report of an Ask: of each site, or by secure aggregation.

        Args:
            server: The server.
            ask: The request, with one report.

        Raises:
            RunFailed: No site answered, or too few are in the secure sum.
        """
        (name,) = ask.report
        if server.secure is None:
            answers: Answers = yield ask
            if not len(answers):
                raise RunFailed(f"round {server.round}: no site answered ({_causes(answers.missing)})", code="too-few-sites")
            vectors = np.asarray(answers[name], float)
            by_site = dict(zip(answers.sites, vectors, strict=True))
            return SiteVectors(vectors.sum(axis=0), by_site, answers.sites, answers.missing)
        withheld: Answers = yield ask.withholding(name)
        summed = yield from secure_sum(server.secure, withheld, bits=STATISTIC_BITS, bound=STATISTIC_BOUND, purpose=TALLIES)
        if len(summed.sites) < FEWEST_SITES:
            raise RunFailed(
                f"round {server.round}: only {len(summed.sites)} sites are in the secure sum, and {FEWEST_SITES} are needed "
                f"({_causes(summed.missing)})",
                code="too-few-sites",
            )
        return SiteVectors(np.asarray(summed.values[name], float), {}, summed.sites, summed.missing)

    def noise(self, server: Server) -> float:
        """Return the standard deviation of the noise in every count of a site; 0 without a budget."""
        epsilon = run_epsilon(server)
        if epsilon is None:
            return 0.0
        from grandrounds.privacy.accounting import noise_for

        assert server.private is not None
        return noise_for(epsilon, server.private.delta, steps=1) * self.reach(server)

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the one release, which is charged before the exchange."""
        if server.round != 1 or run_epsilon(server) is None:
            return ()
        sigma = self.noise(server) / self.reach(server)
        return tuple(Event("gaussian", self.release, sigma=sigma, of=rows) for rows in ("training", "validation"))

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        return read_result(state) or {}

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        if plan.privacy.on_halt == "skip":
            yield f"and '{cls.name}' has one round, which cannot be skipped: set privacy.on_halt = 'retry' or 'stop'"


def digest(values: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of named arrays, numbers and texts."""
    hashed = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        content = value.encode() if isinstance(value, str) else np.ascontiguousarray(np.asarray(value, float)).tobytes()
        hashed.update(f"{name}\x1f{len(content)}\x1f".encode() + content)
    return hashed.hexdigest()


def read_result(state: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return the record of a finished fit from a method's state; None if there is none.

    Args:
        state: The method's state at the end of the run.

    Returns:
        Keys `result`, `exchanges` (count, numbers sent by one site and held by all, their ratio, bytes of one site), `sites`
        and `rows`.
    """
    if RESULT not in state:
        return None
    record: dict[str, Any] = json.loads(np.asarray(state[RESULT], np.uint8).tobytes().decode())
    return record


def run_epsilon(server: Server) -> float | None:
    """Return epsilon of a run, None without one."""
    return None if server.private is None else server.private.epsilon


def describe_exchange(size: int, *, held: int, down: int, sites: Sequence[str], rows: int) -> dict[str, Any]:
    """Return how many numbers a site sent, and how many all sites hold.

    Args:
        size: Numbers that a site sent.
        held: Numbers that all sites hold.
        down: Bytes of the request.
        sites: The sites.
        rows: Rows of all sites.
    """
    exchanges = {
        "count": 1,
        "numbers_sent": size,
        "numbers_held": held,
        "ratio": size / max(1, held),
        "bytes_up": size * STATISTIC_BITS // 8,
        "bytes_down": down,
    }
    return {"exchanges": exchanges, "sites": list(sites), "rows": rows}


def _causes(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {why}" for site, why in missing.items()) or "no site was asked"
