"""Instance segmentation: the pixels of objects in images of any size, by RF-DETR."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.detection.prediction import best_pairs, predict_sets
from keras_vit.models.real_time import RealTimeDetector


def predict_instances(
    model: keras.Model,
    images: Any,
    threshold: float = 0.5,
    mask_threshold: float = 0.0,
    batch_size: int = 8,
) -> list[dict[str, Any]]:
    """Finds the pixels of objects, as the `RfDetrImageProcessor` of transformers.

    Where objects overlap, a pixel belongs to the one of the higher score.

    Args:
        model: A `RealTimeDetector` with masks (`RfDetrForInstanceSegmentation`).
        images: As for `predict_boxes`.
        threshold: Objects of this score and less are left out.
        mask_threshold: Pixels of this logit and less are outside of an object.
        batch_size: As for `predict_boxes`.

    Returns:
        For each image a dict of `segmentation`, an int32 array of shape `(h, w)` with the number of
        the object of every pixel, from 1, and -1 outside, and `segments_info`, a list of dicts with
        `id` (this number), `label_id` (the class) and `score`, the best first.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the model has no masks, or as `predict_boxes`.
    """
    if not isinstance(model, RealTimeDetector) or "pred_masks" not in model.output:
        raise ValueError(
            "`predict_instances` takes a RealTimeDetector with masks, such as "
            f"RfDetrForInstanceSegmentation. Received: {model!r}."
        )
    results = []
    for outputs, size in predict_sets(model, images, batch_size):
        segmentation = np.full(size, -1, "int32")
        segments: list[dict[str, Any]] = []
        for score, label, query in zip(*best_pairs(outputs["logits"], threshold), strict=True):
            logits = tf.image.resize(outputs["pred_masks"][query][..., None], size)[..., 0]
            own = (logits.numpy() > mask_threshold) & (segmentation == -1)
            if own.any():
                segmentation[own] = len(segments) + 1
                score = round(float(score), 6)
                segments.append({"id": len(segments) + 1, "label_id": int(label), "score": score})
        results.append({"segmentation": segmentation, "segments_info": segments})
    return results
