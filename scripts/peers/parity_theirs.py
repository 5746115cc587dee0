"""The other side of `scripts/parity`: models of timm and transformers."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # The processor-only PyTorch comes without a torchvision that fits; timm, transformers and
    # open_clip import it, but none of its operators is used here.
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import safetensors.torch
import timm
import transformers
from safetensors import safe_open

from scripts.peers.parity_answers import answer_requests
from tests.sweep import patches_of

NAFLEX_PATCHES = 256

if transformers.__version__.startswith("4."):
    # Its hybrids cannot be initialised, for want of a mask token; weights are filled here anyway.
    transformers.modeling_utils._init_weights = False


def vit5_code() -> Any:
    """The module of github.com/wangf3014/ViT-5, whose checkout is at `VIT5_CODE`."""
    if os.environ["VIT5_CODE"] not in sys.path:
        sys.path.append(os.environ["VIT5_CODE"])
    if not torch.cuda.is_available():  # its rotary positions ask for a GPU
        torch.Tensor.cuda = lambda self: self
    return importlib.import_module("models_vit5")


def config_of(name: str) -> str:
    """The configuration's class of a class of transformers."""
    return f"{name.partition('For')[0].partition('Model')[0]}Config"


def build(case: dict) -> torch.nn.Module:
    """A model of timm by name, or of transformers by class."""
    if case["model"].startswith("vit5_"):
        vit5_code()  # timm knows its models from then on
    if case["project"] == "timm":
        options = dict(case["options"])
        return timm.create_model(case["model"], **options).eval()
    config = getattr(transformers, config_of(case["model"]))(**case["options"])
    config._attn_implementation = "eager"
    return getattr(transformers, case["model"])(config).eval()


def save_names(model: torch.nn.Module, folder: str) -> dict[str, list[int]]:
    """Saves a model of transformers; names and shapes of the arrays in its file."""
    model.save_pretrained(folder)
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


def load_saved(
    model: torch.nn.Module, folder: str, state: dict[str, torch.Tensor]
) -> tuple[torch.nn.Module, dict]:
    """A saved model of transformers with other arrays, and what did not fit."""
    safetensors.torch.save_file(state, f"{folder}/model.safetensors", {"format": "pt"})
    loaded, info = type(model).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    return loaded.eval(), info


def fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights that hide nothing: every branch, bias and place counts."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            scale = (
                name.endswith(("gamma", "lambda1"))
                or ".ln_" in name
                or ("norm" in name.lower() and name.endswith("weight"))
            )
            value = 1 + 0.2 * noise if scale else 0.2 * noise
            if type(model).__name__.startswith("ImageGPT") and not scale:
                value = 0 * noise  # the official model has no biases
        elif "token" in name or "pos" in name or "probe" in name or "latent" in name:
            value = 0.5 * noise
        else:
            value = noise / weight[0].numel() ** 0.5
        weight.data.copy_(value)


def run(case: dict, model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    """Logits, or features where there is no head."""
    with torch.inference_mode():
        return outputs_of(case, model, pixels_of(images)).numpy()


def gradient(case: dict, model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    """Gradient of a weighted sum of the outputs with respect to the images."""
    with torch.enable_grad():
        x = pixels_of(images).requires_grad_()
        outputs = outputs_of(case, model, x)
        weights = torch.cos(torch.arange(outputs.numel(), dtype=x.dtype)).reshape(outputs.shape)
        (outputs * weights).sum().backward()
    return x.grad.numpy().transpose(0, 2, 3, 1)


def pixels_of(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def outputs_of(case: dict, model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    if case["project"] == "timm":
        return model(x)
    if case["model"].startswith("ImageGPT"):  # the start token, then all pixels but the last
        palette = torch.from_numpy(np.load(case["palette_file"]))
        colors = torch.cdist(x.flatten(2).transpose(1, 2), palette).argmin(-1)
        start = torch.full((len(x), 1), len(palette))
        return model(input_ids=torch.cat([start, colors[:, :-1]], 1)).logits
    arguments: dict[str, Any] = {}
    if case["model"].startswith("Siglip2"):
        patches, grid = patches_of(x.numpy().transpose(0, 2, 3, 1), 16, NAFLEX_PATCHES)
        x, grid = torch.from_numpy(patches), torch.from_numpy(grid)
        mask = torch.arange(NAFLEX_PATCHES)[None] < grid.prod(dim=1)[:, None]
        arguments = {"pixel_attention_mask": mask.int(), "spatial_shapes": grid}
    if case["model"].startswith("ViTMAE"):  # in order, and without a mask
        arguments["noise"] = torch.arange(case["patches"]).expand(len(x), -1).float()
    if case.get("interpolate") and not case["model"].lower().startswith("dino"):  # they always do
        arguments["interpolate_pos_encoding"] = True
    output = model(pixel_values=x, **arguments)
    for name in ("logits", "image_embeds"):
        if hasattr(output, name):
            return getattr(output, name)
    if case["output"] == "pooler":
        return output.pooler_output
    return output.last_hidden_state[:, 0]


def make(case: dict) -> dict:
    model = build(case)
    fill(model, seed=0)
    if case["project"] == "timm":
        state = {name: value.contiguous() for name, value in model.state_dict().items()}
        safetensors.torch.save_file(state, case["file"])
    else:
        model.save_pretrained(case["folder"])
    images = np.random.default_rng(0).uniform(-1, 1, case["images"]).astype("float32")
    np.save(case["images_file"], images)
    np.save(case["outputs_file"], run(case, model, images))
    if case.get("gradient_file"):
        np.save(case["gradient_file"], gradient(case, model, images))
    return {"parameters": sum(weight.numel() for weight in model.parameters())}


def check(case: dict) -> dict:
    if case["project"] == "timm":
        model = build(case)
        fill(model, seed=1)
        if case["back"].endswith(".npz"):
            with torch.no_grad():
                model.load_pretrained(case["back"])  # timm's own reader of official files
        else:
            model.load_state_dict(safetensors.torch.load_file(case["back"]), strict=True)
    else:
        model, info = getattr(transformers, case["model"]).from_pretrained(
            case["folder"], output_loading_info=True, attn_implementation="eager"
        )
        wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
        if wrong:
            raise ValueError(f"transformers did not take the file as it is: {wrong}")
        model = model.eval()
    np.save(case["outputs_file"], run(case, model, np.load(case["images_file"])))
    return {}


def main() -> None:
    torch.set_grad_enabled(False)
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    versions["transformers"] = transformers.__version__
    answer_requests({"make": make, "check": check}, versions)


if __name__ == "__main__":
    main()
