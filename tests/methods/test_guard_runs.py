"""Runs with the guard: every task and kernel, small sites, settings that are refused, and the same bits in any order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grandrounds.core.arrays import load
from grandrounds.data.table import Table
from grandrounds.engine.local import LocalEngine
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods.guard import server
from grandrounds.methods.guard.candidates import CHOICES, MAJORITY
from grandrounds.methods.guard.site import FILE, READABLE, PersonalSite, PersonalTerms
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.recipes import load_recipe
from grandrounds.runs.evaluation import disclose_personal
from grandrounds.runs.run import Run, resume, run
from grandrounds.site.host import SiteHost
from tests.support import bright_squares, patients, ready, refused, slow, stack

SIZES = [400, 350, 300]
GUARD = {"guard": True}
TERMS: dict[str, Any] = {
    "part": "none", "guard": 1, "rows": "train", "variance": 0.25, "epochs_own_part": 1, "epochs_own_model": 1,
    "strength": 0.1, "mixture": 0.5, "seed": 0, "round": 1, "lr": 0.1,
}  # fmt: skip
"""Settings of an Ask for personal models, besides the model."""


def table_of(outcome: str = "died", *, classes: int = 2, sizes: list[int] = SIZES, shift: float = 1.5) -> Table:
    """Patients of sites whose outcomes differ by an intercept: more die at a, fewer at the last."""
    table = patients(sizes, classes=classes)
    columns = dict(table.columns)
    rng = np.random.default_rng(0)
    place = np.searchsorted(np.unique(columns["hospital"]), columns["hospital"])
    risk = shift * (1 - place) + 0.04 * (np.nan_to_num(columns["age"], nan=60) - 60)
    if outcome == "days":
        columns["died"] = np.round(5 + 2 * risk + rng.normal(size=len(risk)), 3)
    elif outcome == "visits":
        columns["died"] = rng.poisson(np.exp(0.8 + 0.5 * risk)).astype(float)
    elif classes == 2:
        columns["died"] = np.where(rng.random(len(risk)) < 1 / (1 + np.exp(-risk)), "yes", "no")
    return Table.from_mapping(columns, source="patients.csv")


def make_run(out: Path, *, table: Table | None = None, personal: dict[str, Any] = GUARD, **sections: Any) -> Run:
    values: dict[str, Any] = {
        "data": {"table": "data frame", "label": "died", "site": "hospital", **sections.pop("data", {})},
        "method": {"rounds": 3, **sections.pop("method", {})},
        "train": {"lr": 0.1, "epochs": 2, **sections.pop("train", {})},
        "explain": {"sketch": "none"},
        "personal": {"differences": False, **personal},
        **sections,
    }
    return run(Experiment.parse(values), out=out, table=table_of() if table is None else table)


def facts_of(made: Run) -> dict[str, Any]:
    sites = made.summary.personal["choices"]
    return {site: json.loads((made.folder / "at_sites" / site / READABLE).read_text()) for site in sites}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of three sites with the guard."""
    return make_run(tmp_path_factory.mktemp("guard") / "run")


def test_a_site_with_its_own_level_gets_its_own_intercept(whole: Run) -> None:
    made, personal = whole, whole.summary.personal
    assert personal["choices"] == {"a": "intercept", "b": "common", "c": "intercept"} and personal["harmed"] == []
    assert personal["final"]["log_loss"] < made.summary.final["log_loss"]
    facts = facts_of(made)
    assert facts["a"]["shift"] > 0.3 > -0.3 > facts["c"]["shift"]
    for site, said in facts.items():
        arrays, same = load(made.folder / "at_sites" / site / FILE)
        assert {name: value for name, value in said.items() if name != "deployed"} == same
        assert same["test"]["losses"].keys() == {"common", "intercept", "own", "majority", "deployed"}
        assert 0 < same["test"]["p_value"] <= 1 and same["spread"] == personal["spread"] > 0.3
        assert np.array_equal(made.model_for(site).theta, arrays["deployed"])
        assert np.array_equal(made.model.theta, arrays["common"])
    assert b"at_sites" not in (made.folder / "ledger.db").read_bytes()  # hashes would let others test guesses
    sent = "each site sent sums for the spread of intercepts, the name of its choice, yes or no to harm and figures of its"
    assert sent in made.summary.privacy["statement"]


def test_the_class_that_is_the_event_makes_no_difference(whole: Run, tmp_path: Path) -> None:
    assert whole.summary.event["class"] == "yes"
    first, last = make_run(tmp_path / "run", data={"event": "no"}), whole
    assert first.summary.personal["choices"] == last.summary.personal["choices"]
    assert first.summary.personal["final"]["log_loss"] == pytest.approx(last.summary.personal["final"]["log_loss"], rel=1e-6)


@pytest.mark.parametrize(("outcome", "task", "loss"), [("days", "regression", "mse"), ("visits", "count", "deviance")])
def test_numbers_and_counts_have_a_level_of_their_own(outcome: str, task: str, loss: str, tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", table=table_of(outcome), data={"task": task}, train={"lr": 0.02})
    from grandrounds.metrics import LOSS

    personal, loss = made.summary.personal, LOSS[task]
    assert set(personal["choices"].values()) <= {"intercept", "own"} and personal["harmed"] == []
    assert personal["final"][loss] < made.summary.final[loss]


def test_several_classes_have_one_intercept_each(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", table=table_of(classes=3))
    assert made.summary.personal["harmed"] is not None
    arrays, _ = load(made.folder / "at_sites" / "a" / FILE)
    if made.summary.personal["choices"]["a"] == "intercept":
        moved = arrays["deployed"] - arrays["common"]
        assert np.count_nonzero(moved) <= 3 and abs(moved.sum()) < 1e-4  # a common shift of all classes changes nothing


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"name": "mlp", "hidden": [4]}},
        slow({"method": {"rounds": 30, "name": "glm", "exact": {"intercept": "random"}}}),
        slow({"model": {"name": "gam"}, "method": {"name": "gam", "rounds": 60}}),
        slow({"model": {"name": "card"}, "method": {"name": "card", "rounds": 60}}),
        {"method": {"name": "clustered"}},
        slow({"train": {"lr": 0.1, "class_weights": {"yes": 5.0, "no": 1.0}}}),
        {"evaluation": {"calibrate": "platt", "threshold": "youden"}},
    ],
    ids=["mlp", "glm", "gam", "card", "clustered", "class weights", "calibrated"],
)
def test_the_guard_goes_with_methods_and_models(sections: dict[str, Any], tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", **sections)
    personal = made.summary.personal
    assert set(personal["choices"]) == {"a", "b", "c"} and set(personal["choices"].values()) <= set(CHOICES)
    assert personal["harmed"] == [] and personal["tested"] == ["a", "b", "c"]
    assert personal["final"]["log_loss"] <= made.summary.final["log_loss"] + 0.02


def test_class_weights_stay_in_the_deployed_model(tmp_path: Path) -> None:
    """A model that was trained to weigh deaths five times must not lose that by the fit of an intercept."""
    made = make_run(tmp_path / "run", train={"lr": 0.1, "epochs": 4, "class_weights": {"yes": 5.0, "no": 1.0}})
    personal, final = made.summary.personal, made.summary.final
    assert personal["final"]["sensitivity"] > final["sensitivity"] - 0.05
    assert made.summary.personal["spread"] > 0


def without_signal(rare: float) -> Table:
    """Sites a and b whose risks follow the age, and c whose outcomes follow nothing: 30% of `rare` die there."""
    table = patients(SIZES)
    columns, rng = dict(table.columns), np.random.default_rng(3)
    age, here = np.nan_to_num(columns["age"], nan=60), columns["hospital"] == "c"
    chance = np.where(here, rare, 1 / (1 + np.exp(-0.25 * (age - 60))))
    columns["died"] = np.where(rng.random(len(chance)) < chance, "yes", "no")
    return Table.from_mapping(columns, source="patients.csv")


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with balanced class weights, in which one hospital has nothing better than its most common class."""
    train = {"lr": 0.3, "epochs": 5, "class_weights": {"yes": 4.0, "no": 1.0}}
    return make_run(tmp_path_factory.mktemp("weighted") / "run", table=without_signal(0.35), train=train)


def test_a_hospital_that_deploys_its_most_common_class_predicts_no_other(weighted: Run) -> None:
    """Its prevalence of 35% is above the threshold of 20% that the weights stand for: everybody would be flagged."""
    personal = weighted.summary.personal
    assert personal["choices"]["c"] == MAJORITY and personal["threshold"] == pytest.approx(0.2)
    figures = personal["per_site"]["c"]
    assert figures["sensitivity"] == 0.0 and figures["specificity"] == 1.0
    model = weighted.model_for("c")
    assert set(model.predict(without_signal(0.35)).decisions) == {"no"}


@pytest.mark.parametrize("site", ["a", "b", "c"])
def test_deployed_risks_are_those_of_the_classes_as_they_occur(weighted: Run, site: str) -> None:
    """The mean risk at a hospital is its share of deaths, though training weighed a death four times."""
    figures = weighted.summary.personal["per_site"][site]
    assert figures["log_loss"] < np.log(2)
    facts = facts_of(weighted)[site]
    assert facts["losses"][weighted.summary.personal["choices"][site]] <= facts["losses"]["majority"] + 1e-9
    scored = weighted.model_for(site).predict(without_signal(0.35)).probabilities[:, 1]
    here, died = (np.asarray(without_signal(0.35).columns[c]) for c in ("hospital", "died"))
    assert scored[here == site].mean() == pytest.approx((died[here == site] == "yes").mean(), abs=0.05)


@pytest.mark.slow
def test_nets_on_images_compare_on_validation_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    squares = bright_squares(tmp_path / "squares.npz", 120, ["x", "y"], purpose="guard")
    values = {
        "data": {"table": str(squares)}, "model": {"name": "small-cnn"}, "method": {"rounds": 2},
        "train": {"lr": 0.05, "epochs": 1}, "explain": {"sketch": "none"}, "engine": {"device": "cpu"}, "personal": GUARD,
    }  # fmt: skip
    made = run(Experiment.parse(values), out=tmp_path / "run")
    assert made.summary.personal["rows"] == "validation" and set(made.summary.personal["choices"]) == {"x", "y"}
    assert facts_of(made)["x"]["rows"] == made.summary.rows["x"]["val"]


def test_small_and_testing_sites_stay_with_the_default(tmp_path: Path) -> None:
    table = table_of(sizes=[200, 150, 6, 60])
    made = make_run(tmp_path / "run", table=table, split={"scheme": "holdout", "holdout": ["d"], "min_rows": 4})
    personal = made.summary.personal
    assert personal["choices"] == dict.fromkeys("abc", "intercept") and "d" not in personal["tested"]
    assert personal["harmed"] is None and personal["tested"] == []  # sites that train have no test rows here
    assert "missing" not in personal


def test_a_site_that_fails_is_named_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = PersonalSite._personalize_site

    def fails_at_b(self: Any, terms: Any, k: int, *args: Any) -> str:
        if self.site.stack.names[k] == "b":
            raise np.linalg.LinAlgError("singular")
        return fit(self, terms, k, *args)

    monkeypatch.setattr(PersonalSite, "_personalize_site", fails_at_b)
    made = make_run(tmp_path / "run")
    personal = made.summary.personal
    assert set(personal["choices"]) == {"a", "c"} and personal["missing"] == {"b": "refused (fit-failed)"}
    assert personal["per_site"]["b"] == made.summary.per_site["b"]
    assert any(w.startswith("b uses the common model") for w in made.summary.warnings)


@pytest.mark.parametrize(
    ("sections", "personal", "code"),
    [
        ({"split": {"val": 0}}, {"guard": True, "rows": "validation"}, "no-validation-rows"),
        ({"split": {"val": 0}, "model": {"name": "mlp"}}, GUARD, "no-validation-rows"),
        ({"split": {"val": 0}, "model": {"name": "mlp"}}, {"part": "intercept"}, "no-validation-rows"),
        ({"model": {"name": "forest"}}, {"part": "intercept"}, "method-does-not-fit"),
        ({"model": {"name": "card"}, "method": {"name": "card"}}, {"part": "recalibration"}, "method-does-not-fit"),
    ],
)
def test_settings_without_a_meaning_are_refused_before_training(
    sections: dict[str, Any], personal: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with refused(code) as caught:
        make_run(tmp_path / "run", personal=personal, **sections)
    assert "set split.val above 0" in str(caught.value) or "set personal.part = 'none'" in str(caught.value)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("sections", "warned"),
    [slow({"model": {"name": "forest", "trees": 2, "depth": 2}}, True), ({"method": {"name": "pooled"}}, True)],
    ids=["forest", "pooled"],
)
def test_a_guard_without_effect_is_told(sections: dict[str, Any], warned: bool, tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", **sections)
    assert not made.summary.personal
    assert any("personal.guard has no effect" in w for w in made.summary.warnings) is warned


@pytest.mark.slow
def test_a_private_run_asks_for_nothing_but_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[str]] = {}
    ask_sites = LocalEngine._ask

    def noted(self: Any, ask: Any) -> Any:
        asked.setdefault(ask.task, set()).update(ask.report)
        assert not ask.shared.get("personal")
        return ask_sites(self, ask)

    monkeypatch.setattr(LocalEngine, "_ask", noted)
    privacy = {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "min_rows": 10}
    made = make_run(tmp_path / "run", privacy=privacy)
    assert {task: reports for task, reports in asked.items() if task.startswith("personal")} == {"personal": {"fitted"}}
    personal = made.summary.personal
    assert personal["stays"] and not {"choices", "harmed", "final", "per_site", "tested"} & set(personal)
    assert personal["spread"] == server.PRIVATE_SPREAD and personal["estimated"] is False
    assert "never left them and cost no further epsilon" in made.summary.privacy["statement"]
    said = json.loads((made.folder / "at_sites" / "a" / READABLE).read_text())
    assert said["choice"] in CHOICES and "p_value" in said["test"]  # the site itself knows
    listed = [e["of"] for e in made.summary.privacy["events"]]
    assert set(listed) == {"training"} and len(listed) == 1  # the models of the rounds, and nothing more


@pytest.mark.parametrize(
    ("personal", "told"),
    [
        ({"stays": True, "guard": True}, "never left them and cost no further epsilon; choices, findings of harm, features"),
        ({"stays": False, "guard": False}, "each site sent the name of its choice and figures of its deployed model."),
        ({"stays": False, "guard": True, "estimated": True}, "sums for the spread of intercepts, the name of its choice"),
    ],
)
def test_the_privacy_statement_names_what_was_sent(personal: dict[str, Any], told: str) -> None:
    statement = disclose_personal({"statement": "Rows stay."}, personal)["statement"]
    assert str(statement).startswith("Rows stay. Personal models ") and told in str(statement)
    assert disclose_personal({"statement": "Rows stay."}, {}) == {"statement": "Rows stay."}


def test_a_site_under_a_budget_refuses_what_a_server_may_not_ask() -> None:
    """Whatever the server says of the plan: a site that withholds its rows answers with `fitted` alone."""
    engine, _ = ready(stack([40, 40]))
    host, members = engine.hosts[0], np.arange(2)
    host.withheld_splits = ("train", "val")
    theta = host.prepared_model().init(0)
    terms = {**TERMS, "model": theta}
    id = AskId("test", 1, 0)
    assert set(host.answer(Ask("personal", terms, report=("fitted",), id=id), members)) == {"fitted"}
    for step, (task, report, shared) in enumerate(
        [
            ("personal", ("fitted", "choice"), terms),
            ("personal", ("error",), terms),
            ("personal.spread", ("sums",), {"model": theta, "rows": "train", "variances": server.VARIANCES}),
            ("personal.harm", ("harmed",), {"level": 0.05, "seed": 0}),
            ("evaluate", ("test", "figures"), {"model": theta, "figures": "accuracy", "personal": 1}),
        ]
    ):
        with refused("raw-release"):
            host.answer(Ask(task, shared, report=report, id=AskId("test", 1, step + 1)), members)


def test_a_site_tells_of_harm_at_levels_of_holms_rule_only() -> None:
    engine, _ = ready(stack([40, 40]))
    ask = Ask("personal.harm", {"level": 0.5, "seed": 0}, report=("harmed",), id=AskId("test", 1, 0))
    with refused("bad-level"):
        engine.hosts[0].answer(ask, np.arange(2))
    answer = engine.hosts[0].answer(replace(ask, shared={"level": 0.05, "seed": 0}), np.arange(2))
    assert np.isnan(answer["harmed"]).all()  # no model was chosen yet


def _same(a: Run, b: Run) -> None:
    keys = ("choices", "harmed", "tested", "spread")
    assert {k: a.summary.personal[k] for k in keys} == {k: b.summary.personal[k] for k in keys}
    for site in a.summary.personal["choices"]:
        one, two = (load(made.folder / "at_sites" / site / FILE) for made in (a, b))
        assert np.array_equal(one[0]["deployed"], two[0]["deployed"]) and one[1] == two[1]


def test_any_chunk_gives_the_same_bits(whole: Run, tmp_path: Path) -> None:
    _same(whole, make_run(tmp_path / "run", engine={"chunk": 1}))


@pytest.mark.slow
def test_any_chunk_gives_the_same_bits_of_parts_that_are_trained(tmp_path: Path) -> None:
    personal = {"guard": True, "part": "finetune"}
    _same(*(make_run(tmp_path / f"{c}", personal=personal, engine={"chunk": c}) for c in (0, 1)))


def test_hosts_of_one_site_choose_the_same(whole: Run, tmp_path: Path) -> None:
    one, each = whole, make_run(tmp_path / "run", engine={"wire": True})
    assert one.summary.personal["choices"] == each.summary.personal["choices"]
    assert one.summary.personal["final"]["log_loss"] == pytest.approx(each.summary.personal["final"]["log_loss"], abs=1e-5)
    assert one.summary.personal["spread"] == each.summary.personal["spread"]


def test_a_run_killed_while_sites_choose_ends_with_the_same_files(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SiteHost.answer

    def dies(self: Any, ask: Any, members: Any) -> Any:
        if ask.task == "personal.harm":
            raise KeyboardInterrupt
        return answer(self, ask, members)

    with monkeypatch.context() as m:
        m.setattr(SiteHost, "answer", dies)
        with pytest.raises(KeyboardInterrupt):
            make_run(tmp_path / "killed")
    assert not (tmp_path / "killed" / "summary.json").exists()
    again = resume(tmp_path / "killed", table=table_of())
    _same(whole, again)


def test_another_seed_has_other_folds(whole: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "run", seed=1, split={"seed": 0})
    assert whole.summary.rows == other.summary.rows
    assert facts_of(whole)["a"]["losses"] != facts_of(other)["a"]["losses"]


def test_patients_with_several_rows_are_kept_together(tmp_path: Path) -> None:
    table = table_of()
    columns = dict(table.columns) | {"patient": np.array([f"p{i // 3}" for i in range(1050)])}
    made = make_run(tmp_path / "run", table=Table.from_mapping(columns, source="p.csv"), data={"patient": "patient"})
    said = facts_of(made)["a"]
    assert said["patients"] < said["rows"] == made.summary.rows["a"]["train"]


def test_terms_with_unknown_words_are_refused() -> None:
    ask = Ask("personal", TERMS)
    assert PersonalTerms.read(ask).rows == "train"
    for name in ("rows", "part"):
        with refused("unknown-part"):
            PersonalTerms.read(replace(ask, shared={**ask.shared, name: "test"}))


@pytest.mark.slow
def test_the_common_model_is_the_one_in_use_at_the_site(tmp_path: Path) -> None:
    """With FedBN each site has BatchNorm layers of its own: its deployed model has them, whatever the guard chose."""
    pytest.importorskip("torch")
    squares = bright_squares(tmp_path / "squares.npz", 60, ["x", "y"], purpose="guard")
    values = {
        "data": {"table": str(squares)}, "model": {"name": "deep-cnn", "norm": "batch"}, "explain": {"sketch": "none"},
        "method": {"name": "fedbn", "rounds": 1}, "train": {"lr": 0.05, "epochs": 1}, "engine": {"device": "cpu"},
        "personal": GUARD,
    }  # fmt: skip
    made = run(Experiment.parse(values), out=tmp_path / "run")
    files = {site: load(made.folder / "at_sites" / site / FILE)[0] for site in ("x", "y")}
    assert not np.array_equal(files["x"]["common"], files["y"]["common"])
    for site, arrays in files.items():
        assert np.array_equal(made.model_for(site).theta, arrays["deployed"])
        if made.summary.personal["choices"][site] == "common":
            assert np.array_equal(arrays["common"], arrays["deployed"])


@pytest.mark.slow
def test_a_private_additive_model_has_no_model_of_a_sites_own(tmp_path: Path) -> None:
    made = run(load_recipe("heart").with_settings(["method.name=private-gam", "privacy.epsilon=3"]), out=tmp_path / "run")
    said = json.loads((made.folder / "at_sites" / "va" / READABLE).read_text())
    assert set(said["losses"]) == {"common", "intercept", "majority"}


def test_a_site_without_validation_rows_keeps_the_common_model(tmp_path: Path) -> None:
    """There is nothing to fit an intercept to, and nothing to compare on."""
    held = stack([40, 40])
    none = replace(held.rows[1], val=held.rows[1].val[:0])
    engine, _ = ready(replace(held, rows=(held.rows[0], none)))
    host = engine.hosts[0]
    host.keep_personal(tmp_path)
    terms = {**TERMS, "rows": "validation", "model": host.prepared_model().init(0)}
    answer = host.answer(Ask("personal", terms, report=("choice",), id=AskId("test", 1, 0)), np.arange(2))
    assert [CHOICES[c] for c in answer["choice"]] == ["intercept", "common"]
    said = json.loads((tmp_path / "b" / READABLE).read_text())
    assert said["losses"] == {} and said["patients"] == 0 and said["test"]["p_value"] is None
