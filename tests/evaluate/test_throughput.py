"""The search for the largest batch, and real probes that fit and that do not."""

from __future__ import annotations

import csv
import json
import pathlib
import runpy
import signal
import subprocess
import sys

import pytest

from keras_vit.analysis.plots import plot_throughput
from keras_vit.evaluate import throughput
from keras_vit.evaluate.contestants import build_contestant
from keras_vit.evaluate.counting import count_macs
from keras_vit.evaluate.probe import ran_out_of_memory
from keras_vit.evaluate.throughput import (
    measure_throughput,
    read_measurements,
    run_probe,
    search_batches,
    write_measurements,
)


@pytest.mark.parametrize("fits", [0, 1, 2, 3, 37, 64, 100, 1000])
def test_the_search_finds_the_largest_batch_to_an_eighth(fits):
    tried = []

    def probe(batch):
        tried.append(batch)
        return float(batch) if batch <= fits else None

    probes = search_batches(probe, max_batch=256)
    assert tried == list(probes) and len(tried) == len(set(tried)) <= 13
    largest = max((b for b, speed in probes.items() if speed), default=0)
    assert largest <= fits
    assert min(fits, 256) - largest <= largest // 8


def probe_of(**changes):
    request = {
        "model": "vit_ti16",
        "image_size": 32,
        "training": False,
        "precision": "float32",
        "seconds": 0.01,
        "memory_limit": None,
        "batch_size": 2,
    }
    return run_probe({**request, **changes})


def test_a_probe_measures_in_a_process_of_its_own():
    result = probe_of(training=True)
    assert result["images_per_second"] > 0 and result["steps"] >= 3


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.slow
def test_a_probe_without_memory_ends_alone():
    # 640 images of 224 pixels fit into 1 GiB; what the model makes of them does not, and
    # TensorFlow crashes under the limit without a word.
    assert probe_of(image_size=224, batch_size=640, memory_limit=2**30) is None


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
def test_words_that_tell_of_memory_are_known(words):
    assert ran_out_of_memory(words)
    assert not ran_out_of_memory("InvalidArgumentError: shapes differ")


@pytest.mark.slow
def test_other_failures_are_not_taken_for_memory():
    with pytest.raises(RuntimeError, match=r"not of memory(.|\n)*no variant 'vit'"):
        probe_of(model="vit")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_without_a_word_had_no_memory(number, monkeypatch):
    def killed(command, **_):
        return subprocess.CompletedProcess(command, -number, "", "")

    monkeypatch.setattr(throughput.subprocess, "run", killed)
    assert probe_of(memory_limit=2**30) is None
    if number == signal.SIGKILL:
        assert probe_of() is None
    else:  # without a limit, a crash is a fault
        with pytest.raises(RuntimeError, match="failed with status -11"):
            probe_of()


def fake_probes(monkeypatch):
    def run(request):
        pixels = request["image_size"] ** 2 * request["batch_size"]
        if pixels > 40_000:
            return None
        return {
            "images_per_second": 1e6 / request["image_size"] ** 2 * request["batch_size"] ** 0.5
        }

    monkeypatch.setattr(throughput, "run_probe", run)


def test_models_are_measured_over_sizes(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    fake_probes(monkeypatch)
    seen = []
    measurements = measure_throughput(
        ["a", "b"], (size for size in (32, 64, 256)), max_batch=32, report=seen.append
    )
    assert seen == measurements and len(seen) == 6
    first, second, third = measurements[:3]
    assert (first.largest_batch, first.best_batch, first.limited_by) == (32, 32, "max_batch")
    assert second.limited_by == "memory" and 8 <= second.largest_batch <= 9
    assert third.images_per_second is None and third.largest_batch == 0
    write_measurements(measurements, tmp_path / "m.json", precision="float32")
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["precision"] == "float32" and content["keras"] and content["processor"]
    assert content["measurements"][1]["probes"]["16"] is None
    assert read_measurements(tmp_path / "m.json") == measurements
    write_measurements(measurements, tmp_path / "m.csv")
    with pytest.raises(ValueError, match=r"m\.csv holds no measurements"):
        read_measurements(tmp_path / "m.csv")
    with open(tmp_path / "m.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["largest_batch"] for row in rows[:3]] == [
        str(m.largest_batch) for m in measurements[:3]
    ]
    figure = plot_throughput(measurements)
    assert [len(axis.lines) for axis in figure.axes] == [2, 2]
    figure.canvas.draw()
    assert figure.axes[1].get_ylabel() == "largest batch (images; search ended at 32)"
    shown = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "100" in shown and not any("10^" in text for text in shown)
    with pytest.raises(ValueError, match=r"must end in .json or .csv"):
        write_measurements(measurements, tmp_path / "m.txt")


def test_the_benchmark_goes_on_where_it_was_cut_off(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    asked = []

    def run(request):
        asked.append((request["model"], request["image_size"]))
        return {"images_per_second": 5.0}

    monkeypatch.setattr(throughput, "run_probe", run)
    root = pathlib.Path(__file__).parent.parent.parent
    main = runpy.run_path(str(root / "benchmarks" / "throughput.py"))["main"]
    line = ["--max-batch", "1", "--output", str(tmp_path), "--sizes", "32", "64", "--models"]
    theirs = "keras.applications.EfficientNetB0"
    assert len(main([*line, "vit_ti16"])) == 2
    assert len(main([*line, "vit_ti16", theirs])) == 4
    assert asked == [(model, size) for model in ("vit_ti16", theirs) for size in (32, 64)]
    assert len(read_measurements(tmp_path / "throughput.json")) == 4
    assert len((tmp_path / "throughput.csv").read_text().splitlines()) == 5
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="measured with other settings"):
        main([*line, "vit_ti16", "--training"])


def test_impossible_requests_say_so():
    with pytest.raises(ValueError, match="`max_batch` must be 1 or more"):
        measure_throughput(["vit_ti16"], [32], max_batch=0)
    with pytest.raises(ValueError, match="no measurements"):
        plot_throughput([])


def test_models_of_keras_applications_stand_beside_ours():
    ours = build_contestant("vit_ti16", 64, classes=5)
    theirs = build_contestant("keras.applications.EfficientNetB0", 64, classes=5)
    assert ours.input_shape == theirs.input_shape == (None, 64, 64, 3)
    assert ours.output_shape == theirs.output_shape == (None, 5)
    assert 0 < count_macs(theirs) < count_macs(ours)
    assert build_contestant("vit_ti16", (32, 48), 5).input_shape == (None, 32, 48, 3)
    with pytest.raises(ValueError, match="Did you mean EfficientNetB"):
        build_contestant("keras.applications.EfficientNetB8")
