"""Digests that tell whether stored features and batches are of these images and this transform."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os

import numpy as np
import tensorflow as tf

from keras_vit.data.image_set import ImageSet
from keras_vit.data.input_transform import InputTransform
from keras_vit.data.shards import Shards


def digest_images(images: ImageSet) -> str:
    """SHA-256 of the list of images and their labels.

    Files are known by paths, sizes and times, arrays by their pixels, and images of `read_records`
    by the name of the set and the paths, sizes, times and counts of the shards. TFDS data sets are
    known by name and version, split and number of images.
    """
    digest = hashlib.sha256(f"{images.task} {images.num_images}".encode())
    if images.labels is None:
        digest.update(images.name.encode())
        if images.shards is not None:
            digest.update(_describe(images.shards).encode())
        return digest.hexdigest()
    assert images.items is not None  # as the labels
    labels = images.labels.astype("int64" if images.task == "single_label" else "float32")
    for item, label in zip(images.items, labels, strict=True):
        item = os.fsencode(item) if isinstance(item, str) else item
        if isinstance(item, bytes) and len(item) < 4096 and os.path.isfile(item):
            state = os.stat(item)
            item += f" {state.st_size} {state.st_mtime_ns}".encode()
        digest.update(item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes())
        digest.update(np.asarray(label).tobytes())
    return digest.hexdigest()


def digest_transform(transform: InputTransform) -> str:
    """SHA-256 of what decides the pixels; the number of classes does not."""
    facts = dataclasses.asdict(dataclasses.replace(transform, classes=None))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _describe(shards: Shards) -> str:
    lines = []
    for path, count, skip in zip(shards.files, shards.counts, shards.skips, strict=True):
        line = f"{path} {skip} {count}"
        with contextlib.suppress(tf.errors.OpError):  # no file: `shards.read` knows what it is
            state = tf.io.gfile.stat(path)
            line += f" {state.length} {state.mtime_nsec}"
        lines.append(line)
    return "\n".join(lines)
