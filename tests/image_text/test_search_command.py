import json

import numpy as np
import pytest

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.preview import write_png
from tests.fixtures import fill_random, tiny_config
from tests.image_text.towers import write_open_clip, write_vocabulary


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    write_open_clip(folder / "clip")
    write_vocabulary(folder / "clip")
    (folder / "photos").mkdir()
    for name, seed in (("a", 0), ("b", 1), ("copy of a", 0)):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 36, 3)).astype("uint8")
        write_png(folder / f"photos/{name}.png", pixels)
    return folder


def test_texts_and_images_are_searched_and_a_page_is_written(folder, tmp_path, capsys):
    photos, page = folder / "photos", tmp_path / "page.html"
    arguments = ["search", str(folder / "clip"), str(photos), "photo of cat", "dog"]
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


def test_a_model_of_images_alone_searches_by_images(folder, tmp_path, capsys):
    model = keras_vit.build_vit(tiny_config(depth=1))
    fill_random(model)
    model.save(tmp_path / "model.keras")
    arguments = ["search", str(tmp_path / "model.keras"), str(folder / "photos")]
    image = ["--image", str(folder / "photos/a.png")]
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
def test_what_cannot_be_done_is_refused(more, message, folder, capsys):
    assert main(["search", str(folder / "clip"), str(folder / "photos"), *more]) == 2
    assert message in capsys.readouterr().err
