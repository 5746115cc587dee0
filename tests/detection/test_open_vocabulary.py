"""OWL-ViT and OWLv2: outputs are theirs, files keep them, and wrong input is named."""

from __future__ import annotations

import json

import keras
import numpy as np
import PIL.Image
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.detection.boxes import read_boxes
from keras_vit.detection.evaluation import evaluate_boxes
from keras_vit.detection.open_vocabulary import load_open_vocabulary
from keras_vit.detection.prediction import decode_boxes, predict_boxes
from keras_vit.export.formats import FORMATS
from keras_vit.models.text_detector import TextDetector, pads_images
from scripts.golden.network_formula import images_of, token_ids_of
from tests.detection.open_vocabulary import CASES, check_owl, owl_folder
from tests.image_text.towers import MERGES

TEXTS = ["a photo of a cat", "dog", "a photo of a dog"]


@pytest.fixture(scope="module", params=["owlvit", "owlv2"])
def owl(request, tmp_path_factory):
    return load_open_vocabulary(owl_folder(request.param, tmp_path_factory.mktemp("owl") / "a"))


@pytest.fixture(scope="module")
def photographs():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), "uint8") for size in ((50, 70), (90, 40))]


@pytest.mark.parametrize("name", CASES["cases"])
def test_outputs_are_theirs(name, tmp_path):
    size = CASES["cases"][name]["size"]
    owl = load_open_vocabulary(owl_folder(name, tmp_path), (*size, 3), include_preprocessing=False)
    images = images_of(size)
    outputs = owl.predict(images, token_ids=token_ids_of())
    assert ("objectness" in outputs) == name.startswith("owlv2")
    assert all(x.dtype == "float32" for x in outputs.values())
    check_owl(outputs, name, "texts")
    check_owl(owl.predict(images, query_images=images[:, :, ::-1]), name, "pictures")
    one = owl.predict(images, query_images=images[:1, :, ::-1])
    np.testing.assert_allclose(
        one["logits"][0], owl.predict(images[:1], query_images=images[:1, :, ::-1])["logits"][0],
        rtol=0, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["owlvit", "owlv2"])
def test_boxes_in_pixels_are_theirs(kind):
    case = CASES["boxes"][kind]
    size = (400, 400) if kind == "owlv2" else (300, 400)
    arrays = (np.array(case[key], "float32") for key in ("logits", "boxes"))
    found = decode_boxes(TextDetector, *arrays, size, 0.5)
    assert found.labels.tolist() == case["found"]["labels"] and len(found.labels) > 3
    np.testing.assert_allclose(found.scores, case["found"]["scores"], rtol=1e-6)
    np.testing.assert_allclose(found.boxes, case["found"]["boxes"], rtol=1e-5, atol=1e-4)


def test_the_higher_logit_names_a_box_where_scores_are_rounded_to_one():
    logits, box = np.array([[20, 21, 20]], "float32"), np.full((1, 4), 0.5, "float32")
    found = decode_boxes(TextDetector, logits, box, (8, 8), 0.5)
    assert found.labels.tolist() == [1] and found.scores.tolist() == [1.0]


def test_a_detector_of_texts_has_the_outputs_and_is_saved(owl, photographs, tmp_path):
    expected = owl.predict(photographs, TEXTS)
    model = owl.detector(TEXTS)
    assert isinstance(model, TextDetector) and model.class_names == tuple(TEXTS)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.class_names == tuple(TEXTS) and again.published == model.published
    found = predict_boxes(again, photographs, threshold=0.0)
    for index, (image, each) in enumerate(zip(photographs, found, strict=True)):
        height, width = (max(image.shape),) * 2 if pads_images(again.published) else image.shape[:2]
        scores = 1 / (1 + np.exp(-expected["logits"][index].astype("float64")))
        np.testing.assert_allclose(each.scores, scores.max(axis=-1), atol=1e-5)
        centre = (each.boxes[:, :2] + each.boxes[:, 2:]) / 2 / [width, height]
        np.testing.assert_allclose(centre, expected["boxes"][index, :, :2], atol=1e-5)
    some = predict_boxes(again, photographs)[0]
    assert len(some.scores) == (found[0].scores > 0.1).sum()
    for part in (model, again, owl.image):
        with pytest.raises(
            ValueError, match=r"is one part of a .*`save_pretrained` of what .*load"
        ):
            part.save_pretrained(tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_files_and_texts_in_another_form_are_the_same(owl, photographs, tmp_path):
    expected = owl.predict(photographs, TEXTS[:1])
    PIL.Image.fromarray(photographs[0]).save(tmp_path / "a.png")
    found = owl.predict(tmp_path / "a.png", TEXTS[0])
    np.testing.assert_allclose(found["logits"][0], expected["logits"][0], rtol=0, atol=1e-5)
    theirs, ids = CASES["ids"], owl.tokenizer(TEXTS[:1])
    assert theirs["merges"] == list(MERGES) and ids[0, 6:].tolist() == [522, 0]  # end and padding
    assert owl.tokenizer(theirs["texts"]).tolist() == theirs["ids"]
    found = owl.predict(photographs, token_ids=ids[:, :7], batch_size=2)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-5)


def test_a_written_folder_has_every_array(owl, photographs, tmp_path):
    folder = owl.save_pretrained(tmp_path / "b")
    arrays, written = (
        safetensors.numpy.load_file(x / "model.safetensors") for x in (owl.folder, folder)
    )
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(written[name], array)
    again = load_open_vocabulary(folder)
    expected, found = (x.predict(photographs, token_ids=[[5, 522]]) for x in (owl, again))
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-6)
    report = owl.image.load_report
    assert not report.left_out and len(report.loaded) == len(set(report.loaded))


def test_another_size_is_written_too(tmp_path):
    owl = load_open_vocabulary(owl_folder("owlv2", tmp_path / "a"), (96, 96, 3))
    again = load_open_vocabulary(owl.save_pretrained(tmp_path / "b"))
    processor = json.loads((tmp_path / "b/preprocessor_config.json").read_text())
    assert processor["size"] == {"height": 96, "width": 96}
    assert again.image.input_shape == (None, 96, 96, 3)
    wide = load_open_vocabulary(owl_folder("owlvit", tmp_path / "c"), (64, 96, 3))
    with pytest.raises(ValueError, match="holds positions of square images"):
        wide.save_pretrained(tmp_path / "d")


def test_wrong_input_is_named(owl, photographs):
    for options, message in (
        ({}, "Pass one of texts, token_ids, query_images. Received: none"),
        ({"texts": ["a"], "token_ids": [[1]]}, "Received: texts and token_ids"),
        ({"texts": []}, "`texts` must be one or more texts. Received: none"),
        ({"texts": ["cat", "dog " * 9]}, "Text 1, 'dog dog .*longer than the 8 ids that the tower"),
        ({"texts": ["cat", 3]}, "number 1, 3"),
        ({"token_ids": [[1.0]]}, r"integers of shape \(Q, L\), L up to 8"),
        ({"token_ids": np.ones((1, 9), int)}, r"L up to 8 .* of shape \(1, 9\)"),
        ({"token_ids": [[1, 2], [1, 523]]}, r"from 0 to 522. Received: row 1, \[1, 523\]"),
        ({"token_ids": np.ones((0, 3), int)}, "Received: no row"),
        ({"query_images": photographs * 2}, "one for each of the 2 images. Received: 4"),
        ({"query_images": []}, "`query_images` must be one or more images"),
    ):
        with pytest.raises(ValueError, match=message):
            owl.predict(photographs, **options)
    with pytest.raises(ValueError, match="`images` must be one or more images"):
        owl.predict([], TEXTS)
    with pytest.raises(ValueError, match=r"Two texts are equal\. Received: \['dog'\]"):
        owl.detector(["dog", "cat", "dog"])
    with pytest.raises(ValueError, match="each of the 3 outputs"):
        owl.detector(TEXTS).class_names = ("one",)


def test_what_is_no_such_checkpoint_is_named(owl, tmp_path):
    for options in ({}, {"classes": 3}):
        with pytest.raises(ValueError, match=r"texts, points or boxes\. Call .*load_open_voc"):
            keras_vit.from_pretrained(owl.folder, **options)
    with pytest.raises(ValueError, match=r"must be \(height, width, 3\): boxes depend"):
        load_open_vocabulary(owl.folder, (None, None, 3))
    keras_vit.build_vit(keras_vit.find_config("vit_ti16")).save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match=r"is no OwlViTForObjectDetection or .* Received: a ViT"):
        load_open_vocabulary(tmp_path / "vit")
    folder = owl_folder("owlv2", tmp_path / "a", newest=3)
    with pytest.raises(ValueError, match="newest = 3: what this key does"):
        load_open_vocabulary(folder)
    folder = owl_folder("owlv2", tmp_path / "b")
    (folder / "preprocessor_config.json").write_text('{"do_pad": false}')
    with pytest.raises(ValueError, match=r"must say .*'do_pad': True"):
        load_open_vocabulary(folder)
    for lost in ("owlv2.text_model.final_layer_norm.bias", "class_head.dense0.bias"):
        folder = owl_folder("owlv2", tmp_path / "c")
        arrays = safetensors.numpy.load_file(folder / "model.safetensors")
        del arrays[lost]
        safetensors.numpy.save_file(arrays, folder / "model.safetensors")
        with pytest.raises(ValueError, match=f"{lost.removeprefix('owlv2.')}.? is missing"):
            load_open_vocabulary(folder)


def test_float32_heads_stay_under_mixed_precision(owl, photographs):
    expected = owl.predict(photographs, TEXTS)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = load_open_vocabulary(owl.folder)
    finally:
        keras.config.set_dtype_policy("float32")
    found = mixed.predict(photographs, TEXTS)
    for key, values in expected.items():
        assert found[key].dtype == "float32"
        assert 0 < np.abs(found[key] - values).max() < 0.1 * np.abs(values).max()


def test_average_precision_is_that_of_a_set_of_boxes(owl, photographs):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    model = owl.detector(TEXTS)
    found = predict_boxes(model, photographs[:1], threshold=0.0)[0]
    inside = np.clip(found.boxes[:1], 0, [70, 50, 70, 50])
    boxes = read_boxes(photographs[0][None], [inside], [found.labels[:1]], TEXTS)
    assert 0 <= evaluate_boxes(model, boxes).mean_ap <= 1


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_files_give_the_outputs_of_the_detector(owl, format, tmp_path):
    model = owl.detector(TEXTS)
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype("float32")
    expected = model.predict(images, verbose=0)
    for precision in ("float32", "float16"):
        path = tmp_path / precision / FORMATS[format].file
        report = FORMATS[format].export(
            model, path, images=images, precision=precision, verbose=False
        )
        found = FORMATS[format].load(report.path)(images)
        assert found.keys() >= expected.keys()
        for key, values in expected.items():
            limit = 1e-5 if precision == "float32" else 0.02
            assert np.abs(found[key] - values).max() <= limit * np.abs(values).max()


def test_an_address_fetches_the_tokenizer_and_tells_the_licence(owl, monkeypatch):
    fetched = []

    def fetch(address, beside, **_):
        fetched.append((address, beside))
        return owl.folder / "model.safetensors"

    monkeypatch.setattr("keras_vit.hub.catalog.fetch", fetch)
    again = load_open_vocabulary("hf://google/owlv2-base-patch16-ensemble")
    assert again.image.load_report.licence == "Apache-2.0"
    assert "merges.txt" in fetched[0][1] and again.tokenizer("cat").shape == (1, 8)
