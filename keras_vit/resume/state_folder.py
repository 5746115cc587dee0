"""The folder with the states of a run: which are whole, and which all workers have."""

from __future__ import annotations

import pathlib
import re
import warnings
from typing import Any

from keras_vit.distribution.workers import Workers
from keras_vit.errors import DamagedStateError
from keras_vit.resume.state_file import (
    read_snapshot,
    write_snapshot,
)

_NAME = "epoch-{0:06d}-batch-{1:09d}.worker-{2}.state"
_PATTERN = re.compile(r"epoch-(\d+)-batch-(\d+)\.worker-(\d+)\.state")
_BATCHES = 10**9  # more than an epoch has: (epoch, batch) as one number
NOTHING, ALL_DAMAGED = -1, -2


class StateFolder:
    """The states of a run, newest last, one file a worker.

    Args:
        path: The folder. Several workers must see the same one.
        keep: States to keep.
        workers: The workers of the run.
    """

    def __init__(self, path: pathlib.Path, keep: int, workers: Workers):
        self.path = path
        self._keep = keep
        self._workers = workers

    def write(self, place: tuple[int, int], facts: dict[str, Any], arrays: dict) -> pathlib.Path:
        """Writes this worker's state at (epoch, batch), and removes its older ones."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self._file(place, self._workers.index)
        write_snapshot(file, facts, arrays)
        for old in self._own_places()[: -self._keep]:
            self._file(old, self._workers.index).unlink(missing_ok=True)
        for partial in self.path.glob(f".*.worker-{self._workers.index}.state.*.part"):
            partial.unlink(missing_ok=True)  # of a process that was killed
        return file

    def read_newest(self) -> tuple[pathlib.Path, dict[str, Any], dict] | None:
        """The newest state that every worker has whole.

        Returns:
            The chief's file, what it says, and the arrays, with this worker's own in place; or
            `None` in a folder without states.

        Raises:
            DamagedStateError: If there are states, but not one is whole.
            FileNotFoundError: If workers see different folders.
        """
        ceiling: int | None = None
        while True:
            place, state = self._newest_whole(ceiling)
            places = self._workers.gather(place)
            self._check_shared(places)
            if min(places) == max(places):
                return state
            ceiling = min(places)

    def _newest_whole(self, ceiling: int | None):
        """The newest state that is whole here, as a number and as what `read_newest` returns."""
        own = self._own_places()
        for epoch, batch in reversed(own):
            number = epoch * _BATCHES + batch
            if ceiling is not None and number > ceiling:
                continue
            try:
                return number, self._read((epoch, batch))
            except DamagedStateError as error:
                warnings.warn(f"{error} The state before it is taken.", stacklevel=2)
        return (ALL_DAMAGED if own else NOTHING), None

    def _read(self, place: tuple[int, int]):
        chief = self._file(place, 0)
        facts, arrays = read_snapshot(chief)
        if self._workers.index:
            arrays.update(read_snapshot(self._file(place, self._workers.index))[1])
        return chief, facts, arrays

    def _check_shared(self, places: list[int]) -> None:
        if max(places) == ALL_DAMAGED:
            raise DamagedStateError(
                f"No state in {self.path} is whole. Look for a copy of the folder, or delete it "
                "to begin anew."
            )
        without = [i for i, place in enumerate(places) if place == NOTHING]
        if without and len(without) < len(places):
            raise FileNotFoundError(
                f"Worker {', '.join(map(str, without))} sees no training state in {self.path}, "
                "others do. All workers must see the same folder: put it on a shared disk."
            )
        if min(places) == ALL_DAMAGED:
            raise DamagedStateError(f"No state in {self.path} is whole for every worker.")

    def _own_places(self) -> list[tuple[int, int]]:
        """(epoch, batch) of this worker's files, oldest first."""
        found = (_PATTERN.fullmatch(file.name) for file in self.path.glob("*.state"))
        numbers = [tuple(map(int, match.groups())) for match in found if match]
        return sorted((e, b) for e, b, worker in numbers if worker == self._workers.index)

    def _file(self, place: tuple[int, int], worker: int) -> pathlib.Path:
        return self.path / _NAME.format(*place, worker)
