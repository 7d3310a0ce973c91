"""Personal models in the console: the table of the report on the run's page, and cases explained by the deployed model."""

from __future__ import annotations

import hashlib
from html import unescape
from pathlib import Path

from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.hospitals import subgroups
from grandrounds.methods.guard.site import FILE
from grandrounds.report.deployed import describe_harm, read_deployed
from grandrounds.runs.personal_models import undo_recalibrated, write_recalibrated
from grandrounds.runs.run import Run
from tests.capabilities.console.conftest import Signed, known_users
from tests.engine.hospitals import Hospitals
from tests.engine.test_hospitals import write_csv
from tests.store import copied, shared_folder
from tests.support import patients, refused

SETTINGS = {
    "data": {"table": "data frame", "label": "died", "site": "hospital"}, "method": {"rounds": 1}, "split": {"val": 0.2},
    "train": {"steps": 4, "lr": 0.1}, "explain": {"sketch": "none"}, "personal": {"guard": True, "spread": 1.0},
    "evaluation": {"subgroup": "ward"},
}  # fmt: skip


@shared_folder
def home(root: Path) -> None:
    """A run at hospitals, and the file and the folder of hospital b."""
    held = Hospitals.of(patients([60, 50, 40]), name="own", **SETTINGS)
    held.deployed(root)
    write_csv(root / "b.csv", held.rows["b"])
    (root / "runs").mkdir()
    (root / "run").rename(root / "runs" / "own")


def console(home, **more) -> Signed:
    users, tokens = known_users()
    run_index = RunIndex(home / "runs")
    cases = SiteCases(run_index, "b", data=str(home / "b.csv"), **more)
    return Signed(create_app(AppState(run_index, users, cases=cases)), tokens)


def test_the_page_and_the_api_have_the_reports_sentences(home):
    client = console(home).client("viewer")
    found = read_deployed(Run(home / "runs" / "own").summary)
    assert found is not None
    sections = ("summary", "estimates", "hospitals")
    text = unescape("".join(client.get("/run", params={"run": "own", "section": s}).text for s in sections))
    report = unescape((home / "runs" / "own" / "report.html").read_text())
    for sentence in describe_harm(found):
        assert sentence in text and sentence in report
    assert "Models that hospitals deploy" in text and "harmed hospitals" in text
    assert "Sites, lowest AUROC first, models that hospitals deploy" in text
    table = client.get("/api/run/tables", params={"run": "own"}).json()[0]
    assert {row[0] for row in table["rows"]} == {"a", "b", "c"} and table["before"][0] == describe_harm(found)[0]
    drawn = client.get("/api/run/figure", params={"run": "own", "figure": "deployed"}).json()
    assert len(drawn["data"][1]["y"]) == 3


def test_subgroups_of_all_hospitals_are_of_the_models_that_they_deploy(home):
    summary = Run(home / "runs" / "own").summary
    deployed = summary.personal["subgroups"]
    assert deployed.keys() == summary["subgroups"].keys() and deployed != summary["subgroups"], "another model decides"
    shown = {g.name: g.figures["sensitivity"].value for g in subgroups(RunIndex(home / "runs"), "own")}
    assert shown == {name: figures["sensitivity"] for name, figures in deployed.items()}


def test_a_case_is_explained_by_the_model_that_the_hospital_deploys(home):
    own = console(home, personal=home / "state" / "b").client("clinician")
    common = console(home).client("clinician")
    asked = {"run": "own", "case": 3}
    with_own, without = (client.get("/api/case", params=asked).json() for client in (own, common))
    assert with_own["record"]["by"] == "the common model with its own intercept, which b deploys"
    assert without["record"]["by"] == "the common model"
    assert any("personal model, whose file stays there" in note for note in without["record"]["notes"])
    assert with_own["record"]["probability"] != without["record"]["probability"]
    (file,) = (home / "state" / "b").rglob(FILE)
    assert hashlib.sha256(file.read_bytes()).hexdigest() in own.get("/case", params=asked).text
    others = own.get("/api/case/others", params=asked).json()
    assert any("may deploy a personal model" in line for line in others["said"])


def test_another_hospitals_model_is_refused(home):
    with refused("wrong-site", match="the model of a"):
        SiteCases(RunIndex(home / "runs"), "b", data=str(home / "b.csv"), personal=home / "state" / "a").open("own")


def test_a_running_console_uses_a_recalibrated_model_at_once(home, tmp_path):
    """The site's folder gets another model while pages are open: risks and the model's hash are those of the new file."""
    copied(home, tmp_path)
    cases = SiteCases(RunIndex(tmp_path / "runs"), "b", data=str(tmp_path / "b.csv"), personal=tmp_path / "state" / "b")
    before = cases.open("own")
    first, old = {line.case: line.risk for line in before.scores.lines}, before.model_hash
    run = Run(tmp_path / "runs" / "own")
    run.use_personal(tmp_path / "state" / "b")
    model, own = run.model_for("b"), run.personal_file("b")
    facts = {"site": "b", "common_sha256": own.common, "base": own.choice, "time": "2026-11-18", "by": "A. Smith"}
    theta = model.net.with_platt(model.theta, slope=1.0, intercept=2.0)
    file = write_recalibrated(own.path.parent, theta, facts)
    try:
        after = cases.open("own")
        assert all(line.risk > first[line.case] for line in after.scores.lines)
        assert after.model_hash == hashlib.sha256(file.path.read_bytes()).hexdigest() != old
        assert "recalibrated on 2026-11-18" in after.explain(1).model_owner
    finally:
        undo_recalibrated(own.path.parent).unlink()
    assert cases.open("own").model_hash == own.sha256
