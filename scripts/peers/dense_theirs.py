"""Writes what transformers makes of ten photographs with each of its dense networks.

The first half of `scripts/parity-dense`. The networks are those of tests/golden/networks.json, with
the image sizes of the published files and their image processors, on Pillow. The folder of a case
has the checkpoint, `case.json`, and of every photograph the pixels that went into the network, its
outputs and the results.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any
from unittest import mock

import numpy as np
import skimage
import torch
from PIL import Image

from scripts.golden.make_poses import FLIP_PAIRS, RAISED
from scripts.golden.network_formula import (
    SCALES,
    SEGMENT_TASKS,
    network_arrays,
    token_ids_of,
)
from scripts.peers.parity_theirs import load_saved, save_names, transformers

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "ihc.png",
    "hubble_deep_field.jpg", "motorcycle_left.png", "camera.png", "coins.png",
)  # fmt: skip
THRESHOLD, OBJECT = 0.3, 0.9  # of boxes, and of objects with their pixels
PROMPTED = ("texts", "prompts", "best boxes", "instances")  # networks with gradients of pixels
# Outputs whose mean squares are summed for the gradients of the first photograph's pixels.
WITH_GRADIENTS = ("logits", "pred_boxes", "pred_masks", "iou_scores")


def square(side: int, **options: Any) -> dict[str, Any]:
    return {"size": {"height": side, "width": side}, **options}


# What networks of EoMT and ViTPose have in common: see below.
WHOLE = (
    "Eomt", {"size": {"shortest_edge": 640, "longest_edge": 640}, "do_pad": True},
    {"image_size": 640},
)  # fmt: skip
SPLIT = (
    "Eomt", {"size": {"shortest_edge": 512, "longest_edge": None}, "do_split_image": True},
    {"image_size": 512},
)  # fmt: skip
POSE: tuple = ("VitPose", {}, {"backbone_config": {"image_size": [256, 192]}})
# Title: network, what is predicted, image processor, its options, changes of `config.json`.
CASES: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "DepthAnythingForDepthEstimation": (
        "depth anything", "depth", "DPT",
        square(518, keep_aspect_ratio=True, ensure_multiple_of=14,
               image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]),
        {"backbone_config": {"image_size": 518}},
    ),
    "DPTForDepthEstimation, on ViT": ("dpt", "depth", "DPT", square(384), {"image_size": 384}),
    "DPTForDepthEstimation, on DINOv2": (
        "dpt on dinov2", "depth", "DPT",  # as the script that made the published files
        {"do_resize": False, "do_rescale": False, "do_pad": True, "size_divisor": 14,
         "image_mean": [123.675, 116.28, 103.53], "image_std": [58.395, 57.12, 57.375]},
        {"backbone_config": {"image_size": 518}},
    ),
    "DPTForSemanticSegmentation": (
        "dpt segmentation", "masks", "DPT", square(480, resample=2), {"image_size": 384},
    ),
    "BeitForSemanticSegmentation": (
        "beit segmentation", "masks", "Beit", square(640, resample=2), {"image_size": 640},
    ),
    "EomtForUniversalSegmentation, whole images": ("eomt", "segments", *WHOLE),
    "EomtForUniversalSegmentation, split images": ("eomt", "segments", *SPLIT),
    "EomtDinov3ForUniversalSegmentation, whole images": ("eomt on dinov3", "segments", *WHOLE),
    "EomtDinov3ForUniversalSegmentation, split images": ("eomt on dinov3", "segments", *SPLIT),
    "YolosForObjectDetection": (
        "yolos", "boxes", "Yolos", {"size": {"shortest_edge": 800, "longest_edge": 1333}},
        {"image_size": [512, 864]},
    ),
    "OwlViTForObjectDetection": (
        "owlvit", "texts", "OwlViT", {}, {"vision_config": {"image_size": 768}},
    ),
    "Owlv2ForObjectDetection": (
        "owlv2", "texts", "Owlv2", {}, {"vision_config": {"image_size": 960}},
    ),
    "RfDetrForObjectDetection": (
        "rf-detr", "best boxes", "RfDetr", square(560),
        {"backbone_config": {"image_size": 560, "num_windows": 4}, "num_queries": 300},
    ),
    "RfDetrForInstanceSegmentation": (
        "rf-detr segmentation", "instances", "RfDetr", square(432),
        {"backbone_config": {"image_size": 432, "patch_size": 12}, "num_queries": 200},
    ),
    "SamModel": (
        "sam", "prompts", "Sam", {},
        {"vision_config": {"image_size": 1024},
         "prompt_encoder_config": {"image_size": 1024, "image_embedding_size": 64}},
    ),
    "VitPoseForPoseEstimation, simple": ("vitpose", "poses", *POSE),
    "VitPoseForPoseEstimation, classic": ("classic vitpose", "poses", *POSE),
}  # fmt: skip


def write_network(folder: pathlib.Path, network: str, changes: dict[str, Any]) -> torch.nn.Module:
    """Writes the checkpoint of a case, and loads it."""
    cases = json.loads((GOLDEN / "networks.json").read_text())
    cases |= json.loads((GOLDEN / "open_vocabulary.json").read_text())["cases"]
    sam = json.loads((GOLDEN / "promptable.json").read_text())
    case = sam if network == "sam" else cases[network]
    config = dict(case["config"])
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    kind = getattr(transformers, config["architectures"][0])
    model = kind(kind.config_class.from_dict(config))
    arrays = network_arrays(save_names(model, str(folder)), case.get("fixed"))
    for key in SCALES.keys() & arrays.keys():  # of EoMT: queries that differ more
        arrays[key] *= SCALES[key]
    if "vitpose" in network:
        arrays["head.conv.bias"] += RAISED  # theirs lacks a maximum otherwise
    state = {name: torch.tensor(array) for name, array in arrays.items()}
    return load_saved(model, str(folder), state)[0]


def boxes_of(picture: np.ndarray) -> list[list[float]]:
    """Left, top, right and bottom of three people; two of them are partly outside."""
    shares = [[0.1, 0.05, 0.6, 0.95], [-0.08, 0.3, 0.4, 1.1], [0.55, -0.2, 1.3, 0.61]]
    return (np.array(shares) * [*picture.shape[1::-1], *picture.shape[1::-1]]).round(2).tolist()


def prompts_of(picture: np.ndarray) -> dict[str, dict[str, Any]]:
    """Prompts of transformers for one object, by what they are; a mask is of the step before."""
    height, width = picture.shape[:2]
    points = (np.array([[0.52, 0.31], [0.23, 0.84]]) * [width, height]).round(1).tolist()
    box = (np.array([0.2, 0.1, 0.7, 0.65]) * ([width, height] * 2)).round(1).tolist()
    return {
        "point": {"input_points": [[points[:1]]]},
        "points": {"input_points": [[points]], "input_labels": [[[1, 0]]]},
        "box": {"input_boxes": [[box]]},
        "box, point and mask": {"input_boxes": [[box]], "input_points": [[points[:1]]]},
    }


def predict_prompts(
    processor: Any, model: torch.nn.Module, picture: np.ndarray
) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, Any]]:
    """As `predict`, for the prompts of `prompts_of`, with masks in the pixels of the photograph."""
    whole, before = transformers.SamProcessor(processor), None
    outputs: dict[str, torch.Tensor] = {}
    found: dict[str, Any] = {}
    for name, prompts in prompts_of(picture).items():
        inputs = whole(images=[picture], **prompts, return_tensors="pt")
        sizes, pixels = inputs["original_sizes"], inputs["pixel_values"]
        if not outputs:
            outputs["embeddings"] = model.get_image_embeddings(pixels)
        given = {key: inputs[key].float() for key in prompts}
        mask = before if name.endswith("mask") else None
        made = model(image_embeddings=outputs["embeddings"], input_masks=mask, **given)
        outputs |= {f"{name} masks": made.pred_masks[:, 0], f"{name} scores": made.iou_scores[:, 0]}
        before = made.pred_masks[:, 0, :1]
        (logits,) = processor.post_process_masks(
            made.pred_masks, sizes, inputs["reshaped_input_sizes"], binarize=False
        )
        found[name] = logits[0] > 0
        found[f"{name} margin"] = (logits[0].abs() / logits.abs().max()).half()
    return pixels, outputs, found


def with_proposals(model: torch.nn.Module, pixels: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    """Outputs, and for RF-DETR the positions of the map at which its queries start."""
    chosen, choose = [], torch.topk

    def recorded(x: torch.Tensor, k: int, *args: Any, **options: Any) -> Any:
        found = choose(x, k, *args, **options)
        chosen.append(found[1])
        return found

    with mock.patch.object(torch, "topk", recorded):
        outputs = model(pixels)
    return outputs, {"proposals": chosen[0]} if chosen else {}


def predict(
    what: str, processor: Any, model: torch.nn.Module, picture: np.ndarray
) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """Pixels and outputs of the network, and results by their names."""
    if what == "prompts":
        return predict_prompts(processor, model, picture)
    size, found, options = [picture.shape[:2]], dict[str, Any](), dict[str, Any]()
    if what == "poses":
        people = [[x, y, right - x, low - y] for x, y, right, low in boxes_of(picture)]
        options["boxes"] = [people]
    inputs = processor([picture], return_tensors="pt", **options)
    pixels = inputs["pixel_values"]
    if what == "texts":
        outputs = model(input_ids=torch.tensor(token_ids_of()[:-1]), pixel_values=pixels)
    else:
        outputs, proposals = with_proposals(model, pixels)
        found |= proposals
    if what == "depth":
        (row,) = processor.post_process_depth_estimation(outputs, size)
        return pixels, outputs, {"depth": row["predicted_depth"]}
    if what == "instances":
        (row,) = processor.post_process_instance_segmentation(outputs, OBJECT, target_sizes=size)
        found["map"] = row["segmentation"].short()
        return pixels, outputs, {**found, "segments": json.dumps(row["segments_info"])}
    if what in ("boxes", "texts", "best boxes"):
        (row,) = processor.post_process_object_detection(outputs, THRESHOLD, size)
        return pixels, outputs, {**found, **row}
    if what == "poses":
        mirrored = model(pixels.flip(-1), flip_pairs=torch.tensor(FLIP_PAIRS)).heatmaps
        both = type(outputs)(heatmaps=(outputs.heatmaps + mirrored) / 2)
        poses = []
        for each in (outputs, both):
            poses += processor.post_process_pose_estimation(each, [people])[0]
        for key in ("keypoints", "scores"):
            found[key] = torch.stack([pose[key] for pose in poses])
        return pixels, outputs, found
    if what == "segments":
        offsets = inputs.get("patch_offsets") or []
        outputs.patch_offsets = [tuple(each.tolist()) for each in offsets]
        options["size"] = {"longest_edge": None, **dict(processor.size)}
    (row,) = processor.post_process_semantic_segmentation(
        outputs, size, return_segmentation_scores=True, **options
    )
    first, second = torch.topk(row.segmentation_scores, 2, dim=0).values
    found["margin"] = ((first - second) / row.segmentation_scores.abs().max()).half()
    found["map"] = row.segmentation.byte()
    for name, case in SEGMENT_TASKS.items():
        if what == "segments" and case["task"] != "semantic" and not processor.do_split_image:
            function = getattr(processor, f"post_process_{case['task']}_segmentation")
            (row,) = function(outputs, size, **case["theirs"])
            found[name] = row["segmentation"].char()
            found[f"{name}/segments"] = json.dumps(row["segments_info"])
    return pixels, outputs, found


def gradients(
    what: str, processor: Any, model: torch.nn.Module, picture: np.ndarray, pixels: torch.Tensor
) -> np.ndarray:
    """Gradients with respect to the pixels of the sum of the mean squares of outputs."""
    pixels, options = pixels.clone().requires_grad_(), {}
    if what == "texts":
        options["input_ids"] = torch.tensor(token_ids_of()[:-1])
    elif what == "prompts":
        box = prompts_of(picture)["box"]
        inputs = transformers.SamProcessor(processor)([picture], **box, return_tensors="pt")
        options["input_boxes"] = inputs["input_boxes"].float()
    with torch.enable_grad():
        outputs = model(pixel_values=pixels, **options)
        sum(outputs[key].square().mean() for key in WITH_GRADIENTS if key in outputs).backward()
    return pixels.grad.numpy()


def main() -> None:
    """Writes the folders of all cases, or of those whose titles have one of the words."""
    torch.set_grad_enabled(False)
    root, *words = sys.argv[1:]
    data = pathlib.Path(skimage.__file__).parent / "data"
    versions = {module.__name__: module.__version__ for module in (transformers, torch, skimage)}
    for title, (network, what, kind, options, changes) in CASES.items():
        if words and not any(word in title for word in words):
            continue
        folder = pathlib.Path(root, title)
        folder.mkdir(parents=True, exist_ok=True)
        model = write_network(folder, network, changes)
        pil = "" if kind == "RfDetr" else "Pil"  # which has none
        processor = getattr(transformers, f"{kind}ImageProcessor{pil}")(**options)
        processor.save_pretrained(folder)
        boxes, prompts = {}, {}
        for name in PHOTOGRAPHS:
            picture = np.array(Image.open(data / name).convert("RGB"))
            pixels, outputs, found = predict(what, processor, model, picture)
            arrays = {f"output/{k}": v for k, v in outputs.items() if isinstance(v, torch.Tensor)}
            found = {f"result/{key}": np.asarray(value) for key, value in found.items()}
            boxes[name], prompts[name] = boxes_of(picture), prompts_of(picture)
            if what in PROMPTED and name == PHOTOGRAPHS[0]:
                arrays["gradients"] = gradients(what, processor, model, picture, pixels)
            np.savez(folder / f"{name}.npz", picture=picture, pixels=pixels, **arrays, **found)
            print(f"{title}, {name}: {tuple(pixels.shape)}", flush=True)
        case = {"what": what, "flip_pairs": FLIP_PAIRS, "threshold": THRESHOLD, "object": OBJECT}
        case |= {"boxes": boxes, "prompts": prompts}
        (folder / "case.json").write_text(json.dumps({**case, "versions": versions}) + "\n")


if __name__ == "__main__":
    main()
