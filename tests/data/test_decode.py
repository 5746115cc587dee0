"""Bytes of every kind of image, as pixels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.decode import decode
from tests.data.kinds import BLUE, RED, encode


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
