"""Summarise a reproduction in one line: a published figure, our figure, and the verdict on the main claim."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import inf
from typing import Any

from grandrounds_studies.study import UNTESTED, Headline, Study
from grandrounds_studies.tally import Answer, Tally, Told, answers
from grandrounds_studies.wording import cell_words


@dataclass(frozen=True)
class Line:
    """One line of the list of reproductions; `note`: the cause if it was not run, or its missing parts."""

    study: str
    what: str
    at: str
    published: float | None
    ours: str  # mean ± half of its 95% interval; "" where there is none
    verdict: str  # of the main claim; "" if there is no claim
    claim: str
    reproduced: int
    tested: int
    note: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Figure:
    """Headline figure of a study: its description, the published value, our value."""

    what: str
    at: str  # the point
    published: float | None
    ours: str


def line(
    study: Study,
    figure: Figure | None,
    told: Sequence[Told],
    *,
    quick: bool = False,
    note: str = "",
    failed: bool = False,
) -> Line:
    """Return the line of a study; verdicts of a quick version are those of any arm that was run."""
    tested = [t for t in told if t.verdict != UNTESTED]
    found = answers(tested if quick and tested else told)
    main = main_claim(study, found)
    claim, verdict = (main.claim, main.verdict) if main else ("", "")
    shown = figure or awaited(study) or Figure(claim or study.title, "", None, "")
    count = Tally.of(found)
    return Line(
        study=study.name,
        **asdict(shown),
        verdict=verdict,
        claim=claim,
        reproduced=count.reproduced,
        tested=count.tested,
        note=note,
        failed=failed,
    )


def line_of(study: Study, values: Mapping[str, Any]) -> Line:
    """Return the line of a results.json; its note names the parts that were left out or failed."""
    told = [Told.of(c) for c in values["claims"]]
    left = [f"without {point}: {brief(why)}" for point, why in values["left_out"].items()]
    count = len(values["failed"])
    lost = [f"{count} run{'' if count == 1 else 's'} failed: {next(iter(values['failed'].values()))}"] if count else []
    note = "; ".join([*lost, *left[:1]])
    return line(study, line_figure(study, values), told, quick=values["quick"], note=note, failed=bool(count))


def brief(why: str) -> str:
    """Return the problem without its suggested fix, which `rounds reproduce NAME` prints."""
    return why.split("; ")[0]


def headline(study: Study) -> Headline | None:
    """Return the headline figure of a study: the chosen one, or the first published one of any arm but the first."""
    if study.headline is not None:
        return study.headline
    first = study.arms[0].label
    for (point, arm), figures in study.published.items():
        if arm != first and figures:
            return Headline(point, arm, next(iter(figures)))
    return None


def what(study: Study, arm: str, measure: str) -> str:
    """Describe a figure briefly: measure and arm, without the brackets after the arm's name."""
    return f"{study.measure(measure).words}, {re.sub(r' [(][^)]*[)]$', '', arm)}"


def line_figure(study: Study, values: Mapping[str, Any]) -> Figure | None:
    """Return the headline among these figures. A quick version may lack its arm or point; the most similar one is used."""
    chosen = headline(study)
    if chosen is None:
        return None
    held = [f for f in values["figures"] if f["measure"] == chosen.measure]
    if not held:
        return None
    f = max(held, key=lambda f: (_alike(f["arm"], chosen.arm), f["point"] == chosen.point))
    digits = values["measures"][chosen.measure]["digits"]
    return Figure(what(study, f["arm"], chosen.measure), f["point"], f["published"], cell_words(f, digits))


def _alike(one: str, other: str) -> float:
    """Score the similarity of two names by the length of their common beginning; equal names score highest."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return inf if one == other else 2 * same - len(one)


def awaited(study: Study) -> Figure | None:
    """Return the headline of a study that has not been run: its published figure."""
    chosen = headline(study)
    if chosen is None:
        return None
    published = study.published.get((chosen.point, chosen.arm), {}).get(chosen.measure)
    return Figure(what(study, chosen.arm, chosen.measure), chosen.point, published, "")


def main_claim(study: Study, found: Sequence[Answer]) -> Answer | None:
    """Return the main claim of a study: the chosen one if it was tested, else the first tested one."""
    begins = study.headline.claim if study.headline else ""
    ordered = sorted(found, key=lambda a: not a.claim.startswith(begins)) if begins else list(found)
    tested = [a for a in ordered if a.verdict != UNTESTED]
    return next(iter(tested or ordered), None)
