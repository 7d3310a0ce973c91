"""A sealed folder: what comes out is what went in, and nothing comes out for a wrong passphrase or of a wicked archive."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from grandrounds.capabilities.hospital.deploy import seal as sealed
from tests.capabilities.hospital.deploy.consortia import consortium_text
from tests.command import rounds
from tests.support import refused

PHRASE = "correct horse battery"


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """scrypt at full cost takes a quarter of a second; one test keeps it."""
    monkeypatch.setattr(sealed, "_COST", 2**10)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "site"
    (made / "keys").mkdir(parents=True)
    (made / "empty").mkdir()
    (made / "keys" / "site.key").write_bytes(os.urandom(64))
    (made / "keys" / "site.key").chmod(0o600)
    (made / "start.sh").write_text("#!/bin/sh\n")
    (made / "start.sh").chmod(0o700)
    (made / "site.toml").write_text('name = "Zürich"\n')
    return made


def test_what_comes_out_is_what_went_in(folder, tmp_path):
    sealed.seal(folder, PHRASE, tmp_path / "s.sealed")
    out = tmp_path / "out"
    sealed.unseal(tmp_path / "s.sealed", PHRASE, out)
    for path in folder.rglob("*"):
        twin = out / path.relative_to(folder)
        assert twin.is_dir() if path.is_dir() else twin.read_bytes() == path.read_bytes()
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in out.rglob("*")}
    assert modes["site.key"] == 0o600 and modes["start.sh"] == 0o700 and modes["keys"] == modes["empty"] == 0o700


def test_nothing_can_be_read_without_the_passphrase(folder, tmp_path):
    sealed.seal(folder, PHRASE, tmp_path / "s.sealed")
    data = (tmp_path / "s.sealed").read_bytes()
    assert (folder / "keys" / "site.key").read_bytes() not in data and b"start.sh" not in data
    with refused("wrong-passphrase"):
        sealed.unseal(tmp_path / "s.sealed", PHRASE + "!", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("at", [25, 40, 60, -1])
def test_a_changed_byte_is_found(folder, tmp_path, at):
    sealed.seal(folder, PHRASE, tmp_path / "s.sealed")
    data = bytearray((tmp_path / "s.sealed").read_bytes())
    data[at] ^= 1
    (tmp_path / "s.sealed").write_bytes(data)
    with refused("wrong-passphrase"):
        sealed.unseal(tmp_path / "s.sealed", PHRASE, tmp_path / "out")


def _wicked(path, *entries: tarfile.TarInfo) -> None:
    """An archive of somebody who knows the passphrase."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for entry in entries:
            entry.size = 4 if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(b"evil") if entry.isreg() else None)
    salt, nonce = os.urandom(16), os.urandom(12)
    head = sealed.MAGIC + salt + nonce
    path.write_bytes(head + AESGCM(sealed.derive_key(PHRASE, salt)).encrypt(nonce, held.getvalue(), head))


def _entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


@pytest.mark.parametrize(
    "entries",
    [
        [_entry("../evil")],
        [_entry("keys/../../evil")],
        [_entry("/evil")],
        [_entry("evil", tarfile.SYMTYPE, "/etc/passwd")],
        [_entry("evil", tarfile.LNKTYPE, "start.sh")],
        [_entry("pipe", tarfile.FIFOTYPE)],
        [_entry("disk", tarfile.BLKTYPE)],
        [_entry("twice"), _entry("twice")],
        [_entry("..\\evil")],
    ],
    ids=lambda e: e[0].name,
)
def test_a_wicked_archive_writes_nothing(tmp_path, entries):
    _wicked(tmp_path / "w.sealed", _entry("fine"), *entries)
    with refused("unsafe-archive"):
        sealed.unseal(tmp_path / "w.sealed", PHRASE, tmp_path / "a" / "out")
    assert not (tmp_path / "a").exists() and not (tmp_path / "evil").exists()


def test_a_file_where_a_folder_must_be_is_refused(tmp_path):
    _wicked(tmp_path / "w.sealed", _entry("a"), _entry("a/b"))
    with refused("cannot-write"):
        sealed.unseal(tmp_path / "w.sealed", PHRASE, tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", sealed.MAGIC, sealed.MAGIC + bytes(10)])
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with refused("not-sealed"):
        sealed.unseal(tmp_path / "x", PHRASE, tmp_path / "out")


def test_from_provisioning_to_a_site_at_full_cost(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "_COST", 2**16)
    (tmp_path / "c.toml").write_text(consortium_text("St. Mary"))
    (tmp_path / "pass").write_text(f"{PHRASE}\n")
    assert rounds("provision", "c.toml", "--out", "out", "--seal", "pass", cwd=tmp_path).returncode == 0
    (file,) = (tmp_path / "out" / "sealed").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    done = rounds("site", "unseal", file, "--passphrase-file", tmp_path / "pass", "--out", tmp_path / "hospital")
    assert done.returncode == 0, done.stderr
    assert rounds("provision", "verify", tmp_path / "hospital").returncode == 0
    assert rounds("site", "join", tmp_path / "hospital").returncode == 0


def test_each_site_may_have_a_passphrase_of_its_own(tmp_path):
    (tmp_path / "c.toml").write_text(consortium_text("a", "b"))
    (tmp_path / "phrases").mkdir()
    (tmp_path / "phrases" / "a.txt").write_text("passphrase of a\n")
    done = rounds("provision", "c.toml", "--out", "out", "--seal", "phrases", cwd=tmp_path)
    assert done.returncode == 2 and "b.txt" in done.stderr and not (tmp_path / "out").exists()
    (tmp_path / "phrases" / "b.txt").write_text("passphrase of b\n")
    assert rounds("provision", "c.toml", "--out", "out", "--seal", "phrases", cwd=tmp_path).returncode == 0
    file = tmp_path / "out" / "sealed" / "a.sealed"
    with refused("wrong-passphrase"):
        sealed.unseal(file, "passphrase of b", tmp_path / "hospital")


def test_a_rotated_site_is_sealed_again(tmp_path):
    (tmp_path / "c.toml").write_text(consortium_text("a", "b"))
    (tmp_path / "pass").write_text(f"{PHRASE}\n")
    rounds("provision", "c.toml", "--out", "out", "--make-keys", cwd=tmp_path)
    rounds("provision", "rotate", "out", "a", "--make-keys", cwd=tmp_path)
    done = rounds("provision", "seal", "out", "--passphrase-file", "pass", "--site", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "out/sealed/a.sealed  sealed\n"), done.stderr
    sealed.unseal(tmp_path / "out" / "sealed" / "a.sealed", PHRASE, tmp_path / "hospital")
    assert (tmp_path / "hospital/keys/node").read_bytes() == (tmp_path / "out/sites/a/keys/node").read_bytes()
    shutil.rmtree(tmp_path / "out" / "sites" / "b")
    done = rounds("provision", "seal", "out", "--passphrase-file", "pass", "--site", "b", cwd=tmp_path)
    assert done.returncode == 2 and "has nothing to encrypt" in done.stderr
    shutil.rmtree(tmp_path / "out" / "sites" / "a" / "keys")
    done = rounds("provision", "seal", "out", "--passphrase-file", "pass", cwd=tmp_path)
    assert done.returncode == 2 and "nothing to encrypt, send them as they are" in done.stderr


def test_a_short_passphrase_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "c.toml").write_text(consortium_text("a"))
    (tmp_path / "pass").write_text("short\n")
    done = rounds("provision", "c.toml", "--out", "out", "--seal", "pass", cwd=tmp_path)
    assert done.returncode == 2 and "at least 12" in done.stderr and not (tmp_path / "out").exists()
