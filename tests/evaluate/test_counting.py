"""Counts against the models themselves, TensorFlow's graph, and published tables."""

from __future__ import annotations

import dataclasses
import functools
import math

import keras
import numpy as np
import pytest

from keras_vit.config import (
    GRID_ATTENTIONS,
    ResNetConfig,
    ResNetStem,
    RotaryPositions,
    replace_fields,
)
from keras_vit.evaluate.compute import training_memory
from keras_vit.evaluate.counting import (
    count_activations,
    count_macs,
    count_parameters,
    count_stages,
    count_training_macs,
    describe_macs,
)
from keras_vit.image_gpt.model import IMAGE_GPT_SIZES, ImageGPTConfig, build_image_gpt
from keras_vit.models.pyramid import PyramidModel, build_pyramid
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.runtime.model import Model
from keras_vit.runtime.pooled_tokens import pooled_tokens
from keras_vit.segmentation.model import build_segmenter
from keras_vit.variants import find_config
from tests.checks import quick
from tests.fixtures import tiny_config

GRID = {"class_token": False, "pooling": "gap", "post_norm": True, "head_width": 12}
CONFIGS = {
    "token": {},
    "not_square": {"image_size": (32, 48), "patch_size": (8, 16), "channels": 1},
    "head width": {"head_width": 6, "position_embedding": "relative"},
    **{
        kind: {"position_embedding": "none", "grid_attention": kind, **GRID}
        for kind in GRID_ATTENTIONS
    },
    "registers": {"num_registers": 3, "distillation_token": True, "pre_logits": 24},
    "gap": {"pooling": "gap", "class_token": False, "norm_after_pooling": True},
    "map": {"pooling": "map", "class_token": False, "position_embedding": "learned_2d"},
    "attention": {"pooling": "attention", "class_token": False},
    "pe_core": {"pooling": "map", "map_heads": 2, "map_mlp_dim": 24},
    "pe_spatial": {"pooling": "gap", "norm_after_blocks": False, "norm_before_blocks": True},
    "merged": {"num_merged_tokens": 3, "num_registers": 2, "pooling": "map"},
    "relative": {"position_embedding": "relative", "qk_norm": True, "layer_scale": 0.1},
    "beit": {"position_embedding": "relative_bias", "without_bias": ("key",)},
    "clip": {"norm_before_blocks": True, "without_bias": ("patch",), "head_bias": None},
    "eva02": {
        "swiglu": True,
        "inner_norms": ("attention", "mlp"),
        "without_bias": ("key", "mlp"),
        "rope": RotaryPositions(),
    },
    "aimv2": {"norm": "rms", "norm_patches": True, "without_bias": ("value", "projection")},
    "no_head": {"classes": None, "pooling": None, "position_embedding": "sincos_2d"},
    "every_token": {"pooling": None, "position_on_class_token": False},
    "hybrid_root": {"stem": ResNetStem(), "patch_size": 2},
    "hybrid": {"stem": ResNetStem((1, 2)), "patch_size": 1, "image_size": (40, 56)},
}
RESNETS = {
    "bit": {"stages": (1, 2, 1)},
    "bit_wide": {"stages": (2, 1), "width_factor": 2, "classes": None, "image_size": (36, 50)},
}


# The backbone, and the head on it; a pyramid of the backbone where that is the head.
DENSE = {
    "linear": ({"depth": 4, "image_size": (32, 48)}, {"head": "linear", "blocks": "even"}),
    "mlp": ({"depth": 4, "image_size": (32, 48)}, {"head": "mlp", "channels": 8}),
    "dpt": ({"depth": 4, "image_size": (32, 48)}, {"head": "dpt", "channels": 8}),
    "pyramid": ({"depth": 1, "image_size": 64}, None),
    "hybrid_mlp": (
        {"stem": ResNetStem((1, 2)), "patch_size": 1, "image_size": 64},
        {"head": "mlp", "blocks": ["stem_stage_1", "block_1"]},
    ),
    "bit_mlp": ({"stages": (1, 1, 1, 1), "image_size": 64}, {"head": "mlp"}),
}


@functools.cache
def build_dense(name):
    changes, head = DENSE[name]
    if "stages" in changes:
        backbone = build_resnet(ResNetConfig(classes=None, pooling=None, **changes))
    else:
        backbone = build_vit(tiny_config(classes=None, pooling=None, **changes))
    if head is None:
        return backbone, build_pyramid(backbone, channels=8)
    return backbone, build_segmenter(backbone, 5, **head)


@functools.cache
def build(name):
    if name in RESNETS:
        return build_resnet(ResNetConfig(**{"image_size": 64, "classes": 5, **RESNETS[name]}))
    return build_vit(tiny_config(**CONFIGS[name]))


every_model = pytest.mark.parametrize("name", [*CONFIGS, *RESNETS])


def graph_macs(model):
    """Multiply-accumulates of the products in TensorFlow's own graph of a forward pass.

    Of all tokens, as a `keras.Model` computes them.
    """
    return computed_macs(keras.Model(model.inputs, model.outputs))


def computed_macs(model):
    """Multiply-accumulates of the products in the graph of the model as it is."""
    tf = pytest.importorskip("tensorflow")
    spec = tf.TensorSpec((1, *model.input_shape[1:]))
    function = tf.function(lambda x: model(x, training=False))
    return count_products(function.get_concrete_function(spec).graph)


def training_graph_macs(model):
    """Multiply-accumulates of the products in TensorFlow's graph of outputs and gradients."""
    tf = pytest.importorskip("tensorflow")
    whole = keras.Model(model.inputs, model.outputs)

    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(whole(images, training=True))
        variables = [variable.value for variable in model.trainable_variables]
        return loss, tape.gradient(loss, variables)

    spec = tf.TensorSpec((1, *model.input_shape[1:]))
    return count_products(tf.function(step).get_concrete_function(spec).graph)


def count_products(graph):
    """Multiply-accumulates of what leads to the outputs: TensorFlow leaves out the rest."""
    total, found, waiting = 0, set(), [tensor.op for tensor in graph.outputs]
    while waiting:
        operation = waiting.pop()
        if operation in found:
            continue
        found.add(operation)
        waiting.extend(tensor.op for tensor in operation.inputs)
        if operation.type in ("MatMul", "BatchMatMulV2"):
            axis = -2 if operation.get_attr(_transpose_a(operation)) else -1
            total += operation.inputs[0].shape[axis] * _size(operation.outputs[0])
        elif "Conv2d" in operation.type or "Conv2D" in operation.type:
            total += _convolution(operation)
    return total


def _convolution(operation):
    """A convolution, and its two gradients, which multiply as often."""
    if operation.type.endswith("BackpropInput"):
        kernel, maps = operation.inputs[1].shape, operation.inputs[2]
    elif operation.type.endswith("BackpropFilter"):
        kernel, maps = operation.outputs[0].shape, operation.inputs[2]
    else:
        kernel, maps = operation.inputs[1].shape, operation.outputs[0]
    channels = 1 if operation.type.startswith("Depthwise") else kernel[2]
    return kernel[0] * kernel[1] * channels * _size(maps)


def _transpose_a(operation):
    return "transpose_a" if operation.type == "MatMul" else "adj_x"


def _size(tensor):
    """Elements of a tensor; reshapes leave the batch of 1 open in its shape."""
    return math.prod(side or 1 for side in tensor.shape.as_list())


@every_model
def test_parameters_are_those_of_the_model_layer_by_layer(name):
    model = build(name)
    stages = count_stages(model)
    assert count_parameters(model) == model.count_params()
    for stage in stages:
        assert stage.parameters == model.get_layer(stage.name).count_params(), stage.name


@pytest.mark.parametrize("name", CONFIGS)
def test_last_blocks_are_counted_as_the_model_runs_them(name):
    model = build(name)
    flat = Model(model.inputs[0], keras.layers.Identity()(model.output))  # counted by its layers
    stages = {stage.name: stage.activations for stage in count_stages(model)}
    counted = {stage.name: stage.activations for stage in count_stages(flat)}
    assert counted["block_1"] == stages["block_1"]
    is_short = bool(pooled_tokens(model)) or name == "merged"
    assert (stages["block_1"] < stages["block_0"]) == is_short


@every_model
def test_blocks_and_stages_can_be_computed_again_from_their_inputs(name):
    model = build(name)
    for stage in count_stages(model):
        tokens = keras.tree.flatten(model.get_layer(stage.name).input)[0]
        assert stage.inputs == math.prod(tokens.shape[1:]) * bool(stage.inputs)
    blocks = [stage for stage in count_stages(model) if stage.inputs]
    saved = sum(b.activations - b.inputs for b in blocks) - max(b.activations for b in blocks)
    assert count_activations(model) - count_activations(model, rematerialize=True) == saved


# Published sizes at 224 pixels and 1000 classes, and multiply-accumulates at 224 and 384 (patches
# of 14 pixels: 378, of which 384 pixels are 27 patches and a rest).
TABLE = {
    "vit_ti16": (5_717_416, 1.254, 4.682),
    "vit_s32": (22_878_952, 1.143, 3.443),
    "vit_s16": (22_050_664, 4.599, 15.490),
    "vit_b32": (88_224_232, 4.409, 13.044),
    "vit_b16": (86_567_656, 17.564, 55.484),
    "vit_b8": (86_576_872, 78.148, 294.045),
    "vit_l32": (306_535_400, 15.378, 45.276),
    "vit_l16": (304_326_632, 61.555, 191.066),
    "vit_h14": (632_045_800, 167.295, 503.481),
    "vit_giant14": (1_012_611_432, 267.031, 797.387),
    "vit_gigantic14": (1_844_440_680, 483.748, 1429.226),
    "r_vit_ti16": (6_337_704, 0.434, 1.327),
    "r26_vit_s32": (36_431_912, 3.464, 10.264),
    "r26_vit_b32": (101_383_976, 6.711, 19.808),
    "r50_vit_b16": (98_659_112, 21.535, 67.156),
    "r50_vit_l32": (328_994_856, 19.413, 57.136),
    "bit_r50x1": (25_549_352, 4.089, 16.351),  # the larger images have 448 pixels
    "bit_r50x3": (217_319_080, 36.082, 144.311),
    "bit_r101x1": (44_541_480, 7.801, 31.199),
    "bit_r101x3": (387_934_888, 69.492, 277.951),
    "bit_r152x2": (236_335_208, 45.814, 183.245),
    "bit_r152x4": (936_533_224, 182.777, 731.085),
}


@pytest.mark.parametrize("variant", TABLE)
def test_variants_cost_what_is_published(variant):
    parameters, at_224, larger = TABLE[variant]
    config = find_config(variant)
    side = 448 if variant.startswith("bit") else 378 if variant.endswith("14") else 384
    assert count_parameters(config) == parameters
    assert f"{count_macs(config) / 1e9:.3f}" == f"{at_224:.3f}"
    larger_config = dataclasses.replace(config, image_size=side)
    assert f"{count_macs(larger_config) / 1e9:.3f}" == f"{larger:.3f}"


@every_model
def test_macs_are_those_of_the_graph(name):
    model = build(name)
    assert count_macs(model) == graph_macs(model)
    assert count_macs(model, as_computed=True) == computed_macs(model)


def test_what_a_user_reads_says_which_tokens_count():
    stages = count_stages(find_config("vit_b16"))
    assert describe_macs(stages) == (
        "17.6 billion multiply-accumulates for an image, as published tables count; 16.5 billion "
        "are computed: the last block for pooled tokens alone"
    )
    model = build("token")
    assert count_macs(model, as_computed=True) < count_macs(model)
    whole = dataclasses.replace(find_config("vit_b16"), pooling="gap")
    assert describe_macs(count_stages(whole)).endswith("billion multiply-accumulates for an image")


@pytest.mark.parametrize("name", quick([*CONFIGS, *RESNETS], "token", "hybrid", "merged"))
def test_training_macs_are_those_of_the_graph_with_gradients(name):
    model = build(name)
    assert count_training_macs(model) == training_graph_macs(model)
    first = next(stage for stage in count_stages(model) if stage.macs)
    assert first.name in ("patch_encoder", "stem_root", "root")  # no gradient of the images
    constant = sum(stage.constant_macs for stage in count_stages(model))
    assert count_training_macs(model) == 3 * count_macs(model) - first.macs - constant
    assert (constant > 0) == (name == "merged")


def test_models_of_the_users_are_counted_by_their_layers():
    backbone = build_vit(tiny_config(classes=None, num_registers=2, position_embedding="relative"))
    x = keras.Input((32, 32, 3))
    model = Model(x, keras.layers.Dense(7, name="mine")(backbone(x)))
    assert count_parameters(model) == model.count_params()
    assert count_macs(model) == graph_macs(backbone) + 32 * 7
    assert count_macs(model, as_computed=True) == computed_macs(model)
    flat = Model(backbone.input, keras.layers.Dense(7, name="mine")(backbone.output))
    assert count_macs(flat) == count_macs(model)
    merging = build("merged")
    flat = Model(merging.input, keras.layers.Dense(7, name="mine")(merging.output))
    assert count_macs(flat) == graph_macs(flat) == count_macs(merging) + 10 * 7


@pytest.mark.parametrize("merged", [0, 3])
def test_patches_that_training_leaves_out_are_counted_for_inference_alone(merged):
    """In a graph of `training=True`, from the configuration and from the layers."""
    options = {"pooling": "map", "norm_before_blocks": True, "num_merged_tokens": merged}
    model = build_vit(tiny_config(patch_dropout_rate=0.6, num_registers=2, **options))
    flat = Model(model.input, keras.layers.Dense(5, name="mine")(model.output))
    for each in (model, flat):
        assert count_macs(each) == graph_macs(each)
        assert count_training_macs(each) == training_graph_macs(each)
    stages = {stage.name: stage for stage in count_stages(flat, training=True)}
    for stage in count_stages(model, training=True):
        assert stage == stages[stage.name] or not stage.name.startswith("block")
    whole = dataclasses.replace(model.config, patch_dropout_rate=0.0)
    assert training_memory(model, 8).activations < training_memory(whole, 8).activations


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_are_counted_with_their_heads(name):
    backbone, model = build_dense(name)
    assert count_parameters(model) == model.count_params()
    assert count_macs(model) == graph_macs(model)
    stages = {stage.name: stage for stage in count_stages(model)}
    for stage in count_stages(backbone):  # from the configuration
        counted = stages[stage.name]
        assert (counted.parameters, counted.macs) == (stage.parameters, stage.macs)
        if "block" in stage.name or "stage" in stage.name:
            assert counted == stage


@pytest.mark.parametrize("name", quick(list(DENSE), "linear", "pyramid"))
def test_training_macs_of_dense_models_are_those_of_the_graph(name):
    _, model = build_dense(name)
    if isinstance(model, PyramidModel):
        model = Model(model.input, keras.layers.Concatenate()(
            [keras.layers.GlobalAveragePooling2D()(x) for x in model.pyramid_outputs.values()]
        ))  # fmt: skip
    assert count_training_macs(model) == training_graph_macs(model)


def test_logits_at_the_size_of_the_image_are_counted():
    backbone = build_vit(tiny_config(classes=None, image_size=64))
    few, many = (build_segmenter(backbone, classes) for classes in (1, 151))
    pixels = 150 * 64 * 64  # of 150 classes more
    assert count_activations(many) - count_activations(few) == 2 * pixels  # and probabilities
    before, after = (training_memory(model, 1, bytes_per_activation=2) for model in (few, many))
    assert after.activations - before.activations == 4 * 2 * pixels  # float32
    assert after.step > after.activations + 4 * pixels  # their gradient


def test_shared_models_and_layers_are_counted_for_each_call():
    inputs = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    encoder = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)], name="encoder")
    after = keras.layers.Conv2D(2, 1, name="after")
    model = keras.Model(inputs, [after(encoder(x)) for x in inputs])
    once = keras.Model(inputs[0], model.outputs[0])
    assert count_macs(model) == 2 * count_macs(once) and count_macs(once) > 0
    assert count_activations(model) == 2 * count_activations(once)
    assert count_parameters(model) == count_parameters(once) == model.count_params()


@pytest.mark.slow
def test_an_efficientnet_is_counted_by_its_layers():
    model = keras.applications.EfficientNetB0(weights=None, input_shape=(64, 64, 3), classes=10)
    assert count_parameters(model) == model.count_params()
    assert count_macs(model) == graph_macs(model)
    assert count_training_macs(model) == training_graph_macs(model)
    published = keras.applications.EfficientNetB0(weights=None)
    assert count_macs(published) == pytest.approx(0.39e9, rel=0.02)  # its paper's Table 2


def test_what_cannot_be_counted_is_an_error():
    with pytest.raises(ValueError, match="Pass a ViTConfig"):
        count_macs("vit_b16")
    with pytest.raises(ValueError, match="image_size=None"):
        count_macs(ResNetConfig(stages=(1,), image_size=None))
    x = keras.Input((8, 4))
    model = keras.Model(x, keras.layers.LSTM(3, name="memory")(x))
    with pytest.raises(ValueError, match="layer 'memory': type LSTM is not"):
        count_macs(model)
    x = keras.Input((None, None, 3))
    model = keras.Model(x, keras.layers.Conv2D(3, 2, name="open")(x))
    with pytest.raises(ValueError, match="open in layer 'open'"):
        count_macs(model)


def test_image_gpt_is_counted_as_its_graph_and_the_published_sizes():
    config = ImageGPTConfig(16, 2, 2, image_size=(4, 6), colors=12)
    model = build_image_gpt(config, np.zeros((12, 3)))
    assert count_macs(config) == count_macs(model) == graph_macs(model)
    assert count_parameters(config) == count_parameters(model) == model.count_params()
    millions = {name: count_parameters(size) / 1e6 for name, size in IMAGE_GPT_SIZES.items()}
    assert {name: int(x) for name, x in millions.items()} == {"S": 76, "M": 455, "L": 1362}
    again = replace_fields(config, rematerialize=True)
    recomputed = build_image_gpt(again, np.zeros((12, 3)))
    assert training_memory(recomputed, 8).step < training_memory(model, 8).step
    small = training_memory(dataclasses.replace(IMAGE_GPT_SIZES["S"], rematerialize=True), 8).total
    assert small < 0.2 * training_memory(IMAGE_GPT_SIZES["S"], 8).total
