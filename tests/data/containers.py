"""Tars, Parquet files and records with the same images, for tests of their readers."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorflow as tf

NAMES = ("cat", "dog", "owl")
COUNT = 12


def picture(number):
    """A PNG of 8 x 8 pixels, all of one value."""
    return tf.io.encode_png(np.full((8, 8, 3), number * 16, "uint8")).numpy()


PICTURES = [picture(number) for number in range(COUNT)]
LABELS = [number % 3 for number in range(COUNT)]


def write_tar(path, members, mode="w"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def samples(numbers, images=PICTURES, labels=LABELS):
    """Members of a tar: an image and its class each."""
    for number in numbers:
        yield f"{number:03}.png", images[number]
        yield f"{number:03}.cls", str(labels[number]).encode()


def write_tars(folder, part="train", images=PICTURES):
    """Two tars with seven and five images, whose classes have names in a file."""
    write_tar(folder / f"{part}-0.tar", samples(range(7), images))
    write_tar(folder / f"{part}-1.tar", samples(range(7, COUNT), images))
    (folder / "classnames.txt").write_text("\n".join(NAMES))


def write_parquet(path, images=PICTURES, labels=LABELS, names=NAMES, feature="label", **columns):
    """A Parquet file as `datasets` writes it, in row groups of five."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    table = pyarrow.table({"image": pyarrow.array(rows, kind), feature: labels, **columns})
    features = {"image": {"_type": "Image"}}
    if names:
        features[feature] = {"names": list(names), "_type": "ClassLabel"}
    facts = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": facts})
    pyarrow.parquet.write_table(table, path, row_group_size=5)


def write_parquets(folder, part="train", images=PICTURES):
    """Two Parquet files with seven and five images."""
    write_parquet(folder / f"{part}-0.parquet", images[:7], LABELS[:7])
    write_parquet(folder / f"{part}-1.parquet", images[7:], LABELS[7:])


def stored(images, part=None, number=None, buffer=0):
    """Pairs of the number of a picture and its label, as an `ImageSet` reads them."""
    pairs = images.read(part or (0, images.num_images), number, buffer)
    pairs = pairs.map(lambda item, label: (images.load(item), label))
    return [(PICTURES.index(image), int(label)) for image, label in pairs.as_numpy_iterator()]


EXPECTED = list(enumerate(LABELS))
