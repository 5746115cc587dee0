"""The wheel, the imports of `import keras_vit`, and the default path of older processors."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_vit"
TINY_MODEL = """
import numpy as np
import keras_vit
config = keras_vit.ViTConfig(
    patch_size=4, width=16, depth=1, num_heads=2, mlp_dim=32, image_size=8, classes=3
)
model = keras_vit.build_vit(config)
print(model(np.zeros((2, 8, 8, 3), "float32")).shape)
"""
PREDICT = """
model.compile("sgd", "mse")
model.fit(np.zeros((2, 8, 8, 3)), np.zeros((2, 3)), verbose=0)
print(model.predict(np.zeros((3, 8, 8, 3)), batch_size=2, verbose=0).shape)
"""
# `fit`, `predict` and saving as users of a processor with AVX2 get them: without oneDNN, with XLA.
WITHOUT_ONEDNN = """
import keras, pathlib, tempfile
import tensorflow as tf
from tensorflow.python.framework import test_util
assert not test_util.IsMklEnabled()
rng = np.random.default_rng(0)
images = rng.uniform(0, 255, (5, 8, 8, 3)).astype("float32")
model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True))
assert model.jit_compile is True
losses = model.fit(images, np.arange(5) % 3, batch_size=2, epochs=8, verbose=0).history["loss"]
assert losses[-1] < 0.8 * losses[0], losses
logits = model.predict(images, batch_size=2, verbose=0)
np.testing.assert_allclose(logits, model(images), rtol=0, atol=1e-5)
with tempfile.TemporaryDirectory() as folder:
    model.save(folder + "/model.keras")
    loaded = keras.saving.load_model(folder + "/model.keras")
assert loaded.jit_compile is True
np.testing.assert_allclose(loaded.predict(images, verbose=0), logits, rtol=0, atol=1e-5)
print("trained, predicted, saved")
"""
# TensorFlow and matplotlib are installed, but modules of keras_vit cannot import them.
REFUSE_KERAS_VIT = """
import builtins, sys
import keras
import_module = builtins.__import__

def guarded(name, globals=None, *args):
    caller = (globals or {}).get("__name__", "")
    if caller.startswith("keras_vit") and name.split(".")[0] in ("tensorflow", "matplotlib"):
        raise ImportError(f"{caller} imports {name}")
    return import_module(name, globals, *args)

builtins.__import__ = guarded
"""
# Hides TensorFlow, as if it were not installed.
HIDE_TENSORFLOW = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'")

sys.meta_path.insert(0, Hide())
"""


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


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


def test_package_imports_no_tensorflow_of_its_own():
    done = run_python(REFUSE_KERAS_VIT + TINY_MODEL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 3)"
    refused = run_python(REFUSE_KERAS_VIT + "import keras_vit; keras_vit.export_saved_model")
    assert "imports tensorflow" in refused.stderr  # so the guard does guard


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")
def test_works_on_jax_without_tensorflow():
    done = run_python(HIDE_TENSORFLOW + TINY_MODEL + PREDICT, KERAS_BACKEND="jax")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["(2, 3)", "(3, 3)"]


def test_fit_predict_and_save_without_onednn_and_with_xla():
    settings = {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=AVX2"
    done = run_python(TINY_MODEL + WITHOUT_ONEDNN, XLA_FLAGS=flags, **settings)
    assert done.returncode == 0, done.stderr
    assert "trained, predicted, saved" in done.stdout


def test_import_brings_little_beyond_keras():
    code = (
        "import sys, keras\n"
        "before = set(sys.modules)\n"
        "import keras_vit\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))\n"
    )
    done = run_python(code, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["keras_vit", "lazy_loader"]
