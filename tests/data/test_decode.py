"""Bytes of every kind of image, as pixels."""

from __future__ import annotations

import ast
import io
import pathlib
import re
import struct
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.data.decode import MAX_PIXELS, decode, decode_window
from tests.checks import quick
from tests.data.kinds import BLUE, RED, claim, encode
from tests.data.pictures import encoded
from tests.data.pictures import pixels as picture

ROOT = pathlib.Path(keras_vit.__file__).parents[1]


def webp(*colours, **options):
    data = encode("webp", *colours, lossless=True, **options)
    try:
        tf.io.decode_image(encode("webp", RED), 3)
    except tf.errors.InvalidArgumentError:
        pytest.skip(f"TensorFlow {tf.__version__} does not decode WebP")
    return data


@pytest.mark.parametrize("kind", ["png", "bmp", "gif", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_kind_in_every_number_of_channels(kind, channels):
    data = webp(RED) if kind == "webp" else encode(kind, RED)
    pixels = decode(tf.constant(data), channels).numpy()
    assert pixels.shape == (9, 12, channels)
    grey = np.dot(RED, (0.299, 0.587, 0.114))
    expected = {1: [grey], 3: RED, 4: [*RED, 255]}[channels]
    np.testing.assert_allclose(pixels[4, 5], expected, rtol=0, atol=3)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("lossless", [True, False])
def test_opacity_of_a_webp_file_is_there_where_it_is_asked_for(lossless, channels):
    webp(RED)  # leaves out older versions
    data = encode("webp", (*RED, 40), mode="RGBA", lossless=lossless)
    pixels = decode(tf.constant(data), channels).numpy()[4, 5]
    expected = {1: [np.dot(RED, (0.299, 0.587, 0.114))], 3: RED, 4: [*RED, 40]}[channels]
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=3)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_of_an_animated_gif_the_first_frame(channels):
    pixels = decode(tf.constant(encode("gif", RED, BLUE, RED)), channels).numpy()
    first = decode(tf.constant(encode("png", RED)), channels).numpy()
    np.testing.assert_allclose(pixels, first, rtol=0, atol=1)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_webp_file_that_moves_is_refused(channels):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"WebP"):
        decode(tf.constant(webp(RED, BLUE)), channels)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("data", [b"", b"R", b"RIFF", b"RIFF\0\0\0\0WEBPVP8X", b"GIF8", b"BM"])
def test_bytes_that_end_too_early(data, channels):
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(tf.constant(data), channels)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tensorflow_is_always_told_the_channels(channels):
    function = tf.function(lambda data: decode(data, channels))
    graph = function.get_concrete_function(tf.TensorSpec((), tf.string)).graph.as_graph_def()
    nodes = [*graph.node, *(node for body in graph.library.function for node in body.node_def)]
    decoders = [node for node in nodes if node.op == "DecodeImage"]
    assert len(decoders) >= 2
    assert all(node.attr["channels"].i > 0 for node in decoders)


def decode_eagerly(data, **options):
    return decode(tf.constant(data), **options).numpy()


def decode_in_a_graph(data, **options):
    function = tf.function(lambda data: decode(data, **options))
    return function(tf.constant(data)).numpy()


KINDS = {
    "jpeg": {},
    "png": {},
    "gif": {},
    "bmp": {},
    "webp lossless": {"lossless": True},
    "webp lossy": {"quality": 50},
    "webp extended": {"icc_profile": b"a profile, so that flags come first"},
}


# Each kind once in the quick tests; tracing takes most of the time.
ROWS = [("jpeg", decode_in_a_graph), ("webp extended", decode_in_a_graph)]
ROWS += [(kind, decode_eagerly) for kind in KINDS]
ROWS += [(kind, decode_in_a_graph) for kind in KINDS if (kind, decode_in_a_graph) not in ROWS]


@pytest.mark.parametrize(("kind", "run"), quick(ROWS, *ROWS[:9]))
def test_an_image_has_as_many_pixels_as_it_may(kind, run):
    webp(RED)  # leaves out older versions
    data = encode(kind.split()[0], RED, size=(300, 7), **KINDS[kind])
    assert run(data, max_pixels=2100).shape == (7, 300, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"has 7 x 300 pixels, .*=2099:"):
        run(data, max_pixels=2099)


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "bmp", "webp"])
def test_a_small_file_that_claims_to_be_large_is_refused_before_it_is_decoded(kind):
    sizes = {"png": (2**31 - 1, 2**31 - 1), "bmp": (2**31 - 1, 2**31 - 1), "webp": (16383, 16383)}
    width, height = sizes.get(kind, (65000, 64000))
    start = time.perf_counter()
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"Image 7 has {height} x {width} pixels, more than max_pixels={MAX_PIXELS}: make",
    ):
        decode(tf.constant(claim(kind, width, height)), index=7)
    assert time.perf_counter() - start < 1


def test_only_the_size_that_the_decoder_uses_counts():
    png = encode("png", RED)
    text = b"teXt" + struct.pack(">II", 3, 3) + bytes(5)  # before the size, where that should be
    text = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    raw = webp(RED)[20:]  # lossless, without the chunk around it
    riff = b"RIFF" + struct.pack("<I", len(raw) + 4) + b"WEBP" + raw
    for data in (png[:8] + text + png[8:], riff):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is no JPEG, PNG, GIF, BMP or W"):
            decode(tf.constant(data))


def test_a_window_of_a_large_image_is_refused_too():
    def choose(shape):
        return tf.constant([0, 0, 2, 2])

    image = tf.constant(encode("jpeg", RED))
    assert decode_window(image, choose, max_pixels=108).shape == (2, 2, 3)
    for kind in ("jpeg", "png"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="has 9 x 12 pixels, more than"):
            decode_window(tf.constant(encode(kind, RED)), choose, max_pixels=107)


def first_frame(data):
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(
    "run", [decode_eagerly, pytest.param(decode_in_a_graph, marks=pytest.mark.slow)]
)
def test_of_a_gif_nothing_after_the_first_image_is_read(run):
    noise = [np.random.default_rng(i).integers(0, 256, (90, 70), "uint8") for i in range(3)]
    frames = [Image.fromarray(pixels) for pixels in noise]
    file = io.BytesIO()
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], comment=b"hello " * 99)
    data = file.getvalue()
    second = data.index(b"\x2c\0\0\0\0", data.index(b"\x2c\0\0\0\0") + 1)
    damaged = bytearray(data)
    damaged[second + 5 : second + 9] = b"\xff" * 4  # 65,535 x 65,535 pixels
    for whole in (data, bytes(damaged), data[: second + 40]):
        np.testing.assert_array_equal(run(whole), first_frame(data))
    short = bytearray(b"GIF89a" + struct.pack("<HHBBB", 70, 90, 0xF7, 0, 0) + bytes(range(256)) * 3)
    start = data.index(b"\x2c\0\0\0\0")
    stream = b"".join(sub_blocks(data, start + 11))
    short += data[start : start + 11]
    for at in range(0, len(stream), 254):  # as other encoders cut it
        part = stream[at : at + 254]
        short += bytes([len(part)]) + part
    short += b"\0\x3b"
    np.testing.assert_array_equal(run(bytes(short)), first_frame(bytes(short)))


def sub_blocks(data, at):
    while data[at]:
        yield data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]


def test_a_gif_of_very_many_blocks_ends():
    data = encode("gif", RED)
    start = data.index(b"\x2c\0\0\0\0")
    blocks = b"\x21\xfe" + b"\1a\2ab" * 50_000 + b"\0"  # a comment
    began = time.perf_counter()
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(tf.constant(data[:start] + blocks + data[start:]))
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2, "progressive": True}])
def test_jpegs_are_decoded_as_by_pillow(mode, options):
    data = encoded(Image.fromarray(picture(100, 150)).convert(mode), "jpeg", quality=85, **options)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    image = tf.constant(data)
    np.testing.assert_array_equal(decode(image), expected)
    np.testing.assert_array_equal(decode(image, 4)[..., :3], expected)
    if mode != "RGB":  # a colour file stores its grey, before rounding to RGB
        np.testing.assert_array_equal(decode(image, 1), tf.image.rgb_to_grayscale(expected))
    assert (tf.io.decode_jpeg(image, 3) != expected).numpy().any()  # the default of TensorFlow
    top, left, height, width = 16, 32, 60, 90  # its outermost rows lack the colours beyond
    window = decode_window(image, lambda shape: tf.constant((top, left, height, width)))
    inner = expected[top : top + height, left : left + width][2:-2, 2:-2]
    np.testing.assert_array_equal(window[2:-2, 2:-2], inner)


def test_no_jpeg_is_decoded_by_the_fast_transform():
    own = "keras_vit/data/decode.py"  # the one place of `decode_image`, which has no other
    found = []
    for folder in ("keras_vit", "examples", "export", "benchmarks", "scripts"):
        for path in (ROOT / folder).rglob("*"):
            is_script = path.is_file() and b"python" in path.read_bytes()[:30]
            text = path.read_text() if path.suffix == ".py" or is_script else ""
            for call in ast.walk(ast.parse(text)):
                name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                is_jpeg = re.fullmatch(r"tf\..*\.decode_(and_crop_)?jpeg", name)
                if is_jpeg and "dct_method" not in {each.arg for each in call.keywords}:
                    found.append(f"{path}: {name}")
                if name.endswith(".decode_image") and path != ROOT / own:
                    found.append(f"{path}: {name}")
    assert not found
