"""Write an explanation to a file: a page or a PNG."""

from __future__ import annotations

from pathlib import Path

from grandrounds.capabilities.cases.case import Case, Site
from grandrounds.capabilities.cases.case_page import case_figure, case_page, near_misses_page
from grandrounds.capabilities.cases.image import ImageExplanation, SiteImageExplanation
from grandrounds.capabilities.cases.image_page import image_case_page, image_png, site_images_page
from grandrounds.capabilities.cases.near_misses import NearMisses
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.outcome_page import outcome_figure, outcome_page
from grandrounds.capabilities.cases.site_page import site_figure, site_page
from grandrounds.capabilities.cases.table import CaseExplanation
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput

Explanation = Case | Site | NearMisses
"""Explanations that `rounds explain` makes."""


def has_image(explanation: Explanation) -> bool:
    """Tell whether it explains images: Pillow draws their PNG, a browser the others."""
    return isinstance(explanation, ImageExplanation | SiteImageExplanation)


def page(explanation: Explanation, *, top: int) -> str:
    """Return the self-contained page of a case, a site, or the near misses."""
    if isinstance(explanation, NearMisses):
        return near_misses_page(explanation)
    if isinstance(explanation, CaseExplanation):
        return case_page(explanation, top=top)
    if isinstance(explanation, OutcomeExplanation):
        return outcome_page(explanation)
    if isinstance(explanation, ImageExplanation):
        return image_case_page(explanation)
    return (
        site_images_page(explanation)
        if isinstance(explanation, SiteImageExplanation)
        else site_page(explanation, top=top)
    )


def write_page(path: Path, explanation: Explanation, *, top: int) -> None:
    """Write the page, or the PNG for a name that ends in .png; folders are created."""
    if path.suffix == ".png" and isinstance(explanation, NearMisses):
        raise BadInput(
            "near misses are a list, which has no PNG: give a file that ends in .html, or a folder", code="no-png"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".png":
            write_atomic(path, page(explanation, top=top).encode(), durable=False)
        elif isinstance(explanation, ImageExplanation | SiteImageExplanation):
            write_atomic(path, image_png(explanation), durable=False)
        elif not isinstance(explanation, NearMisses):
            if isinstance(explanation, CaseExplanation):
                drawn = case_figure(explanation, top=top)
            elif isinstance(explanation, OutcomeExplanation):
                drawn = outcome_figure(explanation, top=top)
            else:
                drawn = site_figure(explanation, top=top)
            drawn.write_png(path)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}; choose another --out", code="cannot-write") from None
