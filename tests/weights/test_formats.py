"""Reading arrays: right values from good files, one clear error from bad ones."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import socket
import struct
import time
import tracemalloc
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.errors import CheckpointError
from keras_vit.models.vit import build_vit
from keras_vit.train.keras_files import load_keras_file
from keras_vit.weights.array_file import Entry
from keras_vit.weights.formats import check_keras_file, check_weights_file, open_arrays
from keras_vit.weights.weights_h5 import load_keras_weights
from tests.fixtures import tiny_config
from tests.hostile_files import KERNEL, WEIGHTS, hdf5, list_again, write_keras

ARRAYS = {
    "a/kernel": np.random.default_rng(0).normal(size=(3, 5)).astype("float32"),
    "b": np.arange(4, dtype="float16"),
    "c": np.float64([[1.5, -2.0]]),
    "scalar": np.float32(3.0),
    "empty": np.zeros((0, 3), "float32"),
}


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, **ARRAYS)
    return path


@pytest.fixture
def tensors(tmp_path):
    path = tmp_path / "arrays.safetensors"
    arrays = {name: np.asarray(array) for name, array in ARRAYS.items()}
    safetensors.numpy.save_file(arrays, path, {"made": "by a test"})
    return path


def read_all(path):
    with open_arrays(path) as file:
        return {name: file.read(name) for name in file.entries}


@pytest.mark.parametrize("kind", ["npz", "tensors", "compressed"])
def test_every_array_comes_back_as_float32(kind, request, tmp_path):
    if kind == "compressed":
        path = tmp_path / "zipped.npz"
        np.savez_compressed(path, **ARRAYS)
    else:
        path = request.getfixturevalue(kind)
    arrays = read_all(path)
    assert set(arrays) == set(ARRAYS)
    for name, array in arrays.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, np.asarray(ARRAYS[name], "float32"))


def test_metadata_of_safetensors_are_no_array(tensors):
    with open_arrays(tensors) as file:
        assert set(file.entries) == set(ARRAYS)


def test_bfloat16_comes_from_raw_pairs_of_bytes(tmp_path):
    values = np.float32([1.0, -2.5, 3e38, 1e-40]).reshape(2, 2)
    half = values.astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "half.npz", x=half.view("V2"))
    safetensors.numpy.save_file({"x": half}, tmp_path / "half.safetensors")
    for name in ("half.npz", "half.safetensors"):
        with open_arrays(tmp_path / name) as file:
            assert file.entries["x"] == Entry((2, 2), "bfloat16")
        array = read_all(tmp_path / name)["x"]
        np.testing.assert_array_equal(array, half.astype("float32"))


def test_other_orders_and_byte_orders_are_understood(tmp_path):
    array = np.arange(6, dtype="float32").reshape(2, 3)
    np.savez(tmp_path / "x.npz", fortran=np.asfortranarray(array), big=array.astype(">f4"))
    for value in read_all(tmp_path / "x.npz").values():
        np.testing.assert_array_equal(value, array)


def test_opening_reads_no_data(tmp_path):
    path = tmp_path / "large.npz"
    np.savez(path, x=np.zeros(4_000_000, "float32"))
    tracemalloc.start()
    with open_arrays(path) as file:
        assert file.entries["x"].shape == (4_000_000,)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


class Bomb:
    def __reduce__(self):
        return (open, ("/tmp/keras_vit_was_here", "w"))


def test_pickles_are_refused_unread(tmp_path):
    paths = [tmp_path / name for name in ("model.bin", "model.pth", "plain.npz", "zip.pth")]
    paths[0].write_bytes(pickle.dumps(Bomb()))
    paths[1].write_bytes(pickle.dumps({"a": 1}) + b" " * 20)
    np.savez(paths[2], x=np.array([Bomb()], dtype=object))
    with zipfile.ZipFile(paths[3], "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    for path in paths:
        with pytest.raises(CheckpointError, match="pickled"):
            read_all(path)
    with zipfile.ZipFile(tmp_path / "renamed.npz", "w") as archive:
        archive.writestr("archive/version", "3")
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"pickled.*\.safetensors"):
        read_all(tmp_path / "renamed.npz")


@pytest.mark.parametrize("kind", ["npz", "tensors"])
def test_every_truncation_is_noticed(kind, request, tmp_path):
    whole = request.getfixturevalue(kind).read_bytes()
    cut = tmp_path / f"cut.{kind}"
    for length in range(0, len(whole), 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"Fetch|needed"):
            read_all(cut)


def test_a_flipped_bit_in_npz_data_is_noticed(npz):
    data = bytearray(npz.read_bytes())
    place = data.index(ARRAYS["a/kernel"].tobytes()) + 5
    data[place] ^= 1
    npz.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged.*a/kernel"):
        read_all(npz)


def test_a_flood_of_zeros_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "flood.npz"
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }"
    header = (header % 10**12).ljust(127) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(1000))
    with pytest.raises(CheckpointError, match=r"claims shape \(1000000000000,\)"):
        read_all(path)


def test_a_member_cannot_be_larger_than_its_file(npz):
    data = bytearray(npz.read_bytes())
    place = data.rindex(b"PK\x01\x02")  # the last entry of the directory
    data[place + 20 : place + 28] = struct.pack("<II", 2**31, 2**31)
    npz.write_bytes(data)
    with pytest.raises(CheckpointError, match="more than a file of"):
        read_all(npz)


def safetensors_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


FOUR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"x": {**FOUR, "shape": [2]}}, "claims shape"),
        ({"x": {**FOUR, "shape": [-1]}}, "described as"),
        ({"x": {**FOUR, "shape": [True]}}, "described as"),
        ({"x": {**FOUR, "dtype": "OBJECT"}}, "described as"),
        ({"x": {**FOUR, "data_offsets": [0, 4, 8]}}, "damaged"),
        ({"x": {**FOUR, "data_offsets": [4, 8]}}, "overlap"),
        ({"x": FOUR, "y": FOUR}, "overlap"),
        ({"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, "cut off"),
        (b'{"x": 1, "x": 2}      ', "twice"),
        (b"[1, 2, 3]             ", "not a table of arrays"),
        (b"3                     ", "not a table of arrays"),
        (b"null                  ", "not a table of arrays"),
        (b"[" * 100_000, "damaged"),
        ({"x": "y", "more": "more"}, "damaged"),
    ],
)
def test_bad_headers_of_safetensors(header, match, tmp_path):
    path = safetensors_file(tmp_path / "x.safetensors", header, bytes(4))
    with pytest.raises(CheckpointError, match=match):
        read_all(path)


def test_bytes_after_the_last_array_are_noticed(tensors):
    tensors.write_bytes(tensors.read_bytes() + bytes(8))
    with pytest.raises(CheckpointError, match="something was added"):
        read_all(tensors)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.float32([1, value]))
    with pytest.raises(CheckpointError, match=r"'x'.*NaN or infinity"):
        read_all(tmp_path / "x.npz")


def test_float64_beyond_float32_is_refused_and_a_large_sum_is_not(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.float64([1e300]))
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        read_all(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", x=np.full(10, 1e38, "float32"))  # finite, the sum is not
    assert read_all(tmp_path / "y.npz")["x"][0] == np.float32(1e38)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "<U3"])
def test_other_types_are_refused_when_read(dtype, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones(3, "int8").astype(dtype))
    with pytest.raises(CheckpointError, match="weights must be float16"):
        read_all(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "LFS pointer"),
        (b"\n  <html><title>Sign in</title></html>", "web page, such as a login"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
        (b"GGUF\x03\x00\x00\x00" + bytes(40), r"GGUF file.*Fetch the \.safetensors"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(40), "LiteRT"),
        (b"\x81\xa6params\x82\xa3cls\xc7" + bytes(40), "msgpack file of Flax"),
        (b"\xde\x00\x10\xd9\x20embeddings" + bytes(40), "msgpack file of Flax"),
        (b'{"error": "Invalid username or password."}', "text of JSON"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "compressed archive. Unpack it"),
        (b"\x93NUMPY\x01\x00" + bytes(40), "single array of NumPy"),
        (b"\x80\x04\x95" + bytes(40), "pickled"),
        (b"short", "only 5 bytes"),
        (b"", "only 0 bytes"),
        (b"PK\x03\x04" + bytes(100), "damaged"),
        (b"x" * 100, "neither .npz nor .safetensors"),
    ],
)
def test_other_files_are_named_for_what_they_are(content, match, tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=match):
        read_all(path)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("flax_model.msgpack", "msgpack file of Flax"),
        ("vit.onnx", "ONNX model.*Fetch the"),
        ("model.ckpt-1.index", "TensorFlow checkpoint.*load_image_gpt"),
        ("model.ckpt-1.data-00000-of-00001", "TensorFlow checkpoint"),
        ("saved_model.pb", "graph of TensorFlow"),
        ("pytorch_model.bin", "pickled"),
    ],
)
def test_other_files_are_named_by_their_names(name, match, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"\x08\x07\x12\x07pytorch" + bytes(40))
    with pytest.raises(CheckpointError, match=match):
        read_all(path)
    with pytest.raises(CheckpointError, match=rf"name the file in it .*{match}"):
        read_all(tmp_path)
    if name.endswith(".index"):  # the prefix that TensorFlow's own functions take
        with pytest.raises(CheckpointError, match=match):
            read_all(path.with_suffix(""))


@pytest.mark.parametrize("length", [384, 0xA581])
def test_a_length_that_looks_like_another_format_is_a_length(length, tmp_path):
    """The header's length comes first, and begins here as pickles and msgpack do."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + header.ljust(length) + bytes(4))
    assert read_all(path)["a"] == 0


def test_other_archives_folders_and_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", "")
    with pytest.raises(CheckpointError, match=r"whole model of Keras.*`keras_vit.adapt_model`"):
        read_all(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="no array"):
        read_all(tmp_path / "x.zip")
    with pytest.raises(CheckpointError, match="is a folder"):
        read_all(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_all(tmp_path / "nothing.npz")


@pytest.fixture
def shards(tmp_path):
    """A checkpoint split over two files, with its index."""
    folder = tmp_path / "split"
    folder.mkdir()
    parts = {
        "model-00001-of-00002.safetensors": {"b": ARRAYS["b"], "c": ARRAYS["c"]},
        "model-00002-of-00002.safetensors": {
            "a": np.array([1.5, -2], ml_dtypes.bfloat16), "scalar": np.asarray(ARRAYS["scalar"]),
        },
    }  # fmt: skip
    for name, arrays in parts.items():
        safetensors.numpy.save_file(arrays, folder / name, {"format": "pt"})
    weight_map = {key: name for name, arrays in parts.items() for key in arrays}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 3}, "weight_map": weight_map}))
    return index


def change_index(index, changes):
    content = json.loads(index.read_text())
    content["weight_map"] |= changes
    index.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json", "*1-of-*", "*2-of-*"])
def test_a_folder_the_index_and_any_part_mean_the_split_checkpoint(name, shards):
    path = next(shards.parent.glob(name)) if name else shards.parent
    with open_arrays(path) as file:
        assert (file.path, file.kind) == (shards, "safetensors")
        assert {key: entry.dtype for key, entry in file.entries.items()} == {
            "b": "float16", "c": "float64", "a": "bfloat16", "scalar": "float32",
        }  # fmt: skip
        file.verify()
    expected = {**ARRAYS, "a": np.float32([1.5, -2])}
    for key, array in read_all(path).items():
        np.testing.assert_array_equal(array, np.float32(expected[key]))


def test_a_split_checkpoint_is_whole_or_an_error(shards):
    last = shards.with_name("model-00002-of-00002.safetensors")
    whole = last.read_bytes()
    last.unlink()
    with pytest.raises(CheckpointError, match=r"lists 2 files.* not in its folder: model-00002"):
        read_all(shards)
    last.write_text("<html>")
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors .*only 6 bytes"):
        read_all(shards)
    safetensors.numpy.save_file({"a": np.zeros(2), "extra": np.zeros(1)}, last)
    with pytest.raises(
        CheckpointError, match=r"differ: 'scalar', in model-00002\S+ by .* 'extra' in model-00002"
    ):
        read_all(shards)
    last.write_bytes(whole)
    text = shards.read_text()
    for name in ("../x.safetensors", "/x.safetensors", "a/x.safetensors", "..\\x.safetensors",
                 "pytorch_model-00001-of-00002.bin"):  # fmt: skip
        change_index(shards, {"a": name})
        with pytest.raises(CheckpointError, match=r"names the file '.*in its own folder"):
            read_all(shards)
    for content in ("", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', "[" * 9999):
        shards.write_text(content)
        with pytest.raises(CheckpointError, match=r"index\.json is no"):
            read_all(last)
    shards.unlink()
    with pytest.raises(CheckpointError, match=r"without its index model\.safetensors\.index\.json"):
        read_all(last)
    shards.write_text(text)
    assert set(read_all(shards.parent)) == {"a", "b", "c", "scalar"}


def test_a_name_that_occurs_twice_is_refused(npz):
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(npz, "a") as archive:
        archive.writestr("b.npy", archive.read("b.npy"))
    with pytest.raises(CheckpointError, match="holds 'b' twice"):
        read_all(npz)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_pipes_devices_and_sockets_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "device.npz").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.npz"))
        for name in ("pipe.npz", "device.npz", "socket.npz"):
            with pytest.raises(CheckpointError, match=f"{name} is no regular file, so it is not"):
                open_arrays(tmp_path / name)


def npy(shape, data=b""):
    """An array's member with any text as its shape."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n" % shape.encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + data


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


LONG = "9" * 4000
MANY = 200_000


def many_members(path):
    """An archive of as many members as this test can write quickly: one, listed again and again."""
    list_again(zipped(path, [("a.npy", npy("(1,)", bytes(4)))]), MANY)


def names(count):
    row = b'"%d": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    return b"{" + b", ".join(row % i for i in range(count)) + b"}"


COSTLY = {
    "digits.npz": lambda p: zipped(p, [("a.npy", npy(f"({LONG}, {LONG})"))]),
    "none of many.npz": lambda p: zipped(p, [("a.npy", npy(f"(0, {LONG})"))]),
    "hexadecimal.npz": lambda p: zipped(p, [("a.npy", npy(f"(0x{'f' * 9000},)"))]),
    "axes.npz": lambda p: zipped(p, [("a.npy", npy("(" + "1, " * 2000 + ")", bytes(4)))]),
    "open.npz": lambda p: zipped(p, [("a.npy", npy("((((((("))]),
    "header.npz": lambda p: zipped(
        p,
        [("a.npy", b"\x93NUMPY\2\0" + b"\xff" * 3 + b"\0" + b" " * (1 << 24))],
        zipfile.ZIP_DEFLATED,
    ),
    "lzma.npz": lambda p: zipped(p, [("a.npy", npy("(1,)", bytes(4)))], zipfile.ZIP_LZMA),
    "bzip2.npz": lambda p: zipped(p, [("a.npy", bytes(1 << 20))], zipfile.ZIP_BZIP2),
    "members.npz": many_members,
    "digits.safetensors": lambda p: safetensors_file(p, {"a": {**FOUR, "shape": [10**3999]}}),
    "axes.safetensors": lambda p: safetensors_file(p, {"a": {**FOUR, "shape": [1] * 10**5}}),
    "names.safetensors": lambda p: safetensors_file(p, names(MANY // 4)),
    "more names.safetensors": lambda p: safetensors_file(p, names(MANY)),
}


@pytest.fixture(scope="module")
def few_objects():
    """Without it the collector walks the objects of all earlier tests, again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("name", COSTLY)
def test_files_made_to_be_slow_are_refused_in_a_second(name, tmp_path):
    path = tmp_path / name
    COSTLY[name](path)
    start = time.thread_time()
    with pytest.raises(CheckpointError, match=re.escape(name)) as error:
        read_all(path)
    seconds = time.thread_time() - start
    assert seconds < 1
    assert len(str(error.value)) < 1000


def test_too_little_memory_is_no_damage(npz, monkeypatch):
    def no_memory(*args, **kwargs):
        raise MemoryError("Unable to allocate 4.00 TiB")

    monkeypatch.setattr(np, "empty", no_memory)
    with pytest.raises(MemoryError, match=r"to read '.*' of .*: Unable to allocate 4.* Close"):
        read_all(npz)


def other_chunks(file):  # of which a small part is read
    file.create_dataset(KERNEL, (2,), "float32", chunks=(1 << 28,), maxshape=(None,))


def other_file(file):
    file.create_dataset(KERNEL, (4,), "float32", external=[("/etc/hostname", 0, 16)])


def virtual(file):
    layout = h5py.VirtualLayout((4,), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    file.create_virtual_dataset(KERNEL, layout)


def words(file):
    file.create_dataset(KERNEL, data=["a" * 99, "b"])


def link(file):
    file[KERNEL] = h5py.ExternalLink("other.h5", "x")


def circle(file):  # read once
    file[KERNEL] = np.zeros((9, 9), "float32")
    file["layers/dense/again"] = file["layers"]


def not_written(file):
    space, kind = h5py.h5s.create_simple((1 << 30,)), h5py.h5t.IEEE_F32LE
    h5py.h5d.create(file.create_group("layers").id, b"x", kind, space)


HDF5 = {
    "a link to elsewhere": (link,),
    "an array in chunks or of other files": (other_chunks, other_file, virtual, words),
    "bytes are too few": (not_written,),
}


@pytest.mark.parametrize(
    ("message", "change"), [(text, change) for text, changes in HDF5.items() for change in changes]
)
def test_arrays_of_hdf5_that_are_not_in_their_file_are_refused(message, change, tmp_path):
    archive = write_keras(tmp_path / "x.keras", {"config.json": b"{}", WEIGHTS: hdf5(change)})
    (tmp_path / "x.weights.h5").write_bytes(hdf5(change))
    for path in (archive, tmp_path / "x.weights.h5"):
        with pytest.raises(CheckpointError, match=message):
            (check_keras_file if path == archive else check_weights_file)(path)


def test_what_cannot_be_checked_is_refused(tmp_path):
    members = {"config.json": b"{}", WEIGHTS: hdf5(circle)}
    check_keras_file(write_keras(tmp_path / "x.keras", members))
    with zipfile.ZipFile(tmp_path / "y.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(WEIGHTS, members[WEIGHTS])
    check_keras_file(tmp_path / "y.keras")
    for name, content in (("z", b"no zip"), ("z", b"PK\3\4" + bytes(99))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"damaged or no \.keras file"):
            check_keras_file(tmp_path / name)
        with pytest.raises(CheckpointError, match="damaged or no HDF5 file"):
            check_weights_file(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"There is no item named 'model.weights.h5'"):
        check_keras_file(write_keras(tmp_path / "a.keras", {"config.json": b"{}"}))
    with pytest.raises(CheckpointError, match=r"list of members has [456],"):
        check_keras_file(list_again(tmp_path / "x.keras", 40_000))
    os.mkfifo(tmp_path / "pipe.weights.h5")
    with pytest.raises(CheckpointError, match="is no regular file"):
        check_weights_file(tmp_path / "pipe.weights.h5")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_of_keras_that_are_not_finite_are_named(value, tmp_path):
    model = build_vit(tiny_config())
    kernel = next(each for each in model.weights if each.path.endswith("output/kernel"))
    kernel.assign(np.full(kernel.shape, value))
    model.save(tmp_path / "x.keras")
    model.save_weights(tmp_path / "x.weights.h5")
    match = rf"holds NaN or infinity in {kernel.path}, so the model"
    with pytest.raises(CheckpointError, match=match):
        load_keras_file(tmp_path / "x.keras")
    with pytest.raises(CheckpointError, match=match):
        load_keras_weights(build_vit(tiny_config()), tmp_path / "x.weights.h5")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_keras_file_may_have_more_weights_than_a_list_of_members_has_bytes(compression, tmp_path):
    """zipfile skips parts of a member by reading 16 MiB of it, or reads it as a whole."""
    noise = np.random.default_rng(0).random((1500, 1500))  # 18 MB that do not compress
    content = hdf5(lambda file: file.create_dataset("noise", data=noise))
    with zipfile.ZipFile(tmp_path / "x.keras", "w", compression) as archive:
        archive.writestr(WEIGHTS, content)
    check_keras_file(tmp_path / "x.keras")
