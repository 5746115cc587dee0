"""Metadata of LiteRT files as MediaPipe reads it: the range of pixels, and labels of classes.

https://ai.google.dev/edge/litert/conversion/tensorflow/metadata; slots of tables are from
`metadata_schema.fbs`, version 1.5.0. No package that writes it is installed with TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np

from keras_vit.runtime.private_names import litert_schema

LABELS = "labels.txt"
_NAME, _IDENTIFIER = "TFLITE_METADATA", b"M001"
_MIN_PARSER = "1.0.0"
_TABLES = 2**21  # bytes besides weights, for which a file has room: 40 blocks need 0.7e6
_IMAGE, _NORMALIZATION, _AXIS_LABELS = 2, 1, 2  # members of two unions and an enumeration
_COLORS = {3: 1, 1: 2}  # RGB and grey, by channels


class _Builder(flatbuffers.Builder):
    """Aligns vectors of bytes, as the weights of a file have to be."""

    def StartVector(self, size: int, count: int, alignment: int) -> int:
        return super().StartVector(size, count, max(alignment, 16) if size == 1 else alignment)


def add_metadata(data: bytes, name: str, channels: int, classes: Sequence[str]) -> bytes:
    """Adds the metadata that MediaPipe's image tasks need to a LiteRT file.

    Args:
        data: The file, with one signature.
        name: Name of the model.
        channels: Channels of its input, pixels in [0, 255].
        classes: Names of outputs whose last axis are classes, with the labels of `labels.txt`.

    Returns:
        The file with metadata. `labels.txt` has to be packed into it.
    """
    schema, model = litert_schema(), unpack(data)
    (signature,) = model.signatureDefs
    names = {each.tensorIndex: each.name.decode() for each in signature.outputs}
    outputs = [names[index] for index in model.subgraphs[signature.subgraphIndex].outputs]
    content = np.frombuffer(_metadata(name, channels, outputs, classes), "uint8")
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer, buffer.data = _NAME, len(model.buffers), content
    model.metadata = [*(model.metadata or ()), entry]
    model.buffers.append(buffer)
    return pack(model)


def unpack(data: bytes) -> Any:
    """Reads the tables of a LiteRT file, a `ModelT` of `litert_schema`.

    Large files keep weights behind the tables, at an offset that changes when they are packed.
    """
    model = litert_schema().ModelT.InitFromPackedBuf(data, 0)
    for buffer in model.buffers:
        if buffer.offset > 1:  # 0 and 1 are none
            buffer.data = np.frombuffer(data, "uint8", buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    return model


def pack(model: Any) -> bytes:
    """Writes a LiteRT file from its tables, a `ModelT` of `litert_schema`."""
    size = sum(len(each.data) for each in model.buffers if each.data is not None)
    builder = _Builder(size + _TABLES)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _metadata(name: str, channels: int, outputs: list[str], classes: Sequence[str]) -> bytes:
    pixels = {  # in [0, 255], which the file normalises itself: mean 0, standard deviation 1
        0: "pixels",
        3: {0: _IMAGE, 1: {0: _COLORS.get(channels, 0)}},
        4: [{0: _NORMALIZATION, 1: {0: _floats(0), 1: _floats(1)}}],
        5: {0: _floats(255), 1: _floats(0)},  # the largest and the smallest value
    }
    labels = {6: [{0: LABELS, 2: _AXIS_LABELS}]}
    results = [{0: each, **(labels if each in classes else {})} for each in outputs]
    builder = _Builder(1024)
    root = _write(builder, {0: name, 3: [{2: [pixels], 3: results}], 7: _MIN_PARSER})
    builder.Finish(root, _IDENTIFIER)
    return bytes(builder.Output())


def _floats(value: float) -> np.ndarray:
    return np.array([value], "float32")


def _write(builder: _Builder, value: Any) -> int:
    """Writes a text, floats, a list of tables, or a table by slots, with integers of one byte."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, np.ndarray):
        return builder.CreateNumpyVector(value)
    if isinstance(value, list):
        offsets = [_write(builder, each) for each in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    # A table refers to what was written before it.
    written = {k: _write(builder, x) for k, x in value.items() if not isinstance(x, int)}
    builder.StartObject(1 + max(value))
    for slot, each in value.items():
        if slot in written:
            builder.PrependUOffsetTRelativeSlot(slot, written[slot], 0)
        else:
            builder.PrependUint8Slot(slot, each, 0)
    return builder.EndObject()
