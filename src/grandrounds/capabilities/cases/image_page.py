"""Images with heat maps, as a PNG drawn with Pillow and on a self-contained page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from grandrounds.capabilities.cases.case_page import PARTS, notes_html, tiles_html
from grandrounds.capabilities.cases.image import MAPS, NAMES, ImageExplanation, SiteImageExplanation
from grandrounds.core.arrays import Array
from grandrounds.data.images import pillow
from grandrounds.report.document import document, number, table, td
from grandrounds.runs.run_rows import is_unseen

_INFERNO = (
    "000004 0b0724 210c4a 3d0965 57106e 71196e 8a226a a32c61 bc3754 "
    "d24644 e45a31 f1731d f98e09 fcac11 f9cb35 f2ea69 fcffa4"
)
"""Every sixteenth colour of matplotlib's inferno (public domain): even to the eye, and readable when printed in grey."""

SIDE = 168  # approximate size in pixels of an enlarged small image
LARGEST = 256  # maximum size in pixels
HIDDEN = (122, 133, 148)  # colour of the hidden part of an image: it does not occur in grey images
_HEAT = 0.65  # share of heat in the blend; the rest is the image
_GAP, _MARGIN, _TITLE, _HEADING = 10, 16, 20, 26
_INK, _QUIET, _PAPER = (27, 31, 36), (87, 96, 106), (255, 255, 255)


@dataclass(frozen=True, eq=False)
class Panel:
    """One image (H, W, 3) of bytes under its title, at the size it is drawn."""

    title: str
    pixels: Array


@dataclass(frozen=True, eq=False)
class Strip:
    """Panels that belong together, under a heading."""

    heading: str
    panels: tuple[Panel, ...]


def to_display(pixels: Array) -> Array:
    """Resize an image (H, W, C) of bytes for drawing: in colour, small pixels enlarged, a large image shrunken."""
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    height, width = pixels.shape[:2]
    times = SIDE // max(height, width)
    if times > 1:
        return np.repeat(np.repeat(colour, times, axis=0), times, axis=1)
    if max(height, width) <= LARGEST:
        return np.ascontiguousarray(colour)
    image = pillow("drawing images")
    size = tuple(max(1, round(n * LARGEST / max(height, width))) for n in (width, height))
    return np.asarray(image.fromarray(np.ascontiguousarray(colour)).resize(size, image.Resampling.LANCZOS))


def overlay_heat(pixels: Array, heat: Array) -> Array:
    """Draw heat (H, W) in colour over the greyed image (H, W, C); the hottest pixel of this image is the brightest."""
    image = pillow("drawing heat maps")
    base = to_display(pixels)
    grey = base.astype(float).mean(axis=2, keepdims=True)
    size = np.abs(np.asarray(heat, np.float32))
    top = float(size.max(initial=0))
    smooth = image.fromarray(size / top if top > 0 else size)
    wide = np.clip(np.asarray(smooth.resize(base.shape[1::-1], image.Resampling.BILINEAR)), 0, 1)
    out: Array = np.rint((1 - _HEAT) * grey + _HEAT * colour_map(wide)).astype(np.uint8)
    return out


def colour_map(values: Array) -> Array:
    """Map values from 0 to 1 to colours (..., 3), 0 to 255."""
    table = np.array([[int(word[i : i + 2], 16) for i in (0, 2, 4)] for word in _INFERNO.split()], float)
    stops = np.linspace(0, 1, len(table))
    return np.stack([np.interp(values, stops, table[:, c]) for c in range(3)], axis=-1)


def cover_outside(pixels: Array, keep: Array) -> Array:
    """Draw the image where `keep` (H, W) is true, covered elsewhere."""
    colour = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    return to_display(np.where(keep[..., None], colour, np.array(HIDDEN, np.uint8)))


def draw(title: str, strips: Sequence[Strip], *, columns: int = 8, heat: bool = True) -> bytes:
    """Draw strips one below the other as a PNG; a strip with more panels than columns goes on in the next line.

    Args:
        title: The heading of the sheet.
        strips: Rows of panels.
        columns: The most panels in a line.
        heat: Whether the panels show heat, so that its colours are explained.
    """
    image = pillow("drawing images")
    from PIL import ImageDraw, ImageFont

    fonts = {size: ImageFont.load_default(size) for size in (12, 14, 17)}
    cell = [max(p.pixels.shape[i] for s in strips for p in s.panels) for i in (0, 1)]
    wide = min(columns, max(len(s.panels) for s in strips))
    lines = [-(-len(s.panels) // columns) for s in strips]
    texts = [fonts[17].getlength(title), *(fonts[14].getlength(s.heading) for s in strips)]
    width = int(max(2 * _MARGIN + wide * (cell[1] + _GAP) - _GAP, 2 * _MARGIN + max(texts)))
    height = 2 * _MARGIN + 34 + sum(_HEADING + n * (cell[0] + _TITLE + _GAP) for n in lines) + 22 * heat
    paper = image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(paper)
    pen.text((_MARGIN, _MARGIN), title, _INK, fonts[17])
    y = _MARGIN + 34
    for strip, n in zip(strips, lines, strict=True):
        pen.text((_MARGIN, y), strip.heading, _INK, fonts[14])
        y += _HEADING
        for k, panel in enumerate(strip.panels):
            x, top = _MARGIN + k % columns * (cell[1] + _GAP), y + k // columns * (cell[0] + _TITLE + _GAP)
            pen.text((x, top), _shorten(panel.title, fonts[12], cell[1]), _QUIET, fonts[12])
            paper.paste(image.fromarray(np.ascontiguousarray(panel.pixels)), (x, top + _TITLE))
        y += n * (cell[0] + _TITLE + _GAP)
    if heat:
        _colour_bar(image, paper, pen, fonts[12], y)
    buffer = io.BytesIO()
    paper.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _colour_bar(image: Any, paper: Any, pen: Any, font: Any, y: int) -> None:
    """Draw the legend of the colours."""
    words = ("no heat", "maximum heat of the image")
    x = int(_MARGIN + font.getlength(words[0]) + 8)
    bar = np.repeat(colour_map(np.linspace(0, 1, 120))[None], 12, axis=0).astype(np.uint8)
    pen.text((_MARGIN, y), words[0], _QUIET, font)
    paper.paste(image.fromarray(bar), (x, y + 2))
    pen.text((x + 128, y), words[1], _QUIET, font)


def _shorten(text: str, font: Any, width: int) -> str:
    """Cut a text short where it would run into its neighbour."""
    if font.getlength(text) <= width:
        return text
    cut = next((n for n in range(len(text), 0, -1) if font.getlength(text[:n] + "...") <= width), 0)
    return text[:cut] + "..."


_PRIVATE = "Patient data: images. Treat this page as part of the medical record."


def image_title(case: ImageExplanation) -> str:
    """Write the title: which image, at which site."""
    where = f" at {case.site}" if case.site else ""
    return f"Image {case.number} of {case.source}{where}"


def site_images_title(site: SiteImageExplanation) -> str:
    """Write the title of a site's images."""
    return f"Images of {site.site} ({site.source})"


def verdict(case: ImageExplanation) -> str:
    """Write the prediction, and its truth where the class is known; of an image that the model was trained on only its class."""
    predicted = f"predicts {case.predicted} ({case.probability:.1%})"
    if case.outcome is None:
        return predicted
    if not is_unseen(case.part):
        return f"{predicted}; the true class is {case.outcome}"
    return f"{predicted}; " + ("correct" if case.outcome == case.predicted else f"wrong: the true class is {case.outcome}")


def wrong_text(case: ImageExplanation) -> str:
    """Write a sentence on a wrong prediction; "" where it is right, or the true class is not known, or the model knew it."""
    if case.outcome is None or case.outcome == case.predicted or not is_unseen(case.part):
        return ""
    return f"Wrong: the model predicts {case.predicted} with {case.probability:.1%}. The true class is {case.outcome}."


def image_png(explanation: ImageExplanation | SiteImageExplanation) -> bytes:
    """Draw the image, its heat maps, and, where there is a mask, the mask and the image inside and outside of it."""
    if isinstance(explanation, ImageExplanation):
        return draw(image_title(explanation), [_strip(explanation, verdict(explanation))], columns=4)
    strips = [_strip(c, f"image {c.number}: {verdict(c)}") for c in explanation.cases]
    return draw(site_images_title(explanation), strips)


def image_case_page(case: ImageExplanation) -> str:
    """Write the page of one image. All names from data are escaped."""
    rows = [
        [td(MAPS[name]), td(_share(n.inside)), td(_ratio(n.iou_ratio)), td(number(n.concentration, 3))]
        for name, n in case.numbers.items()
    ]
    tiles = [
        ("says", case.predicted, f"{case.probability:.1%}, {case.model_owner}"),
        ("truth", case.outcome or "not known", PARTS.get(case.part or "", "new image").replace("row", "image")),
    ]
    head = ["heat map", "heat inside the mask", "IoU-ratio", "concentration"]
    body = [_figure(image_png(case)), *([table(head, rows), _reading_guide(case)] if rows else [])]
    return _page(image_title(case), tiles, case.notes, body)


def site_images_page(site: SiteImageExplanation) -> str:
    """Write the page of a site's images."""
    rows = [
        [
            td(NAMES[name]),
            td(_share(m.inside)),
            td(
                "&ndash;"
                if m.xai_accuracy is None
                else f"{m.xai_accuracy.value:.2f} &plusmn; {m.xai_accuracy.error:.2f}"
            ),
            td(number(m.concentration, 3)),
        ]
        for name, m in site.means.items()
    ]
    tiles = [
        ("pictures", str(site.rows), f"{PARTS[site.part].replace('row', 'picture')}s, {site.model_owner}"),
        ("in the means", str(site.scored), f"{site.masked} with a usable mask"),
    ]
    head = ["heat map", "heat inside the mask", "XAI accuracy", "concentration"]
    body = [
        _figure(image_png(site)),
        "<h2>Means</h2>",
        table(head, rows),
        _reading_guide(site),
    ]
    return _page(site_images_title(site), tiles, site.notes, body)


def heat_note(explanation: ImageExplanation | SiteImageExplanation) -> str:
    """Explain the numbers about heat."""
    text = "concentration: 0 is heat spread evenly, 1 all of it on one pixel"
    if explanation.covered is None:
        return text
    ratio = "IoU-ratio: mean heat inside over mean heat outside, 1 by chance"
    if isinstance(explanation, SiteImageExplanation):
        ratio = "XAI accuracy: the share of images whose IoU-ratio, mean heat inside over mean heat outside, is above 1"
    return f"the mask covers {explanation.covered:.1%}, and so much heat would lie inside it by chance; {ratio}; {text}"


def _strip(case: ImageExplanation, title: str) -> Strip:
    panels = [Panel("image", to_display(case.pixels))]
    for name, heat in case.heats.items():
        panels.append(Panel(MAPS[name] if heat.any() else f"{MAPS[name]}: none", overlay_heat(case.pixels, heat)))
    if case.mask is not None:
        mask = case.mask
        panels += [
            Panel("mask", to_display(mask[..., None].astype("uint8") * 255)),
            Panel("inside the mask", cover_outside(case.pixels, mask)),
            Panel("outside the mask", cover_outside(case.pixels, ~mask)),
        ]
    return Strip(title, tuple(panels))


def _page(title: str, tiles: Sequence[tuple[str, str, str]], notes: Sequence[str], body: Sequence[str]) -> str:
    top = [f"<h1>{escape(title)}</h1>", f"<p class='quiet'>{_PRIVATE}</p>", tiles_html(tiles)]
    return document(title, [*top, *notes_html(notes), *body], None)


def _figure(png: bytes) -> str:
    data = base64.b64encode(png).decode()
    image = f"<img style='max-width:100%' alt='images and their heat maps' src='data:image/png;base64,{data}'>"
    return f"<figure>{image}</figure>"


def _reading_guide(explanation: ImageExplanation | SiteImageExplanation) -> str:
    words = heat_note(explanation)
    return f"<p>{escape(words[0].upper() + words[1:])}. Heat maps are for the predicted class.</p>"


def _share(value: float | None) -> str:
    return "&ndash;" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "&ndash;" if value is None else "&infin;" if value == float("inf") else f"{value:.2f}"
