"""How much a user writes for one task: with keras-vit, with timm's scripts and with keras-hub.

    python benchmarks/effort.py --images cifar10 --timm pytorch-image-models \
        --python keras_vit=python timm=/tmp/peers/torch/bin/python

The task: a folder with a folder of photographs per class. Hold out a fifth, train a small Vision
Transformer from random weights, continue after a crash, test the best epoch on other photographs,
and say the classes of new ones. benchmarks/effort/ has what a user writes. It is run on 20 images a
class for two epochs instead of 100. Counts lines, flags, names of the library and numbers, and
prints JSON lines with them, the processor seconds and what was printed last.
"""

from __future__ import annotations

import argparse
import ast
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

from machine import write_row
from small_data import copy_images

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = {
    "keras_vit": "with_keras_vit.sh",
    "timm": "with_timm.sh",
    "keras_hub": "with_keras_hub.py",
}
# Two epochs instead of those of the script.
SHORTER = {
    "keras_vit": ("--output runs/photos", "--output runs/photos --epochs 2"),
    "timm": ("--epochs 100 --warmup-epochs 10", "--epochs 2 --warmup-epochs 1"),
    "keras_hub": ("64, 100", "64, 2"),
}
PACKAGES = {"keras_vit": "keras-vit", "timm": "timm", "keras_hub": "keras-hub"}
LIBRARIES = ("keras", "keras_hub")


def count(path: pathlib.Path) -> dict:
    """Lines without comments, commands, flags, names of the library, and chosen numbers."""
    text = path.read_text()
    if path.suffix == ".py":
        tree = ast.parse(text)
        docstring = ast.get_docstring(tree, clean=False) or ""
        lines = text.replace(f'"""{docstring}"""', "").splitlines()
        numbers = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and type(node.value) in (int, float)
        ]
        names = {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] in LIBRARIES
        }
        names = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
        flags, commands = set(), []
    else:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        body = "\n".join(lines)
        flags = set(re.findall(r"(?<=\s)--[a-z-]+", body))
        numbers = re.findall(r"(?<=[\s=x])\d[\d.e-]*(?=\s|$)", body)
        commands = re.findall(r"(?m)^(?:python \w+\.py|keras-vit \w+)", body)
        names = set()
    return {
        "lines": sum(1 for line in lines if line.strip()),
        "commands": len(commands),
        "flags": len(flags),
        "names": len(names),
        "numbers": len(numbers),
    }


def run(name: str, python: str, folder: pathlib.Path) -> dict:
    """Runs what a user writes in a folder."""
    script = folder / SCRIPTS[name]
    text = (ROOT / "benchmarks/effort" / SCRIPTS[name]).read_text()
    old, new = SHORTER[name]
    if text.count(old) != 1:
        raise ValueError(f"{SCRIPTS[name]} must contain {old!r} once, to be run for two epochs.")
    script.write_text(text.replace(old, new).replace("keras-vit ", "python -m keras_vit "))
    (folder / "bin").mkdir(exist_ok=True)
    link = folder / "bin/python"
    link.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    link.chmod(0o755)
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    if name == "keras_vit":
        paths["PYTHONPATH"] = str(ROOT)
    words = ["python", script.name] if script.suffix == ".py" else ["bash", "-e", script.name]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
        raise RuntimeError(f"{script} failed.")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    printed = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)  # without colours
    query = f"import importlib.metadata; print(importlib.metadata.version({PACKAGES[name]!r}))"
    version = subprocess.run([python, "-c", query], capture_output=True, text=True).stdout.strip()
    facts = {"version": version or "this checkout", "processor_s": round(used, 1)}
    return {**facts, "printed_last": printed.strip().splitlines()[-3:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=pathlib.Path, required=True, help="train/ and test/")
    parser.add_argument("--timm", type=pathlib.Path, help="timm's repository, with train.py")
    parser.add_argument("--python", nargs="*", default=[], help="NAME=its interpreter")
    parser.add_argument("--output", type=pathlib.Path, help="JSON lines to append to")
    options = parser.parse_args()
    for name, python in (each.split("=") for each in options.python):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            train, test = options.images / "train", options.images / "test"
            classes = sorted(os.listdir(train))
            copy_images(train, folder / "photos", classes, 0, 20)
            copy_images(test, folder / "photos_test", classes, 0, 5)
            (folder / "new").mkdir()
            for each in classes[:2]:
                shutil.copy(sorted((test / each).iterdir())[-1], folder / "new" / f"{each}.jpg")
            if name == "timm":
                for file in options.timm.glob("*.py"):
                    shutil.copy(file, folder)
            row = {"library": name, **count(ROOT / "benchmarks/effort" / SCRIPTS[name])}
            row |= run(name, python, folder)
        write_row(row, options.output)


if __name__ == "__main__":
    main()
