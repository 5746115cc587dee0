"""The search for the best export: with made files, and the whole with real ones."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.data.image_set import read_arrays
from keras_vit.errors import ExportMismatchError
from keras_vit.export import search
from keras_vit.export.formats import FORMATS, Format, Runtime
from keras_vit.export.inference import prepare
from keras_vit.export.litert import export_litert, litert_errors
from keras_vit.export.litert_int8 import LayerError, part_of_name
from keras_vit.export.runners import load_openvino
from keras_vit.export.search import Candidate, FoundExport, find_export, time_in_turns
from keras_vit.export.verify import ExportReport
from keras_vit.models.vit import build_vit
from tests.checks import quick
from tests.fixtures import fill_random, images_for, tiny_config

pytestmark = pytest.mark.xdist_group("saved_model")

COUNT = 40
NAMES = [f"class {letter}" for letter in "abcdefghij"]
LAYERS = tuple(f"block_{index}/mlp" for index in range(10))


def use_only(monkeypatch, *formats):
    """Leaves some formats in the table."""
    for name in set(FORMATS):
        monkeypatch.delitem(FORMATS, name)
    for format in formats:
        monkeypatch.setitem(FORMATS, format.name, format)


@pytest.fixture
def fake(monkeypatch):
    """A fake timer and one quick file for three runtimes: speeds and wrong answers by runtime."""
    pytest.importorskip("ai_edge_litert")
    fake = types.SimpleNamespace(speeds={}, wrong={})

    def missing(precision):
        raise ImportError("OpenVINO is not installed. Install it.")

    quick = dataclasses.replace(
        FORMATS["litert"],
        runtimes={
            "xla": Runtime(("float32",)),
            "litert": Runtime(("float32",)),
            "openvino": Runtime(("float32",), loading=missing),
        },
    )
    measure = search._Search._measure

    def disagree(self, candidate, runner):
        measure(self, candidate, runner)
        assert candidate.top1_agreement == 1 and candidate.max_difference < 1e-4
        candidate.loss = fake.wrong.get(candidate.runtime, 0.0)

    def time(runners, batch, seconds):
        return {candidate: fake.speeds.get(candidate.runtime, 1.0) for candidate in runners}

    use_only(monkeypatch, quick)
    monkeypatch.setattr(search, "time_in_turns", time)
    monkeypatch.setattr(search._Search, "_measure", disagree)
    return fake


@pytest.mark.slow
def test_the_fastest_within_the_budget_is_chosen(model, pixels, fake, tmp_path):
    fake.speeds |= {"xla": 3.0, "litert": 2.0, "openvino": 9.0}
    found = find_export(model, pixels, tmp_path / "kept", batch_size=4)
    assert found.chosen.runtime == "xla" and found.path == tmp_path / "kept/model.tflite"
    assert found.chosen.size > 1e4 and found.chosen.startup_seconds > 0
    np.testing.assert_allclose(found(pixels)["logits"], model(pixels), rtol=0, atol=1e-4)
    header, *rows = str(found).splitlines()
    assert header.split()[:5] == ["candidate", "images/s", "loss", "top-1", "difference"]
    assert rows[0].split()[:6] == ["xla", "in", "float32", "3", "0.00%", "100.0%"]
    assert rows[2].endswith("OpenVINO is not installed. Install it.")
    assert found.figures["not_tried"].keys() == {"openvino in float32"}

    fake.wrong["xla"] = 0.1
    again = find_export(model, pixels)
    assert again.chosen.runtime == "litert" and again.path.is_file()
    assert json.loads((again.path.parent / "export.json").read_text())["runtime"] == "litert"
    path = again.path
    del again
    assert not path.exists()
    with pytest.raises(ExportMismatchError, match=r"No export keeps a budget of 5\.00%"):
        find_export(model, pixels, budget=0.05, runtimes=("xla",))


class Asserting(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 300.0)]):
            return tf.identity(x)


class Embedded(keras.layers.Layer):
    """Looks values of pixels up in a table: XLA checks no index."""

    def call(self, x):
        return x + keras.ops.take(keras.ops.zeros(256), keras.ops.cast(x, "int32"), axis=0)


UNSAFE_LAYERS = [(Asserting, "Assert"), (Embedded, "indices")]


@pytest.mark.parametrize(("layer", "reason"), quick(UNSAFE_LAYERS, UNSAFE_LAYERS[0]))
def test_xla_is_not_tried_where_it_may_mean_something_else(layer, reason, model, pixels, fake):
    images = keras.Input((32, 32, 3))
    found = find_export(keras_vit.Model(images, model(layer()(images))), pixels, batch_size=4)
    problems = {each.runtime: each.problem for each in found.candidates}
    assert "XLA" in problems["xla"] and reason in problems["xla"]
    assert found.chosen.runtime == "litert"


@pytest.mark.slow
def test_all_runtimes_that_are_installed_agree(model, pixels):
    pytest.importorskip("onnxruntime")
    found = find_export(model, pixels, budget=0.5, batch_size=2, seconds=1)
    tried = [candidate for candidate in found.candidates if candidate.problem is None]
    assert {"graph", "xla", "litert", "onnxruntime"} <= {candidate.runtime for candidate in tried}
    assert len(tried) >= 13
    for candidate in tried:
        assert candidate.images_per_second > 0
        if candidate.precision == "float32":
            assert candidate.top1_agreement == 1 and candidate.max_difference < 1e-4
    sizes = {each.runtime: each.size for each in tried if each.precision == "bfloat16"}
    assert sizes["graph"] < sizes["xla"]  # which has signatures with and without XLA
    best = max(tried, key=lambda candidate: candidate.images_per_second)
    assert found.chosen is best


@pytest.mark.slow
def test_int8_of_openvino_is_kept_with_its_weights(model, pixels, tmp_path):
    pytest.importorskip("nncf")
    options = {"precisions": ("int8",), "batch_size": 2, "seconds": 0, "budget": 0.99}
    found = find_export(model, pixels, tmp_path / "ir", runtimes=("openvino",), **options)
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert names == ["export.json", "model.bin", "model.xml"]
    again = load_openvino(found.path)
    np.testing.assert_allclose(again(pixels)["logits"], found(pixels)["logits"], atol=1e-5)


@pytest.fixture
def runner_of(monkeypatch):
    """Makes the search find one candidate, which computes with a function of the test."""

    def replace(runner):
        def export_nothing(model, path, **options):
            path.parent.mkdir(parents=True)
            path.touch()
            return types.SimpleNamespace(path=path, size=0)

        format = types.SimpleNamespace(name="onnx", export=export_nothing, file="model")
        format.load, format.calibrated, format.roundings = (lambda path: runner), (), {}
        format.runtimes = {"onnxruntime": Runtime(("float32",))}
        use_only(monkeypatch, format)

    return replace


REGRESSIONS = [(1, None), (1, "linear"), (3, "linear")]


@pytest.mark.parametrize(("outputs", "activation"), quick(REGRESSIONS, (3, "linear")))
def test_a_regression_is_judged_by_its_values(outputs, activation, runner_of):
    model = build_vit(tiny_config(classes=outputs, depth=1))
    fill_random(model, 0.1)
    head = model.get_layer("head")
    head.set_weights([0.002 * weight for weight in head.get_weights()])  # far below 1
    pixels, options = images_for(model), {"seconds": 0, "activation": activation}
    runner_of(lambda images: {"logits": 1.005 * model(images).numpy()})
    chosen = find_export(model, pixels, **options).chosen
    assert chosen.top1_agreement is None
    assert chosen.loss == chosen.max_difference == pytest.approx(0.005, abs=1e-4)
    runner_of(lambda images: {"logits": 1.05 * model(images).numpy()})
    with pytest.raises(ExportMismatchError, match=r"No export keeps a budget of 1\.00%"):
        find_export(model, pixels, **options)
    assert find_export(model, pixels, budget=0.1, **options)
    runner_of(lambda images: {"logits": np.nan * model(images).numpy()})
    with pytest.raises(ExportMismatchError, match=r"Outputs are NaN, infinite or of another shape"):
        find_export(model, pixels, **options)


@pytest.mark.parametrize("budget", [0.25, 0.2])
def test_without_labels_other_classes_count(budget, model, runner_of):
    pixels = images_for(model, 4)

    def run(images):
        logits = model(images).numpy()
        return {"logits": np.where(np.all(images == pixels[0]), -logits, logits)}

    runner_of(run)
    if budget < 0.25:
        with pytest.raises(ExportMismatchError, match=r"in float32 .* 25\.00% +75\.0%"):
            find_export(model, pixels, budget=budget, seconds=0)
        return
    found = find_export(model, pixels, budget=budget, seconds=0)
    assert (found.chosen.top1_agreement, found.chosen.lost, found.chosen.gained) == (0.75, 1, 0)
    assert "accuracy" not in str(found) and "4 measured\n" in str(found)


def test_a_saved_model_is_kept_as_long_as_the_result(model):
    found = find_export(model, runtimes=("graph",), seconds=0)
    path = found.path
    assert (path / "saved_model.pb").is_file() and (path.parent / "export.json").is_file()
    del found
    assert not path.exists()


def test_candidates_take_turns_of_three_calls_after_a_pause(monkeypatch):
    calls = []
    monkeypatch.setattr(search.time, "sleep", lambda seconds: calls.append(seconds >= 0.1))
    names = ("graph", "xla")
    runners = {name: lambda _, name=name: calls.append(name) for name in names}
    speeds = time_in_turns(runners, np.zeros((2, 1)), seconds=0)
    assert calls == 2 * [call for name in names for call in (True, name, name, name)]
    assert speeds.keys() == set(names) and all(speed > 0 for speed in speeds.values())


def test_wrong_arguments_are_errors(model, pixels, tmp_path):
    with pytest.raises(ValueError, match=r"No runtime of \('litert',\).*graph in bfloat16"):
        find_export(model, runtimes=("litert",), precisions=("bfloat16",))
    with pytest.raises(ValueError, match=r"There is no runtime `tensorrt`.* All: graph, litert"):
        find_export(model, pixels, runtimes=("tensorrt",))
    with pytest.raises(ValueError, match=r"`precisions` must be a list of names\. Received: 'i"):
        find_export(model, pixels, precisions="int8")
    with pytest.raises(ValueError, match="`goal` must be one of 'latency', 'size'"):
        find_export(model, pixels, goal="bytes")
    with pytest.raises(ValueError, match=r"in \[0, 1\): 0.005 is 0.5 %. Received: 5"):
        find_export(model, pixels, budget=5)
    with pytest.raises(FileExistsError, match="already exists"):
        find_export(model, pixels, tmp_path)
    with pytest.raises(ValueError, match="the model's 10 classes, in their order"):
        find_export(model, pixels, labels=["a", "b"])
    few = read_arrays(np.zeros((4, 32, 32, 3), "uint8"), [0, 1, 2, 0], ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"and 3 classes, and .* and 10 classes. A list of images"):
        find_export(model, few)


def test_an_export_that_fails_everywhere_is_told(model, pixels, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the converter is out of order")

    monkeypatch.setattr(Format, "export", property(lambda _: fail))
    with pytest.raises(ExportMismatchError, match=r"could be tried:\n(.*\n)*.*is out of order"):
        find_export(model, pixels, runtimes=("litert",), seconds=60)


@pytest.mark.slow
def test_the_command_prints_the_table(model, fake, tmp_path, capsys):
    model.save(tmp_path / "tiny.keras")
    folder = tmp_path / "kept"
    assert main(["find-export", str(tmp_path / "tiny.keras"), "--output", str(folder)]) == 0
    printed, said = capsys.readouterr()
    assert "xla in float32       1         0.00%  100.0%" in printed
    labels = ", ".join(f"{name} in float32" for name in ("xla", "litert", "openvino"))
    assert f"; 3 candidates ({labels}), each exported if its runtime is installed, and" in said
    assert sorted(path.name for path in folder.iterdir()) == ["export.json", "model.tflite"]


def test_the_choice_is_said_with_its_file():
    chosen = Candidate("onnx", "float32", "onnxruntime", top1_agreement=1.0, size=2**20)
    figures = {"images": 8, "calibration_images": 0, "budget": 0.01}
    found = FoundExport(dict, chosen, (chosen,), Path("found/model.onnx"), figures)
    table, _, rest = str(found).partition("\n\n")
    assert rest.startswith("chosen  onnxruntime in float32: found/model.onnx, 1.0 MiB\n")
    assert len(table.splitlines()) == 2


def test_the_table_has_three_digits():
    rows = [
        Candidate("litert", "float32", "litert", images_per_second=x).row()[1]
        for x in (4.7891, 1234.5)
    ]
    assert rows == ["4.79", "1234"]


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
        wrong = {"float32": 0, "int4": 1, "dynamic": 3, "int8": max(0, 6 - len(float_layers))}
        size = {"float32": 100, "int4": 20, "dynamic": 40, "int8": 30 + len(float_layers)}
        path.parent.mkdir()
        path.write_text(str(wrong[precision]))
        return ExportReport(path, "litert", precision, size[precision], 8, 0.0, 1.0, 1.0, 1.0)

    def load(path):
        wrong = int(path.read_text())

        def run(pixels):
            logits = keras.ops.convert_to_numpy(model(pixels))
            is_wrong = np.round(pixels.mean(axis=(1, 2, 3)) - 1) < wrong
            return {"logits": np.where(is_wrong[:, None], -logits, logits)}

        return run

    formats = []
    for name, calibrated in (("litert", ("int8",)), ("onnx", ())):
        format = types.SimpleNamespace(name=name, export=export, load=load, file="model")
        format.calibrated, format.roundings = calibrated, FORMATS[name].roundings
        runtime = "litert" if name == "litert" else "onnxruntime"
        format.runtimes = {runtime: Runtime(("float32", "dynamic", "int4", "int8"))}
        formats.append(format)
    use_only(monkeypatch, *formats)
    errors = [LayerError("FULLY_CONNECTED", name, 1.0, 1.0) for name in LAYERS]
    monkeypatch.setattr(search, "litert_errors", lambda *args: errors)
    monkeypatch.setattr(
        search, "time_in_turns", lambda runners, *_: {x: 1e3 / x.size for x in runners}
    )
    return tried


@pytest.fixture
def others(images):
    return images.split(8, seed=1)[1]


def test_calibration_images_are_of_all_classes(model, monkeypatch):
    """Folders are sorted by class: the first images are of one."""
    monkeypatch.setattr(search, "_CALIBRATION", 4)
    pixels = np.arange(40, dtype="uint8")[:, None, None, None] + np.zeros((1, 8, 8, 3), "uint8")
    images = read_arrays(pixels, np.arange(40) // 10)
    found = [x[0, 0, 0] for x in search._decoded(images, prepare(model))]
    assert found == [0, 10, 20, 30]


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
    precisions = ("float32", "dynamic", "int8")
    result = find_export(
        model, images, output, goal, budget, ["litert"], precisions, calibration=others
    )
    assert made[:3] == [("float32", 0), ("dynamic", 0), ("int8", 0)]
    assert [number for _, number in made[3:]] == tried
    figures = json.loads((output / "export.json").read_text())
    assert (figures["precision"], figures["float_layers"]) == (precision, list(LAYERS[:kept]))
    wrong = 6 - kept
    assert (figures["lost"], figures["gained"], figures["images"]) == (wrong, 0, COUNT)
    assert figures["before"]["accuracy"] == 1 and figures["after"]["accuracy"] == 1 - wrong / COUNT
    assert figures["loss"] <= budget and figures["drop_interval"][0] < figures["loss"]
    assert (output / "model").read_text() == str(wrong) and result.path == output / "model"
    assert not wrong or figures["worst_image"]["predicted"] != figures["worst_image"]["true"]
    assert f"{COUNT} measured, 8 others for the calibration of int8" in str(result)
    assert f"{figures['loss']:.2%}" in str(result) and not list(tmp_path.glob(".*"))


def test_layers_are_not_searched_where_a_smaller_file_will_do(model, images, others, made):
    options = {"runtimes": ["litert"], "precisions": ["int4", "int8"], "calibration": others}
    result = find_export(model, images, goal="size", budget=0.1, **options)
    assert result.chosen.precision == "int4" and [kind for kind, _ in made] == ["int4", "int8"]
    result = find_export(model, images, goal="latency", budget=0.1, **options)
    assert len(made) > 4 and result.chosen.precision == "int4"


def test_formats_without_calibration_measure_all_images(model, images, made):
    result = find_export(model, images, runtimes=["onnxruntime"], precisions=["float32"])
    assert (result.figures["images"], result.figures["calibration_images"]) == (COUNT, 0)
    assert f"{COUNT} measured\n" in str(result)


def test_what_keeps_no_budget_is_an_error(model, images, others, made, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "litert_errors", lambda *args: [])
    said = r"No export keeps a budget of 1\.00%.* 8 bits lose most in \S+/\S+ \(.*not even"
    options = {"runtimes": ["litert"], "precisions": ["int8"], "calibration": others}
    with pytest.raises(ExportMismatchError, match=said):
        find_export(model, images, tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_names_of_layers_hold_for_the_next_export(model, tmp_path):
    images = [np.random.default_rng(0).integers(0, 256, (32, 32, 3), "uint8")] * 4
    error = litert_errors(model, images)[0]
    part = part_of_name(error.tensor)
    path = tmp_path / "model.tflite"
    export_litert(model, path, "int8", calibration=images, float_layers=[part], tolerance=1e9)
    rest = litert_errors(model, images, float_layers=[part])
    assert not any(part in row.tensor for row in rest) and rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "files", "precisions", "share"),
    [
        ("litert", ["model.tflite"], {"float32", "float16", "dynamic", "int8"}, 0.6),
        # whose graph outweighs such small weights
        ("openvino", ["model.bin", "model.xml"], {"float32", "float16", "int8"}, 0.9),
    ],
)
def test_the_command_measures_a_real_file(
    runtime, files, precisions, share, model, images, tmp_path, capsys
):
    if runtime == "openvino":
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
    words = ["find-export", str(tmp_path / "tiny.keras"), str(folder), "--runtimes", runtime]
    words += ["--output", str(tmp_path / "shipped"), "--labels", str(tmp_path / "labels.txt")]
    words += ["--goal", "size", "--budget", "2.5%"]
    assert main(words) == 0
    printed, said = capsys.readouterr()
    assert said.startswith(f"best size within a budget of 2.50%: {model.name}, ")
    assert f"each exported if its runtime is installed, and measured on {COUNT - 8} images" in said
    assert "GiB of memory; the time left is known after the first" in said
    figures = json.loads((tmp_path / "shipped/export.json").read_text())
    assert figures["loss"] <= 0.025
    assert figures["size"] < share * figures["candidates"][0]["size"]
    assert figures["images"] == COUNT - 8 and "accuracy before" in printed
    written = sorted((tmp_path / "shipped").glob("model*"))
    assert [file.name for file in written] == files
    assert sum(file.stat().st_size for file in written) == figures["size"]
    assert {row["precision"] for row in figures["candidates"]} >= precisions
    loaded = FORMATS[figures["format"]].load(tmp_path / "shipped" / files[-1])
    pixels = next(iter(images.read((0, COUNT), None, 0).batch(COUNT).as_numpy_iterator()))[0]
    assert loaded(pixels.astype("float32"))["logits"].shape == (COUNT, 10)
