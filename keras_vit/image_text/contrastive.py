"""Contrastive training of two towers, as a functional model for `compile` and `fit`."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.errors import needing_tensorflow
from keras_vit.image_text.towers import Towers
from keras_vit.layers.microbatches import Microbatches
from keras_vit.layers.pairs import PairFeatures
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import call_of
from keras_vit.texts.settings import MAX_LOGIT_SCALE
from keras_vit.train.distillation import Teacher

if TYPE_CHECKING:  # they need TensorFlow
    from keras_vit.data.image_set import ImageSet
    from keras_vit.evaluate.feature_store import Features


def contrastive_model(
    towers: Towers,
    *,
    locked_image: bool = False,
    from_features: bool = False,
    microbatch_size: int | None = None,
) -> Model:
    """Builds the model that trains two towers on images and their texts.

    It shares its layers with the towers, so that training changes them. Compile it with
    `keras_vit.train.ContrastiveLoss`: `kind="softmax"` for CLIP, `"sigmoid"` for towers with a
    bias, as of SigLIP. Afterwards `trained_towers` gives the towers with the trained scale and
    bias. The scale of towers without a bias stays between 1 and 100, as in CLIP, or where it is
    larger at first, its first value.

    Args:
        towers: Towers of `load_towers`, or of two models.
        locked_image: Whether the image tower stays as it is, and runs in inference mode (LiT,
            https://arxiv.org/abs/2111.07991). Its `trainable` becomes False.
        from_features: Whether the first input is features of `image_features`, in place of images:
            training then costs the text tower alone.
        microbatch_size: Images and texts that the towers process at a time, for batches that do not
            fit the memory; see `keras_vit.layers.Microbatches`. The loss is that of the batch.

    Returns:
        A functional `keras_vit.Model` from images (or features of shape `(B, P)`) and int32 ids of
        shape `(B, L)` to the output of `keras_vit.layers.PairFeatures`.

    Raises:
        ValueError: If the features of the towers have unequal sizes.

    Example:

    >>> model = keras_vit.image_text.contrastive_model(towers)  # doctest: +SKIP
    >>> model.compile("adam", keras_vit.train.ContrastiveLoss())  # doctest: +SKIP
    >>> model.fit(pair_batches(pairs, towers, 256), shuffle=False)  # doctest: +SKIP
    """
    image, text = towers.image, towers.text
    if from_features:
        first = keras.Input(image.output_shape[1:], name="features")
        x = first
    else:
        shape, dtype = image.input_shape[1:], image.inputs[0].dtype
        first = keras.Input(shape, dtype=dtype, name="images")
        if locked_image:
            x = Teacher(image, dtype="float32", name="locked_image_tower")(first)
        else:
            x = _in_parts(image, microbatch_size, "image_microbatches")(first)
    ids = keras.Input(text.input_shape[1:], dtype="int32", name="ids")
    y = _in_parts(text, microbatch_size, "text_microbatches")(ids)
    bound = max(MAX_LOGIT_SCALE, towers.logit_scale) if towers.bias is None else None
    pairs = PairFeatures(towers.logit_scale, towers.bias, bound, name="pairs")
    return Model([first, ids], pairs(x, y), name="contrastive_model")


def _in_parts(tower: Model, size: int | None, name: str) -> keras.layers.Layer:
    return tower if size is None else Microbatches(tower, size, name=name)


def trained_towers(model: Model, towers: Towers) -> Towers:
    """The towers in a model of `contrastive_model`, with its scale and bias.

    Args:
        model: The model, trained or loaded from a `.keras` file.
        towers: The towers that it was built from, which know their checkpoint and tokenizer.

    Returns:
        `Towers` for `zero_shot_classifier`, `save_towers` and `logits`.

    Raises:
        ValueError: If the model was not built by `contrastive_model`.
    """
    layer, call = call_of(model.outputs[0])
    if not isinstance(layer, PairFeatures):
        raise ValueError(
            f"The model must be one of `contrastive_model`. Received: {model.name!r}, whose last "
            f"layer is {layer.name!r}."
        )
    image, text = (call_of(tensor)[0] for tensor in call.input_tensors)
    parts: dict[str, Any] = {
        name: getattr(part, "model", part)  # of `Teacher` and `Microbatches`
        for name, part in (("image", image), ("text", text))
        if not isinstance(part, keras.layers.InputLayer)  # of features
    }
    parts["logit_scale"] = float(keras.ops.convert_to_numpy(layer.scale))
    parts["bias"] = None if layer.bias is None else float(keras.ops.convert_to_numpy(layer.bias))
    found = dataclasses.replace(towers, **parts)
    if "tokenizer" in vars(towers):
        found.tokenizer = towers.tokenizer
    return found


def image_features(
    towers: Towers,
    images: ImageSet,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    verbose: bool | int = True,
) -> Features:
    """Computes the features of images once, for `contrastive_model(from_features=True)`.

    Args:
        towers: The towers; the image tower stays as it is.
        images: Images, such as `pairs.images`.
        folder: Where the features are kept: see `keras_vit.evaluate.store_features`. A call that
            was interrupted continues, and a second one computes nothing.
        batch_size: Images per step.
        verbose: Whether to print how far it is.

    Returns:
        `Features` whose `values` have the shape `(images, P)`, in the order of the images.
    """
    with needing_tensorflow("`image_features`"):
        from keras_vit.evaluate.feature_store import store_features

    stage = call_of(towers.image.outputs[0])[0].name
    options: dict[str, Any] = {"batch_size": batch_size, "verbose": verbose}
    return store_features(towers.image, images, folder, stage, **options)
