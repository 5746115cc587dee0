"""Models from a checkpoint alone: sizes, heads and head as the file and its neighbours say."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

import keras_vit
from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.create import build, create_model
from keras_vit.errors import CheckpointError, CheckpointMismatchError
from keras_vit.families.clip import CLIP
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.pretrained import from_pretrained
from keras_vit.variants import VARIANTS
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.load import load_weights
from keras_vit.weights.save import save_weights
from tests import official
from tests.fixtures import fill_random, numpy, tiny_config
from tests.hub.server import File, point_client_to, serve
from tests.official import golden_images
from tests.weights.test_load_torch import CASES, weights

PLAIN = {"include_preprocessing": False}
# What the repositories of the two projects say in config.json, as far as it is read.
TIMM = {"architecture": "vit_tiny_patch16_224", "model_args": {"num_heads": 4}}
TRANSFORMERS = {"model_type": "vit", "hidden_act": "gelu", "num_attention_heads": 4}


@pytest.fixture
def save(tmp_path):
    """Saves a small file of timm or transformers, and what lies beside it."""

    def save(title, config=None):
        path = tmp_path / "model.safetensors"
        safetensors.numpy.save_file(weights(CASES[title]["shapes"]), path)
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return path

    return save


@pytest.mark.parametrize("name", ["vit_token", "vit_pre_logits", "vit_gap", "hybrid_stages"])
def test_official_files_need_no_architecture(name):
    _, outputs = official.load_golden(name)
    path = official.GOLDEN / f"{name}.checkpoint.npz"
    assert inspect_file(path).variant is None
    model = from_pretrained(path, **PLAIN)
    assert (model.config.block.num_heads, model.config.classes) == (4, 10)
    np.testing.assert_allclose(
        numpy(model(outputs["images"])), outputs["logits"], rtol=0, atol=2e-5
    )


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("timm vit", TIMM),
        ("timm distilled", TIMM),
        ("timm dinov2", TIMM),
        ("timm siglip", TIMM | {"architecture": "vit_base_patch16_siglip_224"}),
        ("timm hybrid", TIMM | {"architecture": "vit_base_r50_s16_224"}),
        ("timm bit", {"architecture": "resnetv2_50x1_bit"}),
        ("transformers vit", TRANSFORMERS),
        ("transformers registers", TRANSFORMERS),
        (
            "transformers siglip",
            {"model_type": "siglip", "vision_config": {"num_attention_heads": 4}},
        ),
        ("transformers bit", {"model_type": "bit"}),
    ],
)
def test_files_of_timm_and_transformers_need_a_sidecar_config(title, config, save):
    path, size = save(title, config), CASES[title]["size"]
    shape = (size, size, 3) if title.endswith("bit") else None  # for images of any size
    model = from_pretrained(path, input_shape=shape, **PLAIN)
    expected = np.array(CASES[title]["outputs"])
    outputs = numpy(model(golden_images(size)))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_the_number_of_heads_is_never_guessed(save):
    path = save("timm vit")
    with pytest.raises(ValueError, match=r"\(patch_size=.* number of attention heads.*num_heads"):
        from_pretrained(path)
    assert from_pretrained(path, num_heads=4).config.block.num_heads == 4
    path = save("timm vit", {"model_args": {"num_heads": 0}})  # no number of heads
    with pytest.raises(ValueError, match=r"model_args: num_heads = 0 cannot be computed"):
        from_pretrained(path)


def test_other_heads_than_the_config_says_are_a_mismatch(save, monkeypatch):
    path = save("timm vit", TIMM)
    model = build(tiny_config(classes=5, num_heads=8))
    with pytest.raises(CheckpointMismatchError, match="says 4 attention heads, the model has 8"):
        load_weights(model, path)
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(num_heads=8))
    assert create_model("vit_tiny", weights=path, classes=5).config.block.num_heads == 4


def test_the_heads_of_a_file_of_another_width_do_not_hide_what_does_not_fit(save, monkeypatch):
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(width=30, num_heads=5))
    with pytest.raises(CheckpointMismatchError, match=r"'patch_embed.proj.bias' is \(32,\)"):
        create_model("vit_tiny", weights=save("timm vit", TIMM), classes=5)


def test_the_size_of_images_in_the_config_decides_the_grid(save):
    """16 rows are 4 x 4 patches or 2 x 8, and no shape tells which."""
    assert inspect_file(save("timm vit", TIMM)).image_size == (32, 32)
    path = save("timm vit", {**TIMM, "pretrained_cfg": {"input_size": [3, 16, 64]}})
    assert inspect_file(path).image_size == (16, 64)
    assert from_pretrained(path).input_shape == (None, 16, 64, 3)
    model = build(tiny_config(classes=5))
    report = load_weights(model, path)
    assert "2 x 8 to 4 x 4 positions" in report.resized["position_embedding/embedding"]
    assert not load_weights(model, path, grid=(4, 4)).resized  # the caller goes first
    path = save("transformers vit", {**TRANSFORMERS, "image_size": [64, 16]})
    assert inspect_file(path).grid == (8, 2)
    path = save("timm vit", {**TIMM, "pretrained_cfg": {"input_size": [3, 999, 999]}})
    assert inspect_file(path).grid == (4, 4)  # not what the rows say
    config = {"model_type": "vit", "num_attention_heads": 4}
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 64, "width": 16}}
    path = save("transformers vit", config)
    (path.parent / "preprocessor_config.json").write_text(json.dumps(processor))
    assert inspect_file(path).grid == (8, 2)  # nothing else says
    (path.parent / "preprocessor_config.json").unlink()


def test_a_folder_that_was_copied_from_the_hub_will_do(save, tmp_path):
    folder = save("transformers vit", TRANSFORMERS).parent
    assert from_pretrained(folder).config.block.num_heads == 4
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(ValueError, match=r"is a folder; name the file in it .other\.safetensors."):
        from_pretrained(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"none is a \.npz or"):
        from_pretrained(tmp_path / "empty")


def test_a_name_of_the_hub_without_its_scheme_is_explained():
    with pytest.raises(ValueError, match=r"it is hf://google/vit-base-patch16-224\."):
        from_pretrained("google/vit-base-patch16-224")
    with pytest.raises(ValueError, match=r"no such file\.$"):
        from_pretrained("./vit-base-patch16-224")


def test_a_head_is_as_in_the_file_unless_asked_for(save):
    path = save("timm dinov2", TIMM)
    features = from_pretrained(path)
    assert (features.output_shape, features.config.pooling) == ((None, 32), "token")
    assert from_pretrained(path, pooling="gap").config.pooling == "gap"
    assert from_pretrained(path, include_top=False).output_shape == (None, 17, 32)
    fresh = from_pretrained(path, classes=3)
    assert fresh.load_report.fresh == ("head/kernel", "head/bias")
    golden = official.GOLDEN / "vit_token.checkpoint.npz"
    assert from_pretrained(golden, classes=3).load_report.fresh
    assert from_pretrained(golden, include_top=False).output_shape == (None, 17, 32)


def test_options_and_size_of_the_caller_go_first(save):
    path = save("timm vit", TIMM)
    model = from_pretrained(path, input_shape=(48, 32, 3), gelu="tanh", name="mine")
    assert (model.name, model.config.block.gelu, model.config.grid) == ("mine", "tanh", (6, 4))


def test_images_of_other_channels_stay_so(tmp_path):
    grey = build(tiny_config(channels=1))
    fill_random(grey)
    model = from_pretrained(save_weights(grey, tmp_path / "grey.npz"))
    assert model.input_shape == (None, 32, 32, 1)
    assert not model.load_report.resized


def test_hybrids_and_resnets_of_the_table_are_recognised(tmp_path, monkeypatch):
    stem = ResNetStem(stages=(1, 2))
    torch = {"standardization": "torch", "norm_epsilon": 1e-5}
    hybrid = tiny_config(stem=stem, patch_size=1, image_size=64, **PLAIN)
    bit = ResNetConfig(stages=(1, 2), width_factor=2, image_size=32, classes=5)
    monkeypatch.setitem(VARIANTS, "r9_tiny", hybrid)
    monkeypatch.setitem(VARIANTS, "r9_plain", tiny_config())
    monkeypatch.setitem(VARIANTS, "bit_tiny", bit)
    for layout, name in [("official", "a.npz"), ("timm", "a.safetensors")]:
        if layout == "timm":
            hybrid = dataclasses.replace(hybrid, stem=dataclasses.replace(stem, **torch))
            bit = dataclasses.replace(bit, **torch)
        info = inspect_file(save_weights(build(hybrid), tmp_path / name, layout))
        assert (info.variant, info.image_size) == ("r9_tiny", (64, 64))
        assert info.sizes["stem"] == stem
        info = inspect_file(save_weights(build(bit), tmp_path / name, layout))
        assert (info.variant, info.image_size) == ("bit_tiny", None)
        assert info.sizes == {"stages": (1, 2), "width_factor": 2, "channels": 3}
        info = inspect_file(save_weights(build(tiny_config()), tmp_path / name, layout))
        assert info.variant == "r9_plain"


def test_a_variant_and_a_tag_name_a_card(monkeypatch):
    path = official.GOLDEN / "vit_token.checkpoint.npz"
    card = Card(
        "vit_tiny", "in10", path.as_uri(), "official", (48, 48), 10, options={"gelu": "exact"}
    )
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config())
    monkeypatch.setitem(CARDS, (card.variant, card.tag), card)
    model = from_pretrained("vit_tiny/in10")
    assert model.input_shape == (None, 48, 48, 3)  # what the card says
    assert model.config.block.gelu == "exact"
    assert not model.load_report.fresh


def test_what_lacks_the_arrays_that_tell_is_named(tmp_path):
    arrays = official.load_golden("vit_token")[0]
    del arrays["embedding/kernel"]
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match="lacks arrays that tell its architecture"):
        from_pretrained(tmp_path / "x.npz")
    with pytest.raises(CheckpointMismatchError, match="missing: 'embedding/kernel'"):
        from_pretrained(tmp_path / "x.npz", "vit_b16")


@pytest.mark.parametrize("address", ["hf://google/vit-base-patch16-224", "gs://a/b.npz"])
def test_create_model_says_how_to_open_a_checkpoint(address):
    with pytest.raises(ValueError, match=r"is a checkpoint, not the name .* `from_pretrained`"):
        create_model(address)
    with pytest.raises(ValueError, match="is a checkpoint"):
        create_model(str(official.GOLDEN / "vit_token.checkpoint.npz"))


def test_a_repository_of_the_hub_says_it_all(save, tmp_path, monkeypatch):
    """The model is built from the files of a repository alone, all of one commit."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    folder = save("transformers vit", TRANSFORMERS | {"hidden_act": "gelu_new"}).parent
    headers = {"X-Repo-Commit": "0123abc"}
    files = {
        f"me/tiny/resolve/{revision}/{name}": File(
            (folder / name).read_bytes(), etag=f'"{number}a"', headers=headers
        )
        for number, name in enumerate(("model.safetensors", "config.json"))
        for revision in ("main", "0123abc")
    }
    with serve(files) as server:
        point_client_to(server.url, monkeypatch)
        model = from_pretrained("hf://me/tiny")
    assert (model.config.block.gelu, model.config.block.num_heads) == ("tanh", 4)
    asked = {path.rpartition("/")[2] for path, _ in server.requests if "/main/" in path}
    assert asked == {"model.safetensors"}
    snapshot = tmp_path / "hf" / "models--me--tiny" / "snapshots" / "0123abc"
    assert pathlib.Path(model.load_report.path).parent == snapshot
    assert keras_vit.from_pretrained is from_pretrained


def pixel_file(folder, channels, mean, std, **changes):
    """A folder of transformers whose preprocessing has statistics in [0, 255]."""
    fields = {"gelu": "exact", "norm_epsilon": 1e-12, **changes}
    model = build(tiny_config(channels=channels, **PLAIN, **fields))
    fill_random(model)
    save_weights(model, folder / "model.safetensors", "transformers")
    size = {"height": 32, "width": 32}
    stated = {"size": size, "do_rescale": False, "image_mean": mean, "image_std": std}
    config = {"model_type": "clip_vision_model"} if changes else {"model_type": "vit"}
    config.update(num_attention_heads=4, num_channels=channels, image_size=32, patch_size=8)
    (folder / "config.json").write_text(json.dumps(config))
    stated["image_processor_type"] = "ViTImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(stated))
    return model


@pytest.mark.parametrize("channels", [4, 13, 26])
def test_statistics_of_every_channel_are_kept(channels, tmp_path):
    mean, std = ([base + 10.0 * i for i in range(channels)] for base in (900.0, 300.0))
    plain = pixel_file(tmp_path, channels, mean, std)
    model = from_pretrained(tmp_path)
    assert model.config.preprocessing.mean == tuple(mean)
    assert model.config.preprocessing.std == tuple(std)
    assert f"mean {', '.join(f'{v:.4g}' for v in mean)}" in str(model.load_report)
    pixels = np.random.default_rng(0).uniform(0, 3000, (2, 32, 32, channels)).astype("float32")
    expected = numpy(plain((pixels - np.array(mean)) / np.array(std)))
    np.testing.assert_allclose(numpy(model(pixels)), expected, rtol=0, atol=2e-5)


def test_statistics_of_another_number_of_channels_are_an_error(tmp_path):
    pixel_file(tmp_path, 4, [1.0] * 5, [2.0] * 5)
    with pytest.raises(CheckpointError, match="deviation of 5 channels, and the model has 4"):
        from_pretrained(tmp_path)
    own = keras_vit.Preprocessing(mean=1.0, std=2.0)
    assert from_pretrained(tmp_path, preprocessing=own).config.preprocessing == own


CLIP_LIKE = {"norm_before_blocks": True, "head_bias": None, **CLIP}


@pytest.mark.parametrize("changes", [{}, CLIP_LIKE], ids=["bias", "positions"])
@pytest.mark.parametrize("how", ["from_pretrained", "load_weights"])
def test_grey_images_give_what_their_colour_version_gives(changes, how, tmp_path):
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 77.375]
    plain = pixel_file(tmp_path, 3, mean, std, **changes)
    options = {"input_shape": (32, 32, 1)}
    if how == "from_pretrained":
        model = from_pretrained(tmp_path, **options)
    else:
        model = build(dataclasses.replace(plain.config, channels=1, include_preprocessing=True))
        load_weights(model, tmp_path / "model.safetensors")
        assert not any("preprocessing" in text for text in model.load_report.differs)
    grey = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 1)).astype("float32")
    expected = numpy(plain((np.repeat(grey, 3, axis=-1) - np.array(mean)) / np.array(std)))
    np.testing.assert_allclose(
        numpy(model(grey)), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )
    if how == "from_pretrained":  # what the caller sets is not undone
        own = from_pretrained(
            tmp_path, preprocessing=keras_vit.Preprocessing(0.0, 255.0), **options
        )
        kernel = "patch_encoder/projection/kernel"
        summed = {w.path: w for w in plain.weights}[kernel].numpy().sum(axis=2, keepdims=True)
        ours = {w.path: w for w in own.weights}[kernel].numpy()
        np.testing.assert_allclose(ours, summed, rtol=0, atol=1e-6)


def test_what_cannot_be_meant_is_said_at_once(save, tmp_path, monkeypatch):
    path = save("timm dinov2", TIMM)
    with pytest.raises(ValueError, match=r"`classes` must be 1 or more. Received: 0"):
        from_pretrained(path, classes=0)
    with pytest.raises(ValueError, match=r"must be \(height, width, channels\).*Received: 224"):
        from_pretrained(path, input_shape=224)
    with pytest.raises(ValueError, match=r"must be \(height, width, channels\).*Received: 224"):
        create_model("vit_ti16", input_shape=224)
    monkeypatch.chdir(tmp_path)
    for text in ("models/pets", "a/b/c"):
        with pytest.raises(ValueError, match=f"no (such )?file.*|There is no file.*{text}"):
            from_pretrained(text)
    with pytest.raises(ValueError, match="There are no weights 'nothing' of 'vit_b16'"):
        from_pretrained("vit_b16/nothing")


def test_the_report_names_the_caller_for_what_was_passed_alone(save):
    path = save("timm dinov2", TIMM)
    origins = {
        name: from_pretrained(path, **options).load_report.settings["pooling"][1]
        for name, options in (
            ("file", {}), ("tokens", {"include_top": False}), ("caller", {"pooling": "gap"}),
        )
    }  # fmt: skip
    assert "caller" not in origins["file"]
    assert (origins["tokens"], origins["caller"]) == ("include_top=False", "the caller")
