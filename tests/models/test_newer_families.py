"""Each newer family through what comes after loading: few-shot, LoRA, sizes, rollout, replicas."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.analysis.attention import attention_rollout
from keras_vit.config import replace_fields
from keras_vit.create import build
from keras_vit.evaluate.few_shot import evaluate_few_shot
from keras_vit.models.lora import add_lora, lora_layers, merge_lora
from keras_vit.models.resizing import resize_model
from keras_vit.models.vit import build_vit
from keras_vit.variants import VARIANTS
from tests import workers
from tests.checks import quick
from tests.fixtures import fill_random, images_for, numpy
from tests.test_variants import NEWER

CLASSES = 3
SMALL = {
    "patch_size": 8, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": 32,
    "classes": CLASSES,
}  # fmt: skip
# What `ViTConfig` says of merged tokens; the others merge.
ROTARY = "Rotary positions need every patch"
RELATIVE = "Relative positions need every patch"
FAMILIES = {
    "clip_b16": None,
    "dinov2_giant14": None,
    "dinov3_s16": ROTARY,
    "dinov3_splus16": ROTARY,
    "eva02_ti14": ROTARY,
    "eva02_b14": ROTARY,
    "pe_core_b16": ROTARY,
    "pe_core_gigantic14": ROTARY,
    "pe_lang_l14": ROTARY,
    "pe_spatial_b16": ROTARY,
    "aimv2_l14": None,
    "vit5_s16": ROTARY,
    "beit_b16": RELATIVE,
    "beitv2_b16": RELATIVE,
}


# Each is compiled twice, which takes a minute.
REPLICAS = ("pe_spatial_b16", "dinov3_splus16", "clip_b16", "vit5_s16", "beitv2_b16", "aimv2_l14")


def config_of(family, **changes):
    return replace_fields(VARIANTS[family], **SMALL, **changes)


def filled(family):
    model = build(config_of(family))
    fill_random(model)
    return model


def test_every_newer_family_is_here():
    others = [name for name in NEWER if not VARIANTS[name].takes_patches]
    assert {name.rpartition("_")[0] for name in FAMILIES} == {
        name.rpartition("_")[0]
        for name in others  # tests/weights/test_naflex.py has the rest
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_few_shot_rollout_sizes_and_low_rank_updates(family):
    model = filled(family)
    images = images_for(model, count=6)
    outputs = numpy(model(images))
    labels = np.arange(6) % CLASSES
    accuracy = evaluate_few_shot(model, (images, labels), (images, labels), shots=(2,))
    # On the images it has seen; lambda = 1024 leaves little more than the means of classes.
    assert accuracy[2][0] == (5 / 6 if family == "vit5_s16" else 1.0)
    rollout = attention_rollout(model, images)
    assert rollout.shape == (6, 4, 4) and rollout.min() > 0
    assert rollout.sum(axis=(1, 2)).max() <= 1 + 1e-5
    same = numpy(resize_model(model, 32)(images))
    np.testing.assert_allclose(same, outputs, rtol=0, atol=1e-5 * np.abs(outputs).max())
    larger = resize_model(model, (48, 32))
    assert np.isfinite(numpy(larger(images_for(larger)))).all()
    updated = add_lora(model, 2)
    assert len(lora_layers(updated)) == 2
    np.testing.assert_allclose(numpy(updated(images)), outputs, rtol=0, atol=1e-5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    updated.compile(keras.optimizers.SGD(1e-2), loss)
    updated.fit(images, labels, epochs=2, batch_size=6, verbose=0)
    trained = numpy(updated(images))
    assert np.abs(trained - outputs).max() > 1e-3
    merged = numpy(merge_lora(updated)(images))
    np.testing.assert_allclose(merged, trained, rtol=0, atol=1e-5 * np.abs(trained).max())


@pytest.mark.parametrize("family", quick([*FAMILIES], *(f for f in FAMILIES if FAMILIES[f])))
def test_tokens_are_merged_or_it_is_said_why_not(family):
    if FAMILIES[family] is not None:
        with pytest.raises(ValueError, match=FAMILIES[family]):
            config_of(family, num_merged_tokens=2)
        return
    model = filled(family)
    merging = build_vit(config_of(family, num_merged_tokens=2))
    merging.set_weights(model.get_weights())
    images = images_for(model)
    merged, outputs = numpy(merging(images)), numpy(model(images))
    assert np.isfinite(merged).all() and np.abs(merged - outputs).max() > 1e-4


def train_two_replicas():
    """Trains families as one replica and as two, both compiled by XLA."""
    workers.use_two_cpus()
    import tensorflow as tf

    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # a second one would not train
    for family in REPLICAS:
        ends = []
        for strategy in (tf.distribute.OneDeviceStrategy("CPU:0"), mirrored):
            with strategy.scope():
                model = build(dataclasses.replace(config_of(family), depth=1))
                fill_random(model, stddev=0.05)
                start = model.get_weights()
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(keras.optimizers.SGD(0.05), loss, jit_compile=True)
            model.fit(images_for(model), np.arange(4) % CLASSES, batch_size=4, epochs=2, verbose=0)
            ends.append(model.get_weights())
        one, two = ends
        moved = max(np.abs(a - b).max() for a, b in zip(one, start, strict=True))
        apart = max(np.abs(a - b).max() for a, b in zip(one, two, strict=True))
        print(family, moved > 1e-3, apart < 1e-3 * moved)


@pytest.mark.slow
def test_two_replicas_under_xla_train_as_one_does():
    printed = workers.run("tests.models.test_newer_families", "train_two_replicas")
    lines = [line for line in printed.splitlines() if line.startswith(REPLICAS)]
    assert lines == [f"{family} True True" for family in REPLICAS]
