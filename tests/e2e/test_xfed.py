"""XFed from the plan to the folder: two steps, bytes saved, faults, liars, scoring pictures of another set, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import Settings
from grandrounds.data.image_files import read_npz
from grandrounds.data.sets.images import SCORING_SETS, scoring_rows
from grandrounds.engine.faults import DROPPED, IMPOSSIBLE, NOT_FINITE, Faults
from grandrounds.methods.xfed.server import XFed
from grandrounds.methods.xfed.site import CandidateModels
from grandrounds.protocol.messages import UPLOAD, Ask, AskId
from grandrounds.runs.federation import assemble
from grandrounds.runs.references import ServerRows
from grandrounds.runs.run_rows import RunRows
from grandrounds.site import host as hosts
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.support import bright_squares, patients, refused

pytest.importorskip("torch")

SITES = ("a", "b", "c", "d", "e")
QUICK = {"steps": 1, "samples": 1, "score": "grid"}
BASE = {
    "model": {"name": "small-cnn"},
    "method": {"name": "xfed", "rounds": 2, "xfed": QUICK},
    "reference": {"scoring": {"rows": 16, "sent": True}},
    "train": {"lr": 0.1, "batch": 16, "steps": 2},
    "engine": {"device": "cpu"},
    "explain": {"sketch": "none"},
}


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    """Bright squares on the left or on the right, from five sites of different sizes."""
    return bright_squares(tmp_path_factory.mktemp("npz") / "squares.npz", 170, "abcdeabcdeabcab", purpose="squares")


def experiment(path, *, xfed=None, **changes) -> gr.Experiment:
    values = {"data": {"table": str(path)}, **{key: {**section} for key, section in BASE.items()}}
    values["method"]["xfed"] = {**QUICK, **(xfed or {})}
    for key, section in changes.items():
        values[key] = {**values.get(key, {}), **section} if isinstance(section, dict) else section
    return gr.Experiment.parse({key: section for key, section in values.items() if section is not None})


def run(path, out, **changes) -> gr.Run:
    return gr.run(experiment(path, **changes), out=out)


def decisions(done: gr.Run) -> list[dict]:
    return [r["decision"] for r in done.rounds]


def without_time(done: gr.Run) -> list[dict]:
    told = decisions(done)
    return [{**d, "cost": {k: v for k, v in d["cost"].items() if k != "seconds"}} for d in told]


# Two steps


def test_no_model_leaves_before_the_choice_and_then_only_those_of_the_chosen(squares, heard, tmp_path):
    done = run(squares, tmp_path / "r", xfed={"keep": 0.6})
    steps = [(a, r) for a, r in heard if a.task in ("train", UPLOAD)]
    assert [a.task for a, _ in steps] == ["train", UPLOAD] * 2
    for (train, said), (upload, sent), decision in zip(steps[::2], steps[1::2], decisions(done), strict=True):
        assert said.sites == SITES and "model" not in said
        assert max(np.asarray(c).itemsize * np.asarray(c)[0].size for c in said.columns.values()) <= 8
        place = decision["signals"]["place"]
        best = tuple(s for s in SITES if place[s] <= 3)
        assert upload.to == best == sent.sites == tuple(decision["weights"])
        assert upload.shared == {"of": str(train.id)} and set(sent.columns) == {"model"}
        assert decision["asked"] == list(SITES) and decision["missing"] == {}


def test_the_upload_that_is_saved_is_measured_to_the_byte(squares, tmp_path):
    """Against FedAvg: two models of five are not sent, and each site says four numbers more."""
    ours = run(squares, tmp_path / "ours", xfed={"keep": 0.6})
    theirs = run(squares, tmp_path / "theirs", method={"name": "fedavg"})
    size = 4 * len(ours.model.theta)
    for mine, plain in zip(decisions(ours), decisions(theirs), strict=True):
        assert plain["cost"]["payload_up"] - mine["cost"]["payload_up"] == 2 * size - 5 * 4 * 8
        saved = plain["cost"]["bytes_up"] - mine["cost"]["bytes_up"]
        assert 2 * size - 5 * 1000 < saved < 2 * size, "all that is added is names and framing"
        assert f"saves the upload of {2 * len(ours.model.theta):,} numbers" in mine["why"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("engine", [{"wire": True}, {"chunk": 2}, {"chunk": 1}], ids=["wire", "by twos", "one by one"])
def test_through_bytes_or_in_chunks_it_is_the_same_to_the_bit(engine, squares, tmp_path):
    whole = run(squares, tmp_path / "whole")
    other = run(squares, tmp_path / "other", engine={"device": "cpu", **engine})
    assert other.model.theta.tobytes() == whole.model.theta.tobytes()
    assert without_time(other) == without_time(whole)


def test_a_run_that_broke_off_between_the_two_steps_goes_on_to_the_same_bits(squares, monkeypatch, tmp_path):
    whole = run(squares, tmp_path / "whole")
    answer, asked = hosts.SiteHost.answer, []

    def broken(self, ask, members):
        asked.append(ask.task)
        if asked.count(UPLOAD) == 2:
            raise KeyboardInterrupt
        return answer(self, ask, members)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hosts.SiteHost, "answer", broken)
        run(squares, tmp_path / "broken")
    gone_on = gr.resume(tmp_path / "broken")
    assert gone_on.model.theta.tobytes() == whole.model.theta.tobytes()
    assert without_time(gone_on) == without_time(whole)


def test_a_model_that_a_site_does_not_keep_is_refused(squares, monkeypatch, tmp_path):
    held: list[hosts.SiteHost] = []
    answer = hosts.SiteHost.answer
    monkeypatch.setattr(hosts.SiteHost, "answer", lambda self, *a: (held.append(self), answer(self, *a))[1])
    some = {"rule": "random", "fraction": 0.6}
    done = run(squares, tmp_path / "r", method={"name": "xfed", "rounds": 1, "xfed": QUICK, "select": some})
    site = next(h for h in held if len(h.stack.names) == 5)
    name, kept = next(p for p in site.plugins if isinstance(p, CandidateModels)).kept
    asked = decisions(done)[0]["asked"]
    here, idle = ([k for k, s in enumerate(SITES) if (s in asked) is there] for there in (True, False))
    assert sorted(kept) == here and len(idle) == 2
    first = np.array(here[:1])

    def upload(of, members, step=90):
        return answer(site, Ask(UPLOAD, shared={"of": of}, report=("model",), id=AskId("x", 1, step)), members)

    assert upload(name, first)["model"].shape == (1, len(done.model.theta))
    for of, members in ((name + "0", first), ("", first), (name, np.array([here[0], idle[0]]))):
        with refused("model-not-stored"):
            upload(of, members, 91)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("wire", [False, True])
def test_a_site_that_is_not_chosen_goes_on_from_the_last_round_that_counted(wire, squares, monkeypatch, tmp_path):
    """Its optimiser has taken the steps of the models that it sent, and no others."""
    held: dict[str, tuple[hosts.SiteHost, int]] = {}
    answer = hosts.SiteHost.answer

    def noticed(self, ask, members):
        if ask.task in ("train", UPLOAD):
            held.update({self.stack.names[k]: (self, k) for k in members.tolist()})
        return answer(self, ask, members)

    monkeypatch.setattr(hosts.SiteHost, "answer", noticed)
    train = {"lr": 0.01, "optimizer": "adam", "keep_optimizer": True}
    done = run(squares, tmp_path / "r", xfed={"keep": 0.4}, method={"rounds": 6}, train=train, engine={"wire": wire})
    sent = {s: sum(s in d["weights"] for d in decisions(done)) for s in SITES}
    assert any(0 < n < 6 for n in sent.values()), "some are chosen in some rounds"
    taken = {s: host.states.read("clock", np.array([k])) for s, (host, k) in held.items()}
    assert {s: int(clock.max()) for s, clock in taken.items()} == {s: 2 * n for s, n in sent.items()}


# Other methods are in it


@pytest.mark.parametrize("stability", [{}, {"stability": "proximal", "mu": 0.5}], ids=["fedavg", "fedprox"])
def test_after_until_every_round_is_the_other_methods_to_the_bit(stability, squares, monkeypatch, heard, tmp_path):
    """A run that thinks it is ten rounds further on, so that all of its rounds come after the last choice."""
    joined = XFed.train_and_aggregate
    later = {"name": "xfed", "xfed": {**QUICK, "until": 9}, **stability}
    theirs = run(squares, tmp_path / "theirs", method={"name": "fedavg", **stability})
    monkeypatch.setattr(XFed, "train_and_aggregate", lambda self, at, ask: joined(self, replace(at, round=at.round + 9), ask))
    ours = run(squares, tmp_path / "ours", method=later)
    assert ours.model.theta.tobytes() == theirs.model.theta.tobytes()
    assert UPLOAD not in {a.task for a, _ in heard}
    for a, b in zip(decisions(ours), decisions(theirs), strict=True):
        assert a["weights"] == b["weights"] and a["signals"] == b["signals"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"robust": {"rule": "median"}},
        {"weigh": "uniform"},
        {"xfed": {**QUICK, "weights": "rank"}},
        {"select": {"rule": "random", "fraction": 0.6}},
        {"cohorts": 2},
        {"stability": "moon"},
    ],
    ids=["robust", "uniform", "rank", "random", "cohorts", "moon"],
)
def test_it_goes_with_the_other_parts_and_the_ledger_agrees(settings, squares, tmp_path):
    done = run(squares, tmp_path / "r", method={"name": "xfed", "rounds": 2, "xfed": QUICK, **settings})
    for d in decisions(done):
        assert len(d["weights"]) == len(d["asked"]) - 1 and sum(d["weights"].values()) == pytest.approx(1)
    assert audit(done.folder, deep=True).findings == ()


@pytest.mark.parametrize("at", ["server", "site"])
def test_sites_can_be_weighed_by_their_explanations_besides(at, squares, monkeypatch, tmp_path):
    made, sketches = [], ServerRows.sketches
    monkeypatch.setattr(ServerRows, "sketches", lambda *a, **k: (made.append(k["round"]), sketches(*a, **k))[1])
    weigh = {"rule": "explanations", "lambdas": {"agreement": 1.0}}
    explain = {"sketch": "gradient", "at": at}
    method = {"name": "xfed", "rounds": 1, "xfed": QUICK, "weigh": weigh}
    done = run(squares, tmp_path / "r", method=method, explain=explain)
    assert len(decisions(done)[0]["weights"]) == 4
    assert set(decisions(done)[0]["signals"]["disagreement"]) == set(decisions(done)[0]["weights"])
    assert made.count(1) == (at == "server"), "what sites said of their models is not worked out again"


# What can go wrong


@pytest.mark.slow
def test_a_chosen_site_that_drops_out_at_upload_is_left_out_and_named(squares, monkeypatch, tmp_path):
    whole = run(squares, tmp_path / "whole")
    first = next(s for s, place in decisions(whole)[0]["signals"]["place"].items() if place == 1)
    absent = Faults.absent

    def gone(self, ask, site, *, seed):
        leaves = ask.task == UPLOAD and site == first and ask.id.round == 1
        return DROPPED if leaves else absent(self, ask, site, seed=seed)

    monkeypatch.setattr(Faults, "absent", gone)
    left = run(squares, tmp_path / "left")
    decision = decisions(left)[0]
    assert decision["missing"] == {first: DROPPED}
    assert set(decision["weights"]) == set(decisions(whole)[0]["weights"]) - {first}
    assert first in decisions(left)[1]["asked"]
    shown = rounds("show", left.folder, "--round", "1").stdout
    assert "round 1: 5 sites asked, 4 answered, 3 sent their model" in shown
    assert f"without {first}" in shown


@pytest.mark.slow
def test_drops_of_the_engine_happen_at_upload_too_and_are_the_same_through_bytes(squares, heard, tmp_path):
    faults = {"faults": {"drop": 0.3}}
    done = run(
        squares, tmp_path / "r", method={"name": "xfed", "rounds": 5, "xfed": QUICK}, engine={"device": "cpu", **faults}
    )
    late = [r for a, r in heard if a.task == UPLOAD and r.missing]
    assert late and all(set(r.missing.values()) == {DROPPED} for r in late)
    wired = run(
        squares,
        tmp_path / "w",
        method={"name": "xfed", "rounds": 5, "xfed": QUICK},
        engine={"device": "cpu", "wire": True, **faults},
    )
    assert wired.model.theta.tobytes() == done.model.theta.tobytes()


def test_fewer_models_than_min_sites_end_the_run_unless_fewer_were_asked_for(squares, monkeypatch, tmp_path):
    engine = {"device": "cpu", "min_sites": 4}
    run(squares, tmp_path / "few", xfed={"keep": 0.4}, engine=engine)
    absent = Faults.absent
    monkeypatch.setattr(
        Faults,
        "absent",
        lambda self, ask, s, *, seed: DROPPED if ask.task == UPLOAD else absent(self, ask, s, seed=seed),
    )
    with refused("too-few-sites", match=r"engine\.min_sites", kind=RunFailed):
        run(squares, tmp_path / "none", engine=engine)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("wire", [False, True])
def test_a_site_that_sends_no_numbers_is_left_out_and_named(wire, squares, tmp_path):
    engine = {"device": "cpu", "wire": wire, "faults": {"nan": ["b"]}}
    done = run(squares, tmp_path / "r", engine=engine, method={"name": "xfed", "rounds": 4, "xfed": QUICK})
    asked_for = [d for d in decisions(done) if d["signals"]["place"]["b"] < 5]
    assert asked_for and all(d["missing"] == {"b": NOT_FINITE} and "b" not in d["weights"] for d in asked_for)
    assert np.isfinite(done.model.theta).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("wire", [False, True])
def test_training_that_diverges_everywhere_says_so(wire, squares, tmp_path):
    with np.errstate(all="ignore"), refused("training-diverged", match=r"train\.lr", kind=RunFailed):
        run(squares, tmp_path / "r", train={"lr": 1e30, "steps": 8}, engine={"device": "cpu", "wire": wire})


def test_a_site_that_says_what_cannot_be_is_left_out(squares, monkeypatch, tmp_path):
    scored = CandidateModels._scored

    def boast(self, ask, models, members):
        found = scored(self, ask, models, members)
        found["rationale.grid"][1] = 17.0
        return found

    monkeypatch.setattr(CandidateModels, "_scored", boast)
    for d in decisions(run(squares, tmp_path / "r")):
        assert d["missing"] == {"b": IMPOSSIBLE} and "b" not in d["signals"]["place"]


# Liars


@pytest.mark.parametrize("attack", [{"kind": "lie"}, {"kind": "sign-flip", "lies": True}], ids=["lie", "lies"])
def test_a_liar_is_first_and_a_server_that_looks_names_it(attack, squares, tmp_path):
    """Trained on next to nothing, no site is right about all pictures."""
    changes = {"attacks": [{**attack, "sites": ["c"]}], "train": {"lr": 0.001, "batch": 16, "steps": 1}}
    blind = run(squares, tmp_path / "blind", **changes)
    for d in decisions(blind):
        assert d["signals"]["place"]["c"] == 1 and d["signals"]["score"]["c"] == pytest.approx(1)
        assert "xai" not in d["signals"], "nobody has masks, and a liar makes none up"
        assert d["notes"] == []
    looked = run(squares, tmp_path / "looked", xfed={"score_at": "server"}, **changes)
    for d in decisions(looked):
        assert {n.split(":")[0] for n in d["notes"]} == {"c"}
        assert any(n.startswith("c: says accuracy 1.000, but the server computes 0.") for n in d["notes"])
        honest = set(d["weights"]) - {"c"}
        for name in ("accuracy", "grid", "cross_entropy"):
            for s in honest:
                assert d["signals"][f"seen_{name}"][s] == pytest.approx(d["signals"][name][s], abs=1e-6)
    assert looked.model.theta.tobytes() == blind.model.theta.tobytes(), "looking changes nothing"


# Scoring pictures


def test_the_drawn_scoring_pictures_are_in_nobodys_rows_and_every_round_has_their_hash(squares, tmp_path):
    done = run(squares, tmp_path / "r")
    held = assemble(Settings(experiment(squares).plan()))
    drawn = held.reference["scoring"]
    mine = np.concatenate([np.concatenate([r.train, r.val, r.test]) for r in held.stack.rows])
    assert len(drawn) == 16 and not set(drawn.rows) & set(mine)
    assert done.summary["reference"] == {"scoring": drawn.sha256} and done.summary["privacy"]["lent"] == {"scoring": 16}
    assert drawn.sha256 == read_npz(squares).take(drawn.rows).sha256()
    with done.ledger as ledger:
        told = [entry["reference"] for entry in ledger.entries() if entry["kind"] == "round"]
    assert told == [{"scoring": drawn.sha256}] * 2


def scoring_set(monkeypatch, path, *, masks=True, **changes):
    """A scoring set of our own under a published name: 12 squares with masks."""
    found = read_npz(path).take(np.arange(12))
    inside = np.zeros((12, 16, 16), bool)
    inside[:, 5:11] = True
    origin = np.array(["elsewhere"] * 12, object)
    found = replace(found, name="s", masks=inside if masks else None, columns={"origin": origin}, **changes)
    monkeypatch.setitem(SCORING_SETS, "xfed-mnist", {**SCORING_SETS["xfed-mnist"], "load": lambda: found})
    return found


SOURCE = {"scoring": {"sent": True, "source": "xfed-mnist"}}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("wire", [False, True])
def test_masks_of_another_set_reach_the_sites_and_have_a_say(wire, squares, monkeypatch, tmp_path):
    found = scoring_set(monkeypatch, squares)
    xfed = {"score": "masks", "xai_share": 1, "score_at": "server", "grid": 0}
    done = run(squares, tmp_path / "r", reference=SOURCE, xfed=xfed, engine={"device": "cpu", "wire": wire})
    for d in decisions(done):
        assert d["signals"]["score"] == d["signals"]["xai"] and "grid" not in d["signals"]
        assert d["notes"] == [], "the server finds what sites say: they have the same masks"
    assert done.summary["privacy"]["lent"] == {"scoring": 12}
    said = done.summary["privacy"]["statement"]
    assert said.endswith("12 images of 'xfed-mnist' ('scoring') were sent to every site: published, not of patients.")
    assert "patients' rows stay at their sites" in said and "patients' rows." not in said
    assert done.summary["reference"] == {"scoring": found.sha256()}
    assert replace(found, masks=~found.masks).sha256() != found.sha256(), "the hash is of the masks too"
    assert sum(sum(r.values()) for r in done.summary["rows"].values()) == 170, "no row of the sites is set aside"


def test_a_case_is_compared_with_patients_and_not_with_scoring_pictures_of_another_set(squares, monkeypatch, tmp_path):
    scoring_set(monkeypatch, squares)
    done = run(squares, tmp_path / "r", reference=SOURCE)
    rows, words = RunRows.read(done).background()
    assert len(rows) == 100 and words == "100 of the 115 training rows of all sites"


@pytest.mark.data("mnist", "xfed_masks")
def test_official_test_pictures_that_are_scored_on_are_nobodys(published, tmp_path):
    """XFed's digits are of MNIST's test set (one is of neither): the others are left out of the final test."""
    split = {"partition": "equal", "sites": 3}
    plan = experiment("", data={"name": "mnist", "table": None}, split=split, reference=SOURCE).plan()
    held = assemble(Settings(plan))
    twins = np.flatnonzero(scoring_rows(held.data, published))
    assert len(twins) > 90 and held.reference["scoring"].twins.tolist() == twins.tolist()
    mine = np.concatenate([np.concatenate([r.train, r.val, r.test]) for r in held.stack.rows])
    assert not set(twins) & set(mine)
    assert len(mine) == 70_000 - len(twins)
    assert len(held.reference["scoring"]) == 102 and held.reference["scoring"].sha256 == published.sha256()


@pytest.mark.data("xfed_masks")
def test_scoring_pictures_that_cannot_be_used_are_refused_in_one_sentence(squares, tmp_path):
    own = (
        f'name = "own"\n[data]\ntable = "{squares}"\n[model]\nname = "small-cnn"\n[method]\nname = "xfed"\nrounds = 1\n'
    )
    for source, words in {
        "xfed-mnis": ("reference.scoring.source is 'xfed-mnis'", "xfed-mnist"),
        "xfed-mnist": ("reference.scoring.source 'xfed-mnist' has images unlike those of squares",),
    }.items():
        file = tmp_path / f"{source}.toml"
        file.write_text(f'{own}[reference.scoring]\nsent = true\nsource = "{source}"\n')
        command_refused(rounds("run", file, "--out", tmp_path / "r"), *words)
    values = {"data": {"label": "died", "site": "hospital"}, "reference": SOURCE, "method": {"rounds": 1}}
    with pytest.raises(BadInput, match="has images unlike those of"):
        gr.run(gr.Experiment.parse(values), table=patients([40, 40]), out=tmp_path / "t")


def test_scoring_pictures_of_a_class_that_nobody_knows_are_refused(squares, monkeypatch, tmp_path):
    label = np.array(["benign", "up"], object)[np.arange(12) % 2]
    scoring_set(monkeypatch, squares, label=label)
    with refused("unknown-class", match="'up'"):
        run(squares, tmp_path / "r", reference=SOURCE)


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reference": None}, r"reference\.scoring"),
        ({"reference": {"other": {"rows": 9}}}, r"method\.reference"),
        ({"reference": {"scoring": {"rows": 16}}}, r"reference\.scoring\.sent"),
        ({"reference": {"scoring": {"rows": 16, "sent": True, "labelled": False}}}, r"reference\.scoring\.sent"),
        ({"xfed": {"grid": 0}}, r"method\.xfed\.grid"),
        ({"xfed": {"score": "masks"}}, r"data\.masks.*method\.xfed\.score = 'grid'.*xai_share = 0"),
        ({"split": {"partition": "equal", "sites": 1}}, "'xfed'"),
        ({"privacy": {"secure": True}}, r"privacy\.secure"),
        ({"privacy": {"mechanism": "client", "epsilon": 4.0}}, "'xfed'"),
        ({"method": {"name": "xfed", "xfed": QUICK, "stability": "scaffold"}}, "'scaffold'"),
        (
            {"method": {"name": "xfed", "xfed": {**QUICK, "weights": "rank"}, "weigh": "uniform"}},
            "'rank'",
        ),
    ],
)
def test_what_it_cannot_go_with_is_refused_in_words(changes, words, squares, tmp_path):
    with pytest.raises(BadInput, match=words):
        run(squares, tmp_path / "r", **changes)


def test_tables_are_refused_in_words(tmp_path):
    values = {
        "data": {"label": "died", "site": "hospital"},
        "reference": {"root": {"rows": 20, "sent": True}},
        "method": {"name": "xfed", "rounds": 1},
    }
    with refused("method-does-not-fit", match="'fedxchain'"):
        gr.run(gr.Experiment.parse(values), table=patients([40, 40, 40]), out=tmp_path / "r")


# What people see


def test_the_terminal_says_who_answered_and_who_sent_a_model(squares, tmp_path):
    done = run(squares, tmp_path / "r", xfed={"until": 1})
    shown = rounds("show", done.folder, "--round", "1").stdout
    assert "round 1: 5 sites asked, 5 answered, 4 sent their model\n" in shown
    last = next(s for s, place in decisions(done)[0]["signals"]["place"].items() if place == 5)
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(f"{last} ")] == [[last, "-"]]
    assert "round 2: 5 sites asked, 5 answered\n" in rounds("show", done.folder, "--round", "2").stdout
