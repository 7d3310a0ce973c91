"""The files for a board have the facts of the overview in the same words: page, PDF, slides and console."""

from __future__ import annotations

import re
import shutil
import unicodedata
from html import unescape
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.analysis.reports import board_overview, draw_report, make_board_file
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.overview import make_run_overview
from grandrounds.capabilities.dossier.register import signing_key
from grandrounds.capabilities.dossier.register.register import Register
from grandrounds.core.errors import RunFailed
from grandrounds.report.card import ROLES
from grandrounds.report.figure import BROWSERS
from grandrounds.report.overview import Overview
from grandrounds.runs.overview import run_overview
from tests.command import rounds
from tests.engine.hospitals import Hospitals
from tests.report import EVIL
from tests.store import copied, finished
from tests.support import patients, refused

BROWSER = next((p for p in map(shutil.which, BROWSERS) if p), None)
USE = "To triage adults in intensive care."
EXPERIMENT = {
    "name": "board <b>",
    "data": {"table": "patients.csv", "label": "died", "site": "hospital"},
    "method": {"rounds": 2},
    "evaluation": {"subgroup": "ward"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> gr.Run:
    """A copy, since files for a board are written into a run."""
    stored = finished(gr.Experiment.parse(EXPERIMENT), table=patients([200, 180, 160]))
    return gr.load_run(copied(stored, tmp_path_factory.mktemp("board") / "run"))


@pytest.fixture(scope="module")
def view(run) -> Overview:
    return board_overview(run, make_board_file(run, use=USE))


def facts(view: Overview) -> list[str]:
    """The sentences that every file must have."""
    assert view.headline is not None
    return [
        view.verdict_title, view.headline.value_text, view.headline.interval_text, view.threshold_text, view.use,
        view.privacy_title.rstrip("."), f"{view.test_rows:,}", f"{view.events:,} with the event", view.sites_text,
        *view.findings.majority, *view.subgroups, *view.relies_on,
    ]  # fmt: skip


def plain(text: str) -> str:
    """Text without ligatures and line breaks."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text))


def page_text(page: str) -> str:
    return plain(unescape(re.sub(r"<[^>]*>", " ", page.partition("</style>")[2].partition("plotly-packed")[0])))


def slide_texts(path: Path) -> list[str]:
    from pptx import Presentation

    texts = []
    for slide in Presentation(str(path)).slides:
        words = []
        for shape in slide.shapes:
            words += [p.text for p in shape.text_frame.paragraphs] if shape.has_text_frame else []
            words += [cell.text for row in shape.table.rows for cell in row.cells] if shape.has_table else []
        texts.append(plain(" ".join(words)))
    return texts


def test_the_page_for_a_board_has_the_facts_of_the_overview(run, view):
    text = page_text(draw_report(run, make_board_file(run, use=USE))[0])
    assert [fact for fact in facts(view) if plain(fact) not in text] == []
    assert view.model_hash in text and all(role in text for role in ROLES)


def test_the_console_has_the_same_overview(run, view):
    shown = make_run_overview(RunIndex(run.folder.parent), "run", use=USE)
    assert facts(shown) == facts(view) and shown.scores == view.scores


def test_five_slides_have_the_facts_of_the_overview(run, view, tmp_path):
    pytest.importorskip("pptx")
    made = rounds("report", run.folder, "--deck", tmp_path / "deck.pptx", "--use", USE)
    assert made.returncode == 0, made.stderr
    slides = slide_texts(tmp_path / "deck.pptx")
    assert len(slides) == 5
    assert [fact for fact in facts(view) if plain(fact) not in " ".join(slides)] == []
    assert view.verdict_title in slides[0] and view.ledger.sentence in slides[3] and view.model_hash in slides[4]
    assert all(f"{k} of 5" in slide and "Run board <b>" in slide for k, slide in enumerate(slides, 1))
    assert all(role in slides[4] for role in ROLES)
    for site, scores in run.summary.per_site.items():
        assert site in slides[1] and f"{scores['auroc']:.3f}" in slides[1]


def test_names_from_data_stay_text_on_slides(tmp_path):
    pytest.importorskip("pptx")
    columns = dict(patients([60, 50]).columns)
    columns[f"{EVIL}\x07"] = columns.pop("lactate")
    frame = pytest.importorskip("pandas").DataFrame(columns)
    plan = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 2}}
    made = gr.run(gr.Experiment.parse(plan), out=tmp_path / "run", table=frame)
    assert rounds("report", made.folder, "--deck", tmp_path / "deck.pptx").returncode == 0
    assert plain(f"{EVIL}\\x07") in " ".join(slide_texts(tmp_path / "deck.pptx"))


@pytest.mark.skipif(BROWSER is None, reason="there is no Chrome or Chromium to print with")
def test_the_pdf_has_the_facts_page_numbers_a_header_and_bookmarks(run, view):
    pypdf = pytest.importorskip("pypdf")
    made = rounds("report", run.folder, "--pdf", "--use", USE)
    assert made.returncode == 0, made.stderr
    reader = pypdf.PdfReader(run.folder / "report.pdf")
    pages = [plain(page.extract_text()) for page in reader.pages]
    text = " ".join(pages)
    assert [fact for fact in facts(view) if plain(fact) not in text] == []
    for number, page in enumerate(pages, 1):
        assert f"page {number} of {len(pages)}" in page
        assert "Run board <b>" in page and f"model SHA-256 {view.model_hash}" in page
    titles = [entry.title for level in reader.outline for entry in (level if isinstance(level, list) else [level])
              if not isinstance(entry, list)]  # fmt: skip
    for title in ("Summary", "For whom it is worse", "Hospitals", "Subgroups", "Privacy", "Decision and sign-off"):
        assert title in titles
    assert rounds("audit", "verify", run.folder, "--report", run.folder / "report.pdf").returncode == 0


def test_the_register_fills_the_sign_off_block(run, tmp_path, monkeypatch):
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})  # a key at full cost takes a third of a second
    runs = tmp_path / "runs"
    shutil.copytree(run.folder, runs / "one")
    register = Register.create(runs, roles=("medical director", "data protection officer"))
    register.add_signatory("ada", role="medical director", passphrase="four quiet words of ada")
    register.propose(runs / "one", purpose="death in hospital", by="engineer")
    register.decide("approve", "one", by="ada", passphrase="four quiet words of ada")
    copy = gr.load_run(runs / "one")
    board = make_board_file(copy)
    assert [(s.role, s.name, bool(s.date)) for s in board.signatures] == [
        ("medical director", "ada", True), ("data protection officer", "", False),
    ]  # fmt: skip
    text = page_text(draw_report(copy, board)[0])
    assert "death in hospital" in text and "Register of models: Candidate, not approved" in text
    assert draw_report(copy)[0] == draw_report(run)[0], "report.html depends on the files of the run alone"


def test_an_unfinished_run_has_a_report_with_its_cause(tmp_path):
    def stop(event):
        if event["event"] == "round":
            raise RunFailed("too few <sites> answered", code="too-few-sites")

    with pytest.raises(RunFailed):
        gr.run(gr.Experiment.parse(EXPERIMENT), out=tmp_path / "run", table=patients([60, 50]), progress=stop)
    assert rounds("report", tmp_path / "run").returncode == 0
    page = (tmp_path / "run" / "report.html").read_text()
    text = page_text(page)
    assert "Failed after 1 of 2 rounds. Too few <sites> answered." in text and "<sites>" not in page
    assert f"rounds resume {tmp_path / 'run'}" in text and "too-few-sites" in text
    for option in (["--pdf"], ["--deck", tmp_path / "deck.pptx"]):
        refusal = rounds("report", tmp_path / "run", *option)
        assert refusal.returncode == 2 and "is not finished" in refusal.stderr


def test_wrong_options_are_one_sentence(run, tmp_path):
    from grandrounds.cli.report import report

    with refused("unknown-format"):
        report(run.folder, deck=tmp_path / "deck.ppt")
    with refused("missing-option"):
        report(run.folder, use="x")


def test_a_run_at_hospitals_has_the_same_report_and_its_own_command(tmp_path):
    hospitals = Hospitals.of(patients([60, 50, 40]), **EXPERIMENT)

    def stop(event):
        if event["event"] == "round":
            raise RunFailed("the run was stopped after round 1", code="run-stopped")

    with pytest.raises(RunFailed):
        hospitals.deployed(tmp_path / "stopped", progress=stop)
    view = run_overview(gr.load_run(tmp_path / "stopped" / "run"))
    assert view.state == "stopped" and view.next_command == "rounds server submit --resume run"
    made = hospitals.deployed(tmp_path / "whole")
    text = page_text(draw_report(made, make_board_file(made, use=USE))[0])
    shown = board_overview(made, make_board_file(made, use=USE))
    assert [fact for fact in facts(shown) if plain(fact) not in text] == []
