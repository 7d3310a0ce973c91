"""Write files that start a server or a site: shell scripts, systemd units, and the README of a site.

Units are hardened: a program sees its own folder, no devices, and only the network that it needs. They are written for
/opt/grandrounds (the virtual environment) and /var/lib/grandrounds (the folder), which are named once at the top of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from grandrounds.capabilities.hospital.deploy.consortium import Consortium, Member

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
class InstallPaths:
    """Paths of an installation: environment, folder and table."""

    environment: str = "/opt/grandrounds"
    folder: str = "/var/lib/grandrounds"
    table: str = "/srv/grandrounds/table.parquet"

    def program(self, name: str) -> str:
        """Return the path of an installed program."""
        return str(PurePosixPath(self.environment) / "bin" / name)


def server_units(
    consortium: Consortium, where: InstallPaths | None = None, *, insecure: bool = False
) -> dict[str, str]:
    """Write the unit of the server: `rounds server start` supervises SuperLink, gateway and the list of nodes."""
    where = where or InstallPaths(folder="/var/lib/grandrounds/server")
    about = f"Grand Rounds server of {_escape_percent(consortium.name)}"
    command = server_command(where.program("rounds"), where.folder, insecure=insecure)
    reload = "" if insecure else f"ExecReload={where.folder}/gateway.sh reload\n"
    return {"grandrounds-server.service": _unit(about, command, where, reload)}


def site_units(
    consortium: Consortium, site: Member, where: InstallPaths | None = None
) -> dict[str, str]:
    """Write the units of a site: `rounds site node`, which supervises the SuperNode and connects to the gateway, and the
    keeper, the only process that reads the data.

    The keeper reaches loopback only (IPAddressDeny); a database elsewhere needs one more line.
    """
    where = where or InstallPaths(folder="/var/lib/grandrounds/site")
    whose = f"{_escape_percent(site.name)} in {_escape_percent(consortium.name)}"
    node = node_command(where.program("rounds"), where.folder)
    keep = keeper_command(where.program("rounds"), where.folder, "${TABLE}")
    alone = f"Environment=TABLE={where.table}\nIPAddressDeny=any\nIPAddressAllow=localhost\n"
    return {
        "grandrounds-node.service": _unit(f"Flower SuperNode of {whose}", node, where),
        "grandrounds-keeper.service": _unit(
            f"Grand Rounds keeper of {whose}", keep, where, alone, after="grandrounds-node.service"
        ),
    }


def _unit(about: str, command: list[str], where: InstallPaths, more: str = "", *, after: str = "") -> str:
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
ExecStart={" ".join(_quote(word) for word in command)}
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


def _escape_percent(name: str) -> str:
    """Escape % in a unit, where it introduces a specifier."""
    return name.replace("%", "%%")


def _quote(word: str) -> str:
    return f'"{word}"' if " " in word else word


_SCRIPT_HEAD = """\
#!/bin/sh
# {about}
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
"""


def server_script(*, insecure: bool = False) -> str:
    """Write the script that starts SuperLink and gateway."""
    about = "./start.sh: run the server of this consortium until it is stopped. `rounds` must be on the PATH."
    flag = " --insecure-loopback" if insecure else ""
    return f'{_SCRIPT_HEAD.format(about=about)}exec rounds server start "$here" --foreground{flag} "$@"\n'


def site_script() -> str:
    """Write the script that starts a site with its table."""
    about = "./start.sh TABLE: run this site until it is stopped. `rounds` must be on the PATH."
    usage = '[ $# -ge 1 ] || { echo "usage: $0 TABLE (a .csv or .parquet file of this site)" >&2; exit 2; }\n'
    return f'{_SCRIPT_HEAD.format(about=about)}{usage}table=$1\nshift\nexec rounds site start "$here" --data "$table" "$@"\n'


def gateway_script() -> str:
    """Write the script that starts nginx with the folder's configuration; `reload` reads certificates and revocations
    again.
    """
    about = "./gateway.sh [test|reload|stop]: nginx with the configuration of this folder."
    return f"""{_SCRIPT_HEAD.format(about=about)}\
PATH=$PATH:/usr/sbin
umask 077
mkdir -p "$here/run" "$here/logs"
case ${{1-start}} in
  start) exec nginx -e stderr -p "$here/" -c nginx.conf ;;
  test) exec nginx -e stderr -p "$here/" -c nginx.conf -t ;;
  reload) exec nginx -e stderr -p "$here/" -c nginx.conf -s reload ;;
  stop) exec nginx -e stderr -p "$here/" -c nginx.conf -s quit ;;
  *) echo "usage: $0 [start|test|reload|stop]" >&2; exit 2 ;;
esac
"""


def site_readme(consortium: Consortium, site: Member) -> str:
    """Write README.txt of a site's folder."""
    return f"""\
{site.name} in the consortium {consortium.name}

1. rounds site join . --key KEY                 check this folder, make this site's keys, and write request.json. KEY is
                                                the server's public key, from another channel than this folder
2. send request.json to the operator            and telephone: both compare the two fingerprints that step 1 printed
3. rounds site accept . HANDED                  HANDED: the folder that the operator sends in return
4. rounds site check --data TABLE               check that your table fits the agreed columns (schema.json)
5. edit policy.toml                             decide what may leave this site
6. rounds site peers .                          compare the other sites' fingerprints with them, for example by telephone
7. ./start.sh TABLE                             or use units/ (systemd) or compose.yaml (containers)

Never send keys/ to anybody. If this folder came with keys/, the operator made them: run `rounds site rekey .` in place of
steps 1 to 3. The server is {consortium.server.endpoint}.
"""


QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment of every process: no telemetry, and one thread for linear algebra."""


def server_command(rounds: str, folder: str, *, insecure: bool) -> list[str]:
    """Return the server's command, which supervises SuperLink, gateway and the registration of nodes."""
    return [rounds, "server", "start", folder, "--foreground", *(["--insecure-loopback"] if insecure else [])]


def node_command(rounds: str, folder: str) -> list[str]:
    """Return the command that supervises a site's SuperNode, with its proxy, further gateways and the server's clock."""
    return [rounds, "site", "node", folder]


def keeper_command(rounds: str, folder: str, table: str) -> list[str]:
    """Return the command of the keeper with a site's table; its SuperNode is a separate program."""
    return [rounds, "site", "start", folder, "--data", table, "--no-node"]
