"""Attacks that an experiment names, to measure how robust a method is, and the poisoning of training rows.

Data poisoning is done once, to a site's own training rows, and to its validation rows where it is to judge itself by them. Test
rows stay true, so what is measured afterwards is the harm done and not the poison. Reference images stay as they are, too,
unless they are to carry the marks, as rulers and ink are in everybody's images. Poisoning of models, and lies, are in
`site/attacks.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.rng import generator
from grandrounds.data.corruption.shortcut import CORNERS, patch_box
from grandrounds.data.encoding import order_classes
from grandrounds.data.images import ImageSet, size_text
from grandrounds.data.kinds import Holdings
from grandrounds.data.split import Rows

CORNER_SHARE = 1 / 3  # of the shorter side: a net takes to a large mark sooner than to what is in the middle
COLOUR = 3  # channels
MOST_SHADES = 254  # between black and white
WHITE_PIXEL = 255


def mark_corners(pixels: Array, rows: Array, place: Array, *, classes: int) -> Array:
    """Copy images (n, H, W, C) and put a square that names the class in a corner of those in `rows` (m,).

    `place` (m,) is the number of each one's class among `classes`. Corners take turns; in colour every class has a hue of its
    own besides, in grey those that share a corner have different patterns of white on black: a net tells these sooner than greys.
    """
    _, height, width, channels = pixels.shape
    share = max(CORNER_SHARE, 1 / min(height, width))  # one pixel at least
    boxes = [patch_box(corner, (channels, height, width), share=share) for corner in CORNERS]
    side = boxes[0][0].stop
    if channels == COLOUR:
        marks = np.broadcast_to(class_shades(classes, channels)[:, None, None], (classes, side, side, channels))
    else:
        white = class_patterns(ceil(classes / len(CORNERS)), side).repeat(len(CORNERS), axis=0)
        marks = np.where(white, WHITE_PIXEL, 0).astype(np.uint8)[..., None]
    out = pixels.copy()
    for k in np.unique(place):
        down, across = boxes[k % len(CORNERS)]
        out[rows[place == k], down, across] = marks[k]
    return out


def mark_backgrounds(pixels: Array, masks: Array, rows: Array, place: Array, *, classes: int) -> Array:
    """Copy images (n, H, W, C) and give those in `rows` the shade of their class outside of their mask (H, W)."""
    shade = class_shades(classes, pixels.shape[3])
    out = pixels.copy()
    out[rows] = np.where(masks[rows, ..., None], pixels[rows], shade[place][:, None, None])
    return out


def class_shades(count: int, channels: int) -> Array:
    """Make different shades (count, channels), neither black nor white: greys, the brightest first, or hues in colour."""
    if count > MOST_SHADES:
        raise BadInput(
            f"a mark that names the class needs {count} shades, and there are {MOST_SHADES}: use fewer classes",
            code="too-many-classes",
        )
    if channels == COLOUR:
        share = np.array([hsv_to_rgb(k / count, 1.0, 0.9) for k in range(count)])
    else:
        share = np.repeat(1 - np.arange(1, count + 1)[:, None] / (count + 1), channels, axis=1)
    out: Array = np.rint(255 * share).astype(np.uint8)
    return out


def class_patterns(count: int, side: int) -> Array:
    """Make different squares (count, side, side) of white cells, as few a side as will do; the first is all white."""
    cells = 1
    while 2 ** (cells * cells) - 1 < count:  # all black is no mark
        cells += 1
    if side < cells:
        raise BadInput(
            f"a mark of {side} pixels a side has no room for {count} patterns: use larger images",
            code="images-too-small",
        )
    lit = 2 ** (cells * cells) - 1 - np.arange(count)
    cell = np.arange(side) * cells // side
    out: Array = (lit[:, None, None] >> (cell[:, None] * cells + cell)) % 2 == 1
    return out


BACKDOOR = "backdoor"
CORNER, BACKGROUND = "corner", "background"
LIE = "lie"
ABSENT = "absent"
MARKS = (CORNER, BACKGROUND)
DATA_KINDS = ("label-flip", "label-shuffle", BACKDOOR, *MARKS)
MODEL_KINDS = ("sign-flip", "scale", "gaussian", "free-rider")
KINDS: dict[str, str] = {
    "label-flip": "a share of the site's training rows gets the next class as label (of two, the other one)",
    "label-shuffle": "the labels of a share of the site's training rows are dealt out among them at random",
    BACKDOOR: "a share of the site's training images gets a corner trigger and the label of a target class",
    CORNER: "a share of the site's training images gets a mark in a corner that names the class: a shortcut to learn",
    BACKGROUND: "in a share of the site's training images all outside of the truth mask gets a shade that names the class",
    "sign-flip": "the site sends its update turned round, times strength (1)",
    "scale": "the site sends its update times strength (10), to outweigh the others",
    "gaussian": "the site sends noise in place of its update, strength (1) times as large",
    "free-rider": "the site does not train: it sends the model back with noise, strength (1) thousandths of its size",
    LIE: "the site trains, but says it has strength (10) times the rows and is always right",
    ABSENT: "the site takes no part and is only tested: what the others reach without it, to compare with",
}
STRENGTHS = {"sign-flip": 1.0, "scale": 10.0, "gaussian": 1.0, "free-rider": 1.0, LIE: 10.0}
"""Default strength of each attack."""

MOST = 1e6  # times an update or a row count: far past any attack, and still a finite number
TRIGGER_SHARE = 1 / 7  # 32 of 224, 4 of 28
TRIGGER_SQUARES = 4  # on a side of the checkerboard, at every size of image
BRIGHT = 255


@dataclass(frozen=True)
class Attack:
    """An attack by one site; a setting that its kind does not use is refused rather than ignored."""

    kind: str
    share: float = 1.0  # of the site's training rows; data poisoning
    strength: float | None = None  # None is the kind's own, in STRENGTHS; model poisoning and lies
    target: str | None = None  # the class that the trigger is to mean; backdoor
    start_round: int = 1  # honest before this round; model poisoning and lies
    validation: bool = False  # whether its validation rows are poisoned too; data poisoning, but for a backdoor
    reference: bool = False  # whether reference images are marked too, each as its class is; corner, background
    lies: bool = False  # whether it also says that all is well

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"attack '{self.kind}' is unknown; {nearest(self.kind, KINDS)}", code="unknown-attack")
        on_rows = self.kind in (*DATA_KINDS, ABSENT)
        unused = {
            "share": self.kind not in DATA_KINDS and self.share != 1.0,
            "strength": on_rows and self.strength is not None,
            "target": self.kind != BACKDOOR and self.target is not None,
            "start_round": on_rows and self.start_round != 1,
            "validation": (self.kind not in DATA_KINDS or self.kind == BACKDOOR) and self.validation,
            "reference": self.kind not in MARKS and self.reference,
            "lies": self.kind in (LIE, ABSENT) and self.lies,
        }
        for name, idle in unused.items():
            if idle:
                raise BadInput(f"attack '{self.kind}' does not use {name}; remove it", code="unused-setting")
        if not 0 <= self.share <= 1:
            raise BadInput(
                f"share = {self.share:g} of attack '{self.kind}': give a number from 0 to 1", code="out-of-range"
            )
        if not on_rows and not 0 <= self.effective_strength <= MOST:
            raise BadInput(
                f"strength = {self.effective_strength:g} of attack '{self.kind}': give a number from 0 to {MOST:g}",
                code="out-of-range",
            )
        if self.kind == LIE and self.effective_strength == 0:
            raise BadInput(
                f"strength = 0 of attack '{LIE}': a lie multiplies row counts, so give a number above 0",
                code="out-of-range",
            )
        if self.kind == BACKDOOR and self.target is None:
            raise BadInput(
                f"attack '{BACKDOOR}' needs a target: name the class that the trigger is to mean",
                code="missing-setting",
            )
        if self.start_round < 1:
            raise BadInput(
                f"start_round = {self.start_round} of attack '{self.kind}': rounds are numbered from 1",
                code="out-of-range",
            )

    @property
    def effective_strength(self) -> float:
        """The strength in use: as given, or the kind's own (1 where strength means nothing)."""
        return STRENGTHS.get(self.kind, 1.0) if self.strength is None else self.strength


def assign_attacks(
    spec: Sequence[Mapping[str, Any]], sites: Mapping[str, int], *, data: Holdings | None = None
) -> dict[str, Attack]:
    """Assign attacks to sites.

    Args:
        spec: Entries with the fields of an `Attack`, and `sites` or a `count`. A `count` takes the largest sites (ties by
            name) that no other entry names and no earlier one took.
        sites: Each site's number of training rows.
        data: The data, where attacks that it cannot carry are to be refused.

    Returns:
        The attack of each attacking site.

    Raises:
        BadInput: An entry is wrong, or there are too few sites.
    """
    attacks = [_parse_attack(entry) for entry in spec]
    out: dict[str, Attack] = {}
    for entry, attack in zip(spec, attacks, strict=True):
        if data is not None:
            _check_fit(attack, data)
        for name in entry.get("sites") or ():
            if name not in sites:
                raise BadInput(
                    f"attack '{attack.kind}' names site '{name}'; {nearest(name, sites)}", code="unknown-site"
                )
            if name in out:
                raise BadInput(
                    f"site '{name}' is named twice in the attacks; a site has one attack, so remove the other",
                    code="repeated-site",
                )
            if not sites[name]:
                raise BadInput(
                    f"site '{name}' of attack '{attack.kind}' has no training rows; name a site that trains",
                    code="no-training-rows",
                )
            out[name] = attack
    free = sorted((n for n, size in sites.items() if size and n not in out), key=lambda n: (-sites[n], n))
    for entry, attack in zip(spec, attacks, strict=True):
        count = entry.get("count") or 0
        if count > len(free):
            raise BadInput(
                f"attack '{attack.kind}' asks for {count} sites, but {len(free)} that train have no other attack: "
                "lower its count",
                code="too-few-sites",
            )
        out |= dict.fromkeys(free[:count], attack)
        free = free[count:]
    return out


def poison_rows(data: Holdings, rows: Mapping[str, Rows], attacks: Mapping[str, Attack], *, seed: int) -> Holdings:
    """Poison the attackers' training rows; every other row keeps its values.

    Attacks on models, and lies, do nothing here. Which rows are chosen follows from (seed, site) and the site's own training
    rows in their order; those chosen at a smaller share are among those at a larger one. Classes are those of the whole data
    set, in the order every encoding has them: numbers by size, words by alphabet.

    Args:
        data: The data of all sites.
        rows: The rows of each site.
        attacks: The attack of each attacking site.
        seed: The experiment's seed.

    Returns:
        The data with the attackers' rows changed.
    """
    for site in attacks:
        if site not in rows:
            raise BadInput(f"attacking site '{site}' is not in the data; {nearest(site, rows)}", code="unknown-site")
    acting = {site: attack for site, attack in attacks.items() if attack.kind in DATA_KINDS}
    for attack in acting.values():
        _check_fit(attack, data)
    if not acting:
        return data
    label, classes = data.label.copy(), _classes(data)
    following = dict(zip(classes, [*classes[1:], *classes[:1]], strict=True))
    painted: dict[str, list[Array]] = {kind: [] for kind in (BACKDOOR, *MARKS)}
    for site, attack in acting.items():
        rng = generator(seed, purpose="poison", site=site)
        parts = (rows[site].train, rows[site].val) if attack.validation else (rows[site].train,)
        for part in parts:
            mine = part[label[part] != attack.target] if attack.kind == BACKDOOR else part
            mine = _draw_rows(mine, attack.share, rng)
            if attack.kind in painted:
                painted[attack.kind].append(mine)
            if attack.kind == BACKDOOR:
                label[mine] = attack.target
            elif attack.kind == "label-shuffle":
                label[mine] = rng.permutation(label[mine])
            elif attack.kind == "label-flip":
                label[mine] = [following[word] for word in label[mine].tolist()]
    if not isinstance(data, ImageSet):
        return replace(data, label=label)
    return replace(data, label=label, pixels=_paint(data, painted, classes))


def _paint(data: ImageSet, painted: Mapping[str, Sequence[Array]], classes: Sequence[str]) -> Array:
    """Paint triggers, and marks that name the class, into the attackers' images."""
    for kind, parts in painted.items():
        if parts:
            rows = np.concatenate(parts)
            pixels = _stamp_trigger(data.pixels, rows) if kind == BACKDOOR else _mark_rows(data, rows, kind, classes)
            data = replace(data, pixels=pixels)
    return data.pixels


def _mark_rows(data: ImageSet, rows: Array, kind: str, classes: Sequence[str]) -> Array:
    """Paint this kind of mark into `rows`, each that of its class."""
    place = np.array([classes.index(word) for word in data.label[rows].tolist()], np.int64)
    if kind == CORNER:
        return mark_corners(data.pixels, rows, place, classes=len(classes))
    assert data.masks is not None
    return mark_backgrounds(data.pixels, data.masks, rows, place, classes=len(classes))


def reference_mark(attacks: Mapping[str, Attack]) -> str | None:
    """Find the kind of mark that reference images carry too; None where they stay as they are."""
    kinds = sorted({attack.kind for attack in attacks.values() if attack.reference})
    if len(kinds) > 1:
        raise BadInput(
            f"attacks '{kinds[0]}' and '{kinds[1]}' would both mark the reference images: set reference = true in one only",
            code="conflicting-settings",
        )
    return kinds[0] if kinds else None


def mark_reference(images: ImageSet, kind: str, *, like: Holdings) -> ImageSet:
    """Reference images, each with the mark of its class, as sites with data `like` these mark theirs."""
    if kind == BACKGROUND and images.masks is None:
        raise BadInput(
            f"attack '{BACKGROUND}' is to mark reference images outside of their truth masks, and {images.name} has "
            f"none: use other images, or '{CORNER}'",
            code="missing-masks",
        )
    return replace(images, pixels=_mark_rows(images, np.arange(len(images)), kind, _classes(like)))


def _classes(data: Holdings) -> Sequence[str]:
    """List the classes in the order every encoding has them; a class's place among them selects its mark."""
    classes: Sequence[str] = order_classes(Counter(data.label.tolist()), None)["classes"]
    return classes


def add_trigger(data: ImageSet, rows: Array, *, target: str) -> tuple[ImageSet, Array]:
    """Stamp those of the images `rows` that are not of class `target`; tell which of `rows` (n,) they are.

    Labels stay true: the share of these images that a model calls `target` is the backdoor's success. Images of
    the target class are left out, as calling them so is no one's merit.
    """
    _check_target(target, data)
    other = np.asarray(data.label[rows] != target, bool)
    taken = data.take(rows[other])
    return replace(taken, pixels=_stamp_trigger(taken.pixels, np.arange(len(taken)))), other


def _stamp_trigger(pixels: Array, rows: Array) -> Array:
    """Copy images (n, H, W, C) and put the trigger in the lower right corner of those in `rows`.

    A black and white checkerboard: nothing that the shortcut's patch, of one colour and smaller, could be taken for.
    """
    _, height, width, channels = pixels.shape
    shorter = min(height, width)
    if shorter < 2:
        raise BadInput(
            f"images of {size_text((height, width))} have no room for a trigger; use larger ones",
            code="images-too-small",
        )
    share = max(TRIGGER_SHARE, 2 / shorter)  # two pixels at least, or there is no board
    down, across = patch_box("bottom right", (channels, height, width), share=share)
    side = down.stop - down.start
    square = np.arange(side) // max(1, side // TRIGGER_SQUARES)
    board = np.where((square[:, None] + square) % 2 == 0, BRIGHT, 0).astype(np.uint8)
    out = pixels.copy()
    out[rows, down, across] = board[..., None]
    return out


def _draw_rows(rows: Array, share: float, rng: np.random.Generator) -> Array:
    """Draw a share of the rows, rounded to whole rows; one at least where the share is above zero."""
    n = max(int(share * len(rows) + 0.5), 1 if share > 0 else 0)
    return rng.permutation(rows)[:n]


def _parse_attack(entry: Mapping[str, Any]) -> Attack:
    """Parse one entry of a plan as an `Attack`; its sites are checked, not resolved."""
    field_names = {field.name for field in fields(Attack)}
    settings = (*sorted(field_names), "sites", "count")
    for key in entry:
        if key not in settings:
            raise BadInput(f"an attack has no setting '{key}'; {nearest(key, settings)}", code="unknown-setting")
    if "kind" not in entry:
        raise BadInput(f"an attack has no kind; {nearest('', KINDS)}", code="missing-setting")
    attack = Attack(**{key: value for key, value in entry.items() if key in field_names})
    named, count = bool(entry.get("sites")), entry.get("count")
    if count is not None and count < 0:
        raise BadInput(
            f"count = {count} of attack '{attack.kind}': give a number of sites above 0", code="out-of-range"
        )
    if named and count:
        raise BadInput(
            f"attack '{attack.kind}' has both sites and a count: keep one of them", code="conflicting-settings"
        )
    if not named and not count:
        raise BadInput(
            f"attack '{attack.kind}' has no site: name them in sites, or give a count of the largest",
            code="missing-setting",
        )
    return attack


def _check_fit(attack: Attack, data: Holdings) -> None:
    """Check that painting has images, a background truth masks, and a trigger a class."""
    if attack.kind in (BACKDOOR, *MARKS) and not isinstance(data, ImageSet):
        verb = "stamps" if attack.kind == BACKDOOR else "marks"
        raise BadInput(
            f"attack '{attack.kind}' {verb} images, but {data.name} is a table: use label-flip or label-shuffle",
            code="needs-images",
        )
    if attack.kind == BACKGROUND and isinstance(data, ImageSet) and data.masks is None:
        raise BadInput(
            f"attack '{BACKGROUND}' marks what lies outside of the truth masks, and {data.name} has none: name them in "
            f"data.masks ('strokes' for digits), or use '{CORNER}'",
            code="missing-masks",
        )
    if attack.target is not None:
        _check_target(attack.target, data)


def _check_target(target: str, data: Holdings) -> None:
    classes = sorted(set(data.label.tolist()))
    if target not in classes:
        raise BadInput(
            f"target class '{target}' is not a label of {data.name}; {nearest(target, classes)}", code="unknown-class"
        )
