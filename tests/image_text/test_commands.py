import json

import numpy as np
import pytest

from keras_vit.cli.main import main
from keras_vit.data.preview import write_png
from keras_vit.train.keras_files import load_keras_file
from tests.image_text.towers import write_open_clip, write_vocabulary


@pytest.fixture
def folder(tmp_path):
    write_open_clip(tmp_path / "clip")
    write_vocabulary(tmp_path / "clip")
    (tmp_path / "names.txt").write_text("cat\n\ndog\nphoto\n")
    (tmp_path / "sentences.txt").write_text("photo of {}\n")
    for name in "ab":
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (40, 36, 3)).astype("uint8")
        write_png(tmp_path / f"{name}.png", pixels)
    return tmp_path


def test_images_are_classified_by_names_and_the_model_is_written(folder, capsys):
    arguments = ["zero-shot", str(folder / "clip"), "--classes", str(folder / "names.txt"),
                 "--templates", str(folder / "sentences.txt"), "--image-size", "48"]  # fmt: skip
    output = folder / "model.keras"
    files = [str(folder / "a.png"), str(folder / "b.png")]
    assert main([*arguments, "--images", *files, "--json", "--output", str(output)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["file"] for row in rows] == files
    assert sorted(rows[0]["classes"]) == ["cat", "dog", "photo"]
    np.testing.assert_allclose(sum(rows[0]["classes"].values()), 1, rtol=1e-5)
    model = load_keras_file(output)
    assert model.class_names == ("cat", "dog", "photo") and model.input_shape == (None, 48, 48, 3)
    assert main(["predict", *files, "--model", str(output), "--json"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, other in zip(rows, again, strict=True):
        assert row["classes"] == pytest.approx(other["classes"], abs=1e-6)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "There is nothing to do. Pass --images, or --output"),
        (["--output", "model.onnx"], "--output must end in .keras"),
    ],
)
def test_what_cannot_be_done_is_refused(more, message, folder, capsys):
    arguments = ["zero-shot", str(folder / "clip"), "--classes", str(folder / "names.txt"), *more]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
