"""Which passphrase seals which site's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.deploy.consortium_file import load
from grandrounds.deploy.files import make_folder
from grandrounds.deploy.folders import Folders
from grandrounds.deploy.names import slug
from grandrounds.deploy.seal import passphrase_from, seal


def passphrases(path: Path, names: Sequence[str] | None, source: Path) -> dict[str, str]:
    """By site. A file is for all of them; of a folder the file NAME.txt, by the name of the site's folder.

    With one passphrase for all, a site that gets hold of another's sealed file can open it.
    """
    names = [s.name for s in load(source).sites] if names is None else names
    if path.is_dir():
        return {name: passphrase_from(path / f"{slug(name)}.txt") for name in names}
    phrase = passphrase_from(path)
    return dict.fromkeys(names, phrase)


def seal_sites(folders: Folders, names: Sequence[str], phrases: dict[str, str]) -> list[Path]:
    """OUT/sealed/NAME.sealed for each site; gives the paths."""
    for name in names:
        if not (folders.site(name) / "keys").exists():
            raise BadInput(f"{folders.site(name)} holds no keys to hand over: the site made its own, or it was deleted")
    where = make_folder(folders.out / "sealed")
    for name in names:
        seal(folders.site(name), phrases[name], where / f"{slug(name)}.sealed")
    return [where / f"{slug(name)}.sealed" for name in names]
