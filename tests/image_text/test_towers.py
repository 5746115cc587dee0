import dataclasses
import json
import types

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.errors import CheckpointError, DownloadError
from keras_vit.hub.repositories import MissingFileError, NotCachedError
from keras_vit.image_text.towers import load_towers, save_towers
from keras_vit.weights.array_file import Entry
from tests.fixtures import images_for
from tests.hub.server import point_client_to, serve
from tests.hub.test_repositories import hub_files
from tests.image_text.towers import (
    LENGTH,
    VOCABULARY,
    expected_logits,
    write_big_vision,
    write_open_clip,
    write_transformers,
    write_vocabulary,
)

END = VOCABULARY - 1


def some_ids(end=END):
    """Ids with one end, two, one at the last position, and one at once."""
    ids = np.random.default_rng(1).integers(3, VOCABULARY - 2, (4, LENGTH)).astype("int32")
    ids[0, 5] = ids[1, 4] = ids[1, 8] = ids[2, -1] = ids[3, 1] = end
    return ids, (5, 4, LENGTH - 1, 1)


def check(towers, text, ids, siglip=False, gelu="quick", positions=None, atol=2e-5):
    images = images_for(towers.image, 2)
    positions = (LENGTH - 1,) * len(ids) if positions is None else positions
    expected = expected_logits(towers, text, images, ids, siglip, gelu, positions)
    np.testing.assert_allclose(towers.logits(images, ids), expected, rtol=0, atol=atol)
    return expected


@pytest.mark.parametrize(
    ("eos", "model_type", "gelu", "shards"),
    [
        (2, "clip", "quick", False),  # the old, wrong value means the largest id
        (7, "clip", "exact", True),
        (2, "metaclip_2", "quick", False),
    ],
)
def test_clip_of_transformers_is_the_text_tower_in_numpy(eos, model_type, gelu, shards, tmp_path):
    act = {"quick": "quick_gelu", "exact": "gelu"}[gelu]
    text = write_transformers(tmp_path, eos_token_id=eos, hidden_act=act, shards=shards)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["model_type"] = model_type
    config["vision_config"]["model_type"] = f"{model_type}_vision_model"
    path.write_text(json.dumps(config))
    ids, positions = some_ids(END if (model_type, eos) == ("clip", 2) else eos)
    towers = load_towers(tmp_path)
    assert (towers.bias, towers.activation) == (None, "softmax")
    np.testing.assert_allclose(towers.scale, np.exp(2.5))
    expected = check(towers, text, ids, gelu=gelu, positions=positions)
    other = "exact" if gelu == "quick" else "quick"
    images = images_for(towers.image, 2)
    wrong = expected_logits(towers, text, images, ids, False, other, positions)
    assert np.abs(wrong - expected).max() > 1e-3  # the test would see another GELU


def test_siglip_of_transformers_pools_the_last_position_and_has_a_bias(tmp_path):
    text = write_transformers(tmp_path, siglip=True)
    ids = np.random.default_rng(2).integers(0, VOCABULARY, (3, LENGTH)).astype("int32")
    towers = load_towers(tmp_path)
    assert (towers.bias, towers.activation) == (-7.25, "sigmoid")
    check(towers, text, ids, siglip=True, gelu="tanh")


@pytest.mark.parametrize("prefix", ["", "text."])
def test_clip_of_open_clip_is_the_text_tower_in_numpy(prefix, tmp_path):
    text = write_open_clip(tmp_path, prefix)
    ids, positions = some_ids()
    towers = load_towers(tmp_path)
    check(towers, text, ids, positions=positions)
    preprocessing = towers.image.config.preprocessing
    assert (preprocessing.crop_ratio, preprocessing.mean) == (1.0, (127.5,) * 3)
    assert towers.image.config.block.num_heads == 4


@pytest.mark.parametrize("scanned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_siglip_of_big_vision_is_the_text_tower_in_numpy(scanned, tmp_path):
    text = write_big_vision(tmp_path / "siglip.npz", scanned)
    ids = np.random.default_rng(2).integers(0, VOCABULARY, (3, LENGTH)).astype("int32")
    towers = load_towers(tmp_path / "siglip.npz")
    check(towers, text, ids, siglip=True, gelu="tanh")
    save_towers(towers, tmp_path / "again")
    again = load_towers(tmp_path / "again/siglip.npz")
    check(again, text, ids, siglip=True, gelu="tanh")


@pytest.mark.parametrize("write", [write_transformers, write_open_clip])
def test_towers_are_written_back_with_the_files_next_to_them(write, tmp_path):
    write(tmp_path / "first")
    write_vocabulary(tmp_path / "first")
    save_towers(load_towers(tmp_path / "first"), tmp_path / "second")
    first, second = ({file.name: file for file in (tmp_path / each).iterdir()}
                     for each in ("first", "second"))  # fmt: skip
    assert first.keys() == second.keys()
    for name, file in first.items():
        if file.suffix != ".safetensors":
            assert file.read_bytes() == second[name].read_bytes()
            continue
        theirs, ours = load_file(file), load_file(second[name])
        assert theirs.keys() == ours.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value)


def test_shards_are_written_as_one_file(tmp_path):
    write_transformers(tmp_path / "first", shards=True)
    save_towers(load_towers(tmp_path / "first"), tmp_path / "second")
    assert sorted(file.name for file in (tmp_path / "second").iterdir()) == [
        "config.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip


def test_texts_go_through_the_tokenizer(tmp_path):
    text = write_open_clip(tmp_path)
    write_vocabulary(tmp_path)
    towers = load_towers(tmp_path)
    ids = towers.tokenizer(["photo of cat", "dog"])
    assert ids[0, :5].tolist() == [END - 1, 515, 520, 517, END]
    images = images_for(towers.image, 2)
    np.testing.assert_array_equal(
        towers.logits(images, ["photo of cat", "dog"]), towers.logits(images, ids)
    )
    check(towers, text, ids, positions=(4, 2))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((2, LENGTH), "int32"), "2 texts without it, the first at 0"),
        (np.full((2, LENGTH), VOCABULARY, "int32"), "Ids must be from 0 to"),
        (np.zeros((2, 5), "int32"), "integers of shape .texts, 12."),
        (np.zeros((2, LENGTH)), "Received: float64"),
    ],
)
def test_ids_that_have_no_features_are_refused(ids, message, tmp_path):
    write_transformers(tmp_path)
    towers = load_towers(tmp_path)
    with pytest.raises(ValueError, match=message):
        towers.encode_texts(ids)


def change(folder, file, **changes):
    path = folder / file
    content = json.loads(path.read_text())
    for key, value in changes.items():
        part, _, name = key.rpartition("__")
        target = content[part] if part in content else content.get("model_cfg", {}).get(part)
        (content if target is None else target)[name] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("write", "file", "changes", "message"),
    [
        (write_transformers, "config.json", {"model_type": "blip"}, "'blip' is no model of images"),
        (write_transformers, "config.json", {"text_config__new": 1}, "text_config: new = 1"),
        (write_transformers, "config.json", {"text_config__hidden_size": 64}, "the arrays have 32"),
        (write_transformers, "config.json", {"text_config__hidden_act": "mish"}, "cannot be comp"),
        (
            write_transformers, "config.json", {"text_config__num_attention_heads": 5},
            "has no possible text tower: `num_heads` must divide",
        ),
        (
            write_open_clip, "open_clip_config.json",
            {"text_cfg__hf_model_name": "roberta-base"}, "a text tower of transformers",
        ),
        (
            write_open_clip, "open_clip_config.json",
            {"vision_cfg__attentional_pool": True}, "a pooling by attention",
        ),
        (
            write_open_clip, "open_clip_config.json",
            {"vision_cfg__timm_model_name": "convnext_base"}, "'convnext_base', is no Visi",
        ),
        (
            write_open_clip, "open_clip_config.json",
            {"preprocess_cfg__resize_mode": "longest"}, "which is not known here",
        ),
        (
            write_open_clip, "open_clip_config.json",
            {"preprocess_cfg__mean": None}, "preprocess_cfg is not understood",
        ),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(write, file, changes, message, tmp_path):
    write(tmp_path)
    change(tmp_path, file, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_towers(tmp_path)


@pytest.mark.parametrize(("stored", "scale"), [(800, 100), (4.7, 100), (2.5, 12.182), (-1, 1)])
def test_the_scale_of_open_clip_is_at_most_100_as_in_training(stored, scale, tmp_path):
    write_open_clip(tmp_path)
    file = tmp_path / "open_clip_model.safetensors"
    save_file({**load_file(file), "logit_scale": np.array(stored, "float32")}, file)
    towers = load_towers(tmp_path)
    assert towers.scale == pytest.approx(scale, rel=1e-4)
    assert np.isfinite(towers.logits(images_for(towers.image, 1), some_ids()[0])).all()


def test_the_scale_of_siglip_has_no_bound_but_that_of_numbers(tmp_path):
    write_transformers(tmp_path, siglip=True)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "logit_scale": np.array([4.7727], "float32")}, file)
    towers = load_towers(tmp_path)
    assert towers.scale == pytest.approx(118.24, rel=1e-4)  # as of L/16-384
    for scale in (800, float("nan")):
        with pytest.raises(ValueError, match="The logarithm of the scale must be from -80 to 80"):
            dataclasses.replace(towers, logit_scale=scale)


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], r"Received: int32 of shape \(0, 12\)"), (None, "`texts` must be texts. Received: None"),
     (["a", b"b"], "number 1, b'b'"), ("\ud800", "without halves of surrogate pairs")],
)  # fmt: skip
def test_what_is_no_text_is_refused(texts, message, tmp_path):
    write_open_clip(tmp_path)
    write_vocabulary(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_towers(tmp_path).encode_texts(texts)


def test_a_file_without_its_configuration_is_refused(tmp_path):
    write_transformers(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"There is no config\.json next to the checkpoint"):
        load_towers(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        load_towers(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is no object of JSON"):
        load_towers(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("logit_scale"), "has no scale of the logits"),
        (lambda arrays: arrays.pop("text_model.final_layer_norm.bias"), "is missing"),
        (lambda arrays: arrays.pop("text_projection.weight"), "lacks the projection of texts"),
        (
            lambda arrays: arrays.update({"text_projection.weight": np.ones((24, 32), "float32")}),
            "give vectors of 32 and 24 dimensions",
        ),
        (
            lambda arrays: arrays.update(
                {"text_model.encoder.layers.7.layer_norm1.bias": np.ones(32, "float32")}
            ),
            "layers.7.layer_norm1.bias' is of no layer",
        ),
        (
            lambda arrays: arrays.pop("text_model.embeddings.position_embedding.weight"),
            "lacks text_model.embeddings.position_embedding.weight",
        ),
        (
            lambda arrays: arrays.update({"logit_scale": np.ones(2, "float32")}),
            "logit_scale in .* is one finite number",
        ),
        *(
            (
                lambda arrays, scale=scale: arrays.update({"logit_scale": np.float64([scale])}),
                r"model\.safetensors: The logarithm of the scale must be from .* Received: -?\d",
            )
            for scale in (800, 100, -100)
        ),
        (
            lambda arrays: arrays.update(
                {"text_model.embeddings.token_embedding.weight": np.ones(9, "float32")}
            ),
            r"cannot have the shape \(9,\)",
        ),
        (lambda arrays: arrays.update({"text_model.new": np.ones(3, "float32")}), "no model.*new"),
        (
            lambda arrays: arrays.update(
                {"text_model.encoder.layers.0.layer_norm1.bias": np.ones(3, "float32")}
            ),
            r"is \(3,\), needed is \(32,\)",
        ),
        (
            lambda arrays: [arrays.pop(key) for key in list(arrays) if "text_model" in key],
            "has no text tower that is known here",
        ),
    ],
)
def test_a_damaged_file_is_refused(change, message, tmp_path):
    write_transformers(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    change(arrays)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_towers(tmp_path)


def test_the_image_tower_of_open_clip_loads_alone(tmp_path):
    write_open_clip(tmp_path)
    path = tmp_path / "open_clip_model.safetensors"
    with pytest.raises(CheckpointError, match="some of its models with the quick GELU"):
        keras_vit.from_pretrained(path, num_heads=4)
    alone = keras_vit.from_pretrained(path, num_heads=4, gelu="quick")
    towers = load_towers(path)
    for ours, theirs in zip(alone.weights, towers.image.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_projection_after_the_model_of_timm_is_refused(tmp_path):
    write_open_clip(tmp_path)
    path = tmp_path / "open_clip_model.safetensors"
    arrays = load_file(path)
    arrays["visual.trunk.pos_embed"] = arrays.pop("visual.proj")
    save_file(arrays, path)
    with pytest.raises(CheckpointError, match="has a projection or pooling of open_clip after"):
        load_towers(tmp_path)


def test_images_of_any_aspect_ratio_are_refused(tmp_path, monkeypatch):
    write_transformers(tmp_path)
    model = types.SimpleNamespace(config=types.SimpleNamespace(max_num_patches=16))
    monkeypatch.setattr("keras_vit.image_text.towers.build_pretrained", lambda *_, **__: model)
    with pytest.raises(CheckpointError, match=r"any aspect ratio \(NaFlex\), which is not"):
        load_towers(tmp_path)


def test_positions_of_another_shape_are_not_written(tmp_path):
    write_transformers(tmp_path / "first")
    towers = load_towers(tmp_path / "first")
    name = "vision_model.embeddings.position_embedding.weight"
    towers._file.text.file.entries[name] = Entry((18, 32), "float32")
    with pytest.raises(ValueError, match="keeps positions otherwise than this package"):
        save_towers(towers, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_too_many_stacked_blocks_are_refused(tmp_path):
    arrays = {
        "params/txt/Embed_0/embedding": np.ones((2, 2), "float32"),
        "params/txt/Encoder_0/encoderblock/LayerNorm_0/scale": np.ones((1001, 1), "float32"),
    }
    np.savez(tmp_path / "x.npz", **arrays)  # fmt: skip
    with pytest.raises(CheckpointError, match="stacks 1001 blocks"):
        load_towers(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("error", "asked"), [(MissingFileError, True), (DownloadError, False), (NotCachedError, False)]
)
def test_a_hub_that_does_not_answer_is_asked_once(error, asked, monkeypatch):
    calls = []

    def fetch(address, download=True, beside=()):
        calls.append((address, download))
        raise error(f"no {address}")

    monkeypatch.setattr("keras_vit.image_text.towers.fetch", fetch)
    with pytest.raises(DownloadError, match=r"no hf://a/b$"):
        load_towers("hf://a/b")
    file = "hf://a/b/open_clip_model.safetensors"
    assert calls == [("hf://a/b", True), (file, asked)]  # else of the cache alone
    with pytest.raises(DownloadError, match="no hf://a/b/x"):
        load_towers("hf://a/b/x.npz")
    assert len(calls) == 3


@pytest.mark.parametrize("write", [write_transformers, write_open_clip])
def test_towers_come_from_the_hub_with_their_tokenizer(write, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    write(folder)
    write_vocabulary(folder)
    files = {}
    for path in folder.iterdir():
        files |= hub_files(path.read_bytes(), path.name)
    with serve(files) as server:
        point_client_to(server.url, monkeypatch)
        towers = load_towers("hf://timm/vit")
        with pytest.raises(DownloadError, match="There is no file 'other"):
            load_towers("hf://timm/vit/other.safetensors")
    here = load_towers(folder)
    texts, images = ["a cat", "dog"], images_for(here.image)
    np.testing.assert_array_equal(towers.tokenizer(texts), here.tokenizer(texts))
    np.testing.assert_array_equal(towers.logits(images, texts), here.logits(images, texts))
