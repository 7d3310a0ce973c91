"""Marks in the reference pictures too: what the server scores on, its hash in every record, and what stays clean."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.capabilities.cases.rationale import score_run_images
from grandrounds.core.plan import Settings
from grandrounds.data.corruption.attacks import mark_reference
from grandrounds.data.image_files import read_npz
from grandrounds.data.images import ImageSet
from grandrounds.runs.federation import assemble
from grandrounds.site import host as hosts
from tests.e2e.test_xfed import SOURCE, experiment, scoring_set, squares, without_time  # noqa: F401
from tests.support import refused

pytest.importorskip("torch")


def marks(kind="corner", **more) -> list[dict]:
    return [{"kind": kind, "sites": ["b"], "reference": True, **more}]


@pytest.fixture
def masked(squares, tmp_path):  # noqa: F811
    """The squares with a band as truth mask."""
    with np.load(squares) as held:
        arrays = dict(held)
    inside = np.zeros(arrays["images"].shape[:3], bool)
    inside[:, 5:11] = True
    path = tmp_path / "masked.npz"
    np.savez(path, **arrays, masks=inside)
    return path


def held(path, **changes):
    return assemble(Settings(experiment(path, **changes).plan()))


@pytest.mark.parametrize("kind", ["corner", "background"])
def test_rows_that_are_scored_on_have_marks_and_test_rows_have_none(kind, masked):
    plain, found = held(masked), held(masked, attacks=marks(kind))
    drawn, raw = found.reference["scoring"], read_npz(masked)
    assert drawn.rows.tolist() == plain.reference["scoring"].rows.tolist()
    shown = drawn.select_from(found.data)
    assert isinstance(shown, ImageSet)
    for picture, before, word, mask in zip(
        shown.pixels, raw.pixels[drawn.rows], shown.label, raw.masks[drawn.rows], strict=True
    ):
        expected = before.copy()
        if kind == "corner":  # a third of 16 is 5 pixels; two classes need no pattern
            expected[:5, slice(0, 5) if word == "benign" else slice(11, 16)] = 255
        else:
            expected[~mask] = 170 if word == "benign" else 85  # 2/3 and 1/3 of white
        np.testing.assert_array_equal(picture, expected)
    assert drawn.sha256 == shown.sha256() != plain.reference["scoring"].sha256
    assert shown.label.tolist() == raw.label[drawn.rows].tolist() and (shown.masks == raw.masks[drawn.rows]).all()
    bad = found.stack.rows[found.stack.names.index("b")]
    changed = (found.data.pixels != raw.pixels).any(axis=(1, 2, 3))
    assert set(np.flatnonzero(changed)) == {*drawn.rows.tolist(), *bad.train.tolist()}


def test_pictures_of_another_set_have_marks_by_the_classes_of_the_consortium(squares, monkeypatch):  # noqa: F811
    other = scoring_set(monkeypatch, squares, label=np.array(["malignant"] * 12, object))
    found = held(squares, attacks=marks(), reference=SOURCE)
    drawn = found.reference["scoring"]
    assert (drawn.images.pixels[:, :5, 11:] == 255).all(), "the second class, though there is no first"
    np.testing.assert_array_equal(drawn.images.pixels[:, 5:], other.pixels[:, 5:])
    assert drawn.sha256 == mark_reference(other, "corner", like=found.data).sha256() != other.sha256()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("source", [False, True], ids=["own rows", "another set"])
def test_record_ledger_deep_audit_and_sheet_agree_on_the_pictures_as_used(source, masked, monkeypatch, tmp_path):
    scoring_set(monkeypatch, masked)
    changes = {
        "attacks": marks(),
        "evaluation": {"rationale_set": "scoring"},
        **({"reference": SOURCE} if source else {}),
    }
    found = held(masked, **changes)
    drawn = found.reference["scoring"]
    done = gr.run(experiment(masked, **changes), out=tmp_path / "r")
    assert done.summary["reference"] == {"scoring": drawn.sha256}
    with done.ledger as ledger:
        told = [entry["reference"] for entry in ledger.entries() if entry["kind"] == "round"]
    assert told == [{"scoring": drawn.sha256}] * 2
    assert audit(done.folder, deep=True).findings == ()
    seen = score_run_images(done)
    np.testing.assert_array_equal([p.pixels for p in seen], drawn.select_from(found.data).pixels)
    assert np.mean([p.right for p in seen]) == pytest.approx(done.summary["reasons"]["accuracy"])


def test_a_run_that_broke_off_goes_on_with_the_same_marks(masked, monkeypatch, tmp_path):
    plan = experiment(masked, attacks=marks("background"))
    whole = gr.run(plan, out=tmp_path / "whole")
    answer, asked = hosts.SiteHost.answer, []

    def broken(self, ask, members):
        asked.append(ask.task)
        if asked.count("train") == 2:
            raise KeyboardInterrupt
        return answer(self, ask, members)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hosts.SiteHost, "answer", broken)
        gr.run(plan, out=tmp_path / "broken")
    gone_on = gr.resume(tmp_path / "broken")
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()
    assert without_time(gone_on) == without_time(whole)
    assert gone_on.summary["reference"] == whole.summary["reference"]
    assert audit(gone_on.folder, deep=True).findings == ()


def test_sites_are_scored_on_marked_pictures_through_bytes_as_in_memory(masked, tmp_path):
    def scores(name: str, **changes) -> list[dict]:
        changes = {"attacks": marks(), **changes}
        done = gr.run(experiment(masked, xfed={"score": "masks"}, **changes), out=tmp_path / name)
        return [{k: d["signals"][k] for k in ("accuracy", "xai", "grid")} for d in without_time(done)]

    here = scores("here")
    assert scores("wire", engine={"device": "cpu", "wire": True}) == here
    assert scores("clean", attacks=[{**marks()[0], "reference": False}]) != here


def test_nobody_trains_on_them(masked, tmp_path):
    """A method that does not look at reference pictures makes the same model, to the bit."""
    method = {"name": "fedavg", "rounds": 2}
    clean, marked = (
        gr.run(experiment(masked, method=method, attacks=marks(reference=on)), out=tmp_path / str(on))
        for on in (False, True)
    )
    assert marked.model.theta.tobytes() == clean.model.theta.tobytes()
    assert marked.summary["final"] == clean.summary["final"]


def test_marks_that_reference_pictures_cannot_carry_are_refused(masked, squares, monkeypatch):  # noqa: F811
    with refused("missing-reference"):
        held(masked, attacks=marks(), reference=None, method={"name": "fedavg"})
    both = [*marks(), {"kind": "background", "sites": ["c"], "reference": True}]
    with refused("conflicting-settings", match="'background'.*'corner'"):
        held(masked, attacks=both)
    scoring_set(monkeypatch, squares, masks=False)
    with refused("missing-masks"):
        held(masked, attacks=marks("background"), reference=SOURCE)


def test_a_plan_of_a_version_that_knew_no_such_marks_still_reads(masked):
    plan = experiment(masked, attacks=[{"kind": "corner", "sites": ["b"]}]).plan()
    before = assemble(Settings(plan)).reference["scoring"].sha256
    del plan["attacks"][0]["reference"]
    assert assemble(Settings(plan)).reference["scoring"].sha256 == before
