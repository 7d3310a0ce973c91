"""The sentence encoder: word pieces by hand, the net against torch's own layers, and the published one's numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from grandrounds.core.errors import BadInput, install_extra
from grandrounds.core.rng import generator
from grandrounds.data.sets.sentence_encoder import FILES, embed, embed_pieces, word_pieces
from grandrounds.data.store import locate_file
from tests.support import refused

torch = pytest.importorskip("torch")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "in",
    "##sul",
    "##in",
    "insul",
    "home",
    "8",
    "##0",
    "%",
    "(",
    ")",
    "a",
    "##1",
]
NUMBER = {word: i for i, word in enumerate(WORDS)}


def said(text):
    return [WORDS[i] for i in word_pieces(text, NUMBER)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Home", ["home"]),
        ("insulin", ["insul", "##in"]),  # the longest piece first, though "in" would fit too
        ("(Insulin 80%)", ["(", "insul", "##in", "8", "##0", "%", ")"]),
        ("a1 home", ["a", "##1", "home"]),
        ("insulation home", ["[UNK]", "home"]),  # a word with one unknown piece is unknown as a whole
        ("", []),
    ],
)
def test_words_fall_into_pieces(text, pieces):
    assert said(text) == ["[CLS]", *pieces, "[SEP]"]


def test_a_long_text_is_cut_off():
    assert said("home " * 300) == ["[CLS]", *["home"] * 254, "[SEP]"]
    assert said("home " * 254) == ["[CLS]", *["home"] * 254, "[SEP]"]


def test_text_outside_ascii_is_refused():
    with refused("non-ascii-text", match="'naïve patient'"):
        word_pieces("naïve patient", NUMBER)


def small_net(layers=2, width=64, inner=96):
    """Random weights by BERT's names, and the same net made of torch's own layers (two heads of 32)."""
    rng = generator(0, purpose="test")

    def some(*shape, around=0.0):
        return torch.tensor(rng.normal(around, 0.2, shape), dtype=torch.float32)

    weights = {f"embeddings.{kind}_embeddings.weight": some(n, width) for kind, n in
               (("word", 50), ("position", 20), ("token_type", 2))}  # fmt: skip
    weights |= {"embeddings.LayerNorm.weight": some(width, around=1.0), "embeddings.LayerNorm.bias": some(width)}
    stack = []
    for k in range(layers):
        index = f"encoder.layer.{k}"
        shapes = {f"attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (width, width), "intermediate.dense": (inner, width)}
        shapes |= {"output.dense": (width, inner)}
        for name, shape in shapes.items():
            weights |= {f"{index}.{name}.weight": some(*shape), f"{index}.{name}.bias": some(shape[0])}
        for name in ("attention.output", "output"):
            weights |= {f"{index}.{name}.LayerNorm.weight": some(width, around=1.0)}
            weights |= {f"{index}.{name}.LayerNorm.bias": some(width)}
        layer = torch.nn.TransformerEncoderLayer(
            width, 2, inner, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        names = {"self_attn.out_proj": "attention.output.dense", "linear1": "intermediate.dense",
                 "linear2": "output.dense", "norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm"}  # fmt: skip
        state = {f"{t}.{kind}": weights[f"{index}.{b}.{kind}"] for t, b in names.items() for kind in ("weight", "bias")}
        for kind in ("weight", "bias"):
            three = [weights[f"{index}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            state[f"self_attn.in_proj_{kind}"] = torch.cat(three)
        layer.load_state_dict(state)
        stack.append(layer.eval())
    return weights, stack


def by_torch(text, weights, stack):
    word, position, kind = (weights[f"embeddings.{k}_embeddings.weight"] for k in ("word", "position", "token_type"))
    x = (word[list(text)] + position[: len(text)] + kind[0])[None]
    norm = [weights[f"embeddings.LayerNorm.{k}"] for k in ("weight", "bias")]
    x = torch.nn.functional.layer_norm(x, (x.shape[-1],), *norm, 1e-12)
    for layer in stack:
        x = layer(x)
    mean = x[0].mean(0)
    return (mean / mean.norm()).detach().numpy()


def test_the_net_is_torchs_own_for_texts_of_any_length_in_any_order():
    weights, stack = small_net()
    rng = generator(1, purpose="test")
    texts = [tuple(rng.integers(0, 50, n).tolist()) for n in (3, 11, 3, 20, 2, 11, 3, *[5] * 40)]
    steps = []
    result = embed_pieces(texts, weights, progress=lambda process, total: steps.append((process, total)))
    assert result.shape == (47, 64) and result.dtype == np.float32
    assert np.allclose(result, [by_torch(text, weights, stack) for text in texts], atol=1e-5)
    assert [process for process, _ in steps] == sorted({process for process, _ in steps}) and steps[-1] == (47, 47)


PUBLISHED = {
    "The patient went home.": [0.0357621, 0.0734043, -0.0598517, -0.0028655, 0.0328232],
    "Readmitted within 30 days: HbA1c above 8%.": [0.0317962, -0.0213161, -0.0371458, -0.0203602, 0.0741829],
    "A Caucasian woman aged 80 to 89, admitted urgently from another hospital for circulatory disease and other "
    "illness (8 diagnoses), stayed 13 days. 68 lab tests, 2 procedures and 28 medicines. Glipizide and insulin "
    "unchanged. Discharged home.": [0.0282576, 0.0453107, -0.0791870, -0.0144313, -0.0674557],
}
"""Numbers 0, 1, 2, 191 and 383 as sentence-transformers 6.2.0 gives them."""


@pytest.mark.slow
def test_the_published_encoder_gives_what_sentence_transformers_gives():
    try:
        for file in FILES:
            locate_file(file)
    except BadInput as e:
        pytest.skip(f"{e} (make test-slow fetches it)")
    result = embed(list(PUBLISHED))
    assert result.shape == (3, 384)
    assert result[:, [0, 1, 2, 191, 383]] == pytest.approx(np.array(list(PUBLISHED.values())), abs=1e-6)
    assert np.linalg.norm(result, axis=1) == pytest.approx(1, abs=1e-6)


def test_an_encoder_that_is_not_here_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with refused("data-not-downloaded", match="minilm/.*diabetes-130-text"):
        embed(["home"], name="diabetes-130-text")


def test_without_torch_one_sentence_names_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from grandrounds.data.sets.sentence_encoder import embed\n"
        "try: embed(['home'], name='diabetes-130-text')\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.startswith("BadInput diabetes-130-text needs torch") and install_extra("text") in process.stdout
