"""FLamby's Fed-Heart-Disease: rows, split and inputs against pandas and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.data.sets import fed_heart
from grandrounds.data.sets.fed_heart import FEATURES
from grandrounds.data.store import INCLUDED

COUNTS = {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}


@pytest.fixture(scope="module")
def tables():
    return fed_heart.load(), fed_heart.load_scaled()


def test_rows_are_flambys(tables):
    for table in tables:
        for name, counts in COUNTS.items():
            part = table.column("part")[table.column("hospital") == name]
            assert ((part == "train").sum(), (part == "test").sum()) == counts
        assert len(table) == 740 and len(FEATURES) == 13


def test_zeros_of_cholesterol_stay(tables):
    zeros = tables[0].column("cholesterol") == 0
    assert zeros[tables[0].column("hospital") == "switzerland"].all() and zeros.sum() > 46


@pytest.mark.parametrize("name", COUNTS)
def test_inputs_and_split_are_those_of_pandas_and_scikit_learn(name, tables):
    pd, selection = pytest.importorskip("pandas"), pytest.importorskip("sklearn.model_selection")
    frame = pd.read_csv(INCLUDED / f"heart/processed.{name}.data", header=None).replace("?", np.nan)
    frame = frame.drop([10, 11, 12], axis=1).dropna().apply(pd.to_numeric)
    ill = (frame.pop(13) != 0).to_numpy()
    frame[2] = pd.Categorical(frame[2], categories=[1, 2, 3, 4])
    frame[6] = pd.Categorical(frame[6], categories=[0, 1, 2])
    x = pd.get_dummies(frame, columns=[2, 6], drop_first=True).to_numpy(float)
    by = ill if min(ill.sum(), (~ill).sum()) > 2 else None
    train, test = selection.train_test_split(
        np.arange(len(x)), train_size=0.66, test_size=1 - 0.66, random_state=43, shuffle=True, stratify=by
    )
    mine = tables[0].column("hospital") == name
    np.testing.assert_array_equal(np.stack([tables[0].column(f)[mine] for f in FEATURES], axis=1), x)
    assert ((tables[0].column("disease")[mine] == "yes") == ill).all()
    assert np.flatnonzero(tables[0].column("part")[mine] == "test").tolist() == sorted(test)
    scaled = (x - x[train].mean(axis=0)) / (x[train].std(axis=0, ddof=1) + 1e-9)
    np.testing.assert_allclose(np.stack([tables[1].column(f)[mine] for f in FEATURES], axis=1), scaled, rtol=1e-12)
