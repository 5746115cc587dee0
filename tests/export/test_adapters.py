"""Several adapters on one backbone in one SavedModel: equal to each model, weights once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.adapters import export_adapters
from keras_vit.models.lora import add_lora, lora_layers, merge_lora
from tests.fixtures import images_for, tiny_config, tiny_vit

CLASSES = {"pets": 3, "birds": 5}


@pytest.fixture(scope="module")
def models():
    """A backbone with two adapters, each with its head."""
    base = tiny_vit(image_size=16, depth=1, width=64, mlp_dim=256)
    adapted = {}
    for seed, (name, classes) in enumerate(CLASSES.items()):
        model = keras_vit.adapt_model(base, classes)
        rng = np.random.default_rng(seed)
        add_lora(model, 1 + seed, "all-linear")
        for layer in lora_layers(model):
            layer.lora_kernel_b.assign(rng.normal(0, 0.2, layer.lora_kernel_b.shape))
        for weight in model.get_layer("head").weights:
            weight.assign(rng.normal(0, 0.2, weight.shape))
        adapted[name] = model
    return adapted


def weight_bytes(version):
    return sum(file.stat().st_size for file in (version / "variables").glob("*.data-*"))


@pytest.mark.slow
def test_each_signature_is_its_model_and_the_backbone_is_there_once(models, tmp_path):
    labels = {"pets": ["cat", "dog", "fish"]}
    reports = export_adapters(models, tmp_path / "saved", labels)
    assert list(reports) == list(CLASSES)
    path = tmp_path / "saved/1"
    loaded = tf.saved_model.load(str(path))
    image = images_for(models["pets"], 1, seed=3).astype("uint8")[0]
    encoded = tf.constant([tf.io.encode_png(image).numpy()])
    outputs = {}
    for name, model in models.items():
        assert reports[name].max_difference < 1e-5 and reports[name].path == path
        outputs[name] = loaded.signatures[name](image_bytes=encoded)
        expected = merge_lora(model)(image[None].astype("float32"))
        np.testing.assert_allclose(outputs[name]["logits"], expected, rtol=0, atol=1e-5)
    assert np.abs(outputs["pets"]["features"] - outputs["birds"]["features"]).max() > 0.1
    assert outputs["pets"]["classes"].numpy()[0, 0] in (b"cat", b"dog", b"fish")
    first = loaded.signatures["serving_default"](image_bytes=encoded)["logits"]
    np.testing.assert_array_equal(first, outputs["pets"]["logits"])

    adapters = sum(
        weight.value.numpy().nbytes
        for model in models.values()
        for weight in model.weights
        if "lora" in weight.path or weight.path.startswith("head")
    )
    backbone = sum(
        weight.value.numpy().nbytes
        for weight in models["pets"].weights
        if "lora" not in weight.path and not weight.path.startswith("head")
    )
    assert weight_bytes(path) < backbone + adapters + 2000 < 2 * backbone


def test_what_shares_no_backbone_is_refused(models, tmp_path):
    other = tiny_vit(seed=9, image_size=16, width=64, mlp_dim=256)
    with pytest.raises(ValueError, match=r"too small: other \(\d+%\)\. Export these with"):
        export_adapters({**models, "other": other}, tmp_path)
    with pytest.raises(ValueError, match="two models or more by names"):
        export_adapters({"pets": models["pets"]}, tmp_path)
    with pytest.raises(ValueError, match=r"labels of \['cats'\]"):
        export_adapters(models, tmp_path, {"cats": ["a"]})
    softmax = keras_vit.build_vit(tiny_config(image_size=16, classifier_activation="softmax"))
    with pytest.raises(ValueError, match=r"ends with softmax\. Export .*merge_lora"):
        export_adapters({**models, "softmax": add_lora(softmax, 2)}, tmp_path)
    assert list(tmp_path.iterdir()) == []
