"""Runs a SavedModel through TensorFlow's C functions, in a process without Python's TensorFlow.

`python bare_process.py LIBRARY SAVED_MODEL PNG INPUT OUTPUT` prints the float output as JSON.
INPUT and OUTPUT are names of tensors as in the signature, `serving_default_x:0`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p

STRING, FLOAT = 7, 1
TSTRING_BYTES = 24


class Output(ctypes.Structure):
    _fields_ = (("operation", c_void_p), ("index", c_int))


def load(path):
    library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    for name in (
        "TF_NewStatus",
        "TF_NewGraph",
        "TF_NewSessionOptions",
        "TF_LoadSessionFromSavedModel",
        "TF_GraphOperationByName",
        "TF_AllocateTensor",
        "TF_TensorData",
    ):
        getattr(library, name).restype = c_void_p
    library.TF_Message.restype = c_char_p
    library.TF_TensorByteSize.restype = c_size_t
    return library


def check(library, status):
    if library.TF_GetCode(c_void_p(status)):
        sys.exit(library.TF_Message(c_void_p(status)).decode())


def string_tensor(library, value):
    tensor = library.TF_AllocateTensor(c_int(STRING), (c_int64 * 1)(1), c_int(1), c_size_t(24))
    data = library.TF_TensorData(c_void_p(tensor))
    ctypes.memset(data, 0, TSTRING_BYTES)
    library.TF_StringCopy(c_void_p(data), c_char_p(value), c_size_t(len(value)))
    return tensor


def output(library, graph, name):
    operation, _, index = name.partition(":")
    found = library.TF_GraphOperationByName(c_void_p(graph), operation.encode())
    return Output(found, int(index))


def main(path, saved_model, png, feed, fetch):
    library = load(path)
    status, graph = library.TF_NewStatus(), library.TF_NewGraph()
    session = library.TF_LoadSessionFromSavedModel(
        c_void_p(library.TF_NewSessionOptions()),
        None,
        saved_model.encode(),
        (c_char_p * 1)(b"serve"),
        c_int(1),
        c_void_p(graph),
        None,
        c_void_p(status),
    )
    check(library, status)
    with open(png, "rb") as file:
        tensor = string_tensor(library, file.read())
    result = c_void_p()
    library.TF_SessionRun(
        c_void_p(session),
        None,
        byref(output(library, graph, feed)),
        byref(c_void_p(tensor)),
        c_int(1),
        byref(output(library, graph, fetch)),
        byref(result),
        c_int(1),
        None,
        c_int(0),
        None,
        c_void_p(status),
    )
    check(library, status)
    count = library.TF_TensorByteSize(result) // 4
    data = ctypes.cast(library.TF_TensorData(result), ctypes.POINTER(ctypes.c_float))
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    print(json.dumps(data[:count]))


if __name__ == "__main__":
    main(*sys.argv[1:])
