"""The PDF for the governance file: what its model card says, and that a browser of this machine prints it with its figures."""

from __future__ import annotations

import re
import shutil
import sqlite3
import zlib
from dataclasses import replace
from html import unescape

import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.report.card import NO_USE
from grandrounds.report.figure import BROWSERS
from tests.command import rounds
from tests.report import EVIL
from tests.report.summaries import board_page
from tests.store import copied, finished
from tests.support import patients

BROWSER = next((p for p in map(shutil.which, BROWSERS) if p), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = gr.Experiment.parse(
        {
            "name": EVIL,
            "data": {"table": "patients.csv", "label": "died", "site": "hospital"},
            "method": {"name": "fedavg", "rounds": 2},
            "evaluation": {"subgroup": "ward"},
        }
    )
    stored = finished(experiment, table=patients([60, 50, 40]))
    return gr.load_run(copied(stored, tmp_path_factory.mktemp("card") / "run"))


def text(page: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


def test_the_card_has_the_figures_of_the_run_and_the_head_of_its_ledger(run):
    found = audit(run.folder)
    card = board_page(run, found, use="To triage.")
    said, s = text(card), run.summary
    assert "To triage." in said and NO_USE[:20] not in said
    assert f"{s['final']['auroc']:.3f} {s['final']['auroc_low']:.3f} to {s['final']['auroc_high']:.3f}" in said
    for group, m in s["subgroups"].items():
        assert f"{group} {m['count']:.0f} {m['events']:.0f} {m['auroc']:.3f}" in said
    assert found.root in said and s["privacy"]["statement"][:40] in said
    assert "Checked when this file was made" in said and "summary.json" in said and "Not checked" in said
    assert "It verifies" not in said and "The keys are simulated" in said
    assert "<p class='warn'>The keys are simulated" in card
    assert f"{sum(r['train'] for r in s['rows'].values())} for training" in said
    assert EVIL not in card
    assert "rounds dossier RUN writes them into a full model card" in said


def test_the_card_says_what_is_missing_and_what_is_broken(run, tmp_path):
    bare = text(board_page(run, summary=replace(run.summary, subgroups={})))
    assert "None was stated" in bare and "No subgroup was evaluated" in bare and "no ledger" in bare
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    with sqlite3.connect(copy / "ledger.db") as held:
        table = held.execute("select name from sqlite_master where type = 'table' and name like '%entr%'").fetchone()[0]
        for (trigger,) in held.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            held.execute(f"drop trigger {trigger}")
        held.execute(f"delete from {table} where rowid = (select max(rowid) from {table})")
    said = text(board_page(run, audit(copy)))
    assert "does NOT verify" in said and "It verifies" not in said


def test_the_card_is_of_the_models_that_hospitals_deploy(run):
    final = {**run.summary.final, "log_loss": 0.1234, "sensitivity": 0.987}
    deployed = {"guard": True, "part": "none", "stays": False, "harmed": [], "tested": []}
    personal = {**deployed, "final": final, "per_site": run.summary.per_site, "threshold": 0.123}
    said = text(board_page(run, summary=replace(run.summary, personal=personal)))
    card = said.partition("Scores with intervals, models that hospitals deploy")[2].partition("Known limits")[0]
    assert "sensitivity at 12.3% 0.987" in card and "at 50%" not in card
    assert "at a risk of 12.3% or more" in said and "training rows; " in said


def test_a_model_of_several_classes_flags_no_event(run):
    several = replace(run.summary, event=None, classes=("a", "b", "c"))
    text = board_page(run, summary=several)
    assert "the class with the highest probability" in text and "flagged as" not in text


@pytest.mark.skipif(BROWSER is None, reason="there is no Chrome or Chromium to print with")
def test_the_pdf_is_printed_with_its_figures(run):
    told = rounds("report", run.folder, "--pdf", "--use", "To triage.")
    assert told.returncode == 0 and "report.pdf" in told.stdout
    data = (run.folder / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", data)) >= 3
    drawn = sum(_strokes(part) for part in re.findall(rb"stream\r?\n(.*?)endstream", data, re.S))
    assert drawn > 400  # lines of figures; a page without its script has a few dozen


def _strokes(stream: bytes) -> int:
    try:
        return len(re.findall(rb"\bl\b", zlib.decompress(stream)))
    except zlib.error:
        return 0


def test_bad_input_is_one_sentence(run, tmp_path, monkeypatch):
    assert rounds("report", run.folder, "--use", "x").returncode == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    told = rounds("report", run.folder, "--pdf")
    assert told.returncode == 2 and "install one" in told.stderr
