"""`keras-vit probe`."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import keras

from keras_vit.cli.output import complain, print_facts, say
from keras_vit.cli.resolve import open_model
from keras_vit.data.sources import open_training_data, read_share
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.probe import describe_probe, fit_probe
from keras_vit.train.run_folder import LOCK, open_folder, write_results

_SHARE = 0.2  # of the images that are held out if there are no others


def probe_model(
    model: str,
    data: str,
    test: str | None = None,
    method: str = "logistic",
    output: str = "runs/probe",
    features: str | None = None,
    folds: int = 5,
    seed: int = 0,
    batch_size: int = 32,
    data_dir: str | None = None,
    download: bool = False,
    unreadable: str = "error",
    as_json: bool = False,
    image_size: tuple[int, int] | None = None,
) -> None:
    """Fits a classifier to features of a frozen model, and prints its accuracy."""
    share = read_share(test)
    reading = {"data_dir": data_dir, "download": download, "unreadable": unreadable}
    found = open_training_data(data, None, None if share is not None else test, seed, reading)
    images, held_out = found.training, found.transfer_test or found.final_test or found.validation
    if held_out is None or share is not None:
        share = _SHARE if share is None else share
        images, held_out = images.split(share, seed)
        found = found._replace(training=images, validation=held_out)
    settings = {
        "model": model,
        "data": data,
        "validation": None if share is None else str(share),
        "test": test if share is None else None,
        "method": method,
        "folds": folds,
        "seed": seed,
        "data_dir": data_dir,
        "unreadable": unreadable,
        "class_names": list(images.class_names),
        "skipped": list(images.skipped),
        IMAGE_LISTS: describe_lists(found.file_names()),
        "versions": {"keras": keras.__version__, "python": sys.version.split()[0]},
    }
    loaded = open_model(model, image_size)
    settings["input_shape"] = list(loaded.inputs[0].shape[1:])
    folder = pathlib.Path(output)
    with FolderLock(folder / LOCK):
        open_folder(folder, settings)
        stored = folder / "features" if features is None else pathlib.Path(features)
        options: dict[str, Any] = {"folds": folds, "seed": seed, "batch_size": batch_size}
        if not as_json:
            plan = describe_probe(loaded, images, held_out, method, folds, batch_size)
            name = f"{loaded.name}, {loaded.count_params():,} parameters"
            size = " x ".join(map(str, loaded.inputs[0].shape[1:]))
            print_facts([("model", name), ("size", size), *plan])
        try:
            result = fit_probe(loaded, images, held_out, stored, method, **options)
        except KeyboardInterrupt:
            complain(
                f"\nThe features that were computed are kept in {stored}, fits are not. The same "
                "command continues."
            )
            raise
        history = keras.callbacks.History()
        history.epoch, history.params = [], {}  # nothing was trained
        low, high = result.interval or (0.0, 1.0)
        results = {"test accuracy": result.accuracy, "at least": low, "at most": high}
        write_results(folder, result.model, results, history)
    if as_json:
        print(json.dumps({**results, "images": result.tested, "setting": result.setting}))
    else:
        say(f"{result}\n{folder}: the model, for `keras-vit predict`, `export` and `report`.")
