"""LightGBM's text as a parameter vector: writing, packing and checking boosted trees.

LightGBM's reader does not check its input: a circular link loops forever, and a column number that is too large reads foreign
memory. A text may come from another hospital, so every line is checked here before LightGBM reads it. Lines that the reader does
not need are removed (`strip_text`), among them the smallest and largest value of each column, which are patient data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.trees import MAX_DEPTH

_MARK = 0x475247  # "GRG" opens every vector; below 2**24, so float32 holds it too
_HEADER = 3  # mark, and the length of the text in two numbers
_BYTES = 3  # bytes of text in one number, for the same reason
_WORD = 256**_BYTES
CACHED_TEXTS = 8  # texts remembered as checked, and as parsed by LightGBM

_END = "end of trees\n"
_GAP = "\n\n\n"
_WHOLE, _REAL = r"-?\d{1,10}", r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_LINES = {
    "num_leaves": _WHOLE, "num_cat": _WHOLE, "split_feature": _WHOLE, "split_gain": _REAL, "threshold": _REAL,
    "decision_type": _WHOLE, "left_child": _WHOLE, "right_child": _WHOLE, "leaf_value": _REAL, "leaf_count": _WHOLE,
    "internal_count": _WHOLE, "is_linear": _WHOLE, "shrinkage": _REAL,
}  # fmt: skip
_FORMS = {name: re.compile(f"(?:{form}(?: {form})*)?") for name, form in _LINES.items()}
_ONCE = ("num_leaves", "num_cat", "is_linear", "shrinkage")
_LEAVES = ("leaf_value", "leaf_count")
_SPLITS = tuple(name for name in _LINES if name not in _ONCE + _LEAVES)
_SPARE = re.compile(r"^(?:leaf_weight|internal_value|internal_weight)=.*\n", re.MULTILINE)
_LEAF_VALUES = re.compile(r"^leaf_value=(.*)$", re.MULTILINE)
_DECISIONS = (0, 2, 4, 6, 8, 10)  # numeric splits: which way a missing value goes, and what counts as missing


@dataclass(frozen=True)
class BoostedLayout:
    """The flat form: mark, length, then LightGBM's text with three bytes in each number.

    So the trees can be sent and stored like a parameter vector, exactly also in float32. Vectors differ in length, as texts do.
    A text is accepted once all of it has been checked against the model: columns, classes, depth, and links that lead from the
    root to each leaf once.
    """

    features: int
    classes: int
    depth: int = MAX_DEPTH

    def pack(self, params: Mapping[str, Array], *, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Pack {"text": (n,) uint8} into one flat vector, checked as untrusted input.

        float32 is kept; any other type gives float64.
        """
        if set(params) != {"text"}:
            extra = ", ".join(sorted(set(params) ^ {"text"}))
            raise BadInput(
                f"the parameters do not fit boosted trees: {extra} missing or unknown", code="unknown-parameters"
            )
        text = np.asarray(params["text"])
        _require(text.ndim == 1 and text.dtype == np.uint8, "the text is not an array of bytes")
        return self.vector(text.tobytes(), dtype=dtype)

    def views(self, vector: Array) -> dict[str, Array]:
        """Return {"text": (n,) uint8}: a read-only copy, not a view of the vector."""
        return {"text": np.frombuffer(self.text(vector), np.uint8)}

    def vector(self, text: bytes, *, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Pack a text into a vector; refuse anything malformed."""
        self.count(text)
        cells = np.frombuffer(text + bytes(-len(text) % _BYTES), np.uint8).reshape(-1, _BYTES)
        packed = cells @ np.array([256**2, 256, 1], np.float64)
        parts = [np.array([_MARK, *divmod(len(text), _WORD)]), packed]
        return np.concatenate(parts, dtype=np.float32 if np.dtype(dtype) == np.float32 else np.float64)

    def text(self, vector: Array) -> bytes:
        """Unpack the text of a vector; refuse anything malformed."""
        text = _unpack(vector)
        self.count(text)
        return text

    def count(self, text: bytes) -> int:
        """Check a text; return the number of its trees."""
        return _check_text(text, self.features, self.classes, self.depth)


def output_count(classes: int) -> int:
    return 1 if classes == 2 else classes


def _head(*, features: int, classes: int) -> str:
    """Return the first lines, all that the reader asks for. They follow from the model, so they are compared, not parsed."""
    outputs = output_count(classes)
    return "\n".join(
        [
            "tree",
            "version=v4",
            f"num_class={outputs}",
            f"num_tree_per_iteration={outputs}",
            "label_index=0",
            f"max_feature_idx={features - 1}",
            f"objective={'binary sigmoid:1' if outputs == 1 else f'multiclass num_class:{classes}'}",
            f"feature_names={' '.join(f'Column_{j}' for j in range(features))}",
            f"feature_infos={' '.join(['none'] * features)}",
        ]
    )


def compose_text(trees: str, *, features: int, classes: int) -> bytes:
    return f"{_head(features=features, classes=classes)}\n\n{trees}{_END}".encode("ascii")


def strip_text(theirs: str, *, features: int, classes: int) -> bytes:
    """Remove the parts of LightGBM's text that its reader does not need.

    Left out: the ranges of the columns, its parameters and importances, sums that neither a score nor its
    explanation needs, and the byte sizes of the trees, by which the reader would jump (and with several
    threads) instead of reading one tree after the other.
    """
    trees = theirs[theirs.index("\n\n") + 2 : theirs.index(_END)]
    return compose_text(_SPARE.sub("", trees), features=features, classes=classes)


def constant_trees(shares: Array, *, features: int) -> bytes:
    """Write a tree of one leaf for each score: the classes' log shares, with one imagined row more in each class."""
    more: Array = np.log(shares + 1)
    scores = [more[1] - more[0]] if len(shares) == 2 else more - np.log((shares + 1).sum())
    rows = round(shares.sum())
    trees = "".join(_leaf(k, float(score), rows=rows) for k, score in enumerate(scores))
    return compose_text(trees, features=features, classes=len(shares))


def _leaf(number: int, score: float, *, rows: int) -> str:
    """A tree of one leaf."""
    once = {"num_leaves": 1, "num_cat": 0, "leaf_value": score, "leaf_count": rows, "is_linear": 0, "shrinkage": 1}
    return "\n".join([f"Tree={number}", *(f"{name}={once.get(name, '')}" for name in _LINES)]) + _GAP


def scale_scores(text: bytes, slope: float, intercept: float) -> bytes:
    """Write the text of slope * score + intercept: each leaf's value times the slope, and one tree more of a single leaf."""
    head, _, body = text.decode("ascii").partition("\n\n")
    *trees, _ = body.split(_GAP)

    def scaled(line: re.Match[str]) -> str:
        return "leaf_value=" + " ".join(repr(slope * float(v)) for v in line[1].split())

    scaled_trees = "".join(_LEAF_VALUES.sub(scaled, tree) + _GAP for tree in trees)
    return f"{head}\n\n{scaled_trees}{_leaf(len(trees), intercept, rows=1)}{_END}".encode("ascii")


def _require(sound: bool | np.bool_, problem: str) -> None:
    if not sound:
        raise BadInput(f"these parameters are not sound boosted trees: {problem}", code="damaged-model")


def _unpack(vector: Array) -> bytes:
    """Return the bytes that a vector holds, unchecked."""
    vector = np.asarray(vector)
    number = vector.dtype.kind == "f" and vector.dtype.itemsize in (4, 8)
    if vector.ndim != 1 or not number or vector.size < _HEADER or vector[0] != _MARK:
        raise BadInput("these parameters are not boosted trees: the header is missing", code="damaged-model")
    numbers = vector[1:]
    _require(
        ((numbers >= 0) & (numbers < _WORD) & (numbers == np.trunc(numbers))).all(), "a number holds no whole bytes"
    )
    length = int(numbers[0]) * _WORD + int(numbers[1])
    _require(vector.size == _HEADER - (-length // _BYTES), "the length does not match the header")
    cells = vector[_HEADER:].astype(">u4").view(np.uint8).reshape(-1, 4)
    padded = cells[:, 4 - _BYTES :].tobytes()
    _require(not any(padded[length:]), "there is data after the text")
    return padded[:length]


@lru_cache(maxsize=CACHED_TEXTS)
def _check_text(text: bytes, features: int, classes: int, depth: int) -> int:
    """Check every line of a text; return the number of its trees."""
    _require(text.isascii() and text.startswith(b"tree\n"), "this is not LightGBM's text")
    head, _, body = text.decode("ascii").partition("\n\n")
    _check_head(head, features=features, classes=classes)
    *trees, end = body.split(_GAP)
    _require(end == _END, "the text does not end where the trees do")
    _require(len(trees) % output_count(classes) == 0, f"{len(trees)} trees do not make whole rounds of boosting")
    for k, tree in enumerate(trees):
        _check_tree(tree, k, features=features, depth=depth)
    return len(trees)


def _check_head(head: str, *, features: int, classes: int) -> None:
    """Check that the first lines are those of this model; name another number of columns or classes."""
    fields = dict(re.findall(r"^(num_class|max_feature_idx)=(\d{1,9})$", head, re.MULTILINE))
    columns, scores = int(fields.get("max_feature_idx", -1)) + 1, int(fields.get("num_class", 0))
    _require(columns == features, f"they read {columns} columns, the model has {features}")
    _require(scores == output_count(classes), f"they give {scores} scores, the model {output_count(classes)}")
    _require(head == _head(features=features, classes=classes), "the first lines are not those of this model")


def _check_tree(tree: str, number: int, *, features: int, depth: int) -> None:
    """Check the lines of one tree: known, in order, of numbers, as many as there are leaves or splits."""
    first, *lines = tree.split("\n")
    named = [line.partition("=") for line in lines]
    _require(first == f"Tree={number}", f"tree {number} is not where it should be")
    _require([name for name, _, _ in named] == list(_LINES), f"tree {number} has unexpected lines")
    values = {name: _numbers(name, value) for name, _, value in named}
    for name in _ONCE:
        _require(values[name].size == 1, f"'{name}' of tree {number} is not one number")
    leaves = int(values["num_leaves"][0])
    _require(leaves >= 1, f"tree {number} has no leaf")
    _require(
        values["num_cat"][0] == values["is_linear"][0] == 0, f"tree {number} has more than plain splits and leaves"
    )
    for name in _LEAVES + _SPLITS:
        size = leaves if name in _LEAVES else leaves - 1
        blank = name == "leaf_count" and leaves == 1 and not values[name].size  # older versions do not count one leaf
        _require(values[name].size == size or blank, f"'{name}' of tree {number} does not hold {size} numbers")
    column, kind = values["split_feature"], values["decision_type"]
    _require(((column >= 0) & (column < features)).all(), f"tree {number} uses a column that does not exist")
    _require(np.isin(kind, _DECISIONS).all(), f"tree {number} has a split that is not numeric")
    _check_links(values["left_child"], values["right_child"], number, depth=depth)


def _numbers(name: str, value: str) -> Array:
    """Read the numbers of a line, finite and, where they are counted with, whole and small."""
    _require(_FORMS[name].fullmatch(value) is not None, f"'{name}' holds something that is no number")
    numbers: Array = np.array(value.split(), np.float64)
    _require(np.isfinite(numbers).all(), f"'{name}' is not finite everywhere")
    _require(_LINES[name] == _REAL or (np.abs(numbers) < 2**31).all(), f"'{name}' holds something that is no index")
    return numbers


def _check_links(left: Array, right: Array, number: int, *, depth: int) -> None:
    """Check that each leaf (-1, -2, ...) and each split but the root hangs once, below a split that comes before it."""
    splits = len(left)
    if not splits:
        return
    children = np.concatenate([left, right])
    each = np.concatenate([np.arange(-splits - 1, 0), np.arange(1, splits)])
    _require(np.array_equal(np.sort(children), each), f"a link of tree {number} is missing, double or leads nowhere")
    parents = np.tile(np.arange(splits), 2)
    inner = children > 0
    _require((children[inner] > parents[inner]).all(), f"a split of tree {number} does not come after its parent")
    level = [1] * splits
    above = dict(zip(children[inner].astype(int).tolist(), parents[inner].tolist(), strict=True))
    for child in range(1, splits):
        level[child] = level[above[child]] + 1
    _require(max(level) <= depth, f"tree {number} is deeper than {depth} levels")
