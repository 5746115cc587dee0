"""Reads JPEGs, crops, mirrors and normalises them: ours, Pillow as torchvision has it, and grain.

    python benchmarks/data.py > docs/benchmarks/data.jsonl      # about 5 minutes

Images a second of a processor core: images by the processor time of the whole process, with one
thread at work, so that what else runs on the machine counts little. The images are the photographs
of scikit-learn and scikit-image, cut to 500 x 375 pixels, the usual size in ImageNet, as JPEGs of
quality 90. `bare_decoder` is what TensorFlow's JPEG decoder takes for the same windows, and nothing
else; `bare_whole` for whole images; `bare_view` what its operators take that decode, resize,
mirror, normalise and make batches, without seeds, checks, formats and an order that repeats.
`keras_vit_imagenet` normalises with three means and deviations.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import io
import itertools
import json
import math
import pathlib
import platform
import random
import tempfile
import time

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

import keras_vit
from keras_vit.data.crops import inception_window

SIZE = 224
BATCH = 20
WARM_UP = 5  # batches
SOURCE = (375, 500)
IMAGENET_MEAN, IMAGENET_STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1000, help="images of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        files = write_images(pathlib.Path(folder), args.images)
        for _ in range(args.rounds):
            for name, read in CONTESTANTS.items():
                run = read(files)
                for _ in range(WARM_UP):
                    next(run)
                report(name, run, args.images // BATCH)


def report(name, run, count):
    """Prints a line: images a second of processor time, and of the clock, over some batches."""
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(run)
    line = {
        "loader": name,
        "images_per_core_second": round(BATCH * count / (time.process_time() - processor), 1),
        "images_per_second": round(BATCH * count / (time.perf_counter() - clock), 1),
        "processor": platform.processor() or platform.machine(),
        "versions": {
            package: importlib.metadata.version(package)
            for package in ("tensorflow", "pillow", "numpy", "grain")
            if package != "grain" or "grain" in CONTESTANTS
        },
    }
    print(json.dumps(line), flush=True)


def write_images(folder, count):
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
        width = min(image.width, image.height * SOURCE[1] / SOURCE[0]) * share
        height = width * SOURCE[0] / SOURCE[1]
        left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
        part = image.resize(SOURCE[::-1], box=(left, top, left + width, top + height))
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


def ours(preprocessing):
    """`train_batches` as it stands."""

    def read(files):
        images = keras_vit.read_folder(pathlib.Path(files[0]).parents[1])
        transform = keras_vit.data.InputTransform(
            (SIZE, SIZE), preprocessing=preprocessing, normalize=True
        )
        repeats = math.ceil(len(files) / images.num_images)
        return iter(
            one_thread(keras_vit.data.train_batches(images, transform, BATCH, repeats=repeats))
        )

    return read


def bare(make):
    """TensorFlow's operators alone."""

    def read(files):
        def load(place, path):
            return make(tf.io.read_file(path), tf.stack((place, 7)))

        dataset = tf.data.Dataset.from_tensor_slices(files).enumerate()
        return iter(one_thread(dataset.map(load, num_parallel_calls=1).batch(BATCH)))

    return read


def height_of_whole(data, seed):
    return tf.shape(tf.io.decode_jpeg(data, 3))[0]


def height_of_window(data, seed):
    return tf.shape(decode_window(data, seed))[0]


def simple_view(data, seed):
    pixels = tf.cast(decode_window(data, seed), tf.float32)
    pixels = tf.image.stateless_random_flip_left_right(tf.image.resize(pixels, (SIZE, SIZE)), seed)
    return (tf.ensure_shape(pixels, (SIZE, SIZE, 3)) - 127.5) / 127.5


def decode_window(data, seed):
    shape = tf.constant((*SOURCE, 3))
    return tf.image.decode_and_crop_jpeg(data, inception_window(shape, seed), 3)


def pillow_view(path):
    """As torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize."""
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
    views = map(pillow_view, files)
    return (np.stack(list(itertools.islice(views, BATCH))) for _ in range(len(files) // BATCH))


def grain_(files):
    import grain

    dataset = grain.MapDataset.source(files).shuffle(seed=0).map(pillow_view)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(dataset.to_iter_dataset(options).batch(BATCH))


CONTESTANTS = {
    "keras_vit": ours(keras_vit.Preprocessing()),
    "keras_vit_imagenet": ours(keras_vit.Preprocessing(IMAGENET_MEAN, IMAGENET_STD)),
    "bare_decoder": bare(height_of_window),
    "bare_whole": bare(height_of_whole),
    "bare_view": bare(simple_view),
    "pillow": pillow,
    "grain": grain_,
}
if importlib.util.find_spec("grain") is None:
    del CONTESTANTS["grain"]

if __name__ == "__main__":
    main()
