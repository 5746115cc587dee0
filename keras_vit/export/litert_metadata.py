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
_IMAGE, _NORMALIZATION, _AXIS_LABELS = 2, 1, 2  # members of two unions and an enumeration
_COLORS = {3: 1, 1: 2}  # RGB and grey, by channels


class _Builder(flatbuffers.Builder):
    """Aligns vectors of bytes, as the weights of a file have to be."""

    def StartVector(self, size: int, count: int, alignment: int) -> int:
        return super().StartVector(size, count, max(alignment, 16) if size == 1 else alignment)

    def table(self, *slots: tuple[str, int, int]) -> int:
        """Writes a table of `(kind, slot, value)`, of kinds `"offset"` and `"byte"`."""
        self.StartObject(1 + max(slot for _, slot, _ in slots))
        for kind, slot, value in slots:
            if kind == "offset":
                self.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                self.PrependUint8Slot(slot, value, 0)
        return self.EndObject()

    def floats(self, *values: float) -> int:
        return self.CreateNumpyVector(np.array(values, "float32"))

    def tables(self, *offsets: int) -> int:
        self.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.PrependUOffsetTRelative(offset)
        return self.EndVector()


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
    schema = litert_schema()
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (signature,) = model.signatureDefs
    names = {each.tensorIndex: each.name.decode() for each in signature.outputs}
    outputs = [names[index] for index in model.subgraphs[signature.subgraphIndex].outputs]
    content = np.frombuffer(_metadata(name, channels, outputs, classes), "uint8")
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer, buffer.data = _NAME, len(model.buffers), content
    model.metadata = [*(model.metadata or ()), entry]
    model.buffers.append(buffer)
    return pack(model, len(data) + 2 * len(content))


def pack(model: Any, size: int) -> bytes:
    """Writes a LiteRT file from its tables.

    Args:
        model: A `ModelT` of `litert_schema`.
        size: About how many bytes the file has.
    """
    builder = _Builder(size + 2**16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _metadata(name: str, channels: int, outputs: list[str], classes: Sequence[str]) -> bytes:
    builder = _Builder(1024)
    tensors = builder.tables(_input(builder, channels))
    results = builder.tables(*(_output(builder, each, each in classes) for each in outputs))
    subgraph = builder.table(("offset", 2, tensors), ("offset", 3, results))
    subgraphs = builder.tables(subgraph)
    text, version = builder.CreateString(name), builder.CreateString(_MIN_PARSER)
    root = builder.table(("offset", 0, text), ("offset", 3, subgraphs), ("offset", 7, version))
    builder.Finish(root, _IDENTIFIER)
    return bytes(builder.Output())


def _input(builder: _Builder, channels: int) -> int:
    """Pixels in [0, 255], which the file normalises itself: mean 0, standard deviation 1."""
    name = builder.CreateString("pixels")
    properties = builder.table(("byte", 0, _COLORS.get(channels, 0)))
    content = builder.table(("byte", 0, _IMAGE), ("offset", 1, properties))
    mean, std = builder.floats(0), builder.floats(1)
    normalization = builder.table(("offset", 0, mean), ("offset", 1, std))
    unit = builder.table(("byte", 0, _NORMALIZATION), ("offset", 1, normalization))
    units = builder.tables(unit)
    high, low = builder.floats(255), builder.floats(0)
    stats = builder.table(("offset", 0, high), ("offset", 1, low))
    slots = ((0, name), (3, content), (4, units), (5, stats))
    return builder.table(*(("offset", slot, value) for slot, value in slots))


def _output(builder: _Builder, name: str, has_labels: bool) -> int:
    text = builder.CreateString(name)
    if not has_labels:
        return builder.table(("offset", 0, text))
    file = builder.table(("offset", 0, builder.CreateString(LABELS)), ("byte", 2, _AXIS_LABELS))
    files = builder.tables(file)
    return builder.table(("offset", 0, text), ("offset", 6, files))
