"""Promises: the account of `rounds privacy`, by site and mechanism, and what attacks found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.membership.attack import write_attacks
from grandrounds.capabilities.attacks.evidence import MEMBERSHIP, collect_evidence
from grandrounds.capabilities.console.api import privacy_router
from grandrounds.capabilities.console.app import create_app
from grandrounds.capabilities.console.app_state import AppState
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views import privacy as view
from grandrounds.data.table import Table
from grandrounds.privacy.accounting import epsilon_of
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import rounded_up
from grandrounds.runs.run import load_run
from tests.capabilities.console.conftest import DATA, Signed, Window, known_users, make_runs, serving
from tests.command import rounds
from tests.report import EVIL
from tests.store import copied, shared, shared_folder
from tests.support import patients, without_ledger

NOISY = {
    "name": "noisy",
    "data": DATA,
    "method": {"name": "fedavg", "rounds": 3, "select": {"rule": "random", "fraction": 0.5}},
    "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0, "min_rows": 5},
}


@shared_folder
def root(root: Path) -> None:
    """Runs with a promise and without; of one, which was attacked, half of the sites are drawn in each round."""
    for name in ("plain", "private"):
        copied(shared(make_runs) / name, root / name)
    table = patients([90, 80, 70, 60])
    site = table.columns["hospital"].astype(object)
    named = Table.from_mapping({**table.columns, "hospital": np.where(site == "b", EVIL, site)}, source=table.source)
    run = gr.run(gr.Experiment.parse(NOISY), out=root / "noisy", table=named)
    write_attacks(run.folder, collect_evidence(run, only=[MEMBERSHIP], data=named).to_dict())
    hidden = {"name": "h", "data": DATA, "method": {"name": "fedavg", "rounds": 1}, "privacy": {"secure": True}}
    gr.run(gr.Experiment.parse({**hidden, "explain": {"sketch": "none"}}), out=root / "hidden", table=table)


@pytest.fixture
def promised(root):
    users, tokens = known_users()
    return Signed(create_app(AppState(RunIndex(root), users)), tokens)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["plain", "hidden", "private", "noisy"])
def test_an_account_is_the_commands_own(promised, root, name):
    done = rounds("privacy", root / name, "--json")
    said = json.loads(done.stdout)
    told = promised.client("auditor").get("/api/privacy", params={"run": name}).json()
    assert done.returncode == 0 and told["findings"] == said["findings"] == []
    assert (told["promised"], told["epsilon"]) == (said["promised"], said["worked_out_again"])
    assert told["mechanism"] == said["mechanism"] and told["statement"] == said["statement"]
    assert told["rounds"] == said["rounds"] and told["disclosed"] == said["disclosed"]
    for ours, theirs in (("remaining", "left"), ("budget", "budget"), ("delta", "delta"), ("uncovered", "not_covered")):
        assert told[ours] == (said.get(theirs) if ours != "uncovered" else said.get(theirs, [])), ours
    words = " ".join(rounds("privacy", root / name).stdout.split())
    assert all(sentence in words for sentence in (*told["sentences"], *told["released"]))
    page = promised.client("auditor").get("/privacy", params={"run": name}).text
    assert ("No formal guarantee" in page) == (name in ("plain", "hidden")) == ("Guarantee to each" not in words)


def test_what_a_site_spent_is_that_of_its_own_rounds(promised, root):
    told = promised.client("auditor").get("/api/privacy", params={"run": "noisy"}).json()
    run = load_run(root / "noisy")
    asked = {}
    for record in run.rounds:
        for site in record["decision"]["asked"]:
            asked.setdefault(site, []).extend(Event.from_dict(e) for e in record["decision"]["privacy"]["events"])
    assert EVIL in {s["site"] for s in told["sites"]} and len({len(own) for own in asked.values()}) > 1
    for site in told["sites"]:
        own = asked.get(site["site"], [])
        assert site["epsilon"] == (pytest.approx(epsilon_of(own, 1e-5)) if own else 0.0)
        assert site["rounds"] == len(own) and site["releases"] == sum(e.count for e in own)
    assert max(s["epsilon"] for s in told["sites"]) == pytest.approx(run.summary["privacy"]["epsilon"])
    assert told["mechanisms"] == {"models of the sites": pytest.approx(run.summary["privacy"]["epsilon"])}


def test_mechanisms_alone_do_not_exceed_all_together(promised, root):
    told = promised.client("auditor").get("/api/privacy", params={"run": "private"}).json()
    events = [Event.from_dict(e) for e in load_run(root / "private").summary["privacy"]["events"]]
    assert len(told["mechanisms"]) == len({e.what for e in events}) > 1
    for what, alone in told["mechanisms"].items():
        assert alone == pytest.approx(epsilon_of([e for e in events if e.what == what], told["delta"]))
        assert alone <= told["epsilon"] + 1e-9
    assert len(told["sites"]) == 4 and all(s["epsilon"] == pytest.approx(told["epsilon"]) for s in told["sites"])


def test_the_list_says_of_every_run_what_it_promised(promised, root):
    listed = {line["run"]: line for line in promised.client("auditor").get("/api/privacy/runs").json()}
    assert {name: line["promised"] for name, line in listed.items()} == {
        "plain": False,
        "hidden": False,
        "private": True,
        "noisy": True,
    }
    for name, line in listed.items():
        assert line["epsilon"] == load_run(root / name).summary["privacy"]["epsilon"]
    assert [line["attacked"] for line in listed.values() if line["run"] == "noisy"] == [True]
    page = promised.client("auditor").get("/privacy").text
    assert "no formal guarantee" in page and 'href="/privacy?run=noisy"' in page


def test_attacks_are_shown_against_what_epsilon_allows(promised, root):
    client = promised.client("auditor")
    told = client.get("/api/privacy", params={"run": "noisy"}).json()["attacked"]
    held = json.loads((root / "noisy" / "attacks.json").read_text())
    assert [(a["attack"], a["auc"], a["low"], a["high"]) for a in told["attacks"]] == [
        (a["attack"], a["auc"], a["low"], a["high"]) for a in held["attacks"]
    ]
    assert told["bound"]["auc"] == held["bound"]["auc"] and told["sentences"] == held["sentences"]
    drawn = client.get("/api/privacy/figure", params={"run": "noisy", "figure": "attacks"}).json()["data"]
    by_name = {t["name"].split(" (")[0]: t["x"] for t in drawn}
    assert by_name["guessing"] == [0.5] and by_name["the maximum that epsilon allows"] == [held["bound"]["auc"]]
    assert by_name["attack, with its 95% interval"] == [held["attacks"][0]["auc"]]


@pytest.fixture
def bent(root, tmp_path):
    copied(root / "noisy", tmp_path / "noisy")
    users, tokens = known_users()
    return tmp_path / "noisy", Signed(create_app(AppState(RunIndex(tmp_path), users)), tokens).client("auditor")


@pytest.mark.parametrize(
    "bend",
    [
        lambda held: "{",
        lambda held: "[]",
        lambda held: json.dumps({**held, "attacks": "none"}),
        lambda held: json.dumps({k: v for k, v in held.items() if k != "bound"}),
        lambda held: json.dumps({**held, "attacks": [{"attack": 3}]}),
        lambda held: json.dumps({**held, "bound": {"broken": 1}}),
    ],
)
def test_damaged_attacks_are_said_to_be(bent, bend):
    folder, client = bent
    held = json.loads((folder / "attacks.json").read_text())
    (folder / "attacks.json").write_text(bend(held))
    for place in ("/api/privacy", "/privacy"):
        answer = client.get(place, params={"run": "noisy"})
        assert answer.status_code == 422 and "damaged" in answer.text and str(folder) not in answer.text


def test_attacks_of_other_models_do_not_count_and_a_broken_promise_is_loud(bent):
    folder, client = bent
    held = json.loads((folder / "attacks.json").read_text())
    (folder / "attacks.json").write_text(json.dumps({**held, "model": "0" * 64}))
    assert client.get("/api/privacy", params={"run": "noisy"}).json()["attacked"] is None
    assert "of other models" in client.get("/privacy", params={"run": "noisy"}).text
    (folder / "attacks.json").write_text(json.dumps({**held, "bound": {**held["bound"], "broken": True}}))
    told = client.get("/api/privacy", params={"run": "noisy"}).json()
    assert told["findings"] == ["an attack did better than epsilon allows"]
    page = client.get("/privacy", params={"run": "noisy"}).text
    assert 'role="alert"' in page and "Do not rely on its guarantee" in page


def test_a_record_that_does_not_agree_is_found(bent):
    folder, client = bent
    summary = json.loads((without_ledger(folder) / "summary.json").read_text())
    summary["privacy"]["epsilon"] = 1.0
    (folder / "summary.json").write_text(json.dumps(summary))
    told = client.get("/api/privacy", params={"run": "noisy"}).json()
    said = json.loads(rounds("privacy", folder, "--json").stdout)
    assert told["findings"] == said["findings"] != []
    assert "does not match its record" in client.get("/privacy", params={"run": "noisy"}).text
    del summary["privacy"]["events"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert client.get("/api/privacy", params={"run": "noisy"}).status_code == 422


def test_an_unfinished_run_says_what_is_spent_so_far(bent):
    folder, client = bent
    spent = load_run(folder).rounds[-1]["decision"]["privacy"]["epsilon_spent"]
    for name in ("summary.json", "round_logs.json"):
        (folder / name).unlink()
    page = client.get("/privacy", params={"run": "noisy"})
    assert (
        page.status_code == 200
        and "not finished" in page.text
        and f"Spent so far: epsilon = {rounded_up(spent)}," in page.text
    )
    assert client.get("/api/privacy/runs").json()[0]["epsilon"] == pytest.approx(spent)
    assert client.get("/api/privacy", params={"run": "noisy"}).status_code == 422


def test_a_script_for_a_site_is_shown_as_text(promised):
    client = promised.client("auditor")
    assert EVIL in {s["site"] for s in client.get("/api/privacy", params={"run": "noisy"}).json()["sites"]}
    page = client.get("/privacy", params={"run": "noisy"}).text
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page
    drawn = client.get("/api/privacy/figure", params={"run": "noisy", "figure": "sites"}).text
    assert "<script>" not in drawn


def test_secure_sums_are_named_and_are_no_promise(promised, root):
    assert {line.run for line in view.privacy_lines(RunIndex(root)) if line.secure} == {"hidden"}
    client = promised.client("auditor")
    for name, said in (("hidden", "Secure aggregation hid"), ("plain", "Secure aggregation was not used")):
        told = client.get("/api/privacy", params={"run": name}).json()
        assert told["secure"] == (name == "hidden") and not told["promised"] and told["figures"] == []
        page = client.get("/privacy", params={"run": name}).text
        assert said in page and "No formal guarantee" in page


def test_no_other_role_sees_any_of_it(promised):
    places = [*(r.path for r in privacy_router.routes), "/privacy"]
    assert len(places) == 4
    for place in places:
        for role in ("viewer", "clinician"):
            answer = promised.client(role).get(place, params={"run": "noisy", "figure": "sites"})
            assert answer.status_code == 403 and "noisy" not in answer.text
        assert promised.client().get(place).status_code in (401, 303)
    for bad, status in (({"run": "nobody"}, 404), ({"run": "noisy", "figure": "none"}, 404), ({}, 422)):
        assert (
            promised.client("auditor").get("/api/privacy/figure", params={"figure": "x", **bad}).status_code == status
        )


def test_the_page_is_drawn_in_a_browser(chromium, root):
    users, tokens = known_users()
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    for served in serving(AppState(RunIndex(root), users), tokens):
        window = Window(context.new_page(), served.url)
        window.sign_in(tokens["auditor"])
        window.go("/privacy")
        window.page.get_by_role("link", name="noisy").click()
        for name in ("epsilon", "sites", "attacks"):
            window.drawn(name)
        window.page.click("#theme")
        assert EVIL in window.page.locator("#by-site").inner_text()
        window.go("/privacy?run=plain")
        window.page.get_by_role("heading", name="No formal guarantee").wait_for()
        assert window.wrong == []
    context.close()


def test_attribute_inference_and_reconstruction_are_shown_with_what_was_not_tried(bent):
    folder, client = bent
    held = json.loads((folder / "attacks.json").read_text())
    guess = {"column": "<i>sex", "kind": "category", "values": 2, "members": 90, "nonmembers": 40, "accuracy_members": 0.75}
    guess |= {"accuracy_nonmembers": 0.5, "advantage": 0.25, "low": 0.1, "high": 0.4, "low_all": 0.05, "high_all": 0.45}
    guess |= {"marginal": 0.5, "imputation": 0.6}
    attribute = {"confidence": 0.95, "worst": "sex", "leaking": ["sex"], "columns": [guess], "sentences": ["sex"], "notes": []}
    read = {"kind": "scores", "statistic": "histograms", "attacked": True, "attack": "cells of one patient", "finding": "many"}
    read |= {"exposed": 8, "total": 10, "share": 0.8, "low": 0.49, "high": 0.943, "unit": "patients"}
    left = dict.fromkeys(("exposed", "total", "share", "low", "high")) | {"kind": "signals", "statistic": "losses", "attack": ""}
    left |= {"attacked": False, "finding": "no attack is offered", "unit": "patients"}
    rebuilt = {"statistics": [read, left], "updates": [], "protection": "", "prototypes": None, "sentences": [], "notes": []}
    more = {"tried": ["membership"], "not_tried": ["LiRA was not tried"], "attribute": attribute, "reconstruction": rebuilt}
    (folder / "attacks.json").write_text(json.dumps({**held, **more}))
    page = client.get("/privacy", params={"run": "noisy"}).text
    shown = ("&lt;i&gt;sex", "+0.250", "+0.050 to +0.450", "8 of 10 patients (49.0% to 94.3%)", "not attacked", "LiRA was not")
    assert all(text in page for text in shown)
    told = client.get("/api/privacy", params={"run": "noisy"}).json()["attacked"]
    assert told["reconstruction"]["statistics"][1]["attacked"] is False and told["attribute"]["leaking"] == ["sex"]
    (folder / "attacks.json").write_text(json.dumps({**held, **more, "attacks": []}))  # a model of numbers
    answer = client.get("/api/privacy", params={"run": "noisy"}).json()
    assert "attacks" not in answer["figures"] and client.get("/privacy", params={"run": "noisy"}).status_code == 200
