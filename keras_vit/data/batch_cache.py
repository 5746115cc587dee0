"""Batches cached in files, which are named after what they hold."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pathlib
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

    Args:
        batches: Batches of one worker.
        path: Prefix of the files, local or remote. Missing folders are created.
        digest: As from `digest_batches`.
        plan: The records and batches of this worker.
    """
    own = hashlib.sha256(f"{digest} {plan}".encode()).hexdigest()[:16]
    prefix = f"{local_or_remote(path)}.{own}.{plan.index}-of-{plan.workers}"
    cached = batches.cache(prefix)
    lock = None if "://" in prefix else _lock(prefix)
    if lock is not None:
        weakref.finalize(cached, os.close, lock)  # iterators keep their dataset
    return cached


def _lock(prefix: str) -> int | None:
    """Removes what killed processes left, and keeps others from removing the files of this one.

    `tf.data` writes to `PREFIX_0.*`, of which one is a lock file, and renames the files at the end.
    It refuses to write if there are such files, also of a process that was killed. All who may
    write share a lock of the system, which ends with the process; whoever can have it alone knows
    that nobody writes.
    """
    pathlib.Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl

        descriptor = no_link(f"{prefix}.lock", os.O_RDWR | os.O_CREAT)
    except (ImportError, OSError):  # Windows, or a folder that is only read
        return None
    with contextlib.suppress(OSError):  # others use the files, or the file system has no locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in glob.glob(f"{glob.escape(prefix)}_*"):
            os.remove(left)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor
