"""`rounds site unseal | rekey | accept`: what a site does with what the operator handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def unseal(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.sealed, as the operator sent it.")],
    passphrase_file: Annotated[Path, typer.Option(metavar="P", help="A file whose first line is the passphrase.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
) -> None:
    """Open an encrypted folder that `rounds provision --seal` wrote."""
    from grandrounds.deploy.seal import passphrase_from, unseal

    names = unseal(file, passphrase_from(passphrase_file), out)
    typer.echo(f"{out}: {len(names)} files; rounds provision verify {out}")


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
        typer.echo(f"{folder / 'keys'}: new keys in use; delete keys.void, then start the site again")
        return
    typer.echo(
        f"{rekey(folder)}: send it to the operator, who runs: rounds provision rotate OUT SITE --request request.json"
    )


def accept(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    handed: Annotated[Path, typer.Argument(metavar="HANDED", help="The folder that was handed over again.")],
) -> None:
    """Take the server's renewed files, and its new key if the old one signed for it."""
    from grandrounds.deploy.accept import accept

    other = accept(folder, handed)
    typer.echo(f"{folder}: {'the new server key is taken' if other else 'taken; the server key is the same'}")
