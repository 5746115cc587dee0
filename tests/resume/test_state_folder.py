"""Which state all workers take."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.errors import DamagedStateError
from keras_vit.resume.state_folder import StateFolder


class Workers:
    """Stands for workers that ask one another; `others` answer in turn what they are told to."""

    def __init__(self, index, others):
        self.index, self.others, self.count = index, others, 2

    def gather(self, number):
        answers = [self.others.pop(0)]
        answers.insert(self.index, number)
        return answers


def folder(path, index, others=(), places=()):
    states = StateFolder(path, 3, Workers(index, list(others)))
    for place in places:
        states.write(place, {"place": list(place)}, {"own": np.array(index)})
    return states


def number(epoch, batch):
    return epoch * 10**9 + batch


def test_workers_take_the_newest_state_that_all_have(tmp_path):
    folder(tmp_path, 1, (), [(0, 3), (0, 6)])
    # Worker 1 was killed while it wrote (1, 0): it offers (0, 6), then agrees.
    chief = folder(tmp_path, 0, [number(0, 6), number(0, 6)], [(0, 3), (0, 6), (1, 0)])
    path, facts, arrays = chief.read_newest()
    assert facts == {"place": [0, 6]}
    assert arrays["own"] == 0
    assert path.name == "epoch-000000-batch-000000006.worker-0.state"
    worker = folder(tmp_path, 1, [number(1, 0), number(0, 6)])
    assert worker.read_newest()[2]["own"] == 1


def test_a_folder_that_is_not_shared_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Worker 1 sees no training state in .*shared"):
        folder(tmp_path / "a", 0, [-1], [(0, 3)]).read_newest()
    with pytest.raises(FileNotFoundError, match="Worker 1 sees no training state"):
        folder(tmp_path / "b", 1, [number(0, 3)]).read_newest()


def test_damage_on_one_worker_alone_is_an_error(tmp_path):
    with pytest.raises(DamagedStateError, match="is undamaged for every worker"):
        folder(tmp_path, 0, [-2], [(0, 3)]).read_newest()


def test_a_new_folder_has_no_state(tmp_path):
    assert folder(tmp_path / "new", 0, [-1]).read_newest() is None


def test_old_states_and_files_of_killed_processes_are_removed(tmp_path):
    for worker in (0, 1):  # another worker may be writing
        staging = tmp_path / f".epoch-000000-batch-000000001.worker-{worker}.state.unfinished-a"
        staging.mkdir()
        (staging / "epoch-000000-batch-000000001.worker-0.state").write_bytes(b"torn")
    folder(tmp_path, 0, (), [(0, 3), (0, 6), (1, 0), (1, 3)])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".epoch-000000-batch-000000001.worker-1.state.unfinished-a",
        "epoch-000000-batch-000000006.worker-0.state",
        "epoch-000001-batch-000000000.worker-0.state",
        "epoch-000001-batch-000000003.worker-0.state",
    ]
