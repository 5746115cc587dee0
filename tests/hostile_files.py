"""Small files that ask for much memory or time, and what reads each of them.

Tests and `scripts/fuzz` use them.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import struct
import zipfile
import zlib

import h5py
import numpy as np
from PIL import Image

WEIGHTS = "model.weights.h5"  # in a `.keras` file


def csv_of_tags(folder):
    """Nearly as many classes as images, so that labels are a large square."""
    path = folder / "tags.csv"
    path.write_text("f,l\n" + "".join(f"{i},{i:x}|-{i:x}\n" for i in range(7_200)))
    return path


def csv_of_long_names(folder):
    """A name of a column that every message repeats."""
    path = folder / "long.csv"
    path.write_text(f"f,{'x' * 100_000},y\n" + "".join(f"{i}.png,,1.5\n" for i in range(30_000)))
    return path


def csv_of_columns(folder):
    """A header of many columns."""
    path = folder / "columns.csv"
    header = ",".join(map(str, range(40_000)))
    path.write_text(f"{header}\n{','.join('1' * 40_000)}\n")
    return path


def config_of(family, **changes):
    """A configuration of one small block, as `tests/weights/folders.py` has it."""
    from keras_vit.config import make_config
    from tests.weights.folders import FOLDERS, SIZES

    return make_config(**{**SIZES, "classes": 10, "depth": 1, **FOLDERS[family][1], **changes})


def sidecar_of(family, **changes):
    """A checkpoint with sidecar files, some of whose numbers are changed."""

    def make(folder):
        from keras_vit.create import build
        from tests.weights.folders import FOLDERS

        model = build(config_of(family))
        path = model.save_pretrained(folder / "hostile", FOLDERS[family][0])
        file = path / "config.json"
        config = json.loads(file.read_text())
        if "pretrained_cfg" in config:
            config["pretrained_cfg"].update(changes)
        else:
            config.update(changes)
        file.write_text(json.dumps(config))
        return path

    return make


def keras_members(folder):
    """The members of a `.keras` file of one dense layer, by name."""
    import keras

    path = folder / "good.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")]).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_keras(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def list_again(path, times):
    """Makes an archive list its members several times."""
    whole = path.read_bytes()
    end = whole.rindex(b"PK\5\6")
    (start,) = struct.unpack_from("<I", whole, end + 16)
    rows = whole[start:end] * times
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(rows), start, 0)
    path.write_bytes(whole[:start] + rows + tail)
    return path


def hdf5(change, data=None):
    """The bytes of an HDF5 file that `change` writes, or adds to a file."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "w" if data is None else "a") as file:
        change(file)
    return buffer.getvalue()


GOLDEN = pathlib.Path(__file__).parent / "golden"
KERNEL = "layers/dense/vars/0"  # of a dense layer alone, and of the head of a ViT


def zipped_zeros(file, side=28_000):
    """An array of 3 GB in 3 MB: less than the 4 GB that Keras looks at."""
    shape, rows = (side, side), 500
    array = file.create_dataset(KERNEL, shape, "float32", chunks=(rows, side), compression=9)
    packed = zlib.compress(bytes(4 * rows * side), 9)
    for row in range(0, side, rows):
        array.id.write_direct_chunk((row, 0), packed)


def nothing_stored(file, side=32_000):
    """An array of 4 GB of which no byte is in the file."""
    file.create_dataset(KERNEL, (side, side), "float32", chunks=(100, 100))


def in_place_of_kernel(change):
    def write(file):
        del file[KERNEL]
        change(file)

    return write


def keras_of(change):
    def make(folder):
        members = keras_members(folder)
        members[WEIGHTS] = hdf5(in_place_of_kernel(change), members[WEIGHTS])
        return write_keras(folder / "hostile.keras", members)

    return make


def keras_of_long_list(folder, megabytes=3_300):
    """An archive whose list of members has 5 MB, and one of which unpacks to 3.3 GB."""
    path = folder / "list.keras"
    members = keras_members(folder)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("metadata.json", "config.json"):
            archive.writestr(name, members[name])
        with archive.open(WEIGHTS, "w", force_zip64=True) as file:
            file.write(members[WEIGHTS])
            for _ in range(megabytes):
                file.write(bytes(1_000_000))
    return list_again(path, 30_000)


def npz_of_zeros(folder, side=27_000):
    """The official checkpoint of the tests, with a head of 3 GB of zeros."""
    arrays = dict(np.load(GOLDEN / "vit_token.checkpoint.npz"))
    path = folder / "zeros.npz"
    rows = len(arrays["head/kernel"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if not name.startswith("head/"):
                    np.lib.format.write_array(file, array)
                    continue
                shape = (rows, side**2 // rows)[-array.ndim :]
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(shape[0] if len(shape) > 1 else 1):
                    file.write(bytes(4 * shape[-1]))
    return path


def h5_of(change):
    def make(folder):
        from keras_vit.models.vit import build_vit

        path = folder / "hostile.weights.h5"
        build_vit(config_of("vit")).save_weights(path)
        path.write_bytes(hdf5(in_place_of_kernel(change), path.read_bytes()))
        return path

    return make


def encoded(kind, side=8):
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), "uint8")).save(file, kind)
    return file.getvalue()


def chunk(name, data=b"", length=None):
    """A chunk of a PNG, which may claim another length than it has."""
    size = struct.pack(">I", len(data) if length is None else length)
    return size + name + data + struct.pack(">I", zlib.crc32(name + data))


def jpeg_of(between):
    data = encoded("jpeg")
    return data[:2] + between + data[2:]


def png_of(between):
    data = encoded("png")
    return data[:33] + between + data[33:]


def gif_of(between):
    data = encoded("gif")
    start = data.index(b"\x2c\0\0\0\0")
    return data[:start] + between + data[start:]


def webp_of(between):
    """An extended WebP file that says that it has EXIF, with chunks before the image."""
    image = encoded("webp")[12:]
    flags = struct.pack("<4sI4B6B", b"VP8X", 10, 8, 0, 0, 0, 7, 0, 0, 7, 0, 0)
    body = b"WEBP" + flags + between + image
    return b"RIFF" + struct.pack("<I", len(body)) + body


MB = 1_000_000
IMAGES = {
    "fill.jpg": lambda: jpeg_of(b"\xff" * 10 * MB),
    "segments.jpg": lambda: jpeg_of(b"\xff\xfe\0\2" * 2_500_000),
    "segments that end nowhere.jpg": lambda: b"\xff\xd8" + b"\xff\xfe\0\2" * 2_500_000,
    "chunks.png": lambda: png_of(chunk(b"teXt") * 800_000),
    "exif.png": lambda: png_of(chunk(b"eXIf", b"MM\0*", 0xFFFFFFF0)) + bytes(10 * MB),
    "names of exif.png": lambda: png_of(chunk(b"teXt", b"eXIf" * 2_500_000)),
    "blocks.gif": lambda: gif_of(b"\x21\xfe" + b"\1a\2ab" * 2_000_000 + b"\0"),
    "extensions.gif": lambda: gif_of(b"\x21\xfe\0" * 3_300_000),
    "chunks.webp": lambda: webp_of(b"JUNK\0\0\0\0" * 1_250_000),
    "exif.webp": lambda: webp_of(b"EXIF\xf0\xff\xff\xff" + bytes(10 * MB)),
}


def image_of(name):
    def make(folder):
        path = folder / name
        path.write_bytes(IMAGES[name]())
        return path

    return make


def read_csv(path):
    from keras_vit.data.csv_file import read_csv

    return read_csv(path)


def from_pretrained(path):
    from keras_vit.pretrained import from_pretrained

    return from_pretrained(path)


def from_pretrained_npz(path):
    from keras_vit.pretrained import from_pretrained

    return from_pretrained(path, num_heads=4)


def load_keras_file(path):
    from keras_vit.train.keras_files import load_keras_file

    return load_keras_file(path)


def load_h5(path):
    from keras_vit.models.vit import build_vit
    from keras_vit.weights.weights_h5 import load_keras_weights

    return load_keras_weights(build_vit(config_of("vit")), path)


def read_headers(path):
    """Everything that is read of an image file without decoding it."""
    from keras_vit.data.folder import examine
    from keras_vit.data.headers import read_exif_orientation, read_size

    problem = examine(path, "headers")
    if problem is None:
        *_, kind = read_size(path)
        read_exif_orientation(path, kind)
    return problem


def decode(path):
    import tensorflow as tf

    from keras_vit.data.decode import decode

    with contextlib.suppress(tf.errors.InvalidArgumentError):
        return decode(tf.constant(path.read_bytes()))


ZEROS = "zeros of 3 GB.npz"
LONG_LIST = ".keras, a list of members of 5 MB"
# What writes a file to a folder, and what reads it.
FILES = {
    "CSV of 14,400 tags": (csv_of_tags, read_csv),
    "CSV with a name of 100,000 letters": (csv_of_long_names, read_csv),
    "CSV of 40,000 columns": (csv_of_columns, read_csv),
    "config.json of DINOv3, image_size 99,984": (
        sidecar_of("dinov3", image_size=99_984),
        from_pretrained,
    ),
    LONG_LIST: (keras_of_long_list, load_keras_file),
    ".keras, compressed HDF5": (keras_of(zipped_zeros), load_keras_file),
    ".keras, HDF5 without data": (keras_of(nothing_stored), load_keras_file),
    ZEROS: (npz_of_zeros, from_pretrained_npz),
    ".weights.h5, compressed": (h5_of(zipped_zeros), load_h5),
    ".weights.h5 without data": (h5_of(nothing_stored), load_h5),
    **{f"{name}, header": (image_of(name), read_headers) for name in IMAGES},
    **{f"{name}, decoded": (image_of(name), decode) for name in IMAGES},
}
