"""One backend's outputs and gradients of small models and of ViT-Ti/16, or their comparison.

`scripts/backends` runs this once under every backend of Keras and then compares. Outputs of dense
networks are compared with those of transformers in `tests/golden`. Prints one line a
model: the largest difference from TensorFlow's, relative to the largest value.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import numpy as np

TOLERANCE = 2e-5  # relative, float32
TI16 = {"patch_size": 16, "width": 192, "depth": 12, "num_heads": 3, "mlp_dim": 768}
TEXT_DETECTORS = ("owlvit", "owlv2")
# Changes of `tests/fixtures.py`'s tiny model.
MODELS: dict[str, dict] = {
    "token": {},
    "gap": {"pooling": "gap", "class_token": False, "pre_logits": 16},
    "map": {"pooling": "map", "gelu": "exact"},
    "relative": {"position_embedding": "relative"},
    "sincos_2d": {"position_embedding": "sincos_2d"},
    "learned_2d": {"position_embedding": "learned_2d", "image_size": (16, 40)},
    "registers": {"num_registers": 2, "layer_scale": 0.1, "qk_norm": True},
    "merging": {"pooling": "map", "num_merged_tokens": 3, "num_registers": 2},
    "dinov3": {
        "rope": {"coordinates": "centered", "base": 100.0, "interleaved": False},
        "position_embedding": "none",
        "num_registers": 2,
        "without_bias": ("key",),
        "layer_scale": 0.1,
    },
    "eva02": {
        "rope": {"reference_grid": (2, 2)},
        "swiglu": True,
        "inner_norms": ("attention", "mlp"),
    },
    "aimv2": {"norm": "rms", "norm_patches": True, "without_bias": ("value", "mlp")},
    "beit": {"position_embedding": "relative_bias", "without_bias": ("key",)},
    "vit5": {"rope": {"register_base": 100.0}, "num_registers": 4, "norm": "rms"},
    "clip": {"gelu": "quick", "norm_before_blocks": True, "head_bias": None},
    "vit_ti16": {**TI16, "image_size": 224},
}


def run(folder: pathlib.Path) -> None:
    import keras

    from tests.fixtures import tiny_vit
    from tests.networks.cases import CASES

    backend = keras.backend.backend()
    if backend != "tensorflow":
        assert "tensorflow" not in sys.modules, f"TensorFlow was imported under {backend}"
    results: dict = {}
    for name, fields in MODELS.items():
        model = tiny_vit(stddev=0.05 if name == "vit_ti16" else 0.2, **fields)
        images = np.random.default_rng(1).uniform(0, 255, (4, *model.input_shape[1:]))
        images = images.astype("float32")
        results[f"{name}/logits"] = model.predict(images, verbose=0)
        before = [keras.ops.convert_to_numpy(w).copy() for w in model.trainable_weights]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1.0), loss)  # one step moves a weight by its gradient
        model.train_on_batch(images, np.arange(4))
        for weight, start in zip(model.trainable_weights, before, strict=True):
            gradient = start - keras.ops.convert_to_numpy(weight)
            results[f"{name}/gradient/{weight.path}"] = gradient
    np.savez(folder / f"{backend}.npz", **results)
    print(f"{backend}: {len(MODELS)} models, keras {keras.__version__}", flush=True)
    for name in CASES:
        check_network(name)
    print(f"{backend}: {len(CASES)} dense networks compute what transformers does")
    for name in TEXT_DETECTORS:
        check_text_detector(name)
    print(f"{backend}: {len(TEXT_DETECTORS)} detectors of texts compute what transformers does")
    check_promptable()
    print(f"{backend}: Segment Anything computes what transformers does")


def check_network(name: str) -> None:
    """Compares the outputs of a network of transformers with the golden ones."""
    import keras_vit
    from tests.networks.cases import CASES, check_outputs, images_of, network_folder

    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        model = keras_vit.from_pretrained(
            network_folder(name, pathlib.Path(folder)),
            input_shape=(*case["size"], 3),
            include_preprocessing=False,
            **case.get("options", {}),
        )
    check_outputs(model.predict(images_of(case["size"]), verbose=0), name)


def check_text_detector(name: str) -> None:
    """Compares the outputs of OWL-ViT or OWLv2 with the golden ones."""
    from keras_vit.detection.open_vocabulary import load_open_vocabulary
    from scripts.golden.network_formula import images_of, token_ids_of
    from tests.detection.open_vocabulary import check_owl, owl_folder

    with tempfile.TemporaryDirectory() as folder:
        path = owl_folder(name, pathlib.Path(folder))
        owl = load_open_vocabulary(path, include_preprocessing=False)
    check_owl(owl.predict(images_of((64, 64)), token_ids=token_ids_of()), name, "texts")


def check_promptable() -> None:
    """Compares embeddings, masks and scores of Segment Anything with the golden ones."""
    from keras_vit.segmentation.promptable import load_promptable
    from tests.segmentation.promptable_cases import check_sam, sam_folder

    with tempfile.TemporaryDirectory() as folder:
        check_sam(load_promptable(sam_folder(pathlib.Path(folder)), include_preprocessing=False))


def compare(folder: pathlib.Path) -> int:
    expected = np.load(folder / "tensorflow.npz")
    failed = 0
    for backend in ("jax", "torch"):
        values = np.load(folder / f"{backend}.npz")
        assert set(values.files) == set(expected.files)
        for name in MODELS:
            for part in ("logits", "gradient"):
                keys = [key for key in expected.files if key.startswith(f"{name}/{part}")]
                scale = max(np.abs(expected[key]).max() for key in keys)
                error = max(np.abs(values[key] - expected[key]).max() for key in keys) / scale
                failed += not error <= TOLERANCE
                verdict = "ok" if error <= TOLERANCE else "FAILED"
                print(f"{backend:6} {name:12} {part:9} {error:.1e} {verdict}")
    return failed


if __name__ == "__main__":
    command, out = sys.argv[1], pathlib.Path(sys.argv[2])
    if command == "run":
        run(out)
    else:
        sys.exit(compare(out))
