"""Features of a frozen model on the disk, so that each image is computed once.

part-0-of-1.json         what the features are of: digests of weights, preprocessing and images;
                         the compiler; how many rows are there
part-0-of-1.npy          features, one row for every image; `.unfinished` until all are there
part-0-of-1.labels.npy   labels
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import pathlib
import re
import shutil
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np

from keras_vit.checks import check_choice, short_repr
from keras_vit.errors import needing_tensorflow
from keras_vit.files import explain_full_disk, no_link, write_text
from keras_vit.models.feature_extraction import features_of, head_input_stage
from keras_vit.progress import Progress
from keras_vit.reading import read_array, read_json, refusing
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.runtime.compilers import ChosenByBatch

if TYPE_CHECKING:  # reading images needs TensorFlow
    from keras_vit.data.image_set import ImageSet

_SAVE_SECONDS = 10.0  # between two records of how far the features go
_FACTS = ("stage", "dtype", "weights", "preprocessing", "images", "num_images", "class_names")
_KINDS = {"num_images": int, "class_names": list, "done": int}  # of the JSON file; others are text


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Features of labelled images. Made by `store_features` and `load_features`.

    Args:
        values: Features of shape `(B, ...)`, float32 or float16; of one part mapped from the disk.
        labels: Integers of shape `(B,)`, or the labels of another task.
        class_names: Names of the classes.
        stage: Name of the layer whose output the features are.
        computed: Images that `store_features` computed now; the others were there.
    """

    values: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    stage: str
    computed: int = 0

    __repr__ = short_repr


def store_features(
    model: keras.Model,
    images: ImageSet,
    folder: str | os.PathLike[str],
    stage: str | None = None,
    *,
    batch_size: int = 32,
    dtype: str = "float32",
    worker: tuple[int, int] = (0, 1),
    verbose: bool | int = True,
) -> Features:
    """Computes the features of images once, and keeps them in a folder as `.npy` files.

    Images are transformed as for evaluation. A call that was interrupted continues where it
    stopped, also after a kill; a call with everything there computes nothing.

    The compiler is kept with the features: on one machine, with the same versions,
    threads and `batch_size`, a run that was interrupted gives the numbers of an undisturbed one,
    bit for bit. Other compilers, threads and machines round differently: 1e-6 of the largest value
    in float32.

    Args:
        model: A model of this package, or a functional model that contains one.
        images: Labelled images; their classes need not be those of the head.
        folder: Where the features are kept, of one model and one set of images.
        stage: Name of the layer whose output is kept, of `stage_names`; `None` is the input of the
            head. Sequences of tokens are kept whole.
        batch_size: Images per step.
        dtype: `"float32"`, or `"float16"` for half the disk.
        worker: Index of this process and number of processes. Each computes a part of the images
            and keeps it in files of its own; `load_features` then reads all parts.
        verbose: Whether to print, now and then, how far it is and how long the rest will take.

    Returns:
        The `Features` of this worker's images.

    Raises:
        ValueError: If the folder holds features of another model, other weights, preprocessing or
            images; the message says which.
        FolderInUseError: If another process computes the same part.
        OSError: If the disk of `folder` is full; the message names the bytes that are needed. A
            later call continues.

    Example:

    >>> features = keras_vit.evaluate.store_features(model, train, "features")  # doctest: +SKIP
    >>> features.values.shape  # doctest: +SKIP
    (3680, 768)
    """
    with needing_tensorflow("`store_features`"):
        from keras_vit.data.batches import eval_batches
        from keras_vit.data.digests import digest_images, digest_transform
        from keras_vit.data.input_transform import transform_of

    check_choice("dtype", dtype, ("float32", "float16"))
    stage = stage or head_input_stage(model)
    network = features_of(model, stage)
    transform = dataclasses.replace(transform_of(model), classes=None)
    facts = {
        "stage": stage,
        "dtype": dtype,
        "weights": digest_model(network),
        "preprocessing": digest_transform(transform),
        "images": digest_images(images),
        "num_images": images.num_images,
        "class_names": list(images.class_names),
    }
    part = _Part(pathlib.Path(folder).expanduser(), *worker)
    with FolderLock(part.path(".lock")):
        known = part.facts() if part.path(".json").exists() else {}
        facts["compiler"] = _fix_compiler(network, known.get("compiler"))
        done = part.open(facts)
        begin, end = (images.num_images * i // part.count for i in (part.index, part.index + 1))
        if not part.path(".npy").exists():
            batches: Iterable[tuple[Any, Any]] = ()
            if begin + done < end:
                rows = images.subset(np.arange(begin + done, end))
                options: dict[str, Any] = {"one_hot": False, "worker": (0, 1)}
                batches = eval_batches(rows, transform, batch_size, **options)
            task = f"features in {part.folder}"
            with Progress(task, end - begin, "images", verbose, done) as progress:
                _compute(part, facts, network, batches, progress)
        else:
            done = end - begin
    found = part.load()
    return dataclasses.replace(found, computed=end - begin - done)


def load_features(folder: str | os.PathLike[str]) -> Features:
    """Loads the features that one or several workers stored in a folder.

    Args:
        folder: The folder of `store_features`.

    Returns:
        The `Features` of all images; several parts are joined in memory.

    Raises:
        FileNotFoundError: If there are no features, or parts are missing; it lists them.
        ValueError: If parts are of different models or images, or a file is damaged.
    """
    folder = pathlib.Path(folder).expanduser()
    found = sorted(folder.glob("part-*-of-*.json"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no features. `store_features` computes them.")
    counts = {int(path.stem.rpartition("-")[2]) for path in found}
    if len(counts) > 1:
        raise ValueError(
            f"{folder} holds features in {' and in '.join(map(str, sorted(counts)))} parts. Store "
            "them in an empty folder."
        )
    parts = [_Part(folder, index, *counts) for index in range(*counts)]
    missing = [part.path(".npy").name for part in parts if not part.path(".npy").exists()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)}: these features are not computed yet. Run "
            "`store_features` of these workers, which continues."
        )
    for part in parts[1:]:
        part.open({name: parts[0].facts()[name] for name in _FACTS})
    loaded = [part.load() for part in parts]
    if len(loaded) == 1:
        return loaded[0]
    values = np.concatenate([part.values for part in loaded])
    labels = np.concatenate([part.labels for part in loaded])
    return dataclasses.replace(loaded[0], values=values, labels=labels)


def _fix_compiler(network: keras.Model, known: str | None) -> str:
    """Makes a model predict with one compiler: that of the rows that are there, or its own."""
    predict = network.make_predict_function()
    if not isinstance(predict, ChosenByBatch):  # other backends, strategies and open sizes
        return "graph"
    if known is not None:
        predict.prefers_xla = known == "xla"
    return "xla" if predict.prefers_xla else "graph"


def digest_model(model: keras.Model) -> str:
    """SHA-256 of what a model computes: its layers and its weights, whatever their names."""
    config = json.dumps({**model.get_config(), "name": ""}, sort_keys=True, default=str)
    # Keras numbers names in the order of their creation in a process.
    digest = hashlib.sha256(re.sub(r"_\d+(?=\")", "", config).encode())
    for variable in model.variables:
        if "seed_generator" not in variable.path:
            value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value))
            digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Part:
    """The files of one worker."""

    folder: pathlib.Path
    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                "`worker` must be the index of a process, from 0, and their number. Received: "
                f"{(self.index, self.count)}."
            )

    def path(self, ending: str) -> pathlib.Path:
        return self.folder / f"part-{self.index}-of-{self.count}{ending}"

    def facts(self) -> dict[str, Any]:
        path = self.path(".json")
        with refusing(path, advice=f"Remove {self.folder}."):
            facts = read_json(path)
            found = {name: facts[name] for name in (*_FACTS, "compiler", "done")}
            wrong = [k for k, value in found.items() if type(value) is not _KINDS.get(k, str)]
            wrong += [k for k in found["class_names"] if not isinstance(k, str)]
            if wrong or not 0 <= found["done"] <= found["num_images"]:
                raise ValueError(f"wrong: {wrong or 'done'}")
            return found

    def open(self, facts: dict[str, Any]) -> int:
        """Checks that the files are of the same features; returns how many rows are there."""
        if not self.path(".json").exists():
            self.save(facts, 0)
            return 0
        before = self.facts()
        differ = [name for name in _FACTS if before[name] != facts[name]]
        if differ:
            raise ValueError(
                f"{self.folder} holds features of something else: {', '.join(differ)} "
                f"{'differ' if len(differ) > 1 else 'differs'}. Choose another folder, or remove "
                "this one to compute them again."
            )
        return int(before["done"])

    def save(self, facts: dict[str, Any], done: int) -> None:
        write_text(self.path(".json"), json.dumps({**facts, "done": done}, indent=2))

    def create(
        self, ending: str, shape: tuple[int, ...], dtype: Any, done: int
    ) -> io.BufferedRandom:
        """Opens an unfinished file at its first missing row; a new one where no rows are there.

        Rows are written, not mapped: on a full disk, a store to a mapped page ends the process.
        """
        path = self.path(f"{ending}.unfinished")
        row = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        needed = row * (shape[0] - done)
        with explain_full_disk(path, needed):
            if shutil.disk_usage(self.folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not done:
                path.unlink(missing_ok=True)  # a symbolic link is not followed
                np.lib.format.open_memmap(path, "w+", dtype, shape)
        mapped = cast(np.memmap, read_array(path, "r"))
        if mapped.shape != shape or mapped.dtype != dtype:
            raise ValueError(f"{path} is damaged. Remove {self.folder}.")
        file = open(path, "r+b", opener=no_link)  # noqa: SIM115  (closed by `_compute`)
        file.seek(mapped.offset + done * row)
        return file

    def finish(self) -> None:
        for ending in (".labels.npy", ".npy"):  # the last one says that all is there
            unfinished = self.path(f"{ending}.unfinished")
            if unfinished.exists():  # not after a kill between the two
                os.replace(unfinished, self.path(ending))

    def load(self) -> Features:
        facts = self.facts()
        try:
            values, labels = (
                read_array(self.path(ending), "r") for ending in (".npy", ".labels.npy")
            )
            if values.dtype.kind != "f" or values.ndim < 2 or values.shape[:1] != labels.shape[:1]:
                raise ValueError(f"{values.dtype} {values.shape}, labels {labels.shape}")
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(
                f"The features in {self.folder} are damaged ({error}). Remove the folder."
            ) from error
        return Features(values, np.array(labels), tuple(facts["class_names"]), facts["stage"])


def _compute(
    part: _Part,
    facts: dict[str, Any],
    network: keras.Model,
    batches: Iterable[tuple[Any, Any]],
    progress: Progress,
) -> None:
    """Computes the missing rows, and records from time to time how many are there."""
    done, total = progress.done, progress.total
    assert total is not None
    files: list[io.BufferedRandom] = []
    saved = time.monotonic()
    with contextlib.ExitStack() as stack:
        for pixels, classes in batches:
            x = np.asarray(network.predict_on_batch(pixels)[facts["stage"]], facts["dtype"])
            rows = {".npy": x, ".labels.npy": np.asarray(classes)}
            if not files:
                for ending, y in rows.items():
                    file = part.create(ending, (total, *y.shape[1:]), y.dtype, done)
                    files.append(stack.enter_context(file))
            done += len(x)
            is_due = time.monotonic() - saved >= _SAVE_SECONDS or done == total
            with explain_full_disk(part.path(".npy"), x.nbytes):
                for file, y in zip(files, rows.values(), strict=True):
                    file.write(y.tobytes())
                    if is_due:
                        file.flush()
                        os.fsync(file.fileno())
            if is_due:
                part.save(facts, done)
                saved = time.monotonic()
            progress.update(done)
    if done != total:
        raise ValueError(f"{done} of {total} images were read. The images changed meanwhile.")
    part.finish()
