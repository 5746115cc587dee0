"""`keras-vit depth`."""

from __future__ import annotations

from collections.abc import Sequence

from keras_vit.cli.output import say
from keras_vit.cli.resolve import open_model
from keras_vit.cli.result_files import result_files
from keras_vit.data.folder import find_readable
from keras_vit.data.preview import write_png
from keras_vit.depth.prediction import encode_depth, paint_depth, predict_depth
from keras_vit.errors import printable


def write_depth(
    files: Sequence[str],
    model: str,
    output: str = "depth",
    unreadable: str = "error",
    image_size: tuple[int, int] | None = None,
) -> None:
    """Writes the depth of image files as 16-bit PNG files, and as coloured pictures."""
    paths = find_readable(files, unreadable)
    results = result_files(paths, output, (".png", "_preview.png"))
    network = open_model(model, image_size, networks=True)
    for path, depth in zip(paths, predict_depth(network, paths), strict=True):
        exact, preview = results[path]
        write_png(exact, encode_depth(depth, network.published)[..., None])
        write_png(preview, paint_depth(depth))
        say(f"{printable(path)}  {depth.min():.4g} to {depth.max():.4g}")
