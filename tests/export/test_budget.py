"""Exports within a budget of accuracy: the search with made files, and the whole with real ones."""

from __future__ import annotations

import json
import types

import keras
import numpy as np
import pytest

from keras_vit.cli.main import main
from keras_vit.data.image_set import read_arrays
from keras_vit.errors import ExportMismatchError
from keras_vit.export import budget as module
from keras_vit.export import search
from keras_vit.export.budget import export_within_budget
from keras_vit.export.formats import FORMATS
from keras_vit.export.litert import export_litert
from keras_vit.export.litert_int8 import LayerError
from keras_vit.export.verify import ExportReport
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, tiny_config

COUNT = 40
NAMES = [f"class {letter}" for letter in "abcdefghij"]
LAYERS = [f"block_{index}/mlp" for index in range(10)]


@pytest.fixture(scope="module")
def model():
    model = build_vit(tiny_config())
    fill_random(model)
    return model


@pytest.fixture(scope="module")
def images(model):
    """Image i has the mean value i, and the class that the model finds."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2, (COUNT, 16, 32, 3))
    pixels = np.arange(COUNT)[:, None, None, None] + 1 + np.concatenate([noise, -noise], axis=1)
    classes = keras.ops.convert_to_numpy(model(pixels.astype("float32"))).argmax(-1)
    return read_arrays(pixels.astype("uint8"), classes, NAMES)


@pytest.fixture
def made(model, monkeypatch):
    """Exports that get the classes of the first images wrong: 6 in int8, one less a float layer."""
    tried = []

    def export(model, path, precision, calibration=None, float_layers=(), **options):
        tried.append((precision, len(float_layers)))
        assert precision != "int8" or len(calibration) == 8  # none of those that are counted
        wrong = {"float32": 0, "tiny": 1, "dynamic": 3, "int8": max(0, 6 - len(float_layers))}[
            precision
        ]
        size = {"float32": 100, "tiny": 20, "dynamic": 40, "int8": 30 + len(float_layers)}[
            precision
        ]
        path.parent.mkdir()
        path.write_text(str(wrong))
        return ExportReport(path, "litert", precision, size, 8, 0.0, 1.0, 1.0, 1.0)

    def load(path):
        wrong = int(path.read_text())

        def run(pixels):
            logits = keras.ops.convert_to_numpy(model(pixels))
            is_wrong = np.round(pixels.mean(axis=(1, 2, 3)) - 1) < wrong
            return {"logits": np.where(is_wrong[:, None], -logits, logits)}

        return run

    for name, calibrated in (("litert", ("int8",)), ("onnx", ())):
        format = types.SimpleNamespace(name=name, export=export, load=load, file="model")
        format.searched, format.calibrated = ("float32", "dynamic", "int8"), calibrated
        monkeypatch.setitem(FORMATS, name, format)
    errors = [LayerError("FULLY_CONNECTED", name, 1.0, 1.0) for name in LAYERS]
    monkeypatch.setattr(module, "litert_errors", lambda *args, **options: errors)
    monkeypatch.setattr(search, "time_in_turns", take_times)
    return tried


def take_times(candidates, pixels, seconds):
    for candidate in candidates:
        candidate.images_per_second = 1e3 / candidate.size


def test_calibration_images_are_of_all_classes(model, monkeypatch):
    """Folders are sorted by class: the first images are of one."""
    monkeypatch.setattr(module, "_CALIBRATION", 4)
    pixels = np.arange(40, dtype="uint8")[:, None, None, None] + np.zeros((1, 8, 8, 3), "uint8")
    images = read_arrays(pixels, np.arange(40) // 10)
    found = [x[0, 0, 0] for x in module._decoded(images, module.prepare(model))]
    assert found == [0, 10, 20, 30]


@pytest.fixture
def others(images):
    return images.split(8, seed=1)[1]


@pytest.mark.parametrize(
    ("budget", "goal", "precision", "kept", "tried"),
    [
        (0.15, "size", "int8", 0, []),  # six of forty
        (0.05, "latency", "int8", 4, [1, 2, 4, 3]),
        (0.0, "size", "int8", 6, [1, 2, 4, 8, 6, 5]),
    ],
)
def test_the_best_within_the_budget_is_written(
    budget, goal, precision, kept, tried, model, images, others, made, tmp_path
):
    output = tmp_path / "shipped"
    result = export_within_budget(model, images, output, budget, goal=goal, calibration=others)
    assert made[:3] == [("float32", 0), ("dynamic", 0), ("int8", 0)]
    assert [number for _, number in made[3:]] == tried
    figures = json.loads((output / "budget.json").read_text())
    assert (figures["precision"], figures["float_layers"]) == (precision, LAYERS[:kept])
    wrong = 6 - kept
    assert (figures["lost"], figures["gained"], figures["images"]) == (wrong, 0, COUNT)
    assert figures["before"]["accuracy"] == 1 and figures["after"]["accuracy"] == 1 - wrong / COUNT
    assert figures["drop"] <= budget and figures["drop_interval"][0] < figures["drop"]
    assert (output / "model").read_text() == str(wrong) and result.path == output / "model"
    assert not wrong or figures["worst_image"]["predicted"] != figures["worst_image"]["true"]
    assert f"{COUNT} measured, 8 others for the calibration of int8" in str(result)
    assert f"{figures['drop']:.2%}" in str(result) and not list(tmp_path.glob(".*"))


def test_layers_are_not_searched_where_a_smaller_file_will_do(
    model, images, others, made, tmp_path
):
    FORMATS["litert"].searched = ("tiny", "int8")
    result = export_within_budget(model, images, tmp_path / "a", 0.1, calibration=others)
    assert result.figures["precision"] == "tiny" and [kind for kind, _ in made] == ["tiny", "int8"]
    result = export_within_budget(
        model, images, tmp_path / "b", 0.1, goal="latency", calibration=others
    )
    assert len(made) > 4 and result.figures["precision"] == "tiny"


def test_formats_without_calibration_measure_all_images(model, images, made, tmp_path):
    FORMATS["onnx"].searched = ("float32",)
    result = export_within_budget(model, images, tmp_path / "a", to="onnx")
    assert (result.figures["images"], result.figures["calibration_images"]) == (COUNT, 0)
    assert f"{COUNT} measured\n" in str(result)


def test_what_cannot_be_within_a_budget_is_an_error(
    model, images, others, made, tmp_path, monkeypatch
):
    with pytest.raises(ValueError, match=r"in \[0, 1\): 0.005 is 0.5 %. Received: 5"):
        export_within_budget(model, images, tmp_path / "a", 5)
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        export_within_budget(model, images, tmp_path / "there")
    few = read_arrays(np.zeros((4, 32, 32, 3), "uint8"), [0, 1, 2, 0], ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"of the 10 classes of the model.* and 3 classes"):
        export_within_budget(model, few, tmp_path / "b")
    FORMATS["litert"].searched = ("int8",)
    monkeypatch.setattr(module, "litert_errors", lambda *args, **options: [])
    said = r"No precision keeps a budget of 1\.00%.* 8 bits lose most in \S+/\S+ \(.*Not even"
    with pytest.raises(ExportMismatchError, match=said):
        export_within_budget(model, images, tmp_path / "c", 0.01, calibration=others)
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_names_of_layers_hold_for_the_next_export(model, tmp_path):
    images = [np.random.default_rng(0).integers(0, 256, (32, 32, 3), "uint8")] * 4
    error = module.litert_errors(model, images)[0]
    part = module.part_of_name(error.tensor)
    path = tmp_path / "model.tflite"
    export_litert(model, path, "int8", calibration=images, float_layers=[part], tolerance=1e9)
    rest = module.litert_errors(model, images, float_layers=[part])
    assert not any(part in row.tensor for row in rest) and rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "files", "precisions", "share"),
    [
        ("litert", ["model.tflite"], {"float32", "float16", "dynamic", "int8"}, 0.6),
        # whose graph outweighs such small weights
        ("openvino", ["model.bin", "model.xml"], {"float32", "float16", "int8"}, 0.9),
    ],
)
def test_the_command_measures_a_real_file(
    to, files, precisions, share, model, images, tmp_path, capsys
):
    if to == "openvino":
        pytest.importorskip("nncf")
    keras.utils.set_random_seed(0)
    folder = tmp_path / "photos"
    for index, (pixels, label) in enumerate(images.read((0, COUNT), None, 0).as_numpy_iterator()):
        place = folder / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(place / f"{index}.png", pixels, scale=False)
    for name in NAMES:
        (folder / name).mkdir(exist_ok=True)
    model.save(tmp_path / "tiny.keras")
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    words = ["export", str(tmp_path / "tiny.keras"), "--to", to, "--output"]
    words += [str(tmp_path / "shipped"), "--labels", str(tmp_path / "labels.txt")]
    words += ["--data", str(folder)]
    assert main([*words, "--precision", "int8"]) == 2
    assert "leave `--precision`" in capsys.readouterr().err
    assert main([*words, "--budget", "2.5%"]) == 0
    printed, said = capsys.readouterr()
    tried = ", ".join(f"{to} in {each}" for each in FORMATS[to].searched if each != "int4")
    assert said.startswith(f"{to} within a budget of 2.50%: {model.name}, ")
    if "int4" not in said:
        assert f" candidates ({tried}), each exported and measured on {COUNT - 8} images" in said
    assert "GiB of memory; the time left is known after the first" in said
    figures = json.loads((tmp_path / "shipped/budget.json").read_text())
    assert figures["drop"] <= 0.025 and figures["bytes"] < share * figures["float32_bytes"]
    assert figures["images"] == COUNT - 8 and "accuracy before" in printed
    written = sorted((tmp_path / "shipped").glob("model*"))
    assert [file.name for file in written] == files
    assert sum(file.stat().st_size for file in written) == figures["bytes"]
    assert {row["precision"] for row in figures["candidates"]} >= precisions
    loaded = FORMATS[to].load(tmp_path / "shipped" / files[-1])
    pixels = next(iter(images.read((0, COUNT), None, 0).batch(COUNT).as_numpy_iterator()))[0]
    assert loaded(pixels.astype("float32"))["logits"].shape == (COUNT, 10)
