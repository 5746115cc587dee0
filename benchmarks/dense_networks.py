r"""Published dense networks at full size on this processor, compared with other libraries.

    python benchmarks/dense_networks.py --theirs TORCH/bin/python --zeromodels ZERO/bin/python \
        --output docs/benchmarks/dense_networks.jsonl

transformers makes each network with random weights, and everybody else reads its folder. All
contestants are loaded, each in a process of its own on as many threads, and take turns, as in
suite.py: one image, float32. A JSON line for each: seconds of an image (the median of the rounds,
and all of them), the largest difference of each output to transformers without a compiler, relative
to the largest value, versions, date and machine; `error` where one fails. The first environment
needs transformers, PyTorch and timm, the second zeromodels, TensorFlow and PyTorch, with which
zeromodels reads files; without the second, zeromodels is left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

import numpy as np
from contestants import prompted_models as prompted
from contestants.dense_models import ZEROMODELS
from contestants.table import Contestant
from machine import print_machine, write_row
from suite import Suite

MODULE = "contestants.dense_models"
FILES = {f"keras_vit {name}": Contestant("ours", MODULE, name) for name in prompted.FILES}
CONTESTANTS = {
    "keras_vit": Contestant("ours", MODULE, "predict"),
    **FILES,
    "transformers": Contestant("theirs", MODULE, "eager"),
    "transformers compiled": Contestant("theirs", MODULE, "compiled"),
    "zeromodels": Contestant("zeromodels", MODULE),
}
REFERENCE = "transformers"
FORMATS = {
    "graph": "SavedModel", "litert": "LiteRT", "onnxruntime": "ONNX", "openvino": "OpenVINO",
}  # fmt: skip


def backbone(width: int, heads: int) -> dict:
    """DINOv2 of 12 blocks, at its own size."""
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": 12}
    stages = [f"stage{block}" for block in (3, 6, 9, 12)]
    fixed = {"model_type": "dinov2", "image_size": 518, "patch_size": 14}
    return {**fixed, **sizes, "out_features": stages, "reshape_hidden_states": False}


def rf_detr(patch: int, windows: int, side: int, layers: int) -> dict:
    part = {
        "model_type": "rf_detr_dinov2", "hidden_size": 384, "num_attention_heads": 6,
        "patch_size": patch, "num_windows": windows, "image_size": side,
        "out_features": ["stage3", "stage6", "stage9", "stage12"],
    }  # fmt: skip
    decoder = {"decoder_n_points": 2, "decoder_layers": layers, "id2label": labels(91)}
    return {"backbone_config": part, **decoder}


def labels(count: int) -> dict[str, str]:
    return {str(index): f"class {index}" for index in range(count)}


def vitpose(simple: bool, **options) -> dict:
    sizes = {"image_size": [256, 192], "patch_size": [16, 16], "out_features": ["stage12"]}
    part = {"model_type": "vitpose_backbone", **sizes, **options}
    return {"backbone_config": part, "use_simple_decoder": simple, "id2label": labels(17)}


SMALL = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 12}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}
WIDTHS = {"neck_hidden_sizes": [256, 512, 1024, 1024], "backbone_out_indices": [5, 11, 17, 23]}
DPT = {**LARGE, **WIDTHS, "intermediate_size": 4096}
DEPTH, DPT_DEPTH = "DepthAnythingForDepthEstimation", "DPTForDepthEstimation"
YOLOS, POSE = "YolosForObjectDetection", "VitPoseForPoseEstimation"
EOMT, EOMT_DINOV3 = "EomtForUniversalSegmentation", "EomtDinov3ForUniversalSegmentation"
SAM, OWL, OWL2 = "SAM ViT-B", "OWL-ViT base, patch 32", "OWLv2 base, patch 16"
OWL2_CONFIG = {"vision_config": {"image_size": 960, "patch_size": 16}}
PANOPTIC = {"image_size": 640, "id2label": labels(133)}
ON_SMALL = {"num_blocks": 3, **SMALL, **PANOPTIC}
SAM_SIZES = {
    "SAM ViT-L": {**LARGE, "global_attn_indexes": [5, 11, 17, 23], "mlp_dim": 4096},
    "SAM ViT-H": {
        "hidden_size": 1280, "num_attention_heads": 16, "num_hidden_layers": 32,
        "global_attn_indexes": [7, 15, 23, 31], "mlp_dim": 5120,
    },
    "SlimSAM, half": {
        "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 12,
        "global_attn_indexes": [2, 5, 8, 11], "mlp_dim": 1536,
    },
}  # fmt: skip
# Class, image size, and what differs from the defaults of its configuration: as published.
NETWORKS: dict[str, tuple[str, tuple[int, int], dict]] = {
    "Depth Anything V2 small": (DEPTH, (518, 518), {"backbone_config": backbone(384, 6)}),
    "Depth Anything V2 base": (DEPTH, (518, 518), {
        "backbone_config": backbone(768, 12), "reassemble_hidden_size": 768,
        "neck_hidden_sizes": [96, 192, 384, 768], "fusion_hidden_size": 128,
    }),
    "DPT large": (DPT_DEPTH, (384, 384), DPT),
    "DPT on DINOv2 small": (DPT_DEPTH, (518, 518), {
        "backbone_config": backbone(384, 6), "neck_hidden_sizes": [48, 96, 192, 384],
        "add_projection": True, "use_bias_in_fusion_residual": False,
    }),
    "DPT large, segmentation": ("DPTForSemanticSegmentation", (480, 480), {
        **DPT, "image_size": 480, "use_batch_norm_in_fusion_residual": True,
        "id2label": labels(150),
    }),
    "BEiT base": ("BeitForSemanticSegmentation", (640, 640), {
        "image_size": 640, "use_relative_position_bias": True, "layer_scale_init_value": 0.1,
        "out_indices": [3, 5, 7, 11], "id2label": labels(150),
    }),
    "YOLOS tiny": (YOLOS, (512, 672), {
        "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768,
        "image_size": [800, 1333], "use_mid_position_embeddings": False, "id2label": labels(91),
    }),
    "YOLOS small": (YOLOS, (512, 672), {
        **SMALL, "intermediate_size": 1536, "id2label": labels(91),
    }),
    "ViTPose base": (POSE, (256, 192), vitpose(True)),
    "ViTPose base, classic": (POSE, (256, 192), vitpose(False)),
    "ViTPose+ base": (POSE, (256, 192), vitpose(False, num_experts=6, part_features=192)),
    "EoMT small": (EOMT, (640, 640), ON_SMALL),
    "EoMT large": (EOMT, (640, 640), {**LARGE, **PANOPTIC}),
    "EoMT small on DINOv3": (EOMT_DINOV3, (640, 640), {**ON_SMALL, "intermediate_size": 1536}),
    "EoMT large on DINOv3": (EOMT_DINOV3, (640, 640), {**LARGE, **PANOPTIC}),
    **{f"{SAM}, {part}": ("SamModel", (1024, 1024), {}) for part in ("encoder", "a click", "both")},
    **{f"{name}, both": ("SamModel", (1024, 1024), {"vision_config": sizes})
       for name, sizes in SAM_SIZES.items()},
    OWL: ("OwlViTForObjectDetection", (768, 768), {}),
    f"{OWL}, texts": ("OwlViTForObjectDetection", (768, 768), {}),
    OWL2: ("Owlv2ForObjectDetection", (960, 960), OWL2_CONFIG),
    f"{OWL2}, texts": ("Owlv2ForObjectDetection", (960, 960), OWL2_CONFIG),
    "RF-DETR base": ("RfDetrForObjectDetection", (560, 560), rf_detr(14, 4, 518, 3)),
    "RF-DETR medium": ("RfDetrForObjectDetection", (576, 576), rf_detr(16, 2, 576, 4)),
    "RF-DETR small, masks": (
        "RfDetrForInstanceSegmentation", (384, 384), rf_detr(12, 2, 384, 4),
    ),
}  # fmt: skip
DEFAULT = [
    *("Depth Anything V2 small", "DPT large", "BEiT base", "YOLOS small", "ViTPose base"),
    *("EoMT small", "EoMT large"),
]
CALLS: dict[str, dict[str, int]] = {"ViTPose+ base": {"dataset_index": 0}}
# Networks with prompts: what of them is computed.
PARTS = {
    f"{SAM}, encoder": "encoder", f"{SAM}, a click": "decoder",
    **{f"{name}, both": "both" for name in (SAM, *SAM_SIZES)},
    **{f"{name}, texts": "texts" for name in (OWL, OWL2)},
}  # fmt: skip


def measure(name: str, suite: Suite, output: pathlib.Path | None) -> None:
    """Writes a row for each contestant of one network."""
    kind, size, config = NETWORKS[name]
    cell = {"class": kind, "config": config, "size": size, "threads": suite.options.threads}
    cell |= {"call": CALLS.get(name, {}), "part": PARTS.get(name, "whole")}
    cell |= {"folder": str(suite.folder / "network")}
    # ZeroModels has Segment Anything as one model of images and points.
    has_zeromodels = kind in ZEROMODELS and cell["part"] not in ("encoder", "decoder")
    # Both parts of it are two files.
    left_out = [*([] if has_zeromodels else ["zeromodels"]),
                *(FILES if cell["part"] in ("both", "texts") else [])]  # fmt: skip
    names = [who for who in suite.contestants if who not in left_out]
    made = suite.worker(REFERENCE, "theirs", MODULE).ask(do="export", cell=cell)
    if "error" in made:
        sys.exit(f"{name} was not made: {made['error']}")
    cell["seed"] = made.pop("seed")
    try:
        with concurrent.futures.ThreadPoolExecutor(suite.options.loaders) as pool:
            answers = list(pool.map(lambda who: suite.load(who, cell), names))
        loaded = dict(zip(names, answers, strict=True))
        rounds = suite.run_rounds([who for who in names if "error" not in loaded[who]])
        for who in names:
            timed = rounds.get(who, [])
            failed: dict = next((note for note in timed if "error" in note), {})
            row = {"network": name, "size": size, "contestant": who, "threads": cell["threads"]}
            row |= {**made, **summarize(timed), **differences(cell["folder"], who)}
            write_row({**row, **loaded[who], **failed}, output)
    finally:
        suite.close()
        shutil.rmtree(cell["folder"], ignore_errors=True)


def summarize(rounds: list[dict]) -> dict:
    """Seconds of an image: the median of the rounds, and all of them."""
    if not rounds or any("error" in note for note in rounds):
        return {}
    wall = [float(f"{note['wall_s']:.4g}") for note in rounds]
    return {"seconds": float(f"{statistics.median(wall):.4g}"), "wall_s": wall}


def differences(folder: str, who: str) -> dict:
    """Largest difference of each output to the reference, relative to its largest value."""
    ours, theirs = (pathlib.Path(folder, f"{x.replace(' ', '_')}.npz") for x in (who, REFERENCE))
    if who == REFERENCE or not ours.exists() or not theirs.exists():
        return {}
    with np.load(ours) as found, np.load(theirs) as expected:
        return {"differences": {
            name: float(f"{np.abs(found[name] - expected[name]).max() / largest:.2g}")
            for name in sorted(set(found) & set(expected))
            if (largest := np.abs(expected[name]).max()) > 0
        }}  # fmt: skip


def table(rows: list[dict]) -> list[str]:
    """Seconds of an image in the newest rows, for docs/dense-published.md and docs/prompted.md."""
    newest = {(row["network"], row["contestant"]): row for row in rows}
    found = {who for _, who in newest}
    files = {who: FORMATS[who.split()[1]] for who in FILES if who in found}
    titles = {"keras_vit": "keras_vit", **files, REFERENCE: REFERENCE}
    titles |= {f"{REFERENCE} compiled": "compiled", "zeromodels": "ZeroModels"}
    lines = [f"| network | image | {' | '.join(titles.values())} | largest difference |", "rule"]
    for name in dict.fromkeys(row["network"] for row in rows):
        own = {who: newest.get((name, who), {}) for who in titles}
        cells = [f"{x:.{2 if x >= 0.1 else 3}f}" if x else "-"
                 for x in (row.get("seconds") for row in own.values())]  # fmt: skip
        ours = [row.get("differences", {}) for who, row in own.items() if "keras_vit" in who]
        worst = max(value for differences in ours for value in differences.values())
        height, width = NETWORKS[name][1]
        lines.append(f"| {name} | {height}x{width} | {' | '.join(cells)} | {worst:.0e} |")
    return lines


def parse(arguments: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--theirs", required=True, metavar="PYTHON", help="with transformers")
    parser.add_argument("--zeromodels", metavar="PYTHON", help="with zeromodels")
    parser.add_argument("--networks", nargs="+", default=DEFAULT, choices=[*NETWORKS, "all"])
    usual = [name for name in CONTESTANTS if name not in FILES]  # whose export takes long
    parser.add_argument("--contestants", nargs="+", default=usual, choices=CONTESTANTS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round, at least")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two")
    parser.add_argument("--loaders", type=int, default=2, help="contestants loaded at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a command may take")
    parser.add_argument("--output", type=pathlib.Path, help="file of JSON lines to append to")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    pythons = {"ours": sys.executable, "theirs": options.theirs, "zeromodels": options.zeromodels}
    chosen = {
        name: contestant
        for name, contestant in CONTESTANTS.items()
        if pythons[contestant.environment] and name in {*options.contestants, REFERENCE}
    }
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        options.folder = folder
        suite = Suite(pythons, chosen, options)
        for name in NETWORKS if "all" in options.networks else options.networks:
            measure(name, suite, options.output)


if __name__ == "__main__":
    main()
