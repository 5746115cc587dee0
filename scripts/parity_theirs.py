"""The other side of `scripts/parity`: models of timm and transformers."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

# The processor-only PyTorch comes without a torchvision that fits; timm and transformers import
# it, but none of its operators is used here.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import safetensors.torch  # noqa: E402
import timm  # noqa: E402
import transformers  # noqa: E402

from scripts.parity_answers import answer_requests  # noqa: E402

if transformers.__version__.startswith("4."):
    # Its hybrids cannot be initialised, for want of a mask token; weights are filled here anyway.
    transformers.modeling_utils._init_weights = False


def build(case: dict) -> torch.nn.Module:
    """A model of timm by name, or of transformers by class."""
    if case["project"] == "timm":
        options = dict(case["options"])
        return timm.create_model(case["model"], **options).eval()
    config = getattr(transformers, case["config"])(**case["options"])
    config._attn_implementation = "eager"
    return getattr(transformers, case["model"])(config).eval()


def fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights that hide nothing: every branch, bias and place counts."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            scale = name.endswith(("gamma", "lambda1")) or (
                "norm" in name.lower() and name.endswith("weight")
            )
            value = 1 + 0.2 * noise if scale else 0.2 * noise
        elif "token" in name or "pos" in name or "probe" in name or "latent" in name:
            value = 0.5 * noise
        else:
            value = noise / weight[0].numel() ** 0.5
        weight.data.copy_(value)


def run(case: dict, model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    """Logits, or features where there is no head."""
    x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    with torch.inference_mode():
        if case["project"] == "timm":
            return model(x).numpy()
        arguments = {}
        if case["model"].startswith("ViTMAE"):  # in order, and without a mask
            arguments["noise"] = torch.arange(case["patches"]).expand(len(x), -1).float()
        if case.get("interpolate") and not case["model"].startswith("Dinov2"):  # it always does
            arguments["interpolate_pos_encoding"] = True
        output = model(pixel_values=x, **arguments)
        if hasattr(output, "logits"):
            return output.logits.numpy()
        if case["output"] == "pooler":
            return output.pooler_output.numpy()
        return output.last_hidden_state[:, 0].numpy()


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
            case["folder"],
            output_loading_info=True,
            attn_implementation="eager",
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
