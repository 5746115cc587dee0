"""Files of training state: whole, or known not to be."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from keras_vit.errors import DamagedStateError
from keras_vit.resume import state_file
from keras_vit.resume.state_file import read_state, write_state

ARRAYS = {
    "weights": np.random.default_rng(0).normal(size=(3, 4)).astype("float32"),
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
    "steps": np.array(7),
    "nothing": np.zeros((0, 2), "float16"),
    "strided": np.arange(12).reshape(3, 4).T,
}


def test_what_is_written_is_read(tmp_path):
    write_state(tmp_path / "a", {"epoch": 3, "name": "é"}, ARRAYS)
    facts, arrays = read_state(tmp_path / "a")
    assert facts == {"epoch": 3, "name": "é"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(array, ARRAYS[name])
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_every_flipped_bit_and_every_cut_is_found(tmp_path):
    write_state(tmp_path / "a", {"epoch": 3}, ARRAYS)
    content = (tmp_path / "a").read_bytes()
    for byte in range(len(content)):
        damaged = bytearray(content)
        damaged[byte] ^= 1 << byte % 8
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(DamagedStateError, match="b is damaged"):
            read_state(tmp_path / "b")
        (tmp_path / "b").write_bytes(content[:byte])
        with pytest.raises(DamagedStateError, match="b is damaged"):
            read_state(tmp_path / "b")


@pytest.mark.parametrize(
    "header",
    [b"{}", b"3", b"[" * 50_000, b'{"facts": {}, "arrays": [["a", "float32", [-4]]]}', b"\xff",
     b'{"facts": {}, "arrays": [["a", "object", [1]]]}', b'{"facts": {}, "arrays": 7}',
     b'{"facts": {}, "arrays": [["a", "float32", [1e400]]]}', b'{"facts": {}, "arrays": [["a"]]}'],
)  # fmt: skip
def test_a_right_digest_over_a_wrong_header(header, tmp_path):
    with open(tmp_path / "a", "wb") as file:
        state_file._write(file, header, ARRAYS)
    with pytest.raises(DamagedStateError, match="a has a right digest, but its header does not"):
        read_state(tmp_path / "a")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DamagedStateError, match="c cannot be read"):
        read_state(tmp_path / "c")


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    write_state(tmp_path / "a", {"epoch": 3}, ARRAYS)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_state(tmp_path / "a", {"epoch": object()}, ARRAYS)
    assert read_state(tmp_path / "a")[0] == {"epoch": 3}


def test_a_file_of_another_version_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "_MAGIC", b"keras_vit training state, version 0\n")
    write_state(tmp_path / "a", {}, ARRAYS)
    monkeypatch.undo()
    with pytest.raises(DamagedStateError, match="another version of keras_vit"):
        read_state(tmp_path / "a")
