"""SSE-AGG from the plan to the folder: what sites report, who explains, what is remembered, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss

import grandrounds as gr
from grandrounds.analysis.audit.weights import recompute_weights
from grandrounds.analysis.privacy.account import load_account
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.data.split import Rows
from grandrounds.data.table import Table
from grandrounds.explain.features import Features
from grandrounds.explain.rule import SketchRule
from grandrounds.methods.base import Server
from grandrounds.methods.weigh import weigh
from grandrounds.models.dense import Dense
from grandrounds.protocol.messages import Answers
from grandrounds.recipes import load_recipe
from grandrounds.runs.federation import assemble
from grandrounds.runs.model import TrainedModel
from grandrounds.site.explain import sketched
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.e2e.test_images import pictures  # noqa: F401
from tests.support import patients, ready, refused, stack
from tests.support import rounds as drive

SIZES = [60, 48, 72, 54]
BASE = {
    "data": {"label": "died", "site": "hospital"},
    "model": {"name": "mlp", "hidden": [4]},
    "reference": {"rows": {"rows": 40}},
    "method": {"name": "sse-agg", "rounds": 3, "stability": "none"},
    "train": {"steps": 6, "batch": 16},
}


def experiment(**changes) -> gr.Experiment:
    values = {key: {**section} for key, section in BASE.items()}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section} if isinstance(section, dict) else section
    return gr.Experiment.parse({key: section for key, section in values.items() if section is not None})


def run(out, *, table=None, **changes) -> gr.Run:
    return gr.run(experiment(**changes), table=patients(SIZES) if table is None else table, out=out)


PLAIN = {"weigh": {"explanation_weight": 0.0}}
"""FedAvg's weights, which need no reasons."""


def weights(done: gr.Run) -> list[dict[str, float]]:
    return [r["decision"]["weights"] for r in done.rounds]


# FedAvg is in it, to the bit


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stability", ["none", "proximal", "scaffold"])
def test_all_on_data_size_is_fedavg_to_the_bit(stability, tmp_path):
    """Over whole runs, with sites drawn at random; no reference rows are needed for it."""
    same = {"stability": stability, "select": {"rule": "random", "fraction": 0.7}}
    plain = run(tmp_path / "fedavg", method={**same, "name": "fedavg"}, reference={"rows": {"rows": 40}})
    none = run(tmp_path / "e", method={**same, "weigh": {"explanation_weight": 0.0}})
    data = run(tmp_path / "l", method={**same, "weigh": {"lambdas": {"data": 1.0, "agreement": 0.0}}})
    assert none.model.theta.tobytes() == data.model.theta.tobytes() == plain.model.theta.tobytes()
    assert weights(none) == weights(data) == weights(plain)
    ours = run(tmp_path / "ours", method={**same, "weigh": {"form": "inverse", "explanation_weight": 0.5}})
    assert not np.array_equal(ours.model.theta, plain.model.theta)


def test_without_agreement_no_reference_rows_are_needed(tmp_path):
    done = run(tmp_path / "r", method=PLAIN, reference=None, explain={"sketch": "none"})
    assert len(done.rounds) == 3


# What it is for


def test_a_site_with_shuffled_labels_loses_its_weight_and_the_others_keep_theirs(tmp_path):
    values = {
        "data": {"name": "breast-cancer"},
        "split": {"partition": "equal", "sites": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "reference": {"rows": {"rows": 80}},
        "method": {"name": "sse-agg", "preset": "defence", "rounds": 9},
        "train": {"epochs": 2, "lr": 0.1},
        "attacks": [{"kind": "label-shuffle", "sites": ["site-02"]}],
    }
    done = gr.run(gr.Experiment.parse(values), out=tmp_path / "r")
    assert weights(done)[-1]["site-02"] < 0.1 / 6
    for decision in (r["decision"] for r in done.rounds[1:]):
        assert decision["signals"]["in_line"]["site-02"] == min(decision["signals"]["in_line"].values())
    rest = [w for s, w in weights(done)[-1].items() if s != "site-02"]
    assert min(rest) > 0.1


def test_a_model_that_uses_no_feature_is_flagged_and_noted(tmp_path):
    """A free-rider sends the first model back, of a logistic model all zeros: it answers the same whatever it is asked."""
    rider = [{"kind": "free-rider", "sites": ["c"]}]
    first = run(tmp_path / "r", model={"name": "logistic"}, attacks=rider).rounds[0]["decision"]
    assert first["signals"]["flat"] == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0}
    assert first["signals"]["in_line"]["c"] == min(first["signals"]["in_line"].values())
    assert any(note.startswith("c: its model uses no feature") for note in first["notes"])
    everybody = [{"kind": "free-rider", "count": 4}]
    idle = run(tmp_path / "idle", model={"name": "logistic"}, attacks=everybody).rounds[0]["decision"]
    assert any("weights follow rows alone" in note for note in idle["notes"])
    rows = idle["signals"]["data_size"]
    assert idle["weights"] == pytest.approx({s: n / sum(rows.values()) for s, n in rows.items()})


def test_a_model_whose_answers_overflow_counts_as_one_that_uses_no_feature():
    """An update made a million times longer: its importances are no numbers, and would make every weight NaN."""
    plan = Settings(experiment().model_dump(mode="json"))
    rule, model = SketchRule.from_settings("permutation", plan.explain, 0), Dense((2, 3, 1))
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    models = np.stack([model.init(s) * 3 for s in range(1, 5)]).astype(np.float32)
    models[2] = 1e30
    explainer = rule.explainer(Features.from_inputs(["age", "pulse"]), None)
    with np.errstate(over="ignore", invalid="ignore"):
        told = sketched(rule, explainer, model, models, x, (x[:, :1] > 0).astype(np.float32), names="abcd", round=1)
    assert told["sketch.flat"][2] and told["sketch.total"][2] == 0
    answers = Answers(tuple("abcd"), {"count": np.full(4, 10), "model": models, **told})
    for form in ("outlier", "inverse", "exponential"):
        chosen = Settings({**plan.method.weigh.plain(), "rule": "explanations", "form": form})
        got = weigh(chosen, Server(1, models[0], answers.sites, 0), answers)
        assert np.isfinite(got.weights).all() and got.weights[2] == got.weights.min()


# Validation loss and calibration error: each site's own model on its own rows

WORST = {"lambdas": {"data": 0.4, "worst_site": 0.3, "calibration": 0.3}}


def ece_by_hand(risk: np.ndarray, truth: np.ndarray, bins: int = 15) -> float:
    """The gap between what is said and what is so, over bins of equal width of the probability of class 1."""
    of = np.minimum((risk * bins).astype(int), bins - 1)
    return sum(abs(risk[of == b].sum() - truth[of == b].sum()) for b in range(bins)) / len(risk)


def test_figures_are_those_of_each_sites_own_model_on_its_own_validation_rows(tmp_path):
    """Method 'local' leaves the very models on disk that the first round weighs: they are scored here by hand."""
    table = patients([160, 140, 180])
    one = {"rounds": 1, "weigh": {**WORST, "beta": 2.0, "gamma": 3.0}}
    judged = run(tmp_path / "judged", table=table, method=one, split={"val": 0.3})
    alone = run(tmp_path / "alone", table=table, method={"name": "local", "rounds": 1}, split={"val": 0.3})
    told = judged.rounds[0]["decision"]
    plan = Settings({**judged.plan, "data": {**judged.plan["data"], "sha256": None}})
    held = assemble(plan, table).stack
    loss, poor = {}, {}
    for site, rows in zip(held.names, held.rows, strict=True):
        own = TrainedModel.load(alone.folder / alone.summary["models"][site])
        risk = np.asarray(own.predict(table.take(rows.val)).risk, float)
        truth = table.columns["died"][rows.val] == 1
        loss[site], poor[site] = log_loss(truth, risk), ece_by_hand(risk, truth)
    assert told["signals"]["val_loss"] == pytest.approx(loss, rel=1e-3)
    assert told["signals"]["ece"] == pytest.approx(poor, abs=1e-3)

    def soft(values: dict[str, float], strength: float) -> np.ndarray:
        e = np.exp(strength * np.array(list(values.values())))
        return e / e.sum()

    n = np.array([judged.summary["rows"][s]["train"] for s in held.names])
    expected = 0.4 * n / n.sum() + 0.3 * soft(loss, 2.0) + 0.3 * soft(poor, 3.0)
    np.testing.assert_allclose(list(told["weights"].values()), expected, atol=1e-3)
    assert set(told["shares"]) == {"data", "worst_site", "calibration"}


@pytest.mark.parametrize("wire", [False, True])
def test_a_site_without_validation_rows_counts_as_the_mean_and_is_not_left_out(wire):
    held = stack([40, 40, 40, 40])
    none = np.empty(0, np.int64)
    rows = [Rows(r.train, none, r.test) if k == 1 else r for k, r in enumerate(held.rows)]
    method = {"weigh": {"rule": "explanations", "lambdas": {"worst_site": 1.0}}}
    engine, _ = ready(replace(held, rows=tuple(rows)), wire=wire)
    _, (decision,) = drive(engine, count=1, method=method)
    loss = np.array(list(decision.signals["val_loss"].values()))
    assert np.isnan(loss).tolist() == [False, True, False, False] and not decision.missing
    known = np.where(np.isnan(loss), np.nanmean(loss), loss)
    np.testing.assert_allclose(list(decision.weights.values()), np.exp(known) / np.exp(known).sum(), rtol=1e-6)


def test_signals_that_no_round_would_have_are_refused(tmp_path):
    """Or a study of them would be one of FedAvg, and nobody would know."""

    def said(**changes) -> str:
        with pytest.raises(BadInput) as e:
            run(tmp_path / "no", **changes)
        return str(e.value)

    signals = said(method={"weigh": {"lambdas": {"data": 0.5, "worst_site": 0.5}}}, split={"val": 0.0})
    assert "method.weigh.lambdas" in signals and "worst_site" in signals and "split.val is 0" in signals
    assert "method.weigh.every is 4" in said(method={"rounds": 3, "weigh": {"every": 4, "between_rounds": "data_size"}})
    assert "method.cohorts.start is 4" in said(method={"rounds": 3, "cohorts": {"count": 2, "start": 4}})
    assert "method.select.fraction" in said(method={"select": {"rule": "random", "fraction": 0.5}})
    assert "reference.rows.rows = 200" in said(reference={"rows": {"rows": 1}})


def test_only_agreement_needs_three_sites_and_reference_rows(tmp_path):
    """With nothing on agreement two sites will do, as they do for FedAvg; and so do sites without rows to compare on."""
    few = patients([60, 50])
    for rule in ({"explanation_weight": 0.0}, {"lambdas": {"worst_site": 1.0}}):
        done = run(tmp_path / next(iter(rule)), table=few, reference=None, method={"rounds": 1, "weigh": rule})
        assert sum(done.rounds[0]["decision"]["weights"].values()) == pytest.approx(1)


def test_a_liar_that_claims_to_do_badly_gains_weight_by_it(tmp_path):
    """Sites that do badly count more: who says so, and is believed, wins. The data say nothing of the kind."""
    lie = [{"kind": "lie", "sites": ["b"], "strength": 4.0}]
    chosen = {"rounds": 1, "weigh": {"lambdas": {"worst_site": 0.5, "calibration": 0.5}, "beta": 1.0}}
    honest, lied = (run(tmp_path / str(len(a)), method=chosen, attacks=a).rounds[0]["decision"] for a in ([], lie))
    assert lied["signals"]["val_loss"]["b"] == pytest.approx(4 * honest["signals"]["val_loss"]["b"])
    assert lied["signals"]["ece"]["b"] == pytest.approx(min(4 * honest["signals"]["ece"]["b"], 1.0))
    for signal in ("val_loss", "ece"):
        assert lied["signals"][signal]["a"] == honest["signals"][signal]["a"]
    assert lied["weights"]["b"] > 1.5 * honest["weights"]["b"]


# Rounds without reasons, and runs that are taken up again


def one_rule(sizes) -> Table:
    """Hospitals at which one measurement of three decides, and all agree on it."""
    x = np.random.default_rng(4).normal(size=(sum(sizes), 3))
    site = np.repeat(list("abcdefgh"[: len(sizes)]), sizes)
    columns = {**{f"x{i}": x[:, i] for i in range(3)}, "hospital": site, "died": (x[:, 0] > 0).astype(float)}
    return Table.from_mapping(columns, source="one-rule.csv")


FIVE = [80, 70, 90, 60, 80]
SEEN = {
    "model": {"name": "logistic"},
    "train": {"steps": 20, "lr": 0.3},
    "attacks": [{"kind": "label-shuffle", "sites": ["c"]}],
}
"""With FIVE of one rule: c, whose labels are shuffled, stands out."""


@pytest.mark.parametrize("between", ["last", "data_size"])
def test_a_resumed_run_remembers_who_was_in_line(between, tmp_path):
    """Interrupted between two rounds with reasons, in which what was found last must be known."""
    weighing = {"every": 4, "between_rounds": between, "least_share": 0}
    method = {"rounds": 6, "weigh": weighing, "select": {"rule": "random", "fraction": 0.8}}
    whole = run(tmp_path / "whole", table=one_rule(FIVE), method=method, **SEEN)
    short = run(tmp_path / "short", table=one_rule(FIVE), method={**method, "rounds": 4}, **SEEN)
    gone_on = gr.resume(short.folder, settings=["method.rounds=6"], table=one_rule(FIVE))
    assert weights(gone_on) == weights(whole)
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()
    assert [r["decision"]["signals"] for r in gone_on.rounds] == [r["decision"]["signals"] for r in whole.rounds]
    asked = [r["round"] for r in whole.rounds if "disagreement" in r["decision"]["signals"]]
    assert asked == ([1, 4] if between == "last" else [4])
    for r in whole.rounds:
        rows = r["decision"]["signals"]["data_size"]
        by_rows = {s: n / sum(rows.values()) for s, n in rows.items()}
        if between == "data_size" and r["round"] not in asked:
            assert r["decision"]["weights"] == by_rows
    if between == "last":
        trust = whole.rounds[4]["decision"]["signals"]["in_line"]
        found = whole.rounds[3]["decision"]["signals"]["in_line"]
        assert {s: t for s, t in trust.items() if s in found} == {s: t for s, t in found.items() if s in trust}
        assert trust["c"] < 0.01, "what was found in round 1, in which it was there"


@pytest.mark.parametrize("memory", [0.5, 0.9])
def test_a_resumed_run_remembers_who_stood_out(memory, tmp_path):
    """Each round's standing is the running mean of all before it, also of those before the interruption."""
    method = {"rounds": 5, "weigh": {"memory": memory}, "select": {"rule": "random", "fraction": 0.8}}
    whole = run(tmp_path / "whole", table=one_rule(FIVE), method=method, **SEEN)
    short = run(tmp_path / "short", table=one_rule(FIVE), method={**method, "rounds": 3}, **SEEN)
    gone_on = gr.resume(short.folder, settings=["method.rounds=5"], table=one_rule(FIVE))
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()
    held: dict[str, float] = {}
    for one, other in zip(whole.rounds, gone_on.rounds, strict=True):
        signals = one["decision"]["signals"]
        assert other["decision"]["signals"] == signals and other["decision"]["weights"] == one["decision"]["weights"]
        far = sorted(signals["disagreement"].values())
        assert len(far) == 4 and np.median(far) <= 0.25
        blur, near = signals["sampling"], signals["neighbours"]
        clear = {s: max(away**2 - blur[s] ** 2, 0) ** 0.5 for s, away in signals["disagreement"].items()}
        now = {s: away / max(1.5 * far[-2], 0.1) for s, away in clear.items()}
        now = {s: t if near[s] >= 2 else min(t, 1) for s, t in now.items()}
        held |= {s: memory * min(held[s], 10) + (1 - memory) * t if s in held else t for s, t in now.items()}
        assert signals["standing"] == pytest.approx({s: held[s] for s in now})
    assert held["c"] > 5 and max(t for s, t in held.items() if s != "c") < 1
    assert ["c" in r["decision"]["weights"] for r in whole.rounds] == [True, False, True, False, True]


def own_rules(sizes) -> Table:
    """Hospitals at which one measurement counts as much as a second, and that is another one at each."""
    x = np.random.default_rng(4).normal(size=(sum(sizes), 1 + len(sizes)))
    of = np.repeat(np.arange(len(sizes)), sizes)
    died = x[:, 0] + x[np.arange(len(x)), 1 + of] > 0
    columns = {**{f"x{i}": x[:, i] for i in range(x.shape[1])}, "died": died.astype(float)}
    return Table.from_mapping({**columns, "hospital": np.array(list("abcdefgh"))[of]}, source="own-rules.csv")


def test_where_reasons_cannot_be_compared_rows_decide_and_standing_is_null(tmp_path):
    """In every round, and in those of a run that is taken up again; not a number is no JSON."""
    same = {"table": own_rules(SIZES), "model": {"name": "logistic"}, "train": {"steps": 20, "lr": 0.3}}
    whole = run(tmp_path / "whole", **same)
    short = run(tmp_path / "short", **same, method={"rounds": 2})
    gone_on = gr.resume(short.folder, settings=["method.rounds=3"], table=own_rules(SIZES))
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()
    for one, other in zip(whole.rounds, gone_on.rounds, strict=True):
        decision = one["decision"]
        assert other["decision"]["signals"] == decision["signals"]
        assert decision["signals"]["standing"] == dict.fromkeys("abcd")
        assert decision["signals"]["in_line"] == dict.fromkeys("abcd", 1.0)
        rows = decision["signals"]["data_size"]
        assert decision["weights"] == pytest.approx({s: n / sum(rows.values()) for s, n in rows.items()})
        assert any(note.endswith("too much to identify outliers") for note in decision["notes"])
    assert "NaN" not in (whole.folder / "round_logs.json").read_text()
    said = "Explanations differ too much to identify outliers: it keeps all that its rows give it."
    assert whole.why(3, "b").splitlines()[2].endswith(said)


def test_between_rounds_loss_and_calibration_are_asked_for_and_count(tmp_path):
    """What sites report in them is this round's, and the weights are the blend with the agreement last found."""
    lambdas = {"data": 0.2, "agreement": 0.3, "worst_site": 0.3, "calibration": 0.2}
    done = run(tmp_path / "r", method={"rounds": 4, "weigh": {"every": 3, "lambdas": lambdas}}, split={"val": 0.3})
    told = [r["decision"] for r in done.rounds]
    assert [sorted(d["signals"]) for d in told[1:3]] == [
        ["data_size", "ece", "in_line", "val_loss"],
        ["data_size", "disagreement", "ece", "harm", "importance", "in_line", "neighbours", "sampling", "standing", "val_loss"],
    ]
    losses = [tuple(d["signals"]["val_loss"].values()) for d in told]
    assert len(set(losses)) == 4, "each round's own"
    for found, between in ((told[0], told[1]), (told[2], told[3])):
        assert between["signals"]["in_line"] == found["signals"]["in_line"]
        rows, kept, loss, gap = (
            np.array(list(between["signals"][name].values())) for name in ("data_size", "in_line", "val_loss", "ece")
        )
        parts = (rows, rows * kept, np.exp(loss), np.exp(5 * gap))
        expected = sum(share * part / part.sum() for share, part in zip(lambdas.values(), parts, strict=True))
        np.testing.assert_allclose(list(between["weights"].values()), expected, rtol=1e-6)


# A site that harms the model is tried on halves of its own patients

BAD = "site-03"
SHUFFLED = {
    "data": {"name": "digits"},
    "split": {"partition": "dirichlet", "sites": 4, "alpha": 10.0},
    "model": {"name": "logistic"},
    "reference": {"rows": {"rows": 100}},
    "explain": {"every": 0, "repeats": 1},
    "evaluation": {"every": 5},
    "train": {"steps": 20, "lr": 0.1},
    "attacks": [{"kind": "label-shuffle", "sites": [BAD]}],
}


def shuffled(out, *, rounds=5, **more) -> gr.Run:
    return gr.run(gr.Experiment.parse({**SHUFFLED, "method": {"name": "sse-agg", "rounds": rounds}, **more}), out=out)


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> gr.Run:
    return shuffled(tmp_path_factory.mktemp("tried") / "run")


def halves(done: gr.Run) -> list[list[str]]:
    notes = [[n for n in r["decision"]["notes"] if "in this round it trained on" in n] for r in done.rounds]
    return [[" ".join(n.split()[k] for k in (0, 8)) for n in of] for of in notes]


def test_a_site_with_shuffled_labels_is_tried_on_either_half_and_then_demoted(tried):
    assert halves(tried) == [[], [f"{BAD}: first"], [f"{BAD}: second"], [f"{BAD}: first"], [f"{BAD}: second"]]
    kept = [r["decision"]["signals"]["in_line"][BAD] for r in tried.rounds]
    assert kept[:2] == [0.5, 0.5] and max(kept[2:]) < 0.05, "not before both halves were tried"
    signals = tried.rounds[-1]["decision"]["signals"]
    assert signals["harm_first_half"][BAD] > 0 < signals["harm_second_half"][BAD]
    assert signals["harm_first_half"]["site-01"] is None
    assert "if the model was worse with it: its model as trained on one half" in " ".join(load_account(tried).disclosures)
    assert "it was demoted" in tried.why(5, BAD) and "not confirmed" in tried.why(2, BAD)


@pytest.mark.slow
def test_halves_are_the_same_over_a_wire_and_after_a_resume(tried, tmp_path):
    wired = shuffled(tmp_path / "wired", engine={"wire": True})
    assert halves(wired) == halves(tried)
    for one, other in zip(weights(tried), weights(wired), strict=True):
        assert other == pytest.approx(one, abs=1e-4)
    short = shuffled(tmp_path / "short", rounds=2)
    gone_on = gr.resume(short.folder, settings=["method.rounds=5"])
    assert gone_on.model.theta.tobytes() == tried.model.theta.tobytes()


def test_an_auditor_recomputes_the_weight_from_the_harm_of_either_half(tried):
    method = Settings(tried.plan).method
    decisions = [r["decision"] for r in tried.rounds]
    assert [recompute_weights(method, d, decisions[:k]).wrong for k, d in enumerate(decisions)] == [[]] * 5
    forged = json.loads(json.dumps(decisions[-1]))
    forged["signals"]["harm_second_half"][BAD] = -1.0
    assert any("in_line" in wrong for wrong in recompute_weights(method, forged, decisions[:-1]).wrong)


def test_halves_under_a_mechanism_are_refused(tmp_path):
    with refused("privacy-does-not-fit", match=r"method\.weigh\.own_halves"):
        run(
            tmp_path / "r",
            table=patients([120] * 4),
            privacy={"mechanism": "dp-sgd", "noise": 1.0},
            method={"weigh": {"own_halves": True}},
        )


def test_reasons_are_taken_in_rounds_that_are_not_written_down(tmp_path):
    """explain.every says what is recorded; the method looks every round."""
    done = run(tmp_path / "r", explain={"every": 0})
    assert [r["round"] for r in done.explanations["rounds"]] == [3]
    assert all("disagreement" in r["decision"]["signals"] for r in done.rounds)
    often = run(tmp_path / "often", explain={"every": 1})
    assert weights(often) == weights(done)


# Who explains: the server, or the sites themselves

SENT = {"rows": {"rows": 40, "sent": True}}


@pytest.mark.parametrize("select", ["all", {"rule": "random", "fraction": 0.8}])
def test_sketches_at_the_server_and_at_the_sites_give_the_same_weights(select, tmp_path):
    method = {"select": select}
    server = run(tmp_path / "server", method=method, reference=SENT, explain={"at": "server"})
    site = run(tmp_path / "site", method=method, reference=SENT, explain={"at": "site"})
    wired = run(tmp_path / "wired", method=method, reference=SENT, explain={"at": "site"}, engine={"wire": True})
    assert weights(site) == weights(server)
    assert site.model.theta.tobytes() == server.model.theta.tobytes()
    for one, other in zip(weights(server), weights(wired), strict=True):
        assert other == pytest.approx(one, abs=2e-3)
    up = [sum(r["decision"]["cost"]["bytes_up"] for r in d.rounds) for d in (server, site)]
    assert up[0] < up[1], "sketches that sites take have to be sent"


@pytest.mark.parametrize("form", ["outlier", "inverse"])
def test_noise_on_sketches_and_what_is_cut_off_them_reach_the_weights(form, tmp_path):
    method = {"rounds": 1, "weigh": {"form": form}}
    plain, noisy, cut = (
        run(tmp_path / str(i), method=method, explain=e).rounds[0]["decision"]
        for i, e in enumerate(({}, {"noise": 0.05}, {"top": 1}))
    )
    for other in (noisy, cut):
        assert other["signals"]["disagreement"] != pytest.approx(plain["signals"]["disagreement"], rel=1e-3)
    if form == "inverse":
        assert noisy["weights"] != pytest.approx(plain["weights"], rel=1e-3)
        assert set(np.round(list(cut["signals"]["disagreement"].values()), 6)) <= {0.0, 0.5, 1.0, 1.5}, (
            "one feature each"
        )


# An absent site


def test_a_site_that_is_absent_is_only_tested_and_the_others_are_as_without_it(tmp_path):
    table = patients([60, 48, 72, 54])
    with_it = run(
        tmp_path / "with", table=table, attacks=[{"kind": "absent", "sites": ["d"]}], reference=None, method=PLAIN
    )
    fewer = table.take(np.flatnonzero(table.columns["hospital"] != "d"))
    without = run(tmp_path / "without", table=fewer, reference=None, method=PLAIN)
    assert with_it.model.theta.tobytes() == without.model.theta.tobytes()
    for one, other in zip(with_it.rounds, without.rounds, strict=True):
        assert one["decision"]["asked"] == other["decision"]["asked"] == ["a", "b", "c"]
        assert one["decision"]["weights"] == other["decision"]["weights"]
        assert one["val"] == other["val"], "nor does it help to choose a threshold"
    rows = with_it.summary["rows"]["d"]
    assert rows["train"] == rows["val"] == 0 and rows["test"] > 5
    assert 0 <= with_it.summary["per_site"]["d"]["accuracy"] <= 1
    assert with_it.summary["attacks"]["sites"] == {"d": "absent"}


def test_pooled_training_can_do_without_a_site_too(tmp_path):
    gone = run(tmp_path / "r", attacks=[{"kind": "absent", "count": 1}], method={"name": "pooled"})
    assert gone.summary["rows"]["c"]["train"] == 0 < gone.summary["rows"]["c"]["test"]
    for unused in ({"share": 0.5}, {"strength": 2.0}, {"start_round": 2}):
        with refused("unused-setting", match=f"'absent'.*{next(iter(unused))}"):
            run(tmp_path / "no", attacks=[{"kind": "absent", "count": 1, **unused}])


# Forests and pictures


def test_forests_are_weighed_by_their_reasons(tmp_path):
    done = run(
        tmp_path / "r",
        table=one_rule([80, 70, 90, 60]),
        model={"name": "forest", "trees": 50, "depth": 4},
        method={"rounds": 1, "stability": "auto"},
        attacks=[{"kind": "label-shuffle", "sites": ["c"]}],
    )
    decision = done.rounds[0]["decision"]
    assert done.explanations["sketch"]["explainer"] == "permutation"
    assert done.plan["method"]["stability"] == "none"
    far = decision["signals"]["disagreement"]
    assert len(set(far.values())) == 4 and max(far, key=far.get) == "c"
    assert sum(decision["weights"].values()) == pytest.approx(1)
    rows = decision["signals"]["data_size"]
    assert decision["weights"]["c"] < rows["c"] / sum(rows.values())


def test_nets_for_pictures_are_weighed_by_what_they_look_at(pictures, tmp_path):  # noqa: F811
    values = {
        "data": {"table": str(pictures)},
        "model": {"name": "small-cnn"},
        "reference": {"rows": {"rows": 24}},
        "method": {"name": "sse-agg", "rounds": 2},
        "train": {"lr": 0.1, "batch": 16, "epochs": 1},
        "engine": {"device": "cpu"},
    }
    done = gr.run(gr.Experiment.parse(values), out=tmp_path / "r")
    assert done.explanations["sketch"]["explainer"] == "occlusion"
    assert done.plan["method"]["stability"] == "none"
    for decision in (r["decision"] for r in done.rounds):
        assert sum(decision["weights"].values()) == pytest.approx(1)
        assert set(decision["signals"]["disagreement"]) == {"north", "south", "west"}


# What is refused


def test_what_weighing_by_reasons_needs_is_said(tmp_path):
    def said(**changes) -> str:
        with pytest.raises(BadInput) as e:
            run(tmp_path / "no", **changes)
        assert not (tmp_path / "no").exists()
        return str(e.value)

    assert "add [reference.rows] with rows = 200" in said(reference=None)
    two = {"one": {"rows": 20}, "other": {"rows": 20}, "rows": {"rows": 20}}
    assert "explain.reference" in said(reference=two)
    assert "explain.sketch is 'none'" in said(explain={"sketch": "none"})
    few = patients([60, 50])
    assert "use method 'fedavg'" in said(table=few)
    tasks = {"frail": {"classes": {"no": ["0"], "yes": ["1"]}, "sites": ["a"]}}
    pytest.importorskip("torch")
    assert "[tasks]" in said(tasks=tasks, engine={"kernel": "torch"})
    own = {"rows": {"rows": 40, "sent": True}}
    assert "add a second [reference] set" in said(reference=own, method={"stability": "anchor"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "add [reference.rows] with rows = 200"),
        (["method.weigh.lambdas={data=0.5}"], "the lambdas sum to 0.5, but must sum to 1"),
        (["method.weigh=uniform"], "set method.name = 'fedavg'"),
        (["model.name=forest", "method.cohorts=2"], "set method.cohorts = 1"),
    ],
)
def test_the_command_refuses_in_one_sentence(settings, words, tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('[data]\nname = "breast-cancer"\n\n[method]\nname = "sse-agg"\n')
    arguments = [a for s in settings for a in ("--set", s)]
    command_refused(rounds("run", file, *arguments, "--quiet", "--out", tmp_path / "r"), words)
    assert not (tmp_path / "r").exists()


NO_EFFECT = "method.weigh.{} has no effect: method 'fedavg' weights by data_size; use method.name = 'sse-agg'"


@pytest.mark.parametrize(
    ("weigh", "given_so"),
    [({"explanation_weight": 0.5}, "explanation_weight"), ({"lambdas": {"agreement": 1.0}}, "lambdas")],
)
def test_what_has_no_say_is_a_warning_of_the_run(weigh, given_so, tmp_path):
    """The run is FedAvg's to the bit and says so, once, also where it is taken up again and in its report."""
    quiet = {"reference": None, "explain": {"sketch": "none"}}
    plain = run(tmp_path / "plain", method={"name": "fedavg"}, **quiet)
    done = run(tmp_path / "r", method={"name": "fedavg", "weigh": weigh}, **quiet)
    assert done.model.theta.tobytes() == plain.model.theta.tobytes()
    assert done.summary["warnings"] == [*plain.summary["warnings"], NO_EFFECT.format(given_so)]
    assert NO_EFFECT.format(given_so).partition(":")[0] in (done.folder / "report.html").read_text()
    longer = gr.resume(done.folder, settings=["method.rounds=4"], table=patients(SIZES))
    assert longer.summary["warnings"] == done.summary["warnings"]
    ours = run(tmp_path / "ours", method={"weigh": weigh})
    assert not any("has no effect" in w for w in ours.summary["warnings"])


@pytest.mark.slow
def test_one_file_with_signals_compares_methods_that_use_them_with_those_that_do_not(tmp_path):
    """The file is SSE-AGG's; beside it FedAvg runs, and its summary says what it made no use of."""
    file = tmp_path / "e.toml"
    file.write_text(
        '[data]\nname = "breast-cancer"\n[reference.rows]\nrows = 40\n[method]\nname = "sse-agg"\nrounds = 2\n'
        "[method.weigh]\nexplanation_weight = 0.5\n"
    )
    out = tmp_path / "both"
    done = rounds("compare", file, "--methods", "fedavg,sse-agg", "--seeds", "1", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {r["arm"] for r in rows} == {"fedavg", "sse-agg", "local", "pooled", "pooled lightgbm"}
    warnings = {p.parent.name: json.loads(p.read_text())["warnings"] for p in out.glob("*/summary.json")}
    said = {name: [w for w in told if "has no effect" in w] for name, told in warnings.items()}
    assert {name for name, told in said.items() if told} == {"fedavg-seed0"}
    assert said["fedavg-seed0"] == [NO_EFFECT.format("explanation_weight")]
    printed = rounds("run", file, "--set", "method.name=fedavg", "--out", tmp_path / "r")
    assert printed.returncode == 0
    assert f"warning: {NO_EFFECT.format('explanation_weight')}" in printed.stdout + printed.stderr


# The default job


def test_the_first_run_sends_no_patients_rows_to_anybody(tmp_path):
    """`rounds run` keeps the README's promise: no row leaves its hospital, and the model is explained in every round."""
    from grandrounds.cli.options import DEFAULT_RECIPE

    made = gr.run(load_recipe(DEFAULT_RECIPE).with_settings(["method.rounds=2"]), out=tmp_path / "run")
    assert made.plan["reference"] == {}
    privacy = made.summary["privacy"]
    assert "lent" not in privacy and "were sent" not in privacy["statement"]
    assert "patients' rows stay at their sites" in privacy["statement"]
    assert all("deployed" in record["explanation"] for record in made.rounds)
    assert made.summary["final"]["accuracy"] > 0.9


def test_sse_agg_needs_no_rows_at_the_sites_and_says_so_where_it_is_given_some():
    """Recipes that send rows are asked for by name, and their first line says so."""
    assert not any(rows["sent"] for rows in load_recipe("sse-agg").plan()["reference"].values())
    bare = gr.Experiment.parse({"data": {"name": "breast-cancer"}, "method": {"name": "sse-agg"}}).plan()
    assert bare["reference"] == {} and "anchor" not in bare["method"]["stability"]


@pytest.mark.slow
def test_the_recipe_for_drift_learns_and_its_sites_reason_alike(tmp_path):
    """As accurate as FedAvg on the same rows, with much less drift, nobody shut out."""
    recipe = load_recipe("sse-agg/drift")
    ours = gr.run(recipe, out=tmp_path / "ours")
    fedavg = gr.run(recipe.with_settings(["method.name=fedavg"]), out=tmp_path / "fedavg")
    accuracy = [r.summary["final"]["accuracy"] for r in (ours, fedavg)]
    drift = [r.summary["explanation"]["training"]["drift"] for r in (ours, fedavg)]
    assert accuracy[0] >= accuracy[1] - 0.02 and accuracy[0] > 0.94
    assert drift[0] < 0.6 * drift[1]
    in_line = ours.rounds[-1]["decision"]["signals"]["in_line"]
    assert min(in_line.values()) > 0.5
