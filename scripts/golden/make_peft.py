"""Writes tests/golden/peft_outputs.json: small models of timm and transformers with PEFT's updates.

Run with the interpreter of `scripts/parity`'s environment, into which `pip install peft` put PEFT:
`PYTHONPATH=. .venv-parity/bin/python scripts/golden/make_peft.py`. Weights follow the formula of
`make_torch.py`. With a folder as its argument it compares instead: the folder has adapters
that `keras_vit.train.save_adapter` wrote, one for each case, and PEFT must compute the same.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file

from scripts.golden import make_torch as models  # first: it makes transformers importable
from scripts.golden.eval_cases import values

from peft import LoraConfig, PeftModel, get_peft_model  # isort: skip

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "peft_outputs.json"
DINO = ("transformers", "Dinov2ForImageClassification", models.DINO, 32, "")
models.CASES["transformers dinov2 classes"] = DINO
CASES = {
    "timm vit": {
        "r": 3, "lora_alpha": 5, "target_modules": ["qkv", "attn.proj", "fc1", "fc2"],
        "modules_to_save": ["head"],
    },
    "transformers vit": {
        "r": 2, "lora_alpha": 3, "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "fc1", "o_proj"],
        "rank_pattern": {"v_proj": 4}, "alpha_pattern": {"o_proj": 7},
        "modules_to_save": ["classifier"],
    },
    "transformers dinov2 classes": {
        "r": 2, "target_modules": ["q_proj", "k_proj", "fc2"], "modules_to_save": ["classifier"],
        "layers_to_transform": [1], "layers_pattern": "layer",
    },
    "timm clip": {
        "r": 2, "lora_alpha": 3, "target_modules": ["qkv", "attn.proj", "fc2"],
        "modules_to_save": ["head"],
    },
    "timm siglip": {"r": 2, "target_modules": ["qkv", "attn.proj"]},
    "timm dinov3": {"r": 3, "target_modules": ["qkv", "fc1", "fc2"], "modules_to_save": ["head"]},
    "timm split eva02": {
        "r": 2, "target_modules": ["q_proj", "v_proj", "fc1_g", "fc1_x", "fc2"],
        "modules_to_save": ["head"],
    },
    "transformers siglip": {"r": 2, "target_modules": ["q_proj", "v_proj"]},
    "transformers clip": {"r": 2, "target_modules": ["q_proj", "k_proj", "out_proj"]},
    "transformers dinov3": {"r": 2, "target_modules": ["k_proj", "v_proj", "o_proj"]},
}  # fmt: skip


def outputs_of(case: dict, model: torch.nn.Module) -> np.ndarray:
    return models.run(case, model, models.images(32, 32))


def main() -> None:
    golden = {}
    for title, options in CASES.items():
        case, model, state = models.filled_model(title)
        if sys.argv[1:]:
            expected = np.array(json.loads(OUT.read_text())[title]["outputs"])
            model = PeftModel.from_pretrained(model, f"{sys.argv[1]}/{title}").eval()
            print(title, np.abs(outputs_of(case, model) - expected).max() / np.abs(expected).max())
            continue
        model = get_peft_model(model, LoraConfig(**options)).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            shapes = {
                name: list(value.shape)
                for name, value in load_file(f"{folder}/adapter_model.safetensors").items()
            }
            config = json.loads(pathlib.Path(folder, "adapter_config.json").read_text())
        parameters = dict(model.named_parameters())
        for position, name in enumerate(sorted(shapes)):
            head, _, kind = name.rpartition(".")
            found = [
                parameters[key] for key in (f"{head}.default.{kind}", name) if key in parameters
            ]
            found += [parameters[key] for key in parameters if ".modules_to_save." in key
                      and key.replace(".modules_to_save.default", "") == name]  # fmt: skip
            assert len(found) == 1, (name, len(found))
            found[0].data.copy_(torch.from_numpy(values(tuple(shapes[name]), position, False)))
        outputs = outputs_of(case, model)
        golden[title] = {
            "base": {name: list(value.shape) for name, value in state.items()},
            "config": config,
            "shapes": shapes,
            "outputs": outputs.round(7).tolist(),
        }
        print(title, len(shapes), np.abs(outputs).max())
    if golden:
        OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
