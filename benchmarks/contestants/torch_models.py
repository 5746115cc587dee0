"""timm's ViT, eager and compiled, and the one of transformers, in PyTorch."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

from contestants.worker import CLASSES, Run, normalized, random_batch, repeat, serve

NAMES = {"ti": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}


@functools.cache  # the library must live as long as its operators are needed
def declare_torchvision_operators():
    """Lets timm import a torchvision that was built for another PyTorch; none of it is used."""
    import torch

    trial = [sys.executable, "-c", "import torchvision"]
    if subprocess.run(trial, stderr=subprocess.DEVNULL).returncode == 0:
        return None  # one that fits stops the process where its operators are there already
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def load(cell: dict) -> Run:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    torch.set_num_threads(cell["threads"])
    torch._dynamo.reset()
    dtype = getattr(torch, cell["precision"])
    images, labels = random_batch(cell)
    images = normalized(torch.from_numpy(images)).permute(0, 3, 1, 2).contiguous()
    model = (build_transformers if "transformers" in cell["who"] else build_timm)(cell)
    if cell["task"] == "train":
        return train(model, images, torch.from_numpy(labels), cell)
    return infer(model.eval().to(dtype), images.to(dtype), cell)


def infer(model, images, cell: dict) -> Run:
    import torch

    function = torch.compile(model) if cell["interface"] == "compiled" else model

    def step():
        with torch.inference_mode():
            answer = function(images)
        return getattr(answer, "logits", answer).float().numpy()

    return repeat(step)


def train(model, images, labels, cell: dict) -> Run:
    """Steps of AdamW; bfloat16 is autocast, as its weights stay float32 in Keras too."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True)
    function = torch.compile(model) if cell["interface"] == "compiled" else model
    half = cell["precision"] != "float32"

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            answer = function(images)
            loss = torch.nn.functional.cross_entropy(getattr(answer, "logits", answer), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach().numpy()

    return repeat(step)


def timm_name(variant: str) -> str:
    """timm's name of a variant such as `vit_ti16`."""
    size = variant.removeprefix("vit_").rstrip("0123456789")
    return f"vit_{NAMES[size]}_patch{variant.removeprefix(f'vit_{size}')}_224"


def build_timm(cell: dict):
    declare_torchvision_operators()
    import timm
    from safetensors.torch import load_file

    name = timm_name(cell["variant"])
    model = timm.create_model(name, num_classes=CLASSES, img_size=cell["size"])
    weights = pathlib.Path(cell["timm"], "timm.safetensors")
    if weights.exists():
        model.load_state_dict(load_file(weights))
    return model


def build_transformers(cell: dict):
    declare_torchvision_operators()
    import transformers

    config = cell["config"]
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config["width"],
            num_hidden_layers=config["depth"],
            num_attention_heads=config["num_heads"],
            intermediate_size=config["mlp_dim"],
            patch_size=config["patch_size"],
            image_size=cell["size"],
            num_labels=CLASSES,
            layer_norm_eps=1e-6,
        )
    )


def export(cell: dict) -> dict:
    """Writes random weights, which our models read too, and timm's own ONNX file of them."""
    import torch
    from safetensors.torch import save_file

    declare_torchvision_operators()
    from timm.utils.onnx import onnx_export

    folder = pathlib.Path(cell["timm"])
    folder.mkdir(parents=True, exist_ok=True)
    weights, path = folder / "timm.safetensors", folder / "float32.onnx"
    if not weights.exists():
        torch.manual_seed(0)
        model = build_timm(cell)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(std=0.02).add_("norm" in name and name.endswith("weight"))
        save_file(model.state_dict(), weights)
    if "float32.onnx" in cell["files"]:
        image = torch.zeros(2, 3, cell["size"], cell["size"])
        onnx_export(build_timm(cell).eval(), str(path), image, check=False, use_dynamo=True)
    return {}


if __name__ == "__main__":
    serve(load, export)
