import json

import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.preview import write_png
from keras_vit.train.keras_files import load_keras_file
from tests.fixtures import fill_random, tiny_config
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


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    searched = tmp_path_factory.mktemp("search")
    write_open_clip(searched / "clip")
    write_vocabulary(searched / "clip")
    (searched / "photos").mkdir()
    for name, seed in (("a", 0), ("b", 1), ("copy of a", 0)):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 36, 3)).astype("uint8")
        write_png(searched / f"photos/{name}.png", pixels)
    return searched


def test_texts_and_images_are_searched_and_a_page_is_written(searched, tmp_path, capsys):
    photos, page = searched / "photos", tmp_path / "page.html"
    arguments = ["search", str(searched / "clip"), str(photos), "photo of cat", "dog"]
    arguments += ["--image", str(photos / "b.png"), "--duplicates", "0.999"]
    assert main([*arguments, "--output", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "photo of cat" and lines[1].split() == [
        "similarity",
        "file",
        "near-duplicates",
    ]
    assert sum("a.png" in line and "copy of a.png" in line for line in lines) == 3
    assert "1.000" in lines[-3] and "b.png" in lines[-3]
    assert lines[-1] == f"{page}: 3 queries in 3 images"
    assert page.read_text().count("data:image/jpeg") == 7
    assert main([*arguments, "--top", "1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["query"] for row in rows] == ["photo of cat", "dog", str(photos / "b.png")]
    assert [len(row["answers"]) for row in rows] == [1, 1, 1]
    assert rows[2]["answers"][0]["file"] == str(photos / "b.png")


@pytest.mark.slow
def test_a_model_of_images_alone_searches_by_images(searched, tmp_path, capsys):
    model = keras_vit.build_vit(tiny_config(depth=1))
    fill_random(model)
    model.save(tmp_path / "model.keras")
    arguments = ["search", str(tmp_path / "model.keras"), str(searched / "photos")]
    image = ["--image", str(searched / "photos/a.png")]
    assert main([*arguments, *image, "--image-size", "48", "--json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["answers"][0]["file"].endswith("a.png")
    assert main([*arguments, "dog"]) == 2
    assert "with a checkpoint of images and texts (CLIP, SigLIP)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "There is nothing to search for. Pass a text, or --image"),
        (["dog", "--output", "page.pdf"], "--output must end in .html"),
        (["--image", "nowhere.png"], "There is no image nowhere.png"),
        (["dog", "--image-size", "30"], "Received: image_size=(30, 30), patch_size=(8, 8)"),
        (["dog", "--top", "0"], "`top` must be a positive integer"),
    ],
)
def test_a_search_that_cannot_be_done_is_refused(more, message, searched, capsys):
    assert main(["search", str(searched / "clip"), str(searched / "photos"), *more]) == 2
    assert message in capsys.readouterr().err
