"""Reads format and size of an encoded image in the graph, before it is decoded.

`keras_vit.data.headers` does the same for files, in Python. These are operators, so that pipelines
and exported signatures refuse an image by its size before they decode it. TensorFlow has such an
operator for JPEG alone, `tf.image.extract_jpeg_shape`, and decodes a PNG of 0.4 MB to 430 MB. Sizes
are read only where the decoder reads them too: a file that hides its size elsewhere is no image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

# Formats by what TensorFlow needs to be told; from `MOVING` on, they cannot be decoded.
JPEG, PNG, GIF, BMP, WEBP, WEBP_WITH_OPACITY, MOVING, UNKNOWN = range(8)

_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # signature, and the chunk with the size
_HEADER = 32  # bytes with the size of an image, in all formats but JPEG
_14_BITS = 1 << 14
_GIF_BLOCKS = 4096  # data blocks of a GIF that are looked at together
_GIF_STEPS = 1 << 14  # such looks; encoders write blocks of one length, which need three or four


class Encoded(NamedTuple):
    """An encoded image: scalar tensors.

    Args:
        data: The bytes, of a GIF without everything after its first image.
        format: One of the constants of this module, int32.
        height: Pixels, int64.
        width: Pixels, int64.
    """

    data: Any
    format: Any
    height: Any
    width: Any


def read_header(data: Any) -> Encoded:
    """Reads format and size of an encoded image that is no JPEG.

    Args:
        data: The bytes, a string tensor.

    Returns:
        An `Encoded`. Without a known format, height and width mean nothing.
    """
    header = tf.cast(tf.io.decode_raw(data, tf.uint8, fixed_length=_HEADER), tf.int64)

    def png() -> Encoded:
        return Encoded(data, tf.constant(PNG), _big_endian(header, 20), _big_endian(header, 16))

    def bmp() -> Encoded:
        height, width = _number(header, 22, 4), _number(header, 18, 4)
        height = tf.minimum(height, (1 << 32) - height)  # negative: rows from top to bottom
        return Encoded(data, tf.constant(BMP), height, width)

    def unknown() -> Encoded:
        none = tf.constant(0, tf.int64)
        return Encoded(data, tf.constant(UNKNOWN), none, none)

    formats = [
        (_begins(data, b"GIF8"), lambda: _read_gif(data)),
        (_begins(data, b"BM"), bmp),
        (_begins(data, b"RIFF"), lambda: _read_webp(data, header)),
    ]
    return tf.cond(_begins(data, _PNG_START), png, lambda: tf.case(formats, unknown))


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _read_webp(data: Any, header: Any) -> Encoded:
    """Reads the first chunk of a WebP file.

    Its name ends in X (extended: flags, then sizes of three bytes), L (lossless: a signature of a
    byte, twice 14 bits of size, then a bit for opacity) or a space (lossy: sizes of 14 bits in two
    bytes, no opacity). See https://developers.google.com/speed/webp/docs/riff_container. Without
    any of them the decoder looks for the size elsewhere.
    """
    names = [int.from_bytes(b"WEBP" + name, "little") for name in (b"VP8X", b"VP8L", b"VP8 ")]
    is_extended, is_lossless, is_lossy = tf.unstack(_number(header, 8, 8) == names)
    bits = _number(header, 21, 4)
    extended = [_number(header, 27, 3) + 1, _number(header, 24, 3) + 1]
    lossless = [bits // _14_BITS % _14_BITS + 1, bits % _14_BITS + 1]
    lossy = [_number(header, 28, 2) % _14_BITS, _number(header, 26, 2) % _14_BITS]
    size = tf.where(is_extended, extended, tf.where(is_lossless, lossless, lossy))
    flags = tf.where(is_extended, header[20], 0)
    has_opacity = (flags // 16 % 2 > 0) | is_lossless & (bits // _14_BITS**2 % 2 > 0)
    kind = tf.where(has_opacity, WEBP_WITH_OPACITY, WEBP)
    kind = tf.where(flags // 2 % 2 > 0, MOVING, kind)
    kind = tf.where(is_extended | is_lossless | is_lossy, kind, UNKNOWN)
    return Encoded(data, kind, size[0], size[1])


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _read_gif(data: Any) -> Encoded:
    """Cuts a GIF after its first image, and reads that image's size.

    TensorFlow decodes every image of a GIF and returns the first, in the size of the largest. A
    GIF is a header, a table of colours, then extensions (0x21) and images (0x2C), each with data
    in blocks: a length and as many bytes, until a length of 0. See
    https://www.w3.org/Graphics/GIF/spec-gif89a.txt.
    """
    padded = tf.strings.join([data, bytes(_HEADER)])  # then reading near the end needs no check
    content = tf.cast(tf.io.decode_raw(padded, tf.uint8), tf.int32)
    end = tf.size(content) - _HEADER

    def table(flags: Any) -> Any:
        """Length of the table of colours that the flags announce."""
        return tf.where(flags >= 128, tf.bitwise.left_shift(6, flags % 8), 0)

    def step(at: Any, image: Any, is_done: Any, is_between: Any) -> tuple[Any, ...]:
        """Reads the start of an extension or image, and data blocks of one length after it."""
        is_image = is_between & (content[at] == 0x2C)
        is_other = is_between & ~is_image & (content[at] != 0x21)
        image = tf.where(is_image, at, image)
        skipped = tf.where(is_image, 11 + table(content[at + 9]), tf.where(is_between, 2, 0))
        at = tf.minimum(tf.where(is_other, at, at + skipped), end)
        length = content[at]
        lengths = content[at : at + _GIF_BLOCKS * (length + 1) : length + 1]
        blocks = tf.reduce_sum(tf.math.cumprod(tf.cast(lengths == length, tf.int32)))
        blocks = tf.where((length > 0) & ~is_other, blocks, 0)
        at = tf.minimum(at + blocks * (length + 1), end)
        ends = (content[at] == 0) & ~is_other
        is_done = is_other | (at >= end) | (ends & (image >= 0))
        return tf.where(ends, tf.minimum(at + 1, end), at), image, is_done, ends

    at, image, _, _ = tf.while_loop(
        lambda at, image, is_done, is_between: ~is_done,
        step,
        (13 + table(content[10]), -1, False, True),
        maximum_iterations=_GIF_STEPS,
    )
    first = tf.strings.join([tf.strings.substr(data, 0, tf.minimum(at, end)), b";"])
    size = tf.cast(content[image + 5 : image + 9], tf.int64)  # width, then height
    return Encoded(first, tf.constant(GIF), _number(size, 2, 2), _number(size, 0, 2))


def _begins(data: Any, start: bytes) -> Any:
    return tf.strings.substr(data, 0, len(start)) == start


def _number(header: Any, start: int, count: int) -> Any:
    """Reads an unsigned little-endian integer."""
    return tf.reduce_sum(header[start : start + count] * [256**i for i in range(count)])


def _big_endian(header: Any, start: int) -> Any:
    return tf.reduce_sum(header[start : start + 4] * [1 << 24, 1 << 16, 1 << 8, 1])
