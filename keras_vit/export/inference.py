"""Preparation for export: a model in one precision, from pixels to named outputs."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from keras_vit.abstention import OUTPUTS, Abstention
from keras_vit.calibration import Calibration
from keras_vit.checks import check_choice, in_order
from keras_vit.config import Preprocessing
from keras_vit.data.any_aspect import fit_patches
from keras_vit.data.transforms import normalize
from keras_vit.layers.float32 import Float32Policy
from keras_vit.models.cloning import change_config, clone
from keras_vit.models.graph import (
    final_activation,
    final_operation,
    head_input,
    is_headless,
    single_input,
)
from keras_vit.models.lora import lora_layers
from keras_vit.models.quantized import check_quantized, float_config, float_values, quantized_layers
from keras_vit.models.resnet import folded_config, folded_values, standardized_layers
from keras_vit.runtime.model import Model, find_preprocessing
from keras_vit.runtime.private_names import call_of, every_call_of, flatten_layers
from keras_vit.runtime.processors import free_address_space

# Keras dtype policy of each precision.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
# Functions from logits to probabilities, by their name in Keras. Outputs of a regression have none.
_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "softmax": tf.nn.softmax,
    "sigmoid": tf.nn.sigmoid,
}
_NO_ACTIVATION = "linear"
# Operations that end no classifier: norms and pooling of embeddings, and bounds of a regression.
_NORMS = ("LayerNormalization", "RMSNorm", "RMSNormalization", "UnitNormalization", "Normalize")
_POOLING = ("TokenPooling", "MeanPooling", "AttentionPooling")
_NO_CLASSES = (*_NORMS, *_POOLING, "ReLU", "Relu", "Softplus", "Tanh", "Exp", "Clip")
_KERAS_EXPORT = (
    'Keras\'s own `model.export(path, format="tf_saved_model")`, also "litert", "onnx" and '
    '"openvino", takes sequences (`TimeDistributed`) and several inputs, without decoding, labels '
    "and comparison."
)
EXPORTED = "exported"  # name of the model with named outputs, in the names of tensors in files
# Address space of a conversion: tf2onnx and LiteRT took 560 to 760 MB and up to 6.3 times the
# weights (S/16 and B/16, TensorFlow 2.21, two cores; threads have heaps of their own).
_CONVERSION, _COPIES = 1 << 30, 7
_SMALLEST = 1e-12  # in place of 0, where all outputs are


@dataclasses.dataclass(frozen=True)
class Inference:
    """A model ready for export: from pixels to named float32 outputs.

    Args:
        model: Functional model with a dict of outputs: `logits` if it has a head, `features` if
            the input of the head is known; otherwise those of `source`, under their own names.
        preprocessing: Preprocessing of the images.
        normalizes: Whether pixels are normalised here, because the model does not do it itself.
        activation: Function from logits to probabilities, `"softmax"` or `"sigmoid"`, or
            `"linear"`: the logits are regression targets, and there are no probabilities.
        source: The model that was prepared.
        steps: Training steps of `source` at that time.
        names: Names that `source` itself gives its outputs, each with the output that has its
            values; empty if `source` gives no dict, but the logits or features of one output.
        calibration: Calibration of the probabilities, if the source has one.
        abstention: What decides of the outputs `accepted` and `prediction_set`, if it has it.
    """

    model: keras.Model
    preprocessing: Preprocessing
    normalizes: bool
    activation: str
    source: keras.Model
    steps: int
    names: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    calibration: Calibration | None = dataclasses.field(default=None, hash=False)
    abstention: Abstention | None = dataclasses.field(default=None, hash=False)

    def check_unchanged(self) -> None:
        """Checks that the model was not trained since it was prepared, as in another thread.

        Raises:
            RuntimeError: If it was: the export would mix the weights of several steps.
        """
        steps = _count_steps(self.source)
        if steps != self.steps:
            raise RuntimeError(
                f"The model {self.source.name!r} was trained during the export, from step "
                f"{self.steps} to {steps}, so the export is discarded. Export after `fit`, or "
                "from a callback of `fit`, which runs between two steps."
            )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the pixels; of a model for any size, of its positions."""
        if self.takes_patches:
            return self.source.config.input_shape
        height, width, channels = self.model.inputs[0].shape[1:]
        if self.any_size:
            height, width = self.source.config.image_size
        return height, width, channels

    @property
    def takes_patches(self) -> bool:
        """Whether the model takes patches of images of any aspect ratio."""
        return getattr(getattr(self.source, "config", None), "max_num_patches", None) is not None

    def fit(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        """Inputs of a model that takes patches for one image, of shape `(h, w, C)`."""
        config = dataclasses.replace(self.source.config, preprocessing=self.preprocessing)
        return fit_patches(image, config)

    @property
    def any_size(self) -> bool:
        """Whether the model takes pixels of any height and width."""
        return None in self.model.inputs[0].shape[1:3]

    @property
    def classes(self) -> int | None:
        """Number of classes, or `None` without a head."""
        logits = self.model.output.get("logits")
        return None if logits is None else logits.shape[-1]

    @property
    def decisions(self) -> tuple[str, ...]:
        """Names of the outputs that abstention or thresholds give."""
        if self.abstention is not None:
            return OUTPUTS
        return OUTPUTS[-1:] if self.calibration is not None and self.calibration.thresholds else ()

    @property
    def is_half(self) -> bool:
        """Whether some layers compute in bfloat16 or float16."""
        return any(layer.compute_dtype != "float32" for layer in flatten_layers(self.model))

    @property
    def has_probabilities(self) -> bool:
        """Whether probabilities follow from the outputs."""
        return "logits" in self.model.output and self.activation != _NO_ACTIVATION

    def has_classes(self, name: str) -> bool:
        """Whether an output has a number for each class."""
        return self.names.get(name, name) in ("logits", "probabilities")

    @property
    def smallest_scale(self) -> float:
        """Smallest value to divide differences of outputs by: next to none for regression."""
        return _SMALLEST if self.activation == _NO_ACTIVATION else 1.0

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the model."""
        return [variable.value for variable in self.model.variables]

    def __call__(self, pixels: Any) -> dict[str, tf.Tensor]:
        """Named float32 outputs for pixels of shape `(B, H, W, C)` in [0, 255], or for patches.

        TensorFlow checks no shape that a function was traced for. Without a check in the graph, one
        image of twice the size is answered like four images.
        """
        pixels = tf.nest.map_structure(
            lambda x, spec: tf.ensure_shape(x, spec.shape, f"{spec.name}_shape"),
            pixels,
            self.inputs(),
        )
        if self.normalizes and not self.takes_patches:  # as `fit` does
            pixels = normalize(pixels, self.preprocessing)
        outputs = self.model(pixels, training=False)
        outputs = {name: tf.cast(value, tf.float32) for name, value in outputs.items()}
        if self.has_probabilities and "probabilities" not in outputs:
            outputs["probabilities"] = self.probabilities_of(outputs["logits"])
        elif self.calibration is not None:  # the layers are not changed, nor is the head
            p = outputs["probabilities"]
            logits = tf.math.log(p) - (tf.math.log1p(-p) if self.activation == "sigmoid" else 0.0)
            outputs["probabilities"] = self.probabilities_of(logits)
        if self.abstention is not None:
            outputs |= self.abstention.outputs(outputs["probabilities"], outputs["features"])
        elif self.calibration is not None and self.calibration.thresholds:
            limits = np.array(self.calibration.thresholds, "float32")
            outputs["prediction_set"] = outputs["probabilities"] >= limits
        return {**outputs, **{name: outputs[same] for name, same in self.names.items()}}

    def probabilities_of(self, logits: tf.Tensor) -> tf.Tensor:
        """Calibrated probabilities, if the source is calibrated."""
        logits = logits if self.calibration is None else self.calibration.apply(logits)
        return _ACTIVATIONS[self.activation](logits)

    def run(
        self, pixels: np.ndarray | Sequence[np.ndarray], batch_size: int = 8
    ) -> dict[str, np.ndarray]:
        """Computes the outputs as arrays, batch by batch; a model of patches takes images."""
        function = tf.function(self, jit_compile=False)
        parts = [
            function(self.batch(pixels[start : start + batch_size]))
            for start in range(0, len(pixels), batch_size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def batch(self, images: np.ndarray | Sequence[np.ndarray]) -> Any:
        """Inputs of the model for pixels of its size; of a model of patches, for images."""
        if not self.takes_patches:
            return tf.constant(images, tf.float32)
        fitted = [self.fit(tf.constant(image)) for image in images]
        return {name: tf.stack([x[name] for x in fitted]) for name in fitted[0]}

    def inputs(self, batch_size: int | None = None) -> Any:
        """Specification of what the model takes: of `pixels`, or a dict of two."""
        if self.takes_patches:
            return {
                x.name: tf.TensorSpec((batch_size, *x.shape[1:]), x.dtype, x.name)
                for x in self.model.inputs
            }
        shape = (batch_size, *self.model.inputs[0].shape[1:])
        return tf.TensorSpec(shape, tf.float32, "pixels")


@dataclasses.dataclass(frozen=True)
class NamedInputs:
    """A model of several inputs, with what the converters read of an `Inference`.

    Args:
        model: A functional model from a dict of inputs to a dict of outputs.
        shapes: Shapes of some inputs, after the batch; others are those of the model.
    """

    model: keras.Model
    shapes: Mapping[str, Sequence[int | None]]

    @property
    def source(self) -> keras.Model:
        """The model."""
        return self.model

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the model."""
        return [variable.value for variable in self.model.variables]

    def inputs(self, batch_size: int | None = None) -> dict[str, tf.TensorSpec]:
        """Specification of the inputs by name."""
        return {
            name: tf.TensorSpec((batch_size, *self.shapes.get(name, x.shape[1:])), x.dtype, name)
            for name, x in self.model.input.items()
        }

    def __call__(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Named float32 outputs."""
        outputs = self.model(inputs, training=False)
        return {name: tf.cast(value, tf.float32) for name, value in outputs.items()}


def check_address_space(inference: Inference | NamedInputs) -> None:
    """Refuses a conversion that would end the process: C++ libraries abort without memory.

    Raises:
        MemoryError: If a limit of the process leaves too little address space.
    """
    free = free_address_space()
    weights = sum(math.prod(each.shape) * each.dtype.size for each in inference.variables)
    needed = _CONVERSION + _COPIES * weights
    if free is not None and free < needed:
        raise MemoryError(
            f"The conversion of {inference.source.name!r} takes about {needed:,} bytes of address "
            f"space, and the limit of this process leaves {max(free, 0):,}. Raise it (`ulimit -v`, "
            "RLIMIT_AS), or convert the model elsewhere."
        )


def prepare(
    model: keras.Model,
    precision: str = "float32",
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    *,
    merge: bool = True,
    any_size: bool = False,
    any_aspect: bool = False,
) -> Inference:
    """Rebuilds a model for inference in one precision.

    Args:
        model: A functional or sequential model from one batch of images to one output, or to a dict
            of outputs, which keep their names. One output of shape `(B, K)` is `logits`, unless
            its last operation ends no classifier; others keep their values and have the name of
            the layer that gives them.
        precision: Precision of the computation: `"float32"`, `"bfloat16"` or `"float16"`. Outputs
            are always float32.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: Function from logits to probabilities; `None` takes the activation of the head,
            or softmax if the head has none; `"linear"` leaves outputs as they are, without
            probabilities. `"softmax"` or `"sigmoid"` says that maps are logits too.
        merge: Whether the layers are changed for inference. If not, low-rank updates and quantised
            kernels stay as they are, and the model computes in its own precision.
        any_size: Whether the format takes images of any size, if the model does.
        any_aspect: Whether it takes the inputs of models of images of any aspect ratio.

    Returns:
        An `Inference`. Its weights are copies, or the model's own if nothing changes. Weight
        standardisation is folded into the kernels; kernels that Keras quantised become floats.

    Raises:
        ValueError: If the model is not built, has several inputs or outputs or unknown sizes, or
            its preprocessing is unknown.
    """
    check_model(model, any_size, any_aspect)
    source, steps = model, _count_steps(model)
    calibration = getattr(model, "calibration", None)
    if calibration is not None:
        if activation not in (None, calibration.activation):
            raise ValueError(
                f"{model.name!r} is calibrated for {calibration.activation!r}. Received: "
                f"activation={activation!r}. Leave it out, or set model.calibration = None."
            )
        activation = calibration.activation
    if isinstance(model, keras.Sequential):  # which has outputs, but none in their structure
        model = Model(single_input(model), model.outputs[0], name=model.name)
    check_choice("activation", activation, (None, *_ACTIVATIONS, _NO_ACTIVATION))
    preprocessing, normalizes = _find_preprocessing(model, preprocessing)
    head = getattr(getattr(_last_layer(model), "activation", None), "__name__", "linear")
    keys = list(model.output) if isinstance(model.output, dict) else []
    classifies = _gives_classes(model, head, activation)
    inner = "linear" if keys else final_activation(model)
    if classifies and head == "linear" and inner in _ACTIVATIONS and activation != _NO_ACTIVATION:
        raise ValueError(
            f"{model.name!r} ends in {inner}, not in a layer with activation={inner!r}, so its "
            "outputs are probabilities and would be exported as logits. Export the model without "
            'it, or pass activation="linear": then the outputs stay as they are.'
        )
    if not classifies or activation == _NO_ACTIVATION:
        head = "linear"  # these outputs stay as they are
    name, is_dict = "logits" if merge or head == "linear" else "probabilities", bool(keys)
    if not (classifies or is_dict or is_headless(model)):
        name = _own_name(model)
        keys = [name]
    if activation is None:
        logits = model.output["logits"] if "logits" in keys and is_dict else model.outputs[0]
        ends = final_activation(keras.Model(model.inputs, logits))
        is_map = getattr(model, "published", None) is not None
        is_scores = classifies or ("logits" in keys and ends == _NO_ACTIVATION and not is_map)
        scores = "softmax" if is_scores else _NO_ACTIVATION
        activation = head if head in _ACTIVATIONS else scores
    if merge:
        model = _clone(model, POLICIES[precision], linear_head=head != "linear")
    if classifies or not is_dict:
        model = _with_named_outputs(model, name, classifies)
    return Inference(
        model=model,
        preprocessing=preprocessing,
        normalizes=normalizes,
        activation=activation,
        source=source,
        steps=steps,
        names={
            key: key if not classifies else "logits" if head == "linear" else "probabilities"
            for key in keys
        },
        calibration=calibration,
        abstention=getattr(source, "abstention", None),
    )


def _count_steps(model: keras.Model) -> int:
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else int(keras.ops.convert_to_numpy(optimizer.iterations))


def check_outputs(inference: Inference, outputs: Sequence[str] | None) -> tuple[str, ...]:
    """Checks names of outputs.

    The default is all outputs of a model with names of its own; otherwise the logits, or the
    features without a head; and the probabilities if they are calibrated.

    Raises:
        ValueError: If the model lacks one of them.
    """
    known = list(inference.model.output)
    if inference.has_probabilities:
        known += ["probabilities"]
    known += inference.decisions
    known = list(dict.fromkeys([*known, *inference.names]))
    if outputs is None:
        own = tuple(inference.names) or ("logits" if "logits" in known else "features",)
        decisions = inference.decisions
        fitted = ("probabilities",) if decisions or inference.calibration is not None else ()
        return tuple(dict.fromkeys([*own, *fitted, *decisions]))
    if not outputs or not set(outputs) <= set(known):
        raise ValueError(
            f"`outputs` must be some of {', '.join(map(repr, known))}. Received: {outputs!r}."
        )
    return tuple(outputs)


def check_labels(
    labels: Sequence[str] | None, classes: int | None, model: keras.Model | None = None
) -> list[str]:
    """Checks class labels. The default is the class names of the model, or else the indices.

    Of a dict, `{"dog": 0, "cat": 1}` or `{0: "dog", 1: "cat"}`, the numbers give the order.

    Outputs without classes, such as maps, may have labels too, one for each channel.

    Labels of several classes are allowed, as ImageNet has them, with a warning that names them.

    Raises:
        ValueError: If the number of labels is not the number of classes, or a label is not one
            line of UTF-8 without NUL: `labels.txt` has one line for each.
    """
    labels = in_order(labels)
    facts = getattr(model, "published", None)
    if facts is not None:  # classes are on any axis, and a detector has one for no object
        classes = len(facts["config"].get("id2label") or ())
    if labels is None:
        labels = getattr(model, "class_names", None)
    if labels is None:
        return [str(index) for index in range(classes or 0)]
    if classes is None and model is not None and len(model.outputs) == 1 and not is_headless(model):
        classes = model.outputs[0].shape[-1]
    if isinstance(labels, str) or len(labels) != (classes or 0):
        received = f"the string {labels!r}" if isinstance(labels, str) else f"{len(labels)} labels"
        raise ValueError(
            f"`labels` must name each of the model's {classes or 0} classes, in their order. "
            f"Received: {received}."
        )
    labels = [str(label) for label in labels]
    broken = [label for label in labels if not _is_one_line(label)]
    if broken:
        raise ValueError(
            "A label must be one line of UTF-8 that is not empty, without NUL. "
            f"Received: {broken[:5]}."
        )
    twice = [label for label, count in collections.Counter(labels).items() if count > 1]
    if twice:
        warnings.warn(
            f"Several classes have the same label, and answers cannot tell them apart: {twice[:5]}"
            f"{' ...' if len(twice) > 5 else ''}. Rename them if that matters.",
            stacklevel=3,
        )
    return labels


def _is_one_line(label: str) -> bool:
    bad = re.search("[\0\ud800-\udfff]", label)  # surrogates are bytes that are no UTF-8
    return bad is None and len(label.splitlines()) == 1


def check_model(model: keras.Model, any_size: bool = False, any_aspect: bool = False) -> None:
    """Raises an error if a model cannot be exported; the arguments are those of `prepare`."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Exports need TensorFlow. Received: a model on the backend "
            f"{keras.backend.backend()!r}. Save it with `model.save`, and export it in a process "
            "with KERAS_BACKEND=tensorflow."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            "An exported model needs a symbolic input. Received: "
            f"{type(model).__name__} {model.name!r} without one. Wrap a subclassed model, or one "
            "that is not built: images = keras.Input((height, width, channels)); "
            "keras_vit.Model(images, model(images))."
        )
    if getattr(getattr(model, "config", None), "max_num_patches", None) is not None:
        if any_aspect:
            return
        raise ValueError(
            f"{model.name!r} takes images of any aspect ratio (max_num_patches): two inputs, "
            "`patches` and `grid`, and one is needed here, images. Use `export_saved_model`, "
            "`export_onnx`, or `export_litert` in float precision."
        )
    shapes = [tuple(each.shape) for each in model.inputs]
    if len(shapes) != 1 or len(shapes[0]) > 4:
        raise ValueError(
            "Files of this package take one input, images of shape (batch, height, width, "
            f"channels). Received: {model.name!r} with "
            f"{'an input' if len(shapes) == 1 else f'{len(shapes)} inputs'} of shape "
            f"{', '.join(map(str, shapes))}. {_KERAS_EXPORT} Or export the part that takes "
            "images: keras_vit.Model(images, features)."
        )
    if len(model.outputs) != 1 and not isinstance(model.output, dict):
        raise ValueError(
            "An exported model must have one output or a dict of outputs, whose names the file "
            f"keeps. Received: {len(model.outputs)} outputs. Build `keras_vit.Model(images, "
            "output)` with the output to export, or with a dict that names several."
        )
    shape = model.inputs[0].shape
    if any_size and getattr(getattr(model, "config", None), "any_size", False):
        return
    if len(shape) != 4 or None in shape[1:]:
        raise ValueError(
            "The input must have the shape (None, height, width, channels), with only the batch "
            f"size unknown. Received: an input of shape {tuple(shape)}. Export a model for images "
            "of any size at one size: keras_vit.models.resize_model(model, (height, width)), of a "
            "network for dense prediction from_pretrained(..., input_shape=(height, width, 3)), in "
            "commands --image-size; or a Vision Transformer itself as SavedModel, of any size."
        )


def _find_preprocessing(
    model: keras.Model, preprocessing: Preprocessing | None
) -> tuple[Preprocessing, bool]:
    """Returns the preprocessing, and whether the model lacks its normalisation."""
    stored, normalizes_itself = find_preprocessing(model)
    if preprocessing is None and stored is None:
        known = (
            "it normalises pixels itself, but how images are resized before is"
            if normalizes_itself
            else "it has neither a `config` nor a layer `preprocessing` of this package, or layers "
            "before them: range and resizing of its images are"
        )
        raise ValueError(
            f"The preprocessing of this model is unknown: {known} not stored. Pass "
            "preprocessing=keras_vit.Preprocessing(mean, std, interpolation=..., crop_ratio=...), "
            "with mean=0 and std=1 for a model that takes pixels in [0, 255]."
        )
    return cast("Preprocessing", preprocessing or stored), not normalizes_itself


def _gives_classes(model: keras.Model, head: str, activation: str | None) -> bool:
    """Whether the output of a model is logits or probabilities of classes.

    Of a dict, the one entry is if a head gives it. Others, of shape `(B, K)`, are unless their
    last operation says otherwise. Maps are, if a user names the activation that follows them.
    """
    if len(model.outputs) != 1 or is_headless(model):
        return False
    is_vector = len(model.outputs[0].shape) == 2
    if isinstance(model.output, dict):
        known = head == "linear" or (head in _ACTIVATIONS and activation in (None, head))
        return is_vector and known and head_input(model) is not None
    if activation in _ACTIVATIONS:
        return True
    is_known = final_activation(model) in (*_ACTIVATIONS, _NO_ACTIVATION)
    return is_vector and is_known and type(final_operation(model)).__name__ not in _NO_CLASSES


def _own_name(model: keras.Model) -> str:
    """Name of the layer that gives the output, without the number that Keras adds to its own."""
    last = final_operation(model)
    name, own = re.sub(r"_\d+$", "", last.name), type(last).__name__.lower()
    return name if name.replace("_", "") == own else last.name


def _last_layer(model: keras.Model) -> keras.Operation | None:
    """The layer of the output, or `None` if it is called elsewhere in the model, too."""
    last, _ = call_of(model.outputs[0])
    return last if len(every_call_of(model)[last]) == 1 else None


def _clone(model: keras.Model, policy: str, linear_head: bool) -> keras.Model:
    """Copies a model with all changes of its layers for inference, or returns it if it needs none.

    Layers compute under one dtype policy, except those that are always float32. Quantised kernels
    become floats, low-rank updates are added to theirs, and weight standardisation is folded.
    """
    folded = standardized_layers(model)
    policies = {layer.dtype_policy.name for layer in flatten_layers(model)}
    is_plain = not (quantized_layers(model) or lora_layers(model) or folded)
    if is_plain and not linear_head and policies == {policy} == {"float32"}:
        return model
    check_quantized(model)

    def change(config: dict[str, Any], policy: str = policy) -> dict[str, Any]:
        config = float_config(folded_config(config) if folded else config)
        dtype = config.get("dtype")
        kind = dtype.get("class_name") if isinstance(dtype, dict) else None
        if kind in ("DTypePolicy", "Float32Policy"):
            kept = Float32Policy() if kind == "Float32Policy" else keras.DTypePolicy(policy)
            config["dtype"] = keras.dtype_policies.serialize(kept)
        return config

    config, last = change_config(model.get_config(), change), _last_layer(model)
    for layer in config.get("layers", []):
        if last is not None and layer["name"] == last.name and not isinstance(last, keras.Model):
            layer["config"] = change_config(layer["config"], partial(change, policy="float32"))
            if linear_head and "activation" in layer["config"]:
                layer["config"]["activation"] = "linear"
    return clone(model, config, lambda layer: float_values(layer) or folded_values(layer))


def _with_named_outputs(model: keras.Model, name: str, classifies: bool) -> keras.Model:
    """Builds a model with the output `name`, and `features` in front of a head."""
    output = model.outputs[0]
    inputs = {x.name: x for x in model.inputs} if len(model.inputs) > 1 else model.inputs
    if is_headless(model):
        return Model(inputs, {"features": output}, name=EXPORTED)
    features = head_input(model) if classifies else None
    outputs = {name: output} if features is None else {"features": features, name: output}
    return Model(inputs, outputs, name=EXPORTED)
