"""Contribution of each part of our VEIL: one thing is changed at a time, at equal epsilon, unit and trust."""

from __future__ import annotations

from grandrounds_studies.claims import Test, up
from grandrounds_studies.results import Results
from grandrounds_studies.study import FOLDS, Claim, Headline, Quick, Study, Verdict
from grandrounds_studies.veil import drawing
from grandrounds_studies.veil.claims import apart, said
from grandrounds_studies.veil.measures import ALL, promise
from grandrounds_studies.veil.setting import (
    BASE,
    DEATHS,
    ONE_SHOT,
    QUICK,
    SCORE,
    SECURE_FIT,
    SECURE_MOMENTS,
    SETTLED,
    at,
    changed,
    label,
)

QUORUM = changed(SCORE, "score: quorum and mean sign for net votes", votes="quorum", quorum=0.05, step=0.1)
UNIFORM = changed(SCORE, "score: every hospital's votes alike", weight="uniform")
STEADY = changed(SCORE, "score: steps that do not shrink", decay=False)
TIGHT = changed(SCORE, "score: values clipped at 0.5", value=0.5)
WIDE = changed(SCORE, "score: values clipped at 2", value=2.0)
ONCE = changed(SCORE, "score: one round of 40 proposals", rounds=1, k=40)
KNOWN = changed(SCORE, "score: the share of deaths as published", prior=DEATHS)
CONVEX = changed(SCORE, "weights of a strongly convex fit for scores", selection="strongly_convex")
DESCENT = changed(SCORE, "weights of a few descents for scores", selection="non_expansive")
DENSE = changed(SCORE, "score: all features", features=0)
ASKED = changed(ONE_SHOT, "one shot: rows and deaths asked for", prior=None, weight="root")
_LOCAL = (SCORE, DENSE, QUORUM, UNIFORM, STEADY, TIGHT, WIDE, ONCE, KNOWN, CONVEX, DESCENT, ONE_SHOT, ASKED)
_SECURE = (SECURE_FIT, SECURE_MOMENTS)
_FIVE, _ONE = label(5), label(1)


def adds(point: str, without: str) -> Test:
    """AUROC is clearly above that without this part."""

    def test(found: Results, arm: str) -> Verdict:
        pair = apart(found, (point, arm), (point, without))
        return up(pair, said(found, (point, arm), (point, without), pair))

    return test


def _claim(says: str, arm: str, without: str, point: str = _FIVE) -> Claim:
    return Claim(says, "our own", (arm,), adds(point, without))


ABLATION = Study(
    name="veil/ablation",
    title="Contribution of each part of our VEIL",
    headline=Headline("epsilon 5", "VEIL score, 20 features (patient, local)", "auroc"),
    source="our own: the paper has no ablation",
    unpublished="nothing to compare with",
    base=BASE,
    points=(at(5, _LOCAL), at(1, _SECURE)),
    arms=(*_LOCAL, *_SECURE),
    measures=ALL,
    claims=(
        _claim("net votes add to the paper's quorum and mean sign", SCORE.label, QUORUM.label),
        _claim("votes by the root of a hospital's rows add to equal ones", SCORE.label, UNIFORM.label),
        _claim("all features add to the 20 strongest", DENSE.label, SCORE.label),
        _claim("steps that shrink add to steady ones", SCORE.label, STEADY.label),
        _claim("values clipped at 1 add to a tighter clip", SCORE.label, TIGHT.label),
        _claim("values clipped at 1 add to a wider clip", SCORE.label, WIDE.label),
        _claim("rounds that see the model so far add to one round with as many draws", SCORE.label, ONCE.label),
        _claim("a published share of deaths adds to one that is asked for", KNOWN.label, SCORE.label),
        _claim("scores add to weights of a strongly convex fit", SCORE.label, CONVEX.label),
        _claim("scores add to weights of a few descents", SCORE.label, DESCENT.label),
        _claim("in one shot, rows and deaths asked for add to equal votes", ASKED.label, ONE_SHOT.label),
        _claim("second moments add to selecting by scores", SECURE_MOMENTS.label, SECURE_FIT.label, _ONE),
    ),
    settled=(
        *SETTLED,
        "The quorum is 5% of the hospitals with a step of 0.1, as in the printed form; mean signs are longer than net votes.",
    ),
    draws=drawing.fronts,
    keeps=promise,
    # not ONCE: the small set has 30 features, and nobody can propose 40
    quick=Quick(QUICK, points=(_FIVE,), arms=tuple(a.label for a in (SCORE, QUORUM, UNIFORM, STEADY, ONE_SHOT))),
    repeats=FOLDS,
)
