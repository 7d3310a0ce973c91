"""A database password is used and forgotten: it is in no plan, folder or message."""

from __future__ import annotations

import pytest
import sqlalchemy

import grandrounds as gr
from grandrounds.core import redact
from grandrounds.core.errors import BadInput
from grandrounds.data.readers import read_table
from tests.capabilities.sources.cohort.test_omop import postgres
from tests.runs.test_run import frame
from tests.support import patients, refused

__all__ = ["postgres"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:pa%40ss@db.example/ward", "postgresql://ann:***@db.example/ward"),
        ("postgresql://ann:pa@ss@db.example/ward", "postgresql://ann:***@db.example/ward"),
        ("mysql://h/x?user=a&password=geheim&ssl=1", "mysql://h/x?user=a&password=***&ssl=1"),
        ("sqlite:///ward.db", "sqlite:///ward.db"),
        ("patients.csv", "patients.csv"),
    ],
)
def test_hide(url, shown):
    assert redact.hide(url) == shown


def test_a_password_is_nowhere_in_a_run(postgres, tmp_path, monkeypatch):
    url = postgres.replace("secret", "hunter2")
    engine = sqlalchemy.create_engine(url)
    frame(patients([40, 40])).to_sql("stays", engine, index=False)
    engine.dispose()
    experiment = gr.Experiment.parse(
        {"data": {"table": url, "query": "stays", "label": "died", "site": "hospital"}, "method": {"rounds": 2}}
    )
    monkeypatch.chdir(tmp_path)
    run = gr.run(experiment)
    assert run.summary["rounds"] == 2
    assert "hunter2" not in str(run.folder)
    for path in run.folder.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
    with refused("missing-password"):
        gr.resume(run.folder, settings=["method.rounds=3"])
    monkeypatch.setenv(redact.VARIABLE, "hunter2")
    monkeypatch.setenv(redact.HOST, "127.0.0.1")
    assert len(gr.resume(run.folder, settings=["method.rounds=3"]).rounds) == 3


def test_messages_about_a_database_do_not_hold_the_password():
    with pytest.raises(BadInput) as e:
        read_table("sqlite:////no/such/place.db?password=hunter2", query="x")
    assert "hunter2" not in str(e.value)


STORED = "postgresql://ann:***@db.hospital.example/ward"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (STORED, None),
        (STORED, "other.hospital.example"),
        (STORED.replace("db.hospital", "evil"), "db.hospital.example"),
        (STORED + "?host=evil.example", "db.hospital.example"),
        (STORED.replace("example/", "example:6000/"), "db.hospital.example:5432"),
        ("mysql://evil.example/x?password=***", "db.hospital.example"),
    ],
)
def test_the_password_goes_to_no_host_but_the_users_own(url, host, monkeypatch):
    """A stranger's plan.json names its own host: nothing is sent there."""
    sa = pytest.importorskip("sqlalchemy")
    from grandrounds.capabilities.sources.sql_source import _with_password

    monkeypatch.setenv(redact.VARIABLE, "hunter2")
    monkeypatch.delenv(redact.HOST, raising=False)
    if host is not None:
        monkeypatch.setenv(redact.HOST, host)
    with pytest.raises(BadInput, match="by which a password could go elsewhere|set GRANDROUNDS_SQL_HOST="):
        _with_password(sa.make_url(url))


@pytest.mark.parametrize("host", ["db.hospital.example", "DB.hospital.example:5432"])
def test_the_password_goes_to_the_host_that_the_user_named(host, monkeypatch):
    sa = pytest.importorskip("sqlalchemy")
    from grandrounds.capabilities.sources.sql_source import _with_password

    monkeypatch.setenv(redact.VARIABLE, "hunter2")
    monkeypatch.setenv(redact.HOST, host)
    url = sa.make_url(STORED.replace("example/", "example:5432/"))
    assert _with_password(url).password == "hunter2"
