import json

import keras
import numpy as np
import onnx
import pytest

from keras_vit.evaluate.thresholds import calibrate_thresholds
from keras_vit.export.onnx import export_onnx
from keras_vit.export.runners import load_onnx
from keras_vit.image_text.classifier import TEMPLATES, class_vectors, zero_shot_classifier
from keras_vit.image_text.towers import load_towers
from keras_vit.train.keras_files import load_keras_file, save_keras_file
from tests.fixtures import images_for
from tests.image_text.towers import write_open_clip, write_transformers, write_vocabulary

NAMES = ["cat", "dog", "photo"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    write_open_clip(folder)
    write_vocabulary(folder)
    return load_towers(folder)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """SigLIP's towers with the tokenizer of CLIP: any ids pool."""
    folder = tmp_path_factory.mktemp("siglip")
    write_transformers(folder, siglip=True)
    write_vocabulary(folder)
    towers = load_towers(folder)
    towers.tokenizer = lambda texts: np.array(
        [[len(text) + i for i in range(12)] for text in texts], "int32"
    )
    return towers


def test_the_vector_of_a_class_is_the_unit_mean_of_its_unit_sentences(clip):
    sentences = ["photo of {}", "{}", "dog {}"]
    vectors = class_vectors(clip, NAMES, sentences)
    for name, vector in zip(NAMES, vectors, strict=True):
        rows = np.asarray(
            clip.text.predict(clip.tokenizer([s.format(name) for s in sentences]), verbose=0),
            "float64",
        )
        mean = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=0, atol=1e-6)


def test_a_function_may_give_one_sentence(clip):
    vectors = class_vectors(clip, NAMES, lambda name: f"photo of {name}")
    np.testing.assert_array_equal(vectors, class_vectors(clip, NAMES, ["photo of {}"]))


@pytest.mark.parametrize("towers", ["clip", "siglip"])
def test_the_logits_of_the_classifier_are_those_of_both_towers(towers, request):
    towers = request.getfixturevalue(towers)
    model = zero_shot_classifier(towers, NAMES, ["{}"], activation=None)
    images = images_for(towers.image, 3)
    expected = towers.logits(images, NAMES)
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=0, atol=1e-5)
    probabilities = zero_shot_classifier(towers, NAMES, ["{}"]).predict(images, verbose=0)
    if towers.bias is None:
        shares = np.exp(expected - expected.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    else:
        shares = 1 / (1 + np.exp(-expected))
    np.testing.assert_allclose(probabilities, shares, rtol=0, atol=1e-5)


def test_thresholds_of_a_sigmoid_can_go_to_the_bias(siglip):
    model = zero_shot_classifier(siglip, NAMES, ["{}"])
    images = images_for(model, 8)
    labels = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1]] * 2)
    scores = model.predict(images, verbose=0)
    thresholds = calibrate_thresholds(scores, labels)
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([kernel, bias - np.log(thresholds / (1 - thresholds))])
    moved = model.predict(images, verbose=0)
    np.testing.assert_array_equal(moved >= 0.5, scores >= thresholds)


def test_another_class_leaves_the_columns_of_the_others(clip):
    kernels = [
        zero_shot_classifier(clip, names, ["photo of {}", "{}"]).get_layer("head").kernel.numpy()
        for names in (NAMES, [*NAMES, "of"], ["of", "dog", "cat"])
    ]
    np.testing.assert_array_equal(kernels[0], kernels[1][:, :3])
    np.testing.assert_array_equal(kernels[0][:, 1::-1], kernels[2][:, 1:])


def test_a_function_makes_the_sentences_of_each_name(clip):
    found = class_vectors(clip, NAMES, lambda name: [f"photo of {name}"])
    np.testing.assert_array_equal(found, class_vectors(clip, NAMES, ["photo of {}"]))
    assert all("{}" in template for template in TEMPLATES)


@pytest.mark.slow
def test_a_classifier_is_saved_exported_and_trained_as_any_model(clip, tmp_path):
    model = zero_shot_classifier(clip, NAMES, ["photo of {}"])
    images = images_for(model, 4)
    expected = model.predict(images, verbose=0)
    save_keras_file(model, tmp_path / "model.keras")
    again = load_keras_file(tmp_path / "model.keras")
    assert again.class_names == tuple(NAMES)
    np.testing.assert_allclose(again.predict(images, verbose=0), expected, rtol=0, atol=1e-6)
    export_onnx(again, tmp_path / "model.onnx", outputs=("probabilities",))
    exported = load_onnx(tmp_path / "model.onnx")(images)
    np.testing.assert_allclose(exported["probabilities"], expected, rtol=0, atol=1e-5)
    metadata = onnx.load(tmp_path / "model.onnx").metadata_props
    cards = [json.loads(each.value) for each in metadata if each.key == "model_card"]
    assert [card["labels"] for card in cards] == [NAMES]
    trained = zero_shot_classifier(clip, NAMES, ["{}"], activation=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained.compile(keras.optimizers.SGD(1e-4), loss)
    history = trained.fit(images, np.array([0, 1, 2, 0]), epochs=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "`class_names` must be one or more names"),
        ("cat", {}, "Received: 'cat'"),
        (["cat", "cat"], {}, "Two classes have the same name"),
        (["cat"], {}, "The softmax of one class is always 1"),
        (NAMES, {"templates": ["a photo"]}, "sentences with {} for the name"),
        (None, {}, "`class_names` must be texts. Received: None"),
        (["cat", None], {}, "`class_names` must be texts of Unicode, .* number 1, None"),
        (["cat", "\udcff"], {}, "`class_names` must be texts of Unicode, .* number 1"),
        (NAMES, {"templates": ["{}", b"{}"]}, "`templates` must be texts of Unicode, .* number 1"),
        (NAMES, {"templates": lambda name: None}, "`templates` must be texts. Received: None"),
        (NAMES, {"templates": lambda name: []}, "Received: int32 of shape"),
        (NAMES, {"activation": "relu"}, "`activation` must be None or one of"),
    ],
)
def test_what_makes_no_classifier_is_refused(names, options, message, clip):
    with pytest.raises(ValueError, match=message):
        zero_shot_classifier(clip, names, **options)
