"""Files of timm and transformers: their outputs, and the same file written back, without torch.

`tests/golden/torch_outputs.json` has names, shapes and outputs of their small models, made by
`scripts/golden/make_torch.py`; the weights follow a formula.
"""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import keras_vit
from keras_vit.__main__ import main
from keras_vit.config import ResNetConfig, ResNetStem, field_value
from keras_vit.create import build, create_model
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.pretrained import from_pretrained
from keras_vit.variants import find_config
from keras_vit.weights.inspection import adapt_config, inspect_file
from keras_vit.weights.load import load_weights
from keras_vit.weights.matching import Plan
from keras_vit.weights.save import save_weights
from scripts.golden.eval_cases import is_scale, values
from tests.fixtures import numpy, tiny_config
from tests.official import GOLDEN, golden_images

CASES = json.loads((GOLDEN / "torch_outputs.json").read_text())
# Names of timm whose settings no array tells: written as the `config.json` of the file.
NAMES = {
    "timm clip": "vit_base_patch16_clip_224",
    "timm quick clip": "vit_base_patch16_clip_quickgelu_224",
    "timm dinov3": "vit_small_patch16_dinov3",
    "timm biased dinov3": "vit_small_patch16_dinov3_qkvb",
    "timm gated dinov3": "vit_small_plus_patch16_dinov3_qkvb",
    "timm eva02": "eva02_tiny_patch14_224",
    "timm split eva02": "eva02_base_patch14_224",
    "timm eva02 clip": "eva02_base_patch16_clip_224",
    "timm perception": "vit_pe_core_base_patch16_224",
    "timm language perception": "vit_pe_lang_large_patch14_448",
    "timm gigantic perception": "vit_pe_core_gigantic_patch14_448",
    "timm aimv2": "aimv2_large_patch14_224",
    "timm beit": "beit_base_patch16_224",
}
STEMS = {
    "timm root": (4, ResNetStem()),
    "timm hybrid": (1, ResNetStem(stages=(1, 2))),
    "transformers hybrid": (1, ResNetStem(stages=(1, 2))),
}


def weights(shapes):
    arrays = {}
    for position, (name, shape) in enumerate(sorted(shapes.items())):
        arrays[name] = values(tuple(shape), position, is_scale(name, shape))
        if name.endswith("freqs"):  # of the rotary positions of ViT-5
            base = 100 if "rope_reg" in name else 10_000
            i = np.arange(np.prod(shape), dtype="int64")
            arrays[name] = (base ** -(i / len(i))).astype("float32").reshape(shape)
    return arrays


@pytest.fixture
def save(tmp_path):
    def save(arrays, name="model.safetensors"):
        safetensors.numpy.save_file(arrays, tmp_path / name)
        return tmp_path / name

    return save


def classes_of(title):
    """Outputs of the head, or `None` where the outputs are features."""
    return 5 if np.shape(CASES[title]["outputs"])[-1] == 5 else None


def name_file(title, path):
    if title in NAMES:
        config = {"architecture": NAMES[title], "model_args": {"num_heads": 4}}
        path.with_name("config.json").write_text(json.dumps(config))


def make(title, path):
    """Our model for a case, as the file asks for it."""
    name_file(title, path)
    size = CASES[title]["size"]
    changes = {"classes": classes_of(title), "include_preprocessing": False}
    if title.endswith("bit"):
        config = ResNetConfig(stages=(1, 2), image_size=size, **changes)
    else:
        patch, stem = STEMS.get(title, (8, None))
        hidden = inspect_file(path).sizes["mlp_dim"]
        config = tiny_config(
            image_size=size, patch_size=patch, stem=stem, mlp_dim=hidden, **changes
        )
    return build(adapt_config(config, inspect_file(path)))


@pytest.mark.parametrize("title", CASES)
def test_outputs_are_theirs_and_the_file_comes_back(title, save, tmp_path):
    arrays = weights(CASES[title]["shapes"])
    path = save(arrays)
    model = make(title, path)
    report = load_weights(model, path)
    assert {w.path for w in model.weights} == set(report.loaded)
    assert not report.differs
    expected = np.array(CASES[title]["outputs"])
    outputs = numpy(model(golden_images(CASES[title]["size"])))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    back = save_weights(model, tmp_path / "back.safetensors", title.split()[0])
    written = safetensors.numpy.load_file(back)
    prefix = {"transformers siglip": "vision_model."}.get(title, "")
    if title == "transformers mae":  # the encoder of a file with a decoder is called vit
        prefix = "vit."
    for name in [name for name in arrays if name.endswith("mask_token")]:
        arrays[name] = np.zeros_like(arrays[name])
    assert {prefix + name for name in arrays} == set(written)
    for name, array in arrays.items():
        np.testing.assert_array_equal(written[prefix + name], array, err_msg=name)


def wrap(arrays, prefix):
    return {f"{prefix}{name}": array for name, array in arrays.items()}


PREFIXES = (
    "module.", "model.", "backbone.", "_orig_mod.", "student.", "teacher.backbone.",
    "visual.trunk.", "base_model.model.", "module.backbone.", "state_dict.net.", "model._orig_mod.",
)  # fmt: skip
LAYOUT_CASES = [
    "timm vit", "timm hybrid", "timm bit", "timm dinov3", "transformers vit", "transformers mae",
    "transformers dinov2", "transformers dinov3", "transformers clip", "transformers siglip",
    "transformers beit", "transformers bit", "transformers aimv2",
]  # fmt: skip


@pytest.mark.parametrize("title", [case for case in LAYOUT_CASES if case in CASES])
def test_a_prefix_of_all_names_is_found_and_reported(title, save):
    arrays = weights(CASES[title]["shapes"])
    prefixes = PREFIXES if title in ("timm vit", "transformers vit") else PREFIXES[1:3]
    expected = inspect_file(save(arrays))
    for prefix in prefixes:
        info = inspect_file(save(wrap(arrays, prefix)))
        assert (info.prefix, info.layout) == (prefix, expected.layout)
        assert (info.sizes, info.options) == (expected.sizes, expected.options)
    path = save(wrap(arrays, prefixes[-1]))
    report = load_weights(make(title, path), path)
    assert report.prefix == prefixes[-1]
    assert f"names after '{prefixes[-1]}'" in str(report)


def test_arrays_without_the_prefix_are_left_out_and_named(save, caplog):
    arrays = weights(CASES["timm vit"]["shapes"])
    path = save({**wrap(arrays, "module.backbone."), "module.fc.weight": np.ones((9, 9), "f4")})
    report = load_weights(make("timm vit", path), path)
    assert report.left_out == ("module.fc.weight",)
    assert "names after 'module.backbone.'; these arrays are left out: module.fc.weight" in (
        caplog.text
    )
    del arrays["blocks.1.norm1.weight"]  # its name in the file is that of the message
    path = save(wrap(arrays, "backbone."))
    with pytest.raises(CheckpointMismatchError, match=r"missing: 'backbone\.blocks\.1\.norm1\.w"):
        load_weights(make("timm vit", path), path)


def test_files_of_the_authors_of_mae_and_dinov2_have_the_names_of_timm(save):
    title = next(case for case in CASES if "reg_token" in CASES[case]["shapes"])
    arrays = weights(CASES[title]["shapes"])
    path = save(arrays)
    expected = load_weights(model := make(title, path), path)
    outputs = numpy(model(golden_images(CASES[title]["size"])))
    arrays["register_tokens"] = arrays.pop("reg_token")
    more = {"mask_token": np.zeros((1, 32), "f4"), "decoder_pred.bias": np.zeros(3, "f4")}
    path = save({**wrap(arrays, "model."), **wrap(more, "model.")})
    report = load_weights(model := make(title, path), path)
    assert report.loaded == expected.loaded and set(report.left_out) == set(wrap(more, "model."))
    np.testing.assert_array_equal(model(golden_images(CASES[title]["size"])), outputs)


def test_of_several_models_the_caller_takes_one(save, tmp_path, capsys):
    arrays = weights(CASES["timm vit"]["shapes"])
    half = {name: array / 2 for name, array in arrays.items()}
    path = save({**wrap(arrays, "student.module.backbone."), **wrap(half, "teacher.backbone.")})
    message = r"several models.*'teacher\.backbone\.' or 'student\.module\.backbone\.'.*`prefix`"
    with pytest.raises(CheckpointError, match=message):
        inspect_file(path)
    for prefix in ("teacher.backbone.", "teacher.backbone"):
        model = from_pretrained(path, prefix=prefix, num_heads=4)
        np.testing.assert_array_equal(model.get_layer("encoder_norm").gamma, half["norm.weight"])
        assert len(model.load_report.left_out) == len(arrays)
    sizes = {name: field_value(model.config, name) for name in ("width", "depth", "mlp_dim")}
    sizes.update(patch_size=model.config.patch_size, num_heads=4, prefix="student.module.backbone.")
    same = keras_vit.ViTB16(weights=path, include_top=False, pooling="token", **sizes)
    np.testing.assert_array_equal(same.get_layer("encoder_norm").gamma, arrays["norm.weight"])
    for other in (None, "model.weights.h5"):
        with pytest.raises(ValueError, match=r"names in a checkpoint.*prefix='a\.'.*Leave it out"):
            keras_vit.ViTB16(weights=other, prefix="a.")
    with pytest.raises(CheckpointError, match=r"after the prefix 'ema\.' match no known layout"):
        load_weights(model, path, prefix="ema.")
    load_weights(model, path, prefix="student.module.backbone.")
    np.testing.assert_array_equal(model.get_layer("encoder_norm").gamma, arrays["norm.weight"])
    options = ["--layout", "timm", "--prefix", "teacher.backbone.", "--num-heads", "4"]
    main(["weights", "convert", str(path), str(tmp_path / "out.safetensors"), *options])
    written = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(written["norm.weight"], half["norm.weight"])
    main(["weights", "info", str(path), "--prefix", "teacher.backbone."])
    assert "prefix:" in capsys.readouterr().out


def test_updates_of_peft_are_named(save):
    arrays = wrap(weights(CASES["timm vit"]["shapes"]), "base_model.model.")
    name = "base_model.model.blocks.0.attn.qkv"
    arrays[f"{name}.base_layer.weight"] = arrays.pop(f"{name}.weight")
    arrays[f"{name}.lora_A.weight"] = np.zeros((2, 32), "float32")
    with pytest.raises(CheckpointError, match=r"updates of PEFT.*merge_and_unload"):
        load_weights(build(tiny_config(classes=5)), save(arrays))


def test_a_split_checkpoint_gives_the_model_of_its_folder(save, tmp_path):
    arrays = weights(CASES["transformers vit"]["shapes"])
    parts = {f"model-0000{n}-of-00003.safetensors": sorted(arrays)[n - 1 :: 3] for n in (1, 2, 3)}
    for file, names in parts.items():
        save({name: arrays[name] for name in names}, file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"model_type": "vit", "num_attention_heads": 4, "layer_norm_eps": 1e-3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = tmp_path / "whole.safetensors"
    for path in (tmp_path, tmp_path / file):
        model = from_pretrained(path)
        assert model.config.block.norm_epsilon == 1e-3
        assert load_weights(model, path).path.endswith("index.json")
        main(["weights", "convert", str(path), str(target), "--layout", "transformers"])
        written = safetensors.numpy.load_file(target)
        for name, array in arrays.items():
            np.testing.assert_array_equal(written[name], array)
    main(["weights", "info", str(tmp_path)])


def resized_outputs(title, path):
    """Our outputs and theirs at another size, of a grid that may not be square."""
    name_file(title, path)
    height, width = CASES[title]["resized"]["size"]
    config = tiny_config(
        image_size=(height, width),
        classes=classes_of(title),
        include_preprocessing=False,
    )
    model = build(adapt_config(config, inspect_file(path), {"image_size"}))
    resized = load_weights(model, path).resized
    assert any("position" in path for path in resized) != ("dinov3" in title)
    return numpy(model(golden_images(height, width))), np.array(CASES[title]["resized"]["outputs"])


@pytest.mark.parametrize("title", [title for title in CASES if "resized" in CASES[title]])
def test_outputs_at_another_size_are_theirs(title, save):
    outputs, expected = resized_outputs(title, save(weights(CASES[title]["shapes"])))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("title", [title for title in CASES if "gradient" in CASES[title]])
def test_gradients_are_theirs(title, save):
    """Of a weighted sum of the outputs with respect to the pixels: back through every block."""
    path = save(weights(CASES[title]["shapes"]))
    model = make(title, path)
    load_weights(model, path)
    pixels = tf.constant(golden_images(CASES[title]["size"]))
    with tf.GradientTape() as tape:
        tape.watch(pixels)
        outputs = model(pixels)
        cosines = np.cos(np.arange(np.prod(outputs.shape), dtype="float32"))
        loss = tf.reduce_sum(outputs * cosines.reshape(outputs.shape))
    expected = np.array(CASES[title]["gradient"])
    slope = tape.gradient(loss, pixels).numpy()[:, ::5, ::5]
    np.testing.assert_allclose(slope, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("title", "method"),
    [
        ("timm vit", "bicubic_plain"),
        ("transformers vit", "bicubic"),
        ("timm deit3", "linear"),
        ("timm beit", "bilinear"),
        ("transformers beit", "geometric"),
    ],
)
def test_another_way_of_resizing_would_be_noticed(title, method, save, monkeypatch):
    monkeypatch.setattr(Plan, "resize_method", method)
    outputs, expected = resized_outputs(title, save(weights(CASES[title]["shapes"])))
    assert np.abs(outputs - expected).max() > 2e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("title", "change"),
    [
        ("timm vit", {"gelu": "tanh"}),
        ("transformers vit", {"norm_epsilon": 1e-5}),
        ("timm clip", {"gelu": "quick"}),
        ("timm quick clip", {"gelu": "exact"}),
        ("timm dinov3", {"rope": None}),
        ("timm eva02", {"rope": {"reference_grid": (15, 16)}}),
        ("timm perception", {"map_heads": 4}),
        ("timm language perception", {"rope": {"reference_grid": (32, 32), "order": "wh"}}),
        ("timm vit5", {"rope": {"register_base": None}}),
        ("timm vit5", {"rope": {"register_base": 1000.0}, "num_registers": 4}),
    ],
)
def test_another_gelu_epsilon_or_rotation_would_be_noticed(title, change, save):
    path = save(weights(CASES[title]["shapes"]))
    name_file(title, path)
    config = tiny_config(classes=5, include_preprocessing=False, **change)
    model = build(adapt_config(config, inspect_file(path), chosen=set(change)))
    report = load_weights(model, path)
    assert any(text.startswith(f"{next(iter(change))} is ") for text in report.differs)
    expected = np.array(CASES[title]["outputs"])
    outputs = numpy(model(golden_images(32)))
    assert np.abs(outputs - expected).max() > 4e-5 * np.abs(expected).max()


def test_positions_of_timm_are_resized_bicubically(save):
    path = save(weights(CASES["timm vit"]["shapes"]))
    model = build(tiny_config(image_size=48, classes=5))
    report = load_weights(model, path)
    assert "4 x 4 to 6 x 6 positions (bicubic)" in report.resized["position_embedding/embedding"]


@pytest.mark.parametrize(
    ("title", "method"),
    [
        ("transformers vit", "bicubic_plain"),
        ("transformers siglip", "bicubic_plain"),
        ("transformers dinov2", "bicubic_plain"),
        ("transformers registers", "bicubic"),  # the one that is antialiased there
    ],
)
def test_positions_of_transformers_are_resized_as_its_models_do(title, method, save):
    path = save(weights(CASES[title]["shapes"]))
    info = inspect_file(path)
    headless = {"classes": None, "include_preprocessing": False}
    model = build(adapt_config(tiny_config(image_size=24, **headless), info, {"image_size"}))
    report = load_weights(model, path)
    assert report.resized["position_embedding/embedding"] == f"4 x 4 to 3 x 3 positions ({method})"


def test_files_of_the_papers_project_alone_have_its_dropout(save):
    info, config = inspect_file(save(weights(CASES["timm vit"]["shapes"]))), find_config("vit_l16")
    assert adapt_config(config, info).block.dropout_rate == 0
    assert adapt_config(config, info, {"dropout_rate"}).block.dropout_rate == 0.1
    official = dataclasses.replace(info, project="official")
    assert adapt_config(config, official).block.dropout_rate == 0.1


def test_class_tokens_without_places_are_told_by_the_number_of_rows(save):
    assert inspect_file(save(weights(CASES["timm vit"]["shapes"]))).options[
        "position_on_class_token"
    ]
    path = save(weights(CASES["timm deit3"]["shapes"]), "deit3.safetensors")
    info = inspect_file(path)
    assert not info.options["position_on_class_token"]
    assert info.grid == (4, 4)


def test_another_part_of_the_file_is_left_out_and_named(save):
    arrays = weights(CASES["transformers siglip"]["shapes"])
    arrays = {f"vision_model.{name}": array for name, array in arrays.items()}
    arrays["text_model.embeddings.token_embedding.weight"] = np.zeros((3, 4), "float32")
    arrays["logit_scale"] = np.zeros(1, "float32")
    path = save(arrays)
    model = make("transformers siglip", path)
    report = load_weights(model, path)
    assert set(report.left_out) == {"text_model.embeddings.token_embedding.weight", "logit_scale"}


def test_a_mask_token_is_left_out_and_named(save):
    """Files of models that fill masked patches have one."""
    arrays = weights(CASES["transformers vit"]["shapes"])
    arrays["vit.embeddings.mask_token"] = np.zeros((1, 1, 32), "float32")
    path = save(arrays)
    report = load_weights(make("transformers vit", path), path)
    assert report.left_out == ("vit.embeddings.mask_token",)


def test_a_pooler_is_a_hidden_layer_of_the_head(save):
    arrays = weights(CASES["transformers vit"]["shapes"])
    arrays = {
        name.removeprefix("vit."): array
        for name, array in arrays.items()
        if not name.startswith("classifier")
    }
    arrays["pooler.dense.weight"] = np.ones((32, 32), "float32")
    arrays["pooler.dense.bias"] = np.ones(32, "float32")
    path = save(arrays)
    model = build(tiny_config(classes=5, pre_logits=32))
    report = load_weights(model, path)
    assert {"pre_logits/kernel", "pre_logits/bias"} <= set(report.loaded)
    assert report.fresh == ("head/kernel", "head/bias")
    report = load_weights(build(tiny_config(classes=5)), path)
    assert set(report.left_out) == {"pooler.dense.weight", "pooler.dense.bias"}


def test_sidecar_files_describe_the_preprocessing(save, tmp_path):
    path = save(weights(CASES["timm vit"]["shapes"]))
    fields = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 0.9}
    (tmp_path / "config.json").write_text(
        json.dumps({"pretrained_cfg": {**fields, "interpolation": "bicubic"}})
    )
    preprocessing = inspect_file(path).options["preprocessing"]
    assert preprocessing.mean == pytest.approx((123.675, 116.28, 103.53))
    assert (preprocessing.interpolation, preprocessing.crop_ratio) == ("bicubic", 0.9)
    path = save(weights(CASES["transformers vit"]["shapes"]))
    (tmp_path / "config.json").write_text(
        json.dumps({"hidden_act": "gelu_new", "layer_norm_eps": 1e-5})
    )
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.25, 0.25, 0.25],
                "resample": 3,
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "size": {"shortest_edge": 256},
            }
        )
    )
    options = inspect_file(path).options
    assert (options["gelu"], options["norm_epsilon"]) == ("tanh", 1e-5)
    assert options["preprocessing"].std == (63.75,) * 3
    assert options["preprocessing"].crop_ratio == 0.875


def test_create_model_reads_timm_files(save):
    path = save(weights(CASES["timm distilled"]["shapes"]))
    model = create_model(
        "vit_ti16",
        weights=path,
        classes=5,
        patch_size=8,
        width=32,
        depth=2,
        num_heads=4,
        mlp_dim=64,
        input_shape=(32, 32, 3),
        include_preprocessing=False,
    )
    assert model.config.distillation_token
    assert model.config.block.gelu == "exact"
    expected = np.array(CASES["timm distilled"]["outputs"])
    outputs = numpy(model(golden_images(32)))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5)
    both = keras.Model(
        model.input,
        [model.get_layer("head").output, model.get_layer("head_distillation").output],
    )
    first, second = both(golden_images(32))
    mean = (numpy(first) + numpy(second)) / 2
    np.testing.assert_allclose(mean, expected, rtol=0, atol=2e-5)


def test_the_wrong_variant_is_named(save):
    arrays = weights(CASES["timm vit"]["shapes"])
    model = build(tiny_config(width=48, classes=5))
    with pytest.raises(CheckpointMismatchError, match=r"misshapen: 'patch_embed.proj.weight' is"):
        load_weights(model, save(arrays))
