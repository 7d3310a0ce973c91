"""Exact methods in runs: equal to pooled rows in the clear and by secure aggregation, after a crash, and when sites drop out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import statsmodels.api as sm
from lifelines.datasets import load_lung
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import DAYS, NUMBERS, Policy
from grandrounds.capabilities.statistics.methods.site import ask_question, read_question
from grandrounds.capabilities.statistics.question import Question
from grandrounds.capabilities.statistics.table_result import TableOne
from grandrounds.cli import app
from grandrounds.core.errors import RunFailed
from grandrounds.core.records import Decision
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.protocol.messages import AskId
from tests.engine.hospitals import Hospitals, final_model
from tests.support import refused

SIZES = (70, 60, 45, 80)
DATA = {"label": "died", "site": "hospital", "task": "classification", "coding": "reference", "complete": True, "clip": 0}
PLAN = {"data": DATA, "split": {"val": 0.0, "test": 0.0}, "explain": {"sketch": "none"}}


@pytest.fixture(scope="module")
def rows():
    """Rows of four hospitals: two numbers, one category and a label that depends on them."""
    rng = np.random.default_rng(3)
    n = sum(SIZES)
    age, bmi, sex = rng.normal(60, 12, n), rng.normal(27, 4, n), rng.choice(["f", "m"], n, p=[0.6, 0.4])
    hospital = np.repeat([f"h{k}" for k in range(len(SIZES))], SIZES).astype(object)
    shift = np.repeat(rng.normal(0, 0.6, len(SIZES)), SIZES)
    risk = 1 / (1 + np.exp(-(shift + 0.05 * (age - 60) + 0.08 * (bmi - 27) + 0.7 * (sex == "m"))))
    died = (rng.random(n) < risk).astype(float)
    return Table({"hospital": hospital, "age": age, "bmi": bmi, "sex": sex.astype(object), "died": died}, "rows")


def run(rows, folder, intercept="common", **settings):
    method = {"name": "glm", "exact": {"intercept": intercept, **settings.pop("exact", {})}}
    plan = {**PLAN, "method": method, **settings}
    return gr.run(gr.Experiment.parse(plan), table=rows, out=folder)


def pooled(rows, *, hospitals=False):
    """statsmodels on the pooled rows: coefficients and errors by name."""
    columns = {"age": rows.columns["age"], "bmi": rows.columns["bmi"], "sex=m": (rows.columns["sex"] == "m").astype(float)}
    names = list(columns)
    x = np.column_stack(list(columns.values()))
    if hospitals:
        dummies = [(rows.columns["hospital"] == f"h{k}").astype(float) for k in range(len(SIZES))]
        x = np.column_stack([x, *dummies])
    else:
        x, names = sm.add_constant(x), ["(intercept)", *names]
    fit = sm.GLM(rows.columns["died"], x, family=sm.families.Binomial()).fit(tol=1e-14)
    return {name: (fit.params[j], fit.bse[j], fit.pvalues[j]) for j, name in enumerate(names)}


def told(done, units="original"):
    found = done.summary["estimates"][units]["coefficients"]
    return {c["name"]: (c["estimate"], c["error"], c["p"]) for c in found}


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_equals_statsmodels_on_pooled_rows(secure, rows, tmp_path):
    done = run(rows, tmp_path / "r", privacy={"secure": secure})
    expected, found = pooled(rows), told(done)
    assert set(found) == set(expected)
    for name, (estimate, error, p) in expected.items():
        assert found[name][0] == pytest.approx(estimate, rel=1e-6)
        assert found[name][1] == pytest.approx(error, rel=1e-6)
        assert found[name][2] == pytest.approx(p, abs=1e-6)
    exchanges = done.summary["estimates"]["exchanges"]
    assert exchanges["fit"] <= 7 and exchanges["count"] == len(done.rounds) == exchanges["fit"] + 2
    assert exchanges["numbers_held"] == sum(SIZES) * 3
    assert exchanges["ratio"] == pytest.approx(exchanges["numbers_sent"] / exchanges["numbers_held"])


def test_the_models_risk_is_that_of_the_coefficients(rows, tmp_path):
    done = run(rows, tmp_path / "r")
    found = told(done)
    risk = gr.predict(done, rows)["risk_of_died"].to_numpy()
    x = found["(intercept)"][0] + found["age"][0] * rows.columns["age"] + found["bmi"][0] * rows.columns["bmi"]
    x = x + found["sex=m"][0] * (rows.columns["sex"] == "m")
    assert np.abs(risk - 1 / (1 + np.exp(-x))).max() < 1e-6


def test_differences_between_hospitals_are_tested(rows, tmp_path):
    """Cochran's Q of each coefficient from the hospitals' own fits, by statsmodels; per hospital only in the clear."""
    clear, masked = run(rows, tmp_path / "clear"), run(rows, tmp_path / "masked", privacy={"secure": True})
    hospital = rows.columns["hospital"].astype(str)
    own = [pooled(rows.take(hospital == f"h{k}"))["age"] for k in range(len(SIZES))]
    weight = np.array([1 / error**2 for _, error, _ in own])
    estimate = np.array([b for b, _, _ in own])
    q = float((weight * (estimate - (weight * estimate).sum() / weight.sum()) ** 2).sum())
    for done in (clear, masked):
        found = {c["name"]: c for c in done.summary["estimates"]["heterogeneity"]["coefficients"]}
        assert found["age"]["q"] == pytest.approx(q, rel=1e-5)
    by_site = clear.summary["estimates"]["heterogeneity"]["by_site"]
    assert by_site["h2"]["age"]["estimate"] == pytest.approx(own[2][0], rel=1e-5)
    assert masked.summary["estimates"]["heterogeneity"]["by_site"] == {}


def test_own_intercepts_equal_dummies_and_stay_at_the_sites(rows, tmp_path):
    done = run(rows, tmp_path / "r", intercept="own")
    expected, found = pooled(rows, hospitals=True), told(done)
    assert set(found) == {"age", "bmi", "sex=m"}
    for name in found:
        assert found[name][0] == pytest.approx(expected[name][0], rel=1e-6)
        assert found[name][1] == pytest.approx(expected[name][1], rel=1e-6)
    written = (done.folder / "summary.json").read_text() + (done.folder / "round_logs.json").read_text()
    fit = sm.GLM(
        rows.columns["died"],
        np.column_stack([
            rows.columns["age"], rows.columns["bmi"], rows.columns["sex"] == "m",
            *[rows.columns["hospital"] == f"h{k}" for k in range(4)],
        ]).astype(float),
        family=sm.families.Binomial(),
    ).fit()  # fmt: skip
    assert not any(f"{alpha:.6f}"[:8] in written for alpha in fit.params[3:])
    assert done.summary["training"]["log_loss"] == pytest.approx(-fit.llf / sum(SIZES), abs=1e-6), "sites use their own"


def test_killed_between_exchanges_it_ends_with_the_same_bits(rows, tmp_path):
    whole = run(rows, tmp_path / "whole")
    part = run(rows, tmp_path / "part")
    checkpoint = Checkpoint(part.folder / "checkpoint")
    assert len(checkpoint.records()) == len(whole.rounds)
    for exchange in (1, 3):
        again = tmp_path / f"again{exchange}"

        def stop(event, exchange=exchange):
            if event["event"] == "round" and event["round"] == exchange:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            gr.run(gr.Experiment.parse({**PLAN, "method": {"name": "glm", "exact": {"intercept": "common"}}}), table=rows,
                   out=again, progress=stop)  # fmt: skip
        done = gr.resume(again, table=rows)
        assert final_model(done).tobytes() == final_model(whole).tobytes()
        assert done.summary["estimates"] == whole.summary["estimates"]


def test_a_site_that_drops_out_is_left_out_from_then_on(rows, tmp_path):
    """Faults drop sites at random: the estimates are those of the sites that were there to the end, and a note says so."""
    done = run(rows, tmp_path / "r", engine={"faults": {"drop": 0.1}, "min_sites": 3}, seed=3)
    left = done.summary["estimates"]["sites"]
    assert 3 <= len(left) < len(SIZES), "choose another seed: nobody dropped out"
    rosters = [set(Decision.from_dict(r["decision"]).weights) for r in done.rounds]
    assert all(b <= a for a, b in itertools.pairwise(rosters)), "nobody comes back"
    said = [note for r in done.rounds for note in r["decision"]["notes"]]
    assert any("dropped out: the fit continues with" in note for note in said)
    kept = np.isin(rows.columns["hospital"].astype(str), left)
    again = run(rows.take(kept), tmp_path / "again")
    for name, (estimate, error, _) in told(again).items():
        assert told(done)[name][0] == pytest.approx(estimate, rel=1e-6)
        assert told(done)[name][1] == pytest.approx(error, rel=1e-6)


def test_each_exchange_is_in_the_ledger(rows, tmp_path):
    done = run(rows, tmp_path / "r")
    from grandrounds.audit.ledger import Ledger

    entries = [e for e in Ledger.open(done.folder / "ledger.db").entries() if e["kind"] == "round"]
    assert len(entries) == done.summary["estimates"]["exchanges"]["count"]
    for k, entry in enumerate(entries, 1):
        assert f"exchange {k}," in entry["decision"]["why"] and "total " in entry["decision"]["why"]
    assert not [n for n in Checkpoint(done.folder / "checkpoint").read().part("method") if n.startswith("total")]


def test_what_does_not_fit_is_refused_in_one_sentence(rows, tmp_path):
    two = rows.take(np.isin(rows.columns["hospital"].astype(str), ["h0", "h1"]))
    with refused("method-does-not-fit"):
        run(two, tmp_path / "a")
    with refused("method-does-not-fit"):
        run(rows, tmp_path / "b", privacy={"epsilon": 5.0})
    with refused("method-does-not-fit"):
        run(rows, tmp_path / "c", model={"name": "mlp"})
    with refused("method-does-not-fit"):
        run(rows, tmp_path / "d", exact={"errors": "patients"})
    with pytest.raises(RunFailed, match="did not converge within 2 exchanges"):
        gr.run(gr.Experiment.parse({**PLAN, "method": {"name": "glm", "rounds": 2}}), table=rows, out=tmp_path / "e")


def test_hospitals_with_their_own_files_give_the_same_estimates(rows, tmp_path):
    method = {"name": "glm", "exact": {"intercept": "own", "heterogeneity": False}}
    held = Hospitals.of(rows, name="exact", **{**PLAN, "data": {"table": "data frame", **DATA}, "method": method})
    here, there = held.simulated(tmp_path / "here", rows), held.deployed(tmp_path / "there")
    for name, (estimate, error, _) in told(here).items():
        assert told(there)[name][0] == pytest.approx(estimate, rel=1e-9)
        assert told(there)[name][1] == pytest.approx(error, rel=1e-9)
    assert there.summary["estimates"]["exchanges"] == here.summary["estimates"]["exchanges"]
    assert there.summary["training"]["log_loss"] == pytest.approx(here.summary["training"]["log_loss"], abs=1e-9)


def test_a_question_survives_its_message():
    question = Question("glm", {"beta": np.arange(3.0), "family": "logistic"}, {"U": (3,), "n": ()}, cells=("n",))
    back = read_question(ask_question(question, ("a",), rows=9))
    assert (back.kind, back.blocks, back.cells, back.numbers) == ("glm", {"U": (3,), "n": ()}, ("n",), 4)
    assert back.values["family"] == "logistic" and np.array_equal(back.values["beta"], question.values["beta"])


class TestPolicy:
    """A site counts the numbers that it sends, and refuses small counts in the clear."""

    @staticmethod
    def plan(**exact):
        values = {**PLAN, "data": {"table": "x.csv", **DATA}, "method": {"name": "glm", "exact": exact}}
        return gr.Experiment.parse(values).plan()

    @staticmethod
    def ask(numbers, *, masked=False, rows=100):
        ask = ask_question(Question("glm", {}, {"n": (numbers,)}, cells=("n",)), ("a",), rows=rows)
        ask = ask.withholding("sums") if masked else ask
        return ask.numbered(AskId("r", 1, 0), ("a",))

    def permit(self, policy, questions, ask):
        class NoAccount:
            def pay(self, *_, **__):
                return type("Paid", (), {"code": "", "events": ()})()

        AccessControl(policy).permit(ask, self.plan(), NoAccount(), questions, rows=20, columns=3)

    def test_numbers_are_counted_over_exchanges_and_restarts(self):
        policy, questions = Policy(), Questions(self.plan(), {})
        self.permit(policy, questions, self.ask(60))
        later = Questions(self.plan(), json.loads(json.dumps(questions.facts())))
        with pytest.raises(Refusal) as no:
            self.permit(policy, later, self.ask(40))
        assert no.value.code == NUMBERS, "100 of 300 numbers held, above 0.33"
        self.permit(policy, later, self.ask(39))

    def test_secure_sums_may_send_more(self):
        secure = {**self.plan(), "privacy": {**self.plan()["privacy"], "secure": True}}
        self.permit(Policy(), Questions(secure, {}), self.ask(290, masked=True))

    def test_small_counts_do_not_leave_in_the_clear(self):
        access = AccessControl(Policy())
        access.check_cells(self.ask(3), {"sums": np.array([0.0, 5.0, 100.0])})
        with pytest.raises(Refusal):
            access.check_cells(self.ask(3), {"sums": np.array([0.0, 4.0, 100.0])})

    def test_sums_by_the_day_need_the_policys_word(self):
        values = {**PLAN, "data": {"table": "x.csv", "label": "died", "duration": "days", "site": "hospital"},
                  "method": {"name": "cox", "exact": {"baseline": "days"}}}  # fmt: skip
        plan = gr.Experiment.parse(values).plan()
        assert Policy().refuses(self.ask(3), plan) == DAYS
        assert Policy.parse("[exact]\ndays = true\n").refuses(self.ask(3), plan) != DAYS


class TestDescriptions:
    """Table 1 and survival curves are runs without a model: ledger, report and summary, equal to pooled rows."""

    @pytest.mark.parametrize("secure", [False, True])
    def test_table_one_equals_pooled_rows(self, secure, rows, tmp_path):
        plan = {**PLAN, "method": {"name": "table1", "exact": {"group": "sex"}}, "privacy": {"secure": secure}}
        done = gr.run(gr.Experiment.parse(plan), table=rows, out=tmp_path / "r")
        frame = TableOne.from_dict(done.summary["table1"]).to_frame()
        text = frame.to_string()
        for sex in ("f", "m"):
            age = rows.columns["age"][rows.columns["sex"] == sex]
            assert f"{age.mean():.1f} ({age.std(ddof=1):.1f})" in text
        assert not (done.folder / "model.safetensors").exists()
        assert "Table 1" in (done.folder / "report.html").read_text()
        assert done.summary["statistic"]["sites"] == ["h0", "h1", "h2", "h3"]
        with refused("no-model"):
            gr.predict(done, rows)

    def test_the_record_of_a_table_verifies(self, rows, tmp_path):
        plan = {**PLAN, "method": {"name": "table1"}}
        done = gr.run(gr.Experiment.parse(plan), table=rows, out=tmp_path / "r")
        assert CliRunner().invoke(app, ["audit", "verify", str(done.folder)]).exit_code == 0


def test_a_survival_model_is_scored_at_a_horizon(tmp_path):
    """The C-index of pairs within hospitals is lifelines' over the same pairs; predicted and observed risks are in the report."""
    lung = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna().astype(float)
    lung = lung.rename(columns={"ph.ecog": "ecog"}).assign(inst="i" + lung["inst"].astype(int).astype(str))
    lung = lung[lung["inst"].map(lung["inst"].value_counts()) >= 5]
    options = {"time": "time", "event": "status", "site": "inst", "features": ["age", "sex", "ecog"], "horizon": 365}
    fitted = gr.cox(lung, **options, secure=True, out=tmp_path / "r")
    scores = fitted.run.summary["estimates"]["scores"]
    names = {c.name: c.estimate for c in fitted.estimates.coefficients}
    risk = sum(names[n] * lung[n] for n in ("age", "sex", "ecog"))
    pairs = [
        (g["time"].to_numpy(), -risk.loc[g.index].to_numpy(), g["status"].to_numpy()) for _, g in lung.groupby("inst")
    ]
    concordant = comparable = 0.0
    for time, score, event in pairs:
        for i in range(len(time)):
            for j in range(len(time)):
                if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                    comparable += 1
                    concordant += (score[i] < score[j]) + 0.5 * (score[i] == score[j])
    assert scores["c_index"] == pytest.approx(concordant / comparable, abs=1e-9)
    assert sum(group["rows"] for group in scores["calibration"]) == len(lung)
    assert "C-index, pairs within hospitals" in fitted.summary()
    assert "Discrimination and calibration" in (fitted.run.folder / "report.html").read_text()
