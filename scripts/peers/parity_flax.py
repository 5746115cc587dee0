"""Reference networks in Flax for the official files in `scripts/parity`.

They follow the papers and the names in the files, so that a file loads without changes. Attention,
norms and convolutions come from Flax and JAX, as in the official code. That code cannot be
installed as a package, and none of it is here.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import flax
import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

from scripts.peers.parity_answers import answer_requests

# How each generation of names numbers a block's attention, second norm and MLP.
NUMBERS = {"official": (1, 2, 3), "big_vision": (0, 1, 0)}


class Mlp(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x):
        y = nn.gelu(nn.Dense(self.hidden, name="Dense_0")(x), approximate=True)
        return nn.Dense(x.shape[-1], name="Dense_1")(y)


class Block(nn.Module):
    heads: int
    hidden: int
    numbers: tuple[int, int, int]

    @nn.compact
    def __call__(self, x):
        attention, norm, mlp = self.numbers
        y = nn.LayerNorm(name="LayerNorm_0")(x)
        name = f"MultiHeadDotProductAttention_{attention}"
        x = x + nn.MultiHeadDotProductAttention(self.heads, name=name)(y, y)
        y = nn.LayerNorm(name=f"LayerNorm_{norm}")(x)
        return x + Mlp(self.hidden, name=f"MlpBlock_{mlp}")(y)


class Positions(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + self.param("pos_embedding", nn.initializers.zeros, (1, *x.shape[1:]))


class Encoder(nn.Module):
    depth: int
    heads: int
    hidden: int
    layout: str

    @nn.compact
    def __call__(self, x):
        if self.layout == "official":  # class token included
            x = Positions(name="posembed_input")(x)
        for i in range(self.depth):
            block = Block(self.heads, self.hidden, NUMBERS[self.layout], name=f"encoderblock_{i}")
            x = block(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class MapHead(nn.Module):
    heads: int
    hidden: int

    @nn.compact
    def __call__(self, x):
        probe = self.param("probe", nn.initializers.zeros, (1, 1, x.shape[-1]))
        probe = jnp.tile(probe, (len(x), 1, 1))
        attention = nn.MultiHeadDotProductAttention(
            self.heads, name="MultiHeadDotProductAttention_0"
        )
        x = attention(probe, x)
        x = x + Mlp(self.hidden, name="MlpBlock_0")(nn.LayerNorm(name="LayerNorm_0")(x))
        return x[:, 0]


class StandardConv(nn.Module):
    """A convolution by a kernel that is standardised first, `form` as the project has it."""

    features: int
    size: int
    stride: int = 1
    padding: str | int = "SAME"
    form: str = "std"

    @nn.compact
    def __call__(self, x):
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.zeros, shape)
        kernel = kernel - kernel.mean((0, 1, 2))
        if self.form == "std":
            kernel = kernel / (kernel.std((0, 1, 2)) + 1e-5)
        else:
            kernel = kernel / jnp.sqrt(kernel.var((0, 1, 2)) + 1e-10)
        padding: Any = self.padding
        if not isinstance(padding, str):
            padding = [(padding, padding)] * 2
        strides = (self.stride, self.stride)
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, strides, padding, dimension_numbers=dimensions
        )


class HybridUnit(nn.Module):
    """Convolution, then norm, then ReLU: the units under a hybrid."""

    filters: int
    stride: int

    @nn.compact
    def __call__(self, x):
        def step(x, features, size, stride, suffix):
            x = StandardConv(features, size, stride, name=f"conv{suffix}")(x)
            return nn.GroupNorm(32, name=f"gn{suffix}")(x)

        shortcut = x
        if self.stride > 1 or x.shape[-1] != 4 * self.filters:
            shortcut = step(x, 4 * self.filters, 1, self.stride, "_proj")
        x = nn.relu(step(x, self.filters, 1, 1, "1"))
        x = nn.relu(step(x, self.filters, 3, self.stride, "2"))
        return nn.relu(shortcut + step(x, 4 * self.filters, 1, 1, "3"))


class BitUnit(nn.Module):
    """Norm, then ReLU, then convolution: the units of a BiT."""

    filters: int
    stride: int

    @nn.compact
    def __call__(self, x):
        def norm(x, number):
            return nn.relu(nn.GroupNorm(32, epsilon=1e-5, name=f"gn{number}")(x))

        def conv(x, features, size, stride, suffix):
            padding = (size - 1) // 2
            name = f"conv{suffix}"
            return StandardConv(features, size, stride, padding, "variance", name=name)(x)

        y, shortcut = norm(x, 1), x
        if self.stride > 1 or x.shape[-1] != 4 * self.filters:
            shortcut = conv(y, 4 * self.filters, 1, self.stride, "_proj")
        y = norm(conv(y, self.filters, 1, 1, "1"), 2)
        y = norm(conv(y, self.filters, 3, self.stride, "2"), 3)
        return shortcut + conv(y, 4 * self.filters, 1, 1, "3")


class Stage(nn.Module):
    unit: type[nn.Module]
    units: int
    filters: int
    stride: int
    digits: int = 1

    @nn.compact
    def __call__(self, x):
        for number in range(1, self.units + 1):
            stride = self.stride if number == 1 else 1
            x = self.unit(self.filters, stride, name=f"unit{number:0{self.digits}}")(x)
        return x


class Vit(nn.Module):
    """The transformer, under a ResNet where `stages` is not None."""

    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    classes: int | None = 1000
    layout: str = "official"
    pooling: str = "token"
    pre_logits: int | None = None
    stages: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x):
        if self.stages is not None:
            x = nn.relu(
                nn.GroupNorm(32, name="gn_root")(StandardConv(64, 7, 2, name="conv_root")(x))
            )
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for i, units in enumerate(self.stages):
                stride = 1 if i == 0 else 2
                x = Stage(HybridUnit, units, 64 * 2**i, stride, name=f"block{i + 1}")(x)
        patch = (self.patch, self.patch)
        x = nn.Conv(self.width, patch, strides=patch, padding="VALID", name="embedding")(x)
        x = x.reshape(len(x), -1, self.width)
        if self.layout == "big_vision":
            x = x + self.param("pos_embedding", nn.initializers.zeros, (1, *x.shape[1:]))
        if self.pooling == "token":
            token = self.param("cls", nn.initializers.zeros, (1, 1, self.width))
            x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], axis=1)
        x = Encoder(self.depth, self.heads, self.hidden, self.layout, name="Transformer")(x)
        if self.pooling == "map":
            x = MapHead(self.heads, self.hidden, name="MAPHead_0")(x)
        else:
            x = x[:, 0] if self.pooling == "token" else x.mean(1)
        if self.pre_logits:
            x = nn.tanh(nn.Dense(self.pre_logits, name="pre_logits")(x))
        return nn.Dense(self.classes, name="head")(x) if self.classes else x


class Bit(nn.Module):
    """The ResNet of its own, in the names that its JAX code has."""

    stages: tuple[int, ...]
    classes: int = 1000

    @nn.compact
    def __call__(self, x):
        x = StandardConv(64, 7, 2, 3, "variance", name="conv_root")(x)
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # zeros, which may be the largest
        x = nn.max_pool(x, (3, 3), (2, 2), "VALID")
        for i, units in enumerate(self.stages):
            stride = 1 if i == 0 else 2
            x = Stage(BitUnit, units, 64 * 2**i, stride, digits=2, name=f"block{i + 1}")(x)
        x = nn.relu(nn.GroupNorm(32, epsilon=1e-5, name="norm")(x)).mean((1, 2))
        return nn.Dense(self.classes, name="head")(x)


def bit_key(name: str) -> str:
    """A name of `Bit` as the files of gs://bit_models have it."""
    parts = {str(number): letter for number, letter in zip((1, 2, 3), "abc", strict=True)}
    name = re.sub(r"conv_root", "root_block/standardized_conv2d", name)
    name = re.sub(r"conv_proj", "a/proj/standardized_conv2d", name)
    name = re.sub(r"\bconv([123])\b", lambda found: f"{parts[found[1]]}/standardized_conv2d", name)
    name = re.sub(r"\bgn([123])\b", lambda found: f"{parts[found[1]]}/group_norm", name)
    name = re.sub(r"^norm", "group_norm", name)
    name = re.sub(r"^head", "head/conv2d", name)
    if "group_norm" in name:
        name = name.replace("scale", "gamma").replace("bias", "beta")
    return f"resnet/{name}"


def build(case: dict) -> tuple[nn.Module, dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]]:
    """The network of a case, and for each parameter its name in the file and both shapes."""
    options = dict(case["options"])
    if options.get("stages") is not None:
        options["stages"] = tuple(options["stages"])
    kinds: dict[str, Any] = {"vit": Vit, "bit": Bit}
    model = kinds[case["model"]](**options)
    images = jnp.zeros((1, *case["images"][1:]))
    tree = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    table = {}
    for name, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items():
        key, shape = name, leaf.shape
        if case["model"] == "bit":
            key = bit_key(name)
            shape = (1, 1, *shape) if name == "head/kernel" else shape
        elif re.search(r"/gn(\d|_proj)/", name):
            shape = (1, 1, 1, *shape)
        elif case["options"].get("layout") == "big_vision":
            key = f"params/{name}"
        table[name] = (key, shape, leaf.shape)
    return model, table


def fill(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Random weights that hide nothing: every branch, bias and place counts."""
    noise = generator.standard_normal(shape, "float32")
    if name.endswith("scale"):
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith(("cls", "pos_embedding", "probe")):
        return 0.5 * noise
    split = re.search(r"(query|key|value)/kernel", name)  # (D, heads, head_dim)
    inputs = shape[0] if split else np.prod(shape[:-1])
    return noise / np.float32(inputs**0.5)


def run(model: nn.Module, parameters: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    tree = flax.traverse_util.unflatten_dict(parameters, sep="/")
    return np.asarray(model.apply({"params": tree}, images))


def make(case: dict) -> dict:
    model, table = build(case)
    generator = np.random.default_rng(0)
    parameters = {name: fill(name, shape, generator) for name, (_, _, shape) in table.items()}
    arrays: dict = {key: parameters[name].reshape(shape) for name, (key, shape, _) in table.items()}
    np.savez(case["file"], **arrays)
    images = generator.uniform(-1, 1, case["images"]).astype("float32")
    np.save(case["images_file"], images)
    np.save(case["outputs_file"], run(model, parameters, images))
    return {"parameters": int(sum(array.size for array in arrays.values()))}


def check(case: dict) -> dict:
    model, table = build(case)
    with np.load(case["back"]) as file:
        found = {key: file[key].shape for key in file}
        wanted = {key: shape for key, shape, _ in table.values()}
        if found != wanted:
            wrong = sorted(map(str, set(found.items()) ^ set(wanted.items())))
            raise ValueError(f"The file is not what the network has: {wrong[:9]}")
        parameters = {name: file[key].reshape(shape) for name, (key, _, shape) in table.items()}
    np.save(case["outputs_file"], run(model, parameters, np.load(case["images_file"])))
    return {}


# Small checkpoints with the outputs of the official code itself, in tests/golden.
GOLDEN: dict[str, dict] = {
    "vit_token": {},
    "vit_pre_logits": {"pre_logits": 32},
    "vit_gap": {"pooling": "gap"},
    "hybrid_stem": {"patch": 4, "stages": ()},
    "hybrid_stages": {"patch": 1, "stages": (1, 2)},
}


def golden(case: dict) -> dict:
    """How far the networks here are from the official code, relative to its largest logit."""
    differences = {}
    folder = pathlib.Path(case["folder"])
    for name, options in GOLDEN.items():
        with np.load(folder / f"{name}.outputs.npz") as file:
            images, logits = file["images"], file["logits"]
        sizes: dict = {"patch": 8, "width": 32, "depth": 2, "heads": 4, "hidden": 64, "classes": 10}
        small = {"model": "vit", "options": {**sizes, **options}, "images": images.shape}
        model, table = build(small)
        with np.load(folder / f"{name}.checkpoint.npz") as file:
            parameters = {name: file[key].reshape(shape) for name, (key, _, shape) in table.items()}
        difference = np.abs(run(model, parameters, images) - logits).max()
        differences[name] = float(difference / np.abs(logits).max())
    return differences


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    answer_requests(
        {"make": make, "check": check, "golden": golden},
        {"jax": jax.__version__, "flax": flax.__version__},
    )
