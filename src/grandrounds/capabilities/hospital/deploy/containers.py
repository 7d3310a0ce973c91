"""Write Compose files that start a server or a site in containers.

The images are built by containers/build.sh of the repository. A container runs as an ordinary user with a read-only root file
system and without capabilities; it writes to its folder and to /tmp.

SuperLink and gateway are in one container. SuperNode and keeper are in two with one network, so that loopback ports stay
between them. The SuperNode, which connects to the server, has neither the table nor the site's signing key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from grandrounds.capabilities.hospital.deploy.consortium import Consortium, Member
from grandrounds.capabilities.hospital.deploy.start_files import keeper_command, server_command
from grandrounds.core.version import __version__

FOLDER = "/folder"
"""In a container: the folder of a site, or OUT with the folder of the server."""
USER = "10001:10001"
"""User and group of the images."""
NODE_FILES = ("site.toml", "server-ca.pem", "keys/node", "keys/runtime.secret")
"""Files of a site's folder that its SuperNode reads; it writes its log and its connection to the folder state."""

Service = dict[str, object]


def server_compose(consortium: Consortium) -> str:
    """Write the services of a server: `rounds server start`, which supervises SuperLink and gateway, and the console.

    The console starts only with `--profile console`. It sees the folder of runs, and none of the server's keys.
    """
    port = consortium.server.port
    server = {
        **_service("server", server_command("rounds", FOLDER, insecure=False)),
        "healthcheck": _health_check(str(consortium.server.superlink_port + 1)),
        "volumes": [f".:{FOLDER}/server"],
        "ports": [f"{port}:{port}"],
    }
    console = {
        **_service("console", _CONSOLE),
        "healthcheck": _health_check("--tls", "8600"),
        "volumes": ["./runs:/runs:ro", f"${{CONSOLE:-./console}}:{FOLDER}"],
        "ports": ["${CONSOLE_PORT:-8600}:8600"],
        "profiles": ["console"],
    }
    return _yaml(_SERVER_HEAD, {"server": server, "console": console})


def site_compose(site: Member, port: int, health: int) -> str:
    """Write the services of a site: the SuperNode with the files that it needs, and the keeper with folder and table.

    Args:
        site: The site.
        port: Loopback port of the SuperNode.
        health: Loopback port of the keeper's health page.

    Returns:
        The text of compose.yaml.
    """
    keep = keeper_command("rounds", FOLDER, "/data/${TABLE:?the name of the file in DATA}")
    node = {
        **_service("site", ("rounds", "site", "node", FOLDER)),
        "healthcheck": _health_check("--alive", str(port)),
        "volumes": [*(f"./{name}:{FOLDER}/{name}:ro" for name in NODE_FILES), f"./state:{FOLDER}/state"],
    }
    keeper = {
        **_service("site", keep),
        "healthcheck": _health_check(str(health)),
        "volumes": [f".:{FOLDER}", "${DATA:?the folder of this site's table}:/data:ro"],
        "network_mode": "service:node",
        "depends_on": ["node"],
    }
    return _yaml(_SITE_HEAD.format(name=site.name), {"node": node, "keeper": keeper})


def _service(target: str, command: Sequence[str]) -> Service:
    """Return the part of a service that all have in common, with the image of this target."""
    return {
        "image": f"${{REGISTRY:-localhost}}/grandrounds-{target}:${{VERSION:-{__version__}}}",
        "command": list(command),
        "user": f"${{OWNER:-{USER}}}",
        "tmpfs": ["/tmp"],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
    }


def _health_check(*words: str) -> dict[str, object]:
    """Return the check of a health page. `health` is a program of the images, since the page is on the container's loopback."""
    return {
        "test": ["CMD", "health", *words],
        "interval": "30s",
        "timeout": "10s",
        "retries": 3,
        "start_period": "120s",
    }


_CONSOLE = (
    *("rounds", "console", "--runs", "/runs", "--host", "0.0.0.0", "--name", "${CONSOLE_NAME:-localhost}"),
    *("--users", f"{FOLDER}/users.json", "--access-log", f"{FOLDER}/access.jsonl"),
    *("--tls-certificate", f"{FOLDER}/tls.crt", "--tls-key", f"{FOLDER}/tls.key"),
)

_IMAGES = """\
# Images: containers/build.sh of the repository builds them. REGISTRY and VERSION are parts of their names.
# OWNER is the user and group that this folder belongs to."""

_SERVER_HEAD = f"""\
# The server of this consortium.
# Start: OWNER=$(id -u):$(id -g) docker compose up -d
{_IMAGES}
# The console: docker compose --profile console up -d. The folder CONSOLE has tls.crt, tls.key and users.json, and gets
# access.jsonl; CONSOLE_NAME and CONSOLE_PORT are the name and the port in the browser's address."""

_SITE_HEAD = f"""\
# The site {{name}}.
# Start: mkdir -p state && OWNER=$(id -u):$(id -g) DATA=/srv/tables TABLE=patients.parquet docker compose up -d
{_IMAGES}
# DATA and TABLE are the folder and the file with this site's data."""


def _yaml(head: str, services: Mapping[str, Service]) -> str:
    """Write YAML with the first levels as lines, because people edit it; deeper levels are JSON."""
    lines = [head, "services:"]
    for name, service in services.items():
        lines.append(f"  {name}:")
        for key, value in service.items():
            if isinstance(value, dict):
                lines.append(f"    {key}:")
                lines += [f"      {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
            else:
                lines.append(f"    {key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
