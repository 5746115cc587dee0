"""The house: imports go down, and rooms on one floor do not know each other."""

from __future__ import annotations

import ast
import pathlib

import pytest

import keras_vit

PACKAGE = pathlib.Path(keras_vit.__file__).parent

FLOORS = {
    "checks": -1,  # what configurations and layers check their arguments with
    "config": 0,
    "variants": 1,
    "cards": 1,
    "resize": 1,
    "layers": 2,
    "data": 2,
    "models": 3,
    "weights": 3,
    "create": 4,
    "pretrained": 4.5,  # create, for who names a file and no architecture
    "train": 5,
    "evaluate": 5,
    "analysis": 5,
    "export": 5,
    "command": 0,  # what the rooms of floor 5.5 and the command line describe commands with
    "run": 5.5,  # the commands that train, evaluate and predict
    "report": 5.5,  # one page of what the rooms of floor 5 find out
    "cli": 6,
    "__init__": 7,
    "__main__": 7,
}
# Where TensorFlow may be imported, and where matplotlib.
TENSORFLOW_ROOMS = {"data", "export", "train", "evaluate"}
# Relevance takes gradients, for which Keras has no call of its own; it imports TensorFlow late.
# All import it late: arrays on its backend alone, devices where a run asks for them.
TENSORFLOW_FILES = {
    "analysis/relevance.py",
    "models/arrays.py",
    "models/processors.py",
    "models/training.py",
    "run/devices.py",
}
PLOT_FILES = {"analysis/plots.py"}


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield node.module, node


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    if path.name == "__init__.py" and path.parent != PACKAGE:
        assert not list(imported_modules(path)), "only the front door re-exports"
        return
    floor = FLOORS[room(path)]
    for module, node in imported_modules(path):
        if not module.startswith("keras_vit"):
            continue
        parts = module.split(".")
        assert len(parts) > 1 or floor == 7, f"{path}: import from the defining module"
        target = parts[1]
        if target != room(path):
            assert FLOORS[target] < floor, f"{path}:{node.lineno} imports {module}"


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_tensorflow_and_matplotlib_stay_in_their_rooms(path):
    name = path.relative_to(PACKAGE).as_posix()
    modules = {module.split(".")[0] for module, _ in imported_modules(path)}
    if room(path) not in TENSORFLOW_ROOMS and name not in TENSORFLOW_FILES:
        assert "tensorflow" not in modules
    if name not in PLOT_FILES:
        assert "matplotlib" not in modules


def test_every_module_has_a_floor_and_every_name_in_all_exists():
    assert {room(path) for path in source_files()} <= set(FLOORS)
    assert sorted(keras_vit.__all__) == sorted(set(keras_vit.__all__))
    assert all(hasattr(keras_vit, name) for name in keras_vit.__all__)


def test_no_lambda_layers():
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr == "Lambda"), path


def test_the_picture_of_the_house_shows_every_room():
    picture = (PACKAGE.parent / "docs/architecture.md").read_text()
    rooms = {room(path) for path in source_files()} - {"__init__", "__main__"}
    assert [name for name in sorted(rooms) if f"| `{name}` |" not in picture] == []
