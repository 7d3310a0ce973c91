"""Cases of a run whose hospitals deploy personal models: the model is named, and its intervals are its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case, explain_site
from tests.support import patients, refused


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A logistic regression with one intercept for all, to which hospitals add one of their own."""
    exact = {"name": "glm", "rounds": 30, "exact": {"heterogeneity": False, "intercept": "common"}}
    settings = {"data": {"label": "died", "site": "hospital"}, "method": exact, "personal": {"guard": True, "spread": 2.0}}
    table = patients([120, 110, 100], gaps=0.0)
    return gr.run(gr.Experiment.parse(settings), table=table, out=tmp_path_factory.mktemp("fit") / "run"), table


def test_a_risk_has_no_interval_of_an_intercept_that_it_does_not_use(fitted):
    run, table = fitted
    assert set(run.summary.personal["choices"].values()) == {"intercept"}
    own, common = explain_case(run, 5, data=table), _without_files(run, table)
    assert own.model_owner == "the common model with its own intercept, which a deploys"
    assert own.risk_interval is None and common.risk_interval is not None
    assert common.model_owner == "the common model" and any("whose file stays there" in note for note in common.notes)
    for mine, theirs in zip(own.attributions, common.attributions, strict=True):
        assert mine.contribution == pytest.approx(theirs.contribution, abs=1e-4), "coefficients are common"


def _without_files(run, table):
    """The same case where the hospitals' files are not at hand."""
    hidden = run.folder / "at_sites"
    hidden.rename(run.folder / "elsewhere")
    try:
        return explain_case(gr.load_run(run.folder), 5, data=table)
    finally:
        (run.folder / "elsewhere").rename(hidden)


def test_a_site_is_explained_by_the_model_that_it_deploys_when_measured_now(fitted):
    run, table = fitted
    assert "which b deploys" in explain_site(run, "b", explainer="permutation", data=table).model_owner


def test_a_file_of_another_model_is_refused(fitted):
    run, _ = fitted
    file = run.personal_file("a")
    other = replace(run.model, theta=np.asarray(run.model.theta) + 1)
    with refused("other-personal-model", match="another model"):
        file.apply(other)
    with refused("no-personal-model", match="found: none"):
        run.use_personal(run.folder / "checkpoint")
