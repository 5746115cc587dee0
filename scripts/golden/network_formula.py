"""Weights and images of the small networks of tests/golden/networks.json, by a formula."""

from __future__ import annotations

from typing import Any

import numpy as np

_COUNT = 400  # values of an output that are kept


def network_arrays(
    shapes: dict[str, list[int]], fixed: dict[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Arrays of these names and shapes: every branch, bias, scale and position counts.

    Those that `fixed` names have its value.
    """
    arrays, fixed = {}, fixed or {}
    for position, (name, shape) in enumerate(sorted(shapes.items())):
        i = np.arange(int(np.prod(shape)), dtype="int64")
        fill = ((7 * i**2 + 7919 * i + 104729 * position) % 2003) / 1001 - 1
        if name in fixed:
            arrays[name] = np.full(shape, fixed[name], "float32")
            continue
        if not shape:  # a counter
            arrays[name] = np.array(0, "int64")
            continue
        is_scale = len(shape) == 1 and name.endswith(("weight", "lambda1", "lambda_1", "lambda_2"))
        if is_scale or name.endswith("running_var"):
            fill = 1 + 0.3 * fill
        elif len(shape) > 1 and name.endswith("weight"):
            fill = 1.5 * fill / np.prod(shape[1:]) ** 0.5
        arrays[name] = (0.5 * fill if len(shape) == 1 and not is_scale else fill).astype("float32")
        arrays[name] = arrays[name].reshape(shape)
    return arrays


def images_of(size: tuple[int, int], count: int = 2) -> np.ndarray:
    """Normalised images of shape `(count, height, width, 3)`."""
    i = np.arange(count * size[0] * size[1] * 3, dtype="int64")
    pixels = ((3 * i**2 + 1013 * i) % 2011) / 500 - 2
    return pixels.astype("float32").reshape(count, *size, 3)


def noise_of(images: int, patches: int) -> np.ndarray:
    """Different numbers in [0, 1) for the patches of every image."""
    i = np.arange(images * patches, dtype="int64").reshape(images, patches)
    return (((37 * i + 11 * i // patches) % 101) / 101 + i * 1e-4).astype("float32")


def token_ids_of(vocabulary: int = 523, length: int = 8) -> np.ndarray:
    """Ids of five texts, of which the last is none: see `keras_vit.detection`."""
    i = np.arange(5 * length, dtype="int64").reshape(5, length)
    ids = 1 + (5 * i**2 + 137 * i) % (vocabulary - 2)
    ids[np.arange(5), [7, 3, 5, 2, 0]] = vocabulary - 1  # the end
    ids[-1] = 0
    return ids


def chosen_values(output: np.ndarray) -> dict[str, Any]:
    """Shape, and values at even intervals of an array."""
    flat = np.asarray(output, "float64").reshape(-1)
    places = np.linspace(0, len(flat) - 1, min(_COUNT, len(flat))).round().astype(int)
    return {"shape": list(output.shape), "values": [float(f"{x:.7g}") for x in flat[places]]}


# Factors of arrays of EoMT with which queries find several classes, some of them surely.
SCALES = {"query.weight": 12.0, "class_predictor.weight": 8.0}
# Calls of `predict_segments` on a network, and the arguments in transformers.
SEGMENT_TASKS: dict[str, dict[str, Any]] = {
    "panoptic": {
        "task": "panoptic", "splits": False,
        "ours": {"threshold": 0.4, "overlap_threshold": 0.05, "stuff_classes": [0, 2]},
        "theirs": {"threshold": 0.4, "overlap_mask_area_threshold": 0.05, "stuff_classes": [0, 2]},
    },
    "panoptic, few": {"task": "panoptic", "splits": False, "ours": {}, "theirs": {}},
    "instance": {
        "task": "instance", "splits": False,
        "ours": {"threshold": 0.5}, "theirs": {"threshold": 0.5},
    },
    "semantic": {"task": "semantic", "splits": True, "ours": {}, "theirs": {}},
}  # fmt: skip


def photographs_of(read: Any) -> dict[str, np.ndarray]:
    """Photographs of scikit-image, one of them upright, by a function that reads a file."""
    return {
        "coffee": read("coffee.png"),
        "rocket": read("rocket.jpg").transpose(1, 0, 2)[:, :230],
        "astronaut": read("astronaut.png"),
    }


def points_of(shape: Any) -> np.ndarray:
    """Points in place of random ones, of shape `(..., P, 2)`, the same in every row."""
    i = np.arange(shape[-2], dtype="float64")[:, None] + shape[-2] + 1
    points = i * np.array([0.7548776662466927, 0.5698402909980532]) % 1
    return np.broadcast_to(points.astype("float32"), tuple(shape)).copy()


def mask_labels_of(size: int, kinds: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Three masks of an image and one of another, of shape `(2, 3, size, size)`, and labels."""
    rows, columns = np.mgrid[:size, :size] / size
    shapes = [columns < 0.4, (rows - 0.5) ** 2 + (columns - 0.6) ** 2 < 0.09, rows > 0.7]
    masks = np.stack([np.stack(shapes), np.stack([shapes[1], *2 * [np.zeros_like(shapes[0])]])])
    return masks.astype("float32"), np.array([[2, 0, kinds - 1], [3, -1, -1]])


def mask_logits_of(size: int = 8, queries: int = 6, kinds: int = 5) -> tuple[np.ndarray, ...]:
    """Logits of masks and of classes of two images."""
    i = np.arange(2 * queries * size**2, dtype="int64")
    masks = (((5 * i**2 + 641 * i) % 1999) / 250 - 4).reshape(2, queries, size, size)
    i = np.arange(2 * queries * (kinds + 1), dtype="int64")
    classes = (((11 * i**2 + 389 * i) % 997) / 250 - 2).reshape(2, queries, kinds + 1)
    return masks.astype("float32"), classes.astype("float32")


def group_masks_of(
    shape: tuple[int, ...], most: int, size: tuple[int, int] = (6, 8)
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of masks of `shape + size`, and `most` masks of each image, four times as large."""
    i = np.arange(int(np.prod(shape + size)), dtype="int64")
    logits = ((((7 * i**2 + 439 * i) % 1993) / 250 - 4).astype("float32")).reshape(shape + size)
    rows, columns = np.mgrid[: 4 * size[0], : 4 * size[1]]
    each = np.arange(shape[1] * most).reshape(shape[1], most, 1, 1)
    inside = np.abs(rows - 3 - 2.1 * (each % 9)) + np.abs(columns - 30 + 2.7 * each) < 5 + each % 5
    return logits, inside.astype("float32")


# A small Segment Anything: its configuration, processor, and a bias of scores around 0.8.
SAM: dict[str, Any] = {
    "vision_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 128,
        "patch_size": 16, "window_size": 3, "global_attn_indexes": [1], "output_channels": 32,
        "mlp_dim": 64, "num_pos_feats": 16,
    },
    "prompt_encoder_config": {
        "hidden_size": 32, "image_size": 128, "patch_size": 16, "mask_input_channels": 16
    },
    "mask_decoder_config": {
        "hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32
    },
}  # fmt: skip
SAM_FIXED = {"mask_decoder.iou_prediction_head.proj_out.bias": 1.2}
SAM_PROCESSOR: dict[str, Any] = {
    "size": {"longest_edge": 128}, "pad_size": {"height": 128, "width": 128},
    "mask_size": {"longest_edge": 32}, "mask_pad_size": {"height": 32, "width": 32},
}  # fmt: skip
# Calls of `find_all_masks`, and the arguments in transformers.
EVERYTHING: dict[str, dict[str, Any]] = {
    "grid": {
        "ours": {
            "points_per_side": 6, "points_per_batch": 10, "threshold": 0.75, "mask_threshold": 0.4,
            "stability_threshold": 0.3, "stability_offset": 0.03, "overlap_threshold": 0.95,
        },
        "theirs": {
            "points_per_crop": 6, "points_per_batch": 10, "pred_iou_thresh": 0.75,
            "mask_threshold": 0.4, "stability_score_thresh": 0.3, "stability_score_offset": 0.03,
            "crops_nms_thresh": 0.95,
        },
    },
    "crops": {
        "ours": {
            "points_per_side": 3, "threshold": 0.0, "stability_threshold": 0.5,
            "stability_offset": 0.02, "mask_threshold": 0.32, "crop_layers": 1,
        },
        "theirs": {
            "points_per_crop": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.5,
            "stability_score_offset": 0.02, "mask_threshold": 0.32, "crops_n_layers": 1,
        },
    },
}  # fmt: skip
