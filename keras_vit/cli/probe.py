"""`keras-vit probe`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.cli.output import complain, print_facts, say
from keras_vit.cli.resolve import open_model
from keras_vit.data.labelled_set import describe_held_out
from keras_vit.data.sources import open_training_data, read_share
from keras_vit.data.strata import HELD_OUT
from keras_vit.resume.folder_lock import FolderLock
from keras_vit.train.image_lists import IMAGE_LISTS, describe_lists
from keras_vit.train.probe import ProbeResult, describe_probe, fit_probe
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
    image_size: Sequence[tuple[int, int]] | None = None,
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
    settings: dict[str, Any] = {
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
        HELD_OUT: describe_held_out(images, held_out) if share else None,
        IMAGE_LISTS: describe_lists(found.file_names()),
    }
    sizes: list[tuple[int, int] | None] = list(dict.fromkeys(image_size or ())) or [None]
    first = open_model(model, sizes[0])
    settings["input_shape"] = list(first.inputs[0].shape[1:])
    settings["image_sizes"] = [list(size) for size in image_size or ()]
    folder = pathlib.Path(output)
    with FolderLock(folder / LOCK):
        open_folder(folder, settings)
        stored = folder / "features" if features is None else pathlib.Path(features)
        options: dict[str, Any] = {"folds": folds, "seed": seed, "batch_size": batch_size}
        tried: dict[str, ProbeResult] = {}
        for size in sizes:
            loaded = first if size == sizes[0] else open_model(model, size)
            shape = loaded.inputs[0].shape[1:]
            name = " x ".join(map(str, shape[:2]))
            kept = stored if len(sizes) == 1 else stored / name.replace(" ", "")
            if not as_json:
                plan = describe_probe(loaded, images, held_out, method, folds, batch_size)
                facts = f"{loaded.name}, {loaded.count_params():,} parameters"
                size_text = " x ".join(map(str, shape))
                out = [("held out", settings[HELD_OUT])] if share else []
                print_facts([("model", facts), ("size", size_text), *out, *plan])
            try:
                tried[name] = fit_probe(loaded, images, held_out, kept, method, **options)
            except KeyboardInterrupt:
                complain(
                    f"\nThe features that were computed are kept in {kept}, fits are not. The same "
                    "command continues."
                )
                raise
        best = max(tried, key=lambda name: _validated(tried[name]))  # the first of equal ones
        result = tried[best]
        history = keras.callbacks.History()
        history.epoch, history.params = [], {}  # nothing was trained
        low, high = result.interval or (0.0, 1.0)
        results = {"test accuracy": result.accuracy, "at least": low, "at most": high}
        write_results(folder, result.model, results, history)
    if as_json:
        chosen = {"setting": result.setting, "image_size": best}
        print(json.dumps({**results, "images": result.tested, **chosen}))
        return
    if len(tried) > 1:
        print_facts([(name, f"{_validated(each):.2%}") for name, each in tried.items()])
        say(f"{best} pixels are the best in cross-validation.")
    say(f"{result}\n{folder}: the model, for `keras-vit predict`, `export` and `report`.")


def _validated(result: ProbeResult) -> float:
    """Accuracy in the cross-validation."""
    return result.accuracies[result.setting]
