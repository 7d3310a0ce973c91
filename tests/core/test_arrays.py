"""The array format: read and written as `safetensors` does, and refused when damaged."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load as their_load
from safetensors.numpy import save as their_save

from grandrounds.core.arrays import decode, encode, encoded_size, read_file, save
from tests.support import refused

dtypes = st.sampled_from(
    [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.uint16, np.bool_]
)
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
files = st.dictionaries(st.text("abc/.-é", min_size=1, max_size=8), arrays, max_size=4)


@given(files, st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda c: st.lists(c, max_size=3)))
@settings(max_examples=80, deadline=None)
def test_round_trip_and_size(held, meta):
    data = encode(held, meta)
    assert len(data) == encoded_size(held, meta)
    back, said = decode(data)
    assert said == meta
    assert list(back) == list(held)
    for name, array in held.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_the_safetensors_package_reads_ours_and_we_read_theirs():
    held = {"layer0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([3], np.int64)}
    for name, array in their_load(encode(held)).items():
        np.testing.assert_array_equal(array, held[name])
    back, _ = decode(their_save(held))
    assert set(back) == set(held)
    for name, array in back.items():
        np.testing.assert_array_equal(array, held[name])


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_junk_is_refused_in_words(junk):
    with refused("damaged-file"):
        decode(junk)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_cut_file_is_never_read(data):
    whole = encode({"a": np.arange(5.0), "b": np.ones((2, 2), np.float32)}, {"x": 1})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with refused("damaged-file"):
        decode(whole[:cut])


def test_hostile_headers_are_refused():
    import json

    def with_header(head: dict, body: bytes = b"\0" * 8) -> bytes:
        text = json.dumps(head).encode()
        return len(text).to_bytes(8, "little") + text + body

    for entry in (
        {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [10**18], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 800]},
        {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]},
        {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1]},
        ["not", "a", "dict"],
    ):
        with refused("damaged-file"):
            decode(with_header({"a": entry}))


def test_an_object_array_cannot_be_written():
    with pytest.raises(TypeError, match="messages do not support"):
        encode({"a": np.array([{}], object)})


def test_a_failed_write_leaves_the_old_file(tmp_path):
    import resource

    path = tmp_path / "x.safetensors"
    save(path, {"a": np.zeros(3)})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(path, {"a": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_reading_a_small_file_takes_memory_for_that_file_only(tmp_path):
    file = tmp_path / "small"
    file.write_bytes(b"x" * 5000)
    tracemalloc.start()
    try:
        assert len(read_file(file)) == 5000
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
