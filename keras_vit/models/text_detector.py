"""Detectors whose classes are texts: OWL-ViT and OWLv2, https://arxiv.org/abs/2205.06230."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import keras
from keras import ops

from keras_vit.config import ViTConfig
from keras_vit.layers.boxes import PatchBoxes
from keras_vit.layers.float32 import Float32Policy, float32_dense, float32_norm
from keras_vit.models.graph import perceptron, single_input
from keras_vit.models.pyramid import exact_gelu
from keras_vit.runtime.model import Model

EMBEDDINGS, SHIFT, SCALE = "class_embeddings", "logit_shift", "logit_scale"  # outputs
EPSILON = 1e-6  # added to lengths, as in transformers


@keras.saving.register_keras_serializable("keras_vit")
class TextDetector(Model):
    """A `keras_vit.Model` from images to boxes of what a few texts name.

    `OpenVocabulary.detector` makes it. Its outputs are a dict of `"logits"` of shape `(B, N, K)`,
    one for each patch and text, `"boxes"` of shape `(B, N, 4)`: x and y of the centre, width and
    height as shares of the image, and of OWLv2 `"objectness"` of shape `(B, N)`, logits. Scores
    are the sigmoids of logits. Its `class_names` are the texts.

    It takes images of its own size, `model.input_shape`. `keras_vit.detection.predict_boxes`
    resizes images of any size to it as transformers does, in OWLv2 after padding to a square, and
    gives boxes in pixels; whoever calls the model or its exported file alone calls
    `keras_vit.detection.owl_pixels` before.
    """

    @property
    def num_classes(self) -> int:
        """Number of texts."""
        return int(self.output["logits"].shape[-1])


def pads_images(facts: dict[str, Any]) -> bool:
    """Whether images are padded to squares, by the facts that a model holds in `published`."""
    return bool(facts["config"]["architectures"][0] == "Owlv2ForObjectDetection")


def build_patch_model(tower: Model, embedding: int, has_objectness: bool) -> Model:
    """A model from images to what each patch predicts, whatever the texts.

    Args:
        tower: Image tower, from images to all its tokens after the last norm, `(B, 1 + N, D)`.
        embedding: Dimension `P` of the features of texts.
        has_objectness: Whether patches tell whether there is any object, as in OWLv2.

    Returns:
        A functional model with a dict of outputs in float32: `"class_embeddings"` `(B, N, P)`,
        `"logit_shift"` and `"logit_scale"` `(B, N, 1)`, `"boxes"` `(B, N, 4)`, and with
        `has_objectness` `"objectness"` `(B, N)`.
    """
    tokens = tower.output
    merge = keras.layers.Multiply(dtype=Float32Policy(), name="merge_class_token")
    norm = float32_norm("merged_norm", cast("ViTConfig", tower.config).block.norm_epsilon)
    x = norm(merge([tokens[:, 1:], tokens[:, :1]]))  # (B, N, D)
    boxes = PatchBoxes(
        tower.get_layer("position_embedding").grid, dtype=Float32Policy(), name="boxes"
    )
    outputs = {
        EMBEDDINGS: float32_dense(embedding, EMBEDDINGS)(x),
        SHIFT: float32_dense(1, SHIFT)(x),
        SCALE: ops.elu(float32_dense(1, SCALE)(x)) + 1,
        "boxes": boxes(perceptron(x, "box", 4, exact_gelu)),
    }
    if has_objectness:
        # It trains its own layers alone.
        score = perceptron(ops.stop_gradient(x), "objectness", 1, exact_gelu)
        outputs["objectness"] = ops.squeeze(score, -1)
    return Model(single_input(tower), outputs, name="patch_model")


def build_text_detector(patches: Model, queries: Any, texts: Sequence[str]) -> TextDetector:
    """A detector of texts, which shares the layers of a patch model.

    Args:
        patches: Model of `build_patch_model`.
        queries: Features of the texts, float32 array of shape `(K, P)` with rows of length 1.
        texts: The texts.
    """
    outputs = dict(patches.output)
    embeddings, shift, scale = (outputs.pop(key) for key in (EMBEDDINGS, SHIFT, SCALE))
    length = ops.sqrt(ops.sum(ops.square(embeddings), -1, keepdims=True))
    head = float32_dense(len(queries), "queries", use_bias=False)
    logits = (head(embeddings / (length + EPSILON)) + shift) * scale  # (B, N, K)
    outputs = {"logits": logits, **outputs}
    model = TextDetector(single_input(patches), outputs, name="text_detector")
    head.kernel.assign(queries.T)
    labels = {str(index): text for index, text in enumerate(texts)}
    config = {**patches.published["config"], "id2label": labels}
    model.published = {**patches.published, "config": config}
    model.class_names = texts
    return model
