import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.image_text.segmenter import zero_shot_segmenter
from keras_vit.image_text.text_tower import TextConfig
from keras_vit.image_text.towers import Towers
from keras_vit.models.feature_extraction import features_of
from keras_vit.models.vit import build_vit
from keras_vit.segmentation.evaluation import evaluate_masks, predict_masks
from keras_vit.segmentation.export import export_segmenter
from keras_vit.segmentation.masks import read_mask_arrays
from keras_vit.train.keras_files import load_keras_file, save_keras_file
from tests.fixtures import images_for, tiny_config
from tests.image_text.towers import image_model

NAMES = ["red", "green", "neither"]


def towers_of(image, vectors, bias=None, scale=2.0):
    """An image tower with texts whose only id is the row of their feature."""
    ids = keras.Input((1,), dtype="int32")
    embedding = keras.layers.Embedding(*np.shape(vectors))
    text = keras.Model(ids, keras.layers.Flatten()(embedding(ids)))
    embedding.set_weights([np.array(vectors, "float32")])
    config = TextConfig(len(vectors), 4, 1, 1, 4, 1, len(vectors[0]), pooling="last")
    towers = Towers(image, text, config, float(np.log(scale)), bias)
    towers.tokenizer = lambda texts: np.array([[NAMES.index(text)] for text in texts], "int32")
    return towers


def colour_tower():
    """Patches of 2 x 2 pixels to their mean red and green; the block adds nothing."""
    config = tiny_config(
        patch_size=2, image_size=4, width=2, depth=1, num_heads=1, mlp_dim=2, classes=None,
        class_token=False, pooling="gap", position_embedding="none",
    )  # fmt: skip
    model = build_vit(config)
    for weight in model.weights:
        weight.assign(np.ones(weight.shape) if weight.path.endswith("gamma") else 0 * weight)
    (kernel,) = [x for x in model.weights if x.path.endswith("patch_encoder/projection/kernel")]
    value = np.zeros(kernel.shape, "float32").reshape(2, 2, 3, 2)
    value[:, :, 0, 0] = value[:, :, 1, 1] = 0.25
    kernel.assign(value.reshape(kernel.shape))
    return model


def test_logits_of_a_drawing_are_those_computed_by_hand():
    """Norms make a red patch (1, -1), a green one (-1, 1); cosines with the vectors follow."""
    towers = towers_of(colour_tower(), [[3.0, 0.0], [0.0, 2.0], [-0.6, -0.8]], bias=-1.0)
    model = zero_shot_segmenter(towers, NAMES, ["{}"])
    image = np.zeros((1, 4, 4, 3), "uint8")
    image[:, :, :2, 0] = image[:, :, 2:, 1] = 255  # red left, green right
    logits = model.predict(image, verbose=0)[0]
    half = 0.5**0.5
    cosines = {"red": [half, -half, 0.2 * half], "green": [-half, half, -0.2 * half]}
    for columns, name in ((0, "red"), (3, "green")):
        expected = np.tile(2.0 * np.array(cosines[name]) - 1.0, (4, 1))
        np.testing.assert_allclose(logits[:, columns], expected, rtol=0, atol=1e-5)
    # Between the centres of patches, logits are a quarter of the way to the other.
    between = 2.0 * (0.75 * np.array(cosines["red"]) + 0.25 * np.array(cosines["green"])) - 1.0
    np.testing.assert_allclose(logits[1, 1], between, rtol=0, atol=1e-5)
    assert model.class_names == tuple(NAMES)
    masks = read_mask_arrays(image, [[[0, 0, 1, 1]] * 4], NAMES)
    result = evaluate_masks(model, masks)
    np.testing.assert_array_equal(result.confusion, [[8, 0, 0], [0, 8, 0], [0, 0, 0]])
    assert result.mean_iou == 1.0


def norm(x, layer, epsilon):
    gamma, beta = layer.get_weights()
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


def dense(x, layer):
    kernel, *bias = layer.get_weights()
    return x @ kernel + sum(bias)


def values_only(x, block):
    """MaskCLIP's last block in NumPy: the output of the values, then the MLP."""
    epsilon = block.options.norm_epsilon
    values = dense(norm(x, block.attention_norm, epsilon), block.attention.qkv)
    values = values[..., values.shape[-1] * 2 // 3 :]
    x = x + dense(values, block.attention.output_projection)
    hidden = dense(norm(x, block.mlp_norm, epsilon), block.mlp.hidden)
    return x + dense(hidden / (1 + np.exp(-1.702 * hidden)), block.mlp.output_projection)


def test_patches_of_clip_go_through_the_values_of_the_last_block():
    image = image_model(siglip=False)
    vectors = np.random.default_rng(0).normal(size=(3, image.output_shape[-1]))
    towers = towers_of(image, vectors)
    images = images_for(image, 2)
    tokens = features_of(image, ["block_0"]).predict(images, verbose=0)["block_0"]
    epsilon = image.config.block.norm_epsilon
    x = values_only(tokens, image.get_layer("block_1"))
    x = norm(x, image.get_layer("encoder_norm"), epsilon)
    x = dense(x[:, 1:], image.get_layer("head"))
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = 2.0 * x @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    expected = tf.image.resize(logits.reshape(2, 4, 4, 3), (32, 32)).numpy()
    model = zero_shot_segmenter(towers, NAMES, ["{}"])
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=0, atol=1e-5)
    attending = zero_shot_segmenter(towers, NAMES, ["{}"], last_attention=True)
    assert np.abs(attending.predict(images, verbose=0) - expected).max() > 0.1


@pytest.mark.filterwarnings("ignore:.*softmax over axis -1")  # of one token, here alone
@pytest.mark.parametrize("pooling", ["map", "attention"])
def test_the_pooling_of_siglip_and_aimv2_reads_one_patch_at_a_time(pooling):
    image = image_model(siglip=True, pooling=pooling)
    vectors = np.random.default_rng(0).normal(size=(3, image.output_shape[-1]))
    towers = towers_of(image, vectors, bias=-1.5)
    images = images_for(image, 2)
    tokens = features_of(image, ["encoder_norm"]).predict(images, verbose=0)["encoder_norm"]
    pooling = image.get_layer("pooling")
    x = np.stack([pooling(tokens[:, index : index + 1]) for index in range(16)], axis=1)
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = 2.0 * x @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T - 1.5
    expected = tf.image.resize(logits.reshape(2, 4, 4, 3), (32, 32)).numpy()
    model = zero_shot_segmenter(towers, NAMES, ["{}"])
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_segmenter_is_saved_and_exported_as_any_model(tmp_path):
    image = image_model(siglip=False)
    towers = towers_of(image, np.random.default_rng(0).normal(size=(3, image.output_shape[-1])))
    model = zero_shot_segmenter(towers, NAMES, ["{}"])
    pixels = images_for(image, 1)[0].astype("uint8")
    expected = predict_masks(model, pixels)
    save_keras_file(model, tmp_path / "model.keras")
    again = load_keras_file(tmp_path / "model.keras")
    assert again.class_names == tuple(NAMES)
    np.testing.assert_array_equal(predict_masks(again, pixels), expected)
    report = export_segmenter(again, tmp_path / "serving", verbose=False)
    served = tf.saved_model.load(str(report.path)).signatures["image"](image=tf.constant(pixels))
    np.testing.assert_array_equal(served["class_map"], expected)
    assert (report.path / "assets.extra" / "labels.txt").read_text().split() == NAMES


@pytest.mark.parametrize(
    ("changes", "names", "message"),
    [
        ({"pooling": "token_gap", "classes": None}, NAMES, "Received: pooling='token_gap'"),
        ({"patch_dropout_rate": 0.5}, NAMES, "patch_dropout_rate=0.5"),
        ({"num_merged_tokens": 2}, NAMES, "merge tokens"),
        ({}, NAMES[:1], "Every pixel would be of the one class"),
    ],
)
def test_what_gives_no_maps_is_refused(changes, names, message):
    image = image_model(siglip=False, **changes)
    towers = towers_of(image, np.ones((3, image.output_shape[-1])))
    with pytest.raises(ValueError, match=message):
        zero_shot_segmenter(towers, names, ["{}"])


def test_a_tower_that_is_no_transformer_is_refused():
    x = keras.Input((8, 8, 3))
    image = keras.Model(x, keras.layers.GlobalAveragePooling2D()(x))
    with pytest.raises(ValueError, match="must be a Vision Transformer of this package"):
        zero_shot_segmenter(towers_of(image, np.ones((3, 3))), NAMES)
