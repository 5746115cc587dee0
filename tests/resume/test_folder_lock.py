"""Locks of folders: between processes, between threads, and after a run that failed."""

from __future__ import annotations

import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.errors import FolderInUseError
from keras_vit.resume.folder_lock import FolderLock

# Holds a lock as another process would, without TensorFlow.
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write("process 1 on elsewhere"); file.flush()
print("locked", flush=True)
sys.stdin.read()
"""


def test_another_process_is_refused_until_it_is_killed(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(FolderInUseError, match="is in use by process 1 on elsewhere"):
        fit(tmp_path)
    holder.kill()
    holder.wait()
    holder.stdin.close(), holder.stdout.close()
    assert fit(tmp_path).epoch == [0]


def fit(folder, callback=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2,))
    model = keras_vit.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    callbacks = [callback] if callback else []
    callbacks.append(keras_vit.ResumeTraining(folder))
    x = np.ones((4, 2))
    return model.fit(x, x, callbacks=callbacks, verbose=0)


class Wait(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.reached, self.leave = threading.Event(), threading.Event()

    def on_epoch_begin(self, epoch, logs=None):
        self.reached.set()
        self.leave.wait(60)


def test_another_thread_is_refused_while_it_trains(tmp_path):
    wait = Wait()
    thread = threading.Thread(target=fit, args=(tmp_path, wait))
    thread.start()
    wait.reached.wait(60)
    with pytest.raises(FolderInUseError, match="another thread of this process"):
        fit(tmp_path)
    wait.leave.set()
    thread.join()
    assert fit(tmp_path).epoch == [0]  # complete


class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise RuntimeError("failed")


def test_a_run_that_failed_gives_the_folder_back(tmp_path):
    with pytest.raises(RuntimeError, match="failed") as kept:  # with the frames of `fit`
        fit(tmp_path, Fail())
    assert fit(tmp_path).epoch == [0]
    assert kept.tb is not None


def test_a_lock_is_released_and_taken_again(tmp_path):
    with FolderLock(tmp_path / "new" / ".lock"), pytest.raises(FolderInUseError):
        FolderLock(tmp_path / "new" / ".lock").acquire()
    FolderLock(tmp_path / "new" / ".lock").acquire()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        FolderLock(tmp_path / ".lock").acquire()
    assert (tmp_path / "other").read_text() == "precious"


class Remove(keras.callbacks.Callback):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_end(self, logs=None):
        self.folder.rename(self.folder.with_name("elsewhere"))


def test_a_folder_that_disappears_is_made_again(tmp_path, capsys):
    fit(tmp_path / "states", Remove(tmp_path / "states"))
    assert "has disappeared" in capsys.readouterr().err
    assert [file.suffix for file in (tmp_path / "states").iterdir()].count(".state") == 1


def test_a_full_disk_names_the_last_state(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    fit(tmp_path)
    last = max(tmp_path.glob("*.state"))
    monkeypatch.setattr("keras_vit.resume.state_folder.write_state", full)
    with pytest.raises(OSError, match="cannot be written: No space left") as error:
        fit(tmp_path / "other")
    assert "The last one is missing. Make room" in str(error.value)
    monkeypatch.undo()
    assert max(tmp_path.glob("*.state")) == last
