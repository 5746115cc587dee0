"""The examples run, and their results are checked."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parent.parent


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    printed = run(*command, "2")
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
    printed = run(script, tmp_path / "held_out.npz", tmp_path / "model.tflite")
    assert abs(json.loads(printed)[0]["max_difference"] - 0.25) < 1e-4
    blocked = (
        f"import runpy\nrunpy.run_path({str(script)!r})\n"
        "try:\n    import keras_vit\nexcept ImportError:\n    print('refused')"
    )
    assert run("-c", blocked).strip() == "refused"


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
    run(ROOT / f"examples/{name}.py", "--smoke", "--output", tmp_path)
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
