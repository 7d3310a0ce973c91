"""Pictures with their heat maps, as a PNG and on a self-contained page: one picture, or some of a site's."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from grandrounds.analysis.case.case_page import PARTS, notes_html, tiles_html
from grandrounds.analysis.case.picture import MAPS, NAMES, PictureCase, PictureSite
from grandrounds.analysis.case.picture_grid import Panel, Strip, blended, draw, masked, shown
from grandrounds.report.document import document, number, table, td

_PRIVATE = "This page shows patients' pictures: treat it as part of their records."


def picture_title(case: PictureCase) -> str:
    """Which picture, at which site."""
    where = f" at {case.site}" if case.site else ""
    return f"Picture {case.number} of {case.source}{where}"


def site_title(site: PictureSite) -> str:
    return f"Pictures of {site.site} ({site.source})"


def verdict(case: PictureCase) -> str:
    """What the net says, and whether that is so."""
    truth = "" if case.outcome is None else "; right" if case.outcome == case.predicted else f"; it is {case.outcome}"
    return f"says {case.predicted} ({case.probability:.1%}){truth}"


def picture_png(picture: PictureCase | PictureSite) -> bytes:
    """The picture, its heat maps, and, where there is a mask, the mask and what lies inside and outside of it."""
    if isinstance(picture, PictureCase):
        return draw(picture_title(picture), [_strip(picture, verdict(picture))], columns=4)
    strips = [_strip(c, f"picture {c.number}: {verdict(c)}") for c in picture.cases]
    return draw(site_title(picture), strips)


def picture_page(case: PictureCase) -> str:
    """The page of one picture. Every name that came from data is escaped."""
    rows = [
        [td(MAPS[name]), td(_share(n.inside)), td(_ratio(n.iou_ratio)), td(number(n.concentration, 3))]
        for name, n in case.numbers.items()
    ]
    tiles = [
        ("says", case.predicted, f"{case.probability:.1%}, {case.by}"),
        ("truth", case.outcome or "not known", PARTS.get(case.part or "", "new picture").replace("row", "picture")),
    ]
    head = ["heat map", "heat inside the mask", "IoU-ratio", "concentration"]
    body = [_picture(picture_png(case)), table(head, rows), _reading(case)]
    return _page(picture_title(case), tiles, case.notes, body)


def picture_site_page(site: PictureSite) -> str:
    """The page of a site's pictures."""
    rows = [
        [
            td(NAMES[name]),
            td(_share(m.inside)),
            td("&ndash;" if m.drawn is None else f"{m.drawn.value:.2f} &plusmn; {m.drawn.error:.2f}"),
            td(number(m.concentration, 3)),
        ]
        for name, m in site.means.items()
    ]
    tiles = [
        ("pictures", str(site.rows), f"{PARTS[site.part].replace('row', 'picture')}s, {site.by}"),
        ("in the means", str(site.scored), f"{site.masked} with a usable mask"),
    ]
    head = ["heat map", "heat inside the mask", "XAI accuracy", "concentration"]
    body = [
        _picture(picture_png(site)),
        "<h2>Means</h2>",
        table(head, rows),
        _reading(site),
    ]
    return _page(site_title(site), tiles, site.notes, body)


def numbers_words(found: PictureCase | PictureSite) -> str:
    """What the numbers about heat mean."""
    text = "concentration: 0 is heat spread evenly, 1 all of it on one pixel"
    if found.covered is None:
        return text
    ratio = "IoU-ratio: mean heat inside over mean heat outside, 1 by chance"
    if isinstance(found, PictureSite):
        ratio = (
            "XAI accuracy: the share of pictures whose IoU-ratio, mean heat inside over mean heat outside, is above 1"
        )
    return f"the mask covers {found.covered:.1%}, and so much heat would lie inside it by chance; {ratio}; {text}"


def _strip(case: PictureCase, title: str) -> Strip:
    panels = [Panel("picture", shown(case.pixels))]
    for name, heat in case.heats.items():
        panels.append(Panel(MAPS[name] if heat.any() else f"{MAPS[name]}: none", blended(case.pixels, heat)))
    if case.mask is not None:
        mask = case.mask
        panels += [
            Panel("mask", shown(mask[..., None].astype("uint8") * 255)),
            Panel("inside the mask", masked(case.pixels, mask)),
            Panel("outside the mask", masked(case.pixels, ~mask)),
        ]
    return Strip(title, tuple(panels))


def _page(title: str, tiles: Sequence[tuple[str, str, str]], notes: Sequence[str], body: Sequence[str]) -> str:
    top = [f"<h1>{escape(title)}</h1>", f"<p class='quiet'>{_PRIVATE}</p>", tiles_html(tiles)]
    return document(title, [*top, *notes_html(notes), *body], None)


def _picture(png: bytes) -> str:
    data = base64.b64encode(png).decode()
    image = f"<img style='max-width:100%' alt='pictures and their heat maps' src='data:image/png;base64,{data}'>"
    return f"<figure>{image}</figure>"


def _reading(found: PictureCase | PictureSite) -> str:
    words = numbers_words(found)
    return f"<p>{escape(words[0].upper() + words[1:])}. Heat is of the class that the net chose.</p>"


def _share(value: float | None) -> str:
    return "&ndash;" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "&ndash;" if value is None else "&infin;" if value == float("inf") else f"{value:.2f}"
