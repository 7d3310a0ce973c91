"""systemd units, hardened: a program sees its own folder, no devices, no other network than it needs.

They are written for /opt/grandrounds (the virtual environment) and /var/lib/grandrounds (the folder), which are named once
at the top of each: who installs elsewhere changes them there, or asks for others here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from grandrounds.deploy.commands import QUIET, keeper, serve, supernode
from grandrounds.deploy.consortium_file import Consortium, Member

_HARDENED = """\
User=grandrounds
Group=grandrounds
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
PrivateTmp=yes
PrivateDevices=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""


@dataclass(frozen=True)
class Installed:
    """Where a machine has what."""

    environment: str = "/opt/grandrounds"
    folder: str = "/var/lib/grandrounds"
    table: str = "/srv/grandrounds/table.parquet"

    def program(self, name: str) -> str:
        return str(PurePosixPath(self.environment) / "bin" / name)


def of_server(consortium: Consortium, where: Installed | None = None, *, insecure: bool = False) -> dict[str, str]:
    """The server: SuperLink, gateway and the list of nodes, which `rounds server start` looks after."""
    where = where or Installed(folder="/var/lib/grandrounds/server")
    about = f"Grand Rounds server of {_said(consortium.name)}"
    command = serve(where.program("rounds"), where.folder, insecure=insecure)
    reload = "" if insecure else f"ExecReload={where.folder}/gateway.sh reload\n"
    return {"grandrounds-server.service": _unit(about, command, where, reload)}


def of_site(
    consortium: Consortium, site: Member, ports: int, where: Installed | None = None, *, insecure: bool = False
) -> dict[str, str]:
    """A site: the SuperNode, which alone speaks to the gateway, and the keeper, which alone sees the data.

    The keeper reaches this machine and nothing else (IPAddressDeny); a table in a database elsewhere needs a line more.
    """
    where = where or Installed(folder="/var/lib/grandrounds/site")
    whose = f"{_said(site.name)} in {_said(consortium.name)}"
    node = supernode(where.program("flower-supernode"), where.folder, consortium.server, ports, insecure=insecure)
    keep = keeper(where.program("rounds"), where.folder, "${TABLE}")
    alone = f"Environment=TABLE={where.table}\nIPAddressDeny=any\nIPAddressAllow=localhost\n"
    return {
        "grandrounds-node.service": _unit(f"Flower SuperNode of {whose}", node, where),
        "grandrounds-keeper.service": _unit(
            f"Grand Rounds keeper of {whose}", keep, where, alone, after="grandrounds-node.service"
        ),
    }


def _unit(about: str, command: list[str], where: Installed, more: str = "", *, after: str = "") -> str:
    quiet = "".join(f"Environment={name}={value}\n" for name, value in QUIET.items())
    return f"""\
[Unit]
Description={about}
Wants=network-online.target
After=network-online.target{f" {after}" if after else ""}
{f"Wants={after}{chr(10)}" if after else ""}\
StartLimitIntervalSec=0

[Service]
Type=exec
WorkingDirectory={where.folder}
ExecStart={" ".join(_quoted(word) for word in command)}
{more}\
Restart=always
RestartSec=5
TimeoutStopSec=60
Environment=FLWR_HOME={where.folder}/flower
Environment=PATH={where.environment}/bin:/usr/sbin:/usr/bin:/sbin:/bin
{quiet}\
ReadWritePaths={where.folder}
{_HARDENED}
[Install]
WantedBy=multi-user.target
"""


def _said(name: str) -> str:
    """A name in a unit, where % stands for something else."""
    return name.replace("%", "%%")


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
