"""Networks in one folder of transformers: by this package, transformers and ZeroModels."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import time
from typing import Any

from contestants import prompted_models as prompted
from contestants.worker import Run, repeat, serve

OUTPUTS = (
    *("predicted_depth", "logits", "pred_boxes", "pred_masks", "heatmaps"),
    *("masks_queries_logits", "class_queries_logits"),
)
ZEROMODELS = {
    "DepthAnythingForDepthEstimation": "depth_anything_v2.DepthAnythingV2DepthEstimation",
    "EomtForUniversalSegmentation": "eomt.EoMTUniversalSegment",
    "RfDetrForObjectDetection": "rf_detr.RFDETRDetect",
    "RfDetrForInstanceSegmentation": "rf_detr.RFDETRInstanceSegment",
    "SamModel": "sam.SAMPromptableSegment",
    "OwlViTForObjectDetection": "owlvit.OwlViTDetect",
    "Owlv2ForObjectDetection": "owlv2.Owlv2Detect",
}

EOMT_OUTPUTS = {"masks_queries_logits": "mask_logits", "class_queries_logits": "class_logits"}
PROMPTED = (prompted.SAM, *prompted.OWL)


def load(cell: dict) -> Run:
    """Builds a network, and writes its outputs to the folder, for the comparison."""
    import numpy as np

    project = cell["who"].split()[0]
    builds = {"keras_vit": load_ours, "transformers": load_theirs, "zeromodels": load_zeromodels}
    images = image_of(cell["size"], cell["seed"])
    step = builds[project](cell, images)
    np.savez(pathlib.Path(cell["folder"], f"{cell['who'].replace(' ', '_')}.npz"), **step())
    return repeat(lambda: next(iter(step().values())))


def image_of(size: tuple[int, int], seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).normal(size=(1, *size, 3)).astype("float32")


def use_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def load_ours(cell: dict, images) -> Any:
    use_threads(cell["threads"])
    import keras_vit

    keras_vit.runtime.keep_buffers()
    if cell["class"] in PROMPTED:
        return prompted.ours(cell, images)
    is_file = cell["interface"] != "predict"
    shape = {"input_shape": images.shape[1:], "include_preprocessing": is_file}
    model = keras_vit.from_pretrained(cell["folder"], **shape, **cell["call"])
    return prompted.of_model(cell, model, prompted.as_pixels(model, images))


def load_theirs(cell: dict, images) -> Any:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch
    from contestants.torch_models import declare_torchvision_operators

    declare_torchvision_operators()
    import transformers

    torch.set_num_threads(cell["threads"])
    model = getattr(transformers, cell["class"]).from_pretrained(cell["folder"]).eval()
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    if cell["class"] in PROMPTED:
        return prompted.theirs(cell, model, pixels)
    function = torch.compile(model) if cell["interface"] == "compiled" else model
    call = {key: torch.tensor([value]) for key, value in cell["call"].items()}

    def step():
        with torch.inference_mode():
            outputs = function(pixels, **call)
        return {name: outputs[name].numpy() for name in OUTPUTS if name in outputs}

    return step


def load_zeromodels(cell: dict, images) -> Any:
    """With XLA or without it, whichever is faster: Keras's own choice is XLA."""
    use_threads(cell["threads"])
    from safetensors.numpy import load_file
    from zeromodels import models  # noqa: F401 - registers the networks

    folder = pathlib.Path(cell["folder"])
    kind = find_zeromodel(cell["class"])
    fields = kind.config_from_hf(json.loads((folder / "config.json").read_text()))
    model = kind(**{**fields, "image_size": cell["size"][0]})
    kind.transfer_from_hf(model, load_file(folder / "model.safetensors"))
    inputs, names = images, EOMT_OUTPUTS
    if cell["class"] in PROMPTED:
        inputs, names = prompted.zeromodels(cell, model, images)
    seconds = {}
    for jit_compile in (False, True):
        model.compile(jit_compile=jit_compile)
        model.predict_on_batch(inputs)
        start = time.perf_counter()
        model.predict_on_batch(inputs)
        seconds[jit_compile] = time.perf_counter() - start
    if seconds[False] < seconds[True]:
        model.compile(jit_compile=False)
        model.predict_on_batch(inputs)

    def step():
        outputs = model.predict_on_batch(inputs)
        if not isinstance(outputs, dict):
            return {"predicted_depth": outputs[..., 0]}
        known = {**dict(zip(OUTPUTS, OUTPUTS, strict=True)), **names}
        found = {ours: outputs[theirs] for ours, theirs in known.items() if theirs in outputs}
        return {k: v[:, 0] if cell["class"] == prompted.SAM else v for k, v in found.items()}

    return step


def find_zeromodel(name: str):
    module, kind = ZEROMODELS[name].split(".")
    return getattr(importlib.import_module(f"zeromodels.models.{module}"), kind)


def export(cell: dict) -> dict:
    """Writes the folder of a network with random weights."""
    import torch
    from contestants.torch_models import declare_torchvision_operators

    declare_torchvision_operators()
    import transformers

    torch.manual_seed(0)
    config = f"{cell['class'].partition('For')[0].removesuffix('Model')}Config"
    model = getattr(transformers, cell["class"])(getattr(transformers, config)(**cell["config"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.02 * torch.randn_like(weight))  # layer scale of 1e-5 would hide blocks
            if name.startswith("box_head"):  # or boxes are sigmoids of thousands
                weight.mul_(0.1)
            if weight.numel() == 1:  # the last bias before the ReLU of depth: not 0 everywhere
                weight.fill_(1.0)
        for name, buffer in model.named_buffers():
            if name == "attn_mask_probs":  # as at the end of training
                buffer.zero_()
            elif name.endswith("positional_embedding"):  # as published, not of angles of thousands
                buffer.div_(buffer.std())
    model.save_pretrained(cell["folder"])
    seed = clearest_seed(model, cell["size"]) if cell["class"].startswith("RfDetr") else 0
    return {"parameters": sum(weight.numel() for weight in model.parameters()), "seed": seed}


def clearest_seed(model: Any, size: tuple[int, int]) -> int:
    """The seed of an image in which rounding does not decide which of two proposals comes first.

    Each place has features of its own, so that all outputs would change with their order.
    """
    import torch

    gaps = []
    for seed in range(24):
        pixels = torch.from_numpy(image_of(size, seed).transpose(0, 3, 1, 2).copy())
        with torch.inference_mode():
            scores = model.eval()(pixels).enc_outputs_class.max(-1).values[0]
        gaps.append(float((scores[:-1] - scores[1:]).min()))
    return gaps.index(max(gaps))


if __name__ == "__main__":
    serve(load, export)
