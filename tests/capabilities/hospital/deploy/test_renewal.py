"""Renewal, rotation, revocation, withdrawal: what changes, what does not, and what the record says of it."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest

from grandrounds.capabilities.hospital.deploy import records, renewal
from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.key_requests import rekey
from grandrounds.capabilities.hospital.deploy.pki import load_certificate, read_revocations
from grandrounds.protocol.identity import Identity, load_public
from tests.capabilities.hospital.deploy.consortia import provisioned
from tests.command import rounds
from tests.support import refused


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folders:
    return provisioned(tmp_path_factory.mktemp("made"), "cleveland", "hungary")


@pytest.fixture
def folders(made, tmp_path) -> Folders:
    return Folders(shutil.copytree(made.out, tmp_path / "out"))


def _kinds(folders: Folders) -> list[str]:
    with records.Ledger.open(folders.record) as ledger:
        return [said["kind"] for said in ledger.entries()]


def _verifies(folders: Folders, *more) -> bool:
    return rounds("provision", "verify", folders.out, *more).returncode == 0


def test_renewal_keeps_authorities_and_keys_of_sites(folders):
    kept = [folders.pki / "server-ca.pem", folders.pki / "operator-ca.pem", folders.node_key("cleveland")]
    before = [p.read_bytes() for p in kept]
    old = load_certificate(folders.pki / "gateway.pem")
    done = rounds("provision", "renew", folders.out)
    assert done.returncode == 0 and done.stdout.startswith("superlink: ")
    assert [p.read_bytes() for p in kept] == before
    new = load_certificate(folders.pki / "gateway.pem")
    assert new.serial_number != old.serial_number and new.issuer == old.issuer
    assert _kinds(folders) == ["provisioned", "renewed"] and _verifies(folders)


def test_a_revoked_operator_is_not_renewed(folders):
    renewal.add_operator(folders.out, "Eve B")
    renewal.revoke_operator(folders.out, "Eve B")
    assert set(renewal.renew(folders.out)) == {"superlink", "gateway", "operator"}


def test_a_revoked_name_takes_its_earlier_certificates_too(folders):
    renewal.add_operator(folders.out, "eve")
    first = load_certificate(folders.operator("eve") / "operator.pem").serial_number
    renewal.renew(folders.out)
    second = load_certificate(folders.operator("eve") / "operator.pem").serial_number
    renewal.revoke_operator(folders.out, "eve")
    assert set(read_revocations(folders.crl)) == {first, second}
    with refused("already-revoked"):
        renewal.revoke_operator(folders.out, "eve")
    with refused("unknown-operator", match="'evee'.*'eve'"):
        renewal.revoke_operator(folders.out, "evee")
    assert _verifies(folders)


@pytest.mark.parametrize("written", ["{:x}", "{:X}", "{:048X}"])
def test_one_certificate_is_revoked_by_its_serial_number(folders, written):
    """However many leading zeros a program prints it with."""
    serial = load_certificate(folders.operator("operator") / "operator.pem").serial_number
    renewal.renew(folders.out)
    renewal.revoke_operator(folders.out, written.format(serial))
    assert set(read_revocations(folders.crl)) == {serial}


def test_a_lost_revocation_is_found(folders):
    empty = folders.crl.read_bytes()
    renewal.revoke_operator(folders.out, "operator")
    folders.crl.write_bytes(empty)
    done = rounds("provision", "verify", folders.out)
    assert done.returncode == 3 and "lost revocation" in done.stdout


def test_names_of_operators_tell_them_apart(folders):
    for name in ("operator", "Operator"):
        with refused("duplicate-operator"):
            renewal.add_operator(folders.out, name)
    with refused("invalid-name"):
        renewal.add_operator(folders.out, "../eve")


def test_rotated_keys_are_new_and_the_old_ones_void(folders):
    before, other = folders.node_key("cleveland").read_text(), folders.node_key("hungary").read_text()
    old = records.consortium_state(folders.record).sites["cleveland"]
    assert rounds("provision", "rotate", folders.out, "cleveland", "--make-keys").returncode == 0
    assert folders.node_key("cleveland").read_text() != before
    assert folders.node_key("hungary").read_text() == other
    now = records.consortium_state(folders.record)
    assert now.void == {"cleveland": [old]} and now.sites["cleveland"] != old
    assert Identity.load(folders.site("cleveland") / "keys" / "site.key").public == load_public(
        folders.site_key("cleveland")
    )
    assert _verifies(folders)


def test_a_site_makes_keys_that_the_operator_never_holds(folders, tmp_path):
    site = shutil.copytree(folders.site("cleveland"), tmp_path / "hospital")
    done = rounds("site", "rekey", site)
    assert done.returncode == 0, done.stderr
    request = shutil.copy(site / "request.json", tmp_path / "request.json")
    assert b"PRIVATE" not in (tmp_path / "request.json").read_bytes()
    assert rounds("provision", "rotate", folders.out, "cleveland", "--request", request).returncode == 0
    assert rounds("site", "rekey", site, "--done").returncode == 0
    assert Identity.load(site / "keys" / "site.key").public == load_public(folders.site_key("cleveland"))
    assert (site / "keys" / "node.pub").read_text() == folders.node_key("cleveland").read_text()
    assert not (folders.site("cleveland") / "keys").exists()
    assert _verifies(folders)
    assert rounds("provision", "verify", site).returncode == 0


def test_a_request_of_a_stranger_is_refused(folders, tmp_path):
    site = shutil.copytree(folders.site("cleveland"), tmp_path / "hospital")
    (site / "keys" / "site.key").unlink()
    Identity.new().save(site / "keys" / "site.key")
    before = folders.node_key("cleveland").read_text()
    rekey(site)
    with refused("wrong-signature", match="'cleveland'"):
        renewal.rotate(folders.out, "cleveland", request=site / "request.json")
    with refused("wrong-site", match="'cleveland'.*'hungary'"):
        renewal.rotate(folders.out, "hungary", request=site / "request.json")
    changed = json.loads((site / "request.json").read_text())
    changed["node"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKe2f0H1cF2Zr0JQp2B1mW4y8m8rX2Jb6h7m8c7p0aXx x"
    (site / "request.json").write_text(json.dumps(changed))
    with refused("invalid-key", match="ecdsa-sha2-nistp384"):
        renewal.rotate(folders.out, "cleveland", request=site / "request.json")
    assert folders.node_key("cleveland").read_text() == before


def test_a_withdrawn_site_is_off_the_lists_and_comes_back_with_new_keys(folders):
    old = folders.node_key("hungary").read_text()
    assert rounds("provision", "withdraw", folders.out, "hungary").returncode == 0
    assert [p.name for p in (folders.server / "nodes").iterdir()] == ["cleveland.pub"]
    assert [p.name for p in (folders.server / "sites").iterdir()] == ["cleveland.pub"]
    assert "withdrawn" in rounds("provision", "show", folders.out).stdout
    assert _verifies(folders)
    for again in (["withdraw"], ["rotate", "--make-keys"]):
        done = rounds("provision", *again, folders.out, "hungary")
        assert done.returncode == 2 and "has withdrawn" in done.stderr
    done = rounds("provision", folders.consortium_file, "--out", folders.out, "--site", "hungary", "--make-keys")
    assert done.returncode == 0, done.stderr
    assert folders.members() == ("cleveland", "hungary") and folders.node_key("hungary").read_text() != old
    assert _verifies(folders)


def test_a_withdrawn_sites_key_put_back_is_found(folders):
    held = folders.node_key("hungary").read_bytes()
    renewal.withdraw(folders.out, "hungary")
    folders.node_key("hungary").write_bytes(held)
    done = rounds("provision", "verify", folders.out)
    assert done.returncode == 3 and "foreign key (hungary.pub)" in done.stdout


def test_an_exchanged_key_on_the_servers_list_is_found(folders):
    shutil.copy(folders.node_key("hungary"), folders.node_key("cleveland"))
    done = rounds("provision", "verify", folders.out)
    assert done.returncode == 3 and "is not the recorded one" in done.stdout


def test_a_new_server_key_is_endorsed_by_the_old_one(folders, tmp_path):
    site = shutil.copytree(folders.site("cleveland"), tmp_path / "hospital")
    old = load_public(site / "server.pub")
    assert rounds("provision", "rotate-server", folders.out).returncode == 0
    new = load_public(folders.server / "server.pub")
    assert new != old and Identity.load(folders.server / "server.key").public == new
    done = rounds("site", "accept", site, folders.site("cleveland"))
    assert done.returncode == 0 and "new server key is accepted" in done.stdout, done.stderr
    assert load_public(site / "server.pub") == new
    done = rounds("provision", "verify", site)
    assert done.returncode == 0, done.stdout
    renewal.rotate(folders.out, "hungary")  # signed by the new key from here on
    (tmp_path / "old.pub").write_text(old.hex())
    assert _verifies(folders) and _verifies(folders, "--key", tmp_path / "old.pub")
    (tmp_path / "other.pub").write_text(Identity.new().public.hex())
    assert not _verifies(folders, "--key", tmp_path / "other.pub")


def test_an_operator_may_delete_what_was_handed_over(folders):
    shutil.rmtree(folders.site("cleveland"))
    renewal.rotate_server(folders.out)
    assert not folders.site("cleveland").exists() and _verifies(folders)
    renewal.rotate(folders.out, "cleveland")
    assert Identity.load(folders.site("cleveland") / "keys" / "site.key").public == load_public(
        folders.site_key("cleveland")
    )
    assert (folders.site("cleveland") / "start.sh").exists() and _verifies(folders)


def test_a_server_key_that_nobody_endorsed_is_not_taken(folders, tmp_path):
    other = provisioned(make_folder(tmp_path / "other"), "cleveland", "hungary")
    done = rounds("site", "accept", folders.site("cleveland"), other.site("cleveland"))
    assert done.returncode == 2 and "not signed by the one that this site knows" in done.stderr
    done = rounds("site", "accept", folders.site("cleveland"), folders.site("hungary"))
    assert done.returncode == 2 and "is the folder of 'hungary'" in done.stderr


def test_files_that_were_changed_on_the_way_are_not_taken(folders, tmp_path):
    site = shutil.copytree(folders.site("cleveland"), tmp_path / "hospital")
    shutil.copy(folders.pki / "operator-ca.pem", folders.site("cleveland") / "server-ca.pem")
    done = rounds("site", "accept", site, folders.site("cleveland"))
    assert done.returncode == 2 and "server-ca.pem was changed" in done.stderr
    assert (site / "server-ca.pem").read_bytes() == (folders.pki / "server-ca.pem").read_bytes()


def test_a_rotation_that_was_cut_short_is_finished(folders, monkeypatch):
    """The process dies when the record names the new key and the file is still the old one: the next call takes that key."""
    real = records.append_entry

    def dying(*args, **facts):
        real(*args, **facts)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records, "append_entry", dying)
        with pytest.raises(KeyboardInterrupt):
            renewal.rotate_server(folders.out)
    named = records.last_entry(folders.record)["new"]
    assert Identity.load(folders.server / "server.key").public.hex() != named
    assert renewal.rotate_server(folders.out).hex() == named
    assert _kinds(folders) == ["provisioned", "server-rotated"] and _verifies(folders)
    assert renewal.rotate_server(folders.out).hex() != named


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        ("DELETE FROM heads WHERE size = 3", "entry without a head"),
        ("DELETE FROM entries WHERE number = 2", "truncated ledger"),
        ("UPDATE entries SET body = replace(body, 'cleveland', 'cleveLand') WHERE number = 0", "changed entry"),
    ],
)
def test_a_rewritten_record_is_found(folders, spoil, found):
    renewal.rotate(folders.out, "cleveland")
    renewal.withdraw(folders.out, "hungary")
    database = sqlite3.connect(folders.record)
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    database.execute(spoil)
    database.commit()
    database.close()
    done = rounds("provision", "verify", folders.out)
    assert done.returncode == 3 and found in done.stdout, done.stdout


def test_what_was_not_provisioned_is_refused_in_one_sentence(tmp_path):
    named = [["withdraw", "x"], ["add-operator", "x"], ["rotate", "x", "--make-keys"], ["invite", "x"], ["approve", "x.json"]]
    for command in (["show"], ["renew"], ["rotate-server"], *named):
        done = rounds("provision", command[0], tmp_path, *command[1:])
        assert done.returncode == 2 and "was not written by `rounds provision`" in done.stderr
    done = rounds("provision", "verify", tmp_path)
    assert done.returncode == 2 and "has no manifest.json" in done.stderr
