"""Keys are made at the site: invitation, request, approval; and each way in which a request is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy import approval as approvals
from grandrounds.capabilities.hospital.deploy import keys, records, renewal
from grandrounds.capabilities.hospital.deploy.approval import approve
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.invitations import Invitation
from grandrounds.capabilities.hospital.deploy.key_requests import KeyRequest, join, rekey
from grandrounds.capabilities.hospital.deploy.keys import PublicKeys
from grandrounds.capabilities.hospital.deploy.manifest import check_manifest
from grandrounds.capabilities.hospital.deploy.status import list_keys, verify_all
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import Peers
from tests.capabilities.hospital.deploy.consortia import consortium_text, provisioned
from tests.command import rounds
from tests.support import refused

OPENSSH = "b3BlbnNzaC1rZXktdjE"
"""The first bytes of a private key in OpenSSH format, in base64."""

NAMES = ("cleveland", "hungary", "St. Mary Zürich")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folders:
    return provisioned(tmp_path_factory.mktemp("made"), *NAMES, make_keys=False)


@pytest.fixture
def folders(made, tmp_path) -> Folders:
    return Folders(shutil.copytree(made.out, tmp_path / "out"))


@pytest.fixture
def hospital(folders, tmp_path) -> Path:
    """The folder of cleveland, at the hospital."""
    return hand_over(folders, tmp_path, "cleveland")


def hand_over(folders: Folders, home: Path, name: str) -> Path:
    return shutil.copytree(folders.site(name), home / f"at-{folders.site(name).name}")


def yes(request: KeyRequest) -> bool:
    return True


def no(request: KeyRequest) -> bool:
    return False


def state(folders: Folders, name: str = "cleveland") -> str:
    return next(line.state for line in list_keys(folders.out) if line.name == name)


def secrets_in(path: Path) -> list[str]:
    """Private keys of a file by their marks, and texts and bytes of the size of a key that nothing public explains."""
    data = path.read_bytes()
    found = [mark for mark in ("PRIVATE KEY", "openssh-key-v1", OPENSSH) if mark.encode() in data]
    found += [text.decode() for text in re.findall(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", data)]
    return found + ([data.hex()] if len(data) == 32 else [])


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "server.pub", "site.toml", "invitation.json", "start.sh"])
@pytest.mark.parametrize("kind", ["endless", "pipe", "large"])
def test_a_handed_folder_with_a_file_that_cannot_be_read_is_refused_at_once(hospital, name, kind):
    file = hospital / name
    file.unlink()
    if kind == "endless":
        file.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.touch()
        os.truncate(file, 6 * 10**9)
    with pytest.raises(BadInput):
        join(hospital)
    assert not (hospital / "keys").exists()


def test_no_private_key_of_a_site_is_provisioned(made):
    """All 64-digit texts are digests of the folder's own files or the server's public key; nothing has a mark of a key."""
    files = [p for p in (made.out / "sites").rglob("*") if p.is_file()]
    assert len(files) > 30 and not [p for p in files if p.parent.name == "keys"]
    public = {made.identity().public.hex(), hashlib.sha256(b"test").hexdigest()}  # the latter: an example in policy.toml
    for name in NAMES:
        public |= set(json.loads((made.site(name) / "manifest.json").read_text())["files"].values())
    assert {text for p in files for text in secrets_in(p)} - public == set()


def test_the_scan_finds_the_keys_that_the_operator_makes(tmp_path):
    keys = provisioned(tmp_path, "a").site("a") / "keys"
    assert all(secrets_in(keys / name) for name in ("node", "site.key", "runtime.secret"))
    (tmp_path / "raw").write_bytes(bytes(range(32)))
    (tmp_path / "bare").write_bytes(b"\n".join((keys / "node").read_bytes().splitlines()[1:-1]))
    assert secrets_in(tmp_path / "raw") and secrets_in(tmp_path / "bare")


def test_a_site_joins_and_only_its_own_machine_has_the_private_keys(folders, hospital, tmp_path):
    assert state(folders).startswith("invited until ")
    done = rounds("site", "join", hospital, "--key", folders.server / "server.pub")
    assert done.returncode == 0, done.stderr
    request = KeyRequest.read(hospital / "request.json")
    assert request.fingerprint in done.stdout and "rounds site accept" in done.stdout
    private = [hospital / "keys" / name for name in ("node", "site.key", "runtime.secret")]
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}
    code = json.loads((hospital / "invitation.json").read_text())["code"]
    assert b"PRIVATE" not in (hospital / "request.json").read_bytes()
    assert code not in (hospital / "request.json").read_text(), "who reads the request cannot make another one"

    done = rounds("provision", "approve", folders.out, hospital / "request.json", "--fingerprint", request.fingerprint.upper())
    assert done.returncode == 0, done.stderr
    assert state(folders) == "takes part" and folders.members() == ("cleveland",)
    assert PublicKeys.load(folders.server, "cleveland") == request.keys
    for name in NAMES:
        assert Peers.load(folders.site(name) / "peers.json").keys == {"cleveland": request.keys.site}
    assert not (folders.site("cleveland") / "keys").exists() and not folders.is_invited("cleveland")
    assert not any(one.faults for one in verify_all(folders.out))

    done = rounds("site", "accept", hospital, folders.site("cleveland"), "--yes")
    assert done.returncode == 0 and request.fingerprint in done.stdout, done.stderr
    checked = check_manifest(hospital, load_public(folders.server / "server.pub"))
    assert (checked.faults, checked.notes) == ((), ())
    assert not (hospital / "invitation.json").exists() and not (hospital / "request.json").exists()
    entry = records.last_entry(folders.record)
    assert (entry["kind"], entry["made"]) == ("joined", "site")
    assert entry["sites"] == {"cleveland": request.keys.fingerprints}


def test_all_join_one_after_the_other(folders, tmp_path):
    homes = {name: hand_over(folders, tmp_path, name) for name in NAMES}
    for home in homes.values():
        join(home)
        assert approve(folders.out, home / "request.json", yes)
    assert folders.members() == NAMES
    for name, home in homes.items():
        assert rounds("site", "accept", home, folders.site(name), "--yes").returncode == 0
        assert rounds("site", "peers", home).returncode == 0
    assert not any(one.faults for one in verify_all(folders.out))


def test_a_repeated_join_keeps_the_keys(hospital):
    first = join(hospital)
    before = {p.name: p.read_bytes() for p in (hospital / "keys").iterdir()}
    assert join(hospital).keys == first.keys
    assert {p.name: p.read_bytes() for p in (hospital / "keys").iterdir()} == before


def test_a_join_that_was_interrupted_leaves_no_half_of_the_keys(hospital, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_secret", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            join(hospital)
    assert not (hospital / "keys").exists()
    join(hospital)
    assert len(list((hospital / "keys").iterdir())) == 5 and not (hospital / "keys.part").exists()


def test_a_repeated_rekey_keeps_the_keys_that_the_operator_may_have_registered(tmp_path):
    site = shutil.copytree(provisioned(tmp_path, "a").site("a"), tmp_path / "hospital")
    assert rekey(site).keys == rekey(site).keys


def test_join_refuses_a_changed_folder_and_makes_no_keys(folders, hospital):
    (hospital / "server-ca.pem").write_bytes((folders.pki / "operator-ca.pem").read_bytes())
    with refused("folder-changed", match=r"server-ca\.pem was changed"):
        join(hospital)
    assert not (hospital / "keys").exists()


def test_join_refuses_the_folder_of_another_server(hospital):
    with refused("folder-changed", match="not signed by this server"):
        join(hospital, server=Identity.new().public)
    assert not (hospital / "keys").exists()


def test_join_refuses_an_invitation_of_another_site(folders, hospital):
    shutil.copy(folders.site("hungary") / "invitation.json", hospital)
    with refused("folder-changed", match=r"invitation\.json was changed"):
        join(hospital)
    shutil.copy(folders.site("cleveland") / "invitation.json", hospital)
    shutil.copy(folders.site("hungary") / "site.toml", hospital)  # the site's own to change
    with refused("wrong-site", match="'cleveland'.*'hungary'"):
        join(hospital)


def test_join_in_the_operators_folder_is_refused(folders):
    with refused("operator-folder", match="copy it"):
        join(folders.site("cleveland"))
    assert not (folders.site("cleveland") / "keys").exists()


def test_join_needs_an_invitation(folders, hospital, tmp_path):
    done = rounds("site", "join", tmp_path)
    assert done.returncode == 2 and "has no manifest.json" in done.stderr
    old = shutil.copytree(provisioned(_folder(tmp_path / "old"), "a").site("a"), tmp_path / "with-keys")
    with refused("no-invitation", match="rounds site rekey"):
        join(old)
    join(hospital)
    approve(folders.out, hospital / "request.json", yes)
    with refused("no-invitation", match="rounds provision invite"):
        join(shutil.copytree(folders.site("cleveland"), tmp_path / "again"))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_an_invitation_ends(folders, hospital):
    ends = Invitation.load(folders.invitation("cleveland")).ends
    assert timedelta(days=13) < ends - datetime.now(UTC) <= timedelta(days=14)
    join(hospital)
    with refused("invitation-over", match=f"{ends:%Y-%m-%d}"):
        join(hospital, now=ends)
    with refused("invitation-over", match="rounds provision invite"):
        approve(folders.out, hospital / "request.json", yes, now=ends)
    line = next(line for line in list_keys(folders.out, now=ends) if line.name == "cleveland")
    assert line.state == f"invited, but the code ended {ends:%Y-%m-%d}"
    assert folders.members() == ()


def test_a_new_invitation_makes_the_earlier_code_void(folders, hospital, tmp_path):
    old = join(hospital)
    done = rounds("provision", "invite", folders.out, "cleveland", "--days", "30")
    assert done.returncode == 0, done.stderr
    with refused("wrong-code", match="cleveland"):
        approve(folders.out, hospital / "request.json", yes)
    shutil.copytree(folders.site("cleveland"), hospital, dirs_exist_ok=True)
    assert join(hospital).keys == old.keys, "the keys at the hospital stay as they are"
    assert approve(folders.out, hospital / "request.json", yes)


def test_a_code_is_used_once(folders, hospital, tmp_path):
    """Somebody who has a copy of the folder comes second."""
    thief = shutil.copytree(hospital, tmp_path / "thief")
    join(hospital)
    approve(folders.out, hospital / "request.json", yes)
    join(thief)
    with refused("code-used", match="rounds provision withdraw"):
        approve(folders.out, thief / "request.json", yes)
    assert PublicKeys.load(folders.server, "cleveland").site == Identity.load(hospital / "keys" / "site.key").public


def test_two_requests_of_one_site_need_the_fingerprint_that_it_reads_out(folders, hospital, tmp_path):
    thief = shutil.copytree(hospital, tmp_path / "thief")
    join(thief)
    assert approve(folders.out, thief / "request.json", no) is None
    assert state(folders).startswith("asked until ") and folders.members() == ()
    own = join(hospital)
    with refused("two-requests", match=own.fingerprint):
        approve(folders.out, hospital / "request.json", yes)
    assert approve(folders.out, hospital / "request.json", no, fingerprint=own.fingerprint)
    assert state(folders) == "takes part"


def test_an_approval_may_be_repeated(folders, hospital):
    join(hospital)
    first = approve(folders.out, hospital / "request.json", yes)
    assert first is not None and not first.repeated
    entries = len(records.read_entries(folders.record))
    again = approve(folders.out, hospital / "request.json", no)
    assert again is not None and again.repeated and len(records.read_entries(folders.record)) == entries
    done = rounds("provision", "approve", folders.out, hospital / "request.json")
    assert done.returncode == 0 and "takes part with these keys already" in done.stdout


@pytest.mark.parametrize("after", ["append_entry", "hand_over_sites"])
def test_an_approval_that_was_interrupted_is_finished_by_the_next(folders, hospital, monkeypatch, after):
    join(hospital)

    def dies(*args, **facts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records if after == "append_entry" else approvals, after, dies)
        with pytest.raises(KeyboardInterrupt):
            approve(folders.out, hospital / "request.json", yes)
    assert approve(folders.out, hospital / "request.json", yes)
    assert [e["kind"] for e in records.read_entries(folders.record)] == ["provisioned", "joined"]
    assert not any(one.faults for one in verify_all(folders.out)) and not folders.is_invited("cleveland")
    assert "cleveland" in Peers.load(folders.site("hungary") / "peers.json").keys


def test_a_replayed_request_does_not_close_a_later_invitation(folders, hospital):
    join(hospital)
    approve(folders.out, hospital / "request.json", yes)
    renewal.invite(folders.out, "cleveland")
    assert approve(folders.out, hospital / "request.json", yes)
    assert folders.is_invited("cleveland")


@pytest.mark.parametrize("part", ["consortium", "site", "node", "key", "signature", "node_signature", "code"])
def test_a_request_that_was_changed_on_the_way_is_refused(folders, hospital, part):
    join(hospital)
    content = json.loads((hospital / "request.json").read_text())
    other = hand_over(folders, hospital.parent, "hungary")
    join(other)
    content[part] = {**json.loads((other / "request.json").read_text()), "consortium": "lungs"}[part]
    (hospital / "request.json").write_text(json.dumps(content))
    with refused("wrong-code" if part == "code" else "request-changed"):
        approve(folders.out, hospital / "request.json", yes)
    assert folders.members() == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"site": "cleveland"}', "\x00", '{"consortium": 1, "code": "zz"}'])
def test_other_files_are_no_requests(folders, tmp_path, text):
    (tmp_path / "request.json").write_text(text)
    done = rounds("provision", "approve", folders.out, tmp_path / "request.json", "--yes")
    assert done.returncode == 2 and "request.json" in done.stderr and "Traceback" not in done.stderr


def test_a_request_for_another_consortium_or_site_is_refused(folders, tmp_path):
    other = provisioned(_folder(tmp_path / "lungs"), "cleveland", name="lungs", make_keys=False)
    there = hand_over(other, tmp_path, "cleveland")
    join(there)
    with refused("wrong-consortium", match="'lungs'.*'heart'"):
        approve(folders.out, there / "request.json", yes)
    same = provisioned(_folder(tmp_path / "same"), "basel", make_keys=False)
    there = hand_over(same, tmp_path, "basel")
    join(there)
    with refused("unknown-site", match="'basel'"):
        approve(folders.out, there / "request.json", yes)


def test_a_request_without_the_code_is_refused(folders, hospital):
    """A consortium's name and a site's name are no secret: the code is."""
    request = join(hospital)
    guess = Invitation.new("heart", "cleveland")
    forged = KeyRequest(
        "heart", "cleveland", request.keys, request.node_signature, request.signature, code=guess.prove(request.text)
    )
    forged.save(hospital / "request.json")
    with refused("wrong-code"):
        approve(folders.out, hospital / "request.json", yes)


def test_a_withdrawn_sites_request_is_refused_until_it_is_invited_again(folders, hospital, tmp_path):
    join(hospital)
    assert rounds("provision", "withdraw", folders.out, "cleveland").returncode == 0
    assert state(folders).startswith("withdrawn")
    with refused("site-withdrawn", match="rounds provision invite"):
        approve(folders.out, hospital / "request.json", yes)
    renewal.invite(folders.out, "cleveland")
    assert state(folders).startswith("invited until ")
    again = shutil.copytree(folders.site("cleveland"), tmp_path / "again")
    join(again)
    assert approve(folders.out, again / "request.json", yes) and state(folders) == "takes part"
    assert not any(one.faults for one in verify_all(folders.out))


def test_a_site_that_lost_its_keys_is_invited_again_and_its_old_keys_are_void(folders, hospital, tmp_path):
    old = join(hospital)
    approve(folders.out, hospital / "request.json", yes)
    renewal.invite(folders.out, "cleveland")
    assert PublicKeys.load(folders.server, "cleveland") == old.keys, "until the approval"
    again = shutil.copytree(folders.site("cleveland"), tmp_path / "again")
    new = join(again)
    assert approve(folders.out, again / "request.json", yes)
    assert PublicKeys.load(folders.server, "cleveland") == new.keys != old.keys
    assert state(folders) == "takes part, 1 earlier key void"


def test_two_sites_cannot_have_the_same_keys(folders, hospital, tmp_path):
    """Someone copies a folder with its keys for the next hospital; a list with a key twice would be refused by every site."""
    join(hospital)
    approve(folders.out, hospital / "request.json", yes)
    other = hand_over(folders, tmp_path, "hungary")
    shutil.copytree(hospital / "keys", other / "keys")
    join(other)
    with refused("repeated-key", match="cleveland has the keys"):
        approve(folders.out, other / "request.json", yes)


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_the_operator_is_asked(folders, hospital, monkeypatch):
    request = join(hospital)
    unasked = rounds("provision", "approve", folders.out, hospital / "request.json")
    assert unasked.returncode == 2 and "--fingerprint" in unasked.stderr and request.fingerprint in unasked.stdout
    assert folders.members() == ()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    refusal = rounds("provision", "approve", folders.out, hospital / "request.json")
    assert refusal.returncode == 1 and "nothing was approved" in refusal.stdout and folders.members() == ()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = rounds("provision", "approve", folders.out, hospital / "request.json")
    assert done.returncode == 0 and folders.members() == ("cleveland",)
    assert "not joined yet: hungary, St. Mary Zürich" in done.stdout
    monkeypatch.undo()
    done = rounds("provision", "approve", folders.out, hospital / "request.json", "--fingerprint", "1234")
    assert done.returncode == 2 and "wrong-fingerprint" in done.stderr


def test_the_operator_approves_a_rotation_with_the_same_command(tmp_path):
    folders = provisioned(tmp_path, "a", "b")
    site = shutil.copytree(folders.site("a"), tmp_path / "hospital")
    assert "keys made by the operator: rotate" in state(folders, "a")
    shown = rounds("provision", "show", folders.out).stdout
    assert "warning: the operator has had the private keys of a, b" in shown
    request = rekey(site)
    assert approve(folders.out, site / "request.json", no) is None
    done = rounds("provision", "approve", folders.out, site / "request.json", "--fingerprint", request.fingerprint)
    assert done.returncode == 0 and "rounds site rekey FOLDER --done" in done.stdout, done.stderr
    assert state(folders, "a") == "takes part, 1 earlier key void"
    assert rounds("site", "rekey", site, "--done").returncode == 0
    assert rounds("site", "accept", site, folders.site("a"), "--yes").returncode == 0


def test_sites_that_have_not_joined_are_no_members(folders, hospital):
    with refused("not-joined", match="rounds site join"):
        renewal.rotate(folders.out, "cleveland")
    done = rounds("provision", "rotate", folders.out, "cleveland")
    assert done.returncode == 2 and "rounds site rekey" in done.stderr
    done = rounds("site", "start", hospital, "--data", "none.csv")
    assert done.returncode == 2 and "has no keys yet: `rounds site join" in done.stderr
    with refused("no-keys"):
        rekey(hospital)
    done = rounds("site", "accept", hospital, folders.site("cleveland"), "--yes")
    assert done.returncode == 2 and "has no keys yet" in done.stderr
    join(hospital)
    done = rounds("site", "accept", hospital, folders.site("cleveland"), "--yes")
    assert done.returncode == 2 and "does not list cleveland yet" in done.stderr


def test_a_site_is_added_by_an_invitation(folders, tmp_path):
    source = tmp_path / "four.toml"
    source.write_text(consortium_text(*NAMES, "basel"))
    done = rounds("provision", source, "--out", folders.out, "--site", "basel")
    assert done.returncode == 0 and "rounds site join" in done.stdout, done.stderr
    assert state(folders, "basel").startswith("invited until ") and not (folders.site("basel") / "keys").exists()
    done = rounds("provision", source, "--out", folders.out, "--site", "basel")
    assert done.returncode == 2 and "already invited" in done.stderr
    assert not any(one.faults for one in verify_all(folders.out))


def test_keys_that_the_operator_made_are_not_deleted_by_an_invitation(tmp_path):
    folders = provisioned(tmp_path, "a", "b")
    with refused("operator-keys", match="rounds site"):
        renewal.invite(folders.out, "a")
    assert (folders.site("a") / "keys" / "site.key").exists()


def test_a_server_key_may_change_before_a_site_joins(folders, hospital):
    join(hospital)
    renewal.rotate_server(folders.out)
    approve(folders.out, hospital / "request.json", yes)
    done = rounds("site", "accept", hospital, folders.site("cleveland"), "--yes")
    assert done.returncode == 0 and "new server key is accepted" in done.stdout, done.stderr
