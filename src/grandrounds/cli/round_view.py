"""A round's decision and a site's course as the terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.cli.screen import number
from grandrounds.metrics.names import words
from grandrounds.report.weights.record import percent
from grandrounds.report.weights.sentences import rules
from grandrounds.report.weights.signals import refused

_FEATURES = 5
_OVER_ROUNDS = {"disagreement": "disagreement", "trust": "trust", "nsds": "NSDS", "reward": "reward"}
"""Signals that a site's course shows, where the run knows them."""


def round_lines(decision: Mapping[str, Any]) -> Iterator[str]:
    """Who answered, each site's weight with the signals beside it, what each part of the method says, and the cohorts."""
    asked, sent = len(decision["asked"]), len(decision["weights"])
    answered = len(set(decision["asked"]) - set(decision["missing"])) if "place" in decision["signals"] else sent
    less = f", {sent} sent {'its' if sent == 1 else 'their'} model" if answered > sent else ""
    yield f"round {decision['round']}: {asked} site{'s' * (asked != 1)} asked, {answered} answered{less}"
    yield from (f"  without {name}: {refused(why)}" for name, why in decision["missing"].items())
    yield from _weights(decision)
    yield from (f"{part.lower()}: {why}" for part, why in rules(decision))
    yield from _cohorts(decision.get("cohorts") or {})
    yield from _reasons(decision.get("reasons") or {})
    yield from (f"note: {note}" for note in decision.get("notes", ()))


def course_lines(rounds: Sequence[Mapping[str, Any]], site: str) -> Iterator[str]:
    """A site's weight and figures round by round; how far its reasons lay from the consensus, and its trust, where known."""
    held = course(rounds, site)
    looked = {key: name for key, name in _OVER_ROUNDS.items() if any(r.get(key) is not None for r in held)}
    heads = [f"{name:>{max(len(name), 7)}}" for name in looked.values()]
    yield " ".join([f"{'round':>5} {'weight':>8} {'accuracy':>9} {'AUROC':>7} {'log loss':>9}", *heads])
    for own in held:
        more = [f"{number(own[key]):>{len(head)}}" for key, head in zip(looked, heads, strict=True)]
        yield " ".join(
            [
                f"{own['round']:>5} {number(own['weight']):>8} "
                f"{number(own['accuracy']):>9} {number(own['auroc'], 3):>7} {number(own['log_loss']):>9}",
                *more,
            ]
        )


def course(rounds: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, Any]]:
    """The same as values, None for what a round does not know of the site."""
    told = []
    for record in rounds:
        decision, judged = record["decision"], record.get("sites", {})
        figures = {m: judged.get(m, {}).get(site) for m in ("accuracy", "auroc", "log_loss")}
        signals = {key: decision["signals"].get(key, {}).get(site) for key in _OVER_ROUNDS}
        told.append({"round": record["round"], "weight": decision["weights"].get(site), **figures, **signals})
    return told


def _weights(decision: Mapping[str, Any]) -> Iterator[str]:
    """A table of sites, the heaviest first: weight, signals, cohort; then those that were ranked and not chosen."""
    signals, of = decision["signals"], (decision.get("cohorts") or {}).get("of", {})
    heads = ["site", "weight", *("rows" if name == "data_size" else words(name) for name in signals)]
    heads += ["cohort"] if of else []
    rows = []
    ranked = dict.fromkeys(signals.get("place", {}))
    for site, weight in sorted(
        {**ranked, **decision["weights"]}.items(), key=lambda item: (-(item[1] or 0.0), item[0])
    ):
        row = [site, number(weight), *(_cell(values.get(site)) for values in signals.values())]
        rows.append([*row, str(of.get(site, "-"))] if of else row)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows) if rows else ():
        yield "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])


def _cohorts(cohorts: Mapping[str, Any]) -> Iterator[str]:
    """Who is with whom, and whether that is as it was."""
    of: Mapping[str, int] = cohorts.get("of", {})
    for cohort in sorted(set(of.values())):
        yield f"  cohort {cohort}: {', '.join(s for s, c in of.items() if c == cohort)}"
    said = {"silhouette": "silhouette", "consistency": "adjusted Rand index to the round before"}
    known = [f"{name} {cohorts[key]:.2f}" for key, name in said.items() if cohorts.get(key) is not None]
    if known:
        yield f"  {', '.join(known)}"


def _reasons(shares: Mapping[str, float]) -> Iterator[str]:
    """What the consortium goes by, where a method pools it."""
    most = sorted((name for name in shares), key=lambda n: (-shares[n], n))[:_FEATURES]
    if most:
        yield f"the consortium's reasons: {', '.join(f'{n} {percent(shares[n])}' for n in most)}"


def _cell(value: float | None) -> str:
    """A signal: rows and other whole numbers in full."""
    if value is None:
        return "-"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"
