"""Checkpoints of Image GPT: TensorFlow's of the official code, and those of transformers."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_vit.errors import CheckpointError, CheckpointMismatchError, needing_tensorflow
from keras_vit.files import write_atomically, write_text
from keras_vit.reading import is_regular, read_json, refusing
from keras_vit.weights.array_file import ArrayFile, Entry
from keras_vit.weights.formats import open_arrays
from keras_vit.weights.load import LoadReport
from keras_vit.weights.save import Sized, write_safetensors

if TYPE_CHECKING:
    from keras_vit.runtime.model import Model

Arrays = list[np.ndarray]


class _Rule(NamedTuple):
    """A weight in a file: our path, the file's names, shapes there, and from there."""

    path: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    read: Callable[[Arrays], np.ndarray] = lambda arrays: arrays[0]


class _Sizes(NamedTuple):
    """Sizes of a model: width, blocks, heads, pixels, colours, and whether it has a start token."""

    width: int
    depth: int
    heads: int
    pixels: int
    colors: int
    starts: bool


def load_image_gpt(model: Model, path: str | os.PathLike[str]) -> LoadReport:
    """Loads a published checkpoint into an Image GPT, completely or not at all.

    Args:
        model: A model of `keras_vit.image_gpt.build_image_gpt`.
        path: A TensorFlow checkpoint of the official code, by its prefix (`model.ckpt-1000000`), or
            the `.safetensors` file of transformers' `ImageGPTForCausalImageModeling` or
            `ImageGPTModel`. A `config.json` in its folder is checked, too.

    Returns:
        A `LoadReport`, which the model keeps as `model.load_report`. The palette is not part of the
        file: the official one is `kmeans_centers.npy`, that of transformers is in
        `preprocessor_config.json`, and `build_image_gpt` takes both.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is damaged.
        CheckpointMismatchError: If it does not fit the model; lists all that does not.

    Example:

    >>> config = keras_vit.image_gpt.IMAGE_GPT_SIZES["S"]
    >>> model = keras_vit.image_gpt.build_image_gpt(config, "kmeans_centers.npy")  # doctest: +SKIP
    >>> keras_vit.image_gpt.load_image_gpt(model, "igpt-s/model.ckpt-1000000")  # doctest: +SKIP
    """
    path = pathlib.Path(path)
    sizes = _sizes_of(model)
    official = path.with_name(f"{path.name}.index").exists()
    with (_open_tensorflow if official else open_arrays)(path) as file:
        shapes = {name: entry.shape for name, entry in file.entries.items()}
        prefix = "" if "wte.weight" in shapes else "transformer."
        rules = list(_official_rules(sizes) if official else _transformers_rules(sizes, prefix))
        fresh = [rule for rule in rules if prefix == "" and rule.names == ("lm_head.weight",)]
        rules = [rule for rule in rules if rule not in fresh]
        wanted = {
            name: s for rule in rules for name, s in zip(rule.names, rule.shapes, strict=True)
        }
        problems = [f"{name} is missing" for name in wanted if name not in shapes]
        problems += [
            f"{name} has shape {shapes[name]}, and the model needs {shape}"
            for name, shape in wanted.items()
            if name in shapes and shapes[name] not in (shape, (1, *shape))
        ]
        unused = [name for name in shapes if name not in wanted]
        left_out = [name for name in unused if re.search(_NOT_OURS[official], name)]
        biases = [name for name in unused if re.search(r"c_(attn|proj|fc)\.bias$", name)]
        problems += [f"{name} is not zero" for name in biases if file.read(name).any()]
        problems += [f"{name} is unknown" for name in unused if name not in {*left_out, *biases}]
        problems += [] if official else _config_problems(path.parent / "config.json", sizes)
        if problems:
            lines = "".join(f"\n  {problem}" for problem in problems)
            raise CheckpointMismatchError(
                f"{path} does not fit {model.name!r}, and nothing was loaded:{lines}\nBuild the "
                "model with the sizes of the file, such as IMAGE_GPT_SIZES['S']."
            )
        values = {
            rule.path: rule.read(
                [
                    file.read(name).reshape(s)
                    for name, s in zip(rule.names, rule.shapes, strict=True)
                ]
            )
            for rule in rules
        }
    variables = {variable.path: variable for variable in model.weights}
    for key, value in values.items():
        variables[key].assign(value.reshape(variables[key].shape))
    layout = "official Image GPT" if official else "transformers Image GPT"
    model.load_report = LoadReport(
        os.fspath(path), layout, tuple(values), {}, tuple(r.path for r in fresh), tuple(left_out)
    )
    return model.load_report


def save_image_gpt(model: Model, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes an Image GPT in the form of transformers, which `from_pretrained` reads.

    Args:
        model: A model of `keras_vit.image_gpt.build_image_gpt` for square images, without
            `mask_rate`.
        folder: Folder for `model.safetensors`, `config.json` and `preprocessor_config.json`, which
            holds the palette.

    Returns:
        The folder.

    Raises:
        ValueError: If transformers has no such model.
    """
    sizes = _sizes_of(model)
    height, width, channels = model.inputs[0].shape[1:]
    if not sizes.starts or height != width or channels != 3:
        raise ValueError(
            "transformers has Image GPT for square images of three channels, without `mask_rate`. "
            f"Received: {model.name!r} for images of {height} x {width} x {channels}, "
            f"{'without' if sizes.starts else 'with'} `mask_rate`."
        )
    weights = {variable.path: np.asarray(variable.numpy(), "float32") for variable in model.weights}
    embeddings = [weights["token_embedding/embeddings"], weights["start_token/token"][0]]
    arrays = {"transformer.wte.weight": np.concatenate(embeddings)}
    for rule in _transformers_rules(sizes, "transformer."):
        if rule.path in ("token_embedding/embeddings", "start_token/token"):
            continue
        value = weights[rule.path]
        arrays[rule.names[0]] = value.T if rule.names == ("lm_head.weight",) else value.reshape(
            rule.shapes[0])  # fmt: skip
        if re.search(r"c_(attn|proj|fc)\.weight$", rule.names[0]):
            bias = rule.names[0].replace(".weight", ".bias")
            arrays[bias] = np.zeros(value.shape[1], "float32")
    config: dict[str, Any] = {
        "architectures": ["ImageGPTForCausalImageModeling"],
        "model_type": "imagegpt",
    }
    config |= _config_of(sizes) | {"vocab_size": sizes.colors + 1}
    config |= {"n_positions": sizes.pixels, "n_embd": sizes.width, "n_layer": sizes.depth}
    processor = {
        "image_processor_type": "ImageGPTImageProcessor",
        "size": {"height": height, "width": width},
        "resample": 2,
        "clusters": weights["palette/colors"].tolist(),
    }
    folder = pathlib.Path(folder)
    sized: dict[str, Sized] = {
        name: (x.shape, partial(np.asarray, x)) for name, x in arrays.items()
    }
    target = folder / "model.safetensors"
    with write_atomically(target, replace=True) as unfinished, open(unfinished, "wb") as stream:
        write_safetensors(stream, sized)
    for name, facts in (("config", config), ("preprocessor_config", processor)):
        write_text(folder / f"{name}.json", json.dumps(facts, indent=2) + "\n")
    return folder


# Arrays that models of this package do not have: the step and states of the optimizer and the
# classifier's matrix in official files, masks that older versions of transformers stored.
_NOT_OURS = {True: r"^(?!model/)|^model/clf/|/Adam(_\d)?$", False: r"\.attn\.(masked_)?bias$"}


def _sizes_of(model: Model) -> _Sizes:
    names = [layer.name for layer in model.layers]
    if "palette" not in names or "pixel_logits" not in names:
        raise ValueError(
            "Checkpoints of Image GPT are for models of `keras_vit.image_gpt.build_image_gpt`. "
            f"Received: {model!r}."
        )
    colors, width = model.get_layer("token_embedding").embeddings.shape
    depth = sum(name.startswith("block_") for name in names)
    heads = model.get_layer("block_0").options.num_heads
    pixels = model.get_layer("position_embedding").embedding.shape[1]
    return _Sizes(width, depth, heads, pixels, colors, "start_token" in names)


def _official_rules(sizes: _Sizes) -> Iterator[_Rule]:
    """Names and shapes of `model.py` in https://github.com/openai/image-gpt."""
    D, heads = sizes.width, (sizes.heads, sizes.width // sizes.heads, sizes.width)

    def matrix(arrays: Arrays) -> np.ndarray:
        return np.concatenate([x.reshape(D, D).T for x in arrays], axis=1)  # (D, 3 D)

    yield _Rule("token_embedding/embeddings", ("model/wte",), ((sizes.colors, D),))
    yield _Rule("position_embedding/embedding", ("model/wpe",), ((sizes.pixels, D),))
    if sizes.starts:
        yield _Rule("start_token/token", ("model/sos",), ((D,),))
    for index in range(sizes.depth):
        ours, theirs = f"block_{index}", f"model/h{index}"
        names = tuple(f"{theirs}/attn/{part}_proj" for part in "qkv")
        yield _Rule(f"{ours}/attention_norm/gamma", (f"{theirs}/ln_1/g",), ((D,),))
        yield _Rule(f"{ours}/attention/qkv/kernel", names, (heads,) * 3, matrix)
        yield _Rule(f"{ours}/attention/output/kernel", (f"{theirs}/attn/c_proj",), (heads,))
        yield _Rule(f"{ours}/mlp_norm/gamma", (f"{theirs}/ln_2/g",), ((D,),))
        yield _Rule(f"{ours}/mlp/hidden/kernel", (f"{theirs}/mlp/c_fc/w",), ((D, 4 * D),))
        yield _Rule(f"{ours}/mlp/output/kernel", (f"{theirs}/mlp/c_proj/w",), ((4 * D, D),))
    yield _Rule("encoder_norm/gamma", ("model/ln_f/g",), ((D,),))
    yield _Rule("pixel_logits/kernel", ("model/wtet",), ((sizes.colors, D),), lambda x: x[0].T)


def _transformers_rules(sizes: _Sizes, prefix: str) -> Iterator[_Rule]:
    """Names and shapes of transformers; the start token is the last row of the embeddings."""
    D, embeddings = sizes.width, ((sizes.colors + 1, sizes.width),)
    wte = (f"{prefix}wte.weight",)
    yield _Rule("token_embedding/embeddings", wte, embeddings, lambda x: x[0][:-1])
    yield _Rule("start_token/token", wte, embeddings, lambda x: x[0][-1:])
    yield _Rule("position_embedding/embedding", (f"{prefix}wpe.weight",), ((sizes.pixels, D),))
    for index in range(sizes.depth):
        ours, theirs = f"block_{index}", f"{prefix}h.{index}"
        for path, name, shape in (
            ("attention_norm/gamma", "ln_1", (D,)),
            ("attention/qkv/kernel", "attn.c_attn", (D, 3 * D)),
            ("attention/output/kernel", "attn.c_proj", (D, D)),
            ("mlp_norm/gamma", "ln_2", (D,)),
            ("mlp/hidden/kernel", "mlp.c_fc", (D, 4 * D)),
            ("mlp/output/kernel", "mlp.c_proj", (4 * D, D)),
        ):
            yield _Rule(f"{ours}/{path}", (f"{theirs}.{name}.weight",), (shape,))
    yield _Rule("encoder_norm/gamma", (f"{prefix}ln_f.weight",), ((D,),))
    yield _Rule("pixel_logits/kernel", ("lm_head.weight",), ((sizes.colors, D),), lambda x: x[0].T)


def _config_of(sizes: _Sizes) -> dict[str, Any]:
    """Keys of `config.json` that shapes do not tell."""
    return {
        "n_head": sizes.heads,
        "activation_function": "quick_gelu",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": False,
    }


def _config_problems(path: pathlib.Path, sizes: _Sizes) -> list[str]:
    if not path.exists():
        return []
    with refusing(path, kind=CheckpointError):
        found = dict(read_json(path))
    return [
        f"{path.name} says {key}={found[key]!r}, and the model computes {value!r}"
        for key, value in _config_of(sizes).items()
        if found.get(key, value) != value
    ]


def _open_tensorflow(path: pathlib.Path) -> ArrayFile:
    with needing_tensorflow("A checkpoint in TensorFlow's format"):
        import tensorflow as tf

    for part in path.parent.glob(f"{glob.escape(path.name)}.*"):
        if not is_regular(part):
            raise CheckpointError(f"{part} is no regular file, so it is not opened.")
    with refusing(path, kind=CheckpointError):
        reader = tf.train.load_checkpoint(os.fspath(path))
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    entries = {name: Entry(tuple(shape), dtypes[name].name) for name, shape in shapes.items()}
    return ArrayFile(path, "tensorflow", entries, reader.get_tensor, lambda: None)
