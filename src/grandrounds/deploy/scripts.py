"""Start scripts, and the page that a hospital reads first."""

from __future__ import annotations

from grandrounds.deploy.consortium_file import Consortium, Member

_HEAD = """\
#!/bin/sh
# {about}
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
"""


def server(*, insecure: bool = False) -> str:
    """Starts SuperLink and gateway."""
    about = "./start.sh: the server of this consortium, until it is stopped. `rounds` must be on the PATH."
    flag = " --insecure-loopback" if insecure else ""
    return f'{_HEAD.format(about=about)}exec rounds server start "$here" --foreground{flag} "$@"\n'


def site() -> str:
    """Starts a site with its table."""
    about = "./start.sh TABLE: this site, until it is stopped. `rounds` must be on the PATH."
    usage = '[ $# -ge 1 ] || { echo "usage: $0 TABLE (a .csv or .parquet file of this site)" >&2; exit 2; }\n'
    return f'{_HEAD.format(about=about)}{usage}table=$1\nshift\nexec rounds site start "$here" --data "$table" "$@"\n'


def gateway() -> str:
    """nginx with the configuration beside it; `reload` makes it read certificates and the list of revoked ones again."""
    about = "./gateway.sh [test|reload|stop]: nginx with the configuration of this folder."
    return f"""{_HEAD.format(about=about)}\
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
    """README.txt of a site's folder."""
    return f"""\
{site.name} in the consortium {consortium.name}

1. rounds provision verify .                    is this folder as it was handed over?
2. rounds site rekey .                         new keys that nobody but you has held; send request.json to the operator,
                                                and when they have taken it: rounds site rekey . --done
3. rounds site check --data TABLE               does your table fit what was agreed on (schema.json)?
4. edit policy.toml                             what this site allows; nothing else leaves it
5. rounds site peers .                          the other sites' keys: compare fingerprints with them, by telephone say
6. ./start.sh TABLE                             or units/ for systemd, compose.yaml for containers

keys/ is yours alone: never send it to anybody. The server is {consortium.server.dialled}.
"""
