"""What is exported: a model in one precision, as named outputs from pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data.transforms import normalize
from keras_vit.models.fold import fold_standardization

# Keras's dtype policy of each precision.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
# What turns logits into probabilities, by the name of an activation in Keras.
_ACTIVATIONS: dict[str, Callable] = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}


@dataclasses.dataclass(frozen=True)
class Inference:
    """A model ready for export: from pixels to named float32 outputs.

    Args:
        model: Functional model with a dict of outputs: `logits` where it has a head, `features`
            where what the head reads is known.
        preprocessing: How images become the model's pixels.
        normalizes: Whether pixels are normalised before the model, which does not do it itself.
        activation: What makes probabilities of logits, `"softmax"` or `"sigmoid"`.
    """

    model: keras.Model
    preprocessing: Preprocessing
    normalizes: bool
    activation: str

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the pixels."""
        return tuple(self.model.inputs[0].shape[1:])

    @property
    def classes(self) -> int | None:
        """Number of classes, or `None` without a head."""
        logits = self.model.output.get("logits")
        return None if logits is None else logits.shape[-1]

    @property
    def variables(self) -> list[tf.Variable]:
        """Everything the model reads."""
        return [variable.value for variable in self.model.variables]

    def __call__(self, pixels) -> dict[str, Any]:
        """Named float32 outputs for pixels of shape `(B, H, W, C)` in [0, 255]."""
        if self.normalizes:
            pixels = normalize(pixels, self.preprocessing)
        outputs = self.model(pixels, training=False)
        outputs = {name: tf.cast(value, tf.float32) for name, value in outputs.items()}
        if "logits" in outputs:
            outputs["probabilities"] = _ACTIVATIONS[self.activation](outputs["logits"])
        return outputs

    def run(self, pixels: np.ndarray, batch_size: int = 8) -> dict[str, np.ndarray]:
        """The outputs as arrays, computed batch by batch."""
        function = tf.function(self, jit_compile=False)
        parts = [
            function(tf.constant(pixels[start : start + batch_size], tf.float32))
            for start in range(0, len(pixels), batch_size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def prepare(
    model: keras.Model,
    precision: str = "float32",
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
) -> Inference:
    """Rebuilds a model for inference, whatever precision it was trained in.

    Args:
        model: A functional model from one batch of images to one output.
        precision: What it computes in: `"float32"`, `"bfloat16"` or `"float16"`. Outputs are
            float32 in each.
        preprocessing: How images become the model's pixels; `None` takes the model's own.
        activation: What makes probabilities of logits; `None` takes the activation of the head,
            softmax where that has none.

    Returns:
        An `Inference` whose weights are copies, or the model's own where nothing differs.
        Standardised kernels are plain ones in it.

    Raises:
        ValueError: If the model is not built, has several inputs or outputs or unknown sizes, or
            its preprocessing cannot be known.
    """
    check_model(model)
    model = fold_standardization(model)
    if activation not in (None, *_ACTIVATIONS):
        raise ValueError(
            f"`activation` must be None or one of {', '.join(map(repr, _ACTIVATIONS))}. "
            f"Received: {activation!r}."
        )
    preprocessing, normalizes = _find_preprocessing(model, preprocessing)
    head = _head_activation(model)
    rebuilt = _rebuild(model, POLICIES[precision], linear_head=head != "linear")
    return Inference(
        model=_with_named_outputs(rebuilt),
        preprocessing=preprocessing,
        normalizes=normalizes,
        activation=activation or (head if head in _ACTIVATIONS else "softmax"),
    )


def check_outputs(inference: Inference, outputs: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs asked for, by default the logits, or the features of a model without a head.

    Raises:
        ValueError: If the model does not have one of them.
    """
    known = list(inference.model.output)
    if "logits" in known:
        known += ["probabilities"]
    if outputs is None:
        return ("logits" if "logits" in known else "features",)
    if not outputs or not set(outputs) <= set(known):
        raise ValueError(
            f"`outputs` must be some of {', '.join(map(repr, known))}. Received: {outputs!r}."
        )
    return tuple(outputs)


def check_model(model: keras.Model) -> None:
    """Raises an error where a model cannot be exported."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exports are made by TensorFlow. Received: a model on the backend "
            f"{keras.backend.backend()!r}. Save it with `model.save`, and export it in a process "
            "with KERAS_BACKEND=tensorflow."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            "The model is not built, so its input is unknown. Received: "
            f"{type(model).__name__} {model.name!r}. Build it from `keras.Input`, or call it once."
        )
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "A model with one input, images, and one output is exported. Received: "
            f"{len(model.inputs)} inputs and {len(model.outputs)} outputs. Make "
            "`keras_vit.Model(images, output)` of the output to export."
        )
    shape = model.inputs[0].shape
    if len(shape) != 4 or None in shape[1:]:
        raise ValueError(
            "The model must read images of shape (None, height, width, channels), the last three "
            f"known. Received: an input of shape {tuple(shape)}."
        )


def _find_preprocessing(
    model: keras.Model, preprocessing: Preprocessing | None
) -> tuple[Preprocessing, bool]:
    """The preprocessing, and whether its normalisation is missing in the model."""
    config = getattr(model, "config", None)
    if config is not None:
        return preprocessing or config.preprocessing, not config.include_preprocessing
    if any(layer.name == "preprocessing" for layer in model._flatten_layers()):
        return preprocessing or Preprocessing(), False
    if preprocessing is None:
        raise ValueError(
            "The range that this model reads is unknown, for it has neither a `config` nor a layer "
            "`preprocessing`. Pass preprocessing=keras_vit.Preprocessing(mean, std); mean=0, std=1 "
            "for a model that takes pixels in [0, 255]."
        )
    return preprocessing, True


def _head_activation(model: keras.Model) -> str:
    """Name of the activation that the model ends in, `"linear"` where it ends in none."""
    activation = getattr(_last_layer(model), "activation", None)
    return getattr(activation, "__name__", "linear")


def _last_layer(model: keras.Model):
    """The layer that makes the output, or `None` where it is an operation."""
    return next((layer for layer in model.layers[::-1] if _makes(layer, model.outputs[0])), None)


def _makes(layer, output) -> bool:
    try:
        return layer.output is output
    except (AttributeError, ValueError):  # several calls, or none
        return False


def _rebuild(model: keras.Model, policy: str, linear_head: bool) -> keras.Model:
    """The same model under one dtype policy, with a copy of the weights."""
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    quantized = sorted(name for name in policies if "int" in name or "float8" in name)
    if quantized:
        raise ValueError(
            "A model that Keras quantised is not exported, for no converter knows its products. "
            f"Received: {model.name!r} with {', '.join(quantized)}. Export it as it was before, "
            "and let the export quantise it."
        )
    if not linear_head and policies == {"float32"} and policy == "float32":
        return model
    last = _last_layer(model)
    head = last.name if last is not None else "head"
    rebuilt = type(model).from_config(_with_policy(model.get_config(), policy, head, linear_head))
    rebuilt.set_weights([np.asarray(weight, "float32") for weight in model.get_weights()])
    return rebuilt


def _with_policy(config: Any, policy: str, head: str, linear_head: bool, name: str = "") -> Any:
    """A serialised model under another dtype policy.

    Preprocessing and head stay float32 under every policy; the head may lose its activation.
    """
    if isinstance(config, list | tuple):
        return [_with_policy(value, policy, head, linear_head, name) for value in config]
    if not isinstance(config, dict):
        return config
    name = config.get("name", name) if "dtype" in config else name
    if config.get("class_name") == "DTypePolicy":
        kept = name in (head, "head", "preprocessing")
        return {**config, "config": {"name": "float32" if kept else policy}}
    changed = {
        key: _with_policy(value, policy, head, linear_head, name) for key, value in config.items()
    }
    if linear_head and name == head and "activation" in changed:
        changed["activation"] = "linear"
    return changed


def _with_named_outputs(model: keras.Model) -> keras.Model:
    """A model of `features` and `logits`, whichever it has."""
    output = model.outputs[0]
    if getattr(getattr(model, "config", None), "classes", 0) is None:
        return keras.Model(model.inputs, {"features": output})
    features = _head_input(model)
    outputs = {"logits": output} if features is None else {"features": features, "logits": output}
    return keras.Model(model.inputs, outputs)


def _head_input(model: keras.Model):
    """What the head reads, or `None` where that is unknown."""
    layers = [layer for layer in model.layers if layer.name == "head"]
    if not layers and isinstance(_last_layer(model), keras.layers.Dense):
        layers = [_last_layer(model)]
    try:
        return layers[0].input if layers else None
    except (AttributeError, ValueError):  # several calls
        return None
