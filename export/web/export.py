"""Writes a folder with a page that classifies images in a browser, without a network.

    npm install --prefix npm onnxruntime-web @litertjs/core
    python export/web/export.py model.keras --labels labels.txt --npm npm --to page
    python -m http.server --bind 127.0.0.1 --directory page 8000

Each of the formats `onnx` and `litert` adds its file and its runtime (14 and 19 MB).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import shutil

import keras

import keras_vit

HERE = pathlib.Path(__file__).parent
FILES = {"onnx": "model.onnx", "litert": "model.tflite"}
# Files of the npm packages, and where the page looks for them.
RUNTIMES = {
    "onnx": {
        "onnxruntime-web/dist/ort.wasm.bundle.min.mjs": "onnx",
        "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs": "onnx",
        "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm": "onnx",
    },
    "litert": {
        "@litertjs/core/dist/index.js": "litert",
        "@litertjs/wasm-utils/dist/index.js": "litert/wasm-utils.js",
        "@litertjs/core/wasm/litert_wasm_internal.js": "litert/wasm",
        "@litertjs/core/wasm/litert_wasm_internal.wasm": "litert/wasm",
        # for browsers without relaxed SIMD
        "@litertjs/core/wasm/litert_wasm_compat_internal.js": "litert/wasm",
        "@litertjs/core/wasm/litert_wasm_compat_internal.wasm": "litert/wasm",
    },
}


def read_card(path: pathlib.Path) -> dict:
    """The model card in an exported file."""
    spec = importlib.util.spec_from_file_location("classify", HERE.parent / "classify.py")
    classify = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classify)
    card, _ = classify.open_model(str(path))
    return card


def copy_runtime(format: str, modules: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the files of a runtime from `node_modules`."""
    missing = [name for name in RUNTIMES[format] if not (modules / name).is_file()]
    if missing:
        raise SystemExit(
            f"{modules} has no {missing[0]}. Run `npm install --prefix FOLDER onnxruntime-web "
            "@litertjs/core` and pass `--npm FOLDER`."
        )
    for name, target in RUNTIMES[format].items():
        path = folder / target
        if not path.suffix:
            path /= pathlib.Path(name).name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(modules / name, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a .keras file")
    parser.add_argument("--labels", help="text file with one class per line")
    parser.add_argument("--to", default="page", help="folder of the page, which must not exist")
    parser.add_argument("--formats", nargs="+", default=[*FILES], choices=[*FILES])
    parser.add_argument("--precision", default="float32", choices=("float32", "float16"))
    parser.add_argument("--npm", default=".", help="folder with node_modules")
    options = parser.parse_args(arguments)

    model = keras.saving.load_model(options.model)
    if model.input_shape[-1] != 3:
        raise SystemExit(f"The page takes images of 3 channels. Received: {model.input_shape}.")
    path = options.labels and pathlib.Path(options.labels)
    labels = path.read_text(encoding="utf-8-sig").splitlines() if path else None
    folder = pathlib.Path(options.to)
    folder.mkdir(parents=True)
    for format in options.formats:
        copy_runtime(format, pathlib.Path(options.npm) / "node_modules", folder)
    exporters = {"onnx": keras_vit.export_onnx, "litert": keras_vit.export_litert}
    for format in options.formats:
        file = folder / FILES[format]
        given = {"batch_size": 1} if format == "litert" else {}  # LiteRT.js refuses open sizes
        print(exporters[format](model, file, options.precision, labels=labels, **given))
    card = read_card(file)
    if not card["labels"]:
        raise SystemExit(f"{options.model} gives {card.get('output', 'outputs')}, and no classes.")
    del card["golden"]
    page = {"card": card, "models": {format: FILES[format] for format in options.formats}}
    (folder / "page.json").write_text(json.dumps(page), encoding="utf-8")
    for name in ("files.mjs", "index.html", "page.mjs", "preprocess.mjs"):
        shutil.copyfile(HERE / name, folder / name)


if __name__ == "__main__":
    main()
