"""Export to SavedModel for TensorFlow Serving, with signatures from image files to labels."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_vit.checks import check_choice, check_positive, counts
from keras_vit.config import Preprocessing
from keras_vit.data.decode import DECODED_CHANNELS, MAX_PIXELS, decode
from keras_vit.data.transforms import eval_transform
from keras_vit.export.freeze import stack_equal, weights_as_read, with_weights
from keras_vit.export.inference import POLICIES, Inference, check_labels, prepare
from keras_vit.export.runners import load_saved_model
from keras_vit.export.serving import write_version_files
from keras_vit.export.verify import (
    ExportReport,
    Images,
    check,
    compare,
    compare_sizes,
    expected_outputs,
    verification_images,
)
from keras_vit.files import (
    list_names,
    local_or_remote,
    next_version,
    publish_version,
    write_atomically,
)
from keras_vit.progress import Progress

if TYPE_CHECKING:
    from tensorflow.types.experimental import ConcreteFunction

# Images of a request that are decoded at once; each can need 250 MB (docs/security.md).
_AT_ONCE = 4
PLAIN_PIXELS = "plain_pixels"  # the signature `pixels` without XLA


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    version: int | None = None,
    precision: str = "float32",
    top_k: int = 5,
    images: Images | None = None,
    preprocessing: Preprocessing | None = None,
    activation: str | None = None,
    tolerance: float | None = None,
    warmup_batch_sizes: Sequence[int] = (1,),
    jit_compile: bool = False,
    max_pixels: int = MAX_PIXELS,
    verbose: bool | int = True,
) -> ExportReport:
    """Exports a model as a numbered version for TensorFlow Serving, and checks it.

    All signatures return float32 `logits`, `probabilities` and `features`, and the `top_k` largest
    probabilities as `scores` with their labels as `classes`. A model that gives a dict keeps its
    own names too. The signatures differ in their input:

    - `serving_default`: `image_bytes`, encoded images of any size;
    - `tolerant`: the same, but an unreadable image gives zeros and `valid` false, where
      `serving_default` fails for the whole batch;
    - `images`: uint8 pixels of any size; `float_images`: float32 in [0, 255];
    - `pixels`: float32 in [0, 255] of the model's image size; of any size if the model takes that,
      while the signatures above resize images to the size that its positions are for;
    - `features`: `image_bytes`; returns `features` only;
    - of a model that takes images of any aspect ratio, `patches` and `grid` in place of `pixels`:
      the other signatures make them, see `keras_vit.data.fit_patches`;
    - with `jit_compile`, `plain` and `plain_pixels`: as `serving_default` and `pixels`, for servers
      without XLA.

    `assets.extra` holds warm-up requests, which a server runs at start, `labels.txt`, and
    `model_card.json` with one image and the model's outputs for it. Variables of equal shape, as of
    all blocks, are saved as one, so that the version is small and loads quickly.

    Args:
        model: A functional model, trained in any precision.
        path: Directory of the versions: the base path of the model in TensorFlow Serving, or a
            remote address, such as `gs://bucket/pets`, if TensorFlow has its file system.
        labels: Class names in order; `None` takes those of the model, or class indices.
        version: Version number, 0 or more; `None` takes the next, also beside other exports to
            `path` (on a local disk).
        precision: Precision of the computation: `"float32"`, `"bfloat16"` or `"float16"`. Weights
            that are read in half precision are saved in it: half the bytes, and faster.
        top_k: Number of classes in `classes` and `scores`, at least 1.
        images: Images for the check, as for `export_onnx`.
        preprocessing: Preprocessing of the images; `None` takes the model's own.
        activation: As for `export_onnx`.
        tolerance: Largest difference allowed, relative to the largest value of an output.
        warmup_batch_sizes: Batch sizes of the warm-up requests.
        jit_compile: Whether XLA compiles the model, once per batch size: faster in float32 with one
            image, and on processors where TensorFlow does not enable oneDNN by default. XLA ignores
            assertions of a model, and checks no indices.
            TensorFlow Serving must be started with `--xla_cpu_compilation_enabled`, or asked for
            the signature `plain`.
        max_pixels: Height times width above which an encoded image counts as unreadable. It is
            refused before it is decoded, so that a small file cannot take gigabytes of memory.
        verbose: Whether to print, now and then, which step runs and how long it has taken.

    Returns:
        An `ExportReport` with the path of the version.

    Raises:
        FileExistsError: If the version exists.
        OSError: If `path` cannot be written.
        ValueError: If the model cannot be exported, or the number of labels is wrong.
        ExportMismatchError: If the outputs differ from the model's. No file is left then.

    Example:

    >>> report = keras_vit.export_saved_model(model, "serving/pets", labels=names)
    >>> report.path
    PosixPath('serving/pets/1')
    """
    check_choice("precision", precision, tuple(POLICIES))
    check_positive("top_k", top_k)
    check_positive("max_pixels", max_pixels)
    counts("warmup_batch_sizes", warmup_batch_sizes)
    if version is not None:
        _check_version(version)
    inference = prepare(model, precision, preprocessing, activation, any_size=True, any_aspect=True)
    if inference.takes_patches and jit_compile:
        raise ValueError(
            "A model of images of any aspect ratio (max_num_patches) is exported without XLA. "
            "Received: jit_compile=True. Leave it out."
        )
    _check_names(inference)
    labels = check_labels(labels, inference.classes, model)
    of_task = images is not None
    images = verification_images(images, inference)
    base = local_or_remote(path)
    name = str(version if version is not None else next_version(list_names(base)))
    destination: pathlib.Path | str = f"{base}/{name}" if isinstance(base, str) else base / name
    progress = Progress("export as SavedModel", 3, "steps", verbose)
    with write_atomically(destination) as unfinished, progress:
        progress.step("computing the model's outputs")
        module = ServingModule(inference, labels, top_k, jit_compile, max_pixels)
        reference = prepare(
            model, "float32", preprocessing, activation, any_size=True, any_aspect=True
        )
        expected = expected_outputs(reference, images)
        progress.step("writing")
        tf.saved_model.save(module, os.fspath(unfinished), module.signatures())
        write_version_files(
            unfinished, inference, labels, precision, warmup_batch_sizes, max_pixels
        )
        progress.step("checking against the model")
        runner = load_saved_model(unfinished)
        kind = (unfinished, "saved_model", precision)
        report = compare(*kind, runner, expected, images, smallest_scale=inference.smallest_scale)
        report = compare_sizes(report, runner, reference)
        if jit_compile:
            plain = load_saved_model(unfinished, PLAIN_PIXELS)
            twin = compare(*kind, plain, expected, images, smallest_scale=inference.smallest_scale)
            worst = max(report.max_difference, twin.max_difference)
            report = dataclasses.replace(report, max_difference=worst)
        inference.check_unchanged()
        check(report, of_task, tolerance)
        if version is None and isinstance(base, pathlib.Path):
            destination = publish_version(unfinished, base)
    return dataclasses.replace(report, path=destination)


def _check_version(version: object) -> None:
    """Raises a `ValueError` unless TensorFlow Serving takes the version."""
    if not hasattr(version, "__index__") or isinstance(version, bool) or int(version) < 0:
        raise ValueError(
            "`version` must be a whole number, 0 or more, or None for the next. Received: "
            f"{version!r}."
        )


def _check_names(inference: Inference) -> None:
    """Raises a `ValueError` if a model has an output of the same name as the signatures."""
    taken = [name for name in inference.names if name in ("scores", "classes", "valid")]
    if taken:
        raise ValueError(
            "The signatures have outputs `scores`, `classes` and `valid` of their own. Received: a "
            f"model with outputs {', '.join(inference.names)}. Rename: {', '.join(taken)}."
        )


class ServingModule(tf.Module):
    """Model with decoding, preprocessing and labels, as a server needs it.

    Args:
        inference: The model.
        labels: Class names in order.
        top_k: Number of classes in `classes` and `scores`.
        jit_compile: Whether XLA compiles the model. Decoding has no fixed shapes and is never
            compiled.
        max_pixels: Height times width above which an encoded image is refused.
        read: Reads the values of `inference.variables`, in float32, from variables that the caller
            saves; `None` saves them with this module.
    """

    def __init__(
        self,
        inference: Inference,
        labels: list[str],
        top_k: int,
        jit_compile: bool = False,
        max_pixels: int = MAX_PIXELS,
        read: Callable[[], list[tf.Tensor]] | None = None,
    ):
        super().__init__()
        self._inference = inference
        weights = inference.variables
        self.weights: list[tf.Variable] = []  # an attribute, so that they are saved
        if inference.is_half:
            weights = weights_as_read(inference, _concrete(inference, inference.inputs()))
        if read is None:
            self.weights, read = stack_equal(weights)
        # All signatures call this function, so the file holds the graph of the model once. Such
        # functions are not attributes themselves: TensorFlow would save each as one more function.
        plain, by_xla = _functions(inference, weights, read, jit_compile)
        self._run_plain = lambda pixels: plain(pixels)
        self._run = lambda pixels: by_xla(pixels)
        self._jit_compile = jit_compile
        self._labels = labels
        self._top_k = min(top_k, len(labels))
        self._max_pixels = max_pixels

    def signatures(self) -> dict[str, ConcreteFunction]:
        """Returns the concrete functions by signature name."""
        channels = self._inference.input_shape[-1]
        sized = self._inference.inputs()
        floats = tf.TensorSpec((None, None, None, channels), tf.float32, "images")
        whole = tf.TensorSpec((None, None, None, channels), tf.uint8, "images")
        signatures = {
            **self._of_inputs(sized),
            "float_images": _concrete(self._from_images, floats),
            "images": _concrete(self._from_images, whole),
        }
        if self._jit_compile:
            signatures[PLAIN_PIXELS] = _concrete(lambda pixels: self._classify(pixels, True), sized)
        if channels not in DECODED_CHANNELS:
            return {**signatures, "serving_default": signatures["float_images"]}
        encoded = tf.TensorSpec((None,), tf.string, "image_bytes")
        decode_all = tf.function(self._decode_all).get_concrete_function(encoded)
        self._decoded = lambda image_bytes: decode_all(image_bytes)  # see __init__
        signatures["serving_default"] = _concrete(self._from_bytes, encoded)
        signatures["tolerant"] = _concrete(self._from_any_bytes, encoded)
        if self._jit_compile:
            signatures["plain"] = _concrete(
                lambda image_bytes: self._classify(self._decoded(image_bytes), True), encoded
            )
        if "features" in self._inference.model.output:
            signatures["features"] = _concrete(self._features, encoded)
        return signatures

    def _of_inputs(self, sized: Any) -> dict[str, ConcreteFunction]:
        """The signature that takes what the model takes."""
        if not self._inference.takes_patches:
            return {"pixels": _concrete(self._classify, sized)}

        def classify(patches: tf.Tensor, grid: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._classify({"patches": patches, "grid": grid})

        return {"patches": tf.function(classify).get_concrete_function(**sized)}

    def _from_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._classify(self._decoded(image_bytes))

    def _from_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._classify(self._map(self._preprocess, images))

    def _features(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"features": self._from_bytes(image_bytes)["features"]}

    def _from_any_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels, valid = self._decode_readable(image_bytes)
        outputs = self._classify(pixels)
        return {**{name: _blank(value, valid) for name, value in outputs.items()}, "valid": valid}

    def _classify(self, pixels: Any, is_plain: bool = False) -> dict[str, tf.Tensor]:
        outputs = self._run_plain(pixels) if is_plain else self._run(pixels)
        if self._labels and "probabilities" in outputs:
            scores, indices = tf.math.top_k(outputs["probabilities"], self._top_k)
            outputs["scores"] = scores
            outputs["classes"] = tf.gather(tf.constant(self._labels), indices)
        return outputs

    def _preprocess(self, image: tf.Tensor) -> Any:
        if self._inference.takes_patches:
            return self._inference.fit(image)
        return eval_transform(image, self._inference.preprocessing, self._inference.input_shape[:2])

    def _decode(self, index: tf.Tensor, image_bytes: tf.Tensor) -> tf.Tensor:
        channels = self._inference.input_shape[-1]
        turn = self._inference.preprocessing.exif_orientation
        return self._preprocess(decode(image_bytes, channels, self._max_pixels, index, turn))

    def _decode_all(self, image_bytes: tf.Tensor) -> tf.Tensor:
        numbered = (tf.range(tf.shape(image_bytes)[0]), image_bytes)
        return self._map(lambda pair: self._decode(*pair), numbered)

    def _map(self, function: Callable[..., tf.Tensor], batch: Any) -> tf.Tensor:
        """Applies a function to each image of a batch, to several in parallel."""
        spec = self._spec_of_one()
        return tf.map_fn(function, batch, parallel_iterations=_AT_ONCE, fn_output_signature=spec)

    def _spec_of_one(self) -> Any:
        """Shapes and types of what `_preprocess` makes of an image."""
        if not self._inference.takes_patches:
            return tf.TensorSpec(self._inference.input_shape, tf.float32)
        inputs = self._inference.inputs()
        return {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in inputs.items()}

    def _decode_readable(self, image_bytes: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Decodes a batch of image files to pixels; unreadable files become zeros.

        In a graph, only a `tf.data` pipeline continues after an error. It drops the image, so each
        image carries its index. One blank image at the end prevents an empty pipeline.
        """
        count = tf.shape(image_bytes)[0]
        spec = self._spec_of_one()
        images = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        images = images.map(lambda index, data: (index, self._decode(index, data)))
        images = images.ignore_errors()
        zeros = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), spec)
        blank = tf.data.Dataset.from_tensors((count, zeros))
        images = images.concatenate(blank).batch(tf.cast(count, tf.int64) + 1)
        indices, pixels = images.get_single_element()
        indices = indices[:, None]
        valid = tf.scatter_nd(indices, tf.ones_like(indices[:, 0]), (count + 1,))[:count] > 0

        def placed(x: tf.Tensor, one: tf.TensorSpec) -> tf.Tensor:
            x = tf.scatter_nd(indices, x, tf.concat([[count + 1], one.shape], 0))[:count]
            return tf.ensure_shape(x, (None, *one.shape))

        return tf.nest.map_structure(placed, pixels, spec), valid


def _functions(
    inference: Inference,
    weights: list[tf.Variable],
    read: Callable[[], list[tf.Tensor]],
    jit_compile: bool,
) -> tuple[ConcreteFunction, ConcreteFunction]:
    """The model without XLA, and with XLA if asked for; both call one graph."""
    specs = [tf.TensorSpec(weight.shape, weight.dtype) for weight in weights]

    def compute(pixels: Any, values: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        return with_weights(inference, values)(pixels)

    graph = _concrete(compute, inference.inputs(), specs)
    plain = _concrete(lambda pixels: graph(pixels, read()), inference.inputs())
    if not jit_compile:
        return plain, plain
    compiled = tf.function(lambda *inputs: graph(*inputs), jit_compile=True)
    call = compiled.get_concrete_function(inference.inputs(), specs)
    return plain, _concrete(lambda pixels: call(pixels, read()), inference.inputs())


def _concrete(function: Callable[..., dict[str, tf.Tensor]], *specs: Any) -> ConcreteFunction:
    return tf.function(function).get_concrete_function(*specs)


def _blank(value: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Replaces the values of invalid images by zeros or empty strings."""
    valid = tf.reshape(valid, tf.concat([[-1], tf.ones(tf.rank(value) - 1, tf.int32)], 0))
    return tf.where(valid, value, tf.zeros_like(value))
