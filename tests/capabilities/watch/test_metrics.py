"""Metrics of a watch, read back by a parser of Prometheus' text format."""

from __future__ import annotations

import math
import re
from datetime import datetime

import pytest

from grandrounds.capabilities.watch.at_sites.metrics import FILE, read_metrics, write_metrics
from grandrounds.capabilities.watch.at_sites.record import WatchRecord
from grandrounds.core.prometheus import label, merge_metrics, prometheus
from tests.capabilities.watch.records import SIGNER, alarm, alarmed, status

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> dict[str, dict[frozenset, float]]:
    """Read the exposition format, as its specification defines it; anything else fails."""
    assert text.endswith("\n")
    found: dict[str, dict[frozenset, float]] = {}
    kinds = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge")
            assert name not in kinds, "a name has one head"
            kinds[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, inside, value = match.groups()
        assert name in kinds, "the type comes before the values"
        assert kinds[name] != "counter" or name.endswith("_total")
        pairs = PAIR.findall(inside or "")
        assert "".join(m.group(0) for m in PAIR.finditer(inside or "")) == (inside or ""), line
        labels = frozenset((k, re.sub(r'\\["\\n]', lambda m: ESCAPED[m[0]], v)) for k, v in pairs)
        assert labels not in found.setdefault(name, {}), "a value is there once"
        found[name][labels] = float(value)
    return found


def labels(**words) -> frozenset:
    return frozenset({"run": "heart-7", "site": "va", **words}.items())


def test_the_file_has_patients_evidence_and_alarms_by_state(tmp_path):
    alarmed(tmp_path)
    odd = 'BP "sys\\dia"\nmmHg'
    with WatchRecord.open(tmp_path, signer=SIGNER) as record:
        alarms = [alarm("score up", 175, kind="score", column=""), alarm("age missing", 176, column=odd)]
        record.add_reading(status(180), alarms, new=60)
        record.acknowledge("A1", by="M. Curie")
        record.silence("age missing", by="M. Curie", patients=100)
        write_metrics(tmp_path, record, status(180))
        last = datetime.fromisoformat(record.entries[-3]["date"]).timestamp()
    found = parse((tmp_path / FILE).read_text())
    assert found["grandrounds_watch_patients_total"] == {labels(): 180}
    assert found["grandrounds_watch_labelled_total"] == {labels(): 0}
    assert found["grandrounds_watch_open_alarms"] == {labels(): 1}
    assert found["grandrounds_watch_alarms"] == {
        labels(column="age", kind="shift", state="acknowledged"): 1,
        labels(column="", kind="score", state="open"): 1,
        labels(column=odd, kind="shift", state="silenced"): 1,
    }
    assert found["grandrounds_watch_evidence"][labels(check="age up", kind="shift", column="age")] == -3.5
    assert found["grandrounds_watch_silenced"] == {labels(check="age missing"): 1}
    assert found["grandrounds_watch_stated_alarms_per_5000"] == {labels(): 1}
    assert found["grandrounds_watch_last_reading_timestamp_seconds"] == {labels(): last}, "to the second"
    assert sorted(p.name for p in tmp_path.glob("*.part")) == []


def test_a_site_serves_all_its_watches_and_skips_a_damaged_one(tmp_path):
    assert read_metrics(tmp_path / "none") == {}
    alarmed(tmp_path / "watch" / "one")
    alarmed(tmp_path / "watch" / "two")
    (tmp_path / "watch" / "two" / "watch.json").write_text("{}")
    found = parse(prometheus(read_metrics(tmp_path / "watch")))
    assert found["grandrounds_watch_open_alarms"] == {labels(): 1}
    alarmed(tmp_path / "single")
    assert parse(prometheus(read_metrics(tmp_path / "single")))["grandrounds_watch_patients_total"] == {labels(): 120}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1763438776.25, "1763438776.25"), (3.0, "3"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1e-9, "1e-09")],
)
def test_numbers_are_written_in_full(value, text):
    assert prometheus({"x": ("gauge", "About\nit.", {"": value})}) == f"# HELP x About\\nit.\n# TYPE x gauge\nx {text}\n"


def test_values_of_several_sources_come_under_one_head():
    parts = [{"x": ("gauge", "About.", {label(site=s): 1.0})} for s in ("a", "b")]
    assert parse(prometheus(merge_metrics(parts)))["x"] == {frozenset({("site", s)}): 1 for s in ("a", "b")}
