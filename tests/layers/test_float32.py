import copy

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.inference import prepare
from keras_vit.layers.float32 import Float32Policy
from keras_vit.runtime.private_names import flatten_layers
from tests.fixtures import KERAS

STREAM = ["patch_norm", "embedding_dropout", "embedding_norm"]
HEADS = ["head", "head_distillation", "mean_logits", "predictions"]


def distilled():
    return keras_vit.create_model(
        "vit_ti16",
        input_shape=(16, 16, 3),
        classes=3,
        depth=1,
        distillation_token=True,
        norm_patches=True,
        norm_before_blocks=True,
        classifier_activation="softmax",
        weights=None,
    )


def float32_layers(model):
    outer = {x.name: x for x in flatten_layers(model) if x.name in {*STREAM, *HEADS, "block_0"}}
    return sorted(name for name, layer in outer.items() if layer.compute_dtype == "float32")


@pytest.mark.parametrize("quantized", [False, True])
def test_layers_of_a_float32_model_stay_float32_in_half_precision_exports(tmp_path, quantized):
    model = distilled()
    if quantized and KERAS < (3, 12):
        pytest.skip("Keras 3.11 quantises all layers")
    if quantized:
        model.quantize("int8", filters=["block", "head"])
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)

    half = prepare(keras_vit.Model(model.inputs[0], model.outputs[0] * 1.0), "bfloat16", None).model
    nested = prepare(wrapped(model), "bfloat16").model

    assert float32_layers(half) == float32_layers(nested) == sorted([*STREAM, *HEADS])


def wrapped(model):
    images = keras.Input(model.input_shape[1:])
    return keras_vit.Model(images, keras.layers.Dense(2)(model(images)))


def test_a_policy_survives_copies_and_is_told_from_plain_float32():
    images = keras.Input((4,))
    x = keras.layers.Dense(3, dtype=Float32Policy(), name="kept")(images)
    x = keras.layers.Dense(3, dtype="float32", name="follows")(x)
    model = keras_vit.Model(images, keras.layers.Dense(2)(x))

    for same in (keras.models.clone_model(model), copy.deepcopy(model)):
        assert same.get_layer("kept").dtype_policy == Float32Policy()
        assert same.get_layer("follows").dtype_policy == keras.DTypePolicy("float32")
        assert same.get_layer("kept").dtype_policy.name == "float32"


def test_quantising_a_layer_leaves_the_others_and_the_outputs():
    layers = [keras.layers.Dense(8, dtype=Float32Policy()) for _ in range(2)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    x = np.random.default_rng(0).normal(0, 1, (2, 8)).astype("float32")
    expected = model(x)

    layers[0].quantize("int8")

    assert [layer.quantization_mode for layer in layers] == ["int8", None]
    np.testing.assert_allclose(model(x), expected, rtol=0, atol=0.1)
