"""`write_atomically`: a file or directory appears complete, or not at all."""

from __future__ import annotations

import os

import pytest

from keras_vit.files import write_atomically


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
