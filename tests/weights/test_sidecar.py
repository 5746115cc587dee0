"""Sidecar files: every key is honoured, harmless, or refused by its name."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.config import Preprocessing, ResNetConfig, ResNetStem, field_names, make_config
from keras_vit.create import build
from keras_vit.errors import CheckpointError
from keras_vit.families import keys
from keras_vit.models.resizing import resize_model
from keras_vit.pretrained import from_pretrained
from keras_vit.weights.image_processors import PROCESSORS
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import save_weights
from keras_vit.weights.sidecar import MODEL_TYPES, TIMM_MODELS
from keras_vit.weights.timm_settings import timm_settings
from tests.fixtures import fill_random, tiny_config
from tests.weights.folders import FOLDERS, SIZES
from tests.weights.test_load_torch import CASES, weights

TIMM = {"architecture": "vit_tiny_patch16_224", "model_args": {"num_heads": 4}}
VIT = {"model_type": "vit", "num_attention_heads": 4}


@pytest.fixture
def save(tmp_path):
    """Saves a small file of timm or transformers with sidecar files."""

    def save(title, config=None, processor=None):
        safetensors.numpy.save_file(weights(CASES[title]["shapes"]), tmp_path / "model.safetensors")
        for name, content in (("config", config), ("preprocessor_config", processor)):
            if content is not None:
                text = content if isinstance(content, str) else json.dumps(content)
                (tmp_path / f"{name}.json").write_text(text)
        return tmp_path / "model.safetensors"

    return save


@pytest.mark.parametrize(
    ("title", "config", "message"),
    [
        ("transformers vit", {**VIT, "hidden_act": "silu"}, "hidden_act = 'silu' cannot"),
        ("transformers vit", {**VIT, "hidden_act": "gelu_10"}, "hidden_act = 'gelu_10'"),
        ("transformers vit", {**VIT, "layer_norm_eps": 2.0}, "layer_norm_eps = 2.0"),
        ("timm vit", {**TIMM, "model_args": {"norm_layer": "simplenorm"}}, "norm_layer = 'simple"),
        ("timm vit", {**TIMM, "model_args": {"num_kv_heads": 2}}, "heads share .grouped-query"),
        ("timm vit", {**TIMM, "model_args": {"use_post_norm": True}}, "norms after attention"),
        ("timm vit", {**TIMM, "model_args": {"rope_type": "mixed"}}, "other rotary positions"),
        ("transformers vit", {**VIT, "new_key": 1}, "new_key = 1: what this key does"),
        (
            "transformers bit",
            {"model_type": "bit", "padding": "same"},
            "padding = 'same': another padding",
        ),
        ("transformers vit", {**VIT, "hidden_size": 64}, "hidden_size = 64, the arrays have 32"),
        ("transformers vit", {**VIT, "model_type": "flava"}, "model_type = 'flava'"),
        ("transformers vit", {**VIT, "quantization_config": {}}, "quantization_config"),
        ("timm vit", {**TIMM, "global_pool": "max"}, "global_pool = 'max' cannot be computed"),
        ("timm vit", {**TIMM, "model_args": {"act_layer": "silu"}}, "act_layer = 'silu'"),
        ("timm vit", {**TIMM, "model_args": {"norm_eps": 1e-3}}, "norm_eps = 0.001: what"),
        ("timm vit", {**TIMM, "pretrained_cfg": {"label_offset": 1}}, "label_offset = 1"),
        ("timm vit", {"architecture": "vit_new"}, "architecture names 'vit_new'.*pass gelu="),
        ("timm vit", {"architecture": "vit_base_patch16_rpn_224"}, "norms after attention"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_key(title, config, message, save):
    path = save(title, config)
    inspect_file(path)  # says what is there, whatever it is
    with pytest.raises(CheckpointError, match=rf"(?s)nothing was loaded:.*{message}"):
        from_pretrained(path)


@pytest.mark.parametrize(
    "key",
    [
        "padding", "auto_map", "_attn_implementation", "_attn_implementation_internal",
        "use_return_dict", "dtype", "torch_dtype", "output_attentions", "problem_type",
        "_output_attentions", "_name_or_path", "license", "id2label",
    ],
)  # fmt: skip
def test_keys_that_change_no_number_are_no_reason_to_refuse(key, save):
    for title, config in (("transformers vit", VIT), ("timm vit", TIMM)):
        assert from_pretrained(save(title, {**config, key: "sdpa"})).config.block.num_heads == 4


@pytest.mark.parametrize(
    ("title", "name", "what"),
    [
        ("transformers beit", "decode_head.classifier.weight", "a head that segments images"),
        ("transformers beit", "fpn1.0.weight", "a head that segments images"),
        (
            "transformers beit",
            "beit.encoder.relative_position_bias.relative_position_bias_table",
            "positions that all blocks share .BEiT for masked images",
        ),
        ("timm vit", "rope.freqs", r"frequencies are learned .timm's rope_mixed."),
        ("timm vit", "shared_rel_pos.mlp.fc1.weight", "blocks share .BEiT.*srelpos"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_own_name_alone(title, name, what, save):
    path = save(title, {"architecture": "vit_unknown"} if title == "timm vit" else None)
    arrays = safetensors.numpy.load_file(path)
    arrays.pop("pos_embed", None)
    safetensors.numpy.save_file({**arrays, name: np.zeros((2, 2), "float32")}, path)
    with pytest.raises(CheckpointError, match=rf"loaded:\n  the arrays have [^\n]*{what}[^\n]*$"):
        from_pretrained(path)


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("transformers vit", {**VIT, "image_size": 99_984}),
        ("transformers vit", {**VIT, "image_size": [8, 99_984]}),
        ("timm vit", {**TIMM, "pretrained_cfg": {"input_size": [3, 99_984, 99_984]}}),
        ("timm vit", {**TIMM, "model_args": {"num_heads": 4, "img_size": 99_984}}),
    ],
)
def test_sizes_of_images_that_would_take_gigabytes_are_refused(title, config, save, monkeypatch):
    if config.get("image_size") == [8, 99_984]:
        monkeypatch.setattr("keras_vit.weights.checkpoint._MAX_POSITIONS", 32 * 1000)
    with pytest.raises(CheckpointError, match=r"pixels, which are [\d,]+ patches, more than"):
        from_pretrained(save(title, config))
    assert from_pretrained(save(title, config), input_shape=(32, 32, 3)).input_shape[1] == 32


def test_crops_of_images_that_would_take_gigabytes_are_refused(save):
    path = save("timm vit", {**TIMM, "pretrained_cfg": {"mean": [0.5] * 3, "crop_pct": 1e-4}})
    with pytest.raises(CheckpointError, match=r"not understood \('images of 1e\+04 times the size"):
        from_pretrained(path)
    size = {"size": {"shortest_edge": 10**9}, "crop_size": 32, "do_center_crop": True}
    path = save("transformers vit", VIT, {"image_processor_type": "CLIPImageProcessor", **size})
    with pytest.raises(CheckpointError, match=r"images of 3.13e\+07 times the size of the crop"):
        from_pretrained(path)


def test_biases_between_very_many_patches_are_refused(tmp_path):
    model = build(make_config(**{**SIZES, "depth": 1, **FOLDERS["beit"][1]}))
    path = model.save_pretrained(tmp_path / "beit", "transformers") / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    (name,) = (name for name in arrays if name.endswith("relative_position_bias_table"))
    arrays[name] = np.zeros(((2 * 100 - 1) ** 2 + 3, 4), "float32")
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(
        CheckpointError,
        match="a table of positions in every block for 10,000 patches, more than 8,192",
    ):
        from_pretrained(path)


def test_all_refusals_are_in_one_error_and_choices_of_the_caller_end_some(save):
    path = save("transformers vit", {**VIT, "hidden_act": "silu", "a": 1, "b": float("nan")})
    with pytest.raises(CheckpointError, match=r"(?s)'silu'.*\(pass gelu=.*a = 1.*b = nan"):
        from_pretrained(path)
    with pytest.raises(CheckpointError, match="'silu'"):
        load_weights(build(tiny_config(classes=5)), path)
    path = save("transformers vit", {**VIT, "hidden_act": "silu"})
    assert from_pretrained(path, gelu="exact").config.block.gelu == "exact"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "[" * 9999, "3", '"x"', "\x00", '{"a": ' + "9" * 5000 + "}",
        '{"pretrained_cfg": 3}', '{"pretrained_cfg": {"mean": "x"}}', '{"vision_config": []}',
        '{"model_args": {"num_heads": ' + "9" * 400 + "}}", '{"model_args": {"num_heads": true}}',
        '{"architecture": {}}', '{"architecture": ["a"]}', '{"model_type": {"a": 1}}',
        '{"hidden_act": {"a": [1]}}', '{"hidden_act": null, "layer_norm_eps": NaN}',
        '{"image_size": [1e400, -1]}', '{"pretrained_cfg": {"mean": [NaN], "std": [1]}}',
        '{"pretrained_cfg": {"mean": [' + "9" * 400 + '], "std": [1]}}',
        '{"pretrained_cfg": {"mean": [1], "std": [1], "crop_pct": {"a": 1}}}',
        '{"pretrained_cfg": {"input_size": {"a": 1}}}', '{"patch_size": {"a": []}}',
    ],
)  # fmt: skip
def test_any_json_is_refused_with_its_key(text, save):
    """Never a half-read file, and never an error that is no CheckpointError."""
    for title in ("timm vit", "transformers vit"):
        with pytest.raises(CheckpointError, match=r"config\.json"):
            from_pretrained(save(title, text))


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ({"resample": [3]}, "preprocessing of images"),
        ({"image_mean": [float("nan")], "image_std": [0.5]}, "preprocessing of images"),
        ({"rescale_factor": 10**400}, "integer of more than 128 bits"),
        ({"resample": 1}, "Lanczos"),
        ({"do_sharpen": True}, "do_sharpen=True"),
    ],
)
def test_an_image_processor_is_read_whole(processor, message, save):
    path = save("transformers vit", VIT, processor)
    with pytest.raises(CheckpointError, match=rf"preprocessor_config\.json.*{message}"):
        from_pretrained(path)


def test_settings_of_a_run_of_ours_say_nothing_of_a_checkpoint(save):
    path = save("timm vit", {"recipe": "finetune_pets", "versions": {}, "model": "vit_b16"})
    assert from_pretrained(path, num_heads=4).config.block.gelu == "exact"


def test_every_rule_of_the_tables_has_a_field_or_a_size_that_exists():
    fields = set(field_names(tiny_config()))
    tables = [
        keys.TIMM,
        keys.TIMM_PRETRAINED,
        keys.TIMM_ARGS,
        *(model.rules for model in TIMM_MODELS),
        *(kind.rules for kind in MODEL_TYPES.values()),
        *(processor.rules for processor in PROCESSORS.values()),
    ]
    sizes = {"patch_size", "width", "depth", "mlp_dim", "channels"}
    for rules in tables:
        for rule in rules.values():
            if isinstance(rule, keys.Part):
                tables.append(rule.rules)
            if isinstance(rule, keys.Sets):
                assert rule.field in fields
            if isinstance(rule, keys.Size):
                assert rule.field in sizes
    for kind in MODEL_TYPES.values():
        assert set(kind.defaults) <= set(kind.rules)
        assert kind.images is None or kind.images in MODEL_TYPES
        assert kind.parent is None or MODEL_TYPES[MODEL_TYPES[kind.parent].images] is kind


def test_the_report_says_where_each_setting_comes_from(save):
    processor = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 3}
    config = {**VIT, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
    report = from_pretrained(save("transformers vit", config, processor)).load_report
    assert report.settings["gelu"] == ("tanh", "config.json: hidden_act")
    assert report.settings["norm_epsilon"] == (1e-5, "config.json: layer_norm_eps")
    assert report.settings["num_heads"] == (4, "config.json: num_attention_heads")
    assert report.settings["pooling"] == ("token", "the file's arrays")
    assert report.settings["position_resize"] == ("bicubic_plain", "the default of transformers")
    assert report.settings["preprocessing"][1] == "preprocessor_config.json"
    assert "gelu: tanh (config.json: hidden_act)" in str(report)
    assert "std 63.75, 63.75, 63.75; bicubic, squashed (preprocessor_config.json)" in str(report)
    path = save("timm vit", TIMM)
    report = from_pretrained(path, norm_epsilon=1e-3, preprocessing=Preprocessing()).load_report
    assert report.settings["gelu"] == ("exact", "timm's vit_tiny_patch16_224")
    assert report.settings["norm_epsilon"] == (1e-3, "the caller")
    assert report.settings["preprocessing"][1] == "the caller"


def test_a_model_that_was_there_keeps_its_settings_and_the_report_says_so(save):
    report = load_weights(build(tiny_config(classes=5)), save("timm vit", TIMM))
    assert report.settings["gelu"] == ("tanh", "the model")
    assert "differs: gelu is 'tanh' in the model, 'exact' by timm's vit_tiny" in str(report)
    assert len(report.differs) == 1  # pixels and pooling are the file's
    options = {"classes": 5, "gelu": "exact", "preprocessing": Preprocessing(std=64.0)}
    path = save("timm vit", TIMM)
    (differs,) = load_weights(build(tiny_config(**options)), path).differs
    assert "preprocessing.std is (64.0, 64.0, 64.0) in the model, (127.5, " in differs
    outside = tiny_config(**options, include_preprocessing=False)
    assert not load_weights(build(outside), path).differs


def test_the_heads_of_the_table_are_not_taken_for_those_of_a_file(save, monkeypatch):
    """`vit_base_patch16_gap_224` has the sizes of a B/16, and 16 heads."""
    from keras_vit.variants import VARIANTS

    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(num_heads=8))
    path = save("timm vit")
    assert inspect_file(path).variant == "vit_tiny"
    with pytest.raises(ValueError, match=r"heads. A vit_tiny, .* has num_heads=8\. Pass num_heads"):
        from_pretrained(path)
    assert from_pretrained(path, "vit_tiny").config.block.num_heads == 8
    assert timm_settings("vit_base_patch16_gap_224")["num_heads"] == 16


def test_a_file_without_positions_is_no_fixed_embedding(tmp_path, save):
    arrays = weights(CASES["timm vit"]["shapes"])
    del arrays["pos_embed"]
    path = save("timm vit", TIMM)
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(CheckpointError, match="no position embedding, so positions are rotary"):
        from_pretrained(path, input_shape=(32, 32, 3))
    model = from_pretrained(path, input_shape=(32, 32, 3), position_embedding="none")
    assert model.config.position_embedding == "none"


@pytest.mark.parametrize(
    ("torch", "layout"), [(True, "official"), (False, "timm"), (False, "transformers")]
)
def test_standardised_kernels_are_not_written_for_another_standardisation(torch, layout, tmp_path):
    changes = {"standardization": "torch", "norm_epsilon": 1e-5} if torch else {}
    stem = ResNetStem(stages=(1,), **changes)
    bit = ResNetConfig(stages=(1,), image_size=32, classes=5, **changes)
    path = tmp_path / ("x.npz" if torch else "x.safetensors")
    for config in (tiny_config(stem=stem, patch_size=2), bit):
        with pytest.raises(ValueError, match=r"standardization=.*would give other numbers"):
            save_weights(build(config), path, layout)


@pytest.mark.parametrize(
    ("options", "layout", "message"),
    [
        ({"pooling": "map"}, "big_vision", r"attends to the patches alone.*prefix_tokens=False"),
        ({"pooling": "gap", "gap_prefix_tokens": True}, "official", "a mean of the patches alone"),
        ({"qk_norm": True}, "timm", "norms of queries and keys with a bias.*qk_norm_bias=True"),
        ({"distillation_token": True}, "timm", "no registers beside a distillation token"),
    ],
)
def test_what_a_project_computes_otherwise_is_not_written(options, layout, message, tmp_path):
    model = build(tiny_config(num_registers=2, **options))
    suffix = "safetensors" if layout == "timm" else "npz"
    with pytest.raises(ValueError, match=message):
        save_weights(model, tmp_path / f"x.{suffix}", layout)


def test_map_pooling_of_the_patches_alone_is_timms(tmp_path):
    config = tiny_config(pooling="map", num_registers=2)
    model = build(dataclasses.replace(config, map_prefix_tokens=False))
    fill_random(model)
    path = save_weights(model, tmp_path / "x.safetensors", "timm")
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 4}}')
    again = from_pretrained(path, gelu="tanh", preprocessing=Preprocessing())
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype("float32")
    ours, theirs = (keras.ops.convert_to_numpy(each(pixels)) for each in (again, model))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_the_stated_size_of_a_hybrid_is_kept_where_maps_are_rounded_up(save):
    """112 pixels make maps of 4 x 4 at a stride of 32, as 128 do."""
    config = tiny_config(
        stem=ResNetStem(stages=(1, 1), standardization="torch", norm_epsilon=1e-5),
        patch_size=1,
        image_size=28,
    )
    assert config.grid == (4, 4)
    path = save("timm vit", {**TIMM, "pretrained_cfg": {"input_size": [3, 28, 28]}})
    save_weights(build(config), path, "timm")
    assert from_pretrained(path).input_shape == (None, 28, 28, 3)


PROCESSOR = {"image_processor_type": "ViTImageProcessor", "resample": 3}


def sides(height, width):
    return {"height": height, "width": width}


@pytest.mark.parametrize(
    ("processor", "size", "origin"),
    [
        ({"size": sides(48, 64)}, (48, 64), "size"),
        ({"size": 48}, (48, 48), "size"),
        (
            {"size": {"shortest_edge": 64}, "do_center_crop": True, "crop_size": sides(48, 48)},
            (48, 48),
            "crop_size",
        ),
        ({"size": sides(50, 44)}, (48, 40), "size, 50 x 44 in whole patches of 8 x 8"),
        ({"size": sides(39, 33)}, (32, 32), "size, 39 x 33 in whole patches of 8 x 8"),  # as 32
        ({"size": sides(32, 32)}, (32, 32), "size"),
    ],
)
def test_the_size_of_the_preprocessing_is_that_of_the_model(processor, size, origin, save):
    """Positions are for 32 pixels, 4 x 4 patches of 8."""
    path = save("transformers vit", {**VIT, "image_size": 32}, {**PROCESSOR, **processor})
    model = from_pretrained(path)
    assert model.input_shape == (None, *size, 3)
    report, origin = model.load_report, f"preprocessor_config.json: {origin}"
    assert report.settings["image_size"] == (size, origin)
    text = f"{size[0]} x {size[1]}"
    assert f"image_size: {text} ({origin})" in str(report)
    assert report.size.startswith(f"images of {text} pixels ({origin})")
    grid = f"{size[0] // 8} x {size[1] // 8}"
    assert ("resized: 4 x 4 to " + grid in report.size) == (size != (32, 32))
    pixels = np.random.default_rng(0).uniform(0, 255, (2, *size, 3)).astype("float32")
    resized = resize_model(from_pretrained(path, input_shape=(32, 32, 3)), size)
    np.testing.assert_allclose(model(pixels), resized(pixels), rtol=0, atol=1e-5)


def test_the_caller_goes_before_the_size_of_the_preprocessing(save):
    path = save("transformers vit", VIT, {**PROCESSOR, "size": sides(48, 48)})
    model = from_pretrained(path, input_shape=(24, 40, 3))
    assert model.load_report.settings["image_size"] == ((24, 40), "the caller")
    model = from_pretrained(path, input_shape=(None, None, 3))  # positions as they are
    assert model.config.image_size == (32, 32) and "image_size" not in model.load_report.settings
    assert model.load_report.size is None
    model = from_pretrained(save("transformers vit", {**VIT, "image_size": 32}, PROCESSOR))
    assert model.load_report.settings["image_size"] == ((32, 32), "config.json")
    path = save("transformers vit", VIT, {"image_processor_type": "ViTImageProcessor"})
    assert from_pretrained(path).load_report.settings["image_size"][1] == "the file's positions"


def test_the_input_size_of_timm_goes_before_that_of_its_positions(save):
    config = {**TIMM, "pretrained_cfg": {"input_size": [3, 48, 40]}}
    config["model_args"] = {"num_heads": 4, "img_size": 32}
    report = from_pretrained(save("timm vit", config)).load_report
    origin = "config.json: pretrained_cfg: input_size"
    assert report.settings["image_size"] == ((48, 40), origin)
    assert "4 x 4 to 6 x 5 positions" in report.size


def test_a_size_that_no_model_can_have_is_refused_by_its_key(save):
    path = save("transformers vit", VIT, {**PROCESSOR, "size": sides(7, 48)})
    with pytest.raises(
        CheckpointError, match=r"preprocessor_config\.json: size says images of 7 x"
    ):
        from_pretrained(path)
    assert from_pretrained(path, input_shape=(16, 48, 3)).input_shape == (None, 16, 48, 3)
    path = save("transformers vit", VIT, {**PROCESSOR, "size": sides(80_000, 80_000)})
    with pytest.raises(CheckpointError, match=r"size: images of \(80000, 80000\) .* patches"):
        from_pretrained(path)
