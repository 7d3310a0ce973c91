"""`gr.predict` and `gr.evaluate`: the figures of the run's model, as frames."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from tests.api.conftest import patient_frame
from tests.support import refused


def test_predictions_are_those_of_the_model_with_the_index_of_the_frame(frame, run, tmp_path):
    new = frame.drop(columns="died").iloc[5:9]
    made = gr.predict(run, new)
    assert list(made.columns) == ["risk_of_died", "decision"] and list(made.index) == [5, 6, 7, 8]
    assert made["risk_of_died"].tolist() == run.model.predict(new).risk.tolist()
    assert made["decision"].tolist() == ["1" if p >= 0.5 else "0" for p in made["risk_of_died"]]
    new.to_csv(tmp_path / "new.csv", index=False)
    from_file = gr.predict(run.folder, tmp_path / "new.csv")
    assert from_file["risk_of_died"].tolist() == made["risk_of_died"].tolist() and list(from_file.index) == [0, 1, 2, 3]


def test_three_classes_have_a_probability_each(tmp_path):
    rows = patient_frame([40, 40], classes=3)
    run = gr.run(rows, label="died", site="hospital", rounds=1, out=tmp_path / "r")
    made = gr.predict(run, rows)
    assert list(made.columns) == ["p(0)", "p(1)", "p(2)", "decision"]
    assert np.allclose(made.iloc[:, :3].sum(axis=1), 1)


def test_rows_without_an_important_column_are_refused_unless_allowed(frame, run):
    renamed = frame.rename(columns={"lactate": "Lactate (mmol/l)"})
    for score in (gr.predict, gr.evaluate, lambda run, rows: gr.explain_case(run, 1, table=rows)):
        with refused("missing-columns", match=r"'lactate' \(\d+%, did you mean 'Lactate \(mmol/l\)'\?\)"):
            score(run, renamed)
    with pytest.warns(UserWarning, match="lactate"):
        made = gr.predict(run, renamed, allow_missing=True)
    assert any("lactate" in note for note in made.attrs["notes"])
    assert set(made["missing_inputs"]) == {"lactate"}
    assert gr.evaluate(run, renamed, allow_missing=True).notes
    assert gr.explain_case(run, 1, table=renamed, allow_missing=True).quality
    with pytest.warns(UserWarning, match="'lactate' has no value here"):
        assert "missing_inputs" not in gr.predict(run, frame.assign(lactate=np.nan))


def test_evaluation_by_site(frame, run):
    result = gr.evaluate(run, patient_frame([20, 25], seed=3))
    assert result.overall == run.model.evaluate(patient_frame([20, 25], seed=3))["overall"]
    assert list(result.frame.index) == ["overall", "a", "b"]
    assert result.frame.loc["a", "auroc"] == result.per_site["a"]["auroc"]
    assert not result.warnings and json.dumps(result.to_dict())
    with pytest.warns(UserWarning, match="trained on"):
        assert gr.evaluate(run, frame).warnings
    assert "<table" in result._repr_html_()


def test_rows_of_another_kind_are_refused(frame, run):
    with refused("not-a-table", match="ndarray"):
        gr.predict(run, frame.to_numpy())
    with refused("not-a-table", match="list"):
        run.model.predict([1, 2])
    with refused("not-a-run-folder"):
        gr.predict("nowhere", frame)
