"""What was explained, as a file: a page, or a PNG."""

from __future__ import annotations

from pathlib import Path

from grandrounds.analysis.case.case import Case, Site
from grandrounds.analysis.case.case_page import case_figure, case_page, near_misses_page, site_figure, site_page
from grandrounds.analysis.case.image import PictureCase, PictureSite
from grandrounds.analysis.case.image_page import picture_page, picture_png, picture_site_page
from grandrounds.analysis.case.near_misses import NearMisses
from grandrounds.analysis.case.table import TableCase
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput

Explanation = Case | Site | NearMisses
"""What `rounds explain` can be asked for."""


def has_image(found: Explanation) -> bool:
    """Whether it is about pictures, and so always has a PNG; Pillow draws those, and a browser the others."""
    return isinstance(found, PictureCase | PictureSite)


def page(found: Explanation, *, top: int) -> str:
    """The self-contained page of a case, a site, or the near misses."""
    if isinstance(found, NearMisses):
        return near_misses_page(found)
    if isinstance(found, TableCase):
        return case_page(found, top=top)
    if isinstance(found, PictureCase):
        return picture_page(found)
    return picture_site_page(found) if isinstance(found, PictureSite) else site_page(found, top=top)


def write_page(path: Path, found: Explanation, *, top: int) -> None:
    """Write the page, or the PNG where the name ends so; folders on the way are made."""
    if path.suffix == ".png" and isinstance(found, NearMisses):
        raise BadInput(
            "near misses are a list, which has no PNG: give a file that ends in .html, or a folder", code="no-png"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".png":
            write_atomic(path, page(found, top=top).encode(), durable=False)
        elif isinstance(found, PictureCase | PictureSite):
            write_atomic(path, picture_png(found), durable=False)
        elif not isinstance(found, NearMisses):
            drawn = case_figure(found, top=top) if isinstance(found, TableCase) else site_figure(found, top=top)
            drawn.write_png(path)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another --out", code="cannot-write") from None
