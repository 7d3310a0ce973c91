"""Find sites by the name that a person typed, and turn labels into file names."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from grandrounds.core.errors import BadInput, nearest


def slug(label: str) -> str:
    """Convert a label to lower case letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def folder_name(name: str) -> str:
    """Make the name of a site's folder and files: ASCII without spaces, and unique.

    A plain name is its own folder name. Any other ends in a digest of the name, since two of them may look alike in ASCII.
    """
    if _PLAIN.fullmatch(name) and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    ascii_ = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", ascii_).strip("._-") or "site"
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def check_site_names(names: Iterable[str], *, where: str) -> None:
    """Refuse names of sites that look the same: they differ in invisible characters, or in how accents are stored."""
    groups = _alike(names, _plain)
    if groups:
        listed = " and ".join(ascii(name) for name in groups[0][:3])
        raise BadInput(
            f"{where} names the site '{_plain(groups[0][0])}' in spellings that look the same, {listed}: write each site one way",
            code="ambiguous-site",
        )


def list_case_variants(names: Iterable[str]) -> list[list[str]]:
    """List the names of sites that differ in upper and lower case alone."""
    return _alike(names, lambda name: _plain(name).casefold())


def _alike(names: Iterable[str], key: Callable[[str], str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _plain(name: str) -> str:
    """Write a name as it is seen: accents in one form, any space as a space, and no character without a width."""
    seen = "".join(" " if unicodedata.category(c) == "Zs" else c for c in name if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", seen).strip()


def site_named(site: str | int, names: Sequence[str], *, where: object = None) -> str:
    """Find a site by its name, by a variant such as 'Site-3' for 'site-03', or by a number.

    A number matches the name that ends in it, else the position among all sites. `where` names the run, for errors.
    """
    word = str(site)
    if word in names:
        return word
    alike = [name for name in names if _loose(name) == _loose(word)]
    if len(alike) == 1:
        return alike[0]
    place = "" if where is None else f" in {where}"
    if re.fullmatch("[0-9]+", word):
        meant = [name for name in names if (end := re.search("[0-9]+$", name)) and int(end[0]) == int(word)]
        if len(meant) > 1:
            raise BadInput(
                f"site {word}{place} may be {' or '.join(meant)}: give the whole name", code="ambiguous-site"
            )
        if meant or 1 <= int(word) <= len(names):
            return meant[0] if meant else names[int(word) - 1]
    raise BadInput(f"no site '{word}'{place}; {nearest(word, names)}", code="unknown-site")


def _loose(name: str) -> str:
    """Return a name in lower case, with numbers without leading zeros."""
    return re.sub(r"0*(\d+)", r"\1", name.lower())
