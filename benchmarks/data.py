"""Reads JPEGs, crops, mirrors, augments and normalises them: ours, Pillow and grain.

    python benchmarks/data.py >> docs/benchmarks/data.jsonl

Images a second of a processor core: images by the processor time of the whole process, with one
thread at work, so that what else runs on the machine counts little. The images are the photographs
of scikit-learn and scikit-image, cut to 500 x 375 pixels, the usual size in ImageNet, as JPEGs of
quality 90. `keras_vit_randaugment` applies two operations of RandAugment with magnitude 10 as well,
`keras_vit_augreg` also mixup. `pillow` does as torchvision's RandomResizedCrop,
RandomHorizontalFlip, ToTensor and Normalize; `grain` reads in the same way.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import itertools
import math
import pathlib
import random
import tempfile
import time

import keras
import numpy as np
import PIL.Image
import tensorflow as tf
from machine import require, write_row

import keras_vit
from keras_vit.data import Augmentation

SIZE, BATCH, WARM_UP = 224, 20, 5  # pixels, images, batches
SOURCE = 375, 500  # height and width of the files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1000, help="images of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    options = parser.parse_args()
    require("scikit-image", "scikit-learn", *(["grain"] if "grain" in options.loaders else []))
    keras.utils.set_random_seed(0)
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        files = write_images(pathlib.Path(folder), options.images)
        for _, name in itertools.product(range(options.rounds), options.loaders):
            found = measure(LOADERS[name](files), options.images // BATCH)
            write_row({"loader": name, "source": SOURCE, **found}, None)


def measure(run, count: int) -> dict:
    """Images a second of a loader."""
    for _ in range(WARM_UP):
        next(run)
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(run)
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    return {
        "images_per_core_second": round(BATCH * count / processor, 1),
        "images_per_second": round(BATCH * count / clock, 1),
        "versions": {name: importlib.metadata.version(name) for name in ("tensorflow", "numpy")},
    }


def write_images(folder: pathlib.Path, count: int) -> list[str]:
    """JPEGs of parts of photographs, in two folders of classes; their paths."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    photographs = [*load_sample_images().images, data.astronaut(), data.chelsea(), data.rocket()]
    photographs += [data.coffee(), data.immunohistochemistry()]
    rng = np.random.default_rng(0)
    paths = []
    for i in range(64):
        image = PIL.Image.fromarray(photographs[i % len(photographs)])
        width = min(image.width, image.height * SOURCE[1] / SOURCE[0]) * rng.uniform(0.6, 1.0)
        height = width * SOURCE[0] / SOURCE[1]
        left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        part = image.resize(SOURCE[::-1], box=(left, top, left + width, top + height))
        path = folder / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        part.save(path, quality=90)
        paths.append(str(path))
    return paths * math.ceil((count + 2 * WARM_UP * BATCH) / len(paths))


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
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        options.threading.max_intra_op_parallelism = 1
        return iter(batches.with_options(options))

    return read


def view(path):
    """A random window of an image, mirrored or not, in [-1, 1]."""
    with open(path, "rb") as file:
        image = PIL.Image.open(io.BytesIO(file.read())).convert("RGB")
    for _ in range(10):
        area = image.width * image.height * random.uniform(0.05, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if width <= image.width and height <= image.height:
            break
    else:
        width, height = image.size
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    image = image.crop((left, top, left + width, top + height))
    image = image.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    return (np.asarray(image, "float32") - 127.5) / 127.5


def pillow(files):
    views = map(view, itertools.cycle(files))
    while True:
        yield np.stack(list(itertools.islice(views, BATCH)))


def grain(files):
    import grain

    dataset = grain.MapDataset.source(files).shuffle(seed=0).repeat().map(view)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(dataset.to_iter_dataset(options).batch(BATCH))


LOADERS = {
    "keras_vit": ours(),
    "keras_vit_randaugment": ours(Augmentation(rand_augment=(2, 10))),
    "keras_vit_augreg": ours(Augmentation(rand_augment=(2, 10), mixup=0.2)),
    "pillow": pillow,
    "grain": grain,
}
if __name__ == "__main__":
    main()
