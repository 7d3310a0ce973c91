"""The list of sites in every folder: who is on it when, what a site is asked before it takes another, what becomes of a run."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from grandrounds.capabilities.hospital.deploy import renewal
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.core.errors import RunFailed
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import Changes, Peers, fingerprint
from tests.capabilities.hospital.deploy.consortia import consortium_text, provisioned
from tests.command import rounds
from tests.engine.disturbed import DATA, SIZES, decisions
from tests.engine.hospitals import QUICK, Hospitals, _conducted
from tests.engine.memory_transport import MemoryTransport
from tests.support import patients, refused

NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folders:
    return provisioned(tmp_path_factory.mktemp("made"), *NAMES)


@pytest.fixture
def folders(made, tmp_path) -> Folders:
    return Folders(shutil.copytree(made.out, tmp_path / "out"))


@pytest.fixture
def hospital(folders, tmp_path) -> Path:
    """The folder of a, at the hospital."""
    return shutil.copytree(folders.site("a"), tmp_path / "hospital")


def listed(folder: Path) -> dict[str, bytes]:
    return dict(Peers.load(folder / "peers.json").keys)


def on_the_servers_list(folders: Folders) -> dict[str, bytes]:
    return {name: load_public(folders.site_key(name)) for name in folders.members()}


def everybody_knows_everybody(folders: Folders, *names: str) -> None:
    assert folders.members() == names
    for name in names:
        assert listed(folders.site(name)) == on_the_servers_list(folders)
    assert rounds("provision", "verify", folders.out).returncode == 0


def test_every_folder_has_the_keys_of_all_sites(folders):
    everybody_knows_everybody(folders, *NAMES)
    for name in NAMES:
        assert listed(folders.site(name))[name] == Identity.load(folders.site(name) / "keys" / "site.key").public


def test_lists_follow_whoever_comes_goes_or_has_new_keys(folders, hospital, tmp_path):
    before = on_the_servers_list(folders)
    done = rounds("provision", "rotate", folders.out, "b", "--make-keys")
    assert "until then it refuses secure aggregation with b (other-peer-key)" in done.stdout
    assert fingerprint(on_the_servers_list(folders)["b"]) in done.stdout
    everybody_knows_everybody(folders, *NAMES)
    assert listed(folders.site("c"))["b"] != before["b"]

    assert rounds("site", "rekey", hospital).returncode == 0
    renewal.rotate(folders.out, "a", request=hospital / "request.json")
    everybody_knows_everybody(folders, *NAMES)
    assert listed(folders.site("d"))["a"] == Identity.load(hospital / "keys.next" / "site.key").public

    assert "hand every other site its folder" in rounds("provision", "withdraw", folders.out, "d").stdout
    everybody_knows_everybody(folders, "a", "b", "c")

    source = tmp_path / "five.toml"
    source.write_text(consortium_text(*NAMES, "e"))
    done = rounds("provision", source, "--out", folders.out, "--site", "e", "--site", "d", "--make-keys")
    assert done.returncode == 0 and "refuses secure aggregation with new ones (unknown-peer)" in done.stdout
    everybody_knows_everybody(folders, *NAMES, "e")

    renewal.rotate_server(folders.out)
    everybody_knows_everybody(folders, *NAMES, "e")


def test_a_folder_that_was_deleted_is_written_anew_with_the_list(folders):
    shutil.rmtree(folders.site("c"))
    renewal.rotate(folders.out, "b")
    assert not folders.site("c").exists()
    renewal.rotate(folders.out, "c")
    everybody_knows_everybody(folders, *NAMES)


def test_two_sites_are_told_that_they_can_have_no_secure_sums(tmp_path):
    (tmp_path / "two.toml").write_text(consortium_text("a", "b"))
    done = rounds("provision", "two.toml", "--out", "out", "--make-keys", cwd=tmp_path)
    assert "note: secure aggregation (privacy.secure) needs 3 sites, and there are 2" in done.stdout
    shown = rounds("site", "peers", tmp_path / "out" / "sites" / "a")
    note = "note: 2 sites, but secure.fewest is 3: this site takes no part in secure aggregation"
    assert shown.returncode == 0 and note in shown.stdout


def test_what_hospitals_read_to_one_another_is_the_same(folders, hospital):
    one = json.loads(rounds("site", "peers", hospital, "--json").stdout)
    other = json.loads(rounds("site", "peers", folders.site("b"), "--json").stdout)
    assert (one["sites"], one["list"], one["faults"]) == (other["sites"], other["list"], [])
    assert one["sites"] == {name: fingerprint(key) for name, key in on_the_servers_list(folders).items()}
    shown = rounds("site", "peers", hospital).stdout.splitlines()
    assert [line.split("  ")[0].strip() for line in shown] == [*NAMES, "the whole list"]
    assert shown[0].endswith("(this site)") and not shown[1].endswith("(this site)")
    assert shown[-1].endswith(one["list"])


def test_a_fingerprint_is_the_beginning_of_what_sha256sum_says(hospital):
    """SHA-256 of the empty string, and of the file itself."""
    assert fingerprint(b"") == "e3b0 c442 98fc 1c14 9afb f4c8 996f b924 27ae 41e4"
    assert Peers.load(hospital / "peers.json").fingerprint == fingerprint((hospital / "peers.json").read_bytes())


def put(folder: Path, **other: bytes) -> None:
    """Other keys in a folder's list, behind everybody's back."""
    (folder / "peers.json").write_text(Peers(listed(folder) | other).text())


def test_a_list_that_was_changed_is_told(folders, hospital):
    put(hospital, b=Identity.new().public)
    done = rounds("site", "peers", hospital)
    assert done.returncode == 3 and "FOUND  peers.json was changed" in done.stdout
    done = rounds("provision", "verify", hospital, "--key", folders.server / "server.pub")
    assert done.returncode == 3 and "peers.json was changed" in done.stdout
    done = rounds("site", "accept", hospital, folders.site("a"), "--yes")
    assert done.returncode == 0 and rounds("site", "peers", hospital).returncode == 0


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 1}', '{"schema": 2, "sites": {}}', '{"schema": 1, "sites": {"a": "00"}}', "one key"]
)
def test_what_is_no_list_is_refused_in_one_sentence(hospital, text):
    if text == "one key":
        text = Peers({"a": b"x" * 32, "b": b"x" * 32}).text()
    (hospital / "peers.json").write_text(text)
    with refused("damaged-file", match=r"peers\.json"):
        SiteFolder(hospital).accepted_peers()


def test_a_list_on_its_way_that_was_changed_is_not_taken(folders, hospital):
    before = (hospital / "peers.json").read_bytes()
    put(folders.site("a"), b=Identity.new().public)
    done = rounds("site", "accept", hospital, folders.site("a"), "--yes")
    assert done.returncode == 2 and "peers.json was changed" in done.stderr
    assert (hospital / "peers.json").read_bytes() == before


def test_a_list_with_another_key_for_the_site_itself_is_not_taken(folders, hospital):
    """Keys that the operator made are no reason for the site to sign with them; it is told the ways there are."""
    before = (hospital / "peers.json").read_bytes()
    renewal.rotate(folders.out, "a")
    done = rounds("site", "accept", hospital, folders.site("a"), "--yes")
    assert done.returncode == 2 and "has another key for a than" in done.stderr
    assert (hospital / "peers.json").read_bytes() == before
    shutil.copytree(folders.site("a") / "keys", hospital / "keys", dirs_exist_ok=True)
    shown = rounds("site", "peers", hospital)
    assert shown.returncode == 3 and "another key for this site than its own" in shown.stdout
    assert rounds("site", "accept", hospital, folders.site("a"), "--yes").returncode == 0
    assert rounds("site", "peers", hospital).returncode == 0


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_what_changed_is_shown_and_asked_about(folders, hospital, monkeypatch):
    old = on_the_servers_list(folders)
    renewal.rotate(folders.out, "b")
    renewal.withdraw(folders.out, "d")
    new = on_the_servers_list(folders)
    before = (hospital / "peers.json").read_bytes()
    handed = shutil.copytree(folders.site("a"), hospital.parent / "handed", ignore=shutil.ignore_patterns("keys"))

    unasked = rounds("site", "accept", hospital, handed)
    assert unasked.returncode == 2 and "then add --yes" in unasked.stderr
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    no = rounds("site", "accept", hospital, handed)
    assert no.returncode == 1 and "nothing was accepted" in no.stdout
    assert (hospital / "peers.json").read_bytes() == before
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    yes = rounds("site", "accept", hospital, handed)
    assert yes.returncode == 0 and listed(hospital) == new
    for words in (
        f"removed    d: {fingerprint(old['d'])}",
        f"was {fingerprint(old['b'])}",
        f"is {fingerprint(new['b'])}",
    ):
        assert all(words in said.stdout for said in (unasked, no, yes))
    again = rounds("site", "accept", hospital, handed)
    assert again.returncode == 0 and "removed" not in again.stdout
    assert rounds("provision", "verify", hospital, "--key", folders.server / "server.pub").returncode == 0


def test_changes_between_lists():
    a, b, c = (bytes([k]) * 32 for k in range(3))
    found = Changes.between({"x": a, "y": b}, {"y": c, "z": a})
    assert (found.added, found.removed, found.other) == ({"z": a}, {"x": a}, {"y": (b, c)})
    assert not Changes.between({"x": a}, {"x": a})


def test_a_policy_may_take_the_servers_word(hospital):
    assert SiteFolder(hospital).accepted_peers() == listed(hospital)
    (hospital / "policy.toml").write_text('[secure]\npeers = "told"\n')
    assert SiteFolder(hospital).accepted_peers() is None
    assert 'note: secure.peers is "told"' in rounds("site", "peers", hospital).stdout
    (hospital / "policy.toml").write_text("")
    (hospital / "peers.json").unlink()
    assert SiteFolder(hospital).accepted_peers() == {}
    assert rounds("site", "peers", hospital).returncode == 2


class Consortium:
    """Four hospitals with folders as they were handed over, and a server with its own."""

    def __init__(self, folders: Folders, home: Path) -> None:
        self.folders, self.home, self.runs = folders, home, 0
        settings = {"explain": {"sketch": "none"}, "privacy": {"secure": True}}
        self.held = Hospitals.of(patients(SIZES), name="peers", data=DATA, method={"rounds": 1}, **settings)
        for name, rows in self.held.rows.items():
            shutil.copytree(folders.site(name), home / name)
            with (home / f"{name}.csv").open("w", newline="") as f:
                out = csv.writer(f)
                out.writerow(rows.columns)
                out.writerows(zip(*(column.tolist() for column in rows.columns.values()), strict=True))

    def run(self):
        """One secure round. Keepers start anew, as the folders are now."""
        self.runs += 1
        keepers = [SiteFolder(self.home / name).keeper(str(self.home / f"{name}.csv")) for name in NAMES]
        venue = self.held.venue(MemoryTransport(keepers), timeouts=QUICK)
        venue.identity, venue.keys = self.folders.identity(), on_the_servers_list(self.folders)
        venue.run = f"peers-{self.runs}"
        return decisions(_conducted(self.held.at_sites, self.home / venue.run, venue=venue))[0]

    def accept(self, *names: str) -> None:
        for name in names:
            done = rounds("site", "accept", self.home / name, self.folders.site(name), "--yes")
            assert done.returncode == 0, done.stderr


def test_after_a_rotation_sums_go_on_once_the_others_have_the_new_key(folders, tmp_path):
    """With the folders, the policies and the keepers of real sites."""
    four = Consortium(folders, tmp_path)
    assert four.run()["missing"] == {}
    assert rounds("site", "rekey", tmp_path / "b").returncode == 0
    renewal.rotate(folders.out, "b", request=tmp_path / "b" / "request.json")
    assert rounds("site", "rekey", tmp_path / "b", "--done").returncode == 0
    with refused("too-few-sites", match="other-peer-key", kind=RunFailed):
        four.run()
    shown = rounds("site", "peers", tmp_path / "a").stdout
    assert "in run peers-2: b is introduced with another key than on this site's list (peers.json) (other-peer-key)" in shown
    four.accept("b", "c", "d")
    assert four.run()["missing"] == {"a": "refused (other-peer-key)"}
    four.accept("a")
    assert four.run()["missing"] == {}
