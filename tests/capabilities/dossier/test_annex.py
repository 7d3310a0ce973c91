"""Annex IV, change control plan and impact assessment: the state of every point, figures by hand, runs of every kind."""

from __future__ import annotations

import json
import re
import runpy
from copy import deepcopy
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.analysis.membership.attack import model_hash
from grandrounds.capabilities.dossier.building.document import BEGUN, FILLED, NOT_APPLICABLE, OPEN
from grandrounds.capabilities.dossier.building.documents import annex_iv, dpia, pccp
from grandrounds.capabilities.dossier.building.evidence import AUDIT, LEDGER, PLAN, PRIVACY, SUMMARY, Evidence
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.questions import QUESTIONS, Answer
from grandrounds.capabilities.dossier.building.statement import MissingFact, Table
from grandrounds.capabilities.dossier.building.statements import (
    acceptance,
    attacks,
    modifications,
    monitoring,
    privacy,
    record,
)
from grandrounds.capabilities.dossier.building.verify import verify_dossier
from grandrounds.capabilities.dossier.building.writer import write_dossier
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.protocol.tasks import specs
from tests.capabilities.watch.records import SIGNER, alarmed
from tests.store import copied, finished
from tests.support import patients, slow

DATE = "2026-01-31"
ROOT = Path(__file__).parents[3]
BUILDERS = (annex_iv.build, pccp.build, dpia.build)
PRIVATE = {"mechanism": "dp-sgd", "epsilon": 3.0, "min_rows": 20}
KINDS = {
    "private": {"privacy": PRIVATE, "evaluation": {"threshold": "half"}, "explain": {"sketch": "none"}},
    "secure": {"privacy": {"secure": True}, "explain": {"sketch": "none"}},
    "trees": {"model": {"name": "trees"}, "method": {"trees": {"rounds": 2}}},
    "regression": {"data": {"label": "died", "task": "regression"}},
    "table1": {"method": {"name": "table1"}},
}


def make_run(**sections) -> gr.Run:
    values = {"data": {"label": "died", "site": "hospital"}, "method": {"rounds": 2}}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    if "trees" in values["method"] or values["method"].get("name") == "table1":
        values["method"].pop("rounds")
    return gr.load_run(finished(gr.Experiment.parse(values), table=patients([70, 80, 60, 75])))


@pytest.fixture(scope="module")
def run():
    return make_run(evaluation={"subgroup": "ward"})


@pytest.fixture(scope="module")
def evidence(run) -> Evidence:
    return Evidence.collect(run, date=DATE)


def changed(evidence: Evidence, name: str, change) -> Evidence:
    """The evidence with one JSON file changed, or removed where `change` is None."""
    files = dict(evidence.files)
    if change is None:
        files.pop(name, None)
        return Evidence(files)
    value = deepcopy(evidence.json(name)) if name in files else {}
    replaced = change(value)
    files[name] = json.dumps(value if replaced is None else replaced).encode()
    return Evidence(files)


def with_attacks(evidence: Evidence, **bound) -> Evidence:
    found = {"members": 200, "nonmembers": 100, "auc": 0.61, "low": 0.55, "high": 0.67, "tpr": 0.035}
    content = {
        "attacks": [{"attack": "loss threshold", **found}, {"attack": "LiRA, online", **found, "auc": 0.66, "low": 0.6}],
        "sites": {"a": {"attack": "loss threshold", **found, "low": None, "high": None}},
        "shadows": 8,
        "bound": bound or None,
    }
    return changed(evidence, "attacks.json", lambda value: content)


def states(document) -> dict[str, str]:
    return {item.id: item.state for item in document.items}


def texts(content) -> list[list[str]]:
    return content.texts() if isinstance(content, Table) else [[content.text]]


def sentences(document):
    for note in document.notes:
        yield from re.split(r"(?<=[.?!:;]) ", note.text)
    for item in document.items:
        for content in item.all_contents():
            if not isinstance(content, Table):
                yield from re.split(r"(?<=[.?!:;]) ", content.template)


def test_every_point_of_annex_iv_has_its_state_on_a_table_run(evidence):
    """Points that a machine can fill are filled or begun; the others are asked of a named role."""
    document = annex_iv.build(Facts(with_attacks(evidence)))
    assert states(document) == {
        "1(a)": BEGUN, "1(b)": BEGUN, "1(c)": BEGUN, "1(d)": BEGUN, "1(e)": BEGUN, "1(f)": OPEN, "1(g)": BEGUN, "1(h)": BEGUN,
        "2(a)": FILLED, "2(b)": BEGUN, "2(c)": FILLED, "2(d)": BEGUN, "2(e)": BEGUN, "2(f)": BEGUN, "2(g)": BEGUN, "2(h)": BEGUN,
        "3.1": FILLED, "3.2": BEGUN, "3.3": BEGUN, "3.4": FILLED, "4": BEGUN, "5": BEGUN, "6": FILLED, "7": OPEN, "8": OPEN,
        "9": BEGUN,
    }  # fmt: skip
    gaps = {item.id: item.gaps for item in document.items if item.gaps}
    assert list(gaps) == ["9"]  # only the watches, which no site has begun
    for item in document.items:
        assert item.state not in (OPEN, BEGUN) or item.open_questions or item.gaps


def test_answers_fill_what_the_run_began(evidence):
    answers = {name: Answer("As agreed.", "A. Miller", DATE) for name in QUESTIONS}
    document = annex_iv.build(Facts(with_attacks(evidence), answers))
    assert [item.id for item in document.items if item.state not in (FILLED, "answered")] == ["9"]


def test_points_of_the_other_documents(evidence):
    plan, assessment = (build(Facts(with_attacks(evidence))) for build in (pccp.build, dpia.build))
    assert [s.title for s in plan.sections][:3] == ["Description of modifications", "Modification protocol", "Impact assessment"]
    assert [i for i in states(plan) if i.startswith("G")] == [f"G{k}" for k in range(1, 11)]
    assert {i for i, state in states(plan).items() if state == OPEN} == {"3.5", "G1"}  # people alone
    found = states(assessment)
    assert {i for i in found if found[i] == OPEN} >= {"a.6", "b.1", "b.2", "d.3", "d.5", "d.6", "164.504(e)"}
    assert {i for i in found if found[i] == FILLED} >= {"a.4", "b.3", "c.2", "d.1", "d.2", "d.4", "e.2", "e.3", "e.6", "e.11"}
    assert found["164.312(b)"] == found["164.316(b)(2)(i)"] == BEGUN


@pytest.mark.parametrize("kind", [slow(kind) if kind == "private" else kind for kind in KINDS])
def test_runs_of_every_kind_have_documents(kind, tmp_path):
    facts = Facts(Evidence.collect(make_run(**KINDS[kind]), date=DATE))
    for build in BUILDERS:
        document = build(facts)
        assert document.items
        for sentence in sentences(document):
            assert len(sentence.split()) <= 25, sentence
    found = states(pccp.build(facts))
    assert (found["1.1"] == NOT_APPLICABLE) == (kind == "table1")
    shown = [cell for row in privacy.tabulate_requests(facts).texts() for cell in row]
    assert any("only in a secure sum" in cell for cell in shown) == (kind == "secure")
    assert any("(charged)" in cell for cell in shown) == (kind == "private")
    assert {row[0] for row in privacy.tabulate_requests(facts).texts()} <= set(specs())
    (first, *_) = privacy.state_guarantee(facts)
    assert ("guarantees epsilon = 3 with delta = 1e-5 to each row" in first.text) == (kind == "private")
    (hidden, *_) = privacy.state_secure(facts)
    assert hidden.text.startswith("Secure aggregation hid") == (kind == "secure")


def test_requests_are_listed_with_times_and_sizes(evidence):
    """Two rounds, four explained columns (age, lactate, pressure, ward), and the parameters that summary.json counts."""
    rows = {(row[0], row[1]): row[3:] for row in privacy.tabulate_requests(Facts(evidence)).texts()}
    parameters = evidence.json(SUMMARY)["parameters"]
    assert rows["train", "model"] == ["in at most 2 rounds", f"{parameters} numbers"]
    assert rows["train", "count, steps"] == ["in at most 2 rounds", "1 number each"]
    assert rows["explain", "sketch"] == ["in at most 2 rounds and at the end", "4 numbers"]
    assert rows["summarise", "summary"][0] == "once, before round 1"
    assert rows["evaluate", "train, val, test"][0] == "in at most 2 rounds and at the end"


def test_a_watch_across_sites_discloses_sums_alone(run, tmp_path):
    facts = Facts(Evidence.collect(gr.watch_consortium(run, rows=patients([70, 80, 60, 75]), out=tmp_path / "w"), date=DATE))
    assert states(pccp.build(facts))["1.1"] == NOT_APPLICABLE
    (table,) = privacy.tabulate_disclosures(facts)
    (counts, sums) = table.texts()
    sent = facts.raw(SUMMARY, "statistic", "exchanges", "numbers_sent")
    assert counts == ["its numbers of rows"] and sums[0].startswith(f"{sent:,} counts and sums over its new")
    assert {row[0] for row in privacy.tabulate_requests(facts).texts()} >= {"watch"}


def test_no_missing_key_stops_a_document(evidence):
    """Every key of the summary and every section of the plan is taken away once, as in a damaged folder."""
    whole = with_attacks(evidence)
    for name, apart in ((SUMMARY, 10), (PLAN, 5)):
        keys = list(whole.json(name))
        for k in range(apart):
            gone = set(keys[k::apart])
            facts = Facts(changed(whole, name, lambda value, gone=gone: {n: v for n, v in value.items() if n not in gone}))
            assert all(build(facts).items for build in BUILDERS), gone
    for name in set(whole.files) - {SUMMARY, PLAN}:
        facts = Facts(changed(whole, name, None))
        assert all(build(facts).items for build in BUILDERS), name
    empty = {key: {} for key in ("privacy", "cost", "final", "sites", "worst_site", "explanation", "rows")}
    facts = Facts(changed(whole, SUMMARY, lambda value: value.update(empty)))
    assert all(build(facts).items for build in BUILDERS)


def test_a_guarantee_is_stated_with_its_unit_and_what_it_does_not_cover(evidence):
    """The record of a run with client-level noise, and of one whose ledger disagrees."""
    given = {
        "mechanism": "client", "epsilon": 7.99921, "budget": 8.0, "delta": 1e-5, "unit": "site", "trust": "trusted server",
        "clip": 1.0, "noise": 2.6845, "statement": "simulated: the noise follows from the seed",
    }  # fmt: skip
    account = {"left": 0.00079, "worked_out_again": 7.99921, "findings": [], "not_covered": ["number of rows of each site"]}
    private = changed(evidence, SUMMARY, lambda value: value.update(privacy=given))
    facts = Facts(changed(private, PRIVACY, lambda value: value.update(account)))
    assert [s.text for s in privacy.state_guarantee(facts)] == [
        "The run guarantees epsilon = 8 with delta = 1e-5 to each hospital as a whole.",
        "The budget was epsilon = 8; 0.00079 of it was not spent.",
    ]
    assert [s.text for s in privacy.state_mechanism(facts)] == [
        "The mechanism is client.",
        "The noise multiplier is 2.684, and the clipping norm is 1.",
        "The server adds the noise and sees answers without it. The sites must trust the server.",
    ]
    (said,) = privacy.state_recomputed(facts)
    assert said.text == "Recomputed from the recorded releases, epsilon is 8. The summary and the ledger agree with it."
    disclosed, gaps = privacy.tabulate_disclosures(facts)
    assert gaps.texts() == [["number of rows of each site"]]
    assert ["its numbers of training, validation and test rows"] in disclosed.texts()
    assert states(dpia.build(facts))["d.1"] == FILLED
    differs = Facts(changed(facts.evidence, PRIVACY, lambda value: value.update(findings=["round 2 differs"])))
    assert [s.text for s in privacy.state_recomputed(differs)] == [
        "The recorded releases do not agree with the stated epsilon: 1 findings."
    ]


def test_a_run_without_a_ledger_has_gaps_and_no_record(evidence):
    facts = Facts(changed(changed(evidence, LEDGER, None), AUDIT, None))
    item = next(i for i in annex_iv.build(facts).items if i.id == "6")
    assert item.state == OPEN and "the run has no ledger.json" in item.gaps[0]
    assert record.state_plan(facts).values["digest"].value == Facts(evidence).entries("close")[-1].value["plan"]
    with pytest.raises(MissingFact, match="closing entry"):
        record.state_rollback(facts)


def test_bars_are_the_lower_ends_of_intervals(evidence):
    """Hand-computed: slopes 1.1 and 0.9 deviate by a factor of at most 1 / 0.9; an interval that includes 0.5 gives no bar."""
    figures = {
        "final": {"auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9, "calibration_slope": 1.1, "count": 100.0},
        "validation": {"calibration_slope": 0.9},
        "worst_site": {"site": "b", "auroc": 0.6, "auroc_low": 0.45, "auroc_high": 0.75},
        "subgroups": {"f": {"auroc": 0.7, "auroc_low": 0.62, "auroc_high": 0.8}, "m": {"auroc": 0.9}, "x": {"auroc": None}},
        "personal": {"harmed": [], "tested": ["a"]},
    }
    facts = Facts(changed(evidence, SUMMARY, lambda value: value.update(figures)))
    bars = {bar.figure: bar for bar in acceptance.list_bars(facts)}
    assert [(name, bar.now.text, bar.proposal.text) for name, bar in bars.items()] == [
        ("AUROC, all sites", "0.800 (0.700 to 0.900)", "at least 0.700"),
        ("calibration slope", "1.10", "between 0.90 and 1.11"),
        ("AUROC, worst site (b)", "0.600 (0.450 to 0.750)", "none proposed"),
        ("AUROC, worst subgroup (f)", "0.700 (0.620 to 0.800)", "at least 0.620"),
        ("hospitals with a clearly worse log loss", "0", "at most 0"),
    ]
    assert acceptance.tabulate_bars(facts).all_sources
    (said,) = acceptance.state_bars(facts)
    assert said.text.startswith("Of 5 figures, 4 support a bar.")
    poor = Facts(changed(evidence, SUMMARY, lambda value: value["final"].update(calibration_slope=1.8)))
    assert {b.figure: b.proposal.text for b in acceptance.list_bars(poor)}["calibration slope"] == "none proposed"


def test_the_digest_of_the_settings_stays_with_new_rows(evidence):
    def digest(found: Evidence) -> str:
        return next(iter(modifications.state_settings_digest(Facts(found)))).values["digest"].value

    def take_new_rows(plan: dict) -> None:
        plan.update(seed=9, name="b")
        plan["data"].update(sha256="x", table="new.csv")

    first = digest(evidence)
    assert first == digest(changed(evidence, PLAN, take_new_rows))
    assert first != digest(changed(evidence, PLAN, lambda plan: plan["train"].update(lr=0.5)))


def test_traffic_and_ratio_by_hand(evidence):
    cost = {"bytes_up": 1000.0, "bytes_down": 400.0, "messages": 8.0, "payload_up": 300.0, "evaluation_bytes": 500.0}
    rows = {"a": {"train": 30, "val": 5, "test": 5}, "b": {"train": 10, "val": 5, "test": 5}}
    values = {"cost": cost, "sites": {"all": 4, "training": 4}, "rows": rows, "parameters": 8}
    facts = Facts(changed(evidence, SUMMARY, lambda value: value.update(values)))
    total, each, parts = privacy.state_traffic(facts)
    assert "1,000 bytes to the server and received 400 bytes, in 8 messages" in total.text
    assert each.text == "This is 250 bytes sent by each of 4 sites, on average."
    assert each.values["each"].rule == "cost.bytes_up divided by sites.all"
    assert "300 bytes" in parts.text and "500 bytes" in parts.text
    assert privacy.state_ratio(facts).text == "The model has 8 parameters. Sites hold 40 training rows: 5 for each parameter."


def test_attacks_are_stated_with_their_intervals(evidence):
    facts = Facts(with_attacks(evidence))
    said = [s.text for s in attacks.state_membership(facts)]
    assert said[0] == "The best membership attack (LiRA, online) has an AUC of 0.660 (0.600 to 0.670). Guessing has 0.5."
    assert "does better than guessing" in said[1] and said[-1] == "No epsilon per patient bounds other attacks."
    assert attacks.tabulate_membership(facts).texts()[-1] == [
        "a", "loss threshold", "200", "100", "0.610 (no interval)", "3.5%",
    ]  # fmt: skip
    bounded = Facts(with_attacks(evidence, epsilon=1.0, delta=1e-5, auc=0.731, tpr=0.027, broken=True))
    assert [s.text for s in attacks.state_membership(bounded)][-2:] == [
        "Epsilon limits any attack on covered data to an AUC of 0.731 and to 2.7% of members at 1% false alarms.",
        "An attack did better than epsilon allows.",
    ]


def test_attribute_inference_and_reconstruction_are_stated_where_they_were_run(evidence):
    overview = dict(attacks.tabulate_tests(Facts(evidence)).texts())
    assert list(overview)[:4] == ["membership inference", "attribute inference", "inversion", "reconstruction"]
    assert all("rounds attack RUN runs it" in overview[name] for name in list(overview)[:4])
    column = {
        "column": "age", "accuracy_members": 0.5, "accuracy_nonmembers": 0.4, "advantage": 0.1, "low": 0.02, "high": 0.18,
        "low_all": -0.01, "high_all": 0.21, "imputation": 0.45,
    }  # fmt: skip
    statistics = [
        {"kind": "scores", "attacked": True, "attack": "cells", "finding": "F.", "exposed": 3, "total": 4, "share": 0.75,
         "low": 0.3, "high": 0.95, "unit": "patients"},
        {"kind": "final model", "attacked": True, "attack": "model inversion", "finding": "G.", "share": None},
        {"kind": "sums", "attacked": False, "attack": "", "finding": "None is offered.", "share": None},
    ]  # fmt: skip
    more = {
        "attribute": {"worst": "age", "leaking": ["age"], "columns": [{**column, "column": "sex", "advantage": 0.0}, column]},
        "reconstruction": {"statistics": statistics},
        "not_tried": ["LiRA was not tried."],
    }
    whole = changed(with_attacks(evidence), "attacks.json", lambda value: value.update(more))
    facts = Facts(whole)
    assert [s.text for s in attacks.state_attribute(facts)] == [
        "Column 'age' differs most: a guess is right for 50.0% of training patients and 40.0% of others.",
        "The difference is +10.0% (-1.0% to +21.0%), with an interval over all columns.",
        "Of 2 columns, 1 have an advantage clearly above zero.",
    ]
    assert attacks.tabulate_attribute(facts).texts()[0] == ["age", "50.0%", "40.0%", "+10.0% (+2.0% to +18.0%)", "45.0%"]
    assert [s.text for s in attacks.state_reconstruction(facts)] == [
        "Of 3 disclosed statistics, 2 were attacked.",
        "The largest share is exposed by 'scores' (cells): 75.0% (30.0% to 95.0%) of patients.",
    ]
    first = attacks.tabulate_reconstruction(facts).texts()[0]
    assert first == ["scores", "cells", "3 of 4 patients", "75.0% (30.0% to 95.0%)", "F."]
    assert [row[1] for row in attacks.tabulate_reconstruction(facts).texts()][-1] == "not attacked"
    assert [s.text for s in attacks.state_inversion(facts)] == ["G."]
    assert states(dpia.build(Facts(evidence)))["c.2"] == states(dpia.build(Facts(evidence)))["e.11"] == BEGUN  # none was run
    found = states(dpia.build(facts))
    assert {found[i] for i in ("e.6", "e.7", "e.8", "e.9", "e.11")} == {FILLED}
    other = Facts(changed(whole, "attacks.json", lambda value: value.update(model="ab" * 32)))
    with pytest.raises(MissingFact, match="of another model"):
        attacks.tabulate_membership(other)


def test_attacks_of_this_model_are_accepted(run, evidence):
    same = changed(with_attacks(evidence), "attacks.json", lambda value: value.update(model=model_hash(run)))
    assert attacks.tabulate_membership(Facts(same)).rows


def test_a_withdrawal_is_the_first_note_of_every_document(evidence):
    valid = {"run": "heart-2", "folder": "h2", "entries": 3, "root": "ab", "model": "cd" * 32}
    entry = {"kind": "withdraw", "number": 9, "run": "x", "site": "va", "date": f"{DATE}T00:00:00Z", "valid": valid}
    facts = Facts(changed(evidence, LEDGER, lambda value: value["entries"].append({"entry": entry, "path": []})))
    for build in BUILDERS:
        assert build(facts).notes[0].text.startswith(f"WITHDRAWN: site va withdrew on {DATE}")
    table = record.tabulate_changes(facts).texts()
    assert [row[0] for row in table] == ["0", "3", "9"]
    assert table[-1][4:] == ["cdcdcdcdcdcdcdcd...", f"{DATE}T00:00:00Z"]
    assert any("'h2'" in s.text for s in record.state_changes(facts))


def test_alarms_and_actions_of_a_site_are_changes(run, tmp_path):
    """A real record of a watch: its rates, its alarm, and a recalibration by a named person."""
    copy = gr.load_run(copied(run.folder, tmp_path / "a"))
    folder = copy.folder / "at_sites" / "a" / "watch"
    folder.mkdir(parents=True)
    with WatchRecord.open(alarmed(folder), signer=SIGNER) as recorded:
        recorded.act("recalibration", by="M. Curie", alarm="A1")
    facts = Facts(Evidence.collect(copy, date=DATE))
    dossier = write_dossier(copy, tmp_path / "d", pdf=False, date=DATE).folder
    (table,) = monitoring.tabulate_actions(facts)
    rows = table.texts()
    assert [row[2] for row in rows][-1] == "action" and rows[-1][3:] == ["recalibration", "M. Curie"]
    assert any(row[2] == "alarm" for row in rows)
    (said,) = monitoring.state_actions(facts)
    assert said.text.endswith("such as recalibrations: 1.")
    (rate,) = monitoring.tabulate_rates(facts).texts()
    assert rate[0] == "a" and rate[2].startswith("at most ")
    assert any("watch-ledgers/a.json" in line and "the site signed" in line for line in verify_dossier(dossier).checked)
    file = dossier / "evidence" / "watch-ledgers" / "a.json"
    file.write_text(file.read_text().replace("M. Curie", "P. Curie"))
    assert any("not the entry under the signed head" in d.line for d in verify_dossier(dossier).differences)
    item = next(i for i in annex_iv.build(facts).items if i.id == "6")
    assert table.title in [c.title for c in item.contents if isinstance(c, Table)]


def test_the_page_of_points_is_that_of_the_forms():
    made = runpy.run_path(str(ROOT / "docs" / "dossier_points.py"))
    assert (ROOT / "docs" / "dossier-points.md").read_text() == made["page"](), "run `python docs/dossier_points.py --write`"
    listed = [field for _, part in annex_iv.FORM for field in part]
    letters = [f"{k}({letter})" for k in (1, 2) for letter in "abcdefgh"]
    assert [field.id for field in listed] == [*letters, "3.1", "3.2", "3.3", "3.4", *"456789"]
