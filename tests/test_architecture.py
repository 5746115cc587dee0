"""Dependencies point down: no module imports from its own level or from a higher one."""

from __future__ import annotations

import ast
import pathlib
import re
import tokenize

import pytest

import keras_vit

PACKAGE = pathlib.Path(keras_vit.__file__).parent
PAGE = PACKAGE.parent / "docs/architecture.md"

# Modules and sub-packages by level. `docs/architecture.md` shows the same table.
LEVELS = {
    11: ("__main__",),
    10: (
        *("depth", "detection", "image_gpt", "image_text", "pose", "segmentation"),
        "self_supervised",
    ),
    9: ("cli",),
    8: ("__init__",),
    7: ("networks", "train", "trust"),
    6: ("pretrained", "report"),
    5: ("create",),
    4: ("evaluate", "analysis", "export", "hub", "texts"),
    3: ("models", "weights"),
    2: ("layers", "data", "resume"),
    1: ("variants", "resize", "runtime", "distribution"),
    0: ("families",),
    -1: ("abstention", "calibration", "config", "progress"),
    -2: ("checks", "fields", "files", "installation", "intervals", "reading"),
    -3: ("errors",),
}
LEVEL = {name: level for level, names in LEVELS.items() for name in names}
# Sub-packages that may import TensorFlow at the top of a module. Modules elsewhere import it in
# the functions that need it, because the other backends of Keras do without.
USES_TENSORFLOW = {
    *("data", "depth", "detection", "distribution", "evaluate", "export", "image_text", "resume"),
    *("segmentation", "self_supervised", "train"),
}
IMPORTS_TENSORFLOW_LATE = {
    "analysis/relevance.py",
    "cli/training.py",
    "report/result_page.py",
    "files.py",  # of remote addresses alone
    "layers/microbatches.py",
    "layers/mlp.py",
    "layers/norm.py",
    "layers/traced.py",
    "models/group_prediction.py",
    "models/mask_points.py",
    "models/matching.py",
    "models/set_prediction.py",
    "runtime/array_data.py",
    "runtime/compiled_steps.py",
    "runtime/compilers.py",
    "runtime/distributed.py",
    "runtime/gathering.py",
    "runtime/private_names.py",
    "runtime/processors.py",
    "runtime/xla_checks.py",
    "image_gpt/weights.py",  # of checkpoints in TensorFlow's own format
}
# Imports in functions of what stands on a higher level, see docs/architecture.md.
UPWARD = {
    ("runtime/model.py", "keras_vit.weights.save_folder"),
    ("runtime/model.py", "keras_vit.networks.saving"),
}
# Vertical folders, beyond classification.
TASKS = {*LEVELS[10]}
# Families are data to these files: they name none. timm is a project too.
NAMES_NO_FAMILY = (
    *(
        path.relative_to(PACKAGE).as_posix()
        for folder in ("hub", "weights")
        for path in sorted(PACKAGE.glob(f"{folder}/*.py"))
    ),
    "variants.py",
)
PLOT_FILES = {"analysis/plots.py"}


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


def imported_modules(path):
    """Names of the modules that a file imports, sub-modules of packages included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield node.module, node


def unit_of(path):
    """The module or sub-package of the first level that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_dependencies_point_down(path):
    if path.name == "__init__.py" and path.parent != PACKAGE:
        modules = {module for module, _ in imported_modules(path)}
        assert modules <= {"__future__", "lazy_loader", "keras_vit.errors"}, (
            "names of a sub-package are lazy"
        )
        return
    unit = unit_of(path)
    for module, node in imported_modules(path):
        if not module.startswith("keras_vit") or unit == "__init__":
            continue
        if (path.relative_to(PACKAGE).as_posix(), module) in UPWARD and node.col_offset:
            continue  # in a function
        parts = module.split(".")
        assert len(parts) > 1, f"{path}:{node.lineno}: import from the defining module"
        if parts[1] != unit:
            assert LEVEL[parts[1]] < LEVEL[unit], f"{path}:{node.lineno} imports {module}"


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_and_other_tasks_import_no_task(path):
    for module, node in imported_modules(path):
        parts = module.split(".")
        found = set(parts[1:2]) if len(parts) > 1 else {alias.name for alias in node.names}
        if parts[0] == "keras_vit":
            assert not TASKS & found - {unit_of(path)}, f"{path}:{node.lineno} imports {found}"


def test_no_module_has_the_name_of_a_public_name():
    """Before lazy-loader 0.6, importing the module put it in the place of the name."""
    for stub in PACKAGE.rglob("__init__.pyi"):
        modules = {path.stem for path in stub.parent.glob("*.py")}
        names = re.findall(r"^from \S+ import \w+ as (\w+)$", stub.read_text(), re.MULTILINE)
        assert names and not modules.intersection(names), stub


def test_type_checkers_know_every_sub_package():
    """Those of the stub of a sub-package are for users; the others are commands and parts."""
    packages = {stub.parent.name for stub in PACKAGE.glob("*/__init__.pyi")}
    stub = (PACKAGE / "__init__.pyi").read_text()
    assert set(re.findall(r"^from \. import (\w+) as \1$", stub, re.MULTILINE)) == packages
    assert "__version__: str" in stub


def test_sub_packages_have_no_import_cycles():
    modules = {
        ".".join(("keras_vit", *path.relative_to(PACKAGE).with_suffix("").parts)): path
        for path in source_files()
        if path.name != "__init__.py"
    }
    imports = {
        name: {module for module, _ in imported_modules(path)} & set(modules)
        for name, path in modules.items()
    }
    for path, module in UPWARD:
        imports["keras_vit." + path.removesuffix(".py").replace("/", ".")].remove(module)
    visited, active = set(), []

    def visit(name):
        assert name not in active, " -> ".join([*active[active.index(name) :], name])
        if name in visited:
            return
        active.append(name)
        for module in sorted(imports[name]):
            visit(module)
        visited.add(active.pop())

    for name in modules:
        visit(name)


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_tensorflow_and_matplotlib_are_imported_where_they_may_be(path):
    name = path.relative_to(PACKAGE).as_posix()
    modules = {module.split(".")[0] for module, _ in imported_modules(path)}
    if unit_of(path) not in USES_TENSORFLOW and name not in IMPORTS_TENSORFLOW_LATE:
        assert "tensorflow" not in modules
    if name not in PLOT_FILES:
        assert "matplotlib" not in modules


@pytest.mark.parametrize("name", NAMES_NO_FAMILY)
def test_engines_name_no_family(name):
    files = {path.stem for path in (PACKAGE / "families").glob("*.py")
             if "\nFAMILY = " in path.read_text()} - {"timm"}  # fmt: skip
    assert {"clip", "google"} <= files
    named = re.compile(rf"(?<![a-z])({'|'.join(files)})(v?\d+)?(?![a-z])", re.IGNORECASE)
    with open(PACKAGE / name) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type != tokenize.COMMENT and not token.string.startswith('"""'):
                assert not named.search(token.string), f"{name}:{token.start[0]}: {token.string}"


def test_every_module_has_a_level():
    assert {unit_of(path) for path in source_files()} == set(LEVEL)


def test_no_lambda_layers():
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr == "Lambda"), path


def test_the_document_draws_the_same_levels():
    drawn = {}
    for line in PAGE.read_text().splitlines():
        found = re.fullmatch(r"    ( *-?\d+) {2}([\w/ ]+?)(?: {3,}.*)?", line)
        if found:
            drawn[int(found.group(1))] = tuple(name.rstrip("/") for name in found.group(2).split())
    assert drawn == LEVELS
