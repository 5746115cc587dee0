"""Batches cached in files, which are named after what they hold."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import math
import os
import pathlib
import shutil
import tempfile
import warnings
import weakref

import tensorflow as tf

from keras_vit.data.digests import digest_images, digest_transform
from keras_vit.data.epochs import EpochPlan
from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import InputTransform
from keras_vit.files import local_or_remote, no_link


def digest_batches(images: ImageSet, transform: InputTransform, one_hot: bool) -> str:
    """SHA-256 of what evaluation batches hold, except their sizes."""
    facts = (digest_images(images), digest_transform(transform), images.class_names, one_hot)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def cache_batches(
    batches: tf.data.Dataset, path: str | os.PathLike[str], digest: str, plan: EpochPlan
) -> tf.data.Dataset:
    """Caches batches in files in the first epoch, and reads them from there later.

    `tf.data` reads any files of its prefix, whatever they hold, so a digest is part of the prefix.
    Where files cannot be written, a warning says why, and batches are not cached.

    Args:
        batches: Batches of one worker.
        path: Prefix of the files, local or remote. Missing folders are created.
        digest: As from `digest_batches`.
        plan: The records and batches of this worker.
    """
    key = hashlib.sha256(f"{digest} {plan}".encode()).hexdigest()[:16]
    prefix = f"{local_or_remote(path)}.{key}.{plan.index}-of-{plan.workers}"
    if "://" in prefix:
        return batches.cache(prefix)
    lock = _lock(prefix)
    problem = _find_problem(prefix, batches, -(-plan.num_records // plan.workers))
    if problem:
        if lock is not None:
            os.close(lock)
        warnings.warn(f"Batches are not cached in {prefix}*: {problem}.", stacklevel=2)
        return batches
    cached = batches.cache(prefix)
    if lock is not None:
        weakref.finalize(cached, os.close, lock)  # iterators keep their dataset
    return cached


def _find_problem(prefix: str, batches: tf.data.Dataset, records: int) -> str | None:
    """Why batches cannot be cached; `None` if they can, or are already."""
    if os.path.exists(f"{prefix}.index"):
        return "these files are damaged, and used by others" if _is_damaged(prefix) else None
    folder = os.path.dirname(prefix) or "."
    specs = tf.nest.flatten(batches.element_spec)
    sizes = [(spec.shape[1:].num_elements() or 0) * spec.dtype.size for spec in specs]
    needed = records * sum(sizes)
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return str(error)
    if free < needed:
        return f"they need {needed:,} bytes, and {free:,} are free"
    return None


def _is_damaged(prefix: str) -> bool:
    """Whether files of `tf.data` are cut or are something else."""
    try:
        reader = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError):
        return True
    dtypes = reader.get_variable_to_dtype_map()
    needed = sum(
        math.prod(shape) * dtypes[name].size
        for name, shape in reader.get_variable_to_shape_map().items()
    )
    return sum(map(os.path.getsize, glob.glob(f"{glob.escape(prefix)}.data-*"))) < needed


def _lock(prefix: str) -> int | None:
    """Removes what killed processes left, and keeps others from removing the files of this one.

    Damaged files are removed, too: they are made again.

    `tf.data` writes to `PREFIX_0.*`, of which one is a lock file, and renames the files at the end.
    It refuses to write if there are such files, also of a process that was killed. All who may
    write share a lock of the system, which ends with the process; whoever can have it alone knows
    that no process writes.
    """
    try:
        import fcntl

        pathlib.Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        descriptor = no_link(f"{prefix}.lock", os.O_RDWR | os.O_CREAT)
    except (ImportError, OSError):  # Windows, or a folder that is only read
        return None
    with contextlib.suppress(OSError):  # others use the files, or the file system has no locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in glob.glob(f"{glob.escape(prefix)}_*"):
            os.remove(left)
        if os.path.exists(f"{prefix}.index") and _is_damaged(prefix):
            os.remove(f"{prefix}.index")
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor
