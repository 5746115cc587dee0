"""The examples run, and their results are checked."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import runpy
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_vit
from tests.networks.cases import network_folder
from tests.workers import python

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow  # the README's code and the next test run its steps
def test_quickstart_trains_plots_and_exports(tmp_path, monkeypatch, capsys):
    words = ["quickstart.py", "--smoke", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(ROOT / "examples/quickstart.py"), run_name="__main__")
    printed = capsys.readouterr().out

    report = json.loads((tmp_path / "report.json").read_text())
    assert report["split"] == {"seed": 1, "train": 140, "held_out": 360}
    assert report["versions"]["keras_vit"] == keras_vit.__version__
    assert set(report["files"]) == {"saved_model/1", "model.tflite"}
    for name, file in report["files"].items():
        assert 0 <= file["max_difference"] < 1e-4
        assert file["agreement"] == 1
        assert file["bytes"] > 100_000
        assert f"{name} loaded without keras_vit" in printed
    pixels = keras.utils.img_to_array(keras.utils.load_img(tmp_path / "predictions.png"))
    assert pixels.shape[1] > 500 and pixels.std() > 10

    # The saved model has the accuracy and logits of the report.
    held_out = np.load(tmp_path / "held_out.npz")
    model = keras.saving.load_model(tmp_path / "model.keras")
    logits = model.predict(held_out["images"], verbose=0)
    np.testing.assert_allclose(logits, held_out["logits"], rtol=0, atol=1e-5)
    assert f"{report['accuracy']:.2%}" in printed


@pytest.mark.slow
def test_two_workers_train_and_save(tmp_path):
    script = ROOT / "examples/multi_worker.py"
    command = (script, "--smoke", "--output", tmp_path, "--local")
    printed = python(*command, "2")
    assert "Epoch 2/2" in printed
    accuracy = re.search(r"2 replicas, ([\d.]+)% of held-out", printed).group(1)
    assert float(accuracy) > 20  # of ten classes, after 2 epochs

    # The saved model has the printed accuracy in a process outside of the cluster.
    model = keras.saving.load_model(tmp_path / "model.keras")
    shards = keras_vit.data.find_shards(f"{tmp_path}/shards/held_out-*.tfrecord")
    assert shards.counts == (20, 280, 60)
    test = keras_vit.data.read_shards(shards, runpy.run_path(str(script))["parse"], 360)
    ((images, digits),) = test
    answers = model.predict(images, batch_size=360, verbose=0).argmax(-1)
    assert f"{np.mean(answers == digits.numpy()):.2%}" == f"{accuracy}%"


def test_run_exports_works_without_keras_vit_and_measures_differences(tmp_path):
    model = keras_vit.build_vit(
        keras_vit.make_config(
            patch_size=4, width=16, depth=1, num_heads=2, mlp_dim=32, image_size=8, classes=3
        )
    )
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.2, weight.shape))
    images = rng.uniform(0, 255, (4, 8, 8, 3)).astype("float32")
    keras_vit.export_litert(model, tmp_path / "model.tflite")
    wrong = model.predict(images, verbose=0) + np.float32([0.25, 0, 0])
    np.savez(tmp_path / "held_out.npz", images=images, logits=wrong)
    script = ROOT / "examples/run_exports.py"
    printed = python(script, tmp_path / "held_out.npz", tmp_path / "model.tflite")
    assert abs(json.loads(printed)[0]["max_difference"] - 0.25) < 1e-4
    blocked = (
        f"import runpy\nrunpy.run_path({str(script)!r})\n"
        "try:\n    import keras_vit\nexcept ImportError:\n    print('refused')"
    )
    assert python("-c", blocked).strip() == "refused"


@pytest.mark.slow
def test_a_trained_dense_model_of_others_gives_its_maps_in_every_format(real_network, tmp_path):
    script = runpy.run_path(str(ROOT / "examples/dense_model_of_others.py"))
    picture = tmp_path / "maps.png"
    words = [str(real_network), "--output", str(tmp_path / "files"), "--picture", str(picture)]
    model, difference, reports = script["main"](words)
    assert difference < 2e-5  # both round in float32, in another order; maps reach 0.99
    assert {report.format for report in reports} == set(keras_vit.export.formats.FORMATS)
    assert all(report.max_difference < 2e-5 and report.images == 6 for report in reports)
    assert picture.stat().st_size > 50_000
    pixels = script["photographs"]().round()
    maps = model.predict(pixels, verbose=0)
    served = tf.saved_model.load(str(reports[0].path)).signatures["serving_default"]
    files = [tf.io.encode_png(image.astype("uint8")) for image in pixels]
    answers = served(image_bytes=tf.stack(files))["importance"].numpy()
    assert np.abs(answers - maps).max() < 2e-5  # through the bytes of image files, too
    options = {"calibration": pixels, "precision": "int8"}
    small = keras_vit.export_litert(model, tmp_path / "small.tflite", **options)
    loaded = keras_vit.export.formats.FORMATS["litert"].load(small.path)
    found = loaded(pixels)["importance"] > 0.5
    assert (found & (maps > 0.5)).sum() / (found | (maps > 0.5)).sum() > 0.97
    decoder = real_network / "decoder.safetensors"
    model.get_layer("bn2").set_weights([x[::-1] for x in model.get_layer("bn2").get_weights()])
    pixels = script["photographs"]()
    expected = script["source_maps"](str(real_network / "focus.onnx"), pixels)
    assert np.abs(model.predict(pixels, verbose=0) - expected).max() > 0.05  # it would be seen
    script["load_decoder"](model, decoder)
    assert np.abs(model.predict(pixels, verbose=0) - expected).max() < 2e-5


def test_dense_networks_writes_checkpoints_with_random_heads(tmp_path):
    config = keras_vit.make_config(
        patch_size=14, width=32, depth=12, num_heads=2, mlp_dim=128, image_size=56,
        layer_scale=0.5, norm_epsilon=1e-6, pooling=None, classes=None,
    )  # fmt: skip
    vit = keras_vit.build_vit(config)
    for number, weight in enumerate(vit.weights):
        weight.assign(keras.random.normal(weight.shape, stddev=0.2, seed=number))
    keras_vit.save_weights(vit, tmp_path / "model.safetensors", layout="transformers")
    script = runpy.run_path(str(ROOT / "examples/dense_networks.py"))
    depth = keras_vit.from_pretrained(script["write_depth_anything"](tmp_path, tmp_path / "depth"))
    found = depth.predict(np.full((1, 56, 84, 3), 200.0), verbose=0)["predicted_depth"]
    assert found.shape == (1, 56, 84) and found.std() > 0
    yolos = script["write_yolos"](tmp_path, tmp_path / "yolos", ["a", "b"], tokens=7)
    yolos = keras_vit.from_pretrained(yolos, input_shape=(64, 96, 3), patch_size=16)
    assert yolos.output["logits"].shape == (None, 7, 3)
    pose = script["write_vitpose"](tmp_path, tmp_path / "pose", 5, [[0, 1]])
    pose = keras_vit.from_pretrained(pose, input_shape=(84, 56, 3))
    assert pose.output["heatmaps"].shape == (None, 5, 24, 16)
    assert keras_vit.pose.find_edges(pose) == ((0, 1),)
    sam = keras_vit.segmentation.load_promptable(script["write_sam"](tmp_path, tmp_path / "s", 56))
    found = sam.predict([np.full((40, 60, 3), 200)], points=[[[30, 20]]])
    assert found["masks"].shape == (1, 3, 16, 16) and found["masks"].std() > 0
    scaled, kept = (
        script["backbone_arrays"](tmp_path, "", keeps_scale=keeps) for keeps in (False, True)
    )
    for part, number in (("attention.output.dense", "1"), ("mlp.fc2", "2")):
        name = f"encoder.layer.3.{part}"
        scale = kept[f"encoder.layer.3.layer_scale{number}.lambda1"]
        expected = kept[f"{name}.weight"] * scale[:, None]
        np.testing.assert_array_equal(scaled[f"{name}.weight"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_rf_detr_learns_boxes_of_both_layouts(layout, tmp_path):
    random, names = np.random.default_rng(0), ["red", "green", "blue"]
    for part, count in (("train", 8), ("test", 4)):
        images = tmp_path / (f"images/{part}" if layout == "yolo" else part)
        labels = tmp_path / f"labels/{part}"
        images.mkdir(parents=True), labels.mkdir(parents=True)
        rows, boxes = [], []
        for index in range(count):
            pixels = random.integers(0, 40, (60, 80, 3)).astype("uint8")
            left, top = random.integers(0, 30, 2).tolist()
            pixels[top : top + 24, left : left + 32, index % 3] = 255
            keras.utils.save_img(images / f"{index}.png", pixels, scale=False)
            size = {"id": index, "file_name": f"{index}.png", "height": 60, "width": 80}
            rows.append(size)
            boxes.append({"image_id": index, "category_id": index % 3, "bbox": [left, top, 32, 24]})
            x, y = (left + 16) / 80, (top + 12) / 60
            (labels / f"{index}.txt").write_text(f"{index % 3} {x} {y} 0.4 0.4")
        kinds = [{"id": index, "name": name} for index, name in enumerate(names)]
        if layout == "coco":
            content = {"images": rows, "annotations": boxes, "categories": kinds}
            (images / "_annotations.coco.json").write_text(json.dumps(content))
        else:
            (tmp_path / "classes.txt").write_text("\n".join(names))
    checkpoint = network_folder("rf-detr", tmp_path / "checkpoint")
    main = runpy.run_path(str(ROOT / "examples/rf_detr.py"))["main"]
    output = tmp_path / "output"
    losses, result = main([str(checkpoint), str(tmp_path), "--output", str(output), "--epochs=3"])
    assert len(losses) == 3 and losses[-1] < losses[0] and result.num_images == 4
    detector = keras.saving.load_model(output / "detector.keras")
    assert detector.class_names == ("red", "green", "blue")


def test_the_guide_of_dense_models_shows_the_example():
    page = (ROOT / "docs/dense-of-others.md").read_text()
    program = (ROOT / "examples/dense_model_of_others.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if block.startswith("def ")]
    assert len(shown) == 2 and all(block in program for block in shown)


def pixel_shuffle(x):
    rows, columns, channels = x.shape[1:]
    x = layers.Reshape((rows, columns, channels // 4, 2, 2))(x)
    x = layers.Permute((1, 4, 2, 5, 3))(x)
    return layers.Reshape((2 * rows, 2 * columns, channels // 4))(x)


# Rows of docs/dense-of-others.md: PyTorch's layer as ONNX has it, and what takes its place.
_PADS, _STRIDE = {"pads": [1, 1, 1, 1]}, {"strides": [2, 2]}
_LINEAR = {"mode": "linear"}
OF_PYTORCH = {
    "Conv2d": ("Conv", _PADS, "conv", lambda: [layers.Conv2D(8, 3, padding="same")]),
    "Conv2d, stride": (
        "Conv",
        {**_PADS, **_STRIDE},
        "conv",
        lambda: [layers.ZeroPadding2D(1), layers.Conv2D(8, 3, 2)],
    ),
    "ConvTranspose2d": (
        "ConvTranspose",
        {**_PADS, **_STRIDE},
        "transposed 4",
        lambda: [layers.Conv2DTranspose(8, 4, 2, "same")],
    ),
    "ConvTranspose2d, output padding": (
        "ConvTranspose",
        {**_PADS, **_STRIDE, "output_padding": [1, 1]},
        "transposed 3",
        lambda: [layers.Conv2DTranspose(8, 3, 2), layers.Cropping2D(((1, 0), (1, 0)))],
    ),
    "BatchNorm2d": (
        "BatchNormalization",
        {"epsilon": 1e-5},
        "norm",
        lambda: [layers.BatchNormalization(momentum=0.9, epsilon=1e-5)],
    ),
    "GroupNorm": (
        "GroupNormalization",
        {"epsilon": 1e-5, "num_groups": 2},
        "scale",
        lambda: [layers.GroupNormalization(2, epsilon=1e-5)],
    ),
    "GELU": (
        "Gelu",
        {},
        "",
        lambda: [layers.Activation(lambda x: keras.ops.gelu(x, approximate=False))],
    ),
    "LeakyReLU": ("LeakyRelu", {"alpha": 0.01}, "", lambda: [layers.LeakyReLU(0.01)]),
    "interpolate": (
        "Resize",
        {**_LINEAR, "coordinate_transformation_mode": "pytorch_half_pixel"},
        "sizes",
        lambda: [layers.Resizing(13, 9)],
    ),
    "align_corners": (
        "Resize",
        {**_LINEAR, "coordinate_transformation_mode": "align_corners"},
        "sizes",
        lambda: [keras_vit.layers.ResizeMaps((13, 9), "align_corners")],
    ),
    "PixelShuffle": ("DepthToSpace", {"mode": "CRD", "blocksize": 2}, "", lambda: [pixel_shuffle]),
}


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_layers_of_pytorch_in_keras(name):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    operator, attributes, kind, make = OF_PYTORCH[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 6, 5)).astype("float32")  # batch, channels, rows, columns
    vector = [rng.uniform(0.5, 1.5, 4) for _ in range(4)]
    arrays = {
        "": [],
        "conv": [rng.normal(size=(8, 4, 3, 3)), rng.normal(size=8)],
        "transposed 4": [rng.normal(size=(4, 8, 4, 4)), rng.normal(size=8)],
        "transposed 3": [rng.normal(size=(4, 8, 3, 3)), rng.normal(size=8)],
        "norm": vector,
        "scale": vector[:2],
        "sizes": [],
    }[kind]
    arrays = [array.astype("float32") for array in arrays]

    inputs = keras.Input((6, 5, 4))
    outputs = inputs
    for layer in make():
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    model.set_weights([a.transpose(2, 3, 1, 0) if a.ndim == 4 else a for a in arrays])
    found = np.asarray(model(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)

    if kind == "sizes":
        arrays = [np.array([2, 4, 13, 9], "int64")]
    helper, names = onnx.helper, [f"w{i}" for i in range(len(arrays))]
    given = ["x", "", "", *names] if kind == "sizes" else ["x", *names]  # without roi and scales
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, given, ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", floats, x.shape)],
        [helper.make_tensor_value_info("y", floats, found.shape)],
        [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)],
    )
    opset = helper.make_opsetid("", 21)
    file = helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


EXPERIMENTS = [
    "cordonnier",
    "data_efficiency",
    "image_gpt",
    "masked_digits",
    "position_ablation",
    "token_merging",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_run(name, tmp_path):
    python(ROOT / f"examples/{name}.py", "--smoke", "--output", tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(0 <= x[0] <= 1 for row in results["accuracies"].values() for x in row)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_seeds_are_kept_when_a_later_one_fails(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    digits, image_gpt = (importlib.import_module(name) for name in ("digits", "image_gpt"))

    def read(split):
        if split:
            raise MemoryError
        return None, None

    monkeypatch.setattr(digits, "read_digits", read)
    monkeypatch.setattr(image_gpt, "MODELS", {"one": lambda *_: None})
    monkeypatch.setattr(image_gpt, "probe", lambda *_: [0.5] * len(image_gpt.STAGES))
    monkeypatch.setattr(sys, "argv", ["image_gpt.py", "--output", str(tmp_path)])
    with pytest.raises(MemoryError):
        image_gpt.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["accuracies"] == {"one": [[0.5]] * 7}


@pytest.mark.slow
def test_the_script_that_draws_everything_runs(tmp_path):
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(ROOT / "examples" / "look_inside.py"))
    outliers, _ = script["main"](["--smoke", "--pictures", str(tmp_path)])
    assert outliers.shape == (4, 4, 4) and not outliers.any()
    names = {path.name for path in tmp_path.iterdir()}
    text = (ROOT / "docs" / "analysis.md").read_text()
    assert names == set(re.findall(r"\(pictures/([a-z]+\.(?:png|jpg))\)", text))
