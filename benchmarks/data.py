"""Reads JPEGs, crops, mirrors, augments and normalises them: ours, torchvision, Pillow and grain.

    python benchmarks/data.py --peer-python peers/bin/python >> docs/benchmarks/data.jsonl

It takes about 5 minutes. The other Python has `torch torchvision grain pillow`; without one, this
one reads with what it has.

Images a second of a processor core: images by the processor time of the whole process, with one
thread at work, so that what else runs on the machine counts little. The images are the photographs
of scikit-learn and scikit-image, cut to 500 x 375 pixels, the usual size in ImageNet, as JPEGs of
quality 90. `bare_decoder` is what TensorFlow's JPEG decoder takes for the same windows, and nothing
else; `bare_whole` for whole images; `bare_view` what its operators take that decode, resize,
mirror, normalise and make batches, without seeds, checks, formats and an order that repeats.
`keras_vit_imagenet` normalises with three means and deviations. `keras_vit_randaugment` applies two
operations of RandAugment with magnitude 10 as well, `keras_vit_augreg` also mixup, as do the
readers of torchvision (`contestants/jpeg_readers.py`). `bare_resize` decodes windows and resizes
them, `bare_quantized` on integers, `bare_scaled` after decoding the whole image at half its size
where the window has twice the pixels of the result (`--source 1500 2000`).
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
from keras_vit.data.crops import inception_window
from keras_vit.data.decode import DCT_METHOD
from keras_vit.data.transforms import resize

WARM_UP = 5  # batches
IMAGENET_MEAN, IMAGENET_STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


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


def ours(augmentation=None, preprocessing=None):
    """`train_batches` as it stands."""

    def read(files):
        images = keras_vit.read_folder(pathlib.Path(files[0]).parents[1])
        transform = keras_vit.data.InputTransform(
            (SIZE, SIZE), preprocessing=preprocessing or keras_vit.Preprocessing(), normalize=True
        )
        repeats = math.ceil(len(files) / images.num_images)
        batches = keras_vit.data.train_batches(
            images, transform, BATCH, augmentation, repeats=repeats
        )
        return iter(one_thread(batches))

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
    return tf.shape(tf.io.decode_jpeg(data, 3, dct_method=DCT_METHOD))[0]


def height_of_window(data, seed):
    return tf.shape(decode_window(data, seed))[0]


def simple_view(data, seed):
    pixels = tf.cast(decode_window(data, seed), tf.float32)
    pixels = tf.image.stateless_random_flip_left_right(tf.image.resize(pixels, (SIZE, SIZE)), seed)
    return (tf.ensure_shape(pixels, (SIZE, SIZE, 3)) - 127.5) / 127.5


def decode_window(data, seed):
    window = inception_window(tf.image.extract_jpeg_shape(data), seed)
    return tf.image.decode_and_crop_jpeg(data, window, 3, dct_method=DCT_METHOD)


def resized(data, seed):
    return resize(decode_window(data, seed), (SIZE, SIZE), "bilinear")[0, 0]


def resized_on_integers(data, seed):
    pixels = tf.bitcast(decode_window(data, seed), tf.quint8)[None]
    pixels = tf.raw_ops.QuantizedResizeBilinear(
        images=pixels, size=(SIZE, SIZE), min=0.0, max=255.0, half_pixel_centers=True
    )
    return tf.bitcast(pixels[0], tf.uint8)[0, 0]


def resized_from_half(data, seed):
    window = inception_window(tf.image.extract_jpeg_shape(data), seed)

    def half():
        pixels = tf.io.decode_jpeg(data, 3, ratio=2, dct_method=DCT_METHOD)
        top, left, height, width = tf.unstack(window // 2)
        pixels = tf.slice(pixels, (top, left, 0), tf.stack((height, width, 3)))
        return resize(pixels, (SIZE, SIZE), "bilinear")[0, 0]

    is_large = tf.reduce_all(window[2:] >= 2 * SIZE)
    return tf.cond(is_large, half, lambda: resized(data, seed))


CONTESTANTS = {
    "keras_vit": ours(),
    "keras_vit_imagenet": ours(preprocessing=keras_vit.Preprocessing(IMAGENET_MEAN, IMAGENET_STD)),
    "keras_vit_randaugment": ours(Augmentation(rand_augment=(2, 10))),
    "keras_vit_augreg": ours(Augmentation(rand_augment=(2, 10), mixup=0.2)),
    "bare_decoder": bare(height_of_window),
    "bare_whole": bare(height_of_whole),
    "bare_view": bare(simple_view),
    "bare_resize": bare(resized),
    "bare_quantized": bare(resized_on_integers),
    "bare_scaled": bare(resized_from_half),
}
if __name__ == "__main__":
    main()
