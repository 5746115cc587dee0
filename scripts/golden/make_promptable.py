"""Writes tests/golden/promptable.json: what a small Segment Anything of transformers computes.

    PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_promptable.py

with the environment of `scripts/parity`. Weights, images and prompts follow formulas, which the
tests repeat.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import torch

from scripts.golden.network_formula import chosen_values, images_of, network_arrays
from scripts.golden.prompts import PHOTOGRAPH, PROMPTS, TRAINED, photograph_of
from scripts.peers.parity_theirs import load_saved  # noqa: F401  # makes torchvision importable

from transformers import SamConfig, SamModel, SamProcessor  # isort: skip
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil  # isort: skip

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "promptable.json"
SIDE, OTHER = 80, 112
_TIED = "prompt_encoder.shared_embedding.positional_embedding"


def config_of(side: int) -> Any:
    """A model of 5 x 5 patches in windows of 3 x 3, of which the last ones are filled up."""
    vision = {
        "hidden_size": 32, "output_channels": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "window_size": 3, "global_attn_indexes": [1, 3], "num_pos_feats": 16, "mlp_dim": 48,
    }  # fmt: skip
    decoder = {
        "hidden_size": 32, "mlp_dim": 40, "num_attention_heads": 4, "iou_head_hidden_dim": 24
    }  # fmt: skip
    sizes = {"image_size": side, "patch_size": 16}
    return SamConfig(
        vision_config={**vision, **sizes},
        prompt_encoder_config={"hidden_size": 32, "mask_input_channels": 8, **sizes},
        mask_decoder_config=decoder,
    )


def model_of(side: int, arrays: dict[str, Any]) -> SamModel:
    """The model for images of a size, whose positions are resized by PyTorch."""
    model = SamModel(config_of(side)).eval()
    state = {}
    for name, wanted in model.state_dict().items():
        x = torch.tensor(arrays["shared_image_embedding.positional_embedding"])
        if name != _TIED:
            x = torch.tensor(arrays[name])
        if x.shape != wanted.shape and name.endswith("pos_embed"):
            x = torch.nn.functional.interpolate(
                x.permute(0, 3, 1, 2), wanted.shape[1:3], mode="bicubic"
            ).permute(0, 2, 3, 1)
        elif x.shape != wanted.shape:  # of a block without windows
            x = torch.nn.functional.interpolate(x.T[None], len(wanted), mode="linear")[0].T
        state[name] = x
    model.load_state_dict(state)
    return model


def prompts_of(prompts: dict[str, Any]) -> dict[str, Any]:
    """Arguments of transformers for those of `predict`."""
    names = {"points": "input_points", "labels": "input_labels", "boxes": "input_boxes"}
    found = {
        names[key]: torch.tensor(value)[:, None] for key, value in prompts.items() if key in names
    }
    if prompts.get("masks"):
        found["input_masks"] = torch.tensor(images_of((20, 20))[:, None, ..., 0])
    return {**found, "multimask_output": prompts.get("num_masks", 3) == 3}


def main() -> None:
    """Makes the file."""
    shapes = {k: list(v.shape) for k, v in SamModel(config_of(SIDE)).state_dict().items()}
    del shapes[_TIED]
    arrays = network_arrays(shapes)
    model = model_of(SIDE, arrays)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    images = torch.tensor(images_of((SIDE, SIDE)).transpose(0, 3, 1, 2))
    row: dict[str, Any] = {"config": config, "shapes": shapes, "cases": {}}
    with torch.inference_mode():
        embeddings = model.get_image_embeddings(images)
        row["embeddings"] = chosen_values(embeddings.permute(0, 2, 3, 1).numpy())
        for name, prompts in PROMPTS.items():
            found = model(image_embeddings=embeddings, **prompts_of(prompts))
            row["cases"][name] = {
                "masks": chosen_values(found.pred_masks[:, 0].numpy()),
                "scores": chosen_values(found.iou_scores[:, 0].numpy()),
            }
        other = model_of(OTHER, arrays)
        images = torch.tensor(images_of((OTHER, OTHER)).transpose(0, 3, 1, 2))
        found = other(images, **prompts_of(PROMPTS["points"]))
        row["other size"] = {
            "masks": chosen_values(found.pred_masks[:, 0].numpy()),
            "scores": chosen_values(found.iou_scores[:, 0].numpy()),
        }
    found = model(image_embeddings=embeddings.clone(), **prompts_of(PROMPTS["points and box"]))
    (found.pred_masks.square().mean() + found.iou_scores.sum()).backward()
    parameters = dict(model.named_parameters())
    row["gradients"] = {key: chosen_values(parameters[key].grad.numpy()) for key in TRAINED}
    row["photograph"] = photograph(model)
    OUT.write_text(json.dumps(row) + "\n")


def photograph(model: SamModel) -> dict[str, Any]:
    """What the processor makes of a photograph and of prompts, and of the masks."""
    images = SamImageProcessorPil(
        size={"longest_edge": SIDE}, pad_size={"height": SIDE, "width": SIDE}
    )
    processor = SamProcessor(images)
    inputs = processor(
        images=[photograph_of()],
        input_points=[PHOTOGRAPH["points"]],
        input_labels=[PHOTOGRAPH["labels"]],
        return_tensors="pt",
    )
    sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
    with torch.inference_mode():
        found = model(**{k: v.float() for k, v in inputs.items()})
    whole = images.post_process_masks(found.pred_masks, *sizes)
    return {
        "pixels": chosen_values(inputs["pixel_values"].permute(0, 2, 3, 1).numpy()),
        "masks": chosen_values(found.pred_masks[:, 0].numpy()),
        "inside": [int(mask.sum()) for mask in whole[0][0]],
        "whole": chosen_values(whole[0][0].float().numpy()),
    }


if __name__ == "__main__":
    main()
