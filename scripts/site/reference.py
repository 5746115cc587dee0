"""Pages of the API reference, made from the package's stubs.

A name is public when `keras_vit/__init__.pyi` or `keras_vit/SUBPACKAGE/__init__.pyi` lists it, or
when it is a class or function of `keras_vit.config` or `keras_vit.errors`. Nothing is imported:
griffe reads the source files. A public name without a docstring is an error.
"""

from __future__ import annotations

import ast
import pathlib

import griffe

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = "keras_vit"
MODULES = ("config", "errors")  # public modules that have no stub

INTRODUCTIONS = {
    PACKAGE: "The names that most programs need, after `import keras_vit`, and the "
    "[constructors](constructors.md) `ViTB16`, ... A name that a sub-package has too is "
    "described there.",
    "constructors": "One function per architecture, with the signature of `keras.applications`: "
    "each calls [`create_model`][keras_vit.create_model] with the name of its variant, and takes "
    "the arguments that are described there.",
}


def stub_names(package: str) -> list[str]:
    """Lists the public names of a package in the order of its stub."""
    stub = ROOT.joinpath(*package.split("."), "__init__.pyi")
    nodes = ast.parse(stub.read_text()).body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def public_names(package: griffe.Module) -> dict[str, list[str]]:
    """Lists the public names of the package, of each sub-package and of the public modules."""
    stubs = sorted((ROOT / PACKAGE).glob("*/__init__.pyi"))
    names = {PACKAGE: stub_names(PACKAGE)}
    for stub in stubs:
        names[f"{PACKAGE}.{stub.parent.name}"] = stub_names(f"{PACKAGE}.{stub.parent.name}")
    for module in MODULES:
        members = package[module].members.values()
        names[f"{PACKAGE}.{module}"] = [
            member.name
            for member in members
            if not member.is_alias
            and (member.is_class or member.is_function)
            and not member.name.startswith("_")
        ]
    return dict(sorted(names.items()))


def constructor_variants() -> dict[str, str]:
    """Maps the constructors that `keras_vit/create.py` makes by a call to their variants."""
    tree = ast.parse((ROOT / PACKAGE / "create.py").read_text())
    return {
        node.targets[0].id: str(node.value.args[0].value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", None) == "_constructor"
        and isinstance(node.value.args[0], ast.Constant)
    }


def constructor_signature() -> str:
    """Returns the signature that all constructors share, as code."""
    tree = ast.parse((ROOT / PACKAGE / "create.py").read_text())
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "create_model"
    )
    assert function.returns is not None
    lines = []
    plain = function.args.args[1:]  # without the variant
    for argument, default in zip(plain, function.args.defaults, strict=True):
        if argument.arg != "prefix":
            lines.append(f"    {ast.unparse(argument)} = {ast.unparse(default)},\n")
    if function.args.kwarg:
        lines.append(f"    **{ast.unparse(function.args.kwarg)},\n")
    return f"ViTB16(\n{''.join(lines)}) -> {ast.unparse(function.returns)}"


def constructor_page(variants: dict[str, str]) -> str:
    lines = [
        "# Constructors\n\n",
        INTRODUCTIONS["constructors"],
        f"\n\n```python\n{constructor_signature()}\n```\n\n",
    ]
    for name, variant in variants.items():
        lines.append(f"## {name} {{ #{PACKAGE}.{name} }}\n\n")
        lines.append(f'`{PACKAGE}.{name}(...)` is `{PACKAGE}.create_model("{variant}", ...)`.\n\n')
    return "".join(lines)


def first_paragraph(thing: griffe.Object | griffe.Alias) -> str:
    if thing.docstring is None or not thing.docstring.value.strip():
        return ""
    paragraph = thing.docstring.value.strip().split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def find_module(package: griffe.Module, page: str) -> griffe.Module:
    return package if page == PACKAGE else package[page.removeprefix(f"{PACKAGE}.")]


def find_homes(names: dict[str, list[str]], package: griffe.Module) -> dict[str, str]:
    """Maps the canonical path of each public object to the page that describes it."""
    homes: dict[str, str] = {}
    for page in sorted(names, key=lambda page: (page == PACKAGE, page)):
        for name in names[page]:
            homes.setdefault(find_module(package, page)[name].canonical_path, page)
    return homes


def package_page(
    page: str, names: list[str], package: griffe.Module, homes: dict[str, str], top: list[str]
) -> str:
    """Returns the page of one package: a table of its names, then the entry of each."""
    module = find_module(package, page)
    rows, entries = [], []
    for name in names:
        home = homes[module[name].canonical_path]
        path = f"{home}.{name}"
        rows.append(f"| [`{name}`][{path}] | {first_paragraph(module[name])} |\n")
        if home == page:
            alias = f"[](){{#{PACKAGE}.{name}}}\n" if name in top and page != PACKAGE else ""
            entries.append(f"{alias}\n::: {path}\n\n")
    introduction = INTRODUCTIONS.get(page) or first_paragraph(module)
    table = f"| name | |\n|---|---|\n{''.join(rows)}"
    return f"# {page}\n\n{introduction}\n\n{table}\n{''.join(entries)}"


def reference_pages() -> tuple[dict[str, str], list[str], list[str]]:
    """Makes the reference.

    Returns:
        The pages by their paths in the site, all public names, and problems as sentences.
    """
    package = griffe.load(PACKAGE, search_paths=[str(ROOT)], resolve_aliases=True)
    listed, variants = public_names(package), constructor_variants()
    every = [f"{page}.{name}" for page, names in listed.items() for name in names]
    problems = [
        f"{name} has no docstring."
        for name in every
        if name.removeprefix(f"{PACKAGE}.") not in variants
        and not first_paragraph(package[name.removeprefix(f"{PACKAGE}.")])
    ]
    described = {
        page: [name for name in names if name not in variants] for page, names in listed.items()
    }
    homes = find_homes(described, package)
    pages = {
        f"reference/{page}.md": package_page(page, names, package, homes, listed[PACKAGE])
        for page, names in described.items()
    }
    pages["reference/constructors.md"] = constructor_page(variants)
    return pages, every, problems
