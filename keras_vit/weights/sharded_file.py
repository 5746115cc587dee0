"""Checkpoints split over several `.safetensors` files: an index of JSON, and its shards."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable

from keras_vit.errors import CheckpointError, listed
from keras_vit.reading import read_json, refusing
from keras_vit.weights.array_file import ArrayFile, check_count

INDEX_SUFFIX = ".safetensors.index.json"
_SHARD = re.compile(r"(.+)-\d{5}-of-(?!00001)\d{5}\.safetensors")
_MAX_INDEX = 1 << 22  # bytes; 5,000 arrays have a tenth of it
_MAX_LISTED = 5


def index_name(name: str) -> str | None:
    """The name of the index of a split checkpoint, from its own or that of a shard.

    Args:
        name: Name of a file, or its path with slashes.

    Returns:
        The index, in the same folder; `None` for a file that is whole.
    """
    if name.endswith(INDEX_SUFFIX):
        return name
    shard = _SHARD.fullmatch(name)
    return f"{shard[1]}{INDEX_SUFFIX}" if shard else None


def read_index(path: pathlib.Path) -> dict[str, str]:
    """Reads the name of the shard of each array, all in the folder of the index.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is no index, or names a file in another folder.
    """
    with refusing(path, "is no index of a split checkpoint", kind=CheckpointError):
        shard_of = read_json(path, _MAX_INDEX)["weight_map"]
        if not shard_of or not all(isinstance(name, str) for name in shard_of.values()):
            raise ValueError("weight_map is no table of names")
    check_count(path, len(shard_of))
    for name in shard_of.values():
        if not re.fullmatch(r"[^/\\:\x00-\x1f]+\.safetensors", name):
            raise CheckpointError(
                f"{path} names the file {name[:200]!r}, and the shards of a checkpoint are "
                ".safetensors files in its own folder. Fetch it from its publisher."
            )
    return shard_of


def open_shards(path: pathlib.Path, open_file: Callable[[pathlib.Path], ArrayFile]) -> ArrayFile:
    """Opens a split checkpoint as one file.

    Args:
        path: Its index.
        open_file: Opens a shard.

    Raises:
        FileNotFoundError: If there is no such index.
        CheckpointError: If shards are missing, or hold other arrays than the index says.
    """
    if not path.exists():
        raise CheckpointError(
            f"{path.parent} holds a part of a split checkpoint without its index {path.name}. "
            "Fetch that, and all other parts, to the same folder."
        )
    shard_of = read_index(path)
    shards = list(dict.fromkeys(shard_of.values()))
    missing = [name for name in shards if not path.with_name(name).is_file()]
    if missing:
        raise CheckpointError(
            f"{path} lists {len(shards)} files, of which {len(missing)} are not in its folder: "
            f"{listed(missing, _MAX_LISTED)}. Fetch them too."
        )
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open_file(path.with_name(name))) for name in shards}
        problems = [
            f"{name!r}, in {shard} by the index, is not there"
            for name, shard in shard_of.items()
            if name not in files[shard].entries
        ]
        problems += [
            f"{name!r} in {shard} is not in the index"
            for shard, file in files.items()
            for name in file.entries
            if shard_of.get(name) != shard
        ]
        if problems:
            raise CheckpointError(
                f"{path} and its files differ: {listed(problems, _MAX_LISTED)}. Fetch all of one "
                "version."
            )
        return ArrayFile(
            path,
            "safetensors",
            {name: files[shard].entries[name] for name, shard in shard_of.items()},
            lambda name: files[shard_of[name]].read_raw(name),
            stack.pop_all().close,
        )
