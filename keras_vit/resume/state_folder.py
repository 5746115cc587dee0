"""The folder of training states: finds the newest state that all workers can read."""

from __future__ import annotations

import os
import pathlib
import re
import warnings
from typing import Any

import numpy as np

from keras_vit.distribution.cluster import Workers
from keras_vit.errors import DamagedStateError
from keras_vit.files import remove_unfinished
from keras_vit.resume.state_file import check_facts, read_state, write_state

_NAME = "epoch-{0:06d}-batch-{1:09d}.worker-{2}.state"
_PATTERN = re.compile(r"epoch-(\d+)-batch-(\d+)\.worker-(\d+)\.state")
_BATCHES = 10**9  # more than an epoch has; makes one number of (epoch, batch)
NOTHING, ALL_DAMAGED = -1, -2

State = tuple[pathlib.Path, dict[str, Any], dict[str, np.ndarray]]  # file, facts, arrays


def has_states(path: str | os.PathLike[str] | None) -> bool:
    """Whether a folder has states of a run, from which it will continue."""
    return path is not None and any(pathlib.Path(path).rglob("*.state"))


class StateFolder:
    """The states of a run: one file per worker and saved position.

    Args:
        path: The folder. Several workers must see the same one.
        keep: States to keep.
        workers: The workers of the run.
    """

    def __init__(self, path: pathlib.Path, keep: int, workers: Workers):
        self.path = path
        self._keep = keep
        self._workers = workers

    def write(
        self, position: tuple[int, int], facts: dict[str, Any], arrays: dict[str, Any]
    ) -> pathlib.Path:
        """Writes this worker's state at (epoch, batch), and removes its older ones."""
        self._remove_unfinished()
        file = self._file(position, self._workers.index)
        write_state(file, facts, arrays)
        for old in self._own_positions()[: -self._keep]:
            self._file(old, self._workers.index).unlink(missing_ok=True)
        return file

    def read_newest(self) -> State | None:
        """Reads the newest state that is undamaged for every worker.

        Returns:
            The chief's file, its facts and its arrays, updated with this worker's own arrays; or
            `None` in a folder without states.

        Raises:
            DamagedStateError: If there are states, but all are damaged.
            FileNotFoundError: If workers see different folders.
        """
        self._remove_unfinished()
        ceiling: int | None = None
        while True:
            number, state = self._newest_undamaged(ceiling)
            numbers = self._workers.gather(number)
            self._check_shared(numbers)
            if min(numbers) == max(numbers):
                return state
            ceiling = min(numbers)

    def _remove_unfinished(self) -> None:
        """Removes what this worker was writing when it was killed."""
        remove_unfinished(self.path, [f"*.worker-{self._workers.index}.state"])

    def _newest_undamaged(self, ceiling: int | None) -> tuple[int, State | None]:
        """Reads the newest undamaged state of this worker: its number, and the state."""
        positions = self._own_positions()
        for epoch, batch in reversed(positions):
            number = epoch * _BATCHES + batch
            if ceiling is not None and number > ceiling:
                continue
            try:
                return number, self._read((epoch, batch))
            except DamagedStateError as error:
                warnings.warn(f"{error} The state before it is used.", stacklevel=2)
        return (ALL_DAMAGED if positions else NOTHING), None

    def _read(self, position: tuple[int, int]) -> State:
        chief = self._file(position, 0)
        facts, arrays = read_state(chief)
        if self._workers.index:
            arrays.update(read_state(self._file(position, self._workers.index))[1])
        check_facts(chief, facts, arrays)
        return chief, facts, arrays

    def _check_shared(self, numbers: list[int]) -> None:
        if max(numbers) == ALL_DAMAGED:
            raise DamagedStateError(
                f"All states in {self.path} are damaged. Look for a copy of the folder, or delete "
                "it to start again."
            )
        without = [i for i, number in enumerate(numbers) if number == NOTHING]
        if without and len(without) < len(numbers):
            raise FileNotFoundError(
                f"Worker {', '.join(map(str, without))} sees no training state in {self.path}, "
                "others do. All workers must share the folder: put it on a shared disk."
            )
        if min(numbers) == ALL_DAMAGED:
            raise DamagedStateError(f"No state in {self.path} is undamaged for every worker.")

    def _own_positions(self) -> list[tuple[int, int]]:
        """Lists (epoch, batch) of this worker's files, oldest first."""
        found = (_PATTERN.fullmatch(file.name) for file in self.path.glob("*.state"))
        files = [tuple(map(int, match.groups())) for match in found if match]
        return sorted((e, b) for e, b, worker in files if worker == self._workers.index)

    def _file(self, position: tuple[int, int], worker: int) -> pathlib.Path:
        return self.path / _NAME.format(*position, worker)
