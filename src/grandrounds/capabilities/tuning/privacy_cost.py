"""Privacy cost of tuning. Every trial uses patients again, and the final run's epsilon does not include it.

Trials are releases about the same patients, so they compose. Each trial guarantees its own epsilon and delta regardless of the
trials before it, so these add up. Composing all releases gives a smaller epsilon, but its theorems require that noise and
sampling are fixed beforehand, and a search chooses them adaptively: that value is stated with this condition. Methods that
charge a random number of trials little more than one (Liu and Talwar 2019, Papernot and Steinke 2022) need a random stopping
rule and may show only the best trial; they are not implemented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grandrounds.capabilities.tuning.trial import PrivacyCost, Releases, Trial
from grandrounds.privacy.in_words import plain

if TYPE_CHECKING:
    from grandrounds.privacy.accounting import Event
    from grandrounds.runs.run import Run


def read_releases(run: Run) -> Releases:
    """Read a run's releases about patients; empty where it gives no guarantee."""
    if run.finished:
        events = run.summary["privacy"].get("events", [])
    else:
        events = [e for r in run.rounds for e in r["decision"]["privacy"].get("events", ())]
    if not events:
        return {}
    promise = run.plan["privacy"]
    released: Releases = {"delta": promise["delta"], "events": list(events)}
    if promise.get("unit") in ("patient", "row"):
        released["unit"] = promise["unit"]
    return released


def privacy_cost(trials: Sequence[Trial], best: Trial, *, validation: int, elsewhere: str = "") -> PrivacyCost:
    """Compute the privacy cost of all trials that were run: numbers, and a statement in sentences.

    `elsewhere`: the data set of the trials, where it is not that of the experiment.
    """
    from grandrounds.privacy.accounting import epsilon_of

    ran = [t for t in trials if t.same_as is None and (t.outcome.privacy or not t.failed)]
    private = [t for t in ran if t.outcome.privacy]
    if elsewhere:
        statement = (
            f"Trials trained on '{elsewhere}' and not on the experiment's own patients: they cost those nothing, as long as "
            f"no patient is in both. What the final run spends is all that its patients spend."
        )
        return {"trials": len(ran), "elsewhere": elsewhere, "epsilon": None, "statement": statement}
    looked = f"the labels of {validation} validation rows were looked at as they are, {_times(len(ran))}"
    if len(private) < len(ran) or not private:
        return _not_private(len(ran), f"trained on patients{' without noise' if not private else ''}", looked)
    delta = max(t.outcome.privacy["delta"] for t in private)
    of_trial = [_training(t) for t in private]
    each = [epsilon_of(events, delta) for events in of_trial]
    if not math.isfinite(max(each)):
        return _not_private(len(ran), "told something of patients as it is (epsilon = infinity)", looked)
    unit = str(private[0].outcome.privacy.get("unit", of_trial[0][0].unit))
    return _compose(of_trial, each, _training(best), looked, delta, unit)


def _not_private(trials: int, how: str, looked: str) -> PrivacyCost:
    statement = (
        f"Not private: {_trials(trials)} {how}, and {looked}. None of this is in the epsilon of the final run. To spend "
        "nothing, tune on public or generated rows: --data."
    )
    return {"trials": trials, "epsilon": None, "statement": statement}


def _compose(
    of_trial: Sequence[Sequence[Event]],
    each: Sequence[float],
    final: Sequence[Event],
    looked: str,
    delta: float,
    unit: str,
) -> PrivacyCost:
    """Compose trials with a guarantee each: `each` its epsilon at `delta`; `final`: releases of the best settings.

    `unit`: the unit of the guarantees, a patient or a row.
    """
    from grandrounds.privacy.accounting import epsilon_of

    all_events = [e for events in of_trial for e in events]
    together = epsilon_of(all_events, delta)
    with_final = epsilon_of([*all_events, *final], delta)
    n, added = len(of_trial), sum(each)
    statement = (
        f"{_trials(n)}, each with epsilon up to {_number(max(each))} at delta = {plain(delta)} per "
        f"{unit}, and none of it is in the epsilon that the final run states. Together on the same {unit}s: epsilon <= "
        f"{_number(added)} at delta = {plain(n * delta)} by adding up; epsilon <= {_number(together)} at delta = "
        f"{plain(delta)} by composing all their releases as if settings had been fixed beforehand, {_number(with_final)} "
        f"with the final run. No epsilon covers that {looked}, nor what a run's own statement leaves uncovered. To spend "
        "nothing, tune on public or generated rows: --data."
    )
    return {
        "trials": n,
        "delta": delta,
        "unit": unit,
        "epsilon_each": max(each),
        "epsilon_added": added,
        "epsilon": together,
        "epsilon_with_final": with_final,
        "statement": statement,
    }


def _training(trial: Trial) -> list[Event]:
    """Return the releases about training rows; validation and test rows are other patients."""
    from grandrounds.privacy.accounting import Event

    events = [Event.from_dict(e) for e in trial.outcome.privacy["events"]]
    return [e for e in events if e.of == "training"]


def _number(value: float) -> str:
    """Round up to three digits, so that a bound stays a bound."""
    if value <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:g}"


def _trials(n: int) -> str:
    return "1 trial" if n == 1 else f"{n} trials"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"
