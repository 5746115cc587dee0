"""OWL-ViT and OWLv2: boxes of what texts name, or of what an example picture shows."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import pathlib
import shutil
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit.detection.prediction import predict_sets
from keras_vit.errors import CheckpointError, printable
from keras_vit.families import keys
from keras_vit.files import write_atomically
from keras_vit.models.set_prediction import to_corners
from keras_vit.models.text_detector import (
    EMBEDDINGS,
    EPSILON,
    SCALE,
    SHIFT,
    TextDetector,
    build_patch_model,
    build_text_detector,
)
from keras_vit.networks.network_file import NetworkFile, open_network
from keras_vit.networks.saving import save_network
from keras_vit.pretrained import find_class
from keras_vit.runtime.model import Model, find_preprocessing
from keras_vit.texts.text_files import TextFile
from keras_vit.texts.text_tower import TextConfig, build_text_tower
from keras_vit.texts.tokenizer import Tokenizer, check_texts, load_tokenizer
from keras_vit.weights.save import Sized

# What stands before the names of both towers.
_STARTS = {"OwlViTForObjectDetection": "owlvit.", "Owlv2ForObjectDetection": "owlv2."}
_KEYS = keys.two_towers("text_config_dict vision_config_dict projection_dim logit_scale_init_value")
_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
_HEADS = {
    "merged_norm": "layer_norm",
    EMBEDDINGS: "class_head.dense0", SHIFT: "class_head.logit_shift",
    SCALE: "class_head.logit_scale",
    **{f"box_{step}": f"box_head.dense{step}" for step in range(3)},
    **{f"objectness_{step}": f"objectness_head.dense{step}" for step in range(3)},
}  # fmt: skip
# Defaults of the image processors of transformers, where `preprocessor_config.json` says nothing.
_PROCESSOR = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_FOLLOWED = {"do_resize": True, "do_center_crop": False, "do_pad": True}
_OVERLAP = 0.8  # of the largest overlap with the whole picture, `embed_image_query` there
_BATCH = 32  # texts


@dataclasses.dataclass(eq=False)
class OpenVocabulary:
    """A detector of whatever texts name: see `load_open_vocabulary`.

    Args:
        image: From images to what each patch predicts, see `build_patch_model`.
        text: From int32 ids of shape `(Q, L)` to features of shape `(Q, P)`.
        text_config: Architecture of the text tower.
        folder: Folder of the checkpoint.

    `image.load_report` is the `LoadReport` of the checkpoint.
    """

    image: Model
    text: Model
    text_config: TextConfig
    folder: pathlib.Path
    _file: TextFile = dataclasses.field(repr=False)
    _unused: dict[str, np.ndarray] = dataclasses.field(repr=False)  # of CLIP's training

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint, read on first use; needs the extra `text`."""
        length = self.text_config.context_length
        # As `special_tokens_map.json` of the published files says.
        tokenizer = load_tokenizer(self.folder, length, pad="!")
        tokenizer.cuts = False
        return tokenizer

    def predict(
        self,
        images: Any,
        texts: str | Sequence[str] | None = None,
        token_ids: np.ndarray | None = None,
        query_images: Any = None,
        batch_size: int = 1,
    ) -> dict[str, np.ndarray]:
        """Finds what texts name, or an example picture shows, in images.

        Give one of `texts`, `token_ids` and `query_images`.

        Args:
            images: Arrays of shape `(h, w, 3)` with values in [0, 255], or paths of image files,
                which are turned as their EXIF says; of any size. Without preprocessing
                (`include_preprocessing=False`), an array `(B, H, W, 3)` as the network takes it.
            texts: `Q` texts, the same for all images, such as `"a photo of a cat"`.
            token_ids: Their ids, integers of shape `(Q, L)`, up to the length of the tower. A row
                that begins with 0 is no text: its logits are the lowest of float32.
            query_images: Pictures of an object, as `images`: one for all, or one for each image.
                `Q` is 1 then. As in transformers, OWLv2 looks for the box of the picture that is
                an object most surely; OWL-ViT for one that covers most of the picture and is least
                like its mean.
            batch_size: Images that are computed at a time.

        Returns:
            A dict of float32 arrays: `"logits"` of shape `(B, N, Q)` for every patch; their
            sigmoids are scores. `"boxes"` of shape `(B, N, 4)`: x and y of the centre, width and
            height as shares of the image, in OWLv2 of the image padded to a square. Of OWLv2
            `"objectness"` of shape `(B, N)`, logits; OWL-ViT has none.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If not one of the three is given, there is no text or image, a text is
                longer than the tower takes, ids are not in the vocabulary, or there are other
                numbers of pictures than 1 and that of images; messages have the index.
        """
        given = {"texts": texts, "token_ids": token_ids, "query_images": query_images}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise ValueError(
                f"Pass one of {', '.join(given)}. Received: {' and '.join(names) or 'none'}."
            )
        known = np.array([True])
        if query_images is not None:
            queries = _unit(self._embed_pictures(query_images, batch_size))[:, None]  # (B, 1, P)
        else:
            ids = self._ids(texts) if token_ids is None else self._padded(token_ids)
            queries, known = self._embed(ids)[None], ids[:, 0] != 0  # (1, Q, P)
        outputs = self._outputs(images, batch_size, "images")
        count = len(outputs["boxes"])
        if len(queries) not in (1, count):
            raise ValueError(
                f"`query_images` must be one picture, or one for each of the {count} images. "
                f"Received: {len(queries)}."
            )
        embeddings, shift, scale = (outputs.pop(key) for key in (EMBEDDINGS, SHIFT, SCALE))
        logits = (_unit(embeddings) @ queries.transpose(0, 2, 1) + shift) * scale
        logits[..., ~known] = np.finfo("float32").min
        return {"logits": logits, **outputs}

    def detector(self, texts: str | Sequence[str]) -> TextDetector:
        """Builds a detector of what texts name, which holds their features.

        It needs no text tower, so that it is saved and exported as any model. Its layers are those
        of `image`. It takes images of one size, that of `input_shape`, and neither pads nor resizes
        them; nor does an exported file. `keras_vit.detection.predict_boxes(model, images)` takes
        images of any size. For an exported file, `keras_vit.detection.owl_pixels` makes its input
        of an image: OWL-ViT resizes the whole image, OWLv2 fills it up to a square before.

        Args:
            texts: `K` texts, all different, such as `"a photo of a cat"`.

        Returns:
            A `TextDetector` from images to `"logits"`, `"boxes"` and in OWLv2 `"objectness"`, with
            the texts as `class_names`.

        Raises:
            ValueError: As `predict`; or if two texts are equal.
        """
        names = check_texts(texts)
        twice = [text for text, count in collections.Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"Two texts are equal. Received: {printable(twice[:5])}.")
        return build_text_detector(self.image, self._embed(self._ids(names)), names)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Writes a folder that `load_open_vocabulary` and transformers load.

        Args:
            folder: Where to write the weights, the files of configuration and copies of those of
                the tokenizer.

        Raises:
            ValueError: If the folder has other files of these names, or the network is for images
                that are no square.
        """
        start = _STARTS[self.image.published["config"]["architectures"][0]]
        text = self._file.arrays(self.text, self.text_config, 0.0, None)
        more: dict[str, Sized] = {f"{start}{name}": sized for name, sized in text.items()}
        for name, array in self._unused.items():
            more[name] = array.shape, functools.partial(np.asarray, array)
        folder = save_network(self.image, folder, more=more)
        for name in _TOKENIZER_FILES:
            if (self.folder / name).is_file() and folder != self.folder:
                with write_atomically(folder / name, replace=True) as unfinished:
                    shutil.copyfile(self.folder / name, unfinished)
        return folder

    def _ids(self, texts: Any) -> np.ndarray:
        """Ids of texts, of which there is at least one."""
        texts = check_texts(texts)
        if not texts:
            raise ValueError("`texts` must be one or more texts. Received: none.")
        return self.tokenizer(texts)

    def _padded(self, token_ids: Any) -> np.ndarray:
        """Ids of the length of the tower."""
        ids, length = np.asarray(token_ids), self.text_config.context_length
        size = self.text_config.vocabulary_size
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or not 0 < ids.shape[1] <= length:
            raise ValueError(
                f"`token_ids` must be integers of shape (Q, L), L up to {length} as the tower "
                f"takes. Received: {ids.dtype} of shape {ids.shape}."
            )
        wrong = np.flatnonzero(((ids < 0) | (ids >= size)).any(axis=1))
        if wrong.size or not len(ids):
            received = f"row {wrong[0]}, {ids[wrong[0]].tolist()}" if wrong.size else "no row"
            raise ValueError(f"Ids must be from 0 to {size - 1}. Received: {received}.")
        return np.pad(ids, ((0, 0), (0, length - ids.shape[1]))).astype("int32")

    def _embed(self, ids: np.ndarray) -> np.ndarray:
        """Features of texts `(Q, P)`, of length 1."""
        return _unit(self.text.predict(ids, batch_size=_BATCH, verbose=0))

    def _embed_pictures(self, pictures: Any, batch_size: int) -> np.ndarray:
        """Features of the one box of each picture that is taken for its object, `(B, P)`."""
        outputs = self._outputs(pictures, batch_size, "query_images")
        embeddings = outputs[EMBEDDINGS]  # (B, N, P)
        if "objectness" in outputs:
            best = outputs["objectness"].argmax(axis=-1)
        else:
            # Centres are inside of the picture, so that some box overlaps with it.
            corners = np.asarray(to_corners(outputs["boxes"]))
            inside = np.clip(corners, 0, 1)
            area, common = (np.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (corners, inside))
            overlap = common / (1 + area - common)  # (B, N)
            alike = np.einsum("bnp,bp->bn", embeddings, embeddings.mean(axis=1))
            large = overlap >= _OVERLAP * overlap.max(axis=-1, keepdims=True)
            best = np.where(large, alike, np.inf).argmin(axis=-1)
        return np.take_along_axis(embeddings, best[:, None, None], axis=1)[:, 0]

    def _outputs(self, images: Any, batch_size: int, name: str) -> dict[str, np.ndarray]:
        """The outputs of `image` for images of any size."""
        images = [images] if isinstance(images, str | os.PathLike) else images
        if not len(images):
            raise ValueError(f"`{name}` must be one or more images. Received: none.")
        if not find_preprocessing(self.image)[1]:
            return dict(self.image.predict(np.asarray(images), batch_size, verbose=0))
        rows = [outputs for outputs, _ in predict_sets(self.image, images, batch_size)]
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def load_open_vocabulary(
    folder: str | os.PathLike[str],
    input_shape: tuple[int, int, int] | None = None,
    include_preprocessing: bool = True,
) -> OpenVocabulary:
    """Loads OWL-ViT or OWLv2, which find what texts or an example picture name.

    https://arxiv.org/abs/2205.06230 and https://arxiv.org/abs/2306.09683, from files of
    `OwlViTForObjectDetection` and `Owlv2ForObjectDetection` of transformers.

    Args:
        folder: Folder of a checkpoint, its file, or an address such as
            `"hf://google/owlv2-base-patch16"`. The files of the tokenizer are in the same folder.
        input_shape: Height and width in pixels to which images are resized, and 3; `None` takes
            those of the checkpoint. Positions are resized to another size.
        include_preprocessing: Whether images are pixels of any size in [0, 255]. Otherwise they
            are as the network takes them: of its size, and normalised.

    Returns:
        An `OpenVocabulary` with `predict(images, texts)`, and `detector(texts)`, a Keras model.

    Raises:
        CheckpointError: If the checkpoint is of another class, is damaged or does not fit, or asks
            for what is not computed; the message lists all.
        DownloadError: If an address cannot be fetched.
        ValueError: If `input_shape` is not one size.

    Example:

    >>> owl = keras_vit.detection.load_open_vocabulary("owlv2-base-patch16")  # doctest: +SKIP
    >>> owl.predict(["street.jpg"], ["a photo of a tram"])["boxes"]  # doctest: +SKIP
    >>> model = owl.detector(["a photo of a tram"])  # doctest: +SKIP
    """
    path = find_class(folder, _STARTS, _TOKENIZER_FILES)
    if input_shape is not None and (len(input_shape) != 3 or None in input_shape):
        raise ValueError(
            "`input_shape` must be (height, width, 3): boxes depend on the size of the grid. "
            f"Received: {input_shape}."
        )
    with open_network(path, os.fspath(folder)) as file:
        return _load(file, input_shape=input_shape, include_preprocessing=include_preprocessing)


def _load(file: NetworkFile, **options: Any) -> OpenVocabulary:
    """Loads both towers and the heads."""
    start = _STARTS[file.config["architectures"][0]]
    kept = {key: value for key, value in file.config.items() if key not in ("id2label", "label2id")}
    file = dataclasses.replace(file, config=kept, processor={**_PROCESSOR, **file.processor})
    file.check(_KEYS)
    asked = {key: file.processor.get(key) for key in _FOLLOWED}
    if any(value not in (None, _FOLLOWED[key]) for key, value in asked.items()):
        raise CheckpointError(
            f"preprocessor_config.json of {file.file.path} must say {_FOLLOWED}. Received: {asked}."
        )
    of_text = ("text_model.", "text_projection.", "logit_scale")
    text_names = {
        ours: name for ours, name in file.after(start).items() if ours.startswith(of_text)
    }
    text_file = TextFile(file.renamed(text_names))
    config = text_file.config()
    text = build_text_tower(config)
    text_file.load(text, config)
    file.loaded += [f"{text.name}/{variable.path}" for variable in text.weights]
    unused = {start + x: file.read(start + x) for x in ("logit_scale", "visual_projection.weight")}
    vision = {**(file.config.get("vision_config") or {}), "model_type": "clip_vision_model"}
    names = {
        ours.replace("pre_layernorm", "pre_layrnorm"): name  # misspelt in CLIP
        for ours, name in file.after(f"{start}vision_model.").items()
    }
    tower = file.backbone(names, vision, **options)
    file.processor["size"] = dict(zip(("height", "width"), tower.input_shape[1:3], strict=True))
    model = build_patch_model(
        tower, text.output.shape[-1], "objectness_head.dense0.weight" in file.file.entries
    )
    file.finish(model, _HEADS, ("box_bias",))
    return OpenVocabulary(model, text, config, file.file.path.parent, text_file, unused)


def _unit(features: np.ndarray) -> np.ndarray:
    """Features of length 1, as transformers normalises them."""
    return features / (np.linalg.norm(features, axis=-1, keepdims=True) + np.float32(EPSILON))
