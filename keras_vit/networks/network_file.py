"""Networks of transformers that are a Vision Transformer under a head of their own.

A vertical folder (`depth`, `detection`, `pose`, `segmentation`) builds each of them from the layers
of the Transformer; its head takes names of PyTorch's layers. `from_pretrained` finds the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np

from keras_vit.checks import check_positive
from keras_vit.config import IMAGENET_STATISTICS, Preprocessing, ViTConfig
from keras_vit.create import state_licence
from keras_vit.errors import CheckpointError, CheckpointMismatchError, listed
from keras_vit.families import keys
from keras_vit.layers.attention import SelfAttention
from keras_vit.pretrained import build_pretrained
from keras_vit.reading import parse_json, read_json
from keras_vit.runtime.model import Model
from keras_vit.runtime.private_names import flatten_layers
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.layout_search import find_file_layout
from keras_vit.weights.load import LoadReport
from keras_vit.weights.sidecar import CONFIG, PREPROCESSOR, Sidecar, read_network

ANY_SIZE = (None, None, 3)  # of images, where transformers takes any
_FILTERS = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow
_COUNTERS = ".num_batches_tracked"  # of PyTorch's batch norms, which nothing reads
# Licences by the addresses of published files.
_LICENCES = (
    (r"depth-anything/depth-anything-v2-.*(base|large)-hf", "CC-BY-NC-4.0"),
    (r"tue-mps/eomt-dinov3-", "DINOv3 License"),
    (r"tue-mps/", "MIT"),
    (r"depth-anything/|liheyoung/|intel/dpt-|facebook/dpt-|microsoft/beit-", "Apache-2.0"),
    (r"google/owl(vit|v2)-|roboflow/rf-detr-|hustvl/yolos-|usyd-community/vitpose-", "Apache-2.0"),
    (r"facebook/sam-vit-|zigeng/slimsam-", "Apache-2.0"),
)

# Layers whose outputs are classes, or joints.
_CLASS_LAYERS = ("segmentation_head", "class_head", "class_2", "pose_conv")

# A name in the layout of the Transformer, and how it is made: another name in the file, or a shape
# and a function that gives the array.
Names = Mapping[str, "str | tuple[tuple[int, ...], Callable[[], np.ndarray]]"]
Fit = Callable[[str, np.ndarray, tuple[int, ...]], np.ndarray]

# Arrays of a layer of PyTorch: the variable, and the axes of PyTorch's array in its order.
_LINEAR, _CONV, _DEPTHWISE = (1, 0), (2, 3, 1, 0), (2, 3, 0, 1)
_ARRAYS: dict[type, dict[str, tuple[str, tuple[int, ...]]]] = {
    keras.layers.Dense: {"weight": ("kernel", _LINEAR)},
    keras.layers.DepthwiseConv2D: {"weight": ("kernel", _DEPTHWISE)},
    keras.layers.Conv2D: {"weight": ("kernel", _CONV)},
    keras.layers.Conv2DTranspose: {"weight": ("kernel", _CONV)},
    keras.layers.LayerNormalization: {"weight": ("gamma", (0,)), "bias": ("beta", (0,))},
    keras.layers.BatchNormalization: {
        "weight": ("gamma", (0,)), "bias": ("beta", (0,)),
        "running_mean": ("moving_mean", (0,)), "running_var": ("moving_variance", (0,)),
    },
    SelfAttention: {
        "rel_pos_h": ("row_positions", (0, 1)), "rel_pos_w": ("column_positions", (0, 1)),
    },
}  # fmt: skip


@dataclasses.dataclass(eq=False)
class NetworkFile:
    """An open checkpoint of such a network.

    Args:
        file: The arrays.
        config: Content of `config.json`.
        processor: Content of `preprocessor_config.json`, empty without one.
        classes: Number of classes of a new head, `None` for those of the file.
        licence: Licence of the weights, if it is known.
        used: Names of the arrays that were read.
        loaded: Paths of the variables that were loaded.
        transformer: Configuration and layout of the Transformer, and names of its arrays in the
            file, for writing.
    """

    file: ArrayFile
    config: dict[str, Any]
    processor: dict[str, Any]
    classes: int | None = None
    licence: str | None = None
    used: set[str] = dataclasses.field(default_factory=set)
    loaded: list[str] = dataclasses.field(default_factory=list)
    transformer: dict[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, rules: keys.Rules) -> None:
        """Checks every key of `config.json`: see `keras_vit.families.keys`.

        Raises:
            CheckpointError: If the network would compute something else; lists all.
        """
        sidecar = Sidecar()
        sidecar.read(self.config, {**keys.COMMON, **rules}, CONFIG)
        if sidecar.refusals:
            lines = "".join(f"\n  {each.text}" for each in sidecar.refusals)
            raise CheckpointError(
                f"{self.file.path} asks for what no network of this package computes, and nothing "
                f"was loaded:{lines}"
            )

    def after(self, prefix: str) -> dict[str, str]:
        """Names that begin with a prefix, by what follows it."""
        return {name[len(prefix) :]: name for name in self.file.entries if name.startswith(prefix)}

    def read(self, name: str) -> np.ndarray:
        """An array as float32, which counts as used."""
        if name not in self.file.entries:
            raise CheckpointMismatchError(
                f"{self.file.path} does not fit {self.architecture}: {name} is missing."
            )
        self.used.add(name)
        return self.file.read(name)

    def renamed(self, names: Names) -> ArrayFile:
        """Arrays under other names; those of the file count as used."""
        self.used.update(source for source in names.values() if isinstance(source, str))
        entries = {
            ours: self.file.entries[x] if isinstance(x, str) else Entry(x[0], "float32")
            for ours, x in names.items()
        }

        def read(ours: str) -> np.ndarray:
            source = names[ours]
            return self.file.read_raw(source) if isinstance(source, str) else source[1]()

        return ArrayFile(self.file.path, self.file.kind, entries, read, lambda: None)

    def backbone(
        self,
        names: Names,
        config: dict[str, Any],
        input_shape: tuple[int | None, int | None, int] | None = None,
        include_preprocessing: bool = True,
        **options: Any,
    ) -> Model:
        """Builds the Transformer and loads it.

        Args:
            names: The arrays of the Transformer by the names of its layout.
            config: Its configuration, as a `config.json` of its own.
            input_shape: As for `from_pretrained`.
            include_preprocessing: As for `from_pretrained`.
            **options: Fields of `ViTConfig`.
        """
        view = self.renamed(names)
        checkpoint = Checkpoint(view, find_file_layout(view, ""))
        checkpoint.sidecar = read_network(config, checkpoint.layout.name)
        checkpoint.sidecar.set("preprocessing", self.preprocessing, "preprocessor_config.json")
        model = build_pretrained(
            checkpoint,
            include_top=False,
            input_shape=input_shape,
            include_preprocessing=include_preprocessing,
            **options,
        )
        self.loaded += model.load_report.loaded
        self.transformer = {
            "fields": cast("ViTConfig", model.config).to_dict(),
            "layout": checkpoint.layout.name,
            "names": {ours: each for ours, each in names.items() if isinstance(each, str)},
        }
        return model

    @property
    def preprocessing(self) -> Preprocessing:
        """Resampling, mean and deviation; ImageNet's where `preprocessor_config.json` says none."""
        factor = self.processor.get("rescale_factor", 1 / 255)
        scale = 1 / factor if self.processor.get("do_rescale", True) else 1.0
        found = (self.processor.get(key) for key in ("image_mean", "image_std"))
        mean, std = (each and tuple(scale * value for value in each) for each in found)
        if not self.processor.get("do_normalize", True):
            mean, std = (0.0,), (scale,)
        how = _FILTERS.get(self.processor.get("resample", 3), "bicubic")
        ours = IMAGENET_STATISTICS
        return Preprocessing(mean or ours.mean, std or ours.std, how, library="transformers")

    def finish(
        self,
        model: Model,
        heads: Mapping[str, str],
        unused: tuple[str, ...] = (),
        others: Sequence[Model] = (),
        fit: Fit = lambda name, array, shape: array,
    ) -> Model:
        """Loads the head, and checks that nothing of the file is left.

        Args:
            model: The whole network.
            heads: Paths of layers, and what stands before their arrays in the file; of layers that
                the network has not, nothing is read.
            unused: Beginnings of names that are left out: heads for training alone.
            others: Further models of the same file.
            fit: Makes an array of the wanted shape, if it depends on the size of images, of a name
                in the file, its array and that shape.

        Returns:
            The model, with a `load_report`, `class_names` where the outputs are classes, and
            `published`, from which its files are written.

        Raises:
            CheckpointMismatchError: If arrays are missing, of another shape, or not used.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        problems, values, fresh = [], [], []
        layers = layers_by_path(model, *others)
        for name in heads.keys() & layers:
            for key, variable, axes in head_arrays(layers[name], heads[name]):
                if key not in self.file.entries:
                    problems.append(f"{key} is missing")
                    continue
                shape = tuple(variable.shape)
                array = fit(key, self.read(key), shape)
                array = array.transpose(axes) if axes else array
                if array.shape == shape or (not axes and array.size == np.prod(shape, dtype=int)):
                    values.append((variable, array.reshape(shape)))
                    shapes |= {key: array.shape} if array.shape != shape else {}
                elif self.classes and _is_of_classes(variable) and array.shape[:-1] == shape[:-1]:
                    fresh.append(variable.path)
                else:
                    found = self.file.entries[key].shape
                    problems.append(f"{key} has the shape {found}, and {variable.path} {shape}")
        rest = [x for x in self.file.entries if x not in self.used and not x.endswith(_COUNTERS)]
        left_out = tuple(name for name in rest if name.startswith(unused or "\0"))
        problems += [f"{name} is of no layer" for name in rest if name not in left_out]
        if problems:
            raise CheckpointMismatchError(
                f"{self.file.path} does not fit {self.architecture}, and nothing of its head was "
                f"loaded: {listed(problems, 10)}."
            )
        for variable, array in values:
            variable.assign(array)
            self.loaded.append(variable.path)
        facts = {"config": self.config, "processor": self.processor, "heads": dict(heads)}
        facts |= {"transformer": self.transformer, "shapes": shapes}
        model.published = parse_json(json.dumps(facts))  # as `.keras` files keep it
        if self.config.get("id2label"):
            model.class_names = self.class_names
        model.load_report = LoadReport(
            str(self.file.path), self.architecture, tuple(self.loaded), fresh=tuple(fresh),
            left_out=left_out, licence=self.licence,
        )  # fmt: skip
        state_licence(model, None)
        return model

    @property
    def architecture(self) -> str:
        """The class of transformers."""
        return str(self.config["architectures"][0])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in order; numbers where the file has none."""
        labels = self.config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        return tuple(str(labels[key]) for key in sorted(labels, key=int))


def stated_size(processor: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width that `preprocessor_config.json` states; without them, those of DPT.

    Raises:
        CheckpointError: If it states them in another way, which transformers refuses too.
    """
    size = processor.get("size", 384)
    if isinstance(size, dict) and {"height", "width"} - size.keys():
        raise CheckpointError(
            f"{PREPROCESSOR} must state height and width of the images. Received: size={size}. "
            'Write size={"height": ..., "width": ...} there.'
        )
    return (size["height"], size["width"]) if isinstance(size, dict) else (size, size)


def _is_of_classes(variable: keras.Variable) -> bool:
    return bool(variable.path.split("/")[-2].endswith(_CLASS_LAYERS))


def layers_by_path(*models: keras.Model) -> dict[str, keras.Layer]:
    """Layers of models, and layers inside of them, by their paths."""
    return {layer.path: layer for model in models for layer in flatten_layers(model)}


def head_arrays(
    layer: keras.Layer | keras.Variable, prefix: str
) -> list[tuple[str, keras.Variable, tuple[int, ...]]]:
    """Names of the arrays of a layer in PyTorch, its variables, and the order of their axes.

    A layer of this package with one weight is an array of its own; its axes are in one order. One
    with `parts` has weights and layers by their names in PyTorch.
    """
    if isinstance(layer, keras.Variable):
        return [(prefix, layer, ())]
    if hasattr(layer, "parts"):
        each = (head_arrays(part, prefix + name) for name, part in layer.parts.items())
        return [row for rows in each for row in rows]
    kind = next((kind for kind in type(layer).__mro__ if kind in _ARRAYS), None)
    if kind is None:
        (variable,) = layer.weights
        return [(prefix, variable, ())]
    found = []
    for part, (name, axes) in {"bias": ("bias", (0,)), **_ARRAYS[kind]}.items():
        variable = getattr(layer, name, None)
        if variable is not None:
            found.append((f"{prefix}{'' if prefix.endswith('_') else '.'}{part}", variable, axes))
    return found


def load_network(
    loader: str, path: pathlib.Path, address: str, name: str | None = None,
    classes: int | None = None, **options: Any,
) -> Model:  # fmt: skip
    """Loads a network: see `from_pretrained`.

    Args:
        loader: Module and function that builds it from a `NetworkFile` and the options.
        path: Its arrays, with `config.json` beside them.
        address: What the user named, for the licence.
        name: Name of the model.
        classes: Number of classes of a new head, or of joints.
        **options: As for `NetworkFile.backbone`.
    """
    module, _, function = loader.partition(":")
    load = getattr(importlib.import_module(f"keras_vit.{module}"), function)
    with open_network(path, address, classes) as file:
        model = load(file, **options)
    model.name = name or model.name
    return model


@contextlib.contextmanager
def open_network(
    path: pathlib.Path, address: str, classes: int | None = None
) -> Iterator[NetworkFile]:
    """Opens the file of a network: see `load_network`."""
    contents = (path.with_name(each) for each in (CONFIG, PREPROCESSOR))
    config, processor = (read_json(each) if each.exists() else {} for each in contents)
    if classes is not None:
        if "Depth" in config["architectures"][0]:
            raise ValueError(f"{path} predicts depth, and has no classes. Received: {classes=}.")
        check_positive("classes", classes)
        if classes != len(config.get("id2label") or "ab"):  # two without names, as in transformers
            stale = ("label2id", "num_labels", "edges")  # of other classes
            config = {key: value for key, value in config.items() if key not in stale}
            config["id2label"] = {str(index): f"LABEL_{index}" for index in range(classes)}
    known = (text for names, text in _LICENCES if re.match(f"hf://({names})", address.lower()))
    licence = next(known, config.get("license"))
    with open_arrays(path) as file:
        yield NetworkFile(file, config, processor, classes, licence)
