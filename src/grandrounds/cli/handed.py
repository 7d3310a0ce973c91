"""`rounds site unseal | rekey | accept | peers`: what a site does with what the operator handed over."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.auditing import FAILED
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.protocol.peers import Changes

ASK = "did you compare these fingerprints with the other hospitals, by telephone for instance?"


def unseal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.sealed, as the operator sent it.")],
    passphrase_file: Annotated[Path, typer.Option(metavar="P", help="A file whose first line is the passphrase.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
) -> None:
    """Open an encrypted folder that `rounds provision --seal` wrote."""
    from grandrounds.deploy.seal import passphrase_from, unseal

    names = unseal(file, passphrase_from(passphrase_file), out)
    echo(f"{out}: {len(names)} files; rounds provision verify {out}")


def rekey(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    done: Annotated[
        bool, typer.Option("--done", help="The operator has taken the request: use the new keys from now on.")
    ] = False,
) -> None:
    """Make new keys that nobody else has ever held, and a request for the operator to put them on the list."""
    from grandrounds.deploy.request import rekey, take_new_keys

    if done:
        take_new_keys(folder)
        echo(f"{folder / 'keys'}: new keys in use; delete keys.void, then start the site again")
        return
    echo(
        f"{rekey(folder)}: send it to the operator, who runs: rounds provision rotate OUT SITE --request request.json"
    )


def accept(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    handed: Annotated[Path, typer.Argument(metavar="HANDED", help="The folder that was handed over again.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Take another list of sites without asking: its fingerprints were compared.")
    ] = False,
) -> None:
    """Take what the server signed: renewed files, its new key if the old one signed for it, the keys of the other sites.

    Where sites were added or removed, or have another key, that is printed and asked about: compare fingerprints with the
    hospitals themselves first, since it is the server that the list guards against.
    Exit code 1: the answer was no, and nothing was taken.

    Example: `rounds site accept hospital handed`
    """
    from grandrounds.deploy.accept import accept

    other = accept(folder, handed, lambda changes: _agreed(changes, yes=yes))
    if other is None:
        echo("nothing was taken")
        raise typer.Exit(1)
    said = "the new server key is taken" if other else "taken; the server key is the same"
    echo(f"{folder}: {said}; a site that runs reads it when it is started again")


def _agreed(changes: Changes, *, yes: bool) -> bool:
    """Whether whoever sits there has compared what changed."""
    from grandrounds.core.errors import BadInput

    for line in changes.lines():
        echo(line)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput("the list of sites is another: compare the fingerprints above by another way, then add --yes")
    return typer.confirm(ASK)


def peers(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the sites that this one adds up with in secure sums, each with the fingerprint of its key.

    To be compared by another way than the list came: by telephone, hospital by hospital. Two hospitals that read out the
    same last line have the same list. Below it stands whom the site refused to add up with.
    Exit code 3: the list was changed after it was handed over, or has another key for this site than its own.

    Example: `rounds site peers hospital`
    """
    from dataclasses import asdict

    from grandrounds.deploy.site_peers import looked_at

    found = looked_at(folder)
    if as_json:
        echo(json.dumps(asdict(found)))
    else:
        for line in found.lines():
            echo(line)
    if found.faults:
        raise typer.Exit(FAILED)
