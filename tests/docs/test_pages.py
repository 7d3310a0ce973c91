"""README and all pages of docs/, read together: they agree with each other, with the code and with the results."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from grandrounds.core.errors import install_extra
from grandrounds.methods import METHODS
from grandrounds_studies import studies

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
INSTALL = re.compile(r"pip install(?P<what>[^`\n#]*)")


def sources() -> dict[str, str]:
    """Return the texts that people read or see: pages, programs, examples, benchmarks."""
    texts = dict(PAGES)
    for folder in ("src", "examples", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".toml", ".html"):
                texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return texts


def test_install_lines_start_from_a_clone_and_name_extras_that_exist():
    """The package is on no registry: whoever takes its name there would own every install of it."""
    by_name, unknown = set(), set()
    for name, text in sources().items():
        for found in INSTALL.finditer(text):
            if re.search(r"\bgrandrounds\b(?!-)", found["what"].replace("/opt/grandrounds", "")):
                by_name.add((name, found["what"].strip()))
        groups = re.findall(r"pip install[^`\n#]*?\.\[([\w,]+)\]|install_extra\(['\"](\w+)['\"]\)", text)
        unknown |= {(name, extra) for one, other in groups for extra in (one or other).split(",") if extra not in EXTRAS}
    assert not by_name
    assert not unknown
    assert "`pip install '.[console]'`" in install_extra("console")


def test_the_page_on_installing_names_every_extra():
    section = PAGES["docs/index.md"].split("## Install\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {extra for cell in cells for extra in re.findall(r"`(\w+)`", cell)} == EXTRAS


def missing(page: str) -> list[str]:
    """Return the items of a page's list of missing features, without the targets of links."""
    section = PAGES[page].split("## Not there yet\n")[1].split("\n## ")[0]
    return [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]


def test_readme_and_home_page_miss_the_same_features():
    plain = [[re.sub(r"\]\([^)]*\)", "]", item) for item in missing(page)] for page in ("README.md", "docs/index.md")]
    assert plain[0] == plain[1] != []


def test_nothing_is_missing_that_has_a_page():
    """A missing item that names the subject of a page links to it, and so says what of it is missing."""
    subjects = {
        subject.lower(): Path(name).name
        for name, text in PAGES.items()
        if name != "README.md" and text.startswith("# ")
        for subject in re.split(r" and |, ", text.splitlines()[0].removeprefix("# "))
    }
    items = [("README.md", item) for item in missing("README.md")]
    for name, text in PAGES.items():
        items += [(name, row) for row in text.splitlines() if row.startswith("|") and "not yet" in row.split("|")[2]]
    wrong = [
        (name, subject, item)
        for name, item in items
        for subject, page in subjects.items()
        if re.search(rf"\b{re.escape(subject)}\b", item.lower()) and page not in item
    ]
    assert not wrong


def test_no_page_promises_that_nothing_about_a_patient_leaves():
    promises = re.compile(r"no patient'?s? \w+ (?:ever )?leaves", re.IGNORECASE)
    assert not [(name, found[0]) for name, text in PAGES.items() for found in promises.finditer(text)]
    first_screen = PAGES["README.md"].split("\n## ")[0]
    assert "without noise" in first_screen and "(docs/privacy.md)" in first_screen


def test_nobody_is_said_to_be_worse_off_without_the_word_clearly():
    bare = re.compile(r"(?<!clearly )worse\s+off")
    texts = PAGES | {"mkdocs.yml": (ROOT / "mkdocs.yml").read_text(encoding="utf-8")}
    assert not [(name, text[found.start() - 60 : found.end()]) for name, text in texts.items() for found in bare.finditer(text)]


def test_only_runs_with_the_guard_are_said_to_count_harmed_sites():
    """A plain `rounds run` of a table trains no model of a hospital's own, so it has nothing to count."""
    said = [
        (name, sentence)
        for name, text in PAGES.items()
        for sentence in re.split(r"(?<=[.:])\s", re.sub(r"\s+", " ", text))
        if re.search(r"\bprints? the number of (\*\*)?harmed", sentence)
    ]
    assert said
    assert all("guard" in sentence for _, sentence in said), said


def test_no_code_block_is_empty():
    empty = re.compile(r"^```[\w-]*\n\s*^```$", re.MULTILINE)
    blocks = {name: re.findall(r"^ *```.*?^ *```", text, re.DOTALL | re.MULTILINE) for name, text in PAGES.items()}
    assert not [(name, block) for name, found in blocks.items() for block in found if empty.match(block.strip())]


def test_counts_of_methods_are_the_registrys():
    counted = {
        (name, int(number))
        for name, text in PAGES.items()
        if not name.startswith("docs/results/")
        for number in re.findall(r"\b(\d+) (?:federated )?methods\b", text)
    }
    assert counted
    assert {number for _, number in counted} == {len(METHODS)}, counted


VERDICT = re.compile(r"\b(?:reproduced|refuted|inconclusive)\b", re.IGNORECASE)


def test_no_page_but_the_results_states_a_verdict_of_a_reproduction():
    """Verdicts and counts of claims are computed from kept readings by docs/results_page.py; other pages link to them."""
    names = re.compile("|".join(re.escape(name) for name in studies()))
    stated = [
        (name, line[:120])
        for name, text in PAGES.items()
        if not name.startswith("docs/results/")
        for line in re.sub(r"```.*?```|<!-- claims.*?<!-- end -->", "", text, flags=re.DOTALL).splitlines()
        if VERDICT.search(line) and names.search(line)
    ]
    assert not stated


def test_the_gap_of_fedadam_always_names_the_local_epochs():
    """One epoch or five: 20 points or 6. A figure without its epochs misleads."""
    wrong = []
    for name, text in PAGES.items():
        for block in re.split(r"\n\s*\n|\n(?=- |\|)", re.sub(r"<!-- settled.*?<!-- end -->", "", text, flags=re.DOTALL)):
            if re.search(r"Fed(Adam|Yogi)", block) and re.search(r"\d+ points? below", block) and "epoch" not in block:
                wrong.append((name, block[:150]))
    assert not wrong


def test_a_recipe_named_after_a_papers_experiment_says_that_it_runs_a_preset():
    """The paper's weights and the preset are different methods: who runs the recipe must know which one it is."""
    recipes = sorted((ROOT / "src" / "grandrounds" / "recipes" / "sse-agg").glob("*.toml"))
    titles = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in recipes if "preset =" in path.read_text()}
    named = {name: title for name, title in titles.items() if re.search(r"\b(Experiment|Table) I", title)}
    assert len(named) == 3
    assert all("with preset drift, not its printed weights" in title for title in named.values()), named
