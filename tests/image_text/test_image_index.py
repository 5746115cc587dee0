"""Search in images: exact, with near-duplicates grouped, from features that are kept."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.preview import write_png
from keras_vit.image_text import image_index
from keras_vit.image_text.image_index import Answer, ImageIndex, index_images
from keras_vit.image_text.towers import load_towers, unit_rows
from tests.fixtures import fill_random, tiny_config
from tests.image_text.towers import write_open_clip, write_vocabulary

NAMES = ("a.png", "b.png", "c.png", "inner/d.png")


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    write_open_clip(folder)
    write_vocabulary(folder)
    return load_towers(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(NAMES):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 36, 3)).astype("uint8")
        (folder / name).parent.mkdir(exist_ok=True)
        write_png(folder / name, pixels)
    return folder


@pytest.fixture(scope="module")
def index(towers, photos, tmp_path_factory):
    return index_images(towers, photos, tmp_path_factory.mktemp("cache"), verbose=0)


def test_answers_are_those_of_both_towers(index, towers, photos):
    assert index.files == tuple(str(photos / name) for name in NAMES)
    assert isinstance(index.features, np.memmap)
    np.testing.assert_allclose(np.linalg.norm(index.features, axis=1), 1, rtol=0, atol=1e-6)
    images = np.concatenate(list(keras_vit.data.ImageFiles(index.files, towers.image)))
    cosines = towers.encode_images(images) @ towers.encode_texts(["cat", "dog"]).T
    for text, column in zip(("cat", "dog"), cosines.T, strict=True):
        found = index.search(text, duplicates=2)
        assert [each.position for each in found] == np.argsort(-column).tolist()
        np.testing.assert_allclose(
            [each.similarity for each in found], np.sort(column)[::-1], rtol=0, atol=1e-5
        )
        assert found[0].file == index.files[found[0].position] and found[0].duplicates == ()
    for text, several in zip(("cat", "dog"), index.search(["cat", "dog"], 2, 2), strict=True):
        assert [x.position for x in several] == [x.position for x in index.search(text, 2, 2)]


def test_an_image_finds_itself_first(index, photos):
    for position, name in enumerate(NAMES):
        found = index.search_image(photos / name, top=1)
        assert found[0].position == position
        assert found[0].similarity == pytest.approx(1, abs=1e-5)


def random_index(count, width=16, copies=()):
    features = unit_rows(np.random.default_rng(0).normal(size=(count, width)))
    for first, second in copies:
        features[second] = features[first]
    return ImageIndex(features, tuple(f"{i}.png" for i in range(count)))


def by_definition(index, vector, top, limit):
    """The most similar image that is not close to an answer, again and again."""
    similarities = index.features @ unit_rows(vector)
    close = index.features @ index.features.T >= limit
    left, answers = np.ones(len(similarities), bool), []
    while left.any() and len(answers) < top:
        first = int(np.argmax(np.where(left, similarities, -2)))
        answers.append(first)
        left &= ~close[first]
        left[first] = False
    members = [np.flatnonzero(close[i]).tolist() for i in answers]
    groups, taken = [], set(answers)
    for group in members:
        groups.append({f"{i}.png" for i in group if i not in taken})
        taken |= set(group)
    return answers, groups


@pytest.mark.parametrize("limit", [0.3, 0.6, 0.95, 1.5])
@pytest.mark.parametrize("top", [1, 5, 400])
def test_search_is_exact_and_groups_near_duplicates(limit, top, monkeypatch):
    monkeypatch.setattr(image_index, "_CELLS", 256)
    monkeypatch.setattr(image_index, "_QUERIES", 2)
    index = random_index(300, copies=[(0, 7), (0, 299), (5, 6)])
    vectors = np.random.default_rng(1).normal(size=(5, 16))
    vectors[0] = index.features[0]
    for vector, found in zip(vectors, index.search_vectors(vectors, top, limit), strict=True):
        answers, groups = by_definition(index, vector, top, limit)
        assert [each.position for each in found] == answers
        assert [set(each.duplicates) for each in found] == groups
    if limit == 0.95:
        first = index.search_vectors(vectors[:1], top, limit)[0][0]
        assert first == Answer(0, "0.png", pytest.approx(1), ("7.png", "299.png"))


def test_many_copies_of_an_image_are_one_answer():
    index = random_index(500, copies=[(0, i) for i in range(1, 490)])
    (found,) = index.search_vectors(index.features[:1], top=3)
    assert found[0].position == 0 and len(found) == 3 and len(found[0].duplicates) == 489


def test_features_are_computed_once_and_again_when_images_change(
    towers, photos, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in NAMES[:2]:
        (folder / name).write_bytes((photos / name).read_bytes())
    computed = []
    store = image_index.store_features

    def store_and_count(*args, **kwargs):
        found = store(*args, **kwargs)
        computed.append(found.computed)
        return found

    monkeypatch.setattr(image_index, "store_features", store_and_count)
    index_images(towers, folder, verbose=0)
    monkeypatch.chdir(tmp_path)
    assert index_images(towers, "mine", verbose=0).files == ("mine/a.png", "mine/b.png")
    (folder / "c.png").write_bytes((photos / "c.png").read_bytes())
    found = index_images(towers, folder, verbose=0).search("cat")
    assert computed == [2, 0, 3] and len(found) == 3
    assert len(list((tmp_path / "cache/search").glob("*/*"))) == 1  # the old ones are removed


def test_wrong_folders_and_files_are_refused(towers, photos, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no image .*nowhere"):
        index_images(towers, tmp_path / "nowhere", tmp_path / "cache")
    with pytest.raises(ValueError, match="There are no images in"):
        index_images(towers, tmp_path, tmp_path / "cache")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "a.png").write_bytes((photos / "a.png").read_bytes())
    with pytest.raises(ValueError, match=r"1 files in .* cannot be read:\n.*broken\.png"):
        index_images(towers, tmp_path, tmp_path / "cache")
    with pytest.warns(UserWarning, match=r"left out:\n.*broken\.png"):
        index = index_images(towers, tmp_path, tmp_path / "x", unreadable="skip", verbose=0)
    assert index.files == (str(tmp_path / "a.png"),)
    with pytest.raises(ValueError, match="holds features of something else: images, num_images"):
        index_images(towers, photos, tmp_path / "x")
    with pytest.raises(OSError, match=r"broken\.png cannot be read as an image"):
        index.search_image(tmp_path / "broken.png")
    with pytest.raises(ValueError, match="Received: folder"):
        index.search_image(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda index: index.search(""), "must be texts that are not empty. Received: ''"),
        (lambda index: index.search([]), "must be texts that are not empty"),
        (
            lambda index: index.search(["cat", None]),
            "`texts` must be texts of Unicode, .* number 1",
        ),
        (lambda index: index.search(["cat", " "]), "must be texts that are not empty"),
        (lambda index: index.search("cat", top=0), "`top` must be a positive integer"),
        (lambda index: index.search("cat", duplicates=0), "`duplicates` must be positive"),
        (lambda index: index.search_vectors(np.zeros((1, 5))), r"shape \(C, 32\).*\(1, 5\)"),
        (
            lambda index: dataclasses.replace(index, towers=None).search("cat"),
            "this index has none. Use `search_image`",
        ),
        (
            lambda index: dataclasses.replace(index, towers=None).search_image("a.png"),
            "This index has no model. Search vectors",
        ),
        (lambda index: dataclasses.replace(index, files=("a",)), "and 1 names"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, message, index):
    with pytest.raises(ValueError, match=message):
        call(index)


def test_a_text_that_is_too_long_is_reported(index):
    with pytest.warns(UserWarning, match="1 of 1 texts are longer.*"):
        index.search("photo of cat dog " * 5)


def test_a_model_of_images_alone_searches_by_images(tmp_path):
    model = keras_vit.build_vit(tiny_config(depth=1))
    fill_random(model)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype("uint8")
    images = keras_vit.read_arrays(pixels, np.zeros(3, int))
    with pytest.raises(ValueError, match="Pass `cache`"):
        index_images(model, images)
    index = index_images(model, images, tmp_path / "cache", verbose=0)
    write_png(tmp_path / "1.png", pixels[1])
    found = index.search_image(tmp_path / "1.png", duplicates=2)
    assert found[0].file == "image 1" and found[0].similarity == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="this index has a model of images alone"):
        index.search("cat")
    decoded = tf.io.decode_jpeg(index.thumbnail(1, side=16)).numpy()
    assert decoded.shape == (16, 16, 3)


def test_answers_can_be_written_as_json(index):
    row = json.loads(json.dumps(index.search("cat", top=1)[0]._asdict()))
    assert row.keys() == {"position", "file", "similarity", "duplicates"}
    assert pathlib.Path(row["file"]).exists()
