"""`write_atomically`: a file or directory appears complete, or not at all."""

from __future__ import annotations

import ast
import csv
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import keras_vit
from keras_vit import files
from keras_vit.files import (
    list_names,
    local_or_remote,
    next_version,
    publish_version,
    read_cell,
    write_atomically,
    write_csv,
    write_text,
)
from keras_vit.train.keras_files import save_keras_file
from tests.fixtures import tiny_config


def test_a_file_appears_when_the_block_ends(tmp_path):
    with write_atomically(tmp_path / "new" / "a.txt") as unfinished:
        unfinished.write_text("whole")
        assert not (tmp_path / "new/a.txt").exists()
    assert (tmp_path / "new/a.txt").read_text() == "whole"
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_a_directory_appears_when_the_block_ends(tmp_path):
    with write_atomically(tmp_path / "model") as unfinished:
        (unfinished / "variables").mkdir(parents=True)
        (unfinished / "variables" / "data").write_bytes(b"1")
    assert (tmp_path / "model/variables/data").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["model"]


def test_files_next_to_the_path_move_with_it(tmp_path):
    with write_atomically(tmp_path / "a.onnx") as unfinished:
        unfinished.write_bytes(b"graph")
        unfinished.with_name("a.onnx.data").write_bytes(b"weights")
    assert sorted(os.listdir(tmp_path)) == ["a.onnx", "a.onnx.data"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_failed_block_leaves_nothing(tmp_path, replace):
    (tmp_path / "kept.txt").write_text("earlier")
    name = "kept.txt" if replace else "a.txt"
    with pytest.raises(KeyError), write_atomically(tmp_path / name, replace=replace) as unfinished:
        unfinished.write_text("half")
        raise KeyError
    assert os.listdir(tmp_path) == ["kept.txt"]
    assert (tmp_path / "kept.txt").read_text() == "earlier"


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("earlier")
    with pytest.raises(FileExistsError, match=r"a\.txt' already exists. Remove it"):
        write_atomically(path).__enter__()
    with write_atomically(path, replace=True) as unfinished:
        unfinished.write_text("later")
    assert path.read_text() == "later"


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(FileExistsError), write_atomically(path) as unfinished:
        unfinished.write_text("ours")
        path.write_text("theirs")
    assert path.read_text() == "theirs"


def test_permissions_follow_the_umask(tmp_path):
    with write_atomically(tmp_path / "a.txt") as unfinished:
        unfinished.write_text("")
    (tmp_path / "b.txt").write_text("")
    modes = {(tmp_path / name).stat().st_mode for name in ("a.txt", "b.txt")}
    assert len(modes) == 1


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write to the directory of .*file"):
        write_atomically(tmp_path / "file" / "a.txt").__enter__()


def test_a_full_disk_is_named_whichever_library_noticed_it(tmp_path):
    for error in (OSError(28, "x"), RuntimeError("closing: No space left on device (28)")):
        with (
            pytest.raises(OSError, match=r"The disk of .*new is full \(.* free\), so a\.txt was"),
            write_atomically(tmp_path / "new" / "a.txt") as unfinished,
        ):
            unfinished.write_text("half")
            raise ValueError("of a library") from error
    assert os.listdir(tmp_path) == []  # the folder was made for the file


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 4096, 20_000])
def test_exports_and_weights_on_a_disk_that_is_really_full(leave, small_disk):
    model = keras_vit.build_vit(tiny_config(image_size=32, width=32, mlp_dim=128))
    folder = small_disk.path / "exports"
    writers = {
        "a.npz": lambda path: keras_vit.save_weights(model, path),
        "a.safetensors": lambda path: keras_vit.save_weights(model, path, "timm"),
        "a.keras": lambda path: save_keras_file(model, path),
        "a": lambda path: keras_vit.export_saved_model(model, path, warmup_batch_sizes=(1,)),
        "a.tflite": lambda path: keras_vit.export_litert(model, path),
        "a.onnx": lambda path: keras_vit.export_onnx(model, path),
        "a.xml": lambda path: keras_vit.export.export_openvino(model, path),
    }
    for name, write in writers.items():
        folder.mkdir()
        small_disk.fill(leave)
        with pytest.raises(OSError, match=r"The disk of .*disk/exports(/a)? is full \("):
            write(folder / name)
        assert not [path for path in folder.rglob("*") if path.is_file()], name
        small_disk.make_room()
        write(folder / name)
        shutil.rmtree(folder)


KILLED = """
import os, runpy, signal, sys
write_atomically = runpy.run_path(sys.argv[2])["write_atomically"]  # without TensorFlow
with write_atomically(sys.argv[1]) as unfinished:
    unfinished.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no directories")
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path / "a.txt", files.__file__]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".a.txt.unfinished-*")
    other = tmp_path / ".b.txt.unfinished-1"
    other.mkdir()
    with write_atomically(tmp_path / "a.txt") as unfinished:
        with write_atomically(tmp_path / "a.txt", replace=True) as second:
            second.write_text("second")  # the first is locked by this process
        assert not left.exists() and other.exists()
        (tmp_path / "a.txt").unlink()
        unfinished.write_text("first")
    assert (tmp_path / "a.txt").read_text() == "first"


def test_a_later_version_removes_what_is_left_of_an_earlier_one(tmp_path):
    for name in (".1.unfinished-a", ".12.unfinished-b", ".saved.unfinished-c"):
        (tmp_path / name).mkdir()
    with write_atomically(tmp_path / "2") as unfinished:
        unfinished.mkdir()
    assert sorted(os.listdir(tmp_path)) == [".saved.unfinished-c", "2"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_directory_that_was_taken_for_abandoned_is_made_again(tmp_path, monkeypatch, removed):
    lock, taken = files._lock, []

    def lock_late(staging):
        if not taken:
            taken.append(staging)
            shutil.rmtree(staging)
            if not removed:  # another process has its lock, and removes it now
                raise BlockingIOError
        return lock(staging)

    monkeypatch.setattr(files, "_lock", lock_late)
    with write_atomically(tmp_path / "a.txt") as unfinished:
        unfinished.write_text("whole")
        assert unfinished.parent != taken[0]
    assert os.listdir(tmp_path) == ["a.txt"]


def test_two_writers_of_versions_take_two_numbers(tmp_path):
    both, paths = threading.Barrier(2), []

    def write():
        with write_atomically(tmp_path / str(next_version(os.listdir(tmp_path)))) as unfinished:
            unfinished.mkdir()
            (unfinished / "model").touch()
            both.wait()
            paths.append(publish_version(unfinished, tmp_path).name)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(paths) == sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_remote_addresses_go_through_tensorflow():
    with write_atomically("ram://files/new/model") as unfinished:
        (unfinished / "variables").mkdir(parents=True)
        (unfinished / "variables" / "data").write_bytes(b"1")
    tf = pytest.importorskip("tensorflow")
    assert tf.io.gfile.GFile("ram://files/new/model/variables/data", "rb").read() == b"1"
    assert list_names("ram://files/new") == ["model"] and list_names("ram://files/none") == []
    for address in ("ram://files/new/model", pathlib.Path("ram://files/new/model")):
        with pytest.raises(FileExistsError, match=r"ram://files/new/model' already exists"):
            write_atomically(address).__enter__()


def test_a_remote_address_without_its_file_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"no file system for nowhere://.*Write to a local folder"):
        write_atomically("nowhere://bucket/model").__enter__()
    assert not os.listdir(tmp_path)


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with write_atomically("~/a.txt") as unfinished:
        unfinished.write_text("whole")
    assert (tmp_path / "a.txt").exists()
    assert local_or_remote("C:/models") == pathlib.Path("C:/models")


CELLS = [
    "=1+1",
    "+x",
    "-x",
    "@x",
    "\tx",
    "\rx",
    "\nx",
    " =x",
    "'=x",
    "'x",
    "x=1",
    "\uff1d1",
    "it's",
]


def test_cells_are_no_formulas_and_names_are_read_again(tmp_path):
    write_csv(tmp_path / "a.csv", [CELLS, ["-1.5", "+3", "-1e-05", -2, 1.5]])
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        written, numbers = csv.reader(file)
    assert not [cell for cell in written if re.match(r"\s*[=+\-@\t\r\n\uff1d]", cell)]
    assert [read_cell(cell) for cell in written] == CELLS
    assert numbers == ["-1.5", "+3", "-1e-05", "-2", "1.5"]


# Functions that write files outside of a block of `write_atomically`, and why they may.
WRITERS = {
    "cli/main.py main": "the null device in place of a closed pipe",
    "evaluate/feature_store.py create": "rows that a later call continues",
    "evaluate/feature_store.py finish": "renames what is complete",
    "export/litert.py convert": "a temporary directory",
    "export/onnx_graph.py save": "callers pass an unfinished path",
    "export/onnx_graph.py _write_external": "callers pass an unfinished path",
    "export/openvino.py save_graph": "callers pass an unfinished path",
    "export/several_inputs.py _write_litert": "callers pass an unfinished path",
    "export/several_inputs.py _write_saved_model": "callers pass an unfinished path",
    "export/serving.py write_version_files": "callers pass an unfinished path",
    "export/onnx_convert.py convert": "renames values of a graph, no file",
    "export/search.py find_export": "a temporary directory",
    "files.py _sync": "opened to be forced to the disk",
    "files.py publish_version": "renames what is complete",
    "files.py write_atomically": "renames what is complete",
    "hub/cache.py _move_into_place": "renames a download that was checked",
    "hub/checked_download.py locked": "an empty lock file",
    "hub/download.py _attempt": "facts about a partial download; damaged, it starts again",
    "report/model_page.py _figure": "a buffer in memory",
    "resume/folder_lock.py acquire": "a lock file, whose text is for messages",
    "weights/save.py write_npz": "a member of an archive, of a stream that callers pass",
}
WRITES = {"write_text", "write_bytes", "savefig", "save_model", "TFRecordWriter", "open_memmap"}
WRITES |= {"rename", "symlink_to", "hardlink_to", "touch", "savez", "savez_compressed", "to_csv"}
WRITES |= {"tofile", "copytree", "copyfile", "copy2", "dump", "imsave"}
OF_MODULES = {("os", "replace"), ("shutil", "move"), ("shutil", "copy"), ("np", "save")}
OF_MODULES |= {("saved_model", "save"), ("model", "save"), ("image", "save")}


def writes(call):
    """Whether a call opens a file for writing, or writes one."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if isinstance(call.func, ast.Name) and name == "write_text":
        return False  # of files.py, by `write_atomically`
    if name == "open":
        texts = [n.value for a in call.args[:2] for n in ast.walk(a) if isinstance(n, ast.Constant)]
        flags = {n.attr for a in call.args for n in ast.walk(a) if isinstance(n, ast.Attribute)}
        modes = [text for text in texts if re.fullmatch(r"[rwaxbt+]{1,4}", str(text))]
        return bool(re.search(r"[wax+]", "".join(modes)) or flags & {"O_WRONLY", "O_RDWR"})
    owner = getattr(call.func, "value", None)
    of_module = getattr(owner, "attr", getattr(owner, "id", ""))
    return name in WRITES or (of_module, name) in OF_MODULES


def find_writers(node, function="", atomic=False):
    """Names of the functions below a node that write files, except within `write_atomically`."""
    if isinstance(node, ast.FunctionDef):
        function, atomic = node.name, False
    if isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items]
        atomic |= any(getattr(getattr(c, "func", c), "id", "") == "write_atomically" for c in calls)
    if isinstance(node, ast.Call) and writes(node) and not atomic:
        yield function
    for child in ast.iter_child_nodes(node):
        yield from find_writers(child, function, atomic)


def test_every_writer_of_files_is_atomic_or_has_a_reason():
    """A new one uses `write_atomically`, or stands in the table with its reason."""
    package = pathlib.Path(keras_vit.__file__).parent
    found = {
        f"{path.relative_to(package).as_posix()} {name}"
        for path in package.rglob("*.py")
        for name in find_writers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(WRITERS)


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("def f(p): p.write_text('')", True),
        ("def f(p): open(p, 'r+b' if p else 'ab')", True),
        ("def f(p): p.open('x')", True),
        ("def f(p): open(p, 'rb')", False),
        ("def f(p): open('a.txt', encoding='utf-8')", False),
        ("def f(p):\n with write_atomically(p) as u, open(u, 'w') as g: g.write('')", False),
    ],
)
def test_a_new_writer_is_found(code, is_found):
    assert list(find_writers(ast.parse(code))) == ["f"] * is_found


def test_a_text_replaces_another_and_takes_names_that_are_no_utf_8(tmp_path):
    path = tmp_path / "page.html"
    for text in ("earlier\n", "later \udcff\n"):
        write_text(path, text, errors="backslashreplace")
    assert path.read_bytes() == b"later \\udcff\n"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udcff")
    assert path.read_bytes() == b"later \\udcff\n"
