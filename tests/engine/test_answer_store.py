"""Answers that wait: in memory while they are small and few, in files of the spool's own folder otherwise."""

from __future__ import annotations

from pathlib import Path

from grandrounds.core.errors import RunFailed
from grandrounds.engine import answer_store
from grandrounds.engine.answer_store import AnswerSpool
from tests.support import refused


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_large_answer_waits_in_a_file_that_only_its_owner_reads_and_is_gone_once_taken(tmp_path):
    spool = AnswerSpool(tmp_path / "made" / "here")
    large, small = b"x" * 100_000, b"y" * 100
    spool.put("a", large)
    spool.put("b", small)
    (path,) = files(tmp_path / "made" / "here")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (spool.take("b").body, spool.take("a").body) == (small, large)
    assert files(tmp_path / "made" / "here") == []


def test_many_small_answers_do_not_pile_up_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_store, "_MEMORY", 1000)
    spool = AnswerSpool(tmp_path)
    for k in range(10):
        spool.put(str(k), bytes([k]) * 300)
    assert len(files(tmp_path)) == 7, "three of 300 bytes are below 1000"
    assert [spool.take(str(k)).body for k in range(5)] == [bytes([k]) * 300 for k in range(5)]
    spool.discard(str(k) for k in range(10))
    assert files(tmp_path) == []
    spool.put("again", b"z" * 900)
    assert files(tmp_path) == [], "what was taken and dropped makes room"


def test_what_a_killed_server_left_is_removed_and_nothing_else(tmp_path):
    AnswerSpool(tmp_path).put("a", b"x" * 100_000)
    (tmp_path / "notes.txt").write_text("mine")
    AnswerSpool(tmp_path)
    assert [p.name for p in files(tmp_path)] == ["notes.txt"]


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot-write", match="file", kind=RunFailed):
        AnswerSpool(tmp_path / "file")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    spool = AnswerSpool(tmp_path)
    tmp_path.rmdir()  # as good as full: no file can be made
    with refused("cannot-write", kind=RunFailed):
        spool.put("a", b"x" * 100_000)
