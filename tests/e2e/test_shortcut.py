"""A run that studies a shortcut measures it: test rows with and without the patch, and how much of the reasons it takes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

import grandrounds as gr
from grandrounds.analysis.compare import check_metrics, compare
from grandrounds.cli.screen import show_summary
from grandrounds.core.plan import Settings
from grandrounds.core.records import RunSummary
from grandrounds.core.rng import generator
from grandrounds.data.corruption.shortcut import fits_one_tile
from grandrounds.data.image_files import read_npz
from grandrounds.metrics.names import lower_is_better, metric_label
from grandrounds.report.page import report_page
from grandrounds.runs.evaluation import class_weight
from grandrounds.runs.federation import assemble
from tests.runs.test_run import frame, own
from tests.support import patients, refused

pytest.importorskip("torch")

PATCHED = {"p": 1.0, "classes": ["yes"]}
OF_HOSPITALS = ("auroc_within", "auroc_gap")  # figures of hospitals, while rows without the patch are scored together
CORNER = {"east": 0, "north": 3, "west": 12}  # tiles of a 4 x 4 grid, row by row: top left, top right, bottom left


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Pictures of dark noise, whose label shows in nothing but the patch that a run paints on them."""
    rng = generator(0, purpose="noise")
    n = 270
    path = tmp_path_factory.mktemp("npz") / "noise.npz"
    x = rng.integers(0, 12, (n, 32, 32, 1), dtype=np.uint8)
    site = np.array(["north", "east", "west"])[np.arange(n) % 3]
    np.savez(path, images=x, labels=np.array(["no", "yes"])[rng.integers(0, 2, n)], site=site)
    return path


def experiment(path, *, shortcut=PATCHED, **changes):
    base = {
        "data": {"table": str(path), "shortcut": shortcut},
        "reference": {"probe": {"rows": 30}},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 4},
        "train": {"lr": 0.003, "batch": 16, "optimizer": "adam", "epochs": 2},
        "explain": {"sketch": "occlusion", "every": 2, "rows": 40},
        "engine": {"device": "cpu"},
    }
    return gr.Experiment.parse({k: {**base.get(k, {}), **changes.get(k, {})} for k in (*base, *changes)})


@pytest.fixture(scope="module")
def studied(noise, tmp_path_factory):
    return gr.run(experiment(noise), out=tmp_path_factory.mktemp("studied") / "r")


def test_a_model_that_reads_the_corner_is_lost_without_the_patch(studied):
    final, block = studied.summary["final"], studied.summary["shortcut"]
    assert list(block["ood"]) == [m for m in final if not m.startswith(OF_HOSPITALS)]
    assert block["ood"]["count"] == final["count"] and block["ood"]["majority"] == final["majority"]
    ranked = {site: m["auroc"] for site, m in studied.summary["per_site"].items()}
    assert ranked == {"east": 1, "north": 1, "west": None}, "the patch tells the label; 3 patients of west have no event"
    assert abs(block["ood"]["auroc"] - 0.5) < 0.2, "noise does not"
    assert block["spurious_gap"] == pytest.approx(final["auroc"] - block["ood"]["auroc"])
    assert block["spurious_gap"] > 0.1
    assert block["patches"] == {
        "east": {"corner": "top left", "on": ["yes"]},
        "north": {"corner": "top right", "on": ["yes"]},
        "west": {"corner": "bottom left", "on": ["no"]},
    }


def test_spurious_mass_is_each_sites_own_corner_of_its_sketch(studied):
    block, told = studied.summary["shortcut"], studied.explanations
    for kind, key in (("training", "sam"), ("deployed", "sam_deployed")):
        for r in told["rounds"]:
            expected = {site: r[kind]["sketches"][site][tile] for site, tile in CORNER.items()}
            assert r[kind]["spurious_masses"] == pytest.approx(expected, rel=1e-5)
            assert r[kind]["spurious_mass"] == pytest.approx(np.mean(list(expected.values())), rel=1e-5)
        last = told["rounds"][-1][kind]["spurious_mass"]
        assert block[key] == studied.summary["explanation"][kind]["spurious_mass"] == last
        logged = [r["explanation"][kind]["spurious_mass"] for r in studied.rounds if "explanation" in r]
        assert logged == [r[kind]["spurious_mass"] for r in told["rounds"]]
    assert block["chance"] == 1 / 16
    assert block["sam_deployed"] > 0.5, "on pictures with patches the model in use is seen to look at them"


def test_only_test_rows_are_kept_without_patches_and_reference_rows_have_none(noise):
    plan = Settings(experiment(noise).plan())
    raw, held = read_npz(noise).pixels, assemble(plan)
    probe = held.reference["probe"].rows
    np.testing.assert_array_equal(held.data.pixels[probe], raw[probe])
    tested = np.concatenate([r.test for r in held.stack.rows])
    np.testing.assert_array_equal(held.stack.clean.pixels, raw[tested])
    changed = (held.data.pixels != raw).any(axis=-1)
    assert changed[tested].any(axis=(1, 2)).sum() > len(tested) / 3
    corners = np.zeros((32, 32), bool)
    corners[:2, :2] = corners[:2, -2:] = corners[-2:, :2] = True
    assert not changed[:, ~corners].any()
    alone = held.stack.alone(1)
    np.testing.assert_array_equal(alone.clean.pixels, raw[held.stack.rows[1].test])


def test_shift_stays_when_the_patch_goes(noise):
    bent = experiment(noise, data={"table": str(noise), "shortcut": PATCHED, "shift": {"strength": 1.0}})
    plain = experiment(noise, data={"table": str(noise), "shortcut": {}, "shift": {"strength": 1.0}})
    held, shifted = assemble(Settings(bent.plan())), assemble(Settings(plain.plan()))
    tested = np.concatenate([r.test for r in held.stack.rows])
    np.testing.assert_array_equal(held.stack.clean.pixels, shifted.data.pixels[tested])
    assert shifted.planted is None and shifted.stack.clean is None


def test_a_patch_that_nobody_carries_is_worth_nothing(noise, tmp_path):
    run = gr.run(experiment(noise, shortcut={"p": 1e-9, "classes": ["yes"]}, method={"rounds": 1}), out=tmp_path / "r")
    ood, final = (
        {k: v for k, v in scores.items() if v is not None and not k.startswith(OF_HOSPITALS)}
        for scores in (run.summary["shortcut"]["ood"], run.summary["final"])
    )
    assert ood == pytest.approx(final, rel=1e-12), "sums over rows of sites and of all rows differ in the last digit"
    assert run.summary["shortcut"]["spurious_gap"] == 0
    none = gr.run(experiment(noise, shortcut={}, method={"rounds": 1}), out=tmp_path / "none")
    assert none.summary["shortcut"] == {}
    assert "spurious_mass" not in none.summary["explanation"]["training"]
    assert none.summary["final"] == run.summary["final"]


@pytest.mark.slow
def test_bytes_and_a_break_change_nothing(studied, noise, tmp_path):
    short = gr.run(experiment(noise, method={"rounds": 2}), out=tmp_path / "short")
    assert gr.resume(short.folder, settings=["method.rounds=4"]).summary["shortcut"] == studied.summary["shortcut"]
    few = {"method": {"rounds": 1}, "train": {"optimizer": "sgd", "lr": 0.1}}
    plain = gr.run(experiment(noise, **few), out=tmp_path / "plain").summary["shortcut"]
    wired = gr.run(experiment(noise, **few, engine={"wire": True}), out=tmp_path / "wired").summary["shortcut"]
    assert wired["patches"] == plain["patches"]
    for key in ("spurious_gap", "sam", "sam_deployed"):
        assert wired[key] == pytest.approx(plain[key], abs=1e-3)
    assert wired["ood"] == pytest.approx(plain["ood"], abs=1e-3)


def test_rows_in_one_place_are_judged_at_their_hospitals(noise, tmp_path):
    run = gr.run(experiment(noise, method={"name": "pooled", "rounds": 2}), out=tmp_path / "r")
    block = run.summary["shortcut"]
    assert set(block["patches"]) == set(CORNER)
    assert block["ood"]["count"] == run.summary["final"]["count"] > 0
    assert block["sam"] is None and block["sam_deployed"] > 0


@pytest.mark.slow
def test_a_patch_larger_than_a_tile_has_no_mass_and_it_is_said_once(noise, tmp_path):
    assert fits_one_tile((3, 28, 28), 4) and fits_one_tile((3, 224, 224), 16)
    assert not fits_one_tile((3, 28, 28), 16), "two pixels, and the last tile of 28 / 16 has one"
    small = {"explain": {"tiles": 20, "rows": 5}, "reference": {"probe": {"rows": 5}}, "method": {"rounds": 1}}
    run = gr.run(experiment(noise, **small), out=tmp_path / "r")
    run = gr.resume(run.folder, settings=["method.rounds=2"])
    assert [w for w in run.summary["warnings"] if "lower explain.tiles" in w] == run.summary["warnings"][-1:]
    block = run.summary["shortcut"]
    assert block["sam"] is block["sam_deployed"] is block["chance"] is None
    assert block["spurious_gap"] is not None


def test_a_table_has_no_corner(tmp_path):
    shortcut = {"shortcut": {"p": 0.5, "classes": ["1"]}}
    with refused("shortcut-needs-images", match=r"data\.shortcut\.p"):
        own(frame(patients([40, 40])), tmp_path / "r", data={"label": "died", "site": "hospital", **shortcut})


def test_comparisons_know_the_numbers(studied, noise, tmp_path):
    metrics = ("spurious_gap", "ood_auroc", "ood_accuracy", "ood_auprc", "spurious_mass", "deployed_spurious_mass")
    check_metrics(metrics, ())
    block = studied.summary["shortcut"]
    expected = [block["spurious_gap"], *(block["ood"][m] for m in ("auroc", "accuracy", "auprc"))]
    expected += [block["sam"], block["sam_deployed"]]
    plain = gr.run(experiment(noise, shortcut={}, explain={"sketch": "none"}, method={"rounds": 1}), out=tmp_path / "p")
    arms = compare([studied, plain], metrics=metrics).arms
    assert [arms[0].values(m)[0] for m in metrics] == pytest.approx(expected)
    assert all(np.isnan(arms[1].values(m)[0]) for m in metrics), "a run that studies no shortcut has none of them"
    for wrong in ("ood_acuracy", "ood_training_drift"):
        with refused("unknown-metric", match=f"'{wrong}'"):
            check_metrics((wrong,), ())
    assert [metric_label(m) for m in metrics[:2]] == ["spurious gap", "OOD AUROC"]
    assert [lower_is_better(m) for m in (*metrics, "ood_log_loss")] == [True, False, False, False, True, True, True]


def test_people_are_told(studied):
    block = studied.summary["shortcut"]
    screen = Console(file=io.StringIO(), width=400)
    show_summary(screen, studied.summary)
    text = screen.file.getvalue()
    assert f"spurious gap {block['spurious_gap']:.3f}" in text
    assert f"{block['sam_deployed']:.3f} of the final model on sites' own (by chance 0.0625)" in text
    page = report_page(studied.summary, studied.rounds, json.loads((studied.folder / "environment.json").read_text()))
    assert "<h3>Shortcut</h3>" in page and "without (OOD)" in page and "bottom left" in page
    other = {k: v for k, v in studied.summary.items() if k != "shortcut"}
    without = RunSummary.from_dict(other)
    show_summary(screen, without)
    assert "Shortcut" not in report_page(without, studied.rounds, {"packages": {}, **_machine()})


def _machine():
    return {"python": "3", "processor": "", "cores": 1, "memory_gib": 1}


def test_balanced_weights_are_in_the_ratio_of_equation_17():
    class Counted:
        classes, class_counts = ("benign", "malignant"), (8061, 1954)

    negative, positive = class_weight("balanced", Counted())
    assert positive / negative == pytest.approx(8061 / 1954)
    assert negative == pytest.approx(10015 / (2 * 8061)), "the scale: weights average to 1 over the training rows"
