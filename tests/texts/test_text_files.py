import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.errors import CheckpointError
from keras_vit.image_text.classifier import zero_shot_classifier
from keras_vit.image_text.towers import load_towers, save_towers
from scripts.golden.eval_cases import is_scale, values
from tests.official import GOLDEN

# By scripts/golden/make_towers.py: other projects' logits, with weights that follow a formula.
CASES = json.loads((GOLDEN / "towers.json").read_text())
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype("float32")


def write(folder, name, **config):
    """The checkpoint of a case; `config` are keys of its config.json, by part and name."""
    case = CASES[name]
    folder.mkdir(exist_ok=True)
    arrays = {
        key: values(tuple(shape), position, is_scale(key, shape))
        for position, (key, shape) in enumerate(sorted(case["shapes"].items()))
    }
    scale = {"temperature": 0.05, "logit_scale": 2.5}
    arrays |= {key: np.array(value, "float32") for key, value in scale.items() if key in arrays}
    for key, value in config.items():
        part, _, field = key.rpartition("__")
        content = case["files"]["config.json"]
        case = {**case, "files": {**case["files"], "config.json": {
            **content, **({part: {**content[part], field: value}} if part else {field: value}),
        }}}  # fmt: skip
    for file, content in case["files"].items():
        (folder / file).write_text(json.dumps(content))
    name = "open_clip_model" if "open_clip_config.json" in case["files"] else "model"
    save_file(arrays, folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors"


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_other_project(name, tmp_path):
    file = write(tmp_path / "first", name)
    ids, expected = np.array(CASES[name]["ids"], "int32"), np.array(CASES[name]["logits"])
    towers = load_towers(tmp_path / "first")
    np.testing.assert_allclose(towers.logits(IMAGES, ids), expected, rtol=0, atol=2e-5)
    assert (towers.bias, towers.activation) == (None, "softmax")

    save_towers(towers, tmp_path / "second")
    before, after = load_file(file), load_file(tmp_path / "second" / file.name)
    assert before.keys() == after.keys()
    for key, value in before.items():
        if key.endswith("mask_token"):  # of training alone
            assert not after[key].any()
            continue
        np.testing.assert_allclose(after[key], value, rtol=1e-6 * (key == "temperature"))

    towers.tokenizer = lambda texts: np.repeat(ids[[ord(texts[0]) - 97]], len(texts), axis=0)
    model = zero_shot_classifier(towers, ["a", "b"], ["{}"], activation=None)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected[:, :2], atol=2e-5)


def test_a_temperature_that_the_arrays_lack_is_that_of_the_configuration(tmp_path):
    file = write(tmp_path, "tipsv2", temperature_init_value=0.02)
    arrays = load_file(file)
    save_file({**arrays, "temperature": np.array(-0.1, "float32")}, file)
    with pytest.raises(CheckpointError, match=r"is one finite number, not .*nan"):
        load_towers(tmp_path)
    del arrays["temperature"]
    save_file(arrays, file)
    towers = load_towers(tmp_path)
    assert towers.scale == pytest.approx(50)
    save_towers(towers, tmp_path / "second")  # with the temperature
    assert load_towers(tmp_path / "second").scale == pytest.approx(50)


def test_the_largest_scale_is_kept_and_padding_alone_is_no_text(tmp_path):
    write(tmp_path, "aimv2-lit", max_logit_scale=3.0)
    assert load_towers(tmp_path).scale == pytest.approx(3.0)  # of exp(2.5)
    write(tmp_path / "tips", "tipsv2")
    ids = np.array(CASES["tipsv2"]["ids"], "int32")
    ids[1] = 0
    with pytest.raises(ValueError, match="must have an id that is no padding"):
        load_towers(tmp_path / "tips").encode_texts(ids)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tipsv2", {"temperature_init_value": -1}, "temperature_init_value = -1 is no positive"),
        ("tipsv2", {"text_config__scale_sqrt_depth": False}, "multiplied by the root of D"),
        ("tipsv2", {"text_config__hidden_act": "gelu"}, "'gelu' cannot be computed"),
        ("tipsv2", {"text_config__pad_token_id": 3}, "pad_token_id = 3 cannot be computed"),
        ("aimv2-lit", {"text_config__mlp_bias": True}, "dense layers with bias"),
        ("aimv2-lit", {"text_config__hidden_act": "gelu"}, "another activation of the gate"),
        ("aimv2-lit", {"max_logit_scale": "x"}, "max_logit_scale = 'x' is no positive number"),
    ],
)
def test_what_is_not_computed_is_refused(name, changes, message, tmp_path):
    write(tmp_path, name, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_towers(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("params/txt/BertEncoder_0/embedder/embedders_token_ids/embedding", "the BERT of LiT"),
        ("transformer.resblocks.0.ln_1.weight", "a text tower of TIPS in a file of its own: take"),
    ],
)
def test_other_text_towers_are_named(name, message, tmp_path):
    np.savez(tmp_path / "x.npz", **{name: np.ones((4, 2), "float32")})
    with pytest.raises(CheckpointError, match=message):
        load_towers(tmp_path / "x.npz")


def test_what_the_arrays_of_an_image_tower_leave_open_is_asked_for(tmp_path):
    file = write(tmp_path, "open-clip-clipa")
    options = {"num_heads": 4, "gelu": "exact"}
    with pytest.raises(CheckpointError, match=r"without a norm before the blocks in several ways"):
        keras_vit.from_pretrained(file, **options)
    alone = keras_vit.from_pretrained(file, pooling="gap", norm_after_pooling=True, **options)
    towers = load_towers(tmp_path)
    for ours, theirs in zip(alone.weights, towers.image.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_scales_beyond_those_of_clip_are_trained_from_where_they_are(tmp_path):
    from keras_vit.image_text.contrastive import contrastive_model

    write(tmp_path, "tipsv2")
    towers = load_towers(tmp_path)
    towers.logit_scale = math.log(200)
    layer = contrastive_model(towers).get_layer("pairs")
    assert float(layer.scale.constraint(layer.scale)) == pytest.approx(math.log(200))
