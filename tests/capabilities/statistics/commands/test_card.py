"""`rounds card`, `gr.card` and `run.card` on the four hospitals of heart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.capabilities.statistics.risk_card import calibrate_points
from grandrounds.report import figure
from grandrounds.runs.run_rows import RunRows
from tests.command import rounds
from tests.store import finished
from tests.support import refused

QUICK = {"explain.sketch": "none", "evaluation.every": 100}
GOLDEN = """\
Risk card: disease = yes

  line                        points
 ────────────────────────────────────
  chest_pain = asymptomatic       +3
  cholesterol missing             +2
  sex = male                      +2
  exercise_angina = no            -2
  st_slope = flat                 +2


  total         risk     95% interval   patients   events
 ─────────────────────────────────────────────────────────
  -1 or less    5.2%    1.6% to 15.4%         48        2
  0            16.4%   10.8% to 24.2%        116       18
  1            27.4%    8.8% to 59.5%          9        3
  2            42.2%   30.6% to 54.7%         61       31
  3            56.9%   44.5% to 68.5%         62       29
  4            71.8%   53.7% to 84.8%         29       19
  5 to 6       83.6%   75.8% to 89.3%        115      100
  7 to 8       94.6%     89% to 97.4%        119      112
  9 or more    98.5%   83.2% to 99.9%         23       23

heart: 582 patients of 4 hospitals, distilled from an additive model in 11 exchanges of sums.
A value that was not measured meets no line, unless the line says 'missing'.
"""


@pytest.fixture(scope="module")
def run():
    return gr.load_run(finished("heart", model="card", settings={**QUICK, "method.card.terms": 5}))


@pytest.fixture
def no_browser(monkeypatch):
    """Printing in a browser takes seconds; one slow test does it."""
    monkeypatch.setattr(figure, "find_browser", lambda: None)


def test_the_terminal_shows_the_card_and_the_page_is_written(run, no_browser, tmp_path):
    done = rounds("card", run.folder, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    shown = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert shown.startswith(GOLDEN)
    assert "all hospitals: 185 test patients, 97 with the event, AUROC 0.846" in shown
    assert ElementTree.fromstring((tmp_path / "risk_card.svg").read_text()).tag.endswith("svg")
    assert "Risk card: disease = yes" in (tmp_path / "risk_card.html").read_text()
    assert "no PDF" in done.stderr


def test_every_patients_risk_is_that_of_adding_up_the_printed_points(run):
    """By the words of the card and the cells of the table alone."""
    table = RunRows.read(run).consortium.data.table
    cells = {t.column: table.column(t.column) for t in run.card.card.terms}
    risk = run.model.predict(table).risk
    for i, given in enumerate(risk.tolist()):
        total = 0
        for term in run.card.card.terms:
            cell = cells[term.column][i]
            is_gap = cell is None or cell != cell
            met = is_gap if term.kind == "missing" else not is_gap and str(cell) == term.value
            assert term.kind in ("missing", "level"), "this card has no other terms"
            total += term.points * met
        assert given == pytest.approx(run.card.card.risk(total), abs=1e-12)


def test_a_hospitals_page_has_its_own_calibration_and_net_benefit(run):
    va, everyone = gr.card(run, site="VA"), gr.card(run)
    assert va.performance.place == "va" and va.performance.rows == run.summary.rows["va"]["test"]
    assert va.performance.scores["auroc"] == pytest.approx(run.summary.per_site["va"]["auroc"], abs=1e-9)
    assert va.file_name == "risk_card-va" and everyone.file_name == "risk_card"
    assert sum(p.rows for p in va.performance.calibration) == va.performance.rows
    assert everyone.performance.events == 97 and everyone.performance.decision
    assert not va.fitted and "va: 44 test patients" in va.svg()


def test_a_hospitals_own_table_is_scored(run, no_browser, tmp_path):
    rows = RunRows.read(run)
    own = rows.consortium.data.table.take(rows.test_rows("hungarian"))
    pd.DataFrame({name: own.columns[name] for name in own.names}).to_csv(tmp_path / "own.csv", index=False)
    done = rounds("card", run.folder, "--table", tmp_path / "own.csv", "--json", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["performance"]["scores"]["auroc"] == pytest.approx(
        run.summary.per_site["hungarian"]["auroc"], abs=1e-9
    )
    assert found["performance"]["place"] == "own.csv" and (tmp_path / "risk_card-own.html").exists()


def test_another_run_gets_a_card_beside_it_once(tmp_path, no_browser):
    settings = {**QUICK, "method.rounds": 1}
    base = gr.run("heart", model="logistic", settings=settings, out=tmp_path / "base", progress=False)
    with pytest.raises(gr.BadInput, match="no risk card: fit one"):
        _ = base.card
    first = gr.card(base, terms=3, progress=False)
    assert first.fitted and first.run.folder == tmp_path / "base-card-3" and len(first.card.terms) == 3
    assert first.run.summary.rows == base.summary.rows  # the same split
    assert not gr.card(base, terms=3).fitted
    shown = rounds("card", tmp_path / "base", "--terms", 3)
    assert shown.returncode == 0 and "fitted one" not in shown.stdout


def test_a_run_without_test_rows_has_a_card_and_no_charts(tmp_path, no_browser):
    settings = {**QUICK, "method.card.terms": 3, "method.card.route": "direct", "split.test": 0.0, "split.val": 0.0}
    run = gr.run("heart", model="card", settings=settings, out=tmp_path / "all", progress=False)
    found = gr.card(run)
    assert found.performance.rows == 0 and "no test rows" in found.performance.notes[0]
    assert "Decision curve" not in found.svg() and sum(t.rows for t in found.card.totals) == 920


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("card", "RUN", "--site", "va", "--table", "x.csv"), "leave one of them out"),
        (("card", "RUN", "--site", "xx"), "no site 'xx'"),
        (("card", "RUN", "--table", "nowhere.csv"), "nowhere.csv"),
        (("card", "nowhere"), "nowhere"),
        (("run", "heart", "--model", "card", "--set", "evaluation.calibrate=platt"), "a calibration would change them"),
        (("run", "heart", "--model", "card", "--set", "method.card.terms=16"), "method.card.terms"),
        (("run", "heart", "--model", "card", "--set", "method.gam.own_shapes=true"), "a card has none"),
        (("run", "digits", "--model", "card"), "the risk of one event"),
    ],
)
def test_bad_input_is_one_sentence(run, tmp_path, arguments, sentence):
    done = rounds(*(run.folder if a == "RUN" else a for a in arguments), cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and sentence in errors[0]


def test_a_card_needs_the_columns_that_have_points(run):
    table, columns = RunRows.read(run).consortium.data.table, {t.column for t in run.card.card.terms}
    assert gr.predict(run, table.without([name for name in table.columns if name not in columns])) is not None
    with refused("missing-columns"):
        gr.predict(run, table.without([min(columns)]))


def test_a_card_has_2_to_15_terms(run):
    with pytest.raises(gr.BadInput, match="2 to 15 terms, not 40"):
        gr.card(run, terms=40)


def test_calibration_groups_keep_patients_of_one_risk_together():
    risk = np.repeat([0.1, 0.2, 0.5, 0.9], [30, 4, 30, 3])
    y = np.concatenate([np.arange(30) < 6, [True] * 4, np.arange(30) < 15, [True] * 3])
    points = calibrate_points(risk, y)
    assert [p.rows for p in points] == [30, 37]
    assert points[0].observed == pytest.approx(0.2) and points[1].predicted == pytest.approx((0.8 + 15 + 2.7) / 37)


@pytest.mark.slow
def test_the_page_prints_on_one_sheet(run, tmp_path):
    if figure.find_browser() is None:
        pytest.skip("Chrome or Chromium, which prints the PDF, is not installed")
    files = gr.card(run).write(tmp_path)
    assert [f.suffix for f in files] == [".html", ".svg", ".pdf"]
    assert files[2].read_bytes().count(b"/Type /Page\n") == 1
