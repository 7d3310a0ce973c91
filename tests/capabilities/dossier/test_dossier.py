"""A dossier: sources of every sentence, questions to people, and alterations that verification names."""

from __future__ import annotations

import json
import re
import shutil
from hashlib import sha256

import pytest

import grandrounds as gr
from dossier import alter_figure, is_named
from grandrounds.audit.canonical import canonical
from grandrounds.audit.merkle import leaf_hash
from grandrounds.capabilities.dossier.building.document import (
    ANSWERED,
    BEGUN,
    FILLED,
    NOT_APPLICABLE,
    OPEN,
    Document,
    Section,
    exclude_item,
    make_item,
    note,
)
from grandrounds.capabilities.dossier.building.documents import DOCUMENTS, build_documents
from grandrounds.capabilities.dossier.building.evidence import COMMANDS, FOLDER, Evidence
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import QUESTIONS, Answer, read_answers, write_answers
from grandrounds.capabilities.dossier.building.statement import (
    ANSWER,
    COMMAND,
    FILE,
    GUIDELINE,
    LEDGER,
    MissingFact,
    Source,
    Statement,
    Table,
    say,
    show_value,
)
from grandrounds.capabilities.dossier.building.text import write_html, write_markdown
from grandrounds.capabilities.dossier.building.verify import verify_dossier
from grandrounds.capabilities.dossier.building.writer import MANIFEST, write_dossier
from grandrounds.core.rng import generator
from tests.store import copied, finished
from tests.support import patients, refused

DATE = "2026-01-31"


@pytest.fixture(scope="module")
def run():
    """Four hospitals, three rounds."""
    values = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 3}}
    return gr.load_run(finished(gr.Experiment.parse(values), table=patients([40, 50, 30, 45])))


@pytest.fixture(scope="module")
def evidence(run) -> Evidence:
    return Evidence.collect(run, date=DATE)


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    return write_dossier(run, tmp_path_factory.mktemp("written") / "d", pdf=False, date=DATE)


@pytest.fixture
def folder(written, tmp_path):
    """A copy that may be altered."""
    return shutil.copytree(written.folder, tmp_path / "d")


def statements(documents):
    for document in documents:
        yield from document.notes
        for item in document.items:
            yield from item.all_contents()


def at_place(value, place: str):
    """The value at a place such as "per_site.St. Mary.auroc": names may have points."""
    if not place:
        return value
    if isinstance(value, list):
        head, _, rest = place.partition(".")
        return at_place(value[int(head)], rest)
    for name in sorted(value, key=len, reverse=True):
        if place == name or place.startswith(f"{name}."):
            return at_place(value[name], place[len(name) + 1 :])
    raise KeyError(place)


def test_a_statement_without_a_source_cannot_be_made(evidence):
    with pytest.raises(ValueError, match="no source"):
        say("The model is good.")
    with pytest.raises(ValueError, match="no source"):
        Statement("The model is good.")
    with pytest.raises(ValueError, match="no source"):
        Table("Scores", ("a",), (("1",),))
    value = Facts(evidence).value("summary.json", "rounds")
    with pytest.raises(ValueError, match="were given"):
        say("It has {rounds} rounds.", rounds=value, more=value)
    assert say("It has {rounds} rounds.", rounds=value).text == "It has 3 rounds."


def test_values_are_shown_in_the_form_of_sentences():
    assert [show_value(v) for v in (1234, 0.25, 3.0, True, "a", [1, 2.5], {"a": 1})] == [
        "1,234", "0.250", "3", "yes", "a", "1, 2.500", "a 1",
    ]  # fmt: skip
    assert show_value(0.256, ".1%") == "25.6%"
    assert show_value("text", ".1%") == "text"


def test_a_missing_fact_names_the_file_and_the_value(evidence):
    facts = Facts(evidence)
    with pytest.raises(MissingFact, match="summary.json has no final.nothing"):
        facts.value("summary.json", "final", "nothing")
    with pytest.raises(MissingFact, match="the run has no attacks.json"):
        facts.value("attacks.json", "best")
    assert not facts.has("summary.json", "privacy", "epsilon")  # null


def test_the_state_of_an_item_follows_from_facts_and_answers(evidence):
    given = Facts(evidence, {"legal-basis": Answer("Art. 9(2)(j) {GDPR}", "A. Miller", DATE)})
    rounds = lambda facts: say("{n} rounds.", n=facts.value("summary.json", "rounds"))  # noqa: E731
    gap = lambda facts: say("{n}.", n=facts.value("summary.json", "nothing"))  # noqa: E731

    def state(facts, *sayings, questions=()):
        return make_item(facts, "1", "t", "a", *sayings, questions=questions).state

    assert state(given, rounds) == FILLED
    assert state(given, rounds, gap) == BEGUN
    assert state(given, gap) == OPEN
    assert state(given, rounds, questions=["intended-purpose"]) == BEGUN
    assert state(given, questions=["legal-basis"]) == ANSWERED
    assert state(Facts(evidence), questions=["legal-basis"]) == OPEN
    assert exclude_item("1", "t", "a", note("No images.", "plan")).state == NOT_APPLICABLE
    (answer,) = make_item(given, "1", "t", "a", questions=["legal-basis"]).all_contents()
    assert answer.text == f"Art. 9(2)(j) {{GDPR}} (A. Miller, {DATE})"
    assert answer.all_sources == (Source(ANSWER, "legal-basis"),)


def test_answers_survive_writing_and_reading():
    answers = {"legal-basis": Answer('Art. 9 "research" \\ consent', "Zoë", DATE)}
    text = write_answers(QUESTIONS.values(), answers)
    assert read_answers(text, where="a") == answers
    assert set(re.findall(r"^\[(.+)\]$", text, re.M)) == set(QUESTIONS)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[legal-basis", "bad-answers"),
        ("legal-basis = 3", "bad-answers"),
        ('[legal-basis]\nanswer = "yes"', "answer-without-name"),
        ('[legal-basis]\nanswer = "yes"\nby = "A"\ndate = "31.1.2026"', "bad-date"),
        ('[legal-bases]\nanswer = "yes"\nby = "A"', "unknown-question"),
        ("[legal-basis]\nanswer = 3", "bad-answers"),
    ],
)
def test_bad_answers_are_refused_in_one_sentence(text, code):
    with refused(code):
        read_answers(text, where="answers.toml")


def test_a_toml_date_is_a_date():
    assert read_answers(f'[legal-basis]\nanswer = "a"\nby = "B"\ndate = {DATE}', where="a")["legal-basis"].date == DATE


def test_every_generated_sentence_is_traced_to_evidence(run, evidence):
    """Every source of every sentence exists, with its hash, and the place that it names has the value that is shown."""
    facts = Facts(evidence)
    parsed = {name: evidence.json(name) for name in evidence.files if name.endswith(".json")}
    entries = {leaf_hash(canonical(i["entry"])).hex(): i["entry"] for i in parsed["ledger.json"]["entries"]}
    files = {command: name for name, command in COMMANDS.items()}
    count = 0
    for statement in statements(build_documents(facts)):
        assert statement.all_sources
        for source in statement.all_sources:
            count += 1
            if source.kind in (FILE, COMMAND):
                name = files.get(source.name, source.name)
                assert source.digest == sha256(evidence.files[name]).hexdigest(), source
            elif source.kind == LEDGER:
                assert f"entry {entries[source.digest]['number']} " in source.name
            else:
                assert source.kind in (ANSWER, GUIDELINE)
                assert source.name
    assert count > 100


def test_every_line_of_a_document_has_its_sources(evidence):
    for document in build_documents(Facts(evidence)):
        text = write_markdown(document)
        body, _, listed = text.partition("## Sources")
        numbers = [int(n) for n in re.findall(r"^(\d+)\. ", listed, re.M)]
        assert numbers == list(range(1, len(numbers) + 1))
        for line in body.splitlines():
            if line.startswith(("- **Open:**", "- **Not available:**")) or not line.startswith(("- ", "> ", "**")):
                continue
            marks = re.search(r"((?:\[\d+\])+)$", line)
            assert marks, line
            assert all(int(n) <= len(numbers) for n in re.findall(r"\d+", marks[1]))


def test_names_from_data_are_text_in_markdown_and_html(evidence):
    value = Facts(evidence).derive("<b>x</b> [a](b) | *c*", "a name", Source(FILE, "summary.json"))
    item = make_item(Facts(evidence), "1", "<i>", "a", lambda f: say("Site {s}.", s=value))
    document = Document("d", "D", "R", (), (Section("S", (item,)),))
    assert "<b>" not in write_html([document], title="D")
    assert r"\<b\>x\</b\> \[a\](b) \| \*c\*" in write_markdown(document)


def test_a_dossier_verifies_and_is_the_same_when_written_again(run, written, tmp_path):
    result = verify_dossier(written.folder, manifest=written.manifest[:16], run=run.folder)
    assert not result.differences
    assert any("closing entry" in line for line in result.checked)
    again = write_dossier(run, tmp_path / "again", pdf=False, date=DATE)
    assert again.manifest == written.manifest
    assert {d.name for d in written.documents} == set(DOCUMENTS)


def test_answers_are_kept_and_questions_close(run, folder):
    path = folder / "answers.toml"
    before = {q.id for q in write_dossier(run, folder, pdf=False, date=DATE).open_questions}
    filled = path.read_text().replace('[legal-basis]\nanswer = ""\nby = ""', '[legal-basis]\nanswer = "Art. 6"\nby = "A. Miller"')
    path.write_text(filled)
    assert any("answers.toml" in d.line or ".md" in d.file for d in verify_dossier(folder).differences)  # written before
    made = write_dossier(run, folder, pdf=False, date=DATE)
    assert before - {q.id for q in made.open_questions} == {"legal-basis"}
    assert path.read_text() == filled
    assert not verify_dossier(folder).differences
    path.write_text(filled.replace('by = "A. Miller"', 'by = ""'))
    with refused("answer-without-name"):
        write_dossier(run, folder, pdf=False)


@pytest.mark.parametrize("seed", range(24))
def test_an_altered_digit_is_named(folder, seed):
    change = alter_figure(folder, generator(seed, purpose="alteration"))
    result = verify_dossier(folder)
    assert is_named(change, result), (change, [d.line for d in result.differences])


def test_evidence_that_was_altered_with_its_documents_and_manifest_is_named_by_the_ledger(run, folder):
    """Somebody who writes a whole new dossier around another AUROC cannot write the ledger's closing entry."""
    summary = json.loads((folder / FOLDER / "summary.json").read_bytes())
    true = summary["final"]["auroc"]
    summary["final"]["auroc"] = 0.99
    (folder / FOLDER / "summary.json").write_text(json.dumps(summary))
    evidence = Evidence.read(folder)
    from grandrounds.capabilities.dossier.building.writer import render, write_manifest

    for name, data in render(build_documents(Facts(evidence)), evidence, {}).items():
        (folder / name).write_bytes(data)
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST}
    (folder / MANIFEST).write_bytes(write_manifest({n: sha256(d).hexdigest() for n, d in files.items()}))
    (difference,) = verify_dossier(folder).differences
    assert difference.file == "evidence/summary.json"
    assert difference.place == "final.auroc"
    assert repr(true) in difference.fault


def test_a_forged_head_a_removed_file_and_another_manifest_are_named(folder, written):
    (folder / "index.md").unlink()
    (folder / "more.txt").write_text("x")
    path = folder / FOLDER / "ledger.json"
    values = json.loads(path.read_bytes())
    values["head"]["signature"] = values["head"]["signature"][::-1]
    path.write_text(json.dumps(values))
    named = {d.file for d in verify_dossier(folder, manifest="0" * 16).differences}
    assert {"index.md", "more.txt", "evidence/ledger.json", MANIFEST} <= named
    assert verify_dossier(written.folder, key=b"\0" * 32).differences  # another server's key


def test_a_folder_that_is_no_dossier_is_refused(run, tmp_path):
    with refused("not-a-dossier"):
        verify_dossier(tmp_path)
    (tmp_path / "letters.txt").write_text("mine")
    with refused("folder-in-use"):
        write_dossier(run, tmp_path, pdf=False)
    assert (tmp_path / "letters.txt").read_text() == "mine"


def test_a_run_without_a_ledger_has_a_dossier_that_says_so(run, tmp_path):
    copy = copied(run.folder, tmp_path / "r")
    for name in ("ledger.db", "ledger.head.json"):
        (copy / name).unlink()
    made = write_dossier(gr.load_run(copy), pdf=False, date=DATE)
    result = verify_dossier(made.folder)
    assert not result.differences
    assert any("no ledger" in line for line in result.notes)


def test_the_evidence_has_counts_of_a_watch_and_none_of_its_means(run, tmp_path):
    copy = copied(run.folder, tmp_path / "r")
    folder = copy / "at_sites" / "a" / "watch"
    folder.mkdir(parents=True)
    check = {"name": "shift up: age", "kind": "shift", "rate": 1e-6, "reference": 61.5, "current": 77.25}
    alarm = {"id": "A1", "check": "shift up: age", "time": DATE, "state": "open", "sentence": "the mean is 77.25"}
    status = {"site": "a", "patients": 20, "labelled": 3, "checks": [check], "alarms": [alarm], "timeline": [77.25]}
    (folder / "watch.json").write_text(json.dumps(status))
    collected = Evidence.collect(gr.load_run(copy), date=DATE)
    stored = collected.json("watch/a.json")
    assert stored["patients"] == 20 and stored["alarms"][0]["id"] == "A1"
    assert b"77.25" not in collected.files["watch/a.json"]
    private = gr.load_run(copy)
    private.plan["privacy"]["epsilon"] = 1.0
    assert not [name for name in Evidence.collect(private, date=DATE).files if name.startswith("watch")]
