"""Tests benchmarks/throughput.py: the search for the largest batch, and real probes."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_vit.evaluate.counting import count_macs
from keras_vit.models.vit import build_vit
from tests.fixtures import tiny_config

REQUEST = {
    "model": "vit_ti16",
    "image_size": 32,
    "training": False,
    "precision": "float32",
    "seconds": 0.01,
    "memory_limit": None,
    "batch_size": 2,
}


@pytest.fixture
def throughput(load):
    return load("throughput")


@pytest.fixture
def probe(throughput):
    """Runs a probe of a tiny model in a process of its own."""

    def run(**changes):
        return throughput.run_probe({**REQUEST, **changes})

    return run


@pytest.mark.parametrize("fits", [0, 1, 2, 3, 37, 64, 100, 1000])
def test_the_search_finds_the_largest_batch_to_an_eighth(throughput, fits):
    tried = []

    def try_batch(batch):
        tried.append(batch)
        return float(batch) if batch <= fits else None

    probes = throughput.search_batches(try_batch, max_batch=256)
    assert tried == list(probes) and len(tried) == len(set(tried)) <= 13
    largest = max((b for b, speed in probes.items() if speed), default=0)
    assert largest <= fits
    assert min(fits, 256) - largest <= largest // 8


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_a_probe_measures_in_a_process_of_its_own(probe, training):
    result = probe(training=training)
    assert result["images_per_second"] > 0 and result["steps"] >= 3


@pytest.mark.slow
def test_training_steps_are_measured(throughput, monkeypatch):
    small = build_vit(tiny_config(depth=1))
    monkeypatch.setattr(throughput, "build_model", lambda *_: small)
    before = small.get_layer("head").bias.numpy()
    result = throughput.measure_batch({**REQUEST, "training": True})
    assert result["images_per_second"] > 0 and result["steps"] >= 3
    assert np.abs(small.get_layer("head").bias.numpy() - before).max() > 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.slow
def test_a_probe_without_memory_is_none(probe):
    # 640 images of 224 pixels fit into 1 GiB; what the model makes of them does not, and
    # TensorFlow crashes under the limit without a word.
    assert probe(image_size=224, batch_size=640, memory_limit=2**30) is None


@pytest.mark.parametrize(
    "words",
    [
        "ResourceExhaustedError: OOM when allocating tensor",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "_ArrayMemoryError: Unable to allocate 2.30 GiB",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_memory_errors_are_recognised(throughput, words):
    assert throughput.is_memory_error(words)
    assert not throughput.is_memory_error("InvalidArgumentError: shapes differ")


@pytest.mark.slow
def test_other_failures_are_errors(probe):
    with pytest.raises(RuntimeError, match=r"not of memory(.|\n)*no variant 'vit'"):
        probe(model="vit")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_means_exhausted_memory(throughput, probe, number, monkeypatch):
    def killed(command, **_):
        return subprocess.CompletedProcess(command, -number, "", "")

    monkeypatch.setattr(throughput.subprocess, "run", killed)
    assert probe(memory_limit=2**30) is None
    if number == signal.SIGKILL:
        assert probe() is None
    else:  # without a limit, a crash is a fault
        with pytest.raises(RuntimeError, match="failed with status -11"):
            probe()


def test_models_are_measured_over_sizes(throughput, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")

    def run(request):
        pixels = request["image_size"] ** 2 * request["batch_size"]
        speed = 1e6 / request["image_size"] ** 2 * request["batch_size"] ** 0.5
        return None if pixels > 40_000 else {"images_per_second": speed}

    monkeypatch.setattr(throughput, "run_probe", run)
    line = ["--max-batch", "32", "--output", str(tmp_path), "--sizes", "32", "64", "256"]
    measurements = throughput.main([*line, "--models", "a", "b"])
    first, second, third = measurements[:3]
    assert len(measurements) == 6
    assert (first.largest_batch, first.best_batch, first.limited_by) == (32, 32, "max_batch")
    assert second.limited_by == "memory" and 8 <= second.largest_batch <= 9
    assert third.images_per_second is None and third.largest_batch == 0
    content = json.loads((tmp_path / "throughput.json").read_text())
    assert content["precision"] == "float32" and content["keras"] and content["cpu"]
    assert content["measurements"][1]["probes"]["16"] is None
    with open(tmp_path / "throughput.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["largest_batch"] for row in rows] == [str(m.largest_batch) for m in measurements]
    figure = throughput.plot_throughput(measurements)
    assert [len(axis.lines) for axis in figure.axes] == [2, 2]
    figure.canvas.draw()
    assert figure.axes[1].get_ylabel() == "largest batch (images; search ended at 32)"
    shown = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "100" in shown and not any("10^" in text for text in shown)


def test_an_interrupted_benchmark_continues(throughput, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    requests = []

    def run(request):
        requests.append((request["model"], request["image_size"]))
        return {"images_per_second": 5.0}

    monkeypatch.setattr(throughput, "run_probe", run)
    line = ["--max-batch", "1", "--output", str(tmp_path), "--sizes", "32", "64", "--models"]
    theirs = "keras.applications.EfficientNetB0"
    assert len(throughput.main([*line, "vit_ti16"])) == 2
    assert len(throughput.main([*line, "vit_ti16", theirs])) == 4
    assert requests == [(model, size) for model in ("vit_ti16", theirs) for size in (32, 64)]
    assert len((tmp_path / "throughput.csv").read_text().splitlines()) == 5
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="measured with other settings"):
        throughput.main([*line, "vit_ti16", "--training"])


@pytest.mark.slow
def test_models_of_keras_applications_by_name(throughput):
    build = throughput.build_model
    ours = build("vit_ti16", 64, classes=5)
    theirs = build("keras.applications.EfficientNetB0", 64, classes=5)
    assert ours.input_shape == theirs.input_shape == (None, 64, 64, 3)
    assert ours.output_shape == theirs.output_shape == (None, 5)
    assert 0 < count_macs(theirs) < count_macs(ours)
    assert build("vit_ti16", (32, 48), 5).input_shape == (None, 32, 48, 3)
    with pytest.raises(ValueError, match="Did you mean EfficientNetB"):
        build("keras.applications.EfficientNetB8")
