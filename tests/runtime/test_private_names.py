"""Private names of other packages: all are listed, and all still exist."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import pathlib
import re
import sys

import keras
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.runtime.private_names import PRIVATE_NAMES, PrivateName, frames_of_other_threads

PACKAGE = pathlib.Path(keras_vit.__file__).parent
HOME = PACKAGE / "runtime/private_names.py"
LISTED = {row.name for row in PRIVATE_NAMES}
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def attribute(owner, names):
    """The attribute of the first of the names, separated by `|`, that is there."""
    *others, last = names.split("|")
    found = (name for name in others if hasattr(owner, name))
    return getattr(owner, next(found, last))


def is_there(row: PrivateName) -> bool:
    """Whether the owner, or a class that it derives from, defines or assigns the name."""
    module, _, path = row.owner.partition(":")
    parts = path.split(".") if path else ()
    owner = functools.reduce(attribute, parts, importlib.import_module(module))
    if hasattr(owner, row.name):
        return True
    owners = inspect.getmro(owner) if isinstance(owner, type) else [inspect.unwrap(owner)]
    sources = (inspect.getsource(each) for each in owners if each is not object)
    return any(re.search(rf"\b{row.name}\b", source) for source in sources)


@pytest.mark.parametrize("row", PRIVATE_NAMES, ids=lambda row: f"{row.owner}-{row.name}")
def test_the_name_still_exists(row):
    package = row.owner.split(".")[0]
    if package not in ("keras", "tensorflow"):
        pytest.importorskip(package)
    versions = f"Keras {keras.__version__}, TensorFlow {tf.__version__}"
    message = f"{row.name} of {row.owner} is gone in {versions}. It is used for: {row.reason}."
    try:
        found = is_there(row)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{message} ({error})")
    assert found, message


def test_a_name_that_is_gone_is_noticed():
    assert not is_there(PrivateName("keras.src.ops.node", "_no_such_name", ""))
    assert not is_there(PrivateName("keras.src.layers.layer:Layer", "_no_such_name", ""))


def test_every_listed_name_is_used_and_listed_once():
    rows = [(row.owner, row.name) for row in PRIVATE_NAMES]
    assert len(rows) == len(set(rows))
    source = "".join(path.read_text() for path in TREES)
    table = HOME.read_text().partition("PRIVATE_NAMES = ")[2].partition("\n)\n")[0]
    assert [name for name in LISTED if name not in source.replace(table, "")] == []


def own_names() -> set[str]:
    """Private names that this package itself defines or assigns on `self`, or on the module."""
    names = set()
    for _, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def nodes():
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            yield path, node


def private_accesses():
    """(path, line, name) of each `value._name`, and of each name in `getattr(value, "_name")`."""
    for path, node in nodes():
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            yield path, node.lineno, node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and PRIVATE.fullmatch(name):
                yield path, node.lineno, name


def test_only_listed_names_are_used():
    """Names that are not this package's own are listed; those that are listed stay in runtime."""
    ours = own_names() - LISTED
    optimizers = (":BaseOptimizer", ":Adam")  # the optimizers of train/ derive from them
    overridable = {row.name for row in PRIVATE_NAMES if row.owner.endswith(optimizers)}
    for path, line, name in private_accesses():
        assert name in ours or name in LISTED, f"{path}:{line}: {name} is not in PRIVATE_NAMES"
        allowed = path.parent == HOME.parent or (
            path.parent.name == "train" and name in overridable
        )
        assert name in ours or allowed, f"{path}:{line}: use a function of {HOME.name} for {name}"


def test_private_modules_are_imported_in_one_place():
    for path, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        private = [n for n in names if n.startswith(("keras.src", "tensorflow.python"))]
        assert not private or path == HOME, f"{path}:{node.lineno}: {private}"


def own_classes():
    for path in TREES:
        name = ".".join(("keras_vit", *path.relative_to(PACKAGE).with_suffix("").parts))
        if path.name in ("__init__.py", "__main__.py", "plots.py"):  # plots need matplotlib
            continue
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and value.__module__ == name:
                yield value


def test_methods_of_bases_are_overridden_knowingly():
    """A private method of ours with the name of one of Keras's would replace it by accident."""
    replaced = {
        f"{kind.__name__}.{name}"
        for kind in own_classes()
        for base in kind.__mro__
        if base.__module__.startswith(("keras.", "tensorflow."))
        for name in vars(kind)
        if PRIVATE.fullmatch(name) and name in vars(base) and not name.startswith("_abc")
    }
    unlisted = {name for name in replaced if name.rpartition(".")[2] not in LISTED}
    assert unlisted == set()


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_python_lists_frames(collects, monkeypatch):
    """Freeing a graph of TensorFlow at that moment stops the process for ever."""
    inside = []
    current_frames = sys._current_frames
    monkeypatch.setattr(
        sys, "_current_frames", lambda: inside.append(gc.isenabled()) or current_frames()
    )
    (gc.enable if collects else gc.disable)()
    try:
        assert isinstance(frames_of_other_threads(), list)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert inside == [False]
