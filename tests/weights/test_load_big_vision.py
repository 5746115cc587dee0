"""Files of big_vision that need more than their names: FlexiViT, DeiT III, those before 2022."""

from __future__ import annotations

import numpy as np
import pytest

from keras_vit.config import IMAGENET_STATISTICS
from keras_vit.create import build, create_model
from keras_vit.errors import CheckpointMismatchError
from keras_vit.hub.card import Card
from keras_vit.hub.catalog import CARDS
from keras_vit.variants import VARIANTS
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.load import load_weights
from tests.fixtures import numpy, tiny_config
from tests.official import golden_images
from tests.weights import test_load_torch as torch
from tests.weights.test_load_official import fill, linen_shapes

PATCHES, POSITIONS = "embedding/kernel", "pos_embedding"
TOKEN = {"position_on_class_token": False, "include_preprocessing": False, "classes": 5}


@pytest.fixture
def save(tmp_path):
    def save(arrays, name="checkpoint.npz"):
        np.savez(tmp_path / name, **{f"params/{key}": array for key, array in arrays.items()})
        return tmp_path / name

    return save


@pytest.fixture
def flexible():
    """Arrays of a small FlexiViT: patches of 8 pixels, 3 x 3 places, none for the class token."""
    shapes = linen_shapes(POSITIONS, 9)
    return fill(shapes)


def carried_over(arrays, patch, grid):
    """The arrays at another size, as FlexiViT's paper says, with JAX's own resizing."""
    image = pytest.importorskip("jax").image
    old = arrays[PATCHES].shape[0]
    pixels = np.eye(old * old, dtype="float32").reshape(-1, old, old)
    resized = image.resize(pixels, (len(pixels), patch, patch), "bilinear", antialias=False)
    transposed = np.asarray(resized, "float64").reshape(len(pixels), -1)  # (old, new) pixels
    kernel = np.linalg.pinv(transposed) @ arrays[PATCHES].reshape(len(pixels), -1)
    places = arrays[POSITIONS].reshape(3, 3, -1)
    places = image.resize(places, (*grid, places.shape[-1]), "linear")
    return {
        **arrays,
        PATCHES: kernel.reshape(patch, patch, 3, -1).astype("float32"),
        POSITIONS: np.asarray(places).reshape(1, grid[0] * grid[1], -1),
    }


@pytest.mark.parametrize(("patch", "size"), [(4, (20, 20)), (12, (60, 36)), (8, (16, 16))])
def test_flexivit_goes_to_any_patch_and_grid_as_its_paper_says(patch, size, flexible, save):
    config = tiny_config(patch_size=patch, image_size=size, **TOKEN)
    model, expected = build(config), build(config)
    report = load_weights(model, save(flexible), resize_patches=True)
    assert "(linear)" in report.resized["position_embedding/embedding"]
    assert ("patch_encoder/projection/kernel" in report.resized) == (patch != 8)
    carried = carried_over(flexible, patch, config.grid)
    assert not load_weights(expected, save(carried, "carried.npz")).resized
    images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype("float32")
    np.testing.assert_allclose(numpy(model(images)), numpy(expected(images)), rtol=0, atol=2e-5)


def test_the_card_of_a_flexivit_says_that_it_is_flexible(flexible, save, monkeypatch):
    card = Card(
        "vit_tiny", "flexi", save(flexible).as_uri(), "big_vision", (20, 20), 5, flexible=True
    )
    monkeypatch.setitem(VARIANTS, "vit_tiny", tiny_config(patch_size=4))
    monkeypatch.setitem(CARDS, (card.variant, card.tag), card)
    report = create_model("vit_tiny", weights="flexi", classes=5).load_report
    assert report.resized["position_embedding/embedding"] == "3 x 3 to 5 x 5 positions (linear)"
    assert "8 x 8 to 4 x 4 pixels" in report.resized["patch_encoder/projection/kernel"]


def test_a_file_that_is_not_flexible_keeps_the_official_resizing(flexible, save):
    model = build(tiny_config(image_size=40, **TOKEN))
    report = load_weights(model, save(flexible))
    assert "(align_corners)" in report.resized["position_embedding/embedding"]
    with pytest.raises(CheckpointMismatchError, match=r"'params/embedding/kernel' is .8, 8"):
        load_weights(build(tiny_config(patch_size=4, **TOKEN)), save(flexible))


def folded_deit3():
    """timm's small DeiT III as big_vision converts it.

    The kernels absorb the layer scales, and the first layer the statistics of ImageNet: its images
    are in [-1, 1].
    """
    theirs = torch.weights(torch.CASES["timm deit3"]["shapes"])
    mean, std = (np.array(value) / 255 for value in _statistics())
    kernel = theirs["patch_embed.proj.weight"].transpose(2, 3, 1, 0)  # HWIO
    bias = theirs["patch_embed.proj.bias"] + np.einsum("hwio,i->o", kernel, (0.5 - mean) / std)
    arrays = {
        PATCHES: kernel * (0.5 / std)[:, None],
        "embedding/bias": bias,
        "cls": theirs["cls_token"],
        POSITIONS: theirs["pos_embed"],
        "Transformer/encoder_norm/scale": theirs["norm.weight"],
        "Transformer/encoder_norm/bias": theirs["norm.bias"],
        "head/kernel": theirs["head.weight"].T,
        "head/bias": theirs["head.bias"],
    }
    for index in range(2):
        block = {
            key.removeprefix(f"blocks.{index}."): array
            for key, array in theirs.items()
            if key.startswith(f"blocks.{index}.")
        }
        folded = _folded_block(block)
        arrays.update(
            {f"Transformer/encoderblock_{index}/{k}": value for k, value in folded.items()}
        )
    return {key: np.asarray(array, "float32") for key, array in arrays.items()}


def _folded_block(block, heads=4):
    attention, mlp = "MultiHeadDotProductAttention_0", "MlpBlock_0"
    arrays = {}
    for norm, name in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_1")):
        arrays[f"{name}/scale"] = block[f"{norm}.weight"]
        arrays[f"{name}/bias"] = block[f"{norm}.bias"]
    kernels = np.split(block["attn.qkv.weight"].T, 3, axis=1)
    biases = np.split(block["attn.qkv.bias"], 3)
    for part, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        arrays[f"{attention}/{part}/kernel"] = kernel.reshape(len(kernel), heads, -1)
        arrays[f"{attention}/{part}/bias"] = bias.reshape(heads, -1)
    output = block["attn.proj.weight"].T * block["ls1.gamma"]
    arrays[f"{attention}/out/kernel"] = output.reshape(heads, -1, output.shape[-1])
    arrays[f"{attention}/out/bias"] = block["attn.proj.bias"] * block["ls1.gamma"]
    arrays[f"{mlp}/Dense_0/kernel"] = block["mlp.fc1.weight"].T
    arrays[f"{mlp}/Dense_0/bias"] = block["mlp.fc1.bias"]
    arrays[f"{mlp}/Dense_1/kernel"] = block["mlp.fc2.weight"].T * block["ls2.gamma"]
    arrays[f"{mlp}/Dense_1/bias"] = block["mlp.fc2.bias"] * block["ls2.gamma"]
    return arrays


def _statistics():
    return IMAGENET_STATISTICS.mean, IMAGENET_STATISTICS.std


def test_deit3_folded_into_a_plain_vit_gives_what_timm_gives(save):
    path = save(folded_deit3())
    info = inspect_file(path)
    assert (info.layout, info.options["layer_scale"]) == ("big_vision", None)
    assert not info.options["position_on_class_token"]
    model = build(tiny_config(gelu="exact", **TOKEN))
    assert not load_weights(model, path).resized
    mean, std = (np.array(value) / 255 for value in _statistics())
    pixels = golden_images(32) * std + mean  # in [0, 1] once their statistics are undone
    outputs = numpy(model((2 * pixels - 1).astype("float32")))
    expected = np.array(torch.CASES["timm deit3"]["outputs"])
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_positions_before_2022_have_a_row_for_the_class_token(save):
    """Under another name, too; 16 rows have none, and 17 have one."""
    shapes = linen_shapes(POSITIONS, 17)
    arrays = fill(shapes)
    places = arrays.pop(POSITIONS)
    old = {**arrays, "Transformer/pos_embedding": places}
    folded = {**arrays, POSITIONS: places[:, 1:], "cls": arrays["cls"] + places[:, :1]}
    images, outputs = golden_images(32), []
    for number, (content, has_row) in enumerate([(old, True), (folded, False)]):
        path = save(content, f"{number}.npz")
        info = inspect_file(path)
        assert info.options["position_on_class_token"] is has_row
        assert info.grid == (4, 4)
        for on_token in (True, False):
            model = build(tiny_config(**{**TOKEN, "position_on_class_token": on_token}))
            load_weights(model, path)
            outputs.append(numpy(model(images)))
    for each in outputs[1:]:
        np.testing.assert_allclose(each, outputs[0], rtol=0, atol=2e-5)


def test_rows_that_can_be_read_in_two_ways_are_told_apart_or_named(save):
    """17 rows are a token and 4 x 4 places, or 17 x 1 places of a model without that row."""
    shapes = linen_shapes(POSITIONS, 17)
    path = save(fill(shapes))
    column = build(tiny_config(image_size=(17 * 8, 8), **TOKEN))
    both = "0 rows for tokens and a grid of 17 x 1 or 1 rows for tokens and a grid of 4 x 4"
    with pytest.raises(CheckpointMismatchError, match=both):
        load_weights(column, path)
    assert not load_weights(column, path, grid=(17, 1)).resized
    assert "4 x 4 to 17 x 1" in str(load_weights(column, path, grid=(4, 4)))
    assert "class_token/token" in load_weights(build(tiny_config(**TOKEN)), path).resized
