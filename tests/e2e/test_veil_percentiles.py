"""VEIL's noised percentiles in whole runs: charged as noised, within the stated epsilon, refused where a site says so."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.privacy.account import load_account
from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.cases.case_page import percentile_text
from grandrounds.capabilities.hospital.keeper.policy.rules import REPORT as REPORT_REFUSED
from grandrounds.capabilities.hospital.keeper.policy.rules import TASK as TASK_REFUSED
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.core.arrays import load
from grandrounds.core.errors import BadInput
from grandrounds.engine.local import LocalEngine
from grandrounds.methods.veil.budget import PERCENTILES as WHAT
from grandrounds.privacy.accounting import Event, epsilon_of
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.tasks import PERCENTILES
from grandrounds.site.host import SiteHost
from tests.command import rounds
from tests.support import patients, refused

SIZES = [60, 50, 70, 40]
PUBLIC = {
    "encoding": "public",
    "ranges": {"age": [30, 90], "lactate": [0.5, 6], "pressure": [45, 105]},
    "levels": {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]},
}
WAYS = {
    "score": {"veil": {"selection": "score"}},
    "sums": {"veil": {"selection": "select_then_fit", "features": 3}},
    "moments": {"veil": {"selection": "moments", "features": 3}},
    "secure": {"veil": {"selection": "moments", "features": 3}, "privacy": {"secure": True}},
}


def plan(**changes) -> gr.Experiment:
    values = {
        "name": "percentiles",
        "data": {"label": "died", "site": "hospital", **PUBLIC},
        "split": {"val": 0.2, "test": 0.2},
        "method": {"name": "veil", "rounds": 2, "veil": {"percentiles": 0.1}},
        "explain": {"sketch": "none"},
        "privacy": {"epsilon": 5.0},
    }
    veil, values["seed"] = changes.pop("veil", {}), changes.pop("seed", 0)
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    values["method"] = {**values["method"], "veil": {**values["method"]["veil"], **veil}}
    return gr.Experiment.parse(values)


def run(out, *, sizes=SIZES, **changes):
    return gr.run(plan(**changes), table=patients(sizes), out=out)


def events(run) -> list[Event]:
    return [Event.from_dict(e) for r in run.rounds for e in r["decision"]["privacy"]["events"]]


@pytest.fixture
def seen(monkeypatch) -> list:
    """All that sites are asked."""
    found, ask = [], LocalEngine._ask

    def looked_at(self, question):
        found.append(question)
        return ask(self, question)

    monkeypatch.setattr(LocalEngine, "_ask", looked_at)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_noise_is_as_charged_and_the_total_is_the_stated_epsilon(way, seen, tmp_path):
    done = run(tmp_path / "r", **WAYS[way])
    (asked,) = (a for a in seen if a.task == PERCENTILES)
    charged = [e for e in events(done) if e.what == WHAT]
    assert len(charged) == 1 and charged[0].of == "training"
    assert charged[0] in [Event.from_dict(e) for e in done.rounds[-1]["decision"]["privacy"]["events"]]
    columns = len(json.loads(asked.shared["columns"]))
    assert columns == (4 if way == "score" else 3)
    if way == "secure":
        assert asked.withheld == ("cells",) and "noise" not in asked.shared, "no site's own counts leave it"
        assert charged[0].kind == "skellam"
    else:
        assert asked.shared["noise"] == pytest.approx(charged[0].sigma * math.sqrt(columns))
    spent = epsilon_of(events(done), 1e-5)
    assert 0.95 * 5 <= spent <= 5 * (1 + 1e-9) and done.summary["privacy"]["epsilon"] == pytest.approx(spent)
    account = load_account(done)
    assert account.promised and not account.findings, "the ledger's Decisions add up to what is said"
    assert WHAT in str(done.summary["privacy"]["events"])
    kept = json.loads((done.folder / "percentiles.json").read_text())
    assert kept["noised"] and len(kept["numeric"]) + len(kept["categorical"]) == columns


def test_switched_off_nothing_is_asked_and_the_page_says_how_to_switch_it_on(seen, tmp_path):
    done = run(tmp_path / "r", veil={"percentiles": 0.0})
    assert PERCENTILES not in {a.task for a in seen}
    assert not (done.folder / "percentiles.json").exists() and WHAT not in {e.what for e in events(done)}
    words = explain_case(done, 3, data=patients(SIZES)).population.words
    assert words.startswith("no percentile: not released under the budget") and "method.veil.percentiles" in words


def test_a_simulation_repeats_them_by_its_seed(tmp_path):
    texts = [(run(tmp_path / str(k), seed=s).folder / "percentiles.json").read_text() for k, s in enumerate((0, 0, 1))]
    assert texts[0] == texts[1] != texts[2]


def test_through_bytes_they_are_the_same(tmp_path):
    here, there = run(tmp_path / "here"), run(tmp_path / "there", engine={"wire": True})
    assert (here.folder / "percentiles.json").read_text() == (there.folder / "percentiles.json").read_text()
    assert load(here.folder / "model.safetensors")[0].keys() == load(there.folder / "model.safetensors")[0].keys()


def test_a_run_that_goes_on_after_a_crash_has_the_same(tmp_path):
    done = run(tmp_path / "r")
    path, before = done.folder / "percentiles.json", (done.folder / "percentiles.json").read_text()
    path.unlink()
    (done.folder / "summary.json").unlink()
    gr.resume(done.folder, table=patients(SIZES))
    assert path.read_text() == before, "from the checkpoint: sites are not asked again"


def test_a_large_table_is_placed_within_its_margin_and_cell(tmp_path):
    table = patients([3000] * 4)
    done = gr.run(plan(veil={"percentiles": 0.05}), table=table, out=tmp_path / "r")
    age = table.columns["age"]
    for number in (5, 11, 17):
        case = explain_case(done, number, data=table)
        reason = next(r for r in case.attributions if r.column == "age")
        if reason.value is None:
            continue
        exact = 100 * np.mean(age[~np.isnan(age)] < reason.value)
        assert reason.margin < 6 and abs(reason.percentile - exact) <= reason.margin + 5, "half a cell of a normal column"
    assert "counted in agreed cells, with noise" in case.population.words
    assert case.start.startswith("the calibrated intercept"), "noised counts tell no mean to start from"


def test_a_few_hundred_patients_are_drowned_and_the_page_says_so(tmp_path):
    done = run(tmp_path / "r", veil={"percentiles": 0.01})
    case = explain_case(done, 3, data=patients(SIZES))
    placed = [r for r in case.attributions if r.value is not None]
    assert all(r.percentile is None and r.share is None and r.margin > 10 for r in placed)
    assert all(percentile_text(r).startswith("withheld: noise of ±") for r in placed)


def test_a_site_that_does_not_allow_it_refuses_and_the_run_goes_on_without_it(tmp_path, monkeypatch):
    answer = SiteHost.answer

    def strict(host, ask, members):
        if ask.task == PERCENTILES and host.stack.names == ("b",):
            raise BadInput("task-not-allowed")
        return answer(host, ask, members)

    monkeypatch.setattr(SiteHost, "answer", strict)
    done = run(tmp_path / "r", engine={"wire": True})
    decision = done.rounds[-1]["decision"]
    assert any("percentiles are without b" in note for note in decision["notes"])
    assert not decision["missing"], "its proposals are in the model"
    kept = json.loads((done.folder / "percentiles.json").read_text())
    assert kept["rows"] == sum(done.summary["rows"][s]["train"] for s in "acd")


def test_where_every_site_refuses_there_is_a_model_and_no_percentile(tmp_path, monkeypatch):
    answer = SiteHost.answer

    def strict(host, ask, members):
        if ask.task == PERCENTILES:
            raise BadInput("task-not-allowed")
        return answer(host, ask, members)

    monkeypatch.setattr(SiteHost, "answer", strict)
    done = run(tmp_path / "r", engine={"wire": True})
    assert any(note.startswith("no percentiles: ") for note in done.rounds[-1]["decision"]["notes"])
    assert not (done.folder / "percentiles.json").exists()
    assert "could not be added up" in explain_case(done, 3, data=patients(SIZES)).population.words


def test_a_policy_can_forbid_the_task_or_the_report_and_wants_noise():
    ask = Ask(PERCENTILES, shared={"columns": "[]", "noise": 3.0}, report=("cells",))
    assert not Policy().refuses(ask, None)
    assert Policy.parse('[tasks]\ndeny = ["veil.percentiles"]').refuses(ask, None) == TASK_REFUSED
    assert Policy.parse('[reports]\ndeny = ["veil.percentiles.cells"]').refuses(ask, None) == REPORT_REFUSED
    required = Policy.parse("[privacy]\nrequire = true")
    bare = Ask(PERCENTILES, shared={"columns": "[]"}, report=("cells",))
    assert not required.refuses(ask, None) and required.refuses(bare, None)


@pytest.mark.parametrize(
    ("data", "said"),
    [({"encoding": "fitted"}, r"data\.encoding"), ({"clip": 0.0}, r"data\.clip")],
)
def test_cells_that_nobody_agreed_on_beforehand_are_refused(data, said, tmp_path):
    with refused("privacy-does-not-fit", match=said):
        run(tmp_path / "r", data=data)


def test_the_command_line_shows_them_with_their_margin(tmp_path):
    table = patients([1500] * 4)
    path = tmp_path / "patients.csv"
    path.write_text(
        "\n".join([",".join(table.columns), *(",".join(map(str, row)) for row in zip(*table.columns.values(), strict=True))])
        .replace("nan", "")
    )
    done = gr.run(plan(data={"table": str(path)}, veil={"percentiles": 0.2}), out=tmp_path / "r")
    shown = rounds("explain", done.folder, "--case", 3)
    assert shown.returncode == 0 and "(noised)" in shown.stdout and "among patients: the" in shown.stdout
    assert "counts of patients in agreed cells" in rounds("privacy", done.folder).stdout
