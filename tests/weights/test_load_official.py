"""Official files into models: the official numbers, every layout, other sizes, bad files."""

from __future__ import annotations

import re
import zipfile

import ml_dtypes
import numpy as np
import pytest

from keras_vit.config import ResNetConfig, ResNetStem
from keras_vit.create import create_model
from keras_vit.errors import CheckpointMismatchError
from keras_vit.models.resnet import build_resnet
from keras_vit.models.vit import build_vit
from keras_vit.resize import resize_positions
from keras_vit.weights.inspection import inspect_file
from keras_vit.weights.load import load_weights
from scripts.golden.eval_cases import values
from tests import official
from tests.fixtures import numpy, tiny_config
from tests.official import golden_images

GOLDEN = {
    "vit_token": {},
    "vit_pre_logits": {"pre_logits": 32},
    "vit_gap": {"pooling": "gap", "class_token": False},
    "vit_resized": {"image_size": 48},
    "hybrid_stem": {"image_size": 32, "patch_size": 4, "stem": ResNetStem()},
    "hybrid_stages": {"image_size": 64, "patch_size": 1, "stem": ResNetStem(stages=(1, 2))},
}


def tiny_model(**changes):
    return build_vit(tiny_config(include_preprocessing=False, **changes))


def golden_file(name):
    return official.GOLDEN / f"{name}.checkpoint.npz"


@pytest.fixture
def token():
    """Arrays of the small official checkpoint with a class token, by their names."""
    return official.load_golden("vit_token")[0]


@pytest.fixture
def save(tmp_path):
    """Saves arrays by their names and gives the path."""

    def save(arrays, name="checkpoint.npz"):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return save


@pytest.mark.parametrize("name", GOLDEN)
def test_logits_are_those_of_the_official_code(name):
    _, outputs = official.load_golden(name)
    model = tiny_model(**GOLDEN[name])
    report = load_weights(model, golden_file(name))
    np.testing.assert_allclose(
        numpy(model(outputs["images"])), outputs["logits"], rtol=0, atol=2e-5
    )
    assert set(report.loaded) == {w.path for w in model.weights}
    assert not report.fresh
    assert not report.left_out
    assert not report.differs
    assert set(report.resized) == (
        {"position_embedding/embedding"} if name == "vit_resized" else set()
    )
    assert model.load_report is report


def test_another_standardisation_of_the_stem_is_reported():
    stem = ResNetStem(standardization="torch", norm_epsilon=1e-5)
    report = load_weights(
        tiny_model(**{**GOLDEN["hybrid_stem"], "stem": stem}), golden_file("hybrid_stem")
    )
    assert report.differs == (
        "stem.standardization is 'torch' in the model, 'std' by the default of official",
        "stem.norm_epsilon is 1e-05 in the model, 1e-06 by the default of official",
    )


def fill(shapes):
    """The deterministic values that the golden vectors below were computed from."""
    names = enumerate(sorted(shapes))
    return {name: values(shapes[name], j, name.endswith("scale")) for j, name in names}


def linen_shapes(positions, rows, patch=(8, 8, 3), class_token=True, pre_logits=False):
    """Names and shapes of a tiny model in the names of the official code of today."""
    shapes = {"embedding/kernel": (*patch, 32), "embedding/bias": (32,)}
    shapes[positions] = (1, rows, 32)
    if class_token:
        shapes["cls"] = (1, 1, 32)
    for name in ("Transformer/encoder_norm",):
        shapes.update({f"{name}/scale": (32,), f"{name}/bias": (32,)})
    for index in range(2):
        block = f"Transformer/encoderblock_{index}"
        shapes.update(block_shapes(block, "LayerNorm_0", "LayerNorm_1"))
    if pre_logits:
        shapes.update({"pre_logits/kernel": (32, 32), "pre_logits/bias": (32,)})
    shapes.update({"head/kernel": (32, 5), "head/bias": (5,)})
    return shapes


def block_shapes(block, *norms):
    shapes = {}
    for norm in norms:
        shapes.update({f"{block}/{norm}/scale": (32,), f"{block}/{norm}/bias": (32,)})
    attention, mlp = f"{block}/MultiHeadDotProductAttention_0", f"{block}/MlpBlock_0"
    for part in ("query", "key", "value"):
        shapes.update(
            {f"{attention}/{part}/kernel": (32, 4, 8), f"{attention}/{part}/bias": (4, 8)}
        )
    shapes.update({f"{attention}/out/kernel": (4, 8, 32), f"{attention}/out/bias": (32,)})
    shapes.update({f"{mlp}/Dense_0/kernel": (32, 64), f"{mlp}/Dense_0/bias": (64,)})
    shapes.update({f"{mlp}/Dense_1/kernel": (64, 32), f"{mlp}/Dense_1/bias": (32,)})
    return shapes


def map_shapes():
    shapes = block_shapes("MAPHead_0", "LayerNorm_0")
    return {**shapes, "MAPHead_0/probe": (1, 1, 32)}


def stem_shapes(stages):
    shapes = {"conv_root/kernel": (7, 7, 3, 64), "gn_root/scale": (64,), "gn_root/bias": (64,)}
    channels = 64
    for stage, units in enumerate(stages, start=1):
        filters = 64 * 2 ** (stage - 1)
        for unit in range(1, units + 1):
            start = f"block{stage}/unit{unit}"
            convs = {1: (1, 1, channels, filters), 2: (3, 3, filters, filters)}
            convs[3] = (1, 1, filters, 4 * filters)
            for number, shape in convs.items():
                shapes[f"{start}/conv{number}/kernel"] = shape
                for part in ("scale", "bias"):
                    shapes[f"{start}/gn{number}/{part}"] = (shape[-1],)
            if unit == 1:
                shapes[f"{start}/conv_proj/kernel"] = (1, 1, channels, 4 * filters)
                for part in ("scale", "bias"):
                    shapes[f"{start}/gn_proj/{part}"] = (4 * filters,)
            channels = 4 * filters
    return shapes


POSEMBED = "Transformer/posembed_input/pos_embedding"
# (options, shapes, image size, arrays, values, logits), computed with the official code.
VECTORS = {
    "token": (
        {},
        linen_shapes(POSEMBED, 17),
        32,
        (40, 24_069),
        [
            [0.427761, -1.098097, 0.056317, -0.227835, -0.071986],
            [0.114132, -0.680032, 0.031273, -0.268996, 0.004925],
        ],
    ),
    "pre_logits": (
        {"pre_logits": 32},
        linen_shapes(POSEMBED, 17, pre_logits=True),
        32,
        (42, 25_125),
        [
            [-0.217213, 0.360365, 0.332853, 0.111031, -0.001109],
            [-0.509065, 0.265911, 0.447765, 0.194628, 0.084152],
        ],
    ),
    "gap": (
        {"pooling": "gap", "class_token": False},
        linen_shapes(POSEMBED, 16, class_token=False),
        32,
        (39, 24_005),
        [
            [0.113067, -0.044791, 0.162388, 0.194295, 0.109646],
            [0.059954, 0.180080, 0.372915, -0.043643, 0.192770],
        ],
    ),
    "hybrid": (
        {"image_size": 64, "patch_size": 1, "stem": ResNetStem(stages=(1, 2))},
        {**linen_shapes(POSEMBED, 65, patch=(1, 1, 512)), **stem_shapes((1, 2))},
        64,
        (76, 779_845),
        [
            [-0.523751, 0.442017, 0.007015, -0.080280, -0.842513],
            [-0.521886, 0.338076, -0.067576, -0.097915, -0.797750],
        ],
    ),
    "hybrid root": (
        {"image_size": 64, "patch_size": 4, "stem": ResNetStem()},
        {**linen_shapes(POSEMBED, 17, patch=(4, 4, 64)), **stem_shapes(())},
        64,
        (43, 60_229),
        [
            [0.920239, -0.280720, -1.023135, 0.594246, 0.130250],
            [0.888547, -0.254904, -0.922671, 0.671844, 0.156677],
        ],
    ),
    "big_vision tok": (
        {"position_on_class_token": False},
        linen_shapes("pos_embedding", 16),
        32,
        (40, 24_037),
        [
            [0.583821, -0.297724, 0.098425, 0.332552, -0.111530],
            [0.485671, -0.280467, 0.354245, -0.138974, -0.310544],
        ],
    ),
    "big_vision gap": (
        {"pooling": "gap", "class_token": False},
        linen_shapes("pos_embedding", 16, class_token=False),
        32,
        (39, 24_005),
        [
            [-0.041656, -0.165189, -0.131476, -0.066540, -0.113230],
            [-0.026790, -0.234210, -0.055922, -0.275412, -0.134635],
        ],
    ),
    "big_vision sincos2d": (
        {
            "pooling": "gap",
            "class_token": False,
            "position_embedding": "sincos_2d",
            "pre_logits": 32,
        },
        {
            name: shape
            for name, shape in linen_shapes("-", 16, class_token=False, pre_logits=True).items()
            if name != "-"
        },
        32,
        (40, 24_549),
        [
            [-0.120121, -0.116499, -0.215058, -0.180439, -0.066208],
            [-0.204276, -0.177066, -0.236738, -0.184537, 0.011555],
        ],
    ),
    "big_vision map": (
        {"pooling": "map", "class_token": False},
        {**linen_shapes("pos_embedding", 16, class_token=False), **map_shapes()},
        32,
        (54, 32_517),
        [
            [-0.042604, 0.175263, -0.057489, -0.092964, -0.069319],
            [-0.023078, 0.095896, -0.060668, 0.009770, -0.095060],
        ],
    ),
}


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_of_the_official_code(case, save):
    options, shapes, size, (count, total), logits = VECTORS[case]
    arrays = fill(shapes)
    assert (len(arrays), sum(a.size for a in arrays.values())) == (count, total)
    path = save(arrays)
    model = tiny_model(**{"classes": 5, **options})
    load_weights(model, path)
    np.testing.assert_allclose(numpy(model(golden_images(size))), logits, rtol=0, atol=2e-5)
    # The file's own options lead to the same model.
    implied = {key: value for key, value in inspect_file(path).options.items() if key != "stem"}
    same = tiny_model(
        **{
            "classes": 5,
            **implied,
            **{k: v for k, v in options.items() if k in ("image_size", "patch_size", "stem")},
        }
    )
    assert same.config == model.config


def test_an_image_with_pixels_left_over_is_cropped_as_the_official_code_does(save):
    shapes = linen_shapes(POSEMBED, 17)
    model = tiny_model(classes=5)
    load_weights(model, save(fill(shapes)))
    logits = [
        [0.440478, -0.672876, -0.459343, -0.316944, -0.022330],
        [0.446710, -0.734391, -0.315697, -0.191740, 0.002175],
    ]
    images = golden_images(37)[:, :32, :32]
    np.testing.assert_allclose(numpy(model(images)), logits, rtol=0, atol=2e-5)


def test_unpooled_models_give_logits_for_every_token(save):
    shapes = linen_shapes(POSEMBED, 17)
    model = tiny_model(classes=5, pooling=None)
    load_weights(model, save(fill(shapes)))
    logits = numpy(model(golden_images(32)))
    assert logits.shape == (2, 17, 5)
    assert logits.sum() == pytest.approx(14.00162, abs=1e-3)
    assert np.abs(logits).sum() == pytest.approx(77.31410, abs=1e-3)
    last = [1.021280, -0.363894, 0.110912, 0.007020, 0.400979]
    np.testing.assert_allclose(logits[1, -1], last, rtol=0, atol=2e-5)
    shapes = linen_shapes(POSEMBED, 16, class_token=False)
    model = tiny_model(classes=5, pooling=None, class_token=False)
    load_weights(model, save(fill(shapes)))
    logits = numpy(model(golden_images(32)))
    assert logits.sum() == pytest.approx(20.74687, abs=1e-3)
    first = [0.679581, -0.678968, 0.617944, -0.051957, -0.297349]
    np.testing.assert_allclose(logits[0, 0], first, rtol=0, atol=2e-5)


def bit_arrays():
    """The BiT network of the golden vectors, in big_vision's names."""
    shapes = {"root_block/conv_root/kernel": (7, 7, 3, 64)}
    channels = 64
    for stage, units in enumerate((1, 2, 1, 1), start=1):
        filters = 64 * 2 ** (stage - 1)
        for unit in range(1, units + 1):
            start = f"block{stage}/unit{unit:02}"
            convs = {1: (1, 1, channels, filters), 2: (3, 3, filters, filters)}
            convs[3] = (1, 1, filters, 4 * filters)
            for number, shape in convs.items():
                shapes[f"{start}/conv{number}/kernel"] = shape
                for part in ("scale", "bias"):
                    shapes[f"{start}/gn{number}/{part}"] = (1, 1, 1, shape[-2])
            if unit == 1:
                shapes[f"{start}/conv_proj/kernel"] = (1, 1, channels, 4 * filters)
            channels = 4 * filters
    for part in ("scale", "bias"):
        shapes[f"norm-pre-head/{part}"] = (1, 1, 1, channels)
    shapes.update({"head/kernel": (channels, 5), "head/bias": (5,)})
    return fill(shapes)


def to_tensorflow_names(arrays):
    """BiT's arrays as its TensorFlow code names them, some with a number at the end."""
    renamed = {}
    for name, array in arrays.items():
        name = re.sub(r"root_block/conv_root", "root_block/standardized_conv2d", name)
        name = re.sub(r"conv_proj", "a/proj/standardized_conv2d_3", name)
        for number, letter in enumerate("abc", start=1):
            name = name.replace(f"conv{number}/", f"{letter}/standardized_conv2d_12/")
            name = name.replace(f"gn{number}/", f"{letter}/group_norm/")
        name = name.replace("norm-pre-head", "group_norm").replace("head/", "head/conv2d/")
        if "group_norm" in name:
            name = name.replace("scale", "gamma").replace("bias", "beta")
            array = array.reshape(-1)
        renamed[f"resnet/{name}"] = array[None, None] if name == "head/conv2d/kernel" else array
    return renamed


@pytest.mark.parametrize("names", ["big_vision", "tensorflow"])
def test_bit_has_the_logits_of_its_official_code(names, save):
    arrays = bit_arrays()
    assert (len(arrays), sum(a.size for a in arrays.values())) == (54, 8_298_565)
    path = save(arrays if names == "big_vision" else to_tensorflow_names(arrays))
    model = build_resnet(
        ResNetConfig(stages=(1, 2, 1, 1), image_size=64, classes=5, include_preprocessing=False)
    )
    load_weights(model, path)
    expected = [
        [-2.583279, -1.869506, -4.529027, -1.327823, -1.356910],
        [-4.963905, -4.752320, -3.423859, -2.685648, -3.075397],
    ]
    np.testing.assert_allclose(numpy(model(golden_images(64))), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/", "img/"])
def test_prefixes_and_other_parts_of_the_file(prefix, save):
    shapes = linen_shapes("pos_embedding", 16)
    arrays = {f"{prefix}{name}": array for name, array in fill(shapes).items()}
    others = {
        "params/img/": ["params/txt/embedding/kernel", "params/t", "params/b"],
        "img/": ["txt/embedding/kernel", "t", "b"],
        "opt/target/": ["opt/state/step", "opt/state/param_states/cls/grad_ema"],
        "params/": ["opt/0/count"],
    }[prefix]
    arrays.update({name: np.int32([1]) for name in others})
    model = tiny_model(classes=5, position_on_class_token=False)
    report = load_weights(model, save(arrays))
    assert sorted(report.left_out) == sorted(others)
    np.testing.assert_allclose(
        numpy(model(golden_images(32)))[0],
        VECTORS["big_vision tok"][-1][0],
        rtol=0,
        atol=2e-5,
    )


def test_stacked_blocks_in_bfloat16(save):
    shapes = linen_shapes("pos_embedding", 16, class_token=False)
    arrays = fill(shapes)
    arrays = {
        name: array.astype(ml_dtypes.bfloat16).astype("float32") for name, array in arrays.items()
    }
    plain = tiny_model(classes=5, pooling="gap", class_token=False)
    load_weights(plain, save(arrays))
    stacked = {}
    for name, array in arrays.items():
        array = array.astype(ml_dtypes.bfloat16).view("V2")
        if "encoderblock_" in name:
            if "encoderblock_0" in name:
                other = arrays[name.replace("_0/", "_1/", 1)].astype(ml_dtypes.bfloat16)
                array = np.stack([array, other.view("V2")])
                stacked["params/" + name.replace("encoderblock_0", "encoderblock")] = array
        else:
            stacked[f"params/{name}"] = array
    model = tiny_model(classes=5, pooling="gap", class_token=False)
    load_weights(model, save(stacked, "stacked.npz"))
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def test_rows_of_the_class_token_fold_and_unfold(token, save):
    images = golden_images(32)
    with_row = tiny_model()
    load_weights(with_row, golden_file("vit_token"))
    expected = numpy(with_row(images))
    folded = tiny_model(position_on_class_token=False)
    report = load_weights(folded, golden_file("vit_token"))
    assert "class_token/token" in report.resized
    np.testing.assert_allclose(numpy(folded(images)), expected, rtol=0, atol=2e-5)
    positions = token.pop(POSEMBED)
    token["cls"] = token["cls"] + positions[:, :1]
    token["pos_embedding"] = positions[:, 1:]
    linen = {
        name.replace("Attention_1", "Attention_0")
        .replace("LayerNorm_2", "LayerNorm_1")
        .replace("MlpBlock_3", "MlpBlock_0"): array
        for name, array in token.items()
    }
    unfolded = tiny_model()
    load_weights(unfolded, save(linen))
    np.testing.assert_allclose(numpy(unfolded(images)), expected, rtol=0, atol=2e-5)


def test_another_image_size_keeps_the_class_row(token):
    model = tiny_model(image_size=(24, 56))
    report = load_weights(model, golden_file("vit_token"))
    table = model.get_layer("position_embedding").embedding.numpy()
    np.testing.assert_array_equal(table[:, :1], token[POSEMBED][:, :1])
    expected = resize_positions(token[POSEMBED][:, 1:], (4, 4), (3, 7))
    np.testing.assert_array_equal(table[:, 1:], expected)
    assert "4 x 4 to 3 x 7 positions (align_corners)" in str(report)


def test_the_grid_of_a_file_is_never_guessed(token, save):
    rng = np.random.default_rng(0)
    token[POSEMBED] = rng.normal(size=(1, 1 + 21, 32)).astype("float32")
    path = save(token)
    model = tiny_model()
    with pytest.raises(CheckpointMismatchError, match=r"22 rows .* no square.*grid=\(rows"):
        load_weights(model, path)
    load_weights(model, path, grid=(7, 3))
    expected = resize_positions(token[POSEMBED][:, 1:], (7, 3), (4, 4))
    table = model.get_layer("position_embedding").embedding.numpy()
    np.testing.assert_array_equal(table[:, 1:], expected)
    load_weights(tiny_model(image_size=(56, 24)), path)  # the model's own grid fits
    with pytest.raises(CheckpointMismatchError, match="no grid of 5 x 5"):
        load_weights(model, path, grid=(5, 5))


def test_two_readings_of_a_grid_are_both_named(token, save):
    model = tiny_model(image_size=(16, 64))  # 2 x 8 has as many places as 4 x 4
    with pytest.raises(
        CheckpointMismatchError,
        match=r"1 rows for tokens and a grid of 2 x 8 or 1 rows for tokens and a grid of 4 x 4",
    ):
        load_weights(model, golden_file("vit_token"))
    report = load_weights(model, golden_file("vit_token"), grid=(4, 4))
    assert report.resized
    assert not load_weights(model, golden_file("vit_token"), grid=(2, 8)).resized


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_another_number_of_channels_adapts_the_patch_kernel(channels, token):
    model = tiny_model(channels=channels)
    report = load_weights(model, golden_file("vit_token"))
    assert f"3 to {channels} channels" in report.resized["patch_encoder/projection/kernel"]
    grey = golden_images(32)[..., :1]
    colour = tiny_model()
    load_weights(colour, golden_file("vit_token"))
    expected = numpy(colour(np.repeat(grey, 3, axis=-1)))
    if channels != 4:  # a whole number of copies
        ours = numpy(model(np.repeat(grey, channels, axis=-1)))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)


def test_another_patch_size_is_asked_for_or_an_error(token):
    model = tiny_model(patch_size=16, image_size=64)
    with pytest.raises(CheckpointMismatchError, match=r"'embedding/kernel' is .8, 8, 3, 32."):
        load_weights(model, golden_file("vit_token"))
    report = load_weights(model, golden_file("vit_token"), resize_patches=True)
    assert "8 x 8 to 16 x 16 pixels (pseudo-inverse, bilinear)" in str(report)


def test_a_head_of_other_classes_starts_at_zero_and_is_in_the_report(token):
    model = tiny_model(classes=7, head_bias=-10.0)
    for weight in model.get_layer("head").weights:
        weight.assign(np.ones(weight.shape))
    report = load_weights(model, golden_file("vit_token"))
    assert report.fresh == ("head/kernel", "head/bias")
    assert report.left_out == ("head/kernel", "head/bias")
    kernel, bias = model.get_layer("head").get_weights()
    assert not kernel.any()
    assert (bias == -10).all()
    assert "started fresh: head/kernel, head/bias" in str(report)


def test_pre_logits_stay_out_with_a_head_of_other_classes_or_none():
    report = load_weights(tiny_model(classes=7), golden_file("vit_pre_logits"))
    assert set(report.left_out) >= {"pre_logits/kernel", "pre_logits/bias"}
    report = load_weights(tiny_model(classes=7, pre_logits=32), golden_file("vit_pre_logits"))
    assert "pre_logits/kernel" in report.loaded
    report = load_weights(tiny_model(classes=None), golden_file("vit_pre_logits"))
    assert not report.fresh
    assert len(report.left_out) == 4


def test_a_head_of_another_form_is_no_fit():
    with pytest.raises(CheckpointMismatchError, match="unused: 'pre_logits/kernel'"):
        load_weights(tiny_model(), golden_file("vit_pre_logits"))
    with pytest.raises(CheckpointMismatchError, match="missing: 'pre_logits/kernel'"):
        load_weights(tiny_model(pre_logits=32), golden_file("vit_token"))


def test_all_problems_are_in_one_error_and_nothing_is_assigned(token, save):
    token["cls"] = token["cls"].astype("int32")
    token["embedding/bias"] = np.zeros(7, "float32")
    token["surprise"] = np.zeros(3, "float32")
    del token["Transformer/encoder_norm/scale"]
    model = tiny_model()
    before = [w.numpy() for w in model.weights]
    with pytest.raises(CheckpointMismatchError, match=r"nothing was loaded. 4 problems") as error:
        load_weights(model, save(token))
    for part in (
        "wrong type: 'cls' holds int32",
        "misshapen: 'embedding/bias' is (7,), but patch_encoder/projection/bias needs (32,)",
        "unused: 'surprise' (3,)",
        "missing: 'Transformer/encoder_norm/scale', for encoder_norm/gamma (32,)",
    ):
        assert part in str(error.value)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_a_bad_value_late_in_the_file_assigns_nothing(token, save):
    token["head/bias"][0] = np.nan
    model = tiny_model()
    before = [w.numpy() for w in model.weights]
    with pytest.raises(ValueError, match=r"'head/bias'.*NaN"):
        load_weights(model, save(token))
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_a_block_that_the_model_lacks_is_named(tmp_path):
    shapes = {
        name.replace("encoderblock_1", "encoderblock_11"): shape
        for name, shape in linen_shapes(POSEMBED, 17).items()
    }
    arrays = {name: np.zeros(shape, "float32") for name, shape in shapes.items()}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(CheckpointMismatchError, match="encoderblock_11"):
        load_weights(tiny_model(), tmp_path / "x.npz")


def test_a_patch_kernel_of_two_axes_tells_no_sizes(token, save):
    kernel = token["embedding/kernel"]
    path = save({**token, "embedding/kernel": kernel.reshape(-1, kernel.shape[-1])})
    assert inspect_file(path).sizes == {}


def test_names_of_no_layout_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", weights=np.zeros(3), biases=np.zeros(3))
    with pytest.raises(ValueError, match=r"match no known layout .'weights', 'biases'"):
        load_weights(tiny_model(), tmp_path / "x.npz")


def test_rezipped_files_load_and_folders_in_them_are_a_prefix(token, tmp_path, save):
    np.savez_compressed(tmp_path / "small.npz", **token)
    load_weights(tiny_model(), tmp_path / "small.npz")
    with zipfile.ZipFile(save(token)) as old, zipfile.ZipFile(tmp_path / "f.npz", "w") as new:
        for name in old.namelist():
            new.writestr(f"ViT-B_16/{name}", old.read(name))
    assert load_weights(tiny_model(), tmp_path / "f.npz").prefix == "ViT-B_16/"


TINY = {
    "patch_size": 8,
    "width": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_dim": 64,
    "input_shape": (32, 32, 3),
}


def test_create_model_follows_the_file():
    path = golden_file("vit_pre_logits")
    _, outputs = official.load_golden("vit_pre_logits")
    model = create_model("vit_b16", weights=path, classes=10, gelu="tanh", **TINY)
    assert model.config.pre_logits == 32
    pixels = (outputs["images"] + 1) * 127.5
    np.testing.assert_allclose(numpy(model(pixels)), outputs["logits"], rtol=0, atol=5e-5)
    other = create_model("vit_b16", weights=path, classes=3, **TINY)
    assert other.config.pre_logits is None
    assert other.load_report.fresh == ("head/kernel", "head/bias")
    gap = create_model("vit_b16", weights=golden_file("vit_gap"), classes=10, **TINY)
    assert (gap.config.pooling, gap.config.class_token) == ("gap", False)
    features = create_model("vit_b16", weights=path, include_top=False, pooling="gap", **TINY)
    assert features.output_shape == (None, 32)
    assert features.config.class_token
    grey = create_model("vit_b16", weights=path, classes=10, **{**TINY, "input_shape": (32, 32, 1)})
    assert grey.config.preprocessing.mean == (127.5,)


def test_create_model_keeps_what_the_caller_chose():
    path = golden_file("vit_token")
    model = create_model("vit_b16", weights=path, classes=10, gelu="exact", **TINY)
    assert model.config.block.gelu == "exact"


def test_create_model_names_a_file_that_is_not_there():
    with pytest.raises(ValueError, match="no such file"):
        create_model("vit_b16", weights="ViT-B_16.npz")


def test_inspect_file_says_what_it_is():
    info = inspect_file(golden_file("vit_token"))
    assert (info.kind, info.layout, info.classes) == ("npz", "official", 10)
    assert (info.grid, info.patch_size, info.image_size) == ((4, 4), (8, 8), (32, 32))
    assert info.parameters == 24_234
    assert len(info.arrays) == 40
    assert info.options["gelu"] == "tanh"
