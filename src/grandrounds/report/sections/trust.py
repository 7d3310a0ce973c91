"""Report section on trust (FedXChain): trust in each site, its components, and attacks that it cannot detect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypedDict, cast

from grandrounds.core.records import Decision, RoundRecord, RunSummary
from grandrounds.report import figures
from grandrounds.report.document import Charts, number, table, td, text_cell
from grandrounds.report.figures.trust import TrustRuleRecord, trust_decisions

_ROWS = 40
_TOP = 15
_LISTED = 6
_COLUMNS = ("accuracy", "nsds", "consistency", "trust", "weight", "contribution", "reward")
_HEADS = {"nsds": "NSDS"}
_DIGITS = {"nsds": 4, "contribution": 5, "reward": 5, "weight": 4}


class TrustRecord(TypedDict):
    """Trust in the summary of a run: its rule, where accuracy is measured, alarms and refusals."""

    rule: TrustRuleRecord
    weighs: bool
    accuracy_at: str
    explained: str
    secure: bool
    alarm: float
    alarmed: Mapping[str, Sequence[int]]
    refused: Mapping[str, Sequence[int]]
    reward_correlation: float | None


def trust_record(summary: RunSummary) -> TrustRecord | None:
    """Return the summary's record of trust; None for a run without one."""
    return cast(TrustRecord, summary.trust) if summary.trust else None


def trust_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on trust; empty for a run that records none."""
    decisions, trust = trust_decisions(rounds), trust_record(summary)
    if not decisions or not trust:
        return []
    course = len(decisions) > 1
    rewarded = course and any(d.signals.get("reward") for d in decisions)
    paired = [figures.rewards_over_rounds(rounds)] if rewarded else []
    pooled = decisions[-1].reasons
    if pooled:
        title = f"The consortium's attributions, round {decisions[-1].round}"
        paired.append(figures.importances(list(pooled), list(pooled.values()), top=_TOP, title=title))
    over = [figures.trust_over_rounds(rounds), figures.nsds_over_rounds(rounds, trust["alarm"])] if course else []
    return [
        "<h2>Trust</h2>",
        f"<p>{_trust_formula(trust)}</p>",
        charts.place(*over),
        charts.place(figures.trust_parts(decisions[-1], trust["rule"]), wide=True),
        f"<h3>Round {decisions[-1].round}, least trusted first</h3>",
        _trust_table(decisions[-1], summary),
        charts.place(*paired, wide=len(paired) == 1),
        *_correlation(trust),
        "<h3>Alarms and refusals</h3>",
        _alarms(decisions, trust),
        "<h3>Limits of trust in this run</h3>",
        *[f"<p>{line}</p>" for line in trust_limits(trust)],
    ]


def trust_limits(trust: TrustRecord) -> list[str]:
    """Write what trust detects and misses in this run, by where accuracy is measured and what the server sees."""
    at_site, secure, signed = trust["accuracy_at"] == "site", trust["secure"], trust["rule"]["signed"]
    if secure:
        rows = "its own validation rows" if at_site else "reference rows that every site was sent"
        first = (
            "Models and SHAP values were hidden from the server. So each site reports its own accuracy, NSDS and "
            f"contribution; accuracy is measured on {rows}. "
        )
        first += (
            "A site whose validation labels are wrong as well reports a high accuracy and is trusted."
            if at_site
            else "A site with bad data reports a low accuracy on these rows and is detected."
        )
        first += " A site that misreports its numbers is not detected."
    elif at_site:
        first = (
            "Each site reports its accuracy on its own validation rows. A site whose validation labels are wrong as well "
            "reports a high accuracy and is trusted, and so is a site that lies. To detect both, give the server reference rows "
            "(method.trust.accuracy_at = 'reference')."
        )
    else:
        first = (
            "The server measured each model's accuracy itself, on its reference rows: a site with bad data loses trust, and so "
            "does one that lies about its accuracy. A model that is right on these rows and wrong on other patients (a "
            "backdoor) is not detected."
        )
    if not secure and trust["explained"] == "reference":
        first += " The server computed SHAP values on these rows itself, so a site cannot fake its NSDS."
    elif not secure:
        first += (
            " NSDS comes from SHAP values that each site computes on its own rows and sends: a site can fake them."
        )
    signs = (
        "SHAP values of the opposite sign count as disagreement."
        if signed
        else "NSDS depends on the size of SHAP values and not on their sign: a model with every sign flipped has the same NSDS."
    )
    other = (
        "A high NSDS says that a site's model relies on other features than the consortium's: because its data are bad, or "
        "because its patients differ."
    )
    return [escape(first), escape(f"{signs} {other}")]


def _trust_formula(trust: TrustRecord) -> str:
    r = trust["rule"]
    agreed = "exp(-NSDS) x agreement of signs" if r["signed"] else "exp(-NSDS)"
    penalty = f"exp(-{r['tau']:g} NSDS)" if r["form"] == "exponential" else f"(1 - {r['tau']:g} NSDS), at least 0"
    rows = f"rows^{r['kappa']:g} x " if r["kappa"] else ""
    more = " x agreement of signs" if r["signed"] else ""
    more += " x agreement of its sketch with the others'" if r["reasons"] else ""
    words = (
        f"Trust is {r['alpha']:g} x accuracy + {r['beta']:g} x {agreed} + {r['gamma']:g} x consistency, between 0 and 1. "
        "NSDS is how far the features that a site's model relies on (SHAP values) diverge from the consortium's: 0 is the same. "
    )
    words += (
        f"A site's weight is in proportion to {rows}trust x {penalty}{more}; "
        "every site recomputes all weights before it accepts them."
        if trust["weighs"]
        else "In this run trust was recorded and did not set weights."
    )
    return escape(words)


def _trust_table(decision: Decision, summary: RunSummary) -> str:
    signals = {**decision.signals, "weight": decision.weights}
    columns = [c for c in _COLUMNS if c in signals]
    trust = {s: v for s, v in signals["trust"].items() if v is not None}
    order = sorted(trust, key=lambda s: (trust[s], s))
    attackers = summary.attacks.get("sites", {})
    alarm = summary.trust["alarm"]
    rows = []
    for site in order[:_ROWS]:
        notes = [f"attacks ({attackers[site]})"] if site in attackers else []
        notes += ["alarm"] if (signals["nsds"].get(site) or 0.0) > alarm else []
        cells = [td(number(signals[c].get(site), _DIGITS.get(c, 3))) for c in columns]
        rows.append([td(escape(site)), *cells, text_cell("; ".join(notes))])
    more = f"<p class='quiet'>The {_ROWS} least trusted of {len(order)} sites.</p>" if len(order) > _ROWS else ""
    return table(["site", *[_HEADS.get(c, c) for c in columns], ""], rows) + more


def _correlation(trust: TrustRecord) -> list[str]:
    """Write how rewards correlate with trust; contribution is measured, and reward follows from it."""
    if trust["reward_correlation"] is None:
        return []
    hidden = ", as reported by the sites" if trust["secure"] else ""
    return [
        "<p>A site's contribution is the decrease in log loss on the reference rows when it takes part"
        f"{hidden}; its reward is contribution x trust. Mean trust and mean reward over sites: Pearson's r = "
        f"{trust['reward_correlation']:.2f}. Trust is a factor of the reward, so part of this correlation is by construction.</p>"
    ]


def _alarms(decisions: Sequence[Decision], trust: TrustRecord) -> str:
    """List the sites above the alarm threshold, and those that refused weights."""
    items = []
    alarmed: Mapping[str, Sequence[int]] = trust["alarmed"]
    for site in sorted(alarmed, key=lambda s: (-len(alarmed[s]), s))[:_ROWS]:
        highest = max((d.signals["nsds"].get(site) or 0.0, d.round) for d in decisions)
        items.append(
            f"{escape(site)}: its explanations diverged by more than {trust['alarm']:g} in {_round_list(alarmed[site])}, "
            f"at most by {highest[0]:.3f} (round {highest[1]})"
        )
    if len(alarmed) > _ROWS:
        items.append(f"and {len(alarmed) - _ROWS} more sites")
    refused: Mapping[str, Sequence[int]] = trust["refused"]
    items += [f"{escape(s)} refused the weights of {_round_list(refused[s])}" for s in sorted(refused)]
    none = [] if alarmed else [f"No site's NSDS exceeded the alarm threshold of {trust['alarm']:g} in any round."]
    none += [] if refused or not trust["weighs"] else ["No site refused the weights of a round."]
    inner = f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""
    return inner + (f"<p>{' '.join(none)}</p>" if none else "")


def _round_list(rounds: Sequence[int]) -> str:
    if len(rounds) > _LISTED:
        return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
