"""Runs the Python of README.md with the package that is installed, in an empty folder.

    python readme.py README.md

Stands alone: `scripts/testing/try-package` runs it where nothing else of the repository is, and
tests/test_docs.py with the checkout.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys

# A small model with random weights takes the place of the published ones, which need a network.
SMALL = {
    'ViTS16(weights="augreg_in21k",': "ViTTi16(input_shape=(32, 32, 3), depth=1,",
    "batch_size=64": "batch_size=4",
    "epochs=5": "epochs=1",
}
FILES = ("pets.keras", "pets.tflite", "pets.onnx", "serving/pets/1/saved_model.pb")


def write_photos(folder: pathlib.Path) -> None:
    """Ten reddish and ten bluish images, in one folder a class."""
    import tensorflow as tf

    for channel, name in ((0, "cats"), (2, "dogs")):
        (folder / name).mkdir(parents=True)
        for index in range(10):
            pixels = tf.random.stateless_uniform((32, 32, 3), (channel, index), 0, 60)
            pixels += 150 * tf.one_hot(channel, 3)
            data = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8)).numpy()
            (folder / name / f"{index}.jpg").write_bytes(data)


def run_blocks(readme: str) -> list[str]:
    """Runs the blocks of `python`, and compares with the block of `text` below one.

    Args:
        readme: The text of README.md.

    Returns:
        What each block printed.
    """
    write_photos(pathlib.Path("photos"))
    names: dict = {}
    printed = []
    for code, expected in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", readme, re.DOTALL
    ):
        for old, new in SMALL.items():
            assert old in readme, old
            code = code.replace(old, new)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, names)
        printed.append(output.getvalue())
        assert not expected or printed[-1] == expected, printed[-1]
    missing = [file for file in FILES if not pathlib.Path(file).is_file()]
    assert not missing, missing
    return printed


if __name__ == "__main__":
    count = len(run_blocks(pathlib.Path(sys.argv[1]).read_text("utf-8")))
    print(f"README.md: {count} blocks ran")
