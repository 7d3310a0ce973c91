"""Readings that are kept with the pages: of today's plans, or the page says that there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.studies import studies
from grandrounds.studies.kept import digest

DOCS = Path(__file__).parents[1] / "docs" / "results"
READINGS = DOCS / "readings"


def test_a_setting_that_came_in_later_leaves_digests_alone_at_its_default():
    plan = gr.Experiment.parse({"data": {"name": "heart"}}).plan()
    before = json.loads(json.dumps(plan))
    del before["method"]["veil"]["percentiles"]
    assert digest(plan) == digest(before)
    plan["method"]["veil"]["percentiles"] = 0.02
    assert digest(plan) != digest(before)


@pytest.mark.parametrize("system", sorted({name.split("/")[0] for name in studies()}))
def test_readings_are_kept_or_the_page_says_that_they_are_not(system):
    page = (DOCS / f"{system}.md").read_text()
    says = "are not kept in the repository" in page[: page.index("\n## ")]
    mine = {name for name in studies() if name.startswith(f"{system}/")}
    kept = {f"{system}/{p.stem}" for p in READINGS.glob(f"{system}/*.json")}
    withheld = {name for name in mine - kept if f"`{name}`" in page}
    assert says != bool(kept)
    assert says or mine == kept | withheld
