"""The one place where files are opened, and the calls elsewhere that open some."""

from __future__ import annotations

import ast
import errno
import json
import os
import pathlib
import struct
import threading
import zlib

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import image_gpt, reading
from keras_vit.cli.settings import read_settings
from keras_vit.data.shards import find_shards
from keras_vit.errors import CheckpointError, DamagedFileError
from keras_vit.reading import is_left_over, locate
from keras_vit.segmentation.commands import read_classes
from keras_vit.weights.weights_h5 import load_keras_weights

PACKAGE = pathlib.Path(keras_vit.__file__).parent

# Calls that open or parse a file, as functions and as methods of any object.
FUNCTIONS = {
    "open", "io.open", "os.open", "io.FileIO", "json.load", "json.loads", "tomllib.load",
    "tomllib.loads", "np.load", "np.loadtxt", "np.genfromtxt", "np.fromfile",
    "np.memmap", "h5py.File", "Image.open", "PIL.Image.open", "zipfile.ZipFile", "tarfile.open",
    "tf.train.load_checkpoint", "keras.saving.load_model", "keras.models.load_model",
    "tf.saved_model.load", "tf.io.gfile.GFile", "tf.io.read_file", "safe_open", "load_file",
}  # fmt: skip
METHODS = {"open", "read_text", "read_bytes", "load_weights"}

CHECKED = "files that were checked when they were found"
OWN = "a file of this process"
HELD = "not a file: an archive, a reply or bytes that are open already"
KERAS = "after `open_regular` or `check_keras_file`"
FORMAT = "`detect_format` has opened it"
ALLOWED = {
    ("cli/main.py", "os.open"): OWN,
    ("data/batch_cache.py", "tf.train.load_checkpoint"): OWN,
    ("segmentation/masks.py", "tf.io.read_file"): CHECKED,
    ("data/shards.py", "tf.io.gfile.GFile"): "a remote address",
    ("evaluate/feature_store.py", ".open"): HELD,
    ("evaluate/feature_store.py", "open"): OWN,
    ("export/litert.py", "zipfile.ZipFile"): OWN,
    ("export/openvino.py", "open"): OWN,
    ("export/runners.py", "tf.saved_model.load"): FORMAT,
    ("export/runners.py", "zipfile.ZipFile"): FORMAT,
    ("export/runners.py", ".open"): HELD,
    ("files.py", "open"): OWN,
    ("files.py", "os.open"): OWN,
    ("hub/connection.py", ".open"): HELD,
    ("hub/download.py", "open"): OWN,
    ("hub/checked_download.py", "open"): OWN,
    ("resume/folder_lock.py", "open"): OWN,
    ("train/keras_files.py", "keras.saving.load_model"): KERAS,
    ("train/keras_files.py", "zipfile.ZipFile"): KERAS,
    ("train/run_folder.py", "json.loads"): OWN,
    ("runtime/processors.py", "open"): "a table of the kernel",
    ("runtime/processors.py", ".read_text"): "a table of the kernel",
    ("weights/formats.py", ".open"): HELD,
    ("weights/formats.py", "h5py.File"): HELD,
    ("weights/formats.py", "zipfile.ZipFile"): HELD,
    ("data/tars.py", "tarfile.open"): "after `open_regular`",
    ("image_gpt/weights.py", "tf.train.load_checkpoint"): "after `is_regular`",
    ("weights/weights_h5.py", ".load_weights"): KERAS,
    ("weights/weights_h5.py", "h5py.File"): KERAS,
    ("weights/npz_file.py", ".open"): HELD,
    ("weights/npz_file.py", "zipfile.ZipFile"): HELD,
}


def reading_calls(path):
    """The calls of a file that open another for reading."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name not in FUNCTIONS:
            name = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else ""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        writes = any(isinstance(v, ast.Constant) and v.value in ("w", "wb") for v in values)
        if not writes and (
            name in FUNCTIONS or (name.removeprefix(".") in METHODS and "." in name)
        ):
            yield name


def test_files_are_opened_in_one_place():
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if path.name != "reading.py"
        for name in reading_calls(path)
    }
    assert found - ALLOWED.keys() == set(), "use keras_vit.reading, or give a reason in ALLOWED"
    assert ALLOWED.keys() - found == set(), "these are no longer there"


def test_a_call_that_opens_a_file_is_found(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("open(p)\np.read_text()\nnp.load(p)\nopen(p, 'wb')\nh5py.File(p)\nloads(p)")
    assert sorted(reading_calls(path)) == [".read_text", "h5py.File", "np.load", "open"]


READERS = (
    reading.open_regular, reading.open_text, reading.read_bytes, reading.read_text,
    reading.read_json, reading.read_toml, reading.read_array,
)  # fmt: skip


def refusal_of(read, path):
    """What a reader raises within 30 seconds."""
    errors = []

    def call():
        try:
            read(path)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    assert errors, "it waits, or reads something"
    return errors[0]


PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")


@PIPES
@pytest.mark.parametrize("read", READERS)
def test_pipes_and_folders_are_refused_at_once(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        error = refusal_of(read, path)
        assert isinstance(error, ValueError)
        assert "is no regular file, so it is not opened" in str(error)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


@PIPES
@pytest.mark.parametrize(
    "name",
    ["a.weights.h5", "model.ckpt-1.index", "a.npy", "a.json", "a.tfrecord", "a.toml", "a.txt"],
)
def test_no_reader_waits_for_a_pipe(name, tmp_path):
    model = image_gpt.build_image_gpt(
        image_gpt.ImageGPTConfig(4, 1, 1, image_size=(1, 2), colors=2),
        np.array([[0.0] * 3, [1] * 3]),
    )
    palette = model.get_layer("palette")
    readers = {
        "h5": lambda path: load_keras_weights(model, path),
        "index": lambda path: image_gpt.load_image_gpt(model, path.with_suffix("")),
        "npy": palette.assign,
        "json": palette.assign,
        "tfrecord": lambda path: find_shards(str(path)),
        "toml": read_settings,
        "txt": read_classes,
    }
    os.mkfifo(tmp_path / name)
    error = refusal_of(readers[name.rpartition(".")[2]], tmp_path / name)
    assert isinstance(error, ValueError)
    assert f"{name} is no regular file" in str(error)


FOREIGN = (
    KeyError("a"), zlib.error("Error -3"), struct.error("unpack"), RecursionError("too deep"),
    OSError("Corrupt snappy"), OSError(errno.EINVAL, "Invalid argument"), AttributeError("x"),
    Exception(), ValueError("b" * 9_000), tf.errors.DataLossError(None, None, "corrupted record"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), CheckpointError("no name"),
)  # fmt: skip


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
def test_errors_of_parsers_become_one_that_names_the_file(error):
    with (
        pytest.raises(
            DamagedFileError, match=r"^d/a\\x1b.tar is no tar \(.+\). Copy it.$"
        ) as found,
        reading.refusing("d/a\x1b.tar", "is no tar", "Copy it."),
    ):
        raise error
    assert len(str(found.value)) < 300
    assert found.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file", "a.tar"),
        PermissionError(errno.EACCES, "Denied"),
        OSError(errno.EIO, "I/O error"),
        ImportError("pip install"),
        MemoryError(),
        DamagedFileError("a.tar has other names"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_system_and_of_this_package_stay(error):
    with pytest.raises(BaseException) as found, reading.refusing("a.tar"):
        raise error
    assert found.value is error


@pytest.mark.parametrize("name", ["a.tar", "a\x1b.tar"])
def test_a_message_that_names_the_file_is_kept(name):
    with (
        pytest.raises(CheckpointError, match=r"^a(\\x1b)?\.tar is no regular file\.$"),
        reading.refusing(name, kind=CheckpointError),
    ):
        raise ValueError(f"{name} is no regular file.")


DEEP = 90_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * DEEP + "]" * DEEP, "nested too deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested more than 100 levels"),
        ("[" + "9" * 400 + "]", "more than 128 bits"),
        ("9" * 5000, "digits"),
        ('{"a": 1, "a": 2}', "twice"),
        ("{", "Expecting"),
        (b"\xff{}", "not UTF-8"),
    ],
)
def test_json_is_bounded(text, reason, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"(?s)a\.json .*{reason}"):
        reading.read_json(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="more than 1 bytes"):
        reading.read_json(path, 1)
    path.write_text(json.dumps({"a": [1, {"b": 10**30, "c": float("inf")}]}))
    assert reading.read_json(path) == {"a": [1, {"b": 10**30, "c": float("inf")}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * DEEP, "RecursionError"),
        ("a = " + "9" * 400, "128 bits"),
        ("a = " + "9" * 5000, "digits"),
        ("a = 0x" + "f" * 5000, "128 bits"),
        ("a" + ".a" * 200 + " = 1", "nested more than 100 levels"),
        ("a = = 1", "Invalid value"),
    ],
)
def test_toml_is_bounded(text, reason, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"(?s)a.toml is not a TOML file .*{reason}"):
        reading.read_toml(path)


def test_arrays_have_the_size_of_their_file(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(reading.read_array(path), np.arange(6.0).reshape(2, 3))
    whole = path.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:20],
        whole.replace(b"(2, 3)", b"(9, 9**9)"),
        whole.replace(b"(2, 3)", b"(-2,-3)"),
        whole.replace(b"<f8", b"|O8"),
        whole.replace(b"(2, 3)", b"((((((("),
        b"PK\3\4",
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.npy is no array of NumPy"):
            reading.read_array(path)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        *((n, True) for n in ("__MACOSX", "@eaDir", ".ipynb_checkpoints", "THUMBS.DB", "._x.png")),
        *((n, True) for n in (".DS_Store", "desktop.ini", "#recycle", "lost+found")),
        *((n, False) for n in (".", "..", "cat", "thumbs", "macosx", "@cat", "#1")),
    ],
)
def test_what_programs_leave_is_known(name, left):
    assert is_left_over(name) is left


def test_names_in_tables_may_have_backslashes(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/b.png", "c\\d.png"):
        (tmp_path / name).write_bytes(b"")
    assert locate(tmp_path, "a\\b.png") == str(tmp_path / "a/b.png")
    assert locate(tmp_path, "a\\b", (".jpg", ".png")) == str(tmp_path / "a/b.png")
    assert locate(tmp_path, "c\\d.png") == str(tmp_path / "c\\d.png")  # as it is written, first
    assert locate(tmp_path, "e\\f.png") == str(tmp_path / "e\\f.png")
