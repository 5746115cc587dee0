"""The paper's Table 6, and memory that adds up."""

from __future__ import annotations

import dataclasses

import keras
import pytest

from keras_vit.config import replace_fields
from keras_vit.evaluate.compute import (
    device_days,
    peak_flops,
    training_cost,
    training_exaflops,
    training_memory,
    utilization,
)
from keras_vit.evaluate.counting import count_activations, count_macs, count_training_macs
from keras_vit.models.vit import build_vit
from keras_vit.variants import find_config
from tests.fixtures import tiny_config
from tests.workers import python

JFT_IMAGES, JFT_CLASSES = 303e6, 18_291

# Variant, epochs, exaFLOPs in Table 6 of https://arxiv.org/abs/2010.11929, a whole number there.
TABLE_6 = [
    ("vit_b32", 7, 55),
    ("vit_b16", 7, 224),
    ("vit_l32", 7, 196),
    ("vit_l16", 7, 783),
    ("vit_l16", 14, 1567),
    ("vit_h14", 14, 4262),
    ("r50_vit_b32", 7, 106),
    ("r50_vit_b16", 7, 274),
    ("r50_vit_l32", 7, 246),
    ("r50_vit_l16", 14, 1668),
]
# Ours come out 3 to 4 % above the paper's ResNets, all in the same direction.
TABLE_6_RESNETS = [
    ("bit_r50x1", 7, 50),
    ("bit_r50x2", 7, 199),
    ("bit_r101x1", 7, 96),
    ("bit_r152x1", 7, 141),
    ("bit_r152x2", 7, 563),
    ("bit_r152x2", 14, 1126),
    ("bit_r200x3", 14, 3306),
]


def pretraining_exaflops(variant, epochs):
    config = dataclasses.replace(find_config(variant), classes=JFT_CLASSES)
    return training_exaflops(config, epochs * JFT_IMAGES)


@pytest.mark.parametrize(("variant", "epochs", "published"), TABLE_6)
def test_exaflops_of_the_papers_vits_and_hybrids(variant, epochs, published):
    assert pretraining_exaflops(variant, epochs) == pytest.approx(published, rel=0.02)


# Six operations for every multiply-accumulate forward, as if the images had a gradient too: what
# others computed, and with it B/32 is 2.3 % above the paper.
SIMPLE_RULE = [56.3, 223.7, 195.9, 783.6, 1567.1, 4258.6, 107.8, 274.2, 247.3, 1668.6]


@pytest.mark.parametrize(("row", "simple"), list(zip(TABLE_6, SIMPLE_RULE, strict=True)))
def test_three_times_the_forward_pass_would_count_a_gradient_of_the_images(row, simple):
    variant, epochs, _ = row
    config = dataclasses.replace(find_config(variant), classes=JFT_CLASSES)
    assert 6e-18 * count_macs(config) * epochs * JFT_IMAGES == pytest.approx(simple, abs=0.05)
    assert pretraining_exaflops(variant, epochs) < simple


@pytest.mark.parametrize(("variant", "epochs", "published"), TABLE_6_RESNETS)
def test_exaflops_of_the_papers_resnets(variant, epochs, published):
    assert 1.03 < pretraining_exaflops(variant, epochs) / published < 1.04


def test_the_row_of_table_6_that_contradicts_another():
    # R50+L/16 has 859 for 7 epochs and 1668 for 14, which are twice 834.
    ours = pretraining_exaflops("r50_vit_l16", 7)
    assert ours == pytest.approx(1668 / 2, rel=0.001)
    assert ours < 0.98 * 859


def test_device_days_and_utilization_are_inverse():
    exaflops = pretraining_exaflops("vit_h14", 14)
    # 2.5 thousand TPUv3-core-days in Table 2 of the paper: a third of the peak.
    share = device_days(exaflops, "tpu_v3_core") / 2500
    assert share == pytest.approx(0.32, abs=0.005)
    assert device_days(exaflops, "tpu_v3_core", share) == pytest.approx(2500)
    config = dataclasses.replace(find_config("vit_h14"), classes=JFT_CLASSES)
    speed = 14 * JFT_IMAGES / (2500 * 86_400)
    assert utilization(config, speed, 61.5e12) == pytest.approx(share)
    forward = count_macs(config) / count_training_macs(config)  # a third and a little
    inference = utilization(config, speed, 61.5e12, training=False)
    assert inference == pytest.approx(share * forward)
    assert utilization(config, 1, 2 * count_macs(config), training=False) == 1


def test_cost_of_a_recipe_by_epochs_and_by_steps():
    config = dataclasses.replace(find_config("vit_h14"), classes=JFT_CLASSES)
    by_epochs = training_cost(config, "tpu_v3_core", 0.32, images=303_000_000, epochs=14)
    assert by_epochs.images_seen == 14 * JFT_IMAGES
    assert by_epochs.exaflops == pretraining_exaflops("vit_h14", 14)
    assert by_epochs.device_days == device_days(by_epochs.exaflops, 61.5e12, 0.32)
    assert by_epochs.days_on(256) == by_epochs.device_days / 256
    by_steps = training_cost(config, "tpu_v3_core", 0.32, steps=1_035_645, batch_size=4096)
    assert by_steps.exaflops == pytest.approx(by_epochs.exaflops, rel=1e-6)
    part = training_cost(config, 61.5e12, 0.32, images=303_000_000, epochs=0.5)
    assert part.exaflops == pytest.approx(by_epochs.exaflops / 28)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"images": 10},
        {"images": 10, "epochs": 0},
        {"images": 10, "epochs": 2, "batch_size": 4},
        {"images": 10, "epochs": 2, "steps": 5, "batch_size": 4},
        {"epochs": 2, "batch_size": 4},
    ],
)
def test_a_recipe_has_epochs_or_steps(numbers):
    with pytest.raises(ValueError, match="`images` and `epochs`, or `steps` and `batch_size`"):
        training_cost(find_config("vit_ti16"), "a100", 0.4, **numbers)


def test_unknown_devices_and_shares_are_errors():
    with pytest.raises(ValueError, match=r"no device 'a1000'. Did you mean 'a100'"):
        peak_flops("a1000")
    with pytest.raises(ValueError, match=r"`utilization` must be in \(0, 1\]"):
        device_days(1, "a100", 0)


def test_memory_has_its_parts():
    config = find_config("vit_ti16")
    memory = training_memory(config, batch_size=8)
    assert memory.weights == memory.gradients == 4 * 5_717_416
    assert memory.optimizer == 2 * memory.weights
    assert memory.activations == 4 * 8 * count_activations(config)
    # At the worst moment there is the gradient of the head alone, or of it and a little more.
    assert memory.activations < memory.step < memory.activations + memory.gradients
    assert memory.total == 3 * memory.weights + memory.step
    half = training_memory(config, 8, optimizer_slots=1, bytes_per_activation=2)
    assert half.activations * 2 == memory.activations and half.optimizer == memory.weights


def test_rematerialized_activations_are_those_of_one_block_and_inputs():
    config = find_config("vit_ti16")
    memory = training_memory(config, 8)
    rematerialized = training_memory(config, 8, rematerialize=True)
    assert rematerialized.activations == 4 * 8 * count_activations(config, rematerialize=True)
    assert rematerialized.activations < memory.activations / 4
    assert rematerialized.step < memory.step / 2


def test_memory_follows_the_configuration():
    config = find_config("vit_ti16")
    again = replace_fields(config, rematerialize=True)
    assert training_memory(again, 8) == training_memory(config, 8, rematerialize=True)
    assert training_memory(again, 8, rematerialize=False) == training_memory(config, 8)


def test_memory_follows_the_blocks_of_a_model_around_a_backbone():
    memory = []
    for rematerialize in (False, True):
        backbone = build_vit(tiny_config(classes=None, rematerialize=rematerialize))
        model = keras.Model(backbone.input, keras.layers.Dense(3)(backbone.output))
        memory.append(training_memory(model, 8))
        assert training_memory(model, 8, rematerialize=rematerialize) == memory[-1]
    assert memory[1].activations < memory[0].activations


def test_gradients_outlast_few_activations():
    config = dataclasses.replace(find_config("vit_b16"), image_size=32)
    memory = training_memory(config, 1)
    assert memory.gradients < memory.step < 1.05 * memory.gradients


COMPILED = """
import sys
sys.path.insert(0, "benchmarks")
from training_memory import compiled_memory
from keras_vit.config import ResNetConfig
from keras_vit.evaluate.compute import training_memory
from keras_vit.models.resnet import build_resnet
from keras_vit.segmentation.model import build_segmenter
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

size = {"width": 64, "num_heads": 4, "mlp_dim": 256, "depth": 4, "patch_size": 4}
configs = [tiny_config(**size), tiny_config(**size, gelu="exact", image_size=(48, 32))]
configs.append(ResNetConfig(stages=(1, 1), image_size=64, classes=4))
models = []
for config in configs:
    model = (build_resnet if isinstance(config, ResNetConfig) else build_vit)(config)
    models.append((model, config))
backbone = build_vit(tiny_config(**size, image_size=(32, 48), classes=None))
for head, classes in (("linear", 40), ("mlp", 5), ("dpt", 5)):
    models.append((build_segmenter(backbone, classes, head, channels=32),) * 2)
for model, config in models:
    state, step = compiled_memory(model, 16)
    estimate = training_memory(config, 16)
    print((estimate.weights + estimate.optimizer) / state)
    print(estimate.step / step)
"""


@pytest.mark.slow
def test_memory_is_about_what_xla_says_of_a_compiled_step():
    pytest.importorskip("jax")
    ratios = list(map(float, python("-c", COMPILED, JAX_PLATFORMS="cpu").split()))
    assert len(ratios) == 12
    assert ratios[::2] == pytest.approx([1] * 6, abs=0.02)
    assert ratios[1::2] == pytest.approx([1] * 6, abs=0.2), ratios
