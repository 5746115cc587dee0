"""`.keras` files: loads them in safe mode, writes them whole, and registers the classes in them.

Keras finds a class of this package in a file only if its module was imported: all of these modules
are imported here. `import keras_vit` imports this module.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import pkgutil
import zipfile
import zlib

import keras

import keras_vit.layers
import keras_vit.models.attention
import keras_vit.models.pyramid
import keras_vit.models.real_time
import keras_vit.models.set_prediction
import keras_vit.models.text_detector
import keras_vit.runtime.model
import keras_vit.train.depth_losses
import keras_vit.train.distillation
import keras_vit.train.losses
import keras_vit.train.mask_trainer
import keras_vit.train.metrics
import keras_vit.train.optimizers
import keras_vit.train.pixel_trainer
import keras_vit.train.prompt_trainer
import keras_vit.train.schedules
from keras_vit.errors import CheckpointError
from keras_vit.files import write_atomically
from keras_vit.installation import needing
from keras_vit.reading import open_regular, refusing
from keras_vit.weights.formats import check_keras_file
from keras_vit.weights.load import check_finite

# All layers, with those that nothing imported above uses.
for _module in pkgutil.iter_modules(keras_vit.layers.__path__):
    importlib.import_module(f"keras_vit.layers.{_module.name}")

_DAMAGE = (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def load_keras_file(path: str | os.PathLike[str]) -> keras.Model:
    """Loads a `.keras` file in safe mode.

    Args:
        path: The file.

    Returns:
        The model.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file unpacks to much more than it is, weights are NaN or infinite,
            or Keras refuses it, whatever the reason. The message gives it in one line; the error
            of Keras is its cause.
        ImportError: If it holds a model of keras-hub, which is not installed.
        MemoryError: If there is too little memory; `tf.errors.ResourceExhaustedError` if TensorFlow
            finds it.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no model file {str(path)!r}.")
    check_keras_file(path)
    advice = "It is damaged, or holds code or layers that neither Keras nor this package defines."
    with refusing(path, "is refused by Keras", advice, CheckpointError):
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            needs_hub = b'"keras_hub' in archive.read("config.json")
        if needs_hub:
            with needing("detection", f"{path} needs keras-hub"):
                importlib.import_module("keras_hub")
        # Models of keras-hub compile themselves, and Keras would warn that it does not.
        model = keras.saving.load_model(path, compile=not needs_hub, safe_mode=True)
    check_finite(path, model)
    return model


def save_keras_file(model: keras.Model, path: pathlib.Path) -> None:
    """Saves a model as a `.keras` file, which replaces an older one when it is complete."""
    with write_atomically(path, replace=True) as unfinished:
        model.save(unfinished)


def is_whole(path: pathlib.Path) -> bool:
    """Tells whether a `.keras` file is complete: an archive whose members match their checksums."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except _DAMAGE:
        return False
