"""No code from files, and dependencies whose new major versions are noticed."""

from __future__ import annotations

import ast
import configparser
import importlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import keras
import pytest

import keras_vit
from keras_vit.cli.resolve import open_model
from keras_vit.errors import CheckpointError

ROOT = pathlib.Path(__file__).parents[1]
# Modules that run code from data, and calls that do; `safe_mode=False` and the like.
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "enable_unsafe_deserialization"}
ARGUMENTS = {("allow_pickle", True), ("safe_mode", False), ("shell", True), ("weights_only", False)}


def python_files(*folders):
    files = [file for name in folders for file in sorted((ROOT / name).rglob("*.py"))]
    assert len(files) > 20
    return files


def test_nothing_runs_code_from_files():
    for path in python_files("keras_vit", "export", "examples"):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not MODULES & {name.partition(".")[0] for name in names}, where
            if isinstance(node, ast.Call):
                is_bare = isinstance(node.func, ast.Name)
                name = node.func.id if is_bare else getattr(node.func, "attr", "")
                assert name not in CALLS - (set() if is_bare else {"eval", "compile"}), where
                values = {(k.arg, getattr(k.value, "value", None)) for k in node.keywords}
                assert not ARGUMENTS & values, where


def test_a_keras_file_with_code_is_refused(tmp_path):
    inputs = keras.Input((2,))
    witness = tmp_path / "witness"
    layer = keras.layers.Lambda(eval(f"lambda x: open({str(witness)!r}, 'w') and x"), (2,))
    keras.Model(inputs, layer(inputs)).save(tmp_path / "code.keras")
    witness.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="Lambda"):
        open_model(str(tmp_path / "code.keras"))
    assert not witness.exists()


def test_a_keras_file_that_unpacks_to_much_more_is_refused(tmp_path):
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(50_000_000))
    with pytest.raises(CheckpointError, match=r"bomb\.keras has 1 members that unpack from 48,"):
        open_model(str(path))


# The newest major version of each library that this package was run with. When a newer one comes:
# read its notes, run `scripts/test-matrix`, then change the number here.
MAJORS = {
    "tensorflow": 2,
    "keras": 3,
    "numpy": 2,
    "lazy-loader": 0,
    "tensorflow-datasets": 4,
    "tf2onnx": 1,
    "onnx": 1,
    "scikit-learn": 1,
    "onnxruntime": 1,
    "ai-edge-litert": 2,
    "ai-edge-quantizer": 0,
    "openvino": 2026,
    "nncf": 3,
    "tensorflow-serving-api": 2,
    "huggingface_hub": 2,
    "matplotlib": 3,
    "tensorboard": 2,
    "keras-hub": 0,
    "pycocotools": 2,
    "pillow": 13,
    "scipy": 1,
    "tokenizers": 0,
    "pyarrow": 26,
    "usearch": 2,
    "cleanlab": 2,
}


# Extras of those who work on the package; all others are for users.
OURS = {"benchmarks", "examples", "test", "test-all", "docs", "dev"}


def requirements():
    """What users install, from setup.cfg: name and the rest of the line."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    text = [config["options"]["install_requires"]]
    text += [extras[name] for name in extras if name not in OURS]
    lines = "\n".join(text).splitlines()
    return [
        re.match(r"([\w-]+)(.*)", line).groups() for line in lines if line and line[0] not in "#%"
    ]


@pytest.mark.parametrize(("name", "bounds"), requirements())
def test_dependencies_have_a_lower_bound_and_a_known_major_version(name, bounds):
    assert re.match(r">=\d", bounds), f"{name} needs a lower bound, which scripts/test-matrix tests"
    if name not in MAJORS:
        assert name == "importlib_resources"  # counts its majors by the year
        return
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert int(installed.partition(".")[0]) <= MAJORS[name], (
        f"{name} {installed} is new: see MAJORS"
    )


def test_every_lower_bound_is_in_the_matrix():
    """`scripts/test-matrix "3.11 oldest"` installs these versions."""
    command = ["bash", "-c", "source scripts/testing/pythons.sh; oldest"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    wanted = {name + bounds.replace(">=", "==") for name, bounds in requirements()}
    assert set(found.stdout.splitlines()) == wanted


def test_nothing_holds_the_nightly_builds_back_and_ci_skips_nothing():
    """keras-hub needs tensorflow-text, which asks for a TensorFlow below the next one."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    assert "keras-hub" not in extras["test"] and "keras-hub" in extras["dev"]
    assert "scripts/make-venv .venv-dev dev" in (ROOT / ".ci/run").read_text()
    assert "test,detection" in (ROOT / "scripts/test").read_text()
    if os.environ.get("CI"):
        for name in ("keras_hub", "openvino", "skimage"):  # or tests are skipped without a word
            importlib.import_module(name)


SKIPS = {
    "call": 'import pytest\ndef test(): pytest.importorskip("no_such_package")',
    "collect": 'import pytest\npytest.importorskip("no_such_package")\ndef test(): pass',
    "mark": """import pytest
@pytest.mark.skipif(True, reason="no_such_package is not installed")
def test(): pass""",
    "other": 'import pytest\ndef test(): pytest.skip("needs Node.js")',
}


def test_a_skip_for_a_missing_package_is_an_error_of_slow_runs(tmp_path):
    assert "export KERAS_VIT_ALL_PACKAGES=yes" in (ROOT / "scripts/test").read_text()
    for name, text in SKIPS.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q", "-c", os.devnull]
    lines = []
    for setting in ("", "yes"):
        environment = {**os.environ, "KERAS_VIT_ALL_PACKAGES": setting}
        words = [*command, "--continue-on-collection-errors", "-rA", str(tmp_path)]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        lines.append(done.stdout.splitlines()[-1].partition(" in ")[0])
        assert ("Add the package to `test-all` in setup.cfg" in done.stdout) == bool(setting)
    assert lines == ["4 skipped", "1 failed, 1 skipped, 2 errors"]


def test_each_optional_package_of_the_tests_is_in_the_environment_of_slow_runs():
    """By the names of distributions, which `importorskip` does not know."""
    names = {"ai_edge_litert": "ai-edge-litert", "ai_edge_quantizer": "ai-edge-quantizer"}
    names |= {
        "PIL": "pillow",
        "cv2": "opencv-python-headless",
        "keras_hub": "keras-hub",
        "skimage": "scikit-image",
    }
    names |= {"apache_beam": "apache-beam", "grpc": "tensorflow-serving-api"}
    names |= {"keras_tuner": "keras-tuner", "sklearn": "scikit-learn"}
    names |= {"tensorflow_serving": "tensorflow-serving-api"}
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    text = config["options"]["install_requires"] + config["options.extras_require"]["test-all"]
    installed = set(re.findall(r"^[\w-]+", text, re.MULTILINE))
    for path in python_files("tests"):
        for package in re.findall(r'importorskip\("(\w+)', path.read_text()):
            assert package == "no_such_package" or names.get(package, package) in installed, path


def test_workflows_run_the_scripts_of_the_repository_alone():
    """So that what a forge runs is what a person runs; `scripts/lint` checks the workflows."""
    texts = {path.name: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}
    assert set(texts) == {"checks.yml", "nightly.yml"}
    commands = {name: re.findall(r"\brun: (.*)", text) for name, text in texts.items()}
    assert commands["nightly.yml"] == ['scripts/test-matrix "3.11 nightly"']
    scripts = [line.split()[0] for line in commands["checks.yml"]]
    assert scripts == ["scripts/lint", "scripts/test-matrix", "scripts/check-wheel", "scripts/docs"]
    assert all((ROOT / name).is_file() for name in scripts)
    for used in re.findall(r"\buses: (.*)", "".join(texts.values())):
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v[\d.]+", used), used


def test_the_pythons_are_the_same_everywhere():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    pythons = re.findall(r":: (3\.\d+)$", config["metadata"]["classifiers"], re.MULTILINE)
    assert config["options"]["python_requires"] == f">={pythons[0]}"
    matrix = (ROOT / "scripts/test-matrix").read_text()
    assert re.findall(r'"(3\.\d+) newest"', matrix.partition("combinations=(")[2]) == pythons
    workflow = (ROOT / ".github/workflows/checks.yml").read_text()
    assert f"python: {pythons}".replace("'", '"') in workflow
    rows = re.findall(
        r"^\| (3\.\d+) \| October", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert rows == pythons


def test_the_issue_template_asks_for_the_environment_and_citation_has_the_version():
    assert "`keras-vit env`" in (ROOT / ".github/ISSUE_TEMPLATE/problem.yml").read_text()
    assert f"\nversion: {keras_vit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
