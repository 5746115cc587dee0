"""Masked autoencoder: a ViT that sees a quarter of the patches, and a decoder of the others."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_heads, check_positive
from keras_vit.config import ViTConfig
from keras_vit.errors import listed
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.float32 import Float32Policy, float32_dense
from keras_vit.layers.hidden_patches import HidePatches, PatchPixels
from keras_vit.layers.norm import make_norm
from keras_vit.layers.patches import PatchEncoder, PatchMask
from keras_vit.layers.tokens import AddPositionEmbedding
from keras_vit.models.graph import calls_of, find_blocks, find_layer, single_input, token_norm
from keras_vit.models.vit import build_vit, stream_policy
from keras_vit.networks.network_file import NetworkFile, open_network
from keras_vit.networks.saving import arrays_of_transformer, save_network
from keras_vit.pretrained import find_class
from keras_vit.resize import sincos_2d
from keras_vit.runtime.model import Model
from keras_vit.train.pixel_trainer import PixelTrainer, hidden_loss
from keras_vit.weights.save import file_arrays, find_layout
from keras_vit.weights.sidecar import CONFIG, PREPROCESSOR
from keras_vit.weights.sidecar_writing import describe

_CLASS = "ViTMAEForPreTraining"
# Layers of the decoder with names of their own in files.
_HEADS = {
    "decoder_embedding": "decoder.decoder_embed", "mask_token": "decoder.mask_token",
    "decoder_pixels": "decoder.decoder_pred",
}  # fmt: skip
# Beginnings of other names of the decoder, and of a Transformer with the same blocks. The first are
# what transformers 5 writes; it reads both.
_DECODER = {
    "decoder.decoder_encoder.layer.": "encoder.layer.", "decoder.decoder_layers.": "encoder.layer.",
    "decoder.decoder_norm.": "layernorm.",
    "decoder.decoder_pos_embed": "embeddings.position_embeddings",
}  # fmt: skip
# Keys of `config.json`, and the arguments of `build_masked_autoencoder`.
_KEYS = {
    "decoder_hidden_size": "decoder_width", "decoder_num_hidden_layers": "decoder_depth",
    "decoder_num_attention_heads": "decoder_heads", "decoder_intermediate_size": "decoder_mlp_dim",
    "mask_ratio": "mask_rate", "norm_pix_loss": "normalize_pixels",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "decoder_hidden_size": 512, "decoder_num_hidden_layers": 8, "decoder_num_attention_heads": 16,
    "decoder_intermediate_size": 2048, "mask_ratio": 0.75, "norm_pix_loss": False,
}  # fmt: skip
# Fields of `ViTConfig` that need all patches, or a grid of them, in the blocks.
_NEEDS_ALL = (
    "num_merged_tokens", "max_num_patches", "patch_dropout_rate", "any_size", "stem",
    "block_positions", "grid_attention", "post_norm",
)  # fmt: skip


class MaskedAutoencoder:
    """A ViT that learns from images without labels (https://arxiv.org/abs/2111.06377).

    The encoder sees the patches that are not hidden; a light decoder predicts the pixels of the
    others from them, and is left behind after training.

    Args:
        encoder: The ViT, a model of this package, to fine-tune or to take features from.
        model: The model to train with plain `compile(optimizer)` and `fit(images)`: from images
            `(B, H, W, C)`, of which it hides patches at random, to a dict of float32 `patches`, the
            predicted pixels of shape `(B, N, pixels * C)`, `targets` of the same shape, and `mask`
            of shape `(B, N)`: 1 where a patch is hidden. It shares the weights of the encoder.
        with_noise: The same from a dict of `images` and `noise`, which chooses the patches.
    """

    def __init__(self, encoder: Model, model: PixelTrainer, with_noise: Model):
        self.encoder = encoder
        self.model = model
        self.with_noise = with_noise

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that training changes: of a loaded file, all but the positions."""
        return self.model.trainable_variables

    def loss(self, images: Any, noise: Any) -> Any:
        """Mean squared error of the pixels of hidden patches, a differentiable scalar.

        Args:
            images: Float array of shape `(B, H, W, C)`, as the encoder takes it.
            noise: Float array of shape `(B, N)`: the patches of the smallest values are seen.
        """
        return hidden_loss(self.with_noise({"images": images, "noise": noise}))

    def reconstruct(self, images: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
        """Predicts pixels of patches.

        Args:
            images: As for `loss`.
            noise: As for `loss`.

        Returns:
            Predicted pixels, float32 of shape `(B, N, pixels * C)`, by row, column and channel, in
            the scale of normalised images or of normalised patches; and the mask, float32 of shape
            `(B, N)`: 1 where a patch was hidden.
        """
        outputs = self.with_noise.predict_on_batch({"images": images, "noise": noise})
        return outputs["patches"], outputs["mask"]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Writes a folder that `load_masked_autoencoder` and transformers load.

        Args:
            folder: Where to write `model.safetensors`, `config.json` and
                `preprocessor_config.json`.

        Raises:
            ValueError: If the folder has other files of these names, or transformers has no such
                encoder.
        """
        if self.model.published is None:
            self.model.published = _describe(self.encoder, self.model)
        facts = self.model.published["transformer"]["decoder"]
        values = {
            _plain_path(variable.path): variable
            for variable in self.model.variables
            if variable.path.startswith("decoder_")
        }
        arrays = arrays_of_transformer(facts, values)[0]
        return save_network(self.model, folder, more=arrays)


def build_masked_autoencoder(
    encoder: Model,
    decoder_width: int = 512,
    decoder_depth: int = 8,
    decoder_heads: int = 16,
    decoder_mlp_dim: int | None = None,
    mask_rate: float = 0.75,
    normalize_pixels: bool = True,
    seed: int | None = None,
) -> MaskedAutoencoder:
    """Builds a masked autoencoder (https://arxiv.org/abs/2111.06377) around a ViT.

    Positions of the decoder are fixed sines and cosines, as in the paper. The encoder keeps its
    own, which train where they are learned: `position_embedding="sincos_2d"` makes fixed ones.

    Args:
        encoder: A ViT for images of one size, with learned positions or fixed ones. Its head, if
            any, takes no part.
        decoder_width: Dimension of the decoder's tokens.
        decoder_depth: Blocks of the decoder.
        decoder_heads: Attention heads of the decoder.
        decoder_mlp_dim: Hidden units of its MLPs; `None` is 4 times the width.
        mask_rate: Share of the patches that are hidden, in (0, 1).
        normalize_pixels: Whether to predict patches of mean 0 and variance 1.
        seed: Seed of the choice of patches; `None` takes one from Keras's global generator.

    Returns:
        A `MaskedAutoencoder`.

    Raises:
        ValueError: If an argument is out of its range, or the encoder needs all patches: it merges
            them, or has positions or windows in its blocks.

    Example:

    >>> vit = keras_vit.ViTTi16(weights=None, include_top=False, input_shape=(64, 64, 3))
    >>> autoencoder = keras_vit.self_supervised.build_masked_autoencoder(
    ...     vit, decoder_width=96, decoder_depth=2, decoder_heads=3
    ... )
    >>> autoencoder.model.compile(keras.optimizers.AdamW(1e-4))
    >>> autoencoder.model.fit(images, epochs=2)  # doctest: +SKIP
    """
    check_positive("decoder_depth", decoder_depth)
    check_heads(decoder_width, decoder_heads)
    config = _check(encoder)
    kept = int(config.num_patches * (1 - mask_rate))
    if not 0 < kept < config.num_patches:
        raise ValueError(
            "`mask_rate` must leave some of the patches, and hide some. Received: "
            f"mask_rate={mask_rate}, and an encoder of {config.num_patches} patches."
        )
    calls, (_, blocks), norm = calls_of(encoder), find_blocks(encoder), token_norm(encoder)
    pixels = calls[find_layer(encoder, PatchEncoder)].input_tensors[0]
    tokens = calls[blocks[0]].input_tensors[0]
    prefix = config.num_prefix_tokens
    hide = HidePatches(kept, prefix, seed, name="hide_patches")
    embed = keras.layers.Dense(decoder_width, dtype=stream_policy(), name="decoder_embedding")
    restore = PatchMask(dtype=stream_policy(), name="mask_token")
    positions = AddPositionEmbedding(
        config.grid, prefix, trainable=False, name="decoder_position_embedding"
    )
    options = {"num_heads": decoder_heads, "mlp_dim": decoder_mlp_dim or 4 * decoder_width}
    options |= {key: vars(config.block)[key] for key in ("norm_epsilon", "gelu", "without_bias")}
    decoder = [
        TransformerBlock(**options, name=f"decoder_block_{index}") for index in range(decoder_depth)
    ]
    last = make_norm(config.block.norm, config.block.norm_epsilon, name="decoder_norm")
    size = int(np.prod(config.patch_size)) * config.channels
    predict = float32_dense(size, "decoder_pixels")
    cut = PatchPixels(config.patch_size, normalize_pixels, dtype=Float32Policy(), name="targets")
    targets = cut(pixels)

    def connect(*noise: Any) -> dict[str, Any]:
        x, sources = hide(tokens, *noise)
        for block in blocks:
            x = block(x)
        x = embed(norm(x) if norm is not None else x)
        parts = [x[:, :prefix], restore(x[:, prefix:], sources)]
        x = positions(keras.ops.concatenate(parts, axis=1) if prefix else parts[1])
        for block in decoder:
            x = block(x)
        mask = keras.ops.cast(sources < 0, "float32")
        return {"patches": predict(last(x)[:, prefix:]), "targets": targets, "mask": mask}

    images, name = single_input(encoder), f"{encoder.name}_mae"
    model = PixelTrainer(images, connect(), name=name)
    noise = keras.Input((config.num_patches,), name="noise")
    with_noise = Model(
        {"images": images, "noise": noise}, connect(noise), name=f"{name}_with_noise"
    )
    # As in the official code.
    table = sincos_2d(config.grid, decoder_width, last=1 - 4 / decoder_width)
    positions.embedding.assign(np.pad(table, ((prefix, 0), (0, 0)))[None])
    return MaskedAutoencoder(encoder, model, with_noise)


def load_masked_autoencoder(
    weights: str | os.PathLike[str],
    input_shape: tuple[int, int, int] | None = None,
    include_preprocessing: bool = True,
) -> MaskedAutoencoder:
    """Loads a masked autoencoder with its decoder: `ViTMAEForPreTraining` of transformers.

    Args:
        weights: A folder, or an address such as `hf://facebook/vit-mae-base`.
        input_shape: Height and width in pixels, and channels; `None` takes the checkpoint's.
            Positions are resized to others.
        include_preprocessing: Whether the model takes pixels in [0, 255].

    Returns:
        A `MaskedAutoencoder`.

    Raises:
        ValueError: If the file is damaged, asks for what is not computed, or holds another class;
            the message says what loads it.
        DownloadError: If it cannot be fetched.

    Example:

    >>> autoencoder = load_masked_autoencoder("hf://facebook/vit-mae-base")  # doctest: +SKIP
    >>> patches, mask = autoencoder.reconstruct(images, noise)  # doctest: +SKIP
    """
    given: dict[str, Any] = {"input_shape": input_shape}
    with open_network(find_class(weights, (_CLASS,)), os.fspath(weights)) as file:
        config = {**_DEFAULTS, **{k: v for k, v in file.config.items() if v is not None}}
        options = {ours: config[theirs] for theirs, ours in _KEYS.items()}
        given |= {"include_preprocessing": include_preprocessing}
        encoder = file.backbone(file.after("vit."), config, **given)
        facts = file.transformer
        autoencoder = build_masked_autoencoder(encoder, **options)
        encoder.get_layer("position_embedding").trainable = False  # as there
        decoder = file.backbone(
            *_as_transformer(file, config), **{**given, "include_preprocessing": False}
        )
        file.transformer = {**facts, "decoder": file.transformer}
        values = {variable.path: variable for variable in decoder.variables}
        for variable in autoencoder.model.variables:
            value = values.get(_plain_path(variable.path))
            if value is not None and variable.path.startswith("decoder_"):
                variable.assign(value)
        file.finish(autoencoder.model, _HEADS)
    return autoencoder


def _check(encoder: Model) -> ViTConfig:
    """The configuration of an encoder, or a `ValueError` if it needs all patches at once."""
    config = getattr(encoder, "config", None)
    if not isinstance(config, ViTConfig):
        raise ValueError(
            "A masked autoencoder needs a Vision Transformer of this package. Received: "
            f"{encoder!r}. Build it: keras_vit.create_model(..., include_top=False)."
        )
    problems = [f"{x}={value!r}" for x in _NEEDS_ALL if (value := getattr(config, x))]
    problems += ["rotary positions"] if config.block.rope is not None else []
    problems += ["windows"] if any(map(config.window_of, range(config.depth))) else []
    if config.position_embedding not in ("learned", "sincos_2d"):
        problems += [f"position_embedding={config.position_embedding!r}"]
    if problems:
        raise ValueError(
            "The encoder of a masked autoencoder sees some of the patches, each with its position. "
            f"Received: {encoder.name!r}, with {listed(problems)}. Take a plain ViT, such as "
            "vit_ti16 or vit_b16."
        )
    return config


def _plain_path(path: str) -> str:
    """The path of a variable of the decoder in a Transformer with the same blocks."""
    return path.replace("decoder_norm/", "encoder_norm/").removeprefix("decoder_")


def _as_transformer(file: NetworkFile, config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Names and configuration of a Transformer that has the blocks of the decoder."""
    names: dict[str, Any] = {
        plain + rest: name
        for theirs, plain in _DECODER.items()
        for rest, name in file.after(theirs).items()
    }
    width, patch = config["decoder_hidden_size"], config.get("patch_size", 16)
    kernel = (width, config.get("num_channels", 3), *np.broadcast_to(patch, 2).tolist())
    for name, shape in (
        ("cls_token", (1, 1, width)),
        ("patch_embeddings.projection.weight", kernel),
        ("patch_embeddings.projection.bias", (width,)),
    ):
        names[f"embeddings.{name}"] = shape, lambda shape=shape: np.zeros(shape, "float32")
    own = {key.removeprefix("decoder_"): x for key, x in config.items() if "decoder_" in key}
    return names, {**config, **own}


def _describe(encoder: Model, model: Model) -> dict[str, Any]:
    """What `save_network` writes of a model that no file was loaded into."""
    config = dataclasses.replace(_check(encoder), classes=None, pooling=None)
    layout = find_layout(config, "transformers")
    contents = describe(config, layout, ())
    if contents[CONFIG]["model_type"] != "vit":
        raise ValueError(
            f"transformers has no {_CLASS} for a {contents[CONFIG]['model_type']}. Save the "
            "encoder by itself: `autoencoder.encoder.save_pretrained(folder)`."
        )
    blocks = [layer for layer in model.layers if layer.name.startswith("decoder_block_")]
    own = vars(blocks[0].options)
    sizes = {
        "decoder_hidden_size": model.get_layer("decoder_embedding").units,
        "decoder_num_hidden_layers": len(blocks),
        "decoder_num_attention_heads": own["num_heads"],
        "decoder_intermediate_size": own["mlp_dim"],
        "mask_ratio": 1 - model.get_layer("hide_patches").num_kept / config.num_patches,
        "norm_pix_loss": model.get_layer("targets").is_normalized,
    }
    block = dataclasses.replace(config.block, num_heads=own["num_heads"], mlp_dim=own["mlp_dim"])
    decoder = dataclasses.replace(
        config, width=sizes["decoder_hidden_size"], depth=len(blocks), block=block,
        position_embedding="learned",
    )  # fmt: skip
    parts = [
        ({"": "vit."}, config),
        ({plain: theirs for theirs, plain in _DECODER.items()}, decoder),
    ]
    facts: list[dict[str, Any]] = []
    for beginnings, fields in parts:
        keys = file_arrays(build_vit(fields), layout)
        plain = [key.removeprefix(layout.prefixes[0]) for key in keys]
        names = {
            key: theirs + key.removeprefix(ours)
            for key in plain
            for ours, theirs in beginnings.items()
            if key.startswith(ours)
        }
        facts.append({"fields": fields.to_dict(), "layout": layout.name, "names": names})
    stated = {"architectures": [_CLASS], "model_type": "vit_mae", **sizes}
    return {
        "config": {**contents[CONFIG], **stated},
        "processor": contents[PREPROCESSOR],
        "heads": _HEADS,
        "shapes": {},
        "transformer": {**facts[0], "decoder": facts[1]},
    }
