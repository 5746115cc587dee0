"""Writes tests/golden/eval_transforms.json: what timm and transformers make of 200 images.

Run with the interpreter of `scripts/parity`'s environment:
`PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_eval.py`. The images follow a formula, so
the file holds checksums of pixels, and logits of two small models. `eval_transforms.py`
compares all of them with ours, tests/data/test_transforms.py some. Takes a minute.
"""

from __future__ import annotations

import json
import pathlib
import zlib

import numpy as np
import PIL.Image

from scripts.golden.eval_cases import LOGITS, TIMM, TRANSFORMERS, all_images, normalized
from scripts.golden.make_torch import filled_model, run  # before timm, to make it importable

import timm.data  # isort: skip
import transformers  # isort: skip

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "eval_transforms.json"


def timm_transform(size: tuple[int, int], fields: dict):
    """timm's transform of evaluation, to integers."""
    config = timm.data.resolve_data_config({}, pretrained_cfg={**fields, "input_size": (3, *size)})
    transform = timm.data.create_transform(**config, is_training=False, normalize=False)
    return lambda image: transform(PIL.Image.fromarray(image)).permute(1, 2, 0).numpy()


def transformers_transform(fields: dict, backend: str):
    """An image processor, to integers."""
    name = fields["image_processor_type"] + ("Pil" if backend == "pil" else "")
    fields = {**fields, "do_rescale": False, "do_normalize": False}
    del fields["image_processor_type"]
    processor = getattr(transformers, name)(**fields)

    def transform(image: np.ndarray) -> np.ndarray:
        pixels = processor(PIL.Image.fromarray(image), return_tensors="pt")["pixel_values"][0]
        return np.asarray(pixels).transpose(1, 2, 0)

    return transform


def main() -> None:
    images = all_images()
    cases: dict[str, dict] = {}
    small: dict[str, dict] = {}
    for title, (size, fields) in {**TIMM, **TRANSFORMERS}.items():
        case = {"image_size": size, "fields": fields}
        if title in TIMM:
            transform = timm_transform(size, fields)
        else:
            transform = transformers_transform(fields, "pil")
            other = transformers_transform(fields, "torchvision")
        pixels = [transform(image) for image in images]
        assert {x.shape for x in pixels} == {(*size, 3)} and {x.dtype.name for x in pixels} == {
            "uint8"
        }
        case["crc32"] = [zlib.crc32(x.tobytes()) for x in pixels]
        if title in TRANSFORMERS:
            gaps = [
                np.abs(np.asarray(other(image), int) - x)
                for image, x in zip(images, pixels, strict=True)
            ]
            gap = np.stack(gaps)
            case["torchvision"] = {
                "largest": int(gap.max()),
                "mean": round(float(gap.mean()), 5),
                "images_that_differ": int(sum(x.any() for x in gaps)),
            }
        cases[title] = case
        print(title, case.get("torchvision", ""))
    for title, (size, fields) in LOGITS.items():
        timm_case = title.startswith("timm")
        transform = (
            timm_transform(size, fields) if timm_case else transformers_transform(fields, "pil")
        )
        case, model, _ = filled_model(title)
        inputs = np.stack([normalized(transform(image), fields) for image in images])
        logits = run(case, model, inputs)
        small[title] = {
            "image_size": size, "fields": fields, "logits": logits.round(5).tolist()
        }  # fmt: skip
        print(title, np.abs(logits).max())
    OUT.write_text(json.dumps({"pixels": cases, "logits": small}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
