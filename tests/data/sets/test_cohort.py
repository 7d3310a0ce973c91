"""The made-up ICU cohort stays where its users expect it: size, deaths, signal, and how well models do."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.data.sets.cohort import HOSPITALS, LABS, LATENTS, VITALS, generate
from grandrounds.data.split import assign_roles

NOT_FEATURES = ("stay_id", "patient_id", "hospital", "died")


@pytest.fixture(scope="module")
def cohort():
    return generate(0)


@pytest.fixture(scope="module")
def features(cohort):
    return [name for name in cohort.names if name not in NOT_FEATURES]


def inputs(cohort, features):
    """Numbers as they are, one 0/1 column for each category but the first."""
    columns = []
    for name in features:
        values = cohort.column(name)
        if values.dtype == object:
            columns += [(values == level).astype(float) for level in sorted(set(values))[1:]]
        else:
            columns.append(values)
    return np.column_stack(columns)


def test_size_and_shape(cohort, features):
    assert len(features) == 90
    assert cohort.names[:3] == ("stay_id", "patient_id", "hospital") and cohort.names[-1] == "died"
    stays = np.unique(cohort.column("hospital").astype(str), return_counts=True)[1]
    assert len(stays) == HOSPITALS == 152
    assert abs(np.median(stays) - 390) < 5
    assert 79_000 < len(cohort) < 81_000
    assert np.log(stays).std() == pytest.approx(0.775, abs=0.02)


def test_the_seed_decides_and_deaths_are_the_same_share(cohort):
    same, other = generate(0), generate(1)
    assert same.names == other.names == cohort.names
    for name in cohort.names:
        values = cohort.column(name)
        np.testing.assert_array_equal(same.column(name), values)
        assert name == "stay_id" or not np.array_equal(other.column(name), values)
    for one in (cohort, other):
        assert set(one.column("died")) == {0.0, 1.0}
        assert one.column("died").mean() == pytest.approx(0.089, abs=0.0002)


def test_a_patient_comes_back_only_alive_to_the_same_hospital_and_unchanged(cohort):
    patient, died = cohort.column("patient_id"), cohort.column("died")
    again = np.flatnonzero(patient[1:] == patient[:-1]) + 1
    assert 0.02 < len(again) / len(cohort) < 0.06
    assert len(set(patient)) == len(cohort) - len(again)
    assert died[again - 1].sum() == 0
    for name in ("hospital", "age", "sex", "ethnicity", "height_cm"):
        assert np.all(cohort.column(name)[again] == cohort.column(name)[again - 1])


def test_values_are_possible(cohort):
    for name, m in LABS.items():
        values = cohort.column(name)
        assert np.nanmin(values) >= m.limits[0] and np.nanmax(values) <= m.limits[1], name
        assert abs(np.isnan(values).mean() - m.gaps) < 0.08, name
    for name in VITALS:
        low, mean, high = (cohort.column(f"{name}_{part}") for part in ("min", "mean", "max"))
        observed = ~np.isnan(mean)
        assert np.all((low[observed] <= mean[observed]) & (mean[observed] <= high[observed])), name
    assert np.nanmedian(cohort.column("map_mean")) == pytest.approx(82, abs=1)
    assert set(cohort.column("sex")) == {"female", "male"}
    assert set(cohort.column("gcs_min")) == set(range(3, 16))
    for m in (*VITALS.values(), *LABS.values()):
        assert set(m.loads) <= set(LATENTS)


def test_hospitals_differ(cohort):
    hospital = np.unique(cohort.column("hospital").astype(str), return_inverse=True)[1]
    n = np.bincount(hospital)

    def by_hospital(values):
        return np.bincount(hospital, weights=values) / n

    died = by_hospital(cohort.column("died"))[n > 200]
    assert died.max() > 2 * died.min()
    ordered = by_hospital(~np.isnan(cohort.column("lactate")))
    assert np.quantile(ordered, 0.9) - np.quantile(ordered, 0.1) > 0.3


def test_sixty_features_carry_signal_on_their_own(cohort, features):
    """Feature and death, both less their hospital's mean among the rows that have the feature: z of their
    product's sum. Chance gives |z| > 5 once in 1.7 million features; a category counts by its best level."""
    died = cohort.column("died")
    hospital = np.unique(cohort.column("hospital").astype(str), return_inverse=True)[1]

    def z(values):
        observed = ~np.isnan(values)
        index, pair = hospital[observed], [values[observed], died[observed]]
        n = np.maximum(np.bincount(index, minlength=HOSPITALS), 1)
        x, y = (v - (np.bincount(index, weights=v, minlength=HOSPITALS) / n)[index] for v in pair)
        spread = np.sqrt(np.sum((x * y) ** 2))
        return abs(np.sum(x * y)) / spread if spread > 1e-6 else 0.0  # 0: the same all over a hospital

    def strongest(values):
        if values.dtype != object:
            return z(values)
        return max(z((values == level).astype(float)) for level in set(values))

    strong = [name for name in features if strongest(cohort.column(name)) > 5]
    assert len(strong) >= 60
    assert not {"teaching_hospital", "hospital_beds", "region"} & set(strong)


@pytest.mark.slow
def test_models_on_unseen_hospitals(cohort, features):
    """One of five folds by hospital, near their mean. Over all five and seeds 0 to 2 the means are .827 to
    .832 for logistic regression and .867 to .874 for these trees; a single fold can be .012 off.
    (Measured once by hand with 0.1; no command prints it.)"""
    import lightgbm
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    hospital = cohort.column("hospital").astype(str)
    role = assign_roles(sorted(set(hospital)), scheme="group-kfold", seed=0, fold=4, folds=5)
    test = np.array([role[h] == "test" for h in hospital])
    x, died = inputs(cohort, features), cohort.column("died")
    filled = np.where(np.isnan(x), np.nanmedian(x[~test], axis=0), x)
    scaled = (filled - filled[~test].mean(axis=0)) / filled[~test].std(axis=0)
    linear = LogisticRegression(C=1.0, max_iter=200).fit(scaled[~test], died[~test])
    trees = lightgbm.LGBMClassifier(
        n_estimators=150, learning_rate=0.1, num_leaves=15, min_child_samples=60, colsample_bytree=0.5,
        reg_lambda=5.0, max_bin=63, n_jobs=1, random_state=0, verbose=-1,
    )  # fmt: skip
    trees.fit(x[~test], died[~test])
    auc_linear = roc_auc_score(died[test], linear.decision_function(scaled[test]))
    auc_trees = roc_auc_score(died[test], trees.predict(x[test], raw_score=True))
    assert 0.82 <= auc_linear <= 0.84
    assert 0.86 <= auc_trees <= 0.88
    assert 0.03 < auc_trees - auc_linear < 0.06
