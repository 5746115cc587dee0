"""Reads JPEGs, crops, mirrors, augments and normalises them: ours, torchvision, Pillow and grain.

    python benchmarks/data.py --peer-python peers/bin/python >> docs/benchmarks/data.jsonl

It takes about 5 minutes. The other Python has `torch torchvision grain pillow`; without one, this
one reads with what it has.

Images a second of a processor core: images by the processor time of the whole process, with one
thread at work, so that what else runs on the machine counts little. The images are the photographs
of scikit-learn and scikit-image, cut to 500 x 375 pixels, the usual size in ImageNet, as JPEGs of
quality 90. `keras_vit_randaugment` applies two operations of RandAugment with magnitude 10 as well,
`keras_vit_augreg` also mixup, as do the readers of torchvision (`contestants/jpeg_readers.py`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import math
import pathlib
import sys
import tempfile
import time

import keras
import numpy as np
import PIL.Image
import tensorflow as tf
from contestants.jpeg_readers import BATCH, READERS, SIZE
from contestants.process import Worker
from machine import require, write_row

import keras_vit
from keras_vit.data import Augmentation

WARM_UP = 5  # batches


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1000, help="images of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="has torchvision and grain")
    parser.add_argument("--source", type=int, nargs=2, default=(375, 500), help="height, width")
    parser.add_argument("--loaders", nargs="+", default=[*CONTESTANTS, *READERS])
    args = parser.parse_args()
    require("scikit-image", "scikit-learn")
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        files = write_images(pathlib.Path(folder), args.images, args.source)
        batches = args.images // BATCH
        for _, name in itertools.product(range(args.rounds), args.loaders):
            if name in CONTESTANTS:
                row = measure(CONTESTANTS[name](files), batches)
            else:
                log = f"{folder}/{name}.log"
                peer = Worker(args.peer_python, "contestants.jpeg_readers", 1, 600, log)
                row = measure_peer(name, peer, files, batches)
                peer.close()
            if row:
                write_row({"loader": name, "source": args.source, **row}, None)


def measure(run, count):
    """Times a loader of this process."""
    for _ in range(WARM_UP):
        next(run)
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(run)
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "numpy")}
    return describe(processor / count, clock / count, versions)


def measure_peer(name, peer, files, count):
    """Times a loader in another process; one whose libraries are missing is named and left out."""
    loaded = peer.ask(do="load", cell={"reader": name, "files": files})
    if "error" not in loaded:
        peer.ask(do="round", calls=WARM_UP)
        found = peer.ask(do="round", calls=count)
    else:
        found = loaded
    if "error" in found:
        print(f"{name}: {found['error']}", file=sys.stderr)
        return None
    return describe(found["processor_s"], found["wall_s"], loaded["versions"])


def describe(processor, clock, versions):
    """Images a second, of a batch's seconds of the processor and of the clock."""
    return {
        "images_per_core_second": round(BATCH / processor, 1),
        "images_per_second": round(BATCH / clock, 1),
        "versions": versions,
    }


def write_images(folder, count, source):
    """JPEGs of parts of photographs, in two folders of classes; their paths."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    photographs = [*load_sample_images().images, data.astronaut(), data.chelsea(), data.rocket()]
    photographs += [data.coffee(), data.immunohistochemistry()]
    rng = np.random.default_rng(0)
    paths = []
    for i in range(64):
        image = PIL.Image.fromarray(photographs[i % len(photographs)])
        share = rng.uniform(0.6, 1.0)
        width = min(image.width, image.height * source[1] / source[0]) * share
        height = width * source[0] / source[1]
        left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        part = image.resize(source[::-1], box=(left, top, left + width, top + height))
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        part.save(path, quality=90)
        paths.append(str(path))
    return paths * math.ceil((count + 2 * WARM_UP * BATCH) / len(paths))


def one_thread(dataset):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def ours(augmentation=None):
    """`train_batches` as it stands."""

    def read(files):
        images = keras_vit.read_folder(pathlib.Path(files[0]).parents[1])
        transform = keras_vit.data.InputTransform(
            (SIZE, SIZE), preprocessing=keras_vit.Preprocessing(), normalize=True
        )
        repeats = math.ceil(len(files) / images.num_images)
        batches = keras_vit.data.train_batches(
            images, transform, BATCH, augmentation, repeats=repeats
        )
        return iter(one_thread(batches))

    return read


CONTESTANTS = {
    "keras_vit": ours(),
    "keras_vit_randaugment": ours(Augmentation(rand_augment=(2, 10))),
    "keras_vit_augreg": ours(Augmentation(rand_augment=(2, 10), mixup=0.2)),
}
if __name__ == "__main__":
    main()
