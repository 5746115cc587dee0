"""EoMT on other backbones, in half precision, and what its files must say."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.evaluate.counting import count_stages
from keras_vit.segmentation.eomt import build_eomt
from tests.networks.cases import network_folder
from tests.segmentation.test_segments import load

TINY = {"patch_size": 8, "width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "image_size": 32}


def backbone(**options):
    return keras_vit.build_vit(keras_vit.make_config(**TINY, classes=None, **options))


def tiny(**options):
    return build_eomt(backbone(pooling=None), 4, 5, 2, 1, **options)


def test_eomt_stands_on_every_vision_transformer():
    model = tiny()
    outputs = model(np.zeros((2, 32, 32, 3), "float32"))
    assert outputs["masks_queries_logits"].shape == (2, 5, 8, 8)
    assert outputs["class_queries_logits"].shape == (2, 5, 5)


def test_masks_change_what_queries_attend_to():
    keras.utils.set_random_seed(0)
    plain, masked = tiny(), tiny(masked=(True, True))
    for layer in plain.layers:  # their order differs
        masked.get_layer(layer.name).set_weights(layer.get_weights())
    images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype("float32")
    for key, value in plain.predict(images, verbose=0).items():
        assert np.abs(masked.predict(images, verbose=0)[key] - value).max() > 1e-3


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_in_half_precision(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = tiny(masked=(True, True))
    finally:
        keras.config.set_dtype_policy("float32")
    for logits in model(np.zeros((1, 32, 32, 3), "float32")).values():
        assert logits.dtype == "float32" and np.isfinite(np.asarray(logits)).all()


def test_products_of_queries_and_maps_are_counted():
    stages = {stage.name: stage.macs for stage in count_stages(tiny(masked=(True, False)))}
    # Before the masked block, which reads no classes, and after the last.
    assert stages["mask_logits"] == 2 * 5 * 8 * 8 * 16
    assert stages["class_head"] == 5 * 16 * 5


def test_wrong_arguments_say_what_to_do():
    with pytest.raises(ValueError, match="Received: 8 and 4"):
        keras_vit.layers.MaskLogits()(np.zeros((1, 2, 8)), np.zeros((1, 3, 3, 4)))
    with pytest.raises(ValueError, match="include_top=False"):
        build_eomt(backbone(pooling="gap", norm_after_pooling=True), 4, num_blocks=2)
    with pytest.raises(ValueError, match="has 3 blocks"):
        build_eomt(backbone(pooling=None), 4, num_blocks=4)
    with pytest.raises(ValueError, match="Build the model for one size"):
        build_eomt(backbone(pooling=None, any_size=True), 4, num_blocks=2)


def test_a_share_of_masked_queries_is_refused(tmp_path):
    network_folder("eomt", tmp_path)
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    arrays["attn_mask_probs"] = np.array([0.5, 1], "float32")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"attn_mask_probs is \[0.5, 1.0\], and must be 0 or 1"):
        keras_vit.from_pretrained(tmp_path)


def test_another_activation_is_refused(tmp_path):
    network_folder("eomt", tmp_path, hidden_act="relu")
    with pytest.raises(ValueError, match="another activation in the heads"):
        keras_vit.from_pretrained(tmp_path)


def test_images_of_another_size_have_resized_positions(tmp_path):
    model = load(tmp_path, input_shape=(96, 64, 3))
    outputs = model(np.zeros((1, 96, 64, 3), "float32"))
    assert outputs["masks_queries_logits"].shape == (1, 10, 24, 16)
    assert np.isfinite(outputs["class_queries_logits"]).all()
