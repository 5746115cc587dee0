"""Segment Anything: masks are those of transformers, in every precision and file."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import keras_vit
from keras_vit.models.attention import attention_scores
from keras_vit.segmentation.promptable import PromptableSegmenter, load_promptable
from keras_vit.segmentation.sam import DEFAULTS
from scripts.golden.network_formula import images_of
from scripts.golden.prompts import PHOTOGRAPH, TRAINED, photograph_of
from tests.segmentation.promptable_cases import (
    GOLDEN_SAM,
    check,
    check_sam,
    prompts_of,
    sam_arrays,
    sam_folder,
)

BATCH = {"points": [[[10, 20]], [[70, 1]]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sam_folder(tmp_path_factory.mktemp("sam"))


@pytest.fixture(scope="module")
def sam(folder):
    return load_promptable(folder)


@pytest.fixture(scope="module")
def plain(folder):
    return load_promptable(folder, include_preprocessing=False)


@pytest.fixture(scope="module")
def embedded(plain):
    return plain.embed(images_of((80, 80)))


def test_embeddings_masks_and_scores_are_theirs(plain):
    check_sam(plain)
    assert plain.encoder.load_report.fresh == ()


def test_another_size_resizes_positions_as_theirs_would(folder):
    sam = load_promptable(folder, input_shape=(112, 112, 3), include_preprocessing=False)
    found = sam.predict(images_of((112, 112)), **prompts_of("points"))
    check(found["masks"], GOLDEN_SAM["other size"]["masks"])
    check(found["scores"], GOLDEN_SAM["other size"]["scores"])


def test_photographs_are_prepared_and_masks_resized_as_theirs(sam):
    expected, image = GOLDEN_SAM["photograph"], photograph_of()
    seen = []
    preprocessing = sam.encoder.get_layer("preprocessing")
    predict = sam.encoder.predict_on_batch
    sam.encoder.predict_on_batch = lambda x: seen.append(preprocessing(x)) or predict(x)
    embedded = sam.embed([image])
    del sam.encoder.predict_on_batch
    check(seen[0], expected["pixels"], 1e-6)
    assert not np.asarray(seen[0])[0, 55:].any()  # 90 x 131 pixels become 55 x 80
    prompts = {key: [value] for key, value in PHOTOGRAPH.items()}
    found = sam.predict(embedded, **prompts)
    check(found["masks"], expected["masks"])
    (whole,) = sam.resize_masks(found["masks"], embedded.sizes)
    assert whole.shape == (3, 90, 131) and whole.dtype == bool
    assert whole.sum((1, 2)).tolist() == expected["inside"]
    check(whole, expected["whole"], 0)


def test_an_image_is_embedded_once_for_several_prompts(sam):
    image = photograph_of()
    embedded = sam.embed([image])
    points = [[[60.0, 30.0]], [[20.0, 80.0]], [[131.0, 90.0]]]
    found = sam.predict(embedded, points)
    assert found["masks"].shape == (3, 3, 20, 20)
    alone = sam.predict([image], points[1:2])
    np.testing.assert_allclose(found["masks"][1:2], alone["masks"], rtol=0, atol=1e-5)
    assert [x.shape for x in sam.resize_masks(found["masks"], embedded.sizes)] == 3 * [(3, 90, 131)]


def test_images_are_arrays_of_any_size_or_paths(sam, tmp_path):
    image = photograph_of()
    tf.io.write_file(str(tmp_path / "a.png"), tf.io.encode_png(image))
    both = sam.embed([str(tmp_path / "a.png"), image[:, :60].astype("float32")])
    assert both.sizes == ((90, 131), (90, 60))
    np.testing.assert_array_equal(sam.embed(tmp_path / "a.png").embeddings, both.embeddings[:1])


def test_gradients_of_the_decoder_are_theirs(plain, embedded):
    names = plain.encoder.published["heads"]
    inputs = plain.prepare_prompts(embedded, **prompts_of("points and box"))
    layers = {layer.path: layer for layer in plain.decoder._flatten_layers()}
    with tf.GradientTape() as tape:
        outputs = plain.decoder(inputs)
        loss = tf.reduce_mean(outputs["masks"][:, 1:] ** 2) + tf.reduce_sum(
            outputs["scores"][:, 1:]
        )
    variables = [
        layers[next(x for x, y in names.items() if y in (k, k.removesuffix(".weight")))].weights[0]
        for k in TRAINED
    ]
    for key, gradient in zip(
        TRAINED, tape.gradient(loss, [v.value for v in variables]), strict=True
    ):
        gradient = np.asarray(tf.convert_to_tensor(gradient))  # of a row of an embedding
        axes = {2: (1, 0), 4: (3, 2, 0, 1)}.get(gradient.ndim, range(gradient.ndim))
        theirs = GOLDEN_SAM["gradients"][key]
        gradient = gradient.transpose(axes) if "proj" in key or "conv" in key else gradient
        check(gradient.reshape(theirs["shape"]), theirs)


def test_keras_files_hold_both_models(plain, embedded, tmp_path):
    for name in ("encoder", "decoder"):
        getattr(plain, name).save(tmp_path / f"{name}.keras")
    load = keras.saving.load_model
    again = PromptableSegmenter(load(tmp_path / "encoder.keras"), load(tmp_path / "decoder.keras"))
    assert again.encoder.published == plain.encoder.published
    for name in ("points and mask", "box"):
        expected, found = (
            x.predict(images_of((80, 80)), **prompts_of(name)) for x in (plain, again)
        )
        for key in expected:
            np.testing.assert_array_equal(found[key], expected[key])


@pytest.mark.parametrize("side", [80, 112])
def test_a_written_folder_is_read_again(folder, side, tmp_path):
    sam = load_promptable(folder, input_shape=(side, side, 3))
    sam.save_pretrained(tmp_path / "b")
    again = load_promptable(tmp_path / "b")
    image = photograph_of()
    expected, found = (x.predict([image], points=[[[9, 9]]]) for x in (sam, again))
    np.testing.assert_array_equal(found["masks"], expected["masks"])
    written = safetensors.numpy.load_file(tmp_path / "b/model.safetensors")
    arrays = sam_arrays()
    assert written.keys() == arrays.keys()
    assert {k: v.ndim for k, v in written.items()} == {k: v.ndim for k, v in arrays.items()}
    if side == 80:
        for key, value in arrays.items():
            np.testing.assert_array_equal(written[key], value)
    processor = json.loads((tmp_path / "b/preprocessor_config.json").read_text())
    assert processor["pad_size"] == {"height": side, "width": side}


def test_a_network_of_oblong_images_predicts_and_cannot_be_written(folder, tmp_path):
    sam = load_promptable(folder, input_shape=(48, 80, 3))
    assert sam.predict([photograph_of()], points=[[[9, 9]]])["masks"].shape == (1, 3, 12, 20)
    with pytest.raises(ValueError, match="square images"):
        sam.save_pretrained(tmp_path)


def test_mixed_precision_keeps_prompts_and_decoder_float32(folder):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        sam = load_promptable(folder, include_preprocessing=False)
    finally:
        keras.config.set_dtype_policy("float32")
    assert {x.compute_dtype for x in sam.decoder.layers if x.weights} == {"float32"}
    embedded = sam.embed(images_of((80, 80)))
    check(embedded.embeddings, GOLDEN_SAM["embeddings"], 0.02)
    found = sam.predict(embedded, **prompts_of("points"))
    check(found["scores"], GOLDEN_SAM["cases"]["points"]["scores"], 0.1)


def test_attention_of_global_blocks_is_shown_and_of_windows_an_error(plain):
    scores = attention_scores(plain.encoder, images_of((80, 80)), block=1)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)
    with pytest.raises(ValueError, match="Look at a block without windows"):
        attention_scores(plain.encoder, images_of((80, 80)), block=0)


def test_a_tied_array_may_stand_twice_but_not_differ(folder, tmp_path):
    arrays, tied = sam_arrays(), "prompt_encoder.shared_embedding.positional_embedding"
    arrays[tied] = arrays["shared_image_embedding.positional_embedding"].copy()
    sam = load_promptable(sam_folder(tmp_path / "a", arrays), include_preprocessing=False)
    assert sam.encoder.load_report.left_out == (tied,)
    del arrays["shared_image_embedding.positional_embedding"]
    check_sam(load_promptable(sam_folder(tmp_path / "b", arrays), include_preprocessing=False))
    arrays["shared_image_embedding.positional_embedding"] = arrays[tied] + 1
    with pytest.raises(ValueError, match="are one array"):
        load_promptable(sam_folder(tmp_path / "c", arrays))
    arrays = {key: value for key, value in sam_arrays().items() if "positional" not in key}
    arrays["more"] = np.zeros(2, "float32")
    arrays["vision_encoder.pos_embed"] = np.zeros((1, 4, 4, 32), "float32")
    with pytest.raises(ValueError, match="does not fit SamModel") as error:
        load_promptable(sam_folder(tmp_path / "d", arrays))
    for text in ("positional_embedding is missing", "more is of no layer", "(1, 4, 4, 32)"):
        assert text in str(error.value)


def test_missing_keys_have_the_values_of_transformers(tmp_path):
    folder = sam_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for part, defaults in DEFAULTS.items():
        rest = {k: v for k, v in config[part].items() if defaults.get(k, ...) != v}
        assert len(rest) < len(config[part])
        config[part] = rest
    (folder / "config.json").write_text(json.dumps(config))
    check_sam(load_promptable(folder, include_preprocessing=False))


def test_what_is_not_computed_is_refused_by_its_key(tmp_path):
    for part, key, value in (
        ("vision_config", "use_abs_pos", False),
        ("mask_decoder_config", "hidden_act", "gelu"),
        ("prompt_encoder_config", "num_point_embeddings", 6),
    ):
        with pytest.raises(ValueError, match=f"{part}: {key}|{key} ="):
            load_promptable(sam_folder(tmp_path, **{part: {key: value}}))
    with pytest.raises(ValueError, match="newest = 1: what this key does"):
        load_promptable(sam_folder(tmp_path, newest=1))
    with pytest.raises(ValueError, match="hidden_size of mask_decoder_config = 16, expected 32"):
        load_promptable(sam_folder(tmp_path, mask_decoder_config={"hidden_size": 16}))
    with pytest.raises(ValueError, match="image_size of prompt_encoder_config = 96, expected 80"):
        load_promptable(sam_folder(tmp_path, prompt_encoder_config={"image_size": 96}))
    folder = sam_folder(tmp_path)
    (folder / "preprocessor_config.json").write_text('{"size": {"longest_edge": 64}}')
    with pytest.raises(ValueError, match=r"json = \{'longest_edge': 64\}, expected"):
        load_promptable(folder)


def test_each_class_names_the_function_that_loads_it(folder, tmp_path):
    with pytest.raises(ValueError, match=r"texts, points or boxes\. Call .*load_promptable"):
        keras_vit.from_pretrained(folder)
    other = sam_folder(tmp_path, architectures=["DPTForDepthEstimation"])
    with pytest.raises(ValueError, match=r"a DPTForDepthEstimation. Call keras_vit.from_pre"):
        load_promptable(other)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({}, r"need points, boxes or masks that ask for them, .* Received: None"),
        ({"labels": [[1], [1]]}, r"Received: \['labels'\]"),
        (
            {"labels": [[1], [1]], "boxes": [[1, 2, 3, 4]] * 2},
            r"labels the points .* Received: \['labels', 'boxes'\]",
        ),
        ({**BATCH, "labels": [[1, 0], [1, 0]]}, r"`labels` of 2 .* shape \(2, 1\)"),
        ({**BATCH, "labels": [[1], [4]]}, "Received: 4, of point 0 of row 1"),
        (
            {"points": [[1, 2], [3, 4]]},
            r"`points` of 2 images must be numbers of shape \(2, P, 2\)",
        ),
        ({"points": [[[1, 2]], [[81, 4]]]}, r"Point 0 of row 1 is outside .* \[81, 4\]"),
        ({"points": [[[1, -2]], [[1, 4]]]}, "Point 0 of row 0 is outside"),
        ({"boxes": [[1, 2, 3, 4]]}, r"`boxes` of 2 images must be numbers of shape \(2, 4\)"),
        ({"boxes": [[1, 2, 3, 4], [1, 2, 3, 99]]}, "Corner 1 of row 1 is outside"),
        ({"boxes": [[1, 2, 3, 4], [9, 2, 3, 9]]}, "left, top, right and bottom.* in row 1"),
        ({"masks": np.zeros((2, 4, 4))}, r"`masks` of 2 images .* shape \(2, 20, 20\)"),
        ({**BATCH, "num_masks": 2}, "must be 1 or 3. Received: 2"),
    ],
)
def test_wrong_prompts_are_errors_with_their_index(plain, embedded, prompts, message):
    with pytest.raises(ValueError, match=message):
        plain.predict(embedded, **prompts)


def test_licences_are_those_of_the_published_files(folder, monkeypatch):
    monkeypatch.setattr(
        "keras_vit.pretrained.find_weights", lambda *_, **__: folder / "model.safetensors"
    )
    for name, licence in (("facebook/sam-vit-huge", "Apache-2.0"), ("somebody/sam", None)):
        assert load_promptable(f"hf://{name}").encoder.load_report.licence == licence


def test_wrong_images_are_errors(sam, plain):
    with pytest.raises(ValueError, match="Image 1 must have the shape"):
        sam.embed([photograph_of(), np.zeros((4, 4))])
    for each in (sam, plain):
        with pytest.raises(ValueError, match=r"one or more images\. Received: \[\]"):
            each.embed([])
    with pytest.raises(ValueError, match=r"have the shape \(B, 80, 80, 3\)"):
        plain.embed(np.zeros((1, 64, 64, 3), "float32"))
