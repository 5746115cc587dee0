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


def facts_at(epoch, batch):
    data = {"iterators": epoch, "drawn": batch, "all iterators": epoch, "num_batches": None}
    run = {"setup": {}, "variables": [["model", "kernel", [], "int64"]]}
    facts = {"epoch": epoch, "batch": batch, "steps": 9, "epochs": 3, "finished": False}
    return {**facts, "data": data, "history": {"epochs": [], "logs": {}}, "run": run}


def folder(path, index, others=(), places=()):
    states = StateFolder(path, 3, Workers(index, list(others)))
    for place in places:
        states.write(place, facts_at(*place), {"0.0": np.array(index)})
    return states


def number(epoch, batch):
    return epoch * 10**9 + batch


def test_workers_take_the_newest_state_that_all_have(tmp_path):
    folder(tmp_path, 1, (), [(0, 3), (0, 6)])
    # Worker 1 was killed while it wrote (1, 0): it offers (0, 6), then agrees.
    chief = folder(tmp_path, 0, [number(0, 6), number(0, 6)], [(0, 3), (0, 6), (1, 0)])
    path, facts, arrays = chief.read_newest()
    assert facts == facts_at(0, 6)
    assert arrays["0.0"] == 0
    assert path.name == "epoch-000000-batch-000000006.worker-0.state"
    worker = folder(tmp_path, 1, [number(1, 0), number(0, 6)])
    assert worker.read_newest()[2]["0.0"] == 1


def test_a_folder_that_is_not_shared_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Worker 1 sees no training state in .*shared"):
        folder(tmp_path / "a", 0, [-1], [(0, 3)]).read_newest()
    with pytest.raises(FileNotFoundError, match="Worker 1 sees no training state"):
        folder(tmp_path / "b", 1, [number(0, 3)]).read_newest()


def test_damage_on_one_worker_alone_is_an_error(tmp_path):
    with pytest.raises(DamagedStateError, match="is undamaged for every worker"):
        folder(tmp_path, 0, [-2], [(0, 3)]).read_newest()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epoch": -1}, "epoch is -1"),
        ({"batch": 1.5, "steps": 10**38}, r"batch is 1\.5; steps is 1000"),
        ({"data": {"iterators": True}}, "iterators is True; data/drawn is None; data/all"),
        ({"run": None, "finished": 0}, "finished is 0; setup is None; variables is None"),
        ({"history": {"epochs": [], "logs": []}}, r"logs is \[\]"),
        (
            {"run": {"setup": {}, "variables": [["model", "a", [2], "int64"]]}},
            r"not \[\[2\], 'int6",
        ),
        (
            {"run": {"setup": {}, "variables": [["", "", [], "int64"], 3]}},
            "variable 1 has no array",
        ),
    ],
)
def test_a_right_digest_does_not_make_wrong_content_right(changes, problem, tmp_path):
    states = folder(tmp_path, 0, [number(0, 3)], [(0, 3)])
    states.write((1, 0), {**facts_at(1, 0), **changes}, {"0.0": np.array(0)})
    with pytest.warns(UserWarning, match=f"holds no training state: .*{problem}.* is used"):
        assert states.read_newest()[1] == facts_at(0, 3)


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
