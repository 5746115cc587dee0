r"""Time and memory that small images take in exported signatures.

    python benchmarks/image_bombs.py        one of each image to `tolerant`, two minutes
    python benchmarks/image_bombs.py --images allowed --batch 8 --threads 8 --signatures \
        tolerant serving_default            requests with eight of each

Prints a line of JSON for each request: bytes of the file, seconds, the largest memory above that
before the request, and whether the images were valid. Each has a process of its own. The peak comes
from /proc, so this needs Linux. The model is tiny: what is measured is decoding.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import platform
import struct
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image


def png(side):
    """A black PNG, of which no row is ever in memory with another."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(1 + 3 * side)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )


def encoded(kind, side, **options):
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, kind, **options)
    return file.getvalue()


def gif(side, frames):
    """A GIF whose one frame is repeated."""
    data = encoded("gif", side)
    start = data.index(b"\x2c\0\0\0\0")
    return data[:start] + data[start:-1] * frames + b";"


LARGEST = 5792  # pixels along a side, for the limit of 2**25 pixels
FILES = {
    "an ordinary JPEG, 500 x 500": lambda: encoded("jpeg", 500),
    "WebP, 16,383 x 16,383": lambda: encoded("webp", 16383, lossless=True),
    "PNG, 13,000 x 13,000": lambda: png(13000),
    "JPEG, 11,000 x 11,000": lambda: encoded("jpeg", 11000),
    "GIF, 50 frames of 4,000 x 4,000": lambda: gif(4000, 50),
    "PNG, as large as allowed": lambda: png(LARGEST),
    "WebP, as large as allowed": lambda: encoded("webp", LARGEST, lossless=True),
    "JPEG, as large as allowed": lambda: encoded("jpeg", LARGEST),
    "progressive JPEG, as large as allowed": lambda: encoded("jpeg", LARGEST, progressive=True),
}


def memory(key):
    """Megabytes of this process: VmRSS, or VmHWM, the largest since it was reset."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise ValueError(key)


def measure(path, name, batch, signature):
    """Runs one image in this process, which has run nothing but an ordinary one before."""
    run = tf.saved_model.load(path).signatures[signature]
    run(image_bytes=tf.constant([encoded("jpeg", 500)]))
    data = pathlib.Path(path, "..", name).read_bytes()
    images = tf.constant([data] * batch)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = memory("VmRSS"), time.perf_counter()
    try:
        valid = bool(np.all(run(image_bytes=images).get("valid", True)))
    except tf.errors.InvalidArgumentError:
        valid = False
    row = {"image": name, "bytes": len(data), "batch": batch, "signature": signature}
    row["seconds"] = round(time.perf_counter() - start, 2)
    row["memory_mb"] = round(memory("VmHWM") - before)
    row["threads"] = tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count()
    row |= {"valid": valid, "tensorflow": tf.__version__, "machine": platform.machine()}
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=1, help="images in a request")
    parser.add_argument("--images", default="", help="a part of the names of the images")
    parser.add_argument("--signatures", nargs="+", default=["tolerant"])
    parser.add_argument("--threads", type=int, help="operators that run at once; default: cores")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        if options.threads:
            tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        path, name = options.measure
        return measure(path, name, options.batch, options.signatures[0])
    import keras_vit

    config = keras_vit.make_config(
        patch_size=16, width=16, depth=1, num_heads=2, mlp_dim=16, image_size=32, classes=3
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(keras_vit.export_saved_model(keras_vit.build_vit(config), folder).path)
        for name, make in FILES.items():
            if options.images not in name:
                continue
            (path.parent / name).write_bytes(make())
            command = [sys.executable, __file__, "--measure", str(path), name]
            command += ["--batch", str(options.batch)]
            command += ["--threads", str(options.threads)] if options.threads else []
            for signature in options.signatures:
                subprocess.run([*command, "--signatures", signature], check=True)


if __name__ == "__main__":
    main()
