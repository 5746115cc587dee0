"""The choice of the fastest runtime."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.cli.main import main
from keras_vit.errors import ExportMismatchError
from keras_vit.export import fastest as module
from keras_vit.export import search
from keras_vit.export.fastest import OptimizedModel, optimize
from keras_vit.export.formats import FORMATS, Runtime
from keras_vit.export.runners import load_openvino
from keras_vit.export.search import Candidate, time_in_turns
from keras_vit.models.vit import build_vit
from tests.fixtures import fill_random, images_for, tiny_config

pytestmark = pytest.mark.xdist_group("saved_model")


def use_only(monkeypatch, format):
    """Leaves one format in the table."""
    for name in set(FORMATS) - {format.name}:
        monkeypatch.delitem(FORMATS, name)
    monkeypatch.setitem(FORMATS, format.name, format)


@pytest.fixture
def fake(monkeypatch):
    """A fake timer and one quick file for three runtimes: speeds and agreements by runtime."""
    pytest.importorskip("ai_edge_litert")
    quick = dataclasses.replace(
        FORMATS["litert"],
        runtimes={name: Runtime(("float32",)) for name in ("xla", "litert", "openvino")},
    )
    fake = types.SimpleNamespace(speeds={}, agreements={})
    compare = module.compare

    def time(runners, batch, seconds):
        for candidate in runners:
            candidate.images_per_second = fake.speeds.get(candidate.runtime, 1.0)

    def agree(path, runtime, *arguments):
        report = compare(path, runtime, *arguments)
        assert report.top1_agreement == 1 and report.max_difference < 1e-4
        return dataclasses.replace(report, top1_agreement=fake.agreements.get(runtime, 1.0))

    def missing(*arguments):
        raise ImportError("OpenVINO is not installed. Install it.")

    use_only(monkeypatch, quick)
    monkeypatch.setattr(search, "time_in_turns", time)
    monkeypatch.setattr(module, "compare", agree)
    monkeypatch.setattr(search, "load_openvino", missing)
    return fake


@pytest.mark.slow
def test_the_fastest_that_agrees_is_chosen(model, pixels, fake, tmp_path):
    fake.speeds |= {"xla": 3.0, "litert": 2.0, "openvino": 9.0}
    fastest = optimize(model, pixels, 4, output=tmp_path / "kept")
    assert fastest.chosen.runtime == "xla" and fastest.path == tmp_path / "kept/model.tflite"
    assert fastest.chosen.size > 1e4 and fastest.chosen.startup_seconds > 0
    np.testing.assert_allclose(fastest(pixels)["logits"], model(pixels), rtol=0, atol=1e-4)
    header, *rows = str(fastest).splitlines()
    assert header.split()[:5] == ["runtime", "precision", "images/s", "top-1", "difference"]
    assert rows[0].split()[:4] == ["xla", "float32", "3", "100.0%"]
    assert rows[2].endswith("OpenVINO is not installed. Install it.")

    fake.agreements["xla"] = 0.9
    assert optimize(model, pixels).chosen.runtime == "litert"
    with pytest.raises(ExportMismatchError, match=r"No runtime reaches min_agreement=0.95"):
        optimize(model, pixels, min_agreement=0.95, runtimes=("xla",))


class Asserting(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 300.0)]):
            return tf.identity(x)


class Embedded(keras.layers.Layer):
    """Looks values of pixels up in a table: XLA checks no index."""

    def call(self, x):
        return x + keras.ops.take(keras.ops.zeros(256), keras.ops.cast(x, "int32"), axis=0)


@pytest.mark.parametrize(("layer", "reason"), [(Asserting, "Assert"), (Embedded, "indices")])
def test_xla_is_not_tried_where_it_may_mean_something_else(layer, reason, model, pixels, fake):
    images = keras.Input((32, 32, 3))
    fastest = optimize(keras_vit.Model(images, model(layer()(images))), pixels, 4)
    problems = {each.runtime: each.problem for each in fastest.candidates}
    assert "XLA" in problems["xla"] and reason in problems["xla"]
    assert fastest.chosen.runtime == "litert"


@pytest.mark.slow
def test_all_runtimes_that_are_installed_agree(model, pixels):
    pytest.importorskip("onnxruntime")
    fastest = optimize(model, pixels, 2, ("float32", "bfloat16", "int8"), 0.5, seconds=1)
    tried = [candidate for candidate in fastest.candidates if candidate.problem is None]
    assert {"graph", "xla", "litert", "onnxruntime"} <= {candidate.runtime for candidate in tried}
    assert len(tried) >= 9
    for candidate in tried:
        assert candidate.images_per_second > 0
        if candidate.precision == "float32":
            assert candidate.top1_agreement == 1 and candidate.max_difference < 1e-4
    sizes = {each.runtime: each.size for each in tried if each.precision == "bfloat16"}
    assert sizes["graph"] == sizes["xla"] and {"constants"} <= sizes.keys()  # one file, and one
    best = max(tried, key=lambda candidate: candidate.images_per_second)
    assert fastest.chosen is best


@pytest.mark.slow
def test_int8_of_openvino_is_kept_with_its_weights(model, pixels, tmp_path):
    pytest.importorskip("nncf")
    runtimes = ("onnxruntime", "openvino")
    tried = optimize(model, pixels, 2, ("int8",), 0.0, runtimes, seconds=0).candidates
    assert {each.runtime: each.problem for each in tried} == dict.fromkeys(runtimes)  # any order
    found = optimize(model, pixels, 2, ("int8",), 0.0, ("openvino",), tmp_path / "ir", seconds=0)
    assert sorted(path.name for path in (tmp_path / "ir").iterdir()) == ["model.bin", "model.xml"]
    again = load_openvino(found.path)
    np.testing.assert_allclose(again(pixels)["logits"], found(pixels)["logits"], atol=1e-5)


@pytest.fixture
def runner_of(monkeypatch):
    """Makes `optimize` find one candidate, which computes with a function of the test."""

    def replace(runner):
        def export_nothing(model, path, **options):
            path.parent.mkdir(parents=True)
            path.touch()
            return types.SimpleNamespace(path=path, size=0, max_difference=0.0)

        format = types.SimpleNamespace(name="litert", export=export_nothing, file="model")
        format.load, format.calibrated = (lambda path: runner), ()
        format.runtimes = {"litert": Runtime(("float32",))}
        use_only(monkeypatch, format)

    return replace


@pytest.mark.parametrize(("outputs", "activation"), [(1, None), (1, "linear"), (3, "linear")])
def test_a_regression_is_judged_by_its_values(outputs, activation, runner_of):
    model = build_vit(tiny_config(classes=outputs, depth=1))
    fill_random(model, 0.1)
    head = model.get_layer("head")
    head.set_weights([0.002 * weight for weight in head.get_weights()])  # far below 1
    pixels = images_for(model)
    runner_of(lambda images: {"logits": 1.005 * model(images).numpy()})
    chosen = optimize(model, pixels, seconds=0, activation=activation).chosen
    assert chosen.top1_agreement is None
    assert chosen.max_difference == pytest.approx(0.005, abs=1e-4)
    runner_of(lambda images: {"logits": 1.05 * model(images).numpy()})
    with pytest.raises(ExportMismatchError, match=r"No runtime reaches min_agreement=0.99"):
        optimize(model, pixels, seconds=0, activation=activation)
    assert optimize(model, pixels, 1, min_agreement=0.9, seconds=0, activation=activation)


def test_constant_weights_are_not_tried_without_memory_for_them(model, pixels, monkeypatch):
    monkeypatch.setattr(search, "memory_bytes", lambda: 99 * model.count_params())
    with pytest.raises(ExportMismatchError, match=r"constants +bfloat16 .* may take 0 GB"):
        optimize(model, pixels, 1, ("bfloat16",), runtimes=("constants",), seconds=0)


def test_candidates_take_turns_of_three_calls_after_a_pause(monkeypatch):
    calls = []
    monkeypatch.setattr(search.time, "sleep", lambda seconds: calls.append(seconds >= 0.1))
    names = ("graph", "xla")
    candidates = {
        Candidate("saved_model", "float32", name): lambda _, name=name: calls.append(name)
        for name in names
    }
    time_in_turns(candidates, np.zeros((2, 1)), seconds=0)
    assert calls == 2 * [call for name in names for call in (True, name, name, name)]
    assert all(each.images_per_second > 0 for each in candidates)


def test_wrong_arguments_are_errors(model, pixels, tmp_path):
    with pytest.raises(ValueError, match=r"No runtime of \('constants',\).*constants in bfloat16"):
        optimize(model, pixels, runtimes=("constants",))
    with pytest.raises(ValueError, match="`runtimes` must be some of 'graph', 'xla', 'constants'"):
        optimize(model, pixels, runtimes=("tensorrt",))
    with pytest.raises(ValueError, match="`precisions` must be some of 'float32', 'bfloat16'"):
        optimize(model, pixels, precisions="int8")
    with pytest.raises(FileExistsError, match="already exists"):
        optimize(model, pixels, output=tmp_path)


@pytest.mark.slow
def test_the_command_prints_the_table(model, fake, tmp_path, capsys):
    model.save(tmp_path / "tiny.keras")
    folder = tmp_path / "kept"
    assert main(["optimize", str(tmp_path / "tiny.keras"), "--output", str(folder)]) == 0
    printed, said = capsys.readouterr()
    assert "xla       float32    1         100.0%" in printed
    labels = ", ".join(f"{name} in float32" for name in ("xla", "litert", "openvino"))
    assert f"; 3 candidates ({labels}), each exported if installed, compared on " in said
    assert [path.name for path in folder.iterdir()] == ["model.tflite"]


def test_the_choice_is_said_with_its_file(tmp_path):
    chosen = Candidate("onnx", "float32", "openvino", top1_agreement=1.0, images_per_second=40.0)
    fastest = OptimizedModel(dict, chosen, [chosen], Path("fastest/model.onnx"), tmp_path / "files")
    table, _, sentence = str(fastest).partition("\n\n")
    assert sentence == "The fastest is openvino in float32, with the file fastest/model.onnx"
    assert len(table.splitlines()) == 2


def test_the_table_has_three_digits():
    rows = [
        Candidate("litert", "float32", "litert", images_per_second=x).row()[2]
        for x in (4.7891, 1234.5)
    ]
    assert rows == ["4.79", "1234"]
