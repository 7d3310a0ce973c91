"""What `rounds provision` writes: modes, certificates, keys, manifests; and what it refuses."""

from __future__ import annotations

import ipaddress
import json
import shutil
import stat
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.folders import Folders
from grandrounds.capabilities.hospital.deploy.manifest import check_manifest
from grandrounds.capabilities.hospital.deploy.pki import IssuedCertificate, issue, load_certificate, new_authority
from grandrounds.capabilities.hospital.deploy.status import ENDED, ENDS_SOON, HOLDS, list_keys
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.data.agreement.schema_file import read_schema
from grandrounds.protocol.identity import Identity, load_public
from tests.capabilities.hospital.deploy.consortia import consortium_text, provisioned
from tests.command import rounds


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folders:
    return provisioned(tmp_path_factory.mktemp("made"), "cleveland", "St. Mary Zürich", address="fl.example.org")


@pytest.fixture
def copy(made, tmp_path) -> Folders:
    return Folders(shutil.copytree(made.out, tmp_path / "out"))


def _mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_keys_are_their_owners_alone(made):
    private = [p for p in made.out.rglob("*") if p.suffix in (".key", ".secret") or p.name == "node"]
    assert len(private) == 5 + 1 + 1 + 1 + 2 * 3  # pki and server.key, plan.key, runtime.secret, the operator's, three a site
    assert {_mode(p) for p in private} == {0o600}
    assert {_mode(p) for p in made.out.rglob("*") if p.is_dir()} | {_mode(made.out)} == {0o700}


def test_no_other_file_holds_a_private_key(made):
    told = [p for p in made.out.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert {_mode(p) for p in told} == {0o600}
    assert not [p for p in told if made.out / "sites" in p.parents and "keys" not in p.parts]


@pytest.mark.parametrize("name", ["superlink", "gateway"])
def test_server_certificates_name_the_address_and_this_machine(made, name):
    one = load_certificate(made.pki / f"{name}.pem")
    names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert ipaddress.ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)
    uses = one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]
    one.verify_directly_issued_by(load_certificate(made.pki / "server-ca.pem"))


def test_the_operators_certificate_is_of_another_authority(made):
    one = load_certificate(made.operator("operator") / "operator.pem")
    one.verify_directly_issued_by(load_certificate(made.pki / "operator-ca.pem"))
    with pytest.raises((ValueError, TypeError)):
        one.verify_directly_issued_by(load_certificate(made.pki / "server-ca.pem"))
    assert list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_openssl_agrees(made):
    for authority, leaf, purpose in (
        ("server-ca", made.pki / "gateway.pem", "sslserver"),
        ("operator-ca", made.operator("operator") / "operator.pem", "sslclient"),
    ):
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            made.pki / f"{authority}.pem",
            leaf,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_leaf_never_outlives_its_authority():
    authority = new_authority("x", "CA", now=datetime.now(UTC) - timedelta(days=3650))
    one = issue(authority, "late", days=365)
    assert one.certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_ssh_keygen_reads_the_nodes_key_and_finds_the_same_public_half(made):
    for name in ("cleveland", "St. Mary Zürich"):
        keys = made.site(name) / "keys"
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-P", "", "-f", keys / "node"], capture_output=True, text=True, check=True
        )
        assert shown.stdout.split()[:2] == (keys / "node.pub").read_text().split()[:2]
        assert shown.stdout.startswith("ecdsa-sha2-nistp384 ")
        assert made.node_key(name).read_text() == (keys / "node.pub").read_text()


def test_the_servers_lists_hold_what_sites_sign_with(made):
    for name in made.members():
        assert Identity.load(made.site(name) / "keys" / "site.key").public == load_public(made.site_key(name))
    assert Identity.load(made.server / "server.key").public == load_public(made.site("cleveland") / "server.pub")


def test_a_sites_folder_says_where_it_belongs(made):
    folder = made.site("St. Mary Zürich")
    said = tomllib.loads((folder / "site.toml").read_text())
    assert (said["name"], said["consortium"]) == ("St. Mary Zürich", "heart")
    assert said["server"] == {"address": "fl.example.org", "port": 9443}
    ports = [tomllib.loads((made.site(n) / "site.toml").read_text()) for n in made.members()]
    assert len({p for s in ports for p in (s["node"]["port"], s["health"]["port"])}) == 4
    assert read_schema(folder / "schema.json").label == "disease"
    Policy.load(folder / "policy.toml")


def test_no_site_gets_an_authoritys_key_or_anothers(made):
    for name in made.members():
        held = {p.name for p in made.site(name).rglob("*")}
        assert not held & {"server-ca.key", "operator-ca.key", "operator-ca.pem", "server.key", "operator.key"}


@pytest.mark.parametrize(
    "name", ["server-ca.pem", "schema.json", "start.sh", "server.pub", "peers.json", "units/grandrounds-node.service"]
)
def test_a_changed_file_is_found(copy, name):
    folder = copy.site("cleveland")
    done = rounds("provision", "verify", folder, "--key", copy.server / "server.pub")
    assert done.returncode == 0, done.stdout
    (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    done = rounds("provision", "verify", folder, "--key", copy.server / "server.pub")
    assert done.returncode == 3 and f"{name} was changed" in done.stdout


def test_a_removed_file_and_a_link_are_found(copy):
    folder = copy.site("cleveland")
    (folder / "schema.json").unlink()
    (folder / "start.sh").rename(folder / "other.sh")
    (folder / "start.sh").symlink_to("other.sh")
    found = check_manifest(folder, load_public(copy.server / "server.pub"))
    assert found.faults == ("schema.json is missing", "start.sh is missing")
    assert any("other.sh" in note for note in found.notes)


def test_a_rewritten_manifest_is_found(copy):
    folder = copy.site("cleveland")
    said = json.loads((folder / "manifest.json").read_text())
    said["files"].pop("start.sh")
    (folder / "manifest.json").write_text(json.dumps(said))
    done = rounds("provision", "verify", folder)
    assert done.returncode == 3 and "is not signed by this server" in done.stdout


def test_another_servers_folder_is_found_by_the_key_that_is_trusted(copy, tmp_path):
    other = provisioned(make_folder(tmp_path / "other"), "cleveland")
    assert rounds("provision", "verify", other.site("cleveland")).returncode == 0
    done = rounds("provision", "verify", other.site("cleveland"), "--key", copy.server / "server.pub")
    assert done.returncode == 3


def test_a_site_may_edit_its_policy(copy):
    folder = copy.site("cleveland")
    (folder / "policy.toml").write_text("# ours\n")
    done = rounds("provision", "verify", folder)
    assert done.returncode == 0 and "policy.toml was changed: the site may change it" in done.stdout


def test_an_out_that_is_there_is_never_written_over(copy):
    before = (copy.server / "server.key").read_bytes()
    done = rounds("provision", copy.consortium_file, "--out", copy.out)
    assert done.returncode == 2 and "exists and is not empty" in done.stderr
    assert (copy.server / "server.key").read_bytes() == before


def test_a_mistake_leaves_nothing_behind(tmp_path):
    (tmp_path / "c.toml").write_text(consortium_text("a", "a"))
    done = rounds("provision", "c.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: c.toml: ") and "'a'" in done.stderr and done.stderr.endswith("[repeated-site]\n")
    assert [p.name for p in tmp_path.iterdir()] == ["c.toml"]


def test_a_new_site_comes_in_and_nobody_elses_keys_change(copy, tmp_path):
    before = {name: copy.node_key(name).read_text() for name in copy.members()}
    new = tmp_path / "new.toml"
    new.write_text(consortium_text("cleveland", "St. Mary Zürich", "basel", address="fl.example.org"))
    done = rounds("provision", new, "--out", copy.out, "--site", "basel", "--make-keys")
    assert done.returncode == 0, done.stderr
    assert copy.members() == ("cleveland", "St. Mary Zürich", "basel")
    assert before == {name: copy.node_key(name).read_text() for name in before}
    assert rounds("provision", "verify", copy.out).returncode == 0


@pytest.mark.parametrize(
    ("text", "site", "said"),
    [
        (
            consortium_text("cleveland", "St. Mary Zürich", address="fl.example.org"),
            "basel",
            "there is no site 'basel'",
        ),
        (consortium_text("cleveland", "St. Mary Zürich", address="fl.example.org"), "cleveland", "already takes part"),
        (consortium_text("cleveland", "basel", address="fl.example.org"), "basel", "is no longer in the file"),
        (
            consortium_text("cleveland", "St. Mary Zürich", "basel", address="b.org"),
            "basel",
            "[server] or [data] changed",
        ),
        (
            consortium_text("cleveland", "St. Mary Zürich", "basel", "bern", address="fl.example.org"),
            "basel",
            "bern is also new in the file",
        ),
    ],
)
def test_adding_a_site_changes_nothing_else(copy, tmp_path, text, site, said):
    new = tmp_path / "new.toml"
    new.write_text(text)
    done = rounds("provision", new, "--out", copy.out, "--site", site)
    assert done.returncode == 2 and said in done.stderr
    assert copy.members() == ("cleveland", "St. Mary Zürich")


def test_plain_text_is_for_this_machine_alone(tmp_path):
    (tmp_path / "far.toml").write_text(consortium_text(address="fl.example.org"))
    done = rounds("provision", "far.toml", "--out", "out", "--insecure-loopback", cwd=tmp_path)
    assert done.returncode == 2 and "is for one machine only" in done.stderr
    folders = provisioned(tmp_path, insecure=True)
    said = tomllib.loads((folders.site("cleveland") / "site.toml").read_text())
    assert said["server"] == {"address": "127.0.0.1", "port": 9092, "insecure": True}
    assert not folders.pki.exists() and not (folders.server / "nginx.conf").exists()
    assert rounds("provision", "renew", folders.out).returncode == 2


def test_what_ends_soon_is_warned_of(copy):
    authority = IssuedCertificate.load(copy.pki, "server-ca")
    now = datetime.now(UTC)
    issue(authority, "gateway", days=30, addresses=["localhost"], now=now - timedelta(days=10)).save(
        copy.pki, "gateway"
    )
    issue(authority, "superlink", days=2, addresses=["localhost"], now=now - timedelta(days=10)).save(
        copy.pki, "superlink"
    )
    assert {line.name: line.state for line in list_keys(copy.out) if line.kind == "server"} == {
        "gateway": ENDS_SOON,
        "superlink": ENDED,
    }
    assert {line.state for line in list_keys(copy.out) if line.kind == "authority"} == {HOLDS}
    shown = rounds("provision", "show", copy.out).stdout
    assert "warning: the certificate of gateway ends soon" in shown and "St. Mary Zürich" in shown
