"""evaluation.rationale_set: the server scores the model after every evaluated round, with any method, and changes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.analysis.audit.report import audit
from grandrounds.analysis.compare import compare
from grandrounds.capabilities.cases.rationale import evaluate_rationale, score_run_images
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.core.references import reference_name
from grandrounds.data.sets.images import SCORING_SETS, cifar10, scoring_rows
from grandrounds.engine.local import LocalEngine
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.methods.anchors import anchor_reference
from tests.cli.test_commands import refused as command_refused
from tests.command import rounds
from tests.e2e.test_xfed import QUICK, experiment, scoring_set, squares  # noqa: F401
from tests.support import patients, refused

pytest.importorskip("torch")

MARKED = {"scoring": {"source": "xfed-mnist"}}
SCORES = {
    "accuracy",
    "cross_entropy",
    "xai",
    "in_mask",
    "iou",
    "masked_accuracy",
    "grid",
    "pictures",
    "scored",
}
WATCH = {"rationale_set": "scoring"}


def run(path, out, *, method=None, **changes) -> gr.Run:
    """Two rounds of FedAvg, or another method, scored on the reference set."""
    method = {"name": "fedavg", "rounds": 2, "xfed": QUICK, **(method or {})}
    return gr.run(experiment(path, method=method, **{"evaluation": WATCH, "reference": MARKED, **changes}), out=out)


def told(done: gr.Run) -> list[dict | None]:
    return [r.get("reasons") for r in done.rounds]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedprox"},
        {"name": "fedavg", "select": {"rule": "loss", "fraction": 0.6}},
        {"name": "fedavg", "robust": "krum"},
        {"name": "sse-agg"},
        {"name": "xfed"},
        {"name": "local"},
        {"name": "clustered"},
        {"name": "fedbuff"},
    ],
    ids=lambda m: "-".join(str(v if isinstance(v, str) else next(iter(v.values()))) for v in m.values()),
)
def test_every_method_is_scored_by_the_common_model(method, squares, monkeypatch, tmp_path):  # noqa: F811
    """The summary's scores are those of model.safetensors, scored again from the folder alone."""
    scoring_set(monkeypatch, squares)
    sent = {"scoring": {"source": "xfed-mnist", "sent": True}}
    explain = {"sketch": "none"}
    if method["name"] == "sse-agg":
        sent, explain = sent | {"rows": {"rows": 16}}, {"sketch": "gradient"}
    done = run(squares, tmp_path / "r", method={**method, "rounds": 1}, reference=sent, explain=explain)
    (only,) = told(done)
    assert set(only) == SCORES and (only["pictures"], only["scored"]) == (12, 12)
    again = evaluate_rationale(done)
    last = done.summary["reasons"]
    assert last["on"] == "scoring" and again.figures == pytest.approx({k: last[k] for k in SCORES})
    assert set(last["baselines"]) == {"noise", "centre blob", "blob per cell", "shuffled weights"}
    for name, found in again.baselines.items():
        assert found == pytest.approx(last["baselines"][name])
    assert {k: last[k] for k in SCORES} == pytest.approx(only)
    assert audit(done.folder, deep=True).findings == ()


def test_watching_changes_nothing_that_is_trained(squares, heard, monkeypatch, tmp_path):  # noqa: F811
    scoring_set(monkeypatch, squares)
    watched = run(squares, tmp_path / "watched")
    asked = [a.task for a, _ in heard]
    heard.clear()
    alone = run(squares, tmp_path / "alone", evaluation={})
    assert [a.task for a, _ in heard] == asked, "no site is asked"
    assert watched.model.theta.tobytes() == alone.model.theta.tobytes()
    assert told(alone) == [None, None] and "reasons" not in alone.summary
    assert "lent" not in watched.summary["privacy"], "the pictures stay at the server"


def test_what_is_scored_on_is_taken_for_nothing_else_unless_it_is_named(squares, monkeypatch, tmp_path):  # noqa: F811
    """SSE-AGG compares models on the other rows, and sites are not anchored to what the model is scored on."""
    scoring_set(monkeypatch, squares)
    sets = {"scoring": {"source": "xfed-mnist", "sent": True}, "rows": {"rows": 16}}
    made = experiment(squares, method={"name": "sse-agg"}, reference=sets, evaluation=WATCH)
    plan = Settings(made.plan())
    assert plan.method.stability == "none" and anchor_reference(plan) is None
    assert explained_on(plan) == reference_name(plan) == "rows"
    named = experiment(squares, method={"name": "sse-agg", "anchor_rows": "scoring"}, reference=sets, evaluation=WATCH)
    plan = Settings(named.plan())
    assert plan.method.stability == "permuted_anchor" and anchor_reference(plan) == "scoring"


def test_only_evaluated_rounds_are_scored(squares, monkeypatch, tmp_path):  # noqa: F811
    scoring_set(monkeypatch, squares)
    done = run(squares, tmp_path / "r", method={"rounds": 3}, evaluation={**WATCH, "every": 2})
    assert [t is not None for t in told(done)] == [False, True, True]


def test_the_rule_is_that_of_xfed_whatever_the_method(squares, monkeypatch, tmp_path):  # noqa: F811
    """A dense heat map has no zero: in the form as printed every picture is rational. And 0 makes no scenes."""
    scoring_set(monkeypatch, squares)
    done = run(squares, tmp_path / "r", method={"xfed": {**QUICK, "form": "nonzero", "grid": 0}})
    for found in (*told(done), done.summary["reasons"]):
        assert found["xai"] == 1 and "grid" not in found


def test_without_masks_there_is_what_can_be_had(squares, tmp_path):  # noqa: F811
    done = run(squares, tmp_path / "r", reference={"scoring": {"rows": 16}})
    assert set(told(done)[-1]) == {"accuracy", "cross_entropy", "grid", "pictures", "scored"}
    assert told(done)[-1]["pictures"] == 16 and told(done)[-1]["scored"] == 0
    with refused("no-truth-masks", match="'scoring'"):
        score_run_images(done)


def test_a_run_that_broke_off_goes_on_to_the_same_scores(squares, monkeypatch, tmp_path):  # noqa: F811
    scoring_set(monkeypatch, squares)
    whole = run(squares, tmp_path / "whole")
    commit, done = LocalEngine.commit, []

    def broken(self):
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt
        commit(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalEngine, "commit", broken)
        run(squares, tmp_path / "broken")
    on = gr.resume(tmp_path / "broken")
    assert told(on) == told(whole) and on.summary["reasons"] == whole.summary["reasons"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "privacy",
    [{"secure": True}, {"mechanism": "dp-sgd", "epsilon": 8.0, "min_rows": 5}],
    ids=["secure", "dp-sgd"],
)
def test_a_run_with_a_promise_is_scored_too(privacy, squares, monkeypatch, tmp_path):  # noqa: F811
    """The server has the common model and the pictures; the statement says that reference rows are not covered."""
    scoring_set(monkeypatch, squares)
    done = run(squares, tmp_path / "r", method={"rounds": 1}, privacy=privacy)
    assert set(told(done)[0]) == SCORES
    if "epsilon" in privacy:
        assert "reference set 'scoring'" in done.summary["privacy"]["statement"]


def test_the_calibrated_model_is_the_one_that_the_summary_scores(squares, monkeypatch, tmp_path):  # noqa: F811
    scoring_set(monkeypatch, squares)
    train = {"lr": 0.01, "batch": 16, "steps": 1}
    done = run(squares, tmp_path / "r", evaluation={**WATCH, "calibrate": "temperature"}, train=train)
    assert done.summary["temperature"] not in (None, 1)
    last = done.summary["reasons"]
    assert last["cross_entropy"] != pytest.approx(told(done)[-1]["cross_entropy"])
    assert last["accuracy"] == told(done)[-1]["accuracy"]
    assert evaluate_rationale(done).figures["cross_entropy"] == pytest.approx(last["cross_entropy"])


# What is refused, before anything is trained


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluation": {"rationale_set": "scorin"}}, r"evaluation\.rationale_set"),
        ({"reference": None}, r"evaluation\.rationale_set"),
        ({"reference": {"scoring": {"rows": 16, "labelled": False}}}, r"reference\.scoring\.labelled"),
        ({"method": {"xfed": {**QUICK, "grid": 1}}}, r"method\.xfed\.grid"),
        (
            {"tasks": {"sides": {"classes": {"one": ["benign"], "other": ["malignant"]}, "sites": ["a"]}}},
            r"evaluation\.rationale_set",
        ),
    ],
    ids=["unknown", "none", "unlabelled", "grid", "tasks"],
)
def test_what_cannot_be_scored_is_refused_in_words(changes, words, squares, heard, tmp_path):  # noqa: F811
    with pytest.raises(BadInput, match=words):
        run(squares, tmp_path / "r", **{"reference": {"scoring": {"rows": 16}}, **changes})
    assert "train" not in {a.task for a, _ in heard} and not (tmp_path / "r").exists()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["fedavg", "xfed"])
def test_pictures_of_one_class_make_no_scenes_and_are_refused_at_the_start(
    method,
    squares,  # noqa: F811
    monkeypatch,
    heard,
    tmp_path,
):
    scoring_set(monkeypatch, squares, label=np.array(["benign"] * 12, object))
    sent = {"scoring": {"source": "xfed-mnist", "sent": True}}
    evaluation = {} if method == "xfed" else WATCH
    with refused("one-class-only", match="reference.scoring"):
        run(squares, tmp_path / "r", method={"name": method}, reference=sent, evaluation=evaluation)
    assert "train" not in {a.task for a, _ in heard}
    plain = {"xfed": {**QUICK, "grid": 0, "score": "masks"}}
    done = run(squares, tmp_path / "p", method={"name": method, **plain}, reference=sent, evaluation=WATCH)
    assert done.summary["reasons"]["scored"] == 12


def test_tables_are_refused_in_words(tmp_path):
    values = {
        "data": {"label": "died", "site": "hospital"},
        "reference": {"scoring": {"rows": 20}},
        "method": {"rounds": 1},
        "evaluation": WATCH,
    }
    with refused("method-does-not-fit", match="evaluation.rationale_set"):
        gr.run(gr.Experiment.parse(values), table=patients([40, 40, 40]), out=tmp_path / "r")


# The paper's thirty


@pytest.mark.data("cifar10", "xfed_masks")
def test_all_thirty_of_the_papers_photographs_are_a_scoring_set():
    thirty, eighteen = (SCORING_SETS[name]["load"]() for name in ("xfed-cifar-30", "xfed-cifar"))
    assert (len(thirty), len(eighteen)) == (SCORING_SETS["xfed-cifar-30"]["rows"], 18) == (30, 18)
    web = thirty.columns["origin"] == "web"
    assert web.sum() == 12 and (thirty.pixels[~web] == eighteen.pixels).all() and thirty.name != eighteen.name
    assert thirty.masks is not None and {len(np.unique(m)) for m in thirty.masks} == {2}
    held = SCORING_SETS["xfed-cifar"]["load"]().columns["index"].tolist()
    known = cifar10("test")
    assert scoring_rows(known, thirty).sum() == len(set(held) & set(known.columns["index"].tolist()))


# What people see


@pytest.fixture(scope="module")
def finished(squares, tmp_path_factory):  # noqa: F811
    """Squares whose masks come with them, so that a process of its own can score them."""
    folder = tmp_path_factory.mktemp("watched")
    with np.load(squares) as held:
        arrays = dict(held)
    masks = np.zeros(arrays["images"].shape[:3], bool)
    masks[arrays["labels"] == "benign", 5:11, 2:7] = True
    masks[arrays["labels"] == "malignant", 5:11, 9:14] = True
    np.savez(folder / "marked.npz", **arrays, masks=masks)
    reference = {"scoring": {"rows": 24}}
    train = {"lr": 0.1, "batch": 16, "steps": 3}
    return run(folder / "marked.npz", folder / "run", reference=reference, train=train)


def test_pictures_are_listed_with_their_reasons(finished):
    found = evaluate_rationale(finished)
    assert [p.number for p in found.images] == list(range(24))
    for p in found.images:
        assert p.right == (p.predicted == p.truth) and 0.5 <= p.probability <= 1
        inside, outside = p.heat[p.mask].mean(), p.heat[~p.mask].mean()
        assert p.ratio == pytest.approx(inside / outside, rel=1e-5) and p.reason == (p.ratio > 1)
    counts = found.table
    assert sum(sum(row.values()) for row in counts.values()) == 24
    assert sum(counts["right answer"].values()) / 24 == found.figures["accuracy"]
    assert (counts["right answer"]["right reason"] + counts["wrong answer"]["right reason"]) / 24 == found.figures[
        "xai"
    ]
    wrong = found.select(right=True, reason=False)
    assert [p.ratio for p in wrong] == sorted(p.ratio for p in wrong)
    assert [p.to_dict() for p in score_run_images(finished)] == [p.to_dict() for p in found.images]


def test_masks_show_draws_five_columns_and_prints_the_table(finished, tmp_path):
    image = pytest.importorskip("PIL.Image")
    done = rounds("explain", "masks", "show", finished.folder, "--rows", 3, "--out", tmp_path / "sheet.png")
    assert done.returncode == 0, done.stderr
    counts = evaluate_rationale(finished).table
    for name, row in counts.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"│ {name} ")]
        assert [int(v) for v in line.replace("│", " ").split()[2:]] == list(row.values())
    assert f"right for the wrong reason: {counts['right answer']['wrong reason'] or 'none'}" in done.stdout
    assert "shuffled" in done.stdout and "XAI accuracy" in done.stdout
    with image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG" and sheet.height > 3 * 160 and sheet.width > 5 * 160


def test_masks_show_says_all_as_json(finished, tmp_path):
    done = rounds("explain", "masks", "show", finished.folder, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said == evaluate_rationale(finished).to_dict() and not list(tmp_path.iterdir())
    assert said["reasons"] == pytest.approx({k: v for k, v in finished.summary["reasons"].items() if k in SCORES})
    lists = ("right_for_the_wrong_reason", "wrong_for_the_right_reason")
    assert [len(said[name]) for name in lists] == [
        said["table"]["right answer"]["wrong reason"],
        said["table"]["wrong answer"]["right reason"],
    ]


def test_masks_show_refuses_in_words(finished, tmp_path):
    show = ("explain", "masks", "show", finished.folder)
    command_refused(rounds(*show, "--on", "scorin"), "no scoring images 'scorin'", "scoring")
    command_refused(rounds(*show, "--out", tmp_path / "a.jpg"), "ends in .png")
    with refused("model-of-table"):
        values = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 1}}
        evaluate_rationale(gr.run(gr.Experiment.parse(values), table=patients([40, 40]), out=tmp_path / "t"))


def test_a_run_that_was_scored_on_nothing_needs_a_name(finished, squares, tmp_path):  # noqa: F811
    done = run(squares, tmp_path / "r", method={"rounds": 1}, reference=None, evaluation={})
    with refused("no-scoring-set", match="--on"):
        evaluate_rationale(done)


def test_the_report_and_the_screen_say_it_beside_the_baselines(finished):
    reasons = finished.summary["reasons"]
    page = (finished.folder / "report.html").read_text()
    assert "Right for the right reason" in page and "shuffled weights" in page
    assert f"{reasons['xai']:.3f} &plusmn;" in page
    shown = rounds("show", finished.folder).stdout
    assert f"XAI accuracy: {reasons['xai']:.3f} +- " in shown and "on 24 images of reference 'scoring'" in shown
    assert f"centre blob {reasons['baselines']['centre blob']['xai']:.3f}" in shown


def test_runs_are_compared_by_how_their_reasons_score(finished, squares, tmp_path):  # noqa: F811
    bare = run(squares, tmp_path / "bare", method={"rounds": 1}, reference=None, evaluation={})
    metrics = ("scoring_accuracy", "xai_accuracy", "grid_accuracy", "in_mask_share", "masked_accuracy")
    found = compare([finished, bare], metrics=metrics, named={"run": "scored", "bare": "not scored"})
    values = {arm.label: [arm.values(m)[0] for m in metrics] for arm in found.arms}
    reasons = finished.summary["reasons"]
    assert values["scored"] == [reasons[k] for k in ("accuracy", "xai", "grid", "in_mask", "masked_accuracy")]
    assert np.isnan(values["not scored"]).all()


def test_the_sheet_is_computed_without_plotly_or_pillow():
    """Studies read it on a bare machine."""
    import subprocess
    import sys

    code = (
        "import sys\nsys.modules |= dict.fromkeys(('plotly', 'PIL', 'captum', 'shap', 'pydantic'))\n"
        "import grandrounds.capabilities.cases.rationale"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
