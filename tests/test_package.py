"""The wheel, and what `import keras_vit` does in a new process."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checks import short_repr
from keras_vit.create import build
from tests.fixtures import fill_random, images_for, tiny_config
from tests.import_process import FAMILIES
from tests.models.test_hybrids import CONFIGS
from tests.runtime.other_packages import pages_are_always_huge
from tests.test_architecture import TASKS
from tests.workers import run

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_vit"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the checkout with the installed setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    leftovers = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", ignore=leftovers)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    done = subprocess.run([*command, "-w", folder, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {p.relative_to(ROOT).as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    assert names == {name for name in expected if "__pycache__" not in name}
    assert "keras_vit/py.typed" in names
    assert any(name.endswith("LICENSE") for name in wheel.namelist())


def test_wheel_says_what_it_needs(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    lines = wheel.read(name).decode().splitlines()
    base = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert sorted(line.split()[1].split(">")[0] for line in base) == [
        "keras",
        "lazy-loader",
        "numpy",
        "tensorflow",
    ]
    extras = {line.split()[1] for line in lines if line.startswith("Provides-Extra")}
    assert {"tfds", "onnx", "litert", "hub", "plot", "examples", "test", "dev"} <= extras


@pytest.fixture(scope="module")
def models():
    """A model of each family, with random weights."""
    configs = {"vit": tiny_config(num_registers=1), **CONFIGS}
    models = {family: build(config) for family, config in configs.items()}
    backbone = build(tiny_config(classes=None, depth=4))
    models["segmenter"] = keras_vit.segmentation.build_segmenter(backbone, 3, "dpt", channels=8)
    pixels = keras_vit.image_gpt.ImageGPTConfig(16, 1, 2, image_size=(4, 4), colors=3)
    models["image_gpt"] = keras_vit.image_gpt.build_image_gpt(pixels, np.eye(3))
    for model in models.values():
        fill_random(model)
    return models


@pytest.fixture(scope="module")
def imported(models, tmp_path_factory):
    """What a process finds that imports Keras, TensorFlow and then keras_vit."""
    folder = tmp_path_factory.mktemp("imported")
    for family, model in models.items():
        model.save(folder / f"{family}.keras")
        np.savez(folder / f"{family}.npz", images=images_for(model))
    # Without oneDNN, so that something would have to be set for processors with AVX2.
    printed = run("tests.import_process", "main", folder, TF_ENABLE_ONEDNN_OPTS="0")
    return folder, json.loads((folder / "facts.json").read_text()) | {"printed": printed}


def test_import_changes_nothing_outside_of_the_package(imported):
    _, facts = imported
    assert facts["variables"] == [] and facts["changes"] == []
    assert facts["noticed"] == ["Model._undo (new)"]


def test_import_brings_little_beyond_keras(imported):
    _, facts = imported
    assert facts["modules"] == ["keras_vit", "lazy_loader"]


def test_import_registers_every_class_of_a_keras_file(imported):
    """Else a fresh process finds them only if it has built such a model before."""
    _, facts = imported
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    names = re.findall(r"@keras\.saving\.register_.*\n(?:class|def) (\w+)", source)
    assert len(names) > 40
    assert facts["registered"] == sorted(f"keras_vit>{name}" for name in names)


def test_every_task_is_found_by_its_name():
    """Also in a process that has not imported it yet."""
    assert set(dir(keras_vit)) >= TASKS and not TASKS & set(keras_vit.__all__)


def test_tasks_beyond_classification_load_on_first_use(imported):
    """Not by the import, and not by loading `.keras` files of their models."""
    _, facts = imported
    assert facts["tasks"] == [] and facts["used"] == ["keras_vit.detection"]
    assert facts["attributes"] == [True] * 4
    assert facts["listed"] == ["detection", "image_gpt", "image_text", "segmentation"]


def test_package_imports_no_tensorflow_of_its_own(imported):
    _, facts = imported
    assert facts["shape"] == [2, 3]
    assert "imports tensorflow" in facts["refused"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_process_reads_the_file_after_import_alone(imported, models, family):
    folder, _ = imported
    model, stored = models[family], np.load(folder / f"{family}.npz")
    expected = keras.ops.convert_to_numpy(model(stored["images"]))
    atol = 1e-6 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(np.load(folder / f"{family}.npy"), expected, rtol=0, atol=atol)


def test_the_command_line_survives_a_closed_pipe(imported):
    _, facts = imported
    assert "Error" not in facts["printed"] and "Traceback" not in facts["printed"]


@pytest.mark.skipif(pages_are_always_huge(), reason="huge pages: too few page faults to count")
def test_upstream_tensorflow_alone_returns_large_buffers(imported):
    """When this fails, TensorFlow keeps them by itself and `keep_buffers` can go."""
    _, facts = imported
    assert facts["page faults"] > 10_000


def test_what_holds_arrays_prints_as_one_line():
    modules = (keras_vit, keras_vit.data, keras_vit.evaluate, keras_vit.weights)
    every = {getattr(module, name) for module in modules for name in dir(module)}
    kinds = {each for each in every if isinstance(each, type) and dataclasses.is_dataclass(each)}
    arrays = {
        each for each in kinds if any("ndarray" in str(f.type) for f in dataclasses.fields(each))
    }
    assert len(arrays) > 3 and {each for each in arrays if each.__repr__ is not short_repr} == set()
    x = np.zeros((300, 8, 8, 3), "uint8")
    images = keras_vit.read_arrays(x, np.arange(300), name="mine")
    assert repr(images) == ("ImageSet(name='mine', class_names=<300 items>, rows=<2 items>)")
    masks = keras_vit.segmentation.read_mask_arrays(x, np.zeros((300, 8, 8), int), ["sky"])
    assert str(masks) == "MaskSet(name='the arrays', class_names=('sky',), rows=<2 items>)"


# Without TensorFlow, as the JAX backend can do: a message for each call.
WITHOUT_TENSORFLOW = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name=name)

sys.meta_path.insert(0, Hide())
import keras_vit
from keras_vit import evaluate, train
from keras_vit.cli.main import main
from keras_vit.files import list_names
from keras_vit.train.runs import find_exporter

for what, call in {
    "`keras_vit.read_arrays`": lambda: keras_vit.read_arrays,
    "`keras_vit.detection.box_batches`": lambda: keras_vit.detection.box_batches,
    "`keras_vit.export_onnx`": lambda: keras_vit.export_onnx,
    "`keras_vit.verify_export`": lambda: keras_vit.verify_export,
    "`store_features`": lambda: evaluate.store_features(None, None, "folder"),
    "`predict_set`": lambda: evaluate.predict_set(None, None),
    "`predict_targets`": lambda: evaluate.predict_targets(None, None),
    "`fit_probe`": lambda: train.fit_probe(None, None, None, "folder"),
    "Training on images": lambda: keras_vit.fine_tune(None, None, None),
    "`Run.evaluate`": lambda: train.Run.evaluate(None, "folder"),
    "An export": lambda: find_exporter("onnx"),
    "The remote address 'gs://bucket/folder'": lambda: list_names("gs://bucket/folder"),
    "`keras-vit check`": lambda: main(["check", "."]),
}.items():
    try:
        status = call()
    except ModuleNotFoundError as error:
        assert str(error).startswith(f"{what} needs TensorFlow"), (what, error)
        assert "pip install tensorflow" in str(error), error
    else:
        assert status == 2, what
"""


def test_without_tensorflow_what_needs_it_says_so():
    if importlib.util.find_spec("jax") is None:
        pytest.skip("the JAX backend is not installed")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "error: `keras-vit check` needs TensorFlow" in done.stderr


@pytest.mark.parametrize("words", [["-c", "import keras_vit"], ["-m", "keras_vit", "env"]])
def test_legacy_keras_is_refused_with_what_to_unset(words):
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode and "unset TF_USE_LEGACY_KERAS" in done.stderr.splitlines()[-1]
    assert "needs Keras 3" in done.stderr
