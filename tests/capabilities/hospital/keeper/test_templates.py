"""The three policy templates: their methods run as they require, all else is refused, and the page says what they allow."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.capabilities.hospital.keeper.policy import rules
from grandrounds.capabilities.hospital.keeper.policy.approval import Review, approve
from grandrounds.capabilities.hospital.keeper.policy.describe import describe_policy, explain_refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import refused_requests
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy, plan_digest
from grandrounds.capabilities.hospital.keeper.policy.templates import (
    RESEARCH,
    STANDARD,
    STRICT,
    TEMPLATES,
    policy_template,
)
from grandrounds.core.errors import BadInput
from grandrounds.core.sources import AT_SITES
from grandrounds.experiment.checks.privacy import has_accounting
from grandrounds.methods import METHODS
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.protocol.task_spec import COUNT, NOTHING
from grandrounds.protocol.tasks import specs
from tests.capabilities.hospital.keeper.plans import DP, LENT, PUBLIC, SECURE, TWO, plan
from tests.support import patients, refused

POLICIES = {name: Policy.parse(policy_template(name)) for name in TEMPLATES}
APPROVED = replace(POLICIES[STRICT], runs=replace(POLICIES[STRICT].runs, approve="any"))
"""Template strict without the approval of each plan, to see its other rules."""

HALF = {"evaluation": {"threshold": "half"}}
PAGE = Path(__file__).parents[4] / "docs" / "policies.md"


def made(name: str, *parts: dict, **more: dict) -> dict:
    """The plan of a method, with what it needs to be one."""
    needs: dict[str, dict] = {
        "fedxchain": LENT,
        "sse-agg": {**TWO, "explain": {"sketch": "auto"}},
        "veil": {"method": {"veil": {"selection": "select_then_fit", "features": 3}}},
        "gam": {"model": {"name": "gam"}},
        "private-gam": {"model": {"name": "gam"}},
        "moon": {"model": {"name": "mlp"}},
    }
    own = needs.get(name, {})
    settings = plan(own, *parts, more, method={**own.get("method", {}), "name": name})
    settings["data"]["table"] = AT_SITES
    return gr.Experiment.parse(settings).plan()


def private(name: str) -> dict:
    """As `made`, with differential privacy in secure sums."""
    own = name in ("private-gam", "veil", "watch", "quality")
    privacy = {"epsilon": 3.0, "secure": True} if own else {**DP["privacy"], "noise": None, "epsilon": 3.0, "secure": True}
    return made(name, HALF, data=PUBLIC, privacy=privacy)


def codes(policy: Policy, values: dict) -> set[str]:
    return {code for code, _, _ in refused_requests(policy, values)}


FEDAVG = made("fedavg")


def test_research_is_a_file_without_any_key():
    assert POLICIES[RESEARCH] == Policy()


@pytest.mark.parametrize("name", POLICIES[STRICT].runs.methods)
def test_strict_opens_its_methods_with_noise_in_secure_sums_only(name):
    assert codes(APPROVED, private(name)) == set()
    assert codes(POLICIES[STRICT], private(name)) == {rules.RUN}
    if name in ("watch", "quality", "private-gam"):
        return  # without noise these are other plans
    assert rules.PRIVACY in codes(APPROVED, made(name, HALF, SECURE, data=PUBLIC))
    clear = private(name)
    assert rules.SECURE in codes(APPROVED, {**clear, "privacy": {**clear["privacy"], "secure": False}})


@pytest.mark.parametrize("name", POLICIES[STANDARD].runs.methods)
def test_standard_opens_its_methods_in_secure_sums_only(name):
    private_only = name in ("private-gam", "veil")
    assert codes(POLICIES[STANDARD], private(name) if private_only else made(name, SECURE)) == set()
    if not private_only and name not in ("watch", "quality"):
        assert codes(POLICIES[STANDARD], made(name)) == {rules.SECURE}


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"pooled"}))
def test_a_method_that_is_not_named_is_refused(name):
    for policy in POLICIES.values():
        methods = policy.runs.methods
        is_named = methods == rules.ALL or name in methods
        assert (rules.METHOD in codes(policy, {**FEDAVG, "method": {**FEDAVG["method"], "name": name}})) != is_named


@pytest.mark.parametrize("mechanism", ["dp-sgd", "client", "none"])
@pytest.mark.parametrize("name", sorted(n for n in METHODS if not has_accounting(n)))
def test_a_method_that_may_be_exempt_has_no_differential_privacy(name, mechanism, tmp_path):
    """A plan with noise is refused by the checks of the package, whatever the mechanism."""
    if name == "gam":  # with an epsilon its plan is one of 'private-gam'
        assert made("gam", HALF, data=PUBLIC, privacy={"epsilon": 3.0})["method"]["name"] == "private-gam"
        return
    model = {"name": "mlp", "norm": "batch"} if name == "fedbn" else {"name": "logistic"}
    settings = plan(HALF, method={"name": name}, model=model, data=PUBLIC, privacy={"mechanism": mechanism, "epsilon": 3.0})
    with pytest.raises(BadInput):
        gr.run(gr.Experiment.parse(settings), table=patients([60, 50, 40]), out=tmp_path / "run")


def test_a_method_with_differential_privacy_cannot_be_exempt():
    with refused("bad-policy-value", match="'fedavg', which has differential privacy"):
        Policy.parse('[privacy]\nexempt = ["fedavg"]')
    with refused("bad-policy-value", match="'fedagv'; did you mean 'fedavg'"):
        Policy.parse('[runs]\nmethods = ["fedagv"]')
    with refused("bad-policy-value", match='approve is \'digests\'; give "any" or "digest"'):
        Policy.parse('[runs]\napprove = "digests"')


def test_nothing_of_one_site_leaves_strict_in_the_clear_but_numbers_of_rows():
    """Of every task and report, asked for in the clear by a plan without noise that the site exempts."""
    policy = replace(APPROVED, privacy=replace(APPROVED.privacy, exempt=("glm",)))
    policy = replace(policy, runs=replace(policy.runs, methods=("glm",)))
    glm = made("glm", data={**PUBLIC, "coding": "levels"}, method={"exact": {"least": 10}})
    for task in specs().values():
        for report in task.reports.values():
            asked = Ask(task.name, {}, report=(report.name,), id=AskId("x", 1, 1))
            is_sent = not policy.refuses(asked, glm) and not policy.is_emptied(task.name, report.name)
            assert not is_sent or report.kind in (NOTHING, COUNT), f"{task.name}.{report.name}"


def test_the_sentences_say_what_to_change_and_where():
    large = private("fedavg")
    large = {**large, "privacy": {**large["privacy"], "epsilon": 8.0}}
    for values in (made("fedavg", explain={"sketch": "shap"}), made("trees"), large):
        found = refused_requests(POLICIES[STRICT], values)
        assert found
        for code, task, reports in found:
            sentence = explain_refusal(POLICIES[STRICT], values, code, task, reports)
            assert "policy.toml" in sentence or "in the plan" in sentence or "of the plan" in sentence, sentence
    assert any("opens plans of these methods only: fedavg, " in line for line in describe_policy(POLICIES[STRICT]))


@pytest.mark.parametrize(
    "text",
    [
        policy_template(STRICT),
        "",
        "[runs]\n",
        '[runs]\nplans = ["' + "a" * 64 + '"]  # an older one\nrounds = 7\n',
        '[runs]\nplans = [\n  "' + "a" * 64 + '",  # old [1]\n]\n[secure]\nonly = true\n',
        '# not [runs]\n[runs]\nplans = [\n  "' + "a" * 64 + '"  # old [1]\n]\n',
        "[secure]\nonly = true\n[runs]\nhours = [8, 12]\n# plans = []\n",
    ],
)
def test_an_approval_changes_one_list_and_no_other_line(text, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    before, values = Policy.load(file), {**private("fedavg"), "name": 'x"\n[secure]\nonly = false\n#'}
    assert approve(file, values, by="A\nB")
    after = Policy.load(file)
    assert after == replace(before, runs=replace(before.runs, plans=(*before.runs.plans, plan_digest(values))))
    kept = [line for line in text.splitlines() if not line.startswith("plans")]
    assert set(kept) <= set(file.read_text().splitlines())
    assert not approve(file, values)


def test_a_list_in_an_unusual_form_is_left_to_a_person(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('runs = { plans = [] }\n')
    with refused("unusual-policy-file", match="by hand"):
        approve(file, private("fedavg"))
    assert file.read_text() == 'runs = { plans = [] }\n'


def test_what_would_leave_is_described():
    lines = Review.of(POLICIES[STRICT], private("fedavg")).lines(POLICIES[STRICT])
    assert "would leave as it is: number of rows at the site" in "\n".join(lines)
    assert not any(line.startswith("would leave as it is") for line in lines if "number of rows" not in line)
    clear = Review.of(POLICIES[RESEARCH], made("fedavg")).lines(POLICIES[RESEARCH])
    assert any(line.startswith("would leave as it is: the site's own model") for line in clear)


# The page


def rows_of(page: str, head: str) -> list[list[str]]:
    """Cells of the table that begins with this head."""
    table = page.split(head, 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table if not set(line) <= set("|- ")]


def test_the_page_has_the_values_of_the_templates():
    """Every key in which the templates differ, and each value as the file has it."""
    page = PAGE.read_text("utf-8")
    shown: dict[str, list[list[str]]] = {}
    for _, key, *cells in rows_of(page, "| rule | key |"):
        shown[key.strip("`")] = [re.findall(r"`([^`]+)`", cell) for cell in cells]
    plain = {name: asdict(policy) for name, policy in POLICIES.items()}
    for section in ("runs", "tasks", "reports", "cells", "secure", "privacy", "exact"):
        for key in plain[STRICT][section]:
            values = [plain[name][section][key] for name in TEMPLATES]
            if f"{section}.{key}" == "runs.methods":
                continue
            if len({str(v) for v in values}) > 1 or f"{section}.{key}" in shown:
                assert shown[f"{section}.{key}"] == [[json.dumps(v)] for v in values], f"{section}.{key}"


def test_the_page_has_the_methods_of_the_templates():
    page = PAGE.read_text("utf-8")
    named: dict[str, set[str]] = {name: set() for name in TEMPLATES}
    for methods, _, *cells in rows_of(page, "| methods | differential privacy |"):
        for template, cell in zip(TEMPLATES, cells, strict=True):
            if cell == "yes":
                named[template] |= set(re.findall(r"`([^`]+)`", methods))
    assert named[STRICT] == set(POLICIES[STRICT].runs.methods)
    assert named[STANDARD] == set(POLICIES[STANDARD].runs.methods)
    assert named[RESEARCH] == set(METHODS) - {"pooled"}
    for methods, noise, *_ in rows_of(page, "| methods | differential privacy |"):
        assert {has_accounting(m) for m in re.findall(r"`([^`]+)`", methods)} == {noise == "yes"}, methods
