"""The examples run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_table(tmp_path):
    assert "risk" in run("own_table.py", cwd=tmp_path)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_model.py", "__main__:Residual: 1417 parameters, AUROC 0.9"),
        ("own_method.py", "q = 2: weights"),
        ("own_partition.py", "centre: 176 training rows"),
        ("own_data.py", "runs/stays-fedavg-seed0: AUROC"),
        ("own_metric.py", "final: harm 0."),
        ("own_rules.py", "has the longest update and is left out"),
        ("own_objective.py", "FedDyn         accuracy 0.9"),
        ("own_explainer.py", "nats"),
    ],
)
def test_code_of_ones_own(tmp_path, name, words):
    assert words in run(name, cwd=tmp_path)


@pytest.mark.slow
def test_the_experiment_that_names_all_of_them(tmp_path):
    code = "import sys; sys.path.pop(0); from grandrounds.cli import main; main()"  # as the installed command does
    command = [sys.executable, "-c", code, "run", "own.toml", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "own_data:stays: own_method:LossWeighted after 8 rounds" in done.stdout
    assert "harm" in done.stdout
    assert "centre" in done.stdout


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("extending.md", ["examples/own*", "tests/core/test_plugins.py", "src/grandrounds/methods/*.py"]),
    ],
)
def test_a_page_shows_code_as_it_is(page, sources):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    held = [path.read_text(encoding="utf-8") for source in sources for path in ROOT.glob(source) if path.is_file()]
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        assert any(block in code for code in held), f"not the code itself:\n{block}"


def test_the_page_lists_all_that_an_ask_can_report():
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "asks_table.py"), "--check"], check=False)
    assert done.returncode == 0, "run `python docs/asks_table.py --write`"
    assert len((ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split()) <= 2500


def test_what_leaves_a_site(tmp_path):
    text = run("what_leaves.py", cwd=tmp_path)
    assert "Inferred from them" in text
    assert "scores of test rows with their true class" in text
    assert "scores of training rows with their true class" in text
    assert "personal.harm" in text, "yes or no"


def test_the_threat_model_quotes_what_leaves_a_site(tmp_path):
    text = run("what_leaves.py", "heart", "switzerland", cwd=tmp_path)
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    quoted = page.split("it ends with:\n\n```text\n")[1].split("```")[0]
    assert quoted.startswith("Inferred from them") and text.endswith(quoted)


def test_why_a_hospital_should_join(tmp_path):
    text = run("why_join.py", cwd=tmp_path)
    lines = {line.split()[0]: line.split() for line in text.splitlines()[1:-1]}
    assert set(lines) == {"cleveland", "hungarian", "switzerland", "va"}
    _, choice, patients, common, own, majority, deployed, _ = lines["switzerland"]
    assert (choice, patients) == ("intercept", "19")
    assert float(deployed) < float(own) < float(common)
    assert float(majority) < float(deployed), "18 of 19 are ill"
    assert text.splitlines()[-1] == "harmed: none of 4 hospitals that can be tested"


@pytest.mark.slow
def test_the_experiment_file_and_the_pooled_check(tmp_path):
    import grandrounds as gr

    held = gr.run(gr.Experiment.load(EXAMPLES / "experiment.toml"), out=tmp_path / "r")
    text = run("pooled_check.py", str(held.folder), cwd=tmp_path)
    worst = max(float(line.split()[-1]) for line in text.splitlines() if line.startswith(("auroc", "auprc", "brier")))
    assert worst < 1e-3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("robust", ["clip", "geometric-median", "multi-krum"])
def test_the_composition_says_what_each_part_did(robust, tmp_path):
    """Selection, reasons, cohorts, a robust rule and a stability in one method: who decided what is in the record."""
    import grandrounds as gr

    asked = gr.Experiment.load(EXAMPLES / "composition.toml")
    if robust != "clip":
        asked = asked.with_settings([f"method.robust.rule={robust}", "method.rounds=2"])
    held = gr.run(asked, out=tmp_path / "r")
    for decision in (r["decision"] for r in held.rounds):
        stages = {stage["part"]: stage for stage in decision["stages"]}
        assert list(stages) == ["select", "weigh", "cohorts", "robust", "stability"]
        assert all(stage["why"] for stage in stages.values())
        assert len(decision["weights"]) == len(decision["asked"]) == 10
        for part in ("weigh", "cohorts", "robust"):
            assert set(stages[part]["weights"]) == set(decision["weights"])
            assert sum(stages[part]["weights"].values()) == pytest.approx(1)
        assert stages["robust"]["weights"] == decision["weights"]
        assert stages["cohorts"]["weights"] == pytest.approx(stages["weigh"]["weights"]), (
            "a cohort counts as its sites do"
        )
        assert set(decision["shares"]) == {"data", "agreement"}
        for site, weight in decision["weights"].items():
            assert sum(share[site] for share in decision["shares"].values()) == pytest.approx(weight)
        assert set(decision["cohorts"]["of"].values()) == {1, 2}
    if robust == "clip":  # as the comments in the file have it
        fourth = held.rounds[3]["decision"]["weights"]
        assert set(sorted(fourth, key=fourth.get)[:2]) == {"site-04", "site-09"}
        assert "They are outliers" in held.why(4, "site-04")
