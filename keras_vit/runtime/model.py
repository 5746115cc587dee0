"""The `keras.Model` of this package: a functional model that knows its architecture."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.abstention import Abstention
from keras_vit.calibration import Calibration
from keras_vit.checks import NORMALIZED_LIMIT, check_choice, in_order
from keras_vit.config import Preprocessing, ResNetConfig, ViTConfig, make_config
from keras_vit.runtime.array_data import ArrayData
from keras_vit.runtime.compilers import ChosenByBatch, prefers_xla
from keras_vit.runtime.distributed import DistributedTraining, Step, is_distributed
from keras_vit.runtime.losses import check_labels, check_loss, check_metrics
from keras_vit.runtime.pooled_tokens import pooled_tokens
from keras_vit.runtime.private_names import (
    call_of,
    every_call_of,
    flatten_layers,
    set_initial_epoch,
)

_CONFIG_KEY, _NAMES_KEY = "architecture", "class_names"
_CLONED = "_keras_vit_cloned"  # of the first output of a clone that is being made
_NUM_CHECKED = 16  # images whose range of values `fit`, `evaluate` and `predict` check
_CONFIGS: dict[str, Callable[..., Any]] = {"vit": make_config, "resnet": ResNetConfig}


@keras.saving.register_keras_serializable("keras_vit")
class Model(ArrayData, DistributedTraining, keras.Model):
    """A functional model, as `keras.Model(inputs, outputs)`.

    All models of this package are of this class. It trains under `tf.distribute` with XLA, reads
    arrays without autotuning and chooses XLA on processors: its base classes correct Keras there.
    Where the class token alone is pooled, the last block computes that token alone, unless the
    output of the block is an output of the model: see `keras_vit.runtime.pooled_tokens`.

    Args:
        *args: Symbolic inputs and outputs, as for `keras.Model`.
        **kwargs: `inputs`, `outputs` and `name`, as for `keras.Model`.

    Attributes:
        config: The `ViTConfig` or `ResNetConfig` the model was built from, or `None` for a model
            that users composed. It is saved in `.keras` files.
        load_report: The `LoadReport` of the last checkpoint that was loaded, or `None`.
        class_names: Names of the outputs, in their order, or `None`: those of the checkpoint or of
            the images that the model was trained on. Set others, as many. Exports, reports and
            `save_pretrained` take them, and `.keras` files keep them.
        calibration: The `Calibration` of the probabilities, or `None`: see
            `keras_vit.trust.calibrate`. Outputs of the model are as before; `probabilities` of
            exports, of commands and of reports are calibrated. `.keras` files keep it; `fit` drops
            it.
        abstention: The `Abstention` that exports give outputs of, or `None`: see
            `keras_vit.trust.fit_abstention`. `.keras` files keep it; `fit` and another calibration
            drop it.
    """

    predict_function: Any  # of keras.Model
    _values_are_checked = False
    _requested_jit_compile: bool | str = "auto"
    _trained_at_compile: frozenset[str] = frozenset()  # paths; Keras would track a set

    # Not `inputs, outputs`: before 3.15 Keras saves the layers of a subclass by this signature.
    def __init__(self, *args: Any, **kwargs: Any):
        if not args and not {"inputs", "outputs"} & kwargs.keys():
            raise TypeError(
                "`keras_vit.Model` takes inputs and outputs. Received: none, by "
                f"{type(self).__name__}. For layers and a `call` of your own, derive from "
                "`keras.Model`: a model of this package is a layer in it."
            )
        super().__init__(*args, **kwargs)
        self._architecture: ViTConfig | ResNetConfig | None = None
        self.load_report: Any = None
        self._class_names: tuple[str, ...] | None = None
        self.calibration: Calibration | None = None
        self.published: Any = None
        self.abstention: Abstention | None = None
        self._process = os.getpid()
        # Facts of the model of which this is a clone, if they fit.
        names, self._architecture = self.outputs[0].__dict__.pop(_CLONED, (None, None))
        if names is not None and len(names) == self.num_named:
            self._class_names = names
        if len(self.inputs) == 1:
            self.input_spec = None  # checked in `call`, with the whole shape in the message

    def check_process(self) -> None:
        """Checks that the model is used in the process that made it.

        Raises:
            RuntimeError: In a fork of that process. A fork has none of TensorFlow's threads, and
                most operations would wait for them forever.
        """
        if os.getpid() != self._process and keras.backend.backend() == "tensorflow":
            raise RuntimeError(
                f"The model {self.name!r} was made in process {self._process}, and process "
                f"{os.getpid()} is a fork of it, in which TensorFlow does not work. Start "
                'processes with `multiprocessing.get_context("spawn")` and load the model in each, '
                "or fork before the first model is made."
            )

    def check_inputs(self, inputs: Any) -> None:
        """Checks the shape of a batch of images.

        Raises:
            ValueError: If the model does not take images of this shape, or takes one tensor and
                there are several.
        """
        if len(self.inputs) != 1 or self.input_spec is not None:
            return
        tensors = keras.tree.flatten(self.select_inputs(inputs))
        if len(tensors) != 1:
            raise ValueError(
                f"The model {self.name!r} takes one input, {self.inputs[0].name}. Received: "
                f"{len(tensors)} tensors. Pass the images alone."
            )
        check_shape((None, *self.inputs[0].shape[1:]), tensors)

    def select_inputs(self, batch: Any) -> Any:
        """Selects the inputs of the model from a dict, which may have more keys.

        Raises:
            ValueError: If an input is missing. Nested inputs are left to Keras, which warns and
                takes the tensors of other keys in their order.
        """
        expected = self.input
        if not isinstance(batch, dict):
            return batch
        names = list(expected) if isinstance(expected, dict) else [x.name for x in self.inputs]
        missing = [name for name in names if name not in batch]
        if missing and isinstance(expected, dict) and len(names) < len(self.inputs):
            return batch
        if missing:
            raise ValueError(
                f"The model {self.name!r} takes a batch with the keys {', '.join(names)}. "
                f"Received: {', '.join(map(str, batch))}, without {', '.join(missing)}. Rename the "
                "keys, or pass the images alone."
            )
        if isinstance(expected, dict):
            return {name: batch[name] for name in names}
        return keras.tree.pack_sequence_as(expected, [batch[name] for name in names])

    def check_values(self, inputs: Any) -> None:
        """Warns of floats in [0, 1], or normalised, if the model takes pixels in [0, 255].

        The first images that are not black are looked at, once.
        """
        is_array = isinstance(inputs, np.ndarray) or keras.ops.is_tensor(inputs)
        if self._values_are_checked or not is_array or len(inputs.shape) != 4:
            return
        first = np.asarray(inputs[:_NUM_CHECKED])
        if first.dtype.kind != "f" or not first.any():
            return
        self._values_are_checked = True
        low, high = first.min(), first.max()
        if not high <= NORMALIZED_LIMIT or (low >= 0 and high > 1):  # NaN too
            return
        preprocessing, includes = find_preprocessing(self)
        if preprocessing is None or not includes or max(preprocessing.mean) <= 1:
            return
        if high > 1 or low < 0:
            looks, advice = "look normalised", "Pass the pixels themselves"
        elif np.asarray(inputs).max() > 1:  # the first images are nearly black
            return
        else:
            looks, advice = "look like pixels in [0, 1]", "Multiply them by 255"
        warnings.warn(
            "The model takes pixels in [0, 255], which its layer `preprocessing` normalises. "
            f"Received: {inputs.dtype} in [{low:.3g}, {high:.3g}], which {looks}. {advice}, or "
            "build the model with include_preprocessing=False.",
            stacklevel=3,
        )

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        self.check_process()
        inputs = self.select_inputs(inputs)
        self.check_inputs(inputs)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _run_through_graph(
        self, inputs: Any, operation_fn: Callable[[Any], Any] = lambda op: op, call_fn: Any = None
    ) -> Any:
        """As in Keras; blocks compute those tokens alone that are read after them."""
        if call_fn is not None:  # the check of a graph that is being made
            return super()._run_through_graph(inputs, operation_fn, call_fn)
        if any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs)):
            return self._clone(inputs, operation_fn)
        counts = pooled_tokens(self)

        def function_of(operation: Any) -> Any:
            function, count = operation_fn(operation), counts.get(operation)
            return function if count is None else functools.partial(function, num_queries=count)

        return super()._run_through_graph(inputs, function_of)

    def _clone(self, inputs: Any, operation_fn: Callable[[Any], Any]) -> Any:
        """Makes the outputs of `keras.models.clone_model`, and notes what it would lose."""
        layers: list[tuple[Any, Any]] = []

        def copy(layer: Any) -> Any:
            layers.append((layer, operation_fn(layer)))
            return layers[-1][1]

        outputs = super()._run_through_graph(inputs, copy)
        is_same = all(type(x) is type(y) and _has_config_of(x, y) for x, y in layers)
        noted = (self._class_names, self._architecture if is_same else None)
        keras.tree.flatten(outputs)[0].__dict__[_CLONED] = noted
        return outputs

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        *args: Any,
        jit_compile: bool | str = "auto",
        all_reduce_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with a choice of the compiler and of the exchange.

        Args:
            optimizer: As in Keras.
            loss: As in Keras.
            loss_weights: As in Keras.
            metrics: As in Keras. "accuracy" of a single logit is right: its threshold is 0.
            weighted_metrics: As `metrics`.
            *args: As in Keras.
            jit_compile: `"auto"` chooses XLA on processors where it is faster and means the same
                (`keras_vit.runtime.xla_checks`), by a table of dtypes and processors
                (`keras_vit.runtime.compilers`), for training and for inference. The environment
                variable `KERAS_VIT_XLA=0` keeps it off.
            all_reduce_dtype: Dtype in which replicas exchange gradients under `tf.distribute`:
                `None` for the dtype of the variables, or `"bfloat16"` for half the bytes of
                float32. Each dense gradient is then rounded to 8 significant bits (a relative error
                of at most 2^-8) before the sum, and each partial sum after. Counts of images,
                metrics and variables keep their dtypes.
            **kwargs: As in Keras.

        Raises:
            ValueError: If the model returns logits, and the loss or a metric takes probabilities;
                if `jit_compile` is another string; or if `all_reduce_dtype` is another dtype, or
                the model is not under a strategy.
        """
        check_loss(self, loss)
        self._check_all_reduce(all_reduce_dtype)
        self._compile(
            optimizer,
            loss,
            loss_weights,
            check_metrics(self, loss, metrics),
            check_metrics(self, loss, weighted_metrics),
            *args,
            jit_compile=jit_compile,
            all_reduce_dtype=all_reduce_dtype,
            **kwargs,
        )

    def _check_all_reduce(self, dtype: str | None) -> None:
        if dtype is None:
            return
        if dtype != "bfloat16":
            raise ValueError(
                "`all_reduce_dtype` must be None (the dtype of the variables) or 'bfloat16'. "
                f"Received: {dtype!r}. (Gradients can be too large or too small for float16.)"
            )
        if not is_distributed(self):
            raise ValueError(
                "`all_reduce_dtype` has no effect on a model that was not created under a strategy "
                f"of `tf.distribute`. Received: {dtype!r}. Create the model within "
                "`strategy.scope()`, or remove the argument."
            )

    def _compile(
        self,
        *args: Any,
        jit_compile: bool | str = "auto",
        all_reduce_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(jit_compile, str):  # Keras takes others for True
            check_choice("jit_compile", jit_compile, ("auto", True, False))
        self._all_reduce_dtype = all_reduce_dtype
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self._trained_at_compile = self._trained_paths()
        self._requested_jit_compile = jit_compile
        self._has_variables = False  # of the new optimizer and metrics
        fits = jit_compile == "auto" and not self.run_eagerly and not _has_open_size(self)
        self._chose_xla = fits and prefers_xla(self, "fit")
        if self._chose_xla:
            self.jit_compile = True

    def _trained_paths(self) -> frozenset[str]:
        """Paths of the variables that train."""
        return frozenset(variable.path for variable in self.trainable_variables)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """As `keras.Model.fit`; warns if layers were frozen or unfrozen after `compile`."""
        changed = sorted(self._trained_at_compile ^ self._trained_paths())
        if self.compiled and changed:
            warnings.warn(
                f"What trains was changed after `compile`: {len(changed)} variables, such as "
                f"{changed[0]!r}. Keras trains what was trainable at `compile` (from 3.16 on; "
                "3.15 does so after the first `fit`). Call `compile` again.",
                stacklevel=2,
            )
        self.warn_of_lost_calibration("Training changes the probabilities")
        self.calibration = self.abstention = None
        try:
            return super().fit(*args, **kwargs)
        finally:  # also of one that was interrupted: the next starts at its own beginning
            self._batches_to_skip = 0
            set_initial_epoch(self, None)

    def make_predict_function(self, force: bool = False) -> Step:
        if self.predict_function is not None and not force:
            if isinstance(self.predict_function, ChosenByBatch):
                self.predict_function.start()
            return self.predict_function
        with self._without_xla() if self._chose_xla else contextlib.nullcontext():
            super().make_predict_function(force)
        if (
            self._requested_jit_compile == "auto"
            and keras.backend.backend() == "tensorflow"
            and not is_distributed(self)
            and not self.run_eagerly
            and not _has_open_size(self)
            and type(self).predict_step is Model.predict_step  # a user's own may need the labels
        ):
            self.predict_function = ChosenByBatch(self)
        return self.predict_function

    def export(
        self, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any
    ) -> Any:
        """As `keras.Model.export`; to ONNX also before a first call, where Keras refuses it."""
        shape = self.inputs[0].shape[1:]
        if format == "onnx" and len(self.inputs) == 1 and None not in shape:
            self(keras.ops.zeros((1, *shape)))
        return super().export(filepath, format, *args, **kwargs)

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        layout: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> pathlib.Path:
        """Writes a folder that this package and transformers or timm load.

        It holds `model.safetensors`, `config.json` and, with transformers,
        `preprocessor_config.json`. `from_pretrained(folder)` gives the same outputs and
        preprocessing.

        Args:
            folder: The folder; it is made if it does not exist.
            layout: `"transformers"` or `"timm"`; `None` takes timm for a model whose preprocessing
                is timm's, and transformers otherwise.
            class_names: Names of the classes, in the order of the outputs: `id2label` of
                transformers, `label_names` of timm. `None` takes `model.class_names`.

        Returns:
            The folder.

        Raises:
            ValueError: If the project cannot represent the model or its preprocessing, or the
                folder holds other weights. Nothing is written then.
        """
        # The imports of higher levels, see docs/architecture.md.
        if self.published is not None:
            from keras_vit.networks.saving import save_network

            return save_network(self, folder)
        from keras_vit.weights.save_folder import save_pretrained

        self.warn_of_lost_calibration("Folders for other packages have weights and labels alone")
        return save_pretrained(self, folder, layout, class_names)

    def warn_of_lost_calibration(self, reason: str) -> None:
        """Warns that what comes of the model has not its calibration and abstention, if any."""
        if self.calibration is not None or self.abstention is not None:
            warnings.warn(
                f"{reason} of {self.name!r}, so its calibration and its abstention are left out. "
                "Fit them again: `keras-vit calibrate`.",
                stacklevel=3,
            )

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        """As `keras.Model.compute_loss`, after a check of the form of the labels."""
        check_labels(self.loss, y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def get_compile_config(self) -> dict[str, Any]:
        """As in Keras, but `"auto"` stays `"auto"`: another machine must choose again.

        Nothing with low-rank updates: files hold the merged kernels, which the optimizer of the
        updates does not fit.
        """
        if any(getattr(layer, "lora_enabled", False) for layer in flatten_layers(self)):
            return {}
        config = super().get_compile_config()
        if config:
            config["jit_compile"] = self._requested_jit_compile
            if self._all_reduce_dtype is not None:  # kept, also without a strategy
                config["all_reduce_dtype"] = self._all_reduce_dtype
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model from the configuration in a `.keras` file."""
        arguments = keras.saving.deserialize_keras_object(config)
        loss = arguments.get("loss")
        try:
            check_loss(self, loss)
            for key in ("metrics", "weighted_metrics"):
                arguments[key] = check_metrics(self, loss, arguments.get(key))
        except ValueError as error:  # a file of plain Keras, or of a version without this check
            warnings.warn(f"The model was saved as it was compiled. {error}", stacklevel=2)
        self._compile(**arguments)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def config(self) -> ViTConfig | ResNetConfig | None:
        """The configuration that the model was built from, or `None`."""
        return self._architecture

    @property
    def num_named(self) -> int:
        """How many outputs `class_names` names."""
        labels = (self.published or {}).get("config", {}).get("id2label")
        return len(labels) if labels else int(self.outputs[0].shape[-1])

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the outputs, in their order, or `None`."""
        return self._class_names

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        count, names = self.num_named, in_order(names)
        if names is not None and (isinstance(names, str) or len(names) != count):
            received = f"the string {names!r}" if isinstance(names, str) else f"{len(names)} names"
            raise ValueError(
                f"`class_names` must name each of the {count} outputs of {self.name!r}, in their "
                f"order. Received: {received}."
            )
        self._class_names = None if names is None else tuple(map(str, names))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self._class_names is not None:
            config[_NAMES_KEY] = list(self._class_names)
        if self.calibration is not None:
            config["calibration"] = dataclasses.asdict(self.calibration)
        if self.abstention is not None:
            config["abstention"] = self.abstention.to_dict()
        if self.published is not None:
            config["published"] = self.published
        if self._architecture is not None:
            family = "vit" if isinstance(self._architecture, ViTConfig) else "resnet"
            config[_CONFIG_KEY] = {"family": family, "fields": self._architecture.to_dict()}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Model:
        config = dict(config)
        architecture = config.pop(_CONFIG_KEY, None)
        keys = (_NAMES_KEY, "calibration", "abstention", "published")
        names, calibration, abstention, published = (config.pop(key, None) for key in keys)
        if config.get("trainable"):
            config["trainable"] = None  # Keras 3.15 would unfreeze all layers; each has its own
        model = super().from_config(config, custom_objects=custom_objects)
        for layer in model.layers:
            if not layer.trainable:  # its layers were made after it was frozen
                layer.trainable = True  # Keras ignores a value that does not change
                layer.trainable = False
        if architecture is not None:
            model._architecture = _CONFIGS[architecture["family"]](**architecture["fields"])
        model.published, model.class_names = published, names
        model.calibration = None if calibration is None else Calibration(**calibration)
        model.abstention = None if abstention is None else Abstention.from_dict(abstention)
        return model


def _has_config_of(layer: keras.Operation, other: keras.Operation) -> bool:
    if not isinstance(layer, keras.layers.Layer):
        return True
    return bool(layer.get_config() == other.get_config())


def _has_open_size(model: keras.Model) -> bool:
    """Whether inputs may have several sizes, for each of which XLA would compile the model."""
    return any(None in tensor.shape[1:] for tensor in model.inputs)


def with_config(model: Model, config: ViTConfig | ResNetConfig) -> Model:
    """Stores the configuration in a model that was built from it, and returns the model."""
    model._architecture = config
    return model


@keras.saving.register_keras_serializable("keras_vit")
class Normalization(keras.layers.Normalization):
    """From pixels in [0, 255] to the range of a model: its first layer, `preprocessing`.

    It holds how images are resized before, and is saved with it, so that clones of a model and
    models built on it are evaluated and exported with the same preprocessing.

    Args:
        preprocessing: Preprocessing of the model's images, or its fields.
        channels: Channels of the images; patches have a multiple of them.
    """

    def __init__(self, preprocessing: Preprocessing | dict[str, Any], channels: int, **kwargs: Any):
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        mean, std = preprocessing.per_channel(channels)
        super().__init__(axis=-1, mean=mean, variance=[s**2 for s in std], **kwargs)
        self.preprocessing = preprocessing
        self.channels = channels

    def build(self, input_shape: Any) -> None:
        repeats, rest = divmod(input_shape[-1], self.channels)  # of a patch: pixel after pixel
        repeats = 1 if rest else repeats
        self._input_shape = tuple(input_shape)
        super().build((*input_shape[:-1], input_shape[-1] // repeats))
        # Arrays become constants of a graph. Tensors become inputs of the ONNX file that Keras's
        # own `export` writes, without values.
        for name in ("mean", "variance"):
            array = keras.ops.convert_to_numpy(getattr(self, name))
            setattr(self, name, np.tile(array, repeats))

    def get_build_config(self) -> dict[str, Any]:
        return {"input_shape": self._input_shape}  # not the one that Keras's layer was built with

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for key in ("axis", "mean", "variance", "invert"):
            config.pop(key, None)
        preprocessing = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(self.preprocessing).items()
        }
        return {**config, "preprocessing": preprocessing, "channels": self.channels}


# What changes the images of a model, if it stands before it: layers, and names of `keras.ops`.
_RESIZING = (
    keras.layers.Rescaling,
    keras.layers.Resizing,
    keras.layers.CenterCrop,
    keras.layers.Normalization,
)
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "truedivide", "resize")


def find_preprocessing(model: keras.Model) -> tuple[Preprocessing | None, bool | None]:
    """Finds the preprocessing of a model, or of the one model of this package that it contains.

    Returns:
        The preprocessing, and whether the model normalises its pixels itself; `None` where that is
        unknown: without such a model, with several that differ, or behind others of Keras's layers
        that rescale or resize images. What follows the model, such as a decoder, may do so.
    """
    found: set[tuple[Preprocessing, bool]] = set()
    layers = list(flatten_layers(model))
    for layer in layers:
        config = getattr(layer, "config", None)
        if isinstance(config, ViTConfig | ResNetConfig):
            if layer is model:
                return config.preprocessing, config.include_preprocessing
            found.add((config.preprocessing, config.include_preprocessing))
        if isinstance(layer, Normalization):
            found.add((layer.preprocessing, True))
    if len(found) == 1 and not _changes_images(model):
        return found.pop()
    normalizes = bool(found) or any(layer.name == "preprocessing" for layer in layers)
    return None, normalizes or None


def _changes_images(model: keras.Model) -> bool:
    """Whether images are changed on their way to the model of this package inside of a model."""
    if not getattr(model, "outputs", None):  # a subclassed model: no order of layers is known
        return any(map(_is_resizing, flatten_layers(model)))
    for operation, calls in every_call_of(model).items():
        if not any(map(_has_preprocessing, _layers_in(operation))):
            continue
        tensors = [tensor for call in calls for tensor in call.input_tensors]
        while tensors:
            before, call = call_of(tensors.pop())
            if type(before).__name__.lower() in _ARITHMETIC or any(
                map(_is_resizing, _layers_in(before))
            ):
                return True
            tensors.extend(call.input_tensors)
        is_nested = isinstance(operation, keras.Model) and not _has_preprocessing(operation)
        if is_nested and _changes_images(operation):
            return True
    return False


def _layers_in(operation: keras.Operation) -> list[keras.layers.Layer]:
    return list(flatten_layers(operation)) if isinstance(operation, keras.layers.Layer) else []


def _has_preprocessing(layer: keras.layers.Layer) -> bool:
    config = getattr(layer, "config", None)
    return isinstance(layer, Normalization) or isinstance(config, ViTConfig | ResNetConfig)


def _is_resizing(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, _RESIZING) and not isinstance(layer, Normalization)


def check_shape(expected: tuple[int | None, ...], inputs: Any) -> None:
    """Checks the shapes of input tensors.

    Keras's own check accepts a last axis of 1 for any size, so grey images would pass for colour
    images.

    Raises:
        ValueError: If a shape differs from `expected`.
    """
    for tensor in keras.tree.flatten(inputs):
        shape = tuple(tensor.shape)
        if len(shape) == len(expected) and all(
            want is None or size is None or size == want
            for size, want in zip(shape, expected, strict=True)
        ):
            continue
        is_single = shape == expected[1:]
        advice = "Add the batch axis: images[None]." if is_single else "Resize or convert them."
        raise ValueError(f"The model takes inputs of shape {expected}. Received: {shape}. {advice}")
