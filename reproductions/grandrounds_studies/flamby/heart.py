"""FLamby's table of Fed-Heart-Disease: its strategies by its protocol, the majority class, and regressions from sums."""

from __future__ import annotations

from grandrounds_studies.claims import Test, verdict
from grandrounds_studies.flamby.claims import GOAL, at_least, at_most, near, no_more_than
from grandrounds_studies.flamby.heart_measures import (
    CENTRES,
    CLEARLY_BELOW,
    CLIENT_MEAN,
    EACH,
    HARMED,
    LOG_LOSS,
    MEASURES,
    POOLED_TEST,
)
from grandrounds_studies.flamby.heart_published import BY_SEED
from grandrounds_studies.flamby.heart_setting import (
    BASE,
    COMMON,
    FEDAVG,
    FEDERATED,
    GUARDED,
    LOCAL,
    MAJORITY,
    ONE_SCALE,
    ONE_SCALE_COMMON,
    OTHERS,
    OURS,
    POINT,
    POINTS,
    REPEATS,
    STRATEGIES,
)
from grandrounds_studies.flamby.published import published
from grandrounds_studies.results import Results
from grandrounds_studies.study import Claim, Headline, Quick, Study, Verdict

NEAR = 0.02
"""Largest difference of a client mean from the published one."""

ILL = ("switzerland", "va")
"""Hospitals at which most patients are ill."""


def _published(arm: str) -> dict[str, float]:
    """Return the published means of an arm, of each measure that FLamby has."""
    measures = [CLIENT_MEAN, *EACH] if arm == LOCAL.label else [CLIENT_MEAN, *EACH, POOLED_TEST]
    return {m.name: round(published(arm, m.name, BY_SEED).mean, 3) for m in measures}


def _loses_to_always_ill() -> Test:
    """The mean over seeds lies below the majority class at both hospitals where most patients are ill."""

    def test(found: Results, arm: str) -> Verdict:
        names = [EACH[CENTRES.index(hospital)].name for hospital in ILL]
        means = {label: [found.summary(POINT, label, name).mean for name in names] for label in (arm, MAJORITY.label)}
        parts = (
            f"{hospital} {mine:.3f} for {theirs:.3f}"
            for hospital, mine, theirs in zip(ILL, means[arm], means[MAJORITY.label], strict=True)
        )
        return verdict(all(a < b for a, b in zip(means[arm], means[MAJORITY.label], strict=True)), ", ".join(parts))

    return test


_REPLICATED = tuple(
    Claim(
        f"client mean {theirs:.4f}",
        arm.label,
        (arm.label,),
        near(CLIENT_MEAN.name, theirs, bar=NEAR, point=POINT),
    )
    for arm in STRATEGIES
    for theirs in [published(arm.label, CLIENT_MEAN.name, BY_SEED).mean]
)
_OURS = (OURS.label, ONE_SCALE.label)
_WITH_GUARD = (*_OURS, *(arm.label for arm in GUARDED))
_GOALS = (
    Claim(
        'each published strategy has fewer patients right at Switzerland and VA than the answer "ill" for everybody',
        "our check",
        tuple(arm.label for arm in FEDERATED),
        _loses_to_always_ill(),
    ),
    Claim("client mean at least 0.80", GOAL, _OURS, at_least(CLIENT_MEAN.name, 0.80, point=POINT)),
    Claim(
        "no hospital clearly below its majority class (paired bootstrap of test rows, 95%)",
        GOAL,
        _WITH_GUARD,
        at_most(CLEARLY_BELOW.name, 0, point=POINT),
    ),
    Claim("the run reports no harmed hospital", GOAL, _WITH_GUARD, at_most(HARMED.name, 0, point=POINT)),
    *(
        Claim(
            f"log loss no higher than with one intercept for all hospitals ({where})",
            GOAL,
            (arm.label,),
            no_more_than(LOG_LOSS.name, common.label, point=POINT),
        )
        for arm, common, where in (
            (OURS, COMMON, "each hospital's own scale"),
            (ONE_SCALE, ONE_SCALE_COMMON, "one scale for all"),
        )
    ),
)

HEART = Study(
    name="flamby/heart",
    title="Heart disease at four hospitals: FLamby's strategies, the majority class, and regression with shrunk intercepts",
    headline=Headline(POINT, "FedYogi", CLIENT_MEAN.name),
    source="du Terrail et al., FLamby, NeurIPS 2022, and heart_seed42.csv to heart_seed46.csv of its repository",
    base=BASE,
    points=POINTS,
    arms=(*STRATEGIES, *OTHERS),
    measures=MEASURES,
    published={(POINT, arm.label): _published(arm.label) for arm in STRATEGIES},
    claims=(*_REPLICATED, *_GOALS),
    settled=(
        "Rows are FLamby's: 740 of 920 patients, without the columns slope, ca and thal and without rows that have a gap; zeros "
        "of cholesterol stay. Training and test rows: Cleveland 199 and 104, Hungary 172 and 89, Switzerland 30 and 16, "
        "VA 85 and 45.",
        "13 inputs: eight columns, and indicators of chest pain (3) and resting ECG (2). Each hospital's inputs are in standard "
        "deviations of its own training rows (n - 1), indicators included.",
        "A logistic model, batches of 4, SGD. 15 rounds of 100 updates at each hospital; batches go on in the next round where "
        "they stopped. Models are weighed by training rows.",
        "Runs have FLamby's seeds 42 to 46 and start from the initial weights that FLamby draws for them: a linear layer drawn "
        "by torch after its generator is seeded. Order of rows is drawn by this program's own generator.",
        "Learning rates: FedAvg, FedProx (mu 0.01), Scaffold 0.001; Cyclic 0.01; FedAdam 0.01 and 0.01 at the server; FedYogi "
        "0.003162 and 0.01; FedAdagrad 0.003162 and 0.316228. Server steps: beta 0.9 and 0.999, tau 1e-8, squared updates start "
        "at 0, no bias correction. Pooled and local training: Adam, 0.001, 50 epochs.",
        "Cyclic is run as FLamby's code runs it (strategies/cyclic.py): the models of the centres are trained in turn, but never "
        "passed on, and the model of centre 0 is scored. It is Cleveland's own model after 3 or 4 turns of 100 updates. The row "
        '"cyclic weight transfer" is the real method, with the same learning rate and number of updates.',
        "Pooled training is on inputs in standard deviations of all training rows, and is tested on each hospital's own scale, "
        "as in FLamby. Our scale of pooled inputs divides by n instead of n - 1, which is 0.1% smaller.",
        "The guard ([personal] guard = true): each hospital keeps a shrunk intercept of its own unless another of its candidates "
        "has a lower 5-fold log loss on its training rows by two standard errors. Figures are those of the model that it then "
        "deploys.",
        "Regressions are exact fits from sums (method glm, ridge 1), without a seed. The majority class is the more frequent "
        "answer among a hospital's own training rows, as a regression whose coefficients are 0.",
    ),
    remarks=(
        "Our best by all three goals is the regression with shrunk intercepts on each hospital's own scale. On one scale for all "
        "hospitals accuracy is higher, and the log loss is above that of one intercept there: common inputs tell hospitals "
        "apart, and VA pays for an intercept of its own (log loss 0.489, with one intercept 0.437, 45 test rows).",
        "254 test rows: the 95% interval of an accuracy over all of them is about 5 points to either side; Switzerland has 16 "
        "rows, one of them healthy, and all of its 30 training rows are ill.",
        '"Pooled Test" scales inputs by all training rows. Federated models are trained on inputs scaled by each hospital, so it '
        "tests them on inputs unlike those of training: compare the client mean.",
        "With 16 and 45 test rows, Switzerland's and VA's intervals are wide: most runs of the published strategies are not "
        "clearly below the majority class there either (paired bootstrap, 95%; results.json, clearly_below).",
    ),
    quick=Quick({"method": {"rounds": 2}, "train": {"steps": 5, "epochs": 1}}, arms=(FEDAVG.label, "FedYogi", MAJORITY.label)),
    repeats=REPEATS,
    seeds=5,
    brief=True,
)
