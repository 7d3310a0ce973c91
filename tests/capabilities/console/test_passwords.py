"""Hashes of passwords: argon2id; a hash with other parameters is valid, and replaced at the next sign-in."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from grandrounds.capabilities.console.auth import passwords
from grandrounds.capabilities.console.auth.users import Role, Users, credential_proof
from tests.support import refused

PASSWORD = "four quiet words here"
OWASP = passwords.MEMORY_KIB
OLD = {"hash": PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)}
"""A hash of PASSWORD with other parameters than new ones."""


@pytest.fixture
def file(tmp_path) -> Path:
    """Users of whom one has an outdated hash."""
    out = tmp_path / "users.json"
    users = [
        {"name": "ada", "roles": ["clinician"], "password": OLD, "tokens": {}},
        {"name": "robot", "roles": ["viewer"], "password": None, "tokens": {}},
    ]
    out.write_text(json.dumps({"schema": 2, "users": users}))
    return out


def stored(file: Path, name: str = "ada") -> dict:
    return next(u["password"] for u in json.loads(file.read_text())["users"] if u["name"] == name)


def test_a_new_password_is_hashed_by_argon2id_with_the_parameters_of_owasp(tmp_path, monkeypatch):
    monkeypatch.setattr(passwords, "MEMORY_KIB", OWASP)
    users = Users.load(tmp_path / "users.json")
    users.add("ada", ["clinician"], password=PASSWORD)
    assert stored(tmp_path / "users.json")["hash"].startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert users.find_by_password("ada", PASSWORD) is not None and users.find_by_password("ada", PASSWORD + "s") is None


def test_an_old_hash_is_valid_and_is_replaced_at_the_next_right_password(file):
    users = Users.load(file)
    assert users.find_by_password("ada", "four quiet words there") is None
    assert stored(file) == OLD
    user = users.find_by_password("ada", PASSWORD)
    assert user is not None and stored(file)["hash"] != OLD["hash"]
    assert users.is_current("ada", (Role.CLINICIAN,), credential_proof(user, PASSWORD))
    again = Users.load(file)
    assert (
        again.find_by_password("ada", PASSWORD) is not None
        and again.find_by_password("ada", "wrong wrong wrong") is None
    )
    assert json.loads(file.read_text())["schema"] == 2 and stored(file, "robot") is None


def test_a_file_that_cannot_be_written_keeps_its_old_hash_and_the_user_signs_in(file, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise passwords.BadInput("the disk is full", code="cannot-write")

    monkeypatch.setattr("grandrounds.capabilities.console.auth.users.write_private", refuse)
    user = Users.load(file).find_by_password("ada", PASSWORD)
    assert (
        user is not None and stored(file) == OLD and "the disk is full" in caplog.text and PASSWORD not in caplog.text
    )


def test_a_hash_is_computed_for_every_name(file, monkeypatch):
    """An attacker who measures the time of an answer learns no names."""
    users = Users.load(file)
    computed: list[str] = []
    hasher = passwords._hasher
    monkeypatch.setattr(passwords, "_hasher", lambda: (computed.append("argon2id"), hasher())[1])
    for name in ("ada", "robot", "nobody"):
        assert users.find_by_password(name, "wrong wrong wrong") is None
        assert computed == ["argon2id"], name
        computed.clear()


def test_a_file_of_another_format_is_refused(file):
    file.write_text(file.read_text().replace('"schema": 2', '"schema": 1'))
    with refused("unsupported-version"):
        Users.load(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users.remove("ada"),
        lambda users: users.add("ada", ["clinician"], password="another quiet password"),
    ],
    ids=["removed", "another password"],
)
def test_a_user_who_changes_during_the_sign_in_is_not_let_in(file, change, monkeypatch):
    hash_password = passwords.hash_password

    def change_first(password: str):
        monkeypatch.setattr("grandrounds.capabilities.console.auth.users.hash_password", hash_password)
        change(Users.load(file))
        return hash_password(password)

    monkeypatch.setattr("grandrounds.capabilities.console.auth.users.hash_password", change_first)
    assert Users.load(file).find_by_password("ada", PASSWORD) is None
    assert OLD["hash"] not in file.read_text()


def test_a_damaged_hash_lets_nobody_in(file):
    file.write_text(file.read_text().replace(json.dumps(OLD), json.dumps({"hash": "$argon2id$damaged"})))
    assert Users.load(file).find_by_password("ada", PASSWORD) is None


def _issue(file: Path, count: int) -> None:
    for _ in range(count):
        Users.load(file).issue("robot", days=1)


def test_processes_that_change_the_file_at_once_lose_nothing(file):
    start = multiprocessing.get_context("spawn")
    others = [start.Process(target=_issue, args=(file, 20)) for _ in range(2)]
    for process in others:
        process.start()
    _issue(file, 20)
    for process in others:
        process.join(60)
    assert len(next(u for u in Users.load(file) if u.name == "robot").tokens) == 60
