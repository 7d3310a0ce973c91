"""Every report that can leave a site under privacy.epsilon is charged, public, refused, empty, or listed as not covered."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.experiment.checks.privacy import not_covered
from grandrounds.methods import METHODS
from grandrounds.privacy.releases import FILES, file_release
from grandrounds.protocol.task_spec import CHARGED, CLASSES, EMPTY, PUBLIC, REFUSED, UNCOVERED
from grandrounds.protocol.tasks import CLOSE, HELLO, OPEN, report_of, specs
from grandrounds.site.host import SiteHost
from tests.capabilities.hospital.keeper.plans import DP, LENT, PLANS, TWO, plan
from tests.capabilities.hospital.keeper.plans import PUBLIC as AGREED
from tests.support import all_site_plugins, patients, refused, stack

ROOT = Path(__file__).parents[2]
RELEASES = [*FILES.values(), *(r.release for spec in specs().values() for r in spec.reports.values())]


def test_every_task_and_report_of_a_site_has_a_class():
    """A new task, or a new report of one, fails here until it is classified."""
    host = SiteHost(stack([10, 10]), plugins=all_site_plugins())
    assert set(specs()) == {*host._tasks, HELLO, OPEN, CLOSE}
    assert {r.kind for r in RELEASES} == set(CLASSES) == {CHARGED, PUBLIC, REFUSED, EMPTY, UNCOVERED}
    assert all(r.tells and r.why for r in RELEASES)


def test_what_is_not_covered_is_in_the_statement():
    said = not_covered(Settings(gr.Experiment.parse({"data": {"name": "heart"}, "privacy": DP["privacy"]}).plan()))
    for release in RELEASES:
        if release.kind == UNCOVERED:
            listed = release.why.split('"')[1]
            assert any(sentence.startswith(listed) for sentence in said), release


def test_the_page_is_made_from_the_table():
    made = runpy.run_path(str(ROOT / "docs" / "releases_page.py"))
    assert (ROOT / "docs" / "releases.md").read_text() == made["page"](), "run `python docs/releases_page.py --write`"
    assert "releases.md" in (ROOT / "mkdocs.yml").read_text()


def test_a_site_answers_with_no_report_without_a_class(monkeypatch):
    host = SiteHost(stack([10, 10]))
    with refused("undeclared-report", match="report 'mood' of task 'train' is not declared in grandrounds.protocol.tasks"):
        host._refuse_unaccounted("train", {"model": np.zeros(1), "mood": np.zeros(1)})


@pytest.mark.parametrize("task", specs())
def test_under_a_budget_a_site_refuses_what_the_table_refuses(task):
    host = SiteHost(stack([10, 10]), withheld_splits=("train", "val"))
    for report, spec in specs()[task].reports.items():
        if spec.release.kind == REFUSED:
            with refused("raw-release"):
                host._refuse_unaccounted(task, {report: np.zeros(1)})
        else:
            host._refuse_unaccounted(task, {f"{report}.part": np.zeros(1)})


@pytest.fixture
def left(monkeypatch):
    """Every column that left a site: (task, column, values)."""
    seen: list[tuple[str, str, object]] = []
    answer = SiteHost.answer

    def noted(self, ask, members):
        columns = answer(self, ask, members)
        seen.extend((ask.task, name, column) for name, column in columns.items() if name not in HELD_SHAPE)
        return columns

    monkeypatch.setattr(SiteHost, "answer", noted)
    return seen


HELD_SHAPE = ("held",)
"""A held report leaves its shape alone; of task `lend` it is how many rows arrived."""

OWN_PLANS = ("veil", "sse-agg", "private-gam", "watch", "quality")
"""Methods whose plan is their own: a watch needs an earlier run, and quality agreed bins
(tests/capabilities/watch/test_method.py, tests/capabilities/quality/test_method.py)."""

BUDGETED = {
    **{name: plan(LENT, DP, method={"name": name}) for name in METHODS if name not in OWN_PLANS},
    "sse-agg": plan(TWO, DP, method={"name": "sse-agg"}, explain={"sketch": "auto"}),
    **{name: p for name, p in PLANS.items() if p.get("privacy", {}).get("epsilon") is not None},
    "dp-sgd, calibrated": plan(DP, method={"name": "fedavg"}, evaluation={"calibrate": "platt"}),
    "dp-sgd, explained": plan(LENT, DP, method={"name": "fedavg"}, explain={"sketch": "permutation"}),
    "dp-sgd, personal": plan(DP, method={"name": "fedavg"}, personal={"guard": True, "part": "ditto"}),
    "fedxchain, masked": plan(LENT, DP, {"privacy": {"secure": True}}, method={"name": "fedxchain"}),
    "veil, calibrated": plan(
        {"data": AGREED, "privacy": {"epsilon": 5.0}}, method={"name": "veil"}, evaluation={"calibrate": "platt"}
    ),
}
NOT_PRIVATE = {
    *("xfed", "moon", "fedbn", "fedasync", "fedbuff", "clustered"),
    *("glm", "cox", "table1", "survival", "gam", "trees", "card"),
}
"""Methods that are refused under a budget, in words, before a patient is looked at by a model."""


@pytest.mark.parametrize("name", BUDGETED)
def test_whatever_leaves_a_run_under_a_budget_has_its_place(name, left, tmp_path):
    def run():
        return gr.run(gr.Experiment.parse(BUDGETED[name]), table=patients([60, 50, 70, 40, 55]), out=tmp_path / "r")

    if name in NOT_PRIVATE:
        with pytest.raises(BadInput):
            run()
        assert not {task for task, _, _ in left} - {"summarise", "prepare", "lend"}
        return
    done = run()
    promised = done.summary["privacy"]
    assert promised["budget"] == 5.0 and promised["events"]
    for task, column, values in left:
        spec = report_of(task, column)
        assert spec is not None and spec.release.kind != REFUSED, (task, column)
        release = spec.release
        if release.kind == EMPTY:
            assert not np.asarray(values).any(), (task, column)
        if release.kind == UNCOVERED:
            listed = release.why.split('"')[1]
            assert any(said.startswith(listed) for said in promised["not_covered"]), (task, column)
    charged = {task for task, column, _ in left if report_of(task, column).release.kind == CHARGED}
    assert charged, "something was learnt, so something was charged"
    if "platt" in charged:
        assert any(e["of"] == "validation" for e in promised["events"])
    for path in done.folder.rglob("*"):
        inside = path.relative_to(done.folder).as_posix()
        assert path.is_dir() or file_release(inside) is not None, f"{inside} has no place in the table"
    assert not (done.folder / "models").exists() or name in ("local", "pooled")


RELATIVES = {
    "fine-tuned models": {"train": {"finetune": 1}},
    "early stopping": {"train": {"early_stop": 2}},
    "local scores": {"evaluation": {"local_models": "own"}},
    "crossed scores": {"evaluation": {"local_models": "crossed"}},
    "thresholds": {"evaluation": {"threshold": "youden"}},
    "corrections by group": {"evaluation": {"subgroups": ["ward"], "mitigation": "thresholds"}},
    "temperatures": {"evaluation": {"calibrate": "temperature"}},
    "counted labels": {"train": {"class_weights": "balanced"}},
    "losses of sites": {"method": {"select": {"rule": "loss", "fraction": 0.6}}},
    "explanations at sites": {"reference": LENT["reference"], "explain": {"sketch": "permutation", "at": "site"}},
    "the mean patient": {"explain": {"sketch": "shap"}},
}
MECHANISMS = {
    "dp-sgd": {"privacy": {"mechanism": "dp-sgd", "epsilon": 5.0, "min_rows": 10}, "method": {"name": "fedavg"}},
    "client": {"privacy": {"mechanism": "client", "epsilon": 5.0}, "method": {"name": "fedavg", "weigh": "uniform"}},
    "veil": {"privacy": {"epsilon": 5.0}, "data": AGREED, "method": {"name": "veil"}},
    "private-gam": {"privacy": {"epsilon": 5.0}, "data": AGREED, "model": {"name": "gam"}},
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("what", RELATIVES)
def test_what_sites_would_tell_beside_the_promise_is_refused(what, mechanism, left, tmp_path):
    """Fine-tuning, and all of its relatives, by every mechanism."""
    experiment = gr.Experiment.parse(plan(MECHANISMS[mechanism], RELATIVES[what]))
    section, key = [(s, k) for s, own in RELATIVES[what].items() if s != "reference" for k in own][-1]
    with pytest.raises(BadInput, match=f"{section}|{key}"):
        gr.run(experiment, table=patients([60, 50, 70]), out=tmp_path / "r")
    assert not {task for task, _, _ in left} - {"summarise", "prepare", "lend"}, "refused before a model is trained"
    assert not {column for _, column, _ in left} & {"centre", "notes"}
