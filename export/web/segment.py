"""Writes a folder with a page that cuts out what is clicked on, without a network.

    npm install --prefix npm onnxruntime-web
    python export/web/segment.py hf://facebook/sam-vit-base --npm npm --to page
    python -m http.server --bind 127.0.0.1 --directory page 8000

The encoder of Segment Anything runs once for an image, its decoder at every click.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import shutil

from keras_vit.runtime.model import find_preprocessing
from keras_vit.segmentation import export_promptable, load_promptable

HERE = pathlib.Path(__file__).parent


def copy_runtime(modules: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies ONNX Runtime Web, as `export.py` does."""
    spec = importlib.util.spec_from_file_location("export", HERE / "export.py")
    export = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(export)
    export.copy_runtime("onnx", modules, folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", help="a folder or an address of Segment Anything")
    parser.add_argument("--to", default="page", help="folder of the page, which must not exist")
    parser.add_argument("--precision", default="float32", choices=("float32", "float16", "int8"))
    parser.add_argument("--npm", default=".", help="folder with node_modules")
    options = parser.parse_args(arguments)

    folder = pathlib.Path(options.to)
    folder.mkdir(parents=True)
    copy_runtime(pathlib.Path(options.npm) / "node_modules", folder)
    segmenter = load_promptable(options.weights)
    for report in export_promptable(segmenter, folder, precision=options.precision):
        print(report)
    preprocessing, _ = find_preprocessing(segmenter.encoder)
    mean, _ = preprocessing.per_channel(3)
    page = {"size": segmenter.image_size, "mean": list(mean)}
    (folder / "page.json").write_text(json.dumps(page), encoding="utf-8")
    for name in ("files.mjs", "preprocess.mjs", "segment.mjs"):
        shutil.copyfile(HERE / name, folder / name)
    shutil.copyfile(HERE / "segment.html", folder / "index.html")


if __name__ == "__main__":
    main()
