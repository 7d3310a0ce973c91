"""A site's policy: every task has a place in it, what the methods of the package ask is allowed, and the rest is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy import rules as said
from grandrounds.capabilities.hospital.keeper.policy.describe import MEANS, describe_policy
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions, refused_requests
from grandrounds.capabilities.hospital.keeper.policy.rules import CODES, Policy, plan_digest
from grandrounds.capabilities.hospital.keeper.policy.templates import RESEARCH, policy_template
from grandrounds.engine.local import LocalEngine
from grandrounds.experiment.requests import expected_asks
from grandrounds.explain.map_metrics import REPORT
from grandrounds.explain.rationale import REPORT as RATIONALE
from grandrounds.methods import REGULARIZERS
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.task_spec import KINDS
from grandrounds.protocol.tasks import CLOSE, HELLO, MAPS, OPEN, TRAIN, specs
from grandrounds.site.host import SiteHost
from tests.capabilities.hospital.keeper.plans import PLANS
from tests.command import rounds
from tests.support import all_site_plugins, patients, refused, stack

DEFAULT = Policy.parse(policy_template(RESEARCH))
SECURE = Policy.parse("[secure]\nonly = true")
PRIVATE = Policy.parse("[privacy]\nrequire = true")
UNDESCRIBED = Policy.parse("[reports]\nsummary = false")
SILENT = Policy.parse('[reports]\ndeny = ["figures", "train.local"]\n[tasks]\ndeny = ["explain", "veil.propose"]')
POLICIES = {"default": DEFAULT, "secure": SECURE, "private": PRIVATE, "undescribed": UNDESCRIBED, "silent": SILENT}
NOON = datetime(2026, 3, 1, 12)


def test_every_task_of_a_host_has_its_place_in_the_policy():
    """A new task is refused at every hospital until somebody says what it tells about patients."""
    host = SiteHost(stack([10, 10]), plugins=all_site_plugins())
    assert set(host._tasks) == set(specs()) - {HELLO, OPEN, CLOSE}
    assert {r.kind for spec in specs().values() for r in spec.reports.values()} == set(KINDS)
    assert {r for s in REGULARIZERS.values() for r in s.report} | {RATIONALE} <= set(specs()[TRAIN].reports)
    assert REPORT == MAPS and REPORT in specs()[MAPS].reports


def test_the_documentation_has_every_report_and_every_code():
    docs = Path(__file__).parents[4] / "docs"
    page = (docs / "site.md").read_text()
    rows = [line.split("|") for line in f"{page}{(docs / 'releases.md').read_text()}".splitlines() if line.startswith("| `")]
    told = {(task.strip(" `"), r.strip(" `"), kind.strip()) for _, task, names, kind, *_ in rows for r in names.split(",")}
    assert {(spec.name, r.name, r.kind) for spec in specs().values() for r in spec.reports.values()} <= told
    assert set(CODES) <= {row[1].strip(" `") for row in rows}
    shown = page.split("```toml")[3].split("```")[0]
    assert Policy.parse(shown) == DEFAULT


@pytest.fixture
def asked(monkeypatch):
    """Every question of a run, whether it is waited for or not."""
    seen: list[Ask] = []
    ask, send = LocalEngine._ask, LocalEngine._send

    def asking(self, question):
        answers = ask(self, question)
        seen.append(replace(question, id=answers.id))
        return answers

    def sending(self, question):
        seen.append(replace(question, id=AskId("x", self.round, 1)))
        return send(self, question)

    monkeypatch.setattr(LocalEngine, "_ask", asking)
    monkeypatch.setattr(LocalEngine, "_send", sending)
    return seen


def hold_against(asked, plan) -> None:
    """What was asked is what the plan foretold, the default policy lets it pass, and a plan's verdict is the run's."""
    heard = {(a.task, report, report in a.withheld) for a in asked for report in a.report}
    foretold = {(a.task, report, report in a.withheld) for a in expected_asks(plan) for report in a.report}
    assert heard <= foretold and foretold - heard <= {("lend", "held", False)}
    for site in ("a", "e"):
        questions = Questions(plan, {})
        for a in asked:
            if a.to is None or site in a.to:
                questions.check(a)
    for way, policy in POLICIES.items():
        codes = {code for a in asked for code in policy.refusals(a, plan, now=NOON)}
        told = {code for code, _, _ in refused_requests(policy, plan)}
        assert codes == told, way
        assert way != "default" or not codes


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PLANS)
def test_what_a_run_asks_is_foretold_and_refused_by_the_right_policies(name, asked, tmp_path):
    done = gr.run(gr.Experiment.parse(PLANS[name]), table=patients([60, 50, 70, 40, 55]), out=tmp_path / "r")
    hold_against(asked, done.plan)


def ask(task="train", report=("model",), *, held=(), run="heart", round=1, **shared) -> Ask:
    return Ask(task, shared, report=report, withheld=held, id=AskId(run, round, 1))


PLAN = {
    "name": "heart",
    "model": {"name": "logistic"},
    "method": {"rounds": 5},
    "privacy": {"epsilon": None, "mechanism": "none"},
}


def changed(**sections):
    return {**PLAN, **{name: {**PLAN[name], **own} for name, own in sections.items()}}


@pytest.mark.parametrize(
    ("text", "question", "plan", "code"),
    [
        ("", ask(), PLAN, ""),
        ("", ask(), None, ""),
        ("", ask("steal"), PLAN, said.TASK),
        ('[tasks]\ndeny = ["train"]', ask(), PLAN, said.TASK),
        ('[tasks]\nallow = ["evaluate"]', ask(), PLAN, said.TASK),
        ('[tasks]\nallow = ["evaluate"]', ask(OPEN, ()), PLAN, ""),
        ('[tasks]\nallow = ["evaluate"]', ask(HELLO, ()), None, ""),
        ("", ask(report=("model", "rows")), PLAN, said.REPORT),
        ('[reports]\ndeny = ["train.ece"]', ask(report=("model", "ece")), PLAN, said.REPORT),
        ('[reports]\nallow = ["model"]', ask(report=("model", "count")), PLAN, said.REPORT),
        ('[reports]\nallow = ["model", "train.count"]', ask(report=("model", "count")), PLAN, ""),
        ("[reports]\nsummary = false", ask("summarise", ("summary",)), PLAN, said.REPORT),
        ("[secure]\nonly = true", ask(), PLAN, said.SECURE),
        ("[secure]\nonly = true", ask(held=("model",)), PLAN, ""),
        ("[secure]\nonly = true", ask(held=("model", "variate")), PLAN, ""),
        ("[secure]\nonly = true", ask("evaluate", ("test", "val"), held=("test",)), PLAN, said.SECURE),
        ("[secure]\nonly = true", ask("upload"), PLAN, said.SECURE),
        ('[runs]\nallow = ["stroke"]', ask(), PLAN, said.RUN),
        ('[runs]\nallow = ["heart"]', ask(), PLAN, ""),
        (f'[runs]\nplans = ["{plan_digest(PLAN)}"]', ask(), PLAN, ""),
        (f'[runs]\nplans = ["{plan_digest(PLAN)}"]', ask(), changed(method={"rounds": 6}), said.RUN),
        ("[runs]\nrounds = 4", ask(), PLAN, said.ROUNDS),
        ("[runs]\nrounds = 5", ask(round=7), PLAN, said.ROUNDS),
        ("[runs]\nhours = [20, 6]", ask(), PLAN, said.HOURS),
        ("[runs]\nhours = [8, 13]", ask(), PLAN, ""),
        ("", ask(), changed(model={"name": "mypkg.nets:Net"}), said.OWN_CODE),
        ("", ask("prepare", ("train_rows",), spec=json.dumps({"name": "os:system"})), PLAN, said.OWN_CODE),
        ("", ask(), changed(privacy={"epsilon": 11.0}), said.EPSILON),
        ("[privacy]\nepsilon = 3\nrun_epsilon = 8", ask(), changed(privacy={"epsilon": 4.0}), said.EPSILON),
        ("", ask(), {"name": "heart"}, said.RUN),
        ("", ask(), changed(privacy={"epsilon": "lots"}), said.RUN),
    ],
)
def test_one_rule_at_a_time(text, question, plan, code):
    assert Policy.parse(text).refuses(question, plan, now=NOON) == code


DP = {"rate": 0.1, "noise": 1.0, "clip": 1.0}
OWN = {"attribute_on": "", "attribute_judged": "rows"}
LENT = {"attribute_on": "rows", "attribute_judged": "rows"}


@pytest.mark.parametrize(
    ("mechanism", "question", "private"),
    [
        ("dp-sgd", ask(**DP), True),
        ("dp-sgd", ask(**{**DP, "noise": 0.0}), False),
        ("dp-sgd", ask(**{**DP, "noise": np.ones(3)}), False),
        ("dp-sgd", ask(report=("model", "val_loss"), **DP), False),
        ("dp-sgd", ask(report=("model", "shap", "trust"), **DP, **LENT), True),
        ("dp-sgd", ask(report=("model", "shap", "trust"), **DP, **OWN), False),
        ("dp-sgd", ask("finetune"), False),
        ("client", ask(report=("update",), longest=1.0), False),
        ("client", ask(report=("update",), held=("update",), longest=1.0), True),
        ("client", ask("secagg.masked", ("masked",), tag="models 3", noise=0.0), False),
        ("client", ask("secagg.masked", ("masked",), tag="models 3", noise=2.0), True),
        ("none", ask("veil.propose", ("votes",), epsilon=1.0, selection="score"), True),
        ("none", ask("veil.propose", ("votes",), epsilon=1.0, selection="paper"), False),
        ("none", ask("veil.scores", ("scores",)), False),
        ("none", ask("platt", ("sums",)), False),
        ("none", ask("platt", ("counts",), epsilon=1.0), True),
        ("none", ask("prepare", ("train_rows", "notes")), False),
        ("none", ask("score", ("loss",)), False),
        ("none", ask("witness", ("signature",)), True),
    ],
)
def test_what_counts_as_private(mechanism, question, private):
    plan = changed(privacy={"epsilon": 5.0, "mechanism": mechanism})
    assert PRIVATE.refuses(question, plan, now=NOON) == ("" if private else said.PRIVACY)


def test_a_run_without_a_limit_is_not_opened_where_privacy_is_required():
    assert PRIVATE.refuses(ask(OPEN, ()), PLAN, now=NOON) == said.PRIVACY
    assert PRIVATE.withheld_splits(PLAN) == ("train", "val") and DEFAULT.withheld_splits(PLAN) == ()


def test_a_site_with_few_rows_does_not_train():
    policy = Policy.parse("[cells]\nfewest_rows = 20")
    assert policy.refuses(ask(), PLAN, rows=19, now=NOON) == said.CELLS
    assert policy.refuses(ask(), PLAN, rows=20, now=NOON) == ""


def test_the_default_file_says_the_defaults():
    assert Policy.parse("") == DEFAULT


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("[report]\n", "unknown-section", "'report'.*did you mean 'reports'"),
        ("[reports]\nsumary = false", "unknown-key", "'sumary'.*did you mean 'summary'"),
        ('[reports]\ndeny = ["modle"]', "bad-policy-value", "'modle'; did you mean"),
        ('[tasks]\nallow = ["trian"]', "bad-policy-value", "'trian'; did you mean 'train'"),
        ('[tasks]\nallow = "none"', "bad-policy-value", "'none'"),
        ("[secure]\nonly = 1", "bad-policy-value", "only"),
        ("[secure]\nlargest_weight = 2.0", "bad-policy-value", "largest_weight"),
        ("[cells]\nsmallest = -1", "bad-policy-value", "-1"),
        ("[privacy]\nepsilon = 0", "bad-policy-value", "epsilon"),
        ("[runs]\nhours = [8, 25]", "bad-policy-value", "25"),
        ('[runs]\nplans = ["abc"]', "bad-policy-value", "'abc'"),
        ("[runs\n", "not-toml", None),
    ],
)
def test_a_policy_that_may_mean_something_else_is_refused(text, code, value):
    with refused(code, match=value):
        Policy.parse(text)


def test_codes_are_fixed_words_and_each_is_explained():
    assert set(MEANS) == set(CODES) and all(code.replace("-", "").isalpha() for code in CODES)


def test_in_words():
    lines = describe_policy(Policy.parse('[secure]\nonly = true\n[tasks]\ndeny = ["maps"]\n[reports]\nnotes = false'))
    assert "never: maps" in lines[1]
    assert any("the site's own model" in line and "(by secure aggregation only)" in line for line in lines)
    assert "discloses notes that may name a rare category: never" in lines


def test_the_command_names_what_of_a_plan_is_refused(tmp_path):
    (tmp_path / "policy.toml").write_text("[secure]\nonly = true\n")
    (tmp_path / "plan.json").write_text(rounds("plan", "breast-cancer").stdout)
    found = rounds("site", "policy", "policy.toml", "--plan", "plan.json", cwd=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert found.returncode == 1 and plan_digest(plan) in found.stdout
    assert "refused: train (model): only secure sums may leave" in found.stdout
    (tmp_path / "policy.toml").write_text(policy_template(RESEARCH))
    allowed = rounds("site", "policy", "policy.toml", "--plan", "plan.json", cwd=tmp_path)
    assert allowed.returncode == 0 and "nothing of this plan is refused" in allowed.stdout
    assert rounds("site", "policy", "policy.toml", "--plan", "policy.toml", cwd=tmp_path).returncode == 2
