"""Compose files: the server, or a site, in containers that may write to their own folder only.

SuperLink and gateway share one network, as do SuperNode and keeper, so that what listens on loopback stays between the two.
The image is built from a wheelhouse (`rounds provision wheels`), without the internet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds import __version__
from grandrounds.deploy.commands import QUIET, keeper, serve, supernode
from grandrounds.deploy.consortium_file import Consortium, Member

_BASE = "FROM python:3.11-slim\n"
_NGINX = "RUN apt-get update && apt-get install -y --no-install-recommends nginx-light && rm -rf /var/lib/apt/lists/*\n"
_WHEELS = (
    "RUN --mount=type=bind,target=/wheels python -m pip install --no-index --require-hashes --find-links /wheels"
    " -r /wheels/requirements.txt\n"
)


def of_server(consortium: Consortium) -> str:
    """One service: `rounds server start` looks after SuperLink and gateway. The gateway's port is the only one open."""
    port = consortium.server.port
    service = _service(
        serve("rounds", "/folder", insecure=False), image="grandrounds-server", dockerfile=_BASE + _NGINX + _WHEELS
    )
    return _yaml("The server of this consortium", {"server": {**service, "ports": [f"{port}:{port}"]}})


def of_site(consortium: Consortium, site: Member, port: int, *, insecure: bool = False) -> str:
    """SuperNode and keeper. The keeper has no network of its own, and alone has the table."""
    folder = "${DATA:?the folder of this site's table}:/data:ro"
    node = supernode("flower-supernode", "/folder", consortium.server, port, insecure=insecure)
    keep = _service(
        keeper("rounds", "/folder", "/data/${TABLE:?the name of the file in DATA}"),
        image="grandrounds",
        dockerfile=_BASE + _WHEELS,
    )
    services = {
        "node": _service(node, image="grandrounds", dockerfile=_BASE + _WHEELS),
        "keeper": {
            **keep,
            "network_mode": "service:node",
            "depends_on": ["node"],
            "volumes": [*keep["volumes"], folder],
        },
    }
    return _yaml(f"The site {site.name}", services)


def _service(command: Sequence[str], *, image: str, dockerfile: str) -> dict[str, Any]:
    return {
        "image": f"{image}:{__version__}",
        "build": {"context": "${WHEELS:-./wheels}", "dockerfile_inline": dockerfile},
        "command": list(command),
        "user": "${OWNER:-1000:1000}",
        "working_dir": "/folder",
        "environment": {**QUIET, "FLWR_HOME": "/folder/flower", "HOME": "/tmp"},
        "volumes": [".:/folder"],
        "tmpfs": ["/tmp"],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
    }


def _yaml(about: str, services: Mapping[str, Any]) -> str:
    """YAML that any parser reads: JSON is YAML, but people edit this, so the first levels are written as lines."""
    lines = [
        f"# {about}. Before the first start: rounds provision wheels OUT --to wheels",
        "# Start it with: OWNER=$(id -u):$(id -g) docker compose up --build -d",
        "# Variables: WHEELS (that folder), OWNER, and at a site DATA and TABLE (the folder and the file of its patients).",
        "services:",
    ]
    for name, service in services.items():
        lines.append(f"  {name}:")
        for key, value in service.items():
            if isinstance(value, dict):
                lines.append(f"    {key}:")
                lines += [f"      {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
            else:
                lines.append(f"    {key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
