"""Classifies image files with a LiteRT, ONNX or OpenVINO file, without TensorFlow and keras_vit.

    pip install numpy pillow ai-edge-litert        # or onnxruntime, or openvino
    python export/classify.py pets.tflite cat.jpg dog.png

Images are preprocessed as in evaluation, with the settings of the file's model card. Prints the
most likely classes of each image. `--check` also runs the golden image of the model card, and
prints the largest difference from its logits; one that the precision does not explain is an error.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import pathlib
import zipfile

import numpy as np
from PIL import Image

MAX_PIXELS = 1 << 25  # as in keras_vit.data
ORIENTATION = 0x0112  # tag of EXIF
TURNS = dict(enumerate((0, 3, 1, 5, 4, 6, 2), 2))  # its values, as methods of Image.transpose
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def open_model(path: str):
    """Returns the model card, and a function from pixels `(1, H, W, C)` to logits `(K,)`.

    A model with a name of its own for them has it in the card, as `output`.
    """
    opens = {".onnx": open_onnx, ".xml": open_openvino}
    return opens.get(pathlib.Path(path).suffix, open_litert)(path)


def open_litert(path: str):
    from ai_edge_litert.interpreter import Interpreter

    with zipfile.ZipFile(path) as archive:
        card = json.loads(archive.read("model_card.json"))
    runner = Interpreter(model_path=path).get_signature_runner("serving_default")
    name = card.get("output", "logits")
    return card, lambda pixels: runner(pixels=pixels)[name][0]


def open_onnx(path: str):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=onnxruntime.get_available_providers())
    card = json.loads(session.get_modelmeta().custom_metadata_map["model_card"])
    name = card.get("output", "logits")
    return card, lambda pixels: session.run([name], {"pixels": pixels})[0][0]


def open_openvino(path: str):
    import openvino

    core = openvino.Core()
    graph = core.read_model(path)
    card = json.loads(graph.get_rt_info("model_card").astype(str))
    # OpenVINO's own choice is bfloat16 on processors that can, whatever the file has.
    hint = {} if card["precision"] == "bfloat16" else {"INFERENCE_PRECISION_HINT": "f32"}
    name, run = card.get("output", "logits"), core.compile_model(graph, "AUTO", hint)
    return card, lambda pixels: run({"pixels": pixels})[name][0]


def eval_transform(image: Image.Image, card: dict) -> np.ndarray:
    """Preprocesses an image to float32 pixels of shape `(1, H, W, C)` in [0, 255]."""
    *size, channels = card["input_shape"]
    settings = card["preprocessing"]
    if settings.get("exif_orientation", True):
        image = turn(image)
    if image.mode in ("I", "I;16"):  # 16 bits of grey, which `convert` would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    image = image.convert(MODES[channels])
    library = settings.get("library", "tensorflow")
    larger = resized_size(image.size[::-1], size, library, settings)
    if library == "tensorflow":
        pixels = resize(image, larger, settings["interpolation"])
    else:
        image = image.resize(larger[::-1], getattr(Image, settings["interpolation"].upper()))
        pixels = np.asarray(image, "float32").reshape(*larger, channels)
    for axis in (0, 1):
        pixels = cut(pixels, axis, size[axis], library, settings.get("mean", ()))
    return pixels[None]


def turn(image: Image.Image) -> Image.Image:
    """Turns an image as its EXIF block says: of JPEG, PNG and WebP files, as keras_vit does."""
    image.load()  # a PNG may have the block at its end
    exif = image.info.get("exif", b"").removeprefix(b"Exif\0\0")
    if image.format not in ("JPEG", "MPO", "PNG", "WEBP") or exif[:2] not in (b"II", b"MM"):
        return image

    def number(at: int, length: int) -> int:
        return int.from_bytes(exif[at : at + length], "little" if exif[:2] == b"II" else "big")

    start = number(4, 4) + 2  # after the count of entries, of 12 bytes each
    for entry in range(start, min(start + 12 * number(start - 2, 2), len(exif) - 11), 12):
        if number(entry, 2) == ORIENTATION and number(entry + 8, 2) in TURNS:
            return image.transpose(TURNS[number(entry + 8, 2)])
    return image


def resized_size(own, size, library: str, settings: dict) -> list[int]:
    """Size of an image of `own` (height, width) before the crop to `size`."""
    ratio, mode = settings["crop_ratio"], settings.get("crop_mode", "center")
    larger = [math.floor(side / (ratio or 1.0)) for side in size]
    if ratio is None or mode == "squash":
        return larger
    if library == "tensorflow":  # covers the size
        scale = max(side / mine for side, mine in zip(larger, own, strict=True))
        return [max(round(mine * scale), side) for mine, side in zip(own, larger, strict=True)]
    if mode == "center" and larger[0] == larger[1]:
        return [mine * larger[0] // min(own) for mine in own]
    ratios = [mine / side for mine, side in zip(own, larger, strict=True)]
    scale = max(ratios) if mode == "border" else min(ratios)
    return [max(round(mine / scale), 1) for mine in own]


def cut(pixels: np.ndarray, axis: int, size: int, library: str, mean: list) -> np.ndarray:
    """Cuts out the centre along an axis, or adds a border of the mean colour."""
    excess = pixels.shape[axis] - size
    if excess < 0:
        before = -excess // 2
        border = [(0, 0)] * 3
        border[axis] = (before, -excess - before)
        colour = [round(value) for value in mean]
        return (np.pad(pixels - colour, border) + colour).astype("float32")
    begin = round(excess / 2) if library == "timm" else excess // 2
    return np.take(pixels, range(begin, begin + size), axis)


def resize(image: Image.Image, size: list[int], interpolation: str) -> np.ndarray:
    """Resizes an image to float32 pixels of another (height, width), as TensorFlow."""
    pixels = np.asarray(image, "float32").reshape(*image.size[::-1], -1)
    rows, columns = (
        weights(own, side, interpolation) for own, side in zip(pixels.shape[:2], size, strict=True)
    )
    pixels = np.einsum("ab,bcd,ec->aed", rows, pixels, columns, optimize=True)
    if interpolation == "bicubic":
        return np.round(np.clip(pixels, 0, 255)).astype("float32")
    return (np.floor(pixels) if interpolation == "area" else pixels).astype("float32")


def weights(own: int, side: int, interpolation: str) -> np.ndarray:
    """Weights of the `own` input pixels for each of `side` output pixels, shape `(side, own)`."""
    scale = own / side
    centre = (np.arange(side)[:, None] + 0.5) * scale
    pixel = np.arange(own)[None] + 0.5
    if interpolation == "nearest":
        found = (np.floor(centre) + 0.5 == pixel).astype(float)
    elif interpolation == "area":
        end = np.minimum(centre + scale / 2, pixel + 0.5)
        found = np.maximum(end - np.maximum(centre - scale / 2, pixel - 0.5), 0)
    elif interpolation == "bilinear":  # of adjacent pixels, without antialiasing
        found = np.maximum(1 - np.abs(pixel - np.clip(centre, 0.5, own - 0.5)), 0)
    else:  # Keys's cubic kernel with antialiasing
        x = np.abs(pixel - centre) / max(scale, 1)
        near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        found = np.where(x <= 1, near, np.where(x < 2, far, 0))
    return found / found.sum(1, keepdims=True)


def classify(model: str, image, top: int = 5) -> list[tuple[str, float]]:
    """Returns labels and logits of an image file, the largest first."""
    card, run = open_model(model)
    with Image.open(image) as opened:  # reads the header alone
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError(
                f"{image} has {opened.height} x {opened.width} pixels, more than {MAX_PIXELS:,}, "
                "which could fill the memory. Make it smaller."
            )
        if not card["labels"]:
            raise SystemExit(f"{model} gives {card.get('output', 'outputs')}, and no classes.")
        logits = run(eval_transform(opened, card))
    return [(card["labels"][i], float(logits[i])) for i in np.argsort(-logits)[:top]]


def check(model: str) -> tuple[float, float]:
    """Largest difference from the golden logits, relative to the largest, and what is allowed."""
    card, run = open_model(model)
    image = Image.open(io.BytesIO(base64.b64decode(card["golden"]["png"])))
    pixels = np.asarray(image, "float32").reshape(1, *card["input_shape"])
    name = card.get("output", "logits")
    if name not in card["golden"]:
        raise SystemExit(f"{model} has no {name} to compare with: they are too many for its card.")
    expected = np.array(card["golden"][name])
    scale = max(np.abs(expected).max(), 1e-12 if card["activation"] == "linear" else 1)
    return float(np.abs(run(pixels) - expected).max() / scale), card["tolerance"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .tflite, .onnx or .xml file")
    parser.add_argument("images", nargs="*", help="image files")
    parser.add_argument("--check", action="store_true", help="run the image in the file")
    options = parser.parse_args(arguments)
    if options.check:
        difference, allowed = check(options.model)
        print(f"difference {difference:.1e} (allowed: {allowed:g})")
        if not difference <= allowed:
            raise SystemExit(
                "The file answers differently here than where it was exported: do not use it on "
                "this machine, or take another precision or device of the runtime."
            )
    for image in options.images:
        best = (f"{label} {logit:.3f}" for label, logit in classify(options.model, image))
        print(image, *best, sep="\t")


if __name__ == "__main__":
    main()
