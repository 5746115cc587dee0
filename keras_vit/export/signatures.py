"""The signatures of a served model: decoding, the eval view, the model, the labels."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.decode import DECODED_CHANNELS, decode
from keras_vit.data.transforms import eval_view
from keras_vit.export.inference import Inference


class ServingModule(tf.Module):
    """A model with what a server needs around it.

    Args:
        inference: The model.
        labels: Name of each class, in order.
        top_k: How many classes are named, at most.
        jit_compile: Whether XLA compiles the model; the rest, which has no fixed shapes, never is.
    """

    def __init__(
        self, inference: Inference, labels: list[str], top_k: int, jit_compile: bool = False
    ):
        super().__init__()
        self.weights = inference.variables  # so that they are saved
        self._inference = inference
        self._run = tf.function(inference, jit_compile=True) if jit_compile else inference
        self._labels = labels
        self._top_k = min(top_k, len(labels))

    def signatures(self) -> dict[str, Callable]:
        """Concrete functions by signature name."""
        height, width, channels = self._inference.input_shape
        sized = tf.TensorSpec((None, height, width, channels), tf.float32, "pixels")
        floats = tf.TensorSpec((None, None, None, channels), tf.float32, "images")
        whole = tf.TensorSpec((None, None, None, channels), tf.uint8, "images")
        signatures = {
            "pixels": _concrete(self._classify, sized),
            "float_images": _concrete(self._from_images, floats),
            "images": _concrete(self._from_images, whole),
        }
        if channels not in DECODED_CHANNELS:
            return {**signatures, "serving_default": signatures["float_images"]}
        encoded = tf.TensorSpec((None,), tf.string, "image_bytes")
        signatures["serving_default"] = _concrete(self._from_bytes, encoded)
        signatures["tolerant"] = _concrete(self._from_any_bytes, encoded)
        if "features" in self._inference.model.output:
            signatures["features"] = _concrete(self._features, encoded)
        return signatures

    def _from_bytes(self, image_bytes):
        return self._classify(self._map(self._decode, image_bytes))

    def _from_images(self, images):
        return self._classify(self._map(self._view, images))

    def _features(self, image_bytes):
        return {"features": self._from_bytes(image_bytes)["features"]}

    def _from_any_bytes(self, image_bytes):
        pixels, valid = self._decode_readable(image_bytes)
        outputs = self._classify(pixels)
        return {**{name: _blank(value, valid) for name, value in outputs.items()}, "valid": valid}

    def _classify(self, pixels):
        outputs = self._run(pixels)
        if "probabilities" in outputs:
            scores, indices = tf.math.top_k(outputs["probabilities"], self._top_k)
            outputs["scores"] = scores
            outputs["classes"] = tf.gather(tf.constant(self._labels), indices)
        return outputs

    def _view(self, image):
        return eval_view(image, self._inference.preprocessing, self._inference.input_shape[:2])

    def _decode(self, image_bytes):
        return self._view(decode(image_bytes, self._inference.input_shape[-1]))

    def _map(self, function, batch):
        """`function` of each image of a batch, several at a time."""
        spec = tf.TensorSpec(self._inference.input_shape, tf.float32)
        return tf.map_fn(function, batch, fn_output_signature=spec)

    def _decode_readable(self, image_bytes):
        """Pixels of a batch of encoded images, zeros for those that cannot be read.

        Only a `tf.data` pipeline goes on after an error in a graph. It drops the image, so each
        carries its place; one blank image after the last keeps the pipeline from being empty.
        """
        count = tf.shape(image_bytes)[0]
        shape = self._inference.input_shape
        images = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        images = images.map(lambda place, data: (place, self._decode(data)))
        images = images.ignore_errors()
        blank = tf.data.Dataset.from_tensors((count, tf.zeros(shape)))
        images = images.concatenate(blank).batch(tf.cast(count, tf.int64) + 1)
        places, pixels = images.get_single_element()
        places = places[:, None]
        valid = tf.scatter_nd(places, tf.ones_like(places[:, 0]), (count + 1,))[:count] > 0
        pixels = tf.scatter_nd(places, pixels, tf.concat([[count + 1], shape], 0))[:count]
        return tf.ensure_shape(pixels, (None, *shape)), valid


def _concrete(function: Callable, spec: tf.TensorSpec):
    return tf.function(function).get_concrete_function(spec)


def _blank(value, valid):
    """`value` with zeros, or empty strings, for images that are not valid."""
    valid = tf.reshape(valid, tf.concat([[-1], tf.ones(tf.rank(value) - 1, tf.int32)], 0))
    return tf.where(valid, value, tf.zeros_like(value))
