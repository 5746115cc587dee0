"""Random damage to valid files: each ends in a right load or in one error that changes nothing.

`scripts/fuzz` tries many more.
"""

from __future__ import annotations

import functools
import io
import json
import pathlib
import struct
import tempfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.errors import CheckpointError
from keras_vit.models.vit import build_vit
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import save_weights
from tests import official
from tests.fixtures import tiny_config

SENTINEL = 0.5
SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)
PLACE = st.floats(0, 1, exclude_max=True)


@functools.cache
def model():
    return build_vit(tiny_config(include_preprocessing=False))


@functools.cache
def arrays():
    return official.load_golden("vit_token")[0]


@functools.cache
def whole_files():
    """The bytes of a valid file of each format, and the weights that they hold."""
    with tempfile.TemporaryDirectory() as folder:
        load_weights(model(), official.GOLDEN / "vit_token.checkpoint.npz")
        tensors = save_weights(model(), pathlib.Path(folder) / "x.safetensors", "timm")
        files = {".npz": npz_bytes(arrays()), ".safetensors": tensors.read_bytes()}
    return files, [weight.numpy() for weight in model().weights]


def npz_bytes(content, compress=False):
    stream = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(stream, **content)
    return stream.getvalue()


def check(data, suffix):
    """Loads bytes into a model of sentinels; says whether they loaded."""
    _, expected = whole_files()
    for weight in model().weights:
        weight.assign(np.full(weight.shape, SENTINEL, "float32"))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"file{suffix}"
        path.write_bytes(data)
        try:
            load_weights(model(), path)
        except CheckpointError as error:
            assert str(path) in str(error)
            for weight in model().weights:
                assert (weight.numpy() == SENTINEL).all(), "half loaded"
            return False
    for weight, value in zip(model().weights, expected, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value, err_msg=weight.path)
    return True


def test_whole_files_load():
    files, _ = whole_files()
    assert all(check(data, suffix) for suffix, data in files.items())
    assert check(npz_bytes(arrays(), compress=True), ".npz")


@SETTINGS
@given(suffix=st.sampled_from([".npz", ".safetensors"]), share=PLACE)
def test_cut_files_never_load(suffix, share):
    data = whole_files()[0][suffix]
    assert not check(data[: int(share * len(data))], suffix)


@SETTINGS
@given(share=PLACE, bit=st.integers(0, 7), count=st.integers(1, 4))
def test_flipped_bits_of_npz(share, bit, count):
    data = bytearray(whole_files()[0][".npz"])
    start = int(share * len(data))
    for place in range(start, min(start + count, len(data))):
        data[place] ^= 1 << bit
    check(bytes(data), ".npz")


@pytest.mark.slow
@SETTINGS
@given(share=PLACE, bit=st.integers(0, 7))
def test_flipped_bits_in_the_directory_of_npz(share, bit):
    data = bytearray(whole_files()[0][".npz"])
    start = data.index(b"PK\x01\x02")  # where names, sizes and places are
    data[start + int(share * (len(data) - start))] ^= 1 << bit
    check(bytes(data), ".npz")


@SETTINGS
@given(share=PLACE, bit=st.integers(0, 7))
def test_flipped_bits_in_the_header_of_safetensors(share, bit):
    data = bytearray(whole_files()[0][".safetensors"])
    (length,) = struct.unpack("<Q", data[:8])
    data[int(share * (8 + length))] ^= 1 << bit
    check(bytes(data), ".safetensors")


KEYS = st.sampled_from(sorted(official.load_golden("vit_token")[0]))


def rename(content, key, draw):
    content[draw(st.sampled_from([key + "_", key.upper() + "?", f"x/{key}"]))] = content.pop(key)


def remove(content, key, draw):
    del content[key]


def add(content, key, draw):
    content[f"{key}_more"] = content[key]


def reshape(content, key, draw):
    array = content[key]
    shape = draw(st.sampled_from([(-1, 3), (2, -1), (-1,), (1, 1, 1, 1)]))
    content[key] = np.resize(array, (array.size + 1, 3) if -1 in shape else shape)


def retype(content, key, draw):
    types = ["int32", "uint8", "bool", "complex64", "object", "<U8", "datetime64[s]"]
    content[key] = content[key].astype("int64").astype(draw(st.sampled_from(types)))


def poison(content, key, draw):
    array = content[key].copy()
    place = draw(st.integers(0, array.size - 1))
    array.flat[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    content[key] = array


def wrap(content, key, draw):
    content[key] = np.array(None)


@SETTINGS
@given(
    change=st.sampled_from([rename, remove, add, reshape, retype, poison, wrap]),
    key=KEYS,
    compress=st.booleans(),
    draws=st.data(),
)
def test_changed_arrays_never_load(change, key, compress, draws):
    content = dict(arrays())
    change(content, key, draws.draw)
    assert not check(npz_bytes(content, compress), ".npz")


@SETTINGS
@given(key=KEYS, rows=st.integers(0, 40), value=st.sampled_from(["float16", "float64"]))
def test_other_sizes_and_floats_are_right_or_refused(key, rows, value):
    """Half precision rounds and other sizes may be resized, so only the error is looked at."""
    content = dict(arrays())
    content[key] = np.resize(content[key], (rows, *content[key].shape[1:])).astype(value)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "file.npz"
        path.write_bytes(npz_bytes(content))
        try:
            report = load_weights(model(), path)
        except CheckpointError:
            return
    same = content[key].shape == arrays()[key].shape
    assert same or report.fresh or report.resized
    assert all(np.isfinite(weight.numpy()).all() for weight in model().weights)


@SETTINGS
@given(
    row=st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "F99", "", None, 3]),
            "shape": st.one_of(
                st.none(), st.lists(st.integers(-2, 2**62), max_size=4), st.text(max_size=3)
            ),
            "data_offsets": st.one_of(
                st.none(), st.lists(st.integers(-5, 2**62), min_size=0, max_size=3)
            ),
        }
    ),
    padding=st.binary(max_size=64),
)
def test_invented_headers_of_safetensors(row, padding):
    text = json.dumps({"cls_token": row}).encode()
    assert not check(struct.pack("<Q", len(text)) + text + padding, ".safetensors")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["__metadata__", "cls_token", "dtype", "shape", "data_offsets"]), inner
        ),
    ),
    max_leaves=8,
)


@SETTINGS
@given(header=JSON, padding=st.binary(max_size=64))
def test_any_json_as_the_header_of_safetensors(header, padding):
    text = json.dumps(header).encode().ljust(16)
    assert not check(struct.pack("<Q", len(text)) + text + padding, ".safetensors")


@SETTINGS
@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04", b"\x80\x04", b"\x93NUMPY"]))
def test_noise_never_loads(noise, start):
    assert not check(start + noise, ".npz")


def test_every_array_of_safetensors_is_needed():
    data = whole_files()[0][".safetensors"]
    content = safetensors.numpy.load(data)
    for name in [*sorted(content)[::7], "head.weight", "head.bias"]:
        rest = {key: array for key, array in content.items() if key != name}
        assert not check(safetensors.numpy.save(rest), ".safetensors")
