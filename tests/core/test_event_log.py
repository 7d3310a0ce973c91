"""Event logs: fields as JSON, no text of exceptions, bounded files."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess

import pytest

from grandrounds.core.event_log import JsonLines, LineFile, TextLines, append_line, choose_form, log_event, rotate
from tests.support import refused


@pytest.fixture
def logger():
    found = logging.Logger("grandrounds.test")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    found.addHandler(handler)
    return found, stream, handler


def test_event_is_one_json_object_with_its_fields(logger):
    log, stream, _ = logger
    log_event(log, "request sent", run="heart", round=3, site="va\n{}", bytes=12)
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["time"].endswith("+00:00")
    assert {k: v for k, v in line.items() if k != "time"} == {
        "level": "info", "event": "request sent", "run": "heart", "round": 3, "site": "va\n{}", "bytes": 12,
    }  # fmt: skip


def test_exception_leaves_its_type_and_place_but_no_text(logger):
    log, stream, handler = logger
    for form in (JsonLines(), TextLines()):
        handler.setFormatter(form)
        try:
            raise ValueError("patient 17 has lactate 9.1")
        except ValueError:
            log.exception("the work failed")
    assert "lactate" not in stream.getvalue()
    assert stream.getvalue().count("ValueError at test_event_log.py:") == 2


def test_text_has_the_sentence_or_else_the_fields(logger):
    log, stream, handler = logger
    handler.setFormatter(TextLines())
    log_event(log, "round finished", "round 4", run="heart")
    log_event(log, "request sent", site="va", bytes=7)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("+00:00 round 4") and second.endswith("request sent site=va bytes=7")


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_names_of_others_stay_on_their_line_and_send_no_commands_to_a_terminal(logger, form):
    log, stream, handler = logger
    handler.setFormatter(form)
    hostile = 'va\n2026-11-19T00:00:00+00:00 approved\r\x1b[2J\u202e"}\u2028'
    log_event(log, "request sent", site=hostile)
    log.warning("a message of run %s is refused", hostile)
    lines = stream.getvalue().split("\n")
    assert len(lines) == 3 and all(text.isprintable() for text in lines)


def test_file_is_private_and_starts_anew_when_it_is_large(tmp_path):
    path = tmp_path / "log.jsonl"
    for n in range(5):
        append_line(path, json.dumps({"n": n}), largest=20)
    kept = [json.loads(x)["n"] for file in (path.with_name("log.jsonl.1"), path) for x in file.read_text().splitlines()]
    assert kept == [0, 1, 2, 3, 4][-len(kept) :] and kept[-1] == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_rotation_empties_a_log_that_a_program_appends_to(tmp_path):
    path = tmp_path / "program.log"
    with path.open("ab") as out:
        program = subprocess.Popen(["sh", "-c", "echo before; read x; echo after"], stdout=out, stdin=subprocess.PIPE)
    while path.read_bytes() != b"before\n":
        os.sched_yield()
    assert rotate(path, largest=3) and not rotate(path, largest=3)
    program.communicate(b"\n")
    assert path.read_bytes() == b"after\n" and path.with_name("program.log.1").read_bytes() == b"before\n"


def test_full_disk_drops_lines_and_raises_nothing(tmp_path):
    log = logging.Logger("grandrounds.test")
    handler = LineFile(tmp_path / "no such folder" / "log.jsonl")
    log.addHandler(handler)
    log_event(log, "request sent")
    assert handler.dropped == 1


def test_format_is_text_on_a_terminal_and_json_elsewhere():
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        assert choose_form(None, terminal) == "text"
    os.close(leader)
    assert choose_form(None, io.StringIO()) == "json"
    assert choose_form("text", io.StringIO()) == "text"
    with refused("unknown-log-format"):
        choose_form("xml")
