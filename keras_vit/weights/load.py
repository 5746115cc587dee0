"""Loading of a checkpoint: everything is checked, then everything is assigned."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_vit.checks import short_repr
from keras_vit.config import Preprocessing, ViTConfig, field_names, field_value
from keras_vit.errors import CheckpointError, CheckpointMismatchError, listed, printable
from keras_vit.resize import BIAS_TABLE, resize_patch_kernel, resize_position_bias, resize_positions
from keras_vit.runtime.model import with_config
from keras_vit.weights.array_file import all_finite
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.matching import PATCHES, POSITIONS, Plan, compare, explain
from keras_vit.weights.sidecar import Setting

if TYPE_CHECKING:
    import keras

    from keras_vit.runtime.model import Model

_LOGGER = logging.getLogger("keras_vit")
# What the report states, each with where it comes from.
STATED = (
    "gelu", "norm_epsilon", "pooling", "num_heads", "rope", "position_resize", "image_size",
    "preprocessing",
)  # fmt: skip
_TOKENS = ("class_token/token", "distillation_token/token", "registers/token")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The outcome of loading, for every array of the file and every variable of the model.

    Args:
        path: The file.
        layout: Name of its layout.
        loaded: Paths of the variables that were loaded, resized ones too.
        resized: What was resized or adapted, by path of the variable.
        fresh: Paths of the variables that start at their initial value: heads of other classes.
        left_out: Names in the file that were not needed.
        settings: GELU, epsilon, pooling, heads, how positions are resized, size of images, and
            preprocessing: value and where it comes from, by field of the configuration.
        differs: Settings of the model that are not those of the file's project, where it was
            loaded into a model that was there before: GELU, epsilons, pooling and its heads, rotary
            positions, standardised kernels, and mean and standard deviation of the pixels.
        licence: Licence of the weights, from their card or `config.json`; `None` if neither says.
        prefix: What stood before the names of the model in the file, such as `"module."`. Arrays
            without it are among `left_out`.
        class_names: Names of the classes in the order of the outputs, as `config.json` has them;
            empty if it has none, or if the head is not the file's.
    """

    path: str
    layout: str
    loaded: tuple[str, ...]
    resized: dict[str, str] = dataclasses.field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    settings: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    differs: tuple[str, ...] = ()
    licence: str | None = None
    prefix: str = ""
    class_names: tuple[str, ...] = ()

    __repr__ = short_repr

    def __str__(self) -> str:
        after = f", names after {self.prefix!r}" if self.prefix else ""
        lines = [f"{len(self.loaded)} weights from {self.path} ({self.layout} layout{after})"]
        lines += [
            f"{field}: {_text(value)} ({origin})"
            for field, (value, origin) in self.settings.items()
        ]
        if self.licence:
            lines.append(f"licence: {self.licence}")
        lines += [f"differs: {text}" for text in self.differs]
        lines += [f"resized: {path}, {what}" for path, what in self.resized.items()]
        if self.fresh:
            lines.append(f"started fresh: {', '.join(self.fresh)}")
        if self.left_out:
            lines.append(f"left out: {listed(self.left_out, 5)}")
        return "\n".join(map(printable, lines))

    @property
    def size(self) -> str | None:
        """The size of images, where it comes from, and how positions were resized to it."""
        if "image_size" not in self.settings:
            return None
        value, origin = self.settings["image_size"]
        tables = (path for path in self.resized if path == POSITIONS or path.endswith(BIAS_TABLE))
        resized = next((f"; resized: {self.resized[path]}" for path in tables), "")
        return f"images of {_text(value)} pixels ({origin}){resized}"


def load_weights(
    model: Model,
    path: str | os.PathLike[str],
    grid: tuple[int, int] | None = None,
    resize_patches: bool = False,
    prefix: str | None = None,
) -> LoadReport:
    """Loads a published checkpoint into a model, completely or not at all.

    Positions are resized to the model's grid by the method of the file's project, which
    `model.config.position_resize` keeps for `adapt_model` and `fine_tune`. The patch kernel
    adapts to the model's number of channels. A head of other classes is not loaded: the model's
    starts at zero.

    Args:
        model: A model of `build_vit`, `build_resnet` or `create_model`.
        path: An `.npz` or `.safetensors` file in a layout of the official projects, timm or
            transformers. Of a checkpoint split over several files the folder, the index, or any.
        grid: Patches along (height, width) of the file's positions, if they are not a square.
        resize_patches: Whether the file has flexible patches: a patch kernel of another size is
            resized by the pseudo-inverse, and positions are resized as FlexiViT does. Otherwise
            another size is an error, because it mostly means a wrong file.
        prefix: What stands before the names of the model in the file, such as `"module."` or
            `"teacher.backbone."`. `None` looks for it; a file of several models needs it.

    Returns:
        A `LoadReport`, which the model keeps as `model.load_report`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is damaged, pickled, or of no known layout.
        CheckpointMismatchError: If it does not fit the model; lists all that does not.

    Example:

    >>> model = keras_vit.create_model("vit_b16", classes=10)
    >>> report = keras_vit.load_weights(model, "ViT-B_16.npz")  # doctest: +SKIP
    """
    with open_checkpoint(path, prefix) as checkpoint:
        check_supported(checkpoint, None)
        pixels = checkpoint.options.get("preprocessing")
        includes = getattr(model.config, "include_preprocessing", False)
        folded = pixels if includes else None  # otherwise the range of the inputs is unknown
        return load_checkpoint(model, checkpoint, grid, resize_patches, preprocessing=folded)


def check_finite(path: str | os.PathLike[str], model: keras.Model) -> None:
    """Checks the weights that Keras loaded.

    Raises:
        CheckpointError: If some are NaN or infinite. The message names them.
    """
    floats = (each for each in model.weights if "float" in str(each.dtype))
    bad = tuple(each.path for each in floats if not all_finite(np.asarray(each)))
    if bad:
        raise CheckpointError(
            f"{os.fspath(path)} holds NaN or infinity in {listed(bad, 5)}, so the model would give "
            "nothing else. Take an earlier file, or train again with a smaller learning rate."
        )


def check_supported(checkpoint: Checkpoint, chosen: Collection[str] | None) -> None:
    """Checks that the models of this package compute what a file and its sidecar files ask for.

    Args:
        checkpoint: The open file.
        chosen: Fields of the configuration that the caller sets, whatever the file says; `None`
            for a model that is there already.

    Raises:
        CheckpointError: If not; the message lists everything, with the keys of sidecar files.
    """
    left = [
        refusal
        for refusal in checkpoint.refusals
        if not (refusal.fields and set(refusal.fields) <= set(chosen or ()))
        and not (refusal.open and chosen is None)
    ]
    if not left:
        return
    lines = "".join(
        f"\n  {refusal.text}"
        + (f" (pass {', '.join(f'{field}=...' for field in refusal.fields)} to set it yourself)"
           if refusal.fields else "")
        for refusal in left
    )  # fmt: skip
    raise CheckpointError(
        f"{checkpoint.file.path} ({checkpoint.layout.name} layout) would give other numbers than "
        f"its project computes, and nothing was loaded:{lines}"
    )


def load_checkpoint(
    model: Model,
    checkpoint: Checkpoint,
    grid: tuple[int, int] | None = None,
    resize_patches: bool = False,
    position_resize: str | None = None,
    origins: Mapping[str, str] | None = None,
    preprocessing: Preprocessing | None = None,
) -> LoadReport:
    """Loads an open checkpoint: see `load_weights`.

    Args:
        model: The model.
        checkpoint: The open file.
        grid: As in `load_weights`.
        resize_patches: As in `load_weights`.
        position_resize: Method of `resize_positions`; `None` takes that of the file's project.
        origins: Where fields of the model's configuration come from, for the report; `None` for a
            model that was there before.
        preprocessing: Preprocessing of the file, whose statistics are folded into the patch kernel
            of a model with fewer channels; `None` leaves them out.

    Returns:
        A `LoadReport`.

    Raises:
        CheckpointError: If the file is damaged.
        CheckpointMismatchError: If it does not fit the model.
    """
    plan = Plan(model, checkpoint, grid, resize_patches, position_resize)
    compare(plan)
    if plan.problems:
        raise CheckpointMismatchError(explain(plan))
    arrays = {path: _read(plan, path) for path in plan.parts}
    _place_tokens(plan, arrays)
    _adapt_channels(plan, arrays, preprocessing)
    _check_finite(plan, arrays)
    for path, variable in plan.fresh.items():
        variable.assign(_fresh_value(path, variable, plan))
    for path in list(arrays):
        plan.parts[path].variable.assign(arrays.pop(path))
    if isinstance(plan.config, ViTConfig):
        config = dataclasses.replace(plan.config, position_resize=plan.resize_method)
        with_config(model, config)
        _set_resize(model, config.learned_resize)
    report = LoadReport(
        path=os.fspath(checkpoint.file.path),
        layout=checkpoint.layout.name,
        loaded=tuple(plan.parts),
        resized=plan.resized,
        fresh=tuple(plan.fresh),
        left_out=tuple(plan.left_out) + checkpoint.others,
        settings=_settings(plan, origins),
        differs=tuple(_differences(plan)) if origins is None else (),
        licence=checkpoint.sidecar.licence,
        prefix=checkpoint.wrapper,
        class_names=_class_names(plan, checkpoint.sidecar.class_names),
    )
    model.load_report = report
    if report.class_names:
        model.class_names = report.class_names
    outside = tuple(name for name in checkpoint.others if not name.startswith(checkpoint.wrapper))
    if outside:
        _LOGGER.warning(
            "The model in %s has the names after %r; these arrays are left out: %s.",
            printable(report.path),
            report.prefix,
            listed(outside, 5),
        )
    return report


def _class_names(plan: Plan, names: tuple[str, ...]) -> tuple[str, ...]:
    """The class names of a file, where its head was loaded."""
    is_loaded = not any(path.startswith("head") and "kernel" in path for path in plan.fresh)
    return names if is_loaded and plan.config.classes == len(names) else ()


def _set_resize(model: Model, method: str) -> None:
    """Makes the layer of a model of any size resize its positions by a method."""
    for layer in model.layers:
        if layer.name == POSITIONS.split("/")[0] and layer.resize != method:
            layer.resize = method
            # Functions that were traced before hold the old method.
            model.train_function = model.test_function = model.predict_function = None


def _settings(plan: Plan, origins: Mapping[str, str] | None) -> dict[str, tuple[Any, str]]:
    """Settings of the loaded model, and where each comes from."""
    config = plan.config
    stated = {field: setting.origin for field, setting in plan.checkpoint.settings.items()}
    # Whether images have no size of their own.
    is_open = isinstance(config, ViTConfig) and (config.any_size or config.takes_patches)
    found = {}
    for field in STATED:
        value = field_value(config, field, None)
        has_none = field in ("rope", "image_size") and value is None
        if field not in field_names(config) or has_none or (field == "image_size" and is_open):
            continue
        origin = "the model" if origins is None else origins.get(field, "the architecture")
        if field == "position_resize":
            value = plan.resize_method
            if plan.position_resize is None:
                origin = stated.get(field, "the file's project")
        found[field] = (value, origin)
    return found


def _differences(plan: Plan) -> Iterator[str]:
    """Settings of a model that was there before, where the file's project computes otherwise."""
    fields = ("gelu", "norm_epsilon", "pooling", "norm_after_pooling", "map_prefix_tokens", "rope")
    for field in fields:
        setting = plan.checkpoint.settings.get(field)
        ours = field_value(plan.config, field, None)
        headless = plan.config.classes is None and "pooling" in field
        is_open = headless or (ours is None and field != "rope")
        if setting is not None and not is_open and ours != setting.value:
            yield _difference(field, ours, setting)
    yield from _map_difference(plan)
    yield from _convolution_differences(plan)
    yield from _pixel_differences(plan)


def _difference(what: str, ours: Any, theirs: Setting) -> str:
    return f"{what} is {ours!r} in the model, {theirs.value!r} by {theirs.origin}"


def _map_difference(plan: Plan) -> Iterator[str]:
    """Heads of the pooling, which are those of the blocks where the file's project says nothing."""
    config, stated = plan.config, plan.checkpoint.settings.get("map_heads")
    if not isinstance(config, ViTConfig) or config.pooling not in ("map", "attention"):
        return
    if stated is None and config.block.rope is not None:
        return  # timm's models with rotary positions have heads of their own
    theirs = stated or Setting(None, _default(plan))
    ours, heads = (x or config.block.num_heads for x in (config.map_heads, theirs.value))
    if ours != heads:
        yield _difference("map_heads", ours, Setting(heads, theirs.origin))


def _convolution_differences(plan: Plan) -> Iterator[str]:
    """Standardisation of kernels and epsilon of group norms, in a ResNet or a stem."""
    config = plan.config
    part, where = (config.stem, "stem.") if isinstance(config, ViTConfig) else (config, "")
    if part is None:
        return
    theirs = plan.checkpoint.layout.standardization
    for field, value in zip(("standardization", "norm_epsilon"), theirs, strict=True):
        if getattr(part, field) != value:
            stated = Setting(value, _default(plan))
            yield _difference(f"{where}{field}", getattr(part, field), stated)


def _pixel_differences(plan: Plan) -> Iterator[str]:
    """Mean and standard deviation of the pixels, where the model includes its preprocessing."""
    config, stated = plan.config, plan.checkpoint.settings.get("preprocessing")
    if stated is None or not config.include_preprocessing:
        return
    channels = plan.checkpoint.sizes.get("channels", config.channels)
    if len(stated.value.mean) not in (1, config.channels) or channels > config.channels:
        return  # the file is adapted to other channels
    ours, theirs = (x.per_channel(config.channels) for x in (config.preprocessing, stated.value))
    for name, our, their in zip(("mean", "std"), ours, theirs, strict=True):
        if not np.allclose(our, their, rtol=1e-5, atol=0):
            yield _difference(f"preprocessing.{name}", our, Setting(their, stated.origin))


def _default(plan: Plan) -> str:
    return f"the default of {plan.checkpoint.layout.project}"


def _read(plan: Plan, path: str) -> np.ndarray:
    """Reads the value of a variable; a patch kernel is resized where it must be."""
    variable, rule, keys, shapes = plan.parts[path]
    arrays = [
        plan.checkpoint.read(key).reshape(shape) for key, shape in zip(keys, shapes, strict=True)
    ]
    array = rule.to_ours(arrays)
    if path == PATCHES and array.ndim == 2:
        array = array.reshape(variable.shape)
    if path == PATCHES and path in plan.resized:
        array = resize_patch_kernel(array, variable.shape[:2], plan.patch_method)
    if path.endswith(BIAS_TABLE) and plan.table is not None:
        grid = cast(ViTConfig, plan.config).grid
        array = resize_position_bias(array, plan.table.grid, grid, plan.resize_method)
    return array


def _adapt_channels(
    plan: Plan, arrays: dict[str, np.ndarray], preprocessing: Preprocessing | None
) -> None:
    """Adapts the patch kernel to the model's channels.

    Where they are fewer, it reads what each of the file's channels would be: `(x - m) / s` of the
    model becomes `(x - m_c) / s_c`, a factor of the kernel and a constant that is added to every
    patch.
    """
    kernel, config = arrays.get(PATCHES), plan.config
    if kernel is None or PATCHES not in plan.resized:
        return
    channels, old = plan.parts[PATCHES].variable.shape[2], kernel.shape[2]
    own = config.preprocessing
    if channels < old and preprocessing is not None and len(own.mean) == 1:
        mean, std = (np.array(x)[:, None] for x in preprocessing.per_channel(old))  # (C, 1)
        shift = adapt_channels(kernel * ((own.mean[0] - mean) / std), channels).sum(axis=(0, 1, 2))
        kernel = kernel * (own.std[0] / std)
        _add_to_patches(plan, arrays, shift.astype("float32"))
    arrays[PATCHES] = adapt_channels(kernel, channels).astype("float32")


def _add_to_patches(plan: Plan, arrays: dict[str, np.ndarray], shift: np.ndarray) -> None:
    """Adds a vector to every patch: in the bias of the patches, or else in their positions."""
    bias, config = "patch_encoder/projection/bias", cast(ViTConfig, plan.config)
    if bias in arrays:
        arrays[bias] = arrays[bias] + shift
    elif POSITIONS in arrays and not config.norm_patches:
        table = arrays[POSITIONS].copy()
        table[:, table.shape[1] - config.grid[0] * config.grid[1] :] += shift
        arrays[POSITIONS] = table
    elif np.abs(shift).max() > 1e-6 * np.abs(arrays[PATCHES]).max():
        raise CheckpointMismatchError(
            f"{plan.checkpoint.file.path} has other means for each channel, and neither a bias nor "
            "positions of patches that can hold their difference for images of fewer channels. "
            "Pass preprocessing=keras_vit.Preprocessing(mean, std) of your images."
        )


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapts a patch kernel to another number of channels.

    For one channel the kernels of all are summed, so that a grey image has the same output as
    its colour version. For more they are repeated, and scaled to keep the size of the output.

    Args:
        kernel: float array of shape `(rows, columns, C, D)`.
        channels: New number of channels.

    Returns:
        float32 array of shape `(rows, columns, channels, D)`.
    """
    old = kernel.shape[2]
    if old == channels:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    kernel = np.tile(kernel, (1, 1, -(-channels // old), 1))[:, :, :channels]
    return (kernel * (old / channels)).astype("float32")


def _place_tokens(plan: Plan, arrays: dict[str, np.ndarray]) -> None:
    """Resizes positions to the model's grid, and adds or removes the rows of tokens."""
    if plan.table is None or POSITIONS not in arrays:
        return
    num_tokens, grid = plan.table
    config = cast(ViTConfig, plan.config)  # a ResNet has no positions
    table = arrays[POSITIONS]  # (1, num_tokens + N, D)
    rows, patches = table[:, :num_tokens], table[:, num_tokens:]
    wanted = config.num_class_tokens if config.position_on_class_token else 0
    if num_tokens > wanted:  # only the sum of a token and its position counts
        _add_rows(plan, arrays, rows[:, wanted:], wanted)
        rows = rows[:, :wanted]
    elif num_tokens < wanted:
        rows = np.zeros((1, wanted, table.shape[-1]), "float32")
        plan.resized.setdefault(POSITIONS, "zero rows for the class token")
    if grid != config.grid:
        stated = dataclasses.replace(config, position_resize=plan.resize_method)
        patches = resize_positions(patches, grid, config.grid, stated.learned_resize)
    arrays[POSITIONS] = np.concatenate([rows, patches], axis=1) if wanted else patches


def _add_rows(plan: Plan, arrays: dict[str, np.ndarray], rows: np.ndarray, start: int) -> None:
    """Adds positions to tokens; the first row is that of token number `start`."""
    number = 0
    for path in _TOKENS:
        if path not in arrays:
            continue
        count = arrays[path].shape[1]
        first = max(number, start)
        if first < number + count:
            token = arrays[path].copy()
            token[:, first - number :] += rows[:, first - start : number + count - start]
            arrays[path] = token
            plan.resized[path] = "plus its row of the position embedding"
        number += count


def _check_finite(plan: Plan, arrays: dict[str, np.ndarray]) -> None:
    """Checks resized arrays: a sum or an interpolation of finite values can overflow."""
    for path in plan.resized:
        if not np.isfinite(arrays[path]).all():
            raise CheckpointMismatchError(
                f"{path} is not finite after it was resized: the values in "
                f"{plan.checkpoint.file.path} are too large. Fetch the file again."
            )


def _fresh_value(path: str, variable: keras.Variable, plan: Plan) -> np.ndarray:
    """Initial value of a variable of the head: zero, as in the official code."""
    if path.startswith("pre_logits/kernel"):
        return variable.numpy()
    is_new = path.startswith("head") and path.replace("bias", "kernel") not in plan.parts
    bias = plan.config.head_bias if is_new and path.endswith("bias") else 0.0
    return np.full(variable.shape, bias, "float32")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if not isinstance(value, Preprocessing):
        return str(value)
    crop = "squashed" if value.crop_ratio is None else f"crop {value.crop_ratio:.4g}"
    mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (value.mean, value.std))
    return f"mean {mean}; std {std}; {value.interpolation}, {crop}"
