"""A small share of the golden corpus in every run of the tests; `python tools/golden.py` runs all of it."""

from __future__ import annotations

import pytest

from tests.golden.cases import all_cases
from tests.golden.corpus import Corpus, find_differences
from tests.golden.digest import Digest, differences
from tests.golden.record import masked, masked_text, page_text
from tests.golden.running import run_cases


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.read()


def test_a_share_of_the_corpus_is_what_it_was(corpus):
    cases = [case for case in all_cases().values() if case.part == "test"]
    found = {case.name: find_differences(corpus, case.name, left.digests) for case, left in run_cases(cases, jobs=2)}
    assert found == {case.name: [] for case in cases}, "python tools/golden.py --against FOLDER names the values"


def test_the_corpus_has_every_case_and_no_other(corpus):
    assert corpus.cases.keys() == all_cases().keys()


def test_another_machine_must_give_close_floats_and_all_else_equal():
    before = Digest.of({"auroc": 0.93, "sites": ["a", "b"], "text": "AUROC 0.93, 12% of rows", "key": "9f" * 8})
    close = Digest.of({"auroc": 0.93 + 1e-9, "sites": ["a", "b"], "text": "AUROC 0.94, 13% of rows", "key": "00" * 8})
    assert before != close and before.is_close(close)
    assert not before.is_close(
        Digest.of({"auroc": 0.94, "sites": ["a", "b"], "text": "AUROC 0.93, 12% of rows", "key": "9f" * 8})
    )
    assert not before.is_close(
        Digest.of({"auroc": 0.93, "sites": ["a"], "text": "AUROC 0.93, 12% of rows", "key": "9f" * 8})
    )
    assert not before.is_close(
        Digest.of({"auroc": 0.93, "sites": ["a", "b"], "text": "accuracy 0.93", "key": "9f" * 8})
    )


def test_a_difference_is_named_with_its_place():
    old, new = (
        {"rounds": [{"weight": 0.5}, {"weight": 0.25}]},
        {"rounds": [{"weight": 0.5}, {"weight": 0.75}], "more": 1},
    )
    assert list(differences(old, new)) == ["/rounds[1]/weight: '0.25' -> '0.75'", "/more: only now"]


def test_what_differs_between_two_runs_of_one_commit_is_masked_by_name():
    assert masked({"seconds": 0.4, "rows": 4, "meta": '{"cpu_seconds": 1.5}'}) == {
        "seconds": "~", "rows": 4, "meta": {"cpu_seconds": "~"},
    }  # fmt: skip
    assert masked_text("done on 2026-01-31 in 3.2 s, root 9f9f9f9f9f9f9f9f") == "done on DATE in TIME, root #"
    assert page_text("<style>b{}</style><p>AUROC&nbsp;<b>0.93</b>\n of 4</p>") == "AUROC 0.93 of 4"
