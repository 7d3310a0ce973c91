"""README: short, with links that lead somewhere, and with lines that its commands print."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

from tests.command import rounds

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CUT = " ..."
"""A quoted line ends with it where the printed line goes on."""


def test_readme_prints_what_its_commands_print(tmp_path):
    """In order, in one folder. A line that differs is named with the nearest line that was printed: paste that into README."""
    block = README.split("```console\n")[1].split("```")[0]
    differing = []
    for part in block.removeprefix("$ ").split("\n$ "):
        command, *quoted = part.strip("\n").split("\n")
        program, *arguments = shlex.split(command, comments=True)
        assert program == "rounds" and quoted, command
        done = rounds(*arguments, cwd=tmp_path, env={"COLUMNS": "80"})
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        for line in quoted:
            begun = line.removesuffix(CUT)
            if line not in printed and (begun == line or not any(one.startswith(begun) for one in printed)):
                nearest = difflib.get_close_matches(line, printed, n=1, cutoff=0)
                differing.append(f"$ {command}\n  README:  {line}\n  printed: {nearest[0]}")
    assert not differing, "\n" + "\n".join(differing)


def row(text: str, start: str) -> list[str]:
    """Return the cells of the first row of a table that starts so, without bold marks."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]


def test_figures_of_readme_are_those_of_the_pages_that_measure_them():
    """They have their home in docs/: a new measurement there must reach README."""
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = benchmarks.split("## Harmed sites\n")[1].split("\n## ")[0]
    means = section.split("\n| data set | common model")[1]
    heart = [cell.split(" / ")[1::-1] for cell in row(means, "| heart |")[1:]]  # accuracy, log loss
    names = ("| FedAvg, one model", "| **FedAvg with the guard", "| each hospital", "| all rows", "| most common")
    assert [row(README, name)[1:] for name in names] == heart
    assert f"the {row(section, '| heart | 4 hospitals | 0 to 4')[4]} hospital-runs" in README.replace("\n", " ")
    together, alone = (row(means, "| eicu-demo")[k].split(" / ")[0] for k in (2, 3))
    assert f"log loss {together} against {alone} alone" in README


def test_readme_is_short():
    assert len(README.split()) <= 900


def test_the_first_screen_says_what_it_is_for_whom_and_what_is_not_protected():
    first = README.split("\n## ")[0]
    for needed in ("For research groups", "not a medical", "without noise", "docs/privacy.md", "server"):
        assert needed in first, needed
    assert "Explanations" in README and README.index("rounds run heart") < README.index("## Why should")


def test_links_of_readme_lead_to_a_file_and_a_heading():
    for target in re.findall(r"\]\(([^)\s]+)\)", README):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        assert (ROOT / path).is_file(), target
        if anchor:
            text = (ROOT / path).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in known | set(re.findall(r'<a id="([^"]+)"', text)), target
