"""What `import keras_vit` does in a new process, and what works there after it alone.

tests/test_package.py runs `main` in a process of its own, and asserts on what it prints.
"""

from __future__ import annotations

import builtins
import json
import os
import pathlib
import runpy
import sys

# test_package.py saves a model of each
FAMILIES = ("vit", "hybrid", "bit", "segmenter", "image_gpt")


def main(folder: str) -> None:
    import keras
    import numpy as np
    import tensorflow  # noqa: F401

    from tests.runtime.other_packages import changes, page_faults, snapshot

    facts: dict[str, object] = {}
    environment, before, modules = dict(os.environ), snapshot(), set(sys.modules)
    assert len(before) > 1000, len(before)
    imports = builtins.__import__
    refuse(imports)
    import keras_vit

    facts["variables"] = sorted(environment.items() ^ os.environ.items())
    facts["changes"] = changes(before)
    new = {name.split(".")[0] for name in set(sys.modules) - modules}
    facts["modules"] = sorted(new - set(sys.stdlib_module_names))
    facts["registered"] = sorted(keras.saving.get_custom_objects())
    keras.Model._undo = None  # the check can fail
    facts["noticed"] = changes(before)
    del keras.Model._undo

    size = {"patch_size": 4, "width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    model = keras_vit.build_vit(keras_vit.make_config(**size, image_size=8, classes=3))
    assert keras_vit.data.transform_of(model).image_size == (8, 8)
    facts["shape"] = list(model(np.zeros((2, 8, 8, 3), "float32")).shape)
    try:
        keras_vit.export_saved_model  # noqa: B018
    except ImportError as error:
        facts["refused"] = str(error)  # so the guard works
    builtins.__import__ = imports

    for family in FAMILIES:
        model = keras.saving.load_model(f"{folder}/{family}.keras", safe_mode=True)
        images = np.load(f"{folder}/{family}.npz")["images"]
        np.save(f"{folder}/{family}.npy", keras.ops.convert_to_numpy(model(images)))
    tasks = tuple(
        f"keras_vit.{name}" for name in ("detection", "image_gpt", "image_text", "segmentation")
    )
    facts["tasks"] = [name for name in sys.modules if name.startswith(tasks)]
    keras_vit.detection  # noqa: B018 - loads on first use
    facts["used"] = [name for name in sys.modules if name.startswith(tasks)]
    names = [name.rpartition(".")[2] for name in tasks]
    facts["attributes"] = [getattr(keras_vit, name, None) is not None for name in names]
    facts["listed"] = [name for name in dir(keras_vit) if name in names]
    facts["page faults"] = page_faults()
    pathlib.Path(folder, "facts.json").write_text(json.dumps(facts))
    list_weights_to_a_closed_pipe()


def refuse(import_module) -> None:
    """Makes imports of TensorFlow and matplotlib by modules of keras_vit an error."""

    def guarded(name, globals=None, *args):
        caller = (globals or {}).get("__name__", "")
        if caller.startswith("keras_vit") and name.split(".")[0] in ("tensorflow", "matplotlib"):
            raise ImportError(f"{caller} imports {name}")
        return import_module(name, globals, *args)

    builtins.__import__ = guarded


def list_weights_to_a_closed_pipe() -> None:
    """Ends the process as `python -m keras_vit weights list | head -n 1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stdout.fileno())
    sys.argv = ["keras-vit", "weights", "list"]
    runpy.run_module("keras_vit", run_name="__main__")
