"""Figure 3 of VEIL: one patient who died though the risk stayed below the threshold, and why the model said so."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING, Any

from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds_studies.claims import Test, cannot_fail, verdict
from grandrounds_studies.measures import AUROC
from grandrounds_studies.results import NotRun, Results
from grandrounds_studies.study import FOLDS, Cell, Claim, Headline, Measure, Quick, Study, Verdict
from grandrounds_studies.veil.setting import BASE, PAPER, PRINTED, QUICK, SCORE, SETTLED, at, label

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

_FIVE = label(5)
_EXACT = 1e-4


def near_miss(run: Run) -> dict[str, Any]:
    """The record of the near miss with the highest risk, as `rounds explain RUN --near-misses 1` and `--case` have it."""
    from grandrounds.capabilities.cases.case import explain_case
    from grandrounds.capabilities.cases.near_misses import near_misses

    missed = near_misses(run, most=1)
    if not missed.cases:
        return {"near": 0, "events": missed.events}
    case: Any = explain_case(run, missed.cases[0].case)
    return {
        "near": missed.near,
        "events": missed.events,
        "case": case.number,
        "site": case.site,
        "risk": case.probability,
        "threshold": case.threshold,
        "baseline": case.baseline,
        "base": case.base,
        "score": case.score,
        "reasons": [[r.column, r.value, r.contribution] for r in case.attributions if r.contribution],
        "bias": [flag.column for flag in case.bias],
        "quality": len(case.quality),
    }


def _share(run: Run) -> float:
    """Of the test patients that died, how many were near misses."""
    from grandrounds.capabilities.cases.near_misses import near_misses

    found = near_misses(run, most=1)
    return found.near / found.events if found.events else nan


def _each(test: Any, words: str) -> Test:
    """Something that must be so of the patient of every run."""

    def of(found: Results, arm: str) -> Verdict:
        if arm not in found.arms_at(_FIVE):
            raise NotRun(f"{arm} was not run at {_FIVE}")
        kept = [
            found.readings[c].kept for c in (Cell(_FIVE, arm, i) for i in range(found.seeds)) if c in found.readings
        ]
        held = [k for k in kept if "case" in k]
        if not held:
            raise NotRun("there was no near miss")
        return verdict(all(test(k) for k in held), "; ".join(words.format(**_said(k)) for k in held))

    return of


def _said(kept: Mapping[str, Any]) -> dict[str, Any]:
    total = kept["base"] + sum(c for _, _, c in kept["reasons"])
    return {**kept, "off": abs(total - kept["score"]), "flags": ", ".join(kept["bias"]) or "none"}


def _drawn(results: Results) -> list[tuple[str, list[Figure]]]:
    out = []
    for arm in results.arms_at(_FIVE):
        readings = (results.readings.get(Cell(_FIVE, arm, i)) for i in range(results.seeds))
        k = next((r.kept for r in readings if r is not None and "case" in r.kept), None)  # the first fold with a near miss
        if k is None:
            continue
        names, values, parts = (list(column) for column in zip(*k["reasons"], strict=True))
        figure = figures.waterfall(names, parts, k["base"], k["score"], values, top=12)
        told = f"risk {k['risk']:.2%}, the event happened (baseline {k['baseline']:.1%})"
        heading = f"{arm}: case {k['case']} at {k['site']}, {told}"
        out.append((heading, [figure]))
    return out


FIGURE_3 = Study(
    name="veil/fig-3",
    title="One patient: a near miss, and why",
    headline=Headline("epsilon 5", "VEIL as printed (claims: patient, local)", "auroc"),
    source=f"{PAPER}, Case study and Fig. 3",
    unpublished="one patient of a cohort that cannot be had; what the text says of the dashboard is put to the test",
    base=BASE,
    points=(at(5, (PRINTED, SCORE)),),
    arms=(PRINTED, SCORE),
    measures=(Measure("near_misses", "near misses among deaths", _share, digits=3), AUROC),
    claims=(
        Claim(
            "the model begins with a Baseline Risk (50%)",
            "Case study, layer 1",
            (PRINTED.label, SCORE.label),
            _each(lambda k: abs(k["baseline"] - 0.5) < 0.05, "baseline {baseline:.1%}"),
        ),
        Claim(
            "the waterfall shows how this patient's features alter that risk (read as: baseline and contributions add up to it)",
            "Case study, layer 1",
            (PRINTED.label, SCORE.label),
            cannot_fail(
                _each(
                    lambda k: _said(k)["off"] <= _EXACT * (1 + abs(k["score"])),
                    "case {case}: off by {off:.1e} log-odds",
                ),
                "contributions to a linear score add up to it by definition",
            ),
        ),
        Claim(
            "the dashboard exposes a learned bias: an attribute such as ethnicity, sex or teaching status moves the risk",
            "Case study, layer 3",
            (PRINTED.label, SCORE.label),
            _each(lambda k: bool(k["bias"]), "case {case}: {flags}"),
        ),
    ),
    settled=(
        *SETTLED,
        "The patient is the near miss with the highest risk: an event in a test hospital, with a risk below the threshold of "
        "one half and not below half of it. `rounds explain RUN --near-misses` lists them, `rounds explain RUN --case N` "
        "writes the record.",
    ),
    draws=_drawn,
    keeps=near_miss,
    quick=Quick(QUICK),
    repeats=FOLDS,
)
