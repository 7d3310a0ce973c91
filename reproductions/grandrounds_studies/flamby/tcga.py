"""FLamby's table of Fed-TCGA-BRCA: its strategies by its protocol, and Cox regression from sums beside them."""

from __future__ import annotations

from grandrounds_studies.flamby.claims import GOAL, at_least, at_most, replicates
from grandrounds_studies.flamby.measures import CENTRES, CLIENT_MEAN, EXCHANGES, MEASURES, POOLED
from grandrounds_studies.flamby.published import BY_SEED, published
from grandrounds_studies.flamby.setting import BASE, EXACT, MOST_EXCHANGES, POINT, POINTS, REPEATS, STRATEGIES
from grandrounds_studies.study import Claim, Headline, Quick, Study

FEDAVG, *_, LOCAL = STRATEGIES
WITH_POOLED = tuple(arm.label for arm in STRATEGIES if arm is not LOCAL)


def _published(arm: str) -> dict[str, float]:
    """Return the published means of an arm, of each measure that FLamby has."""
    measures = [CLIENT_MEAN, *CENTRES] if arm == LOCAL.label else [CLIENT_MEAN, POOLED, *CENTRES]
    return {m.name: round(published(arm, m.name).mean, 3) for m in measures}


_REPLICATED = (
    *(
        Claim(
            f"C-index, mean of six centres: {published(arm.label, CLIENT_MEAN.name).mean:.3f}",
            arm.label,
            (arm.label,),
            replicates(CLIENT_MEAN.name),
        )
        for arm in STRATEGIES
    ),
    *(
        Claim(f"C-index of all test rows: {published(label, POOLED.name).mean:.3f}", label, (label,), replicates(POOLED.name))
        for label in WITH_POOLED
    ),
)
_COX = tuple(arm.label for arm in EXACT)
_GOALS = (
    Claim("C-index of all test rows at least 0.84", GOAL, _COX, at_least(POOLED.name, 0.84)),
    Claim("C-index, mean of six centres, at least 0.81", GOAL, _COX, at_least(CLIENT_MEAN.name, 0.81)),
    *(
        Claim(f"at most {most} exchanges, the choice of the penalty included", GOAL, (label,), at_most(EXCHANGES.name, most))
        for label, most in MOST_EXCHANGES.items()
    ),
)

TCGA = Study(
    name="flamby/tcga-brca",
    title="Survival of breast cancer in six regions: FLamby's strategies, and Cox regression from sums",
    headline=Headline(POINT, "FedAdam", POOLED.name),
    source="du Terrail et al., FLamby, NeurIPS 2022, and tcga_seed42.csv to tcga_seed46.csv of its repository",
    base=BASE,
    points=POINTS,
    arms=(*STRATEGIES, *EXACT),
    measures=MEASURES,
    published={(POINT, arm.label): _published(arm.label) for arm in STRATEGIES},
    claims=(*_REPLICATED, *_GOALS),
    settled=(
        "Test rows are FLamby's (222 of 1,088 patients). They have 32 deaths: 14, 4, 8, 3, 2 and 1 in centres 0 to 5. A centre "
        "with one death has a C-index of 1 or near 0 by chance, and differences below about 0.05 of a mean say nothing.",
        "Runs 0 to 4 have FLamby's seeds 42 to 46 and start from the initial weights that FLamby draws for them: a linear layer "
        "drawn by torch after its generator is seeded. Order of rows is drawn by this program's own generator.",
        "39 inputs as recorded (age in years beside 0 and 1), Cox partial likelihood within batches of 8, 5 rounds of 100 "
        "updates at each centre, models weighed by rows. Batches go on in the next round where they stopped, as in FLamby.",
        "FedAdam, FedYogi, FedAdagrad: beta 0.9 and 0.999, tau 1e-8, squared updates start at 0, no bias correction. Pooled and "
        "local training: Adam, learning rate 0.1, 30 epochs. Local models are scored on their own centre's test rows.",
        "FLamby's Cyclic is left out. In its code (strategies/cyclic.py) each centre's model is trained alone and never passed "
        "on, and centre 0's model is scored. With seed 42 centre 0 is the sixth of six in 5 rounds: the seven figures published "
        "for it are those of the untrained initial weights.",
        "Cox regression has no seed and no learning rate. Its penalty is chosen by 5-fold cross-validation on training rows; "
        "its inputs are in standard deviations, and its coefficients are scored in original units.",
    ),
    remarks=(
        "Published standard deviations are over five seeds (n - 1), computed from the files of FLamby's repository.",
    ),
    quick=Quick({"method": {"rounds": 1}, "train": {"steps": 5, "epochs": 1}}, arms=(FEDAVG.label, "FedAdam"), seeds=2),
    repeats=REPEATS,
    seeds=len(BY_SEED[FEDAVG.label]),
)
