"""The Dockerfile, Compose files and the Helm chart, read by the programs that read them: hadolint, compose-spec, helm.

tests/capabilities/hospital/deploy/test_containers_for_real.py builds the images and starts them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from grandrounds.capabilities.hospital.deploy.consortium import parse
from grandrounds.capabilities.hospital.deploy.containers import NODE_FILES, server_compose, site_compose
from tests.capabilities.hospital.deploy.consortia import consortium_text, free_port, provisioned

ROOT = Path(__file__).resolve().parents[4]
DOCKERFILE, BUILD, HEALTH = (ROOT / "containers" / name for name in ("Dockerfile", "build.sh", "health.py"))
CHART = ROOT / "charts" / "grandrounds"
CONSORTIUM = parse(consortium_text("St. Mary Zürich", address="fl.example.org"))
VARIABLES = {"DATA": "/srv/tables", "TABLE": "mary.parquet", "OWNER": "1000:1000"}


def program(name: str) -> str:
    """Path of a program that the dev packages install; the test is skipped where they have none for this machine."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


# The Dockerfile


def stages() -> dict[str, list[str]]:
    """Instructions of each stage of the Dockerfile, with those of the stages that it is made from."""
    text = re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text()).replace("\\\n", " ")
    result: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if named := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            current = result[named[2]] = list(result.get(named[1], []))
        current.append(line)
    return result


def test_hadolint_finds_no_fault():
    done = subprocess.run([program("hadolint"), DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", ["server", "site", "console"])
def test_an_image_has_an_ordinary_user_a_health_check_and_one_thread(target):
    lines = stages()[target]
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 10001:10001"
    checks = [line for line in lines if line.startswith("HEALTHCHECK ")]
    assert len(checks) == 1 and re.search(r'CMD \["health", (?:"--tls", )?"\d+"\]$', checks[0])
    environment = next(line for line in lines if line.startswith("ENV "))
    assert "OMP_NUM_THREADS=1" in environment and "OPENBLAS_NUM_THREADS=1" in environment
    copied = [line for line in lines if line.startswith(("COPY ", "ADD "))]
    assert len(copied) == 2, "the environment and the health check; neither the repository nor the wheels"
    assert not re.search(r"gcc|build-essential|curl|wget|(?i:password|secret|token)", "\n".join(lines))


def test_the_base_is_an_argument_of_every_stage():
    text = DOCKERFILE.read_text()
    assert re.search(r"(?m)^ARG BASE=docker.io/library/python:3\.\d+-slim", text)
    bases = re.findall(r"(?m)^FROM (\S+) AS", text)
    assert set(bases) == {"${BASE}", "common"}


def test_the_context_of_a_build_leaves_all_else_out():
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*" and ".git" not in "".join(r for r in rules if r.startswith("!"))
    installed = {"!src", "!pyproject.toml", "!README.md", "!LICENSE", "!constraints.txt", "!containers/health.py"}
    assert installed <= set(rules)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fast"], "unknown option --fast"),
        (["--wheels"], "--wheels needs a value"),
        (["--wheels", "/nowhere"], "/nowhere has no requirements.txt"),
        (["--only", "database"], "unknown target database"),
        (["--only", "base"], "--only base needs --debian SUITE"),
        (["--tool", "make"], "unknown tool make"),
    ],
)
def test_a_mistake_in_the_build_command_is_one_sentence(words, sentence):
    tool = [] if "--tool" in words else ["--tool", "buildah"]
    done = subprocess.run(["sh", BUILD, *tool, *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"containers/build.sh: {sentence}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


# The health check


@contextmanager
def page(status: int) -> Iterator[int]:
    """A health page that answers with this status; gives its port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"ok": true}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def health(*words: object) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-I", "-S", HEALTH, *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_health_check_follows_the_page():
    with page(200) as port:
        assert health(port) == (0, '{"ok": true}\n')
    with page(503) as port:
        assert health(port)[0] == 1
        assert health("--alive", port)[0] == 0, "a restart would not help a site that is offline"


def test_a_health_check_without_an_answer_fails():
    port = free_port()
    status, text = health("--alive", port)
    assert status == 1 and text.startswith(f"no answer on 127.0.0.1:{port}")
    assert health()[0] == 2 and health("--fast", port)[0] == 2 and health("http://x")[0] == 2


# Compose


def fill(text: str) -> str:
    """A Compose file with its variables filled in."""
    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", lambda m: VARIABLES.get(m[1], m[3] if m[2] == "-" else ""), text)


def services(text: str) -> dict[str, Any]:
    """Services of a Compose file that follows the specification."""
    pytest.importorskip("compose_spec").PyCompose.from_yaml(fill(text)).validate()
    return yaml.safe_load(fill(text))["services"]


COMPOSED = {"server": server_compose(CONSORTIUM), "site": site_compose(CONSORTIUM.sites[0], 9500, 9501)}


@pytest.mark.parametrize("text", COMPOSED.values(), ids=COMPOSED)
def test_services_are_restricted_and_checked(text):
    for service in services(text).values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"]
        assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
        assert service["user"] == "1000:1000"
        assert service["healthcheck"]["test"][:2] == ["CMD", "health"]
        assert re.fullmatch(r"localhost/grandrounds-(server|site|console):\d+\.\d+\.\d+(\.dev\d+)?", service["image"])


def test_a_file_of_compose_that_is_wrong_is_found():
    compose_spec = pytest.importorskip("compose_spec")
    with pytest.raises(Exception, match="read_only"):
        compose_spec.PyCompose.from_yaml(fill(COMPOSED["server"]).replace("read_only: true", "read_only: [1]"))


def test_only_gateway_and_console_are_open_and_the_console_has_no_key_of_the_server():
    server, site = services(COMPOSED["server"]), services(COMPOSED["site"])
    assert server["server"]["ports"] == ["9443:9443"] and server["console"]["ports"] == ["8600:8600"]
    assert server["console"]["profiles"] == ["console"]
    assert server["console"]["volumes"] == ["./runs:/runs:ro", "./console:/folder"]
    assert "ports" not in site["node"] and "ports" not in site["keeper"]


def test_the_network_part_of_a_site_has_neither_table_nor_signing_key():
    site = services(COMPOSED["site"])
    mounts = [volume.split(":")[0] for volume in site["node"]["volumes"]]
    assert mounts == [*(f"./{name}" for name in NODE_FILES), "./state"]
    assert not {".", "./keys", "./keys/site.key", "./policy.toml"} & set(mounts)
    assert site["keeper"]["network_mode"] == "service:node"
    assert "/srv/tables:/data:ro" in site["keeper"]["volumes"]


def test_provisioned_folders_have_what_their_compose_files_mount(tmp_path):
    folders = provisioned(tmp_path, address="fl.example.org")
    for folder in (folders.server, folders.site("cleveland")):
        for service in services((folder / "compose.yaml").read_text()).values():
            mounted = {v.split(":")[0] for v in service["volumes"]} - {"/srv/tables", "./console", "./state"}
            assert mounted and all((folder / name).exists() for name in mounted)


def test_without_tls_there_is_nothing_for_containers(tmp_path):
    folders = provisioned(tmp_path, insecure=True)
    assert not list(folders.out.rglob("compose.yaml"))


# The Helm chart

VALUES = {
    "server.enabled": "true",
    "server.folder.existingSecret": "heart-server",
    "site.enabled": "true",
    "site.folder.existingSecret": "va-folder",
    "site.data.table": "/data/va.parquet",
    "site.data.existingClaim": "tables",
    "site.data.environmentSecret": "va-database",
    "site.networkPolicy.gateway.cidr": "192.0.2.10/32",
    "console.enabled": "true",
    "console.users.existingSecret": "console-users",
    "console.sso.existingSecret": "console-sso",
    "console.tls.existingSecret": "console-tls",
}


def helm(values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return subprocess.run([program("helm"), "template", "heart", CHART, *settings], capture_output=True, text=True)


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Manifests of all three parts, by kind and name."""
    done = helm(VALUES)
    assert done.returncode == 0, done.stderr
    return {(m["kind"], m["metadata"]["name"]): m for m in yaml.safe_load_all(done.stdout) if m}


def test_helm_finds_no_fault_in_the_chart():
    done = subprocess.run([program("helm"), "lint", "--strict", CHART], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_manifests_follow_the_schemas_of_kubernetes(manifests, version):
    validator = pytest.importorskip("kubernetes_validate")
    assert len(manifests) == 11
    for manifest in manifests.values():
        validator.validate(manifest, version, strict=True)
    wrong = json.loads(json.dumps(manifests["StatefulSet", "heart-site"]).replace("readOnlyRootFilesystem", "readOnlyRoot"))
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, version, strict=True)


def containers(manifests: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for (kind, _), manifest in manifests.items():
        if kind == "StatefulSet":
            pod = manifest["spec"]["template"]["spec"]
            yield from (*pod["containers"], *pod.get("initContainers", []))


def test_pods_meet_the_restricted_pod_security_standard(manifests):
    for (kind, _), manifest in manifests.items():
        if kind != "StatefulSet":
            continue
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        kinds = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
        assert kinds <= {"persistentVolumeClaim", "secret", "emptyDir"}
    for container in containers(manifests):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= set(container["resources"])


def test_programs_that_run_have_probes(manifests):
    running = [c for c in containers(manifests) if c["name"] != "folder"]
    assert {c["name"] for c in running} == {"server", "node", "keeper", "console"}
    for container in running:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            command = container[probe]["exec"]["command"]
            assert command[0] == "health" and command[-1].isdecimal(), "a number of YAML would not be a port"
        assert "--alive" in container["livenessProbe"]["exec"]["command"]


def test_secrets_are_named_and_never_written(manifests):
    assert "Secret" not in {kind for kind, _ in manifests}
    for missing in ("server.folder.existingSecret", "site.folder.existingSecret", "console.tls.existingSecret"):
        done = helm({**VALUES, missing: ""})
        assert done.returncode and missing in done.stderr
    done = helm({**VALUES, "console.users.existingSecret": "", "console.sso.existingSecret": ""})
    assert done.returncode and "users.existingSecret or sso.existingSecret" in done.stderr


def test_a_site_takes_no_connection_and_reaches_the_gateway_alone(manifests):
    policy = manifests["NetworkPolicy", "heart-site"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["ingress"] == []
    dns, gateway = policy["egress"]
    assert {p["port"] for p in dns["ports"]} == {53}
    assert gateway["to"] == [{"ipBlock": {"cidr": "192.0.2.10/32"}}] and gateway["ports"][0]["port"] == 9443
    assert ("Service", "heart-site") not in manifests
    assert manifests["NetworkPolicy", "heart-server"]["spec"]["egress"] == []


def test_the_chart_gives_the_network_part_the_same_files_as_compose(manifests):
    pod = manifests["StatefulSet", "heart-site"]["spec"]["template"]["spec"]
    node = next(c for c in pod["containers"] if c["name"] == "node")
    mounted = [m["subPath"] for m in node["volumeMounts"] if m["name"] == "folder"]
    assert mounted == [*NODE_FILES, "state"]
    assert "data" not in {m["name"] for m in node["volumeMounts"]}


def test_a_part_that_is_not_enabled_is_not_installed():
    assert helm({}).stdout.strip() == ""


@pytest.fixture
def unpack(manifests, tmp_path):
    """Run the chart's first container on an archive of these files; gives its exit status and output."""
    pod = manifests["StatefulSet", "heart-site"]["spec"]["template"]["spec"]
    script = pod["initContainers"][0]["command"][2]

    def run(files: dict[str, str], *, overwrite: bool) -> tuple[int, str]:
        source, target = tmp_path / "source", tmp_path / "folder"
        shutil.rmtree(source, ignore_errors=True)
        target.mkdir(exist_ok=True)
        for name, text in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        with tarfile.open(tmp_path / "folder.tgz", "w:gz") as archive:
            archive.add(source, arcname=".")
        environment = {"PATH": "/usr/bin:/bin", "FOLDER": str(target), "MARK": "site.toml", "OVERWRITE": str(overwrite).lower()}
        here = script.replace("/archive/folder.tgz", str(tmp_path / "folder.tgz"))
        done = subprocess.run(["sh", "-euc", here], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_pod_unpacks_its_folder_and_keeps_its_state(unpack, tmp_path):
    folder = tmp_path / "folder"
    assert unpack({"site.toml": "first", "keys/site.key": "secret"}, overwrite=True)[0] == 0
    assert (folder / "keys" / "site.key").stat().st_mode & 0o777 == 0o600
    (folder / "state" / "budget").write_text("spent")
    assert unpack({"site.toml": "second"}, overwrite=False)[0] == 0
    assert (folder / "site.toml").read_text() == "first"
    assert unpack({"site.toml": "second"}, overwrite=True)[0] == 0
    assert (folder / "site.toml").read_text() == "second" and (folder / "state" / "budget").read_text() == "spent"


def test_a_pod_refuses_an_archive_that_would_restore_an_older_budget(unpack, tmp_path):
    status, text = unpack({"site.toml": "first", "state/purse.json": "{}"}, overwrite=True)
    assert status == 1 and "contains state or runs" in text
    assert not (tmp_path / "folder" / "site.toml").exists()
