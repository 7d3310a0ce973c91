"""`rounds models`: a model from candidate to withdrawn, as people type it."""

from __future__ import annotations

import json

import pytest

from grandrounds.capabilities.dossier.register import signing_key
from tests.command import rounds
from tests.store import copied, finished

ROLES = ("medical director", "data protection officer")


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    monkeypatch.setattr(signing_key, "COSTS", {"n": 2**4, "r": 8, "p": 1})


@pytest.fixture
def models(tmp_path):
    """`rounds models` in a folder with one run, and files with the passphrases of ada and bob."""
    root = tmp_path / "work"
    copied(finished("heart", rounds=2), root / RUN)
    for name in ("ada", "bob"):
        (root / name).write_text(f"four quiet words of {name}\n")
        (root / name).chmod(0o600)

    def command(*words, code=0):
        done = rounds("models", *words, cwd=root)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code in (0, 3) else done.stderr

    command.root = root
    return command


RUN = "runs/heart-fedavg-seed0"


def by(name):
    return ("--by", name, "--passphrase-file", name)


def set_up(models):
    models("init", "--role", ROLES[0], "--role", ROLES[1])
    for name, role in zip(("ada", "bob"), ROLES, strict=True):
        models("signatory", "add", name, "--role", role, "--passphrase-file", name)


def test_the_life_of_a_model_at_the_command_line(models):
    assert "rounds models init" in models("list", code=2)
    set_up(models)
    assert "no model" in models("list")
    said = models("propose", RUN, "--purpose", "heart disease", "--by", "engineer")
    assert "is a candidate" in said and f"missing: {', '.join(ROLES)}" in said
    assert "is now: candidate; missing: data protection officer" in models("approve", RUN, *by("ada"))
    assert "is now: approved" in models("approve", RUN, *by("bob"), "--note", "DPIA of 10 November")
    assert "put in use at va by ada" in models("use", RUN, "--hospital", "va", *by("ada"))
    assert json.loads(models("list", "--site", "va", "--json"))["models"][0]["label"] == "in use"
    assert json.loads(models("list", "--site", "cleveland", "--json"))["models"] == []
    assert "verifies, with 1 model (7 entries)" in models("verify", "--key", "runs/register/register.pub")
    assert "DPIA of 10 November" in models("show", RUN)
    assert "is now: approved" in models("use", RUN, "--nowhere", *by("bob"))
    models("withdraw", RUN, "--reason", "alarm", *by("bob"))
    assert "Do not use this model" in " ".join(models("show", RUN).split())
    assert "verifies" in models("verify")


def test_wrong_people_and_passphrases_are_refused_with_one_sentence(models):
    set_up(models)
    models("propose", RUN, "--purpose", "heart disease")
    assert "[wrong-passphrase]" in models("approve", RUN, "--by", "ada", "--passphrase-file", "bob", code=2)
    assert "[unknown-signatory]" in models("approve", RUN, "--by", "eve", "--passphrase-file", "bob", code=2)
    assert "[against-register-rules]" in models("use", RUN, *by("ada"), code=2)
    assert "[no-terminal]" in models("approve", RUN, "--by", "ada", code=2)
    (models.root / "ada").chmod(0o644)
    assert "[file-not-private]" in models("approve", RUN, *by("ada"), code=2)
    assert "[register-exists]" in models("init", "--role", "x", code=2)
    assert "[unknown-role]" in models("signatory", "add", "eve", "--role", "y", "--passphrase-file", "bob", code=2)


def test_verify_names_a_changed_model_and_ends_with_code_3(models):
    set_up(models)
    models("propose", RUN, "--purpose", "heart disease")
    (models.root / RUN / "model.safetensors").write_bytes(b"other")
    assert "model.safetensors was changed" in models("verify", code=3)
    assert json.loads(models("verify", "--json", code=3))["verifies"] is False
    assert "[model-not-valid]" in models("approve", RUN, *by("ada"), code=2)


def test_a_model_that_is_withdrawn_in_the_register_is_exported_on_request_only(models):
    set_up(models)
    models("propose", RUN, "--purpose", "heart disease")

    def export(*more):
        return rounds("export", RUN, "--to", "json", "--out", "model.json", *more, cwd=models.root)

    assert export().returncode == 0  # a candidate
    models("withdraw", RUN, "--reason", "alarm of ward 3", *by("bob"))
    refused = export()
    assert refused.returncode == 2 and "[model-not-valid]" in refused.stderr and "alarm of ward 3" in refused.stderr
    allowed = export("--withdrawn")
    assert allowed.returncode == 0 and "warning: Withdrawn on" in allowed.stderr
