"""`rounds privacy` on real runs: what is said is what the record holds, a record that was changed is found out."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace

import pytest
import typer

import grandrounds as gr
from grandrounds.analysis.membership.attack import write_attacks
from grandrounds.analysis.privacy.account import load_account, read_site_budget
from grandrounds.analysis.privacy.disclosures import PERSONAL, find_disclosures
from grandrounds.capabilities.attacks.evidence import MEMBERSHIP, collect_evidence
from grandrounds.capabilities.dossier.building.documents import dpia
from grandrounds.capabilities.dossier.building.evidence import Evidence
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.cli.privacy import account_lines, register
from grandrounds.cli.report import report_run
from grandrounds.core.plan_types import Plan
from grandrounds.privacy.accounting import Event, epsilon_of
from grandrounds.privacy.in_words import odds, quote, rounded_up, uncovered
from grandrounds.privacy.site_budget import SiteBudget
from grandrounds.recipes import load_recipe
from grandrounds.report.document import Charts
from grandrounds.report.sections.privacy import privacy_section
from grandrounds.runs.run import Run
from tests import store
from tests.cli import test_commands
from tests.command import rounds
from tests.engine.hospitals import Hospitals
from tests.support import patients, refused

MECHANISMS = {
    "dp-sgd": ["privacy.mechanism=dp-sgd", "privacy.epsilon=3"],
    "some sites": ["privacy.mechanism=dp-sgd", "privacy.noise=2", "method.select=random", "privacy.min_rows=10"],
    "client": ["privacy.mechanism=client", "privacy.epsilon=8", "method.weigh=uniform"],
    "shares": ["privacy.mechanism=client", "privacy.epsilon=8", "method.weigh=uniform", "privacy.secure=true"],
    "pooled": ["privacy.mechanism=dp-sgd", "privacy.epsilon=3", "method.name=pooled"],
    "veil": ["method.name=veil", "privacy.epsilon=3", "evaluation.calibrate=platt"],
    "raw": ["method.name=veil", "method.veil.selection=paper"],
    "plain": [],
    "secure": ["privacy.secure=true"],
}
PROMISED = [name for name in MECHANISMS if name not in ("raw", "plain", "secure")]


@pytest.fixture(scope="module")
def runs():
    """Breast cancer under each mechanism."""

    def held(name: str) -> Run:
        settings = ["method.rounds=4", "explain.sketch=none", *MECHANISMS[name]]
        return Run(store.finished("breast-cancer", settings=settings))

    return held


@pytest.fixture
def copied(runs, tmp_path):
    """A run to be changed."""

    def copy(name: str) -> Run:
        return Run(store.copied(runs(name).folder, tmp_path / "run"))

    return copy


@pytest.fixture
def told(capsys):
    """What `rounds privacy` prints, in one line, and its exit code."""

    def printed(*arguments):
        app = typer.Typer()
        register(app)
        app.callback()(lambda: None)
        words = ["privacy budget", *arguments[1:]] if arguments[0] == "budget" else ["privacy", *arguments]
        code = typer.main.get_command(app).main([*map(str, words)], standalone_mode=False)
        return code or 0, capsys.readouterr().out

    return printed


def flat(printed: str) -> str:
    return " ".join(printed.split())


def change(run: Run, file: str, how) -> Run:
    """The run with a JSON file of its folder changed."""
    values = json.loads((run.folder / file).read_text())
    how(values)
    (run.folder / file).write_text(json.dumps(values))
    return Run(run.folder)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PROMISED)
def test_epsilon_worked_out_again_is_what_the_run_says(name, runs):
    run = runs(name)
    account = load_account(run)
    told = run.summary["privacy"]
    assert account.promised and account.ledger and account.findings == ()
    assert account.recomputed.epsilon == pytest.approx(told["epsilon"], rel=1e-9)
    recorded = [r["decision"]["privacy"]["epsilon_spent"] for r in run.rounds]
    assert [r.epsilon for r in account.recomputed.rounds] == pytest.approx(recorded, rel=1e-9)
    assert len(recorded) == 4 and recorded == sorted(recorded)
    if told["budget"] is not None:
        assert account.remaining == pytest.approx(told["budget"] - told["epsilon"]) and account.remaining >= 0


def test_the_words_hold_the_numbers(runs, told):
    run = runs("dp-sgd")
    code, printed = told(run.folder)
    text, promise = flat(printed), run.summary["privacy"]
    assert code == 0
    for words in (
        "Guarantee to each row: epsilon = 3, delta = 1e-5",
        f"e^epsilon = {math.exp(promise['epsilon']):.4g}",
        "1 in 100,000",
        "finds at most 20.1% of those who did",
        "added at each site",
        "follows from the experiment's seed (0)",
        "summaries of training rows for the encoding",
        "summaries of the same training rows were sent without noise",
        f"{promise['noise']:.3g} times the largest change by one row, which is sampled with probability 0.1",
        "agrees with the run in every round and in total",
        "Not yet: `rounds attack",
    ):
        assert words in text, words
    last = next(line for line in printed.splitlines() if line.startswith("4 "))
    assert last.split() == ["4", str(promise["steps"]), rounded_up(promise["epsilon"])]
    trained = [s for s, n in run.summary["rows"].items() if n["train"] >= 50]
    rows = sum(run.summary["rows"][s]["train"] for s in trained)
    assert f"Trained on: {rows} rows of {len(trained)} of 10 sites" in text, (
        "sites under privacy.min_rows took no part"
    )


def test_a_promise_to_sites_says_whom_it_trusts_and_what_a_patient_has_of_it(runs, told):
    text = flat(told(runs("client").folder)[1])
    assert "Guarantee to each site: epsilon = 8" in text and "which the sites must trust" in text
    assert "twice the epsilon applies: 16, with delta = 0.03" in text, "(1 + e^8) 1e-5"
    assert "finds at most practically all" in text and "rules out little" in text
    shared = flat(told(runs("shares").folder)[1])
    assert "enough sites are honest" in shared and "must trust" not in shared


def test_pooled_rows_are_not_hidden_from_whoever_holds_them(runs, told):
    pooled = runs("pooled")
    text = flat(told(pooled.folder)[1])
    trained = sum(rows["train"] for rows in pooled.summary["rows"].values())
    assert f"Trained on: {trained} rows of all sites, pooled." in text and "not against the holder of the rows" in text
    assert "before anything leaves" not in text


def test_calibration_is_spent_by_other_patients(runs, told):
    account = load_account(runs("veil"))
    spent = account.privacy["spent"]
    assert set(spent) == {"training", "validation"} and account.recomputed.epsilon == pytest.approx(max(spent.values()))
    text = flat(told(runs("veil").folder)[1])
    assert "validation rows 3. No patient is in two of them" in text


def test_public_preparation_leaves_nothing_beside_the_promise(tmp_path, told):
    ranges = {"age": [20, 100], "lactate": [0, 4], "pressure": [50, 110]}
    levels = {"ward": ["medical", "surgical", "cardiac"], "died": ["0", "1"]}
    plan = {
        "data": {"label": "died", "site": "hospital", "encoding": "public", "ranges": ranges, "levels": levels},
        "method": {"name": "veil", "rounds": 2},
        "privacy": {"epsilon": 3.0},
    }
    gr.run(gr.Experiment.parse(plan), table=patients([80, 60, 50]), out=tmp_path / "run")
    code, text = told(tmp_path / "run")
    assert code == 0 and "summaries" not in text
    assert "a site's notes on its rows" not in text, "nobody asks for them under a budget"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["plain", "secure", "raw"])
def test_where_nothing_is_promised_it_says_so_and_what_left(name, runs, told):
    code, printed = told(runs(name).folder)
    text = flat(printed)
    assert code == 0 and "No formal guarantee" in text and "Guarantee to" not in text
    assert "every number to 0.1%" in text and "histograms of its patients' scores" in text
    assert ("its whole model" in text) == (name == "plain")
    assert ("the server saw no single one" in text) == (name == "secure")
    assert ("epsilon = infinity" in text and "signs are sent as they are" in text) == (name == "raw")
    values = json.loads(told(runs(name).folder, "--json")[1])
    assert values["promised"] is False and values["epsilon"] is None and values["disclosed"]


def test_json_has_every_round(runs, told):
    values = json.loads(told(runs("some sites").folder, "--json")[1])
    assert [r["round"] for r in values["rounds"]] == [1, 2, 3, 4] and values["findings"] == []
    assert values["budget"] is None and values["left"] is None and values["worked_out_again"] == values["epsilon"]


def test_a_smaller_epsilon_in_the_summary_is_found(copied):
    run = change(copied("dp-sgd"), "summary.json", lambda s: s["privacy"].update(epsilon=1.0))
    done = rounds("privacy", run.folder)
    text = flat(done.stdout)
    assert done.returncode == 3 and "do not rely on it" in text
    assert "FOUND the summary says epsilon = 1, and the releases of all rounds add up to 2.99" in text
    assert "Guarantee to each row: epsilon = 3" in text, "what the releases add up to, not what was written"


def test_more_noise_in_a_round_than_there_was_is_found(copied, told):
    """The releases of one Decision are made to look quieter: the round, the summary and the ledger all disagree."""

    def quieter(logs):
        logs["rounds"][2]["decision"]["privacy"]["events"][0]["sigma"] *= 3

    run = change(copied("dp-sgd"), "round_logs.json", quieter)
    findings = load_account(run).findings
    for words in (
        "round 3: its Decision says epsilon",
        "lists other releases",
        "round 3: what it spent is not what the",
    ):
        assert any(words in f for f in findings), (words, findings)
    assert told(run.folder, "--json")[0] == 3


def test_a_record_made_consistent_again_still_differs_from_the_ledger(copied):
    """Every number of the folder's JSON is rewritten as if twice the noise had been added; the ledger has the truth."""
    run = copied("client")
    told = run.summary["privacy"]
    sigma = 2 * told["noise"]

    def spent(n: int) -> float:
        return epsilon_of([Event("gaussian", "x", count=n, sigma=sigma, unit="site")], told["delta"])

    def logs(values):
        for n, record in enumerate(values["rounds"], start=1):
            record["decision"]["privacy"]["events"][0]["sigma"] = sigma
            record["decision"]["privacy"]["epsilon_spent"] = spent(n)

    def summary(values):
        values["privacy"]["events"][0]["sigma"] = sigma
        values["privacy"]["epsilon"] = spent(4)

    change(run, "round_logs.json", logs)
    findings = load_account(change(run, "summary.json", summary)).findings
    assert findings == tuple(f"round {n}: what it spent is not what the ledger has" for n in (1, 2, 3, 4))


def test_a_promise_taken_out_of_the_summary_is_found(copied, told):
    nothing = {"mechanism": "none", "epsilon": None, "statement": "none"}
    run = change(copied("client"), "summary.json", lambda s: s.update(privacy=nothing))
    code, printed = told(run.folder)
    assert code == 3 and "No formal guarantee" in printed and "has releases with a privacy guarantee" in printed


def test_attacks_are_told_and_a_broken_promise_is_a_finding(copied, told):
    run = copied("dp-sgd")
    found = collect_evidence(run, only=[MEMBERSHIP]).to_dict()
    write_attacks(run.folder, found)
    text = flat(told(run.folder)[1])
    assert f"loss threshold: AUC {found['attacks'][0]['auc']:.3f}" in text and found["sentences"][0] in text
    found["bound"]["broken"] = True
    write_attacks(run.folder, found)
    assert load_account(Run(run.folder)).findings == ("an attack did better than epsilon allows",)


def test_what_is_no_finished_run_is_refused_in_a_sentence(copied, told, tmp_path):
    with refused("not-a-run-folder"):
        told(tmp_path)
    run = copied("dp-sgd")
    change(run, "summary.json", lambda s: s["privacy"].pop("events"))
    with refused("damaged-record"):
        told(run.folder)
    (run.folder / "summary.json").unlink()
    test_commands.refused(rounds("privacy", run.folder), "is not finished")
    assert rounds("privacy", run.folder, tmp_path).returncode == 2, "one run at a time"


def test_the_report_has_what_was_promised_and_spent(runs, copied):
    for name in ("dp-sgd", "veil", "client"):
        page = (runs(name).folder / "report.html").read_text()
        assert "Privacy guarantee and budget spent" in page and "Epsilon so far" in page
        assert "follows from the experiment&#x27;s seed" in page
    assert "alone" in (runs("veil").folder / "report.html").read_text(), "several mechanisms, a line each"
    unprotected = copied("raw").folder
    report_run(unprotected)
    raw = (unprotected / "report.html").read_text()
    assert "There is no privacy guarantee (epsilon = infinity)" in raw and "Epsilon so far" not in raw
    assert "Privacy guarantee and budget spent" not in (runs("plain").folder / "report.html").read_text()


def test_the_figure_has_the_epsilons_of_the_decisions(runs):
    from grandrounds.report.sections.privacy import spending_figure

    run = runs("veil")
    figure = spending_figure(run.summary["privacy"], run.rounds)
    lines = {t["name"]: t["y"] for t in figure["data"]}
    recorded = [r["decision"]["privacy"]["epsilon_spent"] for r in run.rounds]
    assert lines["all together"] == recorded and set(lines["budget"]) == {3.0}
    alone = [y for name, y in lines.items() if name.endswith(" alone")]
    assert len(alone) == 2
    assert all(part <= whole + 1e-9 for y in alone for part, whole in zip(y, recorded, strict=True))


def test_odds_and_rounding():
    assert rounded_up(2.00001) == "2.001" and rounded_up(3.0) == "3" and rounded_up(math.inf) == "infinity"
    assert rounded_up(0.0) == "0" and float(rounded_up(0.0123456)) >= 0.0123456
    said = odds(math.log(2), 0.0001, "patient")
    assert "e^epsilon = 2," in said[0] and "1 in 10,000" in said[0] and "at most 2.0%" in said[1], "2 * 1% + .01%"
    degrees = {epsilon: odds(epsilon, 1e-5, "patient")[2].split()[-1] for epsilon in (1.0, 1.001, 10.0, 10.5)}
    assert degrees == {1.0: "strong.", 1.001: "reasonable.", 10.0: "reasonable.", 10.5: "weak."}


def test_a_purse_by_run(tmp_path, told):
    path = tmp_path / "purse.json"
    one = Event("gaussian", "models of the sites", sigma=4.0)
    purse = SiteBudget.open(path, epsilon=5.0, delta=1e-5)
    assert read_site_budget(path).spent == {"training": 0.0}
    for run, key in (("first", "round 1"), ("first", "round 2"), ("first", "round 2"), ("second", "round 1")):
        purse.charge(one, run=run, key=key)
    before = path.read_bytes()
    held = read_site_budget(path)
    assert held.runs["first"] == (2, pytest.approx(epsilon_of([one, one], 1e-5)))
    assert held.runs["second"] == (1, pytest.approx(epsilon_of([one], 1e-5)))
    assert held.spent["training"] == pytest.approx(epsilon_of([one] * 3, 1e-5))
    code, text = told("budget", path)
    assert code == 0 and path.read_bytes() == before
    assert f"training rows: {rounded_up(held.spent['training'])} is spent" in text
    assert "second" in text and "does not add up" in text
    values = json.loads(told("budget", path, "--json")[1])
    assert values["left"]["training"] == pytest.approx(5 - held.spent["training"])


def test_a_damaged_purse_is_refused(tmp_path):
    path = tmp_path / "purse.json"
    with refused("file-not-found", match=r"purse\.json"):
        read_site_budget(path)
    assert not list(tmp_path.iterdir()), "looking leaves nothing behind"
    SiteBudget.open(path, epsilon=5.0, delta=1e-5).charge(Event("laplace", "x", epsilon=1.0), run="a", key="1")
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "keys": {}}))
    with refused("damaged-file", match=r"purse\.json"):
        read_site_budget(path)
    path.write_text(json.dumps({**whole, "keys": {"no run": next(iter(whole["keys"].values()))}}))
    with refused("damaged-file", match=r"purse\.json"):
        read_site_budget(path)
    path.write_text(json.dumps(whole)[:-20])
    test_commands.refused(rounds("privacy", "budget", path), "is damaged")


PRIVATE = {
    "data": {"label": "died", "site": "hospital", "table": "data frame"},
    "method": {"name": "fedavg", "rounds": 1},
    "privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "min_rows": 10, "secure": True},
    "explain": {"sketch": "none"},
}


@pytest.fixture(scope="module")
def both_kinds(tmp_path_factory):
    """One private plan twice: as a simulation, and as submitted to hospitals, which the usual partition names no site of."""
    folder, table = tmp_path_factory.mktemp("kinds"), patients([60, 50, 40])
    held = Hospitals.of(table, name="kinds", **PRIVATE)
    submitted = {**held.at_sites, "split": {**held.at_sites["split"], "partition": "equal"}}
    there = Hospitals(held.plan, submitted, held.rows).deployed(folder)
    return {"simulated": held.simulated(folder / "here", table), "deployed": there}


@pytest.mark.parametrize("kind", ["simulated", "deployed"])
def test_only_a_simulation_is_called_one(kind, both_kinds, told):
    """The record decides: the words of a real run's statement may name anything."""
    run = both_kinds[kind]
    texts = {
        "command": flat(told(run.folder)[1]),
        "report": flat(html.unescape((run.folder / "report.html").read_text())),
        "assessment": json.dumps(dpia.build(Facts(Evidence.collect(run))).to_dict()),
    }
    is_simulated = kind == "simulated"
    for name, text in texts.items():
        assert ("is a simulation" in text) == is_simulated, name
    assert is_simulated or not any("simulat" in line for line in uncovered(run.summary["privacy"]))
    assert run.summary["privacy"]["simulated"] is is_simulated


LEVELS = {
    "dp-sgd": (["method.weigh=uniform"], ["privacy.mechanism=dp-sgd", "privacy.epsilon=3"]),
    "client": (["method.weigh=uniform"], ["privacy.mechanism=client", "privacy.epsilon=8"]),
    "veil": (["method.name=veil"], ["privacy.epsilon=3", "evaluation.calibrate=platt"]),
}
PROTECTIONS = {"none": (False, False), "secure": (False, True), "epsilon": (True, False), "epsilon and secure": (True, True)}
"""Whether a run has an epsilon, and secure sums."""


@pytest.fixture(scope="module")
def account_of(runs):
    """An account of each protection, and its kinds of data: the record of a run that was made, with another's plan and switch."""

    def changed(level: str, protection: str):
        has_epsilon, secure = PROTECTIONS[protection]
        usual, private = LEVELS[level]
        settings = [*usual, *(private if has_epsilon else []), f"privacy.secure={str(secure).lower()}", "explain.sketch=none"]
        base = load_account(runs(level if has_epsilon else "plain"))
        summary = replace(base.summary, privacy={**base.privacy, "secure": secure})
        plan = Plan(load_recipe("breast-cancer").with_settings(settings).plan())
        found = find_disclosures(plan, summary)
        return replace(base, summary=summary, disclosures=tuple(d.text for d in found)), {d.kind for d in found}

    return changed


@pytest.mark.parametrize("level", LEVELS)
def test_more_protection_never_says_less(level, account_of):
    """Every kind of data that is listed with less protection is listed with more, and both protections are named."""
    accounts = {name: account_of(level, name) for name in PROTECTIONS}
    for name, (account, kinds) in accounts.items():
        has_epsilon, secure = PROTECTIONS[name]
        lines = list(account_lines(account))
        text = flat("\n".join(lines))
        assert account.disclosures and all(line in text for line in account.disclosures), name
        assert ("Guarantee to each" in text) == has_epsilon and ("No formal guarantee" in text) == (not has_epsilon)
        assert ("Secure aggregation hid" in text) == secure and ("Secure aggregation was not used" in text) == (not secure)
        (quote,) = (line for line in lines if line.startswith("You may quote:"))
        assert ("secure aggregation hid" in quote) == secure and ("epsilon = " in quote) == has_epsilon, quote
        if not has_epsilon:
            assert "no formal privacy guarantee" in quote
        report = flat(html.unescape("".join(privacy_section(account.summary, [], Charts("")))))
        assert quote in report and ("Secure aggregation hid" in report) == secure
        for less, (_, fewer) in accounts.items():
            if all(a <= b for a, b in zip(PROTECTIONS[less], PROTECTIONS[name], strict=True)):
                gone = {PERSONAL} if has_epsilon else set()  # choices and figures of personal models stay at their sites
                assert fewer - gone <= kinds, (less, name)


def test_no_code_of_a_plan_is_run_to_list_what_left(runs):
    """The console shows runs of others: an import path in the plan is named and not imported."""
    run = runs("dp-sgd")
    named = Plan({**run.plan, "method": {**run.plan["method"], "name": "nowhere.to_be_found:Mine"}})
    assert "whatever nowhere.to_be_found:Mine asks for" in " ".join(d.text for d in find_disclosures(named, run.summary))


def test_disclosures_name_their_protection(account_of):
    def of(level, protection):
        return " ".join(account_of(level, protection)[0].disclosures)

    assert "its whole model" in of("dp-sgd", "none") and "can be reconstructed" in of("dp-sgd", "none")
    assert "trained with noise (DP-SGD)" in of("dp-sgd", "epsilon") and "reconstructed" not in of("dp-sgd", "epsilon")
    assert "the server saw no single one" in of("dp-sgd", "epsilon and secure")
    assert "without noise" in of("client", "epsilon") and "a share of noise" in of("client", "epsilon and secure")
    assert "test patients' scores" in of("veil", "epsilon") and "with noise, for calibration" in of("veil", "epsilon")


@pytest.mark.parametrize(
    ("level", "protection", "words"),
    [
        ("dp-sgd", "epsilon and secure", ("for each row (epsilon = 3, delta = 1e-5", "DP-SGD", "also holds against the server")),
        ("client", "epsilon", ("for each site (epsilon = 8", "client-level noise", "by the server, which sees")),
    ],
)
def test_a_sentence_to_quote_has_unit_amounts_mechanism_and_trust(level, protection, words, account_of):
    account = account_of(level, protection)[0]
    sentence = quote(account.summary)
    assert all(word in sentence for word in words), sentence
    assert "simulation" in sentence
    at_hospitals = replace(account.summary, privacy={**account.privacy, "simulated": False})
    assert "simulation" not in quote(at_hospitals)
    both = {"epsilon": 7.0, "delta": 2e-5, "unit": "row"}
    assert "epsilon = 7, delta = 2e-5" in quote(replace(account.summary, withdrawal={"both": both})), "both runs are charged"


def test_a_record_that_disagrees_gives_nothing_to_quote(account_of):
    account = replace(account_of("dp-sgd", "epsilon")[0], findings=("round 2 differs",))
    assert not [line for line in account_lines(account) if "You may quote" in line]


@pytest.mark.parametrize("is_simulated", [True, False])
def test_keys_of_a_secure_run_at_hospitals_are_their_own(is_simulated, runs):
    account = load_account(runs("secure"))
    changed = replace(account.summary, privacy={**account.privacy, "simulated": is_simulated})
    text = flat("\n".join(account_lines(replace(account, summary=changed))))
    assert "Secure aggregation hid" in text and ("keys follow from the seed" in text) == is_simulated
