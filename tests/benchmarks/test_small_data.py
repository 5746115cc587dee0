"""benchmarks/small_data.py: what is timed and compared."""

from __future__ import annotations

import types

import numpy as np
import pytest


def test_training_ends_in_time_and_keeps_the_best_epoch(load, monkeypatch):
    small_data = load("small_data")
    clock = iter([15.0, 55.0, 110.0])
    monkeypatch.setattr(small_data.time, "process_time", lambda: next(clock))
    watch = small_data.watch_time(start=10.0)
    watch.seconds, watch.rate = 100.0, 1e-3
    optimizer = types.SimpleNamespace(learning_rate=None)
    model = types.SimpleNamespace(stop_training=False, optimizer=optimizer, get_weights=list)
    watch.set_model(model)
    rates = []
    for accuracy in (0.2, 0.4, 0.3):
        watch.on_train_batch_end(0)
        rates.append(optimizer.learning_rate)
        watch.on_epoch_end(0, {"val_accuracy": accuracy})
    middle = 0.5 + 0.5 * np.cos(np.pi * 0.35 / 0.9)
    np.testing.assert_allclose(rates, [0.5e-3, middle * 1e-3, 0], atol=1e-9)  # warm-up, cosine
    assert model.stop_training and watch.best == 0.4


def test_too_few_images_are_an_error(load, tmp_path):
    copy_images = load("small_data").copy_images
    (tmp_path / "all/cat").mkdir(parents=True)
    for index in range(3):
        (tmp_path / f"all/cat/{index}.png").write_bytes(b"")
    some = copy_images(tmp_path / "all", tmp_path / "some", ["cat"], 1, 2)
    assert sorted(file.name for file in (some / "cat").iterdir()) == ["1.png", "2.png"]
    with pytest.raises(ValueError, match="no images 2 to 4"):
        copy_images(tmp_path / "all", tmp_path / "none", ["cat"], 2, 2)


def test_differences_are_of_the_same_seed(load):
    rows = [
        {"contestant": name, "seed": seed, "accuracy": value, "epochs": 5, "parameters": 1000}
        for name, values in {"keras_vit": (0.3, 0.5), "cnn": (0.2, 0.36)}.items()
        for seed, value in enumerate(values)
    ]
    *_, ours, cnn = load("small_data").table([{**row, "processor_s": 7.4} for row in rows])
    assert ours == "| `keras-vit train` | 40.0 ± 10.0 |  | 5 | 1,000 | 7 |"
    assert cnn == "| plain Keras CNN | 28.0 ± 8.0 | 12.0 ± 2.0 | 5 | 1,000 | 7 |"
    *_, cnn = load("small_data").table([{**row, "processor_s": 7.4} for row in rows[2:]])
    assert cnn == "| plain Keras CNN | 28.0 ± 8.0 |  | 5 | 1,000 | 7 |"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("scratch --contestants resnet", "invalid choice: 'resnet'"),
        ("scratch --contestants cnn", "--seconds is for contestants without `keras_vit`"),
        ("scratch --seconds 60", "--seconds is for contestants without `keras_vit`"),
        ("fine-tune --seconds 60", "are for `scratch`"),
        ("fine-tune --contestants cnn", "are for `scratch`"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(words, message, load, capsys):
    with pytest.raises(SystemExit):
        load("small_data").parse([*words.split(), "--images", "x"])
    assert message in capsys.readouterr().err


def test_contestants_are_all_or_some_with_their_seconds(load):
    small_data = load("small_data")
    for task in ("scratch", "fine-tune"):
        options = small_data.parse([task, "--images", "x"])
        assert options.contestants == list(small_data.CONTESTANTS)
    words = ["scratch", "--images", "x", "--seconds", "60", "--contestants", "small_vit", "cnn"]
    assert small_data.parse(words).seconds == 60
