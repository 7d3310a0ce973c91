"""Whole runs with secure aggregation: the same model as without, nothing of one site at the server, loud when it halts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.core.arrays import load
from grandrounds.core.errors import RunFailed
from grandrounds.core.plan import Settings
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.explain.rule import SketchRule
from grandrounds.methods.secure import SecureRule, exchange_identities, secure_sum
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.identity import Identity
from grandrounds.protocol.messages import Answers, Ask, AskId
from grandrounds.protocol.packing import describe_layout, layout_reports, pack, packed_size, unpack
from grandrounds.runs.rounds import suggest_fix
from grandrounds.site.host import SiteHost
from grandrounds.site.withheld import WithheldReports
from tests.support import patients, ready, refused, stack

SIZES = [60, 50, 70, 40, 55]


def plan(**changes) -> gr.Experiment:
    values = {
        "name": "secure",
        "data": {"label": "died", "site": "hospital"},
        "split": {"val": 0.2, "test": 0.2},
        "method": {"name": "fedavg", "rounds": 3},
        "train": {"steps": 10, "lr": 0.1},
        "explain": {"sketch": "none"},
        "privacy": {"secure": True},
    }
    for section, own in changes.items():
        values[section] = {**values.get(section, {}), **own}
    return gr.Experiment.parse(values)


def run(out, *, sizes=SIZES, **changes):
    return gr.run(plan(**changes), table=patients(sizes), out=out)


def model(run) -> np.ndarray:
    arrays, _ = load(run.folder / "model.safetensors")
    return np.concatenate([a.ravel() for a in arrays.values()])


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedavg", "weigh": "uniform", "select": {"rule": "random", "fraction": 0.8}},
        {"name": "fedprox", "mu": 0.1},
        {"name": "scaffold"},
        {"name": "fedadam"},
        {"name": "fedavgm"},
    ],
    ids=lambda m: f"{m['name']}-{m.get('weigh', 'rows')}",
)
def test_the_model_is_that_of_the_plain_sum(method, tmp_path):
    method = {"rounds": 3, **method}
    secure = run(tmp_path / "secure", method=method)
    plain = run(tmp_path / "plain", method=method, privacy={"secure": False})
    np.testing.assert_allclose(model(secure), model(plain), atol=5e-6)
    assert secure.summary["final"]["log_loss"] == pytest.approx(plain.summary["final"]["log_loss"], abs=1e-5)
    assert secure.summary["final"]["count"] == plain.summary["final"]["count"], "counts are whole"
    for a, b in zip(secure.rounds, plain.rounds, strict=True):
        assert a["decision"]["weights"] == pytest.approx(b["decision"]["weights"])
        assert a["decision"]["privacy"]["secure"] and not b["decision"]["privacy"]["secure"]
    assert "Secure aggregation" in secure.summary["privacy"]["statement"]
    assert "follow from the seed" in secure.summary["privacy"]["statement"]


def test_through_bytes_and_back_it_is_the_same_model(tmp_path):
    """To 1e-5 and not to the bit: a site alone may add up its batch in another order than a stack of sites does."""
    here = run(tmp_path / "here", evaluation={"calibrate": "temperature"})
    there = run(tmp_path / "there", evaluation={"calibrate": "temperature"}, engine={"wire": True})
    np.testing.assert_allclose(model(here), model(there), atol=1e-5)
    assert here.summary["final"] == pytest.approx(there.summary["final"], abs=1e-4)
    assert here.summary["temperature"] == pytest.approx(there.summary["temperature"], abs=1e-4)


def test_reasons_that_sites_tell_weigh_models_that_nobody_sees(tmp_path):
    """SSE-AGG's signals come from the sites; their models are added up under masks all the same."""
    changes = {
        "method": {"name": "sse-agg", "rounds": 3, "stability": "permuted_anchor"},
        "reference": {name: {"rows": 20, "sent": True, "labelled": False} for name in ("rows", "anchor")},
        "explain": {"sketch": "permutation", "at": "site", "reference": "rows", "score": "self"},
    }
    secure = run(tmp_path / "secure", **changes)
    plain = run(tmp_path / "plain", **changes, privacy={"secure": False})
    np.testing.assert_allclose(model(secure), model(plain), atol=5e-6)
    stages = secure.rounds[-1]["decision"]["stages"]
    assert [s["part"] for s in stages] == ["weigh", "secure", "stability"]
    assert secure.rounds[-1]["decision"]["signals"]["in_line"].keys() == set("abcde")
    assert "Secure aggregation: 5 of 5 models" in secure.why(3, "a")


def test_the_server_sees_no_model_and_no_tally_of_one_site(tmp_path, monkeypatch):
    """All that reaches the server's side is looked at: what a site holds is nowhere in it, nor what follows from it."""
    held: list[np.ndarray] = []
    seen: list[Answers] = []
    keep, ask = WithheldReports.keep, LocalEngine._ask

    def keeping(self, id, members, columns, names):
        held.extend(
            np.asarray(columns[n][r], float).ravel()
            for n in columns
            if n.split(".")[0] in names
            for r in range(len(members))
        )
        return keep(self, id, members, columns, names)

    def asking(self, question):
        answers = ask(self, question)
        seen.append(answers)
        return answers

    monkeypatch.setattr(WithheldReports, "keep", keeping)
    monkeypatch.setattr(LocalEngine, "_ask", asking)
    run(tmp_path / "r")
    models = [h for h in held if len(h) > 4 and np.abs(h).max() < 64 and (h % 1).any()]
    assert len(held) > 40 and models
    for answers in seen:
        assert "model" not in answers and not any(n.startswith(("val.", "test.")) for n in answers.columns)
        for column in answers.columns.values():
            for value in column:
                if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 4:
                    assert not any(len(h) == value.size and np.allclose(h, value.ravel()) for h in models)


def test_sites_that_drop_out_on_the_way_are_left_out_and_named(tmp_path):
    """At which step is drawn; whoever did not send its masked model has no weight, and the others' sum to 1."""
    engine, privacy = {"faults": {"drop": 0.02}}, {"secure": True, "on_halt": "retry"}
    done = run(tmp_path / "r", sizes=[40] * 10, method={"rounds": 6}, engine=engine, privacy=privacy)
    lost = {r["round"]: r["decision"]["missing"] for r in done.rounds if r["decision"]["missing"]}
    assert lost
    for r in done.rounds:
        weights, missing = r["decision"]["weights"], r["decision"]["missing"]
        assert sum(weights.values()) == pytest.approx(1)
        assert set(weights) | set(missing) >= set(r["decision"]["asked"])
        assert not set(weights) & set(missing), "in the sum or missing from it"
    found = audit(done.folder, deep=True)
    assert not found.findings, "the ledger's weights follow, also of those that stayed"
    assert not any("weight" in what for what in found.unchecked)


HALTS = {"engine": {"faults": {"drop": 0.12}}, "method": {"rounds": 4}}


def test_a_halted_sum_stops_the_run_loudly_and_finished_rounds_are_kept(tmp_path):
    with refused("secure-sum-halted", kind=RunFailed):
        run(tmp_path / "r", **HALTS)
    left = gr.load_run(tmp_path / "r")
    assert not left.finished
    assert all("halted" not in r["decision"]["why"] for r in left.rounds)


SAME = "a resume with nothing changed would halt again: "


def test_injected_drop_outs_halt_again_until_they_are_fewer(tmp_path):
    """What was said is true: resumed as it is, it ends in the same words; with the change that they name, it goes on."""
    with pytest.raises(RunFailed) as first:
        run(tmp_path / "r", **HALTS)
    with pytest.raises(RunFailed) as second:
        gr.resume(tmp_path / "r", table=patients(SIZES))
    assert str(first.value) == str(second.value)
    command = f"`rounds resume {tmp_path / 'r'} --set engine.faults.drop=0`"
    assert f"{SAME}c, d, e dropped out because engine.faults.drop = 0.12 makes sites drop out: {command}" in str(first.value)
    assert "privacy.on_halt = 'retry'" in str(first.value)
    done = gr.resume(tmp_path / "r", table=patients(SIZES), settings=["engine.faults.drop=0"])
    assert done.finished and not audit(done.folder, deep=True).findings


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        (
            {"privacy": {"secure_range": 0.01}},
            "a, b, c, d, e trained to a model beyond privacy.secure_range = 0.01: start a new run",
        ),
        ({"train": {"lr": 1e300}}, "not finite: start a new run with a lower train.lr"),
        (
            {"engine": {"deadline": 1.5, "faults": {"slow": {"a": 3, "b": 3, "c": 3}}}},
            r"a, b, c .*engine\.deadline = 1\.5",
        ),
        (
            {"sizes": [900, 20, 20], "method": {"select": {"rule": "random", "fraction": 1.0}}},
            r"privacy\.largest_weight = 0\.95.*method\.weigh = 'uniform'",
        ),
    ],
    ids=["range", "diverged", "late", "weight"],
)
def test_a_halt_that_follows_from_the_settings_says_which_to_change(changes, advice, tmp_path):
    with refused("secure-sum-halted", match=advice, kind=RunFailed) as caught:
        run(tmp_path / "r", **changes)
    assert "tries the round again" not in str(caught.value)


def test_a_site_that_was_away_is_waited_for_by_a_resume(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")

    def away(self, ask, site, *, seed):
        return "no answer" if ask.id.round == 2 and ask.task == "secagg.masked" and site in "ab" else ""

    with monkeypatch.context() as patched:
        patched.setattr(Faults, "absent", away)
        with pytest.raises(
            RunFailed, match="round 2: .*a .masked: no answer.*`rounds resume .*/r` tries the round again"
        ):
            run(tmp_path / "r")
    assert model(gr.resume(tmp_path / "r", table=patients(SIZES))).tobytes() == model(whole).tobytes()


def test_of_several_causes_each_is_named_and_a_resume_where_it_can_help():
    """Two that only a change undoes, one of them of many sites; and one that may pass."""
    why = {f"s{k:02d}": "masked: dropped out" for k in range(12)} | {"x": "masked: refused (beyond-bound)"}
    changed = suggest_fix(Settings(plan().model_dump(mode="json")), Path("r"), why)
    assert changed.startswith(f"{SAME}s00, s01, ")
    assert "s09 and 2 more dropped out" in changed and "; x trained to" in changed
    passing = suggest_fix(Settings(plan().model_dump(mode="json")), Path("r"), {**why, "y": "sign: no answer"})
    assert SAME not in passing and passing.endswith("; `rounds resume r` tries the round again")


def test_a_halted_sum_is_tried_again(tmp_path):
    done = run(tmp_path / "r", **{**HALTS, "engine": {"faults": {"drop": 0.06}}}, privacy={"on_halt": "retry"})
    assert len(done.rounds) == 4
    halted = [r for r in done.rounds if any("halted" in note for note in r["decision"]["notes"])]
    assert halted and all(r["decision"]["weights"] for r in halted)


def test_a_skipped_round_keeps_the_model_and_says_so_and_the_last_is_never_skipped(tmp_path):
    engine = {"faults": {"drop": 0.06}}
    done = run(tmp_path / "r", engine=engine, method={"rounds": 6}, privacy={"on_halt": "skip"})
    skipped = [r for r in done.rounds if "halted" in r["decision"]["why"]]
    assert skipped and skipped[-1]["round"] < 6
    assert [w for w in done.summary["warnings"] if "halted" in w][-1].startswith(f"round {skipped[-1]['round']}: ")
    for r in skipped:
        assert not r["decision"]["weights"]
        before = (
            done.rounds[r["round"] - 2]["test"]["log_loss"] if r["round"] > 1 else np.log(2)
        )  # of no weights at all
        assert r["test"]["log_loss"] == pytest.approx(before, abs=1e-6), "the model is as it was"
    last = skipped[-1]["round"]
    with refused("secure-sum-halted", match=f"round {last}", kind=RunFailed):
        run(tmp_path / "last", engine=engine, method={"rounds": last}, privacy={"on_halt": "skip"})
    assert not gr.load_run(tmp_path / "last").finished


def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path):
    whole = run(tmp_path / "whole", method={"name": "scaffold", "rounds": 4})

    class Stop(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        gr.run(plan(method={"name": "scaffold", "rounds": 4}), table=patients(SIZES), out=tmp_path / "r", progress=stop)
    resumed = gr.resume(tmp_path / "r", table=patients(SIZES))
    assert model(resumed).tobytes() == model(whole).tobytes()


def test_a_model_beyond_the_range_is_left_out_not_wrapped_around(tmp_path):
    """A site that trains itself to large numbers does not fit the ring: it is out, with the reason and without a value."""
    attacks = [{"kind": "scale", "sites": ["c"], "strength": 1e6}]
    values = plan().model_dump(mode="json")
    spoilt = gr.Experiment.parse({**values, "attacks": attacks})
    done = gr.run(spoilt, table=patients(SIZES), out=tmp_path / "r")
    for r in done.rounds:
        assert r["decision"]["missing"]["c"] == "refused (beyond-bound)"
        assert "c" not in r["decision"]["weights"]
    assert np.abs(model(done)).max() < 64


def test_a_site_refuses_a_share_that_would_be_its_own_model(tmp_path):
    """Where the rows tell beforehand it is said before a round is run; else the sites refuse."""
    lopsided = {"sizes": [900, 20, 20], "privacy": {"largest_weight": 0.8}}
    with refused("secure-aggregation-does-not-fit", match=r"privacy\.largest_weight"):
        run(tmp_path / "before", **lopsided)
    with refused("secure-sum-halted", match="weight", kind=RunFailed):
        run(tmp_path / "r", **lopsided, method={"select": {"rule": "random", "fraction": 1.0}})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"robust": "krum"}}, r"'krum'.*method\.robust"),
        ({"method": {"cohorts": 2}}, r"method\.cohorts"),
        ({"method": {"weigh": "distance"}}, "'distance'"),
        ({"method": {"name": "fedasync"}}, "'fedasync'"),
        ({"method": {"name": "clustered"}}, "'clustered'"),
        ({"method": {"select": {"rule": "random", "fraction": 0.3}}}, r"method\.select\.fraction"),
        ({"method": {"name": "pooled"}}, "'pooled'"),
        ({"engine": {"faults": {"nan": ["a"]}}}, r"engine\.faults\.nan"),
        ({"model": {"name": "forest"}}, "'forest'"),
        (
            {"reference": {"rows": {"rows": 20}}, "explain": {"sketch": "auto"}},
            r"explain\.at",
        ),
    ],
)
def test_what_looks_at_single_models_is_refused_in_words(changes, why, tmp_path):
    with refused("secure-aggregation-does-not-fit", match=why):
        run(tmp_path / "r", **changes)
    assert not (tmp_path / "r").exists()


def test_a_range_that_leaves_too_few_digits_is_refused():
    with refused("bad-setting", match=r"privacy\.secure_range"):
        plan(privacy={"secure_range": 1e9})


def test_two_sites_are_refused(tmp_path):
    with refused("secure-aggregation-does-not-fit", match=r"privacy\.secure"):
        run(tmp_path / "r", sizes=[60, 60])


def test_noise_in_shares_is_at_least_what_was_asked_for():
    """Six sites, one of which drops out after masking is agreed: the sum is off by noise of that deviation or a little more."""
    host = SiteHost(stack([20] * 6), identify=partial(Identity.simulated, 1), secret=partial(Secret.simulated, 1))
    engine = LocalEngine(stack([20] * 6), EngineSettings(run="noise", seed=1))
    engine.hosts = [host]
    host._tasks["veil.scores"] = lambda ask, members: {"scores": np.full((len(members), 4000), 0.5)}

    def work():
        peers = yield from exchange_identities(engine.sites)
        answers = yield Ask("veil.scores", report=("scores",)).withholding("scores")
        summed = yield from secure_sum(SecureRule(peers), answers, noise=0.25)
        return summed.values["scores"]

    off = engine.drive(work(), round=1) - 3.0
    assert 0.25 * 0.97 < off.std() < 0.25 * 1.06 * np.sqrt(6 / 4), "shares are sized for four of six"
    assert abs(off.mean()) < 0.03


@pytest.mark.parametrize("name", ["permutation", "shap"])
def test_sketches_and_shap_values_are_added_up_like_models(name):
    """What each site's own patients say of the model: the server gets the sum over sites and no site's own."""
    engine, encoding = ready(stack([30, 40, 50, 35]))
    theta = engine.hosts[0].model.init(0) + 0.3
    rule = SketchRule(name, seed=0, score="self")
    shared = {"model": theta, "explain": rule.to_json(), "background": np.zeros((1, *encoding.inputs))}
    ask = Ask("explain", shared=shared, report=("sketch",))

    def apart():
        answers = yield ask
        return answers

    def together():
        peers = yield from exchange_identities(engine.sites)
        answers = yield ask.withholding("sketch")
        assert list(answers.columns) == ["held"]
        return (yield from secure_sum(SecureRule(peers), answers, bits=64, bound=1e6))

    each, summed = engine.drive(apart(), round=1), engine.drive(together(), round=2)
    np.testing.assert_allclose(summed.values["sketch"], np.asarray(each["sketch"], float).sum(axis=0), atol=1e-9)
    assert summed.values["sketch"].sum() == pytest.approx(4), "four sketches that sum to 1"
    assert summed.values["sketch.rows"] == np.sum(each["sketch.rows"])


# What is held, as one vector and back


def test_held_arrays_are_laid_end_to_end_and_found_again():
    values = {"test.count": np.array([[3, 4]]), "model": np.array([0.5, -2.0, 8.0]), "test.loss": np.array(1.25)}
    told = describe_layout(values)
    assert packed_size(told) == 6 and layout_reports(told) == {"model", "test"}
    vector = pack(values, {"model": 0.5})
    assert vector.tolist() == [0.25, -1.0, 4.0, 3.0, 4.0, 1.25]
    back = unpack(2 * vector, told)
    assert back["test.count"].tolist() == [[6, 8]] and back["test.count"].dtype == np.int64
    assert back["model"].tolist() == [0.5, -2.0, 8.0] and back["test.loss"] == 2.5
    with refused("wrong-shape"):
        unpack(vector[:-1], told)


def test_withheld_reports_tell_names_and_shapes_and_forgets_what_is_old():
    reports, members = WithheldReports(), np.array([4, 7])
    columns = {"model": np.array([[1.0, 2.0], [3.0, 4.0]]), "count": np.array([5, 6])}
    told = reports.keep(AskId("r", 1, 0), members, columns, ("model",))
    assert told.keys() == {"count", "held"}
    assert json.loads(told["held"][0]) == [["model", [2], False]]
    assert reports.take("r/1/0", 7, context="a sum")["model"].tolist() == [3.0, 4.0]
    assert reports.take("r/1/0", 7, context="a sum")["model"].tolist() == [3.0, 4.0], "a step may be asked again"
    with refused("repeated-release"):
        reports.take("r/1/0", 7, context="another")
    for step in (1, 2):
        reports.keep(AskId("r", 1, step), members, columns, ("model",))
    with refused("answer-not-held"):
        reports.take("r/1/0", 7, context="a sum")
    assert Ask("train", report=("model",)).withholding("model").withheld == ("model",)
