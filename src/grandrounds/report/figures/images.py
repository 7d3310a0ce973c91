"""Images beside heat maps, and the change of heat maps over rounds."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.explain.map_metrics import COMMON, LOCAL, REPORT, TITLES
from grandrounds.report.figure import Figure, Layout, Trace
from grandrounds.report.style import AMOUNT, COLOURS, SIGNED, layout, safe

_COLUMNS = 4
_CELL = 240
_GAP = 0.03


def image_grid(panels: Sequence[tuple[str, Array]], *, title: str = "Images", across: int = _COLUMNS) -> Figure:
    """Draw images and heat maps in a grid.

    Args:
        panels: (title, array) of each panel. Arrays of whole numbers (uint8), and those of three channels, are images; floats
            (H, W) are heat maps, from blue over white to red where some are negative. Floats of three channels lie between 0
            and 1.
        title: The title.
        across: Panels in a row.

    Raises:
        BadInput: There are no panels, or an array has another shape.
    """
    if not panels:
        raise BadInput("there is no image to show: give at least one (title, array)", code="nothing-to-draw")
    columns = min(across, len(panels))
    down = -(-len(panels) // columns)
    traces, notes = [], []
    axes: Layout = {}
    for k, (name, pixels) in enumerate(panels):
        number = "" if k == 0 else str(k + 1)
        row, column = divmod(k, columns)
        array = np.asarray(pixels)
        panel = _panel(name, array)
        start, top = column / columns, 1 - row / down
        right, bottom = start + 1 / columns - _GAP, top - 1 / down + 2 * _GAP
        bare = {"visible": False, "constrain": "domain"}
        height, width = array.shape[:2]
        axes[f"xaxis{number}"] = {
            **bare,
            "domain": [start, right],
            "anchor": f"y{number}",
            "range": [-0.5, width - 0.5],
        }
        axes[f"yaxis{number}"] = {
            **bare,
            "domain": [bottom, top],
            "anchor": f"x{number}",
            "range": [height - 0.5, -0.5],
            "scaleanchor": f"x{number}",
        }
        traces.append({**panel, "xaxis": f"x{number}", "yaxis": f"y{number}"})
        notes.append(
            {"text": safe(name), "showarrow": False, "xref": "paper", "yref": "paper", "x": (start + right) / 2,
             "y": top, "yanchor": "bottom", "font": {"size": 12}}
        )  # fmt: skip
    return Figure(
        traces,
        {**layout(safe(title), height=70 + _CELL * down), **axes, "annotations": notes, "margin": {"t": 70, "b": 10}},
    )


def _panel(name: str, array: Array) -> Trace:
    if array.ndim == 2 and array.dtype.kind == "f":
        return _heat(array)
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3):
        pixels = array if array.dtype == np.uint8 else np.clip(np.round(255 * array), 0, 255).astype(np.uint8)
        return {
            "type": "image",
            "source": f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}",
            "hoverinfo": "skip",
        }
    raise BadInput(
        f"image '{name}' has shape {array.shape}: it should be (height, width) or (height, width, 3)",
        code="invalid-image-shape",
    )


def _heat(array: Array) -> Trace:
    signed = bool((array < 0).any())
    far = float(np.nanmax(np.abs(array))) if array.size else 1.0
    return {
        "type": "heatmap",
        "z": [[float(f"{v:.3g}") for v in row] for row in array.tolist()],
        "colorscale": SIGNED if signed else AMOUNT,
        "zmin": -far if signed else 0,
        "zmax": far or 1.0,
        "showscale": False,
        "hovertemplate": "row %{y}, column %{x}: %{z}<extra></extra>",
    }


def _png(pixels: Array) -> bytes:
    """Encode uint8 pixels, grey (H, W) or in colour (H, W, 3), as a PNG."""
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else 2
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body)) for tag, body in parts
    )


_CONCENTRATION_LINES = {
    (LOCAL, "concentration"): ("own models", "dash"),
    (COMMON, "concentration"): ("common model", "solid"),
}
_SIMILARITY_LINES = {
    ("alike", "ssim"): ("own and common", "solid"),
    ("since", "local_ssim"): ("own and its last", "dash"),
    ("since", "common_ssim"): ("common and its last", "dot"),
}


def map_concentration(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the concentration of heat maps, means over sites: of the models that sites trained, and of the common one.

    Raises:
        BadInput: No round has heat maps.
    """
    note = "mean over sites; 0 spread evenly, 1 on one pixel"
    return _map_figure(
        rounds, _CONCENTRATION_LINES, "Concentration of heat maps", note, "concentration", {"rangemode": "tozero"}
    )


def map_similarity(rounds: Sequence[RoundRecord]) -> Figure:
    """Draw the SSIM of heat maps: a site's own model with the common one, and each of them with its previous map.

    Raises:
        BadInput: No round has heat maps.
    """
    note = "mean over sites; 1 is the same map"
    return _map_figure(rounds, _SIMILARITY_LINES, "Similarity of heat maps", note, "SSIM", {"range": [None, 1.02]})


def _map_figure(
    rounds: Sequence[RoundRecord],
    wanted: Mapping[tuple[str, str], tuple[str, str]],
    title: str,
    note: str,
    y: str,
    axis: Layout,
) -> Figure:
    means_by_round = {r.round: r[REPORT]["means"] for r in rounds if r.get(REPORT)}
    if not means_by_round:
        raise BadInput("no round of this run has heat maps: set explain.maps and run it again", code="nothing-to-draw")
    lines = []
    for name, colour in zip(next(iter(means_by_round.values())), COLOURS, strict=False):
        for (block, key), (words, dash) in wanted.items():
            lines.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{TITLES[name]}, {words}",
                    "x": list(means_by_round),
                    "y": [means[name][block][key] for means in means_by_round.values()],
                    "line": {"color": colour, "dash": dash, "width": 2},
                    "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
                }
            )
    drawn = [line for line in lines if any(v is not None for v in line["y"])]
    return Figure(drawn, layout(title, note=note, x="round", y=y, height=380, yaxis=dict(axis)))


_LINES = {
    "accuracy": "accuracy on the scoring images",
    "xai": "XAI accuracy",
    "grid": "grid accuracy",
    "in_mask": "in-mask share",
}
_SHUFFLED = "shuffled weights"


def rationale_over_rounds(
    rounds: Sequence[RoundRecord], baselines: Mapping[str, Mapping[str, float | None]] | None = None
) -> Figure:
    """Draw accuracy, XAI accuracy, grid accuracy and in-mask share over the rounds.

    Args:
        rounds: The record of each round.
        baselines: The baselines in the summary's `reasons`; the final net with shuffled weights is dotted.

    Raises:
        BadInput: No round was scored.
    """
    scored = [r for r in rounds if r.reasons]
    if not scored:
        raise BadInput(
            "no round of this run was scored against masks: set evaluation.rationale_set and run it again",
            code="nothing-to-draw",
        )
    x = [r.round for r in scored]
    keys = [key for key in _LINES if any(key in r.reasons for r in scored)]
    shuffled = (baselines or {}).get(_SHUFFLED, {})
    lines: list[Trace] = []
    shapes = []
    for key, colour in zip(keys, COLOURS, strict=False):
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _LINES[key],
                "x": x,
                "y": [r.reasons.get(key) for r in scored],
                "line": {"color": colour, "width": 2},
                "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
            }
        )
        level = shuffled.get(key)
        if level is not None:
            line = {"color": colour, "dash": "dot", "width": 1.5}
            shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": line})
    return Figure(
        lines,
        layout(
            "Right class for the right reason",
            note="dotted: the final net with its weights shuffled" if shapes else "",
            x="round",
            y="share of scoring images",
            height=360,
            yaxis={"range": [0, 1.02]},
            shapes=shapes,
        ),
    )
