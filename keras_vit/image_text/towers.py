"""Two towers: images and texts to vectors of one space, from published checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit.errors import CheckpointError, DownloadError
from keras_vit.families.rules import Layout
from keras_vit.files import write_atomically
from keras_vit.hub.addresses import parse_hub_address
from keras_vit.hub.cache import fetch
from keras_vit.hub.repositories import MissingFileError
from keras_vit.pretrained import build_pretrained, shape_for
from keras_vit.reading import read_bytes
from keras_vit.runtime.model import Model
from keras_vit.texts.text_files import TextFile
from keras_vit.texts.text_tower import TextConfig as TextConfig
from keras_vit.texts.text_tower import build_text_tower as build_text_tower
from keras_vit.texts.tokenizer import Tokenizer as Tokenizer
from keras_vit.texts.tokenizer import check_texts
from keras_vit.texts.tokenizer import load_tokenizer as load_tokenizer
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.formats import find_file, open_arrays
from keras_vit.weights.layout_search import find_file_layout
from keras_vit.weights.save import Sized, file_arrays, write_npz, write_safetensors

_TRUNK = "visual.trunk."  # of timm's models in open_clip
_OPEN_CLIP_FILE = "open_clip_model.safetensors"
# Files of a repository that stay as they are when its weights are written again.
_SIDECAR = re.compile(
    r"((open_clip_|preprocessor_|tokenizer_)?config|special_tokens_map|added_tokens|tokenizer|vocab)"
    r"\.json|(merges|vocab)\.txt|.*\.model|bpe_\w+\.txt\.gz"
)
# Files that are fetched with the weights, where a repository on the hub has them.
_FETCHED = (
    *("open_clip_config.json", "tokenizer_config.json", "tokenizer.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "bpe_simple_vocab_16e6.txt.gz", "spiece.model", "tokenizer.model"),
)
_MAX_SIDECAR = 1 << 26  # bytes; the tokenizer of SigLIP 2 has half of it
_BATCH = 32
_MAX_LOG = 80  # of float32, which ends at exp(88.7)


@dataclasses.dataclass
class Towers:
    """A model of images and texts: see `load_towers`; or two models of your own, to be trained.

    Args:
        image: From images to features of shape `(B, P)`, which are not normalised.
        text: From int32 ids of shape `(B, L)` to features of shape `(B, P)`.
        text_config: Architecture of the text tower.
        logit_scale: Logarithm of the scale.
        bias: Added to the logits, as in SigLIP; `None` in CLIP.
        folder: Folder of the checkpoint; `None` for models of your own, to which you give a
            `tokenizer`, a function from texts to ids of shape `(texts, L)`.

    Raises:
        ValueError: If logits of this scale would not be finite.
    """

    image: Model
    text: Model
    text_config: TextConfig
    logit_scale: float
    bias: float | None
    folder: pathlib.Path | None = None
    _file: _File | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not abs(self.logit_scale) <= _MAX_LOG:
            raise ValueError(
                f"The logarithm of the scale must be from -{_MAX_LOG} to {_MAX_LOG}, so that "
                f"logits are finite. Received: {self.logit_scale}. CLIP ends at log(100) = 4.6."
            )

    @property
    def scale(self) -> float:
        """Factor of the cosine similarities."""
        return math.exp(self.logit_scale)

    @property
    def activation(self) -> str:
        """What makes probabilities of the logits: `"sigmoid"` with a bias, or `"softmax"`."""
        return "softmax" if self.bias is None else "sigmoid"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint, read on first use; needs the extra `text`."""
        if self.folder is None or self._file is None:
            raise ValueError(
                "These towers are from no checkpoint, and have no tokenizer. Set "
                "`towers.tokenizer` to a function from texts to their ids."
            )
        config, project = self.text_config, self._file.text.layout.project
        clean = "transformers" if project == "transformers" else "open_clip"
        return load_tokenizer(self.folder, config.context_length, config.pooling, clean)

    def encode_images(self, images: Any, batch_size: int = _BATCH) -> np.ndarray:
        """Features of images, float32 array of shape `(B, P)` with rows of length 1."""
        return unit_rows(self.image.predict(images, batch_size=batch_size, verbose=0))

    def encode_texts(self, texts: str | Sequence[str] | np.ndarray) -> np.ndarray:
        """Features of texts, or of their ids, float32 array `(B, P)` with rows of length 1.

        Raises:
            ValueError: If a text is none, or ids have another shape, are not in the vocabulary, or
                lack the end of the text that the tower pools.
        """
        ids = texts if isinstance(texts, np.ndarray) else self.tokenizer(check_texts(texts))
        check_ids(ids, self.text_config)
        return unit_rows(self.text.predict(ids, batch_size=_BATCH, verbose=0))

    def logits(self, images: Any, texts: str | Sequence[str] | np.ndarray) -> np.ndarray:
        """Similarities of images and texts, as the project of the checkpoint computes them.

        Args:
            images: Images as `image` takes them, array of shape `(B, H, W, 3)`.
            texts: Texts, or their ids of shape `(C, L)`.

        Returns:
            float32 array of shape `(B, C)`: cosine similarities times `scale`, plus `bias`.
        """
        cosines = self.encode_images(images) @ self.encode_texts(texts).T
        return np.float32(self.scale) * cosines + np.float32(self.bias or 0.0)


@dataclasses.dataclass(frozen=True)
class _File:
    """Names of a file of two towers, to write such a file again."""

    text: TextFile
    image: Layout
    before: str  # what stands before the names of the image tower


def load_towers(
    path: str | os.PathLike[str],
    include_preprocessing: bool = True,
    image_size: tuple[int, int] | None = None,
) -> Towers:
    """Loads both towers of a checkpoint of CLIP, SigLIP or their relatives.

    Args:
        path: A folder of a copied repository, or the file of weights in it: transformers' (CLIP,
            MetaCLIP 2, SigLIP, SigLIP 2, AIMv2-LiT, TIPSv2), open_clip's, or an `.npz` file of
            big_vision. The files of configuration and tokenizer are read from the same folder. Or
            the address of a repository on the Hugging Face hub, such as
            `"hf://openai/clip-vit-base-patch32"`.
        include_preprocessing: Whether the image tower takes pixels in [0, 255].
        image_size: Pixels along (height, width); `None` takes those of the checkpoint.

    Returns:
        `Towers`: the models `image` and `text`, `scale`, `bias`, `tokenizer`, and `logits(images,
        texts)`. `from_pretrained` loads the image tower alone.

    The scale is at most 100 where the project bounds it, as open_clip and AIMv2 do; not in SigLIP.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file or its configuration cannot be followed; the message lists all.
        DownloadError: If an address cannot be fetched.
        ValueError: If the image tower cannot have `image_size`.

    Example:

    >>> towers = keras_vit.image_text.load_towers("clip-vit-base-patch32")  # doctest: +SKIP
    >>> towers.logits(images, ["a photo of a cat", "a photo of a dog"])  # doctest: +SKIP
    """
    path = _local(path)
    if path.is_dir() and (path / _OPEN_CLIP_FILE).is_file():
        try:
            path = find_file(path)
        except CheckpointError:
            path = path / _OPEN_CLIP_FILE
    with open_arrays(path) as file:
        text_file = TextFile(file)
        settings, config = text_file.settings, text_file.config()
        trunk = _TRUNK if any(name.startswith(_TRUNK) for name in file.entries) else ""
        other = [
            name
            for name in file.entries
            if trunk and name.startswith("visual.") and not name.startswith(_TRUNK)
        ]
        if other:
            raise CheckpointError(
                f"{file.path} has a projection or pooling of open_clip after timm's image tower, "
                f"which is not computed here: {', '.join(sorted(other)[:5])}."
            )
        checkpoint = Checkpoint(file, find_file_layout(file, trunk or None))
        # What is outside of the trunk is the text tower.
        checkpoint.others = tuple(name for name in checkpoint.others if name.startswith(trunk))
        image = build_pretrained(
            checkpoint, input_shape=shape_for(checkpoint, image_size),
            include_preprocessing=include_preprocessing, name="image_tower", **settings.image,
        )  # fmt: skip
        if getattr(image.config, "max_num_patches", None) is not None:
            raise CheckpointError(
                f"{file.path} takes images of any aspect ratio (NaFlex), which is not possible "
                "here yet. `keras_vit.from_pretrained` loads its image tower."
            )
        text = build_text_tower(config)
        if image.output_shape[-1] != text.output_shape[-1]:
            raise CheckpointError(
                f"The towers in {file.path} give vectors of {image.output_shape[-1]} and "
                f"{text.output_shape[-1]} dimensions: the file is incomplete."
            )
        text_file.load(text, config)
        scale = text_file.scalar("logit_scale")
        scale = settings.logit_scale if scale is None else scale
        if scale is None:
            raise CheckpointError(f"{file.path} has no scale of the logits. Fetch it again.")
        bias = text_file.scalar("logit_bias")
        if settings.max_logit_scale is not None and bias is None:
            scale = min(max(scale, 0.0), settings.max_logit_scale)
        layout = dataclasses.replace(checkpoint.layout, prefixes=(checkpoint.prefix,))
        names = _File(text_file, layout, trunk)
        try:
            return Towers(image, text, config, scale, bias, file.path.parent, names)
        except ValueError as error:
            raise CheckpointError(f"{file.path}: {error} Fetch it again.") from error


def _local(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a file or folder, or of what is fetched from the hub."""
    text = os.fspath(path)
    if not text.startswith("hf://"):
        return pathlib.Path(text).expanduser()
    try:
        return fetch(text, beside=_FETCHED)
    except DownloadError as error:
        if parse_hub_address(text).filename is not None:
            raise
        is_missing = isinstance(error, MissingFileError)  # else only the cache may have another
        with contextlib.suppress(DownloadError):
            other = f"{text.rstrip('/')}/{_OPEN_CLIP_FILE}"
            return fetch(other, download=is_missing, beside=_FETCHED)
        raise


def save_towers(towers: Towers, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes both towers in the layout that they were loaded from.

    Args:
        towers: Towers of `load_towers`, which may have been trained further.
        folder: Folder for the weights, in one file of float32, and copies of the files of
            configuration and tokenizer.

    Returns:
        The folder, which `load_towers` and the project of the layout read.

    Raises:
        ValueError: If the layout cannot hold the image tower, or the towers are from no checkpoint.
            Nothing is written then.
    """
    if towers._file is None or towers.folder is None:
        raise ValueError(
            "These towers are from no checkpoint, whose layout they could be written in. Save "
            "`towers.image` and `towers.text` with `model.save`."
        )
    names, folder = towers._file, pathlib.Path(folder).expanduser()
    arrays = arrays_of(towers)
    entries = names.text.file.entries
    other = [
        key for key, (shape, _) in arrays.items() if key in entries and shape != entries[key].shape
    ]
    if other:
        raise ValueError(
            "The project of the checkpoint keeps positions otherwise than this package writes "
            f"them: {', '.join(other[:5])}. Save `towers.image` with `save_weights`, and both "
            "models with `model.save`."
        )
    name = names.text.file.path.name.replace(".safetensors.index.json", ".safetensors")
    with write_atomically(folder / name, replace=True) as unfinished:
        with open(unfinished, "wb") as stream:
            (write_npz if names.image.kind == "npz" else write_safetensors)(stream, arrays)
        for file in sorted(towers.folder.iterdir()):
            if _SIDECAR.fullmatch(file.name) and file.is_file():
                content = read_bytes(file, _MAX_SIDECAR)
                unfinished.with_name(file.name).write_bytes(content)
    return folder


def arrays_of(towers: Towers) -> dict[str, Sized]:
    """Both towers in the names and shapes of the file that they were loaded from."""
    names = towers._file
    assert names is not None
    image = file_arrays(towers.image, names.image)
    text = names.text.arrays(towers.text, towers.text_config, towers.logit_scale, towers.bias)
    return {f"{names.before}{name}": sized for name, sized in image.items()} | text


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Divides every row by its length, in float32."""
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)


def check_ids(ids: np.ndarray, config: TextConfig) -> None:
    """Raises ValueError for ids that a text tower would give features of nothing for."""
    is_table = ids.dtype.kind in "iu" and ids.ndim == 2 and len(ids) > 0
    if not is_table or ids.shape[1] != config.context_length:
        raise ValueError(
            f"Ids must be integers of shape (texts, {config.context_length}), padded as the "
            f"tokenizer does. Received: {ids.dtype} of shape {ids.shape}."
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < config.vocabulary_size:
        raise ValueError(
            f"Ids must be from 0 to {config.vocabulary_size - 1}. Received: ids from {ids.min()} "
            f"to {ids.max()}, of another tokenizer."
        )
    if config.pooling == "mean" and (ids == config.pad_id).all(axis=1).any():
        raise ValueError(
            "Every text must have an id that is no padding. Received: a text of padding alone, as "
            "an empty one has."
        )
    if config.pooling == "eot":
        end = config.vocabulary_size - 1 if config.end_id is None else config.end_id
        without = np.flatnonzero(~(ids == end).any(axis=1))
        if len(without):
            raise ValueError(
                f"Every text must have its end, id {end}, which the tower pools. Received: "
                f"{len(without)} texts without it, the first at {without[0]}. Use the tokenizer of "
                "the checkpoint."
            )
