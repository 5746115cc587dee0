"""Writes tests/golden/open_vocabulary.json: small OWL-ViT and OWLv2 of transformers.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_open_vocabulary.py

with the environment of `scripts/parity`. As `make_networks.py`, with ids of texts and pictures of
objects by a formula; and pixels of photographs and boxes in pixels by the image processors.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import skimage.data
import torch

from scripts.golden.network_formula import (
    chosen_values,
    images_of,
    network_arrays,
    token_ids_of,
)
from scripts.peers.parity_theirs import load_saved, save_names, transformers

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "open_vocabulary.json"
TEXT = {
    "vocab_size": 523, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 3, "max_position_embeddings": 8,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
OPTIONS = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 24}
# Name: class, and height and width of the images.
CASES = {
    "owlvit": ("OwlViTForObjectDetection", (64, 64)),
    "owlvit of another size": ("OwlViTForObjectDetection", (80, 112)),
    "owlv2": ("Owlv2ForObjectDetection", (64, 64)),
    "owlv2 of another size": ("Owlv2ForObjectDetection", (96, 96)),
}
PROCESSORS = {
    "owlvit": transformers.OwlViTImageProcessorPil,
    "owlv2": transformers.Owlv2ImageProcessorPil,
}
MERGES = ["p h", "ph o", "pho t", "phot o</w>", "c a", "ca t</w>", "d o", "do g</w>", "o f</w>"]
IDS_OF = ["a photo of a cat", "cat!!", "dog ! cat", "!", "cat! dog", "a!b"]
NAMES = {
    "logits": "logits", "pred_boxes": "boxes", "target_pred_boxes": "boxes",
    "objectness_logits": "objectness",
}  # fmt: skip


def make(name: str) -> dict[str, Any]:
    """The row of a case."""
    kind, size = CASES[name]
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**OPTIONS)).eval()
    with tempfile.TemporaryDirectory() as folder:
        shapes = save_names(model, folder)
        fixed = {each: 2.5 for each, shape in shapes.items() if not shape}
        arrays = network_arrays(shapes, fixed)
        state = {name: torch.tensor(array) for name, array in arrays.items()}
        model, info = load_saved(model, folder, state)
        assert not any(info.values()), info
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    images = torch.tensor(images_of(size).transpose(0, 3, 1, 2))
    ids = torch.tensor(np.tile(token_ids_of(), (len(images), 1)))
    options = {"interpolate_pos_encoding": size != (64, 64)}
    with torch.inference_mode():
        found = {
            "texts": model.eval()(input_ids=ids, pixel_values=images, **options),
            "pictures": model.image_guided_detection(images, images.flip(-1), **options),
        }
    outputs = {
        way: {NAMES[key]: chosen_values(each[key].numpy()) for key in each if key in NAMES}
        for way, each in found.items()
    }
    return {"config": written, "size": size, "shapes": shapes, "fixed": fixed, "outputs": outputs}


def make_pixels(kind: str, photograph: str, side: int) -> dict[str, Any]:
    """Pixels that an image processor makes of a photograph."""
    processor = PROCESSORS[kind](size={"height": side, "width": side})
    pixels = processor(getattr(skimage.data, photograph)(), return_tensors="np")["pixel_values"]
    values = chosen_values(pixels[0].transpose(1, 2, 0))
    return {"kind": kind, "photograph": photograph, "side": side, **values}


def make_boxes(kind: str) -> dict[str, Any]:
    """Boxes in pixels of a few outputs."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1.5, (1, 12, 3)).round(4).astype("float32")
    boxes = rng.uniform(0.1, 0.6, (1, 12, 4)).round(4).astype("float32")
    outputs = SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(boxes))
    (found,) = PROCESSORS[kind]().post_process_object_detection(outputs, 0.5, [(300, 400)])
    theirs = {key: value.tolist() for key, value in found.items()}
    return {"logits": logits[0].tolist(), "boxes": boxes[0].tolist(), "found": theirs}


def make_ids() -> dict[str, Any]:
    """Ids of texts by CLIP's tokenizer, with what the files of OWL-ViT name for padding."""
    first = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, first), *(chr(256 + i) for i in range(256 - len(first)))]
    pieces = [*letters, *(f"{each}</w>" for each in letters)]
    pieces += [each.replace(" ", "") for each in MERGES] + ["<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = (pathlib.Path(folder) / x for x in ("vocab.json", "merges.txt"))
        vocabulary.write_text(json.dumps({each: i for i, each in enumerate(pieces)}))
        merges.write_text("\n".join(["#version: 0.2", *MERGES, ""]))
        tokenizer = transformers.CLIPTokenizer.from_pretrained(folder, pad_token="!")
    ids = tokenizer(IDS_OF, padding="max_length", max_length=8)["input_ids"]
    return {"merges": MERGES, "texts": IDS_OF, "ids": ids}


def main() -> None:
    """Makes all."""
    content: dict[str, Any] = {
        "cases": {name: make(name) for name in CASES},
        "pixels": [
            make_pixels(kind, photograph, side)
            for kind in PROCESSORS
            for photograph, side in (("coffee", 224), ("rocket", 768))
        ],
        "ids": make_ids(),
        "boxes": {kind: make_boxes(kind) for kind in PROCESSORS},
    }
    OUT.write_text(json.dumps(content) + "\n")
    for name, row in content["cases"].items():
        for way, outputs in row["outputs"].items():
            print(name, way, {key: (x["shape"], np.ptp(x["values"])) for key, x in outputs.items()})


if __name__ == "__main__":
    main()
