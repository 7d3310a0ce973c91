"""Personal models at hospitals: the same choices and figures as in a simulation, and nothing of them on the wire."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.capabilities.hospital.keeper.access import AccessControl
from grandrounds.capabilities.hospital.keeper.accounting.ask_costs import ask_cost
from grandrounds.capabilities.hospital.keeper.accounting.terms import Terms
from grandrounds.capabilities.hospital.keeper.codes import Refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import Questions
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy, is_private
from grandrounds.core.arrays import load, save
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods.guard.choice import LEVEL
from grandrounds.methods.guard.server import VARIANCES
from grandrounds.methods.guard.site import FILE, digest_model
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.ask_cost import RowCounts
from tests.command import rounds
from tests.engine.decrypted import read
from tests.engine.disturbed import B, Disturbed, Killed, Passing
from tests.engine.hospitals import PLAIN, Hospitals
from tests.engine.memory_transport import MemoryTransport
from tests.engine.test_hospitals import write_csv
from tests.support import patients, refused

SIZES = [60, 50, 40, 45]
DATA = {"table": "data frame", "label": "died", "site": "hospital"}
QUICKLY = {"method": {"rounds": 1}, "train": {"steps": 4, "lr": 0.1}, "explain": {"sketch": "none"}, "split": {"val": 0.2}}
DP = {"privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "min_rows": 10}}
GUARD = {"personal": {"guard": True, "part": "recalibration"}}


def hospitals(**sections) -> Hospitals:
    return Hospitals.of(patients(SIZES), name="own", data=DATA, **{**QUICKLY, **sections})


def wire(monkeypatch) -> list[bytes]:
    """Every message to a keeper and every answer of it, decrypted."""
    seen: list[bytes] = []
    collect = MemoryTransport.collect

    def collected(self, tickets, *, wait):
        asked = [self._waiting[t][1] for t in tickets if t in self._waiting]
        replies = collect(self, tickets, wait=wait)
        seen.extend(read(data).body for data in (*asked, *(reply.data for reply in replies)) if data is not None)
        return replies

    monkeypatch.setattr(MemoryTransport, "collect", collected)
    return seen


def personal_files(folder) -> dict[str, dict[str, np.ndarray]]:
    return {path.parent.name: load(path)[0] for path in folder.rglob(FILE)}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run at hospitals without secure sums, and its folder."""
    folder = tmp_path_factory.mktemp("done")
    return hospitals(**GUARD).deployed(folder), folder


@pytest.mark.parametrize("secure", [False, True])
def test_hospitals_choose_and_score_as_in_a_simulation(secure, done, tmp_path):
    held = hospitals(**GUARD, privacy={"secure": secure})
    here = held.simulated(tmp_path / "here", patients(SIZES))
    there, folder = (held.deployed(tmp_path), tmp_path) if secure else done
    known, told = here.summary.personal, there.summary.personal
    for name in ("part", "guard", "rows", "stays", "choices", "harmed", "tested"):
        assert told[name] == known[name], name
    assert told["spread"] == pytest.approx(known["spread"])
    for name, value in known["final"].items():
        assert told["final"][name] == pytest.approx(value, abs=1e-5, nan_ok=True), name
    for site, figures in known["per_site"].items():
        assert told["per_site"][site]["log_loss"] == pytest.approx(figures["log_loss"], abs=1e-5)
    ours, theirs = personal_files(tmp_path / "here"), personal_files(folder / "state")
    assert ours.keys() == theirs.keys() == set(held.rows), "the file outlives the run, which the server has closed"
    for site, arrays in ours.items():
        np.testing.assert_allclose(theirs[site]["deployed"], arrays["deployed"], atol=1e-5)


def test_under_a_budget_only_that_a_model_was_fitted_leaves(tmp_path):
    held = hospitals(**DP, **GUARD)
    told = held.deployed(tmp_path).summary.personal
    assert told["stays"] and not {"choices", "harmed", "final", "per_site"} & told.keys()
    assert personal_files(tmp_path / "state").keys() == set(held.rows)


@pytest.mark.parametrize("part", ["intercept", "finetune", "head", "ditto"])
def test_no_personal_parameter_is_on_the_wire(part, tmp_path, monkeypatch):
    seen = wire(monkeypatch)
    held = hospitals(model={"name": "mlp", "hidden": [6]}, personal={"part": part, "epochs": 2})
    sent = held.deployed(tmp_path).model
    common, first = sent.theta, sent.net.init(held.seed, sent.theta.dtype)
    everything = b"".join(seen)
    for arrays in personal_files(tmp_path / "state").values():
        deployed = arrays["deployed"]
        assert common.tobytes()[:16] in everything, "the common model is sent, so the search finds what is there"
        own = np.flatnonzero((common != deployed) & (first != deployed))  # some entries never move from where all began
        assert len(own), "the model is personal"
        for dtype in (np.float32, np.float64):
            for start in own.tolist():
                width = 16 // np.dtype(dtype).itemsize
                run = deployed[max(0, min(start, len(deployed) - width)) :][:width].astype(dtype).tobytes()
                assert run not in everything


def test_a_hospital_that_refuses_keeps_the_common_model_and_the_run_goes_on(tmp_path):
    """One denies the task, one its report, one the sum; and few test rows disclose no harm."""
    held = hospitals(**GUARD)
    keepers = held.keepers(tmp_path / "state")
    texts = ('[tasks]\ndeny = ["personal"]', '[reports]\ndeny = ["choice"]', '[tasks]\ndeny = ["personal.spread"]')
    for keeper, text in zip(keepers[:3], texts, strict=True):
        keeper._access = AccessControl(_merged(text))
    keepers[3]._access = AccessControl(replace(PLAIN.policy, cells=replace(PLAIN.policy.cells, smallest=40)))
    there = held.deployed(tmp_path, MemoryTransport(keepers)).summary
    assert there.personal["choices"].keys() == {"c", "d"} and there.personal["tested"] == ["c"]
    for site in ("a", "b"):
        assert there.personal["per_site"][site] == there.per_site[site]
    assert personal_files(tmp_path / "state").keys() == {"c", "d"}


def test_where_every_hospital_refuses_all_keep_the_common_model(tmp_path):
    held = hospitals(**GUARD, privacy={"secure": True})
    deny = AccessControl(_merged('[tasks]\ndeny = ["personal", "personal.spread"]'))
    there = held.deployed(tmp_path, MemoryTransport(held.keepers(tmp_path / "state", access=deny))).summary
    assert there.personal["choices"] == {} and there.personal["harmed"] is None
    assert there.personal["final"] == there.final


def _merged(text: str) -> Policy:
    policy = Policy.parse(text)
    return replace(PLAIN.policy, tasks=policy.tasks, reports=replace(policy.reports, notes=True))


def test_a_keeper_that_starts_again_has_its_personal_model(done, tmp_path, quick):
    """Between the choice and its figures the process ends: the next one reads the model from the site's disk."""
    held = hospitals(**GUARD)
    post = Disturbed.of(held.keepers(tmp_path / "state"), quick)
    ended = []

    def before(passing: Passing) -> None:
        last = passing.asks_for("evaluate", 2) and any(t == "personal" for p in post.seen for t, _ in p.asks)
        if passing.address == B and (passing.asks_for("personal.harm") or last) and post.restart(B):
            ended.append(passing.asks[0][0])

    post.before = before
    told = held.deployed(tmp_path, post).summary.personal
    assert ended == ["personal.harm", "evaluate"]
    assert told == done[0].summary.personal


def test_a_server_that_is_killed_after_the_choice_resumes_to_the_same_models(done, tmp_path, quick):
    held = hospitals(**GUARD)
    post = Disturbed.of(held.keepers(tmp_path / "state"), quick)

    def before(passing: Passing) -> None:
        if passing.address == B and passing.asks_for("personal.harm"):
            raise Killed

    post.before = before
    with pytest.raises(Killed):
        held.deployed(tmp_path, post)
    post.before = lambda _: None
    run, folder = done
    assert held.deployed(tmp_path, post, resume=True).summary.personal == run.summary.personal
    for site, arrays in personal_files(tmp_path / "state").items():
        np.testing.assert_array_equal(arrays["deployed"], personal_files(folder / "state")[site]["deployed"])


def test_a_hospital_uses_its_personal_model_after_the_run(tmp_path):
    """With the run folder that the server hands out and its own folder: no other site's file is needed."""
    held = hospitals(personal={"part": "finetune", "epochs": 3}, model={"name": "mlp", "hidden": [6]})
    there = held.deployed(tmp_path)
    held.simulated(tmp_path / "here", patients(SIZES))
    assert not (there.folder / "at_sites").exists()
    rows = tmp_path / "b.csv"
    write_csv(rows, held.rows["b"])
    ours = rounds("predict", tmp_path / "here", "--table", rows, "--for", "b").stdout
    common = rounds("predict", there.folder, "--table", rows, "--for", "b")
    assert "b's personal model is at the hospital" in common.stderr
    own = rounds("predict", there.folder, "--table", rows, "--personal", tmp_path / "state" / "b")
    np.testing.assert_allclose(risks(own.stdout), risks(ours), atol=1e-5)
    assert np.abs(risks(own.stdout) - risks(common.stdout)).max() > 1e-3
    other = rounds("predict", there.folder, "--table", rows, "--for", "a", "--personal", tmp_path / "state" / "b")
    assert other.returncode == 2 and "model of b" in other.stderr
    case = rounds("explain", there.folder, "--case", 3, "--table", rows, "--personal", tmp_path / "state" / "b", "--json")
    told = json.loads(case.stdout)
    assert told["by"] == "the common model, trained further, which b deploys"
    (file,) = (tmp_path / "state" / "b").rglob(FILE)
    arrays, facts = load(file)
    save(file, arrays, {**facts, "common_sha256": digest_model(arrays["common"] + 1)})  # as of another run
    strange = rounds("predict", there.folder, "--table", rows, "--personal", file)
    assert strange.returncode == 2 and "made from another model" in strange.stderr
    empty = rounds("predict", there.folder, "--table", rows, "--personal", tmp_path / "state" / "b")
    assert empty.returncode == 2 and "found: 1 of other runs" in empty.stderr


def risks(text: str) -> np.ndarray:
    return np.array([float(line.split(",")[1]) for line in text.splitlines()[1:]])


def question(plan, task, report, **shared) -> Ask:
    return Ask(task, shared, report=report, id=AskId("own", plan["method"]["rounds"] + 1, 0))


def asked(plan) -> dict[str, Ask]:
    """The questions about personal models that an honest server has for this plan."""
    t, rounds = plan["train"], plan["method"]["rounds"]
    names = ("epochs", "steps", "batch", "optimizer", "momentum", "weight_decay", "l2", "keep_optimizer", "augment", "lr")
    work = {name: t[name] for name in names} | {"seed": plan["seed"], "round": rounds + 1}
    own = {"part": "recalibration", "guard": 1, "rows": "train", "variance": float(np.sqrt(VARIANCES[3])) ** 2}
    own |= {"epochs_own_part": 5, "epochs_own_model": t["epochs"] * rounds, "strength": 0.1, "mixture": 0.5}
    return {
        "personal": question(plan, "personal", ("fitted", "choice"), **work, **own),
        "personal.spread": question(plan, "personal.spread", ("sums",), variances=VARIANCES, rows="train"),
        "personal.harm": question(plan, "personal.harm", ("harmed",), level=LEVEL / 3, seed=plan["seed"]),
        "evaluate": question(plan, "evaluate", ("test", "figures"), personal=1),
    }


@pytest.mark.parametrize(
    ("task", "other"),
    [
        ("personal", {"part": "finetune"}),
        ("personal", {"guard": 0}),
        ("personal", {"variance": 0.123}),
        ("personal", {"epochs_own_part": 500}),
        ("personal", {"epochs_own_model": 500}),
        ("personal", {"strength": 9.0}),
        ("personal", {"mixture": 0.9}),
        ("personal", {"lr": 50.0}),
        ("personal", {"seed": 3}),
        ("personal", {"rows": "test"}),
        ("personal.spread", {"variances": np.array([0.0, 1.0])}),
        ("personal.spread", {"rows": "test"}),
        ("personal.harm", {"level": 0.06}),
        ("personal.harm", {"level": 0.02}),
        ("personal.harm", {"seed": 3}),
    ],
)
def test_questions_about_personal_models_have_the_plans_numbers(task, other):
    plan = Experiment.parse({"data": DATA, **QUICKLY, **GUARD}).plan()
    ask = asked(plan)[task]
    Questions(plan, {}).check(ask)
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(replace(ask, shared={**ask.shared, **other}))
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(replace(ask, each={"b": other}))


def test_a_part_that_is_trained_in_the_rounds_is_the_plans():
    """A head would be trained without noise, and the layers that leave would depend on it."""
    part = {"part": "ditto", "epochs": 5, "strength": 0.1, "mixture": 0.5}
    plan = Experiment.parse({"data": DATA, **QUICKLY, "personal": {"part": "ditto"}}).plan()

    def prepared(**spec) -> Ask:
        return Ask("prepare", {"spec": json.dumps({"keeps": "none", **spec})}, report=("train_rows",), id=AskId("own", 0, 0))

    Questions(plan, {}).check(prepared(personal=part))
    for other in ({}, {"personal": {**part, "epochs": 500}}, {"personal": {**part, "part": "head"}}):
        with refused("not-in-plan", kind=Refusal):
            Questions(plan, {}).check(prepared(**other))
    with refused("not-in-plan", kind=Refusal):
        Questions(plan, {}).check(prepared(personal=part, keeps="head"))


@pytest.mark.parametrize("sections", [{}, {**GUARD, **DP}], ids=["no personal part", "a budget"])
def test_a_plan_that_keeps_personal_models_at_sites_declares_no_figures_of_them(sections):
    plan = Experiment.parse({"data": DATA, **QUICKLY, **sections}).plan()
    for ask in asked(Experiment.parse({"data": DATA, **QUICKLY, **GUARD}).plan()).values():
        with refused("not-in-plan", kind=Refusal):
            Questions(plan, {}).check(ask)


def test_figures_of_a_personal_model_tell_of_the_rows_it_was_fitted_to():
    plan = Experiment.parse({"data": DATA, **QUICKLY, **GUARD}).plan()
    ask = asked(plan)["evaluate"]
    rows = RowCounts(train=50, val=10, test=10)
    cost = ask_cost(ask, rows, Terms(), unbounded=False)
    assert {d.rows for d in cost.disclosures.values()} == {("test", "training", "validation")}
    plain = replace(ask, shared={})
    assert {d.rows for d in ask_cost(plain, rows, Terms(), unbounded=False).disclosures.values()} == {("test",)}
    assert is_private(plain, None) and not is_private(ask, None)
